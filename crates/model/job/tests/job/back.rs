//! Ranks that go back to nodes which they have left.

use crate::moves::{arrives, migrate, with_nodes};
use crate::world::World;
use mend_job::event::{Effect, Event, Notice};
use mend_messages::daemon::{FromDaemon, NodeRoom};
use mend_messages::job::Rank;
use mend_messages::progress::{Progress, RankProgress, Step};

/// Both ranks tell ten steps, each of which takes so long.
fn steps(world: &mut World, done: &mut u64, step_us: u64) {
    for _ in 0..10 {
        *done += 1;
        world.now_us += 1_000_000;
        for rank in [0, 1] {
            let at_us = *done * step_us;
            let progress = Progress { step: Some(Step { done: *done, total: 100_000, at_us }), calls: 0, waited_us: 0, at_us };
            let attempt = world.attempt(rank);
            world.hear(rank, FromDaemon::Progress(vec![RankProgress { rank, attempt, progress }]));
        }
    }
}

#[test]
fn no_more_go_back_to_a_node_than_there_is_room_for() {
    let mut world = with_nodes(3, |setup| {
        setup.goes_back = true;
        setup.places = vec![0, 0];
    });
    let mut done = 0;
    steps(&mut world, &mut done, 10_000);
    for rank in [0, 1] {
        world.handle(Event::Ask { verb: rank.into(), ask: migrate(rank, None, &["n0"]) });
        arrives(&mut world, rank);
    }
    let room = NodeRoom { memory: 1 << 40, processors: 1, load: 0 };
    world.handle(Event::Daemon { node: 0, message: FromDaemon::Pong(room) });
    steps(&mut world, &mut done, 20_000);
    assert!(world.effects.contains(&Effect::ListDrained), "{:?}", world.effects);
    world.handle(Event::Drained(Vec::new()));
    let goes = |effect: &Effect| match effect {
        Effect::Tell(Notice::GoesBack { rank, to: 0, .. }) => Some(*rank),
        _ => None,
    };
    let gone: Vec<Rank> = world.effects.iter().filter_map(goes).collect();
    assert_eq!(gone, [0], "{:?}", world.effects);
}
