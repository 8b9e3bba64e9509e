//! Packets over a real stream socket: torn, lent, deferred, in place, and lies.

use super::outgoing::TcpOutgoing;
use super::*;
use crate::channel::{Outgoing, Sink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

#[test]
fn packets_survive_partial_writes_and_a_marker_is_acknowledged() {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let (mut out, mut incoming) = (TcpOutgoing::new(a.into()), TcpIncoming::new(Placed::from(b)));
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
            .receive(usize::MAX, &mut |header: &Header, payload: Payload| {
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
    assert!(matches!(incoming.receive(1, &mut |_: &Header, _: Payload| Ok(())), Err(ChannelError::Closed)));
}

fn pair() -> (TcpOutgoing, TcpIncoming, rustix::fd::OwnedFd) {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let raw = a.try_clone().unwrap();
    (TcpOutgoing::new(a.into()), TcpIncoming::new(b.into()), raw)
}

pub(super) fn message(payload: usize) -> Header {
    let mut header = Header::new(Kind::Eager);
    header.payload = payload as u32;
    header.length = payload as u64;
    header
}

/// Puts data where it belongs, as the engine does; counts what came.
#[derive(Default)]
pub(super) struct Landing {
    pub memory: Vec<u8>,
    pub placed: usize,
    pub copied: usize,
    pub whole: Vec<Vec<u8>>,
}

impl Sink for Landing {
    fn packet(&mut self, header: &Header, payload: Payload) -> Result<(), ChannelError> {
        if header.kind() == Some(Kind::Data) {
            let at = header.address as usize;
            if std::ptr::eq(payload.parts[0].base, &raw const self.memory[at]) {
                self.placed += payload.len();
            } else {
                self.memory[at..at + payload.len()].copy_from_slice(&payload.to_vec());
                self.copied += payload.len();
            }
        } else {
            self.whole.push(payload.to_vec());
        }
        Ok(())
    }

    fn place(&mut self, header: &mut Header) -> Option<Segment> {
        if self.memory.is_empty() || !matches!(header.kind()?, Kind::Eager | Kind::Data) {
            return None;
        }
        header.kind = Kind::Data as u8;
        let (at, len) = (header.address as usize, header.payload as usize);
        Some(Segment::of(&self.memory[at..at + len]))
    }
}

#[test]
fn a_long_message_is_received_where_it_belongs_and_the_next_one_whole() {
    let (mut out, mut incoming, _raw) = pair();
    let body: Vec<u8> = (0..MAX_STREAMED).map(|n| (n / 7) as u8).collect();
    let mut landing = Landing { memory: vec![0; body.len()], ..Landing::default() };
    assert!(out.lend(&message(body.len()), &[Segment::of(&body)]).unwrap());
    while !out.flush().unwrap() {
        incoming.receive(1 << 20, &mut landing).unwrap();
    }
    assert!(out.send(&message(3), &[Segment::of(b"end")]).unwrap());
    while landing.whole.is_empty() {
        incoming.receive(1 << 20, &mut landing).unwrap();
    }
    assert!(landing.memory == body);
    assert_eq!(landing.whole, [b"end"]);
    assert!(landing.copied <= STAGE_BYTES && landing.placed + landing.copied == body.len());
    incoming.relax();
    assert_eq!(incoming.stage.capacity(), 0);
}

#[test]
fn a_message_nobody_waits_for_is_put_together() {
    let (mut out, mut incoming, _raw) = pair();
    let body = vec![9u8; MAX_STREAMED];
    let mut landing = Landing::default();
    assert!(out.send(&message(body.len()), &[Segment::of(&body[..1000]), Segment::of(&body[1000..])]).unwrap());
    while landing.whole.is_empty() {
        let _ = out.flush().unwrap();
        incoming.receive(1 << 20, &mut landing).unwrap();
    }
    assert!(landing.whole == [body]);
}

#[test]
fn what_is_lent_may_be_taken_back() {
    let (mut out, mut incoming, _raw) = pair();
    let mut body = vec![5u8; MAX_STREAMED];
    assert!(out.lend(&message(body.len()), &[Segment::of(&body)]).unwrap());
    assert!(out.unsent() && !out.0.lent.is_empty(), "the socket took it all");
    out.keep();
    body.fill(6);
    let mut landing = Landing::default();
    while landing.whole.is_empty() {
        let _ = out.flush().unwrap();
        incoming.receive(1 << 20, &mut landing).unwrap();
    }
    assert!(landing.whole[0].len() == body.len() && landing.whole[0].iter().all(|byte| *byte == 5));
    assert_eq!(out.0.rest.capacity(), 0);
}

#[test]
fn deferred_packets_leave_together_and_before_later_ones() {
    let (mut out, mut incoming, _raw) = pair();
    let mut landing = Landing::default();
    for number in 0..10u8 {
        assert!(out.defer(&message(1), &[Segment::of(&[number])]).unwrap());
    }
    assert_eq!(incoming.receive(1 << 20, &mut landing).unwrap(), 0);
    assert!(out.unsent());
    assert!(out.send(&message(1), &[Segment::of(&[10])]).unwrap());
    incoming.receive(1 << 20, &mut landing).unwrap();
    assert!(landing.whole.iter().enumerate().all(|(number, body)| *body == [number as u8]));
    assert_eq!(landing.whole.len(), 11);
    // More than a burst may hold does not wait.
    for _ in 0..MAX_BURST_BYTES / 1000 + 1 {
        assert!(out.defer(&message(1000), &[Segment::of(&[0; 1000])]).unwrap());
    }
    assert!(out.0.rest.len() < MAX_BURST_BYTES);
}

/// What comes of bytes that a hostile peer sends before it closes.
fn outcome(bytes: &[u8]) -> Result<usize, ChannelError> {
    let (out, mut incoming, raw) = pair();
    assert_eq!(rustix::net::send(&raw, bytes, rustix::net::SendFlags::NOSIGNAL).unwrap(), bytes.len());
    drop((out, raw));
    let mut landing = Landing { memory: vec![0; MAX_STREAMED], ..Landing::default() };
    loop {
        incoming.receive(1, &mut landing)?;
    }
}

#[test]
fn lies_about_lengths_end_the_channel() {
    let lie = |kind: Kind, payload: usize, padding: usize| {
        let mut header = Header::new(kind);
        header.payload = payload as u32;
        header.padding = padding as u16;
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(bytes.len() + (payload + padding).min(1000), 1);
        outcome(&bytes)
    };
    let refused = |outcome: Result<usize, ChannelError>| matches!(outcome, Err(ChannelError::Protocol(_)));
    assert!(refused(lie(Kind::Rts, MAX_PAYLOAD + 1, 0)));
    assert!(refused(lie(Kind::Eager, MAX_STREAMED + 1, 0)));
    assert!(refused(lie(Kind::Data, MAX_STREAMED + 1, 0)));
    assert!(refused(lie(Kind::Write, u32::MAX as usize, 0)));
    assert!(refused(lie(Kind::Eager, 10, MIN_LONE_BYTES)));
    assert!(refused(lie(Kind::Eager, 0, u16::MAX as usize)));
    // Cut off: in a payload, in padding, in a header.
    assert!(refused(lie(Kind::Data, 2000, 0)));
    assert!(refused(lie(Kind::Rts, 2000, 0)));
    assert!(refused(outcome(&message(0).as_bytes()[..HEADER - 1])));
    assert!(matches!(lie(Kind::Eager, 0, MIN_LONE_BYTES - HEADER), Err(ChannelError::Closed)));
}
