//! The life of one rank's process on this node, as one task.
//!
//! ```text
//! Start:    Launching ─ Running ─► Running ─────────────── Ended ─► drained ─► Exited
//! Restore:  Launching ─ Running ─► Building ─ Ready, GO ─► Rebuilding ─ settle ─► Running …
//! RollBack: as Restore, in a process that is paused ── any failure before Running ──► killed, and restored anew
//! Running ── Pause ──► its process is handed out, parked
//! any state ── released (discard, end, connection lost) ──► processes killed, output drained, nothing reported
//! Launching ── refused ──► StartFailed / RestoreFailed        Building, Rebuilding ── any failure ──► RestoreFailed
//! ```
//! Invariants: whatever the task reports last, no process of the rank is left by then; all output of the rank is in
//! the queue before its exit. Faults assumed: the supervisor, the restorer or the rank is killed at any moment.

mod in_place;
mod pipes;

use self::in_place::send_back;
pub use self::in_place::{NotInPlace, RankProcess};
use self::pipes::{RankPipes, connect};
use crate::agents::AgentLink;
use crate::channels::{OurEnds, open_channels};
use crate::failure::RankFailure;
use crate::input::{Feed, UnwrittenInput};
use crate::outbox::{Ordered, Urgent};
use crate::output::Pump;
use crate::program::Agentless;
use crate::restore::{Building, Restoration, RestoreError, RestorerMessage};
use crate::spaces::JobSpaces;
use crate::start::ProgramStart;
use crate::supervisor::namespace::SharedNamespace;
use crate::supervisor::order::{Event, Launch};
use crate::supervisor::{RankSupervisor, spawn};
use crate::tiers::Offered;
use mend_image::launch::Role;
use mend_messages::daemon::{ExitStatus, FromDaemon};
use mend_messages::job::Rank;
use mend_messages::report::Report;
use mend_report::with_causes;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

/// How long descendants may go on writing after their rank ended.
const DESCENDANT_OUTPUT_TIME: Duration = Duration::from_secs(1);

/// From a restorer's last word to the news of how it has ended.
const ENDING_TIME: Duration = Duration::from_secs(5);

/// What the job asks of a rank. Dropping the sender releases the rank.
#[derive(Debug)]
pub enum Command {
    /// Send a signal.
    Signal(i32),
    /// Standard input; empty is the end.
    Stdin(Vec<u8>),
    /// A PMI reply.
    Pmi(Vec<u8>),
    /// Answer when all the rank has written is on its way.
    Flush(oneshot::Sender<()>),
    /// Give the rank no more input, and answer when that is so: it is about to be saved.
    Hold(oneshot::Sender<()>),
    /// Give it input again.
    Feed,
    /// The restored agent reported success: from here on the rank is as if started here.
    Settle,
    /// The restored agent reported this failure.
    Abandon(RestoreError),
    /// Its agent has parked the rank: give its process out. Without an answer there is none.
    Pause(oneshot::Sender<RankProcess>),
}

/// What the job needs to know of a rank's life; everything else goes to the controller directly.
#[derive(Debug)]
pub struct RankEvent {
    /// Which rank.
    pub rank: Rank,
    /// Which of its processes.
    pub attempt: u64,
    /// What happened.
    pub event: Milestone,
}

/// See [`RankEvent`].
#[derive(Debug)]
pub enum Milestone {
    /// The controller has been told that the program runs.
    Started {
        /// Why no agent will speak for it.
        agentless: Option<Agentless>,
    },
    /// The restorer is done; the agent will speak next.
    Built {
        /// Microseconds from the restorer's start.
        us: u64,
        /// Bytes of the image.
        bytes: u64,
    },
}

/// How the process comes to be.
#[derive(Debug)]
pub enum RankOrigin {
    /// The program, from its beginning.
    Start(Box<ProgramStart>),
    /// An image.
    Restore(Box<Restoration>),
    /// An image, to which its paused process goes back.
    RollBack(Box<Restoration>, Box<RankProcess>, AgentLink),
}

