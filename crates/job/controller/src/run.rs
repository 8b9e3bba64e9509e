//! Carries out what a job's machine wants: sends to nodes, writes files, prints, answers verbs, keeps the clock. It decides nothing.
//!
//! ```text
//! nodes, verbs, stdin, signals, upkeep, time ──► Event ──► mend_job::Job ──► Effect ──► here ──► the world
//!                                                  ▲                          │
//!                                                  └── answers to effects ────┘
//! ```
//! Invariants: every effect that has an answer is answered, before anything else is told to the machine; what the machine is told is written down before
//! anything that follows from it is done, if there may be a successor ([`crate::failover`]).

mod carry_out;
mod written_down;

pub use self::written_down::{Earlier, by_rank, streams};
use crate::arrival::{AnswerSender, Arrival};
use crate::data_watch::TrafficFeed;
use crate::detached;
use crate::end_on_record::put_end;
use crate::error::RunError;
use crate::failover::confirmations::{Confirmations, Printing};
use crate::failover::flush::Flusher;
use crate::failover::log::{LifeRecord, ToldLog};
use crate::failover::watch::LockWatch;
use crate::input::InputReader;
use crate::job_link::{Lost, NodeEvent};
use crate::journal_file::Journal;
use crate::journaling;
use crate::manifest;
use crate::nodes::Node;
use crate::output::Output;
use crate::record::{JobDirectory, JobRecord, by_itself, until_ms};
use crate::signals::Signals;
use crate::texts::Names;
use crate::wish::Wish;
use mend_job::Job;
use mend_job::choice::Blame;
use mend_job::durable::SOON_US;
use mend_job::event::{Effect, Event, NodeLoss, VerbId};
use mend_job::healing::{Healing, Verdict};
use mend_job::phase::RankPhase;
use mend_job::replay::{Note, Standing, What};
use mend_job::setup::Setup;
use mend_journal::Event as Happened;
use mend_journal::event::cut;
use mend_messages::health::LeaveReason;
use mend_messages::job::{NodeIndex, Program, Rank};
use mend_messages::tier::TierSpec;
use mend_sealed::Key;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long the end of a job waits for a round of upkeep to give up.
const UPKEEP_END_TIME: Duration = Duration::from_secs(5);

/// How long it may take at most to put a job's end on record.
const END_TIME: Duration = Duration::from_secs(6);

/// How long ranks may take to end whose daemon is known to be gone: the kernel kills them then.
const REAP_TIME: Duration = Duration::from_millis(200);
/// Exit code of a job that ended well and whose output could not all be written.
const OUTPUT_LOST_CODE: i32 = 1;

/// A lease is over for certain so much later: by then the kernel has ended what had it.
pub const LEASE_END_TIME: Duration = Duration::from_millis(250);

/// What a running job has besides its machine.
pub struct Shell {
    /// Its directory.
    pub directory: JobDirectory,
    /// What is on record of it.
    pub record: JobRecord,
    /// What happened to it.
    pub journal: Journal,
    /// Its permanent identity.
    pub identity: [u8; 16],
    /// What runs.
    pub program: Program,
    /// An embedded daemon runs it.
    pub local: bool,
    /// What images are encrypted with.
    pub key: Option<Key>,
    /// Tiers, as its manifests have them.
    pub tiers: Vec<TierSpec>,
    /// Connections to its nodes.
    pub nodes: Vec<Node>,
    /// For what people read.
    pub names: Names,
    /// What was read of standard input.
    pub input: InputReader,
    /// What was printed.
    pub output: Output,
    /// Where upkeep reports.
    pub arrivals: mpsc::Sender<Arrival>,
    /// Decides whether it goes on by itself.
    pub healing: Healing,
    /// How long a node goes on with the job without a word from here.
    pub lease: Duration,
    /// As in [`LifeRecord`].
    pub run_began: u64,
    /// For a successor of this controller; `None`: there is none.
    pub told: Option<ToldLog>,
    /// What daemons keep for that, and what they hold ranks back for.
    pub confirmations: Confirmations,
    /// Who is told what ranks send each other.
    pub traffic: TrafficFeed,
    /// What makes durable what they may forget.
    pub flusher: Option<Flusher>,
    /// Sees whether the job is still this controller's, for as long as it is there.
    pub watch: Option<LockWatch>,
}

