//! Ranks move to where their data is: carries out what [`mend_policy::follow`] decides.
//!
//! ```text
//! Event::DataSeen, every few seconds ──► weighed, while nothing else goes on ──► ListDrained
//!                                                                                 │
//! a migration for each rank that goes, two where ranks change places ◄── Drained ─┘
//! ```
//! Invariants: health goes before data: nobody goes to a node that ranks are to leave, or that is drained; a move makes nothing else wait that came before it;
//! nobody goes to a node that is busier, but in exchange, nor takes more than a quarter of the memory that it has left.
//! Every decision is in the journal with its reasons; so is why a rank stays, when that changes.

use super::Job;
use crate::event::{Asker, Effect, Notice, Outcome};
use crate::safeguard::Safeguard;
use mend_journal::Event as Happened;
use mend_messages::control::{Ask, MoveMode};
use mend_messages::job::{NodeIndex, Rank};
use mend_policy::follow::{Circumstances, Follow, ForeignRank, Mode, Reckoned, Scan, Verdict, Why, Wish};
use serde::{Deserialize, Serialize};

/// What is known of ranks that may follow their data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Following {
    mode: Mode,
    pub(crate) follow: Follow,
    /// Those that go as soon as it is known which nodes are drained.
    going: Vec<(Wish, Reckoned)>,
}

impl Following {
    pub(crate) fn new(mode: Mode) -> Self {
        Self { mode, follow: Follow::default(), going: Vec::new() }
    }
}

impl Job {
    /// Storage was looked at.
    pub(crate) fn data_seen(&mut self, scan: &Scan) {
        if self.following.mode == Mode::Off {
            return;
        }
        if self.departures.looking || !self.may_move_ranks() {
            self.following.follow.interrupt();
            return;
        }
        let now = Circumstances {
            now_us: self.now_us,
            begun_us: self.begun_us,
            left_s: self.returns.left_s(self.now_us),
            ranks: self.roster.ranks.len() as u32,
            restrained: self.keeps(Safeguard::NothingGoesToAndFro),
        };
        // What is seen of storage is some seconds old.
        let there = |wishes: &[Wish]| wishes.iter().filter(|wish| self.ways(wish).is_some()).cloned().collect();
        let scan = Scan { wishes: there(&scan.wishes), kept: there(&scan.kept), ..scan.clone() };
        for foreign in &scan.foreign_ranks {
            if self.roster.living(foreign.rank).is_some() && self.following.follow.tells_of(self.now_us, foreign) {
                let ForeignRank { rank, job, other, node, bytes } = foreign.clone();
                self.record_rank(rank, Happened::SharesWithJob { job, other, node, bytes });
            }
        }
        let mut going = Vec::new();
        for (wish, verdict) in self.following.follow.weigh(&scan, &now) {
            let Verdict::Goes(reckoned) = verdict else {
                self.tell_why_not(&wish, &verdict);
                continue;
            };
            if self.following.mode == Mode::Advise {
                if self.following.follow.tells(self.now_us, wish.rank, &verdict) {
                    self.record_following(&wish, &reckoned, false);
                }
            } else {
                going.push((wish, reckoned));
            }
        }
        if !going.is_empty() {
            (self.departures.looking, self.following.going) = (true, going);
            self.effect(Effect::ListDrained);
        }
    }

