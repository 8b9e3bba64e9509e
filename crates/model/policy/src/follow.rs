//! When ranks move to their data: of the moves that a look at storage suggests, those that pay.
//!
//! ```text
//! a scan: how long ranks waited for what their nodes fetched, and moves by which nodes would fetch less ([`crate::placement`])
//!    │  weighed: suggested twice in a row ─ gains more than it costs ─ within the budget ─ not to and fro
//!    ▼
//! ranks that go, and why others stay
//! ```
//! What a move gains is time: of that for which ranks wait, the share of what it saves of all that is fetched, for as long as the job still runs. What it costs was
//! measured of the job's own moves. Messages that would cross nodes after the move, and don't now, are taken off what it saves: they take the same network.
//!
//! Faults assumed: scans of any kind. What is not known keeps a rank where it is.

use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// By this factor a move gains more than it costs.
const MARGIN: f64 = 2.0;
/// What a move is taken to cost before any was measured, seconds.
const UNKNOWN_COST_S: f64 = 0.5;
/// Share of the time that the job has run which all moves may have cost.
const BUDGET_SHARE: f64 = 0.05;
/// For so long a rank stays where it came for its data; it doubles each time. Microseconds.
const PAUSE_US: u64 = 20_000_000;
/// Times that a rank moves to its data in a life of the job, at most.
pub const MAX_MOVES: u32 = 8;
/// Weight of the newest move in what moves are taken to cost.
const NEWEST_WEIGHT: f64 = 0.5;
/// After so long a reason to stay is told again. Microseconds.
const TOLD_AGAIN_US: u64 = 600_000_000;
/// Ranks of other jobs of which is told in that time, at most.
const MOST_TOLD_OF: usize = 64;

/// Whether ranks follow their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// They move where that pays.
    Auto,
    /// Nobody moves; the journal has which moves would pay.
    Advise,
    /// Nobody looks at what they read.
    #[default]
    Off,
}

impl Mode {
    /// All of them, in the order in which help shows them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Advise, Self::Off];

    /// The word by which people and settings name it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Advise => "advise",
            Self::Off => "off",
        }
    }

    /// By its word; `None` if that is no word of these.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.word() == word)
    }
}

/// A move that would have nodes fetch less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wish {
    /// The rank that moves.
    pub rank: Rank,
    /// From which node, by name.
    pub from: String,
    /// To which one.
    pub to: String,
    /// Who goes the other way, since the node is full.
    pub back: Option<Rank>,
    /// Of all bytes that nodes fetched, the share that need not be, 0 to 1.
    pub share: f64,
    /// What MPI messages that begin to cross nodes weigh, less those that cease to, as a share of the bytes that nodes fetched. Any number: less than 0 if the
    /// network is spared messages, too.
    #[serde(default)]
    pub messages: f64,
}

impl Wish {
    /// Of what nodes fetched, the share that the network is spared.
    fn net(&self) -> f64 {
        (self.share.min(1.0) - self.messages).min(1.0)
    }
}

/// A rank of another job, on another node, that touches what a rank of this job does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignRank {
    /// The rank of this job.
    pub rank: Rank,
    /// The other job.
    pub job: String,
    /// The rank of that job.
    pub other: Rank,
    /// Where that runs.
    pub node: String,
    /// Bytes that both touch.
    pub bytes: u64,
}

/// What was seen of a job's data since the scan before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    /// How long that is, seconds.
    pub seconds: f64,
    /// Seconds for which ranks waited for what was fetched, of all together.
    pub waited_s: f64,
    /// Bytes that nodes fetched.
    pub fetched: u64,
    /// The best move first.
    pub wishes: Vec<Wish>,
    /// Moves that would be among these if ranks sent each other nothing. They are not made; why not is told.
    #[serde(default)]
    pub kept: Vec<Wish>,
    /// Ranks of other jobs that touch the same: nobody moves for them, and people are told.
    #[serde(default)]
    pub foreign_ranks: Vec<ForeignRank>,
}

impl Scan {
    fn is_sound(&self) -> bool {
        let share = |wish: &Wish| {
            wish.share.is_finite() && wish.share > 0.0 && wish.messages.is_finite() && wish.back != Some(wish.rank) && wish.from != wish.to
        };
        let wishes = || self.wishes.iter().chain(&self.kept);
        self.seconds.is_finite() && self.seconds > 0.0 && self.waited_s.is_finite() && self.waited_s >= 0.0 && wishes().all(share)
    }

