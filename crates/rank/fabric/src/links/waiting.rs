//! What waits while the program calls nothing. A message has been sent, as far as the program can tell, as soon as it is copied; but its channel may
//! be full, or not open yet, or its receiver has more than it may by now and says later that it wants it. MPI has such a message arrive whatever its sender does meanwhile (MPI 4.1, 3.5, "Progress"): somebody else makes rounds
//! then, ever more seldom, until nothing waits or the program makes them itself.

use super::Links;
use crate::engine::Engine;
use crate::engine::packet::Kind;
use crate::peer::{Outbound, Peer};
use mend_messages::job::Rank;

/// Looks after which nobody looks any more, if nothing has waited meanwhile.
const CALM_LOOKS: u32 = 8;

/// Whether somebody looks after what waits, and what was seen then.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    /// Somebody has been called, and looks until [`Links::looked`] says that it is enough.
    on: bool,
    /// Rounds at the latest look.
    rounds: u32,
    /// Looks since something waited.
    calm: u32,
    /// The program has closed its last endpoint. What still comes is taken and dropped: its senders may wait for that before they end.
    closed: bool,
}

impl Links {
    /// Has what waits looked after.
    pub(super) fn see_to(&mut self) {
        if !self.lookout.on
            && let Some(nudge) = self.nudge
        {
            self.lookout.on = true;
            nudge();
        }
    }

    /// Something is left of what a call has sent. At the end of a round that is looked for.
    pub(super) fn left(&mut self) {
        if !self.in_round {
            self.see_to();
        }
    }

    /// Whoever looked may have forgotten it, in a process that was put back.
    pub(super) fn look_anew(&mut self) {
        self.lookout.on = false;
        if self.lookout.closed || !self.busy.is_empty() {
            self.see_to();
        }
    }

    /// The program has no endpoint, or has one again.
    pub fn set_closed(&mut self, closed: bool) {
        self.lookout.closed = closed;
        if closed {
            self.see_to();
        }
    }

    /// Something waits that a round may move.
    fn waits(&self, engine: &Engine) -> bool {
        let reached = |peer: &Peer| !peer.held && !peer.gone() && !peer.has_ended();
        let waits = |peer: &Peer| peer.pending() && reached(peer);
        let busy = || self.busy.iter().any(|rank| self.peers.get(*rank as usize).is_some_and(waits));
        // A message to itself waits for a call of the program.
        let answers = |peer: &Peer| reached(peer) && !matches!(peer.outbound, Outbound::Loopback);
        let copies = || engine.copies.keys().any(|rank| self.peers.get(*rank as usize).is_some_and(answers));
        !self.suspended && (self.lookout.closed || busy() || copies())
    }

    /// At the end of a round: what is left is looked after.
    pub(super) fn see_to_rest(&mut self, engine: &Engine) {
        if !self.busy.is_empty() || !engine.copies.is_empty() && !self.lookout.on && self.waits(engine) {
            self.see_to();
        }
    }

    /// Whether it takes a round of somebody else's now: something waits, and the program has made none since the latest look.
    pub fn due(&mut self, engine: &Engine) -> bool {
        let waits = self.rounds == self.lookout.rounds && self.waits(engine);
        self.urgent |= waits;
        waits || self.delayed
    }

    /// After a look: whether there is to be another. As long as the program makes rounds there are some more than needed: calling somebody each
    /// time anew takes longer.
    pub fn looked(&mut self, engine: &Engine, active: bool) -> bool {
        let waits = self.waits(engine);
        let lookout = &mut self.lookout;
        (lookout.rounds, lookout.calm) = (self.rounds, if waits { 0 } else { lookout.calm + 1 });
        lookout.on = waits || active && lookout.calm < CALM_LOOKS;
        lookout.on
    }

    /// Whether the program has made rounds since the latest look.
    pub fn active(&self) -> bool {
        self.rounds != self.lookout.rounds
    }

    /// Whether a living peer has not taken all that it is to hear of this rank: who ends now would take that along. Peers that compute take it
    /// when they next look, and those that have closed their last endpoint at once.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.peers.iter().any(|peer| peer.lives() && peer.owes())
    }

    /// Whether the system still has something that a channel took, for a peer that lives: it drops that some minutes after the end of this
    /// process, if the peer has not read it by then.
    #[must_use]
    pub fn unconfirmed(&self) -> bool {
        let has = |peer: &Peer| peer.outbound.channel_ref().is_some_and(|channel| channel.unconfirmed());
        self.peers.iter().any(|peer| peer.lives() && has(peer))
    }

    /// Whether a peer lives, as far as can be told. Where no channel leads to it, one is opened for that.
    pub fn lives(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get(rank as usize) else { return false };
        let (lives, unknown) = (peer.lives(), matches!(peer.outbound, Outbound::Unknown { .. }));
        if unknown && !peer.has_ended() {
            self.list(rank);
        }
        lives
    }
}

impl Peer {
    /// Its kernel at least answers, or it is on its way to another node, and it has not ended.
    fn lives(&self) -> bool {
        let shows_life = match &self.outbound {
            Outbound::Unknown { .. } => self.entry.as_ref().is_some_and(|entry| !entry.open),
            Outbound::Lost { .. } | Outbound::Loopback => false,
            Outbound::Opening(opening) => opening.connected(),
            Outbound::Open(_) | Outbound::Draining { .. } | Outbound::Suspended(_) => true,
        };
        shows_life && !self.gone() && !self.has_ended()
    }

    fn owes(&self) -> bool {
        let for_its_program =
            |kind| matches!(kind, Kind::Eager | Kind::Rts | Kind::Cts | Kind::Data | Kind::Ack | Kind::Write | Kind::Read);
        self.queue.iter().any(|packet| packet.header.kind().is_some_and(for_its_program))
            || !self.streams.is_empty()
            || self.lent.is_some()
            || self.outbound.channel_ref().is_some_and(|channel| channel.unsent())
    }
}
