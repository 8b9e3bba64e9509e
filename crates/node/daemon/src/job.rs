//! One job on this node: the controller's connection, the ranks here, and what passes between them. What is decided about it is decided by its machine,
//! [`mend_node_job`]; here it is told what happens, and what it wants is done (`job/effects.rs`).
//!
//! ```text
//! Introduce → Ready ─► serving ─── End ──► ending: ranks killed and reaped, output sent, Left ─► closed
//!                         ├── Pause ──► pausing: ranks parked, their output sent, Paused, Left ─► closed; they stand for the next life
//!                         └─ lease over, a later start, nonsense ─► lost: ranks killed and reaped
//! ```
//! A connection that breaks changes nothing, as long as the controller comes back within the lease (`job_link.rs`).
//! Invariants: when the controller was silent for as long as the job's lease, no process of the job is left here; where the ranks share a
//! PID namespace the kernel sees to that itself, also if this daemon stands still. Two starts of a job are never here at once: the later one
//! waits until the earlier one has left. The loop never waits for the controller, a rank or a file system, so none can keep it from the others.
//! Faults assumed: the controller dies, stalls or asks for steps out of order; ranks and agents die at any moment.

mod comparing;
mod effects;
mod leaving;
mod standing;
mod tasks;
mod tier_orders;
mod words;

use self::leaving::leave;
use crate::agent_links::{AgentLinks, QuestionStep, is_conversation};
use crate::agents::{AgentEvent, AgentSocket};
use crate::bounded;
use crate::conversation;
use crate::job_link::carry;
use crate::node::{JobQueues, Node};
use crate::outbox::{Ordered, Urgent, queues};
use crate::paused::{self, PausedJob, PausedRank};
use crate::program::{Agentless, ExaminedPrograms};
use crate::progress_news::may_follow_data;
use crate::rank::{Command, Milestone, NotInPlace, RankEvent};
use crate::room::RecentRoom;
use crate::shared_memory::SharedMemory;
use crate::sink::Sinks;
use crate::spaces::JobSpaces;
use crate::stay::{Held, LINGERING};
use crate::successor;
use crate::supervisor::namespace::SharedNamespace;
use crate::tiers::{ChosenPlace, Tiers};
use mend_messages::daemon::{FromDaemon, JobIntroduction, Resumption, ToDaemon};
use mend_messages::health::NodeHealth;
use mend_messages::job::Rank;
use mend_node_job::NodeJob;
use mend_node_job::event::{AgentId, Effect, End, Event, Setup};
use mend_node_job::hold::{LinkState, lease_us};
use mend_node_job::table::Present;
use mend_report::with_causes;
use mend_sealed::Key;
use mend_transfer::peer::{Admitted, Rendezvous};
use mend_transfer::progress::Progress;
use mend_wire::Connection;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tracing::Instrument;

/// Time to the introduction. The controller first waits for all nodes, of which some may be dead.
const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an earlier life of a job may take to leave; shorter than the silence that a controller bears.
const LEAVING_TIME: Duration = Duration::from_secs(3);
/// How long it may take to read a key; shorter than that silence, too.
const KEY_TIME: Duration = Duration::from_secs(3);
/// Bounds of the silence that a controller may ask for.
const TIMEOUT_BOUNDS_MS: (u64, u64) = (500, 600_000);

/// What a controller is told that wants to go on with a job which is gone.
const NOT_HERE: &str = "the job's ranks on this node have ended";