    /// Bytes per second of a share of what was fetched.
    fn rate(&self, share: f64) -> f64 {
        share * self.fetched as f64 / self.seconds
    }
}

/// What is known when moves are weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Circumstances {
    /// Now, microseconds of the caller's clock.
    pub now_us: u64,
    /// When the job began on that clock.
    pub begun_us: u64,
    /// Seconds for which the job may still run; `None`: nobody knows.
    pub left_s: Option<f64>,
    /// Ranks of the job.
    pub ranks: u32,
    /// What keeps ranks from going to and fro counts; only the simulator has it otherwise.
    pub restrained: bool,
}

/// What a move would bring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reckoned {
    /// Share of its time for which a rank waits for data, in the mean.
    pub waits: f64,
    /// Share of that which the move saves by what need not be fetched.
    pub share: f64,
    /// Share of that which messages take of it: see [`Wish::messages`].
    pub messages: f64,
    /// Seconds that are left, as far as that is relied on: no more than the job has run.
    pub left_s: f64,
    /// Seconds that the move saves.
    pub gain_s: f64,
    /// Seconds that it has to save.
    pub price_s: f64,
}

/// Why a rank stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// It was suggested for the first time.
    Once,
    /// It gains less than it costs.
    NotWorth(Reckoned),
    /// Messages would begin to cross nodes: bytes per second of these, and bytes per second that need not be fetched.
    Messages(f64, f64),
    /// Moves have cost enough for now: seconds that they may cost by now, and what they would have with this one.
    Budget(f64, f64),
    /// It came from there, or moved a short while ago.
    ToAndFro,
    /// It moved often enough.
    Often,
}

/// What becomes of a wish.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is carried out.
    Goes(Reckoned),
    /// It is not.
    Stays(Why),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Past {
    times: u32,
    last_us: u64,
    left: BTreeSet<String>,
    /// What was told of it last, and when.
    told: Option<(u8, u64)>,
}

/// What is remembered of a job's moves to its data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Follow {
    /// What the last scan suggested.
    before: BTreeSet<(Rank, Option<Rank>, String)>,
    past: BTreeMap<Rank, Past>,
    cost_s: Option<f64>,
    spent_s: f64,
    /// Of which rank and which other job was told that they touch the same, and when.
    #[serde(default)]
    told_of: BTreeMap<(Rank, String), u64>,
}

impl Follow {
    /// Weighs what a scan suggests, in its order. Wishes of one scan are taken together: what goes counts for the budget of those behind it.
    pub fn weigh(&mut self, scan: &Scan, now: &Circumstances) -> Vec<(Wish, Verdict)> {
        if !scan.is_sound() || now.ranks == 0 {
            self.before.clear();
            return Vec::new();
        }
        let name = |wish: &Wish| (wish.rank, wish.back, wish.to.clone());
        let before = std::mem::replace(&mut self.before, scan.wishes.iter().chain(&scan.kept).map(name).collect());
        let ran_s = now.now_us.saturating_sub(now.begun_us) as f64 / 1e6;
        let left_s = now.left_s.unwrap_or(f64::INFINITY).min(ran_s);
        let waits = scan.waited_s / scan.seconds / f64::from(now.ranks);
        let (mut spent_s, mut going) = (self.spent_s, BTreeSet::new());
        let mut verdicts = Vec::new();
        for wish in &scan.wishes {
            let movers = 1.0 + f64::from(u8::from(wish.back.is_some()));
            let cost_s = movers * self.cost_s.unwrap_or(UNKNOWN_COST_S);
            let gain_s = waits.min(1.0) * wish.net() * left_s;
            let reckoned = Reckoned { waits, share: wish.share, messages: wish.messages, left_s, gain_s, price_s: MARGIN * cost_s };
            let verdict = if !before.contains(&name(wish)) {
                Verdict::Stays(Why::Once)
            } else if wish.net() <= 0.0 {
                Verdict::Stays(Why::Messages(scan.rate(wish.messages), scan.rate(wish.share)))
            } else if gain_s <= reckoned.price_s {
                Verdict::Stays(Why::NotWorth(reckoned))
            } else if std::iter::once(wish.rank).chain(wish.back).any(|rank| going.contains(&rank)) {
                Verdict::Stays(Why::ToAndFro)
            } else if let Some(why) = self.restrains(wish, now).filter(|_| now.restrained) {
                Verdict::Stays(why)
            } else if spent_s + cost_s > BUDGET_SHARE * ran_s && now.restrained {
                Verdict::Stays(Why::Budget(BUDGET_SHARE * ran_s, spent_s + cost_s))
            } else {
                spent_s += cost_s;
                going.extend(std::iter::once(wish.rank).chain(wish.back));
                Verdict::Goes(reckoned)
            };
            verdicts.push((wish.clone(), verdict));
        }
        for wish in &scan.kept {
            let why = if before.contains(&name(wish)) { Why::Messages(scan.rate(wish.messages), scan.rate(wish.share)) } else { Why::Once };
            verdicts.push((wish.clone(), Verdict::Stays(why)));
        }
        verdicts
    }

