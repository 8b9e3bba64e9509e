//! Files that nodes have open for writing, as those who serve their mounts say: nobody closes them for a node that is lost, so what is not said again is over.

use super::Store;
use mend_data::space::Id;
use mend_data::space::target::{HELD, UNSYNCED};
use mend_data::space::written::CLAIM;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Nodes that are believed at once; those that come later are not.
const MAX_NODES: usize = 4096;

/// By who says it: since when, and which files.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<Id, (Instant, HashSet<Id>)>>);

impl Holds {
    /// What one says takes the place of what it said before.
    pub fn say(&self, who: Id, files: Vec<Id>) {
        let mut holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holds.retain(|_, (since, _)| since.elapsed() < Duration::from_secs(CLAIM));
        if files.is_empty() {
            holds.remove(&who);
        } else if holds.len() < MAX_NODES || holds.contains_key(&who) {
            holds.insert(who, (Instant::now(), files.into_iter().collect()));
        }
    }

    fn has(&self, file: &Id) -> bool {
        let holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holds.values().any(|(since, files)| since.elapsed() < Duration::from_secs(CLAIM) && files.contains(file))
    }
}

impl Store {
    /// Of each of these files whether it is being written: a byte.
    pub(super) fn are_written(&self, files: &[Id]) -> Vec<u8> {
        let unsynced = self.writing.unsynced();
        let one = |file: &Id| u8::from(unsynced.contains(file)) * UNSYNCED + u8::from(self.holds.has(file)) * HELD;
        files.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_says_takes_the_place_of_what_it_said_before_and_of_nothing_else() {
        let holds = Holds::default();
        holds.say([1; 16], vec![[7; 16], [8; 16]]);
        holds.say([2; 16], vec![[8; 16]]);
        holds.say([1; 16], vec![[9; 16]]);
        assert_eq!([7, 8, 9].map(|file| holds.has(&[file; 16])), [false, true, true]);
        holds.say([2; 16], Vec::new());
        assert_eq!([8, 9].map(|file| holds.has(&[file; 16])), [false, true]);
    }

    #[test]
    fn what_is_not_said_again_is_over() {
        let holds = Holds::default();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(CLAIM)).unwrap();
        holds.0.lock().unwrap().insert([1; 16], (long_ago, HashSet::from([[7; 16]])));
        assert!(!holds.has(&[7; 16]));
        holds.say([2; 16], vec![[8; 16]]);
        assert_eq!(holds.0.lock().unwrap().len(), 1);
    }
}