/// Serves one authenticated job connection: to the job's end, or by handing it to the job that it goes on with.
pub async fn serve(node: Arc<Node>, connection: Connection, ip: IpAddr) {
    let Connection { mut sender, mut receiver } = connection;
    let first = loop {
        match timeout(INTRODUCTION_TIMEOUT, receiver.receive::<ToDaemon>()).await {
            Ok(Ok(ToDaemon::Look)) => {
                if sender.send(&FromDaemon::Seen(Box::new(node.report()))).await.is_err() {
                    return;
                }
            }
            Ok(Ok(ToDaemon::AskVote { of, silence_ms })) => {
                let voted = node.vote(&of, Duration::from_millis(silence_ms));
                let answer = voted.map_or_else(|| gone(&node, &of.session), |successor| FromDaemon::Voted { successor });
                if sender.send(&answer).await.is_err() {
                    return;
                }
            }
            Ok(Ok(ToDaemon::AskConfirmed { of, ping_us })) => {
                let yes = node.confirms(&of, ping_us);
                if sender.send(&FromDaemon::Confirmed { yes }).await.is_err() {
                    return;
                }
            }
            first => break first,
        }
    };
    let introduction = match first {
        Ok(Ok(ToDaemon::Introduce(introduction))) => introduction.with_worlds(),
        Ok(Ok(ToDaemon::Resume(resumption))) => {
            if let Err(mut refused) = node.resume(&resumption, Connection { sender, receiver }).await {
                tracing::info!("a controller wants to go on with a job that is not here");
                let _ = refused.sender.send(&gone(&node, &resumption.session)).await;
            }
            return;
        }
        Ok(Ok(ToDaemon::Succeed(succession))) => {
            if let Err(mut refused) = node.succeed(&succession, Connection { sender, receiver }).await {
                tracing::info!("a controller wants to succeed that of a job that is not here");
                let _ = refused.sender.send(&not_here()).await;
            }
            return;
        }
        Ok(Ok(_)) => return tracing::warn!("a controller did not introduce its job"),
        // Who only looked leaves.
        Ok(Err(error)) => return tracing::info!(%error, "a job connection ended before its introduction"),
        Err(_) => return tracing::warn!("a controller did not introduce its job in time"),
    };
    // Whatever is traced from here on says of which job it is.
    let span = tracing::info_span!("job", id = introduction.id, node = node.name);
    serve_introduced(node, introduction, Connection { sender, receiver }, ip).instrument(span).await;
}

/// Why the job of this session is not here.
fn gone(node: &Node, session: &[u8; 16]) -> FromDaemon {
    let over = node.lease_over(session);
    over.map_or_else(not_here, |over| FromDaemon::LeaseOver { ms: over.lease_us / 1000, stood_still_ms: over.stood_still_us / 1000 })
}

fn not_here() -> FromDaemon {
    FromDaemon::Refused { error: NOT_HERE.to_owned() }
}

