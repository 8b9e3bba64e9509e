use super::*;
use mend_journal::event::{Asker, Cause, Code, Phase, PhaseTimes, Precopied};
use mend_journal::ranks::Ranks;
use mend_journal::{Entry, Event};
use prost::Message;
use std::collections::BTreeMap;

const BEGIN: u64 = 1_795_172_645_000_000;
const DAY: u64 = 86_400_000;
const MIB: u64 = 1 << 20;

/// A journal in the making; times are milliseconds since its beginning.
#[derive(Default)]
struct Journal(Vec<Entry>);

impl Journal {
    fn of(mut self, ms: u64, rank: Option<u32>, node: &str, event: Event) -> Self {
        let (seq, node) = (self.0.len() as u64 + 1, Some(node.to_owned()).filter(|node| !node.is_empty()));
        self.0.push(Entry { seq, at: BEGIN + ms * 1_000, node, rank, event });
        self
    }

    fn put(self, ms: u64, event: Event) -> Self {
        self.of(ms, None, "", event)
    }

    fn begin(self, ms: u64, from: Option<u64>, places: &[(&str, (u32, u32))]) -> Self {
        let ranks = places.iter().map(|(_, (_, last))| last + 1).max().unwrap_or(0);
        let (hosts, settings, release, interval) = (Vec::new(), BTreeMap::new(), String::new(), String::new());
        let begun = match from {
            Some(checkpoint) => Event::JobRestarted { checkpoint, ranks, hosts, settings, release, interval },
            None => Event::JobStarted { command: vec!["x".into()], ranks, hosts, settings, release, interval },
        };
        let placed = places.iter().map(|(node, run)| ((*node).to_owned(), Ranks::from(vec![*run]))).collect();
        let journal = self.put(ms, begun).put(ms + 20, Event::Placed { places: placed });
        if from.is_some() {
            return journal.put(ms + 2_000, Event::Resumed { us: 2_000_000 });
        }
        let ranks = places.iter().flat_map(|(node, (first, last))| (*first..=*last).map(move |rank| (rank, *node)));
        ranks.fold(journal, |journal, (rank, node)| journal.of(ms + 300, Some(rank), node, Event::RankStarted))
    }

    fn phases(self, ms: u64, rank: Option<u32>, checkpoint: Option<u64>, phases: &[(Phase, u64)]) -> (Self, u64) {
        phases.iter().fold((self, ms), |(journal, ms), (phase, took)| {
            let ms = ms + took;
            (journal.of(ms, rank, "", Event::PhaseDone { phase: *phase, us: took * 1_000, checkpoint }), ms)
        })
    }

    fn checkpoint(self, ms: u64, checkpoint: u64) -> Self {
        let asked = Event::CheckpointAsked { checkpoint, by: Asker::Schedule, mode: "copy-on-write".into(), base: None };
        let phases = [(Phase::Inspect, 40), (Phase::Suspend, 60), (Phase::Save, 180), (Phase::Resume, 10), (Phase::Write, 1_700)];
        let (journal, at) = self.put(ms, asked).phases(ms, None, Some(checkpoint), &phases);
        let (by, kind, phases) = (Asker::Schedule, "full".into(), PhaseTimes::default());
        let (stopped_us, durable_us) = (250_000, (at - ms) * 1_000);
        journal
            .put(at, Event::CheckpointDecided { checkpoint })
            .put(at, Event::CheckpointCommitted { checkpoint, by, kind, bytes: 640 * MIB, stopped_us, durable_us, phases })
    }

    fn asked(self, ms: u64, rank: u32, from: &str, to: &str) -> Self {
        self.of(ms, Some(rank), from, Event::MigrationAsked { by: Asker::User, from: from.into(), to: to.into(), storage: None })
    }

