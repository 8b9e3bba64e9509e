//! A data space: files of a job, striped over directories of its nodes (targets), for as long as the job needs them.
//!
//! `layout` is where the bytes of a file are, `placement` which targets a new file gets, `replicas` which ones get a second copy, `window` which files do and when, `healing` which ones it gets instead of those that were lost, `catalogue` what all targets together know, `conflicts` how files are kept that have one path, `target` what
//! clients and targets say to each other, `mounts` where ranks see spaces, `written` what is known of a file that ranks write, `blocks` how targets tell what of it has changed. Nothing here touches a file or a socket: `mend-space` and `mend-data` do.
//!
//! There is no server of metadata. Each file has an [`Entry`], and each of its holders (the targets with its bytes, and always two if there are two)
//! keeps a copy of it in a database of its own. The catalogue of the space is the union of what the targets know, so the loss of one of them takes no name away.
//! Entries are never changed by what is written, only added and removed: an entry is either there or known to be gone, whatever the order in which targets are asked. Where its bytes are
//! may change, when a target was lost, and the name of a file that ranks wrote: then the entry is told again with a higher version, and of one entry the highest counts.

pub mod blocks;
pub mod catalogue;
pub mod conflicts;
pub mod copies;
mod failed;
pub mod healing;
pub mod layout;
pub mod mounts;
pub mod placement;
pub mod replicas;
pub mod target;
pub mod window;
pub mod written;

use crate::record::Source;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use written::Written;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Layout of the file that describes a space.
pub const FORMAT: u32 = 1;
/// Bytes of a block: what has one checksum, and what caches hold.
pub const BLOCK: u64 = 64 << 10;
/// Checksums of a page: 64 KiB of them, for 256 MiB of a file.
pub const SUMS_OF_PAGE: u64 = 4096;
/// Most targets of a space.
pub const MAX_TARGETS: usize = 1024;
/// Longest stripe, bytes.
pub const MAX_STRIPE: u64 = 1 << 30;
/// Most bytes of a path in a space, as of Linux's (PATH_MAX, limits.h).
pub const MAX_PATH: usize = 4095;
/// Most bytes of a name in it (NAME_MAX).
pub const MAX_NAME: usize = 255;
/// Copies of an entry and of a file's checksums, if there are so many targets.
pub const COPIES: usize = 2;

/// Directory of a target for which none is named, below `base`, of the user with this number.
#[must_use]
pub fn default_directory(base: &str, name: &str, user: u32) -> String {
    format!("{}/mend-space-{name}-{user}", base.trim_end_matches('/'))
}

/// How places in buckets begin.
const BUCKET: &str = "s3://";

/// True of what names a place in a bucket instead of a directory.
#[must_use]
pub fn is_in_bucket(directory: &str) -> bool {
    directory.starts_with(BUCKET)
}

/// Why this cannot be a target's place in a bucket.
#[must_use]
pub fn bucket_obstacle(place: &str) -> Option<&'static str> {
    let Some((bucket, prefix)) = place.strip_prefix(BUCKET).and_then(|rest| rest.split_once('/').or(Some((rest, "")))) else {
        return Some("it does not begin with s3://");
    };
    let fit = |text: &str, more: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte));
    match () {
        () if !(3..=63).contains(&bucket.len()) || !fit(bucket, b"-.") => {
            Some("buckets have names of 3 to 63 letters, digits, `-` and `.`")
        }
        () if !fit(prefix, b"-._/") || prefix.split('/').any(|name| matches!(name, "." | "..")) => {
            Some("a prefix has letters, digits, `-`, `_`, `.` and `/`, and no name that is `.` or `..`")
        }
        () if place.len() > 512 => Some("it is longer than 512 bytes"),
        () if prefix.contains("//") => Some("it has two slashes in a row"),
        () => None,
    }
}

/// Directory of files that were removed while they were open; it is not listed.
pub const HIDDEN: &str = ".mend-removed";

/// Names one state of a file or directory. Drawn at random, never used twice.
pub type Id = [u8; 16];

/// A target: a directory on a node, or a place in a bucket that the node serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The node's name, as it was given.
    pub host: String,
    /// Its daemon.
    pub address: SocketAddr,
    /// The directory, absolute; or `s3://BUCKET/PREFIX`.
    pub directory: String,
}

impl Target {
    /// True if its objects are in a bucket: any node can serve it.
    #[must_use]
    pub fn is_in_bucket(&self) -> bool {
        is_in_bucket(&self.directory)
    }

    /// How people are told of it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}:{}", self.host, self.directory)
    }
}

/// How files are spread over targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Striping {
    /// Bytes on one target before the next one's turn, a multiple of [`BLOCK`].
    pub size: u64,
    /// How many targets; 0 means all.
    pub count: u16,
}

