//! Ranks that go back to nodes which they have left.

use crate::moves::{arrives, migrate, with_nodes};
use crate::world::World;
use mend_job::event::{Effect, Event, Notice};
use mend_messages::daemon::{FromDaemon, NodeRoom};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::progress::{Progress, RankProgress, Step};

/// Both ranks tell ten steps, each of which takes rank 0 and rank 1 so long.
fn steps(world: &mut World, done: &mut u64, step_us: [u64; 2]) {
    for _ in 0..10 {
        *done += 1;
        world.now_us += 1_000_000;
        for rank in [0, 1] {
            let at_us = *done * step_us[rank as usize];
            let progress = Progress { step: Some(Step { done: *done, total: 100_000, at_us }), calls: 0, waited_us: 0, at_us };
            let attempt = world.attempt(rank);
            world.hear(rank, FromDaemon::Progress(vec![RankProgress { rank, attempt, progress }]));
        }
    }
}

fn goes_back(places: Vec<NodeIndex>) -> World {
    with_nodes(3, |setup| {
        setup.goes_back = true;
        setup.places = places;
    })
}

/// Node 0 has one processor, and so many threads run there.
fn busy(world: &mut World, threads: u32) {
    let room = NodeRoom { memory: 1 << 40, processors: 1, load: 100 * threads };
    world.handle(Event::Daemon { node: 0, message: FromDaemon::Pong(room) });
}

fn moves(world: &mut World, rank: Rank, to: Option<&str>, avoid: &[&str]) {
    world.handle(Event::Ask { verb: rank.into(), ask: migrate(rank, to, avoid) });
    arrives(world, rank);
}

/// Those that go back to node 0.
fn gone(world: &mut World) -> Vec<Rank> {
    assert!(world.effects.contains(&Effect::ListDrained), "{:?}", world.effects);
    world.handle(Event::Drained(Vec::new()));
    let goes = |effect: &Effect| match effect {
        Effect::Tell(Notice::GoesBack { rank, to: 0, .. }) => Some(*rank),
        _ => None,
    };
    world.effects.iter().filter_map(goes).collect()
}

#[test]
fn no_more_go_back_to_a_node_than_there_is_room_for() {
    let mut world = goes_back(vec![0, 1]);
    let mut done = 0;
    busy(&mut world, 1);
    steps(&mut world, &mut done, [10_000, 20_000]);
    // One after the other they have the node's one processor for themselves.
    moves(&mut world, 0, None, &["n0"]);
    moves(&mut world, 1, Some("n0"), &[]);
    steps(&mut world, &mut done, [20_000, 10_000]);
    moves(&mut world, 1, None, &["n0"]);
    busy(&mut world, 0);
    steps(&mut world, &mut done, [20_000, 20_000]);
    assert_eq!(gone(&mut world).len(), 1, "{:?}", world.effects);
}

#[test]
fn all_go_back_to_a_node_that_they_shared_though_they_left_it_one_after_the_other() {
    let mut world = goes_back(vec![0, 0]);
    let mut done = 0;
    busy(&mut world, 2);
    steps(&mut world, &mut done, [10_000, 10_000]);
    moves(&mut world, 0, None, &["n0"]);
    busy(&mut world, 1);
    moves(&mut world, 1, None, &["n0"]);
    busy(&mut world, 0);
    steps(&mut world, &mut done, [20_000, 20_000]);
    assert_eq!(gone(&mut world), [0, 1], "{:?}", world.effects);
}
