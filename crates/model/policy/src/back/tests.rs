use super::*;
use mend_messages::progress::Step;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;

/// A rank that tells its steps, on nodes of any speed.
struct Rank {
    ledger: Ledger,
    now_us: u64,
    /// Steps, with their part.
    done: f64,
    total: f64,
}

impl Rank {
    fn new(total: u64) -> Self {
        Self { ledger: Ledger::new(0), now_us: 0, done: 0.0, total: total as f64 }
    }

    /// Computes for so long, with a step each `step_us`.
    fn runs(&mut self, us: u64, step_us: f64) {
        self.now_us += us;
        self.done = (self.done + us as f64 / step_us).min(self.total);
        // When the last whole step was done.
        let at_us = self.now_us - (self.done.fract() * step_us) as u64;
        let step = Step { done: self.done as u64, total: self.total as u64, at_us };
        self.ledger.add(&Progress { step: Some(step), calls: 0, waited_us: 0, at_us: self.now_us });
    }

    fn moves(&mut self, to: NodeIndex, way: Way, cost_s: f64) {
        self.now_us += (cost_s * 1e6) as u64;
        self.ledger.moved(self.now_us, to, way, cost_s, Company::default());
    }

    fn weigh(&mut self, obstacle: Option<Obstacle>) -> Option<Verdict> {
        let candidates = [Candidate { node: 0, obstacle, ranks: 0, processors: 0, load: None }];
        self.ledger.weigh(&Circumstances {
            now_us: self.now_us,
            limit_s: None,
            left_s: None,
            load: None,
            candidates: &candidates,
            restrained: true,
        })
    }
}

#[test]
fn it_goes_back_when_what_is_left_is_worth_the_move() {
    let mut rank = Rank::new(1000);
    for _ in 0..10 {
        rank.runs(SECOND, 1e5);
    }
    assert_eq!(rank.weigh(None), None, "it is where it belongs");
    rank.moves(1, Way::Left, 2.0);
    assert_eq!(rank.ledger.home(), Some(0));
    for second in 0..10 {
        assert!(second > 6 || matches!(rank.weigh(None), Some(Verdict::Stays(Why::Measuring(1)))), "too little was seen");
        rank.runs(SECOND, 2e5);
    }
    // 850 steps are left: R x (Td - To) = 850 x 0.1 s.
    let Some(Verdict::Goes(weighed)) = rank.weigh(None) else { panic!("{:?}", rank.weigh(None)) };
    assert_eq!((weighed.to, weighed.by, weighed.cost_s), (0, Measure::Steps, 2.0));
    assert!((weighed.gain_s - 85.0).abs() < 1.0, "{weighed:?}");
    assert_eq!(rank.weigh(Some(Obstacle::Unfit)), Some(Verdict::Stays(Why::Kept(0, Obstacle::Unfit))));
    // With 20 steps left the gain is 2 s, and no move.
    rank.done = 980.0;
    rank.runs(1, 2e5);
    rank.runs(SECOND, 2e5);
    let verdict = rank.weigh(None);
    assert!(matches!(verdict, Some(Verdict::Stays(Why::TooLittleLeft(_)))), "{verdict:?}");
}

#[test]
fn it_stays_where_the_user_placed_it_where_it_is_as_fast_and_where_it_gained_nothing() {
    let mut rank = Rank::new(100_000);
    let run = |rank: &mut Rank, step_us: f64| (0..12).for_each(|_| rank.runs(SECOND, step_us));
    run(&mut rank, 1e4);
    rank.moves(1, Way::Chosen, 0.5);
    run(&mut rank, 1e5);
    assert_eq!(rank.weigh(None), None);
    let mut rank = Rank::new(100_000);
    run(&mut rank, 1e4);
    rank.moves(1, Way::Left, 0.5);
    run(&mut rank, 1.01e4);
    assert!(matches!(rank.weigh(None), Some(Verdict::Stays(Why::NotFaster(_)))));
    run(&mut rank, 2e4);
    run(&mut rank, 2e4);
    assert!(matches!(rank.weigh(None), Some(Verdict::Goes(_))));
    // It goes, and is no faster there: something else has become slower. The next time it stays.
    rank.moves(0, Way::Back, 0.5);
    run(&mut rank, 2e4);
    rank.moves(1, Way::Left, 0.5);
    run(&mut rank, 4e4);
    rank.now_us += 1000 * SECOND;
    assert_eq!(rank.weigh(None), Some(Verdict::Stays(Why::GainedNothing)));
}

