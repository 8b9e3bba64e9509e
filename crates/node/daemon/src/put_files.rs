//! Before ranks are restarted, the files that their program had open at the checkpoint are put back as they were.
//!
//! ```text
//! kept:     the same file ─► written in place          gone, or another file ─► temporary ─► fsync ─► rename
//! not kept: the same file, not shorter ─► cut          else: told, and nothing is restarted
//! read:     another one by now ─► a warning
//! ```
//! Invariants: nothing of a file is touched before all that was kept was read and found good; putting back what was put back
//! already changes nothing, so a restart that failed in the middle can be begun again. Faults assumed: the checkpoint's directory is
//! anybody's; files are exchanged, cut, gone, with their directories; disks are full.

use crate::put_into_space::{self, place, put};
use mend_data::space::mounts::Mount;
use mend_kernel::untrusted::open_within;
use mend_messages::files::{FileState, FileUse, KEPT_DIRECTORY, Keeping, KeptFile, NotPut, PutOrder, is_shared_pointer};
use mend_report::with_causes;
use mend_sealed::{Key, Opener};
use mend_transfer::TransferError;
use mend_transfer::pipeline::{Nowhere, Rest, Source, Stage, Target, run};
use mend_transfer::progress::Progress;
use mend_transfer::stage::Checksum;
use rustix::fs::{Gid, Mode, OFlags, Timespec, Timestamps, Uid, fchmod, fchown, futimens};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, create_dir_all, remove_file, symlink_metadata};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A file that is not as it was, and cannot be made so. Nothing runs.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// What was kept cannot be used.
    #[error("what was kept of {} cannot be used", path.display())]
    Kept {
        /// The program's file.
        path: PathBuf,
        /// What went wrong with it.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("{} cannot be put back as it was", path.display())]
    Write {
        /// The file that was to be put back.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// It was not kept, and is another one now.
    #[error("{} {what}; its content was not kept with the checkpoint ({why})", path.display())]
    Changed {
        /// The file that is another one.
        path: PathBuf,
        /// How it differs.
        what: String,
        /// Why it was not kept.
        why: String,
    },
}

impl PutError {
    /// As the controller is told.
    pub fn told(&self) -> NotPut {
        NotPut { error: with_causes(self), kept: matches!(self, Self::Kept { .. }) }
    }
}

/// Files of data spaces that are only read are looked at for so long, and one more: a target that was lost is waited for with each.
const READ_TIME: Duration = Duration::from_secs(1);

/// Puts all of them back, those of data spaces where ranks see these. What users should know. Blocks, until `stop` is set: then somebody else may
/// put these files.
///
/// # Errors
/// The first file that cannot be what it was.
pub fn put_files(
    order: &PutOrder,
    mounts: &[Mount],
    seal: Option<[u8; 32]>,
    progress: &Progress,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<String>, PutError> {
    let mut contents = Vec::new();
    for file in &order.files {
        let content = match &file.keeping {
            Keeping::Content { name, stored, checksum } => {
                let kept = Content {
                    progress,
                    stop,
                    seal: seal.map(Key::from_bytes),
                    size: file.state.size,
                    stored: *stored,
                    checksum: *checksum,
                };
                let opened = open_kept(&order.checkpoint, name).and_then(|opened| kept.check(&opened).map(|()| opened));
                let opened = opened.map_err(|source| PutError::Kept { path: file.path.clone().into(), source })?;
                Some((kept, opened))
            }
            _ => None,
        };
        contents.push(content);
    }
    remove_shared_pointers(order, mounts).map_err(|(path, source)| PutError::Write { path, source })?;
    let (mut told, mut looked, mut passed_over) = (Vec::new(), Duration::ZERO, false);
    for (file, content) in order.files.iter().zip(contents) {
        let path = Path::new(&file.path);
        let failed = |source| PutError::Write { path: path.to_owned(), source };
        go_on(stop).map_err(failed)?;
        if let Some(place) = place(mounts, &file.path) {
            let differs = |why: &str, source: io::Error| PutError::Changed {
                path: path.to_owned(),
                what: format!("is not as it was: {source}"),
                why: why.to_owned(),
            };
            let put = |part: &str| put(place, part, &file.state, |_| Ok(()));
            match (content, file.usage, &file.keeping) {
                (Some((kept, opened)), ..) => {
                    put_into_space::put(place, "content", &file.state, |input| kept.pour(&opened, input)).map_err(failed)?;
                }
                // Staged files never change, and nobody may write them.
                (None, FileUse::Read, _) if file.state.mode & 0o222 == 0 => {}
                (None, FileUse::Read, _) if looked >= READ_TIME => passed_over = true,
                (None, FileUse::Read, _) => {
                    let since = Instant::now();
                    told.extend(
                        put("read").err().map(|error| format!("{}, which the program reads, is not as it was: {error}", file.path)),
                    );
                    looked += since.elapsed();
                }
                (None, _, Keeping::Not(why)) => put("nothing").map_err(|error| differs(why, error))?,
                (None, ..) => put("size").map_err(|error| differs("it is only appended to", error))?,
            }
            continue;
        }
        match (content, file.usage) {
            (Some((kept, opened)), _) => put_back(path, &file.state, &kept, &opened).map_err(failed)?,
            (None, FileUse::Read) => told.extend(changed_since(file)),
            (None, _) => cut(file)?,
        }
    }
    if passed_over {
        told.push("not all files of data spaces that the program only reads were looked at: it would have taken too long".to_owned());
    }
    Ok(told)
}

/// Nothing is written any more for a job that has left.
fn go_on(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Acquire) { Err(io::Error::other("the job has left this node")) } else { Ok(()) }
}

/// ROMIO gives a shared file pointer its name when a file is opened, but makes it when the pointer is used first, and takes one that is there already for its own. One that
/// was made since the checkpoint goes: else ranks would go on where they were before they went back.
fn remove_shared_pointers(order: &PutOrder, mounts: &[Mount]) -> Result<(), (PathBuf, io::Error)> {
    let mut by_directory: BTreeMap<&Path, Vec<&str>> = BTreeMap::new();
    for file in order.files.iter().filter(|file| place(mounts, &file.path).is_none()) {
        let path = Path::new(&file.path);
        if let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) {
            by_directory.entry(above).or_default().push(name);
        }
    }
    let kept: BTreeSet<&str> =
        order.files.iter().map(|file| file.path.as_str()).chain(order.elsewhere.iter().map(String::as_str)).collect();
    for (above, names) in by_directory {
        // One that is gone has none; what else is wrong with it is told when the file is put there.
        for entry in fs::read_dir(above).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let (Some(text), Some(name)) = (path.to_str(), name.to_str()) else { continue };
            let is_ours = names.iter().any(|of| is_shared_pointer(name, Some(of))) && !kept.contains(text);
            let own = |about: Metadata| about.is_file() && about.uid() == rustix::process::geteuid().as_raw();
            if is_ours && entry.metadata().is_ok_and(own) {
                match remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((path, error)),
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

/// Lets bytes pass until the job leaves.
struct Unless(Arc<AtomicBool>);

impl Stage for Unless {
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        go_on(&self.0).map_err(TransferError::Write)?;
        rest.give(piece)
    }
}

/// Opens what was kept: a regular file in that very directory.
fn open_kept(checkpoint: &Path, name: &str) -> io::Result<File> {
    open_within(checkpoint, &Path::new(KEPT_DIRECTORY).join(name))
}

/// What was kept of one file.
struct Content<'a> {
    progress: &'a Progress,
    stop: &'a Arc<AtomicBool>,
    seal: Option<Key>,
    size: u64,
    stored: u64,
    checksum: Option<u64>,
}

/// A file whose pages read as zero where nothing is written.
struct SparseFile<'a> {
    file: &'a File,
    at: u64,
}

