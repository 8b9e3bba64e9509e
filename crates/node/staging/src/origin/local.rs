//! Sources that are files of this machine: `file:///PATH`, with `%XX` for bytes that an address may not hold.

use bytes::Bytes;
use mend_data::plan::Fault;
use mend_data::ranges::Range;
use mend_data::record::Version;
use mend_data::sums::BLOCK;
use mend_data::uri::{Address, decoded, encoded};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file or directory.
pub struct Local {
    path: PathBuf,
}

/// A range of it that is being read.
pub struct Reading {
    file: File,
    range: Range,
}

fn fault(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Fault::Passing(error.to_string()),
        _ => Fault::Final(error.to_string()),
    }
}

impl Local {
    pub fn new(address: &Address<'_>) -> Self {
        Self { path: PathBuf::from(decoded(address.path)) }
    }

    pub fn version(&self) -> Result<Version, Fault> {
        let found = fs::metadata(&self.path).map_err(|error| fault(&error))?;
        if found.is_dir() {
            return Err(Fault::Final("it is a directory: end both names with a slash".to_owned()));
        }
        let kind = found.file_type();
        if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
            return Err(Fault::Final("it is no file that has a length".to_owned()));
        }
        let nanoseconds = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
        Ok(Version { size: found.len(), etag: None, modified_ns: Some(nanoseconds) })
    }

    pub fn read(&self, range: Range) -> Result<Reading, Fault> {
        let file = File::open(&self.path).map_err(|error| fault(&error))?;
        Ok(Reading { file, range })
    }

    pub fn list(&self) -> Result<Vec<String>, Fault> {
        let mut names = Vec::new();
        self.below(&self.path, &mut names).map_err(|error| fault(&error))?;
        Ok(names)
    }

    fn below(&self, directory: &Path, names: &mut Vec<String>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let kind = fs::symlink_metadata(&path)?.file_type();
            if kind.is_dir() {
                self.below(&path, names)?;
            } else if kind.is_file() || kind.is_symlink() && path.is_file() {
                let name = path.strip_prefix(&self.path).ok().and_then(Path::to_str);
                let name = name.ok_or_else(|| io::Error::other(format!("{}: a name that is no text", path.display())))?;
                names.push(encoded(name));
            }
        }
        Ok(())
    }

    /// None if the file system does not tell.
    pub fn holes(&self, size: u64) -> Vec<Range> {
        let Ok(file) = File::open(&self.path) else { return Vec::new() };
        holes(&file, size)
    }
}

/// The holes of a file, in order.
pub fn holes(file: &File, size: u64) -> Vec<Range> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < size {
        let Ok(hole) = rustix::fs::seek(file, SeekFrom::Hole(at)) else { break };
        if hole >= size {
            break;
        }
        at = match rustix::fs::seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(size),
            // No data behind it.
            Err(Errno::NXIO) => size,
            // It is read instead, and what is wrong is told then.
            Err(_) => break,
        };
        holes.push(Range::between(hole, at));
    }
    holes
}

impl Reading {
    pub fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        if self.range.length == 0 {
            return Ok(None);
        }
        let wanted = self.range.length.min(BLOCK) as usize;
        let mut bytes = vec![0; wanted];
        let (file, offset) = (&self.file, self.range.offset);
        let found = tokio::task::block_in_place(|| file.read_at(&mut bytes, offset)).map_err(|error| fault(&error))?;
        bytes.truncate(found);
        self.range = Range::between(offset + found as u64, self.range.end());
        Ok((found > 0).then(|| bytes.into()))
    }
}
