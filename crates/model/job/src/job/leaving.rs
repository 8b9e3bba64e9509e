//! Ranks leave a node: because it is sick, or because the batch system drains it.
//!
//! ```text
//! Event::Leave, FromDaemon::Health ──► reasons of the node ──► ListDrained ──► Drained: a migration for each rank there
//!    those on their way to the node: refused                         ▲           │
//!    more urgent: those under way are hurried                        ▲           │ no other node: said once, the rank runs on
//!    over: those that wait stay                                      └─ a pause ◄┴ the migration failed
//! ```
//! Invariants: a node that ranks are to leave takes none; nor does one that an administrator drains. Whoever cannot leave runs on. What ranks
//! leave for is in the journal, and so is that they cannot. Faults assumed: whoever says that ranks are to leave says it twice, takes it back,
//! or says it of a node that is lost.

use super::Job;
use crate::event::{Asker, Effect, Notice, Outcome, Record};
use crate::safeguard::Safeguard;
use mend_coordination::failure::Failure;
use mend_journal::Event as Happened;
use mend_journal::event::{Code, cut};
use mend_messages::control::{Ask, MoveMode};
use mend_messages::health::{LeaveReason, Leaving};
use mend_messages::job::{NodeIndex, Rank};

/// What is known of drained nodes is looked up anew after so long, before it counts.
pub(crate) const DRAINED_FRESH_US: u64 = 2_000_000;

impl Job {
    /// Ranks are to leave a node, or need not any more.
    pub(crate) fn leave(&mut self, node: NodeIndex, reason: LeaveReason, leaving: Option<Leaving>) {
        if self.ending.is_some() || !self.roster.is_alive(node) {
            return;
        }
        match leaving {
            Some(leaving) => self.begin_leaving(node, reason, &leaving),
            None => {
                if !self.departures.end(node, reason) {
                    return;
                }
                self.record_node(node, Happened::NodeFit { by: reason.into() });
                self.tell(Notice::NodeFit { node, reason });
                if self.departures.of(node).is_none() {
                    self.let_stay(node);
                }
            }
        }
        let unfit = self.departures.of(node).is_some() && self.keeps(Safeguard::UnfitNodesTakeNone);
        self.roster.nodes[node as usize].unfit = unfit;
        if unfit {
            self.refuse_coming(node);
        }
        self.look_for_leavers();
    }

    fn begin_leaving(&mut self, node: NodeIndex, reason: LeaveReason, leaving: &Leaving) {
        if self.departures.begin(self.now_us, node, reason, leaving) {
            let ranks = self.roster.living_on(node);
            let mode = if leaving.mode == MoveMode::Frozen { "frozen" } else { "live" }.to_owned();
            let (why, left_ms) = (cut(leaving.why.clone()), leaving.left_ms);
            let places = ranks.iter().copied().collect();
            self.record_node(node, Happened::NodeUnfit { by: reason.into(), why: why.clone(), mode, left_ms, ranks: places });
            self.tell(Notice::NodeUnfit { node, reason, why, left_ms, ranks });
            // What kept ranks here may weigh less now.
            self.departures.try_again();
        }
        let Some(urgency) = self.departures.of(node) else { return };
        let now_us = self.now_us;
        for mover in self.movers() {
            let Some(one) = self.move_of(mover).filter(|one| one.from == node) else { continue };
            let of_health = matches!(one.asker, Asker::Leaving(..));
            self.step_move(mover, |machine| match urgency.mode() {
                MoveMode::Frozen => machine.hurry(now_us),
                _ if of_health => machine.set_deadline(now_us, Some(urgency.deadline_us).filter(|due| *due < u64::MAX)),
                _ => Vec::new(),
            });
        }
        let leaves = |rank: Rank| self.roster.node_of(rank) == Some(node);
        for (ask, ..) in &mut self.waiting {
            if let Ask::Migrate { rank, mode, .. } = ask
                && leaves(*rank)
                && urgency.mode() == MoveMode::Frozen
            {
                *mode = MoveMode::Frozen;
            }
        }
    }

    /// Nodes that ranks are to leave for this reason.
    #[must_use]
    pub fn nodes_to_leave(&self, reason: LeaveReason) -> Vec<NodeIndex> {
        self.departures.for_reason(reason)
    }

    /// Ranks that were to leave a node and have not begun to stay.
    fn let_stay(&mut self, node: NodeIndex) {
        let roster = &self.roster;
        let stays = |asker: &Asker| matches!(asker, Asker::Leaving(rank, _) if roster.node_of(*rank) == Some(node));
        self.waiting.retain(|(_, asker, _)| !stays(asker));
    }

    /// Ranks on this node that are to leave it, and are not about to.
    fn leavers(&self, node: NodeIndex) -> Vec<Rank> {
        let asked = |rank: Rank| self.waiting.iter().any(|(ask, ..)| matches!(ask, Ask::Migrate { rank: its, .. } if *its == rank));
        let leaves = |rank: &Rank| !self.moves(*rank) && !asked(*rank) && self.departures.may_try(self.now_us, *rank);
        self.roster.living_on(node).into_iter().filter(leaves).collect()
    }

    /// Has drained nodes looked up if ranks are to leave.
    pub(crate) fn look_for_leavers(&mut self) {
        let idle = self.departures.looking || self.ending.is_some() || self.interrupted.is_some() || self.time_up.is_some();
        if idle || self.departures.nodes().iter().all(|(_, node)| self.leavers(*node).is_empty()) {
            return;
        }
        self.departures.looking = true;
        self.effect(Effect::ListDrained);
    }

