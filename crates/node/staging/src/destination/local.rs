//! Directories of this machine. What is read back comes from the medium.

use super::summing::Summing;
use super::{About, Named};
use crate::medium::{Aligned, Block, Medium};
use mend_data::plan::Fault;
use mend_data::ranges::Range;
use mend_data::record::Version;
use mend_data::sums::{BLOCK, Sum};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

/// A directory.
pub struct Directory {
    path: PathBuf,
}

/// A file that is being written.
pub struct Writing {
    file: File,
}

fn fault(error: &io::Error) -> Fault {
    match error.kind() {
        ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::Passing(error.to_string()),
        _ => Fault::Final(error.to_string()),
    }
}

impl Directory {
    pub fn new(path: String) -> Self {
        Self { path: path.into() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn prepare(&self) -> Result<(), Fault> {
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && self.path.is_dir() => Ok(()),
            // Where a file system is not mounted, nothing is to be left in its place.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Fault::Final(format!("the directory that {} is in is not there", self.path.display())))
            }
            made => made.map_err(|error| Fault::Final(format!("{}: {error}", self.path.display()))),
        }
    }

    pub fn version(&self, path: &str) -> Result<Option<Version>, Fault> {
        match fs::metadata(self.at(path)) {
            Ok(found) if found.is_dir() => Err(Fault::Final("a directory has its name there".to_owned())),
            Ok(found) => {
                let nanoseconds = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
                Ok(Some(Version { size: found.len(), etag: None, modified_ns: Some(nanoseconds) }))
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(fault(&error)),
        }
    }

    pub fn begin(&self, name: &str) -> Result<Writing, Fault> {
        let path = self.at(name);
        if let Some(above) = path.parent().filter(|above| *above != self.path) {
            fs::create_dir_all(above).map_err(|error| fault(&error))?;
        }
        // Its own permissions come with its name.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        made.map(|file| Writing { file }).map_err(|error| fault(&error))
    }

    pub fn sums(&self, name: &str, size: u64) -> Result<Vec<Sum>, Fault> {
        let medium = Medium::open(&self.at(name)).map_err(|error| fault(&error))?;
        let (mut memory, mut summing) = (Aligned::new(), Summing::default());
        while summing.length() < size {
            let wanted = Range { offset: summing.length(), length: BLOCK.min(size - summing.length()) };
            match medium.read(wanted, &mut memory).map_err(|error| fault(&error))? {
                Block::Read(bytes) if bytes.len() as u64 == wanted.length => summing.take(bytes),
                Block::Read(_) => return Err(Fault::Passing("it became shorter there".to_owned())),
                Block::Unreadable(_) => return Err(Fault::Passing("what arrived cannot be read there".to_owned())),
            }
        }
        Ok(summing.end())
    }

    pub fn publish(&self, part: &str, path: &str, about: About) -> Result<Named, Fault> {
        let part = self.at(part);
        let rename = if about.replaces { mend_durable::rename } else { mend_durable::rename_new };
        let published = fs::set_permissions(&part, Permissions::from_mode(about.mode & 0o777))
            .and_then(|()| rename(&part, &self.at(path)))
            // The directories above may be new.
            .and_then(|()| path.match_indices('/').try_for_each(|(at, _)| mend_durable::sync_name(&self.at(&path[..at]))));
        match published {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Named::Taken),
            published => published.map(|()| Named::Done).map_err(|error| fault(&error)),
        }
    }

    pub fn remove(&self, part: &str) -> Result<(), Fault> {
        match fs::remove_file(self.at(part)) {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Err(fault(&error)),
            _ => Ok(()),
        }
    }
}

impl Writing {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.file.write_all(bytes).map_err(|error| fault(&error))
    }

    pub fn finish(self) -> Result<(), Fault> {
        self.file.sync_all().map_err(|error| fault(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_name_by_then_is_replaced_only_if_it_may_be() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::new(place.path().to_str().unwrap().to_owned());
        let mut writing = directory.begin("part").unwrap();
        writing.write(b"sent").unwrap();
        writing.finish().unwrap();
        fs::write(place.path().join("name"), b"another's").unwrap();
        let about = About { size: 4, mode: 0o640, replaces: false };
        assert_eq!(directory.publish("part", "name", about), Ok(Named::Taken));
        assert_eq!(fs::read(place.path().join("name")).unwrap(), b"another's");
        assert_eq!(directory.publish("part", "name", About { replaces: true, ..about }), Ok(Named::Done));
        assert_eq!(fs::read(place.path().join("name")).unwrap(), b"sent");
    }
}
