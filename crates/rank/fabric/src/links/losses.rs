//! Channels that broke with messages under way. If the peer has ended, or moves, a newer map says so soon, and all is well. If it has
//! not, both ranks wait for ever: the daemon is told, and whoever knows all ranks decides.

use super::Links;
use crate::channel::ChannelError;
use mend_messages::job::Rank;
use std::time::{Duration, Instant};

/// A channel that broke.
#[derive(Debug)]
struct Loss {
    peer: Rank,
    since: Instant,
    why: String,
    /// Nobody was told of it at once: a channel that its peer closed may be no fault at all.
    untold: bool,
}

/// Those that nobody was told of yet.
#[derive(Debug, Default)]
pub(super) struct Losses {
    noted: Vec<Loss>,
    announce: Option<fn()>,
}

impl Losses {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// In a restored process nothing is lost.
    pub fn forget(&mut self) {
        self.noted.clear();
    }
}

impl Links {
    /// `announce` is called, with the fabric's lock held, when a channel breaks. Whoever sets it calls [`Links::losses`] then and later.
    pub fn on_loss(&mut self, announce: fn()) {
        self.losses.announce = Some(announce);
    }

    /// Messages to or from this peer may be lost.
    pub(super) fn note_loss(&mut self, peer: Rank, error: &ChannelError) {
        if self.losses.noted.iter().any(|loss| loss.peer == peer) {
            return;
        }
        let why = match error {
            ChannelError::Provider(what) => format!("{what}; MEND_CHANNELS=shm,tcp does without the provider"),
            other => other.to_string(),
        };
        self.losses.noted.push(Loss { peer, since: Instant::now(), why, untold: !matches!(error, ChannelError::Closed) });
        if let Some(announce) = self.losses.announce {
            announce();
        }
    }

    /// Peers to which a channel broke, and was not just closed, since this was asked last.
    pub(crate) fn broken(&mut self) -> Vec<(Rank, String)> {
        let fresh = self.losses.noted.iter_mut().filter_map(|loss| std::mem::take(&mut loss.untold).then(|| (loss.peer, loss.why.clone())));
        fresh.collect()
    }

    /// Peers to which a channel broke at least `patience` ago and that are not known to have come back since, with the reason; each is
    /// told once. And whether there are others that broke later.
    pub(crate) fn losses(&mut self, patience: Duration) -> (Vec<(Rank, String)>, bool) {
        let Self { losses, peers, .. } = self;
        losses.noted.retain(|loss| peers.get(loss.peer as usize).is_some_and(crate::peer::Peer::gone));
        let due = losses.noted.extract_if(.., |loss| loss.since.elapsed() >= patience).map(|loss| (loss.peer, loss.why)).collect();
        (due, !losses.noted.is_empty())
    }
}