impl Default for Striping {
    fn default() -> Self {
        Self { size: 1 << 20, count: 0 }
    }
}

impl Striping {
    /// True if files can be laid out so.
    #[must_use]
    pub fn is_sound(self) -> bool {
        self.size > 0 && self.size <= MAX_STRIPE && self.size.is_multiple_of(BLOCK)
    }
}

/// A space, as its owner and the nodes that use it know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// [`FORMAT`].
    pub format: u32,
    /// What people call it.
    pub name: String,
    /// What it is: a later space of the same name has another.
    pub id: Id,
    /// Its targets. Entries name them by their place here, so the list is never changed.
    pub targets: Vec<Target>,
    /// For files of which no directory says otherwise.
    pub striping: Striping,
    /// Targets on which each byte is that ranks write: one, or [`COPIES`].
    #[serde(default = "two_copies", skip_serializing_if = "are_two_copies")]
    pub copies: usize,
    /// The job that it was made for, and goes with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Somebody has begun to remove it, and nobody uses or heals it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
}

fn two_copies() -> usize {
    COPIES
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn are_two_copies(copies: &usize) -> bool {
    *copies == COPIES
}

/// A file or directory of a space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Which one.
    pub id: Id,
    /// Of entries with one path the highest is the one that is seen; so of one entry, whose bytes are elsewhere then.
    pub version: u64,
    /// Where it is seen: names with slashes between them. The root is the empty path.
    pub path: String,
    /// When it was made, nanoseconds since 1970.
    pub made_ns: i64,
    /// What it is.
    pub kind: Kind,
}

/// What an entry is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub enum Kind {
    /// A file.
    File(File),
    /// A directory that says how new files below it are spread.
    Directory(Striping),
    /// A file that ranks write.
    Written(Written),
}

/// A [`Kind`] as it is written down and sent. A file without second copies is what it was before there were any.
#[derive(Serialize, Deserialize)]
enum Encoded {
    File(File),
    Directory(Striping),
    Written(Written),
    Replicated(File, Vec<Option<u16>>),
}

impl From<Encoded> for Kind {
    fn from(encoded: Encoded) -> Self {
        match encoded {
            Encoded::File(file) => Self::File(file),
            Encoded::Directory(striping) => Self::Directory(striping),
            Encoded::Written(file) => Self::Written(file),
            Encoded::Replicated(file, replicas) => Self::File(File { replicas, ..file }),
        }
    }
}

impl From<Kind> for Encoded {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::File(mut file) => {
                let replicas = std::mem::take(&mut file.replicas);
                if replicas.is_empty() { Self::File(file) } else { Self::Replicated(file, replicas) }
            }
            Kind::Directory(striping) => Self::Directory(striping),
            Kind::Written(file) => Self::Written(file),
        }
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its bytes.
    pub size: u64,
    /// Bytes on one target before the next one's turn.
    pub stripe: u64,
    /// Targets with its bytes, in the order of the stripes. All different, unless one was lost and there was no other that had none.
    pub targets: Vec<u16>,
    /// Targets that keep a copy of its entry and of its checksums.
    pub keepers: Vec<u16>,
    /// Where it can be had again.
    pub sources: Vec<Source>,
    /// Targets with the second copy of each object, in the order of `targets`; `None` where one is still to be made. Empty if it is to have none.
    #[serde(skip)]
    pub replicas: Vec<Option<u16>>,
}

