//! Neighbours that lie, stop, die or have no business here. The rank under test reports and goes on with the others.

use super::*;
use crate::channel::opening::{Opening, Step};
use crate::channel::pending_handshake::PendingHandshake;
use crate::channel::{Hello, Outgoing};
use crate::engine::packet::{HEADER, Kind};
use mend_fabric_sys::FI_EAGAIN;
use mend_messages::auth::{GREETING_LENGTH, Greeting, PROOF_LENGTH, Purpose, Side, prove};
use rustix::fd::AsFd;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

impl World {
    /// Moves everything until `done`.
    pub(super) fn settle(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.progress();
        }
        panic!("never happened: {what}");
    }

    pub(super) fn send(&mut self, from: usize, to: u32, body: &[u8]) -> Result<(), i32> {
        let segments = [Segment::of(body)];
        let message = Message { to: (to, 0), tag: Some(5), data: None, segments: &segments, context: 0, flags: 0, inject: false };
        let node = &mut self.nodes[from];
        node.engine.send(&mut node.links, 0, &message)
    }

    pub(super) fn post(&mut self, at: usize, from: u32, memory: &mut [u8]) {
        let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: memory.len() });
        let receive = Receive { tag: Some((5, 0)), source: Some((from, 0)), buffers, context: 0, flags: 0 };
        let node = &mut self.nodes[at];
        node.engine.receive(&mut node.links, 0, receive).unwrap();
    }

    /// Whether a message from one rank to the other arrives.
    pub(super) fn exchange(&mut self, from: usize, to: usize) {
        let mut memory = [0; 8];
        self.post(to, from as u32, &mut memory);
        self.send(from, to as u32, b"whatever").unwrap();
        self.settle("a message between honest ranks", |world| world.received(to) == 1);
        assert_eq!(memory, *b"whatever");
    }

    pub(super) fn received(&mut self, at: usize) -> usize {
        let node = &mut self.nodes[at];
        node.engine.queues.get_mut(node.queue).unwrap().entries.drain(..).filter(|done| done.error == 0).count()
    }

    /// A channel to rank 1 that this test holds, opened in the name of rank 0.
    fn intrude(&mut self, number: u64, generation: u64, shared: bool) -> Option<Box<dyn Outgoing>> {
        let medium = if shared { Medium::Shm } else { Medium::Tcp };
        let hello = Hello { job: [1; 16], from: 0, to: 1, generation, medium, readable: false, number };
        let mut opening = Box::new(Opening::start(self.entries[1].address.as_ref().unwrap(), hello, false, None).unwrap());
        let (wakeup, _receiver) = crate::watch::wakeup_pair().unwrap();
        for _ in 0..20_000 {
            self.progress();
            opening = match opening.advance(&Secret([2; 32]), wakeup.as_fd()) {
                Ok(Step::Open(channel)) => return Some(channel),
                Ok(Step::Waiting(opening)) => opening,
                Err(_) => return None,
            };
        }
        panic!("neither admitted nor refused");
    }

    fn ends_with_a_fault(&mut self) {
        self.settle("the channel is closed", |world| world.nodes[1].links.peers[0].inbound.is_none());
        assert!(self.nodes[1].links.peers[0].ended.is_some(), "its messages may be lost, and that must be known");
    }
}

fn words(channel: &dyn Outgoing) -> *mut u8 {
    channel.mapping().unwrap().0 as *mut u8
}

#[test]
fn the_rest_of_a_packet_is_sent_even_if_nothing_follows() {
    let mut world = World::new(&[0, 1], 1);
    world.exchange(0, 1);
    let body = vec![7; 60_000];
    let mut memory = Vec::new();
    let cut = |world: &World| world.nodes[0].links.peers[1].outbound.channel_ref().is_some_and(Outgoing::unsent);
    while !cut(&world) {
        assert!(memory.len() < 1000, "the socket takes everything");
        world.send(0, 1, &body).unwrap();
        memory.push(vec![0u8; 60_000]);
    }
    assert!(world.nodes[0].links.peers[1].queue.is_empty());
    memory.iter_mut().for_each(|memory| world.post(1, 0, memory));
    let mut got = 0;
    world.settle("the last packet", |world| {
        got += world.received(1);
        got == memory.len()
    });
    assert!(memory.iter().all(|memory| *memory == body));
}

#[test]
fn an_acknowledgement_just_before_the_end_counts() {
    let mut world = World::new(&[0, 1], 1);
    world.exchange(0, 1);
    world.nodes[0].links.begin_suspend();
    assert_eq!(world.nodes[0].links.drain_step(), [1]);
    let peer = &mut world.nodes[1];
    for _ in 0..2000 {
        peer.links.urgent = true;
        peer.links.progress(&mut peer.engine);
    }
    world.nodes.truncate(1);
    world.settle("the drain", |world| world.nodes[0].links.drain_step().is_empty());
    assert!(world.nodes[0].links.lost().is_empty(), "everything was acknowledged");
}

