//! What one process does with a space at a time: it says again and again that it is at it, until it is done.

use crate::failure::Failure;
use mend_data::space::Id;
use mend_data::space::target::HEALING;
use mend_space::client::Client;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long it takes at most until one that waits looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A turn, held until it is dropped.
pub struct Turn {
    held: Arc<Mutex<Held>>,
    say: Say,
    /// Says again that it is held, until nobody can send here any more.
    holding: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Says that the turn is held, or with true that it is over. False: another one has it by then; `None`: nobody has heard it.
type Say = Arc<dyn Fn(bool) -> Option<bool> + Send + Sync>;

struct Held {
    /// When it was said last that it is held, and somebody heard it.
    since: Instant,
    /// For how long that is believed.
    lasts: Duration,
    lost: bool,
}

impl Held {
    /// Once it is lost it stays lost: another one may have had it meanwhile, whoever gets it afterwards.
    fn is_lost(&mut self) -> bool {
        self.lost |= self.since.elapsed() >= self.lasts;
        self.lost
    }
}

impl Turn {
    /// Held from `since` on, when that was asked for. It is believed for so long, and said four times as often.
    pub fn held(since: Instant, lasts: Duration, say: impl Fn(bool) -> Option<bool> + Send + Sync + 'static) -> Self {
        let (held, say): (_, Say) = (Arc::new(Mutex::new(Held { since, lasts, lost: false })), Arc::new(say));
        let (over, ended) = channel();
        let (known, again) = (held.clone(), say.clone());
        let holding = std::thread::spawn(move || {
            while ended.recv_timeout(lasts / 4) == Err(RecvTimeoutError::Timeout) {
                let asked = Instant::now();
                let heard = again(false);
                let mut held = known.lock().unwrap_or_else(PoisonError::into_inner);
                if !held.is_lost() {
                    held.lost = heard == Some(false);
                    held.since = if heard == Some(true) { asked } else { held.since };
                }
            }
        });
        Self { held, say, holding: Some((over, holding)) }
    }

    /// Another one has it, or can have had it: this process was stopped, or not heard, for too long.
    pub fn is_lost(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).is_lost()
    }

    /// The turn to change where the files of a space are: one heals or copies at a time, or bytes would be fetched twice. `None` if another one has it.
    pub fn take(client: &Arc<Client>, verify_after: Option<u32>) -> Result<Option<Self>, Failure> {
        let (who, since): (Id, Instant) = (mend_wire::random_bytes(), Instant::now());
        if !tokio::task::block_in_place(|| client.take_turn(who, verify_after, false))? {
            return Ok(None);
        }
        let client = client.clone();
        // If nobody hears it, another one may begin: what is done twice is not wrong.
        Ok(Some(Self::held(since, Duration::from_secs(HEALING), move |done| client.take_turn(who, None, done).ok())))
    }

    /// Waits until nobody else has it.
    pub async fn wait(client: &Arc<Client>) -> Result<Self, Failure> {
        loop {
            if let Some(turn) = Self::take(client, None)? {
                return Ok(turn);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Nothing is said after the end.
        if let Some((over, holding)) = self.holding.take() {
            drop(over);
            let _ = holding.join();
        }
        (self.say)(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Waits until so many answers were given.
    fn after(count: &AtomicU32, answers: u32) {
        while count.load(Ordering::Relaxed) < answers {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn turn(lasts: Duration, answers: impl Fn(u32) -> Option<bool> + Send + Sync + 'static) -> (Turn, Arc<AtomicU32>) {
        let count = Arc::<AtomicU32>::default();
        let counted = count.clone();
        (Turn::held(Instant::now(), lasts, move |_| answers(counted.fetch_add(1, Ordering::Relaxed))), count)
    }

    #[test]
    fn a_turn_that_another_one_had_stays_lost() {
        let long = Duration::from_millis(400);
        let (turn, count) = turn(long, |at| Some(at != 0));
        assert!(!turn.is_lost());
        after(&count, 4);
        assert!(turn.is_lost());
    }

    #[test]
    fn a_turn_that_was_not_renewed_in_time_is_lost() {
        let (held, count) = turn(Duration::from_secs(2), |_| Some(true));
        after(&count, 5);
        assert!(!held.is_lost());
        // It stood still, or nobody heard it.
        held.held.lock().unwrap().lasts = Duration::ZERO;
        assert!(held.is_lost());
        held.held.lock().unwrap().lasts = Duration::from_secs(60);
        assert!(held.is_lost());
        let (unheard, count) = turn(Duration::from_millis(200), |_| None);
        after(&count, 5);
        assert!(unheard.is_lost());
    }
}
