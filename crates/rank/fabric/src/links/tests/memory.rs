//! What a peer costs: its share of rings and buffers where it is talked to, nothing where it is not. What libfabric itself takes
//! for the endpoints of `ofi` is its own and not counted.

use super::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HEAP: Cell<isize> = const { Cell::new(0) };
}

/// Counts what each thread takes and gives back; a test has a thread to itself.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    // A thread that ends may free what it held after its counter is gone.
    let _ = HEAP.try_with(|heap| heap.set(heap.get() + bytes));
}

// SAFETY: everything is done by the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that a peer may take at one end.
const ACTIVE_BYTES: usize = 64 << 10;
/// Messages that travel at once over every channel, bytes.
const LENGTH: usize = 4 << 10;
const MESSAGES: usize = 20;

/// Bytes that a world takes: of the heap, and of mappings at each end of each channel.
fn taken(world: &World) -> usize {
    let mapped = |node: &Node| -> usize {
        let outgoing = node.links.peers.iter().filter_map(|peer| peer.outbound.channel_ref()).filter_map(|channel| channel.mapping());
        let incoming = node.links.inbound.iter().flatten().filter_map(|inbound| inbound.channel.mapping());
        outgoing.chain(incoming).map(|(_, length)| length).sum()
    };
    let heap = usize::try_from(HEAP.get()).expect("freed more than was taken");
    heap + world.nodes.iter().map(mapped).sum::<usize>()
}

/// Messages both ways, to the last of them.
fn talk(world: &mut World, one: usize, other: usize) {
    let body = vec![3u8; LENGTH];
    let segments = [Segment::of(&body)];
    let mut memory = vec![0u8; LENGTH];
    for _ in 0..MESSAGES {
        for (from, to) in [(one, other), (other, one)] {
            let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: LENGTH });
            let receive = Receive { tag: Some((5, 0)), source: Some((from as u32, 0)), buffers, context: 1, flags: 0 };
            let node = &mut world.nodes[to];
            node.engine.receive(&mut node.links, 0, receive).unwrap();
            let message =
                Message { to: (to as u32, 0), tag: Some(5), data: None, segments: &segments, context: 2, flags: 0, inject: false };
            let node = &mut world.nodes[from];
            node.engine.send(&mut node.links, 0, &message).unwrap();
            for attempt in 0.. {
                assert!(attempt < 400_000, "a message is missing");
                world.progress();
                let node = &mut world.nodes[to];
                if node.engine.queues.get_mut(node.queue).unwrap().entries.drain(..).any(|done| done.context == 1) {
                    break;
                }
            }
        }
    }
    for _ in 0..100 {
        world.progress();
    }
    world.nodes.iter_mut().for_each(|node| node.engine.queues.get_mut(node.queue).unwrap().entries.clear());
}

/// What a further pair takes at each of its ends in a world whose ranks each talk to somebody already.
fn pair(nodes: &[u32], wishes: Wishes) -> usize {
    let mut world = World::over(nodes, wishes, 1);
    for (one, other) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
        talk(&mut world, one, other);
    }
    let before = taken(&world);
    talk(&mut world, 0, 2);
    let after = taken(&world);
    let open = |node: &Node| node.links.peers.iter().filter(|peer| peer.outbound.channel_ref().is_some()).count();
    assert_eq!(world.nodes.iter().map(open).collect::<Vec<_>>()[..4], [3, 2, 3, 2]);
    assert_eq!(world.nodes[4..].iter().map(open).sum::<usize>(), 0, "a channel that nobody asked for");
    let further = after.saturating_sub(before);
    // The same once more takes nothing.
    talk(&mut world, 0, 2);
    assert!(taken(&world) <= after + 1024, "each message takes {} bytes", (taken(&world) - after) / MESSAGES);
    further / 2
}

fn costs(name: &str, node_of: impl Fn(u32) -> u32, wishes: Wishes, most: usize) {
    let nodes = |ranks: u32| (0..ranks).map(&node_of).collect::<Vec<_>>();
    let (few, many) = (pair(&nodes(4), wishes), pair(&nodes(24), wishes));
    println!("{name}: {few} bytes at each end among 4 ranks, {many} among 24");
    assert!(few > 0 && few <= most, "{few} bytes for a peer that is talked to");
    assert!(many.abs_diff(few) <= 1024, "{few} bytes among 4 ranks, {many} among 24: peers that are not talked to count");
}

#[test]
fn a_neighbour_takes_memory_only_if_it_is_talked_to() {
    costs("shm", |_| 0, DEFAULT, ACTIVE_BYTES);
}

#[test]
fn a_distant_peer_takes_memory_only_if_it_is_talked_to() {
    costs("tcp", |rank| rank, DEFAULT, ACTIVE_BYTES);
}

#[test]
fn a_peer_over_a_core_provider_takes_memory_only_if_it_is_talked_to() {
    costs("ofi", |rank| rank, OFI, ACTIVE_BYTES);
}

#[test]
fn a_peer_that_is_not_talked_to_takes_its_place_in_the_tables_alone() {
    let nodes = |ranks: u32| (0..ranks).collect::<Vec<_>>();
    let of = |ranks: u32| {
        let before = HEAP.get();
        let world = World::new(&nodes(ranks), 1);
        assert_eq!(taken(&world), HEAP.get() as usize, "something is mapped");
        (HEAP.get() - before) as usize
    };
    // Of n ranks each knows n: what grows with the square is what each peer takes.
    let (few, some, many) = (of(8), of(16), of(24));
    let square = (many + few).saturating_sub(2 * some) / 128;
    println!("tables: {square} bytes for each peer");
    assert!((1..=2048).contains(&square), "{square} bytes for a peer that is not talked to");
}