#[test]
fn acknowledgements_of_markers_never_sent_change_nothing() {
    let mut world = World::new(&[0, 0], 1);
    world.exchange(0, 1);
    let number = world.nodes[1].links.peers[0].inbound.unwrap() as usize;
    let forge = |world: &mut World, marker| world.nodes[1].links.inbound[number].as_mut().unwrap().channel.acknowledge(marker).unwrap();
    forge(&mut world, 1);
    forge(&mut world, 77);
    world.progress();
    assert!(matches!(world.nodes[0].links.peers[1].outbound, Outbound::Open(_)));
    world.nodes[0].links.begin_suspend();
    forge(&mut world, 78);
    let node = &mut world.nodes[0];
    node.links.urgent = true;
    node.links.progress(&mut node.engine);
    assert_eq!(node.links.drain_step(), [1], "drained by an acknowledgement of another marker");
    world.settle("the drain", |world| world.nodes[0].links.drain_step().is_empty());
    world.nodes[0].links.resume();
    forge(&mut world, 1);
    world.exchange(0, 1);
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let mut world = World::new(&[0, 1], 1);
    let tcp = world.entries[1].address.as_ref().unwrap().tcp;
    // More than there are places; they stay, and no time of theirs passes.
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(tcp).unwrap()).collect();
    world.send(0, 1, b"whatever").unwrap();
    let mut memory = [0; 8];
    world.post(1, 0, &mut memory);
    world.settle("a message", |world| world.received(1) == 1);
    let waiting = world.nodes[1].links.pending_handshakes.iter().flatten().count();
    assert!((60..=66).contains(&waiting), "{waiting} places are taken");
    drop(silent);
}

#[test]
fn an_opening_that_was_given_up_does_not_replace_its_successor() {
    for shared in [false, true] {
        let mut world = World::new(&[0, 0], 1);
        let newer = world.intrude(5, 1, shared).expect("a channel");
        assert!(world.intrude(4, 1, shared).is_none() && world.intrude(5, 1, shared).is_none());
        assert!(world.intrude(9, 0, shared).is_none(), "an older generation");
        assert!(world.nodes[1].links.peers[0].inbound.is_some(), "the newer one is gone");
        drop(newer);
        assert!(world.intrude(6, 1, shared).is_some());
    }
}

#[test]
fn a_replayed_handshake_is_refused() {
    let mut world = World::new(&[0, 1], 1);
    let tcp = world.entries[1].address.as_ref().unwrap().tcp;
    let ours = Greeting::new(Purpose::Fabric, [8; 32]);
    let mut proof = None;
    for replay in [false, true] {
        let mut socket = TcpStream::connect(tcp).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.write_all(&ours.encode()).unwrap();
        let mut bytes = [0; GREETING_LENGTH];
        world.settle("a greeting", |_| matches!(socket.peek(&mut bytes), Ok(GREETING_LENGTH)));
        socket.read_exact(&mut bytes).unwrap();
        let theirs = Greeting::decode(&bytes, &ours).unwrap();
        socket.write_all(proof.get_or_insert_with(|| prove(&Secret([2; 32]), Side::Initiator, &ours, &theirs))).unwrap();
        let mut answer = [0; PROOF_LENGTH];
        world.settle("an answer", |_| socket.peek(&mut answer).is_ok());
        assert_eq!(socket.read(&mut answer).unwrap(), if replay { 0 } else { PROOF_LENGTH });
    }
}

#[test]
fn a_peer_that_dies_inside_a_packet_is_not_taken_back() {
    let mut world = World::new(&[0, 1, 1], 1);
    let channel = world.intrude(1, 1, false).unwrap();
    let mut header = Header::new(Kind::Eager);
    (header.payload, header.length) = (1000, 1000);
    rustix::io::write(channel.socket(), &header.as_bytes()[..HEADER]).unwrap();
    rustix::io::write(channel.socket(), &[1; 10]).unwrap();
    (0..100).for_each(|_| world.progress());
    drop(channel);
    // Nothing whole ever came, so nothing was delivered; the rest of the job goes on.
    world.settle("the end is seen", |world| world.nodes[1].links.peers[0].inbound.is_none());
    world.exchange(2, 1);
    assert_eq!(world.received(1), 0);
    // One that had delivered something is only taken back as a newer generation.
    let mut channel = world.intrude(2, 1, false).unwrap();
    (header.payload, header.length) = (0, 0);
    assert!(channel.send(&header, &[]).unwrap());
    (0..100).for_each(|_| world.progress());
    drop(channel);
    world.ends_with_a_fault();
    assert!(world.intrude(3, 1, false).is_none());
    assert!(world.intrude(4, 2, false).is_some());
}

