//! Channels between ranks of one node: a ring in shared memory, event descriptors as doorbells.

#[cfg(not(loom))]
use super::ring::CAPACITY;
use super::ring::{Reader, Ring, Writer};
use super::{AckReader, ChannelError, Deliver, Incoming, Outgoing, write_ack};
use crate::engine::EAGER_LIMIT;
use crate::engine::buffers::Segment;
use crate::engine::packet::Header;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

/// Payload of a packet of a long transfer: small enough that sender and receiver copy at the same time, large enough
/// that the header costs nothing (8 and 32 KiB are slower, by up to 30 %).
const CHUNK: usize = 16 * 1024;
#[cfg(not(loom))]
const _: () = assert!(CHUNK * 8 <= CAPACITY);

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
}

impl ShmOutgoing {
    /// A channel whose peer has accepted; `bell` is the peer's doorbell.
    pub fn new(ring: Ring, socket: OwnedFd, bell: OwnedFd) -> Self {
        Self { writer: Writer::new(ring), socket, bell, acks: AckReader::default() }
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
        EAGER_LIMIT
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
    ended: bool,
}

impl ShmIncoming {
    /// A channel that was admitted; `bell` is the sender's doorbell.
    pub fn new(ring: Ring, socket: OwnedFd, bell: OwnedFd) -> Self {
        Self { reader: Reader::new(ring), socket, bell, ended: false }
    }
}

impl Incoming for ShmIncoming {
    #[inline]
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut packets, mut bytes) = (0, 0);
        while bytes < budget {
            let Some((header, payload)) = self.reader.peek()? else { break };
            let delivered = deliver(&header, payload);
            self.reader.advance(payload.len());
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
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        Some(self.reader.ring().mapping())
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self.reader.into_ring());
        let _ = (self.socket.into_raw_fd(), self.bell.into_raw_fd());
    }
}
