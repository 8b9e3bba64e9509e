//! Which files are ready to be sent: nobody has them open for writing, all of them is synced, and they have not changed for a while.
//!
//! Whoever looks sees size and time of each file. Both are seen unchanged at two looks at least, [`TICK`] apart: a write that comes after the second of them has a later time than
//! the first one saw, although clocks of file systems tick slowly. So what is read after it and has the same size and time at the end is one state of the file.

use crate::space::Id;
use crate::space::written::CLAIM;
use std::collections::HashMap;
use std::time::Duration;

/// The shortest time between two looks that see the same state: several ticks of a kernel's clock (CONFIG_HZ=100: 10 ms).
pub const TICK: Duration = Duration::from_millis(50);

/// What a look shows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which one.
    pub id: Id,
    /// Its bytes.
    pub size: u64,
    /// When it was changed last, nanoseconds since 1970, by the clock of a target.
    pub changed_ns: i64,
    /// A node has it open for writing.
    pub held: bool,
    /// Something of it was written and not synced.
    pub unsynced: bool,
}

/// Whether a file can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It can.
    Ready,
    /// After so long, if nothing happens to it.
    Waits(Duration),
    /// Somebody has it open for writing.
    Held,
}

/// What was seen at earlier looks.
#[derive(Debug, Default)]
pub struct Quiet {
    since: HashMap<Id, (u64, i64, Duration)>,
}

impl Quiet {
    /// Takes in a look at all files, at a time of the own clock that never goes back, and `now_ns` of the one that counts from 1970. `settle`: how long a file must not have changed.
    pub fn look(&mut self, now: Duration, now_ns: i64, settle: Duration, files: &[Seen]) -> Vec<State> {
        let before = std::mem::take(&mut self.since);
        let one = |file: &Seen| {
            let same = before.get(&file.id).filter(|(size, changed_ns, _)| (*size, *changed_ns) == (file.size, file.changed_ns));
            let since = same.map_or(now, |(_, _, since)| *since);
            self.since.insert(file.id, (file.size, file.changed_ns, since));
            if file.held {
                return State::Held;
            }
            let seen = now.saturating_sub(since);
            let told = Duration::from_nanos(u64::try_from(now_ns.saturating_sub(file.changed_ns)).unwrap_or(0));
            // Whoever wrote it and did not sync it may be about to. After that time nobody is there who will.
            let quiet = if file.unsynced { settle.max(Duration::from_secs(CLAIM)) } else { settle };
            let left = TICK.saturating_sub(seen).max(quiet.saturating_sub(seen.max(told)));
            if left.is_zero() { State::Ready } else { State::Waits(left) }
        };
        files.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTLE: Duration = Duration::from_secs(10);
    const NOW: i64 = 1_795_000_000_000_000_000;

    fn file(size: u64, ago_s: i64) -> Seen {
        Seen { id: [1; 16], size, changed_ns: NOW - ago_s * 1_000_000_000, held: false, unsynced: false }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn look(quiet: &mut Quiet, ms: u64, file: Seen) -> State {
        quiet.look(at(ms), NOW, SETTLE, &[file])[0]
    }

    #[test]
    fn an_old_file_is_ready_at_the_second_look() {
        let mut quiet = Quiet::default();
        assert_eq!(look(&mut quiet, 0, file(5, 60)), State::Waits(TICK));
        assert_eq!(look(&mut quiet, 49, file(5, 60)), State::Waits(at(1)));
        assert_eq!(look(&mut quiet, 50, file(5, 60)), State::Ready);
        assert_eq!(look(&mut quiet, 60, file(6, 60)), State::Waits(TICK));
    }

    #[test]
    fn a_young_file_waits_by_either_clock() {
        let mut quiet = Quiet::default();
        assert_eq!(look(&mut quiet, 0, file(5, 4)), State::Waits(at(6000)));
        // The clock of its target is ahead: what was seen counts.
        let mut quiet = Quiet::default();
        assert_eq!(look(&mut quiet, 0, file(5, -100)), State::Waits(SETTLE));
        assert_eq!(look(&mut quiet, 9000, file(5, -100)), State::Waits(at(1000)));
        assert_eq!(look(&mut quiet, 10_000, file(5, -100)), State::Ready);
    }

    #[test]
    fn what_is_held_is_not_ready_and_what_nobody_syncs_is_after_a_while() {
        let mut quiet = Quiet::default();
        look(&mut quiet, 0, file(5, 60));
        assert_eq!(look(&mut quiet, 100, Seen { held: true, ..file(5, 60) }), State::Held);
        assert_eq!(look(&mut quiet, 200, Seen { unsynced: true, ..file(5, 12) }), State::Waits(TICK.max(Duration::from_secs(8))));
        assert_eq!(look(&mut quiet, 300, Seen { unsynced: true, ..file(5, 60) }), State::Waits(TICK));
        assert_eq!(look(&mut quiet, 400, Seen { unsynced: true, ..file(5, 60) }), State::Ready);
    }

    proptest! {
        /// A file with any history of looks is ready only when it was seen for a tick as it is.
        #[test]
        fn nothing_is_ready_that_was_not_seen_before(steps in prop::collection::vec((0_u64..80, 0_u64..3, 0_i64..20), 1..40)) {
            let (mut quiet, mut now, mut since) = (Quiet::default(), 0, None);
            for (after, size, ago) in steps {
                now += after;
                let file = file(size, ago);
                let same = since.filter(|(_, before)| *before == (file.size, file.changed_ns));
                since = Some((same.map_or(now, |(at, _)| at), (file.size, file.changed_ns)));
                if look(&mut quiet, now, file) == State::Ready {
                    prop_assert!(at(now - since.unwrap().0) >= TICK);
                    prop_assert!(ago >= 10 || at(now - since.unwrap().0) >= SETTLE);
                }
            }
        }
    }
}
