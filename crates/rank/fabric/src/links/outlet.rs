//! What the engine asks of the links: to send, to offer memory, to reach a peer's.

use super::{BURST_PACKETS, LONG_BURST_PACKETS, Links, MAX_QUEUED_BYTES};
use crate::engine::buffers::{Segment, gather};
use crate::engine::packet::Header;
use crate::engine::pull::{Offer, Pull};
use crate::engine::{EAGER_LIMIT, Grant, Outlet, Reached, RegionAccess, Stream};
use crate::peer::{Outbound, Peer};
use mend_messages::job::Rank;

impl Outlet for Links {
    fn has_room(&self, peer: Rank) -> bool {
        let endless = |peer: &Peer| peer.burst.1 >= LONG_BURST_PACKETS && peer.burst.0 == self.rounds;
        self.peers.get(peer as usize).is_none_or(|peer| peer.queued < MAX_QUEUED_BYTES && !endless(peer))
    }

    fn flows(&self, peer: Rank) -> bool {
        self.peers.get(peer as usize).is_none_or(|peer| peer.queue.is_empty())
    }

    fn eager_limit(&self, peer: Rank) -> usize {
        let Some(peer) = self.peers.get(peer as usize) else { return EAGER_LIMIT };
        match &peer.outbound {
            // What would have to wait here had better be asked for, and then leave without a copy.
            Outbound::Open(channel) if peer.queue.is_empty() && !peer.held && !channel.unsent() => channel.eager_limit(),
            Outbound::Open(channel) => channel.eager_limit().min(EAGER_LIMIT),
            _ => EAGER_LIMIT,
        }
    }

    #[inline]
    fn post(&mut self, rank: Rank, header: &Header, payload: &[Segment]) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        match &mut peer.outbound {
            Outbound::Open(channel) if peer.queue.is_empty() && !peer.held => {
                peer.burst = if peer.burst.0 == self.rounds { (self.rounds, peer.burst.1 + 1) } else { (self.rounds, 1) };
                // Without somebody who would see to it, nothing may wait for a round.
                let burst = !self.in_round && peer.burst.1 > BURST_PACKETS && self.nudge.is_some();
                let taken = if self.in_round || burst { channel.defer(header, payload) } else { channel.send(header, payload) };
                match taken {
                    Ok(true) => {
                        peer.used = true;
                        if channel.unsent() {
                            self.list(rank);
                            if burst { self.delay() } else { self.left() }
                        }
                        return;
                    }
                    Ok(false) => {}
                    Err(error) => self.lose(rank, &error),
                }
            }
            Outbound::Loopback => {
                self.loopback.push_back((*header, gather(payload)));
                return;
            }
            _ => self.urgent = true,
        }
        self.enqueue(rank, header, payload);
    }

    fn lend_limit(&self, rank: Rank) -> usize {
        match self.peers.get(rank as usize) {
            // One message per sign of life bounds what a peer that waits for none of them must hold.
            Some(peer) if peer.credit && !peer.held && peer.queue.is_empty() => match &peer.outbound {
                Outbound::Open(channel) if !channel.unsent() => channel.lend_limit(),
                _ => 0,
            },
            _ => 0,
        }
    }

    fn lend(&mut self, rank: Rank, header: &Header, payload: &[Segment], operation: u64) -> bool {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return true };
        let Outbound::Open(channel) = &mut peer.outbound else {
            self.enqueue(rank, header, payload);
            return true;
        };
        match channel.lend(header, payload) {
            Ok(true) => {
                channel.lent();
                peer.used = true;
                // It took this one, so it has nothing left of the one before.
                self.finished.extend(peer.lent.take());
                peer.credit &= header.payload as usize <= channel.eager_limit();
                let unsent = channel.unsent();
                if unsent {
                    peer.lent = Some(operation);
                    self.list(rank);
                    self.left();
                }
                return !unsent;
            }
            Ok(false) => {}
            Err(error) => self.lose(rank, &error),
        }
        self.enqueue(rank, header, payload);
        true
    }

    fn stays(&mut self) {
        self.left();
    }

    fn stream(&mut self, rank: Rank, stream: Stream) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.streams.push_back(stream);
            self.list(rank);
            self.left();
        }
    }

    fn withdraw(&mut self, f: &dyn Fn(&Stream) -> bool) -> Vec<(Rank, Header)> {
        let mut withdrawn = Vec::new();
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            peer.streams.retain(|stream| {
                let gone = f(stream);
                if gone {
                    withdrawn.push((rank as Rank, stream.header));
                }
                !gone
            });
            if (peer.lent.is_some() || withdrawn.last().is_some_and(|(last, _)| *last == rank as Rank))
                && let Some(channel) = peer.outbound.channel()
            {
                // Part of a packet may be with the channel still, and its memory is the application's again.
                channel.keep();
            }
        }
        withdrawn
    }

    fn offer(&mut self, rank: Rank, message: &[Segment]) -> Option<Offer> {
        let Outbound::Open(channel) = &mut self.peers.get_mut(rank as usize)?.outbound else { return None };
        let offer = channel.offer(message);
        #[cfg(test)]
        {
            self.offered += usize::from(offer.is_some());
        }
        offer
    }

    fn retract(&mut self, rank: Rank, ticket: u64) {
        #[cfg(test)]
        {
            self.offered = self.offered.saturating_sub(1);
        }
        if let Some(channel) = self.peers.get_mut(rank as usize).and_then(|peer| peer.outbound.channel()) {
            channel.retract(ticket);
        }
    }

    fn access(&mut self, rank: Rank, wanted: &RegionAccess, local: &[Segment]) -> Reached {
        let reached = self.reach(rank, wanted, local);
        #[cfg(test)]
        {
            self.accesses += usize::from(reached == Reached::Done);
        }
        reached
    }

    fn ask(&mut self, rank: Rank, key: u64) -> bool {
        self.direct(rank).is_some_and(|direct| direct.ask(key))
    }

    fn granted(&mut self, rank: Rank, key: u64, grant: Grant) {
        // Also while the channel is drained: what was asked for is not asked for again.
        let channel = self.peers.get_mut(rank as usize).and_then(|peer| peer.outbound.channel());
        if let Some(direct) = channel.and_then(|channel| channel.direct()) {
            direct.grant(key, grant);
        }
    }

    fn version(&self, rank: Rank) -> Option<u64> {
        self.version_for(rank)
    }

    fn revoke(&mut self) {
        self.version += 1;
        self.show();
    }

    fn pull(&mut self, rank: Rank, pull: Pull) -> bool {
        let can = self.peers.get(rank as usize).is_some_and(|peer| peer.pulls == pull.kind);
        if can {
            self.asked.push((rank, pull));
        }
        can
    }

    fn abandon(&mut self, operations: &[u64]) {
        self.abandon_pulls(operations);
    }
}
