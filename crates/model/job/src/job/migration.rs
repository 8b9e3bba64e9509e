//! Migrations of ranks: carries out what the machines of `mend-coordination` want, and tells them what becomes of the ranks' copies on
//! their targets. Several may be under way; one at a time stops its rank.

use super::Job;
use super::anew::{Attempt, Kind};
use crate::course::Course;
use crate::event::{Asker, Effect, Outcome};
use crate::operation::{Move, Operation};
use crate::questions::Purpose;
use crate::roster::{Coming, Process};
use crate::safeguard::Safeguard;
use mend_coordination::checkpoint::image_name;
use mend_coordination::failure::{Failure, Refusal, TargetTrouble};
use mend_coordination::migration::{self, Manner, Migration};
use mend_journal::event::Code;
use mend_messages::agent::{Request, Round};
use mend_messages::chunks::TransportWord;
use mend_messages::control::{Ask, MigrationDone, MoveMode, Storage};
use mend_messages::daemon::{RestoreSource, ToDaemon, Way};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_messages::needs::NodeNeeds;
use mend_policy::precopy::Bounds;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Longest time the image of one rank may take to another node, microseconds.
const MAX_STREAM_US: u64 = 3_600_000_000;
/// Longest time until the copying of a rank that runs begins: the two daemons meet.
const MAX_BEGIN_US: u64 = 60_000_000;

/// What is to blame if a rank does not move for this.
fn refusal_code(failure: &Failure) -> Code {
    match failure {
        Failure::NoRoom { .. } | Failure::TooLargeToFollow { .. } => Code::Memory,
        Failure::Processor { .. } => Code::Processor,
        _ => Code::Refused,
    }
}

impl Job {
    pub(crate) fn begin_migration(
        &mut self,
        rank: Rank,
        to: (Option<&str>, &[String]),
        (mode, deadline_us): (MoveMode, Option<u64>),
        asker: Asker,
    ) {
        let coming = self.coming(rank);
        let target = self.roster.move_target(rank, to, &coming);
        self.note_migration(rank, target.as_ref().ok().copied(), mode, asker);
        match target {
            Ok(target) => {
                let from = self.roster.ranks[rank as usize].node;
                let bounds = Bounds { threshold: self.moving.threshold, rounds: self.moving.rounds, deadline_us };
                let manner = Manner { mode, bounds, rates: self.rates.get(&rank).copied().or(self.program_rates) };
                let (machine, actions) = Migration::start(rank, self.roster.all_living(), manner);
                let mut course = Course::default();
                course.begin(self.now_us);
                let (named, avoid) = (to.0.is_some(), to.1.to_vec());
                let new = Move {
                    machine,
                    begun_us: self.now_us,
                    from,
                    target,
                    named,
                    avoid,
                    bytes: 0,
                    needs: Box::default(),
                    attempt: None,
                    address: None,
                    fed: false,
                    left_us: None,
                    course,
                    asker,
                };
                match &mut self.operation {
                    Some(Operation::Migration { moves }) => moves.push(new),
                    operation => *operation = Some(Operation::Migration { moves: vec![new] }),
                }
                self.do_migration(rank, actions);
            }
            Err(failure) => {
                self.note_not_migrated(rank, Code::Refused, &failure);
                self.answer(asker, Outcome::Failed(failure));
            }
        }
    }

    /// Ranks that are on their way, but for this one.
    pub(crate) fn coming(&self, but: Rank) -> Vec<Coming> {
        let coming = |one: &Move| {
            let sent = one.machine.progress().map_or(0, |progress| progress.bytes);
            Coming { rank: one.machine.rank(), target: one.target, bytes: one.bytes.saturating_sub(sent) }
        };
        self.all_moves().iter().filter(|one| one.machine.rank() != but).map(coming).collect()
    }

