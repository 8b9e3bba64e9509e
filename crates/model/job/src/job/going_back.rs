//! Ranks go back to nodes that they have left, or to better ones: carries out what [`mend_policy::back`] decides.
//!
//! ```text
//! FromDaemon::Progress ──► a ledger of each rank ──► weighed each second, while nothing else goes on ──► ListDrained
//!                                                                                                          │
//! a migration for each rank that goes ◄── all of them are worth it together ◄── weighed again ◄── Drained ─┘
//! ```
//! Invariants: what the user has chosen stays as it is; nobody goes to a node that ranks are to leave, or that is drained; a move back makes nothing
//! else wait that came before it. Every decision is in the journal with its reasons; so is why a rank stays, when that changes.

use super::Job;
use crate::event::{Asker, Effect, Notice, Outcome};
use crate::operation::Move;
use crate::phase::RankPhase;
use crate::safeguard::Safeguard;
use mend_coordination::migration;
use mend_journal::Event as Happened;
use mend_journal::event::cut;
use mend_messages::control::{Ask, MoveMode};
use mend_messages::daemon::NodeRoom;
use mend_messages::job::{NodeIndex, Rank};
use mend_messages::progress::RankProgress;
use mend_policy::back::{self, Candidate, Circumstances, Company, Ledger, Measure, Obstacle, Verdict, Way, Weighed, Why};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Pause between two times at which ranks are weighed.
const PAUSE_US: u64 = 1_000_000;

/// What is known of ranks that may go back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Returns {
    /// Ranks go back at all.
    wanted: bool,
    /// When the job's time is over, on the machine's clock.
    ends_us: Option<u64>,
    ledgers: BTreeMap<Rank, Ledger>,
    /// Something was read since ranks were weighed.
    news: bool,
    weighed_us: u64,
    /// Some are to go as soon as it is known which nodes are drained.
    some_go: bool,
}

impl Returns {
    pub(crate) fn new(wanted: bool, ends_us: Option<u64>) -> Self {
        Self { wanted, ends_us, ledgers: BTreeMap::new(), news: false, weighed_us: 0, some_go: false }
    }

    /// Seconds for which the job may still run; `None`: nobody knows.
    pub(crate) fn left_s(&self, now_us: u64) -> Option<f64> {
        self.ends_us.map(|end| end.saturating_sub(now_us) as f64 / 1e6)
    }
}

/// What becomes of ranks that are not where they belong.
struct Verdicts {
    goes: Vec<(Rank, Weighed)>,
    stays: Vec<(Rank, Why)>,
}

fn load(room: Option<NodeRoom>) -> Option<f64> {
    room.filter(|room| room.processors > 0).map(|room| f64::from(room.load) / 100.0 / f64::from(room.processors))
}

impl Job {
    /// A node's daemon tells how far its ranks are.
    pub(crate) fn progressed(&mut self, node: NodeIndex, all: &[RankProgress]) {
        if let Some((_, since_us)) = &mut self.ending {
            // It still makes checkpoints whole: it has not left for that reason alone.
            *since_us = self.now_us;
        }
        if !self.returns.wanted {
            return;
        }
        // While a rank is saved or copied it is slower than it is.
        let disturbed = self.operation.is_some();
        for RankProgress { rank, attempt, progress } in all {
            let process = self.roster.ranks.get(*rank as usize);
            if !process.is_some_and(|state| state.node == node && state.attempt == *attempt) {
                continue;
            }
            let ledger = self.returns.ledgers.entry(*rank).or_insert_with(|| Ledger::new(node));
            if disturbed {
                ledger.interrupt();
            } else {
                ledger.add(progress);
                self.returns.news = true;
            }
        }
    }

    /// A rank has come to another node.
    pub(crate) fn place_changed(&mut self, moved: &Move, outcome: &migration::Outcome) {
        let (rank, from, to) = (moved.machine.rank(), moved.from, moved.target);
        let way = match moved.asker {
            Asker::Back(_) => Way::Back,
            // `mend drain` names nothing but what is to be left.
            // There it belongs from now on.
            Asker::Data(_) => Way::Chosen,
            Asker::Verb(_) if moved.named || !moved.avoid.iter().any(|name| name == self.roster.node_name(from)) => Way::Chosen,
            _ => Way::Left,
        };
        let company = Company { load: load(self.roster.nodes[from as usize].room), ranks: self.roster.living_on(from).len() as u32 + 1 };
        // They leave one after the other, and were measured together.
        let company = self.returns.ledgers.values().filter_map(|ledger| ledger.company_at(from)).fold(company, Company::most);
        let cost_s = back::cost_s(outcome.stopped_us, outcome.precopied.map_or(0, |precopied| precopied.us));
        self.following.follow.moved(cost_s);
        if let Asker::Data(_) = moved.asker {
            let from = self.roster.node_name(from).to_owned();
            self.following.follow.followed(self.now_us, rank, &from, cost_s);
        }
        let ledger = self.returns.ledgers.entry(rank).or_insert_with(|| Ledger::new(from));
        ledger.moved(self.now_us, to, way, cost_s, company);
    }

