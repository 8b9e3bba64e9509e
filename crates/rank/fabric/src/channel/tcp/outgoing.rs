//! The sending end of a stream: what all of them have in common, and how packets are written in the clear.

use super::{CHUNK_BYTES, MAX_BURST_BYTES, MAX_COPIED_BYTES, MIN_LONE_BYTES, gone};
use crate::channel::{AckReader, ChannelError, Outgoing};
use crate::engine::buffers::{MAX_SEGMENTS, Segment};
use crate::engine::packet::{HEADER, Header, MAX_PAYLOAD, MAX_STREAMED};
use mend_kernel::table::Placed;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;

/// The bytes of a segment, to be sent.
pub(super) fn lent(segment: &Segment) -> &[u8] {
    if segment.len == 0 {
        return &[];
    }
    // SAFETY: the application lends the memory until the operation completes or `keep` returns it; it is only read.
    unsafe { std::slice::from_raw_parts(segment.base, segment.len) }
}

/// How packets become bytes of a stream, and acknowledgements are read from it.
pub trait PacketWriter: Send {
    /// See [`Outgoing::send`].
    ///
    /// # Errors
    /// The channel is broken.
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError>;
    /// See [`Outgoing::defer`].
    ///
    /// # Errors
    /// The channel is broken.
    fn defer(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError>;
    /// See [`Outgoing::lend`].
    ///
    /// # Errors
    /// The channel is broken.
    fn lend(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        self.send(header, payload)
    }
    /// See [`Outgoing::keep`].
    fn keep(&mut self) {}
    /// See [`Outgoing::flush`].
    ///
    /// # Errors
    /// The channel is broken.
    fn flush(&mut self) -> Result<bool, ChannelError>;
    /// See [`Outgoing::unsent`].
    fn unsent(&self) -> bool;
    /// See [`Outgoing::acknowledged`].
    ///
    /// # Errors
    /// The channel is broken.
    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError>;
    /// The socket that is written to.
    fn socket(&self) -> &Placed;
    /// Gives the socket back; what waited to be written is lost.
    fn into_socket(self) -> Placed;
}

/// The sending end of a channel over TCP.
#[derive(Debug)]
pub struct TcpOutgoing<W = PlainWriter>(pub(super) W);

/// Writes packets as they are.
#[derive(Debug)]
pub struct PlainWriter {
    socket: Placed,
    /// What was taken and has not been sent: first these bytes from `sent` on …
    pub(super) rest: Vec<u8>,
    sent: usize,
    /// … then these.
    pub(super) lent: VecDeque<Segment>,
    acks: AckReader,
}

/// Bytes that the socket took, `None` for none.
pub(super) fn write(socket: &Placed, parts: &[IoSlice<'_>]) -> Result<Option<usize>, ChannelError> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let outcome = match parts {
            [one] => rustix::net::send(socket, one, flags),
            many => rustix::net::sendmsg(socket, many, &mut SendAncillaryBuffer::default(), flags),
        };
        match outcome {
            Ok(sent) => return Ok(Some(sent)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(gone(error)),
        }
    }
}

/// Bytes that the peer's kernel has not confirmed; it confirms only as many as its process leaves room for.
fn unconfirmed(socket: &Placed) -> u64 {
    let mut waiting: libc::c_int = 0;
    // SAFETY: the ioctl writes one int.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
    waiting as u64
}

impl TcpOutgoing {
    /// A channel whose peer has accepted.
    pub fn new(socket: Placed) -> Self {
        Self(PlainWriter { socket, rest: Vec::new(), sent: 0, lent: VecDeque::new(), acks: AckReader::default() })
    }
}

impl<W> TcpOutgoing<W> {
    /// A channel whose peer has accepted, over this.
    pub fn over(writer: W) -> Self {
        Self(writer)
    }
}

impl PlainWriter {
    /// Sends a packet after what is left of others. What the socket does not take stays lent.
    fn transmit(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if !self.flush()? {
            return Ok(false);
        }
        let length: usize = payload.iter().map(|segment| segment.len).sum();
        if length <= MAX_COPIED_BYTES {
            let mut packet = [0; HEADER + MAX_COPIED_BYTES];
            let mut end = HEADER;
            for segment in payload {
                packet[end..end + segment.len].copy_from_slice(lent(segment));
                end += segment.len;
            }
            let mut header = *header;
            header.padding = MIN_LONE_BYTES.saturating_sub(end) as u16;
            packet[..HEADER].copy_from_slice(header.as_bytes());
            let packet = &packet[..end.max(MIN_LONE_BYTES)];
            let Some(sent) = write(&self.socket, &[IoSlice::new(packet)])? else { return Ok(false) };
            self.rest.extend_from_slice(&packet[sent..]);
            return Ok(true);
        }
        let mut parts = [IoSlice::new(&[]); MAX_SEGMENTS + 1];
        parts[0] = IoSlice::new(header.as_bytes());
        for (part, segment) in parts[1..].iter_mut().zip(payload) {
            *part = IoSlice::new(lent(segment));
        }
        let Some(sent) = write(&self.socket, &parts[..=payload.len()])? else { return Ok(false) };
        if sent < HEADER + length {
            self.rest.extend_from_slice(&header.as_bytes()[sent.min(HEADER)..]);
            self.lent.extend(payload);
            self.skip(sent.saturating_sub(HEADER));
        }
        Ok(true)
    }

