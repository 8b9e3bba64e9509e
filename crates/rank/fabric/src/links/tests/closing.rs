//! Endpoints that close while messages of theirs wait: for whom, and for whom not.

use super::*;
use crate::channel::ofi::port::lock;
use crate::closing::{Left, left};
use crate::peer::Outbound;

impl World {
    fn left(&mut self, rank: usize) -> Left {
        let Node { engine, links, .. } = &mut self.nodes[rank];
        left(engine, links, 0)
    }

    fn shut(&mut self, rank: usize) {
        let Node { engine, links, .. } = &mut self.nodes[rank];
        engine.shut_endpoint(links, 0);
    }

    /// Two ranks of which the first closes while messages of its are announced to the other: some short, of which it has copies, and a long one.
    fn announced(body: &[u8]) -> (Self, usize) {
        const SHORT_MESSAGES: usize = 20;
        let mut world = Self::new(&[0, 1], 1);
        world.exchange(0, 1);
        world.nodes.iter_mut().for_each(|node| node.engine.flow.set_limit(8000));
        for _ in 0..SHORT_MESSAGES {
            let segments = [Segment::of(&body[..1000])];
            let message = Message { to: (1, 0), tag: Some(5), data: None, segments: &segments, context: 0, flags: 0, inject: true };
            let node = &mut world.nodes[0];
            node.engine.send(&mut node.links, 0, &message).unwrap();
            (0..10).for_each(|_| world.progress());
        }
        world.send(0, 1, body).unwrap();
        world.shut(0);
        (0..1000).for_each(|_| world.progress());
        assert!(!world.nodes[0].links.owes(), "all is announced");
        (world, SHORT_MESSAGES + 1)
    }
}

#[test]
fn what_was_announced_is_waited_for_until_it_is_received() {
    let body = vec![7; 100_000];
    let (mut world, count) = World::announced(&body);
    let mut memory = vec![vec![0; body.len()]; count];
    for (number, memory) in memory.iter_mut().enumerate() {
        assert_eq!(world.left(0), Left::ForTheLiving, "message {number} is not received");
        world.post(1, 0, memory);
        world.settle("a message", |world| world.received(1) == 1);
    }
    world.settle("nothing is left", |world| world.left(0) == Left::Nothing);
    assert!(memory[..count - 1].iter().all(|memory| memory[..1000] == body[..1000]) && memory[count - 1] == body);
}

#[test]
fn what_was_announced_to_a_rank_that_moves_is_waited_for() {
    for restored in [false, true] {
        let body = vec![7; 100_000];
        let (mut world, count) = World::announced(&body);
        world.shift(1, 2, restored);
        // There is no channel, and nothing waits for one.
        assert!(matches!(world.nodes[0].links.peers[1].outbound, Outbound::Unknown { .. }));
        for _ in 0..1000 {
            world.left(0);
            world.progress();
        }
        assert_eq!(world.left(0), Left::ForTheLiving);
        let mut memory = vec![vec![0; body.len()]; count];
        memory.iter_mut().for_each(|memory| world.post(1, 0, memory));
        world.settle("nothing is left", |world| world.left(0) == Left::Nothing);
        world.settle("the last message", |world| world.received(1) > 0);
        assert!(memory[count - 1] == body);
    }
}

#[test]
fn two_ranks_that_close_do_not_wait_for_each_other() {
    let body = vec![7; 100_000];
    let (mut world, _) = World::announced(&body);
    world.send(1, 0, &body).unwrap();
    (0..100).for_each(|_| world.progress());
    world.shut(1);
    world.settle("nothing is left", |world| world.left(0) == Left::Nothing && world.left(1) == Left::Nothing);
    // Nor for one that has closed.
    let Node { engine, links, .. } = &mut world.nodes[1];
    engine.close_endpoint(links, 0);
    world.nodes[0].engine.close_endpoint(&mut Links::default(), 0);
    assert_eq!(world.nodes[0].engine.open_endpoint(), Some(0));
    world.send(0, 1, &body).unwrap();
    world.shut(0);
    assert_eq!(world.left(0), Left::ForTheLiving);
    world.settle("nothing is left", |world| world.left(0) == Left::Nothing);
}