impl Entry {
    /// The file, if it is one that was staged.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        match &self.kind {
            Kind::File(file) => Some(file),
            Kind::Directory(_) | Kind::Written(_) => None,
        }
    }

    /// The file, if it is one that ranks write.
    #[must_use]
    pub fn written(&self) -> Option<&Written> {
        match &self.kind {
            Kind::Written(file) => Some(file),
            Kind::Directory(_) | Kind::File(_) => None,
        }
    }

    /// True of a file, whoever made it.
    #[must_use]
    pub fn is_file(&self) -> bool {
        !matches!(self.kind, Kind::Directory(_))
    }

    /// True if this can be an entry of a space with so many targets: whatever a target sent is looked at before it is used.
    #[must_use]
    pub fn is_sound(&self, targets: usize) -> bool {
        let path = self.path.is_empty() || is_path(&self.path);
        match &self.kind {
            Kind::Directory(striping) => path && striping.is_sound(),
            Kind::Written(file) => path && !self.path.is_empty() && file.is_sound(targets),
            Kind::File(file) => {
                let known =
                    |list: &[u16]| !list.is_empty() && list.len() <= MAX_TARGETS && list.iter().all(|at| usize::from(*at) < targets);
                path && !self.path.is_empty()
                    && known(&file.targets)
                    && known(&file.keepers)
                    && file.replicas_are_sound(targets)
                    && Striping { size: file.stripe, count: 0 }.is_sound()
                    && i64::try_from(file.size).is_ok()
            }
        }
    }

    /// Targets that hold a copy of it: those with its bytes, and the keepers. Of a directory all.
    #[must_use]
    pub fn holders(&self, targets: usize) -> Vec<u16> {
        match &self.kind {
            Kind::Directory(_) => (0..targets).filter_map(|at| u16::try_from(at).ok()).collect(),
            Kind::File(file) => {
                let mut holders: Vec<u16> = Vec::new();
                for at in file.targets.iter().chain(&file.keepers).chain(file.replicas.iter().flatten()) {
                    if !holders.contains(at) {
                        holders.push(*at);
                    }
                }
                holders
            }
            Kind::Written(file) => {
                let mut holders: Vec<u16> = file.objects.iter().flatten().copied().collect();
                holders.sort_unstable();
                holders.dedup();
                holders
            }
        }
    }

    /// True if this tells of the same file as `other`, which it replaces: its bytes are elsewhere now, or it has another name. Of two that were told at the same time one counts, the same for everybody.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        if let (Some(new), Some(old)) = (self.written(), other.written()) {
            let same = self.id == other.id && (new.stripe, new.objects.len()) == (old.stripe, old.objects.len());
            // Where its bytes are counts first: a name that was given by an older map must not bring back a copy that was lost.
            let order = |entry: &Self, file: &Written| (file.epoch, entry.version, entry.path.clone(), file.objects.clone(), file.mode);
            return same && order(self, new) > order(other, old);
        }
        let (Some(new), Some(old)) = (self.file(), other.file()) else { return false };
        let same = self.id == other.id && (new.size, new.stripe, new.targets.len()) == (old.size, old.stripe, old.targets.len());
        same && (self.version, &new.targets, &new.keepers, &new.replicas) > (other.version, &old.targets, &old.keepers, &old.replicas)
    }
}

/// The checksum of a block. It is of the file and of the place, too: another block's bytes are wrong here.
#[must_use]
pub fn block_sum(file: &Id, index: u64, bytes: &[u8]) -> u128 {
    let (low, high) = file.split_at(8);
    let half = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    xxh3_128_with_seed(
        bytes,
        half(low).wrapping_mul(0xc2b2_ae3d_27d4_eb4f) ^ half(high).wrapping_add(index).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    )
}

/// The checksum of a block of a file that ranks write, whose rest is zeros.
#[must_use]
pub fn filled_block_sum(file: &Id, index: u64, bytes: &[u8]) -> u128 {
    if bytes.len() as u64 == BLOCK {
        return block_sum(file, index, bytes);
    }
    let mut filled = bytes.to_vec();
    filled.resize(BLOCK as usize, 0);
    block_sum(file, index, &filled)
}

/// True of a name that a space can have: letters, digits, `.`, `_` and `-`, at most 64, no dot at the beginning.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=64).contains(&text.len()) && !text.starts_with(['.', '-']) && text.bytes().all(fit)
}

/// Where the space of a name is described, below a user's directory.
#[must_use]
pub fn described(home: &Path, name: &str) -> PathBuf {
    home.join("spaces").join(format!("{name}.json"))
}

/// True of a path below the root of a space.
#[must_use]
pub fn is_path(text: &str) -> bool {
    let name = |name: &str| !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME && !name.contains('\0');
    text.len() <= MAX_PATH && text.split('/').all(name)
}

/// True if a place `NAME:PATH` is written as a directory's: a slash stands at the end of its path.
#[must_use]
pub fn is_directory(text: &str) -> bool {
    split(text).is_some_and(|(_, path)| !path.is_empty()) && text.ends_with('/')
}

/// The space and the path of `NAME:PATH`; `None` if it is none, so that a local path may be meant. Slashes around the path are left out
/// ([`is_directory`] tells of the last one).
#[must_use]
pub fn split(text: &str) -> Option<(&str, &str)> {
    let (name, path) = text.split_once(':')?;
    (is_name(name) && !path.starts_with("//")).then_some((name, path.trim_matches('/')))
}

#[cfg(test)]
mod tests {
    #[test]
    fn places_in_buckets_are_told_from_directories_and_looked_at() {
        for good in ["s3://lab/spaces", "s3://lab", "s3://lab/", "s3://my.bucket/a/b-c_d.e"] {
            assert!(super::is_in_bucket(good) && super::bucket_obstacle(good).is_none(), "{good}");
        }
        for bad in ["/tmp/x", "s3:/lab", "s3://", "s3:///x", "s3://la/x", "s3://lab/a b", "s3://lab/../x", "s3://lab/a//b", "s3://lab/a%2f"]
        {
            assert!(super::bucket_obstacle(bad).is_some(), "{bad}");
        }
        assert!(super::bucket_obstacle(&format!("s3://lab/{}", "a".repeat(600))).is_some());
    }

