//! A file that is being fetched: hidden beside its place, with a log of its blocks, until it is whole.
//!
//! ```text
//! .NAME.mend-part       the blocks, each at its offset
//! .NAME.mend-part-log   what is fetched, then a line per block; locked by who fetches
//! ```
//! Who goes on after a SIGKILL or a power failure reads each block that the log claims, and compares: what is good is not fetched again. Invariant: the
//! file gets its name only when each of its blocks has been summed up, and is durable then. Faults assumed: killed at any step; two at once; disk full.

use crate::failure::{FAILED, Failure};
use crate::names::{self, beside};
use crate::record_file::{self, KeepError};
use mend_data::ranges::{self, Range};
use mend_data::record::{Known, Record};
use mend_data::resume::{self, Begun, Claim};
use mend_data::sums::{Sum, Sums};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// One such file.
pub struct Partial {
    target: PathBuf,
    part: File,
    log: Mutex<File>,
    size: u64,
    sums: Mutex<HashMap<u64, Sum>>,
    /// Bytes that were there already.
    pub resumed: u64,
    /// What was there was of another content, and is gone.
    pub began_anew: bool,
    /// It was empty when this process began it: what nobody has put reads as zeros.
    is_new: bool,
}

/// Why it cannot be begun.
#[derive(Debug)]
pub enum BeginError {
    /// Another process is at it.
    Busy,
    /// The file system's answer.
    System(io::Error),
}