impl Target for SparseFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        if bytes.iter().any(|byte| *byte != 0) {
            self.file.write_all_at(bytes, self.at)?;
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn commit(self) -> Result<u64, TransferError> {
        Ok(self.at)
    }
}

impl Content<'_> {
    /// Reads all of it, if there is something to compare with.
    fn check(&self, opened: &File) -> io::Result<()> {
        if opened.metadata()?.len() != self.stored {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is torn"));
        }
        if self.checksum.is_none() { Ok(()) } else { self.pour(opened, Nowhere::default()) }
    }

    /// Moves it, opened if it is encrypted, to a target that is committed if it is what was kept.
    fn pour(&self, mut opened: &File, target: impl Target) -> io::Result<()> {
        opened.rewind()?;
        let mut source: Box<dyn Source + '_> = match &self.seal {
            Some(key) => Box::new(Opener::new(opened, key)?),
            None => Box::new(opened),
        };
        let stages: Vec<Box<dyn Stage>> = vec![Box::new(Unless(self.stop.clone())), Box::new(Checksum::new(self.size, self.checksum))];
        match run(&mut *source, stages, target, self.progress) {
            Ok(_) => Ok(()),
            // Callers name the file.
            Err(TransferError::Source(cause) | TransferError::Write(cause)) => Err(cause),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    fn write(&self, opened: &File, target: &File) -> io::Result<()> {
        // A clone never shortens its target.
        target.set_len(0)?;
        if self.seal.is_none() && rustix::fs::ioctl_ficlone(target, opened).is_ok() {
            return Ok(());
        }
        target.set_len(self.size)?;
        self.pour(opened, SparseFile { file: target, at: 0 })
    }
}

