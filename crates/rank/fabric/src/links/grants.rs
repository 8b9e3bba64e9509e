//! One-sided operations without packets: which channels they may use, and what the peers' channels are told of this rank's
//! regions (see [`crate::channel::Direct`]).
//!
//! A rank's memory is touched by a peer only while that peer's channel to it is open. A rank that is suspended bars it besides:
//! a peer may have been resumed already while this one is still being saved.

use super::Links;
use crate::channel::Direct;
use crate::engine::buffers::Segment;
use crate::engine::{Reached, RegionAccess};
use crate::peer::Outbound;
use mend_messages::job::Rank;

impl Links {
    /// The way to a peer's memory, if it may be touched now.
    pub(super) fn direct(&mut self, rank: Rank) -> Option<&mut dyn Direct> {
        let peer = self.peers.get_mut(rank as usize)?;
        match &mut peer.outbound {
            Outbound::Open(channel) if !peer.held && !self.suspended => channel.direct(),
            _ => None,
        }
    }

    /// Reads or writes a peer's memory. What only this rank's suspension keeps it from has to wait.
    pub(super) fn reach(&mut self, rank: Rank, wanted: &RegionAccess, local: &[Segment]) -> Reached {
        if let Some(direct) = self.direct(rank) {
            return direct.access(wanted, local);
        }
        let peer = self.peers.get_mut(rank as usize).filter(|peer| self.suspended && !peer.held);
        let channel = peer.and_then(|peer| peer.outbound.channel());
        let granted = channel.and_then(|channel| channel.direct()).is_some_and(|direct| direct.granted(wanted.key));
        if granted { Reached::Later } else { Reached::Not }
    }

    /// The version of a grant, if this peer would see its end.
    pub(super) fn version_for(&self, rank: Rank) -> Option<u64> {
        let peer = self.peers.get(rank as usize)?;
        (peer.shown && !self.suspended).then_some(self.version)
    }

    /// Shows all peers what holds now. Not while a channel delivers, which is in nobody's list then.
    pub(super) fn show(&self) {
        self.inbound.iter().flatten().for_each(|inbound| inbound.channel.show(self.version, self.suspended));
    }
}