    /// Takes the first bytes off what is lent.
    fn skip(&mut self, mut count: usize) {
        while let Some(first) = self.lent.front_mut() {
            if count < first.len {
                // wrapping_add: stays inside the segment.
                *first = Segment { base: first.base.wrapping_add(count), len: first.len - count };
                return;
            }
            count -= first.len;
            self.lent.pop_front();
        }
    }
}

impl PacketWriter for PlainWriter {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let taken = self.transmit(header, payload)?;
        self.keep();
        Ok(taken)
    }

    fn defer(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let length: usize = payload.iter().map(|segment| segment.len).sum();
        let waiting = self.rest.len() - self.sent;
        if !self.lent.is_empty() || waiting + HEADER + length > MAX_BURST_BYTES {
            return self.send(header, payload);
        }
        self.rest.extend_from_slice(header.as_bytes());
        payload.iter().for_each(|segment| self.rest.extend_from_slice(lent(segment)));
        Ok(true)
    }

    fn lend(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        self.transmit(header, payload)
    }

    fn keep(&mut self) {
        for segment in self.lent.drain(..) {
            self.rest.extend_from_slice(lent(&segment));
        }
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        while self.unsent() {
            let own = &self.rest[self.sent..];
            let mut parts = [IoSlice::new(&[]); MAX_SEGMENTS + 1];
            let mut count = 0;
            for bytes in std::iter::once(own).chain(self.lent.iter().map(lent)).filter(|bytes| !bytes.is_empty()).take(MAX_SEGMENTS + 1) {
                parts[count] = IoSlice::new(bytes);
                count += 1;
            }
            let Some(sent) = write(&self.socket, &parts[..count])? else { return Ok(false) };
            let own = sent.min(own.len());
            self.sent += own;
            self.skip(sent - own);
        }
        self.sent = 0;
        if self.rest.capacity() > MAX_BURST_BYTES {
            self.rest = Vec::new();
        } else {
            self.rest.clear();
        }
        Ok(true)
    }

    fn unsent(&self) -> bool {
        self.sent < self.rest.len() || !self.lent.is_empty()
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        self.acks.read(self.socket.as_fd())
    }

    fn socket(&self) -> &Placed {
        &self.socket
    }

    fn into_socket(self) -> Placed {
        self.socket
    }
}

impl<W: PacketWriter> Outgoing for TcpOutgoing<W> {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        self.0.send(header, payload)
    }

    fn defer(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        self.0.defer(header, payload)
    }

    fn lend(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        self.0.lend(header, payload)
    }

    fn keep(&mut self) {
        self.0.keep();
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        self.0.flush()
    }

    fn unsent(&self) -> bool {
        self.0.unsent()
    }

    fn chunk(&self) -> usize {
        CHUNK_BYTES
    }

    fn lend_limit(&self) -> usize {
        MAX_STREAMED
    }

    fn eager_limit(&self) -> usize {
        MAX_PAYLOAD
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        self.0.acknowledged()
    }

    fn taken(&mut self) -> u64 {
        unconfirmed(self.0.socket())
    }

    fn unconfirmed(&self) -> bool {
        unconfirmed(self.0.socket()) > 0
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn wake(&mut self) {}

    fn socket(&self) -> BorrowedFd<'_> {
        self.0.socket().as_fd()
    }

    fn full_by_socket(&self) -> bool {
        true
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.0.socket().as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        None
    }

    fn forget(self: Box<Self>) {
        self.0.into_socket().forget();
    }
}
