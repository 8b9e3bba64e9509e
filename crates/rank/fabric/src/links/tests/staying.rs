//! A rank that was to move, and stays: the map is published anew, and says what it said.

use super::*;
use crate::channel::ChannelError;
use crate::engine::packet::MAX_PAYLOAD;
use std::time::Duration;

impl World {
    fn stays(&mut self) {
        self.publish();
        self.nodes.iter_mut().for_each(|node| node.links.resume());
    }
}

#[test]
fn what_had_not_drained_arrives() {
    for nodes in [[0, 0], [0, 1]] {
        let mut world = World::new(&nodes, 1);
        let body = vec![7u8; MAX_PAYLOAD];
        let (packet, segments) = (world.first_of(body.len()), [Segment::of(&body)]);
        let mut sent = 1;
        // Rank 1 computes.
        while !world.nodes[0].links.peers[1].pending() {
            world.nodes[0].links.post(1, &packet, &segments);
            sent += 1;
        }
        world.nodes[0].links.begin_suspend_peer(1).unwrap();
        world.nodes[0].links.drain_step();
        assert!(!world.nodes[0].links.peer_drained(1));
        world.stays();
        (0..10_000).for_each(|_| world.progress());
        world.have_arrived(sent, body.len());
    }
}

#[test]
fn a_channel_that_broke_stays_lost_and_is_told_of() {
    let mut world = World::new(&[0, 1], 1);
    world.first_of(0);
    world.nodes[0].links.lose(1, &ChannelError::Closed);
    world.nodes[0].links.begin_suspend_peer(1).unwrap();
    assert_eq!(world.nodes[0].links.lost(), [1]);
    world.stays();
    (0..1000).for_each(|_| world.progress());
    assert!(matches!(world.nodes[0].links.peers[1].outbound, Outbound::Lost { .. }));
    let (losses, more) = world.nodes[0].links.losses(Duration::ZERO);
    assert_eq!((losses.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), more), (vec![1], false));
}