    fn restrains(&self, wish: &Wish, now: &Circumstances) -> Option<Why> {
        let ways = std::iter::once((wish.rank, &wish.to)).chain(wish.back.map(|back| (back, &wish.from)));
        let of = |(rank, to): (Rank, &String)| {
            let past = self.past.get(&rank)?;
            let pause = PAUSE_US.saturating_mul(1 << past.times.saturating_sub(1).min(MAX_MOVES));
            if past.times >= MAX_MOVES {
                Some(Why::Often)
            } else if past.left.contains(to) || past.times > 0 && now.now_us < past.last_us.saturating_add(pause) {
                Some(Why::ToAndFro)
            } else {
                None
            }
        };
        ways.into_iter().find_map(of)
    }

    /// A rank has come to another node, for whatever reason; it cost so many seconds.
    pub fn moved(&mut self, cost_s: f64) {
        let known = self.cost_s.unwrap_or(cost_s);
        self.cost_s = Some(known + NEWEST_WEIGHT * (cost_s - known));
        self.before.clear();
    }

    /// A rank has left this node for its data.
    pub fn followed(&mut self, now_us: u64, rank: Rank, from: &str, cost_s: f64) {
        let past = self.past.entry(rank).or_default();
        past.times += 1;
        past.last_us = now_us;
        past.left.insert(from.to_owned());
        self.spent_s += cost_s;
    }

    /// A rank was to follow its data and could not: it is left alone for a while.
    pub fn failed(&mut self, now_us: u64, rank: Rank) {
        let past = self.past.entry(rank).or_default();
        past.times += 1;
        past.last_us = now_us;
        self.before.clear();
    }

    /// Something else goes on: what is seen meanwhile says nothing.
    pub fn interrupt(&mut self) {
        self.before.clear();
    }

    /// True if this is to be told of a rank: another reason than the last one, or a long time after it.
    pub fn tells(&mut self, now_us: u64, rank: Rank, verdict: &Verdict) -> bool {
        let kind = match verdict {
            Verdict::Goes(_) => 0,
            Verdict::Stays(Why::Once) => return false,
            Verdict::Stays(Why::NotWorth(_)) => 1,
            Verdict::Stays(Why::Budget(..)) => 2,
            Verdict::Stays(Why::ToAndFro) => 3,
            Verdict::Stays(Why::Often) => 4,
            Verdict::Stays(Why::Messages(..)) => 5,
        };
        let past = self.past.entry(rank).or_default();
        let again = past.told.is_none_or(|(before, at_us)| before != kind || now_us >= at_us.saturating_add(TOLD_AGAIN_US));
        if again {
            past.told = Some((kind, now_us));
        }
        again
    }

    /// True if it is to be told that a rank touches what a rank of another job does: for the first time, or a long time after that.
    pub fn tells_of(&mut self, now_us: u64, foreign: &ForeignRank) -> bool {
        self.told_of.retain(|_, at_us| now_us < at_us.saturating_add(TOLD_AGAIN_US));
        let key = (foreign.rank, foreign.job.clone());
        let fresh = self.told_of.len() < MOST_TOLD_OF && !self.told_of.contains_key(&key);
        if fresh {
            self.told_of.insert(key, now_us);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wish(rank: Rank, from: &str, to: &str, share: f64) -> Wish {
        Wish { rank, from: from.into(), to: to.into(), back: None, share, messages: 0.0 }
    }

    /// Four ranks that wait for this share of their time.
    fn scan(waits: f64, wishes: Vec<Wish>) -> Scan {
        Scan { seconds: 5.0, waited_s: 5.0 * 4.0 * waits, fetched: 1 << 30, wishes, ..Scan::default() }
    }

    fn at(seconds: u64) -> Circumstances {
        Circumstances { now_us: seconds * 1_000_000, begun_us: 0, left_s: None, ranks: 4, restrained: true }
    }

    fn goes(verdicts: &[(Wish, Verdict)]) -> Vec<Rank> {
        verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Goes(_))).map(|(wish, _)| wish.rank).collect()
    }

