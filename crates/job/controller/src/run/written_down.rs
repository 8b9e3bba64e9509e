//! What the machine is told, and written down before: all that a successor of this controller needs to stand where this one stands.

use super::Running;
use crate::detached;
use crate::failover::confirmations::Heard;
use crate::failover::flush::Flusher;
use crate::failover::log::ToldLog;
use crate::failover::watch::leave;
use crate::job_end::CONTROLLER_KILLED;
use crate::manifest::Printed;
use crate::output::Output;
use mend_job::durable::{self, SOON_US};
use mend_job::event::{Effect, Event};
use mend_job::replay::{Orders, SentOutput, Standing, Told, What};
use mend_messages::daemon::{FromDaemon, Stream};
use mend_messages::job::{NodeIndex, Rank};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often a node's room is told to the machine at most.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// What a lost controller was told, and its successor may be told again.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Number of each daemon's last message that it was told.
    pub heard: Vec<u64>,
    /// Of each daemon, output among these that may not have been printed.
    pub outputs: Vec<BTreeMap<u64, SentOutput>>,
    /// How far each stream was printed.
    pub shown: BTreeMap<(Rank, Stream), u64>,
}

impl Earlier {
    /// What of this output, which comes again, is still to be printed.
    fn rest(&mut self, node: NodeIndex, number: u64, bytes: &[u8]) -> Option<(SentOutput, Vec<u8>)> {
        let output = self.outputs.get_mut(node as usize)?.remove(&number)?;
        let shown = self.shown.entry((output.rank, output.stream)).or_default();
        let missing = output.end.at.saturating_sub(*shown).min(bytes.len() as u64) as usize;
        *shown = output.end.at.max(*shown);
        (missing > 0).then(|| (output, bytes[bytes.len() - missing..].to_vec()))
    }

    /// What was told of each node, with what was told since this controller began.
    fn with(&self, all: Vec<Heard>) -> (Vec<u64>, Vec<BTreeMap<u64, SentOutput>>) {
        let earlier = |at: usize| (self.heard.get(at).copied().unwrap_or(0), self.outputs.get(at).cloned().unwrap_or_default());
        let merged = all.into_iter().enumerate().map(|(at, (heard, mut outputs))| {
            let (before, left) = earlier(at);
            outputs.extend(left);
            (heard.max(before), outputs)
        });
        merged.unzip()
    }
}

/// As it is written down: output without its bytes, unless it is compared.
fn without_output(event: &Event, output: &Output) -> Event {
    match event {
        Event::Daemon { node, message: FromDaemon::Output { rank, stream, .. } } if !output.compares(*rank, *stream) => {
            Event::Daemon { node: *node, message: FromDaemon::Output { rank: *rank, stream: *stream, bytes: Vec::new() } }
        }
        event => event.clone(),
    }
}

impl Running {
    /// What of a daemon's message the machine is told.
    pub(super) fn message(&mut self, node: NodeIndex, number: u64, message: FromDaemon) -> Option<FromDaemon> {
        if number > 0 && self.earlier.heard.get(node as usize).is_some_and(|heard| number <= *heard) {
            if let FromDaemon::Output { bytes, .. } = message
                && let Some((output, rest)) = self.earlier.rest(node, number, &bytes)
            {
                let (rank, stream) = (output.rank, output.stream);
                let printing = self.shell.confirmations.printing(node, number, Some(output));
                self.shell.output.print(rank, stream, rest, Some(printing));
            }
            return None;
        }
        if let FromDaemon::Ready { succeeds, .. } = &message {
            self.ready = (self.ready.0 + 1, self.ready.1 + usize::from(*succeeds));
            if *succeeds {
                detached::begun(&self.shell.names.job);
            }
            self.tell_of_successors();
        }
        if let FromDaemon::Traffic(ranks) = message {
            if let Some(name) = self.shell.names.nodes.get(node as usize) {
                self.shell.traffic.tell(name, ranks);
            }
            // The machine has no use for it. Like a room below, it is confirmed with the next message that is written down.
            return None;
        }
        if matches!(message, FromDaemon::Pong(_)) && self.shell.told.is_some() {
            let told = self.room_told.get_mut(node as usize)?;
            if told.is_some_and(|told| told.elapsed() < ROOM_INTERVAL) {
                // It is confirmed with the next message that is written down: a successor knows no other number.
                return None;
            }
            *told = Some(Instant::now());
        }
        Some(message)
    }

    /// Says so if nobody could go on in this controller's place.
    fn tell_of_successors(&mut self) {
        if self.shell.told.is_none() || self.ready.0 < self.shell.nodes.len() || self.ready.1 > 0 {
            return;
        }
        if !self.shell.names.quiet {
            let directory = self.shell.directory.path().display().to_string();
            self.shell.output.tell(false, move || {
                mend_report::tell!(
                    "mend: the job ends if this process is lost, and `mend wait` with exit code {CONTROLLER_KILLED}: no node has {directory}, or no `mend` is beside its mendd"
                );
            });
        }
        if let Some(told) = self.shell.told.take() {
            told.remove();
        }
    }

