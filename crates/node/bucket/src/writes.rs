//! Bytes of objects that are not in the bucket yet. What the bucket has of an object is in chunks of 4 MiB, `objects/ID/POSITION/NUMBER`; a chunk is stored when all of it is there, or when the object
//! is settled.
//!
//! Invariant: a chunk is only ever replaced as a whole, by one that has what the other one had and what was written to it.

use mend_data::ranges::{self, Range};
use mend_data::space::Id;
use mend_wire::secret::from_hex;
use std::collections::HashMap;
use std::time::Instant;

/// Bytes of a chunk: as many as a request has at most, so that one is stored or read within the time that a client waits.
pub const CHUNK: u64 = 4 << 20;

/// A chunk of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunk {
    pub file: Id,
    /// Which of the file's objects.
    pub position: u16,
    /// Which chunk of the object.
    pub number: u64,
}

/// The chunk that an object of the bucket is; `None` if it is none.
pub fn chunk_of(name: &str) -> Option<Chunk> {
    let mut words = name.strip_prefix("objects/")?.split('/');
    let (file, position, number) = (words.next()?, words.next()?, words.next()?);
    let chunk = Chunk { file: from_hex(file)?, position: position.parse().ok()?, number: number.parse().ok()? };
    words.next().is_none().then_some(chunk)
}

/// Parts of a range of an object by chunks: the number, where in the chunk it begins, and how many bytes that are.
pub fn parts(offset: u64, length: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let end = offset.saturating_add(length);
    (offset / CHUNK..end.div_ceil(CHUNK)).map(move |number| {
        let (from, until) = (offset.max(number * CHUNK), end.min((number + 1).saturating_mul(CHUNK)));
        (number, from - number * CHUNK, until.saturating_sub(from))
    })
}

/// How long chunk `number` of an object of this length is.
pub fn length_of(object: u64, number: u64) -> u64 {
    object.saturating_sub(number.saturating_mul(CHUNK)).min(CHUNK)
}

/// Bytes from the beginning of an object that are there without a gap, by the lengths of its chunks.
pub fn whole(chunks: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let mut chunks: Vec<(u64, u64)> = chunks.into_iter().collect();
    chunks.sort_unstable();
    let mut whole = 0;
    for (expected, (number, length)) in (0..).zip(chunks) {
        if number != expected {
            break;
        }
        whole += length.min(CHUNK);
        if length < CHUNK {
            break;
        }
    }
    whole
}

/// What was written of a chunk.
#[derive(Clone, Debug)]
pub struct Piece {
    bytes: Vec<u8>,
    written: Vec<Range>,
    since: Instant,
}

impl Default for Piece {
    fn default() -> Self {
        Self { bytes: Vec::new(), written: Vec::new(), since: Instant::now() }
    }
}

impl Piece {
    /// Bytes that go there; they fit into a chunk.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (from, until) = (offset as usize, offset as usize + bytes.len());
        self.bytes.resize(self.bytes.len().max(until), 0);
        self.bytes[from..until].copy_from_slice(bytes);
        let before = std::mem::take(&mut self.written);
        self.written = ranges::merged(before.into_iter().chain([Range { offset, length: bytes.len() as u64 }]).collect());
        self.since = Instant::now();
    }

    /// True if all of its first `length` bytes were written.
    pub fn covers(&self, length: u64) -> bool {
        length == 0 || self.written.first().is_some_and(|first| first.offset == 0 && first.length >= length)
    }

    /// When something was written last.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The chunk as it is with what was written; `stored` is what the bucket has of it.
    pub fn over(&self, mut stored: Vec<u8>) -> Vec<u8> {
        stored.resize(stored.len().max(self.bytes.len()), 0);
        for range in &self.written {
            let part = range.offset as usize..range.end() as usize;
            stored[part.clone()].copy_from_slice(&self.bytes[part]);
        }
        stored
    }
}

/// All of them.
pub type Pieces = HashMap<Chunk, Piece>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_chunks() {
        assert_eq!(parts(CHUNK - 1, 2).collect::<Vec<_>>(), [(0, CHUNK - 1, 1), (1, 0, 1)]);
        assert_eq!(parts(2 * CHUNK, CHUNK).collect::<Vec<_>>(), [(2, 0, CHUNK)]);
        assert_eq!(parts(7, 0).map(|(_, _, length)| length).sum::<u64>(), 0);
        assert_eq!([0, 1, 2].map(|number| length_of(CHUNK + 5, number)), [CHUNK, 5, 0]);
    }

    #[test]
    fn an_object_is_as_long_as_it_is_without_a_gap() {
        assert_eq!(whole([(1, 7), (0, CHUNK)]), CHUNK + 7);
        assert_eq!(whole([(0, CHUNK), (2, CHUNK)]), CHUNK);
        assert_eq!(whole([(0, 9), (1, CHUNK)]), 9);
        assert_eq!((whole([]), whole([(1, CHUNK)])), (0, 0));
    }

    #[test]
    fn what_was_written_lies_over_what_is_stored() {
        let mut piece = Piece::default();
        piece.write(4, b"new");
        assert_eq!((piece.covers(7), piece.over(b"0123456789".to_vec())), (false, b"0123new789".to_vec()));
        assert_eq!(piece.over(b"01".to_vec()), b"01\0\0new");
        piece.write(0, b"head");
        assert!(piece.covers(7) && !piece.covers(8));
        assert_eq!(piece.over(Vec::new()), b"headnew");
    }
}
