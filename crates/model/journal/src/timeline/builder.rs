//! Goes through the entries: lives, where ranks are, operations, marks.

use super::history::History;
use super::{Activity, Life, Mark, MarkKind, Operation, Outcome, Round, Step, Timeline, What};
use crate::event::{Asker, Entry, Event, Phase};
use crate::ranks::Ranks;
use crate::state::{State, UnderWay};
use crate::text;
use std::collections::{BTreeMap, BTreeSet};

/// Histories that differ by less than this part of the whole are drawn as one.
const TOLERANCE: u64 = 400;
/// And by less than this, microseconds: ranks of one job end one after the other.
const LEAST_TOLERANCE: u64 = 5_000;

/// What the entries so far say.
#[derive(Debug, Default)]
pub(super) struct Builder {
    timeline: Timeline,
    history: History,
    seen: BTreeSet<String>,
    /// There was an entry.
    any: bool,
    /// When the entry at hand was recorded, and the one before. Never less than before.
    now: u64,
    before: u64,
    /// The last life has not ended.
    open: bool,
    /// It is known where its ranks were from its beginning.
    placed: bool,
    /// The start or restart of the last life.
    beginning: Option<usize>,
    /// Ranks that are still to start.
    waiting: Ranks,
    /// The newest operation on each checkpoint.
    checkpoints: BTreeMap<u64, usize>,
    /// The newest move of each rank in this life.
    moves: BTreeMap<u32, usize>,
    /// Operations that a summary found under way: when they began is told later, if at all.
    assumed: BTreeSet<usize>,
}

impl Builder {
    /// One more entry.
    pub(super) fn apply(&mut self, entry: &Entry) {
        self.before = self.now;
        self.now = self.now.max(entry.at);
        if !std::mem::replace(&mut self.any, true) {
            (self.timeline.begin, self.before) = (entry.at, entry.at);
        }
        let now = self.now;
        match &entry.event {
            Event::JobStarted { ranks, .. } => self.begin(now, None, *ranks),
            Event::JobRestarted { checkpoint, ranks, .. } => self.begin(now, Some(*checkpoint), *ranks),
            Event::Placed { places } => {
                let activity = if self.restarted() { Activity::Restoring } else { Activity::Starting };
                places.iter().for_each(|(node, ranks)| self.place(ranks, now, node, activity));
                self.placed = true;
            }
            Event::WorldSpawned { places, .. } => {
                for (node, ranks) in places {
                    self.timeline.ranks = self.timeline.ranks.saturating_add(u32::try_from(ranks.count()).unwrap_or(u32::MAX));
                    self.place(ranks, now, node, Activity::Starting);
                }
            }
            Event::RankStarted => self.started(entry),
            Event::RankRestored { .. } => self.restored(entry),
            Event::Resumed { .. } => {
                self.history.resumed(now);
                self.leave_beginning(Outcome::Done);
            }
            Event::StartFailed { error, .. } | Event::RestoreFailed { error, .. } => {
                self.leave_beginning(Outcome::Failed { error: error.clone() });
                self.mark(MarkKind::Trouble, entry);
            }
            Event::RankExited { status } => self.rank_ended(entry, *status == 0),
            Event::RankSignal { .. } => self.rank_ended(entry, false),
            Event::NodeUnfit { ranks, .. } => self.mark_of(MarkKind::Trouble, entry, ranks.clone()),
            Event::NodeLost { ranks, .. } => {
                self.history.ended(ranks, now);
                self.mark_of(MarkKind::NodeLost, entry, ranks.clone());
            }
            Event::Abort { .. } | Event::MessagesLost { .. } | Event::ObstacleFound { .. } => self.mark(MarkKind::Trouble, entry),
            Event::PassedOver { .. }
            | Event::TookOver { .. }
            | Event::DirectorySilent { .. }
            | Event::NodeReconnected { .. }
            | Event::FilesNotSent { .. }
            | Event::TargetLost { .. }
            | Event::ReadFromSource { .. }
            | Event::FileNotHealed { .. }
            | Event::TierFailed { .. }
            | Event::NowhereToGo { .. } => self.mark(MarkKind::Trouble, entry),
            Event::FollowsData { .. }
            | Event::StaysFromData { .. }
            | Event::SharesWithJob { .. }
            | Event::GoesBack { .. }
            | Event::StaysAway { .. } => self.mark(MarkKind::Decision, entry),
            Event::TargetBack { .. } | Event::FileHealed { .. } => self.mark(MarkKind::Mended, entry),
            Event::Interrupted { .. } | Event::KillAsked => self.mark(MarkKind::EndAsked, entry),
            Event::Ended { .. } | Event::RestartFailed { .. } | Event::GoesOn { .. } => self.end(entry, now),
            // The next controller writes this, whenever that begins.
            Event::ControllerDied => self.end(entry, self.before),
            Event::Compacted { state } => self.summary(state),
            _ => self.operation(entry),
        }
    }

