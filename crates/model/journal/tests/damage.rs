//! What a file can suffer: it is torn at every byte, its bits flip, strangers write into it; and the journal of a long job is compacted.

use mend_journal::compact::compact;
use mend_journal::event::{Asker, Cause, Code, Entry, Event, HealingFault, ImageFacts, Phase, PhaseTimes, Storage, TargetFault};
use mend_journal::frame::{FILE_HEAD, HeadError, encode, file_head, scan};
use mend_journal::{State, text};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn entry(seq: u64, event: Event) -> Entry {
    Entry {
        seq,
        at: 1_700_000_000_000_000 + seq,
        node: (!seq.is_multiple_of(3)).then(|| format!("node{}", seq % 5)),
        rank: Some((seq % 7) as u32),
        event,
    }
}

fn chosen(minutes: u32) -> Event {
    Event::IntervalChosen {
        interval_s: f64::from(minutes) * 60.0,
        incrementals: 0,
        cost_s: Some(1.0),
        incremental_cost_s: None,
        mtbf_s: 100.0,
        averted_percent: 0,
    }
}

fn event() -> impl Strategy<Value = Event> {
    let text = || "[a-z é\"\\\\]{0,12}";
    let phases = PhaseTimes { suspend_us: 3, ..PhaseTimes::default() };
    prop_oneof![
        (proptest::collection::vec(text(), 0..3), 0u32..9).prop_map(|(command, ranks)| Event::JobStarted {
            command,
            ranks,
            hosts: vec!["node1".into()],
            settings: BTreeMap::from([("MEND_LOG".into(), "debug".into())]),
            release: "1".into(),
            interval: String::new(),
        }),
        (0u64..9).prop_map(|checkpoint| Event::JobRestarted {
            checkpoint,
            ranks: 4,
            hosts: Vec::new(),
            settings: BTreeMap::new(),
            release: "1".into(),
            interval: String::new()
        }),
        Just(Event::RankStarted),
        Just(Event::ControllerDied),
        (0u64..9).prop_map(|checkpoint| Event::GoesOn { cause: Cause::Killed, checkpoint }),
        Just(Event::KillAsked),
        (-3i32..300).prop_map(|status| Event::RankExited { status }),
        (1i32..64).prop_map(|signal| Event::RankSignal { signal }),
        Just(Event::Placed { places: BTreeMap::from([("node1".into(), (0..4).collect()), ("node2".into(), (4..7).collect())]) }),
        (0u64..400).prop_map(|checkpoint| Event::CheckpointAsked { checkpoint, by: Asker::Schedule, mode: "stop".into(), base: None }),
        (0u64..400).prop_map(|checkpoint| Event::CheckpointDecided { checkpoint }),
        (0u64..400, any::<u64>()).prop_map(move |(checkpoint, bytes)| Event::CheckpointCommitted {
            checkpoint,
            by: Asker::User,
            kind: "full".into(),
            bytes,
            stopped_us: 5,
            durable_us: 7,
            phases
        }),
        (0u64..400, text()).prop_map(|(checkpoint, error)| Event::CheckpointFailed {
            checkpoint,
            by: Asker::User,
            code: Code::Obstacle,
            error,
            hint: String::new()
        }),
        proptest::collection::vec(0u64..400, 0..4).prop_map(|checkpoints| Event::CheckpointRemoved { checkpoints, by: Asker::Schedule }),
        (0u64..400).prop_map(|checkpoint| Event::CheckpointMerged { checkpoint }),
        (0u64..400, text()).prop_map(|(checkpoint, directory)| Event::PortableCheckpoint {
            directory,
            checkpoint,
            ranks: 4,
            bytes: 5,
            us: 6
        }),
        text().prop_map(|error| Event::PortableFailed { directory: "/c".into(), ranks: 2, error }),
        (0u64..400).prop_map(|checkpoint| Event::TierComplete { checkpoint, tiers: vec!["memory".into()] }),
        (0u64..400).prop_map(|checkpoint| Event::ImageWritten { checkpoint, image: ImageFacts::default(), note: None }),
        Just(Event::PhaseDone { phase: Phase::Suspend, us: 9, checkpoint: Some(1) }),
        text().prop_map(|to| Event::MigrationAsked { by: Asker::User, from: "node1".into(), to, storage: Some(Storage::Staged) }),
        text().prop_map(|why| Event::NodeUnfit {
            by: Asker::Health,
            why,
            mode: "live".into(),
            left_ms: Some(7),
            ranks: [0, 2].into_iter().collect()
        }),
        Just(Event::NodeFit { by: Asker::BatchSystem }),
        text().prop_map(|error| Event::NowhereToGo { by: Asker::Health, ranks: [1].into_iter().collect(), error, hint: String::new() }),
        (text(), any::<u32>()).prop_map(|(to, number)| {
            let (here_us, there_us, gain_s) = (f64::from(number) / 8.0, 1.5, -0.25);
            Event::GoesBack {
                from: "node1".into(),
                to,
                by: "steps".into(),
                here_us,
                there_us,
                left_s: 7.0,
                gain_s,
                cost_s: 0.5,
                price_s: 1.0,
            }
        }),
        (1u32..9).prop_map(chosen),
        text().prop_map(|why| Event::StaysAway { home: "node1".into(), why }),
        (text(), any::<u32>()).prop_map(|(to, number)| Event::FollowsData {
            from: "node1".into(),
            to,
            with: (number % 2 == 0).then_some(number),
            goes: number % 3 == 0,
            waits: 0.25,
            share: 0.5,
            messages: f64::from(number) / 8.0 - 0.5,
            left_s: f64::from(number) / 8.0,
            gain_s: 2.0,
            price_s: 1.0
        }),
        (text(), any::<u32>()).prop_map(|(job, other)| Event::SharesWithJob {
            job,
            other,
            node: "node1".into(),
            bytes: u64::from(other) << 20
        }),
        text().prop_map(|error| Event::FilesNotSent { space: "out".into(), to: "file:///a".into(), left: 3, error, hint: String::new() }),
        text().prop_map(|error| Event::TargetLost {
            space: "in".into(),
            target: "node1:/t".into(),
            why: TargetFault::Unreachable { error }
        }),
        (text(), any::<u64>()).prop_map(|(file, lost)| Event::FileNotHealed {
            space: "in".into(),
            file,
            why: HealingFault::NoSource { lost, lacked: vec!["node1:/t".into()], sources: vec![] }
        }),
        (text(), any::<u64>()).prop_map(|(file, fetched)| Event::FileHealed {
            space: "in".into(),
            file,
            lacked: vec![],
            fetched,
            copied: 1,
            sources: vec![],
            targets: vec![],
            us: 7
        }),
        text().prop_map(|why| Event::StaysFromData { to: "node1".into(), why }),
        text().prop_map(|to| Event::MigrationDecided { from: "node1".into(), to }),
        (0u32..9, any::<u64>()).prop_map(|(round, bytes)| Event::RoundDone { round, bytes, us: 5, left: Some(bytes) }),
        text().prop_map(|error| Event::MigrationUndone { code: Code::Target, error, hint: "x".into(), lacks: None }),
        (0u32..9, text())
            .prop_map(|(rank, error)| Event::Ended { status: 1, cause: Cause::StartFailed { rank, node: "node1".into(), error } }),
        (0u32..9).prop_map(|rank| Event::Ended { status: 139, cause: Cause::RankSignal { rank, signal: 11, node: "a".into() } }),
        text().prop_map(|name| Event::Unknown { event: format!("later_{name}"), data: serde_json::json!({"x": [1, "y"]}) }),
    ]
}

