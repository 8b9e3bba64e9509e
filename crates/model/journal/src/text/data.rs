//! How events of data spaces read.

use super::{duration, size, with_hint};
use crate::event::{Event, HealingFault, SourceFault, TargetFault};

/// Why a target gives nothing, as half a sentence.
fn target(fault: &TargetFault) -> String {
    match fault {
        TargetFault::Silent { ms } => format!("it has said nothing for {}", duration(ms.saturating_mul(1000))),
        TargetFault::Unreachable { error } => format!("it cannot be reached: {error}"),
        TargetFault::Absent => "it has not got what it should have".into(),
        TargetFault::Damaged => "it gives other bytes than were staged".into(),
        TargetFault::Failed { error } => error.clone(),
        TargetFault::Other => "for a reason of a later release".into(),
    }
}

/// Why a file is not made whole, and what helps.
fn healing(fault: &HealingFault, name: &str) -> (String, String) {
    match fault {
        HealingFault::NoSource { lost, lacked, sources } => {
            let one = |one: &SourceFault| format!("{}: {}", one.uri, one.error.as_deref().unwrap_or("it was not asked"));
            let sources = match sources.is_empty() {
                true => "no source of it is known".to_owned(),
                false => format!("no source gives them: {}", sources.iter().map(one).collect::<Vec<_>>().join("; ")),
            };
            (
                format!("{} are lost, which {} lacked, and {sources}", size(*lost), lacked.join(", ")),
                format!("bring the target or the source back, or stage the file from elsewhere (`mend data stage --force URI {name}`)"),
            )
        }
        HealingFault::NoRoom { lost, error } => {
            (format!("{} are lost, and have no room elsewhere: {error}", size(*lost)), "remove files (`mend data rm`)".into())
        }
        HealingFault::NoCopy { lacked } => (
            format!("no copy of what ranks wrote is left: {} lacked it", lacked.join(", ")),
            format!(
                "if a target does not answer, start mendd on its node; else write the file again, or remove it (`mend data rm {name}`)"
            ),
        ),
        HealingFault::Target { error } => {
            (error.clone(), format!("it is tried again later and later; `mend data repair {name}` does so at once"))
        }
        HealingFault::Program { program, error } => (
            format!("{program} could not be run: {error}"),
            "look at mendd's log on that node; `make install` installs all parts of Mend".into(),
        ),
        HealingFault::Failed { error, hint } => (error.clone(), hint.clone()),
        HealingFault::Other => ("for a reason of a later release".into(), String::new()),
    }
}

