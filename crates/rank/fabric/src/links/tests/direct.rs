//! One-sided operations of neighbours: without the target where it has granted that, and never when they must not be.

use super::*;
use crate::engine::{Begun, Region, Transfer};
use mend_fabric_sys::{FI_COMPLETION, FI_EACCES, FI_EAGAIN, FI_ENOKEY, FI_REMOTE_READ, FI_REMOTE_WRITE};

const KEY: u64 = 7;

impl World {
    fn expose(&mut self, rank: usize, memory: &mut [u64]) {
        let region = Region { base: memory.as_mut_ptr() as usize, len: memory.len() * 8, access: FI_REMOTE_READ | FI_REMOTE_WRITE };
        self.nodes[rank].engine.register(KEY, region).unwrap();
    }

    fn close(&mut self, rank: usize) {
        let Node { engine, links, .. } = &mut self.nodes[rank];
        engine.unregister(links, KEY);
    }

    /// Begins an operation of one rank on words of the other's region, and goes on with it while nobody else does anything.
    fn begin(&mut self, write: bool, from: usize, to: usize, first: usize, words: &mut [u64]) -> Result<Begun, i32> {
        let segments = [Segment { base: words.as_mut_ptr().cast(), len: words.len() * 8 }];
        let Node { engine, links, .. } = &mut self.nodes[from];
        let (to, address) = ((to as u32, 0), first as u64 * 8);
        let mut transfer =
            Transfer { to, key: KEY, address, segments: &segments, data: None, context: 3, flags: FI_COMPLETION, inject: false, done: 0 };
        loop {
            let begin = if write { Engine::write } else { Engine::read };
            match begin(engine, links, 0, &transfer)? {
                Begun::Partly(done) => transfer.done = done,
                begun => return Ok(begun),
            }
        }
    }

    /// Errors of the operations of a rank that are over.
    fn ended(&mut self, rank: usize) -> Vec<i32> {
        let node = &mut self.nodes[rank];
        node.engine.queues.get_mut(node.queue).unwrap().entries.drain(..).filter(|done| done.context == 3).map(|done| done.error).collect()
    }

    /// One operation to its end: its error, and whether the target took part.
    fn access(&mut self, write: bool, from: usize, to: usize, first: usize, words: &mut [u64]) -> (i32, bool) {
        let begun = self.begin(write, from, to, first, words).unwrap();
        for _ in 0..200_000 {
            if let [error] = self.ended(from)[..] {
                return (error, begun == Begun::Waits);
            }
            self.progress();
        }
        panic!("an operation does not end");
    }

    fn accesses(&self) -> usize {
        self.nodes.iter().map(|node| node.links.accesses).sum()
    }

    /// Until the grant has been given: the first opens the channel, the second asks.
    fn acquaint(&mut self, from: usize, to: usize) {
        for attempt in 0.. {
            assert!(attempt < 4, "never granted");
            if self.access(false, from, to, 0, &mut [0]) == (0, false) {
                return;
            }
        }
    }
}

const DIRECT: (i32, bool) = (0, false);
const PACKETS: (i32, bool) = (0, true);

