//! What daemons say of their ranks, and what follows: who runs, where everybody is, what is printed and read, who is gone.

use super::{Job, MAP_DELAY_US};
use crate::event::{Effect, End, GoesOn, NodeLoss, Notice, StdinEffect};
use crate::phase::RankPhase;
use crate::questions::Purpose;
use crate::roster::Process;
use crate::safeguard::Safeguard;
use mend_coordination::failure::{Gone, TargetTrouble, Trouble};
use mend_coordination::pmi::{self, ClientState};
use mend_messages::agent::Request;
use mend_messages::daemon::{ExitStatus, FromDaemon, RestoreBlame, ToDaemon};
use mend_messages::health::LeaveReason;
use mend_messages::job::{NodeIndex, Rank};

impl Job {
    pub(crate) fn message(&mut self, node: NodeIndex, message: FromDaemon) {
        self.note_message(node, &message);
        let at_home = |rank: Rank, job: &Self| {
            job.roster.ranks.get(rank as usize).is_some_and(|state| state.node == node || !job.keeps(Safeguard::AtHome))
        };
        // The daemon of the rank's node may still say something of an earlier process of the rank.
        let is_present = |rank: Rank, attempt: u64, job: &Self| {
            let keeps = job.keeps(Safeguard::AtHome) && job.keeps(Safeguard::EarlierProcessesAreIgnored);
            at_home(rank, job) && (job.roster.ranks[rank as usize].attempt == attempt || !keeps)
        };
        match message {
            FromDaemon::Output { rank, stream, bytes } => {
                self.effect(Effect::Print { rank, stream, bytes });
            }
            FromDaemon::Pmi { rank, bytes } if at_home(rank, self) => {
                let effects = self.worlds.receive(rank, &bytes);
                self.apply(effects);
            }
            FromDaemon::Agent { seq, rank, reply } => self.answered(seq, rank, reply),
            FromDaemon::Written { rank, id, result } if at_home(rank, self) => self.image_written(rank, id, result),
            FromDaemon::Started { rank } if at_home(rank, self) => {
                if self.roster.ranks[rank as usize].phase == RankPhase::Starting {
                    self.roster.ranks[rank as usize].phase = RankPhase::Running;
                }
                self.spawned_rank_started(rank);
            }
            FromDaemon::AgentUp { rank, .. } | FromDaemon::Agentless { rank } if at_home(rank, self) => {
                self.roster.ranks[rank as usize].agent = true;
            }
            FromDaemon::FabricUp { rank, attempt, address } if is_present(rank, attempt, self) => {
                self.roster.ranks[rank as usize].address = Some(address);
                self.map_is_due(MAP_DELAY_US);
                self.restarted_if_complete();
                if self.map_due_us.is_some() && self.roster.ranks.iter().all(|rank| rank.address.is_some() || rank.has_ended()) {
                    self.publish_map();
                }
            }
            FromDaemon::FabricUp { rank, attempt, address } => self.target_fabric_up(Process { node, rank, attempt }, address),
            FromDaemon::Restored { rank, attempt, restart_us, .. } if is_present(rank, attempt, self) => {
                if self.roster.ranks[rank as usize].phase == RankPhase::Restoring(false) {
                    let phases = self.restart.get_or_insert_default();
                    phases.restart_us = phases.restart_us.max(restart_us);
                    self.roster.ranks[rank as usize].phase = RankPhase::Restoring(true);
                    self.roster.ranks[rank as usize].agent = true;
                    self.restarted_if_complete();
                }
            }
            FromDaemon::Restored { rank, attempt, restart_us, .. } => self.target_restored(Process { node, rank, attempt }, restart_us),
            FromDaemon::RestoreFailed { rank, attempt, error, hint, blame } if is_present(rank, attempt, self) => {
                self.end(End::NotRestored {
                    rank,
                    node,
                    why: TargetTrouble::Told(Trouble { error, hint }),
                    image: blame == RestoreBlame::Image,
                });
            }
            FromDaemon::RestoreFailed { rank, attempt, error, hint, blame } => {
                let (files, trouble) = (blame == RestoreBlame::Files, Trouble { error, hint });
                let why = if files { TargetTrouble::Files(trouble) } else { TargetTrouble::Told(trouble) };
                self.target_failed(Process { node, rank, attempt }, why);
            }
            FromDaemon::StartFailed { rank, attempt, error, hint, code } => {
                let is_world = is_present(rank, attempt, self) && self.spawned_rank_not_started(rank, &error, &hint);
                if is_world || self.roster.living(rank).is_none() {
                    return;
                }
                self.end(End::NotStarted { rank, node, why: Trouble { error, hint }, code });
            }
            FromDaemon::Exited { rank, attempt, status } if is_present(rank, attempt, self) => {
                if matches!(status, ExitStatus::Code(_)) && self.interrupted.is_none() && self.ending.is_none() {
                    self.effect(Effect::OutputEnds { rank });
                }
                self.exited(rank, status);
            }
            FromDaemon::Exited { rank, attempt, status } => {
                self.target_failed(Process { node, rank, attempt }, TargetTrouble::Ended);
                self.source_ended(Process { node, rank, attempt }, status);
            }
            FromDaemon::Refused { error } => self.end(End::Refused { node, error }),
            FromDaemon::StdinLeft { rank, attempt, bytes } => self.input_left(Process { node, rank, attempt }, bytes),
            FromDaemon::StdinTaken { .. } => self.effect(Effect::Stdin(StdinEffect::Taken)),
            FromDaemon::StdinHeld { again, begun, .. } => self.input_held(again, begun),
            FromDaemon::FilesPut(result) => self.files_put(node, result),
            FromDaemon::MessagesLost { rank, peer, why } if at_home(rank, self) => self.messages_lost(rank, peer, why),
            FromDaemon::Round { rank, round } if at_home(rank, self) => self.move_round(rank, round),
            FromDaemon::PrecopyFailed { rank, error, hint } if at_home(rank, self) => self.precopy_failed(rank, error, hint),
            FromDaemon::Tier(report) => self.tier_report(node, report),
            FromDaemon::Pong(room) => {
                if let Some(node) = self.roster.nodes.get_mut(node as usize) {
                    node.room = Some(room);
                }
            }
            FromDaemon::Progress(all) => self.progressed(node, &all),
            // For whoever looks at storage, who tells the machine what it has to know of it.
            FromDaemon::Traffic(_) => {}
            FromDaemon::Spaces(told) => self.note_spaces(node, told),
            FromDaemon::TimeUp { signal } => self.time_is_up(signal),
            FromDaemon::Health(health) => self.leave(node, LeaveReason::Health, mend_policy::health::leaving(&health)),
            FromDaemon::Ready { processor, .. } => {
                if let Some(node) = self.roster.nodes.get_mut(node as usize) {
                    node.processor = Some(*processor);
                }
                self.place_when_known();
            }
            FromDaemon::Resumed { .. }
            | FromDaemon::Succeeded { .. }
            | FromDaemon::Voted { .. }
            | FromDaemon::Confirmed { .. }
            | FromDaemon::LeaseOver { .. }
            | FromDaemon::Seen(_)
            | FromDaemon::Left
            | FromDaemon::Paused { .. }
            | FromDaemon::Report { .. }
            | FromDaemon::FabricInUse { .. }
            | FromDaemon::Pmi { .. }
            | FromDaemon::MessagesLost { .. }
            | FromDaemon::Round { .. }
            | FromDaemon::PrecopyFailed { .. }
            | FromDaemon::Written { .. }
            | FromDaemon::Started { .. }
            | FromDaemon::AgentUp { .. }
            | FromDaemon::Agentless { .. } => {}
        }
    }