    /// True if it is known which nodes are drained, as of a moment ago; else they are looked up.
    pub(crate) fn knows_drained(&mut self) -> bool {
        let known = self.departures.looked_us.is_some_and(|at| self.now_us.saturating_sub(at) < DRAINED_FRESH_US);
        if !known && !self.departures.looking {
            self.departures.looking = true;
            self.effect(Effect::ListDrained);
        }
        known
    }

    /// A node takes no ranks any more: those that are on their way to it, and do not stand still yet, stay where they are or go to another one.
    fn refuse_coming(&mut self, node: NodeIndex) {
        let now_us = self.now_us;
        for mover in self.movers() {
            if self.move_of(mover).is_some_and(|one| one.target == node && !one.machine.stops()) {
                self.blame_for_move(mover, Code::Refused);
                self.step_move(mover, |machine| machine.target_failed(now_us, Failure::TakesNone { node }));
            }
        }
    }

    /// The place in the queue of a rank that waits to leave its node, if a verb asks for the same rank: it is moved once, as the verb says, and as soon as it must.
    pub(crate) fn place_of_leaver(&mut self, ask: &mut Ask, asker: Asker) -> Option<usize> {
        let (Ask::Migrate { rank, mode, deadline_ms, .. }, Asker::Verb(_)) = (ask, asker) else { return None };
        let leaves = |(_, its, _): &(Ask, Asker, u64)| matches!(its, Asker::Leaving(leaver, _) if leaver == rank);
        let place = self.waiting.iter().position(leaves)?;
        let (before, _, since) = self.waiting.remove(place)?;
        if let Ask::Migrate { deadline_ms: Some(before_ms), .. } = before {
            let due_us = since.saturating_add(before_ms.saturating_mul(1000));
            let left_ms = due_us.saturating_sub(self.now_us) / 1000;
            *deadline_ms = Some(deadline_ms.map_or(left_ms, |own_ms| own_ms.min(left_ms)));
        }
        if matches!(before, Ask::Migrate { mode: MoveMode::Frozen, .. }) && mode.storage().is_none() {
            *mode = MoveMode::Frozen;
        }
        Some(place)
    }

    /// These nodes are drained: ranks that are to leave others go elsewhere.
    pub(crate) fn drained(&mut self, avoid: &[String]) {
        (self.departures.looking, self.departures.looked_us) = (false, Some(self.now_us));
        self.avoid_drained(avoid);
        if self.ending.is_some() || self.interrupted.is_some() || self.time_up.is_some() {
            return;
        }
        for (urgency, node) in self.departures.nodes() {
            let mut stuck = Vec::new();
            for rank in self.leavers(node) {
                let coming = self.coming(rank);
                if let Err(failure) = self.roster.move_target(rank, (None, avoid), &coming) {
                    self.departures.failed(self.now_us, rank);
                    stuck.push((rank, failure));
                    continue;
                }
                let deadline_ms = (urgency.deadline_us < u64::MAX).then(|| urgency.deadline_us.saturating_sub(self.now_us) / 1000);
                let ask = Ask::Migrate { rank, to: None, avoid: avoid.to_vec(), mode: urgency.mode(), deadline_ms };
                let first = self.waiting.iter().position(|(_, asker, _)| !matches!(asker, Asker::Leaving(..)));
                let place = first.unwrap_or(self.waiting.len());
                self.waiting.insert(place, (ask, Asker::Leaving(rank, urgency.reason), self.now_us));
            }
            if let Some((_, failure)) = stuck.first().cloned() {
                self.tell_stuck(node, stuck.into_iter().map(|(rank, _)| rank).collect(), failure);
            }
        }
        self.next_operation();
    }

    /// No rank goes to these nodes, of those either that wait for their turn or are on their way.
    fn avoid_drained(&mut self, names: &[String]) {
        let drained: Vec<NodeIndex> =
            self.roster.node_numbers().filter(|node| names.iter().any(|name| name == self.roster.node_name(*node))).collect();
        // All of them: it may be that nobody knows.
        let known = drained.len() < self.roster.nodes.len();
        for (ask, asker, _) in &mut self.waiting {
            if let Ask::Migrate { to: None, avoid, .. } = ask
                && (known || matches!(asker, Asker::Leaving(..)))
            {
                let new: Vec<String> = names.iter().filter(|name| !avoid.contains(name)).cloned().collect();
                avoid.extend(new);
            }
        }
        if known {
            drained.into_iter().for_each(|node| self.refuse_coming(node));
        }
    }

    /// Says once of each rank that it cannot leave.
    fn tell_stuck(&mut self, node: NodeIndex, ranks: Vec<Rank>, failure: Failure) {
        let Some(reason) = self.departures.of(node).map(|urgency| urgency.reason) else { return };
        let ranks = self.departures.newly_stuck(node, ranks);
        if ranks.is_empty() {
            return;
        }
        self.tell(Notice::NowhereToGo { node, ranks: ranks.clone(), failure: failure.clone() });
        self.effect(Effect::Record(Box::new(Record::NowhereToGo { node, by: reason.into(), ranks, failure })));
    }

    /// The migration of a rank that was to leave its node is over.
    pub(crate) fn leaver_answered(&mut self, rank: Rank, outcome: Outcome) {
        match outcome {
            Outcome::Migrated(_) => self.departures.left(rank),
            Outcome::Failed(failure) => {
                self.departures.failed(self.now_us, rank);
                let nowhere =
                    matches!(failure, Failure::NoOtherNode | Failure::NoRoom { .. } | Failure::Processor { .. } | Failure::Differs { .. });
                if let Some(node) = self.roster.node_of(rank).filter(|_| nowhere) {
                    self.tell_stuck(node, vec![rank], failure);
                }
            }
            _ => {}
        }
    }
}
