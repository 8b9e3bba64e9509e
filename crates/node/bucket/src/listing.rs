//! Which objects the bucket has. A listing of millions of chunks takes long, so it is made behind those who ask, and used again for twenty times as long as it took.

use crate::bucket::Bucket;
use crate::writes::{chunk_of, whole};
use mend_data::space::Id;
use mend_data::space::target::Failed;
use mend_space::server::Failure;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A listing is used for so many times as long as it took.
const USED: u32 = 20;

/// Bytes of objects that are there, by file and place.
pub type Lengths = HashMap<(Id, u16), u64>;

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// When the last one began, how long it took, and what came of it.
    last: Option<(Instant, Duration, Result<Arc<Lengths>, Failure>)>,
}

/// Listings of the bucket: made in a thread of their own, one at a time, and shared by those who ask.
#[derive(Debug, Default)]
pub struct Listings {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Listings {
    /// Something was found lost: the next listing is made anew.
    pub fn are_doubted(&self) {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner).last = None;
    }

    /// A listing that was begun after `since`, or is not out of date if none is said; and whether it was begun just now.
    ///
    /// # Errors
    /// Those of the bucket; [`Failed::Busy`] if it takes longer than one request may.
    pub fn get(&self, bucket: &Arc<Bucket>, since: Option<Instant>) -> Result<(Arc<Lengths>, bool), Failure> {
        let asked = Instant::now();
        let (lock, changed) = &*self.state;
        let mut state = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((begun, took, listed)) = &state.last {
                let good = match since {
                    Some(since) => *begun >= since,
                    None => *begun >= asked || (listed.is_ok() && begun.elapsed() < *took * (USED + 1)),
                };
                if good {
                    return listed
                        .as_ref()
                        .map(|listed| (listed.clone(), *begun >= asked))
                        .map_err(|failure| Failure::new(failure.kind, failure.why.clone()));
                }
            }
            if !state.running {
                state.running = true;
                let (shared, bucket) = (self.state.clone(), bucket.clone());
                std::thread::spawn(move || {
                    let begun = Instant::now();
                    let listed = lengths(&bucket).map(Arc::new);
                    let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                    *state = State { running: false, last: Some((begun, begun.elapsed(), listed)) };
                    shared.1.notify_all();
                });
            }
            let left = bucket.limit().saturating_sub(asked.elapsed());
            if left.is_zero() {
                return Err(Failure::new(Failed::Busy, "its objects are still being listed: ask again later"));
            }
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn lengths(bucket: &Bucket) -> Result<Lengths, Failure> {
    let mut chunks: HashMap<(Id, u16), Vec<(u64, u64)>> = HashMap::new();
    for found in bucket.list("objects", usize::MAX)? {
        if let Some(chunk) = chunk_of(&found.name) {
            chunks.entry((chunk.file, chunk.position)).or_default().push((chunk.number, found.size));
        }
    }
    Ok(chunks.into_iter().map(|(object, chunks)| (object, whole(chunks))).collect())
}
