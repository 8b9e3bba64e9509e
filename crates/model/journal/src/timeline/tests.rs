use super::*;
use crate::compact::compact;
use crate::event::{Cause, Code, Event, PhaseTimes};
use crate::facts::Precopied;
use crate::frame::encode;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// When journals here begin, microseconds since 1970.
const BEGIN: u64 = 1_700_000_000_000_000;
const MS: u64 = 1_000;

/// A journal in the making; times are milliseconds since its beginning.
#[derive(Clone, Default)]
struct Journal(Vec<Entry>);

impl Journal {
    fn of(mut self, ms: u64, rank: Option<u32>, node: Option<&str>, event: Event) -> Self {
        let (seq, node) = (self.0.len() as u64 + 1, node.map(str::to_owned));
        self.0.push(Entry { seq, at: BEGIN + ms * MS, node, rank, event });
        self
    }

    fn put(self, ms: u64, event: Event) -> Self {
        self.of(ms, None, None, event)
    }

    fn begin(self, ms: u64, ranks: u32, from: Option<u64>) -> Self {
        let (hosts, settings, release, interval) = (Vec::new(), BTreeMap::new(), String::new(), String::new());
        self.put(
            ms,
            match from {
                Some(checkpoint) => Event::JobRestarted { checkpoint, ranks, hosts, settings, release, interval },
                None => Event::JobStarted { command: vec!["x".into()], ranks, hosts, settings, release, interval },
            },
        )
    }

    fn placed(self, ms: u64, places: &[(&str, &[u32])]) -> Self {
        let places = places.iter().map(|(node, ranks)| ((*node).to_owned(), ranks.iter().copied().collect())).collect();
        self.put(ms, Event::Placed { places })
    }

    /// Four ranks on a and b, all of which run after 100 ms.
    fn started() -> Self {
        let placed = Self::default().begin(0, 4, None).placed(10, &[("a", &[0, 1]), ("b", &[2, 3])]);
        (0..4).fold(placed, |journal, rank| {
            journal.of(97 + u64::from(rank), Some(rank), Some(["a", "b"][rank as usize / 2]), Event::RankStarted)
        })
    }

    fn phase(self, ms: u64, rank: Option<u32>, phase: Phase, took: u64) -> Self {
        let checkpoint = rank.is_none().then_some(1);
        self.of(ms, rank, rank.map(|_| "b"), Event::PhaseDone { phase, us: took * MS, checkpoint })
    }

    /// From 1000 to 1500 ms; the ranks stand still from 1100 to 1300.
    fn checkpoint(self) -> Self {
        self.put(1_000, Event::CheckpointAsked { checkpoint: 1, by: Asker::User, mode: "stop".into(), base: None })
            .phase(1_100, None, Phase::Inspect, 100)
            .phase(1_200, None, Phase::Suspend, 100)
            .phase(1_290, None, Phase::Save, 90)
            .phase(1_300, None, Phase::Resume, 10)
            .phase(1_500, None, Phase::Write, 200)
            .put(1_500, committed(1, 200, 500))
    }

    fn asked(self, ms: u64, rank: u32, from: &str, to: &str) -> Self {
        self.of(ms, Some(rank), Some(from), Event::MigrationAsked { by: Asker::User, from: from.into(), to: to.into(), storage: None })
    }

    /// It stood still for 300 ms, up to then.
    fn moved(self, ms: u64, rank: u32, from: &str, to: &str, precopied_ms: Option<u64>) -> Self {
        let decided = Event::MigrationDecided { from: from.into(), to: to.into() };
        self.phase(ms - 200, Some(rank), Phase::Suspend, 100)
            .phase(ms - 100, Some(rank), Phase::Move, 100)
            .phase(ms - 50, Some(rank), Phase::Connect, 50)
            .of(ms - 50, Some(rank), Some(to), decided)
            .phase(ms, Some(rank), Phase::Resume, 50)
            .of(ms, Some(rank), Some(to), moved_event(from, to, precopied_ms))
    }

    fn exited(self, ms: u64, ranks: u32) -> Self {
        let exited =
            (0..ranks).fold(self, |journal, rank| journal.of(ms + u64::from(rank), Some(rank), None, Event::RankExited { status: 0 }));
        exited.put(ms + 10, Event::Ended { status: 0, cause: Cause::Done })
    }

