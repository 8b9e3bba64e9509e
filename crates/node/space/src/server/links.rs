//! Connections that clients have given up: what was asked over them must not be carried out after what the client asks from then on.
//!
//! ```text
//! connection 1 ── WriteRange ──►  on its way, or being carried out; its answer is not waited for any more
//! connection 2 ── Hello: 1 is given up ──► nothing that comes over 1 is begun ── WriteRange ──► waits for what 1 has begun ── is carried out
//! ```
//! Invariant: when a connection's first request that changes something is carried out, no such request of those that were given up before it is, or will be. Faults assumed: clients give up any connection at any moment, also
//! one that takes the place of another, before they have asked anything over it.

use mend_data::space::Id;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is known of a connection.
#[derive(Debug, Default)]
struct State {
    given_up: AtomicBool,
    /// Held while something is changed. Connections that were given up before this one, until they were waited for.
    changing: Mutex<Vec<Arc<State>>>,
}

/// What is held while something is changed.
type Changing<'a> = MutexGuard<'a, Vec<Arc<State>>>;

impl State {
    fn change(&self) -> Changing<'_> {
        let mut before = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        before.drain(..).for_each(|state| drop(state.change()));
        before
    }
}

/// Which connection of which client.
type Key = (Id, u64);

/// All connections that there are.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<HashMap<Key, Arc<State>>>);

/// A connection, for as long as it is there.
#[derive(Debug)]
pub(super) struct Linked {
    links: Arc<Links>,
    key: Key,
    state: Arc<State>,
}

impl Links {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, Arc<State>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client has a new connection, and gives up these.
    pub fn begin(self: &Arc<Self>, client: Id, number: u64, given_up: &[u64]) -> Linked {
        let mut all = self.all();
        let before: Vec<Arc<State>> = given_up.iter().filter_map(|number| all.get(&(client, *number)).cloned()).collect();
        before.iter().for_each(|state| state.given_up.store(true, Ordering::SeqCst));
        let state = Arc::new(State { given_up: AtomicBool::new(false), changing: Mutex::new(before) });
        all.insert((client, number), state.clone());
        Linked { links: self.clone(), key: (client, number), state }
    }
}

impl Linked {
    /// Something that was asked over it begins, until what is returned is gone. What `changes` something waits until all is over that was begun over connections that were given up before. `None` if this one was given up.
    pub fn begin(&self, changes: bool) -> Option<impl Sized> {
        let changing = changes.then(|| self.state.change());
        // Whoever gives it up says so before it waits.
        (!self.state.given_up.load(Ordering::SeqCst)).then_some(changing)
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        let mut all = self.links.all();
        if all.get(&self.key).is_some_and(|state| Arc::ptr_eq(state, &self.state)) {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const ONE: Id = [1; 16];

    #[test]
    fn what_is_given_up_does_not_begin_and_what_it_has_begun_is_waited_for() {
        let links = Arc::new(Links::default());
        let first = links.begin(ONE, 0, &[]);
        let other = links.begin([2; 16], 0, &[]);
        let under_way = first.begin(true).unwrap();
        // One that was given up before it asked anything hands on whom it was to wait for.
        let second = links.begin(ONE, 1, &[0]);
        let third = links.begin(ONE, 2, &[1]);
        assert!(other.begin(true).is_some());
        let (say, said) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| say.send(third.begin(true).is_some()).unwrap());
            assert!(said.recv_timeout(Duration::from_millis(100)).is_err(), "what the first one has begun is not over");
            drop(under_way);
            assert!(said.recv().unwrap());
        });
        assert!(first.begin(true).is_none() && first.begin(false).is_none() && second.begin(true).is_none() && third.begin(true).is_some());
        drop((first, second, third, other));
        assert!(links.all().is_empty());
    }
}
