//! Between the controller and the agents of one job: who speaks for which rank, and which answer belongs to which question.
//!
//! ```text
//! no agent ── Hello (main process) ──► main            restore: awaited ── Restored + what the restorer says ──► main
//!     │                                 │
//!     └── Hello (descendant) ──► descendant ◄───────── Hello (descendant): takes over the fabric; such a rank
//!                                                      is never saved
//! ```
//! Invariants: every question gets exactly one answer, also when its agent dies or its rank ends; so does every image written behind its rank.
//! The answer to a save comes after all earlier output. Faults assumed: agents say anything; what does not fit is dropped and logged.

mod moving;
pub mod pausing;
mod ready;

use self::pausing::Pausing;
use self::ready::{NotReady, Prepared, Ready};
use crate::agents::{AgentEvent, AgentId, AgentLink};
use crate::conversation;
use crate::local_rank::{LocalRanks, PendingRestore};
use crate::outbox::{Ordered, Urgent};
use crate::progress_news::{ProgressNews, may_follow_data};
use crate::rank::{Command, Milestone, RankEvent};
use crate::sink::{Sink, Sinks, hinting, keep_saved, not_kept};
use mend_coordination::batch::Batch;
use mend_image::cpu::Features;
use mend_messages::agent::{
    FromAgent, Hello, ImageId, Reply, Request, SaveOrder, SaveTarget, Saved, ToAgent, Unasked, Unwritten, Welcome, Written,
};
use mend_messages::daemon::{FromDaemon, JobIntroduction, Question};
use mend_messages::job::{JobMap, Rank};
use mend_messages::progress::{RankProgress, RankTraffic};
use mend_messages::report::Report;
use mend_report::with_causes;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How far a save came while nobody waited for it.
#[derive(Debug)]
pub enum SaveStep {
    /// Its agent can be asked, or need not be any more.
    Ready(SaveReady),
    /// Its answer is on the way to the controller.
    Answered {
        /// The controller's number.
        seq: u64,
        /// It did not fail.
        good: bool,
    },
}

/// A save for which everything but the agent is ready.
#[derive(Debug)]
pub struct SaveReady {
    seq: u64,
    rank: Rank,
    attempt: u64,
    ready: Prepared,
}

#[derive(Debug)]
struct Agent {
    rank: Rank,
    attempt: u64,
    link: AgentLink,
    /// Its executable, if it is one.
    descendant: Option<String>,
    /// Its process is being killed.
    abandoned: bool,
    /// Images that it still writes.
    behind: Vec<ImageId>,
}

#[derive(Debug)]
struct OpenQuestion {
    /// The controller's number.
    seq: u64,
    rank: Rank,
    attempt: u64,
    agent: AgentId,
    save: bool,
    sink: Option<Sink>,
}

/// See the module's head.
#[derive(Debug)]
pub struct AgentRouter {
    job: Arc<JobIntroduction>,
    /// Of the processor here; see [`Welcome`].
    unused_features: Features,
    ip: IpAddr,
    urgent: Urgent,
    ordered: Ordered,
    saves: mpsc::UnboundedSender<SaveStep>,
    patience: Duration,
    agents: HashMap<AgentId, Agent>,
    questions: HashMap<u64, OpenQuestion>,
    asked: u64,
    batch: Batch,
    map: Option<JobMap>,
    sinks: Arc<Sinks>,
    /// Images that are written behind their ranks, into descriptors of ours.
    behind: HashMap<(AgentId, ImageId), Sink>,
    pausing: Pausing,
    /// How far ranks have come.
    pub progress: ProgressNews,
    /// The libfabric that ranks have loaded, of those that may move.
    libraries: HashMap<Rank, PathBuf>,
}