    fn timeline(&self) -> Timeline {
        let timeline = Timeline::of(&self.0, None);
        holds(&timeline);
        timeline
    }
}

fn committed(checkpoint: u64, stopped_ms: u64, durable_ms: u64) -> Event {
    let (by, kind, phases) = (Asker::User, "full".into(), PhaseTimes::default());
    Event::CheckpointCommitted { checkpoint, by, kind, bytes: 7, stopped_us: stopped_ms * MS, durable_us: durable_ms * MS, phases }
}

fn moved_event(from: &str, to: &str, precopied_ms: Option<u64>) -> Event {
    let precopied = precopied_ms.map(|ms| Precopied { us: ms * MS, ..Precopied::default() });
    let (from, to, phases) = (from.into(), to.into(), PhaseTimes::default());
    Event::MigrationCommitted { from, to, bytes: 9, sent_bytes: None, transport: None, stopped_us: 300 * MS, phases, precopied }
}

/// What holds of every timeline.
fn holds(timeline: &Timeline) {
    assert!(timeline.begin <= timeline.end);
    let mut ranks = Ranks::default();
    for track in &timeline.tracks {
        assert!(track.ranks.intersection(&ranks).is_empty() && !track.ranks.is_empty());
        ranks = Ranks::from([Vec::from(ranks), Vec::from(track.ranks.clone())].concat());
        assert!(track.spans.iter().all(|span| span.begin <= span.end && span.end <= timeline.end));
        assert!(track.spans.windows(2).all(|pair| pair[0].end <= pair[1].begin), "{track:?}");
    }
    for operation in &timeline.operations {
        assert!(timeline.begin <= operation.begin && operation.begin <= operation.end);
        assert!(operation.phases.iter().all(|step| operation.begin <= step.begin && step.begin <= step.end));
        assert!(operation.rounds.iter().all(|round| round.begin <= round.end));
        assert!(operation.stopped().is_none_or(|(begin, end)| begin <= end));
    }
    assert!(timeline.operations.windows(2).all(|pair| pair[0].begin <= pair[1].begin));
    assert!(timeline.lives.iter().all(|life| life.begin <= life.end));
}

/// A timeline's tracks, a line each, times in milliseconds.
fn drawn(timeline: &Timeline) -> Vec<String> {
    let ms = |at: u64| at.saturating_sub(BEGIN) / MS;
    let activity = |activity| match activity {
        Activity::Starting => "starts".to_owned(),
        Activity::Restoring => "restores".into(),
        Activity::Running => "runs".into(),
        Activity::Copying => "copied".into(),
        Activity::Checkpoint { checkpoint } => format!("checkpoint {checkpoint}"),
        Activity::Moving => "moves".into(),
    };
    let span =
        |span: &Span| format!("{}-{} {} {}", ms(span.begin), ms(span.end), span.node.as_deref().unwrap_or("?"), activity(span.activity));
    let track = |track: &Track| format!("{}: {}", track.ranks, track.spans.iter().map(span).collect::<Vec<_>>().join("; "));
    timeline.tracks.iter().map(track).collect()
}

#[test]
fn a_checkpoint_stops_all_ranks_and_those_alike_share_a_track() {
    let timeline = Journal::started().checkpoint().exited(2_000, 4).timeline();
    assert_eq!(
        drawn(&timeline),
        [
            "0-1: 10-98 a starts; 98-1100 a runs; 1100-1300 a checkpoint 1; 1300-2000 a runs",
            "2-3: 10-100 b starts; 100-1100 b runs; 1100-1300 b checkpoint 1; 1300-2002 b runs",
        ]
    );
    let [start, checkpoint] = &timeline.operations[..] else { panic!("{:?}", timeline.operations) };
    assert_eq!((&start.what, &start.outcome, start.took_us()), (&What::Start, &Outcome::Done, Some(100 * MS)));
    assert_eq!(checkpoint.what, What::Checkpoint { checkpoint: 1, by: Asker::User });
    assert_eq!((checkpoint.took_us(), checkpoint.stopped_us, checkpoint.bytes), (Some(500 * MS), Some(200 * MS), Some(7)));
    let phases: Vec<(Phase, u64)> = checkpoint.phases.iter().map(|step| (step.phase, (step.begin - BEGIN) / MS)).collect();
    let expected = [(Phase::Inspect, 1_000), (Phase::Suspend, 1_100), (Phase::Save, 1_200), (Phase::Resume, 1_290), (Phase::Write, 1_300)];
    assert_eq!(phases, expected);
    assert_eq!((timeline.nodes.join(","), timeline.running, timeline.ranks), ("a,b".into(), false, 4));
    assert_eq!(timeline.lives[0].ended.as_deref(), Some("the job ended with exit code 0: all ranks ended well"));
}