/// What a rank's task works with.
#[derive(Debug)]
pub struct RankContext {
    /// Which rank.
    pub rank: Rank,
    /// Which of its processes, by the controller's number.
    pub attempt: u64,
    /// Feed standard input.
    pub fed: bool,
    /// What the rank sees as `/dev/shm`.
    pub shared_memory: Option<PathBuf>,
    /// Where its files of portable checkpoints go first.
    pub portable: Offered,
    /// Data spaces that the rank sees.
    pub spaces: Arc<JobSpaces>,
    /// The PID namespace of the job's ranks here.
    pub namespace: Arc<SharedNamespace>,
    /// Limit on open files for the rank.
    pub open_files: Option<u64>,
    /// To the controller, with the output.
    pub ordered: Ordered,
    /// To the controller, ahead of it.
    pub urgent: Urgent,
    /// From the job.
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// To the job.
    pub rank_events: mpsc::UnboundedSender<RankEvent>,
}

impl RankContext {
    /// Tells the job. It may be gone, which the end of the commands will tell.
    fn tell(&self, event: Milestone) {
        let _ = self.rank_events.send(RankEvent { rank: self.rank, attempt: self.attempt, event });
    }
}

/// Runs the rank to its end, or until it is clear that it cannot go back in place. `held`: commands that came before.
pub async fn run_rank(mut context: RankContext, origin: RankOrigin, held: Vec<Command>) -> Option<NotInPlace> {
    let restoring = matches!(origin, RankOrigin::Restore(_) | RankOrigin::RollBack(..));
    match begin(&mut context, origin, held).await {
        Ok(Some(task)) => {
            let failed = task.run(&mut context).await;
            context.namespace.sweep();
            return failed.map(|(why, held)| NotInPlace { why, commands: context.commands, held });
        }
        Ok(None) => {}
        Err(failure) => report_failure(&context, restoring, &failure),
    }
    None
}

fn report_failure(context: &RankContext, restoring: bool, failure: &RankFailure) {
    tracing::info!(rank = context.rank, error = with_causes(failure), "no process for a rank");
    context.urgent.send(failure.told((context.rank, context.attempt), restoring));
}

/// Gets a supervisor going. `None` if the rank was released meanwhile.
async fn begin(context: &mut RankContext, origin: RankOrigin, mut held: Vec<Command>) -> Result<Option<RankTask>, RankFailure> {
    let preparing = async {
        match origin {
            RankOrigin::Start(beginning) => {
                let (launch, agentless) = beginning.prepare().await?;
                Ok::<_, RankFailure>((launch, agentless, None, None))
            }
            RankOrigin::Restore(restoration) => {
                let (launch, building) = restoration.prepare().await?;
                Ok((launch, None, Some(building), None))
            }
            RankOrigin::RollBack(restoration, paused, agent) => {
                let (launch, building) = restoration.prepare().await?;
                Ok((launch, None, Some(building), Some((*paused, agent))))
            }
        }
    };
    let (launch, agentless, mut building, paused) = tokio::select! {
        prepared = preparing => prepared?,
        () = collect(&mut context.commands, &mut held) => return Ok(None),
    };
    let piped = context.fed || building.as_ref().is_some_and(|building| building.uses(Role::Stdin));
    let (ours, theirs) = open_channels(piped).map_err(RankFailure::Channels)?;
    let in_place = paused.is_some();
    let process = match (paused, &mut building) {
        (Some((paused, agent)), Some(building)) => {
            send_back(building, &launch, theirs, &agent).await.map_err(RankFailure::Channels)?;
            // It runs already; what was said of it before comes first.
            let _ = paused.sender.send(ProcessEvent::Supervisor(Event::Running));
            paused
        }
        (_, None) => launch_process(context, launch, theirs.into_iter().map(|(_, end)| end).collect()).await?,
        (None, Some(building)) => launch_process(context, launch, building.descriptors(theirs).map_err(RankFailure::Channels)?).await?,
    };
    let RankProcess { launch, mut link, process_events, sender } = process;
    // Those that came while there was none.
    for command in held.extract_if(.., |command| matches!(command, Command::Signal(_))).collect::<Vec<_>>() {
        if let Command::Signal(signal) = command {
            link.signal(signal).await;
        }
    }
    Ok(Some(RankTask {
        phase: Phase::Launching,
        in_place,
        launch,
        agentless,
        link,
        process_events,
        sender,
        building,
        ours: Some(ours),
        pipes: None,
        held,
        deadline: None,
        ended: None,
    }))
}

