//! What the machine of the job on a node wants is done, as its daemon would, in a world where processes and agents are contracts.
//!
//! What is asserted: the machine is the same after it was written down; when the lease is over it has let go of its ranks.

use super::World;
use super::daemon::LATE_ERROR;
use crate::agent::failed;
use crate::coming::{Coming, NODE_TIMEOUT_US, SECOND_US};
use crate::feeder::Feeder;
use crate::node::{Phase, Process, node_at};
use mend_messages::agent::{FromAgent, Hello, ImageId, Reply, Request};
use mend_messages::daemon::{ExitStatus, FromDaemon, RestoreBlame, RestoreSource, Way};
use mend_messages::health::NodeHealth;
use mend_messages::job::Rank;
use mend_node_job::NodeJob;
use mend_node_job::event::{Effect, End, Event, FileOrder, Origin, Preparation, Setup, Word};
use std::collections::VecDeque;

/// The lease of jobs on nodes.
pub(super) const LEASE_US: u64 = NODE_TIMEOUT_US;

impl World {
    /// A life of the job begins on a node.
    pub(crate) fn job_comes_to(&mut self, at: usize) {
        let (size, health) = (self.size, NodeHealth::default());
        let standing = self.standing_agents(at);
        let (mut job, _) = NodeJob::begin(Setup { size, lease_us: LEASE_US, health, standing, watches_traffic: false });
        if let Some(safeguard) = self.options.on_nodes {
            job.sabotage(safeguard);
        }
        (self.nodes[at].job, self.nodes[at].begun) = (Some(job), self.now);
    }