#[test]
fn a_rank_moves_while_it_runs() {
    let journal = Journal::started().asked(1_000, 3, "b", "c").phase(1_010, Some(3), Phase::Inspect, 10);
    let round = |round, us| Event::RoundDone { round, bytes: 5, us, left: Some(1) };
    let journal = journal.of(1_500, Some(3), Some("b"), round(0, 490 * MS)).of(1_600, Some(3), Some("b"), round(1, 120 * MS));
    // Under way: it is copied still.
    assert_eq!(drawn(&journal.timeline())[2], "3: 10-100 b starts; 100-1010 b runs; 1010-1600 b copied");
    let moved = |precopied: u64| {
        let journal = journal.clone().phase(1_010 + precopied, Some(3), Phase::Precopy, precopied);
        journal.moved(2_000, 3, "b", "c", Some(690)).exited(3_000, 4).timeline()
    };
    let timeline = moved(690);
    let expected = "3: 10-100 b starts; 100-1010 b runs; 1010-1700 b copied; 1700-1950 b moves; 1950-2000 c moves; 2000-3003 c runs";
    assert_eq!(drawn(&timeline)[2], expected);
    // Nor is it told that it ran otherwise between the last round and its stop.
    assert_eq!(drawn(&moved(680))[2], expected);
    let done = &timeline.operations[1];
    assert_eq!(done.what, What::Migration { rank: 3, from: "b".into(), to: "c".into(), live: true });
    assert_eq!((done.decided, &done.outcome, done.took_us()), (Some(BEGIN + 1_950 * MS), &Outcome::Done, Some(1_000 * MS)));
    assert_eq!(done.stopped(), Some((BEGIN + 1_700 * MS, BEGIN + 2_000 * MS)));
    // Rounds follow each other, whatever the agent measured.
    let rounds: Vec<u64> = done.rounds.iter().flat_map(|round| [round.begin - BEGIN, round.end - BEGIN]).map(|us| us / MS).collect();
    assert_eq!(rounds, [1_010, 1_500, 1_500, 1_600]);
    assert_eq!(timeline.nodes, ["a", "b", "c"]);
}

#[test]
fn ranks_move_frozen_and_several_at_once() {
    let journal = Journal::started().asked(1_000, 0, "a", "c").asked(1_000, 1, "a", "c").phase(1_700, Some(0), Phase::Inspect, 700);
    let journal = journal.moved(2_000, 0, "a", "c", None).phase(2_000, Some(1), Phase::Wait, 990).moved(2_300, 1, "a", "c", None);
    let timeline = journal.exited(3_000, 4).timeline();
    let tracks = drawn(&timeline);
    assert_eq!(tracks[0], "0: 10-98 a starts; 98-1700 a runs; 1700-1950 a moves; 1950-2000 c moves; 2000-3000 c runs");
    assert_eq!(tracks[1], "1: 10-98 a starts; 98-2000 a runs; 2000-2250 a moves; 2250-2300 c moves; 2300-3001 c runs");
    assert!(timeline.operations[1..].iter().all(|done| matches!(&done.what, What::Migration { live: false, .. })));
}

#[test]
fn a_move_that_fails_leaves_the_rank_where_it_was() {
    let undone = Event::MigrationUndone { code: Code::Target, error: "no room".into(), hint: String::new(), lacks: None };
    let before =
        Journal::started().asked(1_000, 3, "b", "").phase(1_100, Some(3), Phase::Suspend, 100).phase(1_300, Some(3), Phase::Move, 200);
    let timeline = before.phase(1_400, Some(3), Phase::Undo, 100).of(1_400, Some(3), Some("b"), undone).exited(2_000, 4).timeline();
    assert_eq!(drawn(&timeline)[2], "3: 10-100 b starts; 100-1000 b runs; 1000-1400 b moves; 1400-2003 b runs");
    assert_eq!(timeline.operations[1].outcome, Outcome::Failed { error: "no room".into() });
    assert_eq!(timeline.nodes, ["a", "b"]);
}