    /// Carries out what the PMI server wants.
    pub(crate) fn apply(&mut self, effects: Vec<pmi::Effect>) {
        for effect in effects {
            match effect {
                pmi::Effect::Reply { rank, line } => self.send_to_rank(rank, ToDaemon::Pmi { rank, bytes: line.into_bytes() }),
                pmi::Effect::Abort { rank, code } => {
                    self.tell(Notice::Aborted { rank, code });
                    self.note_abort(rank, code);
                    self.end(End::Code(code));
                }
                pmi::Effect::Spawn { rank, request } => self.spawn_asked(rank, request),
                pmi::Effect::Violation { rank, text } => self.tell(Notice::PmiViolation { rank, text }),
            }
        }
    }

    /// A map is published so much later at the latest.
    pub(crate) fn map_is_due(&mut self, delay_us: u64) {
        let due_us = self.now_us.saturating_add(delay_us);
        self.map_due_us = Some(self.map_due_us.map_or(due_us, |due| due.min(due_us)));
    }

    /// Tells all nodes where every rank is.
    pub(crate) fn publish_map(&mut self) {
        self.map_version += 1;
        self.map_due_us = None;
        let map = self.roster.map(self.map_version);
        self.send_to_all(&ToDaemon::Map(map));
    }

    /// Lets the ranks of a restart run once all of them are complete.
    fn restarted_if_complete(&mut self) {
        let complete =
            |rank: &crate::roster::RankState| rank.phase == RankPhase::Restoring(true) && rank.address.is_some() || rank.has_ended();
        let enough = match self.keeps(Safeguard::AllOrNone) {
            true => self.roster.ranks.iter().all(complete),
            false => self.roster.ranks.iter().any(complete),
        };
        if !enough || self.ending.is_some() {
            return;
        }
        self.publish_map();
        self.resumed_at_us = Some(self.now_us);
        let living = self.roster.all_living();
        let ranks = living.len() as Rank;
        for &rank in &living {
            self.roster.ranks[rank as usize].phase = RankPhase::Running;
        }
        self.ask_agents(Purpose::Restart, vec![living.into_iter().map(|rank| (rank, Request::Resume)).collect()]);
        let effects = self.worlds.thaw();
        self.apply(effects);
        if let (Some(restoring), Some(phases)) = (self.restoring.take(), &self.restart) {
            let read_us = restoring.reads.read_us.saturating_add(phases.restart_us);
            self.restarts.add(mend_policy::restarts::Restart { read_us, ..restoring.reads });
            self.periodic.restarted(&self.restarts);
            self.effect(Effect::KeepRestarts(self.restarts.clone()));
        }
        self.effect(Effect::Stdin(StdinEffect::Read));
        self.note_resumed();
        self.tell(Notice::Restored { ranks });
    }