    use super::*;

    #[test]
    fn names_and_paths_are_told_from_addresses_and_local_paths() {
        assert_eq!(split("input:/a/b/"), Some(("input", "a/b")));
        assert_eq!(split("input:"), Some(("input", "")));
        assert!(is_directory("input:a/b/") && is_directory("input:/a//"));
        assert!(!is_directory("input:a/b") && !is_directory("input:/") && !is_directory("a/b/"));
        for other in ["file:///a", "https://a/b", "./input:a", "/a:b", "a b:c", ".a:b", "-a:b", "plain", ":a"] {
            assert_eq!(split(other), None, "{other}");
        }
        assert!(is_path("a/b c/ü") && is_path(&"x".repeat(255)));
        for bad in ["", "a//b", "/a", "a/", "..", "a/../b", "./a", "a\0b", &"x".repeat(256), &"x/".repeat(3000)] {
            assert!(!is_path(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_sum_is_of_its_file_and_place() {
        let sums = [block_sum(&[1; 16], 0, b"x"), block_sum(&[1; 16], 1, b"x"), block_sum(&[2; 16], 0, b"x"), block_sum(&[1; 16], 0, b"y")];
        for (at, sum) in sums.iter().enumerate() {
            assert!(!sums[..at].contains(sum));
        }
    }

    #[test]
    fn entries_that_no_space_has_are_not_sound() {
        let file = File { size: 5, stripe: BLOCK, targets: vec![0, 1], keepers: vec![0, 1], sources: Vec::new(), replicas: Vec::new() };
        let entry = |file: File| Entry { id: [1; 16], version: 1, path: "a".into(), made_ns: 0, kind: Kind::File(file) };
        assert!(entry(file.clone()).is_sound(2) && !entry(file.clone()).is_sound(1));
        let bad = [
            File { targets: vec![], ..file.clone() },
            File { keepers: vec![], ..file.clone() },
            File { stripe: 0, ..file.clone() },
            File { stripe: BLOCK + 1, ..file.clone() },
            File { size: u64::MAX, ..file.clone() },
            File { replicas: vec![Some(1)], ..file.clone() },
            File { replicas: vec![Some(0), None], ..file.clone() },
            File { replicas: vec![Some(2), None], ..file.clone() },
        ];
        for file in bad {
            assert!(!entry(file.clone()).is_sound(2), "{file:?}");
        }
        assert!(entry(File { replicas: vec![Some(1), None], ..file.clone() }).is_sound(2));
        let root = Entry { path: String::new(), ..entry(file) };
        assert!(!root.is_sound(2) && Entry { kind: Kind::Directory(Striping::default()), ..root }.is_sound(2));
    }

    /// Entries as releases before second copies wrote them.
    #[derive(Serialize)]
    struct Earlier {
        id: Id,
        version: u64,
        path: String,
        made_ns: i64,
        kind: EarlierKind,
    }

    #[derive(Serialize)]
    enum EarlierKind {
        File { size: u64, stripe: u64, targets: Vec<u16>, keepers: Vec<u16>, sources: Vec<Source> },
    }

    #[test]
    fn an_entry_without_second_copies_is_written_as_before_there_were_any() {
        let file = File { size: 5, stripe: BLOCK, targets: vec![0, 1], keepers: vec![1, 0], sources: Vec::new(), replicas: Vec::new() };
        let entry = Entry { id: [1; 16], version: 7, path: "a".into(), made_ns: 3, kind: Kind::File(file.clone()) };
        let kind = EarlierKind::File { size: 5, stripe: BLOCK, targets: vec![0, 1], keepers: vec![1, 0], sources: Vec::new() };
        let earlier = postcard::to_stdvec(&Earlier { id: [1; 16], version: 7, path: "a".into(), made_ns: 3, kind }).unwrap();
        assert_eq!(postcard::to_stdvec(&entry).unwrap(), earlier);
        assert_eq!(postcard::from_bytes::<Entry>(&earlier).unwrap(), entry);
        let copied = Entry { kind: Kind::File(File { replicas: vec![Some(1), None], ..file }), ..entry.clone() };
        assert_eq!(postcard::from_bytes::<Entry>(&postcard::to_stdvec(&copied).unwrap()).unwrap(), copied);
        assert!(copied.replaces(&entry) && !entry.replaces(&copied));
        assert_eq!(copied.holders(2), [0, 1]);
    }
}