/// What a [`Shell`] has besides what stays as it is for a life.
pub struct Parts {
    /// As in [`Shell`].
    pub directory: JobDirectory,
    /// As in [`Shell`].
    pub record: JobRecord,
    /// As in [`Shell`].
    pub journal: Journal,
    /// As in [`Shell`].
    pub local: bool,
    /// As in [`Shell`].
    pub key: Option<Key>,
    /// As in [`Shell`].
    pub nodes: Vec<Node>,
    /// As in [`Shell`].
    pub input: InputReader,
    /// As in [`Shell`].
    pub output: Output,
    /// As in [`Shell`].
    pub arrivals: mpsc::Sender<Arrival>,
    /// As in [`Shell`].
    pub told: Option<ToldLog>,
    /// Number of each daemon's last message that a lost controller was told; `None`: there was none before this one.
    pub heard: Option<Vec<u64>>,
    /// As in [`Shell`].
    pub watch: Option<LockWatch>,
    /// As in [`Shell`].
    pub traffic: TrafficFeed,
}

impl Shell {
    /// That of this life of a job.
    #[must_use]
    pub fn of(life: LifeRecord, parts: Parts) -> Self {
        let Parts { directory, record, journal, local, key, nodes, input, output, arrivals, told, heard, watch, traffic } = parts;
        let names = names(&life);
        let LifeRecord { setup, program, lease_ms, healing, tiers, run_began, .. } = life;
        // Manifests of the shared directory alone name no tiers.
        let tiers = if setup.tiers.is_some() { tiers } else { Vec::new() };
        let heard = heard.unwrap_or_else(|| vec![0; nodes.len()]);
        let links = || nodes.iter().map(|node| node.link.clone()).zip(heard).collect();
        let confirmations = Confirmations::new(links());
        let flusher = told.is_some().then(|| Flusher::begin(confirmations.clone()));
        if let Some(flush) = flusher.as_ref().and_then(Flusher::flush) {
            output.flush_by(flush.clone());
        }
        let (identity, lease) = (setup.identity, Duration::from_millis(lease_ms));
        Self {
            directory,
            record,
            journal,
            identity,
            program,
            local,
            key,
            tiers,
            nodes,
            names,
            input,
            output,
            arrivals,
            healing,
            lease,
            run_began,
            told,
            confirmations,
            traffic,
            flusher,
            watch,
        }
    }
}

/// What people read of a life.
fn names(life: &LifeRecord) -> Names {
    Names {
        job: life.setup.id.clone(),
        command: life.program.command(),
        nodes: life.setup.nodes.iter().map(|node| node.name.clone()).collect(),
        checkpoints: life.setup.checkpoints.clone(),
        quiet: life.quiet,
        heals: life.healing.is_wanted(),
        moved: life.moved,
    }
}

/// How a life of the job was.
pub struct LifeEnd {
    /// Its exit code, or what ended it early.
    pub result: Result<i32, RunError>,
    /// The job goes on by itself, and this is its newest checkpoint.
    pub goes_on: Option<u64>,
    /// When the last of its ranks has ended at the latest, if that is not known to be so.
    pub reaped: Option<Instant>,
    /// What is remembered of its failures.
    pub healing: Healing,
    /// As in [`LifeRecord`].
    pub run_began: u64,
    /// What came too late for its machine.
    pub(crate) late: Vec<Wish>,
    /// The host of each rank that lived to its end, by rank.
    pub(crate) stood: Vec<Option<String>>,
}

impl LifeEnd {
    /// Where nobody else turns to another try, or checkpoint: a restart that has failed for what is open goes on.
    #[must_use]
    pub(crate) fn going_on(mut self, newest: impl FnOnce() -> Option<u64>) -> Self {
        if self.goes_on.is_none() && is_open(&self.result) {
            self.goes_on = newest();
            self.stood.clear();
        }
        self
    }

    /// Whoever gives the job another life hears what came too late for this one.
    #[must_use]
    pub(crate) fn pass_on(mut self, signals: &Signals) -> Self {
        let late = std::mem::take(&mut self.late);
        if self.goes_on.is_some() || is_open(&self.result) {
            late.into_iter().for_each(|wish| signals.keep(wish));
        }
        self
    }
}

/// Whether the job goes on after a life that is over, and from which checkpoint.
fn verdict(job: &Job, healing: &mut Healing, record: &JobRecord) -> Verdict {
    let newest =
        manifest::listed_at_first(&record.checkpoints).map_or_else(|_| job.newest_listed(), |_| record.branch.newest(&record.checkpoints));
    healing.ended(job.end_reason(), job.is_interrupted(), newest)
}

