//! Operations on a running job: begins them, one at a time, and gives each what agents answer and which ranks are gone.
//!
//! Invariants: one operation at a time, but for a checkpoint in the background, beside which ranks may be inspected; whoever asked is
//! answered once.

use super::Job;
use super::leaving::DRAINED_FRESH_US;
use crate::event::{Effect, Notice, Unexplained};
use crate::operation::Operation;
use crate::questions::Purpose;
use crate::safeguard::Safeguard;
use mend_coordination::failure::{Gone, Refusal};
use mend_journal::event::Code;
use mend_messages::agent::{Reply, Unasked};
use mend_messages::control::Ask;
use mend_messages::job::Rank;

impl Job {
    /// Begins the next waiting request if nothing is under way; the one after it, too, if that came to nothing.
    pub(crate) fn next_operation(&mut self) {
        // One migration after the other may join those that are under way.
        while self.begin_next() {}
    }

    /// True if a request was taken from those that wait.
    fn begin_next(&mut self) -> bool {
        let Some((ask, _, since)) = self.waiting.front() else { return false };
        let spawns = self.spawning.comes_before(*since) || self.awaits_worlds(*since);
        let joins = matches!((ask, &self.operation), (Ask::Migrate { rank, .. }, Some(Operation::Migration { .. })) if !self.moves(*rank));
        let busy = self.operation.is_some() && !joins && self.keeps(Safeguard::OneAtATime);
        if self.ending.is_some() || busy || spawns || self.removing.is_some() {
            return false;
        }
        let (explain, remove, since) = (matches!(ask, Ask::Explain), matches!(ask, Ask::Remove { .. }), *since);
        let checkpoint = matches!(ask, Ask::Checkpoint { .. });
        let waited = matches!(ask, Ask::Migrate { to: None, .. }) && self.now_us.saturating_sub(since) >= DRAINED_FRESH_US;
        // An image of rank 0 says how much of standard input it has.
        let images_zero = checkpoint || matches!(ask, Ask::Migrate { rank: 0, .. });
        if self.saves_in_time() && !checkpoint {
            return false;
        }
        if self.background.is_some() && !explain || remove && self.upkeep_in_the_way() {
            return false;
        }
        if !self.agents_ready(since) || images_zero && self.awaits_left_input() {
            return false;
        }
        // What is known of drained nodes is as old as the request.
        if waited && !self.knows_drained() || self.first_is_judged() {
            return false;
        }
        self.tell_of_ends();
        let Some((ask, asker, asked_us)) = self.waiting.pop_front() else { return false };
        match ask {
            Ask::Checkpoint { mode } => self.begin_checkpoint(mode, asker),
            Ask::Migrate { rank, to, avoid, mode, deadline_ms } => {
                let deadline_us = deadline_ms.map(|ms| asked_us.saturating_add(ms.saturating_mul(1000)));
                self.begin_migration(rank, (to.as_deref(), &avoid), (mode, deadline_us), asker);
            }
            Ask::Explain => self.begin_explain(asker),
            Ask::Remove { numbers } => {
                self.removing = Some((asker, numbers.clone()));
                self.effect(Effect::Remove { asker, numbers });
            }
            Ask::Status | Ask::Kill | Ask::Hurry { .. } | Ask::CancelMove { .. } | Ask::NotePortable(_) => {}
        }
        true
    }

    /// An agent answered (or its time ran out).
    pub(crate) fn replied(&mut self, rank: Rank, purpose: Purpose, reply: Reply) {
        let now_us = self.now_us;
        if let Purpose::Move(mover) = purpose
            && self.is_compared(mover)
        {
            return self.compared(mover, reply);
        }
        if let (Reply::Inspected(found), true) = (&reply, self.keeps(Safeguard::ProcessorsAreCompared)) {
            self.roster.ranks[rank as usize].needs = found.needs.processor;
        }
        if let (Reply::Inspected(found), Some(tiers)) = (&reply, &mut self.tiers) {
            tiers.expect_size(rank, found.image_bytes);
        }
        if let Reply::Inspected(found) = &reply
            && purpose == Purpose::Move(rank)
        {
            self.weigh_move(rank, found.image_bytes, found.needs.clone());
        }
        self.note_reply(rank, purpose, &reply);
        match purpose {
            Purpose::Checkpoint => self.checkpoint_replied(rank, reply),
            Purpose::Move(mover) => self.step_move(mover, |machine| machine.reply(now_us, rank, reply)),
            Purpose::Explain => self.explained(rank, reply),
            Purpose::Restart => match reply {
                // It ended as soon as it went on.
                Reply::Unasked(Unasked::Left) => {}
                Reply::Resumed { .. } => {
                    if let (Some(resumed), Some(phases)) = (self.resumed_at_us, &mut self.restart) {
                        phases.reconnect_us = now_us.saturating_sub(resumed);
                    }
                }
                reply => {
                    if let Some(why) = Refusal::of(reply) {
                        self.tell(Notice::GoesOnBadly { rank, why });
                    }
                }
            },
        }
    }

    /// A rank ended or is lost.
    pub(crate) fn operation_lost(&mut self, rank: Rank, how: Gone) {
        let now_us = self.now_us;
        self.questions.forget_rank(rank);
        self.blame(Code::RankEnded);
        if !self.keeps(Safeguard::LostRanksAreTold) {
            return;
        }
        if let Some(Operation::Checkpoint { machine, .. }) = &mut self.background {
            let actions = machine.lost(now_us, rank, how);
            self.do_checkpoint(actions);
        }
        match &mut self.operation {
            Some(Operation::Checkpoint { machine, .. }) => {
                let actions = machine.lost(now_us, rank, how);
                self.do_checkpoint(actions);
            }
            Some(Operation::Migration { .. }) => {
                for mover in self.movers() {
                    self.step_move(mover, |machine| machine.lost(now_us, rank, how));
                }
            }
            Some(Operation::Explain { waiting, found, .. }) => {
                if waiting.remove(&rank) {
                    found.insert(rank, Err(Unexplained::Gone(how)));
                }
                self.finish_explain();
            }
            Some(Operation::Preparing { .. } | Operation::Publishing { .. }) | None => {}
        }
    }
}