/// Starts a supervisor, which starts the process; `files` belong to the numbers in `launch`.
async fn launch_process(context: &RankContext, mut launch: Launch, files: Vec<OwnedFd>) -> Result<RankProcess, RankFailure> {
    launch.portable = context.portable.clone().opened().await.map(|portable| portable.mount());
    (launch.shared_memory, launch.open_files) = (context.shared_memory.clone(), context.open_files);
    let namespace = if launch.shared { context.namespace.descriptor().await } else { None };
    launch.shared = namespace.is_some();
    let spaces = context.spaces.sockets().await?;
    if !(spaces.is_empty() || launch.isolated) {
        return Err(RankFailure::NoNamespace);
    }
    let (directories, sockets): (Vec<_>, Vec<_>) =
        spaces.into_iter().map(|(mount, socket)| ((PathBuf::from(mount.directory), mount.writable), socket)).unzip();
    launch.spaces = directories;
    launch.whose = context.spaces.whose(context.rank);
    let files = namespace.into_iter().chain(sockets).chain(files).collect();
    let (link, mut events) = spawn(launch.clone(), files).await?;
    let (sender, process_events) = mpsc::unbounded_channel();
    let from_supervisor = sender.clone();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if from_supervisor.send(ProcessEvent::Supervisor(event)).is_err() {
                return;
            }
        }
        let _ = from_supervisor.send(ProcessEvent::SupervisorGone);
    });
    Ok(RankProcess { launch, link, process_events, sender })
}

/// Takes commands until the rank is released. Cancel safe: what was taken is in `held`.
async fn collect(commands: &mut mpsc::UnboundedReceiver<Command>, held: &mut Vec<Command>) {
    while let Some(command) = commands.recv().await {
        held.push(command);
    }
}

#[derive(Debug)]
enum ProcessEvent {
    Supervisor(Event),
    SupervisorGone,
    Restorer(Result<RestorerMessage, RestoreError>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Launching,
    Building,
    /// For so long at most.
    Rebuilding(Duration),
    Running,
}

/// How a task goes on after an event.
enum Transition {
    Continue,
    Failed(RankFailure),
    Ended(ExitStatus),
    Released,
    Paused(oneshot::Sender<RankProcess>),
}

#[derive(Debug)]
struct RankTask {
    phase: Phase,
    /// Its process was there before, and goes back in place.
    in_place: bool,
    launch: Launch,
    agentless: Option<Agentless>,
    link: RankSupervisor,
    process_events: mpsc::UnboundedReceiver<ProcessEvent>,
    sender: mpsc::UnboundedSender<ProcessEvent>,
    building: Option<Building>,
    ours: Option<OurEnds>,
    pipes: Option<RankPipes>,
    /// Commands that wait until the process can take them.
    held: Vec<Command>,
    deadline: Option<Instant>,
    /// How the restorer has ended, if that is known.
    ended: Option<ExitStatus>,
}

impl RankTask {
    /// Why it could not go back in place, if so, and what it was told meanwhile.
    async fn run(mut self, context: &mut RankContext) -> Option<(String, Vec<Command>)> {
        let restoring = self.building.is_some();
        loop {
            let deadline = self.deadline;
            let transition = tokio::select! {
                Some(event) = self.process_events.recv() => self.on_process_event(context, event),
                command = context.commands.recv() => match command {
                    None => Transition::Released,
                    Some(command) => self.commanded(command).await,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    let silent = if let Phase::Rebuilding(limit) = self.phase { RestoreError::AgentSilent(limit) } else { RestoreError::Speechless };
                    Transition::Failed(silent.into())
                }
            };
            match transition {
                Transition::Continue => {}
                Transition::Failed(failure) => return self.failed(context, restoring, &failure).await,
                Transition::Ended(status) if self.phase == Phase::Running => {
                    self.exited(context, status).await;
                    return None;
                }
                Transition::Ended(status) => return self.failed(context, restoring, &RankFailure::DiedEarly(status)).await,
                Transition::Released => {
                    self.released(context).await;
                    return None;
                }
                Transition::Paused(taker) => {
                    self.paused(context, taker).await;
                    return None;
                }
            }
        }
    }