/// Puts that into the journal. Returns the checkpoint that the job goes on from.
fn record_verdict(verdict: Verdict, journal: &mut Journal, result: &Result<i32, RunError>) -> Option<u64> {
    match verdict {
        Verdict::GoOn(checkpoint) => {
            journaling::going_on(journal, result, checkpoint);
            return Some(checkpoint);
        }
        Verdict::Stop if is_open(result) => {
            journaling::not_restarted(journal, result);
            return None;
        }
        Verdict::Stop => {}
        Verdict::TooOften { checkpoint, times } => {
            let from =
                format!("went on from checkpoint {checkpoint} {}", if times == 1 { "once".into() } else { format!("{times} times") });
            mend_report::tell!("mend: the job {from} and failed again: it ends (`mend restart --checkpoint N` goes on from an older one)");
        }
    }
    journaling::end(journal, result);
    None
}

/// Whether a restart has failed for what is wrong with its checkpoint: whoever began it may turn to another one, or wait for the node that has the only good
/// copy of an image.
fn is_open(result: &Result<i32, RunError>) -> bool {
    result.as_ref().is_err_and(|error| error.blame() != Blame::Elsewhere)
}

fn put_end_on_record(directory: &JobDirectory, record: &mut JobRecord, result: &Result<i32, RunError>, goes_on: Option<u64>) {
    let how = match result {
        Ok(code) => by_itself(*code),
        Err(error) => error.to_string(),
    };
    let over = goes_on.is_none() && !is_open(result);
    put_end(directory, record, over.then(|| (how, exit_code(result))));
}

/// The end of a life whose controller was lost at that very time, or when the next one was about to begin.
pub fn end_of_lost(life: &LifeRecord, job: &Job, directory: &JobDirectory, record: &mut JobRecord) -> LifeEnd {
    let mut journal = Journal::succeed(directory.path(), &record.controller_host);
    let mut healing = life.healing.clone();
    let result = job.end_reason().cloned().map_or(Ok(0), |end| names(life).end(end));
    let goes_on = record_verdict(verdict(job, &mut healing, record), &mut journal, &result);
    // Ranks may live for so long where they cannot be seen to have ended.
    let reaped = Instant::now() + Duration::from_millis(life.lease_ms) + LEASE_END_TIME;
    record.ranks_until_ms = until_ms(reaped).filter(|_| result.is_err());
    put_end_on_record(directory, record, &result, goes_on);
    let newest = || record.branch.newest(&record.checkpoints);
    let end = LifeEnd { result, goes_on, reaped: None, healing, run_began: life.run_began, late: Vec::new(), stood: job.stood().to_vec() };
    let end = end.going_on(newest);
    LifeEnd { reaped: end.goes_on.map(|_| reaped), ..end }
}

fn exit_code(result: &Result<i32, RunError>) -> i32 {
    match result {
        Ok(code) => *code,
        Err(error) => error.exit_code(),
    }
}

enum Woken {
    By(Option<Arrival>),
    Time,
}

/// The shell at work.
struct Running {
    shell: Shell,
    job: Job,
    began: Instant,
    /// What belongs to the checkpoint of this number.
    notes: BTreeMap<u64, Note>,
    verbs: BTreeMap<VerbId, AnswerSender>,
    next_verb: VerbId,
    upkeep: Option<Arc<AtomicBool>>,
    /// Ranks below this one have begun to run.
    begun: Rank,
    /// Nodes that have not said that the job's ranks there have ended.
    unreaped: BTreeSet<NodeIndex>,
    reaped: Option<Instant>,
    /// The next piece of standard input is wanted.
    wants_input: bool,
    lost: Vec<(NodeIndex, NodeLoss)>,
    /// Output that the machine was just told of.
    printing: Option<Printing>,
    /// What daemons send again that a lost controller was told.
    earlier: Earlier,
    /// When each node's room was last told to the machine.
    room_told: Vec<Option<Instant>>,
    /// Nodes that have answered, and those of them that can start a successor.
    ready: (usize, usize),
}

/// Runs one life of a job.
pub async fn run(shell: Shell, setup: Setup, arrivals: mpsc::Receiver<Arrival>) -> LifeEnd {
    let (job, effects) = Job::begin(setup, 0);
    let mut running = Running::new(shell, job, Instant::now());
    running.carry_out_all(effects).await;
    running.drive(arrivals).await
}