#[test]
fn a_neighbour_is_reached_without_its_taking_part() {
    let mut world = World::new(&[0, 0], 1);
    let mut memory = vec![0u64; 1 << 19];
    world.expose(1, &mut memory);
    world.acquaint(0, 1);
    // Longer than what is done in one go.
    let mut words: Vec<u64> = (1..300_001).collect();
    let begun = world.begin(true, 0, 1, 5, &mut words);
    assert!(begun == Ok(Begun::Complete) && world.ended(0) == [0] && memory[5..300_005] == words);
    words.fill(0);
    assert_eq!(world.begin(false, 0, 1, 6, &mut words[..299_999]), Ok(Begun::Complete));
    assert!(world.ended(0) == [0] && words[..299_999] == memory[6..300_005]);
    // Outside of the region the target says what is wrong.
    assert_eq!(world.access(true, 0, 1, 1 << 19, &mut [1]), (FI_EACCES, true));
    // A signal to the target's program comes by packets.
    let segments = [Segment::of(&[1; 8])];
    let transfer = Transfer {
        to: (1, 0),
        key: KEY,
        address: 0,
        segments: &segments,
        data: Some(6),
        context: 3,
        flags: FI_COMPLETION,
        inject: false,
        done: 0,
    };
    let Node { engine, links, .. } = &mut world.nodes[0];
    assert_eq!(engine.write(links, 0, &transfer), Ok(Begun::Waits));
    // What follows it keeps the order.
    assert_eq!(world.begin(true, 0, 1, 0, &mut [2]), Ok(Begun::Waits));
    let mut ends = Vec::new();
    for _ in 0..200_000 {
        world.progress();
        ends.extend(world.ended(0));
    }
    assert_eq!((ends, memory[0]), (vec![0, 0], 2));
    assert_eq!(world.access(true, 0, 1, 0, &mut [3]), DIRECT);
}

#[test]
fn a_rank_of_another_node_is_not() {
    let mut world = World::new(&[0, 1], 1);
    let mut memory = vec![0u64; 8];
    world.expose(1, &mut memory);
    for _ in 0..4 {
        assert_eq!(world.access(true, 0, 1, 0, &mut [4]), PACKETS);
    }
    assert_eq!((memory[0], world.accesses()), (4, 0));
}

/// The key of a region that was closed leads to what is exposed under it now, or to nothing.
#[test]
fn a_closed_region_is_reached_no_more() {
    let mut world = World::new(&[0, 0], 1);
    let (mut old, mut new) = (vec![1u64; 8], vec![2u64; 8]);
    world.expose(1, &mut old);
    world.acquaint(0, 1);
    world.close(1);
    assert_eq!(world.access(true, 0, 1, 0, &mut [9]), (FI_ENOKEY, true));
    world.expose(1, &mut new);
    let mut word = [0];
    assert_eq!((world.access(false, 0, 1, 0, &mut word), word), (PACKETS, [2]));
    world.acquaint(0, 1);
    assert_eq!((world.access(true, 0, 1, 0, &mut [9]), new[0], old[0]), (DIRECT, 9, 1));
}

#[test]
fn nothing_is_touched_while_a_rank_is_suspended() {
    let mut world = World::new(&[0, 0], 1);
    let mut memory = vec![0u64; 8];
    world.expose(1, &mut memory);
    world.acquaint(0, 1);
    // A checkpoint. The origin is resumed first; its target is still being saved.
    world.suspend_all();
    assert_eq!(world.begin(true, 0, 1, 0, &mut [1]), Err(FI_EAGAIN));
    world.nodes[0].links.resume();
    assert_eq!(world.begin(true, 0, 1, 0, &mut [1]), Err(FI_EAGAIN));
    assert_eq!(memory[0], 0);
    world.nodes[1].links.resume();
    // What was granted before is so still: the target need not be in its MPI library again.
    assert_eq!((world.begin(true, 0, 1, 0, &mut [2]), world.ended(0), memory[0]), (Ok(Begun::Complete), vec![0], 2));
    // It moves away, and back.
    world.nodes[0].links.begin_suspend_peer(1).unwrap();
    assert_eq!(world.begin(true, 0, 1, 0, &mut [3]), Ok(Begun::Waits));
    world.shift(1, 1, true);
    for _ in 0..200_000 {
        if world.ended(0) == [0] {
            break;
        }
        world.progress();
    }
    assert_eq!((world.access(true, 0, 1, 0, &mut [4]), memory[0]), (PACKETS, 4));
    world.shift(1, 0, true);
    world.acquaint(0, 1);
    assert_eq!((world.access(true, 0, 1, 0, &mut [5]), memory[0]), (DIRECT, 5));
}