    /// The migration of a rank that was to go back is over.
    pub(crate) fn returner_answered(&mut self, rank: Rank, outcome: &Outcome) {
        if let (Outcome::Failed(_), Some(ledger)) = (outcome, self.returns.ledgers.get_mut(&rank)) {
            ledger.failed(self.now_us);
        }
    }

    /// Weighs ranks that are not where they belong, if something was read of any.
    pub(crate) fn look_for_returners(&mut self) {
        let soon = self.now_us < self.returns.weighed_us.saturating_add(PAUSE_US);
        if !self.returns.news || soon || self.departures.looking || !self.may_move_ranks() {
            return;
        }
        (self.returns.news, self.returns.weighed_us) = (false, self.now_us);
        let Verdicts { goes, stays } = self.weigh_all(&[]);
        if goes.is_empty() {
            stays.into_iter().for_each(|(rank, why)| self.tell_why(rank, &why));
        } else {
            (self.departures.looking, self.returns.some_go) = (true, true);
            self.effect(Effect::ListDrained);
        }
    }

    /// True while nothing goes on that a move of the machine's own accord would disturb.
    pub(crate) fn may_move_ranks(&self) -> bool {
        self.is_idle() && self.roster.ranks.iter().all(|rank| rank.phase == RankPhase::Running || rank.has_ended())
    }

    /// Nodes of these names are drained: whoever is still to go back, goes.
    pub(crate) fn go_back(&mut self, avoid: &[String]) {
        if !std::mem::take(&mut self.returns.some_go) || !self.may_move_ranks() {
            return;
        }
        let Verdicts { goes, stays } = self.weigh_all(avoid);
        stays.into_iter().for_each(|(rank, why)| self.tell_why(rank, &why));
        let all: Vec<Weighed> = goes.iter().map(|(_, weighed)| *weighed).collect();
        if !back::is_worth(&all) {
            goes.into_iter().for_each(|(rank, weighed)| self.tell_why(rank, &Why::TooLittleLeft(weighed)));
            return;
        }
        for (rank, weighed) in goes {
            let from = self.roster.ranks[rank as usize].node;
            let name = |node: NodeIndex| self.roster.node_name(node).to_owned();
            let Weighed { to, here_us, there_us, left_s, gain_s, cost_s, price_s, .. } = weighed;
            let by = measure(weighed.by).to_owned();
            let event = Happened::GoesBack { from: name(from), to: name(to), by, here_us, there_us, left_s, gain_s, cost_s, price_s };
            let ask = Ask::Migrate { rank, to: Some(name(to)), avoid: avoid.to_vec(), mode: MoveMode::Auto, deadline_ms: None };
            self.record_rank(rank, event);
            self.tell(Notice::GoesBack { rank, from, to });
            self.waiting.push_back((ask, Asker::Back(rank), self.now_us));
        }
        self.next_operation();
    }

