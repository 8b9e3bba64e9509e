//! One coordinated checkpoint, as a typed state machine.
//!
//! ```text
//! Inspecting ──all clear──► Suspending ──all drained──► Saving ──all saved──► Resuming ──all resumed──► Done(Ok)
//!     │ obstacle                │ failure, rank lost        │ failure            ▲      │
//!     ▼                         └──────────────────────────►└──── Resuming ──────┘      └──► Done(Err)
//! Done(Err): nothing was stopped
//! ```
//! Invariants: every rank that was asked to suspend is asked to resume, exactly once; the snapshot of the PMI server
//! and of the output counters is asked for while all ranks are parked; nothing is committed unless every rank saved.
//! Faults assumed: any rank may fail, vanish or answer out of turn at any step (the latter is ignored).

use mend_messages::agent::{Reply, Request, SaveOrder, SaveTarget, Saved};
use mend_messages::control::Phases;
use mend_messages::job::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Why it failed; the job runs on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Failure {
    /// What and why.
    pub error: String,
    /// Way out; may be empty.
    pub hint: String,
}

/// What the caller has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the rank's agent.
    Ask {
        /// Whose.
        rank: Rank,
        /// What.
        request: Request,
    },
    /// Stop answering PMI requests, before any later `Ask` is sent.
    FreezePmi,
    /// All ranks are parked and saved: take the PMI server's state and the output counters now.
    Snapshot,
    /// Answer PMI requests again.
    ThawPmi,
    /// It is over. After `Ok`, write the manifest and publish the checkpoint.
    Finish(Result<Outcome, Failure>),
}

/// A successful checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// One per rank.
    pub saved: BTreeMap<Rank, Saved>,
    /// Slowest rank of each phase.
    pub phases: Phases,
    /// From the first request to suspend to the last rank resumed, microseconds.
    pub stopped_us: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Inspecting,
    Suspending,
    Saving,
    Resuming,
    Done,
}

/// A checkpoint under way.
#[derive(Debug)]
pub struct Checkpoint {
    state: State,
    waiting: BTreeSet<Rank>,
    ranks: BTreeSet<Rank>,
    directory: PathBuf,
    suspend_started_us: u64,
    resume_started_us: u64,
    phases: Phases,
    saved: BTreeMap<Rank, Saved>,
    failure: Option<Failure>,
}

/// File name of a rank's image within a checkpoint's directory.
#[must_use]
pub fn image_name(rank: Rank) -> String {
    format!("rank-{rank}.image")
}

/// Sentence for the obstacles that an inspection found at one rank.
#[must_use]
pub fn obstacles_failure(rank: Rank, obstacles: &[mend_messages::agent::Obstacle]) -> Option<Failure> {
    let first = obstacles.first()?;
    let more = if obstacles.len() > 1 { format!(" (and {} more)", obstacles.len() - 1) } else { String::new() };
    Some(Failure { error: format!("rank {rank} cannot be saved: {}{more}", first.what), hint: first.hint.clone() })
}

impl Checkpoint {
    /// A checkpoint of `ranks` ranks into `directory`, and the first actions.
    #[must_use]
    pub fn start(ranks: u32, directory: PathBuf) -> (Self, Vec<Action>) {
        let ranks: BTreeSet<Rank> = (0..ranks).collect();
        let actions = ranks.iter().map(|&rank| Action::Ask { rank, request: Request::Inspect }).collect();
        let machine = Self {
            state: State::Inspecting,
            waiting: ranks.clone(),
            ranks,
            directory,
            suspend_started_us: 0,
            resume_started_us: 0,
            phases: Phases::default(),
            saved: BTreeMap::new(),
            failure: None,
        };
        (machine, actions)
    }

    /// An agent answered.
    pub fn reply(&mut self, now_us: u64, rank: Rank, reply: Reply) -> Vec<Action> {
        if !self.waiting.contains(&rank) {
            return Vec::new();
        }
        match (&self.state, reply) {
            (State::Inspecting, Reply::Inspected(inspection)) => {
                if let Some(failure) = obstacles_failure(rank, &inspection.obstacles) {
                    self.fail(failure);
                }
            }
            (State::Suspending, Reply::Suspended { us }) => self.phases.suspend_us = self.phases.suspend_us.max(us),
            (State::Saving, Reply::Saved(saved)) => {
                self.phases.write_us = self.phases.write_us.max(saved.park_us + saved.write_us);
                self.saved.insert(rank, saved);
            }
            (State::Resuming, Reply::Resumed) => {}
            (_, Reply::Failed { error, hint }) => self.fail(Failure { error: format!("rank {rank}: {error}"), hint }),
            // A late answer to an earlier step: the one to this step is still to come.
            _ => return Vec::new(),
        }
        self.waiting.remove(&rank);
        self.advance(now_us)
    }