impl From<io::Error> for BeginError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl BeginError {
    /// As users are told, of a file that is shown so.
    pub fn told(self, shown: &str) -> Failure {
        match self {
            Self::Busy => Failure::new(format!("another mend data is fetching {shown}"), "wait for it, or end it", FAILED),
            Self::System(error) => Failure::system(shown, &error),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// The log, locked, under its name.
pub fn locked(path: &Path) -> Result<File, BeginError> {
    loop {
        let log = open(path)?;
        match rustix::fs::flock(&log, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(BeginError::Busy),
            // A file system without locks: whoever stages here twice at once has been warned by the documentation.
            Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => return Ok(log),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        // Who held it before may have removed it.
        match fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == log.metadata().map(|mine| (mine.dev(), mine.ino()))? => return Ok(log),
            _ => {}
        }
    }
}

/// Writes a log anew. No block of a source that has joined may come to be claimed under the old head.
pub fn rewrite(log: &mut File, anew: &[u8]) -> io::Result<()> {
    log.set_len(0)?;
    log.rewind()?;
    log.write_all(anew)?;
    log.sync_data()
}

impl Partial {
    /// Begins, or goes on. What is there and is not as `known` says, is not taken over.
    pub fn begin(target: &Path, begun: &Begun, known: Option<&Sums>) -> Result<Self, BeginError> {
        let log_path = beside(target, names::LOG);
        let mut log = locked(&log_path)?;
        let part = open(&beside(target, names::PART))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        let before = resume::read(&bytes);
        let right = |(block, sum): &Claim| known.is_none_or(|known| known.get(*block) == Some(*sum));
        let (claims, good, joined) = match before {
            Some((before, mut claims, good)) if before.goes_on_as(begun) => {
                claims.retain(right);
                let joined = begun.joined(&before, &claims);
                (claims, good, joined)
            }
            _ => (Vec::new(), 0, None),
        };
        let began_anew = good == 0 && part.metadata()?.len() > 0;
        if good == 0 {
            part.set_len(0)?;
            log.set_len(0)?;
            log.rewind()?;
            log.write_all(&begun.head())?;
        } else if let Some(anew) = joined {
            rewrite(&mut log, &anew)?;
        } else {
            log.set_len(good as u64)?;
            log.seek(SeekFrom::End(0))?;
        }
        let partial = Self {
            target: target.to_owned(),
            part,
            log: Mutex::new(log),
            size: begun.size,
            sums: Mutex::default(),
            resumed: 0,
            began_anew,
            is_new: good == 0,
        };
        partial.confirm(claims)
    }

    /// Takes over the blocks that are as the log claims.
    fn confirm(mut self, claims: Vec<(u64, Sum)>) -> Result<Self, BeginError> {
        let mut block = Vec::new();
        let claims: HashMap<u64, Sum> = claims.into_iter().collect();
        for (index, sum) in claims {
            let range = ranges::block(index, self.size);
            block.resize(range.length as usize, 0);
            if range.length > 0 && self.part.read_exact_at(&mut block, range.offset).is_ok() && Sum::of(&block) == sum {
                self.resumed += range.length;
                self.sums.get_mut().unwrap_or_else(PoisonError::into_inner).insert(index, sum);
            }
        }
        // With its length from now on: what is missing reads as zeros, and takes no room.
        self.part.set_len(self.size)?;
        Ok(self)
    }

    /// What of these ranges is not there yet.
    pub fn missing(&self, wanted: &[Range]) -> Vec<Range> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = wanted.iter().flat_map(|range| range.offset / mend_data::sums::BLOCK..range.end().div_ceil(mend_data::sums::BLOCK));
        ranges::of_blocks(blocks.filter(|block| !sums.contains_key(block)), self.size)
    }

    /// True if the block is there.
    pub fn has(&self, block: u64) -> bool {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&block)
    }

    /// The sum of a block that is there.
    pub fn sum(&self, block: u64) -> Option<Sum> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).get(&block).copied()
    }

    /// Keeps a block. Zeros take no room.
    pub fn put(&self, block: u64, bytes: &[u8], sum: Sum) -> io::Result<()> {
        let zeros = bytes.first() == Some(&0) && bytes.windows(2).all(|two| two[0] == two[1]);
        let range = ranges::block(block, self.size);
        if !zeros || self.has(block) {
            self.part.write_all_at(bytes, range.offset)?;
        } else {
            self.clear(range)?;
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.write_all(&resume::entry(block, sum))?;
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).insert(block, sum);
        Ok(())
    }

    /// Has a range read as zeros, and take no room if the file system can do that. Of what an earlier process has written there the log may say nothing.
    fn clear(&self, range: Range) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        let whole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if self.is_new || range.length == 0 || rustix::fs::fallocate(&self.part, whole, range.offset, range.length).is_ok() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for block in range.offset / mend_data::sums::BLOCK..range.end().div_ceil(mend_data::sums::BLOCK) {
            self.read(block, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != 0) {
                bytes.fill(0);
                self.part.write_all_at(&bytes, ranges::block(block, self.size).offset)?;
            }
        }
        Ok(())
    }

    /// Takes blocks as zeros that are zeros in a source, if they are to be: they are not noted, and who goes on finds that out again. What cannot be made zeros is to be fetched.
    pub fn put_holes(&self, holes: &[Range], known: Option<&Sums>) {
        for hole in holes {
            let mut found = Vec::new();
            for block in hole.offset.div_ceil(mend_data::sums::BLOCK)..hole.end().div_ceil(mend_data::sums::BLOCK) {
                let range = ranges::block(block, self.size);
                let zeros = crate::check::of_zeros(range.length);
                if range.end() <= hole.end() && known.is_none_or(|known| known.get(block) == Some(zeros)) && !self.has(block) {
                    found.push((block, zeros));
                }
            }
            let of_zeros = ranges::of_blocks(found.iter().map(|(block, _)| *block), self.size);
            if of_zeros.into_iter().all(|range| self.clear(range).is_ok()) {
                self.sums.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
            }
        }
    }

    /// Reads a block that is there.
    pub fn read(&self, block: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        let range = ranges::block(block, self.size);
        bytes.resize(range.length as usize, 0);
        self.part.read_exact_at(bytes, range.offset)
    }

    /// Gives the whole file its name, with its record: durable when this returns. With `replaces` another file that has the name goes.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if a file has come there that is not to go: what was fetched is kept. Those of the file system.
    pub fn publish(&self, sources: Vec<mend_data::record::Source>, replaces: bool) -> Result<Record, KeepError> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let list: Option<Vec<Sum>> = (0..ranges::blocks(self.size)).map(|block| sums.get(&block).copied()).collect();
        let list = list.ok_or_else(|| io::Error::other("a block is missing"))?;
        let record = Record { sources, size: self.size, sums: Known::Here(Sums::new(list)) };
        drop(sums);
        self.part.sync_all()?;
        // A record may stand beside the name, and is to be none of another file.
        if !replaces && fs::symlink_metadata(&self.target).is_ok() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
        }
        record_file::keep(&self.target, &self.part, &record)?;
        self.part.sync_all()?;
        let rename = if replaces { mend_durable::rename } else { mend_durable::rename_new };
        rename(&beside(&self.target, names::PART), &self.target)?;
        fs::remove_file(beside(&self.target, names::LOG))?;
        Ok(record)
    }

    /// Removes what was fetched.
    pub fn discard(self) -> io::Result<()> {
        fs::remove_file(beside(&self.target, names::PART))?;
        fs::remove_file(beside(&self.target, names::LOG))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_data::record::{Source, Version};
    use mend_data::sums::BLOCK;

    fn begun(etag: &str) -> Begun {
        let version = Version { size: 2 * BLOCK + 5, etag: Some(etag.into()), modified_ns: None };
        Begun { size: version.size, sources: vec![Source { uri: "http://a/x".into(), version: Some(version), ..Source::default() }] }
    }

    fn block(index: u64) -> Vec<u8> {
        let length = ranges::block(index, 2 * BLOCK + 5).length as usize;
        (0..length).map(|at| (at as u64 * 7 + index) as u8).collect()
    }

    fn put(partial: &Partial, index: u64) {
        partial.put(index, &block(index), Sum::of(&block(index))).unwrap();
    }

    #[test]
    fn it_goes_on_where_it_was_and_appears_whole() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x");
        let whole = [Range { offset: 0, length: 2 * BLOCK + 5 }];
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        put(&partial, 2);
        put(&partial, 0);
        assert!(matches!(Partial::begin(&target, &begun("a"), None), Err(BeginError::Busy)));
        drop(partial);
        // A block that is not as the log claims, as after a power failure.
        OpenOptions::new().write(true).open(beside(&target, names::PART)).unwrap().write_all_at(b"!", 7).unwrap();
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        assert_eq!(
            (partial.resumed, partial.began_anew, partial.missing(&whole)),
            (5, false, vec![Range { offset: 0, length: 2 * BLOCK }])
        );
        assert!(!target.exists());
        put(&partial, 0);
        put(&partial, 1);
        let record = partial.publish(begun("a").sources, false).unwrap();
        assert_eq!(fs::read(&target).unwrap(), [block(0), block(1), block(2)].concat());
        assert_eq!(record_file::load(&target).unwrap().record, Some(record));
        assert!(!beside(&target, names::PART).exists() && !beside(&target, names::LOG).exists());
    }

    #[test]
    fn another_content_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x");
        put(&Partial::begin(&target, &begun("a"), None).unwrap(), 1);
        let partial = Partial::begin(&target, &begun("b"), None).unwrap();
        assert!(partial.began_anew && partial.resumed == 0 && !partial.has(1));
        partial.discard().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn blocks_of_a_mirror_that_joined_are_gone_on_with_only_while_it_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x");
        let both = Begun {
            sources: [begun("a").sources, vec![Source { uri: "http://b/x".into(), ..begun("b").sources.remove(0) }]].concat(),
            ..begun("a")
        };
        put(&Partial::begin(&target, &begun("a"), None).unwrap(), 0);
        let partial = Partial::begin(&target, &both, None).unwrap();
        assert_eq!(partial.resumed, BLOCK);
        put(&partial, 1);
        drop(partial);
        assert_eq!(Partial::begin(&target, &both, None).unwrap().resumed, 2 * BLOCK);
        // Nobody says that the mirror has not changed, and one of the blocks is of it.
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        assert_eq!((partial.resumed, partial.began_anew), (0, true));
    }

    #[test]
    fn what_is_there_is_taken_over_only_if_it_is_what_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x");
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        put(&partial, 0);
        put(&partial, 1);
        drop(partial);
        let known = Sums::new(vec![Sum::of(&block(0)), Sum(7), Sum::of(&block(2))]);
        let partial = Partial::begin(&target, &begun("a"), Some(&known)).unwrap();
        assert_eq!((partial.has(0), partial.has(1), partial.resumed), (true, false, BLOCK));
        // It is to be something else than zeros.
        partial.put_holes(&[Range { offset: 0, length: 2 * BLOCK + 5 }], Some(&known));
        assert!(!partial.has(1) && !partial.has(2));
    }

    #[test]
    fn zeros_are_zeros_also_where_an_earlier_process_has_written_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x");
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        put(&partial, 0);
        drop(partial);
        // It was killed before it had noted these.
        let part = OpenOptions::new().write(true).open(beside(&target, names::PART)).unwrap();
        part.write_all_at(&block(1), BLOCK).unwrap();
        part.write_all_at(&block(2), 2 * BLOCK).unwrap();
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        assert_eq!(partial.resumed, BLOCK);
        partial.put(1, &[0; BLOCK as usize], Sum::of(&[0; BLOCK as usize])).unwrap();
        partial.put_holes(&[Range { offset: 0, length: 2 * BLOCK + 5 }], None);
        partial.publish(begun("a").sources, false).unwrap();
        assert!(fs::read(&target).unwrap() == [block(0), vec![0; BLOCK as usize + 5]].concat());
    }

    #[test]
    fn a_file_that_came_meanwhile_is_replaced_only_if_it_is_to_be() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x");
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        (0..3).for_each(|index| put(&partial, index));
        fs::write(&target, "of somebody else").unwrap();
        let refused = partial.publish(begun("a").sources, false).unwrap_err().into_io();
        assert_eq!((refused.kind(), fs::read(&target).unwrap()), (io::ErrorKind::AlreadyExists, b"of somebody else".to_vec()));
        assert_eq!(record_file::load(&target).unwrap().record, None);
        drop(partial);
        let partial = Partial::begin(&target, &begun("a"), None).unwrap();
        assert_eq!(partial.resumed, 2 * BLOCK + 5);
        partial.publish(begun("a").sources, true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), [block(0), block(1), block(2)].concat());
    }

    #[test]
    fn zeros_take_no_room() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x");
        let size = 1 << 40;
        let version = Version { size, etag: None, modified_ns: Some(1) };
        let begun = Begun { size, sources: vec![Source { uri: "file:///x".into(), version: Some(version), ..Source::default() }] };
        let partial = Partial::begin(&target, &begun, None).unwrap();
        partial.put_holes(&[Range { offset: 1, length: size - 1 }], None);
        assert_eq!(partial.missing(&[Range { offset: 0, length: size }]), [Range { offset: 0, length: BLOCK }]);
        partial.put(0, &[0; BLOCK as usize], Sum::of(&[0; BLOCK as usize])).unwrap();
        partial.publish(begun.sources, false).unwrap();
        let found = fs::metadata(&target).unwrap();
        assert!(found.len() == size && found.blocks() < 64, "{found:?}");
        assert_eq!(record_file::load(&target).unwrap().record.unwrap().known().unwrap().count(), 1 << 20);
    }
}
