//! A job of two ranks whose daemons and agents are the test itself.

use mend_coordination::pmi::PmiServer;
use mend_job::Job;
use mend_job::event::{Effect, Event};
use mend_job::setup::{CheckpointPlan, Moving, NodeSetup, Saving, Setup};
use mend_messages::agent::{Inspection, Reply, Request, SaveMode, Saved};
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_policy::follow::Mode;
use mend_policy::schedule::{Incremental, Interval};
use std::collections::BTreeMap;

/// A request by which a rank starts two others.
pub(crate) const SPAWN: &[u8] = b"mcmd=spawn\nnprocs=2\nexecname=child\ntotspawns=1\nspawnssofar=1\nargcnt=0\nendcmd\n";

/// A job whose effects wait to be looked at.
pub(crate) struct World {
    pub(crate) job: Job,
    pub(crate) now_us: u64,
    pub(crate) effects: Vec<Effect>,
}

impl World {
    /// Two ranks that run on two nodes.
    pub(crate) fn new() -> Self {
        Self::of(|_| {})
    }

    /// Such ones in a job with another setup.
    pub(crate) fn of(change: impl FnOnce(&mut Setup)) -> Self {
        let mut world = Self::beginning(change);
        world.begin_ranks();
        world.effects.clear();
        world
    }

    /// A job whose nodes have heard nothing.
    pub(crate) fn beginning(change: impl FnOnce(&mut Setup)) -> Self {
        let node = |at: u8| NodeSetup { name: format!("n{at}"), address: ([10, 0, 0, at], 7000).into() };
        let plan = CheckpointPlan {
            interval: Interval::Off,
            incremental: Incremental::Off,
            keep: None,
            mtbf_hours: 1,
            averted_percent: 0,
            space_percent: None,
        };
        let mut setup = Setup {
            id: "job".into(),
            identity: [7; 16],
            token_key: [1; 32],
            nodes: vec![node(0), node(1)],
            places: vec![0, 1],
            checkpoints: "/c".into(),
            listed: Vec::new(),
            abandoned: Vec::new(),
            elsewhere: None,
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
        };
        change(&mut setup);
        let (job, effects) = Job::begin(setup, 0);
        Self { job, now_us: 0, effects }
    }

    pub(crate) fn handle(&mut self, event: Event) {
        self.now_us += 1000;
        self.effects.extend(self.job.handle(self.now_us, event));
    }

    pub(crate) fn hear(&mut self, rank: Rank, message: FromDaemon) {
        let node = self.node(rank);
        self.handle(Event::Daemon { node, message });
    }

    pub(crate) fn node(&self, rank: Rank) -> NodeIndex {
        self.job.rank(rank).map_or(0, |state| state.node)
    }

    pub(crate) fn attempt(&self, rank: Rank) -> u64 {
        self.job.rank(rank).map_or(0, |state| state.attempt)
    }

    pub(crate) fn pmi(&mut self, rank: Rank, bytes: &[u8]) {
        self.hear(rank, FromDaemon::Pmi { rank, bytes: bytes.to_vec() });
    }

    /// Processes that were ordered begin to run.
    pub(crate) fn begin_ranks(&mut self) {
        for (_, message) in self.take_sent() {
            if let ToDaemon::Start { rank, attempt, .. } = message {
                self.hear(rank, FromDaemon::Started { rank });
                self.hear(rank, FromDaemon::AgentUp { rank, main_process: true, executable: String::new() });
                let address = FabricAddress { tcp: ([10, 0, 0, 1], 1).into(), unix: String::new() };
                self.hear(rank, FromDaemon::FabricUp { rank, attempt, address });
            }
        }
    }

    pub(crate) fn take_sent(&mut self) -> Vec<(NodeIndex, ToDaemon)> {
        let sent = self.effects.extract_if(.., |effect| matches!(effect, Effect::Send { .. }));
        sent.filter_map(|effect| if let Effect::Send { node, message } = effect { Some((node, message)) } else { None }).collect()
    }

    /// Lines for a rank's PMI client.
    pub(crate) fn lines(&mut self, to: Rank) -> Vec<String> {
        let text = |(_, message)| match message {
            ToDaemon::Pmi { rank, bytes } if rank == to => String::from_utf8(bytes).ok(),
            _ => None,
        };
        self.take_sent().into_iter().filter_map(text).collect()
    }

    /// What agents are asked, and how they answer, until nothing more is asked.
    pub(crate) fn answer_agents(&mut self) -> Vec<(Rank, &'static str)> {
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

    pub(crate) fn saved(&self) -> Option<Vec<Rank>> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Publish(publication) => Some(publication.images.iter().map(|image| image.rank).collect()),
            _ => None,
        })
    }
}

/// What agents and targets are asked next, answered by `reply`.
pub(crate) fn answer_once(world: &mut World, reply: impl Fn(Rank, &Request) -> Reply) -> Vec<(Rank, &'static str)> {
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
            ToDaemon::SaveTo { seq, rank, .. } => {
                asked.push((rank, "save"));
                world.hear(rank, FromDaemon::Agent { seq, rank, reply: Reply::Saved(Saved::default()) });
            }
            _ => {}
        }
    }
    asked
}