#[test]
fn a_lying_length_in_a_stream_closes_the_channel() {
    let mut world = World::new(&[0, 1, 1], 1);
    let mut channel = world.intrude(1, 1, false).unwrap();
    assert!(channel.send(&Header::new(Kind::Eager), &[]).unwrap());
    let mut header = Header::new(Kind::Eager);
    header.payload = u32::MAX;
    rustix::io::write(channel.socket(), header.as_bytes()).unwrap();
    world.ends_with_a_fault();
    world.exchange(2, 1);
}

#[test]
fn a_corrupted_ring_closes_the_channel() {
    // Positions that cannot be, and one that promises more than there is.
    for head in [u64::MAX, 1 << 40, 63, 64 * 1000 * 1000, 128] {
        let mut world = World::new(&[0, 0, 0], 1);
        let mut channel = world.intrude(1, 1, true).unwrap();
        assert!(channel.send(&Header::new(Kind::Eager), &[]).unwrap());
        (0..100).for_each(|_| world.progress());
        let base = words(channel.as_ref());
        let mut header = Header::new(Kind::Eager);
        header.payload = 60_000;
        // SAFETY: the ring's data begins at 4096, its head is at 64 (see ring.rs); the mapping is this channel's.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_bytes().as_ptr(), base.add(512 + 64), HEADER);
            base.add(64).cast::<u64>().write_volatile(head);
        }
        world.ends_with_a_fault();
        world.exchange(2, 1);
    }
}

#[test]
fn a_reader_that_corrupts_the_ring_is_given_up() {
    let mut world = World::new(&[0, 0, 0], 1);
    world.exchange(0, 1);
    let number = world.nodes[1].links.peers[0].inbound.unwrap() as usize;
    let base = world.nodes[1].links.inbound[number].as_ref().unwrap().channel.mapping().unwrap().0 as *mut u8;
    // SAFETY: the tail is at 128 (see ring.rs); the mapping is that channel's.
    unsafe { base.add(128).cast::<u64>().write_volatile(u64::MAX - 7) };
    while matches!(world.nodes[0].links.peers[1].outbound, Outbound::Open(_)) {
        world.send(0, 1, &[1; 16_000]).unwrap();
    }
    assert_eq!(world.nodes[0].links.lost(), [1]);
    world.exchange(0, 2);
}

/// Both ends live: the daemon hears of it, once, and only as long as nobody has come back.
#[test]
fn a_connection_that_breaks_is_told_of() {
    static ANNOUNCED: AtomicUsize = AtomicUsize::new(0);
    let broken = |nodes: &[u32]| {
        let mut world = World::new(nodes, 1);
        let announce = || {
            ANNOUNCED.fetch_add(1, Ordering::Relaxed);
        };
        world.nodes.iter_mut().for_each(|node| node.links.on_loss(announce));
        world.exchange(0, 1);
        let Outbound::Open(channel) = &world.nodes[0].links.peers[1].outbound else { panic!("no channel") };
        rustix::net::shutdown(channel.socket(), rustix::net::Shutdown::Both).unwrap();
        world.settle("both notice", |world| {
            let ended = world.nodes[1].links.peers[0].ended.is_some();
            ended && !world.nodes[0].links.lost().is_empty()
        });
        world
    };
    for nodes in [[0, 0], [0, 1]] {
        ANNOUNCED.store(0, Ordering::Relaxed);
        let mut world = broken(&nodes);
        assert_eq!(ANNOUNCED.load(Ordering::Relaxed), 2);
        for (rank, peer) in [(0, 1), (1, 0)] {
            let links = &mut world.nodes[rank].links;
            assert_eq!(links.losses(Duration::from_secs(1000)), (vec![], true));
            let (told, later) = links.losses(Duration::ZERO);
            assert!(matches!(&told[..], [(other, why)] if *other == peer && !why.is_empty()) && !later);
            assert_eq!(links.losses(Duration::ZERO), (vec![], false));
        }
        // A peer that has been restored since is not lost.
        let mut world = broken(&nodes);
        world.shift(1, nodes[1], true);
        assert_eq!(world.nodes[0].links.losses(Duration::ZERO), (vec![], false));
    }
    // Nothing was under way.
    let mut world = World::new(&[0, 1], 1);
    world.exchange(0, 1);
    world.suspend_all();
    world.nodes.iter_mut().for_each(|node| node.links.resume());
    let Outbound::Open(channel) = &world.nodes[0].links.peers[1].outbound else { panic!("no channel") };
    rustix::net::shutdown(channel.socket(), rustix::net::Shutdown::Both).unwrap();
    world.exchange(0, 1);
    assert!(world.nodes.iter_mut().all(|node| node.links.losses(Duration::ZERO) == (vec![], false)));
}