    fn moves(self, ms: u64, rank: u32, from: &str, to: &str, live: bool) -> Self {
        let (mut journal, mut at) = self.asked(ms, rank, from, to).phases(ms, Some(rank), None, &[(Phase::Inspect, 10)]);
        let mut precopied = None;
        if live {
            for (round, us, bytes) in [(0, 3_000_000, 160 * MIB), (1, 800_000, 20 * MIB)] {
                let done = Event::RoundDone { round, bytes, us, left: Some(MIB) };
                journal = journal.of(at + (u64::from(round) * 3_000) + us / 1_000, Some(rank), from, done);
            }
            (journal, at) = journal.phases(at, Some(rank), None, &[(Phase::Precopy, 3_900)]);
            precopied = Some(Precopied { rounds: 2, bytes: 180 * MIB, stopped_bytes: MIB, us: 3_900_000, why: "little_left".into() });
        }
        let begun = at;
        (journal, at) = journal.phases(at, Some(rank), None, &[(Phase::Suspend, 30), (Phase::Move, if live { 120 } else { 1_500 })]);
        let read = Event::PhaseDone { phase: Phase::Read, us: 20_000, checkpoint: None };
        (journal, at) = journal.of(at, Some(rank), to, read).phases(at, Some(rank), None, &[(Phase::Connect, 20)]);
        journal = journal.of(at, Some(rank), to, Event::MigrationDecided { from: from.into(), to: to.into() });
        (journal, at) = journal.phases(at, Some(rank), None, &[(Phase::Resume, 30)]);
        let (bytes, stopped_us, phases) = (181 * MIB, (at - begun) * 1_000, PhaseTimes::default());
        let (from, to) = (from.into(), to.into());
        journal.of(
            at,
            Some(rank),
            "",
            Event::MigrationCommitted { from, to, bytes, sent_bytes: None, transport: None, stopped_us, phases, precopied },
        )
    }

    fn lost(self, ms: u64, node: &str, first: u32, last: u32) -> Self {
        let ranks = Ranks::from(vec![(first, last)]);
        let cause = Cause::NodeLost { node: node.into(), ranks: ranks.to_string(), why: "it is silent".into() };
        let lost = Event::NodeLost { why: "it is silent".into(), ranks };
        self.of(ms, None, node, lost).put(ms + 200, Event::Ended { status: 75, cause })
    }

    fn timeline(&self) -> Timeline {
        Timeline::of(&self.0, None)
    }
}

/// A job that had everything happen to it.
fn eventful() -> Journal {
    let journal = Journal::default().begin(0, None, &[("node1", (0, 1)), ("node2", (2, 3))]).checkpoint(10_000, 1);
    let journal = journal.moves(20_000, 3, "node2", "node3", true).moves(30_000, 0, "node1", "node3", false);
    let failed = Event::CheckpointFailed {
        checkpoint: 2,
        by: Asker::User,
        code: Code::Obstacle,
        error: "rank 1: a socket".into(),
        hint: String::new(),
    };
    let asked = Event::CheckpointAsked { checkpoint: 2, by: Asker::User, mode: "stop".into(), base: None };
    let journal = journal.put(36_000, asked).put(36_050, failed).lost(45_000, "node2", 2, 2);
    // Two days later.
    let journal = journal.begin(2 * DAY, Some(1), &[("node1", (0, 2)), ("node3", (3, 3))]).checkpoint(2 * DAY + 10_000, 3);
    let ended = (0..4)
        .fold(journal, |journal, rank| journal.of(2 * DAY + 30_000 + u64::from(rank), Some(rank), "", Event::RankExited { status: 0 }));
    ended.put(2 * DAY + 30_010, Event::Ended { status: 0, cause: Cause::Done })
}

fn snapshot(name: &str, drawn: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_snapshot_path("../../tests/snapshots");
    settings.bind(|| insta::assert_snapshot!(name, drawn));
}

#[test]
fn an_eventful_job_as_text() {
    snapshot("timeline-text", &text::render(&eventful().timeline(), "lmp-3f2a: lmp -in in.melt", 100));
}

#[test]
fn an_eventful_job_as_a_drawing() {
    snapshot("timeline-svg", &svg::render(&eventful().timeline(), "lmp-3f2a: lmp -in in.melt"));
}

#[test]
fn many_ranks_are_a_few_lines() {
    let places = [("node1", (0, 255)), ("node2", (256, 511)), ("node3", (512, 767))];
    let journal = Journal::default().begin(0, None, &places).checkpoint(60_000, 1).moves(100_000, 300, "node2", "node4", true);
    let timeline = Timeline::of(&journal.checkpoint(200_000, 2).asked(300_000, 7, "node1", "node4").0, Some(BEGIN + 320_000_000));
    snapshot("timeline-many", &text::render(&timeline, "big-1: ./big", 80));
}

