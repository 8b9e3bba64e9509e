//! Where a file's record stands: in its attribute, in the file beside, or in both.
//!
//! The attribute is part of the file: a rename, a move within a file system and `cp --preserve=xattr` take it along. The file beside is not: it is used
//! only where it must be, and counts only if its owner could have changed the file itself. Faults assumed: either is missing, old, damaged or a
//! stranger's.

use crate::names::{self, beside};
use mend_data::record::{ATTRIBUTE, ATTRIBUTE_BYTES, Known, Record, RecordError};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest file beside that is read: the sums of 16 TiB, and some.
const MAX_BESIDE: u64 = (16 << 20) * 16 + (1 << 20);
/// Most bytes of an attribute on Linux.
const MAX_ATTRIBUTE: usize = 64 << 10;

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The record, if there is one. Its sums are here, or nowhere to be had.
    pub record: Option<Record>,
    /// What is wrong with it, for the user: sentences about the file's path.
    pub remarks: Vec<String>,
    /// Whether nobody but the caller and root can have written it: only then its references to credentials are followed.
    pub trusted: bool,
}

enum Companion {
    Absent,
    Unusable(String),
    /// A record, and whether nobody but the caller and root can have written it.
    Usable(Record, bool),
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// True of a file that nobody but the caller and root can write to.
fn is_own(file: &Metadata) -> bool {
    [own_user(), 0].contains(&file.uid()) && file.mode() & 0o022 == 0
}

/// Reads the record of a file, which may be gone.
pub fn load(path: &Path) -> io::Result<Found> {
    let file = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let owner = file.as_ref().map_or_else(own_user, MetadataExt::uid);
    let mut found = Found { trusted: file.as_ref().is_none_or(is_own), ..Found::default() };
    let place = place_of(&names::followed(path));
    let attribute = match file.is_some().then(|| read_attribute(path)) {
        // The attribute's own block is lost: what stands beside may help.
        Some(Err(error)) if crate::medium::of_medium(&error) => {
            found.remarks.push(format!("its attribute {ATTRIBUTE} cannot be read: {error}"));
            None
        }
        Some(read) => read?,
        None => None,
    };
    let mut record = match attribute.map(|bytes| Record::decode(&bytes)) {
        Some(Ok(record)) => record,
        Some(Err(error)) => {
            found.remarks.push(format!("its attribute {ATTRIBUTE} is not used: {error}"));
            return Ok(found);
        }
        None => {
            match read_beside(&place, owner)? {
                Companion::Absent => {}
                Companion::Unusable(why) => found.remarks.push(why),
                Companion::Usable(record, is_own) => {
                    found.trusted &= is_own;
                    found.record = Some(record);
                }
            }
            return Ok(found);
        }
    };
    if let Known::Beside(digest) = record.sums {
        let why = match read_beside(&place, owner)? {
            Companion::Absent => Some(format!("{} with its checksums is gone", place.display())),
            Companion::Unusable(why) => Some(why),
            Companion::Usable(companion, _) => match companion.sums {
                Known::Here(sums) if sums.digest() == digest && companion.size == record.size => {
                    record.sums = Known::Here(sums);
                    None
                }
                _ => Some(format!("{} holds checksums of another content", place.display())),
            },
        };
        found.remarks.extend(
            why.map(|why| format!("{why}: only its length and what cannot be read are found, unless it is compared with its source")),
        );
    }
    found.record = Some(record);
    Ok(found)
}

/// Where what stands beside a file is, or would be. Links are not followed.
pub fn place_of(file: &Path) -> PathBuf {
    let place = beside(file, names::RECORD);
    let there = |place: &Path| fs::symlink_metadata(place).is_ok();
    names::earlier_record(file).filter(|earlier| !there(&place) && there(earlier)).unwrap_or(place)
}

fn read_attribute(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; ATTRIBUTE_BYTES];
    let read = match rustix::fs::getxattr(path, ATTRIBUTE, &mut bytes[..]) {
        // Longer than Mend writes it: to be told as what it is.
        Err(Errno::RANGE) => {
            bytes.resize(MAX_ATTRIBUTE, 0);
            rustix::fs::getxattr(path, ATTRIBUTE, &mut bytes[..])
        }
        read => read,
    };
    match read {
        Ok(length) => {
            bytes.truncate(length);
            Ok(Some(bytes))
        }
        // A device or FIFO has no such attributes: EPERM.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_beside(place: &Path, owner: u32) -> io::Result<Companion> {
    let unusable = |why: String| Ok(Companion::Unusable(format!("{} is not used: {why}", place.display())));
    let opened = match rustix::fs::open(place, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(Companion::Absent),
        Err(Errno::LOOP) => return unusable("it is a symbolic link".to_owned()),
        Err(error) => return unusable(io::Error::from(error).to_string()),
    };
    let metadata = opened.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_BESIDE {
        return unusable("it is no file that Mend writes".to_owned());
    }
    if ![owner, own_user(), 0].contains(&metadata.uid()) {
        return unusable(format!("it is user {}'s, who does not own the file", metadata.uid()));
    }
    let mut bytes = Vec::new();
    if let Err(error) = opened.take(MAX_BESIDE).read_to_end(&mut bytes) {
        return unusable(error.to_string());
    }
    match Record::decode(&bytes) {
        Ok(record) => Ok(Companion::Usable(record, is_own(&metadata))),
        Err(error) => unusable(error.to_string()),
    }
}

/// Why a record could not be kept.
#[derive(Debug)]
pub enum KeepError {
    /// It is too long.
    Record(RecordError),
    /// The file system's answer.
    System(io::Error),
}

impl From<RecordError> for KeepError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<io::Error> for KeepError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl KeepError {
    /// As the cause of an error about something else.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Record(error) => io::Error::other(error.to_string()),
            Self::System(error) => error,
        }
    }
}