    /// What happened to operations.
    fn operation(&mut self, entry: &Entry) {
        let now = self.now;
        match &entry.event {
            Event::CheckpointAsked { checkpoint, by, .. } => drop(self.ask_checkpoint(*checkpoint, now, *by)),
            Event::CheckpointDecided { checkpoint } => self.checkpoint(*checkpoint, now, Asker::Other).decided = Some(now),
            Event::CheckpointCommitted { checkpoint, by, bytes, stopped_us, durable_us, .. } => {
                let operation = self.checkpoint(*checkpoint, now.saturating_sub(*durable_us), *by);
                (operation.bytes, operation.stopped_us) = (Some(*bytes), Some(*stopped_us));
                operation.leave(now, Outcome::Done);
            }
            Event::CheckpointFailed { checkpoint, by, error, .. } => {
                self.checkpoint(*checkpoint, now, *by).leave(now, Outcome::Failed { error: error.clone() });
            }
            Event::PhaseDone { phase, us, checkpoint } => self.phase(entry, *phase, *us, *checkpoint),
            Event::MigrationAsked { from, to, .. } => {
                if let Some(rank) = entry.rank {
                    self.ask_move(rank, now, from, to);
                }
            }
            Event::MigrationDecided { from, to } => {
                if let Some(rank) = entry.rank {
                    self.decide_move(rank, now, from, to);
                }
            }
            Event::MigrationCommitted { from, to, bytes, sent_bytes, stopped_us, precopied, .. } => {
                let Some(rank) = entry.rank else { return };
                let copied = precopied.as_ref().map(|precopied| precopied.us);
                let begin = now.saturating_sub(stopped_us.saturating_add(copied.unwrap_or(0)));
                let operation = self.migration(rank, begin, from, to);
                (operation.bytes, operation.sent_bytes, operation.stopped_us) = (Some(*bytes), *sent_bytes, Some(*stopped_us));
                if let What::Migration { live, .. } = &mut operation.what {
                    *live = copied.is_some();
                }
                operation.leave(now, Outcome::Done);
                if operation.decided.is_none() {
                    self.decide_move(rank, now, from, to);
                }
            }
            Event::MigrationUndone { error, .. } => {
                if let Some(rank) = entry.rank {
                    let from = entry.node.as_deref().unwrap_or_default();
                    self.migration(rank, now, from, "").leave(now, Outcome::Failed { error: error.clone() });
                }
            }
            Event::RoundDone { round, bytes, us, left } => {
                let Some(rank) = entry.rank else { return };
                let begin = now.saturating_sub(*us);
                let operation = self.migration(rank, begin, entry.node.as_deref().unwrap_or_default(), "");
                // Rounds follow each other; what the agent measured may be longer by a little.
                let begin = begin.max(operation.rounds.last().map_or(operation.begin, |last| last.end));
                operation.rounds.push(Round { round: *round, begin, end: now.max(begin), bytes: *bytes, left: *left });
                if let What::Migration { live, .. } = &mut operation.what {
                    *live = true;
                }
            }
            _ => {}
        }
    }