#[test]
fn a_rank_that_only_waits_longer_for_others_stays() {
    let mut ledger = Ledger::new(0);
    let mut at = 0;
    let mut add = |ledger: &mut Ledger, count: u64, step_us: u64, own_us: u64| {
        for _ in 0..count {
            at += 1;
            let (done, waited_us) = (at, at * (step_us - own_us));
            let step = Step { done, total: 1_000_000, at_us: at * step_us };
            ledger.add(&Progress { step: Some(step), calls: 0, waited_us, at_us: at * step_us });
        }
    };
    add(&mut ledger, 40, 100_000, 90_000);
    ledger.moved(0, 1, Way::Left, 0.1, Company::default());
    // Steps take twice as long, of which its own part has not grown.
    add(&mut ledger, 40, 200_000, 90_000);
    let candidates = [Candidate { node: 0, obstacle: None, ranks: 0, processors: 0, load: None }];
    let found =
        ledger.weigh(&Circumstances { now_us: 0, limit_s: None, left_s: None, load: None, candidates: &candidates, restrained: true });
    assert!(matches!(found, Some(Verdict::Stays(Why::NotFaster(_)))), "{found:?}");
}

#[test]
fn messages_count_where_no_steps_are_told_and_the_time_that_is_left_bounds_what_is_to_do() {
    let mut ledger = Ledger::new(0);
    let mut at = 0;
    let mut add = |ledger: &mut Ledger, rate: u64| {
        for _ in 0..10 {
            at += 1;
            ledger.add(&Progress { step: None, calls: at * rate, waited_us: 0, at_us: at * SECOND });
        }
    };
    add(&mut ledger, 1000);
    ledger.moved(0, 1, Way::Left, 3.0, Company::default());
    add(&mut ledger, 500);
    let candidates = [Candidate { node: 0, obstacle: None, ranks: 0, processors: 0, load: None }];
    let mut weigh =
        |left_s| ledger.weigh(&Circumstances { now_us: 0, limit_s: left_s, left_s, load: None, candidates: &candidates, restrained: true });
    assert_eq!(weigh(None), Some(Verdict::Stays(Why::NoMeasure)));
    assert!(matches!(weigh(Some(5.0)), Some(Verdict::Stays(Why::TooLittleLeft(_)))));
    let Some(Verdict::Goes(weighed)) = weigh(Some(60.0)) else { panic!("{:?}", weigh(Some(60.0))) };
    assert_eq!((weighed.by, weighed.gain_s), (Measure::Messages, 30.0));
}

#[test]
fn steps_that_are_told_are_bounded_by_the_time_limit_alone() {
    let mut rank = Rank::new(1000);
    (0..10).for_each(|_| rank.runs(SECOND, 1e5));
    rank.moves(1, Way::Left, 2.0);
    (0..10).for_each(|_| rank.runs(SECOND, 2e5));
    let candidates = [Candidate { node: 0, obstacle: None, ranks: 0, processors: 0, load: None }];
    let mut weigh = |limit_s, left_s| {
        let circumstances = Circumstances { now_us: rank.now_us, limit_s, left_s, load: None, candidates: &candidates, restrained: true };
        rank.ledger.weigh(&circumstances)
    };
    // Of 850 steps half the time here is saved. The job has hardly begun, and may run for an hour.
    let Some(Verdict::Goes(weighed)) = weigh(Some(3600.0), Some(1.0)) else { panic!("{:?}", weigh(Some(3600.0), Some(1.0))) };
    assert!((weighed.left_s - 170.0).abs() < 2.0, "{weighed:?}");
    let Some(Verdict::Stays(Why::TooLittleLeft(weighed))) = weigh(Some(1.0), Some(1.0)) else {
        panic!("{:?}", weigh(Some(1.0), Some(1.0)))
    };
    assert_eq!(weighed.left_s, 1.0);
}

#[test]
fn a_node_that_is_less_loaded_is_better_and_one_that_became_busy_is_not_what_it_was() {
    let mut rank = Rank::new(1_000_000);
    (0..10).for_each(|_| rank.runs(SECOND, 1e4));
    rank.ledger.moved(rank.now_us, 1, Way::Left, 0.5, Company { load: Some(1.0), ranks: 4 });
    (0..40).for_each(|_| rank.runs(SECOND, 2e4));
    let weigh = |rank: &mut Rank, here: f64, home: f64, spare: Option<Obstacle>| {
        let candidate = |node, obstacle, load| Candidate { node, obstacle, ranks: 3, processors: 4, load: Some(load) };
        let candidates = [candidate(0, None, home), candidate(2, spare, 0.0)];
        rank.ledger.weigh(&Circumstances {
            now_us: rank.now_us,
            limit_s: None,
            left_s: None,
            load: Some(here),
            candidates: &candidates,
            restrained: true,
        })
    };
    let to = |verdict: Option<Verdict>| match verdict {
        Some(Verdict::Goes(weighed)) => Some((weighed.to, weighed.by)),
        _ => None,
    };
    assert_eq!(to(weigh(&mut rank, 2.0, 0.5, None)), Some((0, Measure::Steps)), "what was measured comes first");
    // Somebody else has taken the old node: what was measured there says nothing any more, and the empty one will do.
    // Not at once: load is an average that lags, and may be a moment's.
    assert_eq!(to(weigh(&mut rank, 2.0, 4.0, None)), None);
    rank.now_us += LOAD_TIME_US;
    assert_eq!(to(weigh(&mut rank, 2.0, 4.0, None)), Some((2, Measure::Load)));
    assert_eq!(to(weigh(&mut rank, 2.0, 4.0, Some(Obstacle::Drained))), None);
    // Ranks of the job have taken the place.
    let crowded = [Candidate { node: 0, obstacle: None, ranks: 4, processors: 4, load: Some(0.5) }];
    let circumstances =
        Circumstances { now_us: rank.now_us, limit_s: None, left_s: None, load: Some(2.0), candidates: &crowded, restrained: true };
    assert_eq!(rank.ledger.weigh(&circumstances), Some(Verdict::Stays(Why::Kept(0, Obstacle::Crowded))));
    // Nobody is in the way here: an empty node is no faster.
    assert_eq!(to(weigh(&mut rank, 0.25, 4.0, None)), None);
}