fn entries(most: usize) -> impl Strategy<Value = Vec<Entry>> {
    proptest::collection::vec(event(), 0..most).prop_map(|events| (1..).zip(events).map(|(seq, event)| entry(seq, event)).collect())
}

/// The file, and where each of its frames ends.
fn file(entries: &[Entry]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = file_head().to_vec();
    let mut ends = Vec::new();
    for entry in entries {
        bytes.extend(encode(entry).unwrap());
        ends.push(bytes.len());
    }
    (bytes, ends)
}

proptest! {
    #[test]
    fn what_is_written_is_read(entries in entries(40)) {
        let (bytes, _) = file(&entries);
        let found = scan(&bytes).unwrap();
        prop_assert_eq!((found.end, found.torn, found.damage.len()), (bytes.len(), 0, 0));
        prop_assert_eq!(&found.entries, &entries);
        prop_assert!(entries.iter().all(|entry| !text::sentence(entry).is_empty()));
    }

    #[test]
    fn torn_at_every_byte_it_holds_what_was_whole(entries in entries(6)) {
        let (bytes, ends) = file(&entries);
        for length in 0..=bytes.len() {
            let found = scan(&bytes[..length]).unwrap();
            let whole = ends.iter().filter(|end| **end <= length).count();
            prop_assert_eq!(&found.entries, &entries[..whole]);
            prop_assert_eq!(found.end + found.torn, length);
            prop_assert_eq!(found.end, if length < FILE_HEAD { 0 } else { ends[..whole].last().copied().unwrap_or(FILE_HEAD) });
            // Written on from there, as who opens it does.
            if length >= FILE_HEAD {
                let mut on = bytes[..found.end].to_vec();
                on.extend(encode(&entry(99, Event::RankStarted)).unwrap());
                let again = scan(&on).unwrap();
                prop_assert_eq!((again.entries.len(), again.torn, again.damage.len()), (whole + 1, 0, 0));
            }
        }
    }

    #[test]
    fn a_flipped_byte_costs_its_own_frame(entries in entries(12), at in any::<prop::sample::Index>(), bits in 1u8..) {
        let (mut bytes, ends) = file(&entries);
        prop_assume!(!entries.is_empty());
        let at = FILE_HEAD + at.index(bytes.len() - FILE_HEAD);
        bytes[at] ^= bits;
        let hit = ends.iter().filter(|end| **end <= at).count();
        let found = scan(&bytes).unwrap();
        let mut left = entries.clone();
        left.remove(hit);
        prop_assert_eq!(found.entries, left);
        prop_assert_eq!(found.damage.len() + usize::from(found.torn > 0), 1);
    }

    #[test]
    fn foreign_bytes_are_passed_over(entries in entries(6), foreign in proptest::collection::vec(any::<u8>(), 1..200), at in any::<prop::sample::Index>()) {
        let (bytes, ends) = file(&entries);
        let ends: Vec<usize> = std::iter::once(FILE_HEAD).chain(ends).collect();
        let at = ends[at.index(ends.len())];
        let mixed = [&bytes[..at], &foreign, &bytes[at..]].concat();
        prop_assert_eq!(scan(&mixed).unwrap().entries, entries);
    }

    #[test]
    fn whatever_it_is_reading_ends(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = scan(&bytes);
        let _ = scan(&[&file_head()[..], &bytes].concat());
    }

    #[test]
    fn what_is_left_adds_up_to_the_same(entries in entries(120), budgets in proptest::collection::vec((0usize..4000, 0usize..120), 1..5)) {
        let mut kept: Vec<Entry> = Vec::new();
        let mut all: Vec<Entry> = Vec::new();
        let mut rest = entries.as_slice();
        for (budget, more) in budgets {
            let (now, later) = rest.split_at(more.min(rest.len()));
            rest = later;
            kept.extend_from_slice(now);
            all.extend_from_slice(now);
            kept = compact(&kept, budget);
            let same = |state: State| State { left_out: 0, ..state };
            prop_assert_eq!(same(State::of(&kept)), same(State::of(&all)));
            let shown = kept.iter().filter(|entry| !matches!(entry.event, Event::Compacted { .. })).count() as u64;
            prop_assert_eq!(State::of(&kept).left_out + shown, all.len() as u64);
            prop_assert!(kept.windows(2).all(|pair| pair[0].seq <= pair[1].seq));
            // And so it does when it has been written and read.
            prop_assert_eq!(&scan(&file(&kept).0).unwrap().entries, &kept);
        }
    }
}