#[test]
fn a_rank_that_ends_is_not_waited_for() {
    for told in [false, true] {
        let (mut world, _) = World::announced(&[7; 100_000]);
        if told {
            // A process that it has forked holds its sockets.
            world.entries[1].ended = true;
            world.publish();
            assert_eq!(world.left(0), Left::ForTheSilent);
        } else {
            drop(world.nodes.pop());
            world.settle("nothing is left", |world| world.left(0) == Left::Nothing);
        }
    }
}

/// All ranks close their endpoints in the same order, in which one of another number may come later.
#[test]
fn a_message_for_an_endpoint_of_another_number_is_waited_for_by_the_last() {
    let (mut world, _) = World::announced(&[7; 100_000]);
    assert_eq!(world.nodes[0].engine.open_endpoint(), Some(1));
    assert_eq!(world.left(0), Left::ForTheLiving);
    let Node { engine, links, .. } = &mut world.nodes[0];
    let segments = [Segment::of(&[7; 100_000])];
    let message = Message { to: (1, 0), tag: Some(5), data: None, segments: &segments, context: 0, flags: 0, inject: false };
    engine.send(links, 1, &message).unwrap();
    engine.shut_endpoint(links, 1);
    assert_eq!(left(engine, links, 1), Left::ForTheLiving, "it is the last");
    assert_eq!(engine.open_endpoint(), Some(2));
    (0..1000).for_each(|_| world.progress());
    let Node { engine, links, .. } = &mut world.nodes[0];
    assert_eq!(left(engine, links, 1), Left::ForTheSilent);
}

#[test]
fn what_only_the_system_has_is_waited_for() {
    let mut world = World::new(&[0, 1], 1);
    let body = vec![7u8; crate::engine::packet::MAX_PAYLOAD];
    let (packet, segments) = (world.first_of(body.len()), [Segment::of(&body)]);
    let waits = |world: &World| world.nodes[0].links.peers[1].pending();
    while !waits(&world) {
        world.nodes[0].links.post(1, &packet, &segments);
    }
    world.shut(0);
    // The receiver makes room for the rest, and computes again.
    while waits(&world) {
        world.progress();
    }
    assert!(!world.nodes[0].links.owes());
    assert_eq!(world.left(0), Left::ForTheLiving);
    world.settle("nothing is left", |world| world.left(0) == Left::Nothing);
    assert!(world.nodes[1].engine.endpoint(0).is_some());
}

/// The end with the lower address cannot give the other one its first credits.
#[test]
fn what_never_left_over_a_core_provider_goes_another_way() {
    let mut world = World::over(&[0, 1], OFI, 1);
    let addresses = [0, 1].map(|rank| {
        let port = world.nodes[rank].links.port().unwrap();
        lock(&port).stall();
        lock(&port).contact(0).address
    });
    let (from, to) = if addresses[0] > addresses[1] { (0, 1) } else { (1, 0) };
    let mut memory = [[0; 8]; 3];
    for memory in &mut memory {
        world.post(to, from as u32, memory);
        world.send(from, to as u32, b"whatever").unwrap();
    }
    world.settle("a channel", |world| world.over_ports() == (1, 1));
    (0..100).for_each(|_| world.progress());
    assert_eq!(world.received(to), 0);
    let links = &mut world.nodes[to].links;
    let number = links.peers[from].inbound.unwrap();
    let inbound = links.inbound[number as usize].take().unwrap();
    links.drop_inbound(number, *inbound);
    let mut got = 0;
    world.settle("the messages", |world| {
        got += world.received(to);
        got == memory.len()
    });
    assert_eq!(memory, [*b"whatever"; 3]);
    assert!(world.over_ports() == (0, 0) && world.nodes[from].links.losses.is_empty());
}
