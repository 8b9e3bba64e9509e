//! The names of what stands beside a file, and how paths are shown.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Longest name of a file, in bytes: NAME_MAX of Linux's file systems.
const NAME_MAX: usize = 255;
/// Links that are followed: as many as Linux follows.
const MOST_LINKS: usize = 40;
/// The record of a file's sources.
pub const RECORD: &str = "mend-source";
/// The same of a file whose name is too long to stand in the record's. What ends in [`RECORD`] would be taken for the record of a file that is named as the hash.
const LONG_RECORD: &str = "mend-source-long";
/// A file that is still being fetched.
pub const PART: &str = "mend-part";
/// The log of one.
pub const LOG: &str = "mend-part-log";

/// `.STEM.KIND`
fn hidden(stem: &OsStr, kind: &str) -> OsString {
    let mut name = OsString::from(".");
    name.push(stem);
    name.push(".");
    name.push(kind);
    name
}

/// The hash of a file's name, if that is too long to stand in one of this kind.
fn hash_of_long(name: &OsStr, kind: &str) -> Option<OsString> {
    let is_short = hidden(name, kind).len() + ".new".len() <= NAME_MAX;
    (!is_short).then(|| format!("{:016x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes())).into())
}

/// The file of this kind beside a file: `.NAME.KIND`, or `.HASH.KIND` for a name that would be too long.
pub fn beside(path: &Path, kind: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    path.with_file_name(match hash_of_long(name, kind) {
        None => hidden(name, kind),
        Some(hash) => hidden(&hash, if kind == RECORD { LONG_RECORD } else { kind }),
    })
}

/// Where earlier versions of Mend wrote the record of a file with a long name.
pub fn earlier_record(path: &Path) -> Option<PathBuf> {
    let hash = hash_of_long(path.file_name().unwrap_or_default(), RECORD)?;
    Some(path.with_file_name(hidden(&hash, RECORD)))
}

/// The file that a symbolic link leads to, also where that is gone; what is no link is itself. What Mend keeps beside a file stands beside this one.
pub fn followed(path: &Path) -> PathBuf {
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = std::fs::read_link(&at) else { return at };
        at = at.parent().unwrap_or(Path::new("")).join(target);
    }
    path.to_owned()
}

/// The file that a record stands beside, by the record's name; `None` if it is none's.
pub fn described(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let stem = name.strip_prefix(b".")?.strip_suffix(format!(".{RECORD}").as_bytes())?;
    (!stem.is_empty()).then(|| path.with_file_name(OsStr::from_bytes(stem)))
}

/// True of names that Mend makes beside files.
pub fn is_own(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let own = |kind: &str| name.ends_with(format!(".{kind}").as_bytes()) || name.ends_with(format!(".{kind}.new").as_bytes());
    name.starts_with(b".") && [RECORD, LONG_RECORD, PART, LOG].into_iter().any(own)
}

/// A path from the bytes of a request.
pub fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_are_hidden_and_never_too_long() {
        assert_eq!(beside(Path::new("a/x.dat"), RECORD), Path::new("a/.x.dat.mend-source"));
        assert_eq!(described(Path::new("a/.x.dat.mend-source")), Some(PathBuf::from("a/x.dat")));
        assert_eq!((described(Path::new("a/x.mend-source")), described(Path::new(".mend-source"))), (None, None));
        let long = "x".repeat(255);
        assert!(beside(Path::new(&long), LOG).as_os_str().len() < 40);
        let record = beside(Path::new(&long), RECORD);
        assert!([LOG, PART, RECORD].into_iter().all(|kind| is_own(beside(Path::new(&long), kind).as_os_str())));
        assert!(is_own(OsStr::new(".a.mend-source.new")));
        // It is nobody's who has the hash for a name.
        let earlier = earlier_record(Path::new(&long)).unwrap();
        assert_eq!((described(&record), earlier_record(Path::new("x"))), (None, None));
        assert!(described(&earlier).is_some() && is_own(earlier.as_os_str()));
        assert!(!is_own(OsStr::new("a.mend-part")) && !is_own(OsStr::new(".a")));
    }
}
