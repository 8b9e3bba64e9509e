//! How a journal stays small however long its job lasts.
//!
//! ```text
//! before:  e1 e2 e3 … … … … … … … … … … … … … e900 e901 … e999
//! after:   e1    e3     (milestones)  Compacted{state of e1…e900}  e901 … e999
//! ```
//! Invariant: what is left adds up to the same state, but for the count of events that were left out.

use crate::event::{Entry, Event};
use crate::frame;
use crate::state::State;

/// Milestones that stay, the newest.
const MAX_MILESTONES: usize = 200;

/// Worth to be read in full after weeks: beginnings, ends, losses, moves.
fn is_milestone(event: &Event) -> bool {
    matches!(
        event,
        Event::JobStarted { .. }
            | Event::JobRestarted { .. }
            | Event::GoesOn { .. }
            | Event::PassedOver { .. }
            | Event::RestartFailed { .. }
            | Event::ControllerDied
            | Event::TookOver { .. }
            | Event::NodeLost { .. }
            | Event::MessagesLost { .. }
            | Event::RankSignal { .. }
            | Event::Abort { .. }
            | Event::StartFailed { .. }
            | Event::RestoreFailed { .. }
            | Event::MigrationCommitted { .. }
            | Event::Interrupted { .. }
            | Event::KillAsked
            | Event::TimeUp { .. }
            | Event::Ended { .. }
    )
}

/// Decisions that stand until the next of their kind: the newest of each stays.
const STANDING: [fn(&Event) -> bool; 2] =
    [|event| matches!(event, Event::IntervalChosen { .. }), |event| matches!(event, Event::TiersStaggered { .. })];

/// The entries to keep instead of these: the newest, up to `budget` bytes of frames, with what the others add up to before them. At
/// least the first entry and an earlier compaction's sum are among the others.
#[must_use]
pub fn compact(entries: &[Entry], budget: usize) -> Vec<Entry> {
    // An earlier one's sum covers all before it, so that is summed up anew: two would not agree about what was left out.
    let summed = entries.iter().rposition(|entry| matches!(entry.event, Event::Compacted { .. })).map_or(0, |at| at + 1);
    let mut room = budget;
    let mut first = entries.len();
    while first > summed.max(1) {
        let length = frame::encode(&entries[first - 1]).map_or(0, |frame| frame.len());
        let Some(left) = room.checked_sub(length) else { break };
        (room, first) = (left, first - 1);
    }
    let (old, new) = entries.split_at(first);
    let Some(last) = old.last() else { return new.to_vec() };
    let mut state = State::of(old);
    let mut stay: Vec<usize> = (0..first).filter(|at| is_milestone(&old[*at].event)).collect();
    stay.drain(..stay.len().saturating_sub(MAX_MILESTONES));
    let newest = |is: &fn(&Event) -> bool| entries.iter().rposition(|entry| is(&entry.event)).filter(|at| *at < first);
    stay.extend(STANDING.iter().filter_map(newest));
    stay.sort_unstable();
    let mut kept: Vec<Entry> = stay.into_iter().map(|at| old[at].clone()).collect();
    let folded = old.iter().filter(|entry| !matches!(entry.event, Event::Compacted { .. })).count();
    // What stays is counted when it goes, by a later one of these.
    state.left_out += (folded - kept.len()) as u64;
    let compacted = Entry { seq: last.seq, at: last.at, node: None, rank: None, event: Event::Compacted { state: Box::new(state) } };
    kept.push(compacted);
    kept.extend_from_slice(new);
    kept
}
