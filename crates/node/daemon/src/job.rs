//! One job on this node: the controller's connection, the ranks here, and what passes between them.
//!
//! ```text
//! Introduce → Ready ─► serving ─── End ──► ending: ranks killed and reaped, output sent, Left ─► closed
//!                         ├── Pause ──► pausing: ranks parked, their output sent, Paused, Left ─► closed; they stand for the next life
//!                         └─ lease over, a later start, nonsense ─► lost: ranks killed and reaped
//! ```
//! A connection that breaks changes nothing, as long as the controller comes back within the lease (`job_link.rs`).
//! Invariants: when the controller was silent for as long as the job's lease, no process of the job is left here; where the ranks share a
//! PID namespace the kernel sees to that itself, also if this daemon stands still. Two starts of a job are never here at once: the later one
//! waits until the earlier one has left. The loop never waits for the controller or a rank, so neither can keep it from the other.
//! Faults assumed: the controller dies, stalls or asks for steps out of order; ranks and agents die at any moment.

mod comparing;
mod leaving;
mod standing;
mod tier_orders;

use self::leaving::{End, leave};
use self::standing::RestoreOrder;
use crate::agent_router::{AgentRouter, SaveStep};
use crate::agents::{AgentEvent, AgentSocket};
use crate::failure::RankFailure;
use crate::job_link::{LinkState, carry};
use crate::launch_environment::shares_pid_namespace;
use crate::local_rank::{LocalRank, LocalRanks};
use crate::node::{JobQueues, Node, Present};
use crate::outbox::{Ordered, Urgent, queues};
use crate::paused::{PausedJob, PausedRank};
use crate::privileges::Isolation;
use crate::program::ExaminedPrograms;
use crate::put_files::put_files;
use crate::rank::{Command, NotInPlace, RankContext, RankEvent, RankOrigin, run_rank};
use crate::room::RecentRoom;
use crate::shared_memory::SharedMemory;
use crate::sink::{Sinks, files_key};
use crate::spaces::JobSpaces;
use crate::start::ProgramStart;
use crate::stay::{Held, LINGERING};
use crate::successor;
use crate::supervisor::namespace::SharedNamespace;
use crate::tiers::Tiers;
use mend_coordination::lease::SenderClock;
use mend_messages::daemon::{FromDaemon, JobIntroduction, ToDaemon};
use mend_messages::health::{Grade, NodeHealth};
use mend_messages::job::Rank;
use mend_messages::world::World;
use mend_patience::Patience;
use mend_report::with_causes;
use mend_sealed::Key;
use mend_transfer::peer::{Admitted, Rendezvous};
use mend_transfer::progress::Progress;
use mend_wire::Connection;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::Instrument;

/// Time to the introduction. The controller first waits for all nodes, of which some may be dead.
const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an earlier life of a job may take to leave; shorter than the silence that a controller bears.
const LEAVING_TIME: Duration = Duration::from_secs(3);
/// Bounds of the silence that a controller may ask for.
const TIMEOUT_BOUNDS_MS: (u64, u64) = (500, 600_000);
/// Tenths of the lease after which the daemon ends the ranks itself, which is kinder than the kernel at the lease's end: output is sent.
const KIND_END: u32 = 9;

/// Which part of the lease a controller may be silent before nodes look for a successor.
const SUSPICION: u32 = 2;

/// How long ranks may take to stand still.
const PAUSE_TIME: Duration = Duration::from_secs(3);

