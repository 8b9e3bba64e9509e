//! All channels of a rank, and what waits for them: between the engine, which knows ranks, and the channels, which
//! move packets.
//!
//! Order: packets to a peer leave in the order they were posted, whatever happens to the channel meanwhile. Long
//! transfers ("streams") go when no packet waits, a packet of each in turn; the engine does not rely on their order.

mod drain;
mod grants;
mod inbound;
mod losses;
mod media;
mod outbound;
mod outlet;
mod pull;
#[cfg(test)]
mod pull_tests;
mod pulling;
#[cfg(test)]
mod tests;
mod waiting;

pub use drain::DrainError;
pub use inbound::Inbound;

use crate::channel::opening::nonce;
use crate::channel::pending_handshake::PendingHandshake;
use crate::counter::cycles;
use crate::engine::Engine;
use crate::engine::buffers::{Payload, Segment, gather};
use crate::engine::packet::{Header, Queued};
use crate::engine::pull::Pull;
use crate::identity::Identity;
use crate::peer::{Outbound, Peer};
use crate::report;
use crate::watch::{Token, Watch};
use mend_messages::job::{FabricAddress, JobMap, MAX_RANKS, NodeIndex, Rank};
use std::collections::VecDeque;
use std::fmt::Write;

/// Bytes that may wait for one peer before the application is told to try again.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Packets of this rank to itself that may wait before its streams pause.
const MAX_LOOPBACK_PACKETS: usize = 16;
/// Payload of a packet of a stream to itself, bytes.
const LOOPBACK_CHUNK_BYTES: usize = 64 * 1024;
/// Polls between two looks at the sockets when all open channels are rings.
const POLLS_PER_SOCKET_CHECK: u32 = 256;
/// The same when rings and sockets are mixed.
const MIXED_POLLS_PER_SOCKET_CHECK: u32 = 8;
/// Cycles after which the sockets are looked at, however few rounds there were: the program computes between its polls. 0.5 to 1 ms; a tight
/// loop looks a dozen times before.
const LOOK_CYCLES: u64 = 1 << 21;
/// Rounds between two polls of the latest sockets when rings and sockets are mixed.
const POLL_EVERY_MIXED: u32 = 4;
/// Packets to a peer between two rounds that leave at once each; more are a burst and wait for each other, until the next
/// round. Few, so that a program seldom depends on the nudge; a call more or less does not matter to a long burst.
const BURST_PACKETS: u32 = 4;
/// Packets to a peer between two rounds after which the application is told to try again: it makes a round then, and hears what
/// the peer has to say, that it holds too much already (see [`crate::engine::back_pressure`]) among it.
const LONG_BURST_PACKETS: u32 = 1024;

/// See the module.
#[derive(Default)]
pub struct Links {
    identity: Option<Identity>,
    generation: u64,
    map_version: Option<u64>,
    watch: Option<Watch>,
    peers: Vec<Peer>,
    busy: Vec<Rank>,
    inbound: Vec<Option<Box<Inbound>>>,
    /// Inbound channels to look at in every round.
    polled: Vec<u32>,
    /// Inbound channels that only sockets announce.
    by_socket: usize,
    /// Those of them that something came from lately, the latest last.
    warm: VecDeque<u32>,
    /// Rounds between two looks in which only the latest sockets are polled: it grows while these are the right ones.
    direct: u32,
    /// Inbound channels that are not kept while suspended: those over the port.
    without_keeping: usize,
    media: media::Media,
    pending_handshakes: Vec<Option<Box<PendingHandshake>>>,
    refused: inbound::Refused,
    loopback: VecDeque<(Header, Vec<u8>)>,
    finished: Vec<u64>,
    /// More ranks than processors on this node.
    pub crowded: bool,
    /// Messages of this rank that others may read by themselves.
    #[cfg(test)]
    offered: usize,
    /// Reads that were just accepted.
    asked: Vec<(Rank, Pull)>,
    /// Inbound channels with reads to do or under way.
    pulling: Vec<u32>,
    /// Operations whose read cannot be done after all.
    failed: Vec<u64>,
    tokens: Vec<Token>,
    /// The agent suspended all peers.
    suspended: bool,
    /// Of what this rank has granted.
    version: u64,
    /// One-sided operations that needed no packet.
    #[cfg(test)]
    accesses: usize,
    markers: u64,
    /// Openings begun, ever: later ones take precedence.
    openings: u64,
    /// Connections may wait at the listeners that announce them no more: too many handshakes are pending, or one could not be accepted.
    crowd: bool,
    rounds: u32,
    /// Look at the sockets in the next round.
    urgent: bool,
    /// Counter at the latest look at the sockets.
    looked: u64,
    sleepers: u32,
    /// In a round: what is sent now leaves at its end at the latest.
    in_round: bool,
    /// Something waits for the application's next round, and `nudge` was called for the case that it never comes.
    delayed: bool,
    nudge: Option<fn()>,
    lookout: waiting::Lookout,
    losses: losses::Losses,
}