impl AgentRouter {
    /// A router without agents. What comes through `saves` is to be given to [`AgentRouter::save_came_further`].
    pub fn new(
        (job, unused_features): (Arc<JobIntroduction>, Features),
        ip: IpAddr,
        urgent: Urgent,
        ordered: Ordered,
        saves: mpsc::UnboundedSender<SaveStep>,
        patience: Duration,
        sinks: Sinks,
    ) -> Self {
        let (agents, questions, behind, sinks) = (HashMap::new(), HashMap::new(), HashMap::new(), Arc::new(sinks));
        let (asked, batch, map, pausing, progress) = (0, Batch::default(), None, Pausing::default(), ProgressNews::default());
        let libraries = HashMap::new();
        Self {
            job,
            unused_features,
            ip,
            urgent,
            ordered,
            saves,
            patience,
            agents,
            questions,
            asked,
            batch,
            map,
            sinks,
            behind,
            pausing,
            progress,
            libraries,
        }
    }

    /// The map changed.
    pub fn publish(&mut self, map: JobMap) {
        for agent in self.agents.values().filter(|agent| !agent.abandoned) {
            agent.link.send(&ToAgent::Map(map.clone()), None);
        }
        self.map = Some(map);
    }

    /// A save on its own.
    pub fn save(&mut self, seq: u64, rank: Rank, order: SaveOrder, ranks: &LocalRanks) {
        self.batch.drop_rest();
        self.pass_on(seq, rank, Request::Save(order), ranks);
    }

    /// Questions to agents, step by step.
    pub fn questions(&mut self, steps: Vec<Vec<Question>>, ranks: &LocalRanks) {
        let first = self.batch.begin(steps);
        self.pass_all_on(first, ranks);
    }

    fn pass_all_on(&mut self, step: Vec<Question>, ranks: &LocalRanks) {
        for Question { seq, rank, request } in step {
            self.pass_on(seq, rank, request, ranks);
        }
    }

    fn answered(&mut self, seq: u64, good: bool, ranks: &LocalRanks) {
        let next = self.batch.answered(seq, good);
        self.pass_all_on(next, ranks);
    }

    fn pass_on(&mut self, seq: u64, rank: Rank, request: Request, ranks: &LocalRanks) {
        match request {
            Request::Save(SaveOrder { target: SaveTarget::Descriptor, .. }) => {
                self.fail(seq, rank, "a save into a transfer has no transfer".into(), "")
            }
            Request::Precopy { .. } => self.fail(seq, rank, "a copy into a transfer has no transfer".into(), ""),
            Request::Save(order @ SaveOrder { target: SaveTarget::Begun, .. }) => {
                let order = SaveOrder { compression: self.job.compression, ..order };
                self.ready_save(seq, rank, ranks, async { Ok(Ready::new(order, None)) });
            }
            Request::Save(order) => {
                let made = self.sinks.clone().for_order(order);
                let ready = async { made.await.map(|(order, given)| Ready::new(order, given)).map_err(NotReady::Sink) };
                self.ready_save(seq, rank, ranks, ready);
            }
            request => {
                if let (Request::Resume, Some(slot)) = (&request, ranks.get(&rank)) {
                    slot.tell(Command::Feed);
                }
                self.ask(seq, rank, self.sinks.filled_in(request), (None, None), ranks);
            }
        }
    }

    /// Gets the target, then, for an image, stops the rank's input, whose state is part of it.
    fn ready_save(&mut self, seq: u64, rank: Rank, ranks: &LocalRanks, ready: impl Future<Output = Prepared> + Send + 'static) {
        let (slot, attempt) = match (self.speaker(rank, true, ranks), ranks.get(&rank)) {
            (Ok((_, attempt)), Some(slot)) => (slot, attempt),
            (Err(reply), _) => return self.refuse(seq, rank, *reply),
            (Ok(_), None) => return,
        };
        let (saves, commands) = (self.saves.clone(), slot.commands.clone().downgrade());
        tokio::spawn(async move {
            let ready = ready.await;
            if let (Ok(Ready { request: Request::Save(_), .. }), Some(commands)) = (&ready, commands.upgrade()) {
                let (done, held) = oneshot::channel();
                // A rank that ended meanwhile is noticed by whoever gets the result.
                let _ = commands.send(Command::Hold(done));
                drop(commands);
                let _ = held.await;
            }
            // The job may have left meanwhile.
            let _ = saves.send(SaveStep::Ready(SaveReady { seq, rank, attempt, ready }));
        });
    }