/// How long the lease goes on after the controller's process closed the connection, at most: it has ended, or is back at once.
const CLOSED_LEASE: Duration = Duration::from_secs(2);

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
            Ok(Ok(ToDaemon::AskHeard(of))) => {
                let answer = match node.heard_ago(&of) {
                    Some(age) => FromDaemon::HeardAgo { ms: age.as_millis() as u64 },
                    None => not_here(),
                };
                if sender.send(&answer).await.is_err() {
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
                let over = node.lease_over(&resumption.session);
                let said = over.map_or_else(not_here, |lease| FromDaemon::LeaseOver { ms: lease.as_millis() as u64 });
                let _ = refused.sender.send(&said).await;
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

fn not_here() -> FromDaemon {
    FromDaemon::Refused { error: NOT_HERE.to_owned() }
}

async fn serve_introduced(node: Arc<Node>, introduction: JobIntroduction, connection: Connection, ip: IpAddr) {
    let mut connection = connection;
    let (transfers, arrivals) = mpsc::channel(16);
    let (resumptions, resumed) = mpsc::channel(1);
    let superseded = Arc::new(Notify::new());
    let heard_at = Arc::new(Mutex::new(Instant::now()));
    let waiting = JobQueues { transfers, resumptions, superseded: superseded.clone(), heard: heard_at.clone() };
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
                Present::Here { epoch } if epoch == introduction.epoch => format!("job {} is on this node already", introduction.id),
                Present::Here { .. } => format!("a later start of job {} is on this node", introduction.id),
            };
            // A controller that does not listen learns it from the closed connection.
            let _ = connection.sender.send(&FromDaemon::Refused { error }).await;
            return;
        }
    };
    drop(waiting);
    let key = match introduction.encryption_key.as_deref().map(Key::load).transpose() {
        Ok(key) => key,
        Err(error) => {
            let _ = connection.sender.send(&FromDaemon::Refused { error: format!("{} ({})", with_causes(&error), error.hint()) }).await;
            return;
        }
    };
    let (urgent, ordered, outbox) = queues();
    let lease = Duration::from_millis(introduction.lease_ms.clamp(TIMEOUT_BOUNDS_MS.0, TIMEOUT_BOUNDS_MS.1));
    let before = match node.paused.take(&introduction) {
        Some(paused) => paused,
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
    let succeeds = introduction.successor.as_ref().is_some_and(successor::can_start);
    let _ = connection.sender.send(&FromDaemon::Ready { name: node.name.clone(), processor, succeeds }).await;
    let (heard, commands) = mpsc::channel(16);
    let (connected, states) = mpsc::unbounded_channel();
    let carrying = tokio::spawn(carry(connection, outbox, heard, resumed, connected).in_current_span());
    tracing::info!(job = introduction.id, size = introduction.size, "serving a job");
    let (rank_event_sender, rank_events) = mpsc::unbounded_channel();
    let (save_steps, saves) = mpsc::unbounded_channel();
    let patience = Duration::from_millis(introduction.node_timeout_ms.clamp(TIMEOUT_BOUNDS_MS.0, TIMEOUT_BOUNDS_MS.1));
    let (introduction, progress) = (Arc::new(introduction), Arc::new(Progress::default()));
    let mut job = Job {
        agent_router: AgentRouter::new(
            (introduction.clone(), node.unused_features(&introduction)),
            ip,
            urgent.clone(),
            ordered.clone(),
            save_steps,
            patience,
            Sinks::new(key.clone(), progress.clone()),
        ),
        tiers: Tiers::new(introduction.clone(), node.name.clone(), urgent.clone(), patience, key.clone(), progress.clone()),
        progress,
        held: succeeds.then(|| node.stay.hold()),
        node,
        introduction,
        urgent,
        ordered,
        agent_socket,
        ranks: HashMap::new(),
        rank_tasks: JoinSet::new(),
        rendezvous: Rendezvous::default(),
        known: Arc::default(),
        key,
        shared_memory: before.shared_memory,
        spaces: before.spaces,
        namespace: before.namespace,
        paused: before.ranks,
        going_back: HashMap::new(),
        lease,
        rank_event_sender,
        ip,
        patience,
        room: RecentRoom::default(),
        heard: heard_at,
    };
    let (health, time_up) = (job.node.health.verdicts(), job.node.time_up.subscribe());
    let mut incoming = Incoming { commands, agents, arrivals, rank_events, saves, states, superseded, health, time_up };
    let node = job.node.clone();
    let end = job.run(&mut incoming).await;
    let held = job.held.take();
    let next = matches!(end, End::Paused | End::Asked(true)).then(|| successor::await_next_life(node.clone(), job.introduction.clone()));
    if end == End::LeaseOver {
        node.remember_lease_over(&job.introduction.identity, lease);
    }
    leave(job, end, incoming, carrying).await;
    next.map(|next| tokio::spawn(next.in_current_span()));
    match end {
        End::Asked(false) => node.stay.settle(),
        _ if succeeds => node.stay.linger(LINGERING),
        _ => {}
    }
    drop(held);
}