impl Links {
    /// This rank, once it is known.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    fn rank(&self) -> Option<Rank> {
        self.identity.as_ref().map(|identity| identity.rank)
    }

    /// Opens the listeners. Peers and what waits for them stay, if this process was restored.
    ///
    /// # Errors
    /// The system refused.
    pub fn listen(&mut self, identity: Identity) -> Result<FabricAddress, crate::channel::ChannelError> {
        let mut name = String::from("mend-");
        for byte in identity.job[..4].iter().chain(&nonce()?[..8]) {
            let _ = write!(name, "{byte:02x}");
        }
        let _ = write!(name, "-{}", identity.rank);
        let watch = Watch::open(identity.ip, name)?;
        let address = FabricAddress { tcp: watch.tcp_address, unix: watch.unix_name.clone() };
        self.introduce(identity);
        self.watch = Some(watch);
        self.urgent = true;
        Ok(address)
    }

    /// Learns who this rank is, and opens nothing: from now on there are peers, where maps say and whom others ask to let go.
    pub fn introduce(&mut self, identity: Identity) {
        self.choose_media();
        for rank in self.peers.len()..identity.size as usize {
            self.peers.push(Peer::new(if rank == identity.rank as usize { Outbound::Loopback } else { Outbound::UNKNOWN }));
        }
        self.identity = Some(identity);
    }

    /// The job may have more ranks than this one was told: worlds are spawned. What of them is heard first, a map, a name or a connection, makes
    /// them known. False if no job has so many.
    pub fn know(&mut self, rank: Rank) -> bool {
        if rank >= MAX_RANKS {
            return false;
        }
        while self.identity.is_some() && self.peers.len() <= rank as usize {
            self.peers.push(Peer { held: self.suspended, ..Peer::new(Outbound::UNKNOWN) });
        }
        true
    }

    /// Takes a newer job map. Channels to ranks that were replaced are dropped.
    pub fn set_map(&mut self, map: JobMap) {
        if self.map_version.is_some_and(|version| version >= map.version) {
            return;
        }
        self.map_version = Some(map.version);
        let me = self.rank();
        for entry in map.entries {
            let rank = entry.rank;
            self.know(rank);
            if Some(rank) == me {
                self.generation = entry.generation;
                if let Some(identity) = &mut self.identity {
                    identity.node = entry.node;
                }
            }
            let Some(peer) = self.peers.get_mut(rank as usize) else { continue };
            let moved = entry.generation != peer.generation;
            peer.entry = Some(entry);
            let reopen = match &peer.outbound {
                Outbound::Lost { generation } => peer.entry.as_ref().is_some_and(|entry| entry.generation > *generation),
                // An opening that still leads to the old place ends here.
                Outbound::Suspended(_) | Outbound::Opening(_) => moved,
                Outbound::Open(_) | Outbound::Draining { .. } if moved => {
                    if peer.used {
                        report::fault(me, format_args!("rank {rank} was replaced while messages to it were under way"));
                    }
                    true
                }
                _ => false,
            };
            if reopen {
                peer.outbound = Outbound::UNKNOWN;
                peer.used = false;
            }
            if let Outbound::Unknown { retry, .. } = &mut peer.outbound {
                *retry = None;
            }
        }
        self.urgent = true;
        if let Some(watch) = &self.watch {
            watch.wake();
        }
    }

    /// How many ranks share this rank's node, itself included.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        let node: Option<NodeIndex> = self.identity.as_ref().map(|identity| identity.node);
        let there = |peer: &&Peer| peer.entry.as_ref().is_some_and(|entry| Some(entry.node) == node && !entry.ended);
        self.peers.iter().filter(there).count().max(1)
    }

    /// One round: receive, accept, open, send. True if anything moved.
    pub fn progress(&mut self, engine: &mut Engine) -> bool {
        self.in_round = true;
        self.delayed = false;
        let mut moved = self.poll_port();
        let mut at = 0;
        while let Some(number) = self.polled.get(at).copied() {
            let quiet = matches!(self.inbound.get(number as usize), Some(Some(inbound)) if inbound.channel.quiet());
            moved |= !quiet && self.receive(engine, number);
            // A channel that ended has left the list; its place is another's now.
            if self.polled.get(at) == Some(&number) {
                at += 1;
            }
        }
        if !(self.pulling.is_empty() && self.asked.is_empty() && self.failed.is_empty()) {
            moved |= self.pull_on(engine);
        }
        self.rounds = self.rounds.wrapping_add(1);
        let every = match (self.polled.is_empty(), self.by_socket) {
            (true, 0) | (false, 0) => POLLS_PER_SOCKET_CHECK,
            (true, _) => 1 + self.direct,
            (false, _) => MIXED_POLLS_PER_SOCKET_CHECK,
        };
        if self.direct > 0 && (self.polled.is_empty() || self.rounds.is_multiple_of(POLL_EVERY_MIXED)) {
            moved |= self.poll_sockets(engine);
        }
        let look = self.urgent || self.rounds.is_multiple_of(every);
        if look {
            self.urgent = false;
            moved |= self.look(engine);
        }
        if !self.loopback.is_empty() {
            moved |= self.turn_around(engine);
        }
        if !self.busy.is_empty() {
            moved |= self.send_waiting(look);
        }
        while let Some(id) = self.finished.pop() {
            engine.streamed(self, id);
        }
        self.in_round = false;
        self.see_to_rest(engine);
        moved
    }

    /// True if a look at the rings is all that a round would do, and nothing is in them.
    #[inline]
    pub fn quiet(&self) -> bool {
        let silent = |number: &u32| matches!(self.inbound.get(*number as usize), Some(Some(inbound)) if inbound.channel.quiet());
        self.by_socket == 0
            && !self.urgent
            && self.busy.is_empty()
            && self.loopback.is_empty()
            && !self.port_open()
            && self.pulling.is_empty()
            && self.asked.is_empty()
            && self.failed.is_empty()
            && self.polled.iter().all(silent)
    }

    /// Receives from the sockets that something came from last: one system call instead of two.
    fn poll_sockets(&mut self, engine: &mut Engine) -> bool {
        let mut moved = false;
        for number in self.hot().into_iter().flatten() {
            if !self.polled.contains(&number) && self.receive(engine, number) {
                moved = true;
                self.direct = (self.direct + 1).min(inbound::MAX_DIRECT);
            }
        }
        moved
    }

    /// `nudge` is called when something starts to wait for the application's next round of progress: somebody else should
    /// see to it, in a while, that there is one.
    pub fn on_delay(&mut self, nudge: fn()) {
        self.nudge = Some(nudge);
    }

    /// True while something waits for a round of progress that the application has not made since it was sent.
    #[must_use]
    pub fn delayed(&self) -> bool {
        self.delayed
    }

    /// Lets a copy of a packet wait for its turn.
    fn enqueue(&mut self, rank: Rank, header: &Header, payload: &[Segment]) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        let payload = gather(payload);
        peer.queued += payload.len() + crate::engine::packet::HEADER;
        peer.queue.push_back(Queued { header: *header, payload });
        self.list(rank);
        if !self.in_round {
            self.delay();
        }
    }

    fn delay(&mut self) {
        if !self.delayed {
            self.delayed = true;
            if let Some(nudge) = self.nudge {
                nudge();
            }
        }
    }

    /// Delivers packets of this rank to itself.
    fn turn_around(&mut self, engine: &mut Engine) -> bool {
        let Some(me) = self.rank() else { return false };
        for _ in 0..self.loopback.len() {
            let Some((header, payload)) = self.loopback.pop_front() else { break };
            if let Err(fault) = engine.handle(self, me, &header, Payload::one(&payload)) {
                report::fault(Some(me), format_args!("a message to itself: {fault}"));
            }
        }
        true
    }

    /// Looks at the sockets.
    fn look(&mut self, engine: &mut Engine) -> bool {
        self.looked = cycles();
        let Some(watch) = &self.watch else { return false };
        let mut tokens = std::mem::take(&mut self.tokens);
        watch.events(&mut tokens);
        let mut moved = false;
        for token in tokens.drain(..) {
            match token {
                Token::Wakeup => {
                    if let Some(watch) = &self.watch {
                        watch.drain_wakeups();
                    }
                }
                Token::Tcp | Token::Unix => moved |= self.accept(),
                Token::Handshake(number) => moved |= self.advance_handshake(number),
                Token::Inbound(number) => moved |= self.inbound_event(engine, number),
                Token::Outbound(rank) => moved |= self.outbound_event(rank),
                // It is polled in every round.
                Token::Port => {}
            }
        }
        self.tokens = tokens;
        self.review_strangers();
        moved
    }

    /// Asks everybody for a wake-up. False if there is something to do right now: do not sleep.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut busy = !self.loopback.is_empty() || self.watch.is_none() || self.pulls_wait() || !self.port_may_sleep();
        for number in &self.polled {
            if let Some(Some(inbound)) = self.inbound.get_mut(*number as usize) {
                busy |= inbound.channel.arm();
            }
        }
        for rank in &self.busy {
            if let Some(peer) = self.peers.get_mut(*rank as usize)
                && let Outbound::Open(channel) = &mut peer.outbound
            {
                busy |= !peer.held && channel.arm();
            }
        }
        if busy {
            self.disarm();
            return false;
        }
        self.sleepers += 1;
        true
    }

    /// After a sleep that [`Links::prepare_sleep`] allowed.
    pub fn awake(&mut self) {
        // A process restored while a thread slept starts at 0 again.
        self.sleepers = self.sleepers.saturating_sub(1);
        self.urgent = true;
        if self.sleepers == 0 {
            self.disarm();
        }
    }

    fn disarm(&mut self) {
        for number in &self.polled {
            if let Some(Some(inbound)) = self.inbound.get_mut(*number as usize) {
                inbound.channel.disarm();
            }
        }
    }

    /// Number of the epoll set to sleep on.
    #[must_use]
    pub fn sleep_set(&self) -> Option<i32> {
        self.watch.as_ref().map(Watch::raw)
    }

    /// Wakes whoever sleeps in this process.
    pub fn wake(&self) {
        if let Some(watch) = &self.watch {
            watch.wake();
        }
    }

    /// The next round looks at the sockets, too.
    pub fn look_soon(&mut self) {
        self.urgent = true;
    }

    /// True, and the next round looks at the sockets, if at `now` the latest look is long ago. Rounds tell how often a rank that waits
    /// looks; one that computes between them, and makes twenty in a second, would accept a channel after minutes.
    #[inline]
    pub fn overdue(&mut self, now: u64) -> bool {
        // In a restored process the counter may be behind; then this is true once.
        let overdue = now.wrapping_sub(self.looked) >= LOOK_CYCLES;
        self.urgent |= overdue;
        overdue
    }

    /// True while the agent holds any peer.
    #[must_use]
    pub fn on_hold(&self) -> bool {
        self.suspended || self.peers.iter().any(|peer| peer.held)
    }

    /// True when nothing waits for a peer that may still take it.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.loopback.is_empty() && self.port_quiet() && self.peers.iter().all(|peer| !peer.pending() || peer.gone())
    }

    /// True if a rank has ended, as far as can be told from its channels: nothing more is to be expected of it as it was.
    #[must_use]
    pub fn gone(&self, rank: Rank) -> bool {
        self.peers.get(rank as usize).is_some_and(Peer::gone)
    }
}
