//! Ranks whose bulk data is encrypted, and somebody between their nodes who reads and changes what passes.

use super::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const MARKER: &[u8] = b"a very unlikely text";

/// Somebody between the nodes: passes on what comes, one way as `change` made it, and keeps it all.
struct Middle {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Middle {
    fn before(rank: std::net::SocketAddr, change: fn(&mut [u8], usize)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let kept = seen.clone();
        std::thread::spawn(move || {
            for there in listener.incoming().flatten() {
                let back = TcpStream::connect(rank).unwrap();
                for (mut from, mut to, forth) in
                    [(there.try_clone().unwrap(), back.try_clone().unwrap(), true), (back.try_clone().unwrap(), there, false)]
                {
                    let kept = kept.clone();
                    std::thread::spawn(move || {
                        let (mut bytes, mut before) = ([0; 65536], 0);
                        while let Ok(length @ 1..) = from.read(&mut bytes) {
                            kept.lock().unwrap().extend_from_slice(&bytes[..length]);
                            if forth {
                                change(&mut bytes[..length], before);
                            }
                            before += length;
                            if to.write_all(&bytes[..length]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, seen }
    }

    fn saw(&self, text: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(text.len()).any(|part| part == text)
    }
}

/// Two distant ranks, and somebody before the second.
fn watched(encrypted: bool, change: fn(&mut [u8], usize)) -> (World, Middle) {
    let mut world = World::made(&[0, 1], DEFAULT, 1, encrypted);
    let middle = Middle::before(world.entries[1].address.as_ref().unwrap().tcp, change);
    world.entries[1].address.as_mut().unwrap().tcp = middle.address;
    world.entries[1].generation += 1;
    world.publish();
    (world, middle)
}

/// Sends the marker `times` in a message; whether it arrives before the channel breaks.
fn arrives(world: &mut World, times: usize) -> bool {
    let (body, mut memory) = (MARKER.repeat(times), vec![0; MARKER.len() * times]);
    let segments = [Segment::of(&body)];
    let message = Message { to: (1, 0), tag: Some(5), data: None, segments: &segments, context: 0, flags: 0, inject: false };
    let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: memory.len() });
    let receive = Receive { tag: Some((5, 0)), source: Some((0, 0)), buffers, context: 0, flags: 0 };
    let node = &mut world.nodes[1];
    node.engine.receive(&mut node.links, 0, receive).unwrap();
    let node = &mut world.nodes[0];
    node.engine.send(&mut node.links, 0, &message).unwrap();
    for _ in 0..2_000_000 {
        world.progress();
        let node = &mut world.nodes[1];
        if node.engine.queues.get_mut(node.queue).unwrap().entries.drain(..).any(|done| done.error == 0) {
            assert!(memory == body);
            return true;
        }
        if !node.links.broken().is_empty() || matches!(world.nodes[0].links.peers[1].outbound, Outbound::Lost { .. }) {
            return false;
        }
    }
    panic!("neither arrived nor refused");
}

#[test]
fn encrypted_channels_keep_every_message_through_suspends_and_moves() {
    for (nodes, seed) in [(&[0, 1, 2][..], 12), (&[0, 0, 1, 1], 20), (&[0, 1, 0, 1], 21)] {
        assert_eq!(disturb(World::made(nodes, DEFAULT, seed, true), seed, 100), 0);
    }
}

#[test]
fn somebody_on_the_way_reads_everything_or_nothing() {
    for encrypted in [false, true] {
        let (mut world, middle) = watched(encrypted, |_, _| {});
        for times in [1, 500, 50_000] {
            assert!(arrives(&mut world, times));
            // What was sent before, too.
            assert_eq!(middle.saw(MARKER), !encrypted, "{times} times");
        }
    }
}

#[test]
fn one_changed_bit_ends_an_encrypted_channel() {
    // In the last bytes that pass before the connection rests: of the message, not of the handshake.
    let change: fn(&mut [u8], usize) = |bytes, _| {
        if bytes.len() > 20_000 {
            bytes[10_000] ^= 1;
        }
    };
    let (mut world, _middle) = watched(true, change);
    assert!(arrives(&mut world, 1));
    assert!(!arrives(&mut world, 5000));
    let (faults, _) = world.nodes[1].links.losses(std::time::Duration::ZERO);
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].0, 0, "the peer is named");
    assert!(faults[0].1.contains("is not what the peer sent"), "{}", faults[0].1);
}

#[test]
fn a_hello_that_was_changed_leads_to_a_channel_without_common_keys() {
    // The generation in the HELLO: greeting and proof come before it.
    let change: fn(&mut [u8], usize) = |bytes, before| {
        let at = mend_messages::auth::GREETING_LENGTH + mend_messages::auth::PROOF_LENGTH + 32;
        if let Some(byte) = at.checked_sub(before).and_then(|at| bytes.get_mut(at)) {
            *byte ^= 8;
        }
    };
    let (mut world, _middle) = watched(true, change);
    assert!(!arrives(&mut world, 1));
    assert!(!world.nodes[0].links.lost().is_empty(), "its messages are lost, and that must be known");
}

#[test]
fn a_rank_that_does_not_encrypt_is_refused_by_one_that_does() {
    for encrypted in [false, true] {
        let mut world = World::made(&[0, 1], DEFAULT, 1, encrypted);
        world.nodes[0].links.identity.as_mut().unwrap().encrypted = !encrypted;
        world.nodes[0].links.post(1, &Header::new(crate::engine::packet::Kind::Eager), &[]);
        for _ in 0..2000 {
            world.progress();
            assert!(world.nodes[1].links.peers[0].inbound.is_none());
        }
        assert!(matches!(world.nodes[0].links.peers[1].outbound, Outbound::Unknown { failures: 9, .. } | Outbound::Opening(_)));
    }
}

#[test]
fn what_is_to_be_encrypted_takes_no_core_provider() {
    let mut world = World::made(&[0, 1], OFI, 1, true);
    for _ in 0..200 {
        world.nodes[0].links.post(1, &Header::new(crate::engine::packet::Kind::Eager), &[]);
        world.progress();
    }
    assert!(!world.nodes.iter().any(|node| node.links.port_open()));
    assert!(matches!(world.nodes[0].links.peers[1].outbound, Outbound::Open(_)));
}