#[test]
fn a_node_is_lost_and_the_job_restarts() {
    let lost = Event::NodeLost { why: "silent".into(), ranks: [2, 3].into_iter().collect() };
    let journal = Journal::started().checkpoint().of(2_000, None, Some("b"), lost);
    let ended = Event::Ended { status: 75, cause: Cause::NodeLost { node: "b".into(), ranks: "2-3".into(), why: "silent".into() } };
    let journal = journal.put(2_100, ended).begin(5_000, 4, Some(1)).placed(5_010, &[("a", &[0, 1, 2, 3])]);
    let read = |phase, us| Event::PhaseDone { phase, us, checkpoint: None };
    let journal =
        journal.of(5_100, Some(0), Some("a"), read(Phase::Read, 80 * MS)).of(5_120, Some(1), Some("a"), read(Phase::Read, 70 * MS));
    let restored = (0..4).fold(journal, |journal, rank| journal.of(5_200, Some(rank), Some("a"), Event::RankRestored { us: 9, bytes: 3 }));
    let timeline = restored.put(5_300, Event::Resumed { us: 300 * MS }).put(6_000, Event::KillAsked).timeline();
    assert_eq!(
        drawn(&timeline),
        [
            "0-1: 10-98 a starts; 98-1100 a runs; 1100-1300 a checkpoint 1; 1300-2100 a runs; 5010-5300 a restores; 5300-6000 a runs",
            "2-3: 10-100 b starts; 100-1100 b runs; 1100-1300 b checkpoint 1; 1300-2000 b runs; 5010-5300 a restores; 5300-6000 a runs",
        ]
    );
    let restart = &timeline.operations[2];
    assert_eq!((&restart.what, restart.took_us()), (&What::Restart { checkpoint: 1 }, Some(300 * MS)));
    // From the first rank that began to read to the last that was done.
    assert_eq!(
        restart.phases.iter().map(|step| ((step.begin - BEGIN) / MS, (step.end - BEGIN) / MS)).collect::<Vec<_>>(),
        [(5_020, 5_120)]
    );
    let marks: Vec<MarkKind> = timeline.marks.iter().map(|mark| mark.kind).collect();
    assert_eq!(marks, [MarkKind::NodeLost, MarkKind::Ended, MarkKind::EndAsked]);
    assert_eq!(timeline.marks[0].ranks.to_string(), "2-3");
    assert_eq!(timeline.lives.iter().map(|life| life.from_checkpoint).collect::<Vec<_>>(), [None, Some(1)]);
}

#[test]
fn a_controller_that_died_is_told_of_by_the_next_one() {
    let asked = Event::CheckpointAsked { checkpoint: 1, by: Asker::User, mode: "stop".into(), base: None };
    let timeline = Journal::started().put(1_000, asked).put(9_000, Event::ControllerDied).timeline();
    assert_eq!(drawn(&timeline)[0], "0-1: 10-98 a starts; 98-1000 a runs");
    assert_eq!(timeline.lives[0].end, BEGIN + 1_000 * MS);
    assert_eq!(timeline.operations[1].outcome, Outcome::Failed { error: "the job ended first".into() });
}

#[test]
fn a_running_job_lasts_until_now() {
    let timeline = Timeline::of(&Journal::started().0, Some(BEGIN + 4_000 * MS));
    holds(&timeline);
    assert_eq!(drawn(&timeline)[1], "2-3: 10-100 b starts; 100-4000 b runs");
    assert!(timeline.running && timeline.lives[0].ended.is_none());
    assert_eq!(timeline.lives[0].end, BEGIN + 4_000 * MS);
    // A clock behind that of the journal.
    holds(&Timeline::of(&Journal::started().0, Some(1)));
}

