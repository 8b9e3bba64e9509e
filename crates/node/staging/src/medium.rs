//! Reads a file from its medium, not from memory: with O_DIRECT, or after the pages are dropped.
//!
//! Faults assumed: any block gives EIO, for good or now and then; the file is cut while it is read.

use mend_data::damage::Cause;
use mend_data::ranges::Range;
use mend_data::sums::BLOCK;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What O_DIRECT wants memory and offsets aligned to, whatever the device.
const ALIGNMENT: usize = 4096;
/// In such pieces a block that cannot be read is looked at again.
const PIECE: usize = 64 << 10;

/// A file that is read so.
pub struct Medium {
    file: File,
    direct: AtomicBool,
}

/// Memory for a block.
pub struct Aligned {
    bytes: Vec<u8>,
    from: usize,
}

impl Aligned {
    pub fn new() -> Self {
        let bytes = vec![0; BLOCK as usize + ALIGNMENT];
        let from = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, from }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + BLOCK as usize]
    }
}

/// A block as it was read.
pub enum Block<'a> {
    /// Its bytes; fewer than wanted where the file ends.
    Read(&'a [u8]),
    /// What of it cannot be read.
    Unreadable(Vec<(Range, Cause)>),
}

impl Medium {
    /// Opens a file for reading.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (opened, direct) = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(opened) => (opened, true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (rustix::fs::open(path, flags, Mode::empty())?, false),
            Err(error) => return Err(error.into()),
        };
        let medium = Self { file: File::from(opened), direct: AtomicBool::new(direct) };
        if !direct {
            medium.prepare();
        }
        Ok(medium)
    }

    /// Only pages that are written back can be dropped.
    fn prepare(&self) {
        let _ = rustix::fs::fdatasync(&self.file);
    }

    /// Without O_DIRECT from now on.
    fn indirect(&self) {
        if self.direct.swap(false, Ordering::Relaxed) {
            if let Ok(flags) = rustix::fs::fcntl_getfl(&self.file) {
                let _ = rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT);
            }
            self.prepare();
        }
    }

    /// Reads what is in `range`, at most a block.
    pub fn read<'a>(&self, range: Range, memory: &'a mut Aligned) -> io::Result<Block<'a>> {
        let wanted = range.length.min(BLOCK) as usize;
        match self.fill(range.offset, memory.get(), wanted) {
            Ok(found) => return Ok(Block::Read(&memory.get()[..found])),
            Err(error) if of_medium(&error) => {}
            Err(error) => return Err(error),
        }
        // Which part it is, and whether it is so again.
        let mut bad = Vec::new();
        let mut at = 0;
        while at < wanted {
            let length = PIECE.min(wanted - at);
            let piece = Range { offset: range.offset + at as u64, length: length as u64 };
            match self.fill(piece.offset, &mut memory.get()[at..at + PIECE], length) {
                Ok(found) if found == length => {}
                Ok(found) if bad.is_empty() => return Ok(Block::Read(&memory.get()[..at + found])),
                Ok(_) => break,
                Err(error) if of_medium(&error) => bad.push((piece, Cause::Unreadable)),
                Err(error) => return Err(error),
            }
            at += length;
        }
        Ok(if bad.is_empty() { Block::Read(&memory.get()[..wanted]) } else { Block::Unreadable(bad) })
    }

    /// Fills the memory from the file, up to `wanted` bytes; how many there are.
    fn fill(&self, offset: u64, memory: &mut [u8], wanted: usize) -> io::Result<usize> {
        let mut found = 0;
        while found < wanted {
            let direct = self.direct.load(Ordering::Relaxed) && found % ALIGNMENT == 0;
            if !direct {
                self.indirect();
                let _ = rustix::fs::fadvise(&self.file, offset + found as u64, NonZeroU64::new((wanted - found) as u64), Advice::DontNeed);
            }
            // O_DIRECT wants whole sectors, also where the file ends within one.
            let end = if direct { memory.len() } else { wanted };
            match self.file.read_at(&mut memory[found..end], offset + found as u64) {
                Ok(0) => break,
                Ok(read) => found += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if direct && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => self.indirect(),
                Err(error) => return Err(error),
            }
        }
        Ok(found.min(wanted))
    }
}

/// True of errors that speak of the bytes, not of the one who reads.
pub fn of_medium(error: &io::Error) -> bool {
    let known = [
        Errno::IO,
        Errno::BADMSG,
        Errno::NODATA,
        Errno::REMOTEIO,
        Errno::UCLEAN,
        Errno::ILSEQ,
        Errno::NXIO,
        Errno::STALE,
        Errno::TIMEDOUT,
        Errno::NODEV,
    ];
    error.raw_os_error().is_some_and(|errno| known.iter().any(|known| known.raw_os_error() == errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_last_byte() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let content: Vec<u8> = (0..BLOCK as usize + 4099).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let medium = Medium::open(&path).unwrap();
        let mut memory = Aligned::new();
        for (offset, length) in [(0, BLOCK), (BLOCK, 4099), (BLOCK, BLOCK), (0, 5)] {
            let expected = &content[offset as usize..content.len().min((offset + length) as usize)];
            match medium.read(Range { offset, length }, &mut memory).unwrap() {
                Block::Read(bytes) => assert!(bytes == expected, "{offset}"),
                Block::Unreadable(bad) => panic!("{bad:?}"),
            }
        }
    }
}
