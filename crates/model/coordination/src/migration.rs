//! One migration of one rank, as a typed state machine. Frozen: stop, stream, resume; the other ranks are never stopped.
//!
//! ```text
//! Inspecting ─► Suspending ─► Moving ─► Connecting ─► Resuming ─► Done(Ok)
//!     │             │            │          │
//!     │             └────────────┴──────────┴──failure──► Undoing ─► Done(Err): the rank goes on where it was
//!     └─obstacle─► Done(Err): nothing was stopped
//! ```
//! `Moving` streams the image from the parked source into the target's restorer. The source is discarded only when the
//! target is complete *and* its fabric listens (end of `Connecting`); before that any failure discards the target and
//! resumes the source. Invariant: at no time can both copies run, and one always can.
//! Faults assumed: target dies, refuses, runs out of memory; source's save fails; ranks end; answers come out of turn.

use crate::failure::{Failure, Gone, Refusal, obstacles};
use mend_messages::agent::{Reply, Request};
use mend_messages::control::Phases;
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What the caller has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the rank's agent where the rank is *now placed*.
    Ask {
        /// The rank whose agent is asked.
        rank: Rank,
        /// What the agent is to do.
        request: Request,
    },
    /// Stop answering PMI requests and feeding standard input, before any later `Ask` is sent.
    Freeze,
    /// Tell the target's daemon to build the rank from a transfer, and the source's to save into it.
    Stream,
    /// Kill the source copy and place the rank on the target; publish the map with a new generation, open.
    Commit,
    /// Kill what there is on the target; publish the map with a new generation and the old place, open.
    Undo,
    /// Answer and feed again.
    Thaw,
    /// It is over.
    Finish(Result<Outcome, Failure>),
}

/// A successful migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of the image.
    pub bytes: u64,
    /// The five phases.
    pub phases: Phases,
    /// From the request to suspend until the rank ran again, microseconds.
    pub stopped_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Inspecting,
    Suspending,
    Moving,
    Connecting,
    Resuming,
    Undoing,
    Done,
}

/// A migration under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    rank: Rank,
    state: State,
    ranks: BTreeSet<Rank>,
    waiting: BTreeSet<Rank>,
    suspended_us: u64,
    saved_us: Option<u64>,
    restored_us: Option<u64>,
    fabric_up: bool,
    started_us: u64,
    bytes: u64,
    phases: Phases,
    failure: Option<Failure>,
}

impl Migration {
    /// A migration of `rank` among `ranks` ranks, and the first actions.
    #[must_use]
    pub fn start(rank: Rank, ranks: impl IntoIterator<Item = Rank>) -> (Self, Vec<Action>) {
        let machine = Self {
            rank,
            state: State::Inspecting,
            ranks: ranks.into_iter().collect(),
            waiting: [rank].into(),
            suspended_us: 0,
            saved_us: None,
            restored_us: None,
            fabric_up: false,
            started_us: 0,
            bytes: 0,
            phases: Phases::default(),
            failure: None,
        };
        (machine, vec![Action::Ask { rank, request: Request::Inspect { ahead: None } }])
    }

