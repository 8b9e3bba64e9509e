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
//! take, and messages of at most [`FREE`] bytes, which take no more than these, is bounded by [`super::withhold`].
//!
//! Counts go on for ever and are part of the engine, so a checkpoint or a move changes nothing: packets of both directions
//! are delivered or in a queue that is saved.
//!
//! Faults assumed: a peer may say anything in a TAKEN; a number that was not sent or goes back is refused. A peer that does not
//! keep to the limit is not stopped: ranks of a job run the same release with the same settings.

use mend_messages::job::Rank;

/// Longest message that is not counted, bytes.
pub const FREE: usize = 64;
/// Limit until it is set, bytes.
const LIMIT: u64 = 4 << 20;
/// Part of the limit that is taken before the sender hears of it.
const SHARE: u64 = 4;

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
}

/// See the module.
#[derive(Debug)]
pub struct Flow {
    limit: u64,
    accounts: Vec<Account>,
}

impl Default for Flow {
    fn default() -> Self {
        Self { limit: LIMIT, accounts: Vec::new() }
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
        if length <= FREE {
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
        if length <= FREE as u64 {
            return None;
        }
        let share = self.limit / SHARE;
        let account = self.account(peer);
        account.taken += length;
        (account.taken - account.told >= share).then(|| {
            account.told = account.taken;
            account.taken
        })
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
