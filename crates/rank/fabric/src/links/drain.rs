//! Suspending and resuming: the agent's side of the links.
//!
//! ```text
//! suspend:       every Open channel: Draining, MARKER ──► … ◄── ACK: Suspended.   Openings are dropped.
//! suspend_peer:  the same for one peer, then its channel is closed. Its own marker may come later, so it is served until the resume.
//! resume:        Suspended → Open if the peer is still the one it was opened to, else Unknown.
//! A channel that cannot be kept (`ofi`) is closed when its ACK comes, and opened anew after the resume.
//! ```
//! When all outbound channels are suspended nothing of this rank is in flight; when all ranks have got there,
//! nothing of the job is. Incomplete messages are in the engine and in the peers' queues, which are memory.
//! A rank that has ended sends no marker. What it sent before is here, in rings and in the kernel: whoever suspends takes all of that first.

use super::Links;
use crate::engine::Engine;
use crate::engine::buffers::Segment;
use crate::engine::packet::{Header, Kind};
use crate::peer::Outbound;
use mend_messages::job::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Why a drain did not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    /// These peers did not acknowledge, and took nothing of what is on its way to them, for a whole limit.
    #[error("the channels with ranks {ranks:?} did not drain in time")]
    Late {
        /// The peers.
        ranks: Vec<Rank>,
    },
    /// These peers closed their channels with messages under way.
    #[error("ranks {ranks:?} closed their channels with messages under way")]
    Lost {
        /// The peers.
        ranks: Vec<Rank>,
    },
    /// No such rank.
    #[error("there is no rank {rank}")]
    NoSuchRank {
        /// What was asked for.
        rank: Rank,
    },
}

impl DrainError {
    /// What a user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Late { .. } => "nothing came from these ranks for MEND_DRAIN_TIMEOUT_MS: they may be stopped, or their node unreachable",
            Self::Lost { .. } => "these ranks have ended or crashed, or the connection to them broke; look at the job's output",
            Self::NoSuchRank { .. } => "",
        }
    }
}

impl Links {
    /// Stops sends to all peers and begins to drain.
    pub(crate) fn begin_suspend(&mut self) {
        self.suspended = true;
        self.show();
        self.pending_handshakes.clear();
        for rank in 0..self.peers.len() {
            self.begin_drain(rank);
        }
        self.urgent = true;
    }

    /// Stops sends to one peer and begins to drain.
    pub(crate) fn begin_suspend_peer(&mut self, rank: Rank) -> Result<(), DrainError> {
        let peer = self.peers.get_mut(rank as usize).ok_or(DrainError::NoSuchRank { rank })?;
        peer.held = true;
        self.begin_drain(rank as usize);
        Ok(())
    }

    fn begin_drain(&mut self, rank: usize) {
        let peer = &mut self.peers[rank];
        peer.outbound = match std::mem::replace(&mut peer.outbound, Outbound::UNKNOWN) {
            Outbound::Open(channel) => {
                self.markers += 1;
                Outbound::Draining { channel, marker: self.markers, sent: false }
            }
            Outbound::Opening(_) => Outbound::UNKNOWN,
            other => other,
        };
    }

    /// Sends markers that have not found room yet. Ranks whose channel is still draining.
    pub(crate) fn drain_step(&mut self) -> Vec<Rank> {
        let mut draining = Vec::new();
        for rank in 0..self.peers.len() {
            let Outbound::Draining { channel, marker, sent } = &mut self.peers[rank].outbound else { continue };
            draining.push(rank as Rank);
            let mut header = Header::new(Kind::Marker);
            header.id = *marker;
            let outcome =
                if *sent { channel.flush().map(drop) } else { channel.send(&header, &[] as &[Segment]).map(|taken| *sent = taken) };
            if *sent {
                // The receiver may be asleep or computing: the wakeup also reaches its agent.
                channel.wake();
            }
            if let Err(error) = outcome {
                self.lose(rank as Rank, &error);
            }
        }
        draining
    }

    /// A step of the drain. Ranks that are waited for.
    pub(crate) fn undrained(&mut self, engine: &mut Engine) -> Vec<Rank> {
        let mut ranks = self.drain_step();
        ranks.retain(|rank| !self.peer_drained(*rank));
        if ranks.is_empty() && self.suspended { self.take_from_ended(engine) } else { ranks }
    }

    /// Takes what ranks sent before they ended. Those of which more may come.
    fn take_from_ended(&mut self, engine: &mut Engine) -> Vec<Rank> {
        let closed = self.closed_by_sender();
        let mut ranks = Vec::new();
        for number in 0..self.inbound.len() as u32 {
            let Some(Some(inbound)) = self.inbound.get(number as usize) else { continue };
            let (rank, generation) = (inbound.rank, inbound.generation);
            let closed = closed.contains(&number);
            let peer = self.peers.get(rank as usize);
            let ended =
                peer.is_some_and(|peer| peer.has_ended() && peer.entry.as_ref().is_some_and(|entry| generation <= entry.generation));
            if !closed && !ended {
                continue;
            }
            let moved = self.inbound_event(engine, number);
            // It leaves when all is delivered. A process that the sender forked may hold its socket: then nothing is left when nothing comes.
            if let Some(Some(inbound)) = self.inbound.get_mut(number as usize)
                && (moved || closed || inbound.channel.sender_ended())
            {
                ranks.push(rank);
            }
        }
        ranks
    }