#[test]
fn several_go_if_the_slowest_gains_more_than_all_of_their_moves_cost() {
    let one =
        |gain_s, price_s| Weighed { to: 0, by: Measure::Steps, here_us: 2.0, there_us: 1.0, left_s: 9.0, gain_s, cost_s: price_s, price_s };
    assert!(is_worth(&[one(5.0, 2.0), one(4.0, 2.0)]) && !is_worth(&[one(5.0, 3.0), one(4.0, 3.0)]) && !is_worth(&[]));
}

#[test]
fn reasons_are_told_when_they_change_and_not_all_the_time() {
    let mut ledger = Ledger::new(0);
    let (sick, drained) = (Why::Kept(0, Obstacle::Unfit), Why::Kept(0, Obstacle::Drained));
    assert!(ledger.tells(0, &sick) && !ledger.tells(SECOND, &sick) && !ledger.tells(SECOND, &drained));
    assert!(ledger.tells(10 * SECOND, &drained) && !ledger.tells(1000 * SECOND, &drained));
}

proptest! {
    /// A node is left, gets well, and the spare is throttled: what follows is within 10 % of the best that could follow from the moment at which
    /// enough was measured, and never a loss beyond that.
    #[test]
    fn the_rest_takes_little_longer_than_the_best(
        home_us in 1e3f64..3e6, slower in 0.5f64..10.0, steps in 1u64..100_000, cost_s in 0.01f64..60.0,
    ) {
        let spare_us = home_us * slower;
        let mut rank = Rank::new(u64::MAX >> 12);
        let interval = (2.0 * home_us.max(spare_us)).max(1e6) as u64;
        (0..12).for_each(|_| rank.runs(interval, home_us));
        rank.moves(1, Way::Left, cost_s);
        (0..8).for_each(|_| rank.runs(interval, spare_us));
        rank.total = rank.done + steps as f64;
        rank.runs(interval, spare_us);
        let left = rank.total - rank.done;
        let stays = left * spare_us / 1e6;
        let goes = left * home_us / 1e6 + cost_s;
        let (best, took) = (stays.min(goes), if matches!(rank.weigh(None), Some(Verdict::Goes(_))) { goes } else { stays });
        prop_assert!(took <= best * 1.1 + 2.0 * interval as f64 / 1e6 * f64::from(u8::from(left < 20.0)), "{took} against {best}: {:?}", rank.weigh(None));
        prop_assert!(took <= stays * 1.02 + 1e-6, "a loss: {took} against {stays}");
    }

    /// Whatever nodes do, and however their speed changes: a rank goes back a few times at most, and never to where it went back from.
    #[test]
    fn nothing_goes_to_and_fro(events in proptest::collection::vec((0u32..3, 1e3f64..1e6, any::<bool>()), 1..60)) {
        let mut rank = Rank::new(u64::MAX >> 12);
        let (mut here, mut returns, mut left) = (0, 0, BTreeSet::new());
        for (node, step_us, sickens) in events {
            (0..40).for_each(|_| rank.runs(5 * SECOND, step_us));
            let candidates: Vec<Candidate> =
                (0..3).map(|node| Candidate { node, obstacle: None, ranks: 0, processors: 2, load: Some(f64::from(node)) }).collect();
            let circumstances = Circumstances { now_us: rank.now_us, limit_s: Some(1e9), left_s: Some(1e9), load: Some(1.0), candidates: &candidates, restrained: true };
            match rank.ledger.weigh(&circumstances) {
                Some(Verdict::Goes(weighed)) => {
                    prop_assert!(weighed.to != here && !left.contains(&weighed.to) && weighed.gain_s > weighed.price_s);
                    left.insert(here);
                    here = weighed.to;
                    returns += 1;
                    rank.moves(here, Way::Back, 0.1);
                }
                _ if sickens && node != here => {
                    here = node;
                    rank.moves(here, Way::Left, 0.1);
                }
                _ => {}
            }
        }
        prop_assert!(returns <= MAX_RETURNS);
    }
}