    /// A rank's agent has told how much memory the rank takes, and what it needs of a processor. If the node that it was to move to has too
    /// little, another one is taken, or the rank stays.
    pub(crate) fn weigh_move(&mut self, rank: Rank, bytes: u64, needs: Box<NodeNeeds>) {
        if let Some(one) = self.move_of(rank) {
            one.needs = needs;
        }
        if !self.keeps(Safeguard::RanksGoWhereTheyFit) {
            return;
        }
        let coming = self.coming(rank);
        let Some(one) = self.move_of(rank) else { return };
        one.bytes = bytes;
        let (target, named, avoid, follows) = (one.target, one.named, one.avoid.clone(), matches!(one.asker, Asker::Data(_)));
        let found = self.roster.find_room((rank, bytes), (target, named), &avoid, &coming);
        let found =
            found.and_then(|target| if follows { self.roster.fits_as_follower((rank, bytes), target, &coming) } else { Ok(target) });
        if let Err(failure) = &found {
            self.blame_for_move(rank, refusal_code(failure));
        }
        let Some(one) = self.move_of(rank) else { return };
        match found {
            Ok(target) => one.target = target,
            Err(failure) => one.machine.refuse(failure),
        }
    }

    fn all_moves(&self) -> &[Move] {
        match &self.operation {
            Some(Operation::Migration { moves }) => moves,
            _ => &[],
        }
    }

    /// The ranks that move, each with its target.
    pub(crate) fn targets(&self) -> Vec<(Rank, NodeIndex)> {
        self.all_moves().iter().map(|one| (one.machine.rank(), one.target)).collect()
    }

    /// The ranks that move.
    pub(crate) fn movers(&self) -> Vec<Rank> {
        self.all_moves().iter().map(|one| one.machine.rank()).collect()
    }

    /// Whether a rank moves.
    pub(crate) fn moves(&self, rank: Rank) -> bool {
        self.all_moves().iter().any(|one| one.machine.rank() == rank)
    }

    /// The migration of a rank.
    pub(crate) fn move_of(&mut self, rank: Rank) -> Option<&mut Move> {
        match &mut self.operation {
            Some(Operation::Migration { moves }) => moves.iter_mut().find(|one| one.machine.rank() == rank),
            _ => None,
        }
    }

    /// Tells the migration of a rank something and does what that wants; then, if no rank is being stopped any more, the next one that
    /// waits may be.
    pub(crate) fn step_move(&mut self, mover: Rank, step: impl FnOnce(&mut Migration) -> Vec<migration::Action>) {
        let others = |one: &Move| one.machine.rank() != mover && one.machine.stops();
        let held = self.all_moves().iter().any(others) && self.keeps(Safeguard::OneStopsAtATime);
        let Some(one) = self.move_of(mover) else { return };
        one.machine.hold(held);
        let actions = step(&mut one.machine);
        self.do_migration(mover, actions);
        self.let_next_stop();
    }

    fn let_next_stop(&mut self) {
        while !self.all_moves().iter().any(|one| one.machine.stops()) {
            let now_us = self.now_us;
            let Some(next) = self.all_moves().iter().find(|one| one.machine.waits()).map(|one| one.machine.rank()) else { return };
            let actions = self.move_of(next).map(|one| one.machine.take_turn(now_us));
            self.do_migration(next, actions.unwrap_or_default());
        }
    }

