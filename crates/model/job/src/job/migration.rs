//! A migration of one rank: carries out what the machine of `mend-coordination` wants, and tells it what becomes of the rank's copy on
//! the target.

use super::Job;
use crate::event::{Asker, Effect, Outcome, StdinEffect};
use crate::operation::Operation;
use crate::safeguard::Safeguard;
use mend_coordination::failure::{Failure, Refusal, TargetTrouble, Trouble};
use mend_coordination::migration::{self, Manner, Migration};
use mend_journal::event::Code;
use mend_messages::agent::{Request, Round};
use mend_messages::control::{Ask, MigrationDone, MoveMode};
use mend_messages::daemon::{RestoreSource, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_policy::precopy::Bounds;
use std::net::SocketAddr;

/// Longest time the image of one rank may take to another node, microseconds.
const MAX_STREAM_US: u64 = 3_600_000_000;
/// Longest time until the copying of a rank that runs begins: the two daemons meet.
const MAX_BEGIN_US: u64 = 60_000_000;

impl Job {
    pub(crate) fn begin_migration(&mut self, rank: Rank, to: Option<&str>, (mode, deadline_us): (MoveMode, Option<u64>), asker: Asker) {
        let target = self.roster.move_target(rank, to);
        self.note_migration(rank, target.as_ref().ok().copied());
        match target {
            Ok(target) => {
                let from = self.roster.ranks[rank as usize].node;
                let bounds = Bounds { threshold: self.moving.threshold, rounds: self.moving.rounds, deadline_us };
                let manner = Manner { mode, bounds, habit: self.habits.get(&rank).copied() };
                let (machine, actions) = Migration::start(rank, self.roster.all_living(), manner);
                self.operation =
                    Some(Operation::Migration { machine: Box::new(machine), from, target, address: None, begun: false, fed: false, asker });
                self.do_migration(actions);
            }
            Err(failure) => {
                self.blame(Code::Refused);
                self.note_migrated(rank, None, Err(&failure));
                self.answer(asker, Outcome::Failed(failure));
            }
        }
    }

    pub(crate) fn do_migration(&mut self, actions: Vec<migration::Action>) {
        self.note_phase();
        let mut step = Vec::new();
        for action in actions {
            let Some(Operation::Migration { machine, target, address, begun, fed, .. }) = &mut self.operation else { break };
            let (rank, target) = (machine.rank(), *target);
            let stdin = self.stdin && rank == 0;
            match action {
                migration::Action::Ask { rank, request } => {
                    if matches!(request, Request::Save(_)) {
                        self.roster.ranks[rank as usize].open = false;
                    }
                    step.push((rank, request));
                }
                migration::Action::Freeze => {
                    self.pmi.freeze();
                    self.effect(Effect::Stdin(StdinEffect::Freeze));
                }
                migration::Action::Precopy => {
                    (*begun, *fed) = (true, stdin);
                    let (seq, address, token) = self.expect_transfer(rank, target, MAX_BEGIN_US);
                    self.send_to_rank(rank, ToDaemon::PrecopyTo { seq, rank, address, token });
                }
                migration::Action::Withdraw => {
                    if self.keeps(Safeguard::TargetGoes) {
                        self.send(target, ToDaemon::Discard { rank });
                    }
                }
                migration::Action::Stream => {
                    *begun = true;
                    self.roster.ranks[rank as usize].open = false;
                    let (seq, address, token) = self.expect_transfer(rank, target, MAX_STREAM_US);
                    self.send_to_rank(rank, ToDaemon::SaveTo { seq, rank, address, token });
                }
                migration::Action::Commit => {
                    let (address, fed) = (address.take(), *fed);
                    self.note_moving(rank, target);
                    let source = self.roster.ranks[rank as usize].node;
                    if self.keeps(Safeguard::SourceGoes) {
                        self.send(source, ToDaemon::Discard { rank });
                    }
                    self.input_left_on = Some(source).filter(|_| rank == 0);
                    let state = &mut self.roster.ranks[rank as usize];
                    (state.node, state.address) = (target, address);
                    self.reopen(rank);
                    if fed && !self.stdin && self.keeps(Safeguard::EndOfInputMoves) {
                        // It ended while the rank was copied, which the target was told before.
                        self.send_to_rank(rank, ToDaemon::Stdin { rank, bytes: Vec::new() });
                    }
                }
                migration::Action::Undo => {
                    if *begun && self.keeps(Safeguard::TargetGoes) {
                        self.send(target, ToDaemon::Discard { rank });
                    }
                    let before = self.roster.ranks[rank as usize].generation;
                    self.reopen(rank);
                    self.losses.stayed(rank, before, before + 1);
                }
                migration::Action::Thaw => {
                    let effects = self.pmi.thaw();
                    self.apply(effects);
                    self.effect(Effect::Stdin(StdinEffect::Release));
                }
                migration::Action::Finish(result) => {
                    self.finish_migration(result);
                    self.next_operation();
                }
            }
        }
        if !step.is_empty() {
            self.ask_agents(vec![step]);
        }
    }

    /// Has a rank built at the target, from what its source will send there: the number of that request, the target's address, the token.
    fn expect_transfer(&mut self, rank: Rank, target: NodeIndex, patience_us: u64) -> (u64, SocketAddr, [u8; 16]) {
        let token = self.tokens.draw();
        let stdin = self.stdin && rank == 0;
        self.send(target, ToDaemon::Restore { rank, source: RestoreSource::Transfer { token }, image: None, stdin });
        (self.new_seq(rank, patience_us), self.roster.nodes[target as usize].setup.address, token)
    }

    fn reopen(&mut self, rank: Rank) {
        let state = &mut self.roster.ranks[rank as usize];
        state.open = true;
        state.generation += 1;
        self.publish_map();
    }

    fn finish_migration(&mut self, result: Result<migration::Outcome, Failure>) {
        let Some(Operation::Migration { machine, from, target, asker, .. }) = self.operation.take() else { return };
        self.note_migrated(machine.rank(), Some(from), result.as_ref());
        if let Some(habit) = machine.habit() {
            self.habits.insert(machine.rank(), habit);
        }
        let name = |node: NodeIndex| self.roster.nodes[node as usize].setup.name.clone();
        let outcome = match result {
            Ok(outcome) => Outcome::Migrated(MigrationDone {
                rank: machine.rank(),
                from: name(from),
                to: name(target),
                bytes: outcome.bytes,
                phases: outcome.phases,
                stopped_us: outcome.stopped_us,
                precopied: outcome.precopied,
            }),
            Err(failure) => Outcome::Failed(failure),
        };
        self.answer(asker, outcome);
    }

    /// The agent of a rank that is copied while it runs says how far it is.
    pub(crate) fn move_round(&mut self, rank: Rank, round: Round) {
        let now_us = self.now_us;
        let Some(Operation::Migration { machine, asker, .. }) = &mut self.operation else { return };
        let (actions, asker) = (machine.round(now_us, rank, round), *asker);
        if let (Some(progress), Asker::Verb(verb)) = (machine.progress().filter(|progress| progress.rank == rank), asker) {
            self.effect(Effect::Answer { verb, outcome: Outcome::Moving(progress) });
        }
        if round.done {
            self.note_round(rank, round);
        }
        self.do_migration(actions);
    }

    /// The agent of a rank copies no more.
    pub(crate) fn precopy_failed(&mut self, rank: Rank, error: String, hint: String) {
        let now_us = self.now_us;
        self.blame(Code::Agent);
        if let Some(Operation::Migration { machine, .. }) = &mut self.operation {
            let actions = machine.precopy_failed(now_us, rank, Refusal::Told { error, hint });
            self.do_migration(actions);
        }
    }

    /// When time alone stops a rank that is being copied.
    pub(crate) fn move_due(&self) -> Option<u64> {
        match &self.operation {
            Some(Operation::Migration { machine, .. }) => machine.due_us(),
            _ => None,
        }
    }

    pub(crate) fn judge_move(&mut self) {
        let now_us = self.now_us;
        if let Some(Operation::Migration { machine, .. }) = &mut self.operation
            && machine.due_us().is_some_and(|due| due <= now_us)
        {
            let actions = machine.judge(now_us);
            self.do_migration(actions);
        }
    }

    /// Somebody wants a rank stopped that is being copied, or is to be.
    pub(crate) fn hurry_move(&mut self, rank: Rank, asker: Asker) {
        let now_us = self.now_us;
        let waiting = self.waiting.iter_mut().find_map(|(ask, ..)| match ask {
            Ask::Migrate { rank: its, mode, .. } if *its == rank => Some(mode),
            _ => None,
        });
        let outcome = match (&mut self.operation, waiting) {
            (Some(Operation::Migration { machine, .. }), _) if machine.rank() == rank => {
                let actions = machine.hurry(now_us);
                self.do_migration(actions);
                Outcome::Hurried
            }
            (_, Some(mode)) => {
                *mode = MoveMode::Frozen;
                Outcome::Hurried
            }
            _ => Outcome::Failed(Failure::NotMoving { rank }),
        };
        self.answer(asker, outcome);
    }

    /// Somebody wants a rank to stay where it is.
    pub(crate) fn cancel_move(&mut self, rank: Rank, asker: Asker) {
        let now_us = self.now_us;
        let of_rank = |(ask, ..): &(Ask, Asker, u64)| matches!(ask, Ask::Migrate { rank: its, .. } if *its == rank);
        let outcome = match &mut self.operation {
            Some(Operation::Migration { machine, .. }) if machine.rank() == rank => match machine.cancel(now_us) {
                Some(actions) => {
                    self.do_migration(actions);
                    Outcome::CancelledMove
                }
                None => Outcome::Failed(Failure::NotMoving { rank }),
            },
            _ => match self.waiting.iter().position(of_rank).and_then(|place| self.waiting.remove(place)) {
                Some((_, waiting, _)) => {
                    self.answer(waiting, Outcome::Failed(Failure::Cancelled { rank }));
                    Outcome::CancelledMove
                }
                None => Outcome::Failed(Failure::NotMoving { rank }),
            },
        };
        self.answer(asker, outcome);
    }

    /// The migration's target, if `node` is it and `rank` the one that moves there.
    fn moving_to(&mut self, node: NodeIndex, rank: Rank) -> Option<&mut Migration> {
        match &mut self.operation {
            Some(Operation::Migration { machine, target, .. }) if *target == node && machine.rank() == rank => Some(machine),
            _ => None,
        }
    }

    pub(crate) fn target_restored(&mut self, node: NodeIndex, rank: Rank, restart_us: u64) {
        let now_us = self.now_us;
        let actions = self.moving_to(node, rank).map(|machine| machine.restored(now_us, restart_us));
        self.do_migration(actions.unwrap_or_default());
    }

    pub(crate) fn target_fabric_up(&mut self, node: NodeIndex, rank: Rank, listener: FabricAddress) {
        let now_us = self.now_us;
        let actions = match &mut self.operation {
            Some(Operation::Migration { machine, target, address, .. }) if *target == node && machine.rank() == rank => {
                *address = Some(listener);
                machine.fabric_up(now_us)
            }
            _ => Vec::new(),
        };
        self.do_migration(actions);
    }

    pub(crate) fn target_refused(&mut self, node: NodeIndex, rank: Rank, trouble: Trouble) {
        self.target_failed(node, rank, TargetTrouble::Told(trouble));
    }

    pub(crate) fn target_ended(&mut self, node: NodeIndex, rank: Rank) {
        self.target_failed(node, rank, TargetTrouble::Ended);
    }

    fn target_failed(&mut self, node: NodeIndex, rank: Rank, why: TargetTrouble) {
        let now_us = self.now_us;
        let failure = Failure::NotRebuilt { rank, node, why };
        self.blame(Code::Target);
        let actions = self.moving_to(node, rank).map(|machine| machine.target_failed(now_us, failure));
        self.do_migration(actions.unwrap_or_default());
    }

    pub(crate) fn target_lost(&mut self, node: NodeIndex) {
        let Some(Operation::Migration { machine, target, .. }) = &self.operation else { return };
        if *target == node {
            self.target_failed(node, machine.rank(), TargetTrouble::NodeLost);
        }
    }
}