fn put_back(path: &Path, state: &FileState, kept: &Content, opened: &File) -> io::Result<()> {
    let there = symlink_metadata(path).ok();
    if there.as_ref().is_some_and(Metadata::is_dir) {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "a directory is there now"));
    }
    let same = there.as_ref().is_some_and(|there| is_same(there, state));
    // What was changed just before it was kept may have been changed once more since, within the same tick of the clock.
    if let Some(there) = there.as_ref().filter(|_| same && state.is_settled())
        && (there.len(), modified(there), changed(there)) == (state.size, state.modified, state.changed)
        && tells_changes(path)
    {
        return Ok(());
    }
    let in_place = || {
        let mut options = OpenOptions::new();
        let file = options.write(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32).open(path)?;
        kept.write(opened, &file)?;
        finish(&file, state)
    };
    if same {
        return in_place();
    }
    match replaced(path, state, kept, opened) {
        // A directory that may not be written to, with a file that may.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && there.is_some_and(|there| there.is_file()) => in_place(),
        done => done,
    }
}

/// Makes the file anew under a name of its own, then gives it the right one.
fn replaced(path: &Path, state: &FileState, kept: &Content, opened: &File) -> io::Result<()> {
    let above = path.parent().unwrap_or(Path::new("/"));
    create_dir_all(above)?;
    let random: [u8; 8] = mend_wire::random_bytes();
    let temporary = above.join(format!(".mend-{:016x}", u64::from_ne_bytes(random)));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = kept.write(opened, &file).and_then(|()| finish(&file, state)).and_then(|()| go_on(kept.stop));
    let done = written.and_then(|()| mend_durable::rename(&temporary, path));
    if done.is_err() {
        let _ = remove_file(&temporary);
    }
    done
}

/// Owner, mode and time, and all of it durable.
fn finish(mut file: &File, state: &FileState) -> io::Result<()> {
    file.flush()?;
    let (owner, group) = state.owner;
    if rustix::process::geteuid().is_root() {
        fchown(file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))?;
    }
    // Of a file of another owner's that may be written to, the mode is not ours to set.
    let own = file.metadata()?;
    if own.mode() & 0o7777 != state.mode {
        fchmod(file, Mode::from_raw_mode(state.mode))?;
    }
    let time = Timespec { tv_sec: state.modified.0, tv_nsec: state.modified.1.into() };
    match futimens(file, &Timestamps { last_access: time, last_modification: time }) {
        Err(errno) if errno != rustix::io::Errno::PERM => return Err(errno.into()),
        _ => {}
    }
    file.sync_all()
}

/// Whether it is the file that it was: its number may have been used again.
fn is_same(there: &Metadata, state: &FileState) -> bool {
    there.is_file() && there.ino() == state.inode && (state.born.is_none() || born(there) == state.born)
}

fn born(file: &Metadata) -> Option<(i64, u32)> {
    let time = file.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some((time.as_secs() as i64, time.subsec_nanos()))
}

/// Memory that is written through a mapping does not show in the times of a file that lies in memory.
fn tells_changes(path: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    rustix::fs::statfs(path).is_ok_and(|about| about.f_type as u64 != TMPFS)
}

fn modified(file: &Metadata) -> (i64, u32) {
    (file.mtime(), file.mtime_nsec() as u32)
}

fn changed(file: &Metadata) -> (i64, u32) {
    (file.ctime(), file.ctime_nsec() as u32)
}

/// Why the file at this path is not the one of the checkpoint; `None`: it is, or looks like it, or has only grown.
fn other_file(file: &KeptFile, there: &Metadata) -> Option<String> {
    let state = &file.state;
    let alike = (there.len(), modified(there)) == (state.size, state.modified);
    if !there.is_file() {
        Some("is no regular file any more".to_owned())
    } else if !is_same(there, state) && !alike {
        Some("was replaced by another file since".to_owned())
    } else if there.len() < state.size {
        Some(format!("has {} bytes, fewer than the {} when the image was taken", there.len(), state.size))
    } else {
        None
    }
}

/// Cuts a file that grew to the length that it had.
fn cut(file: &KeptFile) -> Result<(), PutError> {
    let path = PathBuf::from(&file.path);
    let why = match &file.keeping {
        Keeping::Not(why) => why.clone(),
        _ => "it is only appended to".to_owned(),
    };
    let differs = |what: String| PutError::Changed { path: path.clone(), what, why: why.clone() };
    let failed = |source| PutError::Write { path: path.clone(), source };
    let there = match symlink_metadata(&path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(differs("is gone".to_owned())),
        Err(error) => return Err(failed(error)),
    };
    if let Some(what) = other_file(file, &there) {
        return Err(differs(what));
    }
    if there.len() > file.state.size {
        let grown = OpenOptions::new().write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path).map_err(failed)?;
        grown.set_len(file.state.size).map_err(failed)?;
    }
    Ok(())
}

/// A warning, if a file that is only read is not what it was.
fn changed_since(file: &KeptFile) -> Option<String> {
    let there = match symlink_metadata(&file.path) {
        Ok(there) => there,
        Err(error) => return Some(format!("{}, which the program reads, cannot be found: {error}", file.path)),
    };
    let same = (there.len(), modified(&there)) == (file.state.size, file.state.modified);
    (!same).then(|| format!("{}, which the program reads, was changed since the checkpoint", file.path))
}

#[cfg(test)]
mod tests;