    fn do_migration(&mut self, mover: Rank, actions: Vec<migration::Action>) {
        self.note_move_phase(mover);
        let mut step = Vec::new();
        for action in actions {
            let stdin = self.stdin && mover == 0;
            let now_us = self.now_us;
            let Some(Move { target, attempt, address, fed, left_us, .. }) = self.move_of(mover) else { break };
            let (rank, target) = (mover, *target);
            match action {
                migration::Action::Ask { rank, request } => {
                    if matches!(request, Request::Save(_)) {
                        self.roster.ranks[rank as usize].open = false;
                    }
                    step.push((rank, request));
                }
                migration::Action::Compare => self.compare(rank),
                migration::Action::Freeze => {
                    self.worlds.freeze();
                    self.freeze_input();
                }
                migration::Action::Precopy => {
                    *fed = stdin;
                    let (seq, address, token) = self.expect_transfer(rank, target, Way::Direct, MAX_BEGIN_US);
                    self.send_to_rank(rank, ToDaemon::PrecopyTo { seq, rank, address, token });
                }
                migration::Action::Withdraw => {
                    let built = attempt.take().is_some();
                    if built && self.keeps(Safeguard::TargetGoes) {
                        self.send(target, ToDaemon::Discard { rank });
                    }
                }
                migration::Action::Stream => {
                    self.roster.ranks[rank as usize].open = false;
                    let way = self.way(rank);
                    let (seq, address, token) = self.expect_transfer(rank, target, way.clone(), MAX_STREAM_US);
                    self.send_to_rank(rank, ToDaemon::SaveTo { seq, rank, address, token, way });
                }
                migration::Action::Break => {
                    if attempt.is_some() && self.keeps(Safeguard::TargetGoes) {
                        self.send(target, ToDaemon::Discard { rank });
                    }
                }
                migration::Action::Commit => {
                    let (attempt, address, fed) = (attempt.take(), address.take(), *fed);
                    *left_us = Some(now_us);
                    self.note_moving(rank, target);
                    self.settle_move();
                    let left = self.roster.process(rank);
                    if self.keeps(Safeguard::SourceGoes) {
                        self.send(left.node, ToDaemon::Discard { rank });
                    }
                    if rank == 0 {
                        self.input_moves(left);
                    }
                    let state = &mut self.roster.ranks[rank as usize];
                    (state.node, state.attempt, state.address) = (target, attempt.unwrap_or_default(), address);
                    (state.open, state.generation) = (true, state.generation + 1);
                    self.publish_map();
                    if fed && !self.stdin && self.keeps(Safeguard::EndOfInputMoves) {
                        // It ended while the rank was copied, which the target was told before.
                        self.send_to_rank(rank, ToDaemon::Stdin { rank, bytes: Vec::new() });
                    }
                }
                migration::Action::Undo => {
                    let built = attempt.take().is_some();
                    if built {
                        self.settle_move();
                    }
                    if built && self.keeps(Safeguard::TargetGoes) {
                        self.send(target, ToDaemon::Discard { rank });
                    }
                    // Under its generation: for its peers another one is another process, to which nothing of before is under way.
                    self.roster.ranks[rank as usize].open = true;
                    self.publish_map();
                }
                migration::Action::Thaw => {
                    let effects = self.worlds.thaw();
                    self.apply(effects);
                    self.release_input();
                }
                migration::Action::Finish(result) => {
                    self.finish_migration(mover, result);
                    self.next_operation();
                }
            }
        }
        if !step.is_empty() {
            if step.iter().any(|(_, request)| matches!(request, Request::Suspend)) {
                self.tell_of_ends();
            }
            self.ask_agents(Purpose::Move(mover), vec![step]);
        }
    }

    /// One of two copies is about to run. A successor that does not know which might have the other one run, too, before the lease of the first is over.
    fn settle_move(&mut self) {
        if self.keeps(Safeguard::MovesAreDurable) {
            self.effect(Effect::MakeDurable);
        }
    }

    /// By what the image of a rank that moves goes.
    pub(crate) fn transport_of(&self, machine: &Migration) -> TransportWord {
        if machine.storage().is_some() { TransportWord::Tcp } else { self.moving.transport }
    }

    /// Where the image of a rank that moves is stored on its way.
    fn way(&mut self, rank: Rank) -> Way {
        match self.move_of(rank).and_then(|one| one.machine.storage()) {
            None => Way::Direct,
            Some(Storage::Local) => Way::Local,
            Some(Storage::Staged) => Way::Staged,
            Some(Storage::Shared) => Way::Shared(self.checkpoints.join(format!("{}.moving", image_name(rank)))),
        }
    }

    /// Has a rank built at the target, from what its source will send there: the number of that request, the target's address, the token.
    fn expect_transfer(&mut self, rank: Rank, target: NodeIndex, way: Way, patience_us: u64) -> (u64, SocketAddr, [u8; 16]) {
        let (token, attempt) = (self.tokens.draw(), self.roster.new_attempt());
        if let Some(one) = self.move_of(rank) {
            one.attempt = Some(attempt);
        }
        let stdin = self.stdin && rank == 0;
        let source = RestoreSource::Transfer { token, way };
        self.send(target, ToDaemon::Restore { rank, attempt, source, image: None, stdin, put_back: None });
        (self.new_seq(rank, Purpose::Move(rank), patience_us), self.roster.nodes[target as usize].setup.address, token)
    }

