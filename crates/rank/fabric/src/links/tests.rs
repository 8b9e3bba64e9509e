//! Several ranks in one process, over real sockets and rings: traffic goes on through suspends, moves and restores.

mod hostile;

use super::*;
use crate::engine::buffers::Buffers;
use crate::engine::completion::Queue;
use crate::engine::{Binding, Message, Receive};
use mend_messages::job::{MapEntry, Secret};
use std::net::{IpAddr, Ipv4Addr};

pub(super) struct Node {
    pub engine: Engine,
    pub links: Links,
    pub queue: u64,
}

pub(super) struct World {
    pub nodes: Vec<Node>,
    pub entries: Vec<MapEntry>,
    version: u64,
    random: u64,
}

pub(super) fn identity(rank: u32, size: u32, node: u32) -> Identity {
    Identity { job: [1; 16], secret: Secret([2; 32]), rank, size, node, ip: IpAddr::V4(Ipv4Addr::LOCALHOST) }
}

impl World {
    pub fn new(nodes: &[u32], seed: u64) -> Self {
        let size = nodes.len() as u32;
        let mut world = Self { nodes: Vec::new(), entries: Vec::new(), version: 0, random: seed };
        for (rank, node) in nodes.iter().enumerate() {
            let (mut engine, mut links) = (Engine::default(), Links::default());
            let queue = engine.queues.insert(Queue::default());
            engine.open_endpoint().unwrap();
            let endpoint = engine.endpoint(0).unwrap();
            endpoint.tx = Some(Binding { queue, selective: true });
            endpoint.rx = Some(Binding { queue, selective: false });
            let address = links.listen(identity(rank as u32, size, *node)).unwrap();
            world.entries.push(MapEntry { rank: rank as u32, node: *node, generation: 1, open: true, address: Some(address) });
            world.nodes.push(Node { engine, links, queue });
        }
        world.publish();
        world
    }