    #[test]
    fn a_move_that_pays_is_made_when_it_was_suggested_twice() {
        let mut follow = Follow::default();
        let seen = scan(0.5, vec![wish(2, "b", "a", 0.5)]);
        assert_eq!(follow.weigh(&seen, &at(60))[0].1, Verdict::Stays(Why::Once));
        let Verdict::Goes(reckoned) = follow.weigh(&seen, &at(65))[0].1 else { panic!() };
        // A quarter of its time, for as long again as it has run.
        assert!((reckoned.gain_s - 0.25 * 65.0).abs() < 1e-9 && reckoned.price_s == 1.0);
        // Something else in between: it counts anew.
        follow.interrupt();
        assert_eq!(follow.weigh(&seen, &at(70))[0].1, Verdict::Stays(Why::Once));
    }

    #[test]
    fn what_does_not_pay_is_left() {
        for (waits, share, left_s) in [(0.001, 1.0, None), (0.5, 0.001, None), (0.5, 0.5, Some(2.0)), (0.0, 1.0, None)] {
            let mut follow = Follow::default();
            let seen = scan(waits, vec![wish(2, "b", "a", share)]);
            let now = Circumstances { left_s, ..at(100) };
            follow.weigh(&seen, &now);
            assert!(matches!(follow.weigh(&seen, &now)[0].1, Verdict::Stays(Why::NotWorth(_))), "{waits} {share} {left_s:?}");
        }
    }

    #[test]
    fn messages_that_would_cross_nodes_are_taken_off() {
        let of = |share: f64, messages: f64| {
            let mut follow = Follow::default();
            let seen = scan(0.5, vec![Wish { messages, ..wish(2, "b", "a", share) }]);
            follow.weigh(&seen, &at(60));
            follow.weigh(&seen, &at(65))[0].1.clone()
        };
        let gain_s = |verdict: Verdict| if let Verdict::Goes(reckoned) = verdict { reckoned.gain_s } else { panic!("{verdict:?}") };
        assert!((gain_s(of(0.5, 0.2)) - 0.5 * 0.3 * 65.0).abs() < 1e-9);
        assert!((gain_s(of(0.5, -0.3)) - 0.5 * 0.8 * 65.0).abs() < 1e-9);
        // No more than all of the waiting can be saved.
        assert!((gain_s(of(0.5, -90.0)) - 0.5 * 65.0).abs() < 1e-9);
        assert!(matches!(of(0.5, 0.49), Verdict::Stays(Why::NotWorth(_))));
        let rate = f64::from(1 << 30) / 5.0;
        for messages in [0.5, 3.0] {
            let Verdict::Stays(Why::Messages(crossing, data)) = of(0.5, messages) else { panic!("{messages}") };
            assert!((crossing - messages * rate).abs() < 1.0 && (data - 0.5 * rate).abs() < 1.0, "{crossing} {data}");
        }
    }

    #[test]
    fn what_messages_keep_from_being_suggested_is_told_and_never_made() {
        let mut follow = Follow::default();
        let kept = vec![Wish { messages: 0.1, ..wish(2, "b", "a", 0.5) }];
        let seen = Scan { kept, ..scan(0.9, Vec::new()) };
        assert_eq!(follow.weigh(&seen, &at(60))[0].1, Verdict::Stays(Why::Once));
        let (_, verdict) = &follow.weigh(&seen, &at(65))[0];
        assert!(matches!(verdict, Verdict::Stays(Why::Messages(..))));
        assert!(follow.tells(65_000_000, 2, verdict) && !follow.tells(66_000_000, 2, verdict));
        // A number that is none spoils the scan.
        let wrong = Scan { kept: vec![Wish { messages: f64::NAN, ..wish(2, "b", "a", 0.5) }], ..seen };
        assert!(follow.weigh(&wrong, &at(70)).is_empty());
    }

