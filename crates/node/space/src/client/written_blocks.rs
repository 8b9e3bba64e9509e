//! Reads of files that ranks write, and what a node keeps of them.
//!
//! ```text
//! read ──► checksums of what the cache has ──► a target: same │ zeros │ bytes ──► cache
//! write ──► both targets ──► cache
//! ```
//! Invariant: what is given out is what the target had after the read began, so a node's cache changes nothing of who sees what; it only saves the bytes' way. What the cache has need
//! not be right: if another node has written the block since, its checksum is another one. Faults assumed: targets die at any moment, and files move to other ones.

use super::cache::Cache;
use super::peer::nonsense;
use super::reader::Content;
use super::writer::{Refused, Writer};
use crate::link::Fault;
use mend_data::ranges::Range;
use mend_data::space::blocks::{self, BlockTold};
use mend_data::space::target::{Failed, Request};
use mend_data::space::written::{Written, pieces};
use mend_data::space::{BLOCK, Id, filled_block_sum};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a request, at most.
const PIECE: u64 = 1 << 20;
/// How old what is known of names may be when no target gives anything.
const HEARD: Duration = Duration::from_millis(500);

/// A block as the node has it, with its checksum.
type Had = Option<(Arc<Vec<u8>>, u128)>;

/// Blocks of one object, next to each other.
struct Run {
    position: u16,
    /// Numbers in the object.
    blocks: std::ops::Range<u64>,
    /// The first one's number in the file.
    first: u64,
}

/// What a block has but zeros, whether it came over the network, and how much of it is in the object.
type Found = (Arc<Vec<u8>>, bool, u32);

