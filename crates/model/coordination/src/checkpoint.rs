//! One coordinated checkpoint, as a typed state machine.
//!
//! ```text
//! Inspecting ──all clear──► Suspending ──all drained──► Saving ──all saved──► Resuming ──all resumed──► Writing ──► Done(Ok)
//!     │ obstacle                │ failure, rank lost        │ failure            ▲      │ failure         │ failure
//!     ▼                         └──────────────────────────►└──── Resuming ──────┘      └────► Done(Err) ◄┘
//! Done(Err): nothing was stopped
//! ```
//! A rank is saved when its image is durable, or when it has its snapshot and can run on while that is written: then
//! `Writing` waits for it, and nobody stands still. Without such ranks `Writing` is over at once.
//!
//! Invariants: every rank that was asked to suspend is asked to resume, exactly once; the snapshot of the PMI server
//! and of the output counters is asked for while all ranks are parked; nothing is committed unless every rank's image is
//! durable; when it is over no rank that is still there writes any more. Only ranks whose image isn't durable yet can make it
//! fail once all run again.
//! Faults assumed: any rank may fail, vanish or answer out of turn at any step (the latter is ignored); news of a written
//! image may come before the answer to the save, twice, or for an image of long ago.

use mend_messages::agent::{ImageId, Reply, Request, SaveMode, SaveOrder, Saved, Written};
use mend_messages::control::Phases;
use mend_messages::job::Rank;
use std::collections::{BTreeMap, BTreeSet};

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
    /// All ranks run again: answer PMI requests.
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
    /// From the first request to suspend until every image was durable, microseconds.
    pub durable_us: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Inspecting,
    Suspending,
    Saving,
    Resuming,
    Writing,
    Done,
}

/// A checkpoint under way.
#[derive(Debug)]
pub struct Checkpoint {
    state: State,
    waiting: BTreeSet<Rank>,
    ranks: BTreeSet<Rank>,
    orders: Vec<SaveOrder>,
    suspend_started_us: u64,
    resume_started_us: u64,
    stopped_us: u64,
    phases: Phases,
    saved: BTreeMap<Rank, Saved>,
    /// News of images that are written behind; may come early.
    written: BTreeMap<(Rank, ImageId), Result<Written, String>>,
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
    /// A checkpoint with these orders, one per rank, and the first actions.
    #[must_use]
    pub fn start(orders: Vec<SaveOrder>) -> (Self, Vec<Action>) {
        let ranks: BTreeSet<Rank> = (0..orders.len() as Rank).collect();
        let ahead = |order: &SaveOrder| order.base.filter(|_| order.mode == SaveMode::CopyOnWrite);
        let inspect = |(rank, order)| Action::Ask { rank, request: Request::Inspect { ahead: ahead(order) } };
        let actions = (0..).zip(&orders).map(inspect).collect();
        let machine = Self {
            state: State::Inspecting,
            waiting: ranks.clone(),
            ranks,
            orders,
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

    /// Everybody runs again, and images are still being written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.state == State::Writing
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

    /// An image that was written behind its rank is durable, or is not going to be.
    pub fn written(&mut self, now_us: u64, rank: Rank, id: ImageId, result: Result<Written, String>) -> Vec<Action> {
        // Before any is saved it can only be about an older checkpoint's.
        if !matches!(self.state, State::Saving | State::Resuming | State::Writing) {
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
            Some(Err(error)) => {
                let hint = "if the job runs on, look at space and quota of the checkpoint directory, and at free memory".into();
                self.fail(Failure { error: format!("rank {rank}: {error}"), hint });
            }
        }
        self.waiting.remove(&rank);
        true
    }

    /// A rank ended, or its node did.
    pub fn lost(&mut self, now_us: u64, rank: Rank, why: &str) -> Vec<Action> {
        if self.state == State::Done || !self.ranks.remove(&rank) {
            return Vec::new();
        }
        // What is durable stays.
        let harmless = self.state == State::Writing && !self.waiting.contains(&rank);
        self.waiting.remove(&rank);
        if !harmless {
            self.fail(Failure { error: format!("rank {rank} {why}"), hint: String::new() });
        }
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
                let orders = std::mem::take(&mut self.orders);
                self.ask_all(State::Saving, |rank| Request::Save(orders[rank as usize].clone()))
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
                if actions.is_empty() { self.resumed(now_us) } else { actions }
            }
            (State::Resuming, _) => self.resumed(now_us),
            (State::Writing, _) => self.finish(now_us, Vec::new()),
            (State::Done, _) => Vec::new(),
        }
    }

