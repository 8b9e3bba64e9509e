//! What one process does with a space at a time: it says again and again that it is at it, until it is done.

use crate::failure::Failure;
use mend_data::space::Id;
use mend_data::space::target::HEALING;
use mend_space::client::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long it takes at most until one that waits looks again.
const AGAIN: Duration = Duration::from_millis(500);

/// A turn, held until it is dropped.
pub struct Turn {
    lost: Arc<AtomicBool>,
    say: Arc<dyn Fn(bool) -> bool + Send + Sync>,
    /// Says again that it is held, until nobody can send here any more.
    holding: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Turn {
    /// Held from now on. `say` is called as often, and with true at the end; it gives false if another one has the turn by then.
    pub fn held(every: Duration, say: impl Fn(bool) -> bool + Send + Sync + 'static) -> Self {
        let (lost, say) = (Arc::<AtomicBool>::default(), Arc::new(say));
        let (over, ended) = channel();
        let (is_lost, again) = (lost.clone(), say.clone());
        let holding = std::thread::spawn(move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                is_lost.store(!again(false), Ordering::Relaxed);
            }
        });
        Self { lost, say, holding: Some((over, holding)) }
    }

    /// Another one has it: this process was stopped for too long.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The turn to change where the files of a space are: one heals or copies at a time, or bytes would be fetched twice. `None` if another one has it.
    pub fn take(client: &Arc<Client>, verify_after: Option<u32>) -> Result<Option<Self>, Failure> {
        let who: Id = mend_wire::random_bytes();
        if !tokio::task::block_in_place(|| client.take_turn(who, verify_after, false))? {
            return Ok(None);
        }
        let client = client.clone();
        // If nobody hears it, another one may begin: what is done twice is not wrong.
        Ok(Some(Self::held(Duration::from_secs(HEALING / 4), move |done| client.take_turn(who, None, done).unwrap_or(true))))
    }

    /// Waits until nobody else has it.
    pub async fn wait(client: &Arc<Client>) -> Result<Self, Failure> {
        loop {
            if let Some(turn) = Self::take(client, None)? {
                return Ok(turn);
            }
            tokio::time::sleep(AGAIN).await;
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
