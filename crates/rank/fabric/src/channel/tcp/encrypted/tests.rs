//! Packets in records over a real stream socket: torn, in place, in bursts, and changed on their way.

use super::super::TcpIncoming;
use super::super::outgoing::TcpOutgoing;
use super::super::tests::{Landing, message};
use super::*;
use crate::channel::{Incoming, Outgoing};
use crate::engine::packet::{HEADER, MAX_STREAMED};
use mend_messages::job::Secret;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn keys() -> [Keys; 2] {
    let (secret, nonces) = (Secret([1; 32]), [&[2; 32], &[3; 32]]);
    [mend_cipher::initiator(&secret, nonces, b""), mend_cipher::acceptor(&secret, nonces, b"")]
}

fn over(a: OwnedFd, b: OwnedFd) -> (TcpOutgoing<EncryptedWriter>, TcpIncoming<EncryptedSource>) {
    let [ours, theirs] = keys();
    (TcpOutgoing::over(EncryptedWriter::new(a.into(), ours)), TcpIncoming::new(EncryptedSource::new(b.into(), theirs)))
}

fn pair() -> (TcpOutgoing<EncryptedWriter>, TcpIncoming<EncryptedSource>) {
    let (a, b) = sockets();
    over(a, b)
}

/// Bytes of a length that repeat late.
fn body(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 3 % 251) as u8).collect()
}

#[test]
fn packets_of_every_size_survive_partial_writes_and_a_marker_is_acknowledged() {
    let (mut out, mut incoming) = pair();
    let bodies: Vec<Vec<u8>> = (0..60usize).map(|n| body(n * n * 997 % (MAX_STREAMED + 1))).collect();
    let (mut next, mut landing) = (0, Landing::default());
    while landing.whole.len() < bodies.len() {
        while next < bodies.len() {
            let (header, payload) = (message(bodies[next].len()), [Segment::of(&bodies[next])]);
            let taken = if next % 3 == 0 { out.defer(&header, &payload) } else { out.send(&header, &payload) };
            if !taken.unwrap() {
                break;
            }
            next += 1;
        }
        incoming.receive(usize::MAX, &mut landing).unwrap();
        let _ = out.flush().unwrap();
    }
    assert!(landing.whole == bodies);
    assert!(out.acknowledged().unwrap().is_none());
    for marker in [9, 10] {
        incoming.acknowledge(marker).unwrap();
        assert_eq!(out.acknowledged().unwrap(), Some(marker));
    }
    incoming.relax();
    assert_eq!((incoming.source.buffer.capacity(), out.unsent()), (0, false));
    drop(out);
    assert!(matches!(incoming.receive(1, &mut landing), Err(ChannelError::Closed)));
}

#[test]
fn a_long_message_is_received_where_it_belongs() {
    let (mut out, mut incoming) = pair();
    let body = body(MAX_STREAMED);
    let mut landing = Landing { memory: vec![0; body.len()], ..Landing::default() };
    let mut lent = body.clone();
    assert!(out.lend(&message(lent.len()), &[Segment::of(&lent)]).unwrap());
    // Nothing of it is needed any more, sent or not.
    lent.fill(0);
    assert!(out.unsent(), "the socket took it all");
    while out.unsent() {
        incoming.receive(1 << 20, &mut landing).unwrap();
        let _ = out.flush().unwrap();
    }
    assert!(out.send(&message(3), &[Segment::of(b"end")]).unwrap());
    while landing.whole.is_empty() {
        incoming.receive(1 << 20, &mut landing).unwrap();
    }
    assert!(landing.memory == body);
    assert_eq!(landing.whole, [b"end"]);
    assert!(landing.placed > body.len() / 2 && landing.placed + landing.copied == body.len());
}