    async fn failed(mut self, context: &RankContext, restoring: bool, failure: &RankFailure) -> Option<(String, Vec<Command>)> {
        self.end().await;
        if self.in_place && self.phase != Phase::Running {
            return Some((with_causes(failure), self.held));
        }
        report_failure(context, restoring, failure);
        None
    }

    fn on_process_event(&mut self, context: &RankContext, event: ProcessEvent) -> Transition {
        match (event, self.phase) {
            (ProcessEvent::Supervisor(Event::Running), Phase::Launching) => self.launched(context),
            (ProcessEvent::Supervisor(Event::Failed { step, errno }), _) => {
                Transition::Failed(RankFailure::launch(&self.launch, step, errno))
            }
            (ProcessEvent::Supervisor(Event::Ended(status)), Phase::Building) => {
                // What the restorer said last is on its way and says more than its exit code.
                self.ended = Some(status);
                self.deadline.map_or(Transition::Continue, |_| Transition::Failed(RankFailure::of_silent(status)))
            }
            (ProcessEvent::Supervisor(Event::Ended(status)), _) => Transition::Ended(status),
            (ProcessEvent::Supervisor(Event::Running), _) => Transition::Continue,
            // Somebody killed it, and all the rank's processes with it.
            (ProcessEvent::SupervisorGone, _) => {
                // It may run on: its reaper was killed, too, and what it prints would keep this task here.
                context.namespace.sweep();
                let what = "the process of Mend that watches it was killed, and the rank with it".to_owned();
                context.urgent.send(FromDaemon::Report { rank: context.rank, report: Report::ProcessKilled { what } });
                Transition::Ended(ExitStatus::Signal(rustix::process::Signal::KILL.as_raw()))
            }
            (ProcessEvent::Restorer(Err(RestoreError::Speechless)), Phase::Building) => match self.ended {
                Some(status) => Transition::Failed(RankFailure::of_silent(status)),
                None => {
                    self.deadline = Some(Instant::now() + ENDING_TIME);
                    Transition::Continue
                }
            },
            (ProcessEvent::Restorer(Err(error)), Phase::Building) => Transition::Failed(error.into()),
            (ProcessEvent::Restorer(Ok(word)), Phase::Building) => self.restorer_said(context, word),
            (ProcessEvent::Restorer(_), _) => Transition::Continue,
        }
    }

    fn launched(&mut self, context: &RankContext) -> Transition {
        let Some(ours) = self.ours.take() else { return Transition::Continue };
        if self.building.is_none() {
            context.urgent.send(FromDaemon::Started { rank: context.rank });
            if self.agentless.is_some() {
                context.urgent.send(FromDaemon::Agentless { rank: context.rank });
            }
            context.tell(Milestone::Started { agentless: self.agentless.take() });
        }
        match connect(context, ours) {
            Ok(pipes) => self.pipes = Some(pipes),
            Err(error) => return Transition::Failed(RankFailure::Channels(error)),
        }
        match &mut self.building {
            None => {
                self.phase = Phase::Running;
                self.deliver_held();
            }
            Some(building) => {
                self.phase = Phase::Building;
                let mut words = match building.words() {
                    Ok(words) => words,
                    Err(error) => return Transition::Failed(RestoreError::Control(error).into()),
                };
                let sender = self.sender.clone();
                tokio::spawn(async move {
                    loop {
                        let word = words.next().await;
                        let last = word.is_err();
                        if sender.send(ProcessEvent::Restorer(word)).is_err() || last {
                            return;
                        }
                    }
                });
            }
        }
        Transition::Continue
    }

