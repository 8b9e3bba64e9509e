//! Operations that begin anew: a rank has ended in their middle, or a file has gone.

use crate::world::{SPAWN, World, answer_once};
use mend_job::event::{Effect, Event, Outcome};
use mend_messages::agent::{Inspection, Reply, Request, Unasked};
use mend_messages::control::{Ask, MoveMode};
use mend_messages::daemon::{ExitStatus, FromDaemon, RestoreBlame, ToDaemon};
use mend_messages::job::Rank;

#[test]
fn a_checkpoint_that_a_spawned_rank_ends_in_is_taken_anew() {
    let mut world = World::new();
    world.pmi(0, SPAWN);
    world.begin_ranks();
    for rank in [2, 3] {
        world.pmi(rank, b"cmd=init\n");
    }
    world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
    world.take_sent();
    world.handle(Event::Prepared { number: 1, result: Ok(true) });
    // A peer sees its end first.
    for (_, message) in world.take_sent() {
        if let ToDaemon::Ask(steps) = message {
            for question in steps.into_iter().flatten() {
                let reply = match question.rank {
                    0 => Reply::Failed { error: "rank 2 closed its channel".into(), hint: String::new() },
                    _ => Reply::Inspected(Inspection::default()),
                };
                world.hear(question.rank, FromDaemon::Agent { seq: question.seq, rank: question.rank, reply });
            }
        }
    }
    let answered = |world: &World| world.effects.iter().any(|effect| matches!(effect, Effect::Answer { outcome: Outcome::Failed(_), .. }));
    assert!(!answered(&world), "it waits for the rank's end");
    world.pmi(2, b"cmd=finalize\n");
    let attempt = world.attempt(2);
    world.effects.clear();
    world.hear(2, FromDaemon::Exited { rank: 2, attempt, status: ExitStatus::Code(0) });
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Prepare { .. })), "{:?}", world.effects);
    world.take_sent();
    world.handle(Event::Prepared { number: 1, result: Ok(true) });
    world.answer_agents();
    assert_eq!(world.saved(), Some(vec![0, 1, 3]));
}

#[test]
fn a_move_that_a_spawned_peer_ends_in_begins_anew() {
    for ends in [true, false] {
        let mut world = World::new();
        world.pmi(0, SPAWN);
        world.begin_ranks();
        for rank in [2, 3] {
            world.pmi(rank, b"cmd=init\n");
        }
        world.take_sent();
        let ask = Ask::Migrate { rank: 1, to: Some("n0".into()), avoid: Vec::new(), mode: MoveMode::Frozen, deadline_ms: None };
        world.handle(Event::Ask { verb: 1, ask });
        let reply = |rank, request: &Request| match request {
            Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
            Request::Suspend => Reply::Suspended { us: 1 },
            Request::SuspendPeer(_) if rank == 2 => Reply::Unasked(Unasked::Left),
            Request::SuspendPeer(_) => Reply::Suspended { us: 1 },
            _ => Reply::Resumed { stopped_us: 1 },
        };
        assert_eq!(answer_once(&mut world, reply), [(1, "inspect")]);
        assert_eq!(answer_once(&mut world, reply), [(1, "compare")]);
        assert_eq!(answer_once(&mut world, reply), [(0, "suspend-peer"), (2, "suspend-peer"), (1, "suspend"), (3, "suspend-peer")]);
        while !answer_once(&mut world, reply).is_empty() {}
        let failed =
            |world: &World| world.effects.iter().any(|effect| matches!(effect, Effect::Answer { outcome: Outcome::Failed(_), .. }));
        assert!(!failed(&world), "it waits for the rank's end");
        if ends {
            world.pmi(2, b"cmd=finalize\n");
            let attempt = world.attempt(2);
            world.hear(2, FromDaemon::Exited { rank: 2, attempt, status: ExitStatus::Code(0) });
            assert_eq!(answer_once(&mut world, reply), [(1, "inspect")]);
            assert_eq!(answer_once(&mut world, reply), [(1, "compare")]);
            assert_eq!(answer_once(&mut world, reply), [(0, "suspend-peer"), (1, "suspend"), (3, "suspend-peer")]);
            assert!(!failed(&world));
        } else {
            world.now_us = world.job.next_deadline().unwrap();
            world.handle(Event::Time);
            assert!(failed(&world), "the rank has not ended");
            assert_eq!(answer_once(&mut world, reply), []);
        }
    }
}

#[test]
fn a_move_whose_target_misses_a_file_begins_anew() {
    let reply = |_, request: &Request| match request {
        Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
        Request::Suspend | Request::SuspendPeer(_) => Reply::Suspended { us: 1 },
        _ => Reply::Resumed { stopped_us: 1 },
    };
    let failed = |world: &World| world.effects.iter().any(|effect| matches!(effect, Effect::Answer { outcome: Outcome::Failed(_), .. }));
    let phases: [&[(Rank, &str)]; 3] = [&[(1, "inspect")], &[(1, "compare")], &[(0, "suspend-peer"), (1, "suspend")]];
    for (blame, times) in [(RestoreBlame::Files, 9), (RestoreBlame::Other, 1)] {
        let mut world = World::new();
        let ask = Ask::Migrate { rank: 1, to: Some("n0".into()), avoid: Vec::new(), mode: MoveMode::Frozen, deadline_ms: None };
        world.handle(Event::Ask { verb: 1, ask });
        for time in 1..=times {
            for expected in phases {
                assert_eq!(answer_once(&mut world, reply), expected, "time {time}");
            }
            let order = world.effects.iter().find_map(|effect| match effect {
                Effect::Send { node: 0, message: ToDaemon::Restore { attempt, .. } } => Some(*attempt),
                _ => None,
            });
            let attempt = order.expect("its target is to build it");
            assert_eq!(answer_once(&mut world, reply), [(1, "save")]);
            let message = FromDaemon::RestoreFailed { rank: 1, attempt, error: "x is gone".into(), hint: String::new(), blame };
            world.handle(Event::Daemon { node: 0, message });
            assert_eq!(answer_once(&mut world, reply), [(0, "resume"), (1, "resume")]);
            assert_eq!(failed(&world), time == times, "time {time}");
        }
        assert_eq!(answer_once(&mut world, reply), []);
    }
}
