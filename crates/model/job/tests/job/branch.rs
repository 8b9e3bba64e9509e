//! Checkpoints of a run that was given up, and one in another directory: numbers are not given twice, and only what the job goes on from is named.

use crate::world::World;
use mend_job::event::{Effect, Event};
use mend_job::setup::Setup;
use mend_messages::control::Ask;

/// The number of the checkpoint that is taken next.
fn next_number(change: impl FnOnce(&mut Setup)) -> u64 {
    let mut world = World::of(change);
    world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
    let number = world.effects.iter().find_map(|effect| match effect {
        Effect::Prepare { number, .. } => Some(*number),
        _ => None,
    });
    number.expect("a checkpoint begins")
}

#[test]
fn numbers_that_were_given_up_are_not_given_again() {
    // Three to five were removed since.
    assert_eq!(next_number(|setup| (setup.listed, setup.abandoned) = (vec![1, 2], vec![(2, 5)])), 6);
    assert_eq!(next_number(|setup| (setup.listed, setup.elsewhere) = (vec![1], Some(7))), 8);
    assert_eq!(next_number(|setup| setup.listed = vec![3]), 4);
}

#[test]
fn what_was_given_up_is_not_the_newest() {
    let world = World::of(|setup| (setup.listed, setup.abandoned) = (vec![1, 2, 3], vec![(1, 3)]));
    assert_eq!(world.job.newest_listed(), Some(1));
    let mut world = World::of(|setup| (setup.listed, setup.abandoned) = (vec![2, 3], vec![(1, 3)]));
    assert_eq!(world.job.newest_listed(), None);
    world.handle(Event::Listed(vec![2, 3, 4]));
    assert_eq!(world.job.newest_listed(), Some(4));
}
