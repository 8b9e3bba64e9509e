//! Carries out what a job's machine wants: sends to nodes, writes files, prints, answers verbs, keeps the clock. It decides nothing.
//!
//! ```text
//! nodes, verbs, stdin, signals, upkeep, time ──► Event ──► mend_job::Job ──► Effect ──► here ──► the world
//!                                                  ▲                          │
//!                                                  └── answers to effects ────┘
//! ```
//! Invariant: every effect that has an answer is answered, before anything else is told to the machine.

use crate::detached;
use crate::drained;
use crate::error::RunError;
use crate::input::InputReader;
use crate::job_link::{Lost, NodeEvent};
use crate::journal_file::Journal;
use crate::journaling;
use crate::manifest::{self, FORMAT, ImageEntry, Manifest, Printed};
use crate::nodes::Node;
use crate::output::Output;
use crate::programs;
use crate::record::{JobDirectory, JobRecord, now};
use crate::texts::Names;
use crate::tiers::{has_images, record_held};
use crate::upkeep;
use mend_coordination::checkpoint::image_name;
use mend_coordination::failure::Trouble;
use mend_image::cpu::CpuNeeds;
use mend_job::Job;
use mend_job::event::{Effect, Event, FreeSpace, NodeLoss, Publication, PublishedImage, Record, StdinEffect, UpkeepDone, VerbId};
use mend_job::healing::{Healing, Verdict};
use mend_job::input::InputAt;
use mend_job::phase::RankPhase;
use mend_job::setup::Setup;
use mend_journal::Event as Happened;
use mend_journal::event::cut;
use mend_messages::control::{Answer, Ask};
use mend_messages::daemon::ToDaemon;
use mend_messages::health::{LeaveReason, Leaving};
use mend_messages::job::{NodeIndex, Program, Rank};
use mend_messages::tier::{TierOrder, TierSpec};
use mend_report::with_causes;
use mend_sealed::Key;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long the end of a job waits for a round of upkeep to give up.
const UPKEEP_END_TIME: Duration = Duration::from_secs(5);

/// How long ranks may take to end whose daemon is known to be gone: the kernel kills them then.
const REAP_TIME: Duration = Duration::from_millis(200);

/// A lease is over for certain so much later: by then the kernel has ended what had it.
const LEASE_END_TIME: Duration = Duration::from_millis(300);

/// Where a verb's answers go. A verb that went away is not waited for.
pub type AnswerSender = mpsc::UnboundedSender<Answer>;

/// Everything that reaches the loop.
#[derive(Debug)]
pub enum Arrival {
    /// From a node's connection.
    Node(NodeIndex, NodeEvent),
    /// From a verb.
    Ask(Ask, AnswerSender),
    /// Standard input; empty at its end.
    Stdin(Vec<u8>),
    /// SIGINT, SIGTERM or SIGHUP to this process.
    Signal(i32),
    /// The batch system wants the job to end, and has sent this signal.
    TimeUp(i32),
    /// The batch system wants a node empty, or not any more.
    Leave(NodeIndex, Option<Leaving>),
    /// A round of upkeep of the checkpoints is over.
    Upkeep(UpkeepDone),
}

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
    notes: BTreeMap<u64, (BTreeMap<Rank, Printed>, InputAt)>,
    verbs: BTreeMap<VerbId, AnswerSender>,
    next_verb: VerbId,
    upkeep: Option<Arc<AtomicBool>>,
    /// Ranks below this one have begun to run.
    begun: Rank,
    /// Nodes that have not said that the job's ranks there have ended.
    unreaped: BTreeSet<NodeIndex>,
    reaped: Option<Instant>,
}

/// Runs one life of a job.
pub async fn run(shell: Shell, setup: Setup, mut arrivals: mpsc::Receiver<Arrival>) -> LifeEnd {
    let began = Instant::now();
    let (job, effects) = Job::begin(setup, 0);
    let (verbs, next_verb, upkeep) = (BTreeMap::new(), 0, None);
    let unreaped = (0..shell.nodes.len() as NodeIndex).collect();
    let mut running = Running { shell, job, began, notes: BTreeMap::new(), verbs, next_verb, upkeep, begun: 0, unreaped, reaped: None };
    running.carry_out_all(effects).await;
    while !running.job.is_over() {
        let due = running.job.next_deadline().map(|due| began + Duration::from_micros(due));
        let woken = match due.into_iter().chain(running.shell.journal.due()).min() {
            None => Woken::By(arrivals.recv().await),
            Some(due) => tokio::select! {
                arrival = arrivals.recv() => Woken::By(arrival),
                () = tokio::time::sleep_until(due.into()) => Woken::Time,
            },
        };
        running.shell.journal.tick();
        let event = match woken {
            Woken::Time => Some(Event::Time),
            Woken::By(Some(arrival)) => running.event(arrival),
            Woken::By(None) => break,
        };
        if let Some(event) = event {
            running.take(event).await;
            running.look_at_ranks();
        }
    }
    running.finish(arrivals).await
}

