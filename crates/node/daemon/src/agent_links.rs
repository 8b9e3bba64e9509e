//! The ways between the controller and the agents of one job: what the machine of the job on this node ([`mend_node_job`]) wants asked is asked here, with the
//! descriptors that it takes, and what was written comes to its end here.
//!
//! Invariants: of each [`Effect::Prepare`] and [`Effect::Keep`](mend_node_job::event::Effect::Keep) comes one answer. The answer to a save goes to the
//! controller after all earlier output. Faults assumed: agents and ranks end at any moment; disks are full; the other end of a transfer is gone.
//!
//! [`Effect::Prepare`]: mend_node_job::event::Effect::Prepare

mod moving;
mod ready;

use self::ready::{NotReady, Prepared, Ready};
use crate::agents::{AgentEvent, AgentLink};
use crate::conversation;
use crate::outbox::{Ordered, Urgent};
use crate::progress_news::ProgressNews;
use crate::rank::Command;
use crate::sink::{Sink, Sinks, give_up_all, hinting, keep_saved, not_kept};
use mend_image::cpu::Features;
use mend_messages::agent::{FromAgent, ImageId, Reply, Request, SaveOrder, SaveTarget, Saved, ToAgent, Unwritten, Welcome, Written};
use mend_messages::daemon::{FromDaemon, JobIntroduction};
use mend_messages::job::Rank;
use mend_node_job::event::{AgentId, Event, Preparation};
use mend_report::with_causes;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How far a question came while nobody waited for it.
#[derive(Debug)]
pub struct QuestionStep(Step);

#[derive(Debug)]
enum Step {
    /// What it takes is there, or cannot be had.
    Ready { number: u64, ready: Prepared },
    /// The answer to a save is on the way to the controller.
    Kept { seq: u64, good: bool },
}

/// See the module's head.
#[derive(Debug)]
pub struct AgentLinks {
    job: Arc<JobIntroduction>,
    /// Of the processor here; see [`Welcome`].
    unused_features: Features,
    ip: IpAddr,
    urgent: Urgent,
    ordered: Ordered,
    steps: mpsc::UnboundedSender<QuestionStep>,
    patience: Duration,
    links: HashMap<AgentId, AgentLink>,
    /// What goes with the question that is about to be put.
    ready: Option<(u64, Option<OwnedFd>, Option<Sink>)>,
    /// Of questions that were put, by number.
    open: HashMap<u64, (AgentId, Sink)>,
    sinks: Arc<Sinks>,
    /// Images that are written behind their ranks, into descriptors of ours.
    behind: HashMap<(AgentId, ImageId), Sink>,
    /// How far ranks have come.
    pub progress: ProgressNews,
    /// The libfabric that ranks have loaded, of those that may move.
    libraries: HashMap<Rank, PathBuf>,
}

impl AgentLinks {
    /// Links to no agent yet. What comes through `steps` is to be given to [`AgentLinks::came_further`].
    pub fn new(
        (job, unused_features): (Arc<JobIntroduction>, Features),
        ip: IpAddr,
        urgent: Urgent,
        ordered: Ordered,
        steps: mpsc::UnboundedSender<QuestionStep>,
        patience: Duration,
        sinks: Sinks,
    ) -> Self {
        let (links, open, behind, libraries) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let (progress, sinks) = (ProgressNews::default(), Arc::new(sinks));
        Self { job, unused_features, ip, urgent, ordered, steps, patience, links, ready: None, open, sinks, behind, progress, libraries }
    }

    /// The job has more ranks than it had.
    pub fn introduce(&mut self, job: Arc<JobIntroduction>) {
        self.job = job;
    }

    /// An agent that spoke in an earlier life of the job.
    pub fn adopt(&mut self, agent: AgentId, link: AgentLink) {
        self.links.insert(agent, link);
    }

    /// The way to an agent.
    pub fn link(&self, agent: AgentId) -> Option<AgentLink> {
        self.links.get(&agent).cloned()
    }

    /// Something came from an agent: what the machine is told.
    pub fn heard(&mut self, event: AgentEvent) -> Event {
        match event {
            AgentEvent::Message { id, link, message } => {
                let first = link.is_some();
                if let Some(link) = link {
                    self.links.insert(id, link);
                }
                Event::Agent { agent: id, first, message: *message }
            }
            AgentEvent::Gone { id } => {
                self.close(id);
                Event::AgentGone { agent: id }
            }
        }
    }

    /// A connection ends once everything on it is sent. Nothing comes of what was written on it.
    pub fn close(&mut self, agent: AgentId) {
        self.links.remove(&agent);
        let open = self.open.extract_if(|_, (of, _)| *of == agent).map(|(_, (_, sink))| sink);
        let behind = self.behind.extract_if(|(of, _), _| *of == agent).map(|(_, sink)| sink);
        give_up_all(open.chain(behind).collect());
    }

    /// Tells an agent about the job.
    pub fn welcome(&self, agent: AgentId, (rank, attempt): (Rank, u64), restored: bool) {
        conversation::began(rank, attempt, if restored { "restored" } else { "hello" });
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
        self.tell(agent, &ToAgent::Welcome(welcome));
    }

