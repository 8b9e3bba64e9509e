//! Admitting channels and receiving.

use super::Links;
use super::pulling::Pulling;
use crate::channel::pending_handshake::PendingHandshake;
use crate::channel::{ChannelError, Hello, Incoming, Sink};
use crate::engine::Engine;
use crate::engine::buffers::{Payload, Segment};
use crate::engine::packet::{Header, Kind};
use crate::report;
use crate::watch::{Interest, Token};
use mend_messages::job::Rank;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Bytes received from one channel before the next has its turn.
const TURN_BYTES: usize = 256 * 1024;
/// Connections that may be in their handshake at a time, beyond one per rank.
const MAX_PENDING_HANDSHAKES: usize = 64;
/// Channels announced by sockets that keep their buffers after something came.
const MAX_WARM_CHANNELS: usize = 16;
/// Most rounds in which sockets are polled between two looks at all of them.
pub(super) const MAX_DIRECT: u32 = 7;
/// Time without a word after which a handshake's place is free. Long: a peer that computes looks seldom, and loses its place to nobody before
/// places are rare (see [`Links::displace`]).
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(600);
/// Time between two reports of refused connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A channel from a rank.
pub struct Inbound {
    /// Its receiving end.
    pub channel: Box<dyn Incoming>,
    /// The sender.
    pub rank: Rank,
    /// Generation of the sender.
    pub generation: u64,
    /// Nothing came since it was opened or since the last marker.
    pub drained: bool,
    /// A marker that is acknowledged when all reads have ended.
    pub marker: Option<u64>,
    /// Kind of offers that the channel can use; 0: none.
    pub pull_kind: u32,
    /// Reads of the sender's memory.
    pub pulls: VecDeque<Pulling>,
}

/// Handshakes that failed: anybody can cause many, so they are reported once a minute, with a count.
#[derive(Debug, Default)]
pub struct Refused {
    told: Option<Instant>,
    since: u64,
}

impl Refused {
    fn tell(&mut self, rank: Rank, what: &str) {
        if self.told.is_some_and(|told| told.elapsed() < REPORT_INTERVAL) {
            self.since += 1;
            return;
        }
        match std::mem::take(&mut self.since) {
            0 => report::fault(Some(rank), format_args!("a connection is refused: {what}")),
            more => {
                report::fault(Some(rank), format_args!("a connection is refused, and {more} were since the last that was told of: {what}"))
            }
        }
        self.told = Some(Instant::now());
    }
}

/// Takes what a channel delivers to the engine; markers are the links' own.
struct Delivery<'a> {
    links: &'a mut Links,
    engine: &'a mut Engine,
    rank: Rank,
    pull_kind: u32,
    drained: &'a mut bool,
    marker: &'a mut Option<u64>,
}

impl Sink for Delivery<'_> {
    fn packet(&mut self, header: &Header, payload: Payload) -> Result<(), ChannelError> {
        if header.kind == Kind::Marker as u8 {
            *self.marker = Some(header.id);
            self.links.allow_pulls(self.rank, 0);
            return Ok(());
        }
        if *self.drained || self.marker.is_some() {
            (*self.drained, *self.marker) = (false, None);
            self.links.allow_pulls(self.rank, self.pull_kind);
        }
        self.engine.handle(self.links, self.rank, header, payload).map_err(|fault| ChannelError::Protocol(fault.to_string()))
    }

    fn place(&mut self, header: &mut Header) -> Option<Segment> {
        self.engine.place(self.rank, header)
    }
}

impl Links {
    /// Receives from an inbound channel. True if something came.
    pub(super) fn receive(&mut self, engine: &mut Engine, number: u32) -> bool {
        let Some(mut inbound) = self.inbound.get_mut(number as usize).and_then(Option::take) else { return false };
        let Inbound { channel, rank, drained, marker, pull_kind, .. } = &mut *inbound;
        let (rank, pull_kind) = (*rank, *pull_kind);
        let outcome = channel.receive(TURN_BYTES, &mut Delivery { links: self, engine, rank, pull_kind, drained, marker });
        match outcome {
            Ok(packets) => {
                if inbound.marker.is_some() {
                    self.list_pulls(number);
                }
                if packets > 0
                    && let Some(peer) = self.peers.get_mut(rank as usize)
                {
                    peer.credit = true;
                }
                if !inbound.channel.polled() {
                    if packets > 0 {
                        self.warm_up(number);
                    }
                    // Whole packets that are read already are not announced again by the socket.
                    let listed = self.polled.iter().position(|other| *other == number);
                    match (inbound.channel.arm(), listed) {
                        (true, None) => self.polled.push(number),
                        (false, Some(at)) => drop(self.polled.swap_remove(at)),
                        _ => {}
                    }
                }
                self.inbound[number as usize] = Some(inbound);
                packets > 0
            }
            Err(error) => {
                self.broke(number, *inbound, &error);
                true
            }
        }
    }