async fn serve_introduced(node: Arc<Node>, introduction: JobIntroduction, connection: Connection, ip: IpAddr) {
    let mut connection = connection;
    let (transfers, arrivals) = mpsc::channel(16);
    let (resumptions, resumed) = mpsc::channel(1);
    let superseded = Arc::new(Notify::new());
    let heard_at = Arc::new(Mutex::new(Instant::now()));
    let (ping, pings) = mpsc::channel(1);
    let waiting = JobQueues { transfers, resumptions, superseded: superseded.clone(), heard: heard_at.clone(), ping };
    // A controller that was killed may have left ranks here; its successor waits until they have ended.
    let refusal = Instant::now() + LEAVING_TIME;
    let mut registered = node.register(&introduction, waiting.clone());
    while matches!(registered, Err(Present::Leaving)) && Instant::now() < refusal {
        tokio::time::sleep(Duration::from_millis(50)).await;
        registered = node.register(&introduction, waiting.clone());
    }
    let _registered = match registered {
        Ok(registered) => registered,
        Err(present) => {
            let error = match present {
                Present::Leaving => format!("ranks of an earlier start of job {} do not end on this node", introduction.id),
                Present::Here { epoch } if epoch == introduction.epoch => {
                    format!(
                        "job {} is on this node already: another of its hosts is the same mendd under another name; name each node once",
                        introduction.id
                    )
                }
                Present::Here { .. } => format!("a later start of job {} is on this node", introduction.id),
            };
            // A controller that does not listen learns it from the closed connection.
            let _ = connection.sender.send(&FromDaemon::Refused { error }).await;
            return;
        }
    };
    drop(waiting);
    let key = match load_key(introduction.encryption_key.clone()).await {
        Ok(key) => key,
        Err(error) => {
            let _ = connection.sender.send(&FromDaemon::Refused { error }).await;
            return;
        }
    };
    let (urgent, ordered, outbox) = queues();
    let lease = Duration::from_micros(lease_us(introduction.lease_ms.saturating_mul(1000)));
    let before = match node.paused.take(&introduction, lease) {
        Some(paused) => {
            paused.spaces.begin_anew();
            paused
        }
        None => match AgentSocket::open() {
            Ok(agents) => PausedJob {
                epoch: introduction.epoch,
                ranks: HashMap::new(),
                agents,
                namespace: Arc::new(SharedNamespace::new(lease)),
                shared_memory: SharedMemory::make(),
                spaces: Arc::new(JobSpaces::of(&introduction, &node.name, &node.spaces)),
            },
            Err(error) => {
                let error = format!("no socket for the job's agents: {error}");
                let _ = connection.sender.send(&FromDaemon::Refused { error }).await;
                return;
            }
        },
    };
    let (agent_socket, agents) = before.agents;
    let processor = Box::new(node.processor_for(&introduction));
    // If this does not arrive, the controller gives this node up.
    let succeeds = match &introduction.successor {
        Some(command) => successor::can_start(command).await == Some(true),
        None => false,
    };
    let ready = FromDaemon::Ready { name: node.name.clone(), processor, succeeds };
    let _ = connection.sender.send(&ready).await;
    let (heard, commands) = mpsc::channel(16);
    let (connected, states) = mpsc::unbounded_channel();
    let carrying = tokio::spawn(carry(connection, outbox, heard, resumed, connected).in_current_span());
    tracing::info!(job = introduction.id, size = introduction.size, "serving a job");
    let (rank_event_sender, rank_events) = mpsc::unbounded_channel();
    let (question_steps, steps) = mpsc::unbounded_channel();
    let (answers, answered) = mpsc::unbounded_channel();
    let (chosen, places) = mpsc::unbounded_channel();
    let patience = Duration::from_millis(introduction.node_timeout_ms.clamp(TIMEOUT_BOUNDS_MS.0, TIMEOUT_BOUNDS_MS.1));
    let (introduction, progress) = (Arc::new(introduction), Arc::new(Progress::default()));
    let standing: Vec<(Rank, AgentId)> = before.ranks.iter().map(|(rank, paused)| (*rank, paused.agent)).collect();
    let (machine, first) = NodeJob::begin(Setup {
        size: introduction.size,
        lease_us: lease.as_micros() as u64,
        health: node.health.verdict(),
        standing,
        watches_traffic: may_follow_data(&introduction),
    });
    let mut job = Job {
        machine,
        begun: Instant::now(),
        agent_links: AgentLinks::new(
            (introduction.clone(), node.unused_features(&introduction)),
            ip,
            urgent.clone(),
            ordered.clone(),
            question_steps,
            patience,
            Sinks::new(key.clone(), progress.clone()),
        ),
        tiers: Tiers::new(
            introduction.clone(),
            (&node.name, &node.stay, &node.tiers),
            (urgent.clone(), chosen),
            patience,
            key.clone(),
            progress.clone(),
        ),
        progress,
        ready,
        held: succeeds.then(|| node.stay.hold()),
        node,
        introduction,
        urgent,
        ordered,
        agent_socket,
        tasks: HashMap::new(),
        rank_tasks: JoinSet::new(),
        putting: JoinSet::new(),
        stop_putting: Arc::default(),
        not_in_place: None,
        agentless: HashMap::new(),
        rendezvous: Rendezvous::default(),
        known: Arc::default(),
        key,
        shared_memory: before.shared_memory,
        spaces: before.spaces,
        namespace: before.namespace,
        paused: before.ranks,
        lease,
        rank_event_sender,
        answers,
        ip,
        patience,
        room: RecentRoom::default(),
        heard: heard_at,
    };
    first.into_iter().for_each(|effect| drop(job.carry_out(effect)));
    let (health, time_up) = (job.node.health.verdicts(), job.node.time_up.subscribe());
    let mut incoming =
        Incoming { commands, pings, agents, arrivals, rank_events, steps, answered, places, states, superseded, health, time_up };
    let node = job.node.clone();
    let end = job.run(&mut incoming).await;
    let held = job.held.take();
    // What the controller has not said, it may be lost with.
    let is_over = end == End::LeaseOver;
    let next = (is_over || end.goes_on()).then(|| successor::await_next_life(node.clone(), job.introduction.clone(), is_over));
    if is_over {
        let lease_us = lease.as_micros() as u64;
        node.note_lease_over(&job.introduction.identity, lease_us, job.machine.stood_still_us().min(lease_us));
    }
    leave(job, end, incoming, carrying).await;
    next.map(|next| tokio::spawn(next.in_current_span()));
    match end {
        End::Asked { goes_on: false } => node.stay.settle(),
        _ if succeeds => node.stay.linger(LINGERING),
        _ => {}
    }
    drop(held);
}

