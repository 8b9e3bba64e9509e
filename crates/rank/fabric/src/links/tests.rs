//! Several ranks in one process, over real sockets and rings: traffic goes on through suspends, moves and restores.

mod closing;
mod direct;
mod encrypted;
mod ended;
mod hostile;
mod memory;
mod seldom;
mod staying;

use super::*;
use crate::channel::Medium;
use crate::engine::Outlet;
use crate::engine::buffers::Buffers;
use crate::engine::completion::Queue;
use crate::engine::{Binding, Message, Receive};
use mend_fabric_sys::Library;
use mend_messages::job::{MapEntry, Secret};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ffi::CString;
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
    random: ChaCha8Rng,
    encrypted: bool,
}

pub(super) fn identity(rank: u32, size: u32, node: u32) -> Identity {
    Identity { job: [1; 16], secret: Secret([2; 32]), rank, size, node, ip: IpAddr::V4(Ipv4Addr::LOCALHOST), encrypted: false }
}

/// Loads the libfabric that `make setup` installs, as an MPI library does; the port takes one of the same file, but with `MEND_OFI_LIBFABRIC=program`.
fn load_libfabric() {
    let venv = std::env::var("MEND_VENV").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.venv").into());
    let path = format!("{venv}/lib/mpich/libfabric.so.1");
    assert!(Library::load(&CString::new(path.clone()).unwrap()).is_some(), "no libfabric at {path}; run `make setup`");
}

/// What each rank would like its channels to be made of; the last entry is that of all further ranks.
type Wishes<'a> = &'a [&'a [Medium]];
const DEFAULT: Wishes = &[&[Medium::Shm, Medium::Tcp]];
const OFI: Wishes = &[&[Medium::Ofi]];

/// All ranks of all tests are in one process, and an ordinary user's limit on open files may be 1024.
fn raise_limit_on_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

impl World {
    /// Receives so many messages of this length at rank 1: all of them have come there.
    fn have_arrived(&mut self, count: usize, bytes: usize) {
        let mut memory = vec![0u8; bytes];
        let node = &mut self.nodes[1];
        for number in 0..count {
            let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: memory.len() });
            let receive = Receive { tag: None, source: None, buffers, context: number, flags: 0 };
            node.engine.receive(&mut node.links, 0, receive).unwrap();
            assert_eq!(node.engine.queues.get_mut(node.queue).unwrap().entries.len(), number + 1, "message {number} is missing");
        }
    }

    pub fn new(nodes: &[u32], seed: u64) -> Self {
        Self::over(nodes, DEFAULT, seed)
    }

    fn over(nodes: &[u32], wishes: Wishes, seed: u64) -> Self {
        Self::made(nodes, wishes, seed, false)
    }

    fn made(nodes: &[u32], wishes: Wishes, seed: u64, encrypted: bool) -> Self {
        raise_limit_on_files();
        let size = nodes.len() as u32;
        let mut world = Self { nodes: Vec::new(), entries: Vec::new(), version: 0, random: ChaCha8Rng::seed_from_u64(seed), encrypted };
        for (rank, node) in nodes.iter().enumerate() {
            let (mut engine, mut links) = (Engine::default(), Links::default());
            let wish = wishes[rank.min(wishes.len() - 1)];
            links.media.order = Some(wish.to_vec());
            if wishes.iter().any(|wish| wish.contains(&Medium::Ofi)) {
                links.media.provider = std::env::var("MEND_OFI_PROVIDER").unwrap_or_else(|_| "tcp".into());
                links.media.own = !std::env::var("MEND_OFI_LIBFABRIC").is_ok_and(|whose| whose == "program");
                load_libfabric();
            }
            let queue = engine.queues.insert(Queue::default());
            engine.open_endpoint().unwrap();
            let endpoint = engine.endpoint(0).unwrap();
            endpoint.tx = Some(Binding { queue, selective: true });
            endpoint.rx = Some(Binding { queue, selective: false });
            let address = links.listen(Identity { encrypted, ..identity(rank as u32, size, *node) }).unwrap();
            world.entries.push(MapEntry {
                rank: rank as u32,
                node: *node,
                generation: 1,
                open: true,
                address: Some(address),
                ended: false,
            });
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
        self.random.random_range(0..below)
    }

    pub fn progress(&mut self) {
        for node in &mut self.nodes {
            node.links.urgent = true;
            node.links.progress(&mut node.engine);
        }
    }

    /// Opens the channel from rank 0 to rank 1 with an empty message; the header of one of this length.
    fn first_of(&mut self, length: usize) -> Header {
        let mut packet = Header::new(crate::engine::packet::Kind::Eager);
        self.nodes[0].links.post(1, &packet, &[]);
        for _ in 0..1000 {
            self.progress();
        }
        (packet.payload, packet.length) = (length as u32, length as u64);
        packet
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

    /// What a save does after that.
    fn close_ports(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.links.close_port());
        assert!(!self.nodes.iter().any(|node| node.links.port_open()));
    }

    /// Media of the channels that are open now, sending and receiving ends.
    fn over_ports(&self) -> (usize, usize) {
        let outgoing = self.nodes.iter().flat_map(|node| &node.links.peers).filter_map(|peer| peer.outbound.channel_ref());
        let incoming = self.nodes.iter().flat_map(|node| node.links.inbound.iter().flatten());
        (outgoing.filter(|channel| !channel.keeps()).count(), incoming.filter(|inbound| !inbound.channel.keeps()).count())
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
            self.nodes[rank].links.close_port();
            self.nodes[rank].links.forget();
            self.entries[rank].address =
                Some(self.nodes[rank].links.listen(Identity { encrypted: self.encrypted, ..identity(rank as u32, size, node) }).unwrap());
        }
        self.publish();
        self.nodes.iter_mut().for_each(|node| node.links.resume());
    }
}

