//! A growing list of page ranges in an arena.

use crate::RestoreError;
use crate::arena::Arena;
use mend_image::ranges::Range;

const FIRST: usize = 4096;

/// Ranges in the order in which they came; what continues the last one is joined to it.
pub struct List<'a> {
    arena: &'a Arena,
    room: &'a mut [Range],
    count: usize,
}

impl<'a> List<'a> {
    /// An empty one.
    #[must_use]
    pub fn new(arena: &'a Arena) -> Self {
        Self { arena, room: &mut [], count: 0 }
    }

    /// Adds a range.
    ///
    /// # Errors
    /// The arena's.
    pub fn push(&mut self, range: Range) -> Result<(), RestoreError<'static>> {
        if let Some(last) = self.count.checked_sub(1).map(|last| &mut self.room[last])
            && last.1 == range.0
        {
            last.1 = range.1;
            return Ok(());
        }
        if self.count == self.room.len() {
            // What it outgrows is never used again: at most as much as it has in the end.
            let larger = self.arena.take_ranges((2 * self.count).max(FIRST))?;
            larger[..self.count].copy_from_slice(self.room);
            self.room = larger;
        }
        self.room[self.count] = range;
        self.count += 1;
        Ok(())
    }

    /// Adds ranges.
    ///
    /// # Errors
    /// The arena's.
    pub fn extend(&mut self, ranges: impl Iterator<Item = Range>) -> Result<(), RestoreError<'static>> {
        for range in ranges {
            self.push(range)?;
        }
        Ok(())
    }

    /// Its ranges.
    #[must_use]
    pub fn all(&self) -> &[Range] {
        &self.room[..self.count]
    }

    /// Its ranges, to be sorted.
    pub fn all_mut(&mut self) -> &mut [Range] {
        &mut self.room[..self.count]
    }
}