    pub fn publish(&mut self) {
        self.version += 1;
        for node in &mut self.nodes {
            node.links.set_map(JobMap { version: self.version, entries: self.entries.clone() });
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    pub fn progress(&mut self) {
        for node in &mut self.nodes {
            node.links.urgent = true;
            node.links.progress(&mut node.engine);
        }
    }

    fn settle_drain(&mut self, done: impl Fn(&mut Self) -> bool) {
        for _ in 0..200_000 {
            self.progress();
            for node in &mut self.nodes {
                node.links.drain_step();
            }
            if done(self) {
                return;
            }
        }
        panic!("the drain does not end");
    }

    fn suspend_all(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.links.begin_suspend());
        self.settle_drain(|world| world.nodes.iter_mut().all(|node| node.links.drain_step().is_empty()));
        assert!(self.nodes.iter().all(|node| node.links.lost().is_empty()));
        let unread = |node: &Node| node.links.inbound.iter().flatten().any(|inbound| !inbound.drained);
        assert!(!self.nodes.iter().any(unread), "something is in flight");
    }

    /// What the agents of a job do when `rank` moves; with `restored` it also loses its descriptors.
    fn shift(&mut self, rank: usize, node: u32, restored: bool) {
        self.nodes[rank].links.begin_suspend();
        for other in (0..self.nodes.len()).filter(|other| *other != rank) {
            self.nodes[other].links.begin_suspend_peer(rank as u32).unwrap();
        }
        self.settle_drain(|world| {
            let size = world.nodes.len();
            world.nodes[rank].links.drain_step().is_empty()
                && (0..size).filter(|other| *other != rank).all(|other| world.nodes[other].links.peer_drained(rank as u32))
        });
        for other in (0..self.nodes.len()).filter(|other| *other != rank) {
            self.nodes[other].links.close_peer(rank as u32);
        }
        self.entries[rank].generation += 1;
        self.entries[rank].node = node;
        if restored {
            let size = self.nodes.len() as u32;
            self.nodes[rank].links.forget();
            self.entries[rank].address = Some(self.nodes[rank].links.listen(identity(rank as u32, size, node)).unwrap());
        }
        self.publish();
        self.nodes.iter_mut().for_each(|node| node.links.resume());
    }
}

/// Random traffic between all ranks with random disturbances; every message must arrive once, whole and in order.
fn run(nodes: &[u32], seed: u64, rounds: usize) {
    let mut world = World::new(nodes, seed);
    let size = nodes.len();
    let mut sent = vec![vec![0u64; size]; size];
    let mut got = vec![vec![0u64; size]; size];
    // Long messages are read from their buffers until they complete, so the buffers live as long as the test.
    let mut lent: Vec<Vec<u64>> = Vec::new();
    let mut posted: Vec<Vec<Vec<Vec<u64>>>> = vec![vec![Vec::new(); size]; size];
    for round in 0..rounds {
        for _ in 0..4 {
            let (from, to) = (world.draw(size as u64) as usize, world.draw(size as u64) as usize);
            let words = match world.draw(4) {
                0 => 1 + world.draw(80_000),
                _ => 1 + world.draw(500),
            };
            let number = sent[from][to];
            lent.push(vec![number << 8 | from as u64; words as usize]);
            let body = lent.last().unwrap();
            let segments = [Segment { base: body.as_ptr().cast_mut().cast(), len: body.len() * 8 }];
            let to_peer = (to as u32, 0);
            let message = Message { to: to_peer, tag: Some(5), data: None, segments: &segments, context: 0, flags: 0, inject: false };
            let node = &mut world.nodes[from];
            if node.engine.send(&mut node.links, 0, &message).is_ok() {
                sent[from][to] += 1;
                let mut memory = vec![0u64; 80_001];
                let buffers = Buffers::One(Segment { base: memory.as_mut_ptr().cast(), len: memory.len() * 8 });
                let context = from << 32 | number as usize;
                let receive = Receive { tag: Some((5, 0)), source: Some((from as u32, 0)), buffers, context, flags: 0 };
                let node = &mut world.nodes[to];
                node.engine.receive(&mut node.links, 0, receive).unwrap();
                posted[to][from].push(memory);
            }
        }
        world.progress();
        let nodes_now = size as u64;
        match world.draw(12) {
            0 => {
                world.suspend_all();
                world.nodes.iter_mut().for_each(|node| node.links.resume());
            }
            1 => {
                let (rank, node) = (world.draw(nodes_now) as usize, world.draw(nodes_now) as u32);
                world.shift(rank, node, false);
            }
            2 => {
                let (rank, node) = (world.draw(nodes_now) as usize, world.draw(nodes_now) as u32);
                world.shift(rank, node, true);
            }
            _ => {}
        }
        let last = round + 1 == rounds;
        for attempt in 0..if last { 400_000 } else { 1 } {
            for to in 0..size {
                let node = &mut world.nodes[to];
                for done in node.engine.queues.get_mut(node.queue).unwrap().entries.drain(..) {
                    let (from, number) = (done.context >> 32, (done.context & 0xffff_ffff) as u64);
                    assert_eq!(done.error, 0);
                    let memory = &posted[to][from][number as usize];
                    let words = done.len as usize / 8;
                    assert!(memory[..words].iter().all(|word| *word == number << 8 | from as u64), "a message was altered");
                    got[from][to] += 1;
                }
            }
            if !last || got == sent {
                break;
            }
            assert!(attempt < 399_999, "messages are missing: {got:?} of {sent:?}");
            world.progress();
        }
    }
    assert_eq!(got, sent);
}

#[test]
fn neighbours_keep_every_message_through_suspends_and_moves() {
    run(&[0, 0, 0], 11, 150);
}

#[test]
fn distant_ranks_keep_every_message_through_suspends_and_moves() {
    run(&[0, 1, 2], 12, 150);
}

#[test]
fn mixed_ranks_keep_every_message_for_many_seeds() {
    for seed in 20..26 {
        run(&[0, 0, 1, 1], seed, 60);
    }
}

#[test]
fn a_packet_that_the_socket_took_in_part_is_finished_though_nothing_follows() {
    let mut world = World::new(&[0, 1], 3);
    let body = vec![7u8; crate::engine::packet::MAX_PAYLOAD];
    let segments = [Segment::of(&body)];
    let mut packet = Header::new(crate::engine::packet::Kind::Eager);
    packet.payload = body.len() as u32;
    packet.length = body.len() as u64;
    world.nodes[0].links.post(1, &Header::new(crate::engine::packet::Kind::Eager), &[]);
    for _ in 0..1000 {
        world.progress();
    }
    let mut sent = 1;
    // Rank 1 does not read, so the socket fills up, at last in the middle of a packet.
    let torn = |world: &World| world.nodes[0].links.peers[1].outbound.channel_ref().unwrap().unsent();
    while !torn(&world) {
        world.nodes[0].links.post(1, &packet, &segments);
        assert!(world.nodes[0].links.peers[1].queue.is_empty(), "the socket stopped between two packets");
        sent += 1;
    }
    for _ in 0..10_000 {
        world.progress();
    }
    assert!(!torn(&world));
    let mut memory = vec![0u8; body.len()];
    for number in 0..sent {
        let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: memory.len() });
        let receive = Receive { tag: None, source: None, buffers, context: number, flags: 0 };
        let node = &mut world.nodes[1];
        node.engine.receive(&mut node.links, 0, receive).unwrap();
        assert_eq!(node.engine.queues.get_mut(node.queue).unwrap().entries.len(), number + 1, "message {number} is missing");
    }
}

