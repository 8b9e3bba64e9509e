//! Checkpoints of a run that was given up, and one in another directory: numbers are not given twice, and only what the job goes on from is named.

use crate::world::World;
use mend_job::event::{Effect, Event};
use mend_job::setup::{Adopted, AdoptedImage, Setup, TierSetup};
use mend_messages::agent::{Inspection, Reply, Request, Saved};
use mend_messages::control::Ask;
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::job::Rank;
use mend_messages::tier::{ImageRef, TierOrder, parse_tiers};

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

/// A checkpoint of an earlier life, whole in the shared directory.
fn adopted(number: u64) -> Adopted {
    let image = |rank| ImageRef { number, rank, bytes: 1, checksum: 0, id: Default::default() };
    let of_rank = |rank: Rank| AdoptedImage { image: image(rank), host: format!("n{rank}"), base: None, shared: true };
    Adopted { number, periodic: true, images: (0..2).map(of_rank).collect(), objects: Vec::new() }
}

#[test]
fn in_tiers_what_was_given_up_stays() {
    let mut world = World::of(|setup| {
        let specs = parse_tiers("memory@1,shared@1").unwrap();
        setup.tiers = Some(TierSetup { specs, rate: 0, writers: 1, wide_percent: 0 });
        (setup.listed, setup.abandoned) = (vec![4, 5], vec![(4, 5)]);
        setup.adopted = [4, 5].map(adopted).into();
    });
    world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
    world.take_sent();
    world.handle(Event::Prepared { number: 6, result: Ok(true) });
    // Where images are placed is not told: they are in the shared directory.
    while world.saved().is_none() {
        let mut answers = Vec::new();
        for (_, message) in world.take_sent() {
            match message {
                ToDaemon::Ask(steps) => answers.extend(steps.into_iter().flatten().map(|question| {
                    let reply = match question.request {
                        Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
                        Request::Suspend => Reply::Suspended { us: 1 },
                        Request::KeepFiles(_) => Reply::Kept(Vec::new()),
                        _ => Reply::Resumed { stopped_us: 1 },
                    };
                    (question.seq, question.rank, reply)
                })),
                ToDaemon::Tier(order) => {
                    if let TierOrder::Save { seq, rank, .. } = *order {
                        answers.push((seq, rank, Reply::Saved(Saved::default())));
                    }
                }
                _ => {}
            }
        }
        assert!(!answers.is_empty(), "nothing is asked, and nothing is published");
        answers.into_iter().for_each(|(seq, rank, reply)| world.hear(rank, FromDaemon::Agent { seq, rank, reply }));
    }
    world.handle(Event::Published { number: 6, result: Ok("/c/6".into()) });
    let removed: Vec<u64> = world
        .effects
        .iter()
        .filter_map(|effect| if let Effect::RemoveImages { number, .. } = effect { Some(*number) } else { None })
        .collect();
    assert_eq!(removed, [4]);
}