    fn finish_migration(&mut self, mover: Rank, result: Result<migration::Outcome, Failure>) {
        let Some(Operation::Migration { moves }) = &mut self.operation else { return };
        let Some(place) = moves.iter().position(|one| one.machine.rank() == mover) else { return };
        let ended = moves.remove(place);
        if moves.is_empty() {
            self.operation = None;
        }
        self.questions.forget_mover(mover);
        self.note_migrated(ended.clone(), result.as_ref());
        if let Ok(outcome) = &result {
            self.anew.completed();
            self.place_changed(&ended, outcome);
        }
        let Move { machine, begun_us, from, target, named, mut avoid, left_us, asker, .. } = ended;
        if let Some(rates) = machine.rates() {
            self.rates.insert(machine.rank(), rates);
            self.program_rates = Some(rates);
            self.effect(Effect::KeepRates { rank: machine.rank(), rates });
        }
        if let Err(failure) = &result {
            let (rank, Manner { mode, bounds, .. }) = (machine.rank(), machine.manner());
            let deadline_ms = bounds.deadline_us.map(|due_us| due_us.saturating_sub(self.now_us) / 1000);
            if let (Failure::TakesNone { node }, false, None, None) = (failure, named, &self.ending, &self.time_up) {
                // Another node will do.
                avoid.push(self.roster.node_name(*node).to_owned());
                let ask = Ask::Migrate { rank, to: None, avoid, mode, deadline_ms };
                return self.waiting.push_front((ask, asker, self.now_us));
            }
            let ask = Ask::Migrate { rank, to: named.then(|| self.roster.node_name(target).to_owned()), avoid, mode, deadline_ms };
            if self.begins_anew(Attempt { kind: Kind::Move(rank), begun_us }, (ask, asker), failure) {
                return;
            }
        }
        let name = |node: NodeIndex| self.roster.node_name(node).to_owned();
        let outcome = match result {
            Ok(outcome) => Outcome::Migrated(MigrationDone {
                rank: machine.rank(),
                from: name(from),
                to: name(target),
                bytes: outcome.bytes,
                sent_bytes: outcome.sent_bytes,
                transport: self.transport_of(&machine),
                phases: outcome.phases,
                stopped_us: outcome.stopped_us,
                precopied: outcome.precopied,
            }),
            Err(failure) => Outcome::Failed(failure),
        };
        if let (Outcome::Migrated(done), Some(left_us)) = (&outcome, left_us) {
            self.answer_satisfied(done, left_us);
        }
        self.answer(asker, outcome);
    }

    /// A rank has left its node, at this time. Who had asked for that before, and wanted it on no other one, has it.
    fn answer_satisfied(&mut self, done: &MigrationDone, left_us: u64) {
        let has_it = |(ask, _, since): &(Ask, Asker, u64)| matches!(ask, Ask::Migrate { rank, to: None, avoid, .. } if *rank == done.rank && *since < left_us && !avoid.contains(&done.to));
        let (satisfied, others) = std::mem::take(&mut self.waiting).into_iter().partition(has_it);
        self.waiting = others;
        let satisfied: VecDeque<(Ask, Asker, u64)> = satisfied;
        for (_, asker, _) in satisfied {
            self.answer(asker, Outcome::Migrated(done.clone()));
        }
    }

    /// The agent of a rank that is copied while it runs says how far it is.
    pub(crate) fn move_round(&mut self, rank: Rank, round: Round) {
        let now_us = self.now_us;
        if !self.moves(rank) {
            return;
        }
        if round.done {
            self.note_round(rank, round);
        }
        // Its target may be drained by now.
        self.knows_drained();
        self.step_move(rank, |machine| machine.round(now_us, rank, round));
        let told = self.move_of(rank).and_then(|one| Some((one.machine.progress()?, one.asker)));
        if let Some((progress, Asker::Verb(verb))) = told {
            self.effect(Effect::Answer { verb, outcome: Outcome::Moving(progress) });
        }
    }

    /// The agent of a rank copies no more.
    pub(crate) fn precopy_failed(&mut self, rank: Rank, error: String, hint: String) {
        let now_us = self.now_us;
        self.blame_for_move(rank, Code::Agent);
        self.step_move(rank, |machine| machine.precopy_failed(now_us, rank, Refusal::Told { error, hint }));
    }