#[test]
fn what_a_summary_stands_for_is_filled_in() {
    let journal = Journal::started().checkpoint().asked(2_000, 3, "b", "c").moved(3_000, 3, "b", "c", Some(500));
    let asked = |checkpoint| Event::CheckpointAsked { checkpoint, by: Asker::Schedule, mode: "stop".into(), base: None };
    let journal = journal.put(4_000, asked(2)).put(4_100, Event::Noticed { what: "x".into() });
    let journal = journal.put(4_200, committed(2, 50, 200)).exited(5_000, 4);
    // What stays are milestones and the newest: from the commit of checkpoint 2 on.
    let newest = journal.0.iter().rposition(|entry| matches!(entry.event, Event::CheckpointCommitted { .. })).unwrap();
    let budget = journal.0[newest..].iter().map(|entry| encode(entry).unwrap().len()).sum();
    let kept = compact(&journal.0, budget);
    let summary = kept.iter().position(|entry| matches!(entry.event, Event::Compacted { .. })).unwrap();
    assert!(matches!(kept[summary + 1].event, Event::CheckpointCommitted { .. }), "{:?}", kept[summary + 1].event);
    let timeline = Timeline::of(&kept, None);
    holds(&timeline);
    assert_eq!(
        drawn(&timeline),
        [
            "0-2: 0-1000 ? runs".replace("0-2", "0-1").replace("? runs", "a runs")
                + "; 1000-1200 a checkpoint 1; 1200-4000 a runs; 4000-4050 a checkpoint 2; 4050-5000 a runs",
            "2: 0-1000 b runs; 1000-1200 b checkpoint 1; 1200-4000 b runs; 4000-4050 b checkpoint 2; 4050-5002 b runs".into(),
            "3: 0-1000 b runs; 1000-1200 b checkpoint 1; 1200-2200 b runs; 2200-2700 b copied; 2700-3000 b moves; 3000-4000 c runs; \
             4000-4050 c checkpoint 2; 4050-5003 c runs"
                .into(),
        ]
    );
    assert_eq!(timeline.summary_until, Some(BEGIN + 4_100 * MS));
    assert_eq!((&timeline.operations[0].outcome, timeline.operations[0].took_us()), (&Outcome::Unknown, None));
}

#[test]
fn a_life_that_is_left_out_but_for_its_milestones_had_ranks_somewhere() {
    let kept = Journal::default().begin(0, 2, None).put(1_000, Event::Ended { status: 1, cause: Cause::Killed });
    let timeline = kept.begin(2_000, 2, Some(4)).placed(2_000, &[("a", &[0, 1])]).put(3_000, Event::Resumed { us: 1 }).timeline();
    assert_eq!(drawn(&timeline), ["0-1: 0-1000 ? runs; 2000-3000 a restores; 3000-3000 a runs"]);
}

#[test]
fn numbers_beyond_all_bounds_cost_nothing() {
    let everyone = Ranks::from(vec![(0, u32::MAX)]);
    let journal = Journal::default().begin(0, u32::MAX, None).put(1, Event::Placed { places: BTreeMap::from([("a".into(), everyone)]) });
    let journal = journal.of(2, Some(u32::MAX), Some("b"), moved_event("a", "b", Some(u64::MAX / MS)));
    let mut journal = journal.put(3, Event::PhaseDone { phase: Phase::Save, us: u64::MAX, checkpoint: Some(u64::MAX) });
    journal.0.push(Entry { at: u64::MAX, ..journal.0[0].clone() });
    journal.0.push(Entry { at: 0, ..journal.0[1].clone() });
    assert!(journal.timeline().tracks.len() <= 4);
}

#[test]
fn nothing_is_no_timeline() {
    assert_eq!(Timeline::of(&[], None), Timeline::default());
    let unknown = Event::Unknown { event: "later".into(), data: serde_json::Value::Null };
    assert_eq!(Journal::default().put(5, unknown).timeline().tracks, []);
}

