//! The time of a job is up: nothing is in the way of its last checkpoint.

use crate::world::World;
use mend_coordination::failure::Trouble;
use mend_job::event::{Effect, Event};
use mend_messages::control::{Ask, MoveMode};

fn prepares(world: &World) -> bool {
    world.effects.iter().any(|effect| matches!(effect, Effect::Prepare { .. }))
}

#[test]
fn nothing_begins_between_two_tries() {
    let mut world = World::new();
    world.handle(Event::TimeUp { signal: 15 });
    assert!(prepares(&world));
    for ask in [Ask::Migrate { rank: 1, to: None, avoid: Vec::new(), mode: MoveMode::Live, deadline_ms: None }, Ask::Explain] {
        world.handle(Event::Ask { verb: 1, ask });
    }
    world.effects.clear();
    world.take_sent();
    world.handle(Event::Prepared { number: 1, result: Err(Trouble { error: "full".into(), hint: String::new() }) });
    assert_eq!(world.answer_agents(), [], "a rank moves, or is asked something");
    world.now_us = world.job.next_deadline().unwrap();
    world.handle(Event::Time);
    assert!(prepares(&world));
    world.take_sent();
    world.handle(Event::Prepared { number: 1, result: Ok(true) });
    world.answer_agents();
    assert_eq!(world.saved(), Some(vec![0, 1]));
}