/// What images are encrypted with, if they are. Why it cannot be had, for people.
async fn load_key(path: Option<PathBuf>) -> Result<Option<Key>, String> {
    let Some(path) = path else { return Ok(None) };
    let named = path.clone();
    match bounded::within(KEY_TIME, move || Key::load(&named)).await {
        Some(Ok(key)) => Ok(Some(key)),
        Some(Err(error)) => Err(format!("{} ({})", with_causes(&error), error.hint())),
        None => Err(format!("{} could not be read within {} s (look at its file system on that node)", path.display(), KEY_TIME.as_secs())),
    }
}

struct Incoming {
    commands: mpsc::Receiver<ToDaemon>,
    pings: mpsc::Receiver<(Resumption, u64)>,
    agents: mpsc::Receiver<AgentEvent>,
    arrivals: mpsc::Receiver<Admitted>,
    rank_events: mpsc::UnboundedReceiver<RankEvent>,
    steps: mpsc::UnboundedReceiver<QuestionStep>,
    answered: mpsc::UnboundedReceiver<Event>,
    /// Where ranks save.
    places: mpsc::UnboundedReceiver<ChosenPlace>,
    states: mpsc::UnboundedReceiver<LinkState>,
    superseded: Arc<Notify>,
    health: watch::Receiver<NodeHealth>,
    time_up: broadcast::Receiver<i32>,
}

struct Job {
    /// All that is decided about the job here.
    machine: NodeJob,
    /// When the job came to this node: the machine's times count from then.
    begun: Instant,
    node: Arc<Node>,
    /// What a controller is told first.
    ready: FromDaemon,
    /// The daemon is needed although whoever started it is gone.
    held: Option<Held>,
    introduction: Arc<JobIntroduction>,
    urgent: Urgent,
    ordered: Ordered,
    agent_socket: AgentSocket,
    agent_links: AgentLinks,
    /// The tasks of ranks that are here: of which process, and what tells them. Dropping an entry releases its rank.
    tasks: HashMap<Rank, (u64, mpsc::UnboundedSender<Command>)>,
    rank_tasks: JoinSet<(Rank, u64, Option<NotInPlace>)>,
    /// Files that are put back. When the job leaves nobody writes to them any more.
    putting: JoinSet<()>,
    stop_putting: Arc<AtomicBool>,
    /// Of the task that has just ended.
    not_in_place: Option<NotInPlace>,
    /// Why no agent speaks for ranks that have none.
    agentless: HashMap<Rank, Agentless>,
    tiers: Tiers,
    rendezvous: Rendezvous,
    known: Arc<Mutex<ExaminedPrograms>>,
    /// What images are encrypted with.
    key: Option<Key>,
    /// All bytes that this daemon itself moves for the job.
    progress: Arc<Progress>,
    /// Goes when all ranks are gone.
    shared_memory: Option<SharedMemory>,
    spaces: Arc<JobSpaces>,
    /// Goes, too, when they are gone.
    namespace: Arc<SharedNamespace>,
    rank_event_sender: mpsc::UnboundedSender<RankEvent>,
    /// Takes what the machine is told of its effects later.
    answers: mpsc::UnboundedSender<Event>,
    /// Ranks that an earlier life of the job left standing here.
    paused: HashMap<Rank, PausedRank>,
    /// Address of this node, at which others reach it.
    ip: IpAddr,
    patience: Duration,
    /// How long the ranks live on without a word from the controller.
    lease: Duration,
    room: RecentRoom,
    /// When the controller was heard last.
    heard: Arc<Mutex<Instant>>,
}

