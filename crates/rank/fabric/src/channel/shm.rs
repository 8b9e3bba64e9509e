//! Channels between ranks of one node: a ring in shared memory, event descriptors as doorbells, and for long messages
//! the sender's memory.
//!
//! Each rank lives in a process namespace of its own, so one cannot name another to `process_vm_readv`. It can be
//! given a descriptor of the other's `/proc/self/mem`, though, which only its owner could open: the keyed handshake is
//! the permission. The descriptor is for reading; what a sender offers is a place in its own memory, so a false offer
//! shows the receiver nothing else. Where there is none (a program made itself undumpable, no `/proc`), long messages go
//! through the ring.

#[cfg(not(loom))]
use super::ring::CAPACITY;
use super::ring::{Reader, Ring, Writer};
use super::{AckReader, ChannelError, Deliver, Incoming, NotPulled, Outgoing, Pulled, Puller, write_ack};
use crate::engine::EAGER_LIMIT;
use crate::engine::buffers::Segment;
use crate::engine::packet::{Header, MAX_PAYLOAD};
use crate::engine::pull::{Offer, Piece};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

/// Payload of a packet of a long transfer: small enough that sender and receiver copy at the same time, large enough
/// that the header costs nothing. It goes with the ring's capacity.
const CHUNK: usize = 32 * 1024;
#[cfg(not(loom))]
const _: () = assert!(CHUNK * 4 <= CAPACITY);

/// Kind of the offers: addresses of the sender's memory.
const OFFER: u32 = 1;
/// Longest message that goes through the ring at once if the receiver could read it: above, two more packets cost less
/// than the second copy.
const SHORT: usize = 8 * 1024;
/// Bytes per read.
const READ: usize = 256 * 1024;
/// Length from which two processors that copy through the ring are faster than one that reads: beyond the second-level
/// cache.
const SHARE: usize = 2 * 1024 * 1024;
/// Bytes of a page.
const PAGE: usize = 4096;
const _: () = assert!(SHORT <= EAGER_LIMIT && EAGER_LIMIT <= MAX_PAYLOAD);

/// This process's memory, to read. `None`: the system does not allow it.
pub fn open_own_memory() -> Option<OwnedFd> {
    rustix::fs::open("/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn ring_bell(bell: &OwnedFd) {
    // It can only fail when the counter is at its maximum, and then the bell has rung.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Sending end.
#[derive(Debug)]
pub struct ShmOutgoing {
    writer: Writer,
    socket: OwnedFd,
    bell: OwnedFd,
    acks: AckReader,
    /// The receiver has this process's memory.
    readable: bool,
}

impl ShmOutgoing {
    /// A channel whose peer has accepted; `bell` is the peer's doorbell; `readable` if it was given our memory.
    pub fn new(ring: Ring, socket: OwnedFd, bell: OwnedFd, readable: bool) -> Self {
        Self { writer: Writer::new(ring), socket, bell, acks: AckReader::default(), readable }
    }
}

impl Outgoing for ShmOutgoing {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let written = self.writer.write(header, payload)?;
        if written && self.writer.reader_asleep() {
            ring_bell(&self.bell);
        }
        Ok(written)
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        Ok(true)
    }

    fn unsent(&self) -> bool {
        false
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn eager_limit(&self) -> usize {
        if self.readable { SHORT } else { EAGER_LIMIT }
    }

    fn offer(&mut self, message: &[Segment]) -> Option<Offer> {
        let piece = |segment: &Segment| Piece { address: segment.base as u64, length: segment.len as u64, key: 0 };
        let pieces = || message.iter().filter(|segment| segment.len > 0).map(piece).collect();
        self.readable.then(|| Offer { kind: OFFER, ticket: 0, pieces: pieces() })
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        self.acks.read(self.socket.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.writer.wait_for_room()
    }

    fn ring(&mut self) {
        ring_bell(&self.bell);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn full_by_socket(&self) -> bool {
        false
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
        f(self.bell.as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        Some(self.writer.ring().mapping())
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self.writer.into_ring());
        let _ = (self.socket.into_raw_fd(), self.bell.into_raw_fd());
    }
}

/// Receiving end.
#[derive(Debug)]
pub struct ShmIncoming {
    reader: Reader,
    socket: OwnedFd,
    bell: OwnedFd,
    /// The sender's memory.
    memory: Option<OwnedFd>,
    ended: bool,
}

impl ShmIncoming {
    /// A channel that was admitted; `bell` is the sender's doorbell, `memory` its memory, if it was given.
    pub fn new(ring: Ring, socket: OwnedFd, bell: OwnedFd, memory: Option<OwnedFd>) -> Self {
        Self { reader: Reader::new(ring), socket, bell, memory, ended: false }
    }
}

impl Puller for ShmIncoming {
    fn kind(&self) -> u32 {
        OFFER
    }

    fn chunk(&self) -> usize {
        READ
    }

    fn share(&self) -> usize {
        SHARE
    }

    fn read(&mut self, _token: u64, remote: Piece, local: Segment) -> Result<Pulled, NotPulled> {
        let memory = self.memory.as_ref().ok_or(NotPulled)?;
        let mut done = 0;
        while done < local.len {
            let place = i64::try_from(remote.address).ok().and_then(|start| start.checked_add(done as i64)).ok_or(NotPulled)?;
            // The kernel goes in steps of a page's length from where it starts: steps that lie across two pages of the
            // sender cost half as much again.
            let to_boundary = PAGE - place as usize % PAGE;
            let left = local.len - done;
            let part = if to_boundary < PAGE && left > PAGE { to_boundary } else { left };
            // SAFETY: the target is memory lent for the receiving operation; the kernel writes at most what is left of it.
            let read = unsafe { libc::pread(memory.as_raw_fd(), local.base.wrapping_add(done).cast(), part, place) };
            match read {
                1.. => done += read as usize,
                // 0: the sender has ended. Errors: its memory is not (any more) as it said.
                _ if read < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                _ => return Err(NotPulled),
            }
        }
        Ok(Pulled::Done)
    }
}

impl Incoming for ShmIncoming {
    #[inline]
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut packets, mut bytes) = (0, 0);
        while bytes < budget {
            let Some((header, payload)) = self.reader.peek()? else { break };
            let delivered = deliver.packet(&header, payload);
            self.reader.advance();
            delivered?;
            packets += 1;
            bytes += payload.len() + 64;
        }
        if packets > 0 {
            if self.reader.writer_waits() {
                ring_bell(&self.bell);
            }
        } else if self.ended {
            return Err(ChannelError::Closed);
        }
        Ok(packets)
    }

    #[inline]
    fn quiet(&self) -> bool {
        self.reader.is_empty() && !self.ended
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
        ring_bell(&self.bell);
        Ok(())
    }

    fn puller(&mut self) -> Option<&mut dyn Puller> {
        if self.memory.is_some() { Some(self) } else { None }
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
        f(self.bell.as_raw_fd());
        if let Some(memory) = &self.memory {
            f(memory.as_raw_fd());
        }
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        Some(self.reader.ring().mapping())
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self.reader.into_ring());
        let _ = (self.socket.into_raw_fd(), self.bell.into_raw_fd(), self.memory.map(IntoRawFd::into_raw_fd));
    }
}