    /// Who goes, and why others stay. Nodes of these names are drained.
    fn weigh_all(&mut self, avoid: &[String]) -> Verdicts {
        let (mut goes, mut stays) = (Vec::new(), Vec::new());
        let away: Vec<Rank> = self.returns.ledgers.iter().filter(|(_, ledger)| ledger.home().is_some()).map(|(rank, _)| *rank).collect();
        if away.is_empty() {
            return Verdicts { goes, stays };
        }
        let mut places = self.places(avoid);
        let limit_s = self.returns.left_s(self.now_us);
        let ran_s = self.now_us.saturating_sub(self.begun_us) as f64 / 1e6;
        let mut taken = BTreeSet::new();
        for rank in away.into_iter().filter(|rank| self.roster.living(*rank).is_some()).collect::<Vec<_>>() {
            let here = self.roster.ranks[rank as usize].node;
            let fits = |one: &Candidate| one.obstacle.is_some() || self.roster.runs_on(rank, one.node).is_ok();
            let obstacle = |one: Candidate| if fits(&one) { one } else { Candidate { obstacle: Some(Obstacle::Room), ..one } };
            let candidates: Vec<Candidate> = places.iter().copied().map(obstacle).collect();
            let circumstances = Circumstances {
                now_us: self.now_us,
                limit_s,
                left_s: limit_s.map(|limit| limit.min(ran_s)),
                load: load(self.roster.nodes[here as usize].room),
                candidates: &candidates,
                restrained: self.keeps(Safeguard::NothingGoesToAndFro),
            };
            match self.returns.ledgers.get_mut(&rank).and_then(|ledger| ledger.weigh(&circumstances)) {
                // Of several that would share a node, nobody knows how it would be: one goes, and the others are weighed anew.
                Some(Verdict::Goes(weighed)) if weighed.by != Measure::Load || taken.insert(weighed.to) => {
                    // The next one finds it there.
                    places.iter_mut().filter(|place| place.node == weighed.to).for_each(Candidate::add_one);
                    goes.push((rank, weighed));
                }
                Some(Verdict::Stays(why)) => stays.push((rank, why)),
                Some(Verdict::Goes(_)) | None => {}
            }
        }
        Verdicts { goes, stays }
    }

    /// All nodes, as places that a rank may go to.
    fn places(&self, avoid: &[String]) -> Vec<Candidate> {
        let mut ranks = vec![0; self.roster.nodes.len()];
        let living = self.roster.ranks.iter().filter(|rank| !rank.has_ended());
        living.for_each(|rank| ranks[rank.node as usize] += 1);
        let place = |node: NodeIndex| {
            let state = &self.roster.nodes[node as usize];
            let obstacle = if !state.alive {
                Some(Obstacle::Lost)
            } else if self.roster.is_unfit(node) {
                Some(Obstacle::Unfit)
            } else {
                avoid.contains(&state.setup.name).then_some(Obstacle::Drained)
            };
            let processors = state.room.map_or(0, |room| room.processors);
            Candidate { node, obstacle, ranks: ranks[node as usize], processors, load: load(state.room) }
        };
        self.roster.node_numbers().map(place).collect()
    }

    fn tell_why(&mut self, rank: Rank, why: &Why) {
        let now_us = self.now_us;
        let Some(ledger) = self.returns.ledgers.get_mut(&rank) else { return };
        let Some(home) = ledger.home() else { return };
        if ledger.tells(now_us, why) {
            let home = self.roster.node_name(home).to_owned();
            let why = cut(self.words(why));
            self.record_rank(rank, Happened::StaysAway { home, why });
        }
    }

    /// A reason to stay, as half a sentence.
    fn words(&self, why: &Why) -> String {
        let name = |node: NodeIndex| self.roster.node_name(node);
        let times = |one: &Weighed| {
            let unit = if one.by == Measure::Messages { "message" } else { "step" };
            format!("a {unit} takes {:.3} ms here and {:.3} ms there", one.here_us / 1e3, one.there_us / 1e3)
        };
        match why {
            Why::Kept(node, Obstacle::Lost) => format!("node {} is lost", name(*node)),
            Why::Kept(node, Obstacle::Unfit) => format!("ranks are to leave node {}", name(*node)),
            Why::Kept(node, Obstacle::Drained) => format!("node {} is drained", name(*node)),
            Why::Kept(node, Obstacle::Crowded) => format!("node {} has other ranks now", name(*node)),
            Why::Kept(node, Obstacle::Room) => format!("the processor of node {} lacks what the rank may be using", name(*node)),
            Why::NoMeasure => "it tells no steps (mend_step), and it is not known how long the job may run (MEND_TIME_LIMIT_S)".into(),
            Why::Measuring(node) => format!("it was not measured long enough on node {}", name(*node)),
            Why::NotFaster(one) => format!("it would not be faster on node {}: {}", name(one.to), times(one)),
            Why::TooLittleLeft(one) => format!(
                "too little is left: {:.1} s here, of which it would save {:.1} s on node {} ({}); going there has to save {:.1} s",
                one.left_s,
                one.gain_s,
                name(one.to),
                times(one),
                one.price_s
            ),
            Why::CameFromThere(node) => format!("it went back from node {} before", name(*node)),
            Why::GainedNothing => "the last time that it went back, it became no faster".into(),
            Why::Often(times) => format!("it went back {times} times already"),
            Why::Pause => "it moved, or was to move, a short while ago".into(),
        }
    }
}

fn measure(by: Measure) -> &'static str {
    match by {
        Measure::Steps => "steps",
        Measure::Messages => "messages",
        Measure::Load => "load",
    }
}
