//! What a client knows for certain while the leases last that targets gave it ([`Lease`]): names, and sizes and times of files that ranks write.
//!
//! Invariant: what is said here is so at the moment it is asked for. Faults assumed: leases end at any moment; this process stands still; other threads of it change files
//! meanwhile, before and after which [`Leased::change`] is called.

use mend_data::space::Id;
use mend_data::space::target::Lease;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Files whose size and time are kept; if there are more, they are asked for again.
const MOST: usize = 1 << 16;

/// Size of a file in bytes, and when it was changed last, nanoseconds since 1970.
pub(super) type SizeAndTime = (u64, i64);

/// See the module.
#[derive(Debug)]
pub(super) struct Leased {
    /// By which targets know the client.
    pub client: Id,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the first of the leases ends.
    until: Option<Instant>,
    /// What each target says of the others' changes.
    others: Vec<(u16, u64)>,
    files: HashMap<Id, SizeAndTime>,
    /// How often this client has changed something, or lost what it knew.
    changes: u64,
}

impl State {
    fn lasts(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

impl Leased {
    /// Of a client that has heard nothing yet.
    pub fn new() -> Self {
        Self { client: mend_wire::random_bytes(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if all that this client has heard is still so.
    pub fn lasts(&self) -> bool {
        self.state().lasts()
    }

    /// All targets that are there have answered, and given these leases, which were asked for then; `None`: not all of them did.
    pub fn heard(&self, asked: Instant, leases: Option<Vec<(u16, Lease)>>) {
        let mut state = self.state();
        let leases = leases.filter(|leases| leases.iter().all(|(_, lease)| lease.ms > 0));
        let Some(ms) = leases.iter().flatten().map(|(_, lease)| lease.ms).min() else { return state.until = None };
        let others: Vec<(u16, u64)> = leases.into_iter().flatten().map(|(at, lease)| (at, lease.others)).collect();
        if others != state.others {
            state.files.clear();
            state.changes += 1;
            state.others = others;
        }
        state.until = Some(asked + Duration::from_millis(ms.into()));
    }

    /// What is known of a file.
    pub fn file(&self, file: &Id) -> Option<SizeAndTime> {
        let state = self.state();
        state.files.get(file).copied().filter(|_| state.lasts())
    }

    /// To be given back with what targets say of files from now on; `None` if there are no leases.
    pub fn mark(&self) -> Option<u64> {
        let state = self.state();
        state.lasts().then_some(state.changes)
    }

    /// Keeps what targets said, unless something changed since the mark.
    pub fn keep(&self, mark: u64, files: impl Iterator<Item = (Id, SizeAndTime)>) {
        let mut state = self.state();
        if mark != state.changes || !state.lasts() {
            return;
        }
        if state.files.len() >= MOST {
            state.files.clear();
        }
        state.files.extend(files);
    }

    /// This client begins to change these, or has changed them.
    pub fn change(&self, files: &[Id]) {
        if files.is_empty() {
            return;
        }
        let mut state = self.state();
        state.changes += 1;
        for file in files {
            state.files.remove(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Id = [1; 16];
    const OTHER: Id = [2; 16];

    fn leases(ms: u32, others: u64) -> Option<Vec<(u16, Lease)>> {
        Some(vec![(0, Lease { ms: 60_000, others: 1 }), (2, Lease { ms, others })])
    }

    #[test]
    fn what_is_kept_goes_when_anybody_changes_something_or_a_lease_ends() {
        let (leased, now) = (Leased::new(), Instant::now());
        assert_eq!((leased.lasts(), leased.mark()), (false, None));
        leased.heard(now, leases(60_000, 5));
        let mark = leased.mark().unwrap();
        leased.keep(mark, [(FILE, (7, 8)), (OTHER, (9, 9))].into_iter());
        assert_eq!((leased.lasts(), leased.file(&FILE)), (true, Some((7, 8))));
        // Nobody else has changed anything: what is known stays known.
        leased.heard(now, leases(60_000, 5));
        assert_eq!(leased.file(&FILE), Some((7, 8)));
        // What was asked for before this client's own change may be from before it.
        leased.change(&[FILE]);
        leased.keep(mark, [(FILE, (7, 8))].into_iter());
        assert_eq!((leased.file(&FILE), leased.file(&OTHER)), (None, Some((9, 9))));
        leased.heard(now, leases(60_000, 6));
        assert_eq!((leased.lasts(), leased.file(&OTHER)), (true, None));
        leased.keep(leased.mark().unwrap(), [(FILE, (1, 1))].into_iter());
        for (ended, given) in
            [(now - Duration::from_secs(60), leases(60_000, 6)), (now, leases(0, 6)), (now, None), (now, Some(Vec::new()))]
        {
            leased.heard(ended, given);
            assert_eq!((leased.lasts(), leased.file(&FILE), leased.mark()), (false, None, None));
        }
        leased.heard(now, leases(60_000, 6));
        assert_eq!(leased.file(&FILE), Some((1, 1)), "it was so all the time");
    }
}
