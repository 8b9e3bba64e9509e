//! One coordinated checkpoint, as a typed state machine.
//!
//! ```text
//! Inspecting ──all clear──► Suspending ──all drained──► Saving ──all saved──► Keeping ──► Resuming ──all resumed──► Writing ──► Done(Ok)
//!     │ obstacle                │ failure, rank lost        │ failure            ▲      │ failure         │ failure
//!     ▼                         └──────────────────────────►└──── Resuming ──────┘      └────► Done(Err) ◄┘
//! Done(Err): nothing was stopped
//! ```
//! Where all ranks are on one node, what follows after `Inspecting` is asked at once, as a batch: the node's daemon goes from step to step
//! as the machine does, without waiting for it. If anything failed the machine cannot know how far that came, and asks all ranks to
//! resume, also those that have been asked.
//!
//! In `Keeping` agents keep the program's files: all ranks of the job stand still, so that what one of them wrote last is in them.
//!
//! A rank is saved when its image is durable, or when it has its snapshot and can run on while that is written: then
//! `Writing` waits for it, and nobody stands still. Without such ranks `Writing` is over at once.
//!
//! Invariants: every rank that was asked to suspend is asked to resume; the snapshot of the PMI server
//! and of the output counters is asked for while all ranks are parked; nothing is committed unless every rank's image is
//! durable; when it is over no rank that is still there writes any more. Only ranks whose image isn't durable yet can make it
//! fail once all run again.
//! Faults assumed: any rank may fail, vanish or answer out of turn at any step (the latter is ignored); news of a written
//! image may come before the answer to the save, twice, or for an image of long ago.

use crate::failure::{Failure, Gone, Refusal, obstacles};
use mend_messages::agent::{ImageId, Reply, Request, SaveMode, SaveOrder, Saved, Unasked, Unwritten, Written};
use mend_messages::control::Phases;
use mend_messages::files::{KeepOrder, KeptFile, merged};
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the caller has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the rank's agent.
    Ask {
        /// The rank that this is about.
        rank: Rank,
        /// The request to its agent.
        request: Request,
    },
    /// Have all of this asked as a batch, each step when the one before it is done.
    AskBatch(Vec<Vec<(Rank, Request)>>),
    /// The step with this index, of the batch, is awaited from here on. Answers to it that have come are given now.
    Await(usize),
    /// Stop answering PMI requests, before any later `Ask` is sent.
    FreezePmi,
    /// All ranks are parked and saved: take the PMI server's state and the output counters now.
    Snapshot,
    /// All ranks run again: answer PMI requests.
    ThawPmi,
    /// It is over. After `Ok`, write the manifest and publish the checkpoint.
    Finish(Result<Outcome, Failure>),
}

/// A successful checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// One per rank.
    pub saved: BTreeMap<Rank, Saved>,
    /// The files that programs have open, each once.
    pub files: Vec<KeptFile>,
    /// Slowest rank of each phase.
    pub phases: Phases,
    /// From the request to suspend until the program went on, by the rank's own clock, of the rank that took longest, microseconds.
    pub stopped_us: u64,
    /// From the first request to suspend until every image was durable, microseconds.
    pub durable_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Inspecting,
    Suspending,
    Saving,
    Keeping,
    Resuming,
    Writing,
    Done,
}

/// A checkpoint under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    state: State,
    waiting: BTreeSet<Rank>,
    ranks: BTreeSet<Rank>,
    orders: BTreeMap<Rank, SaveOrder>,
    keep: KeepOrder,
    kept: Vec<KeptFile>,
    /// Ranks that make what they kept durable.
    syncing: BTreeSet<Rank>,
    /// All that follows is asked at once.
    batched: bool,
    /// An answer to this step says that it failed, or will say so: nothing of the batch follows.
    broken: bool,
    suspend_started_us: u64,
    resume_started_us: u64,
    stopped_us: u64,
    phases: Phases,
    saved: BTreeMap<Rank, Saved>,
    /// News of images that are written behind; may come early.
    written: BTreeMap<(Rank, ImageId), Result<Written, Unwritten>>,
    failure: Option<Failure>,
}

/// File name of a rank's image within a checkpoint's directory.
#[must_use]
pub fn image_name(rank: Rank) -> String {
    format!("rank-{rank}.image")
}