    /// Nodes of these names are drained: whoever is still to follow its data, does.
    pub(crate) fn follow_data(&mut self, avoid: &[String]) {
        let going = std::mem::take(&mut self.following.going);
        if !self.may_move_ranks() {
            return;
        }
        for (wish, reckoned) in going {
            let Some(ways) = self.ways(&wish) else { continue };
            let kept = |(_, _, to): &(Rank, NodeIndex, NodeIndex)| {
                let state = &self.roster.nodes[*to as usize];
                !state.alive || self.roster.is_unfit(*to) || avoid.contains(&state.setup.name)
            };
            let closed = ways.iter().find(|way| kept(way)).map(|(_, _, to)| (*to, "is lost, drained, or ranks are to leave it".to_owned()));
            let busier = || {
                // Ranks that change places leave both as busy as before.
                let (_, from, to) = *ways.first().filter(|_| wish.back.is_none() && self.keeps(Safeguard::RanksGoWhereTheyFit))?;
                self.roster.is_busier(to, from).then(|| (to, format!("is busier than node {}", self.roster.node_name(from))))
            };
            let unable = || {
                let (rank, _, to) = ways.iter().find(|(rank, _, to)| self.roster.runs_on(*rank, *to).is_err())?;
                Some((*to, format!("has a processor that lacks what rank {rank} may be using")))
            };
            if let Some((to, what)) = closed.or_else(busier).or_else(unable) {
                let to = self.roster.node_name(to).to_owned();
                let why = format!("node {to} {what}");
                self.record_rank(wish.rank, Happened::StaysFromData { to, why });
                continue;
            }
            self.record_following(&wish, &reckoned, true);
            let (rank, from, to) = ways[0];
            self.tell(Notice::FollowsData { rank, from, to, with: wish.back });
            for (rank, _, to) in ways {
                let to = Some(self.roster.node_name(to).to_owned());
                let ask = Ask::Migrate { rank, to, avoid: avoid.to_vec(), mode: MoveMode::Auto, deadline_ms: None };
                self.waiting.push_back((ask, Asker::Data(rank), self.now_us));
            }
        }
        self.next_operation();
    }

    /// The migration of a rank that was to follow its data is over. Where it has not moved, whoever has not begun stays, too.
    pub(crate) fn follower_answered(&mut self, rank: Rank, outcome: &Outcome) {
        if let Outcome::Failed(_) = outcome {
            self.following.follow.failed(self.now_us, rank);
            self.waiting.retain(|(_, asker, _)| !matches!(asker, Asker::Data(_)));
        }
    }

    /// Who goes where by a wish; `None` if ranks are elsewhere than it says.
    fn ways(&self, wish: &Wish) -> Option<Vec<(Rank, NodeIndex, NodeIndex)>> {
        let node = |name: &str| self.roster.node_numbers().find(|node| self.roster.node_name(*node) == name);
        let (from, to) = (node(&wish.from)?, node(&wish.to)?);
        let mut ways = vec![(wish.rank, from, to)];
        ways.extend(wish.back.map(|back| (back, to, from)));
        let there = |(rank, from, _): &(Rank, NodeIndex, NodeIndex)| {
            self.roster.living(*rank).is_some() && self.roster.node_of(*rank) == Some(*from)
        };
        ways.iter().all(there).then_some(ways)
    }

    fn record_following(&mut self, wish: &Wish, reckoned: &Reckoned, goes: bool) {
        let Reckoned { waits, share, messages, left_s, gain_s, price_s } = *reckoned;
        let (from, to, with) = (wish.from.clone(), wish.to.clone(), wish.back);
        self.record_rank(wish.rank, Happened::FollowsData { from, to, with, goes, waits, share, messages, left_s, gain_s, price_s });
    }

    fn tell_why_not(&mut self, wish: &Wish, verdict: &Verdict) {
        let Verdict::Stays(why) = verdict else { return };
        if self.following.follow.tells(self.now_us, wish.rank, verdict) {
            self.record_rank(wish.rank, Happened::StaysFromData { to: wish.to.clone(), why: words(why) });
        }
    }
}

/// A reason to stay, as half a sentence.
fn words(why: &Why) -> String {
    match why {
        Why::Once => "it was suggested for the first time".into(),
        Why::NotWorth(one) => format!(
            "it would save {:.2} s of {:.1} s that are left, and has to save {:.2} s (ranks wait for data {:.1} % of their time, of which it saves {:.0} %{})",
            one.gain_s,
            one.left_s,
            one.price_s,
            one.waits * 100.0,
            one.share * 100.0,
            mend_journal::text::of_messages(one.messages)
        ),
        Why::Messages(cross, saves) => format!(
            "MPI messages of {}/s would begin to cross nodes (each weighs 4 KiB more than what is in it), and {}/s need not be fetched",
            mend_journal::text::size(*cross as u64),
            mend_journal::text::size(*saves as u64)
        ),
        Why::Budget(allowed, with) => format!("moves may have cost {allowed:.2} s by now, and would have cost {with:.2} s"),
        Why::ToAndFro => "it, or who would make room, moved a short while ago, or came from there".into(),
        Why::Often => "it, or who would make room, moved to its data often enough".into(),
    }
}