    /// A node's machine is told, and what it wants is done.
    pub(crate) fn tell_node(&mut self, at: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now_us = self.now - self.nodes[at].begun;
            if !self.nodes[at].up || self.nodes[at].leaving {
                return;
            }
            if self.options.trace {
                eprintln!("{:>12}   n{at} {event:?}", self.now);
            }
            self.nodes[at].told += 1;
            let Some(job) = &mut self.nodes[at].job else { return };
            let effects = job.handle(now_us, event);
            if self.nodes[at].told.is_multiple_of(16) {
                self.write_down(at);
            }
            for effect in effects {
                if self.options.trace {
                    eprintln!("{:>12}   n{at} => {effect:?}", self.now);
                }
                events.extend(self.do_on_node(at, effect));
            }
        }
    }

    fn write_down(&mut self, at: usize) {
        let Some(job) = &mut self.nodes[at].job else { return };
        let read: Result<NodeJob, _> = postcard::to_allocvec(job).and_then(|bytes| postcard::from_bytes(&bytes));
        match read {
            Ok(read) if read == *job => *job = read,
            _ => self.found_on_node = Some(format!("the machine of node {at} is another after it was written down and read back")),
        }
    }

    /// What the machine is told of it.
    fn do_on_node(&mut self, at: usize, effect: Effect) -> Vec<Event> {
        let life = self.nodes[at].connection;
        match effect {
            Effect::Send(message) => self.say(at, message),
            Effect::Refuse { seq, rank, why } => self.say(at, FromDaemon::Agent { seq, rank, reply: failed(&format!("{why:?}")) }),
            Effect::NotAdmitted { rank, attempt, restore: true, why } => {
                self.restore_failed(at, (rank, attempt), &format!("{why:?}"), RestoreBlame::Other)
            }
            Effect::NotAdmitted { rank, attempt, restore: false, why } => {
                self.say(at, FromDaemon::StartFailed { rank, attempt, error: format!("{why:?}"), hint: String::new(), code: 1 });
            }
            Effect::StartSuccessor { silent } => return vec![self.start_successor(at, silent)],
            Effect::Begin { rank, attempt, stdin, origin } => return self.begin_process(at, (rank, attempt), stdin, origin),
            Effect::Anew { rank, attempt, order } => return self.begins_anew(at, (rank, attempt), order),
            Effect::DropStanding(ranks) => self.nodes[at].standing.ranks.retain(|rank, _| !ranks.contains(rank)),
            Effect::Tell { rank, word } => self.tell_process(at, rank, word),
            Effect::Release { rank, attempt } => self.release(at, rank, attempt),
            Effect::Ask { agent, rank, number, request, .. } => {
                if let Some(process) = self.process(at, rank, agent) {
                    process.questions.push(number);
                    self.hand_to_agent(at, rank, agent, (number, request));
                }
            }
            Effect::Prepare { number, rank, what } => self.prepare(at, number, rank, what),
            Effect::Answer { seq, rank, reply } => self.say(at, FromDaemon::Agent { seq, rank, reply }),
            Effect::Keep { seq, rank, reply, .. } => {
                let good = !reply.is_failure();
                self.say(at, FromDaemon::Agent { seq, rank, reply });
                return vec![Event::Kept { seq, good }];
            }
            Effect::Written { rank, image, result, .. } => {
                let result = result.map_err(mend_messages::agent::Unwritten::Failed);
                self.say(at, FromDaemon::Written { rank, id: image, result });
            }
            Effect::Compare { seq, rank, needs } => {
                let fails = self.fails(40);
                let found = self.differences.compare(at, &needs);
                let reply = if fails { failed("it cannot restore ranks") } else { Reply::Compared(found) };
                self.say(at, FromDaemon::Agent { seq, rank, reply });
            }
            Effect::Tier(order) => return self.obey_tier(at, *order).into_iter().collect(),
            Effect::Leave(end) => self.leave(life, at, end),
            Effect::Pong
            | Effect::Renew { .. }
            | Effect::Succeeded
            | Effect::Welcome { .. }
            | Effect::TellAgent { .. }
            | Effect::Close { .. }
            | Effect::Progress(_)
            | Effect::Traffic(_)
            | Effect::PutFiles(_)
            | Effect::Grow(_)
            | Effect::Notice(_) => {}
        }
        Vec::new()
    }

    pub(super) fn new_process(&mut self, at: usize, (rank, number): (Rank, u64), phase: Phase, (feeder, fed): (Feeder, bool)) -> u64 {
        self.attempts += 1;
        let attempt = self.attempts;
        self.check_alone(at, rank);
        let process = Process { attempt, number, feeder, fed, ..Process::new(phase) };
        self.nodes[at].ranks.insert(rank, process);
        attempt
    }

    fn begin_process(&mut self, at: usize, (rank, number): (Rank, u64), fed: bool, origin: Origin) -> Vec<Event> {
        let (source, image) = match origin {
            Origin::Start => {
                let feeder = self.new_feeder(None, None, fed);
                let attempt = self.new_process(at, (rank, number), Phase::Starting, (feeder, fed));
                let delay = self.delay();
                self.plan(delay, Coming::Started { at, rank, attempt });
                return Vec::new();
            }
            Origin::Files(FileOrder { chain, image, .. }) => (RestoreSource::Files(chain), image),
            Origin::InPlace { agent, order } => return self.goes_back(at, (rank, number), agent, order),
            Origin::Transfer { token, way, image } => (RestoreSource::Transfer { token, way }, image),
        };
        self.begin_restore(at, (rank, number), source, (image, fed))
    }

    /// What the machine is told of it.
    pub(super) fn begin_restore(
        &mut self,
        at: usize,
        (rank, number): (Rank, u64),
        source: RestoreSource,
        (image, fed): (Option<ImageId>, bool),
    ) -> Vec<Event> {
        match self.restore(at, (rank, number), source, (image, fed)) {
            Ok(agent) => vec![Event::AgentAwaited { rank, attempt: number, agent }],
            Err(why) => {
                self.restore_failed(at, (rank, number), why, RestoreBlame::Image);
                vec![Event::NotBegun { rank, attempt: number }]
            }
        }
    }

    fn restore(
        &mut self,
        at: usize,
        (rank, number): (Rank, u64),
        source: RestoreSource,
        (image, fed): (Option<ImageId>, bool),
    ) -> Result<u64, &'static str> {
        let feeder = self.new_feeder(Some(&source), image, fed);
        match source {
            RestoreSource::Files(chain) => {
                if chain.is_empty() || !chain.iter().all(|path| self.has_file(at, path)) {
                    return Err("an image is missing");
                }
                if chain.iter().any(|path| self.disk.is_rotten(path)) {
                    self.reasons.insert("an image is bad");
                    return Err("it is torn");
                }
                let attempt = self.new_process(at, (rank, number), Phase::Building, (feeder, fed));
                if let Some(process) = self.process(at, rank, attempt) {
                    process.restarted = true;
                }
                let delay = self.delay() + self.draw(SECOND_US);
                self.plan(delay, Coming::Built { at, rank, attempt });
                Ok(attempt)
            }
            RestoreSource::Transfer { token, .. } => {
                let attempt = self.new_process(at, (rank, number), Phase::Building, (feeder, fed));
                self.nodes[at].expected.insert(token, rank);
                self.plan(NODE_TIMEOUT_US + 5 * SECOND_US, Coming::NoTransfer { at, rank, attempt });
                Ok(attempt)
            }
        }
    }

    pub(super) fn restore_failed(&mut self, at: usize, (rank, number): (Rank, u64), why: &str, blame: RestoreBlame) {
        self.nodes[at].expected.retain(|_, its| *its != rank);
        self.say(at, FromDaemon::RestoreFailed { rank, attempt: number, error: why.into(), hint: String::new(), blame });
    }

    /// A process that was to be built is no more.
    pub(crate) fn not_built(&mut self, at: usize, rank: Rank, why: &str, blame: RestoreBlame) {
        if self.ends_in_place(at, rank, false) {
            return;
        }
        let Some(process) = self.nodes[at].ranks.remove(&rank) else { return };
        self.restore_failed(at, (rank, process.number), why, blame);
        self.process_is_over(at, rank, &process);
    }

    /// Nothing is left of a process.
    fn process_is_over(&mut self, at: usize, rank: Rank, process: &Process) {
        self.tell_node(at, Event::AgentGone { agent: process.attempt });
        self.tell_node(at, Event::Ended { rank, attempt: process.number, not_in_place: false });
    }

    pub(crate) fn program_starts(&mut self, at: usize, rank: Rank, attempt: u64) {
        let Some(process) = self.process(at, rank, attempt) else { return };
        process.phase = Phase::Runs;
        let number = process.number;
        self.work_on_input(at, rank);
        self.say(at, FromDaemon::Started { rank });
        let hello = Hello { protocol: mend_messages::PROTOCOL, rank, pid: 1, main_process: true, executable: String::new() };
        let says = Event::Agent { agent: attempt, first: true, message: FromAgent::Hello(hello) };
        let starts = Event::Started { rank, attempt: number, agentless: false };
        // The agent may be quicker than the news of its start.
        let order = if self.chance(3) { [says, starts] } else { [starts, says] };
        order.into_iter().for_each(|event| self.tell_node(at, event));
        let delay = self.delay();
        self.plan(delay, Coming::FabricUp { at, rank, attempt });
    }

    /// Its memory is complete; its agent rebuilds the rest, or `fails`.
    pub(crate) fn rank_is_built(&mut self, at: usize, rank: Rank, attempt: u64, fails: bool) {
        let Some(process) = self.process(at, rank, attempt) else { return };
        let number = process.number;
        process.refuses = fails;
        self.tell_node(at, Event::Built { rank, attempt: number, us: 5, bytes: 10 });
        if fails {
            let message = FromAgent::RestoreFailed { error: "a file is gone".into(), files: true };
            return self.tell_node(at, Event::Agent { agent: attempt, first: true, message });
        }
        let Some(process) = self.process(at, rank, attempt) else { return };
        process.phase = Phase::Built;
        self.is_back(at, rank);
        let message = FromAgent::Restored { rank, rebuild_us: 0 };
        self.tell_node(at, Event::Agent { agent: attempt, first: true, message });
        let delay = self.delay();
        self.plan(delay, Coming::FabricUp { at, rank, attempt });
    }

    pub(crate) fn agent_says(&mut self, at: usize, agent: u64, message: FromAgent) {
        self.tell_node(at, Event::Agent { agent, first: false, message });
    }

    fn tell_process(&mut self, at: usize, rank: Rank, word: Word) {
        match word {
            Word::Signal(signal) => {
                if !self.chance(3) {
                    self.dies(at, rank, ExitStatus::Signal(signal));
                }
            }
            Word::Stdin(bytes) => {
                if let Some(process) = self.nodes[at].ranks.get_mut(&rank) {
                    process.feeder.push(bytes);
                    self.work_on_input(at, rank);
                }
            }
            Word::Feed => {
                if let Some(process) = self.nodes[at].ranks.get_mut(&rank) {
                    process.feeder.release();
                }
                self.work_on_input(at, rank);
            }
            Word::Abandon(why) => self.is_given_up(at, rank, why),
            Word::Pmi(_) | Word::Settle => {}
        }
    }

    /// Gets ready what a question takes.
    fn prepare(&mut self, at: usize, number: u64, rank: Rank, what: Preparation) {
        let life = self.nodes[at].connection;
        let Some(attempt) = self.nodes[at].ranks.get(&rank).map(|process| process.attempt) else { return };
        match what {
            Preparation::Save(order) => {
                let delay = if self.chance(8) { self.delay() } else { 0 };
                self.plan(delay, Coming::Prepared { life, at, rank, number, request: Ok(Request::Save(order)) });
            }
            Preparation::Transfer { address, token, way: Way::Direct | Way::Shared(_) | Way::Local | Way::Staged } => {
                let delay = self.delay() + self.draw(2 * SECOND_US);
                let until = self.now + NODE_TIMEOUT_US;
                self.plan(delay, Coming::Streamed { at, rank, attempt, seq: number, to: node_at(address), token, until });
            }
            Preparation::Precopy { address, token } => {
                let delay = self.delay();
                let until = self.now + delay + 5 * SECOND_US;
                self.plan(delay, Coming::Precopies { at, rank, attempt, seq: number, to: node_at(address), token, until });
            }
        }
    }

    /// It is there, or cannot be had: for an image, input stops.
    pub(crate) fn prepared(&mut self, life: u64, (at, rank): (usize, Rank), number: u64, request: Result<Request, Reply>) {
        if self.nodes[at].connection != life {
            return;
        }
        if let Ok(Request::Save(_)) = &request {
            self.hold_input(at, rank);
        }
        self.tell_node(at, Event::Prepared { number, request });
    }

    /// Its process is gone at once; what is to be said of it may take a while.
    fn release(&mut self, at: usize, rank: Rank, number: u64) {
        let Some(process) = self.nodes[at].ranks.remove(&rank) else { return };
        if process.number != number {
            self.nodes[at].ranks.insert(rank, process);
            return;
        }
        self.nodes[at].expected.retain(|_, its| *its != rank);
        let (life, attempt) = (self.nodes[at].connection, process.number);
        let building = matches!(process.phase, Phase::Building | Phase::Starting);
        let word = match building {
            false if rank == 0 => Some(FromDaemon::StdinLeft { rank, attempt, bytes: process.feeder.left() }),
            // It failed just before.
            true if self.chance(2) => {
                Some(FromDaemon::RestoreFailed { rank, attempt, error: LATE_ERROR.into(), hint: String::new(), blame: RestoreBlame::Other })
            }
            _ => None,
        };
        let delay = if self.chance(2) { self.draw(2 * SECOND_US) } else { 0 };
        if let Some(word) = word {
            self.plan(delay, Coming::LastWord { life, at, word });
        }
        let before = process.goes_back.map(|agent| Event::AgentGone { agent });
        let over = [Event::AgentGone { agent: process.attempt }, Event::Ended { rank, attempt, not_in_place: false }];
        for event in over.into_iter().chain(before) {
            self.plan(delay, Coming::OfNode { life, at, event: Box::new(event) });
        }
    }

    pub(crate) fn dies(&mut self, at: usize, rank: Rank, status: ExitStatus) {
        if self.ends_in_place(at, rank, false) {
            return;
        }
        let Some(process) = self.nodes[at].ranks.remove(&rank) else { return };
        let attempt = process.number;
        // Either may be noticed first.
        if !self.chance(4) {
            self.tell_node(at, Event::AgentGone { agent: process.attempt });
        }
        match process.phase {
            Phase::Starting => {
                self.say(at, FromDaemon::StartFailed { rank, attempt, error: "died".into(), hint: String::new(), code: 1 });
            }
            Phase::Building => self.restore_failed(at, (rank, attempt), "died", RestoreBlame::Other),
            _ => self.say(at, FromDaemon::Exited { rank, attempt, status }),
        }
        self.tell_node(at, Event::Ended { rank, attempt, not_in_place: false });
        self.tell_node(at, Event::AgentGone { agent: process.attempt });
    }

    /// The job leaves a node: its ranks are killed, which takes a while.
    fn leave(&mut self, life: u64, at: usize, end: End) {
        self.nodes[at].leaving = true;
        self.check_lease(at, end);
        self.sets_aside(at, end);
        let delay = self.draw(3 * SECOND_US);
        self.plan(delay, Coming::Reaped { life, at, asked: end.is_orderly() });
    }

    /// Until now the controller has pinged it, which is not simulated one by one.
    pub(crate) fn is_pinged_last(&mut self, at: usize) {
        self.tell_node(at, Event::Pinged { at_us: self.now });
    }

    /// Nothing comes from the controller any more.
    pub(crate) fn wait_for_lease(&mut self, at: usize) {
        let (life, until) = (self.nodes[at].connection, self.now + LEASE_US);
        self.nodes[at].lease_until = Some(until);
        self.plan(0, Coming::Looks { life, at, until });
    }

    pub(crate) fn looks(&mut self, life: u64, at: usize, until: u64) -> Result<(), String> {
        let waits = |world: &Self| {
            let node = &world.nodes[at];
            node.connection == life && node.up && !node.leaving && node.lease_until == Some(until)
        };
        if !waits(self) {
            return Ok(());
        }
        if self.now > until && !self.nodes[at].ranks.is_empty() {
            return Err(format!("ranks live on node {at}, and the job's lease there is over"));
        }
        self.tell_node(at, Event::Time);
        let now_us = self.now - self.nodes[at].begun;
        let pause = self.nodes[at].job.as_ref().map_or(SECOND_US, |job| job.look_at_us().saturating_sub(now_us).max(1));
        if waits(self) && self.now <= until {
            self.plan(pause, Coming::Looks { life, at, until });
        }
        Ok(())
    }
}