impl Job {
    async fn run(&mut self, incoming: &mut Incoming) -> End {
        let mut time = pin!(sleep_until(self.look_at().into()));
        let namespace = self.namespace.clone();
        loop {
            // A look that words have put off is put off when its time has come: that costs less.
            let look_at = self.look_at().into();
            if look_at < time.deadline() {
                time.as_mut().reset(look_at);
            }
            let end = tokio::select! {
                // RankEvent of a rank are sent before its agent's words that depend on them, and must be heard before them.
                biased;
                Some(event) = incoming.rank_events.recv() => self.reached(event),
                Some(ended) = self.rank_tasks.join_next(), if !self.rank_tasks.is_empty() => self.rank_task_ended(ended.ok()),
                message = incoming.commands.recv() => {
                    *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    self.feed(message.map_or(Event::ControllerLost, Event::Told))
                }
                // Of a controller that has been succeeded since it says nothing: its clock is another one.
                Some((of, at_us)) = incoming.pings.recv() => self.node.may_resume(&of).then(|| {
                    *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    self.feed(Event::Pinged { at_us })
                }).flatten(),
                Some(event) = incoming.agents.recv() => self.agent_spoke(event),
                Some(step) = incoming.steps.recv() => {
                    let event = self.agent_links.came_further(step);
                    let end = self.feed(event);
                    self.agent_links.settle();
                    end
                }
                Some(event) = incoming.answered.recv() => self.feed(event),
                Some(chosen) = incoming.places.recv() => {
                    let event = self.tiers.placed(chosen);
                    self.feed(event)
                }
                Some(Admitted { token, image, .. }) = incoming.arrivals.recv() => {
                    self.rendezvous.arrived(token, image, Instant::now());
                    None
                }
                () = incoming.superseded.notified() => self.feed(Event::Superseded),
                Ok(signal) = incoming.time_up.recv() => self.feed(Event::TimeUp { signal }),
                Ok(()) = incoming.health.changed() => self.feed(Event::Health(self.node.health.verdict())),
                () = namespace.ended() => self.feed(Event::NamespaceEnded),
                Some(state) = incoming.states.recv() => self.feed(Event::Link(state)),
                () = &mut time => {
                    let now = Instant::now();
                    self.rendezvous.tidy(now);
                    let end = if now < self.look_at() { None } else { self.feed(Event::Time) };
                    time.as_mut().reset(self.look_at().into());
                    end
                }
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// When the machine is to be told the time.
    fn look_at(&self) -> Instant {
        self.begun + Duration::from_micros(self.machine.look_at_us())
    }

    /// The machine is told, and what it wants is done. An end if the job is to leave.
    fn feed(&mut self, event: Event) -> Option<End> {
        let (mut events, mut end) = (VecDeque::from([event]), None);
        while let Some(event) = events.pop_front() {
            for effect in self.machine.handle(self.now_us(), event) {
                match effect {
                    Effect::Leave(why) => end = Some(why),
                    effect => events.extend(self.carry_out(effect)),
                }
            }
        }
        end
    }

    fn agent_spoke(&mut self, event: AgentEvent) -> Option<End> {
        let event = self.agent_links.heard(event);
        if let Event::Agent { agent, first: false, message } = &event
            && let Some((rank, attempt)) = self.machine.speaks_for(*agent).filter(|_| is_conversation(message))
        {
            conversation::said(rank, attempt, message);
        }
        self.feed(event)
    }

    fn reached(&mut self, RankEvent { rank, attempt, event }: RankEvent) -> Option<End> {
        self.room.forget();
        let event = match event {
            Milestone::Built { us, bytes } => Event::Built { rank, attempt, us, bytes },
            Milestone::Started { agentless: why } => {
                let agentless = why.is_some();
                let is_present = self.machine.ranks().get(&rank).is_some_and(|slot| slot.attempt == attempt);
                self.agentless.extend(why.filter(|_| is_present).map(|why| (rank, why)));
                Event::Started { rank, attempt, agentless }
            }
        };
        self.feed(event)
    }

    fn rank_task_ended(&mut self, ended: Option<(Rank, u64, Option<NotInPlace>)>) -> Option<End> {
        let Some((rank, attempt, failed)) = ended else {
            tracing::error!("the task of a rank panicked");
            return None;
        };
        self.room.forget();
        let not_in_place = failed.is_some();
        self.not_in_place = failed;
        let end = self.feed(Event::Ended { rank, attempt, not_in_place });
        self.not_in_place = None;
        end
    }

    /// Kills everything and sees it dead.
    async fn release(&mut self) {
        self.tasks.clear();
        self.stop_putting.store(true, Ordering::Release);
        while self.putting.join_next().await.is_some() {}
        paused::end(self.paused.drain().map(|(_, rank)| rank).collect(), &self.namespace).await;
        while self.rank_tasks.join_next().await.is_some() {}
    }
}
