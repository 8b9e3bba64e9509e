//! What a power failure leaves of a disk.
//!
//! Everything durable stays. Of what is not, anything may have reached the disk and anything may have not, in any
//! order, and writes in part: a disk writes sectors. Real file systems keep more order than that; what stands here,
//! stands there. A seed decides, so that a loss can be repeated.

use crate::disk::{Body, Change, Disk, Edit};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// What a disk writes at once, bytes.
const SECTOR_BYTES: usize = 512;

/// What is left of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survival {
    /// Nothing that was not durable is there.
    Lost,
    /// Everything is.
    Kept,
    /// All up to some moment.
    Until,
    /// Some of it, writes torn.
    Scattered,
}

fn draw_survival(draw: &mut ChaCha8Rng) -> Survival {
    [Survival::Lost, Survival::Kept, Survival::Until, Survival::Scattered][draw.random_range(0..4)]
}

/// The disk after its power failed and came back.
#[must_use]
pub fn survive(disk: &Disk, seed: u64) -> Disk {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    let mut left = disk.clone();
    let mut numbers: Vec<u64> = left.inodes.keys().copied().collect();
    // The map's own order differs from run to run.
    numbers.sort_unstable();
    for number in numbers {
        let Some(inode) = left.inodes.get_mut(&number) else { continue };
        match &mut inode.body {
            Body::File { content, durable, pending } => {
                file(&mut draw, durable, pending);
                content.clone_from(durable);
                pending.clear();
            }
            Body::Directory { entries, durable, pending, .. } => {
                directory(&mut draw, durable, pending);
                entries.clone_from(durable);
                pending.clear();
            }
        }
    }
    left.sweep();
    left
}

fn file(draw: &mut ChaCha8Rng, durable: &mut Vec<u8>, pending: &[Change]) {
    let survival = draw_survival(draw);
    let until = draw.random_range(0..=pending.len());
    for (at, change) in pending.iter().enumerate() {
        match survival {
            Survival::Lost => return,
            Survival::Until if at >= until => return,
            Survival::Kept | Survival::Until => change.apply(durable),
            Survival::Scattered => scatter(draw, durable, change),
        }
    }
}

fn scatter(draw: &mut ChaCha8Rng, durable: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Length(_) => {
            if draw.random() {
                change.apply(durable);
            }
        }
        Change::Write { at, bytes } => {
            let mut done = 0;
            while done < bytes.len() {
                let place = *at as usize + done;
                let take = (SECTOR_BYTES - place % SECTOR_BYTES).min(bytes.len() - done);
                if draw.random_bool(0.9) {
                    Change::Write { at: place as u64, bytes: bytes[done..done + take].to_vec() }.apply(durable);
                }
                done += take;
            }
        }
    }
}

fn directory(draw: &mut ChaCha8Rng, durable: &mut BTreeMap<OsString, u64>, pending: &[Edit]) {
    let survival = draw_survival(draw);
    let until = draw.random_range(0..=pending.len());
    for (at, edit) in pending.iter().enumerate() {
        match survival {
            Survival::Lost => return,
            Survival::Until if at >= until => return,
            Survival::Kept | Survival::Until => edit.apply(durable),
            Survival::Scattered => {
                if draw.random() {
                    edit.apply(durable);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::ROOT;
    use proptest::prelude::*;
    use std::ffi::OsStr;

    fn file_of(disk: &mut Disk, name: &str, bytes: &[u8]) -> u64 {
        let number = disk.create(ROOT, OsStr::new(name), false, 0o600, (0, 0)).unwrap();
        disk.change(number, Change::Write { at: 0, bytes: bytes.to_vec() }).unwrap();
        number
    }

    /// How often a fact holds after 200 power failures.
    fn count(disk: &Disk, holds: impl Fn(&Disk) -> bool) -> usize {
        (0..200).filter(|&seed| holds(&survive(disk, seed))).count()
    }

    #[test]
    fn what_is_durable_stays_and_nothing_else_can_be_relied_on() {
        let mut disk = Disk::new((0, 0), 1 << 20);
        let number = file_of(&mut disk, "f", &[7; 5000]);
        let there = |disk: &Disk| disk.lookup(ROOT, OsStr::new("f")).is_ok();
        let whole = |disk: &Disk| there(disk) && disk.read(number, 0, 9999).unwrap() == [7; 5000];
        assert!((20..180).contains(&count(&disk, there)));
        disk.sync(number).unwrap();
        // The content is durable, its name is not.
        let named = count(&disk, there);
        assert!((20..180).contains(&named));
        assert_eq!(count(&disk, whole), named);
        disk.sync(ROOT).unwrap();
        assert_eq!(count(&disk, whole), 200);
        disk.change(number, Change::Write { at: 0, bytes: vec![8; 5000] }).unwrap();
        assert_eq!(count(&disk, there), 200);
        let torn = |disk: &Disk| {
            let bytes = disk.read(number, 0, 9999).unwrap();
            bytes.contains(&7) && bytes.contains(&8)
        };
        assert!(count(&disk, torn) > 20);
    }

    #[test]
    fn a_name_without_content_is_possible() {
        let mut disk = Disk::new((0, 0), 1 << 20);
        let number = file_of(&mut disk, "f", &[7; 5000]);
        disk.sync(ROOT).unwrap();
        assert!(count(&disk, |disk| disk.inode(number).unwrap().length() == 0) > 20);
    }

    #[test]
    fn a_rename_is_whole_or_not_at_all() {
        let mut disk = Disk::new((0, 0), 1 << 20);
        file_of(&mut disk, "new", b"2");
        file_of(&mut disk, "place", b"1");
        disk.sync(ROOT).unwrap();
        disk.rename((ROOT, OsStr::new("new")), (ROOT, OsStr::new("place")), false).unwrap();
        let has = |disk: &Disk, name: &str| disk.lookup(ROOT, OsStr::new(name)).is_ok();
        assert_eq!(count(&disk, |disk| has(disk, "place")), 200);
        assert!((20..180).contains(&count(&disk, |disk| has(disk, "new"))));
    }

    proptest! {
        #[test]
        fn a_seed_repeats_itself(seed: u64, lengths in proptest::collection::vec(1..4000usize, 1..6)) {
            let mut disk = Disk::new((0, 0), 1 << 20);
            for (at, length) in lengths.iter().enumerate() {
                let number = file_of(&mut disk, &format!("f{at}"), &vec![at as u8; *length]);
                if at % 2 == 0 {
                    disk.sync(number).unwrap();
                }
            }
            let contents = |disk: &Disk| -> Vec<(OsString, Vec<u8>)> {
                let entries = disk.entries(ROOT).unwrap().0;
                entries.iter().map(|(name, &number)| (name.clone(), disk.read(number, 0, 9999).unwrap().to_vec())).collect()
            };
            prop_assert_eq!(contents(&survive(&disk, seed)), contents(&survive(&disk, seed)));
        }
    }
}
