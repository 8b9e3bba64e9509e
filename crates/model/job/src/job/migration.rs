//! A migration of one rank: carries out what the machine of `mend-coordination` wants, and tells it what becomes of the rank's copy on
//! the target.

use super::Job;
use crate::event::{Asker, Effect, Outcome, StdinEffect};
use crate::operation::Operation;
use crate::safeguard::Safeguard;
use mend_coordination::failure::{Failure, TargetTrouble, Trouble};
use mend_coordination::migration::{self, Migration};
use mend_journal::event::Code;
use mend_messages::control::MigrationDone;
use mend_messages::daemon::{RestoreSource, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};

/// Longest time the image of one rank may take to another node, microseconds.
const MAX_STREAM_US: u64 = 3_600_000_000;

impl Job {
    pub(crate) fn begin_migration(&mut self, rank: Rank, to: Option<&str>, asker: Asker) {
        let target = self.roster.move_target(rank, to);
        self.note_migration(rank, target.as_ref().ok().copied());
        match target {
            Ok(target) => {
                let from = self.roster.ranks[rank as usize].node;
                let (machine, actions) = Migration::start(rank, self.roster.all_living());
                self.operation = Some(Operation::Migration { machine, from, target, address: None, begun: false, asker });
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
            let Some(Operation::Migration { machine, target, address, begun, .. }) = &mut self.operation else { break };
            let (rank, target) = (machine.rank(), *target);
            match action {
                migration::Action::Ask { rank, request } => step.push((rank, request)),
                migration::Action::Freeze => {
                    self.pmi.freeze();
                    self.effect(Effect::Stdin(StdinEffect::Freeze));
                }
                migration::Action::Stream => {
                    *begun = true;
                    self.roster.ranks[rank as usize].open = false;
                    let token = self.tokens.draw();
                    let stdin = self.stdin && rank == 0;
                    let address = self.roster.nodes[target as usize].setup.address;
                    let order = ToDaemon::Restore { rank, source: RestoreSource::Transfer { token }, image: None, stdin };
                    self.send(target, order);
                    let seq = self.new_seq(rank, MAX_STREAM_US);
                    self.send_to_rank(rank, ToDaemon::SaveTo { seq, rank, address, token });
                }
                migration::Action::Commit => {
                    let address = address.take();
                    self.note_moving(rank, target);
                    let source = self.roster.ranks[rank as usize].node;
                    if self.keeps(Safeguard::SourceGoes) {
                        self.send(source, ToDaemon::Discard { rank });
                    }
                    self.input_left_on = Some(source).filter(|_| rank == 0);
                    let state = &mut self.roster.ranks[rank as usize];
                    (state.node, state.address) = (target, address);
                    self.reopen(rank);
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

    fn reopen(&mut self, rank: Rank) {
        let state = &mut self.roster.ranks[rank as usize];
        state.open = true;
        state.generation += 1;
        self.publish_map();
    }

    fn finish_migration(&mut self, result: Result<migration::Outcome, Failure>) {
        let Some(Operation::Migration { machine, from, target, asker, .. }) = self.operation.take() else { return };
        self.note_migrated(machine.rank(), Some(from), result.as_ref());
        let name = |node: NodeIndex| self.roster.nodes[node as usize].setup.name.clone();
        let outcome = match result {
            Ok(outcome) => Outcome::Migrated(MigrationDone {
                rank: machine.rank(),
                from: name(from),
                to: name(target),
                bytes: outcome.bytes,
                phases: outcome.phases,
                stopped_us: outcome.stopped_us,
            }),
            Err(failure) => Outcome::Failed(failure),
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
