//! How much data a peer may have sent that nobody has asked for yet.
//!
//! ```text
//! sender                                        receiver
//!   EAGER, counted ────────────────────────────►   waits, or meets its receive: taken
//!   ◄─────────────────────────────────── TAKEN n   n bytes of all that was counted were taken, ever
//!   the next would be too much: RTS ───────────►   waits as an announcement, without its data
//! ```
//! So what waits here of one peer is at most the limit, in bytes of messages. Nobody ever waits for a TAKEN: a message that
//! may not go at once is announced in its turn, so the receiver may ask for the last one first (MPI's matching allows it), and
//! its data stays with its sender, in the sender's memory if the application has its buffer back already. What announcements
//! take, and messages of at most [`UNCOUNTED_BYTES`] bytes, which take no more than these, is bounded by [`super::back_pressure`].
//!
//! What is on its way is bounded, too, in number of messages: queues and sockets hold many short ones, each of which takes far
//! more memory where it waits. A sender asks (by a HELD) before it must hear an answer to go on, so it seldom has to wait.
//!
//! Counts go on for ever and are part of the engine, so a checkpoint or a move changes nothing: packets of both directions
//! are delivered or in a queue that is saved.
//!
//! Faults assumed: a peer may say anything in a TAKEN; a number that was not sent or goes back is refused. A peer that does not
//! keep to the limit is not stopped: ranks of a job run the same release with the same settings.

use super::matching::RECORD_BYTES;
use mend_messages::job::Rank;

/// Longest message that is not counted, bytes.
pub const UNCOUNTED_BYTES: usize = 64;
/// Limit until it is set, bytes.
const DEFAULT_LIMIT_BYTES: u64 = 4 << 20;
/// Part of the limit that is taken before the sender hears of it.
const LIMIT_PARTS: u64 = 4;

/// What was counted between this process and one peer, in bytes; everything only grows.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Sent at once.
    sent: u64,
    /// What the peer says was taken of that.
    released: u64,
    /// Taken here of what the peer sent.
    taken: u64,
    /// What the peer was told of that.
    told: u64,
    /// Messages and announcements that left, of whatever length: here these are counted, not bytes.
    left: u64,
    /// Those before a question that no answer has come to.
    asked: Option<u64>,
    /// Those that the peer has got, as far as it has answered.
    arrived: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Flow {
    limit: u64,
    accounts: Vec<Account>,
}

impl Default for Flow {
    fn default() -> Self {
        Self { limit: DEFAULT_LIMIT_BYTES, accounts: Vec::new() }
    }
}

impl Flow {
    /// Sets how much may wait of one peer, bytes. For all ranks of a job the same.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// How much may wait of one peer, bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn account(&mut self, peer: Rank) -> &mut Account {
        let at = peer as usize;
        if self.accounts.len() <= at {
            self.accounts.resize(at + 1, Account::default());
        }
        &mut self.accounts[at]
    }

    /// True if a message of this length may go at once; it is counted then.
    #[inline]
    pub fn admit(&mut self, peer: Rank, length: usize) -> bool {
        if length <= UNCOUNTED_BYTES {
            return true;
        }
        let limit = self.limit;
        let account = self.account(peer);
        let fits = account.sent - account.released + length as u64 <= limit;
        if fits {
            account.sent += length as u64;
        }
        fits
    }

    /// A message that came at once has left: it met its receive or was dropped. What the peer should be told now, if anything.
    #[inline]
    pub fn take(&mut self, peer: Rank, length: u64) -> Option<u64> {
        if length <= UNCOUNTED_BYTES as u64 {
            return None;
        }
        let share = self.limit / LIMIT_PARTS;
        let account = self.account(peer);
        account.taken += length;
        (account.taken - account.told >= share).then(|| {
            account.told = account.taken;
            account.taken
        })
    }

    /// Messages to one peer whose arrival nobody has told of yet: with their records these take as much as may wait.
    fn most_on_way(&self) -> u64 {
        (self.limit / RECORD_BYTES).max(1)
    }

    /// True if so many messages are on their way that the peer must answer before the next.
    #[inline]
    pub fn is_ahead(&mut self, peer: Rank) -> bool {
        let most = self.most_on_way();
        let account = self.account(peer);
        account.asked.is_some() && account.left - account.arrived >= most
    }

    /// A message leaves. True: it is time to ask.
    #[inline]
    pub fn leaves(&mut self, peer: Rank) -> bool {
        let share = self.most_on_way() / LIMIT_PARTS;
        let account = self.account(peer);
        account.left += 1;
        account.asked.is_none() && account.left - account.arrived > share
    }

    /// The peer is asked something that it answers at once, after all that has left.
    pub fn asks(&mut self, peer: Rank) {
        let account = self.account(peer);
        account.asked = Some(account.left);
    }

    /// It has answered.
    pub fn answered(&mut self, peer: Rank) {
        let account = self.account(peer);
        account.arrived = account.asked.take().unwrap_or(account.arrived);
    }

    /// The peer says how much it has taken, ever. False: that cannot be.
    pub fn release(&mut self, peer: Rank, taken: u64) -> bool {
        let account = self.account(peer);
        let possible = (account.released..=account.sent).contains(&taken);
        if possible {
            account.released = taken;
        }
        possible
    }
}