    /// The rank that moves.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Name of the phase that it is in; `None` when it is over.
    #[must_use]
    pub fn phase(&self) -> Option<&'static str> {
        Some(match self.state {
            State::Inspecting => "inspect",
            State::Suspending => "suspend",
            State::Moving => "move",
            State::Connecting => "connect",
            State::Resuming => "resume",
            State::Undoing => "undo",
            State::Done => return None,
        })
    }

    /// An agent answered; the answer to `Action::Stream`'s save comes here too.
    pub fn reply(&mut self, now_us: u64, rank: Rank, reply: Reply) -> Vec<Action> {
        let moving = rank == self.rank;
        match (&self.state, reply) {
            (State::Inspecting, Reply::Inspected(inspection)) if moving => {
                if let Some(failure) = obstacles(rank, &inspection.obstacles) {
                    return self.finish(now_us, Err(failure));
                }
                self.started_us = now_us;
                self.state = State::Suspending;
                self.waiting = self.ranks.clone();
                let suspend = |&rank| {
                    let request = if rank == self.rank { Request::Suspend } else { Request::SuspendPeer(self.rank) };
                    Action::Ask { rank, request }
                };
                return std::iter::once(Action::Freeze).chain(self.ranks.iter().map(suspend)).collect();
            }
            (State::Suspending, Reply::Suspended { us }) => {
                self.phases.suspend_us = self.phases.suspend_us.max(us);
                self.waiting.remove(&rank);
            }
            (State::Moving, Reply::Saved(saved)) if moving => {
                if let Some(failure) = self.failure.take() {
                    return self.undo(now_us, failure);
                }
                self.bytes = saved.bytes;
                self.phases.write_us = saved.park_us + saved.write_us;
                self.saved_us = Some(now_us);
            }
            (State::Resuming | State::Undoing, Reply::Resumed { .. }) => {
                self.waiting.remove(&rank);
            }
            (_, reply) => match Refusal::of(reply) {
                Some(why) => return self.refused(now_us, rank, why),
                None => return Vec::new(),
            },
        }
        self.advance(now_us)
    }

    fn refused(&mut self, now_us: u64, rank: Rank, why: Refusal) -> Vec<Action> {
        let moving = rank == self.rank;
        match self.state {
            State::Inspecting if moving => return self.finish(now_us, Err(Failure::Refused { rank, why })),
            State::Suspending => {
                self.failure.get_or_insert(Failure::Refused { rank, why });
                self.waiting.remove(&rank);
            }
            State::Moving if moving => {
                let failure = match self.failure.take() {
                    Some(target) => Failure::BothEnds { target: Box::new(target), rank, source: why },
                    None => Failure::Refused { rank, why },
                };
                return self.undo(now_us, failure);
            }
            State::Resuming | State::Undoing => drop(self.waiting.remove(&rank)),
            _ => return Vec::new(),
        }
        self.advance(now_us)
    }

    /// The target's daemon reports the rank complete, threads parked.
    pub fn restored(&mut self, now_us: u64, restart_us: u64) -> Vec<Action> {
        if self.state != State::Moving {
            return Vec::new();
        }
        self.phases.restart_us = restart_us;
        self.restored_us = Some(now_us);
        self.advance(now_us)
    }

    /// The restored rank's fabric listens on the target.
    pub fn fabric_up(&mut self, now_us: u64) -> Vec<Action> {
        self.fabric_up = true;
        self.advance(now_us)
    }

    /// The target refused, or its node died.
    pub fn target_failed(&mut self, now_us: u64, failure: Failure) -> Vec<Action> {
        match self.state {
            State::Suspending => {
                self.failure.get_or_insert(failure);
                Vec::new()
            }
            // The agent is writing into a broken stream and can do nothing else before it notices.
            State::Moving if self.saved_us.is_none() => {
                self.failure.get_or_insert(failure);
                Vec::new()
            }
            State::Moving | State::Connecting => self.undo(now_us, failure),
            _ => Vec::new(),
        }
    }

    /// A rank ended, or its node did. If it is the moving rank, there is nothing to move.
    pub fn lost(&mut self, now_us: u64, rank: Rank, how: Gone) -> Vec<Action> {
        if !self.ranks.remove(&rank) {
            return Vec::new();
        }
        self.waiting.remove(&rank);
        let failure = Failure::Lost { rank, how };
        match self.state {
            State::Inspecting if rank == self.rank => self.finish(now_us, Err(failure)),
            State::Moving | State::Connecting if rank == self.rank => self.undo(now_us, failure),
            State::Suspending => {
                self.failure.get_or_insert(failure);
                self.advance(now_us)
            }
            _ => self.advance(now_us),
        }
    }

    fn advance(&mut self, now_us: u64) -> Vec<Action> {
        match self.state {
            State::Suspending if self.waiting.is_empty() => match self.failure.take() {
                Some(failure) => self.undo(now_us, failure),
                None => {
                    self.suspended_us = now_us;
                    self.state = State::Moving;
                    vec![Action::Stream]
                }
            },
            State::Moving => match (self.saved_us, self.restored_us) {
                (Some(saved), Some(restored)) => {
                    // One clock for all of them, and each moment in one phase: while the image is written it is read, too, and what of that comes
                    // after it was written is the restart's, as far as that was at work.
                    let after = restored.saturating_sub(saved);
                    self.phases.suspend_us = self.suspended_us.saturating_sub(self.started_us);
                    self.phases.write_us = saved.saturating_sub(self.suspended_us);
                    self.phases.restart_us = self.phases.restart_us.min(after);
                    self.phases.transfer_us = after - self.phases.restart_us;
                    self.state = State::Connecting;
                    self.advance(now_us)
                }
                _ => Vec::new(),
            },
            State::Connecting if self.fabric_up => {
                self.state = State::Resuming;
                let mut actions = vec![Action::Commit];
                actions.extend(self.ask_resume());
                actions
            }
            State::Resuming if self.waiting.is_empty() => {
                let connected = self.saved_us.max(self.restored_us).unwrap_or(now_us);
                self.phases.reconnect_us = now_us.saturating_sub(connected);
                let outcome = Outcome { bytes: self.bytes, phases: self.phases, stopped_us: now_us.saturating_sub(self.started_us) };
                self.finish(now_us, Ok(outcome))
            }
            State::Undoing if self.waiting.is_empty() => match self.failure.take() {
                Some(failure) => self.finish(now_us, Err(failure)),
                None => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn ask_resume(&mut self) -> Vec<Action> {
        self.waiting = self.ranks.clone();
        self.ranks.iter().map(|&rank| Action::Ask { rank, request: Request::Resume }).collect()
    }

    fn undo(&mut self, now_us: u64, failure: Failure) -> Vec<Action> {
        self.failure = Some(failure);
        self.state = State::Undoing;
        let mut actions = vec![Action::Undo];
        actions.extend(self.ask_resume());
        if self.waiting.is_empty() {
            actions.extend(self.advance(now_us));
        }
        actions
    }

    fn finish(&mut self, _now_us: u64, result: Result<Outcome, Failure>) -> Vec<Action> {
        let thaw = self.state != State::Inspecting;
        self.state = State::Done;
        let finish = Action::Finish(result);
        if thaw { vec![Action::Thaw, finish] } else { vec![finish] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::TargetTrouble;
    use mend_messages::agent::{Inspection, Saved};
    use proptest::prelude::*;

    #[derive(Debug, Clone, PartialEq)]
    enum Pending {
        Reply(Rank, Request),
        Saved,
        Restored,
        FabricUp,
    }

    fn target_trouble(rank: Rank) -> Failure {
        Failure::NotRebuilt { rank, node: 1, why: TargetTrouble::Ended }
    }

    proptest! {
        /// Whatever fails: exactly one copy of the rank runs at the end, every suspended rank is resumed once, and
        /// after `Commit` nothing is undone.
        #[test]
        fn one_copy_survives(ranks in 1u32..5, rank in 0u32..5, fates in proptest::collection::vec((0usize..64, 0u8..10), 0..60)) {
            let rank = rank % ranks;
            let (mut machine, mut todo) = Migration::start(rank, 0..ranks);
            let mut open = Vec::new();
            let (mut frozen, mut committed, mut undone, mut finished) = (false, false, false, None);
            let (mut suspended, mut resumed) = (BTreeSet::new(), BTreeSet::new());
            let mut fates = fates.into_iter();
            while finished.is_none() {
                for action in std::mem::take(&mut todo) {
                    prop_assert!(finished.is_none());
                    match action {
                        Action::Ask { rank, request } => {
                            if matches!(request, Request::Suspend | Request::SuspendPeer(_)) { suspended.insert(rank); }
                            if request == Request::Resume { prop_assert!(resumed.insert(rank)); }
                            open.push(Pending::Reply(rank, request));
                        }
                        Action::Freeze => frozen = true,
                        Action::Thaw => frozen = false,
                        Action::Stream => open.extend([Pending::Saved, Pending::Restored]),
                        Action::Commit => { prop_assert!(!undone); committed = true; }
                        Action::Undo => { prop_assert!(!committed); undone = true; }
                        Action::Finish(result) => finished = Some(result),
                    }
                }
                if finished.is_some() { break }
                prop_assert!(!open.is_empty(), "stuck in {:?}", machine);
                let (pick, fate) = fates.next().unwrap_or((0, 0));
                let bad = fate >= 8;
                let failed = Reply::Failed { error: "x".into(), hint: String::new() };
                todo = match open.remove(pick % open.len()) {
                    Pending::Reply(from, request) => {
                        let good = match request {
                            Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
                            Request::Resume => Reply::Resumed { stopped_us: 9 },
                            _ => Reply::Suspended { us: 1 },
                        };
                        machine.reply(1, from, if bad { failed } else { good })
                    }
                    Pending::Saved => machine.reply(2, rank, if bad { failed } else { Reply::Saved(Saved::default()) }),
                    Pending::Restored if bad => machine.target_failed(3, target_trouble(rank)),
                    Pending::Restored => { open.push(Pending::FabricUp); machine.restored(3, 10) }
                    Pending::FabricUp if bad => machine.target_failed(4, target_trouble(rank)),
                    Pending::FabricUp => machine.fabric_up(4),
                };
            }
            prop_assert!(!frozen);
            prop_assert_eq!(&suspended, &resumed);
            prop_assert_eq!(finished.unwrap().is_ok(), committed);
        }
    }
}