/// Random traffic between all ranks with random disturbances; every message must arrive once, whole and in order.
/// Returns how many ends of channels over ports there were at most.
fn run(nodes: &[u32], wishes: Wishes, seed: u64, rounds: usize) -> usize {
    disturb(World::over(nodes, wishes, seed), seed, rounds)
}

fn disturb(mut world: World, seed: u64, rounds: usize) -> usize {
    let mut over_ports = 0;
    let size = world.nodes.len();
    // A rank that believes its node crowded reads long messages, on every machine; others do what is faster there.
    world.nodes.iter_mut().enumerate().for_each(|(rank, node)| node.links.crowded = (seed + rank as u64).is_multiple_of(2));
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
        let (outgoing, incoming) = world.over_ports();
        over_ports = over_ports.max(outgoing + incoming);
        match world.draw(12) {
            0 => {
                world.suspend_all();
                if world.draw(2) == 0 {
                    world.close_ports();
                }
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
    over_ports
}

#[test]
fn neighbours_keep_every_message_through_suspends_and_moves() {
    assert_eq!(run(&[0, 0, 0], DEFAULT, 11, 150), 0);
}

#[test]
fn distant_ranks_keep_every_message_through_suspends_and_moves() {
    assert_eq!(run(&[0, 1, 2], DEFAULT, 12, 150), 0);
}

#[test]
fn mixed_ranks_keep_every_message_for_many_seeds() {
    for seed in 20..26 {
        run(&[0, 0, 1, 1], DEFAULT, seed, 60);
    }
}

#[test]
fn a_packet_that_the_socket_took_in_part_is_finished_though_nothing_follows() {
    let mut world = World::new(&[0, 1], 3);
    let body = vec![7u8; crate::engine::packet::MAX_PAYLOAD];
    let segments = [Segment::of(&body)];
    let packet = world.first_of(body.len());
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
    world.have_arrived(sent, body.len());
}

#[test]
fn each_message_that_was_lent_is_given_back() {
    let mut world = World::new(&[0, 1], 5);
    let body = vec![7u8; crate::engine::packet::MAX_PAYLOAD];
    let segments = [Segment::of(&body)];
    let packet = world.first_of(body.len());
    let mut partly = Vec::new();
    for operation in 1..2000 {
        let (one, other) = world.nodes.split_at_mut(1);
        if !one[0].links.lend(1, &packet, &segments, operation) {
            partly.push(operation);
            // The socket has room again, and this rank makes no round before it sends more.
            for _ in 0..50 {
                other[0].links.progress(&mut other[0].engine);
            }
        }
        if partly.len() == 3 {
            break;
        }
    }
    assert_eq!(partly.len(), 3, "the socket took every message whole");
    let links = &world.nodes[0].links;
    let mut found: Vec<u64> = links.finished.iter().chain(&links.peers[1].lent).copied().collect();
    found.sort_unstable();
    assert_eq!(found, partly);
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
        for _ in 0..2 * BURST_PACKETS {
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
    for _ in 0..=4 * BURST_PACKETS {
        let mut memory = [0u8; 8];
        let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: 8 });
        let node = &mut world.nodes[1];
        node.engine.receive(&mut node.links, 0, Receive { tag: None, source: None, buffers, context: 0, flags: 0 }).unwrap();
    }
    let node = &mut world.nodes[1];
    assert_eq!(node.engine.queues.get_mut(node.queue).unwrap().entries.len(), 4 * BURST_PACKETS as usize + 1);
}

#[test]
fn a_core_provider_keeps_every_message_through_suspends_and_moves() {
    for seed in 30..33 {
        assert!(run(&[0, 0, 1], OFI, seed, 100) > 6, "hardly any channel used the provider");
    }
}

#[test]
fn long_messages_over_a_core_provider_are_read_and_not_sent() {
    let mut world = World::over(&[0, 1], OFI, 5);
    let (body, mut memory) = (vec![7u64; 500_000], vec![0u64; 500_000]);
    let segments = [Segment { base: body.as_ptr().cast_mut().cast(), len: body.len() * 8 }];
    let mut message = Message { to: (1, 0), tag: Some(5), data: None, segments: &[], context: 0, flags: 0, inject: false };
    for (number, segments) in [&[] as &[Segment], &segments].into_iter().enumerate() {
        let buffers = Buffers::One(Segment { base: memory.as_mut_ptr().cast(), len: memory.len() * 8 });
        let receive = Receive { tag: Some((5, 0)), source: None, buffers, context: number, flags: 0 };
        message.segments = segments;
        let [sender, receiver] = &mut world.nodes[..] else { panic!("two nodes") };
        sender.engine.send(&mut sender.links, 0, &message).unwrap();
        receiver.engine.receive(&mut receiver.links, 0, receive).unwrap();
        // An offer is made over a channel that is open: the first message opens it.
        let arrived = |world: &mut World| {
            let Node { engine, queue, .. } = &mut world.nodes[1];
            engine.queues.get_mut(*queue).unwrap().entries.len() > number
        };
        for _ in 0..1_000_000 {
            world.progress();
            if arrived(&mut world) {
                break;
            }
        }
        assert!(arrived(&mut world), "message {number} is missing");
    }
    assert_eq!(memory, body);
    assert!(world.nodes[1].links.port_reads() > 0);
}

#[test]
fn rings_and_a_core_provider_keep_every_message_together() {
    let wish: Wishes = &[&[Medium::Shm, Medium::Ofi]];
    for seed in 40..43 {
        assert!(run(&[0, 0, 1, 1], wish, seed, 60) > 2, "hardly any channel used the provider");
    }
}

#[test]
fn ranks_with_different_wishes_keep_every_message() {
    let wishes: Wishes = &[&[Medium::Ofi], &[Medium::Shm, Medium::Tcp], &[Medium::Tcp], &[Medium::Shm, Medium::Ofi]];
    for seed in 50..53 {
        assert!(run(&[0, 0, 1, 1], wishes, seed, 60) > 2, "hardly any channel used the provider");
    }
}

#[test]
fn without_the_core_provider_other_channels_are_used() {
    let mut world = World::over(&[0, 1], OFI, 7);
    world.nodes[1].links.media.provider = "no such provider".into();
    for (from, to) in [(0, 1), (1, 0)] {
        world.nodes[from].links.post(to, &Header::new(crate::engine::packet::Kind::Ack), &[]);
    }
    let open = |node: &Node, peer: usize| matches!(node.links.peers[peer].outbound, Outbound::Open(_));
    for _ in 0..200_000 {
        world.progress();
        if open(&world.nodes[0], 1) && open(&world.nodes[1], 0) {
            break;
        }
    }
    assert!(open(&world.nodes[0], 1), "a refused rank gets no other channel");
    assert!(open(&world.nodes[1], 0), "a rank without a port gets no other channel");
    assert_eq!(world.over_ports(), (0, 0));
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