    /// Everybody runs again.
    fn resumed(&mut self, now_us: u64) -> Vec<Action> {
        self.stopped_us = now_us.saturating_sub(self.suspend_started_us);
        self.phases.reconnect_us = now_us.saturating_sub(self.resume_started_us);
        self.state = State::Writing;
        let ranks: Vec<Rank> = self.ranks.iter().copied().collect();
        self.waiting = ranks.into_iter().filter(|&rank| !self.take_written(rank)).collect();
        let mut actions = vec![Action::ThawPmi];
        actions.extend(self.advance(now_us));
        actions
    }

    fn finish(&mut self, now_us: u64, mut actions: Vec<Action>) -> Vec<Action> {
        self.state = State::Done;
        actions.push(Action::Finish(match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Outcome {
                saved: std::mem::take(&mut self.saved),
                phases: self.phases,
                stopped_us: self.stopped_us,
                durable_us: now_us.saturating_sub(self.suspend_started_us),
            }),
        }));
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::agent::{Inspection, Obstacle, SaveTarget};
    use proptest::prelude::*;

    fn orders(ranks: u32) -> Vec<SaveOrder> {
        (0..ranks).map(|rank| SaveOrder::full(SaveTarget::File(image_name(rank).into()))).collect()
    }

    fn id(rank: Rank) -> ImageId {
        ImageId([rank as u8 + 1; 16])
    }

    /// Even ranks write behind.
    fn good_reply(rank: Rank, request: &Request) -> Reply {
        match request {
            Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
            Request::Suspend | Request::SuspendPeer(_) => Reply::Suspended { us: 5 },
            Request::Save(_) if rank.is_multiple_of(2) => Reply::Saved(Saved { id: id(rank), behind: true, ..Saved::default() }),
            Request::Save(_) => Reply::Saved(Saved { id: id(rank), bytes: 10, write_us: 7, ..Saved::default() }),
            Request::Resume => Reply::Resumed,
        }
    }

    fn good_news() -> Result<Written, String> {
        Ok(Written { bytes: 10, ..Written::default() })
    }

    #[test]
    fn an_agent_hears_early_of_a_snapshot_that_builds_on_another_image() {
        let order = orders(1).remove(0);
        let behind = SaveOrder { mode: SaveMode::CopyOnWrite, ..order.clone() };
        let built = SaveOrder { base: Some(id(3)), ..behind.clone() };
        let (_, actions) = Checkpoint::start(vec![order, behind, built.clone(), SaveOrder { mode: SaveMode::Stop, ..built }]);
        let ahead = |(rank, ahead)| Action::Ask { rank, request: Request::Inspect { ahead } };
        assert_eq!(actions, [(0, None), (1, None), (2, Some(id(3))), (3, None)].map(ahead));
    }

    /// Two ranks, both resumed.
    fn writing() -> Checkpoint {
        let (mut machine, _) = Checkpoint::start(orders(2));
        for (time, request) in [(1, Request::Inspect { ahead: None }), (2, Request::Suspend), (3, Request::Save(orders(1).remove(0)))] {
            for rank in 0..2 {
                machine.reply(time, rank, good_reply(rank, &request));
            }
        }
        assert_eq!(machine.reply(4, 0, Reply::Resumed), []);
        assert_eq!(machine.reply(5, 1, Reply::Resumed), [Action::ThawPmi]);
        machine
    }

    #[test]
    fn it_lasts_until_the_last_image_is_durable() {
        let mut machine = writing();
        // Of another image, of a rank that is durable, of a rank that does not exist.
        assert_eq!(machine.written(6, 0, id(7), good_news()), []);
        assert_eq!(machine.written(6, 1, id(1), Err("x".into())), []);
        assert_eq!(machine.written(6, 9, id(9), good_news()), []);
        // Rank 1 is not needed any more.
        assert_eq!(machine.lost(7, 1, "ended"), []);
        let actions = machine.written(50, 0, id(0), good_news());
        let [Action::Finish(Ok(outcome))] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!((outcome.stopped_us, outcome.durable_us), (4, 49));
        assert!(outcome.saved.values().all(|saved| saved.bytes == 10 && !saved.behind));
        assert_eq!(machine.written(51, 0, id(0), good_news()), []);
    }

    #[test]
    fn a_rank_that_is_lost_or_fails_while_it_writes_fails_the_checkpoint_alone() {
        for lost in [true, false] {
            let mut machine = writing();
            let actions = if lost { machine.lost(6, 0, "ended") } else { machine.written(6, 0, id(0), Err("no space".into())) };
            let [Action::Finish(Err(failure))] = &actions[..] else { panic!("{actions:?}") };
            assert_eq!(failure.error, if lost { "rank 0 ended" } else { "rank 0: no space" });
        }
    }

    #[test]
    fn an_obstacle_stops_nothing() {
        let (mut machine, _) = Checkpoint::start(orders(2));
        let obstacle = Obstacle { what: "socket to 10.0.0.7:443 (fd 12)".into(), hint: "close it".into() };
        let seen = Inspection { obstacles: vec![obstacle], ..Inspection::default() };
        assert_eq!(machine.reply(1, 1, Reply::Inspected(seen)), []);
        let actions = machine.reply(2, 0, Reply::Inspected(Inspection::default()));
        let [Action::Finish(Err(failure))] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(failure.error, "rank 1 cannot be saved: socket to 10.0.0.7:443 (fd 12)");
    }

    proptest! {
        /// Whatever fails or vanishes, in whatever order answers come: the machine ends, resumes exactly the ranks it
        /// suspended, takes the snapshot only between the last save and the first resume, thaws what it froze, and is over
        /// only when nobody writes any more. News of written images comes early, late, twice, and of images of long ago.
        #[test]
        fn every_suspended_rank_is_resumed_once(ranks in 1u32..6, fates in proptest::collection::vec((0usize..64, 0u8..16), 0..120)) {
            let (mut machine, mut todo) = Checkpoint::start(orders(ranks));
            let mut open: Vec<(Rank, Request)> = Vec::new();
            // Ranks that write, and those that said they are done.
            let (mut writing, mut told, mut bad) = (BTreeSet::new(), BTreeSet::new(), false);
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
                let (pick, fate) = fates.next().unwrap_or((0, 0));
                let silent = open.is_empty() || fate == 12;
                if let Some(rank) = writing.iter().copied().nth(pick % writing.len().max(1)).filter(|_| silent) {
                    let result = if fate == 13 { bad = true; Err("no space".to_owned()) } else { good_news() };
                    writing.remove(&rank);
                    told.insert(rank);
                    todo = machine.written(9, rank, id(rank), result);
                    continue;
                }
                if fate >= 14 {
                    let rank = pick as Rank % ranks;
                    // Twice, or about another image.
                    let again = fate == 14 && told.contains(&rank);
                    let about = if again { id(rank) } else { id(77) };
                    prop_assert!(machine.written(9, rank, about, good_news()).is_empty());
                    continue;
                }
                prop_assert!(!open.is_empty(), "stuck");
                let (rank, request) = open.remove(pick % open.len());
                todo = match fate {
                    10 => machine.reply(9, rank, Reply::Failed { error: "x".into(), hint: String::new() }),
                    11 => {
                        lost.insert(rank);
                        writing.remove(&rank);
                        open.retain(|(other, _)| *other != rank);
                        machine.lost(9, rank, "ended")
                    }
                    _ => {
                        if matches!(request, Request::Save(_)) && rank.is_multiple_of(2) {
                            writing.insert(rank);
                        }
                        machine.reply(9, rank, good_reply(rank, &request))
                    }
                };
            }
            prop_assert!(writing.is_empty());
            prop_assert!(!frozen);
            let expected: BTreeSet<Rank> = suspended.difference(&lost).copied().collect();
            prop_assert!(expected.is_subset(&resumed));
            if let Some(Ok(outcome)) = finished {
                prop_assert_eq!(outcome.saved.len() as u32, ranks);
                prop_assert!(!bad && outcome.saved.values().all(|saved| saved.bytes == 10));
                prop_assert_eq!(snapshots, 1);
            }
        }
    }
}
