//! One migration of one rank, as a typed state machine. The other ranks are never stopped. Frozen: the rank is stopped, streamed, resumed.
//! Live: it is streamed while it runs, round by round, then stopped for what changed last.
//!
//! ```text
//!                       frozen ┌─ [Waiting] ──┐
//! Inspecting ─► Comparing ─────┤              ▼
//!     │             │     live └► Precopying ─► Suspending ─► Moving ─► Connecting ─► Resuming ─► Done(Ok)
//!     │             │                  │            │            │          │
//!     │             │                  │            └────────────┴──────────┴──failure──► Undoing ─► Done(Err): the rank goes on where it was
//!     │             │                  └─failure─► Withdrawing ─► Done(Err): nothing was stopped
//!     └─obstacle────┴─difference─► Done(Err): nothing was stopped, nothing was sent
//! ```
//! Where files differ, the rank is inspected some times more before that counts: it, or another rank, may have closed and removed them meanwhile.
//!
//! Several ranks may be copied at once, but one at a time stands still: a migration that is held waits for its turn to stop its rank, in
//! `Waiting`, or in `Precopying`, which goes on meanwhile. The caller holds it ([`Migration::hold`]) and lets it go.
//!
//! `Precopying` has the target's restorer wait with what it has been sent; each of the agent's words decides whether it goes on
//! (`mend_policy::precopy`). `Moving` streams the image, or the rest of it, from the parked source into the target's restorer. The source is discarded only when the
//! target is complete *and* its fabric listens (end of `Connecting`); before that any failure discards the target and
//! resumes the source. Invariant: at no time can both copies run, and one always can.
//! Faults assumed: target dies, refuses, runs out of memory; source's save fails; ranks end; answers come out of turn.

mod contract;
mod told;

pub use contract::{Action, Manner, Outcome};

use crate::failure::{Failure, Gone, Refusal, obstacles};
use mend_messages::agent::{Reply, Request, Round, SaveOrder, SaveTarget, Unasked};
use mend_messages::control::{MoveMode, Phases, StopReason};
use mend_messages::job::Rank;
use mend_policy::precopy::{Precopy, choose};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A rank is inspected so often more where files differ. Ranks that share files may remove and make them all the time.
const MOST_INSPECTED_AGAIN: u32 = 4;
/// An agent that copies speaks at least every second, and counts as gone after so many microseconds without a word.
const SILENCE_US: u64 = 60_000_000;
/// A source that failed waits so many microseconds for what its target says: to the source a target that failed is a connection that broke.
const TARGET_WORD_US: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Inspecting,
    Comparing,
    Waiting,
    Precopying,
    Withdrawing,
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
    /// Of the image, as it is before compression.
    bytes: u64,
    spared: u64,
    phases: Phases,
    failure: Option<Failure>,
    /// What the source said when it failed to send the image, until its target has said why, or until this time.
    source: Option<(Refusal, u64)>,
    manner: Manner,
    precopy: Option<Precopy>,
    /// When the first round began, once the agent has said so.
    precopying_us: Option<u64>,
    /// The order to copy it while it runs is not answered yet.
    begin_awaited: bool,
    /// When the agent spoke last while it copied.
    heard_us: u64,
    /// Why the rank was stopped or is to be, and since when.
    stop: Option<(StopReason, u64)>,
    /// Another migration stops its rank now.
    held: bool,
    /// Times that it was inspected once more.
    inspected_again: u32,
}

