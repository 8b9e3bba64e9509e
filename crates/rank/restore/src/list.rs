//! Growing lists in an arena.

use crate::RestoreError;
use crate::arena::{Arena, Zeroed};
use mend_image::ranges::Range;

/// Of a list that has outgrown nothing yet.
const FIRST_CAPACITY: usize = 4096;

/// An array to which more is added.
pub struct Array<'a, T> {
    arena: &'a Arena,
    room: &'a mut [T],
    count: usize,
}

impl<'a, T: Zeroed> Array<'a, T> {
    /// An empty one.
    #[must_use]
    pub fn new(arena: &'a Arena) -> Self {
        Self { arena, room: &mut [], count: 0 }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// The arena's.
    pub fn push(&mut self, item: T) -> Result<(), RestoreError<'static>> {
        if self.count == self.room.len() {
            // What it outgrows is never used again: at most as much as it has in the end.
            let larger = self.arena.take_array((2 * self.count).max(FIRST_CAPACITY))?;
            larger[..self.count].copy_from_slice(self.room);
            self.room = larger;
        }
        self.room[self.count] = item;
        self.count += 1;
        Ok(())
    }

    /// Forgets all items, and keeps the memory.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Its items.
    #[must_use]
    pub fn all(&self) -> &[T] {
        &self.room[..self.count]
    }

    /// Its items, to be changed.
    pub fn all_mut(&mut self) -> &mut [T] {
        &mut self.room[..self.count]
    }
}

/// Ranges in the order in which they came; what continues the last one is joined to it.
pub struct List<'a>(Array<'a, Range>);

impl<'a> List<'a> {
    /// An empty one.
    #[must_use]
    pub fn new(arena: &'a Arena) -> Self {
        Self(Array::new(arena))
    }

    /// Adds a range.
    ///
    /// # Errors
    /// The arena's.
    pub fn push(&mut self, range: Range) -> Result<(), RestoreError<'static>> {
        match self.0.all_mut().last_mut() {
            Some(last) if last.1 == range.0 => {
                last.1 = range.1;
                Ok(())
            }
            _ => self.0.push(range),
        }
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
        self.0.all()
    }

    /// Its ranges, to be sorted.
    pub fn all_mut(&mut self) -> &mut [Range] {
        self.0.all_mut()
    }
}