/// One sentence on what happened to a data space, as a node sees it; `None` for all other events.
pub(super) fn sentence(event: &Event, node: &str) -> Option<String> {
    let name = |space: &str, file: &str| format!("{space}:{file}");
    Some(match event {
        Event::TargetLost { space, target: which, why } => {
            format!("target {which} of data space {space} is lost, as {node} sees it: {}", target(why))
        }
        Event::TargetBack { space, target, lost_ms } => {
            format!("target {target} of data space {space} answers again, after {}", duration(lost_ms.saturating_mul(1000)))
        }
        Event::ReadFromSource { space, file, target: which, why, bytes, reads } => {
            let reads = if *reads == 1 { "one read".to_owned() } else { format!("{reads} reads") };
            format!(
                "{} of {} came to {node} from the source, in {reads}, since target {which} gave nothing: {}",
                size(*bytes),
                name(space, file),
                target(why)
            )
        }
        Event::FileHealed { space, file, lacked, fetched, copied, sources, targets, us } => {
            let lacked = if lacked.is_empty() { String::new() } else { format!("; {} lacked it", lacked.join(", ")) };
            let from = if sources.is_empty() { "its source".to_owned() } else { sources.join(", ") };
            let how = match (*fetched, *copied) {
                (0, 0) => "no byte had to be fetched".to_owned(),
                (0, copied) => format!("{} copied from what other targets have", size(copied)),
                (fetched, 0) => format!("{} fetched from {from}", size(fetched)),
                (fetched, copied) => format!("{} fetched from {from}, {} copied from what other targets have", size(fetched), size(copied)),
            };
            let onto = if targets.is_empty() { String::new() } else { format!(", onto {}", targets.join(", ")) };
            format!("{} is whole again after {}: {how}{onto}{lacked}", name(space, file), duration(*us))
        }
        Event::FileNotHealed { space, file, why } => {
            let name = name(space, file);
            let (why, hint) = healing(why, &name);
            with_hint(format!("{} is not made whole: {why}", if file.is_empty() { format!("data space {space}") } else { name }), &hint)
        }
        Event::DataEventsLeftOut { count } => {
            format!("{count} events of data spaces are left out: {node} told of more than could be passed on")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Entry;
    use crate::state::State;
    use crate::text;
    use crate::timeline::{MarkKind, Timeline};
    use mend_messages::space_report::{self as told, Healed, SpaceEvent};

    fn target() -> String {
        "node2:/tmp/input".into()
    }

    fn events() -> Vec<Event> {
        let source = told::SourceFault { uri: "https://archive/in.dat".into(), error: Some("404 Not Found".into()) };
        let unasked = told::SourceFault { uri: "file:///srv/in.dat".into(), error: None };
        let (file, why) = ("run7/in.dat".to_owned(), told::TargetFault::Damaged);
        let healed = Healed {
            file: file.clone(),
            lacked: vec![target()],
            fetched: 3 << 20,
            sources: vec!["https://archive/in.dat".into()],
            targets: vec!["node3:/tmp/input".into()],
            us: 1_500_000,
            ..Healed::default()
        };
        let not_healed = |file: &str, why| SpaceEvent::NotHealed { file: file.into(), why };
        let told = [
            SpaceEvent::TargetLost { target: target(), why: told::TargetFault::Silent { ms: 5000 } },
            SpaceEvent::TargetLost { target: target(), why: told::TargetFault::Unreachable { error: "Connection refused".into() } },
            SpaceEvent::ReadFromSource { file: file.clone(), target: target(), why, bytes: 1 << 20, reads: 2 },
            SpaceEvent::Healed(healed),
            SpaceEvent::Healed(Healed { file: file.clone(), copied: 1 << 16, us: 90, ..Healed::default() }),
            SpaceEvent::TargetBack { target: target(), lost_ms: 12_000 },
            not_healed(&file, told::HealingFault::NoSource { lost: 1 << 20, lacked: vec![target()], sources: vec![source, unasked] }),
            not_healed(&file, told::HealingFault::NoRoom { lost: 1 << 20, error: "no target answers".into() }),
            not_healed(&file, told::HealingFault::NoCopy { lacked: vec![target()] }),
            not_healed("", told::HealingFault::Program { program: "mend-data".into(), error: "Permission denied".into() }),
        ];
        told.into_iter().filter_map(|event| Event::of_space("input".into(), event)).collect()
    }

    fn entries() -> Vec<Entry> {
        let entry = |(seq, event)| Entry { seq, at: seq * 1_000_000, node: Some("node1".into()), rank: None, event };
        (1..).zip(events()).map(entry).collect()
    }

    #[test]
    fn each_says_what_was_lost_where_why_and_what_helps() {
        let said: Vec<String> = entries().iter().map(text::sentence).collect();
        let expected = [
            "target node2:/tmp/input of data space input is lost, as node1 sees it: it has said nothing for 5.00 s",
            "target node2:/tmp/input of data space input is lost, as node1 sees it: it cannot be reached: Connection refused",
            "1.0 MiB of input:run7/in.dat came to node1 from the source, in 2 reads, since target node2:/tmp/input gave nothing: it gives other bytes than were staged",
            "input:run7/in.dat is whole again after 1.50 s: 3.0 MiB fetched from https://archive/in.dat, onto node3:/tmp/input; node2:/tmp/input lacked it",
            "input:run7/in.dat is whole again after 90 µs: 64.0 KiB copied from what other targets have",
            "target node2:/tmp/input of data space input answers again, after 12.00 s",
            "input:run7/in.dat is not made whole: 1.0 MiB are lost, which node2:/tmp/input lacked, and no source gives them: https://archive/in.dat: 404 Not Found; \
             file:///srv/in.dat: it was not asked (hint: bring the target or the source back, or stage the file from elsewhere (`mend data stage --force URI input:run7/in.dat`))",
            "input:run7/in.dat is not made whole: 1.0 MiB are lost, and have no room elsewhere: no target answers (hint: remove files (`mend data rm`))",
            "input:run7/in.dat is not made whole: no copy of what ranks wrote is left: node2:/tmp/input lacked it (hint: if a target does not answer, start mendd on its node; else \
             write the file again, or remove it (`mend data rm input:run7/in.dat`))",
            "data space input is not made whole: mend-data could not be run: Permission denied (hint: look at mendd's log on that node; `make install` installs all parts of Mend)",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn they_stand_in_the_journal_by_codes_and_those_of_a_later_release_are_read() {
        let written = serde_json::to_value(&entries()[0]).unwrap();
        assert_eq!(written["event"], "target_lost");
        assert_eq!(written["data"], serde_json::json!({ "space": "input", "target": target(), "why": { "code": "silent", "ms": 5000 } }));
        for entry in entries() {
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        }
        let mut later = written;
        later["data"]["why"] = serde_json::json!({ "code": "asleep", "dream": 7 });
        let Event::TargetLost { why, .. } = serde_json::from_value::<Entry>(later).unwrap().event else { panic!("another event") };
        assert_eq!(why, TargetFault::Other);
    }

    #[test]
    fn they_are_decisions_marks_on_the_time_line_and_counted() {
        assert!(events().iter().all(Event::is_decision));
        let marks: Vec<MarkKind> = Timeline::of(&entries(), None).marks.iter().map(|mark| mark.kind).collect();
        let (trouble, mended) = (MarkKind::Trouble, MarkKind::Mended);
        assert_eq!(marks, [trouble, trouble, trouble, mended, mended, mended, trouble, trouble, trouble, trouble]);
        let tallies = State::of(&entries()).tallies;
        assert_eq!((tallies.targets_lost, tallies.files_healed, tallies.healed_bytes, tallies.files_not_healed), (2, 2, 3 << 20, 4));
    }
}
