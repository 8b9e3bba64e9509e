//! Reading long messages out of their senders' memory (see [`crate::engine::pull`]).
//!
//! A read that the engine asks for waits in `asked` until no channel is in use, then in its inbound channel until the
//! channel has done it piece by piece. A marker is acknowledged when all reads of its channel have ended, and none is
//! accepted from a marker to the next packet. If the channel ends first, the engine hears that the read failed.
//!
//! A message may be declined although it could be read: two processors that copy may be faster than one that reads, which the
//! channel knows.

use super::Links;
use super::inbound::Inbound;
use super::pulling::Pulling;
use crate::engine::Engine;
use crate::engine::pull::Pull;
use crate::report;
use mend_messages::job::Rank;

/// Bytes read from one peer before others have their turn.
const TURN_BYTES: usize = 512 * 1024;

impl Inbound {
    /// True if this message had better come in packets.
    fn declines(&mut self, pull: &Pull) -> bool {
        self.channel.puller().is_some_and(|puller| puller.declines(pull.operation, pull.length))
    }

    /// Ends the reads under way; the operations they were for.
    fn end_pulls(&mut self) -> impl Iterator<Item = u64> + use<'_> {
        if self.pulls.iter().any(|pulling| pulling.under_way > 0)
            && let Some(puller) = self.channel.puller()
        {
            puller.cancel();
        }
        self.pulls.drain(..).map(|pulling| pulling.pull.operation)
    }

    /// True if there is something to do that nothing will announce.
    fn pull_waits(&self) -> bool {
        self.pulls.iter().any(|pulling| pulling.under_way == 0) || (self.marker.is_some() && self.pulls.is_empty())
    }
}

impl Links {
    /// From now on offers of this kind by this rank are accepted (0: none).
    pub(super) fn allow_pulls(&mut self, rank: Rank, kind: u32) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.pulls = kind;
        }
    }

    /// This channel has reads to do, or a marker to acknowledge.
    pub(super) fn list_pulls(&mut self, number: u32) {
        if !self.pulling.contains(&number) {
            self.pulling.push(number);
        }
    }

    /// Goes on with all reads. True if anything moved.
    pub(super) fn pull_on(&mut self, engine: &mut Engine) -> bool {
        let mut moved = false;
        while let Some((rank, pull)) = self.asked.pop() {
            let number = self.peers.get(rank as usize).and_then(|peer| peer.inbound);
            let crowded = self.crowded;
            let inbound = number.and_then(|number| self.inbound.get_mut(number as usize)).and_then(Option::as_mut);
            let able = inbound.filter(|inbound| inbound.pull_kind == pull.kind);
            match able.and_then(|inbound| (crowded || !inbound.declines(&pull)).then_some(inbound)) {
                Some(inbound) => {
                    inbound.pulls.push_back(Pulling { pull, offset: 0, under_way: 0, failed: false });
                    if let Some(number) = number {
                        self.list_pulls(number);
                    }
                }
                None => self.failed.push(pull.operation),
            }
        }
        while let Some(operation) = self.failed.pop() {
            engine.pulled(self, operation, false);
            moved = true;
        }
        let mut at = 0;
        while let Some(number) = self.pulling.get(at).copied() {
            moved |= self.pull_from(engine, number);
            match self.inbound.get(number as usize) {
                Some(Some(inbound)) if !inbound.pulls.is_empty() || inbound.marker.is_some() => at += 1,
                // A channel that broke has left the list by itself.
                _ if self.pulling.get(at) == Some(&number) => drop(self.pulling.swap_remove(at)),
                _ => {}
            }
        }
        moved
    }

    fn pull_from(&mut self, engine: &mut Engine, number: u32) -> bool {
        let Some(mut inbound) = self.inbound.get_mut(number as usize).and_then(Option::take) else { return false };
        let mut budget = TURN_BYTES;
        let mut moved = false;
        if let Some(puller) = inbound.channel.puller() {
            while let Some((token, outcome)) = puller.completed() {
                if let Some(pulling) = inbound.pulls.iter_mut().find(|pulling| pulling.pull.operation == token) {
                    pulling.under_way = pulling.under_way.saturating_sub(1);
                    pulling.failed |= outcome.is_err();
                }
                moved = true;
            }
            for pulling in &mut inbound.pulls {
                if !pulling.go_on(puller, &mut budget) {
                    break;
                }
            }
        }
        moved |= budget < TURN_BYTES;
        let mut at = 0;
        while let Some(pulling) = inbound.pulls.get(at) {
            let Some(complete) = pulling.outcome() else {
                at += 1;
                continue;
            };
            let operation = pulling.pull.operation;
            inbound.pulls.remove(at);
            engine.pulled(self, operation, complete);
            moved = true;
        }
        if inbound.pulls.is_empty()
            && let Some(marker) = inbound.marker.take()
        {
            moved = true;
            inbound.drained = true;
            if let Err(error) = inbound.channel.acknowledge(marker) {
                report::fault(self.rank(), format_args!("the channel from rank {} is closed: {error}", inbound.rank));
                self.drop_inbound(number, *inbound);
                return true;
            }
        }
        self.inbound[number as usize] = Some(inbound);
        moved
    }

    /// The channel ends: so do its reads.
    pub(super) fn fail_pulls(&mut self, number: u32, inbound: &mut Inbound) {
        self.failed.extend(inbound.end_pulls());
        self.pulling.retain(|other| *other != number);
        self.allow_pulls(inbound.rank, 0);
    }

    /// In a restored process: no read of the old life is under way.
    pub(super) fn forget_pulls(&mut self) {
        self.failed.extend(self.asked.drain(..).map(|(_, pull)| pull.operation));
        for inbound in self.inbound.iter_mut().flatten() {
            self.failed.extend(inbound.pulls.drain(..).map(|pulling| pulling.pull.operation));
        }
        self.pulling.clear();
        self.peers.iter_mut().for_each(|peer| peer.pulls = 0);
    }

    /// Forgets the reads of these operations.
    pub(super) fn abandon_pulls(&mut self, operations: &[u64]) {
        self.asked.retain(|(_, pull)| !operations.contains(&pull.operation));
        for inbound in self.inbound.iter_mut().flatten() {
            if inbound.pulls.iter().any(|pulling| operations.contains(&pulling.pull.operation)) {
                // A device cannot be told to stop one read alone; the others are done by packets.
                self.failed.extend(inbound.end_pulls());
            }
        }
        self.failed.retain(|operation| !operations.contains(operation));
    }

    /// True if there is something to do that nothing will announce.
    pub(super) fn pulls_wait(&self) -> bool {
        let waits = |number: &u32| matches!(self.inbound.get(*number as usize), Some(Some(inbound)) if inbound.pull_waits());
        !self.asked.is_empty() || !self.failed.is_empty() || self.pulling.iter().any(waits)
    }
}
