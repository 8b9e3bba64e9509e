//! What is under way for long: its clients are told that the target is at it, or they would take it for lost. A medium may take minutes for what `fsync` asks of it.

use crate::link::AtIt;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often that is said, and after how long for the first time.
pub(super) const SAID: Duration = Duration::from_millis(500);

/// What is carried out now.
#[derive(Debug, Default)]
pub(super) struct UnderWay(Mutex<Began>);

#[derive(Debug, Default)]
struct Began {
    next: u64,
    all: HashMap<u64, (Instant, AtIt)>,
}

/// Something is carried out for as long as it is there.
#[derive(Debug)]
pub(super) struct One<'a> {
    of: &'a UnderWay,
    number: u64,
}

impl UnderWay {
    fn began(&self) -> MutexGuard<'_, Began> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something begins; whoever waits for it hears so now and then.
    pub fn begin(&self, at_it: AtIt) -> One<'_> {
        let mut began = self.began();
        began.next += 1;
        let number = began.next;
        began.all.insert(number, (Instant::now(), at_it));
        One { of: self, number }
    }

    /// Tells who has waited for long.
    pub fn say(&self) {
        let long: Vec<AtIt> =
            self.began().all.values().filter(|(since, _)| since.elapsed() >= SAID).map(|(_, at_it)| at_it.clone()).collect();
        // Not while the others' requests wait to begin or end.
        long.iter().for_each(AtIt::say);
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.of.began().all.remove(&self.number);
    }
}
