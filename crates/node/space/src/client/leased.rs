//! What a client knows for certain while the leases last that targets gave it ([`Lease`]): names, and sizes and times of files that ranks write.
//!
//! Invariant: what is said here is so at the moment it is asked for. Faults assumed: leases end at any moment; this process stands still; other threads of it change files
//! meanwhile, for as long as which [`Leased::changing`] is held.

use mend_data::space::Id;
use mend_data::space::target::Lease;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Files whose size and time are kept; if there are more, they are asked for again.
const MAX_FILES: usize = 1 << 16;

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
    /// Files that this client changes now, each as often as it does.
    changing: Vec<Id>,
    /// How often this client has changed something, or lost what it knew.
    changes: u64,
}

impl State {
    fn lasts(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// What is known of these is, or may be, no longer so.
    fn forget(&mut self, files: &[Id]) {
        self.changes += 1;
        for file in files {
            self.files.remove(file);
        }
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

    /// Keeps what targets said, unless something changed since the mark. What is being changed is not kept: it may be as it was, and be different when a lease is asked for again.
    pub fn keep(&self, mark: u64, files: impl Iterator<Item = (Id, SizeAndTime)>) {
        let mut state = self.state();
        if mark != state.changes || !state.lasts() {
            return;
        }
        if state.files.len() >= MAX_FILES {
            state.files.clear();
        }
        let State { files: kept, changing, .. } = &mut *state;
        kept.extend(files.filter(|(file, _)| !changing.contains(file)));
    }

    /// This client changes these files for as long as what is returned is there; `None` if there are none.
    pub fn changing<'a>(&'a self, files: &'a [Id]) -> Option<Changing<'a>> {
        if files.is_empty() {
            return None;
        }
        let mut state = self.state();
        state.changing.extend(files);
        state.forget(files);
        Some(Changing { leased: self, files })
    }
}

/// A client changes files for as long as it is there.
#[derive(Debug)]
pub(super) struct Changing<'a> {
    leased: &'a Leased,
    files: &'a [Id],
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut state = self.leased.state();
        for file in self.files {
            if let Some(place) = state.changing.iter().position(|changing| changing == file) {
                state.changing.swap_remove(place);
            }
        }
        state.forget(self.files);
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
        drop(leased.changing(&[FILE]));
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
    /// Who sees what is new, and then what was before it, would take a file for one that shrinks.
    #[test]
    fn what_is_being_changed_is_not_kept() {
        let (leased, now) = (Leased::new(), Instant::now());
        leased.heard(now, leases(60_000, 5));
        let [first, second] = [(); 2].map(|()| leased.changing(&[FILE]));
        let mark = leased.mark().unwrap();
        leased.keep(mark, [(FILE, (7, 8)), (OTHER, (9, 9))].into_iter());
        assert_eq!((leased.file(&FILE), leased.file(&OTHER)), (None, Some((9, 9))));
        drop(first);
        leased.keep(leased.mark().unwrap(), [(FILE, (7, 8))].into_iter());
        assert_eq!(leased.file(&FILE), None, "another thread changes it still");
        drop(second);
        leased.keep(leased.mark().unwrap(), [(FILE, (8, 9))].into_iter());
        assert_eq!(leased.file(&FILE), Some((8, 9)));
    }
}
