//! One rank as the others see it: where it is, the channel towards it, and what waits for it.
//!
//! ```text
//!               something to send, map says open          ACCEPT
//!   Unknown ───────────────────────────────► Opening ───────────► Open ◄───────────────┐
//!      ▲  ▲ refused, aborted by a suspend      │                  │  │ suspend          │ resume
//!      │  └────────────────────────────────────┘                  │  ▼                  │
//!      │                                                          │ Draining ──ACK──► Suspended
//!      │ map: newer generation                                    │  │                  │
//!    Lost ◄─────────── closed by the peer with packets under way ─┴──┘                  │
//!      Unknown ◄──────────────── closed by us (the peer moves) or by the peer ──────────┘
//! ```
//! What waits (`queue`, `streams`) stays through all of it.

use crate::channel::Outgoing;
use crate::channel::opening::Opening;
use crate::engine::Stream;
use crate::engine::packet::Queued;
use mend_messages::job::MapEntry;
use std::collections::VecDeque;
use std::time::Instant;

/// The channel towards a rank.
pub enum Outbound {
    /// None; not tried again before `retry`.
    Unknown {
        /// Time of the next attempt.
        retry: Option<Instant>,
        /// Attempts that failed in a row.
        failures: u32,
    },
    /// Handshake under way.
    Opening(Box<Opening>),
    /// Packets flow.
    Open(Box<dyn Outgoing>),
    /// The marker is on its way (or not yet, if `sent` is false).
    Draining {
        /// The channel.
        channel: Box<dyn Outgoing>,
        /// Number of the marker.
        marker: u64,
        /// True once the channel has taken the marker.
        sent: bool,
    },
    /// Nothing is in flight; the channel is kept.
    Suspended(Box<dyn Outgoing>),
    /// It broke with packets under way.
    Lost {
        /// Generation of the peer at that time.
        generation: u64,
    },
    /// This rank itself.
    Loopback,
}

impl Outbound {
    /// No channel, try any time.
    pub const UNKNOWN: Self = Self::Unknown { retry: None, failures: 0 };

    /// The channel, in any state that has one.
    pub fn channel(&mut self) -> Option<&mut Box<dyn Outgoing>> {
        match self {
            Self::Open(channel) | Self::Draining { channel, .. } | Self::Suspended(channel) => Some(channel),
            _ => None,
        }
    }

    /// The channel, to look at.
    pub fn channel_ref(&self) -> Option<&dyn Outgoing> {
        match self {
            Self::Open(channel) | Self::Draining { channel, .. } | Self::Suspended(channel) => Some(channel.as_ref()),
            _ => None,
        }
    }
}

/// A rank.
pub struct Peer {
    /// Where it is, by the latest job map.
    pub entry: Option<MapEntry>,
    /// The channel towards it.
    pub outbound: Outbound,
    /// Generation of the peer that the channel leads to.
    pub generation: u64,
    /// Packets were sent since the channel was opened or last drained.
    pub used: bool,
    /// Packets given to the channel directly in one round, and which: see the links.
    pub burst: (u32, u32),
    /// Something came from it since the last message that was lent to it: it takes part.
    pub credit: bool,
    /// Operation of the message whose last bytes are lent to the channel.
    pub lent: Option<u64>,
    /// Packets in order.
    pub queue: VecDeque<Queued>,
    /// Bytes in the queue.
    pub queued: usize,
    /// Long transfers, served in turn after the queue.
    pub streams: VecDeque<Stream>,
    /// The agent suspended this peer.
    pub held: bool,
    /// On the list of peers with something to do.
    pub listed: bool,
    /// Kind of offers of this peer that can be read now; 0: none.
    pub pulls: u32,
    /// The inbound channel shows it the version of grants.
    pub shown: bool,
    /// Number of the inbound channel.
    pub inbound: Option<u32>,
    /// The inbound channel of this generation ended without a marker: no other of the same generation is admitted.
    pub ended: Option<u64>,
    /// Generation and number of the latest opening of its that was admitted.
    pub admitted: (u64, u64),
    /// The peer of this generation refused an `ofi` channel: it gets another.
    pub refused: Option<u64>,
}

impl Peer {
    /// A rank nothing is known of.
    pub fn new(outbound: Outbound) -> Self {
        Self {
            entry: None,
            outbound,
            generation: 0,
            used: false,
            burst: (0, 0),
            credit: true,
            lent: None,
            queue: VecDeque::new(),
            queued: 0,
            streams: VecDeque::new(),
            held: false,
            listed: false,
            pulls: 0,
            shown: false,
            inbound: None,
            ended: None,
            admitted: (0, 0),
            refused: None,
        }
    }

    /// The channel to it has nothing left of what was lent: operations all of whose bytes it took are at their end.
    pub fn end_sent(&mut self, finished: &mut Vec<u64>) {
        finished.extend(self.lent.take());
        while self.streams.front().is_some_and(|stream| stream.offset == stream.length) {
            finished.extend(self.streams.pop_front().map(|stream| stream.operation).filter(|operation| *operation != 0));
        }
    }

    /// True if it has ended: a channel between us broke, or its own ended without a marker, and there is no newer one of it.
    pub fn gone(&self) -> bool {
        let generation = self.entry.as_ref().map_or(0, |entry| entry.generation);
        matches!(self.outbound, Outbound::Lost { .. }) || self.ended.is_some_and(|ended| ended >= generation)
    }

    /// True if the map says that it has ended. A process that it has forked may still hold its sockets.
    pub fn has_ended(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.ended)
    }

    /// True if anything waits, the rest of a packet that its channel took in part included.
    pub fn pending(&self) -> bool {
        !self.queue.is_empty()
            || !self.streams.is_empty()
            || self.lent.is_some()
            || self.outbound.channel_ref().is_some_and(Outgoing::unsent)
    }
}
