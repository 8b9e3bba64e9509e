//! The program's files at a checkpoint: what each was, and what is kept of it.
//!
//! ```text
//! all ranks parked and saved ── KeepFiles ─► agents: claim, clone or copy each file into N.part/files ── Kept ─► manifest
//! before any rank is built   ── PutFiles ──► one daemon per file: as it was ── FilesPut
//! ```

use crate::job::Rank;
use mend_image::launch::MAX_NOT_PUT_BACK;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Name of the directory within a checkpoint's that kept files are in.
pub const KEPT_DIRECTORY: &str = "files";

/// What a rank's agent is to keep of the files that its program has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepOrder {
    /// Directory of the checkpoint that is being written. It exists where the rank can see it.
    pub checkpoint: PathBuf,
    /// Largest file that is copied, bytes. One that the file system can clone may be larger.
    pub limit: u64,
    /// What copies are encrypted with. The rank's daemon fills it in.
    pub seal: Option<[u8; 32]>,
}

/// How the program has a file open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FileUse {
    /// For reading alone.
    Read,
    /// For writing, always at its end (`O_APPEND`).
    Append,
    /// The file is open for writing.
    Write,
}

/// Seconds since 1970 and nanoseconds.
pub type FileTime = (i64, u32);

/// What the kernel tells of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// The length in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Number in its file system.
    pub inode: u64,
    /// When it was made, where the file system knows: numbers are used again.
    pub born: Option<FileTime>,
    /// When its content was changed.
    pub modified: FileTime,
    /// When anything of it was changed. Of a [`KeptFile`] [`FileTime::default`], where a later change could bear the same time.
    pub changed: FileTime,
}

impl FileState {
    /// The same with a time of the last change that no file has: whether it was changed since is not known.
    #[must_use]
    pub fn unsettled(self) -> Self {
        Self { changed: FileTime::default(), ..self }
    }

    /// Whether the time of the last change tells of each change since.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.changed != FileTime::default()
    }
}

/// What a checkpoint has of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeping {
    /// Its content, under this name in [`KEPT_DIRECTORY`].
    Content {
        /// File name.
        name: String,
        /// Length of that file; more than the content's if it is encrypted.
        stored: u64,
        /// XXH3 of the content; `None` for a clone, which shares its blocks with the original.
        checksum: Option<u64>,
    },
    /// Another rank keeps it.
    Elsewhere,
    /// Nothing: it is only appended to, or only read.
    State,
    /// Nothing, for this reason.
    Not(String),
}

/// A file that a program has open, as it is while all ranks stand still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// The same for all ranks that have it open, and for no other file of the checkpoint.
    pub key: String,
    /// A rank that has it open; set by the controller.
    pub rank: Rank,
    /// The file's absolute path.
    pub path: String,
    /// How it is open.
    pub usage: FileUse,
    /// As it is.
    pub state: FileState,
    /// What is kept of it.
    pub keeping: Keeping,
}

impl KeptFile {
    /// Bytes that it takes in the checkpoint.
    #[must_use]
    pub fn stored(&self) -> u64 {
        if let Keeping::Content { stored, .. } = self.keeping { stored } else { 0 }
    }

    /// Why a restart may not be able to put it back, if so.
    #[must_use]
    pub fn not_kept(&self) -> Option<String> {
        let Keeping::Not(why) = &self.keeping else { return None };
        Some(format!("{} ({} bytes) is open for writing and is not kept: {why}", self.path, self.state.size))
    }
}

/// All files of a checkpoint once each, what was kept of it before what was not. A node's cache may know a file as shorter than it is, so the
/// largest size counts; content that is shorter was read from such a cache.
#[must_use]
pub fn merged(all: impl IntoIterator<Item = KeptFile>) -> Vec<KeptFile> {
    let rank = |file: &KeptFile| match file.keeping {
        Keeping::Content { .. } => 0,
        Keeping::Not(_) => 1,
        Keeping::State => 2,
        Keeping::Elsewhere => 3,
    };
    let mut files: Vec<KeptFile> = all.into_iter().collect();
    files.sort_by(|one, other| (&one.key, rank(one), one.rank).cmp(&(&other.key, rank(other), other.rank)));
    let mut found: Vec<KeptFile> = Vec::new();
    for file in files {
        match found.last_mut().filter(|last| last.key == file.key) {
            Some(last) => {
                // One rank appends, another writes.
                last.usage = last.usage.max(file.usage);
                if file.state.size > last.state.size {
                    if let Keeping::Content { .. } = last.keeping {
                        let (longer, kept) = (file.state.size, last.state.size);
                        let why =
                            format!("rank {} sees {longer} bytes of it, and what was kept by rank {} has {kept}", file.rank, last.rank);
                        last.keeping = Keeping::Not(why);
                    }
                    last.state = FileState { size: file.state.size, ..last.state }.unsettled();
                }
            }
            None => found.push(file),
        }
    }
    found
}