    pub(crate) fn exited(&mut self, rank: Rank, status: ExitStatus) {
        if matches!(self.roster.ranks[rank as usize].phase, RankPhase::Exited(_)) {
            return;
        }
        let was = std::mem::replace(&mut self.roster.ranks[rank as usize].phase, RankPhase::Exited(status));
        if let (RankPhase::Restoring(_), ExitStatus::Code(_)) = (was, status) {
            // It cannot have run: the others would wait for it for ever.
            let node = self.roster.ranks[rank as usize].node;
            return self.end(End::NotRestored { rank, node, why: TargetTrouble::Ended, image: false });
        }
        // One that is being restored: the others wait for it.
        if !matches!(was, RankPhase::Restoring(_)) && self.spawned_rank_ended_early(rank, status) {
            return;
        }
        self.rank_ended(rank);
        self.operation_lost(rank, Gone::Ended);
        let code = match status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => 128 + signal,
        };
        // The others would wait for its messages for ever.
        let fatal = matches!(status, ExitStatus::Signal(_)) || (code != 0 && self.worlds.client(rank) == ClientState::Active);
        let first = code != 0 && self.failed.is_none_or(|(first, _)| rank < first);
        if first {
            self.failed = Some((rank, code));
        }
        if let (ExitStatus::Code(code), None, None, true) = (status, &self.ending, self.interrupted, first || fatal) {
            let node = self.roster.ranks[rank as usize].node;
            self.tell(Notice::RankExited { rank, node, code });
        }
        if self.ending.is_some() {
            return;
        }
        if fatal {
            self.blame_exit(rank, status);
        }
        if matches!(status, ExitStatus::Signal(_)) && self.time_up.is_some() {
            // Some batch systems send the signal to every process.
            return self.end_in_time();
        }
        if let (ExitStatus::Signal(signal), None) = (status, self.interrupted) {
            let (node, newest) = (self.roster.ranks[rank as usize].node, self.newest_left());
            self.tell(Notice::RankKilled { rank, node, signal, newest });
        }
        let all_ended = self.roster.ranks.iter().all(|rank| matches!(rank.phase, RankPhase::Exited(_)));
        match (self.interrupted, status) {
            (Some((signal, _)), _) if all_ended => self.end(End::Code(128 + signal)),
            (None, ExitStatus::Signal(signal)) => self.end(End::RankKilled { rank, signal }),
            (None, ExitStatus::Code(code)) if fatal => self.end(End::Code(code)),
            (None, ExitStatus::Code(_)) if all_ended => {
                // Whichever ended first, so that the same program always ends with the same code.
                let (rank, code) = self.failed.unwrap_or_default();
                self.blame_exit(rank, ExitStatus::Code(code));
                self.end(End::Code(code));
            }
            _ => {}
        }
    }

    pub(crate) fn node_lost(&mut self, index: NodeIndex, how: NodeLoss) {
        let Some(node) = self.roster.nodes.get_mut(index as usize).filter(|node| node.alive) else { return };
        node.alive = false;
        self.departures.forget(index);
        self.data_losses.node_lost(index);
        if self.ending.is_some() {
            return;
        }
        let lost = self.roster.living_on(index);
        self.note_node_lost(index, &how, &lost);
        if self.keeps(Safeguard::LostTargetsAreTold) {
            self.target_lost(index);
        }
        self.tiers_lost(index);
        let input_lost = self.left_input_lost(index);
        if lost.is_empty() && !input_lost {
            self.tell(Notice::SpareLost { node: index, how });
            self.search_lost(index);
            self.place_when_known();
            return;
        }
        for &rank in &lost {
            self.operation_lost(rank, Gone::WithItsNode);
        }
        if self.time_up.is_some() {
            // Its batch system kills what would go on.
            return self.end_in_time();
        }
        let lost = if lost.is_empty() { vec![0] } else { lost };
        let begun = !self.placing && self.searching.is_none() && self.putting.is_empty();
        let goes_on = if begun { self.goes_on() } else { GoesOn::Again };
        self.end(End::NodeLost { node: index, how, ranks: lost, goes_on });
    }
}
