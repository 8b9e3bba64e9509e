//! Ranks that start others, as the job's machine has it: no world begins in the middle of an operation, nor an operation in the middle of a
//! world's beginning, and a rank that asked is answered.

use crate::world::{SPAWN, World};
use mend_job::event::{Effect, End, Event, Notice, Outcome};
use mend_job::healing::{Healing, HealingRules};
use mend_job::phase::RankPhase;
use mend_messages::control::Ask;
use mend_messages::daemon::{ExitStatus, FromDaemon, ToDaemon};
use mend_messages::job::{NodeIndex, Rank};

#[test]
fn a_world_is_told_to_all_nodes_before_its_ranks_start_and_its_parent_when_they_begin() {
    let mut world = World::new();
    world.pmi(1, SPAWN);
    let sent = world.take_sent();
    let at = |wanted: fn(&ToDaemon) -> bool| sent.iter().position(|(_, message)| wanted(message)).unwrap();
    assert_eq!(sent.iter().filter(|(_, message)| matches!(message, ToDaemon::Grow(_))).map(|(node, _)| *node).collect::<Vec<_>>(), [0, 1]);
    assert!(at(|message| matches!(message, ToDaemon::Grow(_))) < at(|message| matches!(message, ToDaemon::Start { .. })));
    assert_eq!((world.node(2), world.node(3)), (0, 1), "each goes where ranks are fewest");
    world.effects.extend(sent.into_iter().map(|(node, message)| Effect::Send { node, message }));
    world.begin_ranks();
    world.pmi(2, b"cmd=init\n");
    assert_eq!(world.lines(1), [""; 0]);
    world.pmi(3, b"cmd=init\n");
    assert_eq!(world.lines(1), ["cmd=spawn_result rc=0\n"]);
    // It ends, and the job goes on; when all have ended, it ends.
    for rank in [2, 3, 0, 1] {
        assert!(world.job.end_reason().is_none());
        world.pmi(rank, b"cmd=finalize\n");
        let attempt = world.attempt(rank);
        world.hear(rank, FromDaemon::Exited { rank, attempt, status: ExitStatus::Code(0) });
    }
    assert!(world.job.end_reason().is_some());
}

#[test]
fn who_asked_is_told_what_cannot_be_started() {
    let mut world = World::new();
    world.pmi(0, SPAWN);
    world.take_sent();
    let attempt = world.attempt(2);
    let (error, hint) = ("no such file".to_owned(), String::new());
    world.hear(2, FromDaemon::StartFailed { rank: 2, attempt, error, hint, code: 127 });
    let sent = world.take_sent();
    assert!(sent.iter().any(|(node, message)| *node == 1 && *message == ToDaemon::Discard { rank: 3 }), "the other one ends");
    assert!(
        sent.iter().any(|(_, message)| matches!(message, ToDaemon::Pmi { rank: 0, bytes } if bytes.starts_with(b"cmd=spawn_result rc=-1")))
    );
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Tell(Notice::SpawnFailed { rank: 0, .. }))));
    assert!(world.job.end_reason().is_none() && matches!(world.job.rank(3).unwrap().phase, RankPhase::Exited(_)));
    // The next one has other numbers.
    world.pmi(0, SPAWN);
    world.begin_ranks();
    let attempt = world.attempt(5);
    world.hear(5, FromDaemon::Exited { rank: 5, attempt, status: ExitStatus::Code(1) });
    assert!(world.lines(0).concat().starts_with("cmd=spawn_result rc=-1"), "it ended before MPI_Init");
    assert!(world.job.end_reason().is_none());
}

#[test]
fn a_job_with_a_checkpoint_goes_back_to_it_when_a_signal_ends_a_rank_that_has_not_begun() {
    let rules = HealingRules { goes_on: true, in_place: true, retries: 1, waits: false };
    let end_of = |listed: Vec<u64>, status: ExitStatus| {
        let mut world = World::of(|setup| (setup.healing, setup.listed) = (Some(Healing::new(rules)), listed));
        world.pmi(0, SPAWN);
        world.begin_ranks();
        let attempt = world.attempt(3);
        world.hear(3, FromDaemon::Exited { rank: 3, attempt, status });
        let told = world.effects.iter().any(|effect| matches!(effect, Effect::Tell(Notice::SpawnFailed { .. })));
        (world.job.end_reason().cloned(), told)
    };
    assert_eq!(end_of(vec![1], ExitStatus::Signal(9)), (Some(End::RankKilled { rank: 3, signal: 9 }), false));
    // What the program may have meant, or cannot be mended, is its parent's to hear.
    assert_eq!(end_of(vec![1], ExitStatus::Code(1)), (None, true));
    assert_eq!(end_of(vec![], ExitStatus::Signal(9)), (None, true));
}

