//! Ranks that start others, as the job's machine has it: no world begins in the middle of an operation, nor an operation in the middle of a
//! world's beginning, and a rank that asked is answered.

use mend_coordination::pmi::PmiServer;
use mend_job::Job;
use mend_job::event::{Effect, Event, Notice, Outcome};
use mend_job::phase::RankPhase;
use mend_job::setup::{CheckpointPlan, Moving, NodeSetup, Saving, Setup};
use mend_messages::agent::{Inspection, Reply, Request, SaveMode, Saved, Unasked};
use mend_messages::control::{Ask, MoveMode};
use mend_messages::daemon::{ExitStatus, FromDaemon, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_policy::follow::Mode;
use mend_policy::schedule::{Incremental, Interval};
use std::collections::BTreeMap;

const SPAWN: &[u8] = b"mcmd=spawn\nnprocs=2\nexecname=child\ntotspawns=1\nspawnssofar=1\nargcnt=0\nendcmd\n";

/// A job whose effects wait to be looked at.
struct World {
    job: Job,
    now_us: u64,
    effects: Vec<Effect>,
}

impl World {
    /// Two ranks that run on two nodes.
    fn new() -> Self {
        let node = |at: u8| NodeSetup { name: format!("n{at}"), address: ([10, 0, 0, at], 7000).into() };
        let plan = CheckpointPlan {
            interval: Interval::Off,
            incremental: Incremental::Off,
            keep: None,
            mtbf_hours: 1,
            averted_percent: 0,
            space_percent: None,
        };
        let (job, effects) = Job::begin(
            Setup {
                id: "job".into(),
                identity: [7; 16],
                token_key: [1; 32],
                nodes: vec![node(0), node(1)],
                places: vec![0, 1],
                checkpoints: "/c".into(),
                listed: Vec::new(),
                adopted: Vec::new(),
                plan,
                tiers: None,
                saving: Saving { mode: SaveMode::Stop, rate: None, keep_files: 0 },
                moving: Moving { threshold: 1, rounds: 1, transport: mend_messages::chunks::TransportWord::Tcp },
                drain_timeout_us: 1_000_000,
                node_timeout_us: 10_000_000,
                reserve: 0,
                restarts: Default::default(),
                rates: BTreeMap::new(),
                program_rates: None,
                goes_back: false,
                follows_data: Mode::Off,
                time_left_s: None,
                worlds: PmiServer::new(2, &[7; 16]).into(),
                gone: Vec::new(),
                stdin: false,
                restoring: None,
                healing: None,
            },
            0,
        );
        let mut world = Self { job, now_us: 0, effects };
        world.begin_ranks();
        world.effects.clear();
        world
    }

    fn handle(&mut self, event: Event) {
        self.now_us += 1000;
        self.effects.extend(self.job.handle(self.now_us, event));
    }

    fn hear(&mut self, rank: Rank, message: FromDaemon) {
        let node = self.node(rank);
        self.handle(Event::Daemon { node, message });
    }

    fn node(&self, rank: Rank) -> NodeIndex {
        self.job.rank(rank).map_or(0, |state| state.node)
    }

    fn attempt(&self, rank: Rank) -> u64 {
        self.job.rank(rank).map_or(0, |state| state.attempt)
    }

    fn pmi(&mut self, rank: Rank, bytes: &[u8]) {
        self.hear(rank, FromDaemon::Pmi { rank, bytes: bytes.to_vec() });
    }

    /// Processes that were ordered begin to run.
    fn begin_ranks(&mut self) {
        for (_, message) in self.take_sent() {
            if let ToDaemon::Start { rank, attempt, .. } = message {
                self.hear(rank, FromDaemon::Started { rank });
                self.hear(rank, FromDaemon::AgentUp { rank, main_process: true, executable: String::new() });
                let address = FabricAddress { tcp: ([10, 0, 0, 1], 1).into(), unix: String::new() };
                self.hear(rank, FromDaemon::FabricUp { rank, attempt, address });
            }
        }
    }

    fn take_sent(&mut self) -> Vec<(NodeIndex, ToDaemon)> {
        let sent = self.effects.extract_if(.., |effect| matches!(effect, Effect::Send { .. }));
        sent.filter_map(|effect| if let Effect::Send { node, message } = effect { Some((node, message)) } else { None }).collect()
    }

    /// Lines for a rank's PMI client.
    fn lines(&mut self, to: Rank) -> Vec<String> {
        let text = |(_, message)| match message {
            ToDaemon::Pmi { rank, bytes } if rank == to => String::from_utf8(bytes).ok(),
            _ => None,
        };
        self.take_sent().into_iter().filter_map(text).collect()
    }

    /// What agents are asked, and how they answer, until nothing more is asked.
    fn answer_agents(&mut self) -> Vec<(Rank, &'static str)> {
        let mut asked = Vec::new();
        loop {
            let questions: Vec<_> = self
                .take_sent()
                .into_iter()
                .filter_map(|(_, message)| if let ToDaemon::Ask(steps) = message { Some(steps) } else { None })
                .collect();
            if questions.is_empty() {
                return asked;
            }
            for question in questions.into_iter().flatten().flatten() {
                let reply = match &question.request {
                    Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
                    Request::Suspend => Reply::Suspended { us: 1 },
                    Request::Save(_) => Reply::Saved(Saved::default()),
                    Request::KeepFiles(_) => Reply::Kept(Vec::new()),
                    Request::Resume => Reply::Resumed { stopped_us: 1 },
                    other => panic!("{other:?}"),
                };
                asked.push((question.rank, question.request.kind()));
                self.hear(question.rank, FromDaemon::Agent { seq: question.seq, rank: question.rank, reply });
            }
        }
    }

    fn saved(&self) -> Option<Vec<Rank>> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Publish(publication) => Some(publication.images.iter().map(|image| image.rank).collect()),
            _ => None,
        })
    }
}

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

/// What agents and targets are asked next, answered by `reply`.
fn answer_once(world: &mut World, reply: impl Fn(Rank, &Request) -> Reply) -> Vec<(Rank, &'static str)> {
    let mut asked = Vec::new();
    for (node, message) in world.take_sent() {
        match message {
            ToDaemon::Ask(steps) => {
                for question in steps.into_iter().flatten() {
                    asked.push((question.rank, question.request.kind()));
                    let reply = reply(question.rank, &question.request);
                    world.hear(question.rank, FromDaemon::Agent { seq: question.seq, rank: question.rank, reply });
                }
            }
            ToDaemon::Compare { seq, rank, .. } => {
                asked.push((rank, "compare"));
                world.handle(Event::Daemon { node, message: FromDaemon::Agent { seq, rank, reply: Reply::Compared(Vec::new()) } });
            }
            _ => {}
        }
    }
    asked
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