/// Goes on with a life of a job where a lost controller stood. `left`: what that may not have done.
pub async fn go_on(shell: Shell, standing: Standing, left: Vec<Effect>, earlier: Earlier, arrivals: mpsc::Receiver<Arrival>) -> LifeEnd {
    let began = Instant::now().checked_sub(Duration::from_micros(standing.at_us)).unwrap_or_else(Instant::now);
    let mut running = Running::new(shell, standing.job, began);
    (running.notes, running.next_verb, running.earlier) = (standing.notes, standing.last_verb, earlier);
    running.wants_input = standing.wants_input;
    for (node, how) in standing.lost {
        running.reap(node, &Lost { how: how.clone(), last_word: Instant::now() });
        running.lost.push((node, how));
    }
    if standing.upkeep {
        running.carry_out_all(vec![Effect::StartUpkeep { bounds: None, weighed: None }]).await;
    }
    running.carry_out_all(left).await;
    if running.wants_input {
        running.shell.input.ask();
    }
    running.drive(arrivals).await
}

impl Running {
    fn new(shell: Shell, job: Job, began: Instant) -> Self {
        let nodes = shell.nodes.len();
        Self {
            shell,
            job,
            began,
            notes: BTreeMap::new(),
            verbs: BTreeMap::new(),
            next_verb: 0,
            upkeep: None,
            begun: 0,
            unreaped: (0..nodes as NodeIndex).collect(),
            reaped: None,
            wants_input: false,
            lost: Vec::new(),
            printing: None,
            earlier: Earlier::default(),
            room_told: vec![None; nodes],
            ready: (0, 0),
        }
    }

    async fn drive(mut self, mut arrivals: mpsc::Receiver<Arrival>) -> LifeEnd {
        while !self.job.is_over() {
            let due = self.job.next_deadline().map(|due| self.began + Duration::from_micros(due));
            let woken = match due.into_iter().chain(self.shell.journal.due()).min() {
                None => Woken::By(arrivals.recv().await),
                Some(due) => tokio::select! {
                    arrival = arrivals.recv() => Woken::By(arrival),
                    () = tokio::time::sleep_until(due.into()) => Woken::Time,
                },
            };
            self.shell.journal.tick();
            match woken {
                Woken::Time => self.take(Event::Time, None).await,
                Woken::By(Some(Arrival::Stdin(bytes))) => self.take_input(bytes).await,
                Woken::By(Some(arrival)) => {
                    if let Some((event, number)) = self.event(arrival) {
                        self.take(event, number).await;
                    }
                }
                Woken::By(None) => break,
            }
            self.look_at_ranks();
            self.record_silence();
        }
        self.finish(arrivals).await
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// What the machine is told of what has arrived, and the number of the daemon's message.
    fn event(&mut self, arrival: Arrival) -> Option<(Event, Option<u64>)> {
        let event = match arrival {
            Arrival::Node(node, NodeEvent::Message(number, message)) => {
                let message = self.message(node, number, message)?;
                return Some((Event::Daemon { node, message }, Some(number)));
            }
            Arrival::Node(node, NodeEvent::Reconnected(why)) => {
                let name = self.shell.record.hosts.get(node as usize).cloned();
                self.shell.journal.record_of(name.as_deref(), None, Happened::NodeReconnected { why: cut(why) });
                return None;
            }
            Arrival::Node(node, NodeEvent::Lost(lost)) => {
                self.reap(node, &lost);
                self.lost.push((node, lost.how.clone()));
                Event::NodeLost { node, how: lost.how }
            }
            Arrival::Ask(ask, answers) => {
                self.next_verb += 1;
                self.verbs.insert(self.next_verb, answers);
                Event::Ask { verb: self.next_verb, ask }
            }
            Arrival::Stdin(_) => return None,
            Arrival::Signal(signal) if signal == Signal::HUP.as_raw() && self.shell.told.is_some() => {
                // Its terminal was closed: a successor goes on in its place.
                std::process::exit(128 + signal);
            }
            Arrival::Signal(signal) => Event::Signal(signal),
            Arrival::DataSeen(scan) => Event::DataSeen(scan),
            Arrival::Offload(told) => {
                told.record(&mut self.shell.journal);
                self.shell.output.tell(false, move || told.tell());
                return None;
            }
            Arrival::Leave(node, leaving) => Event::Leave { node, reason: LeaveReason::BatchSystem, leaving },
            Arrival::TimeUp(signal) => Event::TimeUp { signal },
            Arrival::Upkeep(done) => {
                self.upkeep = None;
                Event::Upkeep(done)
            }
        };
        Some((event, None))
    }

    /// No more comes from the node: its ranks have ended, or will at some time.
    fn reap(&mut self, node: NodeIndex, lost: &Lost) {
        if !self.unreaped.remove(&node) {
            return;
        }
        let reaped = match lost.how {
            NodeLoss::Left => return,
            NodeLoss::Gone(_) => Instant::now() + REAP_TIME,
            NodeLoss::Broken(_) | NodeLoss::Silent(_) => lost.last_word + self.shell.lease + LEASE_END_TIME,
        };
        self.reaped = self.reaped.max(Some(reaped));
    }

    /// The job is accepted when all of its ranks have begun to run.
    fn look_at_ranks(&mut self) {
        let size = self.shell.record.size;
        while self.begun < size && self.job.end_reason().is_none() {
            match self.job.rank(self.begun).map(|rank| rank.phase) {
                Some(RankPhase::Running | RankPhase::Exited(_)) => self.begun += 1,
                _ => return,
            }
            if self.begun == size {
                let id = self.shell.record.id.clone();
                // Whoever started it is told what was said before.
                self.shell.output.tell(false, move || detached::accept(&id));
            }
        }
    }

    fn record_silence(&mut self) {
        let ms = self.shell.watch.as_ref().map_or(0, LockWatch::take_silence_ms);
        if ms > 0 {
            self.shell.journal.record(Happened::DirectorySilent { ms });
        }
    }

    async fn carry_out_all(&mut self, effects: Vec<Effect>) {
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            if let Some(answer) = self.carry_out(effect).await {
                let at_us = self.now_us();
                self.write_down(at_us, || What::Answer(answer.clone()), Some(SOON_US));
                queue.extend(self.job.handle(at_us, answer));
            }
        }
    }