    /// All of it, as it is now.
    pub(super) fn finish(mut self, now_us: Option<u64>) -> Timeline {
        let end = now_us.unwrap_or(0).max(self.now);
        let mut timeline = std::mem::take(&mut self.timeline);
        (timeline.end, timeline.running) = (end, self.open && now_us.is_some());
        timeline.begin = timeline.begin.min(end);
        if self.open
            && let Some(life) = timeline.lives.last_mut()
        {
            life.end = end.max(life.begin);
        }
        for operation in timeline.operations.iter_mut().filter(|operation| operation.outcome == Outcome::UnderWay) {
            operation.end = end.max(operation.begin);
        }
        // A phase is told of when it is over: what was part of another one comes before it.
        timeline.operations.iter_mut().for_each(|operation| operation.phases.sort_by_key(|step| step.begin));
        timeline.operations.sort_by_key(|operation| operation.begin);
        let tolerance = (end.saturating_sub(timeline.begin) / TOLERANCE).max(LEAST_TOLERANCE);
        timeline.tracks = self.history.tracks(&timeline.operations, end, tolerance);
        timeline
    }

    fn restarted(&self) -> bool {
        self.open && self.timeline.lives.last().is_some_and(|life| life.from_checkpoint.is_some())
    }

    /// When the last life began.
    fn begun(&self) -> u64 {
        self.timeline.lives.last().map_or(self.timeline.begin, |life| life.begin)
    }

    fn begin(&mut self, at: u64, from_checkpoint: Option<u64>, ranks: u32) {
        if self.open {
            // Its end was not written down, or is lost.
            self.close(self.before, "how it ended is not on record".into());
        }
        self.timeline.lives.push(Life { begin: at, end: at, from_checkpoint, ended: None });
        self.timeline.ranks = ranks;
        (self.open, self.placed) = (true, false);
        self.waiting = all_of(ranks);
        self.moves.clear();
        self.checkpoints.clear();
        let what = from_checkpoint.map_or(What::Start, |checkpoint| What::Restart { checkpoint });
        self.beginning = Some(self.push(what, at));
    }

    fn push(&mut self, what: What, begin: u64) -> usize {
        let begin = begin.max(self.timeline.begin);
        let (decided, outcome) = (None, Outcome::UnderWay);
        let (phases, rounds) = (Vec::new(), Vec::new());
        self.timeline.operations.push(Operation {
            what,
            begin,
            end: begin,
            decided,
            outcome,
            stopped_us: None,
            bytes: None,
            sent_bytes: None,
            phases,
            rounds,
        });
        self.timeline.operations.len() - 1
    }

    /// The start or restart of this life is over.
    fn leave_beginning(&mut self, outcome: Outcome) {
        let now = self.now;
        if let Some(operation) = self.beginning.and_then(|at| self.timeline.operations.get_mut(at)) {
            operation.leave(now, outcome);
        }
    }

    fn place(&mut self, ranks: &Ranks, at: u64, node: &str, activity: Activity) {
        self.history.place(ranks, at, Some(node), activity);
        self.see(node);
    }

    fn see(&mut self, node: &str) {
        if !node.is_empty() && self.seen.insert(node.to_owned()) {
            self.timeline.nodes.push(node.to_owned());
        }
    }

    fn started(&mut self, entry: &Entry) {
        let Some(rank) = entry.rank else { return };
        self.history.started(rank, self.now, entry.node.as_deref());
        entry.node.iter().for_each(|node| self.see(node));
        self.waiting.remove(rank);
        if self.waiting.is_empty() {
            self.leave_beginning(Outcome::Done);
        }
    }

    /// A rank is rebuilt, but does not run yet: of a restart, or on the target of a move, which says itself where it is.
    fn restored(&mut self, entry: &Entry) {
        let Some(rank) = entry.rank.filter(|rank| self.restarted() && !self.history.known_since(self.begun()).contains(*rank)) else {
            return;
        };
        self.history.place(&Ranks::from_iter([rank]), self.now, entry.node.as_deref(), Activity::Restoring);
        entry.node.iter().for_each(|node| self.see(node));
    }

    fn rank_ended(&mut self, entry: &Entry, well: bool) {
        if let Some(rank) = entry.rank {
            self.history.ended(&Ranks::from_iter([rank]), self.now);
        }
        if !well {
            self.mark(MarkKind::RankEnded, entry);
        }
    }

