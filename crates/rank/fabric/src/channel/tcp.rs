//! Channels between nodes: a nonblocking TCP connection, `TCP_NODELAY`, congestion control cubic where it can be had.

use super::{AckReader, ChannelError, Deliver, Incoming, Outgoing, write_ack};
use crate::engine::buffers::{Payload, Segment, gather};
use crate::engine::packet::{HEADER, Header, MAX_PAYLOAD};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// Receive buffer: several long packets per system call.
const BUFFER: usize = 2 * (MAX_PAYLOAD + HEADER);

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

/// Sending end.
#[derive(Debug)]
pub struct TcpOutgoing {
    socket: OwnedFd,
    /// Rest of a packet that the socket took only in part; nothing else is sent before it.
    rest: Vec<u8>,
    sent: usize,
    acks: AckReader,
}

impl TcpOutgoing {
    /// A channel whose peer has accepted.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, rest: Vec::new(), sent: 0, acks: AckReader::default() }
    }
}

impl Outgoing for TcpOutgoing {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if !self.flush()? {
            return Ok(false);
        }
        let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(payload.len() + 1);
        parts.push(IoSlice::new(header.as_bytes()));
        for segment in payload.iter().filter(|segment| segment.len > 0) {
            // SAFETY: the application lends the memory; the kernel only reads it.
            parts.push(IoSlice::new(unsafe { std::slice::from_raw_parts(segment.base, segment.len) }));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let total: usize = HEADER + payload.iter().map(|segment| segment.len).sum::<usize>();
        let sent = loop {
            match rustix::net::sendmsg(&self.socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => break sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(gone(error)),
            }
        };
        if sent < total {
            let mut segments = vec![Segment::of(header.as_bytes())];
            segments.extend_from_slice(payload);
            self.rest = gather(&segments);
            self.sent = sent;
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        while self.sent < self.rest.len() {
            match rustix::net::send(&self.socket, &self.rest[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(gone(error)),
            }
        }
        self.rest.clear();
        self.sent = 0;
        Ok(true)
    }

    fn unsent(&self) -> bool {
        self.sent < self.rest.len()
    }

    fn chunk(&self) -> usize {
        MAX_PAYLOAD
    }

    fn eager_limit(&self) -> usize {
        MAX_PAYLOAD
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        self.acks.read(self.socket.as_fd())
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn ring(&mut self) {}

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn full_by_socket(&self) -> bool {
        true
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        None
    }

    fn forget(self: Box<Self>) {
        let _ = self.socket.into_raw_fd();
    }
}

/// Receiving end.
#[derive(Debug)]
pub struct TcpIncoming {
    socket: OwnedFd,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
}

impl TcpIncoming {
    /// A channel that was admitted.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: vec![0; BUFFER], start: 0, end: 0, ended: false }
    }

    /// The next whole packet in the buffer: header and where its payload is.
    fn parse(&self) -> Result<Option<(Header, usize)>, ChannelError> {
        let have = &self.buffer[self.start..self.end];
        let Some(bytes) = have.first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header::from_bytes(bytes);
        let length = header.payload as usize;
        if length > MAX_PAYLOAD {
            return Err(ChannelError::Protocol("impossible length in a stream".into()));
        }
        Ok((have.len() >= HEADER + length).then_some((header, length)))
    }

    /// Reads once. False: nothing there.
    fn fill(&mut self) -> Result<bool, ChannelError> {
        if self.start > 0 && self.buffer.len() - self.end < MAX_PAYLOAD + HEADER {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match rustix::net::recv(&self.socket, &mut self.buffer[self.end..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.ended = true;
                    return Ok(false);
                }
                Ok((read, _)) => {
                    self.end += read;
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::CONNRESET) => {
                    self.ended = true;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Incoming for TcpIncoming {
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut packets, mut bytes) = (0, 0);
        while bytes < budget {
            let Some((header, length)) = self.parse()? else {
                if self.start == self.end {
                    (self.start, self.end) = (0, 0);
                }
                if self.ended {
                    return if self.start == self.end {
                        Err(ChannelError::Closed)
                    } else {
                        Err(ChannelError::Protocol("the stream ends inside a packet".into()))
                    };
                }
                if !self.fill()? && !self.ended {
                    break;
                }
                continue;
            };
            let body = self.start + HEADER;
            let delivered = deliver(&header, Payload::one(&self.buffer[body..body + length]));
            self.start = body + length;
            delivered?;
            packets += 1;
            bytes += length + HEADER;
        }
        Ok(packets)
    }

    fn event(&mut self) -> Result<(), ChannelError> {
        Ok(())
    }

    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        write_ack(self.socket.as_fd(), marker)
    }

    fn polled(&self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        matches!(self.parse(), Ok(Some(_)) | Err(_))
    }

    fn disarm(&mut self) {}

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        None
    }

    fn forget(self: Box<Self>) {
        let _ = self.socket.into_raw_fd();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::packet::Kind;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn packets_survive_partial_writes_and_a_marker_is_acknowledged() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (mut out, mut incoming) = (TcpOutgoing::new(a), TcpIncoming::new(b));
        let bodies: Vec<Vec<u8>> = (0..40usize).map(|n| vec![n as u8; n * 1600 % MAX_PAYLOAD]).collect();
        let (mut next, mut got) = (0, Vec::new());
        while got.len() < bodies.len() {
            while next < bodies.len() {
                let mut header = Header::new(Kind::Eager);
                header.id = next as u64;
                header.payload = bodies[next].len() as u32;
                if !out.send(&header, &[Segment::of(&bodies[next])]).unwrap() {
                    break;
                }
                next += 1;
            }
            incoming
                .receive(usize::MAX, &mut |header, payload| {
                    got.push((header.id, payload.to_vec()));
                    Ok(())
                })
                .unwrap();
            let _ = out.flush().unwrap();
        }
        assert!(got.iter().enumerate().all(|(n, (id, body))| *id == n as u64 && *body == bodies[n]));
        assert!(out.acknowledged().unwrap().is_none());
        incoming.acknowledge(9).unwrap();
        assert_eq!(out.acknowledged().unwrap(), Some(9));
        drop(out);
        assert!(matches!(incoming.receive(1, &mut |_, _| Ok(())), Err(ChannelError::Closed)));
    }
}
