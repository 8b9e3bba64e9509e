//! What a job's machine was told, told again: how a controller comes to stand where a lost one stood.
//!
//! ```text
//! controller: Told ─► its log ─► Job::handle ─► effects are carried out
//! successor:  Told ◄─ the log;   Job::handle ─► effects: orders are counted, the rest is done, or is undone at the end
//! ```
//! The machine is deterministic ([`Job::handle`]), so the same events lead to the same state and to the same effects. A controller writes down what
//! the machine is told before it does what follows from that. So of all effects only those of the last event may not have been
//! carried out: the successor does these again, and whoever is concerned bears that. Orders to daemons are not among them: they are numbered,
//! and a daemon says how many it has had.
//!
//! What ranks print is not written down, only how far each stream came by it: the daemon keeps the bytes until they are printed. What a rank prints again
//! after a restart is, as long as it is compared with what was shown, and where it differs until that is printed: nobody else keeps what is held back until a line is complete.
//!
//! Faults assumed: the controller is killed between any two steps; the end of its log is missing, as its machine has lost power ([`crate::durable`]). What a daemon has had of orders
//! is then more than is known here, and the daemon's node counts as lost.

use crate::event::{Effect, Event, NodeLoss, StdinEffect, VerbId};
use crate::input::{Input, InputAt, Mark};
use crate::job::Job;
use crate::safeguard::{Kept, Safeguard};
use crate::setup::Setup;
use mend_messages::daemon::{FromDaemon, Stream, ToDaemon};
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::tier::TierOrder;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// One thing that a machine was told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// When, microseconds of the machine's clock.
    pub at_us: u64,
    /// What it was told then.
    pub what: What,
}

/// What a machine can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// An event from outside.
    Event {
        /// The event; output without its bytes, unless they are compared with what was shown.
        event: Event,
        /// Number of the daemon's message, if it is one; 0: it came before messages were numbered.
        number: Option<u64>,
        /// Where the stream stood behind the bytes, if it is output.
        printed: Option<Mark>,
    },
    /// The answer to the first effect that was not carried out yet and has one like this.
    Answer(Event),
    /// A piece of standard input was read.
    Input(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// What belongs to a checkpoint that is being taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// How far each stream had come.
    pub printed: Vec<((Rank, Stream), Mark)>,
    /// What rank 0 had been given.
    pub input: InputAt,
}

/// Orders to one daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Those of which nothing is kept: the daemon has had them.
    pub before: u64,
    /// Those that follow.
    pub kept: VecDeque<ToDaemon>,
}

impl Orders {
    /// Of a daemon that has had so many.
    ///
    /// # Errors
    /// It has had others than these, as far as can be told by the number.
    pub fn after(mut self, had: u64, safeguards: Kept) -> Result<Self, UnknownOrders> {
        let known = self.before + self.kept.len() as u64;
        let unknown = UnknownOrders { had, known };
        let had = if safeguards.keeps(Safeguard::UnknownOrdersAreALoss) { had } else { had.min(known) };
        let done = had.checked_sub(self.before).filter(|done| *done <= self.kept.len() as u64).ok_or(unknown)?;
        self.kept.drain(..done as usize);
        self.before = had;
        Ok(self)
    }
}

/// A daemon has had more orders than are known, or less than were said to have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOrders {
    /// What it has had.
    pub had: u64,
    /// What is known.
    pub known: u64,
}

/// Output that a daemon has sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentOutput {
    /// Who wrote it.
    pub rank: Rank,
    /// Where to.
    pub stream: Stream,
    /// Where the stream stood behind it.
    pub end: Mark,
}

/// The end of a stream that is printed again, and compared with what was shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Where the bytes begin.
    pub start: Mark,
    /// What the rank has printed from there on.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// No more comes: what is held back of it is printed.
    pub ended: bool,
}

/// Bytes of a stream that are kept so at least; twice as many at most. More is not held back, and, where it differs, not sent either before it is printed.
const MIN_COMPARED_BYTES: usize = 8 << 20;