    /// What becomes of the job, as its user and its journal are told. The job is over: no thread of ours changes its checkpoints any more when this returns, or only after a long while.
    async fn finish(mut self, mut arrivals: mpsc::Receiver<Arrival>) -> LifeEnd {
        let mut late = Vec::new();
        if self.upkeep.is_some() {
            self.cancel_upkeep();
            let over = async {
                while let Some(arrival) = arrivals.recv().await {
                    if matches!(arrival, Arrival::Upkeep(_)) {
                        return;
                    }
                    late.extend(arrival.wish(Some(self.shell.directory.path())));
                }
            };
            // Then it is left behind, and ends with the process.
            let _ = tokio::time::timeout(UPKEEP_END_TIME, over).await;
        }
        let result = self.job.end_reason().cloned().map_or(Ok(0), |end| self.shell.names.end(end));
        let stood = self.job.stood().to_vec();
        let verdict = verdict(&self.job, &mut self.shell.healing, &self.shell.record);
        // Daemons have forgotten it: whoever finds the end on record is not to miss what came before.
        let over = self.shell.output.over();
        over.store(!matches!(verdict, Verdict::GoOn(_)) || !late.is_empty(), Ordering::Relaxed);
        let mut printed = pin!(self.shell.output.finish());
        let is_whole = loop {
            tokio::select! {
                is_whole = &mut printed => break is_whole,
                Some(arrival) = arrivals.recv() => {
                    let wish = arrival.wish(Some(self.shell.directory.path()));
                    // A life that goes on waits for room on a full disk, but not against its user.
                    over.fetch_or(wish.is_some(), Ordering::Relaxed);
                    late.extend(wish);
                }
            }
        };
        // Whoever goes on by the exit code has not got what the program printed.
        let result = if is_whole { result } else { result.map(|code| if code == 0 { OUTPUT_LOST_CODE } else { code }) };
        drop(self.shell.flusher.take());
        let goes_on = record_verdict(verdict, &mut self.shell.journal, &result);
        // What is still connected hears this controller until it is on record, which may take some time.
        let connected = (!self.unreaped.is_empty()).then(|| Instant::now() + END_TIME + self.shell.lease + LEASE_END_TIME);
        self.shell.record.ranks_until_ms = self.reaped.max(connected).and_then(until_ms);
        put_end_on_record(&self.shell.directory, &mut self.shell.record, &result, goes_on);
        if result.is_ok() {
            // The program had begun, and has ended before all of its ranks were seen to run.
            detached::accept(&self.shell.record.id);
        }
        if goes_on.is_none()
            && !is_open(&result)
            && let Some(told) = self.shell.told.take()
        {
            told.remove();
        }
        self.shell.nodes.clear();
        for node in std::mem::take(&mut self.unreaped) {
            tracing::info!(node, "the job's ranks there are not known to have ended");
            self.reaped = self.reaped.max(Some(Instant::now() + self.shell.lease + LEASE_END_TIME));
        }
        // From now on senders see that nobody listens: what they have to say is heard between the lives.
        arrivals.close();
        while let Some(arrival) = arrivals.recv().await {
            late.extend(arrival.wish(Some(self.shell.directory.path())));
        }
        let Shell { healing, run_began, .. } = self.shell;
        LifeEnd { result, goes_on, reaped: self.reaped, healing, run_began, late, stood }
    }
}

#[cfg(test)]
mod tests;
