//! Whether there is room for the next periodic checkpoint: a file system that Mend has filled hurts more than a checkpoint that is missing.

use crate::job::Job;
use mend_policy::schedule::Kind;
use rustix::fs::statvfs;
use std::path::Path;

/// The part of a file system that the reserve takes at most: one in so many.
const PART: u64 = 20;

/// What checkpoints took, and whether the user was told that there is no room.
#[derive(Debug, Default)]
pub struct Space {
    full: u64,
    incremental: u64,
    /// Too little room since it was last told.
    short: bool,
}

/// What is said when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is room, as before.
    Room,
    /// There is room again.
    Again,
    /// There is too little, as before.
    Short,
    /// There is too little from now on: bytes that are left, that it takes, that stay free.
    NewlyShort(u64, u64, u64),
}

impl Space {
    /// True while there is too little room.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// A checkpoint has taken so much.
    pub fn taken(&mut self, kind: Kind, bytes: u64) {
        match kind {
            Kind::Incremental => self.incremental = bytes,
            _ => self.full = bytes,
        }
    }

    /// Judges for a checkpoint in `directory`. `reserve` bytes are to stay free, or a 20th of the file system if that is less.
    pub fn judge(&mut self, directory: &Path, incremental: bool, reserve: u64) -> Verdict {
        let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
        // One that does not say fails the checkpoint, if it is full.
        let Ok(found) = statvfs(there) else { return Verdict::Room };
        self.weigh(found.f_bavail.saturating_mul(found.f_frsize), found.f_blocks.saturating_mul(found.f_frsize), incremental, reserve)
    }

    fn weigh(&mut self, left: u64, all: u64, incremental: bool, reserve: u64) -> Verdict {
        let expected = if incremental && self.incremental > 0 { self.incremental } else { self.full };
        let reserve = reserve.min(all / PART);
        let short = left < expected.saturating_add(reserve);
        match (short, std::mem::replace(&mut self.short, short)) {
            (false, false) => Verdict::Room,
            (false, true) => Verdict::Again,
            (true, true) => Verdict::Short,
            (true, false) => Verdict::NewlyShort(left, expected, reserve),
        }
    }
}

impl Job {
    /// Whether there is room for a periodic checkpoint. What changes is told.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.tiers.is_some() {
            return true;
        }
        let place = self.checkpoints();
        match self.periodic.judge_space(&place) {
            Verdict::Room => true,
            Verdict::Short => false,
            Verdict::Again => {
                eprintln!("mend: there is room again in {}; periodic checkpoints go on", place.display());
                true
            }
            Verdict::NewlyShort(left, expected, reserve) => {
                let mib = |bytes: u64| bytes >> 20;
                eprintln!(
                    "mend: no periodic checkpoints for now: {} has {} MiB left, the next one takes about {} MiB, and {} MiB stay free",
                    place.display(),
                    mib(left),
                    mib(expected),
                    mib(reserve)
                );
                eprintln!(
                    "  hint: `mend rm --ended` removes jobs that ended, --keep keeps fewer checkpoints; they go on when there is room"
                );
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_that_there_is_too_little_and_once_that_there_is_room() {
        let mut space = Space::default();
        let all = 1000;
        assert_eq!(space.weigh(60, all, false, 100), Verdict::Room, "nothing is known of its size");
        space.taken(Kind::Full, 100);
        space.taken(Kind::Incremental, 10);
        assert_eq!(space.weigh(149, all, true, 100), Verdict::Room);
        assert_eq!(space.weigh(149, all, false, 100), Verdict::NewlyShort(149, 100, 50));
        assert_eq!(space.weigh(140, all, false, 100), Verdict::Short);
        assert_eq!(space.weigh(150, all, false, 100), Verdict::Again);
        assert_eq!(space.weigh(130, all, false, 30), Verdict::Room);
        assert_eq!(space.weigh(59, all, true, 50), Verdict::NewlyShort(59, 10, 50));
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_on_the_file_system_of_the_one_above() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(Space::default().judge(&place.path().join("a/b"), false, 0), Verdict::Room);
    }
}