    /// A rank ended, or its node did.
    pub fn lost(&mut self, now_us: u64, rank: Rank, why: &str) -> Vec<Action> {
        if self.state == State::Done || !self.ranks.remove(&rank) {
            return Vec::new();
        }
        self.waiting.remove(&rank);
        self.fail(Failure { error: format!("rank {rank} {why}"), hint: String::new() });
        self.advance(now_us)
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    fn ask_all(&mut self, state: State, request: impl Fn(Rank) -> Request) -> Vec<Action> {
        self.state = state;
        self.waiting = self.ranks.clone();
        self.ranks.iter().map(|&rank| Action::Ask { rank, request: request(rank) }).collect()
    }

    fn advance(&mut self, now_us: u64) -> Vec<Action> {
        if !self.waiting.is_empty() {
            return Vec::new();
        }
        match (&self.state, self.failure.is_some()) {
            (State::Inspecting, true) => self.finish(now_us, Vec::new()),
            (State::Inspecting, false) => {
                self.suspend_started_us = now_us;
                let mut actions = vec![Action::FreezePmi];
                actions.extend(self.ask_all(State::Suspending, |_| Request::Suspend));
                actions
            }
            (State::Suspending, false) => {
                let directory = self.directory.clone();
                self.ask_all(State::Saving, |rank| Request::Save(SaveOrder::full(SaveTarget::File(directory.join(image_name(rank))))))
            }
            (State::Saving, false) => {
                self.resume_started_us = now_us;
                let mut actions = vec![Action::Snapshot];
                actions.extend(self.ask_all(State::Resuming, |_| Request::Resume));
                actions
            }
            (State::Suspending | State::Saving, true) => {
                self.resume_started_us = now_us;
                let actions = self.ask_all(State::Resuming, |_| Request::Resume);
                // Every rank may be gone by now.
                if actions.is_empty() { self.finish(now_us, vec![Action::ThawPmi]) } else { actions }
            }
            (State::Resuming, _) => self.finish(now_us, vec![Action::ThawPmi]),
            (State::Done, _) => Vec::new(),
        }
    }

    fn finish(&mut self, now_us: u64, mut actions: Vec<Action>) -> Vec<Action> {
        self.state = State::Done;
        self.phases.reconnect_us = now_us.saturating_sub(self.resume_started_us);
        actions.push(Action::Finish(match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Outcome {
                saved: std::mem::take(&mut self.saved),
                phases: self.phases,
                stopped_us: now_us.saturating_sub(self.suspend_started_us),
            }),
        }));
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::agent::{Inspection, Obstacle};
    use proptest::prelude::*;

    fn good_reply(request: &Request) -> Reply {
        match request {
            Request::Inspect => Reply::Inspected(Inspection::default()),
            Request::Suspend | Request::SuspendPeer(_) => Reply::Suspended { us: 5 },
            Request::Save(_) => Reply::Saved(Saved { bytes: 10, write_us: 7, ..Saved::default() }),
            Request::Resume => Reply::Resumed,
        }
    }

    #[test]
    fn an_obstacle_stops_nothing() {
        let (mut machine, _) = Checkpoint::start(2, "d".into());
        let obstacle = Obstacle { what: "socket to 10.0.0.7:443 (fd 12)".into(), hint: "close it".into() };
        let seen = Inspection { obstacles: vec![obstacle], ..Inspection::default() };
        assert_eq!(machine.reply(1, 1, Reply::Inspected(seen)), []);
        let actions = machine.reply(2, 0, Reply::Inspected(Inspection::default()));
        let [Action::Finish(Err(failure))] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(failure.error, "rank 1 cannot be saved: socket to 10.0.0.7:443 (fd 12)");
    }

    proptest! {
        /// Whatever fails or vanishes, in whatever order answers come: the machine ends, resumes exactly the ranks it
        /// suspended, takes the snapshot only between the last save and the first resume, and thaws what it froze.
        #[test]
        fn every_suspended_rank_is_resumed_once(ranks in 1u32..6, fates in proptest::collection::vec((0usize..64, 0u8..12), 0..80)) {
            let (mut machine, mut todo) = Checkpoint::start(ranks, "d".into());
            let mut open: Vec<(Rank, Request)> = Vec::new();
            let (mut suspended, mut resumed, mut lost) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            let (mut frozen, mut snapshots, mut finished) = (false, 0, None);
            let mut fates = fates.into_iter();
            loop {
                for action in std::mem::take(&mut todo) {
                    prop_assert!(finished.is_none());
                    match action {
                        Action::Ask { rank, request } => {
                            prop_assert!(!lost.contains(&rank));
                            match request {
                                Request::Suspend => { prop_assert!(frozen); suspended.insert(rank); }
                                Request::Resume => prop_assert!(resumed.insert(rank) && suspended.contains(&rank)),
                                _ => {}
                            }
                            open.push((rank, request));
                        }
                        Action::FreezePmi => frozen = true,
                        Action::ThawPmi => { prop_assert!(frozen); frozen = false; }
                        Action::Snapshot => { prop_assert!(resumed.is_empty()); snapshots += 1; }
                        Action::Finish(result) => finished = Some(result),
                    }
                }
                if finished.is_some() { break }
                prop_assert!(!open.is_empty(), "stuck");
                let (pick, fate) = fates.next().unwrap_or((0, 0));
                let (rank, request) = open.remove(pick % open.len());
                todo = match fate {
                    10 => machine.reply(9, rank, Reply::Failed { error: "x".into(), hint: String::new() }),
                    11 => { lost.insert(rank); open.retain(|(other, _)| *other != rank); machine.lost(9, rank, "ended") }
                    _ => machine.reply(9, rank, good_reply(&request)),
                };
            }
            prop_assert!(!frozen);
            let expected: BTreeSet<Rank> = suspended.difference(&lost).copied().collect();
            prop_assert!(expected.is_subset(&resumed));
            if let Some(Ok(outcome)) = finished {
                prop_assert_eq!(outcome.saved.len() as u32, ranks);
                prop_assert_eq!(snapshots, 1);
            }
        }
    }
}