    /// When time alone stops a rank that is being copied.
    pub(crate) fn move_due(&self) -> Option<u64> {
        self.all_moves().iter().filter_map(|one| one.machine.due_us()).min()
    }

    pub(crate) fn judge_moves(&mut self) {
        let now_us = self.now_us;
        for mover in self.movers() {
            if self.move_of(mover).is_some_and(|one| one.machine.due_us().is_some_and(|due| due <= now_us)) {
                self.step_move(mover, |machine| machine.judge(now_us));
            }
        }
    }

    /// Somebody wants a rank stopped that is being copied, or is to be.
    pub(crate) fn hurry_move(&mut self, rank: Rank, asker: Asker) {
        let now_us = self.now_us;
        let waiting = self.waiting.iter_mut().find_map(|(ask, ..)| match ask {
            Ask::Migrate { rank: its, mode, .. } if *its == rank => Some(mode),
            _ => None,
        });
        let waits = waiting.map(|mode| *mode = MoveMode::Frozen).is_some();
        let outcome = if self.moves(rank) {
            self.step_move(rank, |machine| machine.hurry(now_us));
            Outcome::Hurried
        } else if waits {
            Outcome::Hurried
        } else {
            Outcome::Failed(Failure::NotMoving { rank })
        };
        self.answer(asker, outcome);
    }

    /// Somebody wants a rank to stay where it is.
    pub(crate) fn cancel_move(&mut self, rank: Rank, asker: Asker) {
        let now_us = self.now_us;
        let of_rank = |(ask, ..): &(Ask, Asker, u64)| matches!(ask, Ask::Migrate { rank: its, .. } if *its == rank);
        let mut cancelled = false;
        if self.moves(rank) {
            self.step_move(rank, |machine| {
                let actions = machine.cancel(now_us);
                cancelled = actions.is_some();
                actions.unwrap_or_default()
            });
        } else if let Some((_, waiting, _)) = self.waiting.iter().position(of_rank).and_then(|place| self.waiting.remove(place)) {
            self.answer(waiting, Outcome::Failed(Failure::Cancelled { rank }));
            cancelled = true;
        }
        self.answer(asker, if cancelled { Outcome::CancelledMove } else { Outcome::Failed(Failure::NotMoving { rank }) });
    }

    /// The migration whose rank this process is to be.
    fn move_into(&mut self, process: Process) -> Option<&mut Move> {
        let checks = self.keeps(Safeguard::EarlierProcessesAreIgnored);
        let is_it = |one: &&mut Move| one.target == process.node && (one.attempt == Some(process.attempt) || !checks);
        self.move_of(process.rank).filter(is_it)
    }

    pub(crate) fn target_restored(&mut self, process: Process, restart_us: u64) {
        let now_us = self.now_us;
        if self.move_into(process).is_some() {
            self.step_move(process.rank, |machine| machine.restored(now_us, restart_us));
        }
    }

    pub(crate) fn target_fabric_up(&mut self, process: Process, listener: FabricAddress) {
        let now_us = self.now_us;
        if let Some(one) = self.move_into(process) {
            one.address = Some(listener);
            self.step_move(process.rank, |machine| machine.fabric_up(now_us));
        }
    }

    /// The process that a rank is to go on as has failed.
    pub(crate) fn target_failed(&mut self, process: Process, why: TargetTrouble) {
        if self.move_into(process).is_some() {
            self.not_rebuilt(process.rank, process.node, why);
        }
    }

    fn not_rebuilt(&mut self, rank: Rank, node: NodeIndex, why: TargetTrouble) {
        let now_us = self.now_us;
        self.blame_for_move(rank, Code::Target);
        self.step_move(rank, |machine| machine.target_failed(now_us, Failure::NotRebuilt { rank, node, why }));
    }

    pub(crate) fn target_lost(&mut self, node: NodeIndex) {
        for mover in self.movers() {
            if self.move_of(mover).is_some_and(|one| one.target == node) {
                self.not_rebuilt(mover, node, TargetTrouble::NodeLost);
            }
        }
    }
}