    fn broke(&mut self, number: u32, inbound: Inbound, error: &ChannelError) {
        let (rank, lost) = (inbound.rank, !inbound.drained);
        if !matches!(error, ChannelError::Closed) {
            report::fault(self.rank(), format_args!("the channel from rank {rank} is closed: {error}"));
        }
        self.drop_inbound(number, inbound);
        if lost {
            self.note_loss(rank, error);
        }
    }

    pub(super) fn drop_inbound(&mut self, number: u32, mut inbound: Inbound) {
        self.fail_pulls(number, &mut inbound);
        // The peer may use it for a while yet, and would not see what is shown from now on.
        inbound.channel.show(self.version, true);
        if let Some(watch) = &self.watch {
            watch.remove(inbound.channel.socket());
        }
        self.polled.retain(|other| *other != number);
        self.warm.retain(|other| *other != number);
        if !inbound.channel.polled() {
            self.by_socket -= 1;
        }
        if !inbound.channel.keeps() {
            self.without_keeping -= 1;
        }
        if let Some(peer) = self.peers.get_mut(inbound.rank as usize)
            && peer.inbound == Some(number)
        {
            peer.inbound = None;
            peer.shown = false;
            if !inbound.drained {
                peer.ended = Some(inbound.generation);
            }
        }
    }

    pub(super) fn inbound_event(&mut self, engine: &mut Engine, number: u32) -> bool {
        let Some(Some(inbound)) = self.inbound.get_mut(number as usize) else { return false };
        if let Err(error) = inbound.channel.event() {
            if let Some(inbound) = self.inbound.get_mut(number as usize).and_then(Option::take) {
                self.broke(number, *inbound, &error);
            }
            return true;
        }
        let hot = self.hot().contains(&Some(number));
        let moved = self.receive(engine, number);
        if moved && !hot {
            // Polling a few sockets misses others: looks become more frequent again.
            self.direct /= 2;
        } else if moved {
            self.direct = (self.direct + 1).min(MAX_DIRECT);
        }
        moved
    }

    /// The channels whose sockets are polled: those that something came from last.
    pub(super) fn hot(&self) -> [Option<u32>; 2] {
        let mut latest = self.warm.iter().rev().copied();
        [latest.next(), latest.next()]
    }

    /// Something came from a channel that sockets announce.
    fn warm_up(&mut self, number: u32) {
        if self.warm.back() == Some(&number) {
            return;
        }
        self.warm.retain(|other| *other != number);
        self.warm.push_back(number);
        if self.warm.len() > MAX_WARM_CHANNELS
            && let Some(cold) = self.warm.pop_front()
            && let Some(Some(inbound)) = self.inbound.get_mut(cold as usize)
        {
            inbound.channel.relax();
        }
    }

    /// Accepts what waits at the listeners, unless this rank is suspended: then nothing new may begin.
    pub(super) fn accept(&mut self) -> bool {
        let mut moved = false;
        self.crowd = false;
        while !self.suspended {
            if self.pending_handshakes.iter().flatten().count() >= MAX_PENDING_HANDSHAKES + self.peers.len() && !self.displace() {
                // The listeners announce a connection once: those that wait are looked at when one of these is through.
                self.crowd = true;
                break;
            }
            let Some(watch) = &self.watch else { break };
            let encrypted = self.identity.as_ref().is_some_and(|identity| identity.encrypted);
            let pending = match watch.accept() {
                Ok(None) => break,
                Ok(Some(socket)) => PendingHandshake::new(socket, encrypted).ok(),
                Err(_) => None,
            };
            let Some(pending) = pending else {
                // The program may have no descriptor left just now.
                self.crowd = true;
                break;
            };
            let number = self.pending_handshakes.iter().position(Option::is_none).unwrap_or(self.pending_handshakes.len());
            if watch.add(pending.socket(), Token::Handshake(number as u32), Interest::Edge).is_err() {
                continue;
            }
            if number == self.pending_handshakes.len() {
                self.pending_handshakes.push(None);
            }
            self.pending_handshakes[number] = Some(Box::new(pending));
            self.advance_handshake(number as u32);
            moved = true;
        }
        moved
    }