    #[test]
    fn nobody_goes_to_and_fro() {
        let mut follow = Follow::default();
        follow.moved(0.1);
        follow.followed(60_000_000, 2, "b", 0.1);
        // Back where it came from: never. Elsewhere: after a pause.
        for (to, seconds, wanted) in [("b", 3000, false), ("c", 79, false), ("c", 80, true), ("c", 3000, true)] {
            let seen = scan(0.5, vec![wish(2, "a", to, 0.9)]);
            follow.weigh(&seen, &at(seconds));
            assert_eq!(goes(&follow.weigh(&seen, &at(seconds))) == [2], wanted, "{to} {seconds}");
        }
        follow.failed(60_000_000, 2);
        for (seconds, wanted) in [(99, false), (100, true)] {
            let seen = scan(0.5, vec![wish(2, "a", "c", 0.9)]);
            follow.weigh(&seen, &at(seconds));
            assert_eq!(goes(&follow.weigh(&seen, &at(seconds))) == [2], wanted, "the second pause, {seconds}");
        }
        // Nor does who would have to make room.
        let seen = scan(0.5, vec![Wish { back: Some(2), ..wish(0, "b", "a", 0.9) }]);
        follow.weigh(&seen, &at(3000));
        assert_eq!(follow.weigh(&seen, &at(3000))[0].1, Verdict::Stays(Why::ToAndFro));
    }

    #[test]
    fn moves_cost_no_more_than_their_share_of_the_time() {
        let mut follow = Follow::default();
        follow.moved(1.0);
        let seen = scan(0.9, (0..4).map(|rank| wish(rank, "a", "b", 0.25)).collect());
        follow.weigh(&seen, &at(45));
        let verdicts = follow.weigh(&seen, &at(45));
        assert_eq!(goes(&verdicts), [0, 1]);
        assert!(matches!(verdicts[2].1, Verdict::Stays(Why::Budget(..))));
    }

    #[test]
    fn a_reason_is_told_when_it_changes() {
        let mut follow = Follow::default();
        let stays = Verdict::Stays(Why::ToAndFro);
        assert!(!follow.tells(0, 1, &Verdict::Stays(Why::Once)));
        assert!(follow.tells(0, 1, &stays) && !follow.tells(1, 1, &stays) && follow.tells(2, 1, &Verdict::Stays(Why::Often)));
        assert!(follow.tells(3, 1, &stays) && follow.tells(3 + TOLD_AGAIN_US, 1, &stays));
    }

    proptest! {
        /// Whatever scans say, all moves together cost no more than the budget, and no rank comes back to a node that it left for its data.
        #[test]
        fn scans_of_any_kind_keep_to_the_budget(
            scans in prop::collection::vec((0.0f64..2.0, prop::collection::vec((0u32..4, 0u32..3, 0u32..3, 0.0f64..1.5, -2.0f64..2.0), 0..4)), 1..60),
            cost in 0.01f64..3.0,
        ) {
            let (mut follow, mut spent) = (Follow::default(), 0.0);
            let mut left: BTreeMap<Rank, BTreeSet<String>> = BTreeMap::new();
            for (step, (waits, wishes)) in scans.into_iter().enumerate() {
                let seconds = 5 * (step as u64 + 1);
                let wishes = wishes.into_iter()
                    .map(|(rank, from, to, share, messages)| Wish { messages, ..wish(rank, &from.to_string(), &to.to_string(), share) })
                    .collect();
                for (wish, verdict) in follow.weigh(&scan(waits, wishes), &at(seconds)) {
                    if let Verdict::Goes(reckoned) = verdict {
                        prop_assert!(wish.messages < wish.share && reckoned.gain_s > reckoned.price_s);
                        prop_assert!(!left.entry(wish.rank).or_default().contains(&wish.to));
                        left.entry(wish.rank).or_default().insert(wish.from.clone());
                        follow.followed(seconds * 1_000_000, wish.rank, &wish.from, cost);
                        follow.moved(cost);
                        spent += cost;
                        // What the first ones cost nobody knows before.
                        prop_assert!(spent <= BUDGET_SHARE * seconds as f64 + 4.0 * cost);
                    }
                }
            }
        }
    }
}
