//! Blocks of files that ranks write that a medium has changed: which they are, and how they get back what they had.
//!
//! A checksum is kept apart from its block, so bytes that have it are those that were written, wherever they come from. Nobody who writes meanwhile is disturbed.

use super::write_guard;
use crate::server::store::{Failure, Store};
use mend_data::space::copies::DAMAGED;
use mend_data::space::target::Failed;
use mend_data::space::{BLOCK, Id};
use std::os::unix::fs::FileExt;

/// Blocks that are read at once: whoever writes waits for so long.
const AT_ONCE: u64 = 16;

impl Store {
    /// Checksums of blocks as they are now, each 16 bytes; [`DAMAGED`] of one that is not as it was written. Fewer at the object's end.
    pub(in crate::server::store) fn verify_written(&self, file: &Id, position: u16, first: u64, count: u32) -> Result<Vec<u8>, Failure> {
        let mut sums = Vec::new();
        let end = first.saturating_add(count.into());
        let mut at = first;
        while at < end {
            let until = end.min(at + AT_ONCE);
            let (object, _held) = self.reading(file, position, at..until)?;
            let known = object.known_sums(at, until - at)?;
            for (block, known) in (at..until).zip(known).take_while(|(block, _)| block.saturating_mul(BLOCK) < object.length) {
                let right = object.block(block).ok().filter(|bytes| object.is_right(block, bytes, known));
                let sum = right.map_or(DAMAGED, |bytes| object.sum_of(block, &bytes));
                sums.extend_from_slice(&sum.to_le_bytes());
            }
            at = until;
        }
        Ok(sums)
    }

    /// Puts a damaged block right.
    pub(in crate::server::store) fn mend_block(
        &self,
        file: &Id,
        epoch: u32,
        position: u16,
        block: u64,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let _held = write_guard(self.writing.lock(&(*file, position)));
        let object = self.open_object(file, position, self.written(file, Some(epoch))?)?;
        self.ascertain(&object, block..block.saturating_add(1))?;
        let sum = object.known_sums(block, 1)?.first().copied().unwrap_or_default();
        let is_right = |bytes: &[u8]| object.is_right(block, bytes, sum);
        if object.block(block).is_ok_and(|bytes| is_right(&bytes)) {
            return Ok(());
        }
        if bytes.is_empty() || !is_right(bytes) {
            return Err(Failure::new(Failed::Absent, format!("block {block} of {} was written with other bytes", object.path.display())));
        }
        object.bytes.write_all_at(bytes, block * BLOCK)?;
        object.stays_as_it_was()?;
        object.bytes.sync_all()?;
        self.count_used(object.length, object.bytes.metadata()?.len());
        Ok(())
    }
}