impl Compared {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > 2 * MIN_COMPARED_BYTES {
            let forgotten = self.bytes.len() - MIN_COMPARED_BYTES;
            self.start = self.start.after(&self.bytes[..forgotten]);
            self.bytes.drain(..forgotten);
        }
    }
}

/// Where a controller stands, apart from files and connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// The machine.
    pub job: Job,
    /// Of the last thing that it was told, microseconds of its clock.
    pub at_us: u64,
    /// What was given of standard input.
    pub input: Input,
    /// The next piece of it is wanted.
    pub wants_input: bool,
    /// How far each stream has come.
    pub printed: Vec<((Rank, Stream), Mark)>,
    /// What belongs to checkpoints that are being taken, by number.
    pub notes: BTreeMap<u64, Note>,
    /// To each node's daemon.
    pub orders: Vec<Orders>,
    /// Number of each daemon's last message that the machine was told.
    pub heard: Vec<u64>,
    /// Of each daemon, by number, output that may not have been printed.
    pub outputs: Vec<BTreeMap<u64, SentOutput>>,
    /// Nodes that are lost, and how.
    pub lost: Vec<(NodeIndex, NodeLoss)>,
    /// The highest number of a verb.
    pub last_verb: VerbId,
    /// A round of upkeep is under way.
    pub upkeep: bool,
    /// Effects that may not have been carried out.
    undone: VecDeque<(Effect, Option<Mark>)>,
    /// Streams that are compared with what was shown.
    pub compared: Vec<((Rank, Stream), Compared)>,
}

/// The text of a checkpoint's manifest; empty if there is none any more.
pub type ManifestText<'a> = &'a dyn Fn(u64) -> Vec<u8>;

fn is_answer(effect: &Effect, event: &Event) -> bool {
    matches!(
        (effect, event),
        (Effect::Prepare { .. }, Event::Prepared { .. })
            | (Effect::Publish(_), Event::Published { .. })
            | (Effect::Remove { .. }, Event::Removed { .. })
            | (Effect::List, Event::Listed(_) | Event::NotListed)
            | (Effect::ListDrained, Event::Drained(_))
            | (Effect::MeasureFreeSpace, Event::FreeSpace(_))
            | (Effect::StoreManifest { .. }, Event::ManifestUnreadable { .. })
            | (Effect::RemoveIfEmpty { .. }, Event::Emptied { .. })
    )
}

impl Standing {
    /// At the beginning of a life, with standard input that was given so far.
    #[must_use]
    pub fn begin(setup: Setup, at_us: u64, input: Input, printed: Vec<((Rank, Stream), Mark)>) -> Self {
        let nodes = setup.nodes.len();
        let (job, effects) = Job::begin(setup, at_us);
        let mut standing = Self::of(job, at_us, input, printed, nodes);
        standing.undone = effects.into_iter().map(|effect| (effect, None)).collect();
        standing
    }

    /// With a machine that has nothing to do.
    #[must_use]
    pub fn of(job: Job, at_us: u64, input: Input, printed: Vec<((Rank, Stream), Mark)>, nodes: usize) -> Self {
        Self {
            job,
            at_us,
            input,
            wants_input: false,
            printed,
            notes: BTreeMap::new(),
            orders: vec![Orders::default(); nodes],
            heard: vec![0; nodes],
            outputs: vec![BTreeMap::new(); nodes],
            lost: Vec::new(),
            last_verb: 0,
            upkeep: false,
            undone: VecDeque::new(),
            compared: Vec::new(),
        }
    }

    /// Takes the next thing that the machine was told.
    pub fn take(&mut self, told: Told, manifest: ManifestText<'_>) {
        self.at_us = told.at_us;
        match told.what {
            What::Event { event, number, printed } => {
                self.do_all(manifest);
                self.note(&event, number, printed);
                self.handle(event, printed);
            }
            What::Answer(event) => {
                self.do_until_answered(&event, manifest);
                self.handle(event, None);
            }
            What::Input(bytes) => {
                self.do_all(manifest);
                self.wants_input = false;
                if let Some(bytes) = self.input.pass(bytes) {
                    self.handle(Event::Stdin(bytes), None);
                }
            }
        }
    }