impl Checkpoint {
    /// A checkpoint of the ranks that have these orders, and the first actions; `keep` says what becomes of files. `batched` says that ranks can be asked so.
    #[must_use]
    pub fn start(orders: BTreeMap<Rank, SaveOrder>, keep: KeepOrder, batched: bool) -> (Self, Vec<Action>) {
        let ranks: BTreeSet<Rank> = orders.keys().copied().collect();
        let ahead = |order: &SaveOrder| order.base.filter(|_| order.mode == SaveMode::CopyOnWrite);
        let inspect = |(&rank, order)| Action::Ask { rank, request: Request::Inspect { ahead: ahead(order), files: false } };
        let actions = orders.iter().map(inspect).collect();
        let machine = Self {
            state: State::Inspecting,
            waiting: ranks.clone(),
            ranks,
            orders,
            keep,
            kept: Vec::new(),
            syncing: BTreeSet::new(),
            batched,
            broken: false,
            suspend_started_us: 0,
            resume_started_us: 0,
            stopped_us: 0,
            phases: Phases::default(),
            saved: BTreeMap::new(),
            written: BTreeMap::new(),
            failure: None,
        };
        (machine, actions)
    }

    /// Name of the phase that it is in; `None` when it is over.
    #[must_use]
    pub fn phase(&self) -> Option<&'static str> {
        Some(match self.state {
            State::Inspecting => "inspect",
            State::Suspending => "suspend",
            State::Saving => "save",
            State::Keeping => "keep",
            State::Resuming => "resume",
            State::Writing => "write",
            State::Done => return None,
        })
    }

    /// Everybody runs again, and images are still being written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.state == State::Writing
    }

    /// An agent answered.
    pub fn reply(&mut self, now_us: u64, rank: Rank, reply: Reply) -> Vec<Action> {
        if self.state == State::Writing {
            return self.synced(now_us, rank, reply);
        }
        if !self.waiting.contains(&rank) {
            return Vec::new();
        }
        match (&self.state, reply) {
            (State::Inspecting, Reply::Inspected(inspection)) => {
                if let Some(failure) = obstacles(rank, &inspection.obstacles) {
                    self.fail(failure);
                }
            }
            (State::Suspending, Reply::Suspended { us }) => self.phases.suspend_us = self.phases.suspend_us.max(us),
            (State::Saving, Reply::Saved(saved)) => {
                self.phases.write_us = self.phases.write_us.max(saved.park_us + saved.write_us);
                self.saved.insert(rank, saved);
            }
            (State::Keeping, Reply::Kept(files)) => self.kept.extend(files.into_iter().map(|file| KeptFile { rank, ..file })),
            (State::Resuming, Reply::Resumed { stopped_us }) => self.stopped_us = self.stopped_us.max(stopped_us),
            (_, reply) => match Refusal::of(reply) {
                Some(why) => {
                    self.broken = true;
                    self.fail(Failure::Refused { rank, why });
                }
                // A late answer to an earlier step: the one to this step is still to come.
                None => return Vec::new(),
            },
        }
        self.waiting.remove(&rank);
        self.advance(now_us)
    }

    /// What a rank kept is durable, or is not going to be.
    fn synced(&mut self, now_us: u64, rank: Rank, reply: Reply) -> Vec<Action> {
        let why = match reply {
            Reply::Synced => None,
            reply => match Refusal::of(reply) {
                Some(why) => Some(why),
                None => return Vec::new(),
            },
        };
        if !self.syncing.remove(&rank) {
            return Vec::new();
        }
        if let Some(why) = why {
            self.fail(Failure::Refused { rank, why });
        }
        self.advance(now_us)
    }

    /// An image that was written behind its rank is durable, or is not going to be.
    pub fn written(&mut self, now_us: u64, rank: Rank, id: ImageId, result: Result<Written, Unwritten>) -> Vec<Action> {
        // Before any is saved it can only be about an older checkpoint's.
        if !matches!(self.state, State::Saving | State::Keeping | State::Resuming | State::Writing) {
            return Vec::new();
        }
        self.written.entry((rank, id)).or_insert(result);
        let due = self.state == State::Writing && self.waiting.contains(&rank);
        if due && self.take_written(rank) { self.advance(now_us) } else { Vec::new() }
    }

    /// Uses the news of a rank's image, if there is any. True if the rank is not waited for any more.
    fn take_written(&mut self, rank: Rank) -> bool {
        let Some(saved) = self.saved.get_mut(&rank).filter(|saved| saved.behind) else { return true };
        match self.written.remove(&(rank, saved.id)) {
            None => return false,
            Some(Ok(Written { bytes, pages, checksum, .. })) => {
                *saved = Saved { bytes, pages, checksum, behind: false, ..std::mem::take(saved) };
            }
            Some(Err(Unwritten::Ended)) => self.fail(Failure::Refused { rank, why: Refusal::Unasked(Unasked::Left) }),
            Some(Err(Unwritten::Failed(why))) => self.fail(Failure::Unwritten { rank, why }),
        }
        self.waiting.remove(&rank);
        true
    }

    /// A rank ended, or its node did.
    pub fn lost(&mut self, now_us: u64, rank: Rank, how: Gone) -> Vec<Action> {
        if self.state == State::Done || !self.ranks.remove(&rank) {
            return Vec::new();
        }
        // What is durable stays.
        let harmless = self.state == State::Writing && !self.waiting.contains(&rank) && !self.syncing.contains(&rank);
        self.syncing.remove(&rank);
        self.broken |= self.waiting.remove(&rank);
        if !harmless {
            self.fail(Failure::Lost { rank, how });
        }
        self.advance(now_us)
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    fn ask_all(&mut self, state: State, request: impl Fn(Rank) -> Request) -> Vec<Action> {
        self.enter(state);
        self.ranks.iter().map(|&rank| Action::Ask { rank, request: request(rank) }).collect()
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.broken = false;
        self.waiting = self.ranks.clone();
    }

    /// What is asked as a batch, in the order of the states from here on.
    fn steps(&mut self) -> Vec<Vec<(Rank, Request)>> {
        let all = |request: Request| self.ranks.iter().map(|&rank| (rank, request.clone())).collect();
        let (suspend, resume) = (all(Request::Suspend), all(Request::Resume));
        let orders = std::mem::take(&mut self.orders);
        let save = self.ranks.iter().map(|&rank| (rank, Request::Save(orders[&rank].clone()))).collect();
        let keep = all(Request::KeepFiles(self.keep.clone()));
        vec![suspend, save, keep, resume]
    }

    fn advance(&mut self, now_us: u64) -> Vec<Action> {
        if !self.waiting.is_empty() || self.state == State::Writing && !self.syncing.is_empty() {
            return Vec::new();
        }
        match (&self.state, self.failure.is_some()) {
            (State::Inspecting, true) => self.finish(now_us, Vec::new()),
            (State::Inspecting, false) => {
                self.suspend_started_us = now_us;
                let mut actions = vec![Action::FreezePmi];
                if self.batched {
                    self.enter(State::Suspending);
                    actions.extend([Action::AskBatch(self.steps()), Action::Await(0)]);
                    return actions;
                }
                actions.extend(self.ask_all(State::Suspending, |_| Request::Suspend));
                actions
            }
            // A rank that was lost when it had answered keeps no other from being saved.
            (State::Suspending, _) if self.batched && !self.broken && !self.ranks.is_empty() => {
                self.enter(State::Saving);
                vec![Action::Await(1)]
            }
            (State::Suspending, false) => {
                let orders = std::mem::take(&mut self.orders);
                self.ask_all(State::Saving, |rank| Request::Save(orders[&rank].clone()))
            }
            (State::Saving, false) if self.batched => {
                self.enter(State::Keeping);
                vec![Action::Await(2)]
            }
            (State::Saving, false) => {
                let keep = self.keep.clone();
                self.ask_all(State::Keeping, |_| Request::KeepFiles(keep.clone()))
            }
            (State::Keeping, false) => {
                self.resume_started_us = now_us;
                let mut actions = vec![Action::Snapshot];
                if self.batched {
                    self.enter(State::Resuming);
                    actions.push(Action::Await(3));
                    return actions;
                }
                actions.extend(self.ask_all(State::Resuming, |_| Request::Resume));
                actions
            }
            (State::Suspending | State::Saving | State::Keeping, true) => {
                self.resume_started_us = now_us;
                let actions = self.ask_all(State::Resuming, |_| Request::Resume);
                // Every rank may be gone by now.
                if actions.is_empty() { self.resumed(now_us) } else { actions }
            }
            (State::Resuming, _) => self.resumed(now_us),
            (State::Writing, _) => self.finish(now_us, Vec::new()),
            (State::Done, _) => Vec::new(),
        }
    }

    /// Everybody runs again.
    fn resumed(&mut self, now_us: u64) -> Vec<Action> {
        self.phases.reconnect_us = now_us.saturating_sub(self.resume_started_us);
        self.state = State::Writing;
        let ranks: Vec<Rank> = self.ranks.iter().copied().collect();
        self.waiting = ranks.into_iter().filter(|&rank| !self.take_written(rank)).collect();
        let mut actions = vec![Action::ThawPmi];
        let keepers = self.kept.iter().filter(|file| file.stored() > 0).map(|file| file.rank);
        self.syncing = keepers.filter(|rank| self.ranks.contains(rank)).collect();
        actions.extend(self.syncing.iter().map(|&rank| Action::Ask { rank, request: Request::SyncFiles }));
        actions.extend(self.advance(now_us));
        actions
    }

    fn finish(&mut self, now_us: u64, mut actions: Vec<Action>) -> Vec<Action> {
        self.state = State::Done;
        actions.push(Action::Finish(match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Outcome {
                saved: std::mem::take(&mut self.saved),
                files: merged(std::mem::take(&mut self.kept)),
                phases: self.phases,
                stopped_us: self.stopped_us,
                durable_us: now_us.saturating_sub(self.suspend_started_us),
            }),
        }));
        actions
    }
}

#[cfg(test)]
mod tests;