    /// Ends the oldest connection that has shown nothing yet, of where most of these come from: whoever floods takes places of
    /// his own, and keeps nobody out. False if all have proven themselves.
    fn displace(&mut self) -> bool {
        let unproven = || {
            self.pending_handshakes.iter().enumerate().filter_map(|(at, slot)| Some((at, slot.as_ref()?))).filter(|(_, one)| !one.proven())
        };
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for (_, pending) in unproven() {
            *counts.entry(pending.origin).or_default() += 1;
        }
        let Some((crowded, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return false };
        let oldest = unproven().filter(|(_, pending)| pending.origin == crowded).min_by_key(|(_, pending)| pending.since);
        let Some(at) = oldest.map(|(at, _)| at) else { return false };
        self.pending_handshakes[at] = None;
        true
    }

    /// Goes on with a pending handshake.
    pub(super) fn advance_handshake(&mut self, number: u32) -> bool {
        let Some(identity) = &self.identity else { return false };
        let Some(Some(pending)) = self.pending_handshakes.get_mut(number as usize) else { return false };
        let hello = match pending.advance(&identity.secret) {
            Ok(None) => return true,
            Ok(Some(hello)) => hello,
            Err(error) => {
                if let ChannelError::Protocol(what) = error {
                    self.refused.tell(identity.rank, &what);
                }
                self.pending_handshakes[number as usize] = None;
                return true;
            }
        };
        let (me, ours) = (identity.rank, hello.job == identity.job && hello.to == identity.rank && hello.from != identity.rank);
        // It has proven that it belongs to the job, whose newest map may be on its way.
        let known = ours && self.know(hello.from);
        let Some(peer) = self.peers.get(hello.from as usize).filter(|_| known) else {
            report::fault(Some(me), format_args!("a connection of rank {} for rank {} is refused", hello.from, hello.to));
            self.pending_handshakes[number as usize] = None;
            return true;
        };
        if peer.ended.is_some_and(|generation| hello.generation <= generation) {
            report::fault(Some(me), format_args!("rank {} reconnects, but messages of it may be lost", hello.from));
            self.pending_handshakes[number as usize] = None;
            return true;
        }
        if (hello.generation, hello.number) <= peer.admitted {
            // Begun before the one that was admitted and given up since; its end is still on its way.
            self.pending_handshakes[number as usize] = None;
            return true;
        }
        if let Some(old) = peer.inbound {
            match self.inbound.get_mut(old as usize) {
                // What the old channel still holds comes first.
                Some(Some(inbound)) if !inbound.drained => return false,
                Some(slot) => {
                    if let Some(inbound) = slot.take() {
                        self.drop_inbound(old, *inbound);
                    }
                }
                None => {}
            }
        }
        self.admit(number, hello);
        true
    }

    fn admit(&mut self, number: u32, hello: Hello) {
        let Hello { from: rank, generation, .. } = hello;
        let Some(pending) = self.pending_handshakes.get_mut(number as usize).and_then(Option::take) else { return };
        let port = if pending.wants_port() { self.port() } else { None };
        let Some(watch) = &self.watch else { return };
        let at = self.inbound.iter().position(Option::is_none).unwrap_or(self.inbound.len());
        let admitted = pending.admit(watch.wakeup(), port.as_ref()).and_then(|channel| {
            watch.hand_over(channel.socket(), Token::Inbound(at as u32), Interest::Level)?;
            Ok(channel)
        });
        match admitted {
            Ok(mut channel) => {
                channel.show(self.version, self.suspended);
                let pull_kind = channel.puller().map_or(0, |puller| puller.kind());
                let shown = channel.shows();
                if channel.polled() {
                    self.polled.push(at as u32);
                } else {
                    self.by_socket += 1;
                }
                if !channel.keeps() {
                    self.without_keeping += 1;
                }
                if at == self.inbound.len() {
                    self.inbound.push(None);
                }
                self.inbound[at] =
                    Some(Box::new(Inbound { channel, rank, generation, drained: true, marker: None, pull_kind, pulls: VecDeque::new() }));
                if let Some(peer) = self.peers.get_mut(rank as usize) {
                    peer.inbound = Some(at as u32);
                    peer.shown = shown;
                    peer.admitted = (generation, hello.number);
                }
                self.urgent = true;
            }
            Err(ChannelError::Protocol(what) | ChannelError::Provider(what)) => {
                report::fault(self.rank(), format_args!("a channel of rank {rank} is refused: {what}"))
            }
            // The peer has given its opening up, perhaps because it is being suspended; it will try again.
            Err(ChannelError::Closed | ChannelError::Refused | ChannelError::Io(_) | ChannelError::Cipher(_)) => {}
        }
    }

    /// Handshakes that wait for an older channel to end, or that take too long.
    pub(super) fn review_strangers(&mut self) {
        for number in 0..self.pending_handshakes.len() {
            if self.pending_handshakes[number].is_none() {
                continue;
            }
            // First what has come: after a long absence of this rank it may all be here.
            self.advance_handshake(number as u32);
            if self.pending_handshakes[number].as_ref().is_some_and(|pending| pending.since.elapsed() > HANDSHAKE_LIMIT) {
                self.pending_handshakes[number] = None;
            }
        }
        if self.crowd {
            self.accept();
        }
    }
}