#[test]
fn what_was_chosen_last_stays_until_something_else_is() {
    let staggered = Event::TiersStaggered { interval_s: 7.0, tiers: Vec::new() };
    let first = [chosen(1), staggered.clone(), chosen(2)].into_iter().chain((0..9).map(|_| Event::RankStarted));
    let all: Vec<Entry> = (0..).zip(first).map(|(seq, event)| entry(seq, event)).collect();
    let kept = compact(&all, 0);
    let found: Vec<&Event> = kept.iter().map(|entry| &entry.event).filter(|event| event.is_decision()).collect();
    assert!(matches!(&found[..], [one, other, Event::Compacted { .. }] if **one == staggered && **other == chosen(2)), "{found:?}");
    let later = [chosen(3), Event::RankStarted].into_iter().zip(20..).map(|(event, seq)| entry(seq, event));
    let kept = compact(&kept.into_iter().chain(later).collect::<Vec<_>>(), 0);
    let stays = |event: &Event| kept.iter().any(|entry| entry.event == *event);
    assert!(stays(&staggered) && stays(&chosen(3)) && !stays(&chosen(2)));
}

#[test]
fn other_files_are_refused() {
    assert_eq!(scan(b"{\"id\": \"a job's record\"}"), Err(HeadError::Foreign));
    assert_eq!(scan(b"MENDx"), Err(HeadError::Foreign));
    let mut newer = file_head();
    newer[8] = 2;
    assert_eq!(scan(&newer), Err(HeadError::Newer(2)));
    assert_eq!(scan(b"").unwrap().entries, []);
}