fn event() -> impl Strategy<Value = Event> {
    let us = || prop_oneof![0u64..3_000_000, Just(u64::MAX)];
    let name = || prop_oneof![Just(String::new()), Just("a".to_owned()), Just("b".to_owned())];
    let phases = [
        Phase::Inspect,
        Phase::Suspend,
        Phase::Save,
        Phase::Resume,
        Phase::Write,
        Phase::Precopy,
        Phase::Wait,
        Phase::Move,
        Phase::Connect,
        Phase::Undo,
        Phase::Read,
        Phase::Rebuild,
        Phase::Other,
    ];
    let begin = |ranks, from| Journal::default().begin(0, ranks, from).0.remove(0).event;
    let places = proptest::collection::btree_map(name(), proptest::collection::vec((0u32..6, 0u32..6), 0..3).prop_map(Ranks::from), 0..3);
    let asked = |checkpoint| Event::CheckpointAsked { checkpoint, by: Asker::User, mode: "stop".into(), base: None };
    let failed =
        |checkpoint| Event::CheckpointFailed { checkpoint, by: Asker::User, code: Code::Other, error: "x".into(), hint: "y".into() };
    prop_oneof![
        (0u32..6, proptest::option::of(0u64..4)).prop_map(move |(ranks, from)| begin(ranks, from)),
        places.prop_map(|places| Event::Placed { places }),
        Just(Event::RankStarted),
        us().prop_map(|us| Event::RankRestored { us, bytes: 1 }),
        us().prop_map(|us| Event::Resumed { us }),
        (0i32..2).prop_map(|status| Event::RankExited { status }),
        Just(Event::RankSignal { signal: 9 }),
        (0u64..4).prop_map(asked),
        (0u64..4).prop_map(|checkpoint| Event::CheckpointDecided { checkpoint }),
        (0u64..4, 0u64..3_000, 0u64..3_000).prop_map(|(checkpoint, stopped, durable)| committed(checkpoint, stopped, durable)),
        (0u64..4).prop_map(failed),
        (proptest::sample::select(phases.to_vec()), us(), proptest::option::of(0u64..4))
            .prop_map(|(phase, us, checkpoint)| Event::PhaseDone { phase, us, checkpoint }),
        (name(), name()).prop_map(|(from, to)| Event::MigrationAsked { by: Asker::User, from, to, storage: None }),
        (name(), proptest::collection::vec(0u32..6, 0..4)).prop_map(|(why, ranks)| Event::NodeUnfit {
            by: Asker::Health,
            why,
            mode: "live".into(),
            left_ms: None,
            ranks: ranks.into_iter().collect()
        }),
        (name(), name()).prop_map(|(from, to)| Event::MigrationDecided { from, to }),
        (name(), name(), proptest::option::of(0u64..900)).prop_map(|(from, to, precopied)| moved_event(&from, &to, precopied)),
        (0u32..3, us()).prop_map(|(round, us)| Event::RoundDone { round, bytes: 1, us, left: None }),
        Just(Event::MigrationUndone { code: Code::Other, error: "x".into(), hint: String::new(), lacks: None }),
        proptest::collection::vec(0u32..6, 0..4).prop_map(|ranks| Event::NodeLost { why: "x".into(), ranks: ranks.into_iter().collect() }),
        Just(Event::ControllerDied),
        Just(Event::GoesOn { cause: Cause::Killed, checkpoint: 3 }),
        Just(Event::RestartFailed { cause: Cause::Done }),
        Just(Event::Ended { status: 0, cause: Cause::Done }),
        Just(Event::Unknown { event: "later".into(), data: serde_json::Value::Null }),
    ]
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let node = || proptest::option::of(prop_oneof![Just("a".to_owned()), Just("b".to_owned())]);
    let at = prop_oneof![8 => (0u64..5_000_000).prop_map(|us| BEGIN + us), 1 => Just(0), 1 => Just(u64::MAX)];
    let one = (at, node(), proptest::option::of(0u32..6), event());
    let entry = |(at, node, rank, event)| Entry { seq: 1, at, node, rank, event };
    (proptest::collection::vec(one.prop_map(entry), 0..60), any::<bool>()).prop_map(|(mut entries, sorted)| {
        if sorted {
            entries.sort_by_key(|entry| entry.at);
        }
        entries
    })
}

proptest! {
    #[test]
    fn whatever_the_entries_are_spans_are_in_order(entries in entries(), now in proptest::option::of(any::<u64>()), budget in 0usize..4_000) {
        holds(&Timeline::of(&entries, now));
        holds(&Timeline::of(&compact(&entries, budget), now));
    }
}

#[test]
fn decisions_are_marks_with_their_reasons() {
    let stays = Event::StaysFromData { to: "b".into(), why: "moves have cost enough".into() };
    let shares = Event::SharesWithJob { job: "other".into(), other: 3, node: "c".into(), bytes: 1 << 20 };
    let journal = Journal::started().of(500, Some(1), None, stays).of(600, Some(2), None, shares);
    let timeline = Timeline::of(&journal.0, None);
    let marks: Vec<(MarkKind, String)> = timeline.marks.iter().map(|mark| (mark.kind, mark.ranks.to_string())).collect();
    assert_eq!(marks, [(MarkKind::Decision, "1".to_owned()), (MarkKind::Decision, "2".to_owned())]);
    assert!(timeline.marks[0].text.contains("moves have cost enough") && timeline.marks[1].text.contains("rank 3 of job other"));
}