    fn restorer_said(&mut self, context: &RankContext, word: RestorerMessage) -> Transition {
        match word {
            RestorerMessage::Unread { role, bytes } => {
                // Ahead of anything the controller sends: those commands are still held.
                match (role, &self.pipes) {
                    (Role::Stdin, Some(RankPipes { stdin: Some(feed), .. })) | (Role::Pmi, Some(RankPipes { pmi: feed, .. })) => {
                        feed.push_again(bytes);
                    }
                    _ => {}
                }
                Transition::Continue
            }
            RestorerMessage::Ready { bytes, placed, us } => {
                context.urgent.send(FromDaemon::Report { rank: context.rank, report: Report::ImageRead { us, bytes } });
                if self.in_place {
                    context.urgent.send(FromDaemon::Report { rank: context.rank, report: Report::WentBack { bytes: placed } });
                }
                // The job hears of it before the agent can speak.
                context.tell(Milestone::Built { us, bytes });
                if let Some(building) = &mut self.building
                    && let Err(error) = building.go()
                {
                    return Transition::Failed(error.into());
                }
                if let Some(RankPipes { stdin: Some(feed), .. }) = self.pipes.as_ref().filter(|_| !context.fed) {
                    // After what it had not read there is nothing more to come.
                    feed.push(Vec::new());
                }
                // The restored process has closed its end.
                let limit = self.building.take().map_or(ENDING_TIME, |building| building.rebuild_limit);
                self.phase = Phase::Rebuilding(limit);
                self.deadline = Some(Instant::now() + limit);
                if !self.in_place {
                    self.deliver_held();
                }
                Transition::Continue
            }
        }
    }

    async fn commanded(&mut self, command: Command) -> Transition {
        match command {
            Command::Signal(signal) => self.link.signal(signal).await,
            Command::Settle => {
                self.phase = Phase::Running;
                self.deadline = None;
                self.deliver_held();
            }
            Command::Pause(taker) => return Transition::Paused(taker),
            Command::Abandon(error) => return Transition::Failed(error.into()),
            command => {
                self.held.push(command);
                // What a process was given that failed to go back would be lost to the next one.
                if self.phase == Phase::Running || (matches!(self.phase, Phase::Rebuilding(_)) && !self.in_place) {
                    self.deliver_held();
                }
            }
        }
        Transition::Continue
    }

    fn deliver_held(&mut self) {
        let Some(pipes) = &mut self.pipes else { return };
        for command in self.held.drain(..) {
            match command {
                Command::Stdin(bytes) => {
                    if let Some(feed) = &pipes.stdin {
                        feed.push(bytes);
                    }
                }
                Command::Pmi(bytes) => pipes.pmi.push(bytes),
                Command::Flush(done) => pipes.flush(done),
                Command::Hold(done) => pipes.hold(done),
                Command::Feed => pipes.feeds().for_each(Feed::release),
                // Carried out when they came.
                Command::Signal(_) | Command::Settle | Command::Abandon(_) | Command::Pause(_) => {}
            }
        }
    }

    async fn exited(mut self, context: &RankContext, status: ExitStatus) {
        if let Some(pipes) = &mut self.pipes {
            // Children that outlive the rank may finish their sentence, but not keep the job from ending.
            let _ = timeout(DESCENDANT_OUTPUT_TIME, pipes.ended()).await;
        }
        self.end().await;
        if status == ExitStatus::Signal(Signal::KILL.as_raw()) && context.namespace.has_ended() {
            // It did not end by itself: all ranks of the node are gone, and the job is told so.
            return;
        }
        // Fails only if the controller is gone.
        let (rank, attempt) = (context.rank, context.attempt);
        let _ = context.ordered.send(FromDaemon::Exited { rank, attempt, status }).await;
    }

    /// Nothing is written any more, then all processes are killed. Until then standard input stays open: a program that read its end
    /// would go on to what it does last.
    async fn released(&mut self, context: &RankContext) {
        let left = match self.pipes.as_mut().and_then(|pipes| pipes.stdin.take()) {
            Some(feed) => feed.stop().await,
            None => UnwrittenInput::default(),
        };
        self.link.release().await;
        // A rank that moved away had not been given these bytes: its image does not have them.
        if context.rank == 0 {
            context.urgent.send(FromDaemon::StdinLeft { rank: 0, attempt: context.attempt, bytes: left.bytes });
        }
        self.end().await;
    }

    /// Kills what is left and carries its last words.
    async fn end(&mut self) {
        self.link.release().await;
        if let Some(pipes) = &mut self.pipes {
            pipes.pumps.iter().for_each(Pump::finish);
            pipes.ended().await;
        }
    }
}