    fn note(&mut self, event: &Event, number: Option<u64>, printed: Option<Mark>) {
        match event {
            Event::Daemon { node, message } => {
                let node = *node as usize;
                if let (Some(heard), Some(number)) = (self.heard.get_mut(node), number) {
                    *heard = number.max(*heard);
                }
                if let (FromDaemon::Output { rank, stream, bytes }, Some(end)) = (message, printed) {
                    self.compare((*rank, *stream), bytes);
                    if let (Some(number), Some(outputs)) = (number, self.outputs.get_mut(node)) {
                        outputs.insert(number, SentOutput { rank: *rank, stream: *stream, end });
                    }
                }
            }
            Event::NodeLost { node, how } => self.lost.push((*node, how.clone())),
            Event::Ask { verb, .. } => self.last_verb = self.last_verb.max(*verb),
            Event::Upkeep(_) => self.upkeep = false,
            _ => {}
        }
    }

    /// A rank has printed these bytes; none: they are not compared, nor are those that come.
    fn compare(&mut self, key: (Rank, Stream), bytes: &[u8]) {
        let found = self.compared.iter().position(|(of, _)| *of == key);
        match found {
            Some(at) if bytes.is_empty() => drop(self.compared.swap_remove(at)),
            Some(at) => self.compared[at].1.add(bytes),
            None if bytes.is_empty() => {}
            None => {
                let start = self.printed.iter().find(|(of, _)| *of == key).map(|(_, mark)| *mark).unwrap_or_default();
                self.compared.push((key, Compared { start, bytes: bytes.to_vec(), ended: false }));
            }
        }
    }

    fn handle(&mut self, event: Event, printed: Option<Mark>) {
        let effects = self.job.handle(self.at_us, event);
        for effect in &effects {
            if let Effect::OutputEnds { rank: ended } = effect {
                self.compared.iter_mut().filter(|((rank, _), _)| rank == ended).for_each(|(_, compared)| compared.ended = true);
            }
        }
        self.undone.extend(effects.into_iter().map(|effect| (effect, printed)));
    }

    fn do_all(&mut self, manifest: ManifestText<'_>) {
        while let Some((effect, printed)) = self.undone.pop_front() {
            self.carry_out(effect, printed, manifest);
        }
    }

    /// All effects before the one that this answers were carried out, and that one.
    fn do_until_answered(&mut self, answer: &Event, manifest: ManifestText<'_>) {
        while let Some((effect, printed)) = self.undone.pop_front() {
            // One that could not be read is not sent.
            if is_answer(&effect, answer) && matches!(effect, Effect::StoreManifest { .. }) {
                return;
            }
            let answered = is_answer(&effect, answer);
            if self.carry_out(effect, printed, manifest) || answered {
                return;
            }
        }
    }

    /// What an effect changes here; whether it has given standard input as its answer.
    fn carry_out(&mut self, effect: Effect, printed: Option<Mark>, manifest: ManifestText<'_>) -> bool {
        match effect {
            Effect::Send { node, message } => self.order(node, message),
            Effect::StoreManifest { task, number, node, to } => {
                self.order(node, ToDaemon::Tier(Box::new(TierOrder::Manifest { task, number, to, text: manifest(number) })));
            }
            Effect::Print { rank, stream, .. } => self.print(rank, stream, printed),
            Effect::Note { number } => {
                let note = Note { printed: self.printed.clone(), input: self.input.at_hold() };
                self.notes.insert(number, note);
            }
            Effect::Discard { number } => drop(self.notes.remove(&number)),
            Effect::Publish(publication) => drop(self.notes.remove(&publication.number)),
            Effect::StartUpkeep { .. } => self.upkeep = true,
            Effect::Stdin(wanted) => {
                let (bytes, asks) = self.input.apply(wanted);
                self.wants_input |= asks;
                return bytes.is_some();
            }
            _ => {}
        }
        false
    }