#[test]
fn a_later_release_is_understood_as_far_as_it_goes() {
    let read = |text: &str| serde_json::from_str::<Entry>(text).unwrap();
    let unknown = read(r#"{"seq": 3, "at": 4, "event": "rank_teleported", "data": {"to": "mars"}, "mood": "good"}"#);
    assert!(matches!(&unknown.event, Event::Unknown { event, .. } if event == "rank_teleported"));
    assert_eq!(read(&serde_json::to_string(&unknown).unwrap()), unknown);
    let more = read(r#"{"seq": 3, "at": 4, "rank": 2, "event": "rank_exited", "data": {"status": 3, "cores": 8}}"#);
    assert_eq!(more.event, Event::RankExited { status: 3 });
    let cause = read(r#"{"seq": 3, "at": 4, "event": "ended", "data": {"status": 3, "cause": {"code": "sun_went_out", "at": 3}}}"#);
    assert_eq!(cause.event, Event::Ended { status: 3, cause: Cause::Other });
    let code = r#"{"seq": 3, "at": 4, "event": "checkpoint_failed", "data":
        {"checkpoint": 1, "by": "a_policy", "code": "moon", "error": "e", "hint": ""}}"#;
    let wanted = Event::CheckpointFailed { checkpoint: 1, by: Asker::Other, code: Code::Other, error: "e".into(), hint: String::new() };
    assert_eq!(read(code).event, wanted);
}

#[test]
fn a_job_of_weeks_stays_small() {
    // What matters is that it does not grow.
    let mut kept: Vec<Entry> = Vec::new();
    let (mut seq, mut largest) = (0, 0);
    for checkpoint in 0..6_000 {
        let phases = PhaseTimes::default();
        for event in [
            Event::CheckpointAsked { checkpoint, by: Asker::Schedule, mode: "copy-on-write".into(), base: checkpoint.checked_sub(1) },
            Event::CheckpointCommitted {
                checkpoint,
                by: Asker::Schedule,
                kind: "full".into(),
                bytes: 1,
                stopped_us: 1,
                durable_us: 1,
                phases,
            },
            Event::CheckpointRemoved { checkpoints: vec![checkpoint], by: Asker::Schedule },
        ] {
            seq += 1;
            kept.push(entry(seq, event));
        }
        if kept.len() > 2500 {
            kept = compact(&kept, 256 << 10);
            largest = largest.max(file(&kept).0.len());
        }
    }
    assert!(largest < 300 << 10, "{largest} bytes");
    assert_eq!(State::of(&kept).tallies.checkpoints, 6_000);
}