    /// A save is ready for its agent (or failed before it), or answered.
    pub fn save_came_further(&mut self, step: SaveStep, ranks: &LocalRanks) {
        let SaveReady { seq, rank, attempt, ready } = match step {
            SaveStep::Ready(readied) => readied,
            SaveStep::Answered { seq, good } => return self.answered(seq, good, ranks),
        };
        if ranks.get(&rank).is_none_or(|slot| slot.attempt != attempt) {
            return self.refuse(seq, rank, Reply::Unasked(Unasked::Ended));
        }
        match ready {
            Ok(ready) => self.ask(seq, rank, ready.request, (ready.file, ready.sink), ranks),
            Err(error) => self.fail(seq, rank, with_causes(&error), error.hint()),
        }
    }

    fn ask(&mut self, seq: u64, rank: Rank, request: Request, (file, sink): (Option<OwnedFd>, Option<Sink>), ranks: &LocalRanks) {
        let save = matches!(request, Request::Save(_));
        let (agent, attempt) = match self.speaker(rank, save || matches!(request, Request::Precopy { .. }), ranks) {
            Ok(speaker) => speaker,
            Err(reply) => return self.refuse(seq, rank, *reply),
        };
        let Some(known) = self.agents.get(&agent) else {
            return self.refuse(seq, rank, Reply::Unasked(Unasked::Left));
        };
        let number = self.asked;
        self.asked += 1;
        self.questions.insert(number, OpenQuestion { seq, rank, attempt, agent, save, sink });
        conversation::asked(rank, attempt, &request);
        known.link.send(&ToAgent::Request { seq: number, request }, file);
    }

    /// The agent to ask. For a save only the process itself will do.
    fn speaker(&self, rank: Rank, save: bool, ranks: &LocalRanks) -> Result<(AgentId, u64), Box<Reply>> {
        let told = |error: String, hint: &str| Box::new(Reply::Failed { error, hint: hint.to_owned() });
        let unasked = |why| Box::new(Reply::Unasked(why));
        let Some(slot) = ranks.get(&rank) else { return Err(unasked(Unasked::NotHere)) };
        if slot.restore.is_some() {
            return Err(unasked(Unasked::Restoring));
        }
        match (slot.descendant, slot.main) {
            (Some(descendant), _) if save => {
                let executable = self.agents.get(&descendant).and_then(|agent| agent.descendant.as_deref()).unwrap_or("a child process");
                Err(told(format!("it runs its MPI program {executable} as a child of the process that was started"), RUN_IT_DIRECTLY))
            }
            (Some(agent), _) | (None, Some(agent)) => Ok((agent, slot.attempt)),
            (None, None) => Err(match &slot.agentless {
                Some(why) => told(format!("it has no agent: {why}"), why.hint()),
                None if slot.left => unasked(Unasked::Left),
                None => told(format!("it has no agent: {NO_AGENT}"), NO_AGENT_HINT),
            }),
        }
    }

    fn fail(&mut self, seq: u64, rank: Rank, error: String, hint: &str) {
        self.refuse(seq, rank, Reply::Failed { error, hint: hint.to_owned() });
    }

    fn refuse(&mut self, seq: u64, rank: Rank, reply: Reply) {
        // Nothing follows a failure.
        self.batch.answered(seq, false);
        self.urgent.send(FromDaemon::Agent { seq, rank, reply });
    }

    /// A rank's process on this node does not count any more.
    pub fn abandon(&mut self, rank: Rank, attempt: u64) {
        for agent in self.agents.values_mut().filter(|agent| (agent.rank, agent.attempt) == (rank, attempt)) {
            agent.abandoned = true;
        }
        self.answer_lost(|question| (question.rank, question.attempt) == (rank, attempt), Unasked::Ended);
    }

    /// Nothing of a rank's process is left.
    pub fn forget(&mut self, rank: Rank, attempt: u64) {
        self.agents.retain(|_, agent| (agent.rank, agent.attempt) != (rank, attempt));
    }

    fn answer_lost(&mut self, lost: impl Fn(&OpenQuestion) -> bool, why: Unasked) {
        let unanswered: Vec<OpenQuestion> = self.questions.extract_if(|_, question| lost(question)).map(|(_, question)| question).collect();
        for OpenQuestion { seq, rank, .. } in unanswered {
            self.refuse(seq, rank, Reply::Unasked(why));
        }
    }

