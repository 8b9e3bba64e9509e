//! What the renderings of a timeline call things, and which rows they have.

use mend_journal::event::Asker;
use mend_journal::ranks::Ranks;
use mend_journal::text;
use mend_journal::timeline::{Activity, Operation, Outcome, Span, Timeline, What};

/// What is said of a job whose journal has neither a start nor a restart, or nothing at all.
pub const NO_BEGINNING: &str = "its beginning is not on record";

/// A line of a drawing: ranks with the same history.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The ranks.
    pub ranks: Ranks,
    /// What they did.
    pub spans: &'a [Span],
}

/// The rows of a timeline: each rank has one if there are no more than `most` ranks, else those that did the same share one.
pub fn rows(timeline: &Timeline, most: u64) -> Vec<Row<'_>> {
    let count: u64 = timeline.tracks.iter().fold(0, |count, track| count.saturating_add(track.ranks.count()));
    let mut rows = Vec::new();
    for track in &timeline.tracks {
        if count > most {
            rows.push(Row { ranks: track.ranks.clone(), spans: &track.spans });
            continue;
        }
        for rank in Vec::from(track.ranks.clone()).into_iter().flat_map(|(first, last)| first..=last) {
            rows.push(Row { ranks: [rank].into_iter().collect(), spans: &track.spans });
        }
    }
    rows.sort_by_key(|row| Vec::from(row.ranks.clone()).first().copied());
    rows
}

/// "rank 3" or "ranks 0-2,7".
pub fn ranks(ranks: &Ranks) -> String {
    let plural = if ranks.count() == 1 { "" } else { "s" };
    format!("rank{plural} {ranks}")
}

/// A text without what a terminal would act upon, or XML cannot hold.
pub fn clean(text: &str) -> String {
    let odd = |character: char| character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|character| if odd(character) { '\u{fffd}' } else { character }).collect()
}

/// At most so many letters of a text.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Kinds of activities, as legends name them; a more important one stands further down.
pub const KINDS: [&str; 6] = ["running", "starting", "restoring", "running, being copied", "stopped for a checkpoint", "stopped to move"];

/// The place of an activity among [`KINDS`].
pub fn kind(activity: Activity) -> usize {
    match activity {
        Activity::Running => 0,
        Activity::Starting => 1,
        Activity::Restoring => 2,
        Activity::Copying => 3,
        Activity::Checkpoint { .. } => 4,
        Activity::Moving => 5,
    }
}

/// The nodes of a timeline, and last `None` if it is not known where some of these rows were.
pub fn nodes<'a>(timeline: &'a Timeline, rows: &[Row<'_>]) -> impl Iterator<Item = Option<&'a str>> {
    let unknown = rows.iter().any(|row| row.spans.iter().any(|span| span.node.is_none()));
    timeline.nodes.iter().map(|node| Some(node.as_str())).chain(unknown.then_some(None))
}

/// What a rank does, as the name of a slice.
pub fn activity(activity: Activity) -> String {
    match activity {
        Activity::Starting => "starting".into(),
        Activity::Restoring => "restoring".into(),
        Activity::Running => "running".into(),
        Activity::Copying => "running, being copied".into(),
        Activity::Checkpoint { checkpoint } => format!("stopped for checkpoint {checkpoint}"),
        Activity::Moving => "stopped to move".into(),
    }
}

/// Where it was, for people.
pub fn node(node: Option<&str>) -> String {
    node.filter(|node| !node.is_empty()).map_or_else(|| "an unknown node".into(), clean)
}

/// What an operation was.
pub fn operation(operation: &Operation) -> String {
    match &operation.what {
        What::Start => "start".into(),
        What::Restart { checkpoint } => format!("restart from checkpoint {checkpoint}"),
        What::Checkpoint { checkpoint, by: Asker::Schedule } => format!("checkpoint {checkpoint}, due"),
        What::Checkpoint { checkpoint, .. } => format!("checkpoint {checkpoint}"),
        What::Migration { rank, from, to, live } => {
            let how = if *live { ", live" } else { "" };
            let to = if to.is_empty() { String::new() } else { format!(" to {}", clean(to)) };
            format!("move of rank {rank} from {}{to}{how}", node(Some(from)))
        }
    }
}

/// What became of an operation, if it was not done.
pub fn outcome(operation: &Operation) -> Option<String> {
    match &operation.outcome {
        Outcome::Done | Outcome::Unknown => None,
        Outcome::UnderWay => Some("under way".into()),
        Outcome::Failed { error } => Some(format!("failed: {}", clean(error))),
    }
}

/// The phases of an operation with their durations, and its rounds.
pub fn phases(operation: &Operation) -> Vec<String> {
    let mut all = Vec::new();
    for step in &operation.phases {
        let rounds = if step.phase == mend_journal::event::Phase::Precopy { rounds(operation) } else { String::new() };
        all.push(format!("{} {}{rounds}", step.phase.name(), text::duration(step.end.saturating_sub(step.begin))));
    }
    if all.iter().all(|phase| !phase.starts_with("precopy")) && !operation.rounds.is_empty() {
        all.push(format!("precopy{}", rounds(operation)));
    }
    all
}

fn rounds(operation: &Operation) -> String {
    let bytes = operation.rounds.iter().fold(0, |sum: u64, round| sum.saturating_add(round.bytes));
    let plural = if operation.rounds.len() == 1 { "" } else { "s" };
    if operation.rounds.is_empty() { String::new() } else { format!(" ({} round{plural}, {})", operation.rounds.len(), text::size(bytes)) }
}

/// A duration that may be long, for people.
pub fn long(us: u64) -> String {
    let seconds = us / 1_000_000;
    match seconds {
        0..120 => text::duration(us),
        120..7_200 => format!("{} min {} s", seconds / 60, seconds % 60),
        7_200..172_800 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// A time since the job's beginning, to the millisecond.
pub fn since(begin: u64, at: u64) -> String {
    let ms = at.saturating_sub(begin) / 1_000;
    let (seconds, ms) = (ms / 1_000, ms % 1_000);
    match seconds {
        0..60 => format!("{seconds}.{ms:03} s"),
        60..3_600 => format!("{}:{:02}.{ms:03}", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}:{:02}:{:02}.{ms:03}", seconds / 3_600, seconds / 60 % 60, seconds % 60),
        _ => format!("{} d {}:{:02}:{:02}", seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        assert_eq!([long(1_500), long(119_000_000), long(312_000_000)], ["1.5 ms", "119.00 s", "5 min 12 s"]);
        assert_eq!([long(7_500_000_000), long(180_000_000_000)], ["2 h 5 min", "2 d 2 h"]);
        assert_eq!([since(5, 5), since(0, 61_002_000), since(0, 3_661_000_000)], ["0.000 s", "1:01.002", "1:01:01.000"]);
        assert_eq!((since(9, 5), since(0, 180_000_000_000)), ("0.000 s".into(), "2 d 2:00:00".into()));
    }

    #[test]
    fn what_others_wrote_does_no_harm() {
        assert_eq!(clean("a\u{1b}[2Jb\n\u{ffff}é"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}é");
        assert_eq!((shortened("node12", 6), shortened("node123", 6)), ("node12".into(), "node1…".into()));
    }
}