#[test]
fn a_journal_without_anything_is_drawn_too() {
    let timeline = Journal::default().timeline();
    assert!(text::render(&timeline, "x", 0).contains(names::NO_BEGINNING));
    assert!(svg::render(&timeline, "x").ends_with("</svg>\n"));
    assert!(!perfetto::render(&timeline, "x").is_empty());
}

#[test]
fn a_journal_without_a_beginning_is_drawn_to_scale() {
    let places = BTreeMap::from([("a".into(), Ranks::from(vec![(0, 0)]))]);
    let timeline = Journal::default().put(0, Event::Placed { places }).put(60_000, Event::KillAsked).timeline();
    assert_eq!(text::render(&timeline, "x", 40).lines().nth(6).unwrap(), format!("rank 0  {}", "·".repeat(32)));
}

#[test]
fn what_others_wrote_stays_text() {
    let evil = "n<b>&\"'\u{1b}[2J\n";
    let journal = Journal::default()
        .begin(0, None, &[(evil, (0, 0))])
        .put(1_000, Event::RestartFailed { cause: Cause::Failed { error: evil.into() } });
    let timeline = journal.timeline();
    let drawn = svg::render(&timeline, evil);
    assert!(drawn.contains("n&lt;b&gt;&amp;&quot;&#39;\u{fffd}[2J\u{fffd}"));
    assert!(!drawn.contains("<b>") && !drawn.contains('\u{1b}'));
    let text = text::render(&timeline, evil, 100);
    assert!(text.lines().count() < 15 && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn whatever_the_width_is_lines_are_no_wider() {
    let timeline = eventful().timeline();
    for width in [40, 79, 100, 200, 300] {
        let drawn = text::render(&timeline, "x", width);
        let chart = drawn.lines().skip(3).take_while(|line| !line.is_empty());
        assert!(chart.into_iter().all(|line| line.chars().count() <= width), "{drawn}");
    }
}

/// Slices by track, as ui.perfetto.dev would show them: begin and end in milliseconds, name, flows.
type Shown = BTreeMap<String, Vec<(u64, u64, String, Vec<u64>)>>;

fn decoded(bytes: &[u8]) -> Shown {
    let trace = perfetto::Trace::decode(bytes).unwrap();
    let mut processes = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<(u64, String, Vec<u64>)>> = BTreeMap::new();
    let mut shown = Shown::new();
    let mut last = 0;
    for (number, packet) in trace.packet.iter().enumerate() {
        assert_eq!((packet.trusted_packet_sequence_id, packet.sequence_flags), (Some(1), (number == 0).then_some(1)));
        if let Some(track) = &packet.track_descriptor {
            let name = match (&track.process, &track.thread) {
                (Some(process), None) => process.process_name.clone().unwrap(),
                (None, Some(thread)) => {
                    let process: &String = &processes[&thread.pid.unwrap()];
                    format!("{process} / {}", thread.thread_name.as_ref().unwrap())
                }
                other => panic!("{other:?}"),
            };
            if let Some(process) = &track.process {
                assert!(processes.insert(process.pid.unwrap(), name.clone()).is_none());
            }
            assert!(names.insert(track.uuid.unwrap(), name).is_none());
            continue;
        }
        let event = packet.track_event.as_ref().unwrap();
        let (at, track) = (packet.timestamp.unwrap(), event.track_uuid.unwrap());
        let ms = (at / 1_000).saturating_sub(BEGIN) / 1_000;
        assert!(last <= at, "events are in order");
        last = at;
        match event.r#type {
            Some(1) => open.entry(track).or_default().push((ms, event.name.clone().unwrap(), event.flow_ids.clone())),
            Some(2) => {
                let (begin, name, flows) = open.get_mut(&track).unwrap().pop().unwrap();
                shown.entry(names[&track].clone()).or_default().push((begin, ms, name, flows));
            }
            Some(3) => shown.entry(names[&track].clone()).or_default().push((ms, ms, event.name.clone().unwrap(), Vec::new())),
            other => panic!("{other:?}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "all slices end");
    shown
}

#[test]
fn a_trace_has_nodes_ranks_phases_and_flows() {
    let shown = decoded(&perfetto::render(&eventful().timeline(), "lmp-3f2a: x"));
    let tracks: Vec<&str> = shown.keys().map(String::as_str).collect();
    assert_eq!(
        tracks,
        [
            "lmp-3f2a: x / checkpoints",
            "lmp-3f2a: x / events",
            "lmp-3f2a: x / lives",
            "lmp-3f2a: x / moves",
            "lmp-3f2a: x / starts",
            "node1 / rank 0",
            "node1 / rank 1",
            "node1 / rank 2",
            "node2 / rank 2",
            "node2 / rank 3",
            "node3 / rank 0",
            "node3 / rank 3",
        ]
    );
    let slice = |begin, end, name: &str, flows: &[u64]| (begin, end, name.to_owned(), flows.to_vec());
    let source = &shown["node2 / rank 3"];
    assert!(source.contains(&slice(20_010, 23_910, "running, being copied", &[])), "{source:?}");
    assert!(source.contains(&slice(20_010, 23_010, "round 0", &[])), "{source:?}");
    assert!(source.contains(&slice(23_910, 24_080, "stopped to move", &[1])), "{source:?}");
    assert!(source.contains(&slice(23_940, 24_060, "move", &[])), "{source:?}");
    let target = &shown["node3 / rank 3"];
    assert!(target.contains(&slice(24_040, 24_060, "read", &[])), "{target:?}");
    assert!(target.contains(&slice(24_080, 24_110, "stopped to move", &[1])), "{target:?}");
    assert!(target.contains(&slice(24_110, 45_200, "running", &[])), "{target:?}");
    assert!(shown["node3 / rank 0"].iter().any(|slice| slice.3 == [2]));
    let checkpoint = &shown["lmp-3f2a: x / checkpoints"];
    assert!(checkpoint.contains(&slice(10_000, 11_990, "checkpoint 1, due", &[])), "{checkpoint:?}");
    assert!(checkpoint.contains(&slice(10_100, 10_280, "save", &[])), "{checkpoint:?}");
}

#[test]
fn operations_that_overlap_have_tracks_of_their_own() {
    let journal = Journal::default().begin(0, None, &[("a", (0, 3))]).asked(1_000, 0, "a", "b").asked(1_500, 1, "a", "b");
    let trace = perfetto::render(&journal.put(4_000, Event::KillAsked).timeline(), "j");
    assert_eq!(decoded(&trace)["j / moves"].len(), 2);
}

/// Entries in no sensible order, drawn from a seed.
fn senseless(seed: u64) -> Journal {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut journal = Journal::default();
    for _ in 0..draw(40) {
        let node = ["", "a", "a node with a name that is longer than it should be"][draw(3) as usize];
        let number = if draw(9) == 0 { u64::MAX } else { draw(5_000_000) };
        let event = match draw(12) {
            0 => Event::JobRestarted {
                checkpoint: number,
                ranks: draw(6) as u32,
                hosts: Vec::new(),
                settings: BTreeMap::new(),
                release: String::new(),
                interval: String::new(),
            },
            1 | 2 => Event::Placed { places: BTreeMap::from([(node.to_owned(), Ranks::from(vec![(draw(3) as u32, draw(40) as u32)]))]) },
            3 => Event::RankStarted,
            4 => Event::Resumed { us: number },
            5 => Event::RankSignal { signal: 9 },
            6 => Event::PhaseDone {
                phase: [Phase::Save, Phase::Precopy, Phase::Move][draw(3) as usize],
                us: number,
                checkpoint: Some(draw(3)),
            },
            7 => Event::PhaseDone { phase: [Phase::Read, Phase::Suspend, Phase::Undo][draw(3) as usize], us: number, checkpoint: None },
            8 => Event::RoundDone { round: 1, bytes: number, us: number, left: None },
            9 => Event::MigrationDecided { from: node.into(), to: "b".into() },
            10 => Event::NodeLost { why: "x".into(), ranks: Ranks::from(vec![(0, draw(9) as u32)]) },
            _ => Event::Ended { status: 0, cause: Cause::Done },
        };
        journal = journal.of(draw(100_000), Some(draw(6) as u32), node, event);
        if let Some(last) = journal.0.last_mut().filter(|_| draw(30) == 0) {
            last.at = number;
        }
    }
    journal
}

#[test]
fn whatever_a_journal_holds_it_is_drawn() {
    for seed in 0..3_000 {
        let timeline = senseless(seed).timeline();
        assert!(text::render(&timeline, "x", seed as usize % 150).lines().count() > 5);
        assert!(svg::render(&timeline, "x").ends_with("</svg>\n"));
        decoded(&perfetto::render(&timeline, "x"));
        serde_json::to_string(&timeline).unwrap();
    }
}
