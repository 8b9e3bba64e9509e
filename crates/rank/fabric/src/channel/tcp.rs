//! Channels between nodes: a nonblocking TCP connection, `TCP_NODELAY`, congestion control cubic where it can be had.
//!
//! What costs here is system calls and copies, so there are few of either:
//!
//! - Sending: a packet leaves in one call, straight from the application's memory. Of a long transfer the socket may take
//!   a part; the rest stays *lent*, not copied, until it is taken. Packets of a burst are *deferred*: they gather in
//!   this process and leave in one call, with the `flush` that every round of progress does.
//! - Receiving: one call reads what is there into a small stage, out of which packets are delivered. A packet that is
//!   longer than what came so far is received where it belongs (see [`Sink::place`]); the stage takes what follows it.
//!
//! - Acknowledging: Linux answers every second small segment with an empty one, and if they are less than
//!   536 bytes together it does so inside the receiver's `recv`, before the message is seen (a microsecond and a half).
//!   More than that it acknowledges on arrival, beside the receiver. So packets that leave alone are padded to
//!   [`MIN_LONE_BYTES`] bytes.
//!
//! Memory: per channel that received lately one stage of [`STAGE_BYTES`] bytes, per channel that is in the middle of a message
//! nobody waits for that message (at most [`MAX_STREAMED`]), per channel with a burst or a torn packet the bytes of
//! these (at most [`MAX_BURST_BYTES`] or [`MAX_STREAMED`]). A channel at rest has none of it.
//!
//! Peers are not trusted: lengths are checked before anything depends on them.
//!
//! In a job that encrypts its bulk data, [`encrypted`] takes the place of the sockets' calls: the sending end ([`outgoing`]) writes through
//! it, the receiving end reads from there.

pub mod encrypted;
pub mod outgoing;

use super::{ChannelError, Deliver, Incoming, write_ack};
use crate::engine::buffers::{Payload, Segment};
use crate::engine::packet::{HEADER, Header, Kind, MAX_PAYLOAD, MAX_STREAMED, flag};
use mend_kernel::table::Placed;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvFlags};

/// Bytes read at a time while no packet is under way.
const STAGE_BYTES: usize = 8 * 1024;
/// Part of the stage for what follows a packet that is received in place: the next header and a small packet or two.
const STAGE_TAIL_BYTES: usize = 1024;
/// Most bytes of a burst that wait for each other.
const MAX_BURST_BYTES: usize = 16 * 1024;
/// Packets up to this size are copied into one piece to be sent, which is cheaper than a list of two.
const MAX_COPIED_BYTES: usize = 512;

/// Least size of a packet that leaves alone: two are more than the 536 bytes of the module's head.
pub const MIN_LONE_BYTES: usize = 272;
/// Payload of a packet of a long transfer.
const CHUNK_BYTES: usize = 256 * 1024;
const _: () = assert!(MIN_LONE_BYTES <= HEADER + MAX_COPIED_BYTES && MIN_LONE_BYTES <= STAGE_BYTES && CHUNK_BYTES <= MAX_STREAMED);

/// Settings of both ends, before or after connecting. The congestion control of a machine may be tuned for wide-area
/// links; cubic is better between nodes and is allowed to everybody where it is loaded at all.
pub fn tune(socket: BorrowedFd<'_>) -> Result<(), ChannelError> {
    rustix::net::sockopt::set_tcp_nodelay(socket, true)?;
    let _ = rustix::net::sockopt::set_tcp_congestion(socket, "cubic");
    Ok(())
}

fn gone(error: Errno) -> ChannelError {
    match error {
        Errno::PIPE | Errno::CONNRESET => ChannelError::Closed,
        other => other.into(),
    }
}

/// A packet whose payload has come in part.
#[derive(Debug)]
enum PartialPacket {
    /// Data or a write, which may be delivered in parts: the header of what is still to come.
    Pieces(Header),
    /// Anything else: it is put together here.
    Whole { header: Header, body: Vec<u8>, have: usize },
}

/// Where the bytes of a stream come from, and where its acknowledgements go.
pub trait Source: Send {
    /// Fills `target` and then the beginning of `rest` with what is there. The bytes, 0 for the end, `None` for nothing.
    ///
    /// # Errors
    /// The stream is broken.
    fn read(&mut self, target: &mut [u8], rest: &mut [u8]) -> Result<Option<usize>, ChannelError>;
    /// True if something may be here that the socket does not announce.
    fn holds(&self) -> bool;
    /// True if it has bytes that it cannot give yet.
    fn torn(&self) -> bool;
    /// Nothing is expected soon: gives up buffers that are empty.
    fn relax(&mut self);
    /// Sends an acknowledgement.
    ///
    /// # Errors
    /// The stream is broken.
    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError>;
    /// The socket.
    fn socket(&self) -> &Placed;
    /// The socket alone.
    fn into_socket(self) -> Placed;
}

