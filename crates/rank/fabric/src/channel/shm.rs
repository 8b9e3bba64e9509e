//! Channels between ranks of one node: a ring in shared memory, wakeup sockets, and for long messages
//! the sender's memory. One-sided operations go to the receiver's memory ([`super::direct`]).
//!
//! A receiver that can name the sender's process, as the two are in one PID namespace and the kernel allows it, reads with
//! `process_vm_readv`. Others are given a descriptor of the sender's `/proc/self/mem`, which only its owner could open and
//! which the kernel copies twice. Either is for reading only, the keyed handshake comes first, and what a sender offers is
//! a place in its own memory, so a false offer shows the receiver nothing else. Where there is no such descriptor (a program
//! made itself undumpable, no `/proc`), long messages go through the ring.
//!
//! A packet that is longer than a record (it was made for another channel, and its receiver has moved here since) goes as
//! parts: records of a kind of their own, which carry the bytes of header and payload. Nothing comes between them.

use super::direct::{Target, word};
use super::memory::{self, Memory};
use super::pace::Pace;
use super::ring::{MAX_RECORD, Reader, Ring, Writer};
use super::{AckReader, ChannelError, Deliver, Direct, Incoming, NotPulled, Outgoing, Pulled, Puller, write_ack};
use crate::counter::cycles;
use crate::engine::buffers::{Payload, Segment, gather};
use crate::engine::packet::{HEADER, Header, Kind, MAX_STREAMED, flag};
use crate::engine::pull::{Offer, Piece};
use crate::engine::{EAGER_LIMIT, Grant, Reached, RegionAccess};
use crate::watch::wake_at;
use mend_kernel::table::Placed;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::cell::Cell;

/// Payload of a packet of a long transfer: small enough that sender and receiver copy at the same time, large enough
/// that the header costs nothing. It goes with the ring's capacity.
const CHUNK: usize = 9 * 1024;
const _: () = assert!((CHUNK + 64) * 3 <= super::ring::CAPACITY && CHUNK <= MAX_RECORD);

/// Kind of a record that carries a part of a packet; no packet is of this kind.
const PART: u8 = 0;
/// Kind of the offers: addresses of the sender's memory.
const OFFER: u32 = 1;
/// Longest message that goes through the ring at once if the receiver could read it fast: above, two more packets cost less
/// than the second copy.
const MAX_RING_BYTES: usize = 8 * 1024;
const _: () = assert!(MAX_RING_BYTES <= EAGER_LIMIT && EAGER_LIMIT <= MAX_STREAMED);

/// Sending end.
#[derive(Debug)]
pub struct ShmOutgoing {
    writer: Writer,
    socket: Placed,
    wakeup: Placed,
    acks: AckReader,
    /// The receiver has this process's memory.
    readable: bool,
    /// Longest message that goes through the ring at once, bytes.
    eager: usize,
    /// A packet that goes in parts; the first `sent` bytes of it have gone.
    rest: Vec<u8>,
    sent: usize,
    /// Something was lent since the last look at whether the receiver sleeps.
    unheard: bool,
    /// The receiver's memory.
    target: Target,
}

impl ShmOutgoing {
    /// A channel whose peer has accepted; `wakeup` is the peer's wakeup socket; `readable` if it was given our memory.
    pub fn new(ring: Ring, socket: Placed, wakeup: Placed, readable: bool) -> Self {
        let target = Target::new(socket.as_fd());
        let eager = if readable && !memory::prospect_by(target.is_named()).slow { MAX_RING_BYTES } else { EAGER_LIMIT };
        Self {
            writer: Writer::new(ring),
            target,
            socket,
            wakeup,
            acks: AckReader::default(),
            readable,
            eager,
            rest: Vec::new(),
            sent: 0,
            unheard: false,
        }
    }

    fn write(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let written = self.writer.write(header, payload)?;
        if written && self.writer.reader_asleep() {
            wake_at(self.wakeup.as_fd());
        }
        Ok(written)
    }
}

