//! Whether there is room for the next periodic checkpoint: a file system that Mend has filled hurts more than a checkpoint that is missing.

use mend_policy::schedule::CheckpointKind;
use serde::{Deserialize, Serialize};

/// The part of a file system that the reserve takes at most: one in so many.
const MIN_SPACE_PER_RESERVE: u64 = 20;

/// What checkpoints took, and whether the user was told that there is no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointSpace {
    full: u64,
    incremental: u64,
    /// Too little room since it was last told.
    short: bool,
}

/// What is said when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpaceVerdict {
    /// There is room, as before.
    Enough,
    /// There is room again.
    Again,
    /// There is too little, as before.
    Short,
    /// There is too little from now on: bytes that it takes, that stay free.
    NewlyShort(u64, u64),
}

impl CheckpointSpace {
    /// A checkpoint has taken so much.
    pub(crate) fn taken(&mut self, kind: CheckpointKind, bytes: u64) {
        match kind {
            CheckpointKind::Incremental => self.incremental = bytes,
            _ => self.full = bytes,
        }
    }

    /// Judges with `left` of `all` bytes. `reserve` bytes are to stay free, or a 20th of the file system if that is less.
    pub(crate) fn weigh(&mut self, left: u64, all: u64, incremental: bool, reserve: u64) -> SpaceVerdict {
        let expected = if incremental && self.incremental > 0 { self.incremental } else { self.full };
        let reserve = reserve.min(all / MIN_SPACE_PER_RESERVE);
        let short = left < expected.saturating_add(reserve);
        match (short, std::mem::replace(&mut self.short, short)) {
            (false, false) => SpaceVerdict::Enough,
            (false, true) => SpaceVerdict::Again,
            (true, true) => SpaceVerdict::Short,
            (true, false) => SpaceVerdict::NewlyShort(expected, reserve),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_that_there_is_too_little_and_once_that_there_is_room() {
        let mut space = CheckpointSpace::default();
        let all = 1000;
        assert_eq!(space.weigh(60, all, false, 100), SpaceVerdict::Enough, "nothing is known of its size");
        space.taken(CheckpointKind::Full, 100);
        space.taken(CheckpointKind::Incremental, 10);
        assert_eq!(space.weigh(149, all, true, 100), SpaceVerdict::Enough);
        assert_eq!(space.weigh(149, all, false, 100), SpaceVerdict::NewlyShort(100, 50));
        assert_eq!(space.weigh(140, all, false, 100), SpaceVerdict::Short);
        assert_eq!(space.weigh(150, all, false, 100), SpaceVerdict::Again);
        assert_eq!(space.weigh(130, all, false, 30), SpaceVerdict::Enough);
        assert_eq!(space.weigh(59, all, true, 50), SpaceVerdict::NewlyShort(10, 50));
    }
}