impl Source for Placed {
    #[inline]
    fn read(&mut self, target: &mut [u8], rest: &mut [u8]) -> Result<Option<usize>, ChannelError> {
        if target.is_empty() {
            return receive(|| rustix::net::recv(&*self, &mut *rest, RecvFlags::DONTWAIT).map(|(read, _)| read));
        }
        let mut parts = [IoSliceMut::new(target), IoSliceMut::new(rest)];
        receive(|| {
            let got = rustix::net::recvmsg(&*self, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?;
            Ok(got.bytes)
        })
    }

    fn holds(&self) -> bool {
        false
    }

    fn torn(&self) -> bool {
        false
    }

    fn relax(&mut self) {}

    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        write_ack(self.as_fd(), marker)
    }

    fn socket(&self) -> &Placed {
        self
    }

    fn into_socket(self) -> Placed {
        self
    }
}

/// Receiving end.
#[derive(Debug)]
pub struct TcpIncoming<S = Placed> {
    source: S,
    /// Bytes that were read and not delivered are `stage[start..end]`. Empty while the channel rests.
    stage: Vec<u8>,
    start: usize,
    end: usize,
    part: Option<PartialPacket>,
    ended: bool,
}

/// The header of the next `size` bytes of a packet, and of the rest.
fn cut(header: &mut Header, size: usize) -> Header {
    let mut piece = *header;
    piece.payload = size as u32;
    header.payload -= size as u32;
    header.address = header.address.wrapping_add(size as u64);
    if header.payload > 0 {
        piece.flags &= !flag::LAST;
    }
    piece
}

impl<S: Source> TcpIncoming<S> {
    /// A channel that was admitted.
    pub fn new(source: S) -> Self {
        Self { source, stage: Vec::new(), start: 0, end: 0, part: None, ended: false }
    }

    /// The header in the stage, if it is there, with a length that a peer may say.
    fn header(&self) -> Result<Option<Header>, ChannelError> {
        let Some(bytes) = self.stage[self.start..self.end].first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::from_bytes(bytes);
        let length = header.payload as usize;
        let limit = if in_parts(&header) || header.kind == Kind::Eager as u8 { MAX_STREAMED } else { MAX_PAYLOAD };
        if length > limit || header.padding > 0 && HEADER + length + usize::from(header.padding) > MIN_LONE_BYTES {
            return Err(ChannelError::Protocol("impossible length in a stream".into()));
        }
        Ok(Some(header))
    }

    /// Delivers from the stage: a packet, or a part of the one under way. `None`: the socket must be read. Else the bytes
    /// that left the stage.
    fn deliver(&mut self, sink: Deliver<'_>) -> Result<Option<usize>, ChannelError> {
        let have = self.end - self.start;
        let Some(part) = &mut self.part else {
            let Some(mut header) = self.header()? else { return Ok(None) };
            let (body, length, padding) = (self.start + HEADER, header.payload as usize, usize::from(header.padding));
            if have >= HEADER + length + padding {
                self.start = body + length + padding;
                sink.packet(&header, Payload::one(&self.stage[body..body + length]))?;
                return Ok(Some(HEADER + length + padding));
            }
            if padding > 0 {
                return Ok(None);
            }
            self.start = body;
            self.part = Some(if sink.place(&mut header).is_some() || in_parts(&header) {
                PartialPacket::Pieces(header)
            } else {
                PartialPacket::Whole { header, body: vec![0; length], have: 0 }
            });
            return Ok(Some(HEADER));
        };
        if have == 0 {
            return Ok(None);
        }
        match part {
            PartialPacket::Pieces(header) => {
                let size = have.min(header.payload as usize);
                let piece = cut(header, size);
                if header.payload == 0 {
                    self.part = None;
                }
                self.start += size;
                sink.packet(&piece, Payload::one(&self.stage[self.start - size..self.start]))?;
                Ok(Some(size))
            }
            PartialPacket::Whole { body, have: got, .. } => {
                let size = have.min(body.len() - *got);
                body[*got..*got + size].copy_from_slice(&self.stage[self.start..self.start + size]);
                *got += size;
                self.start += size;
                self.complete(sink)?;
                Ok(Some(size))
            }
        }
    }