/// What the file system of a directory says, which may not be there yet.
fn free_space(directory: &Path) -> Option<FreeSpace> {
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let found = rustix::fs::statvfs(there).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(FreeSpace { left: bytes(found.f_bavail), all: bytes(found.f_blocks) })
}

impl Running {
    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn event(&mut self, arrival: Arrival) -> Option<Event> {
        Some(match arrival {
            Arrival::Node(node, NodeEvent::Message(message)) => Event::Daemon { node, message },
            Arrival::Node(node, NodeEvent::Reconnected(why)) => {
                let name = self.shell.record.hosts.get(node as usize).cloned();
                self.shell.journal.record_of(name.as_deref(), None, Happened::NodeReconnected { why: cut(why) });
                return None;
            }
            Arrival::Node(node, NodeEvent::Lost(lost)) => {
                self.reap(node, &lost);
                Event::NodeLost { node, how: lost.how }
            }
            Arrival::Ask(ask, answers) => {
                self.next_verb += 1;
                self.verbs.insert(self.next_verb, answers);
                Event::Ask { verb: self.next_verb, ask }
            }
            Arrival::Stdin(bytes) => return self.shell.input.input.pass(bytes).map(Event::Stdin),
            Arrival::Signal(signal) => Event::Signal(signal),
            Arrival::Leave(node, leaving) => Event::Leave { node, reason: LeaveReason::BatchSystem, leaving },
            Arrival::TimeUp(signal) => Event::TimeUp { signal },
            Arrival::Upkeep(done) => {
                self.upkeep = None;
                Event::Upkeep(done)
            }
        })
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

    async fn take(&mut self, event: Event) {
        let effects = self.job.handle(self.now_us(), event);
        self.carry_out_all(effects).await;
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
                detached::accept(&self.shell.record.id);
            }
        }
    }

    async fn carry_out_all(&mut self, effects: Vec<Effect>) {
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            if let Some(answer) = self.carry_out(effect).await {
                queue.extend(self.job.handle(self.now_us(), answer));
            }
        }
    }

    fn place(&self, number: u64) -> PathBuf {
        self.shell.record.checkpoints.join(number.to_string())
    }

    fn part(&self, number: u64) -> PathBuf {
        self.shell.record.checkpoints.join(format!("{number}.part"))
    }

    /// The answer, if there is one.
    async fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Send { node, message } => {
                if let Some(node) = self.shell.nodes.get(node as usize) {
                    node.send(message);
                }
            }
            Effect::Answer { verb, outcome } => {
                let mut answer = self.shell.names.answer(outcome, &self.job.alive());
                if let Answer::Status(status) = &mut answer {
                    status.daemons = self.shell.nodes.iter().map(|node| node.address).collect();
                }
                let more = matches!(answer, Answer::Progress(_) | Answer::Moving(_));
                if let Some(answers) = self.verbs.get(&verb) {
                    // It may have gone away.
                    let _ = answers.send(answer);
                }
                if !more {
                    self.verbs.remove(&verb);
                }
            }
            Effect::Print { rank, stream, bytes } => self.shell.output.write(rank, stream, &bytes).await,
            Effect::OutputEnds { rank } => self.shell.output.ended(rank).await,
            Effect::Note { number } => {
                let now = (self.shell.output.printed(), self.shell.input.input.at_hold());
                self.notes.insert(number, now);
            }
            Effect::Stdin(wanted) => return self.stdin(wanted).map(Event::Stdin),
            Effect::Record(record) => {
                if let Record::NodeLost { node, .. } = &*record {
                    self.shell.record.lost.extend(self.shell.names.nodes.get(*node as usize).cloned());
                }
                journaling::record(&mut self.shell.journal, &self.shell.names, &self.job.alive(), *record);
            }
            Effect::MeasureFreeSpace => return Some(Event::FreeSpace(free_space(&self.shell.record.checkpoints))),
            Effect::Tell(notice) => self.shell.names.tell(&notice, &self.job.alive()),
            Effect::Prepare { number, base } => {
                let result = match manifest::prepare(&self.shell.record.checkpoints, number) {
                    Ok(_) => Ok(self.is_good(base)),
                    Err(error) => Err(Trouble { error: with_causes(&error), hint: error.hint() }),
                };
                return Some(Event::Prepared { number, result });
            }
            Effect::Publish(publication) => {
                let (number, manifest) = (publication.number, self.manifest(*publication));
                let result = match manifest::publish(&self.part(number), &manifest, self.shell.key.as_ref()) {
                    Ok(place) => Ok(place.to_string_lossy().into_owned()),
                    Err(error) => Err(Trouble { error: with_causes(&error), hint: error.hint() }),
                };
                return Some(Event::Published { number, result });
            }
            Effect::Discard { number } => {
                self.notes.remove(&number);
                manifest::discard(&self.part(number));
            }
            Effect::Remove { asker, numbers } => {
                let result = upkeep::remove_by_hand(&self.shell.record.checkpoints, &numbers);
                let result = result.map_err(|error| Trouble { error: with_causes(&error), hint: error.hint() });
                return Some(Event::Removed { asker, result });
            }
            Effect::ListDrained => {
                // Where that cannot be looked up, no move is made on what is not known: it is tried again.
                let names = drained::list().map(|names| names.into_iter().collect());
                return Some(Event::Drained(names.unwrap_or_else(|error| {
                    tracing::warn!(error = with_causes(&error), "drained nodes cannot be listed");
                    self.shell.names.nodes.clone()
                })));
            }
            Effect::List => return Some(Event::Listed(manifest::numbers(&self.shell.record.checkpoints))),
            Effect::StartUpkeep { bounds, weighed } => {
                let arrivals = self.shell.arrivals.clone();
                let report = move |done| {
                    // The loop may have ended.
                    let _ = arrivals.blocking_send(Arrival::Upkeep(done));
                };
                let rules = upkeep::UpkeepRules { bounds, key: self.shell.key.clone(), weighed };
                self.upkeep = Some(upkeep::start(self.shell.record.checkpoints.clone(), rules, report));
            }
            Effect::CancelUpkeep => self.cancel_upkeep(),
            Effect::KeepRestarts(restarts) => {
                self.shell.record.restarts = restarts;
                self.put_on_record("what the restart took");
            }
            Effect::KeepRates { rank, rates } => {
                self.shell.record.rates.insert(rank, rates);
                self.put_on_record("what was measured of a rank that moved");
                if let Some(program) = self.shell.program.argv.first() {
                    programs::keep(program, rates);
                }
            }
            Effect::KeepTiers { number, complete } => {
                if let Err(error) = record_held(&self.place(number), complete) {
                    tracing::warn!(%error, number, "which tiers hold the checkpoint is not on record");
                }
            }
            Effect::StoreManifest { task, number, node, to } => match fs::read(self.place(number).join("manifest.json")) {
                Ok(text) => {
                    let order = TierOrder::Manifest { task, number, to, text };
                    if let Some(node) = self.shell.nodes.get(node as usize) {
                        node.send(ToDaemon::Tier(Box::new(order)));
                    }
                }
                Err(error) => {
                    return Some(Event::ManifestUnreadable { task, why: format!("its manifest cannot be read: {error}") });
                }
            },
            Effect::RemoveImages { number, ranks } => {
                for rank in ranks {
                    // Another holder may have removed it.
                    let _ = fs::remove_file(self.place(number).join(image_name(rank)));
                }
            }
            Effect::RemoveIfEmpty { number } => {
                let gone = !has_images(&self.place(number));
                if gone {
                    // What is left of it cannot be restarted and is removed with the job.
                    let _ = fs::remove_dir_all(self.place(number));
                }
                return Some(Event::Emptied { number, gone });
            }
            Effect::Over => {}
        }
        None
    }

    fn put_on_record(&self, what: &str) {
        if let Err(error) = self.shell.directory.write("job.json", &self.shell.record) {
            tracing::warn!(%error, "{what} is not on record");
        }
    }

    /// Whether a checkpoint can still be built on. Somebody may have damaged or removed it.
    fn is_good(&self, base: Option<(u64, Vec<mend_messages::agent::ImageId>)>) -> bool {
        let Some((number, ids)) = base else { return false };
        let found = manifest::load(&self.place(number), self.shell.key.as_ref());
        found.is_ok_and(|found| found.images.iter().map(|image| image.id).eq(ids))
    }

    /// What is to be given to rank 0.
    fn stdin(&mut self, wanted: StdinEffect) -> Option<Vec<u8>> {
        let reader = &mut self.shell.input;
        match wanted {
            StdinEffect::Read => reader.ask(),
            StdinEffect::Taken => {
                let end = reader.input.acknowledged();
                reader.ask();
                return end.and_then(|end| reader.input.pass(end));
            }
            StdinEffect::Freeze => reader.input.freeze(),
            StdinEffect::Release => return reader.input.release().and_then(|bytes| reader.input.pass(bytes)),
            StdinEffect::Held { again, begun } => reader.input.held(again, begun),
            StdinEffect::Lost => return reader.input.lost(),
            StdinEffect::Left(bytes) => return reader.input.left(bytes),
        }
        None
    }

    fn manifest(&mut self, publication: Publication) -> Manifest {
        let (printed, input) = self.notes.remove(&publication.number).unwrap_or_default();
        let shell = &self.shell;
        let image = |image: PublishedImage| ImageEntry {
            rank: image.rank,
            host: shell.names.nodes.get(image.node as usize).cloned().unwrap_or_default(),
            bytes: image.bytes,
            checksum: image.checksum,
            id: image.id,
            base: image.base,
            sequence: image.sequence,
            merged: false,
            needs: Some(image.needs).filter(|needs| *needs != CpuNeeds::default()),
        };
        Manifest {
            format: FORMAT,
            release: mend_messages::RELEASE.into(),
            job: shell.record.id.clone(),
            identity: shell.identity,
            number: publication.number,
            taken: now(),
            program: shell.program.clone(),
            hosts: shell.names.nodes.clone(),
            local: shell.local,
            images: publication.images.into_iter().map(image).collect(),
            pmi: publication.pmi,
            files: publication.files,
            printed,
            input: Some(input),
            phases: publication.phases,
            stopped_us: publication.stopped_us,
            periodic: publication.periodic,
            durable_us: publication.durable_us,
            tiers: shell.tiers.clone(),
            encrypted: shell.key.is_some(),
        }
    }

    fn cancel_upkeep(&self) {
        if let Some(cancel) = &self.upkeep {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    /// What becomes of the job, as its user and its journal are told.
    fn verdict(&mut self, result: &Result<i32, RunError>) -> Option<u64> {
        let newest = manifest::numbers(&self.shell.record.checkpoints).last().copied();
        match self.shell.healing.ended(self.job.end_reason(), self.job.is_interrupted(), newest) {
            Verdict::GoOn(checkpoint) => {
                journaling::going_on(&mut self.shell.journal, result, checkpoint);
                return Some(checkpoint);
            }
            Verdict::Stop => {}
            Verdict::TooOften { checkpoint, times } => {
                eprintln!("mend: the job has gone on from checkpoint {checkpoint} {times} times and failed again: it ends");
            }
        }
        journaling::end(&mut self.shell.journal, result);
        None
    }

    /// The job is over: no thread of ours changes its checkpoints any more when this returns, or only after a long while.
    async fn finish(mut self, mut arrivals: mpsc::Receiver<Arrival>) -> LifeEnd {
        if self.upkeep.is_some() {
            self.cancel_upkeep();
            let over = async {
                while let Some(arrival) = arrivals.recv().await {
                    if matches!(arrival, Arrival::Upkeep(_)) {
                        return;
                    }
                }
            };
            // Then it is left behind, and ends with the process.
            let _ = tokio::time::timeout(UPKEEP_END_TIME, over).await;
        }
        let result = self.job.end_reason().cloned().map_or(Ok(0), |end| self.shell.names.end(end));
        let goes_on = self.verdict(&result);
        let how = match &result {
            Ok(code) => format!("exit code {code}"),
            Err(error) => error.to_string(),
        };
        self.shell.record.goes_on = goes_on.is_some();
        self.shell.record.ended = goes_on.is_none().then(|| (now(), how));
        self.shell.record.exit_code = goes_on.is_none().then(|| exit_code(&result));
        if let Err(error) = self.shell.directory.write("job.json", &self.shell.record) {
            tracing::warn!(%error, "the end of the job is not on record");
        }
        if result.is_ok() {
            // The program had begun, and has ended before all of its ranks were seen to run.
            detached::accept(&self.shell.record.id);
        }
        self.shell.output.finish().await;
        self.shell.nodes.clear();
        for node in std::mem::take(&mut self.unreaped) {
            tracing::info!(node, "the job's ranks there are not known to have ended");
            self.reaped = self.reaped.max(Some(Instant::now() + self.shell.lease + LEASE_END_TIME));
        }
        LifeEnd { result, goes_on, reaped: self.reaped, healing: self.shell.healing }
    }
}

#[cfg(test)]
mod tests {
    use super::free_space;

    #[test]
    fn a_directory_that_is_not_there_yet_is_on_the_file_system_of_the_one_above() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(free_space(&place.path().join("a/b")).map(|found| found.all), free_space(place.path()).map(|found| found.all));
        assert!(free_space(place.path()).is_some());
    }
}
