//! Opening channels and sending what waits.

use super::{LOOPBACK_CHUNK_BYTES, Links, MAX_LOOPBACK_PACKETS};
use crate::channel::opening::{Opening, Step};
use crate::channel::{ChannelError, Hello, Medium, Outgoing};
use crate::engine::Stream;
use crate::engine::buffers::{Buffers, Segment, gather};
use crate::engine::packet::{HEADER, Header, Kind, flag};
use crate::peer::Outbound;
use crate::report;
use crate::watch::{Interest, Token};
use mend_messages::job::Rank;
use std::time::{Duration, Instant};

/// Longest time between two attempts to open a channel.
const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// An opening in which the peer says nothing for longer is given up and begun again. The kernel tells of most that lead nowhere; a peer that
/// computes answers when it looks, and one that looks less often is never reached.
pub(super) const OPENING_TIME: Duration = Duration::from_secs(600);
/// Bytes that one stream sends before the next has its turn.
const TURN_BYTES: usize = 256 * 1024;

impl Links {
    pub(super) fn list(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank as usize)
            && !peer.listed
        {
            peer.listed = true;
            self.busy.push(rank);
        }
    }

    /// Serves the peers with something to do. Channels are opened only when `slow`.
    pub(super) fn send_waiting(&mut self, slow: bool) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(rank) = self.busy.get(at).copied() {
            moved |= self.serve_peer(rank, slow);
            let Some(peer) = self.peers.get_mut(rank as usize) else { break };
            if peer.pending() || matches!(peer.outbound, Outbound::Opening(_)) {
                at += 1;
            } else {
                peer.listed = false;
                self.busy.swap_remove(at);
            }
        }
        moved
    }

    fn serve_peer(&mut self, rank: Rank, slow: bool) -> bool {
        let (suspended, Some(peer)) = (self.suspended, self.peers.get_mut(rank as usize)) else { return false };
        match &mut peer.outbound {
            Outbound::Loopback => self.feed_loopback(),
            Outbound::Open(_) if !peer.held && !suspended => self.pump(rank),
            Outbound::Opening(_) if slow && !peer.held && !suspended => self.advance(rank),
            Outbound::Unknown { .. } if slow && !peer.held && !suspended => {
                self.open(rank);
                // Nobody may be there any more: an attempt is no progress, for which those would wait who are about to end.
                false
            }
            _ => false,
        }
    }

    /// Hands packets to an open channel until it is full.
    fn pump(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        let Outbound::Open(channel) = &mut peer.outbound else { return false };
        let mut moved = false;
        let outcome = loop {
            if let Some(first) = peer.queue.front() {
                match channel.defer(&first.header, &[Segment::of(&first.payload)]) {
                    Ok(true) => {
                        peer.queued -= first.payload.len() + HEADER;
                        peer.queue.pop_front();
                        peer.used = true;
                        moved = true;
                        continue;
                    }
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
            let waited = channel.unsent();
            match channel.flush() {
                Ok(true) => {
                    moved |= waited;
                    self.finished.extend(peer.lent.take());
                }
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
            let Some(stream) = peer.streams.front_mut() else { break Ok(()) };
            if stream.offset == stream.length {
                if let Some(done) = peer.streams.pop_front()
                    && done.operation != 0
                {
                    self.finished.push(done.operation);
                }
                moved = true;
                continue;
            }
            match send_stream(channel.as_mut(), stream) {
                Ok(sent) => {
                    moved |= sent > 0;
                    peer.used |= sent > 0;
                    if channel.unsent() || sent < TURN_BYTES && stream.offset < stream.length {
                        break Ok(());
                    }
                    if stream.offset < stream.length {
                        peer.streams.rotate_left(1);
                        break Ok(());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = outcome {
            self.lose(rank, &error);
        }
        moved
    }

    /// Streams of this rank to itself.
    fn feed_loopback(&mut self) -> bool {
        let Some(me) = self.rank() else { return false };
        let Some(peer) = self.peers.get_mut(me as usize) else { return false };
        let mut moved = false;
        while self.loopback.len() < MAX_LOOPBACK_PACKETS
            && let Some(stream) = peer.streams.front_mut()
        {
            let (header, size) = next_packet(stream, LOOPBACK_CHUNK_BYTES);
            let payload = gather(stream.buffers.slice(stream.offset, size).segments());
            stream.offset += size;
            self.loopback.push_back((header, payload));
            moved = true;
            if stream.offset == stream.length
                && let Some(done) = peer.streams.pop_front()
                && done.operation != 0
            {
                self.finished.push(done.operation);
            }
        }
        moved
    }

    /// Begins to open a channel, if the map says where and the last attempt is long enough ago.
    fn open(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        let Outbound::Unknown { retry, failures } = peer.outbound else { return };
        if retry.is_some_and(|retry| Instant::now() < retry) {
            return;
        }
        let Some(entry) = peer.entry.as_ref().filter(|entry| entry.open) else { return };
        peer.generation = entry.generation;
        let medium = self.medium(rank);
        let port = if medium == Medium::Ofi { self.port() } else { None };
        self.openings += 1;
        let (Some(identity), Some(peer)) = (&self.identity, self.peers.get_mut(rank as usize)) else { return };
        let Some(address) = peer.entry.as_ref().and_then(|entry| entry.address.as_ref()) else { return };
        let (generation, number) = (self.generation, self.openings);
        let hello = Hello { job: identity.job, from: identity.rank, to: rank, generation, number, medium, readable: false };
        let started = Opening::start(address, hello, identity.encrypted, port).and_then(|opening| {
            if let Some(watch) = &self.watch {
                watch.add(opening.socket(), Token::Outbound(rank), Interest::Edge)?;
            }
            Ok(opening)
        });
        peer.outbound = match started {
            Ok(opening) => Outbound::Opening(Box::new(opening)),
            Err(_) => later(failures),
        };
    }

    /// Goes on with an opening.
    fn advance(&mut self, rank: Rank) -> bool {
        let (Some(identity), Some(watch), Some(peer)) = (&self.identity, &self.watch, self.peers.get_mut(rank as usize)) else {
            return false;
        };
        let Outbound::Opening(opening) = std::mem::replace(&mut peer.outbound, Outbound::UNKNOWN) else { return false };
        let (outbound, moved) = match opening.advance(&identity.secret, watch.wakeup()) {
            Ok(Step::Open(channel)) => {
                peer.used = false;
                (Outbound::Open(channel), true)
            }
            Ok(Step::Waiting(opening)) if opening.since.elapsed() <= OPENING_TIME => (Outbound::Opening(opening), false),
            Ok(Step::Waiting(_)) => (later(0), false),
            Err(ChannelError::Refused) => {
                peer.refused = Some(peer.generation);
                (Outbound::UNKNOWN, true)
            }
            Err(ChannelError::Provider(what)) => {
                report::fault(Some(identity.rank), format_args!("no ofi channel to rank {rank}: {what}; another is used"));
                // As in `lose`: asked again, it would say the same, and the pair would have no channel.
                peer.refused = Some(peer.generation);
                (Outbound::UNKNOWN, true)
            }
            Err(ChannelError::Protocol(what)) => {
                report::fault(Some(identity.rank), format_args!("no channel to rank {rank}: {what}"));
                (later(8), false)
            }
            Err(_) => (later(3), false),
        };
        peer.outbound = outbound;
        moved
    }

    /// The socket of an outbound channel has news: an acknowledgement, room, or the end.
    pub(super) fn outbound_event(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        if matches!(peer.outbound, Outbound::Opening(_)) {
            return !peer.held && !self.suspended && self.advance(rank) && self.serve_peer(rank, true);
        }
        let mut moved = false;
        // A peer may acknowledge and be gone: both are heard, in this order, and the socket does not say so again.
        while let Some(channel) = peer.outbound.channel() {
            match channel.acknowledged() {
                Ok(None) => break,
                Ok(Some(number)) => {
                    if let Outbound::Draining { marker, sent: true, .. } = &peer.outbound
                        && *marker == number
                        && let Outbound::Draining { channel, .. } = std::mem::replace(&mut peer.outbound, Outbound::UNKNOWN)
                    {
                        peer.outbound = if channel.keeps() { Outbound::Suspended(channel) } else { Outbound::UNKNOWN };
                        peer.used = false;
                        // The peer has all that came before the marker. Told now: a new channel may come late, or never.
                        peer.end_sent(&mut self.finished);
                    }
                }
                Err(error) => {
                    self.lose(rank, &error);
                    return true;
                }
            }
            moved = true;
        }
        moved
    }

    /// A channel broke. What waits stays, and what it has not begun to send; what was under way may be lost, so only a newer generation of
    /// the peer gets a new channel then.
    pub(super) fn lose(&mut self, rank: Rank, error: &ChannelError) {
        let me = self.rank();
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        let back = peer.outbound.channel().and_then(|channel| channel.take_back());
        if let ChannelError::Closed = error {
            if back.is_none() && peer.pending() {
                report::fault(me, format_args!("rank {rank} is gone; messages for it wait until it is back"));
            }
        } else {
            report::fault(me, format_args!("the channel to rank {rank} broke: {error}"));
        }
        let lost = std::mem::take(&mut peer.used) && back.is_none();
        let refused = back.is_some() || matches!(error, ChannelError::Provider(_));
        for packet in back.into_iter().flatten().rev().filter(|packet| packet.header.kind != Kind::Marker as u8) {
            peer.queued += packet.payload.len() + HEADER;
            peer.queue.push_front(packet);
        }
        peer.outbound = if lost { Outbound::Lost { generation: peer.generation } } else { later(3) };
        if refused {
            // What the provider, or the peer's, cannot do now it will not be asked for again.
            peer.refused = Some(peer.generation);
        }
        if lost {
            self.note_loss(rank, error);
        } else {
            self.list(rank);
        }
    }
}

fn later(failures: u32) -> Outbound {
    let pause = MAX_BACKOFF.min(Duration::from_millis(2) * (1 << failures.min(8)));
    Outbound::Unknown { retry: Some(Instant::now() + pause), failures: failures + 1 }
}

/// Header and size of the next packet of a stream.
fn next_packet(stream: &Stream, chunk: usize) -> (Header, usize) {
    let size = chunk.min(stream.length - stream.offset);
    let mut header = stream.header;
    header.payload = size as u32;
    header.address = stream.base + stream.offset as u64;
    if stream.offset + size == stream.length {
        header.flags |= flag::LAST;
    }
    (header, size)
}

/// Sends packets of a stream until the channel is full or its turn is over; returns the bytes. The channel may still
/// refer to the last of them.
fn send_stream(channel: &mut dyn Outgoing, stream: &mut Stream) -> Result<usize, ChannelError> {
    let mut total = 0;
    while stream.offset < stream.length && total < TURN_BYTES && !channel.unsent() {
        let (header, size) = next_packet(stream, channel.chunk());
        let taken = match &stream.buffers {
            Buffers::One(whole) => channel.lend(&header, &[Segment { base: whole.base.wrapping_add(stream.offset), len: size }])?,
            many => channel.lend(&header, many.slice(stream.offset, size).segments())?,
        };
        if !taken {
            break;
        }
        stream.offset += size;
        total += size;
    }
    channel.lent();
    Ok(total)
}