struct Incoming {
    commands: mpsc::Receiver<ToDaemon>,
    agents: mpsc::Receiver<AgentEvent>,
    arrivals: mpsc::Receiver<Admitted>,
    rank_events: mpsc::UnboundedReceiver<RankEvent>,
    saves: mpsc::UnboundedReceiver<SaveStep>,
    states: mpsc::UnboundedReceiver<LinkState>,
    superseded: Arc<Notify>,
    health: watch::Receiver<NodeHealth>,
    time_up: broadcast::Receiver<i32>,
}

struct Job {
    node: Arc<Node>,
    /// The daemon is needed although whoever started it is gone.
    held: Option<Held>,
    introduction: Arc<JobIntroduction>,
    urgent: Urgent,
    ordered: Ordered,
    agent_socket: AgentSocket,
    agent_router: AgentRouter,
    ranks: LocalRanks,
    rank_tasks: JoinSet<(Rank, u64, Option<NotInPlace>)>,
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
    /// Ranks that an earlier life of the job left standing here.
    paused: HashMap<Rank, PausedRank>,
    /// What is to be done anew if they cannot go back in place.
    going_back: HashMap<Rank, RestoreOrder>,
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
        let mut silence = Patience::new(self.lease * KIND_END / 10);
        let pause = silence.pause();
        // Of so much silence half is enough to look for a successor.
        let mut suspicion = Patience::with_pause(self.lease / SUSPICION, pause);
        let mut suspected = false;
        let (begun, mut clock) = (Instant::now(), SenderClock::default());
        let mut tick = interval(pause);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let namespace = self.namespace.clone();
        let mut pausing: Option<Instant> = None;
        let health = self.node.health.verdict();
        if health.grade > Grade::Well {
            self.urgent.send(FromDaemon::Health(health));
        }
        loop {
            if pausing.is_some_and(|until| !self.agent_router.is_pausing() || Instant::now() > until) {
                return End::Paused;
            }
            tokio::select! {
                // RankEvent of a rank are sent before its agent's words that depend on them, and must be heard before them.
                biased;
                Some(event) = incoming.rank_events.recv() => self.agent_router.reached(event, &mut self.ranks),
                Some(ended) = self.rank_tasks.join_next(), if !self.rank_tasks.is_empty() => self.rank_task_ended(ended.ok()),
                message = incoming.commands.recv() => {
                    silence.renew();
                    suspicion.renew();
                    suspected = false;
                    *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    if let Some(ToDaemon::Ping { at_us }) = message {
                        let age = clock.age_us(at_us, begun.elapsed().as_micros() as u64);
                        self.namespace.renew(Duration::from_micros(age));
                    }
                    match message {
                        None => return End::Lost,
                        Some(ToDaemon::End { goes_on }) => return End::Asked(goes_on),
                        Some(ToDaemon::Pause) => {
                            self.agent_router.pause(&self.ranks);
                            pausing = Some(Instant::now() + PAUSE_TIME);
                        }
                        Some(message) => self.obey(message),
                    }
                }
                Some(event) = incoming.agents.recv() => self.agent_router.heard(event, &mut self.ranks),
                Some(step) = incoming.saves.recv() => self.agent_router.save_came_further(step, &self.ranks),
                Some(Admitted { token, image, .. }) = incoming.arrivals.recv() => {
                    self.rendezvous.arrived(token, image, Instant::now());
                }
                () = incoming.superseded.notified() => return End::Superseded,
                Ok(signal) = incoming.time_up.recv() => self.urgent.send(FromDaemon::TimeUp { signal }),
                Ok(()) = incoming.health.changed() => self.urgent.send(FromDaemon::Health(self.node.health.verdict())),
                () = namespace.ended() => {
                    tracing::warn!(job = self.introduction.id, "the ranks' PID namespace has ended, as it does when the job's lease is over");
                    return End::LeaseOver;
                }
                Some(state) = incoming.states.recv() => {
                    let kind = self.lease * KIND_END / 10;
                    let lease = match state {
                        LinkState::Closed => if self.start_successor(false) { kind } else { self.lease.min(CLOSED_LEASE) },
                        LinkState::Connected => kind,
                        LinkState::Succeeded => {
                            clock = SenderClock::default();
                            self.held.get_or_insert_with(|| self.node.stay.hold());
                            self.node.stay.alone();
                            kind
                        }
                    };
                    silence = Patience::with_pause(lease, pause);
                }
                _ = tick.tick() => {
                    self.rendezvous.tidy(Instant::now());
                    if suspicion.is_over() && !suspected {
                        // Tried again while the job's directory cannot be seen.
                        suspected = self.start_successor(true);
                    }
                    if silence.is_over() {
                        tracing::warn!(job = self.introduction.id, ms = self.lease.as_millis(), "not a word from the controller");
                        return End::LeaseOver;
                    }
                }
            }
        }
    }

    /// Starts a successor of the controller, in the order of the nodes' numbers: the first one that has the job's lock is it. Whether it was started.
    fn start_successor(&self, silent: bool) -> bool {
        let Some(command) = self.introduction.successor.clone().filter(successor::can_start) else { return false };
        tracing::info!("a successor of the controller is started");
        let stay = self.node.stay.clone();
        tokio::spawn(successor::start(stay, command, self.introduction.node, silent).in_current_span());
        true
    }

    fn obey(&mut self, message: ToDaemon) {
        match message {
            ToDaemon::Ping { .. } => {
                self.urgent.send(FromDaemon::Pong(self.room.now()));
                self.agent_router.progress.tell(&self.urgent);
            }
            ToDaemon::Start { rank, attempt, stdin } => {
                let beginning = ProgramStart {
                    rank,
                    job: self.introduction.clone(),
                    socket: self.agent_socket.name().to_owned(),
                    isolated: matches!(self.node.isolation, Isolation::Available { .. }),
                    shared: shares_pid_namespace(&self.introduction),
                    library: self.node.library.clone(),
                    known: self.known.clone(),
                };
                if let Err(failure) = self.admit((rank, attempt), stdin, RankOrigin::Start(Box::new(beginning))) {
                    let (error, hint, code) = (with_causes(&failure), failure.hint(), failure.code());
                    self.urgent.send(FromDaemon::StartFailed { rank, attempt, error, hint, code });
                }
            }
            ToDaemon::Restore { rank, attempt, source, image, stdin } => {
                if let Err(failure) = self.restore((rank, attempt), source, image, stdin) {
                    let (error, hint) = (with_causes(&failure), failure.hint());
                    self.urgent.send(FromDaemon::RestoreFailed { rank, attempt, error, hint, image: failure.blames_image() });
                }
            }
            ToDaemon::Grow(world) => self.grow(&world),
            ToDaemon::Pmi { rank, bytes } => self.tell(rank, Command::Pmi(bytes)),
            ToDaemon::Stdin { rank, bytes } => self.tell(rank, Command::Stdin(bytes)),
            ToDaemon::Signal(signal) => {
                for slot in self.ranks.values() {
                    slot.tell(Command::Signal(signal));
                }
            }
            ToDaemon::Compare { seq, rank, needs } => self.compare(seq, rank, needs),
            ToDaemon::PutFiles(mut order) => {
                self.tiers.locate_portable(&mut order.files);
                let (urgent, key, progress) = (self.urgent.clone(), self.key.as_ref().map(files_key), self.progress.clone());
                let mounts = self.spaces.mounts();
                tokio::task::spawn_blocking(move || {
                    urgent.send(FromDaemon::FilesPut(put_files(&order, &mounts, key, &progress).map_err(|error| error.told())))
                });
            }
            ToDaemon::Discard { rank } => {
                // Its task kills and reaps; a new process of the rank may come at once. Its agent keeps its connection
                // until then: one that sees it end would let a saved rank run on, which goes on elsewhere.
                if let Some(slot) = self.ranks.remove(&rank) {
                    self.agent_router.abandon(rank, slot.attempt);
                }
            }
            ToDaemon::Map(map) => {
                // All ranks that shall be here are: what else stands here ends.
                self.paused.clear();
                self.agent_router.publish(map);
            }
            ToDaemon::Ask(steps) => self.agent_router.questions(steps, &self.ranks),
            ToDaemon::SaveTo { seq, rank, address, token, way } => {
                self.agent_router.save_to((seq, rank), (address, token), way, &self.ranks);
            }
            ToDaemon::PrecopyTo { seq, rank, address, token } => self.agent_router.precopy_to(seq, rank, address, token, &self.ranks),
            ToDaemon::Tier(order) => self.tier(*order),
            ToDaemon::Introduce(_) | ToDaemon::Resume(_) | ToDaemon::Succeed(_) | ToDaemon::AskHeard(_) | ToDaemon::Look => {
                tracing::warn!(job = self.introduction.id, "a controller introduced its job twice")
            }
            // Handled by the loop.
            ToDaemon::End { .. } | ToDaemon::Pause => {}
        }
    }

    fn tell(&self, rank: Rank, command: Command) {
        match self.ranks.get(&rank) {
            Some(slot) => slot.tell(command),
            // It ended while this was under way.
            None => tracing::debug!(rank, "nothing to tell a rank that is not here"),
        }
    }

    /// The job has a world more.
    fn grow(&mut self, world: &World) {
        Arc::make_mut(&mut self.introduction).grow(world);
        self.agent_router.introduce(self.introduction.clone());
    }

    fn admit(&mut self, (rank, attempt): (Rank, u64), fed: bool, origin: RankOrigin) -> Result<(), RankFailure> {
        if rank >= self.introduction.size {
            return Err(RankFailure::NoSuchRank { rank, size: self.introduction.size });
        }
        if self.ranks.contains_key(&rank) {
            return Err(RankFailure::Present(rank));
        }
        let (sender, commands) = mpsc::unbounded_channel();
        self.run_rank((rank, attempt), fed, (commands, Vec::new()), origin);
        self.ranks.insert(rank, LocalRank::new(attempt, sender));
        Ok(())
    }

    fn run_rank(
        &mut self,
        (rank, attempt): (Rank, u64),
        fed: bool,
        (commands, held): (mpsc::UnboundedReceiver<Command>, Vec<Command>),
        origin: RankOrigin,
    ) {
        let (ordered, urgent, rank_events) = (self.ordered.clone(), self.urgent.clone(), self.rank_event_sender.clone());
        let shared_memory = self.shared_memory.as_ref().map(|own| own.path().to_owned());
        let portable = self.tiers.portable();
        let open_files = self.node.open_files;
        let (namespace, spaces) = (self.namespace.clone(), self.spaces.clone());
        let context = RankContext {
            rank,
            attempt,
            fed,
            shared_memory,
            portable,
            spaces,
            namespace,
            open_files,
            ordered,
            urgent,
            commands,
            rank_events,
        };
        let here = self.node.count_rank();
        let rank_task = async move {
            let ended = run_rank(context, origin, held).await;
            drop(here);
            (rank, attempt, ended)
        };
        self.rank_tasks.spawn(rank_task.instrument(tracing::info_span!("rank", rank, attempt)));
    }

    fn rank_task_ended(&mut self, ended: Option<(Rank, u64, Option<NotInPlace>)>) {
        let Some((rank, attempt, failed)) = ended else { return tracing::error!("the task of a rank panicked") };
        let order = self.going_back.remove(&rank);
        if let (Some(failed), Some(order)) = (failed, order.filter(|order| order.attempt == attempt))
            && self.ranks.get(&rank).is_some_and(|slot| slot.attempt == attempt)
        {
            match self.restore_anew(rank, order, failed) {
                Ok(()) => return,
                Err(failure) => {
                    let (error, hint) = (with_causes(&failure), failure.hint());
                    self.urgent.send(FromDaemon::RestoreFailed { rank, attempt, error, hint, image: failure.blames_image() });
                }
            }
        }
        if self.ranks.get(&rank).is_some_and(|slot| slot.attempt == attempt) {
            self.ranks.remove(&rank);
            self.agent_router.abandon(rank, attempt);
        }
        self.agent_router.forget(rank, attempt);
    }

    /// Kills everything and sees it dead.
    async fn release(&mut self) {
        self.ranks.clear();
        while self.rank_tasks.join_next().await.is_some() {}
        self.tiers.leave().await;
    }
}