    /// A restore has begun; its agent will speak on this connection.
    pub fn await_restored(&mut self, rank: Rank, agent: AgentId, ranks: &mut LocalRanks) {
        if let Some(slot) = ranks.get_mut(&rank) {
            slot.restore = Some(PendingRestore { agent, built: None });
        }
    }

    /// A rank's process came further.
    pub fn reached(&mut self, rank_event: RankEvent, ranks: &mut LocalRanks) {
        let RankEvent { rank, attempt, event } = rank_event;
        let Some(slot) = ranks.get_mut(&rank).filter(|slot| slot.attempt == attempt) else { return };
        match event {
            Milestone::Started { agentless } => {
                (slot.started, slot.agentless) = (true, agentless);
                for (id, link, hello) in std::mem::take(&mut slot.early) {
                    self.hello(id, link, hello, ranks);
                }
            }
            Milestone::Built { us, bytes } => {
                if let Some(awaited) = &mut slot.restore {
                    awaited.built = Some((us, bytes));
                }
            }
        }
    }

    /// Something came from an agent.
    pub fn heard(&mut self, event: AgentEvent, ranks: &mut LocalRanks) {
        match event {
            AgentEvent::Message { id, link: Some(link), message } => self.first_words(id, link, *message, ranks),
            AgentEvent::Message { id, link: None, message } => {
                if !self.rollback_refused(id, &message, ranks) {
                    self.words(id, *message, ranks);
                }
            }
            AgentEvent::Gone { id } => self.gone(id, ranks),
        }
    }

    fn first_words(&mut self, id: AgentId, link: AgentLink, message: FromAgent, ranks: &mut LocalRanks) {
        match message {
            FromAgent::Hello(hello) => self.hello(id, link, hello, ranks),
            FromAgent::Restored { rank, rebuild_us } => self.restored(id, link, rank, rebuild_us, ranks),
            FromAgent::RestoreFailed { error } => {
                let waiting = ranks.values().find(|slot| slot.restore.as_ref().is_some_and(|awaited| awaited.agent == id));
                match waiting {
                    Some(slot) => slot.tell(Command::Abandon(error)),
                    None => tracing::warn!(error, "a restore failed that nobody asked for"),
                }
            }
            // Dropping the link ends the connection.
            _ => tracing::warn!("an agent did not introduce itself"),
        }
    }

    fn hello(&mut self, id: AgentId, link: AgentLink, hello: Hello, ranks: &mut LocalRanks) {
        let (protocol, rank) = (hello.protocol, hello.rank);
        if protocol != mend_messages::PROTOCOL {
            return tracing::warn!(rank, protocol, "libmend-fi.so is of another release than mendd; its agent is dropped");
        }
        let Some(slot) = ranks.get_mut(&rank).filter(|slot| slot.restore.is_none()) else {
            return tracing::warn!(rank, "an agent of a rank that does not run here");
        };
        if !slot.started {
            return slot.early.push((id, link, hello));
        }
        let Hello { main_process, executable, .. } = hello;
        if main_process {
            slot.main = Some(id);
            // The process executed another program: what its children were is over.
            slot.descendant = None;
        } else {
            slot.descendant = Some(id);
        }
        self.enroll(id, (rank, slot.attempt), link, (!main_process).then(|| executable.clone()), "hello");
        self.urgent.send(FromDaemon::AgentUp { rank, main_process, executable });
    }

    fn restored(&mut self, id: AgentId, link: AgentLink, rank: Rank, rebuild_us: u64, ranks: &mut LocalRanks) {
        let Some(slot) = ranks.get_mut(&rank).filter(|slot| slot.restore.as_ref().is_some_and(|awaited| awaited.agent == id)) else {
            return tracing::warn!(rank, "an agent says it is restored, which nobody waits for");
        };
        let Some((us, bytes)) = slot.restore.take().and_then(|awaited| awaited.built) else {
            slot.tell(Command::Abandon("its agent spoke before its memory was complete".into()));
            return;
        };
        slot.main = Some(id);
        slot.started = true;
        slot.tell(Command::Settle);
        let attempt = slot.attempt;
        self.enroll(id, (rank, attempt), link, None, "restored");
        self.urgent.send(FromDaemon::Report { rank, report: Report::Rebuilt { us: rebuild_us } });
        self.urgent.send(FromDaemon::Restored { rank, attempt, restart_us: us.saturating_add(rebuild_us), bytes });
    }