static NUDGES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[test]
fn a_burst_waits_only_if_somebody_will_see_to_it() {
    use std::sync::atomic::Ordering;
    let mut world = World::new(&[0, 1], 4);
    let mut packet = Header::new(crate::engine::packet::Kind::Eager);
    world.nodes[0].links.post(1, &packet, &[]);
    for _ in 0..1000 {
        world.progress();
    }
    let mut burst = |world: &mut World| {
        for _ in 0..2 * BURST {
            packet.tag += 1;
            world.nodes[0].links.post(1, &packet, &[]);
        }
    };
    burst(&mut world);
    assert!(!world.nodes[0].links.peers[1].pending());
    world.nodes[0].links.on_delay(|| {
        NUDGES.fetch_add(1, Ordering::Relaxed);
    });
    world.progress();
    burst(&mut world);
    assert!(world.nodes[0].links.peers[1].pending() && world.nodes[0].links.delayed());
    assert_eq!(NUDGES.load(Ordering::Relaxed), 1);
    world.progress();
    assert!(!world.nodes[0].links.peers[1].pending() && !world.nodes[0].links.delayed());
    for _ in 0..1000 {
        world.progress();
    }
    for _ in 0..=4 * BURST {
        let mut memory = [0u8; 8];
        let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: 8 });
        let node = &mut world.nodes[1];
        node.engine.receive(&mut node.links, 0, Receive { tag: None, source: None, buffers, context: 0, flags: 0 }).unwrap();
    }
    let node = &mut world.nodes[1];
    assert_eq!(node.engine.queues.get_mut(node.queue).unwrap().entries.len(), 4 * BURST as usize + 1);
}

#[test]
fn a_stranger_without_the_secret_is_refused() {
    let mut world = World::new(&[0, 0], 1);
    let mut wrong = Links::default();
    let mut intruder = identity(0, 2, 0);
    intruder.secret = Secret([3; 32]);
    wrong.listen(intruder).unwrap();
    wrong.set_map(JobMap { version: 1, entries: world.entries.clone() });
    wrong.post(1, &Header::new(crate::engine::packet::Kind::Eager), &[]);
    let mut engine = Engine::default();
    for _ in 0..2000 {
        wrong.urgent = true;
        wrong.progress(&mut engine);
        world.progress();
    }
    assert!(world.nodes[1].links.inbound.iter().flatten().next().is_none());
    assert!(!matches!(wrong.peers[1].outbound, Outbound::Open(_)));
}