impl Outgoing for ShmOutgoing {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if self.unsent() && !self.flush()? {
            return Ok(false);
        }
        if header.payload as usize <= MAX_RECORD {
            return self.write(header, payload);
        }
        self.rest.extend_from_slice(header.as_bytes());
        self.rest.extend_from_slice(&gather(payload));
        self.flush()?;
        Ok(true)
    }

    /// The fence before the look at a sleeping receiver waits until the record's lines have moved. After each of many it would
    /// take half as long as copying them.
    fn lend(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if self.unsent() || header.payload as usize > MAX_RECORD {
            return self.send(header, payload);
        }
        let written = self.writer.write(header, payload)?;
        self.unheard |= written;
        Ok(written)
    }

    fn lent(&mut self) {
        if std::mem::take(&mut self.unheard) && self.writer.reader_asleep() {
            wake_at(self.wakeup.as_fd());
        }
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        while self.sent < self.rest.len() {
            let part = CHUNK.min(self.rest.len() - self.sent);
            let mut header = Header::new(Kind::Data);
            (header.kind, header.payload) = (PART, part as u32);
            let bytes = Segment { base: self.rest[self.sent..].as_mut_ptr(), len: part };
            if !self.write(&header, &[bytes])? {
                return Ok(false);
            }
            self.sent += part;
        }
        (self.rest, self.sent) = (Vec::new(), 0);
        Ok(true)
    }

    fn unsent(&self) -> bool {
        !self.rest.is_empty()
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn eager_limit(&self) -> usize {
        self.eager
    }

    fn offer(&mut self, message: &[Segment]) -> Option<Offer> {
        let piece = |segment: &Segment| Piece { address: segment.base as u64, length: segment.len as u64, key: 0 };
        let pieces = || message.iter().filter(|segment| segment.len > 0).map(piece).collect();
        self.readable.then(|| Offer { kind: OFFER, ticket: 0, pieces: pieces() })
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        Some(self)
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        self.acks.read(self.socket.as_fd())
    }

    fn taken(&mut self) -> u64 {
        self.writer.taken()
    }

    fn arm(&mut self) -> bool {
        self.writer.wait_for_room()
    }

    fn wake(&mut self) {
        wake_at(self.wakeup.as_fd());
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn full_by_socket(&self) -> bool {
        false
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
        f(self.wakeup.as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        Some(self.writer.ring().mapping())
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self.writer.into_ring());
        self.socket.forget();
        self.wakeup.forget();
    }
}

impl Direct for ShmOutgoing {
    fn ask(&mut self, key: u64) -> bool {
        self.target.ask(key, self.writer.grants())
    }

    fn grant(&mut self, key: u64, grant: Grant) {
        self.target.grant(key, grant, self.writer.grants());
    }

    fn granted(&self, key: u64) -> bool {
        self.target.granted(key)
    }

    fn access(&mut self, wanted: &RegionAccess, local: &[Segment]) -> Reached {
        let writer = &self.writer;
        // SAFETY: by the links' promise.
        unsafe { self.target.access(wanted, local, || writer.grants()) }
    }
}

/// Receiving end.
#[derive(Debug)]
pub struct ShmIncoming {
    reader: Reader,
    socket: Placed,
    wakeup: Placed,
    /// The sender's memory.
    memory: Option<Memory>,
    /// A packet that comes in parts.
    partial: Vec<u8>,
    ended: bool,
    /// A look since the last record found nothing.
    waited: Cell<bool>,
    pace: Pace,
}

impl ShmIncoming {
    /// A channel that was admitted; `wakeup` is the sender's wakeup socket, `memory` its memory, if it was given.
    pub fn new(ring: Ring, socket: Placed, wakeup: Placed, memory: Option<Placed>) -> Self {
        Self {
            reader: Reader::new(ring),
            memory: memory.map(|file| Memory::new(file, &socket)),
            socket,
            wakeup,
            partial: Vec::new(),
            ended: false,
            waited: Cell::new(true),
            pace: Pace::default(),
        }
    }

    /// A part of a packet; the last one delivers it.
    fn part(&mut self, payload: Payload, deliver: Deliver<'_>) -> Result<(), ChannelError> {
        let impossible = || Err(ChannelError::Protocol("impossible parts in a ring".into()));
        self.partial.extend_from_slice(&payload.to_vec());
        let Some(bytes) = self.partial.first_chunk::<HEADER>() else { return impossible() };
        let header = Header::from_bytes(bytes);
        let length = header.payload as usize;
        if length > MAX_STREAMED || header.kind == PART || self.partial.len() > HEADER + length {
            return impossible();
        }
        if self.partial.len() == HEADER + length {
            let packet = std::mem::take(&mut self.partial);
            deliver.packet(&header, Payload::one(&packet[HEADER..]))?;
        }
        Ok(())
    }
}

impl Puller for ShmIncoming {
    fn kind(&self) -> u32 {
        OFFER
    }

    fn chunk(&self) -> usize {
        self.memory.as_ref().map_or(memory::READ, Memory::at_once)
    }

    fn declines(&mut self, token: u64, length: usize) -> bool {
        self.pace.rings(token, length, memory::prospect(self.memory.as_ref()), cycles())
    }

    fn read(&mut self, token: u64, remote: Piece, local: Segment) -> Result<Pulled, NotPulled> {
        let memory = self.memory.as_mut().ok_or(NotPulled)?;
        let began = cycles();
        // SAFETY: the target is memory lent for the receiving operation.
        unsafe { memory.read(remote.address, local.base, local.len) }.map_err(|_| NotPulled)?;
        self.pace.read(token, local.len, cycles().wrapping_sub(began));
        Ok(Pulled::Done)
    }
}

impl Incoming for ShmIncoming {
    #[inline]
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut packets, mut bytes) = (0, 0);
        while bytes < budget {
            let Some((header, payload)) = self.reader.peek()? else { break };
            let delivered = if header.kind == PART {
                self.part(payload, deliver)
            } else if !self.partial.is_empty() {
                Err(ChannelError::Protocol("a packet between the parts of another".into()))
            } else {
                deliver.packet(&header, payload)
            };
            if header.kind == Kind::Data as u8 {
                self.pace.came(header.id, payload.len(), header.has(flag::LAST), cycles);
            }
            self.reader.advance();
            delivered?;
            packets += 1;
            bytes += payload.len() + 64;
            // What was waited for seldom comes with more, and the sender has the line in which that would begin: to look there
            // takes as long as a message. If there is more, the next call finds it, and looks for the rest as well.
            if self.waited.take() {
                break;
            }
        }
        if packets > 0 {
            if self.reader.writer_waits() {
                wake_at(self.wakeup.as_fd());
            }
        } else if self.ended {
            return Err(ChannelError::Closed);
        }
        Ok(packets)
    }

    #[inline]
    fn quiet(&self) -> bool {
        let empty = self.reader.is_empty();
        if empty {
            self.waited.set(true);
        }
        empty && !self.ended
    }

    fn event(&mut self) -> Result<(), ChannelError> {
        // The sender says nothing after its HELLO: readable means that it is gone. What is in the ring stays.
        let mut byte = [0u8; 1];
        match rustix::net::recv(&self.socket, &mut byte, rustix::net::RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => self.ended = true,
            Ok(_) => return Err(ChannelError::Protocol("unexpected bytes on the socket".into())),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        write_ack(self.socket.as_fd(), marker)?;
        wake_at(self.wakeup.as_fd());
        Ok(())
    }

    fn puller(&mut self) -> Option<&mut dyn Puller> {
        if self.memory.is_some() { Some(self) } else { None }
    }

    fn shows(&self) -> bool {
        true
    }

    fn show(&self, version: u64, barred: bool) {
        self.reader.show_grants(word(version, barred));
    }

    fn polled(&self) -> bool {
        true
    }

    fn arm(&mut self) -> bool {
        self.reader.sleep() || self.ended
    }

    fn disarm(&mut self) {
        self.reader.awake();
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
        f(self.wakeup.as_raw_fd());
        if let Some(memory) = &self.memory {
            f(memory.descriptor());
        }
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        Some(self.reader.ring().mapping())
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self.reader.into_ring());
        self.socket.forget();
        self.wakeup.forget();
        if let Some(memory) = self.memory {
            memory.forget();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel::Sink;
    use crate::watch::wakeup_pair;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (ShmOutgoing, ShmIncoming) {
        let (ring, file) = Ring::create().unwrap();
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let wakeup = || wakeup_pair().unwrap().0;
        let (one, other) = (Placed::from(one), Placed::from(other));
        (ShmOutgoing::new(ring, one, wakeup(), false), ShmIncoming::new(Ring::open(&file).unwrap(), other, wakeup(), None))
    }

    fn eager(tag: u64, length: usize) -> (Header, Vec<u8>) {
        let mut header = Header::new(Kind::Eager);
        (header.tag, header.payload, header.length) = (tag, length as u32, length as u64);
        (header, (0..length).map(|at| (at / 7 + tag as usize) as u8).collect())
    }

    /// What was made for a socket and waits when its receiver moves to this node still arrives whole and in its turn.
    #[test]
    fn a_packet_longer_than_the_ring_arrives_between_others() {
        let (mut out, mut incoming) = pair();
        let lengths = [10, MAX_STREAMED, 0, MAX_RECORD + 1, MAX_RECORD, 100_000];
        let packets: Vec<_> = lengths.iter().enumerate().map(|(tag, length)| eager(tag as u64, *length)).collect();
        let (mut sent, mut got) = (0, Vec::new());
        while got.len() < packets.len() {
            if sent < packets.len() && out.send(&packets[sent].0, &[Segment::of(&packets[sent].1)]).unwrap() {
                sent += 1;
            } else {
                out.flush().unwrap();
            }
            let mut sink = |header: &Header, payload: Payload| {
                got.push((*header, payload.to_vec()));
                Ok(())
            };
            incoming.receive(usize::MAX, &mut sink as &mut dyn Sink).unwrap();
        }
        assert!(got == packets && !out.unsent() && out.flush().unwrap());
    }

    #[test]
    fn parts_that_make_no_packet_are_refused() {
        let part = |length: usize| {
            let mut header = Header::new(Kind::Data);
            (header.kind, header.payload) = (PART, length as u32);
            header
        };
        let (whole, _) = eager(1, 2000);
        let (long, _) = eager(1, MAX_STREAMED + 1);
        let mut nested = whole;
        nested.kind = PART;
        let mut much = whole.as_bytes().to_vec();
        much.resize(HEADER + 2001, 1);
        for bytes in [&whole.as_bytes()[..HEADER - 1], long.as_bytes(), nested.as_bytes(), &much] {
            let (mut out, mut incoming) = pair();
            assert!(out.writer.write(&part(bytes.len()), &[Segment::of(bytes)]).unwrap());
            let mut sink = |_: &Header, _: Payload| -> Result<(), ChannelError> { panic!("delivered") };
            assert!(matches!(incoming.receive(1, &mut sink as &mut dyn Sink), Err(ChannelError::Protocol(_))));
        }
        let (mut out, mut incoming) = pair();
        assert!(out.writer.write(&part(HEADER), &[Segment::of(whole.as_bytes())]).unwrap());
        assert!(out.writer.write(&eager(2, 0).0, &[]).unwrap());
        let mut sink = |_: &Header, _: Payload| -> Result<(), ChannelError> { panic!("delivered") };
        assert_eq!(incoming.receive(usize::MAX, &mut sink as &mut dyn Sink).unwrap(), 1);
        assert!(matches!(incoming.receive(usize::MAX, &mut sink as &mut dyn Sink), Err(ChannelError::Protocol(_))));
    }

    /// What was waited for comes alone, the rest together.
    #[test]
    fn after_a_wait_one_packet_comes_alone() {
        let (mut out, mut incoming) = pair();
        let count = |incoming: &mut ShmIncoming| {
            let mut sink = |_: &Header, _: Payload| Ok(());
            incoming.receive(usize::MAX, &mut sink as &mut dyn Sink).unwrap()
        };
        assert!(incoming.quiet());
        for number in 0..4 {
            assert!(out.send(&eager(number, 0).0, &[]).unwrap());
        }
        assert!(!incoming.quiet());
        assert_eq!([count(&mut incoming), count(&mut incoming), count(&mut incoming)], [1, 3, 0]);
    }
}
