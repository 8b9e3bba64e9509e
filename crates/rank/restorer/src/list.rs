//! A growing list of page ranges in the arena.

use crate::arena;
use mend_image::ranges::Range;

const FIRST: usize = 4096;

/// Ranges in the order in which they came; what continues the last one is joined to it.
#[derive(Default)]
pub struct List {
    room: &'static mut [Range],
    count: usize,
}

impl List {
    pub fn push(&mut self, range: Range) {
        if let Some(last) = self.count.checked_sub(1).map(|last| &mut self.room[last])
            && last.1 == range.0
        {
            last.1 = range.1;
            return;
        }
        if self.count == self.room.len() {
            // What it outgrows is never used again: at most as much as it has in the end.
            let larger = arena::take_ranges((2 * self.count).max(FIRST));
            larger[..self.count].copy_from_slice(self.room);
            self.room = larger;
        }
        self.room[self.count] = range;
        self.count += 1;
    }

    pub fn all(&self) -> &[Range] {
        &self.room[..self.count]
    }

    pub fn all_mut(&mut self) -> &mut [Range] {
        &mut self.room[..self.count]
    }
}