impl Writer {
    /// Bytes of a file; fewer at its end.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn read(&self, file: &Id, offset: u64, length: u32) -> Result<Content, Refused> {
        let (mut content, missing) = self.read_once(file, offset, length)?;
        if let Some(missing) = missing {
            // It may be a hole, or the end.
            let (entry, _) = self.now(file)?;
            let (size, _) = self.shape(&entry)?;
            if size > missing {
                // Or it was written since: all that is before this size is there now.
                (content, _) = self.read_once(file, offset, length)?;
            }
            content.bytes.truncate(size.saturating_sub(offset).min(content.bytes.len() as u64) as usize);
            content.fetched.truncate((offset + content.bytes.len() as u64).div_ceil(BLOCK).saturating_sub(offset / BLOCK) as usize);
        }
        Ok(content)
    }

    /// As many bytes as are wanted, zeros in the place of those that are nowhere; and where the first of these are, if there are any.
    fn read_once(&self, file: &Id, offset: u64, length: u32) -> Result<(Content, Option<u64>), Refused> {
        let (entry, known) = self.now(file)?;
        let end = offset.saturating_add(length.into()).min(i64::MAX as u64);
        let mut content = Content { bytes: Vec::with_capacity(length as usize), fetched: Vec::new() };
        let whole = Range::between(offset / BLOCK * BLOCK, end.div_ceil(BLOCK) * BLOCK);
        let (mut missing, mut at) = (None::<u64>, offset);
        for (position, place, piece) in pieces(&known, whole, PIECE) {
            let blocks = place / BLOCK..(place + piece.length).div_ceil(BLOCK);
            let run = Run { position, blocks, first: piece.offset / BLOCK };
            let found = match self.fetch_by_parts(file, &known, &run) {
                Ok(found) => found,
                Err(fault) => {
                    self.client.refresh_if_older(HEARD);
                    let (_, after) = self.now(file)?;
                    if after.epoch != known.epoch {
                        return self.read_once(file, offset, length);
                    }
                    let fault = fault.unwrap_or_else(|| Fault::Other(format!("{} is nowhere", entry.path)));
                    return Err(fault.into());
                }
            };
            for (block, (bytes, fetched, length)) in (run.first..).zip(found) {
                let start = block * BLOCK;
                let (from, until) = ((at - start) as usize, (end - start).min(BLOCK) as usize);
                let there = bytes.get(from..until.min(bytes.len())).unwrap_or_default();
                content.bytes.extend_from_slice(there);
                content.bytes.resize(content.bytes.len() + (until - from) - there.len(), 0);
                content.fetched.push(fetched);
                if until > length as usize {
                    let from = start + u64::from(length);
                    missing = Some(missing.map_or(from, |before| before.min(from)));
                }
                at = start + BLOCK;
            }
        }
        Ok((content, missing))
    }

    /// Blocks of an object. If no copy gives all of them, each block comes from the copy that has it as it was written.
    fn fetch_by_parts(&self, file: &Id, known: &Written, run: &Run) -> Result<Vec<Found>, Option<Fault>> {
        let one = |(block, index): (u64, u64)| Run { position: run.position, blocks: block..block + 1, first: index };
        match self.fetch(file, known, run) {
            Err(Some(Fault::Failed { kind: Failed::Medium, .. })) if run.blocks.end - run.blocks.start > 1 => {
                let parts = run.blocks.clone().zip(run.first..).map(one);
                Ok(parts.map(|part| self.fetch(file, known, &part)).collect::<Result<Vec<_>, _>>()?.concat())
            }
            found => found,
        }
    }

    /// Blocks of an object as one of its whole copies has them. `None` as the error: no target is left to ask.
    fn fetch(&self, file: &Id, known: &Written, run: &Run) -> Result<Vec<Found>, Option<Fault>> {
        let count = run.blocks.end - run.blocks.start;
        // Ranks of a node that read the same ask one after the other: what the first one was sent, the others only compare.
        let _claim = self.cache.as_deref().map(|cache| cache.claim_all(file, run.first..run.first + count));
        let had: Vec<Had> = (run.first..run.first + count).map(|block| self.cache.as_deref()?.known(file, block)).collect();
        let sums: Vec<u8> = had.iter().flat_map(|had| had.as_ref().map_or(0, |(_, sum)| *sum).to_le_bytes()).collect();
        let request = Request::ReadBlocks { file: *file, position: run.position, first: run.blocks.start, count: count as u32 };
        let mut fault = None;
        for at in known.whole(run.position) {
            let asked = self.client.peer(*at).and_then(|peer| {
                let (_, told) = peer.ask(&request, &sums)?;
                let told = blocks::decode(&told, count as u32).ok_or_else(|| nonsense(peer))?;
                let taken = (run.first..).zip(told).zip(&had).map(|((block, told), had)| self.taken(file, block, told, had));
                taken.collect::<Option<Vec<Found>>>().ok_or_else(|| nonsense(peer))
            });
            match asked {
                Ok(found) => return Ok(found),
                Err(other) => drop(fault.get_or_insert(other)),
            }
        }
        Err(fault)
    }

    /// `None` if a target says that a block is as it is here, and none is here.
    fn taken(&self, file: &Id, block: u64, told: BlockTold<'_>, had: &Had) -> Option<Found> {
        let length = told.length();
        let (bytes, fetched) = match (told, had) {
            (BlockTold::Bytes(bytes), _) => {
                let bytes = Arc::new(bytes.to_vec());
                if let Some(cache) = &self.cache {
                    cache.keep(file, block, bytes.clone(), filled_block_sum(file, block, &bytes));
                }
                (bytes, true)
            }
            (BlockTold::Same(_), Some((bytes, _))) => (bytes.clone(), false),
            (BlockTold::Same(_), None) => return None,
            (BlockTold::Zeros(_), _) => (Arc::default(), false),
        };
        Some((bytes, fetched, length))
    }

    /// Keeps what was written, with the [checksums of its pieces](mend_data::space::written::piece_sums): whoever reads it on this node need not have it sent. Of a block that is not all here nothing is kept.
    pub(super) fn keep(&self, file: &Id, offset: u64, bytes: &[u8], sums: &[u128]) {
        let Some(cache) = &self.cache else { return };
        let end = offset + bytes.len() as u64;
        for (block, sum) in (offset / BLOCK..end.div_ceil(BLOCK)).zip(sums) {
            let start = block * BLOCK;
            let (from, until) = (offset.max(start), end.min(start + BLOCK));
            let new = &bytes[(from - offset) as usize..(until - offset) as usize];
            let (from, until) = ((from - start) as usize, (until - start) as usize);
            if new.len() as u64 == BLOCK {
                cache.keep(file, block, Arc::new(new.to_vec()), *sum);
            } else if let Some(content) = merged(cache, file, block, from, new, until) {
                let sum = filled_block_sum(file, block, &content);
                cache.keep(file, block, Arc::new(content), sum);
            }
        }
    }
}

/// A block with new bytes in a part of it. One that begins with them may have nothing else: its target will say.
fn merged(cache: &Cache, file: &Id, block: u64, from: usize, new: &[u8], until: usize) -> Option<Vec<u8>> {
    let mut content = match cache.known(file, block) {
        Some((had, _)) => had.to_vec(),
        None if from == 0 => Vec::new(),
        None => return None,
    };
    content.resize(content.len().max(until), 0);
    content[from..until].copy_from_slice(new);
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_parts_is_kept_as_one_block() {
        let (cache, file) = (Cache::new(4 * BLOCK), [1; 16]);
        assert_eq!(merged(&cache, &file, 2, 7, b"ab", 9), None);
        assert_eq!(merged(&cache, &file, 2, 0, b"ab", 2), Some(b"ab".to_vec()));
        cache.keep(&file, 2, Arc::new(b"abcd".to_vec()), 5);
        assert_eq!(merged(&cache, &file, 2, 3, b"xy", 5), Some(b"abcxy".to_vec()));
        assert_eq!(merged(&cache, &file, 2, 1, b"x", 2), Some(b"axcd".to_vec()));
        assert_eq!(merged(&cache, &file, 2, 6, b"x", 7), Some(b"abcd\0\0x".to_vec()));
        // As a target makes it: of the block that is filled up with zeros.
        assert_eq!(filled_block_sum(&file, 2, b"ab"), filled_block_sum(&file, 2, b"ab\0\0"));
    }
}