/// Files to be put back as they were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutOrder {
    /// The checkpoint's directory.
    pub checkpoint: PathBuf,
    /// The files that are put back.
    pub files: Vec<KeptFile>,
    /// Shared file pointers that other nodes put back ([`is_shared_pointer`]).
    pub elsewhere: Vec<String>,
}

/// The files that programs had open for writing at a checkpoint are as they were by now, all but some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutBack {
    /// The paths of those whose content was not kept.
    pub except: Vec<String>,
}

impl PutBack {
    /// When these have been put back. `None` if too many were not kept.
    #[must_use]
    pub fn of(files: &[KeptFile]) -> Option<Self> {
        let kept = |file: &KeptFile| matches!(file.keeping, Keeping::Content { .. });
        let others = files.iter().filter(|file| file.usage == FileUse::Write && !kept(file));
        let except: Vec<String> = others.map(|file| file.path.clone()).take(MAX_NOT_PUT_BACK + 1).collect();
        (except.len() <= MAX_NOT_PUT_BACK).then_some(Self { except })
    }

    /// As the restorer is told.
    #[must_use]
    pub fn argument(&self) -> Option<mend_image::launch::PutBack> {
        mend_image::launch::PutBack::all_but(self.except.iter().map(String::as_bytes))
    }
}

/// Whether the last part of a path is that of a file in which ROMIO, the MPI-IO of MPICH and Intel MPI, keeps the shared pointer of this one (`.NAME.shfp.NUMBER`,
/// with a second number behind a dot in newer ones), or without a name of any file.
#[must_use]
pub fn is_shared_pointer(path: &str, of: Option<&str>) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let Some((file, number)) = name.strip_prefix('.').and_then(|name| name.rsplit_once(".shfp.")) else { return false };
    let is_number = |part: &str| {
        let digits = part.strip_prefix('-').unwrap_or(part);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    number.split('.').all(is_number) && of.is_none_or(|of| of == file)
}

/// Why a file could not be put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotPut {
    /// Which, and why.
    pub error: String,
    /// What the checkpoint kept of it cannot be used: an older checkpoint may do.
    pub kept: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_several_ranks_is_there_once() {
        let content = Keeping::Content { name: "a".into(), stored: 3, checksum: None };
        let file = |key: &str, rank, usage, keeping: &Keeping| KeptFile {
            key: key.into(),
            rank,
            path: format!("/{key}"),
            usage,
            state: FileState::default(),
            keeping: keeping.clone(),
        };
        let found = merged([
            file("a", 0, FileUse::Append, &Keeping::Elsewhere),
            file("b", 0, FileUse::Read, &Keeping::State),
            file("a", 1, FileUse::Write, &content),
            file("a", 2, FileUse::Read, &Keeping::State),
        ]);
        assert_eq!(found, [file("a", 1, FileUse::Write, &content), file("b", 0, FileUse::Read, &Keeping::State)]);
        assert_eq!((found[0].stored(), found[1].stored()), (3, 0));
    }

    #[test]
    fn what_was_not_kept_is_not_put_back() {
        let content = Keeping::Content { name: "a".into(), stored: 3, checksum: None };
        let file = |path: &str, usage, keeping: &Keeping| KeptFile {
            key: path.into(),
            rank: 0,
            path: path.into(),
            usage,
            state: FileState::default(),
            keeping: keeping.clone(),
        };
        let large = file("/large", FileUse::Write, &Keeping::Not("it is too large".into()));
        let files = [file("/kept", FileUse::Write, &content), file("/log", FileUse::Append, &Keeping::State), large.clone()];
        assert_eq!(PutBack::of(&files), Some(PutBack { except: vec!["/large".into()] }));
        assert_eq!(PutBack::of(&vec![large; MAX_NOT_PUT_BACK + 1]), None);
    }

    #[test]
    fn the_longest_that_any_rank_sees_of_a_file_counts() {
        let content = Keeping::Content { name: "a".into(), stored: 3, checksum: None };
        let file = |key: &str, rank, usage, size, keeping: &Keeping| KeptFile {
            key: key.into(),
            rank,
            path: format!("/{key}"),
            usage,
            state: FileState { size, changed: (7, 8), ..FileState::default() },
            keeping: keeping.clone(),
        };
        let found = merged([
            file("appended", 0, FileUse::Append, 3, &Keeping::State),
            file("appended", 1, FileUse::Append, 5, &Keeping::State),
            file("stale", 0, FileUse::Write, 3, &content),
            file("stale", 1, FileUse::Write, 5, &Keeping::Elsewhere),
            file("whole", 0, FileUse::Write, 3, &Keeping::Elsewhere),
            file("whole", 1, FileUse::Write, 5, &content),
        ]);
        assert_eq!(found.iter().map(|file| file.state.size).collect::<Vec<_>>(), [5, 5, 5]);
        assert_eq!((&found[0].keeping, &found[2].keeping), (&Keeping::State, &content));
        let why = found[1].not_kept().unwrap();
        assert!(why.contains("rank 1 sees 5 bytes of it, and what was kept by rank 0 has 3"), "{why}");
        assert!(found[2].state.is_settled() && !found[1].state.is_settled());
    }
}
