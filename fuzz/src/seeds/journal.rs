//! Journals: a short job with a checkpoint and a move, as a file, behind a head, and as bodies; and one that was compacted.

use super::{Seed, keep, seed};
use mend_journal::compact::compact;
use mend_journal::event::{Asker, Cause, Code, Entry, Event, HealingFault, ImageFacts, Phase, TargetFault};
use mend_journal::frame::{encode, file_head};
use serde_json::json;

fn entries() -> Vec<Entry> {
    let phases = Default::default();
    let (text, by) = (|text: &str| text.to_owned(), Asker::Schedule);
    let events = [
        Event::JobStarted {
            command: vec![text("lmp")],
            ranks: 2,
            hosts: vec![text("a"), text("b")],
            settings: [(text("MEND_LOG"), text("debug"))].into(),
            release: text("0.1.0"),
            interval: text("a checkpoint every 60 s"),
        },
        Event::FilesSent { space: "out".into(), to: "file:///archive".into(), files: 3, bytes: 1 << 30 },
        Event::FilesNotSent {
            space: "out".into(),
            to: "file:///archive".into(),
            left: 3,
            error: text("it is full"),
            hint: text("make room"),
        },
        Event::TargetLost { space: text("in"), target: text("a:/t"), why: TargetFault::Silent { ms: 5000 } },
        Event::FileHealed {
            space: text("in"),
            file: text("in.dat"),
            lacked: vec![text("a:/t")],
            fetched: 1 << 20,
            copied: 0,
            sources: vec![text("file:///srv/in.dat")],
            targets: vec![text("b:/t")],
            us: 900,
        },
        Event::FileNotHealed { space: text("in"), file: text("in.dat"), why: HealingFault::NoCopy { lacked: vec![text("a:/t")] } },
        Event::NodeReconnected { why: text("the connection broke") },
        Event::NodeReached { address: text("10.0.0.7:7117") },
        Event::Placed { places: [(text("a"), (0..2).collect())].into() },
        Event::RankStarted,
        Event::CheckpointAsked { checkpoint: 1, by, mode: text("stop"), base: None },
        Event::PhaseDone { phase: Phase::Suspend, us: 90, checkpoint: Some(1) },
        Event::ImageWritten { checkpoint: 1, image: ImageFacts { bytes: 9, pages: 2, us: 4, full: true }, note: None },
        Event::CheckpointDecided { checkpoint: 1 },
        Event::CheckpointCommitted { checkpoint: 1, by, kind: text("full"), bytes: 9, stopped_us: 3, durable_us: 4, phases },
        Event::CheckpointFailed { checkpoint: 2, by, code: Code::Obstacle, error: text("a socket"), hint: text("close it") },
        Event::TierComplete { checkpoint: 1, tiers: vec![text("memory")] },
        Event::MigrationDecided { from: text("a"), to: text("b") },
        Event::DrainSlow { peers: [0, 1, 5].into_iter().collect(), us: 2_000_000 },
        Event::RankSignal { signal: 11 },
        Event::Ended { status: 139, cause: Cause::RankSignal { rank: 1, signal: 11, node: text("a") } },
        Event::Unknown { event: text("of_later"), data: json!({"x": 1}) },
    ];
    (1..)
        .zip(events)
        .map(|(seq, event)| Entry { seq, at: 1_795_172_645_000_000 + seq, node: Some(text("a")), rank: Some(1), event })
        .collect()
}

fn file(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| encode(entry).expect("a short event")).collect()
}

#[test]
fn journals_are_read() {
    let all = entries();
    let bodies: Vec<String> = all.iter().map(|entry| serde_json::to_string(entry).expect("an event")).collect();
    let compacted = compact(&all, 600);
    assert!(compacted.len() < all.len());
    let whole = |kind: u8, entries: &[Entry]| [&[kind], &file_head()[..], &file(entries)].concat();
    let seeds: Vec<Seed> = vec![
        seed("file", whole(0, &all)),
        seed("compacted", whole(0, &compacted)),
        seed("behind-a-head", [&[1], &file(&all)[..]].concat()),
        seed("bodies", [&[2], bodies.join("\n").as_bytes()].concat()),
    ];
    keep("journal", &seeds);
}
