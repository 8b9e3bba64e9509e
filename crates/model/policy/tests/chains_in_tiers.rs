//! What it costs to begin a chain anew where it would take too much space, as in tiers, against merging it, as in the checkpoint
//! directory alone: bytes written, read and held, of the real schedule and the real retention over many checkpoints.
//! `docs/decisions/0023-chains-in-tiers-are-begun-anew.md` rests on these numbers.

use mend_policy::retention::{Bounds, KnownCheckpoint, merge, needed, superseded};
use mend_policy::schedule::{CheckpointKind, Incremental, Interval, Rules, Schedule, Taken};
use std::collections::BTreeSet;

const FULL: u64 = 1_000_000;
const CHECKPOINTS: u64 = 1000;

/// Bytes, of one tier.
#[derive(Debug, Default)]
struct Spent {
    /// By the ranks; every tier gets a copy of each.
    saved: u64,
    /// By merging, in each tier; as much is read there before.
    merged: u64,
    /// Most that was there at once, with what is being written.
    peak: u64,
}

impl Spent {
    fn written(&self) -> u64 {
        self.saved + self.merged
    }
}

/// Every checkpoint after a full one holds `changed` bytes of pages that were in it.
fn life(changed: u64, percent: u32, merges: bool) -> Spent {
    let rules = Rules {
        interval: Interval::Every(10),
        incremental: Incremental::Count(31),
        node_mtbf_s: 1_000_000,
        averted_percent: 0,
        nodes: 4,
        space_percent: (!merges).then_some(percent),
    };
    let bounds = Bounds { keep: 1, space_percent: if merges { percent } else { u32::MAX } };
    let (mut schedule, mut all, mut spent) = (Schedule::new(rules, 0), Vec::<KnownCheckpoint>::new(), Spent::default());
    let mut chain = 0;
    for number in 1..=CHECKPOINTS {
        let builds = number > 1 && schedule.builds();
        chain = if builds { chain + 1 } else { 0 };
        let (kind, bytes) = if builds { (CheckpointKind::Incremental, changed) } else { (CheckpointKind::Full, FULL) };
        let at = number * 10_000_000;
        schedule.taken(&Taken { begun_us: at, ended_us: at + 1000, stopped_us: 1000, write_us: 1000, bytes, kind, chain });
        let bases: BTreeSet<u64> = builds.then_some(number - 1).into_iter().collect();
        all.push(KnownCheckpoint { number, periodic: true, restorable: true, bases, bytes });
        spent.saved += bytes;
        spent.peak = spent.peak.max(all.iter().map(|one| one.bytes).sum());
        let clear = |all: &mut Vec<KnownCheckpoint>| {
            let going = superseded(all, false, bounds);
            all.retain(|one| !going.contains(&one.number));
        };
        clear(&mut all);
        // What is live in a chain whose members hold each other's pages is as much as a full one.
        if let Some(wanted) = merge(&all, false, bounds).filter(|wanted| merges && wanted.weigh(FULL, bounds).is_none()) {
            spent.merged += FULL;
            spent.peak = spent.peak.max(all.iter().map(|one| one.bytes).sum::<u64>() + FULL);
            let merged = all.iter_mut().find(|one| one.number == wanted.at).unwrap();
            (merged.bases, merged.bytes) = (BTreeSet::new(), FULL);
            clear(&mut all);
            chain = needed(&all, [number]).len() as u32;
            schedule.merged(chain);
        }
        // Both keep to the bound, but for what is under way.
        let held: u64 = all.iter().map(|one| one.bytes).sum();
        assert!(held <= FULL * u64::from(percent) / 100, "{number}: {held}");
    }
    spent
}

#[test]
fn beginning_anew_writes_and_holds_no_more_than_merging() {
    let mut merged_any = 0;
    for percent in [150, 250, 400] {
        for changed in [FULL / 100, FULL / 20, FULL / 10, FULL / 4, FULL / 2] {
            let [anew, merging] = [false, true].map(|merges| life(changed, percent, merges));
            // One chain is never longer than 32 checkpoints, whatever the space: both begin anew then.
            let bytes = |bytes: u64| bytes as f64 / CHECKPOINTS as f64 / FULL as f64;
            let each = [anew.saved, merging.saved, merging.merged].map(bytes);
            println!("{percent} % {changed}: anew, merging saved, merged {each:.3?} peaks {} {}", anew.peak, merging.peak);
            assert!(anew.written() as f64 <= merging.written() as f64 * 1.001, "{percent} % {changed}: {anew:?} {merging:?}");
            assert!(anew.peak <= merging.peak + changed, "{percent} % {changed}: {anew:?} {merging:?}");
            assert!(anew.merged == 0 && anew.peak <= FULL * u64::from(percent + 100) / 100);
            merged_any += u32::from(merging.merged > 0);
        }
    }
    assert!(merged_any >= 10, "{merged_any}");
}
