//! What the model's steps change: ranks, their peers and channels, and the coordinator's operation.

use crate::grants::{Key, Operations, Word};
use crate::model::{Job, Without};

pub type Rank = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Out {
    Unknown,
    Opening(usize),
    Open(usize),
    Draining { channel: usize, marker: u8, sent: bool },
    Suspended(usize),
    Lost(u8),
}

impl Out {
    pub fn channel(&self) -> Option<usize> {
        match *self {
            Self::Opening(channel) | Self::Open(channel) | Self::Suspended(channel) | Self::Draining { channel, .. } => Some(channel),
            Self::Unknown | Self::Lost(_) => None,
        }
    }
}

/// `peer::Peer`, and the inbound channel (`links::Inbound`) with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub out: Out,
    pub generation: u8,
    pub used: bool,
    pub held: bool,
    /// Generation by the job map. The map also closes the entry of a rank that moves; `held` alone must do.
    pub entry: u8,
    /// Messages that wait: first and end.
    pub queue: (u8, u8),
    pub inbound: Option<usize>,
    pub from_generation: u8,
    pub drained: bool,
    pub ended: Option<u8>,
    pub admitted: (u8, u8),
    /// Messages delivered to the engine here.
    pub got: u8,
    /// Packets about long messages that wait; they go before messages.
    pub posted: Vec<Packet>,
    /// Long messages to this peer whose memory it may read.
    pub lent: Vec<u8>,
    /// Long messages of this peer: announced, to be read, being read, and (bits) received.
    pub announced: Vec<u8>,
    pub pulls: Vec<u8>,
    pub reading: Option<u8>,
    pub complete: u8,
    /// `Peer::pulls`: reads may be begun.
    pub may_pull: bool,
    /// `Inbound::marker`: to be acknowledged when no read is left.
    pub marker: Option<u8>,
    pub operations: Operations,
}

impl Peer {
    /// True if something waits for it.
    pub fn waits(&self) -> bool {
        !self.posted.is_empty() || self.queue.0 < self.queue.1
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub peers: Vec<Peer>,
    pub suspended: bool,
    /// Its program makes no calls.
    pub computes: bool,
    pub generation: u8,
    pub markers: u8,
    pub openings: u8,
    /// Of which version grants are, and which exposure of its memory is the present one.
    pub version: u8,
    pub region: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    Message(u8),
    Marker(u8),
    /// A long message is announced.
    Offer(u8),
    /// It was read.
    Done(u8),
    /// It cannot be read: it is to be sent.
    Ask(u8),
    Data(u8),
    /// One-sided: a write, its answers.
    Put {
        which: u8,
        asks: bool,
    },
    Grant(Option<u8>),
    PutDone(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    pub from: Rank,
    pub to: Rank,
    pub generation: u8,
    pub number: u8,
    /// The receiver has answered ACCEPT.
    pub accepted: bool,
    pub packets: Vec<Packet>,
    pub acks: Vec<u8>,
    /// The ends are still held.
    pub sender: bool,
    pub receiver: bool,
    pub word: Word,
}

/// The coordinator's side: one operation at a time, requests to each rank in order, to different ranks in any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    /// Ranks asked, and those that have answered. No mover: a checkpoint of all.
    Suspending {
        movers: u8,
        asked: u8,
        done: u8,
    },
    /// Ranks that have the new map, and those that have resumed. Each may be in the middle of being saved until then, unless
    /// all was given up.
    Resuming {
        movers: u8,
        saved: bool,
        mapped: u8,
        resumed: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub nodes: Vec<Node>,
    pub channels: Vec<Option<Channel>>,
    pub phase: Phase,
    pub operations: u8,
    pub aborts: u8,
    pub breaks: u8,
    pub closes: u8,
    /// What must never be, once it was.
    pub wrong: Option<&'static str>,
}

impl World {
    pub fn peer(&mut self, at: Rank, of: Rank) -> &mut Peer {
        &mut self.nodes[at as usize].peers[of as usize]
    }

    pub fn look(&self, at: Rank, of: Rank) -> &Peer {
        &self.nodes[at as usize].peers[of as usize]
    }

    pub fn channel(&mut self, at: usize) -> &mut Channel {
        self.channels[at].as_mut().expect("a channel that is held")
    }

    /// Forgets a channel that nobody holds: its place is another's.
    pub fn sweep(&mut self) {
        for slot in &mut self.channels {
            // Messages that were still in it are missed by whoever waits for them.
            if slot.as_ref().is_some_and(|channel| !channel.sender && !channel.receiver) {
                *slot = None;
            }
        }
    }

    pub fn close_outbound(&mut self, at: Rank, of: Rank) {
        let peer = self.peer(at, of);
        let old = std::mem::replace(&mut peer.out, Out::Unknown);
        peer.operations.key = Key::Unknown;
        if let Some(channel) = old.channel() {
            self.channel(channel).sender = false;
        }
    }

    /// `Links::begin_drain`.
    pub fn begin_drain(&mut self, at: Rank, of: Rank) {
        match self.look(at, of).out {
            Out::Open(channel) => {
                let node = &mut self.nodes[at as usize];
                node.markers += 1;
                node.peers[of as usize].out = Out::Draining { channel, marker: node.markers, sent: false };
            }
            Out::Opening(_) => self.close_outbound(at, of),
            _ => {}
        }
    }

    /// `Links::lose`.
    pub fn lose(&mut self, at: Rank, of: Rank, without: Without) {
        let (used, generation) = (self.look(at, of).used, self.look(at, of).generation);
        self.close_outbound(at, of);
        let peer = self.peer(at, of);
        if used && without != Without::Loss {
            peer.out = Out::Lost(generation);
        }
        peer.used = false;
    }

    /// `Links::drop_inbound`.
    pub fn drop_inbound(&mut self, at: Rank, channel: usize) {
        self.channel(channel).receiver = false;
        self.channel(channel).word.barred = true;
        let from = self.channel(channel).from;
        if self.look(at, from).inbound == Some(channel) {
            self.fail_pulls(at, from);
            let peer = self.peer(at, from);
            peer.inbound = None;
            if !peer.drained {
                peer.ended = Some(peer.from_generation);
            }
        }
    }

    /// Messages that are neither with their sender nor with their receiver.
    pub fn in_flight(&self, of: impl Fn(&Channel) -> bool) -> bool {
        self.channels
            .iter()
            .flatten()
            .any(|channel| of(channel) && channel.packets.iter().any(|packet| !matches!(packet, Packet::Marker(_))))
    }

    pub fn everything_arrived(&self, job: &Job) -> bool {
        let over = |put: &(Rank, Rank, u8)| self.look(put.0, put.1).operations.over(&self.look(put.1, put.0).operations);
        job.puts.iter().all(over)
            && job.flows.iter().all(|(from, to, count)| {
                let peer = self.look(*to, *from);
                let long = !job.long(*from, *to) || (peer.complete == (1 << count) - 1 && self.look(*from, *to).lent.is_empty());
                (peer.got == *count && long) || matches!(self.look(*from, *to).out, Out::Lost(_))
            })
    }
}

pub fn bit(rank: Rank) -> u8 {
    1 << rank
}