    /// The job has more ranks than it had.
    pub fn introduce(&mut self, job: Arc<JobIntroduction>) {
        self.job = job;
    }

    fn enroll(&mut self, id: AgentId, (rank, attempt): (Rank, u64), link: AgentLink, descendant: Option<String>, word: &str) {
        conversation::began(rank, attempt, word);
        let welcome = Welcome {
            job: self.job.identity,
            secret: self.job.secret.clone(),
            rank,
            size: self.job.size,
            node: self.job.node,
            ip: self.ip,
            encrypt_data: self.job.encrypt_data,
            unused_features: self.unused_features,
        };
        link.send(&ToAgent::Welcome(welcome), None);
        if let Some(map) = &self.map {
            link.send(&ToAgent::Map(map.clone()), None);
        }
        if may_follow_data(&self.job) {
            link.send(&ToAgent::WatchTraffic, None);
        }
        self.agents.insert(id, Agent { rank, attempt, link, descendant, abandoned: false, behind: Vec::new() });
    }

    fn words(&mut self, id: AgentId, message: FromAgent, ranks: &mut LocalRanks) {
        let Some((agent, rank)) = self.agents.get(&id).map(|agent| (agent, agent.rank)) else { return };
        let Some(slot) = ranks.get(&rank).filter(|slot| slot.attempt == agent.attempt) else { return };
        if !matches!(message, FromAgent::Progress(_) | FromAgent::Traffic(_)) {
            conversation::said(rank, agent.attempt, &message);
        }
        // Of a main process and its child only the child's fabric counts.
        let speaks_for_fabric = slot.descendant.or(slot.main) == Some(id);
        match message {
            FromAgent::FabricUp(address) if speaks_for_fabric => {
                self.urgent.send(FromDaemon::FabricUp { rank, attempt: agent.attempt, address })
            }
            FromAgent::FabricInUse if speaks_for_fabric => self.urgent.send(FromDaemon::FabricInUse { rank }),
            FromAgent::MessagesLost { peer, why } if speaks_for_fabric => self.urgent.send(FromDaemon::MessagesLost { rank, peer, why }),
            FromAgent::FabricUp(_) | FromAgent::FabricInUse | FromAgent::MessagesLost { .. } => {}
            FromAgent::Progress(progress) => self.progress.note(RankProgress { rank, attempt: agent.attempt, progress }),
            FromAgent::Traffic(traffic) if speaks_for_fabric => {
                self.progress.note_traffic(RankTraffic { rank, attempt: agent.attempt, traffic });
            }
            FromAgent::Traffic(_) => {}
            FromAgent::Report(report) => self.urgent.send(FromDaemon::Report { rank, report }),
            FromAgent::Round(round) => self.urgent.send(FromDaemon::Round { rank, round }),
            FromAgent::PrecopyFailed { error, hint } => self.urgent.send(FromDaemon::PrecopyFailed { rank, error, hint }),
            FromAgent::Reply { seq, reply } => self.reply(id, seq, reply, ranks),
            FromAgent::Written { id: image, result } => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.behind.retain(|behind| *behind != image);
                }
                self.written(id, rank, image, result);
            }
            FromAgent::Hello(_) | FromAgent::Restored { .. } | FromAgent::RestoreFailed { .. } => {
                tracing::warn!(rank, "an agent introduced itself twice");
            }
        }
    }

    fn reply(&mut self, id: AgentId, number: u64, reply: Reply, ranks: &LocalRanks) {
        if self.pause_answered(id, number, &reply) {
            return;
        }
        let Some(question) = self.questions.remove(&number) else {
            return tracing::warn!("an agent answered a question that nobody asked");
        };
        if question.agent != id {
            self.questions.insert(number, question);
            return tracing::warn!("an agent answered another one's question");
        }
        if let (Reply::Saved(Saved { behind: true, id: image, .. }), Some(agent)) = (&reply, self.agents.get_mut(&id)) {
            agent.behind.push(*image);
        }
        let OpenQuestion { seq, rank, save, mut sink, .. } = question;
        if !save {
            let good = !reply.is_failure();
            self.pass_back(seq, rank, reply);
            return self.answered(seq, good, ranks);
        }
        if let Reply::Saved(Saved { behind: true, id: image, .. }) = &reply
            && let Some(sink) = sink.take()
        {
            self.behind.insert((id, *image), sink);
        }
        // The rank's threads are parked: what it wrote is in the pipes, and goes first.
        let (done, flushed) = oneshot::channel();
        if let Some(slot) = ranks.get(&rank) {
            slot.tell(Command::Flush(done));
        }
        let (ordered, saves) = (self.ordered.clone(), self.saves.clone());
        tokio::spawn(async move {
            // A rank that ended meanwhile has been flushed by its end.
            let _ = flushed.await;
            let reply = match (reply, sink) {
                (Reply::Saved(saved), Some(sink)) => keep_saved(saved, sink).await,
                (Reply::Failed { error, hint }, Some(sink)) => match sink.give_up().await {
                    Some(error) => not_kept(&error),
                    None => Reply::Failed { error, hint },
                },
                (reply, _) => reply,
            };
            let good = !reply.is_failure();
            let _ = ordered.send(FromDaemon::Agent { seq, rank, reply }).await;
            let _ = saves.send(SaveStep::Answered { seq, good });
        });
    }

    /// An image that was written behind its rank is complete, or given up.
    fn written(&mut self, id: AgentId, rank: Rank, image: ImageId, result: Result<Written, String>) {
        let urgent = self.urgent.clone();
        let sink = self.behind.remove(&(id, image));
        tokio::spawn(async move {
            let result = match (result, sink) {
                (Ok(written), Some(sink)) => match sink.keep(written.bytes).await {
                    Ok(bytes) => Ok(Written { bytes, ..written }),
                    Err(error) => Err(hinting(&error)),
                },
                (Err(error), Some(sink)) => Err(sink.give_up().await.map_or(error, |error| hinting(&error))),
                (result, None) => result,
            };
            urgent.send(FromDaemon::Written { rank, id: image, result: result.map_err(Unwritten::Failed) });
        });
    }

    fn gone(&mut self, id: AgentId, ranks: &mut LocalRanks) {
        self.pause_lost(id);
        if let Some(slot) = ranks.values().find(|slot| slot.restore.as_ref().is_some_and(|awaited| awaited.agent == id)) {
            // Also when its process or its restorer dies, which its own end then tells better.
            if slot.restore.as_ref().is_some_and(|awaited| awaited.built.is_some()) {
                slot.tell(Command::Abandon("its agent went away before it was complete".into()));
            }
            return;
        }
        for slot in ranks.values_mut() {
            slot.early.retain(|(early, ..)| *early != id);
        }
        let Some(agent) = self.agents.remove(&id) else { return };
        self.behind.retain(|(agent, _), _| *agent != id);
        for id in agent.behind {
            self.urgent.send(FromDaemon::Written { rank: agent.rank, id, result: Err(Unwritten::Ended) });
        }
        if let Some(slot) = ranks.get_mut(&agent.rank).filter(|slot| slot.attempt == agent.attempt) {
            slot.left |= slot.main == Some(id);
            slot.main = slot.main.filter(|&main| main != id);
            slot.descendant = slot.descendant.filter(|&descendant| descendant != id);
        }
        self.answer_lost(|question| question.agent == id, Unasked::Left);
    }
}

const NO_AGENT: &str =
    "the preloaded library was not loaded into it (a setuid program, or one that became a static one?), or it has just started";
const NO_AGENT_HINT: &str = "use a dynamically linked program without setuid bit, or try again in a moment";
const RUN_IT_DIRECTLY: &str = "run the program itself instead of a script or wrapper around it, or let the wrapper `exec` it";