/// Keeps a record of `path`, whose content is in `file`, which may still have another name. What stands beside `path` afterwards is this record's, or
/// nothing.
pub fn keep(path: &Path, file: &File, record: &Record) -> Result<(), KeepError> {
    let (held, needs_list) = record.for_attribute();
    let bytes = held.encode()?;
    let in_attribute = bytes.len() <= ATTRIBUTE_BYTES
        && match rustix::fs::fsetxattr(file, ATTRIBUTE, &bytes, XattrFlags::empty()) {
            Ok(()) => true,
            // No attributes here, or no room for another one.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOSPC | Errno::RANGE | Errno::TOOBIG | Errno::PERM) => false,
            Err(error) => return Err(io::Error::from(error).into()),
        };
    if !in_attribute {
        match rustix::fs::fremovexattr(file, ATTRIBUTE) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    if in_attribute && !needs_list {
        return Ok(forget_beside(path)?);
    }
    // As readable as the file, and no more.
    let mode = file.metadata().map_err(KeepError::System)?.mode() & 0o666 | 0o600;
    let file = names::followed(path);
    write_beside(&beside(&file, names::RECORD), &record.encode()?, mode)?;
    Ok(names::earlier_record(&file).map_or(Ok(()), |earlier| gone(&earlier))?)
}

fn gone(place: &Path) -> io::Result<()> {
    match fs::remove_file(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn write_beside(place: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut partial = place.as_os_str().to_owned();
    partial.push(".new");
    let partial = PathBuf::from(partial);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&partial)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| mend_durable::rename(&partial, place));
    if written.is_err() {
        // The error that led here is the one to tell.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// A copy of what stands beside a file, as what stands beside another name.
pub fn copy_beside(old: &Path, new: &Path) -> io::Result<()> {
    let opened = rustix::fs::open(old, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    let file = File::from(opened);
    let mode = file.metadata()?.mode() & 0o777;
    file.take(MAX_BESIDE).read_to_end(&mut bytes)?;
    write_beside(new, &bytes, mode)
}

/// Removes the file beside, if it is there and the caller's to remove.
pub fn forget_beside(path: &Path) -> io::Result<()> {
    let file = names::followed(path);
    gone(&beside(&file, names::RECORD))?;
    names::earlier_record(&file).map_or(Ok(()), |earlier| gone(&earlier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_data::record::Source;
    use mend_data::sums::{BLOCK, Sum, Sums};

    fn record(blocks: u64) -> Record {
        let sums = (0..blocks).map(|at| Sum(u128::from(at))).collect();
        Record {
            sources: vec![Source { uri: "http://a/x".into(), ..Source::default() }],
            size: blocks * BLOCK,
            sums: Known::Here(Sums::new(sums)),
        }
    }

    fn file(directory: &Path) -> (PathBuf, File) {
        let path = directory.join("x");
        (path.clone(), File::create(path).unwrap())
    }

    /// `None` where the file system has no attributes.
    fn kept(directory: &Path, record: &Record) -> Option<PathBuf> {
        let (path, file) = file(directory);
        keep(&path, &file, record).unwrap();
        read_attribute(&path).unwrap().map(|_| path)
    }

    #[test]
    fn a_record_is_read_as_it_was_kept() {
        let directory = tempfile::tempdir().unwrap();
        for blocks in [0, 3, 128, 129, 5000] {
            let (path, file) = file(directory.path());
            keep(&path, &file, &record(blocks)).unwrap();
            let found = load(&path).unwrap();
            assert_eq!((found.record, found.remarks, found.trusted), (Some(record(blocks)), vec![], true));
        }
    }

    #[test]
    fn what_others_may_have_written_names_no_credentials() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = file(directory.path());
        let may = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        may(&path, 0o644);
        keep(&path, &file, &record(3)).unwrap();
        assert!(load(&path).unwrap().trusted);
        for mode in [0o664, 0o646] {
            may(&path, mode);
            assert!(!load(&path).unwrap().trusted, "{mode:o}");
        }
        // The same of what stands beside a file that is gone.
        let gone = directory.path().join("gone");
        write_beside(&beside(&gone, names::RECORD), &record(2).encode().unwrap(), 0o644).unwrap();
        assert!(load(&gone).unwrap().trusted);
        may(&beside(&gone, names::RECORD), 0o664);
        assert!(!load(&gone).unwrap().trusted);
    }

    #[test]
    fn the_record_of_a_long_name_is_found_where_it_was_written_earlier() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x".repeat(250));
        let file = File::create(&path).unwrap();
        let earlier = names::earlier_record(&path).unwrap();
        write_beside(&earlier, &record(200).encode().unwrap(), 0o600).unwrap();
        assert_eq!(load(&path).unwrap().record, Some(record(200)));
        keep(&path, &file, &record(201)).unwrap();
        assert_eq!(load(&path).unwrap().record, Some(record(201)));
        assert!(!earlier.exists());
    }

    #[test]
    fn a_link_has_the_record_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = file(directory.path());
        keep(&path, &file, &record(200)).unwrap();
        let link = directory.path().join("links/to/x");
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("../../x", &link).unwrap();
        let found = load(&link).unwrap();
        assert_eq!((found.record, found.remarks), (Some(record(200)), vec![]));
        // What is learned through the link stands beside the file.
        keep(&link, &file, &record(201)).unwrap();
        assert_eq!(load(&path).unwrap().record, Some(record(201)));
        assert_eq!(fs::read_dir(link.parent().unwrap()).unwrap().count(), 1);
        // The file is gone: what stands beside it still tells of it.
        fs::remove_file(&path).unwrap();
        assert_eq!(load(&link).unwrap().record, Some(record(201)));
    }

    #[test]
    fn a_list_that_is_gone_or_another_s_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = kept(directory.path(), &record(200)) else { return };
        let place = beside(&path, names::RECORD);
        let mut other = record(200);
        other.sums = record(201).sums;
        other.size += BLOCK;
        fs::write(&place, other.encode().unwrap()).unwrap();
        let said = |wanted: &str| {
            let found = load(&path).unwrap();
            assert!(found.remarks.len() == 1 && found.remarks[0].contains(wanted), "{:?}", found.remarks);
            assert!(matches!(found.record.unwrap().sums, Known::Beside(_)));
        };
        said("checksums of another content");
        fs::write(&place, "something else").unwrap();
        said("no record of a source");
        fs::remove_file(&place).unwrap();
        said("is gone");
        std::os::unix::fs::symlink("x", &place).unwrap();
        said("symbolic link");
    }

    #[test]
    fn a_file_that_is_gone_is_known_by_what_stands_beside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        write_beside(&beside(&path, names::RECORD), &record(2).encode().unwrap(), 0o600).unwrap();
        assert_eq!(load(&path).unwrap().record, Some(record(2)));
        // An attribute takes its place.
        if kept(directory.path(), &record(3)).is_some() {
            assert!(!beside(&path, names::RECORD).exists());
        }
    }
}
