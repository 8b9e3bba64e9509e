//! Whose turn it is to change where the files of a space are: one heals or copies at a time, or bytes would be fetched twice.

use crate::failure::Failure;
use mend_data::space::Id;
use mend_data::space::target::HEALING;
use mend_space::client::Client;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long it takes at most until one that waits looks again.
const AGAIN: Duration = Duration::from_millis(500);

/// The turn to heal a space, held until it is dropped.
pub struct Turn {
    client: Arc<Client>,
    who: Id,
    /// Says again that it is held, until nobody can send here any more.
    holding: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Turn {
    /// `None` if another one has it.
    pub fn take(client: &Arc<Client>, verify_after: Option<u32>) -> Result<Option<Self>, Failure> {
        let who: Id = mend_wire::random_bytes();
        if !tokio::task::block_in_place(|| client.take_turn(who, verify_after, false))? {
            return Ok(None);
        }
        let (over, ended) = channel();
        let held = client.clone();
        let holding = std::thread::spawn(move || {
            while ended.recv_timeout(Duration::from_secs(HEALING / 4)) == Err(RecvTimeoutError::Timeout) {
                // If nobody hears it, another one may begin: what is done twice is not wrong.
                let _ = held.take_turn(who, None, false);
            }
        });
        Ok(Some(Self { client: client.clone(), who, holding: Some((over, holding)) }))
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
        if let Some((over, holding)) = self.holding.take() {
            drop(over);
            // It is not held once more after this.
            let _ = holding.join();
        }
        let _ = self.client.take_turn(self.who, None, true);
    }
}