#[test]
fn a_burst_is_one_record_and_what_is_left_of_it_is_not_forgotten() {
    let (a, b) = sockets();
    let watched = b.try_clone().unwrap();
    let (mut out, mut incoming) = over(a, b);
    for number in 0..10u8 {
        assert!(out.defer(&message(1), &[Segment::of(&[number])]).unwrap());
    }
    let mut landing = Landing::default();
    assert_eq!(incoming.receive(1 << 20, &mut landing).unwrap(), 0);
    assert!(out.unsent() && out.flush().unwrap());
    let (length, _) = recv(&watched, &mut [0; 4096], RecvFlags::PEEK).unwrap();
    assert_eq!(length, HEAD + 10 * (HEADER + 1) + TAG);
    // The socket will not announce what one look has taken from it.
    while landing.whole.len() < 10 {
        incoming.receive(1, &mut landing).unwrap();
        assert_eq!(incoming.arm(), landing.whole.len() < 10, "after {} packets", landing.whole.len());
    }
}

/// What three packets become in the hands of somebody on the way.
fn meddled(meddle: impl Fn(&mut Vec<Vec<u8>>)) -> (usize, ChannelError) {
    let (from, way_in) = sockets();
    let (way_out, to) = sockets();
    let (mut out, mut incoming) = over(from, to);
    let mut records: Vec<Vec<u8>> = (0..3u8)
        .map(|number| {
            assert!(out.send(&message(1), &[Segment::of(&[number])]).unwrap());
            let mut bytes = [0; 4096];
            let (length, _) = recv(&way_in, &mut bytes, RecvFlags::empty()).unwrap();
            bytes[..length].to_vec()
        })
        .collect();
    meddle(&mut records);
    let bytes = records.concat();
    assert_eq!(send(&way_out, &bytes, SendFlags::NOSIGNAL).unwrap(), bytes.len());
    drop(way_out);
    let mut landing = Landing::default();
    let error = loop {
        match incoming.receive(1, &mut landing) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(landing.whole.iter().enumerate().all(|(number, body)| *body == [number as u8]), "something else was delivered");
    (landing.whole.len(), error)
}

#[test]
fn what_was_changed_repeated_exchanged_left_out_or_cut_ends_the_channel() {
    assert!(matches!(meddled(|_| {}), (3, ChannelError::Closed)));
    let altered = |(came, error): (usize, ChannelError)| match error {
        ChannelError::Cipher(CipherError::Altered { number }) if number == came as u64 => came,
        error => panic!("{came} packets, then {error}"),
    };
    assert_eq!(altered(meddled(|records| records[1][HEAD] ^= 1)), 1);
    assert_eq!(altered(meddled(|records| *records[2].last_mut().unwrap() ^= 0x80)), 2);
    assert_eq!(altered(meddled(|records| records.insert(1, records[0].clone()))), 1);
    assert_eq!(altered(meddled(|records| records.swap(0, 1))), 0);
    assert_eq!(altered(meddled(|records| drop(records.remove(1)))), 1);
    let too_long = meddled(|records| records[1][..HEAD].copy_from_slice(&[0xff; HEAD]));
    assert!(matches!(too_long, (1, ChannelError::Cipher(CipherError::TooLong { number: 1, .. }))));
    let cut = meddled(|records| records[2].truncate(HEADER));
    assert!(matches!(cut, (2, ChannelError::Cipher(CipherError::Cut { number: 2 }))));
    assert_eq!(cut.1.to_string(), "the stream was cut at encrypted record 2");
}

#[test]
fn a_forged_acknowledgement_ends_the_channel() {
    let (a, b) = sockets();
    let raw = b.try_clone().unwrap();
    let (mut out, mut incoming) = over(a, b);
    incoming.acknowledge(7).unwrap();
    assert_eq!(out.acknowledged().unwrap(), Some(7));
    send(&raw, &encode_ack(8), SendFlags::NOSIGNAL).unwrap();
    send(&raw, &[0; ACK_RECORD - ACK_LENGTH], SendFlags::NOSIGNAL).unwrap();
    assert!(matches!(out.acknowledged(), Err(ChannelError::Cipher(CipherError::TooLong { .. } | CipherError::Altered { number: 1 }))));
}