    fn mark(&mut self, kind: MarkKind, entry: &Entry) {
        self.mark_of(kind, entry, entry.rank.into_iter().collect());
    }

    fn mark_of(&mut self, kind: MarkKind, entry: &Entry, ranks: Ranks) {
        let mark = Mark { at: self.now, kind, node: entry.node.clone(), ranks, text: text::sentence(entry) };
        self.timeline.marks.push(mark);
    }

    fn end(&mut self, entry: &Entry, at: u64) {
        let ended = match &entry.event {
            Event::ControllerDied => "its controller was killed, or its machine went down".into(),
            _ => text::sentence(entry),
        };
        let mark = Mark { at, kind: MarkKind::Ended, node: None, ranks: Ranks::default(), text: ended.clone() };
        self.timeline.marks.push(mark);
        self.close(at, ended);
    }

    /// The last life is over.
    fn close(&mut self, at: u64, ended: String) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        let begun = self.begun();
        let at = at.max(begun);
        if !self.placed && self.beginning_is_unknown() {
            // A summary's: all that is known is that there were so many ranks.
            let unknown = all_of(self.timeline.ranks).without(&self.history.known_since(begun));
            if !unknown.is_empty() {
                self.history.place(&unknown, begun, None, Activity::Running);
            }
        }
        self.history.all_ended(at);
        for operation in &mut self.timeline.operations {
            operation.leave(at, Outcome::Failed { error: "the job ended first".into() });
        }
        if let Some(life) = self.timeline.lives.last_mut() {
            (life.end, life.ended) = (at, Some(ended));
        }
    }

    /// Whether the start of this life is over is not known, since nothing but its milestones is left: it counts as over. A life that
    /// failed before ranks were placed has no ranks at all.
    fn beginning_is_unknown(&mut self) -> bool {
        let operations = &mut self.timeline.operations;
        let Some(operation) = self.beginning.and_then(|at| operations.get_mut(at)) else { return true };
        let unknown = operation.outcome == Outcome::UnderWay;
        operation.leave(operation.begin, Outcome::Unknown);
        unknown || operation.outcome == Outcome::Unknown
    }

    fn ask_checkpoint(&mut self, checkpoint: u64, begin: u64, by: Asker) -> usize {
        let at = self.push(What::Checkpoint { checkpoint, by }, begin);
        self.checkpoints.insert(checkpoint, at);
        at
    }

    /// The operation on a checkpoint; if its beginning is not on record, one that began then.
    fn checkpoint(&mut self, checkpoint: u64, begin: u64, by: Asker) -> &mut Operation {
        let at = match self.checkpoints.get(&checkpoint) {
            Some(at) => *at,
            None => self.ask_checkpoint(checkpoint, begin, by),
        };
        self.at(at, begin)
    }

    /// An operation that had begun then.
    fn at(&mut self, at: usize, begin: u64) -> &mut Operation {
        let operation = &mut self.timeline.operations[at];
        if self.assumed.contains(&at) {
            operation.begin = operation.begin.min(begin.max(self.timeline.begin));
        }
        operation
    }

    fn ask_move(&mut self, rank: u32, begin: u64, from: &str, to: &str) -> usize {
        let at = self.push(What::Migration { rank, from: from.to_owned(), to: to.to_owned(), live: false }, begin);
        self.moves.insert(rank, at);
        [from, to].into_iter().for_each(|node| self.see(node));
        at
    }

    /// The move of a rank that is under way; if its beginning is not on record, one that began then.
    fn migration(&mut self, rank: u32, begin: u64, from: &str, to: &str) -> &mut Operation {
        let known = self.moves.get(&rank).copied();
        let at = match known.filter(|at| self.timeline.operations[*at].outcome == Outcome::UnderWay) {
            Some(at) => at,
            None => self.ask_move(rank, begin, from, to),
        };
        self.at(at, begin)
    }

    /// A rank is on its target.
    fn decide_move(&mut self, rank: u32, at: u64, from: &str, to: &str) {
        let since = self.begun();
        self.history.moved(rank, at, since, from, to);
        self.see(to);
        let known = self.moves.get(&rank).copied().filter(|known| self.timeline.operations[*known].decided.is_none());
        let known = known.unwrap_or_else(|| self.ask_move(rank, at, from, to));
        let operation = &mut self.timeline.operations[known];
        operation.decided = Some(at);
        if let What::Migration { from: source, to: target, .. } = &mut operation.what {
            // What was asked may have left the choice open.
            from.clone_into(source);
            to.clone_into(target);
        }
    }

    fn phase(&mut self, entry: &Entry, phase: Phase, us: u64, checkpoint: Option<u64>) {
        let (begin, end) = (self.now.saturating_sub(us), self.now);
        let known = entry.rank.and_then(|rank| self.moves.get(&rank).copied());
        let operation = match (checkpoint, entry.rank, phase) {
            (Some(checkpoint), ..) => self.checkpoint(checkpoint, begin, Asker::Other),
            // Also those of ranks that are rebuilt in a restart say that.
            (None, Some(_), Phase::Read | Phase::Rebuild) => match known.or(self.beginning) {
                Some(at) => &mut self.timeline.operations[at],
                None => return,
            },
            (None, Some(rank), _) => self.migration(rank, begin, entry.node.as_deref().unwrap_or_default(), ""),
            (None, None, _) => return,
        };
        operation.add(Step { phase, node: entry.node.clone(), begin, end });
    }

    /// All entries before this one are left out, but for milestones; this is what they add up to.
    fn summary(&mut self, state: &State) {
        let now = self.now;
        self.timeline.summary_until = Some(now);
        if state.since > 0 {
            self.timeline.begin = self.timeline.begin.min(state.since);
        }
        if !self.open && state.is_open() {
            self.begin(state.begun.clamp(self.timeline.begin, now), state.from, state.ranks);
        }
        self.beginning_is_unknown();
        for (number, facts) in &state.checkpoints {
            if self.checkpoints.contains_key(number) || facts.at > now {
                continue;
            }
            let operation = self.checkpoint(*number, facts.at.saturating_sub(facts.durable_us), facts.by);
            (operation.bytes, operation.stopped_us) = (Some(facts.bytes), Some(facts.stopped_us));
            operation.leave(facts.at, Outcome::Done);
        }
        if !state.is_open() {
            return;
        }
        let begun = self.begun();
        for (node, ranks) in &state.places {
            let ranks = ranks.intersection(&state.running).without(&self.history.known_since(begun));
            if !ranks.is_empty() {
                self.place(&ranks, begun, node, Activity::Running);
            }
        }
        self.waiting = self.waiting.without(&state.running);
        self.placed = true;
        let assumed = match &state.under_way {
            Some(UnderWay::Checkpoint { checkpoint, .. }) => self.ask_checkpoint(*checkpoint, now, Asker::Other),
            Some(UnderWay::Migration { rank, from, to, .. }) => self.ask_move(*rank, now, from, to),
            Some(UnderWay::Other) | None => return,
        };
        self.assumed.insert(assumed);
    }
}

impl Operation {
    /// It is over, if it was not yet.
    fn leave(&mut self, at: u64, outcome: Outcome) {
        if self.outcome == Outcome::UnderWay {
            (self.end, self.outcome) = (at.max(self.begin), outcome);
        }
    }

    /// A phase is over. Phases follow each other, but for those that ranks tell of while they are rebuilt: such a phase lasts from the
    /// first to the last of the ranks.
    fn add(&mut self, step: Step) {
        let beside = matches!(step.phase, Phase::Read | Phase::Rebuild);
        let mut others = self.phases.iter().filter(|known| !beside && !matches!(known.phase, Phase::Read | Phase::Rebuild));
        let begin = others.next_back().map_or(self.begin, |last| last.end).max(step.begin);
        let step = Step { begin, end: step.end.max(begin), ..step };
        match self.phases.iter_mut().find(|known| beside && known.phase == step.phase) {
            Some(known) => (known.begin, known.end) = (known.begin.min(step.begin), known.end.max(step.end)),
            None => self.phases.push(step),
        }
    }
}

fn all_of(ranks: u32) -> Ranks {
    Ranks::from(ranks.checked_sub(1).map(|last| (0, last)).into_iter().collect::<Vec<_>>())
}