    /// Tells the machine an event, and does what follows. `number`: of the daemon's message.
    pub(super) async fn take(&mut self, event: Event, number: Option<u64>) {
        let at_us = self.now_us();
        let daemon = match &event {
            Event::Daemon { node, .. } => number.map(|number| (*node, number)),
            _ => None,
        };
        let written = self.shell.told.is_some().then(|| without_output(&event, &self.shell.output));
        let effects = self.job.handle(at_us, event);
        let output = effects.iter().find_map(|effect| match effect {
            Effect::Print { rank, stream, bytes } => {
                Some(SentOutput { rank: *rank, stream: *stream, end: self.shell.output.behind(*rank, *stream, bytes) })
            }
            _ => None,
        });
        let printed = output.as_ref().map(|output| output.end);
        if let Some(event) = written {
            let due_us = durable::due_us(&event, &effects);
            self.write_down(at_us, || What::Event { event, number, printed }, due_us);
        }
        if let Some((node, number)) = daemon {
            let confirmations = &self.shell.confirmations;
            self.printing = output.filter(|_| number > 0).map(|output| confirmations.printing(node, number, Some(output)));
            // What is not written down any more, or not made durable, is not waited for.
            let flushed = self.shell.flusher.as_ref().and_then(Flusher::flush).is_some();
            confirmations.heard(node, number, flushed && self.shell.told.is_some());
        }
        self.carry_out_all(effects).await;
        self.printing = None;
        self.begin_log_anew();
    }

    /// Tells it of a piece of standard input.
    pub(super) async fn take_input(&mut self, bytes: Vec<u8>) {
        let at_us = self.now_us();
        self.wants_input = false;
        self.write_down(at_us, || What::Input(bytes.clone()), Some(SOON_US));
        if let Some(bytes) = self.shell.input.input.pass(bytes) {
            let effects = self.job.handle(at_us, Event::Stdin(bytes));
            self.carry_out_all(effects).await;
        }
    }

    /// Writes down what the machine is about to be told, if there may be a successor. `due_us`: within that time it is to be durable.
    pub(super) fn write_down(&mut self, at_us: u64, what: impl FnOnce() -> What, due_us: Option<u64>) {
        let Some(log) = &mut self.shell.told else { return };
        let written = log.write(&Told { at_us, what: what() });
        if let (Some(flush), Some(due_us)) = (self.shell.flusher.as_ref().and_then(Flusher::flush), due_us) {
            flush.told(log.file(), Duration::from_micros(due_us));
        }
        self.give_up_log(written);
    }

    /// Makes durable what is written down.
    pub(super) fn make_durable(&self) {
        let synced = self.shell.told.as_ref().map_or(Ok(()), |log| log.file().sync_data());
        if let Err(error) = synced {
            // The job is not to stand still for a disk that fails.
            tracing::warn!(%error, "what was decided cannot be made durable");
        }
    }

    fn give_up_log(&mut self, written: std::io::Result<()>) {
        if let Err(error) = written {
            if ToldLog::is_lost(&error) {
                leave(&self.shell.record.id);
            }
            self.shell.output.tell(false, move || {
                mend_report::tell!("mend: the job ends if this process is lost: what it would need to go on cannot be written: {error}");
            });
            if let Some(log) = self.shell.told.take() {
                log.remove();
            }
        }
    }

    /// Begins a log that is long anew, if nothing is under way that only the old one tells of.
    fn begin_log_anew(&mut self) {
        if !self.shell.told.as_ref().is_some_and(ToldLog::is_long) {
            return;
        }
        let heard = self.shell.confirmations.all_heard();
        let is_lost = |node: usize| self.lost.iter().any(|(lost, _)| *lost as usize == node);
        let nodes = self.shell.nodes.iter().enumerate();
        let orders: Option<Vec<u64>> = nodes.map(|(at, node)| if is_lost(at) { Some(0) } else { node.settled_orders() }).collect();
        let Some(orders) = orders else { return };
        let mut standing = Standing::of(self.job.clone(), self.now_us(), self.shell.input.input.clone(), self.printed(), orders.len());
        standing.wants_input = self.wants_input;
        standing.notes = self.notes.clone();
        standing.orders = orders.into_iter().map(|before| Orders { before, ..Orders::default() }).collect();
        (standing.heard, standing.outputs) = self.earlier.with(heard);
        (standing.lost, standing.last_verb) = (self.lost.clone(), self.next_verb);
        standing.upkeep = self.upkeep.is_some();
        standing.compared = self.shell.output.compared();
        let begun = self.shell.told.as_mut().map_or(Ok(()), |log| log.begin_anew(&standing));
        self.give_up_log(begun);
    }

    /// How far each stream has come.
    pub(super) fn printed(&self) -> Vec<((Rank, Stream), mend_job::input::Mark)> {
        streams(&self.shell.output.printed())
    }
}

/// Each stream of each rank by itself, if anything was written to it.
pub fn streams(printed: &BTreeMap<Rank, Printed>) -> Vec<((Rank, Stream), mend_job::input::Mark)> {
    let both = |(rank, printed): (&Rank, &Printed)| [Stream::Stdout, Stream::Stderr].map(|stream| ((*rank, stream), printed.mark(stream)));
    printed.iter().flat_map(both).filter(|(_, mark)| mark.at > 0).collect()
}

/// All streams of each rank together.
pub fn by_rank(streams: &[((Rank, Stream), mend_job::input::Mark)]) -> BTreeMap<Rank, Printed> {
    let mut printed: BTreeMap<Rank, Printed> = BTreeMap::new();
    for ((rank, stream), mark) in streams {
        printed.entry(*rank).or_default().set(*stream, *mark);
    }
    printed
}