#[test]
fn a_peer_that_stops_reading_holds_nobody_else() {
    // What is on its way is bounded in number, and the queue of a peer in bytes.
    for (nodes, limit) in [([0, 0, 0], 4 << 20), ([0, 1, 2], 4 << 20), ([0, 0, 0], 1 << 30), ([0, 1, 2], 1 << 30)] {
        let mut world = World::new(&nodes, 1);
        world.exchange(0, 1);
        let mut deaf = world.nodes.remove(1);
        world.nodes[0].engine.flow.set_limit(limit);
        let body = [1; 8_000];
        let mut sent = 0;
        // Then the application is told to try again.
        while world.send(0, 1, &body) == Ok(()) {
            sent += 1;
            assert!(sent < 30_000, "without bound");
        }
        assert_eq!(world.send(0, 1, &body), Err(FI_EAGAIN));
        let mut memory = [0; 8];
        world.post(1, 0, &mut memory);
        world.send(0, 2, b"whatever").unwrap();
        world.settle("a message to another", |world| world.received(1) == 1);
        // It is late, not lost, and nobody waits for it without end.
        world.nodes[0].links.begin_suspend();
        world.settle("all others are drained", |world| world.nodes[0].links.drain_step() == [1]);
        (0..200).for_each(|_| world.progress());
        assert_eq!(world.nodes[0].links.drain_step(), [1]);
        assert!(world.nodes[0].links.lost().is_empty());
        world.nodes[0].links.resume();
        for _ in 0..1_000_000 {
            world.progress();
            deaf.links.urgent = true;
            deaf.links.progress(&mut deaf.engine);
            if world.nodes[0].links.idle() && world.send(0, 1, &body).is_ok() {
                break;
            }
        }
        assert!(world.send(0, 1, &body).is_ok());
    }
}

#[test]
fn a_half_open_connection_costs_a_place_only_for_its_time() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut world = World::new(&[0, 0], 1);
    // A greeting, and then nothing: the peer's machine has died.
    (&ours).write_all(&Greeting::new(Purpose::Fabric, [3; 32]).encode()).unwrap();
    let pending = PendingHandshake::new(theirs.into(), false).unwrap();
    world.nodes[1].links.pending_handshakes.push(Some(Box::new(pending)));
    world.progress();
    let pending = world.nodes[1].links.pending_handshakes[0].as_mut().unwrap();
    pending.since = Instant::now().checked_sub(2 * inbound::HANDSHAKE_LIMIT).unwrap();
    world.exchange(0, 1);
    world.settle("its place is free", |world| world.nodes[1].links.pending_handshakes.iter().all(Option::is_none));
    drop(ours);
}

/// Whoever closes its endpoint need not wait for a peer that has ended, whatever is still under way to it.
#[test]
fn nothing_is_expected_of_a_peer_that_has_ended() {
    for nodes in [[0, 0, 0], [0, 1, 2]] {
        let mut world = World::new(&nodes, 1);
        world.exchange(0, 1);
        world.exchange(1, 0);
        let body = vec![1; 1_000_000];
        world.send(0, 1, &body).unwrap();
        (0..100).for_each(|_| world.progress());
        let ends = |world: &World| {
            let node = &world.nodes[0];
            node.links.idle() && node.engine.awaited(0).iter().all(|(peer, _)| node.links.gone(*peer))
        };
        assert!(!ends(&world), "nobody has asked for it");
        drop(world.nodes.remove(1));
        world.settle("its end is seen", |world| ends(world));
    }
}

#[test]
fn attempts_to_reach_a_peer_that_has_ended_are_no_progress() {
    for shared in [false, true] {
        let mut world = World::new(&[0, u32::from(!shared)], 1);
        // Its listeners are gone; no channel of its was open, so nothing else tells that it has ended.
        world.nodes[1].links.watch = None;
        world.nodes[0].links.post(1, &Header::new(Kind::Ack), &[]);
        let Node { engine, links, .. } = &mut world.nodes[0];
        let mut attempts = 0;
        while attempts < 4 {
            links.urgent = true;
            // Whoever waits for messages to leave before he ends waits as long as there is progress.
            assert!(!links.progress(engine), "attempt {attempts}");
            attempts = match links.peers[1].outbound {
                Outbound::Unknown { failures, .. } => failures,
                _ => attempts,
            };
            std::thread::yield_now();
        }
    }
}