    /// Tells an agent.
    pub fn tell(&self, agent: AgentId, message: &ToAgent) {
        if let Some(link) = self.links.get(&agent) {
            link.send(message, None);
        }
    }

    /// Puts a question, with what was made ready for it.
    pub fn ask(&mut self, agent: AgentId, (rank, attempt): (Rank, u64), number: u64, request: Request) {
        let request = self.sinks.filled_in(request);
        if request != Request::Pause {
            conversation::asked(rank, attempt, &request);
        }
        let (file, sink) = self.ready.take_if(|(of, ..)| *of == number).map_or((None, None), |(_, file, sink)| (file, sink));
        if let Some(sink) = sink {
            self.open.insert(number, (agent, sink));
        }
        if let Some(link) = self.links.get(&agent) {
            link.send(&ToAgent::Request { seq: number, request }, file);
        }
    }

    /// Gets ready what a question takes, then, for an image, stops the rank's input, whose state is part of it.
    pub fn prepare(&mut self, number: u64, rank: Rank, what: Preparation, commands: &mpsc::UnboundedSender<Command>) {
        match what {
            Preparation::Save(order @ SaveOrder { target: SaveTarget::Begun, .. }) => {
                let order = SaveOrder { compression: self.job.compression, ..order };
                self.make_ready(number, commands, async { Ok(Ready::new(order, None)) });
            }
            Preparation::Save(order) => {
                let made = self.sinks.clone().for_order(order);
                let ready = async { made.await.map(|(order, given)| Ready::new(order, given)).map_err(NotReady::Sink) };
                self.make_ready(number, commands, ready);
            }
            Preparation::Transfer { address, token, way } => {
                let opening = self.opened(rank, (address, token), way);
                self.make_ready(number, commands, opening);
            }
            Preparation::Precopy { address, token } => {
                let opening = self.opened_for_copy(rank, address, token);
                self.make_ready(number, commands, opening);
            }
        }
    }

    fn make_ready(&self, number: u64, commands: &mpsc::UnboundedSender<Command>, ready: impl Future<Output = Prepared> + Send + 'static) {
        let (steps, commands) = (self.steps.clone(), commands.downgrade());
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
            let _ = steps.send(QuestionStep(Step::Ready { number, ready }));
        });
    }

    /// A question came further: what the machine is told. If it is put now, [`AgentLinks::ask`] sends what it takes, else
    /// [`AgentLinks::settle`] lets go of that.
    pub fn came_further(&mut self, step: QuestionStep) -> Event {
        match step.0 {
            Step::Ready { number, ready: Ok(Ready { request, file, sink }) } => {
                self.ready = Some((number, file, sink));
                Event::Prepared { number, request: Ok(request) }
            }
            Step::Ready { number, ready: Err(error) } => {
                let reply = Reply::Failed { error: with_causes(&error), hint: error.hint().to_owned() };
                Event::Prepared { number, request: Err(reply) }
            }
            Step::Kept { seq, good } => Event::Kept { seq, good },
        }
    }

    /// The machine has decided about a question that came further.
    pub fn settle(&mut self) {
        self.ready = None;
    }

    /// Keeps what a save has written, and answers behind what its rank wrote.
    pub fn keep(
        &mut self,
        agent: AgentId,
        number: u64,
        (seq, rank): (u64, Rank),
        reply: Reply,
        commands: Option<&mpsc::UnboundedSender<Command>>,
    ) {
        let mut sink = self.open.remove(&number).map(|(_, sink)| sink);
        if let Reply::Saved(Saved { behind: true, id: image, .. }) = &reply
            && let Some(sink) = sink.take()
        {
            self.behind.insert((agent, *image), sink);
        }
        // The rank's threads are parked: what it wrote is in the pipes, and goes first.
        let (done, flushed) = oneshot::channel();
        if let Some(commands) = commands {
            let _ = commands.send(Command::Flush(done));
        }
        let (ordered, steps) = (self.ordered.clone(), self.steps.clone());
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
            let _ = steps.send(QuestionStep(Step::Kept { seq, good }));
        });
    }

    /// An image that was written behind its rank is complete, or given up.
    pub fn written(&mut self, agent: AgentId, rank: Rank, image: ImageId, result: Result<Written, String>) {
        let urgent = self.urgent.clone();
        let sink = self.behind.remove(&(agent, image));
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
}

/// Whether an agent's word belongs into the record of what was said.
pub fn is_conversation(message: &FromAgent) -> bool {
    !matches!(message, FromAgent::Progress(_) | FromAgent::Traffic(_))
}

impl Drop for AgentLinks {
    fn drop(&mut self) {
        let ready = self.ready.take().and_then(|(_, _, sink)| sink);
        let open = self.open.drain().map(|(_, (_, sink))| sink);
        give_up_all(open.chain(self.behind.drain().map(|(_, sink)| sink)).chain(ready).collect());
    }
}