impl Migration {
    /// A migration of `rank` among `ranks` ranks, and the first actions.
    #[must_use]
    pub fn start(rank: Rank, ranks: impl IntoIterator<Item = Rank>, manner: Manner) -> (Self, Vec<Action>) {
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
            spared: 0,
            phases: Phases::default(),
            failure: None,
            source: None,
            manner,
            precopy: None,
            precopying_us: None,
            begin_awaited: false,
            heard_us: 0,
            stop: None,
            held: false,
            inspected_again: 0,
        };
        let first = machine.inspect();
        (machine, vec![first])
    }

    /// The rank that moves.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Holds it as long as another one stops its rank, or has it held no more. Call before anything else is told to it.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether ranks hold messages back for it now, or will in a moment: no other may.
    #[must_use]
    pub fn stops(&self) -> bool {
        matches!(self.state, State::Suspending | State::Moving | State::Connecting | State::Resuming | State::Undoing)
    }

    /// Whether it would stop its rank if it were not held.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.state == State::Waiting || self.state == State::Precopying && self.stop.is_some()
    }

    /// It is its turn, if it waits.
    pub fn take_turn(&mut self, now_us: u64) -> Vec<Action> {
        self.held = false;
        if self.waits() { self.suspend(now_us) } else { Vec::new() }
    }

    /// It cannot be, and the reason is known before the rank's agent has answered the first question, or the target the next.
    pub fn refuse(&mut self, failure: Failure) {
        if matches!(self.state, State::Inspecting | State::Comparing) {
            self.failure.get_or_insert(failure);
        }
    }

    /// Whether it waits for its target to compare what the rank needs.
    #[must_use]
    pub fn compares(&self) -> bool {
        self.state == State::Comparing
    }

    /// What it uses may be other files by now: its agent is asked once more. `None`: that was so often enough.
    pub fn inspect_again(&mut self) -> Option<Vec<Action>> {
        if self.inspected_again == MOST_INSPECTED_AGAIN || !self.compares() {
            return None;
        }
        self.inspected_again += 1;
        self.state = State::Inspecting;
        Some(vec![self.inspect()])
    }

    fn inspect(&self) -> Action {
        Action::Ask { rank: self.rank, request: Request::Inspect { ahead: None, files: true } }
    }

    /// It has another target, which has not been asked yet.
    pub fn compare_again(&mut self) -> Vec<Action> {
        if self.compares() { vec![Action::Compare] } else { Vec::new() }
    }

    /// An agent answered; the answer to `Action::Stream`'s save comes here too.
    pub fn reply(&mut self, now_us: u64, rank: Rank, reply: Reply) -> Vec<Action> {
        let moving = rank == self.rank;
        match (&self.state, reply) {
            (State::Inspecting, Reply::Inspected(inspection)) if moving => {
                if let Some(failure) = self.failure.take().or_else(|| obstacles(rank, &inspection.obstacles)) {
                    return self.finish(now_us, Err(failure));
                }
                let Manner { mut mode, bounds, rates } = self.manner;
                if mode == MoveMode::Auto && inspection.tracking.method == "off" {
                    // Somebody does not want changes to be noticed, which without help means to read all memory each time.
                    mode = MoveMode::Frozen;
                }
                let left_us = bounds.deadline_us.map(|deadline| deadline.saturating_sub(now_us));
                self.manner.mode = choose(mode, inspection.image_bytes, rates, left_us);
                self.state = State::Comparing;
                return vec![Action::Compare];
            }
            (State::Comparing, Reply::Compared(_)) if moving => {
                if let Some(failure) = self.failure.take() {
                    return self.finish(now_us, Err(failure));
                }
                if self.manner.mode != MoveMode::Live {
                    return self.suspend(now_us);
                }
                self.state = State::Precopying;
                self.precopy = Some(Precopy::new(self.manner.bounds));
                self.begin_awaited = true;
                return vec![Action::Precopy];
            }
            (State::Withdrawing, Reply::Precopying) if moving && self.begin_awaited => return self.end_precopy(),
            (State::Precopying, Reply::Precopying) if moving => {
                self.begin_awaited = false;
                self.precopying_us.get_or_insert(now_us);
                self.heard_us = now_us;
                return self.judge(now_us);
            }
            (State::Withdrawing, Reply::PrecopyEnded) if moving => drop(self.waiting.remove(&rank)),
            (State::Suspending, Reply::Suspended { us }) => {
                self.phases.suspend_us = self.phases.suspend_us.max(us);
                self.waiting.remove(&rank);
            }
            (State::Moving, Reply::Saved(saved)) if moving => {
                if let Some(failure) = self.failure.take() {
                    return self.undo(now_us, failure);
                }
                (self.bytes, self.spared) = (saved.bytes + saved.spared, saved.spared);
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

    fn suspend(&mut self, now_us: u64) -> Vec<Action> {
        if self.held {
            if self.state == State::Comparing {
                self.state = State::Waiting;
            }
            return Vec::new();
        }
        if let Some((_, since)) = &mut self.stop {
            *since = now_us;
        }
        self.started_us = now_us;
        self.state = State::Suspending;
        self.waiting = self.ranks.clone();
        let suspend = |&rank| {
            let request = if rank == self.rank { Request::Suspend } else { Request::SuspendPeer(self.rank) };
            Action::Ask { rank, request }
        };
        std::iter::once(Action::Freeze).chain(self.ranks.iter().map(suspend)).collect()
    }

    /// The agent says how far it has come with copying the rank that runs.
    pub fn round(&mut self, now_us: u64, rank: Rank, round: Round) -> Vec<Action> {
        if self.state != State::Precopying || rank != self.rank {
            return Vec::new();
        }
        let stop = self.precopy.as_mut().and_then(|precopy| precopy.round(now_us, round));
        self.heard_us = now_us;
        // It may be here before the answer that tells of the first round.
        self.precopying_us.get_or_insert(now_us.saturating_sub(round.us));
        self.stop_if(now_us, stop)
    }

    /// Time passed, or the wish for haste came: the rank is stopped if it must be.
    pub fn judge(&mut self, now_us: u64) -> Vec<Action> {
        if self.source.as_ref().is_some_and(|(_, due_us)| now_us >= *due_us) {
            return self.source_failed(now_us, None);
        }
        if self.state != State::Precopying || self.precopying_us.is_none() {
            return Vec::new();
        }
        if now_us.saturating_sub(self.heard_us) >= SILENCE_US {
            let why = Refusal::Unasked(Unasked::Silent);
            return self.withdraw(now_us, Failure::Refused { rank: self.rank, why });
        }
        let stop = self.precopy.as_ref().and_then(|precopy| precopy.judge(now_us));
        self.stop_if(now_us, stop)
    }

    fn stop_if(&mut self, now_us: u64, stop: Option<StopReason>) -> Vec<Action> {
        let Some(reason) = stop else { return Vec::new() };
        self.stop = Some((reason, now_us));
        self.suspend(now_us)
    }

    /// When [`Migration::judge`] is wanted at the latest.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        if let Some((_, due_us)) = self.source {
            return Some(due_us);
        }
        let precopy = self.precopy.as_ref().filter(|_| self.state == State::Precopying && self.precopying_us.is_some())?;
        let silent_us = self.heard_us.saturating_add(SILENCE_US);
        Some(precopy.due_us().map_or(silent_us, |due| due.min(silent_us)))
    }

    /// Somebody wants the rank stopped now. A frozen migration is as fast as it can be.
    pub fn hurry(&mut self, now_us: u64) -> Vec<Action> {
        if let Some(precopy) = &mut self.precopy {
            precopy.hurry();
        } else if matches!(self.state, State::Inspecting | State::Comparing) && self.manner.mode.storage().is_none() {
            self.manner.mode = MoveMode::Frozen;
        }
        self.judge(now_us)
    }

    /// From now on the rank is to run on its target by then, as far as that can be.
    pub fn set_deadline(&mut self, now_us: u64, deadline_us: Option<u64>) -> Vec<Action> {
        self.manner.bounds.deadline_us = deadline_us;
        if let Some(precopy) = &mut self.precopy {
            precopy.set_deadline(deadline_us);
        }
        self.judge(now_us)
    }

    /// Somebody wants the rank to go on where it is. `None`: it is too late, it runs on the target or will in a moment.
    pub fn cancel(&mut self, now_us: u64) -> Option<Vec<Action>> {
        let failure = Failure::Cancelled { rank: self.rank };
        match self.state {
            State::Resuming | State::Done => None,
            State::Inspecting => {
                self.failure.get_or_insert(failure);
                Some(Vec::new())
            }
            State::Comparing | State::Waiting => Some(self.finish(now_us, Err(failure))),
            State::Undoing | State::Withdrawing => Some(Vec::new()),
            // A whole image may be ahead, for which the rank would stand still.
            State::Moving if self.saved_us.is_none() && self.source.is_none() => {
                let breaks = self.failure.is_none();
                self.failure.get_or_insert(failure);
                Some(if breaks { vec![Action::Break] } else { Vec::new() })
            }
            _ => Some(self.target_failed(now_us, failure)),
        }
    }

    /// The agent copies no more: the target or the way to it is gone.
    pub fn precopy_failed(&mut self, now_us: u64, rank: Rank, why: Refusal) -> Vec<Action> {
        if rank != self.rank {
            return Vec::new();
        }
        match self.state {
            State::Precopying => self.withdraw(now_us, Failure::Refused { rank, why }),
            // The save into it will say the same.
            _ => Vec::new(),
        }
    }

    /// Nothing was stopped yet: the agent forgets what it has begun, and then the target what it has, which may say more until then.
    fn withdraw(&mut self, now_us: u64, failure: Failure) -> Vec<Action> {
        self.failure = Some(failure);
        self.state = State::Withdrawing;
        self.waiting.clear();
        if !self.ranks.contains(&self.rank) {
            return self.advance(now_us);
        }
        self.waiting.insert(self.rank);
        // The agent may not have heard yet that it is to begin: what it ends then would begin afterwards.
        if self.begin_awaited { Vec::new() } else { self.end_precopy() }
    }

    fn end_precopy(&mut self) -> Vec<Action> {
        self.begin_awaited = false;
        vec![Action::Ask { rank: self.rank, request: Request::EndPrecopy }]
    }

    fn refused(&mut self, now_us: u64, rank: Rank, why: Refusal) -> Vec<Action> {
        let moving = rank == self.rank;
        match self.state {
            State::Inspecting | State::Comparing if moving => return self.finish(now_us, Err(Failure::Refused { rank, why })),
            State::Precopying if moving => {
                self.begin_awaited = false;
                return self.withdraw(now_us, Failure::Refused { rank, why });
            }
            State::Withdrawing if moving && self.begin_awaited => return self.end_precopy(),
            State::Withdrawing => {
                self.waiting.remove(&rank);
                let ends = moving && matches!(why, Refusal::Unasked(Unasked::Left | Unasked::Ended));
                if ends && matches!(self.failure, Some(Failure::NotRebuilt { .. })) {
                    // That is why its target had not all of it.
                    self.failure = Some(Failure::Refused { rank, why });
                }
            }
            State::Suspending => {
                self.failure.get_or_insert(Failure::Refused { rank, why });
                self.waiting.remove(&rank);
            }
            State::Moving if moving => {
                let target = self.failure.take();
                let waits = target.is_none() && self.restored_us.is_none() && matches!(why, Refusal::Told { .. });
                self.source = Some((why, now_us.saturating_add(TARGET_WORD_US)));
                return if waits { Vec::new() } else { self.source_failed(now_us, target) };
            }
            State::Resuming | State::Undoing => drop(self.waiting.remove(&rank)),
            _ => return Vec::new(),
        }
        self.advance(now_us)
    }

    /// The source could not send the image. `target`: what its target has said of it.
    fn source_failed(&mut self, now_us: u64, target: Option<Failure>) -> Vec<Action> {
        let (Some((why, _)), rank) = (self.source.take(), self.rank) else { return Vec::new() };
        let failure = match target {
            Some(cancelled @ Failure::Cancelled { .. }) => cancelled,
            Some(target) => Failure::BothEnds { target: Box::new(target), rank, source: why },
            None => Failure::Refused { rank, why },
        };
        self.undo(now_us, failure)
    }

    /// The target's daemon reports the rank complete, threads parked.
    pub fn restored(&mut self, now_us: u64, restart_us: u64) -> Vec<Action> {
        if self.state != State::Moving {
            return Vec::new();
        }
        if self.source.is_some() {
            return self.source_failed(now_us, None);
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
            // A target that is gone would be asked in vain.
            State::Inspecting | State::Suspending => {
                self.failure.get_or_insert(failure);
                Vec::new()
            }
            State::Moving if self.source.is_some() => self.source_failed(now_us, Some(failure)),
            // The agent is writing into a broken stream and can do nothing else before it notices.
            State::Moving if self.saved_us.is_none() => {
                self.failure.get_or_insert(failure);
                Vec::new()
            }
            State::Moving | State::Connecting => self.undo(now_us, failure),
            State::Precopying => self.withdraw(now_us, failure),
            State::Comparing | State::Waiting => self.finish(now_us, Err(failure)),
            State::Withdrawing => {
                // To its source a target that failed is a connection that broke.
                if matches!(self.failure, Some(Failure::Refused { why: Refusal::Told { .. }, .. })) {
                    self.failure = Some(failure);
                }
                Vec::new()
            }
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
            State::Inspecting | State::Comparing | State::Waiting if rank == self.rank => self.finish(now_us, Err(failure)),
            State::Precopying if rank == self.rank => self.withdraw(now_us, failure),
            State::Moving | State::Connecting if rank == self.rank => self.undo(now_us, failure),
            State::Withdrawing | State::Undoing if rank == self.rank => {
                // That is why its target had not all of it.
                if !matches!(self.failure, Some(Failure::Cancelled { .. })) {
                    self.failure = Some(failure);
                }
                self.advance(now_us)
            }
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
                    match self.precopy {
                        None => vec![Action::Stream],
                        Some(_) => {
                            let request = Request::Save(SaveOrder::full(SaveTarget::Begun));
                            vec![Action::Ask { rank: self.rank, request }]
                        }
                    }
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
                let precopied = self.precopied();
                let bytes = self.bytes + precopied.map_or(0, |precopied| precopied.bytes);
                let spared = self.spared + self.precopy.as_ref().map_or(0, |precopy| precopy.last().spared);
                let outcome = Outcome {
                    bytes,
                    sent_bytes: bytes.saturating_sub(spared),
                    phases: self.phases,
                    stopped_us: now_us.saturating_sub(self.started_us),
                    precopied,
                };
                self.finish(now_us, Ok(outcome))
            }
            State::Withdrawing if self.waiting.is_empty() => match self.failure.take() {
                Some(failure) => {
                    let mut actions = vec![Action::Withdraw];
                    actions.extend(self.finish(now_us, Err(failure)));
                    actions
                }
                None => Vec::new(),
            },
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
        (self.failure, self.source) = (Some(failure), None);
        self.state = State::Undoing;
        let mut actions = vec![Action::Undo];
        if self.precopy.is_some() && self.ranks.contains(&self.rank) {
            // It may not have been stopped.
            actions.extend(self.end_precopy());
        }
        actions.extend(self.ask_resume());
        if self.waiting.is_empty() {
            actions.extend(self.advance(now_us));
        }
        actions
    }

    fn finish(&mut self, _now_us: u64, result: Result<Outcome, Failure>) -> Vec<Action> {
        let thaw = !matches!(self.state, State::Inspecting | State::Comparing | State::Waiting | State::Withdrawing);
        self.state = State::Done;
        let finish = Action::Finish(result);
        if thaw { vec![Action::Thaw, finish] } else { vec![finish] }
    }
}

#[cfg(test)]
mod tests;