    fn order(&mut self, node: NodeIndex, message: ToDaemon) {
        if let Some(orders) = self.orders.get_mut(node as usize) {
            orders.kept.push_back(message);
        }
    }

    fn print(&mut self, rank: Rank, stream: Stream, printed: Option<Mark>) {
        let Some(mark) = printed else { return };
        match self.printed.iter_mut().find(|(key, _)| *key == (rank, stream)) {
            Some((_, at)) => *at = mark,
            None => self.printed.push(((rank, stream), mark)),
        }
    }

    /// These effects are still to be carried out.
    pub fn put_back(&mut self, left: &[Effect]) {
        self.undone.extend(left.iter().map(|effect| (effect.clone(), None)));
    }

    /// What is still to be done: orders are among [`Standing::orders`], the rest is returned. What was asked for by it has to be answered.
    pub fn left(&mut self, manifest: ManifestText<'_>) -> Vec<Effect> {
        let mut left = Vec::new();
        for (effect, printed) in std::mem::take(&mut self.undone) {
            match effect {
                Effect::Send { .. } | Effect::StoreManifest { .. } | Effect::Print { .. } => {
                    self.carry_out(effect, printed, manifest);
                }
                effect => left.push(effect),
            }
        }
        left
    }
}

impl Input {
    /// Does what is wanted; what it gives to the rank, and whether the next piece is to be read.
    pub fn apply(&mut self, wanted: StdinEffect) -> (Option<Vec<u8>>, bool) {
        match wanted {
            StdinEffect::Read => return (None, true),
            StdinEffect::Taken => {
                let end = self.acknowledged();
                return (end.and_then(|end| self.pass(end)), true);
            }
            StdinEffect::Freeze => self.freeze(),
            StdinEffect::Release => return (self.release().and_then(|bytes| self.pass(bytes)), false),
            StdinEffect::Held { again, begun } => self.held(again, begun),
            StdinEffect::Lost => return (self.lost(), false),
            StdinEffect::Left(bytes) => return (self.left(bytes), false),
        }
        (None, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_bounded_and_begins_at_a_known_mark() {
        let (mut compared, mut all) = (Compared { start: Mark::default(), bytes: Vec::new(), ended: false }, Vec::new());
        for piece in 0..40u32 {
            let bytes = piece.to_le_bytes().repeat(256 << 10);
            compared.add(&bytes);
            all.extend_from_slice(&bytes);
            let begins = all.len() - compared.bytes.len();
            assert!(begins == 0 || compared.bytes.len() >= MIN_COMPARED_BYTES);
            assert!(compared.bytes.len() <= 2 * MIN_COMPARED_BYTES);
            assert!(all[begins..] == compared.bytes);
        }
        assert_eq!(compared.start, Mark::default().after(&all[..all.len() - compared.bytes.len()]));
    }

    #[test]
    fn a_daemon_gets_the_orders_that_it_has_not_had() {
        let orders = Orders { before: 5, kept: [ToDaemon::Signal(1), ToDaemon::Signal(2), ToDaemon::End { goes_on: false }].into() };
        let after = |had| orders.clone().after(had, Kept::default());
        assert_eq!(after(5), Ok(orders.clone()));
        assert_eq!(after(7), Ok(Orders { before: 7, kept: [ToDaemon::End { goes_on: false }].into() }));
        assert_eq!(after(8), Ok(Orders { before: 8, kept: VecDeque::new() }));
        // The end of the log is missing, or the daemon has forgotten something.
        assert_eq!(after(9), Err(UnknownOrders { had: 9, known: 8 }));
        assert_eq!(after(4), Err(UnknownOrders { had: 4, known: 8 }));
    }
}