/// A rank that is told to suspend between its question and the answer has its grant afterwards.
#[test]
fn a_grant_that_comes_while_the_channel_is_drained_counts() {
    let mut world = World::new(&[0, 0], 1);
    let mut memory = vec![0u64; 8];
    world.expose(1, &mut memory);
    assert_eq!(world.access(true, 0, 1, 0, &mut [1]), PACKETS);
    assert_eq!(world.begin(true, 0, 1, 0, &mut [2]), Ok(Begun::Waits));
    for rank in [0, 1] {
        let Node { engine, links, .. } = &mut world.nodes[rank];
        links.urgent = true;
        links.progress(engine);
    }
    world.suspend_all();
    world.nodes.iter_mut().for_each(|node| node.links.resume());
    assert_eq!((world.ended(0), memory[0]), (vec![0], 2));
    assert_eq!((world.access(true, 0, 1, 0, &mut [3]), memory[0]), (DIRECT, 3));
}

/// Random reads and writes among neighbours and others, whose regions are closed and exposed anew elsewhere while they are
/// suspended, moved and restored: each operation finds what the operations before it have left, or hears that there is nothing.
fn run(nodes: &[u32], seed: u64) -> usize {
    const WORDS: usize = 40_000;
    let (mut world, size) = (World::new(nodes, seed), nodes.len());
    // What was exposed once stays, so that what touches it too late would be seen.
    let mut homes: Vec<Vec<Vec<u64>>> = (0..size).map(|_| vec![vec![0; WORDS]]).collect();
    let mut said = vec![vec![0u64; WORDS]; size];
    let mut old: Vec<Vec<Vec<u64>>> = vec![Vec::new(); size];
    let mut open = vec![true; size];
    (0..size).for_each(|rank| world.expose(rank, &mut homes[rank][0]));
    for number in 1..300 {
        let (from, to) = (world.draw(size as u64) as usize, world.draw(size as u64) as usize);
        let length = [1, 700, 30_000][world.draw(3) as usize];
        let first = world.draw((WORDS - length) as u64) as usize;
        let write = world.draw(2) == 0;
        let mut words = vec![number; length];
        match (world.access(write, from, to, first, &mut words), open[to]) {
            ((0, _), true) if write => said[to][first..first + length].fill(number),
            ((0, _), true) => assert!(words == said[to][first..first + length], "operation {number} read something else"),
            // Packets of a long write that was refused may still be on their way, and another region have that key soon.
            ((FI_ENOKEY, true), false) => (0..50).for_each(|_| world.progress()),
            (outcome, open) => panic!("operation {number}: {outcome:?}, region open: {open}"),
        }
        let rank = world.draw(size as u64) as usize;
        match world.draw(16) {
            0 if open[rank] => {
                world.close(rank);
                open[rank] = false;
                let home = homes[rank].last().unwrap();
                assert!(*home == said[rank]);
                old[rank].push(home.clone());
            }
            0 | 1 if !open[rank] => {
                said[rank].fill(number << 32);
                homes[rank].push(said[rank].clone());
                world.expose(rank, homes[rank].last_mut().unwrap());
                open[rank] = true;
            }
            2 => {
                world.suspend_all();
                world.nodes.iter_mut().for_each(|node| node.links.resume());
            }
            3 => {
                let node = world.draw(size as u64) as u32;
                let restored = world.draw(2) == 0;
                world.shift(rank, node, restored);
            }
            _ => {}
        }
    }
    for rank in 0..size {
        assert!(old[rank].iter().zip(&homes[rank]).all(|(then, now)| then == now), "a region was touched after its end");
    }
    world.accesses()
}

#[test]
fn regions_hold_what_was_written_through_suspends_and_moves() {
    let direct: usize = (1..12).map(|seed| run(&[0, 0, 0], seed) + run(&[0, 0, 1], seed)).sum();
    assert!(direct > 200, "only {direct} operations were direct");
}