#[test]
fn a_checkpoint_has_all_ranks_of_a_world_or_none() {
    let mut world = World::new();
    world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
    world.pmi(0, SPAWN);
    assert!(world.job.rank(2).is_none(), "it waits for the checkpoint");
    world.handle(Event::Prepared { number: 1, result: Ok(true) });
    assert!(world.answer_agents().iter().all(|(rank, _)| *rank < 2));
    assert_eq!(world.saved(), Some(vec![0, 1]));
    world.handle(Event::Published { number: 1, result: Ok("/c/1".into()) });
    assert!(world.job.rank(3).is_some(), "then it begins");
    // The next checkpoint waits until its ranks have begun.
    world.effects.clear();
    world.handle(Event::Ask { verb: 2, ask: Ask::Checkpoint { mode: None } });
    assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Prepare { .. })));
    for rank in [2, 3] {
        world.hear(rank, FromDaemon::Started { rank });
        world.hear(rank, FromDaemon::AgentUp { rank, main_process: true, executable: String::new() });
        world.pmi(rank, b"cmd=init\n");
    }
    world.handle(Event::Time);
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Prepare { .. })));
    world.take_sent();
    world.handle(Event::Prepared { number: 2, result: Ok(true) });
    world.answer_agents();
    assert_eq!(world.saved(), Some(vec![0, 1, 2, 3]));
    world.handle(Event::Published { number: 2, result: Ok("/c/2".into()) });
    // Without a rank that has ended.
    world.pmi(2, b"cmd=finalize\n");
    let attempt = world.attempt(2);
    world.hear(2, FromDaemon::Exited { rank: 2, attempt, status: ExitStatus::Code(0) });
    world.effects.clear();
    world.handle(Event::Ask { verb: 3, ask: Ask::Checkpoint { mode: None } });
    let ended = |(_, message): (NodeIndex, ToDaemon)| match message {
        ToDaemon::Map(map) => Some(map.entries.iter().filter(|entry| entry.ended).map(|entry| entry.rank).collect::<Vec<_>>()),
        _ => None,
    };
    assert_eq!(world.take_sent().into_iter().find_map(ended), Some(vec![2]), "its peers know before they drain");
    world.handle(Event::Prepared { number: 3, result: Ok(true) });
    world.answer_agents();
    assert_eq!(world.saved(), Some(vec![0, 1, 3]));
}

#[test]
fn a_rank_of_the_first_world_that_has_finalized_leaves_a_job_that_has_spawned() {
    let mut world = World::new();
    world.pmi(0, SPAWN);
    world.begin_ranks();
    for rank in [2, 3] {
        world.pmi(rank, b"cmd=init\n");
    }
    let ends = |world: &mut World, rank: Rank| {
        let attempt = world.attempt(rank);
        world.hear(rank, FromDaemon::Exited { rank, attempt, status: ExitStatus::Code(0) });
        world.take_sent();
    };
    world.pmi(0, b"cmd=finalize\n");
    ends(&mut world, 0);
    assert!(world.job.end_reason().is_none());
    world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
    world.take_sent();
    world.handle(Event::Prepared { number: 1, result: Ok(true) });
    world.answer_agents();
    assert_eq!(world.saved(), Some(vec![1, 2, 3]));
    world.handle(Event::Published { number: 1, result: Ok("/c/1".into()) });
    // One that has not may be waited for by others.
    ends(&mut world, 1);
    world.effects.clear();
    world.handle(Event::Ask { verb: 2, ask: Ask::Checkpoint { mode: None } });
    assert!(
        world.effects.iter().any(|effect| matches!(effect, Effect::Answer { verb: 2, outcome: Outcome::Failed(_) })),
        "{:?}",
        world.effects
    );
}