    /// Inbound channels whose sockets nobody holds any more at the other end.
    fn closed_by_sender(&self) -> Vec<u32> {
        let inbound = || self.inbound.iter().enumerate().filter_map(|(number, slot)| Some((number as u32, slot.as_ref()?)));
        let mut sockets: Vec<_> =
            inbound().map(|(_, inbound)| PollFd::from_borrowed_fd(inbound.channel.socket(), PollFlags::RDHUP)).collect();
        while poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Err(Errno::INTR) {}
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        inbound().zip(&sockets).filter(|(_, socket)| socket.revents().intersects(gone)).map(|((number, _), _)| number).collect()
    }

    /// How far a peer has got with what is in the channel to it: see [`crate::channel::Outgoing::taken`].
    pub(crate) fn taken(&mut self, rank: Rank) -> u64 {
        let channel = self.peers.get_mut(rank as usize).and_then(|peer| peer.outbound.channel());
        channel.map_or(0, |channel| channel.taken())
    }

    /// Peers whose channel broke with packets under way, but those that are known to have ended.
    pub(crate) fn lost(&self) -> Vec<Rank> {
        let is_lost = |peer: &crate::peer::Peer| matches!(peer.outbound, Outbound::Lost { .. }) && !peer.has_ended();
        let lost = |(rank, peer): (usize, &crate::peer::Peer)| is_lost(peer).then_some(rank as Rank);
        self.peers.iter().enumerate().filter_map(lost).collect()
    }

    /// True when nothing is in flight to this peer, or it has ended and takes nothing. What it still sends, and its marker, it waits for
    /// itself: whether all has come cannot be told here. A marker may be an earlier one, and where there is no channel, one may be opened yet.
    pub(crate) fn peer_drained(&self, rank: Rank) -> bool {
        !self.peers.get(rank as usize).is_some_and(|peer| matches!(peer.outbound, Outbound::Draining { .. }) && !peer.has_ended())
    }

    /// Closes the drained channel to a peer that moves.
    pub(crate) fn close_peer(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank as usize)
            && matches!(peer.outbound, Outbound::Suspended(_))
        {
            peer.outbound = Outbound::UNKNOWN;
        }
    }

    /// Sends go on.
    pub(crate) fn resume(&mut self) {
        self.reopen();
        self.accept();
        self.look_anew();
        if let Some(watch) = &self.watch {
            watch.wake();
        }
    }

    /// Channels that were kept are used again if they lead to the peer that the map names. Nothing is opened or sent yet: the program's
    /// threads may stand still, with locks of its libraries.
    pub(crate) fn reopen(&mut self) {
        self.suspended = false;
        self.show();
        for rank in 0..self.peers.len() {
            let peer = &mut self.peers[rank];
            peer.held = false;
            let same = peer.entry.as_ref().is_some_and(|entry| entry.generation == peer.generation);
            peer.outbound = match std::mem::replace(&mut peer.outbound, Outbound::UNKNOWN) {
                Outbound::Suspended(channel) if same => Outbound::Open(channel),
                Outbound::Suspended(_) => Outbound::UNKNOWN,
                // The marker that is on its way is acknowledged in vain.
                Outbound::Draining { channel, .. } => Outbound::Open(channel),
                other => other,
            };
            if peer.pending() {
                self.list(rank as Rank);
            }
        }
        self.urgent = true;
    }

    /// Memory that channels share with other processes.
    pub(crate) fn mappings(&self, f: &mut dyn FnMut(usize, usize)) {
        let outbound = self.peers.iter().filter_map(|peer| peer.outbound.channel_ref()).filter_map(|channel| channel.mapping());
        outbound.for_each(|(address, length)| f(address, length));
        let inbound = self.inbound.iter().flatten().filter_map(|inbound| inbound.channel.mapping());
        inbound.for_each(|(address, length)| f(address, length));
    }

    /// Descriptors that must not be saved.
    pub(crate) fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        if let Some(watch) = &self.watch {
            watch.descriptors(f);
        }
        for peer in &self.peers {
            if let Outbound::Opening(opening) = &peer.outbound {
                opening.descriptors(f);
            } else if let Some(channel) = peer.outbound.channel_ref() {
                channel.descriptors(f);
            }
        }
        self.inbound.iter().flatten().for_each(|inbound| inbound.channel.descriptors(f));
        self.pending_handshakes.iter().flatten().for_each(|pending| pending.descriptors(f));
    }

    /// In a restored process: every channel, listener and descriptor of the old life is forgotten, untouched. What
    /// waits for peers stays.
    pub(crate) fn forget(&mut self) {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let me = self.identity.as_ref().is_some_and(|identity| identity.rank as usize == rank);
            let fresh = if me { Outbound::Loopback } else { Outbound::UNKNOWN };
            match std::mem::replace(&mut peer.outbound, fresh) {
                Outbound::Opening(opening) => opening.forget(),
                Outbound::Open(channel) | Outbound::Draining { channel, .. } | Outbound::Suspended(channel) => channel.forget(),
                Outbound::Unknown { .. } | Outbound::Lost { .. } | Outbound::Loopback => {}
            }
            peer.inbound = None;
            peer.shown = false;
            peer.ended = None;
            peer.admitted = (0, 0);
            peer.refused = None;
            peer.used = false;
            peer.entry = None;
        }
        self.losses.forget();
        self.forget_pulls();
        crate::channel::memory::look_again();
        self.inbound.drain(..).flatten().for_each(|inbound| inbound.channel.forget());
        self.pending_handshakes.drain(..).flatten().for_each(|pending| pending.forget());
        if let Some(watch) = self.watch.take() {
            watch.forget();
        }
        self.forget_port();
        self.polled.clear();
        self.warm.clear();
        self.by_socket = 0;
        self.without_keeping = 0;
        self.sleepers = 0;
        self.map_version = None;
    }
}