    /// Delivers the packet that was put together, if it is complete.
    fn complete(&mut self, sink: Deliver<'_>) -> Result<(), ChannelError> {
        if let Some(PartialPacket::Whole { body, have, .. }) = &self.part
            && *have == body.len()
            && let Some(PartialPacket::Whole { header, body, .. }) = self.part.take()
        {
            sink.packet(&header, Payload::one(&body))?;
        }
        Ok(())
    }

    /// Reads once: the rest of the packet under way to where it belongs, what follows into the stage, of which nothing can
    /// be delivered now. Returns the bytes, and whether the socket may have more.
    fn read(&mut self, sink: Deliver<'_>) -> Result<(usize, bool), ChannelError> {
        if self.stage.is_empty() {
            self.stage.resize(STAGE_BYTES, 0);
        }
        self.stage.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let (target, header) = match &mut self.part {
            None => (Segment::EMPTY, None),
            Some(PartialPacket::Whole { body, have, .. }) => (Segment { base: body[*have..].as_mut_ptr(), len: body.len() - *have }, None),
            Some(PartialPacket::Pieces(header)) => (sink.place(header).unwrap_or(Segment::EMPTY), Some(header)),
        };
        let room = &mut self.stage[self.end..];
        let asked;
        let outcome = if target.len == 0 {
            asked = room.len();
            self.source.read(&mut [], room)
        } else {
            let tail = room.len().min(STAGE_TAIL_BYTES);
            asked = target.len + tail;
            // SAFETY: memory of `body`, or lent by the application and valid until the next call of the sink; nobody else
            // in this process touches it meanwhile.
            let target = unsafe { std::slice::from_raw_parts_mut(target.base, target.len) };
            self.source.read(target, &mut room[..tail])
        };
        let Some(read) = outcome? else { return Ok((0, false)) };
        if read == 0 {
            self.ended = true;
            return Ok((0, false));
        }
        let placed = read.min(target.len);
        self.end += read - placed;
        if let Some(header) = header {
            if placed > 0 {
                let piece = cut(header, placed);
                if header.payload == 0 {
                    self.part = None;
                }
                sink.packet(&piece, Payload { parts: [Segment { base: target.base, len: placed }, Segment::EMPTY] })?;
            }
        } else if let Some(PartialPacket::Whole { have, .. }) = &mut self.part {
            *have += placed;
            self.complete(sink)?;
        }
        Ok((read, read == asked))
    }
}

/// True for packets that may be delivered in parts.
fn in_parts(header: &Header) -> bool {
    header.kind == Kind::Data as u8 || header.kind == Kind::Write as u8
}

/// Reads; `None` for nothing there, 0 for the end.
fn receive(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<Option<usize>, ChannelError> {
    loop {
        match call() {
            Ok(read) => return Ok(Some(read)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNRESET) => return Ok(Some(0)),
            Err(error) => return Err(error.into()),
        }
    }
}

impl<S: Source> Incoming for TcpIncoming<S> {
    fn receive(&mut self, budget: usize, sink: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut parts, mut bytes, mut more) = (0, 0, true);
        while bytes < budget {
            if let Some(taken) = self.deliver(sink)? {
                bytes += taken;
                parts += 1;
            } else if self.ended {
                return if self.start == self.end && self.part.is_none() {
                    Err(ChannelError::Closed)
                } else {
                    Err(ChannelError::Protocol("the stream ends inside a packet".into()))
                };
            } else if more {
                let read;
                (read, more) = self.read(sink)?;
                if read > 0 {
                    parts += 1;
                    bytes += read;
                }
            } else {
                break;
            }
        }
        Ok(parts)
    }

    fn event(&mut self) -> Result<(), ChannelError> {
        Ok(())
    }

    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        self.source.acknowledge(marker)
    }

    fn polled(&self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        let staged = match (&self.part, self.header()) {
            (Some(_), _) => self.end > self.start,
            (None, Ok(Some(header))) => self.end - self.start >= HEADER + header.payload as usize + usize::from(header.padding),
            (None, Ok(None)) => false,
            (None, Err(_)) => true,
        };
        staged || self.source.holds()
    }

    fn disarm(&mut self) {}

    fn relax(&mut self) {
        if self.start == self.end {
            (self.stage, self.start, self.end) = (Vec::new(), 0, 0);
        }
        self.source.relax();
    }

    fn sender_ended(&mut self) -> bool {
        self.part.is_some() || self.start < self.end || self.source.torn()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.source.socket().as_fd()
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.source.socket().as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        None
    }

    fn forget(self: Box<Self>) {
        self.source.into_socket().forget();
    }
}

#[cfg(test)]
mod tests;
