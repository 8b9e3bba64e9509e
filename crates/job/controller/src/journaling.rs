//! What of a job's life goes into its journal that its machine does not know of: beginnings, settings, ends, and what is put into words.
//!
//! Invariant: nothing here decides anything, or can fail.

use crate::error::RunError;
use crate::journal_file::Journal;
use crate::overruled::is_of_checkpoint;
use crate::record::JobRecord;
use crate::texts::{Names, loss};
use mend_coordination::failure::Failure;
use mend_image::cpu::CpuMismatch;
use mend_job::event::Record;
use mend_job::setup::CheckpointPlan;
use mend_journal::Event;
use mend_journal::event::{Cause, Lack, cut};
use mend_messages::job::NodeIndex;
use mend_messages::needs::{Difference, FileDifference};
use mend_policy::schedule::Interval;
use mend_report::with_causes;
use std::collections::BTreeMap;

/// Settings of this environment that differ from their defaults. At a restart (`again`) without those that the checkpoint decides.
fn settings(again: bool) -> BTreeMap<String, String> {
    let other = |setting: &&mend_settings::Setting| setting.is_set() && setting.text() != setting.default;
    let acts = |setting: &&mend_settings::Setting| !again || !is_of_checkpoint(setting);
    mend_settings::ALL.iter().filter(other).filter(acts).map(|setting| (setting.name.to_owned(), cut(setting.text()))).collect()
}

/// When checkpoints are taken, for people.
pub(crate) fn interval(plan: &CheckpointPlan) -> String {
    match plan.interval {
        Interval::Every(seconds) => format!("a checkpoint every {seconds} s"),
        Interval::Auto => "checkpoints as often as their cost makes it best".into(),
        Interval::Off => String::new(),
    }
}

/// A beginning, for the journal.
pub(crate) fn beginning(record: &JobRecord, from: Option<u64>) -> Event {
    let (ranks, hosts, settings, release) =
        (record.size, record.hosts.clone(), settings(from.is_some()), mend_messages::RELEASE.to_owned());
    let interval = record.plan.as_ref().map(interval).unwrap_or_default();
    match from {
        Some(checkpoint) => Event::JobRestarted { checkpoint, ranks, hosts, settings, release, interval },
        None => Event::JobStarted { command: record.command.iter().cloned().map(cut).collect(), ranks, hosts, settings, release, interval },
    }
}

/// Why a job ended early, for its journal.
pub(crate) fn cause_of(error: &RunError) -> Cause {
    match error {
        RunError::Start { rank, host, error, .. } => Cause::StartFailed { rank: *rank, node: host.clone(), error: cut(error.clone()) },
        RunError::Restore { rank, host, error, image, .. } => {
            Cause::RestoreFailed { rank: *rank, node: host.clone(), error: cut(error.clone()), image: *image }
        }
        RunError::NodeLost { host, why, ranks, .. } => {
            Cause::NodeLost { node: host.clone(), ranks: cut(ranks.clone()), why: cut(why.clone()) }
        }
        RunError::MessagesLost { ranks, hosts, why, .. } => {
            Cause::MessagesLost { ranks: *ranks, nodes: hosts.clone(), why: cut(why.clone()) }
        }
        RunError::NotHealed { source, .. } => cause_of(source),
        RunError::TimeUp { signal, .. } => Cause::TimeUp { signal: *signal },
        RunError::Interrupted { signal } => Cause::Interrupted { signal: *signal },
        RunError::Killed => Cause::Killed,
        RunError::Manifest(_) => Cause::NoCheckpoint { error: cut(with_causes(error)) },
        RunError::Node { .. }
        | RunError::NoSuchHost { .. }
        | RunError::Drained { .. }
        | RunError::Unseen { .. }
        | RunError::NoHostLeft { .. }
        | RunError::Refused { .. } => Cause::Unreachable { error: cut(with_causes(error)) },
        _ => Cause::Failed { error: cut(with_causes(error)) },
    }
}

/// Puts it into the journal; durable when this returns, if it has to be. `alive`: nodes that are not lost.
pub(crate) fn record(journal: &mut Journal, names: &Names, alive: &[NodeIndex], record: Record) {
    let name = |node: Option<NodeIndex>| node.and_then(|node| names.nodes.get(node as usize)).map(String::as_str);
    match record {
        Record::Happened { node, rank, durable: true, event } => journal.decide_of(name(node), rank, event),
        Record::Happened { node, rank, durable: false, event } => journal.record_of(name(node), rank, event),
        Record::NodeLost { node, how, ranks } => {
            let event = Event::NodeLost { why: cut(loss(&how)), ranks: ranks.into_iter().collect() };
            journal.record_of(name(Some(node)), None, event);
        }
        Record::CheckpointFailed { checkpoint, by, code, failure } => {
            let (error, hint) = names.failure(&failure, alive);
            journal.record(Event::CheckpointFailed { checkpoint, by, code, error: cut(error), hint: cut(hint) });
        }
        Record::MigrationUndone { node, rank, code, failure } => {
            let (error, hint) = names.failure(&failure, alive);
            journal.record_of(
                name(node),
                Some(rank),
                Event::MigrationUndone { code, error: cut(error), hint: cut(hint), lacks: lack_of(&failure) },
            );
        }
        Record::NowhereToGo { node, by, ranks, failure } => {
            let (error, hint) = names.failure(&failure, alive);
            let event = Event::NowhereToGo { by, ranks: ranks.into_iter().collect(), error: cut(error), hint: cut(hint) };
            journal.record_of(name(Some(node)), None, event);
        }
        Record::Cause(cause) => journal.cause(cause),
    }
}

/// What the target of a migration was found to lack.
fn lack_of(failure: &Failure) -> Option<Lack> {
    match failure {
        Failure::NoRoom { needs, left, .. } | Failure::TooLargeToFollow { needs, left, .. } => {
            Some(Lack::Memory { needs: *needs, left: *left })
        }
        Failure::Processor { why: CpuMismatch::Features(missing), .. } => {
            Some(Lack::CpuFeatures { names: missing.names().map(str::to_owned).collect() })
        }
        Failure::Processor { why: CpuMismatch::Registers { here, saved }, .. } => Some(Lack::Registers { here: *here, saved: *saved }),
        Failure::Differs { first: Difference::Kernel { release }, .. } => Some(Lack::Kernel { release: release.clone() }),
        Failure::Differs { first: Difference::File { path, what }, more, .. } => {
            let what = match what {
                FileDifference::Absent => "absent",
                FileDifference::Unreadable(_) => "unreadable",
                FileDifference::Kind => "kind",
                FileDifference::Size { .. } => "size",
                FileDifference::Content => "content",
            };
            Some(Lack::File { path: cut(path.clone()), what: what.into(), more: *more })
        }
        _ => None,
    }
}

/// It did not restart from this checkpoint. That may not be the job's end.
pub(crate) fn not_restarted(journal: &mut Journal, result: &Result<i32, RunError>) {
    if let Err(error) = result {
        journal.decide(Event::RestartFailed { cause: cause_of(error) });
    }
}

/// It goes on by itself.
pub(crate) fn going_on(journal: &mut Journal, result: &Result<i32, RunError>, checkpoint: u64) {
    let cause = match result {
        Err(error) => cause_of(error),
        Ok(status) => journal.blamed().unwrap_or_else(|| Cause::Failed { error: format!("exit code {status}") }),
    };
    journal.decide(Event::GoesOn { cause, checkpoint });
}

/// The job is over.
pub(crate) fn end(journal: &mut Journal, result: &Result<i32, RunError>) {
    match result {
        // What ended it is known for sure.
        Err(error) => journal.end_for(error.exit_code(), cause_of(error)),
        Ok(0) => journal.end_for(0, Cause::Done),
        Ok(status) => journal.end(*status, Cause::Failed { error: format!("exit code {status}") }),
    }
}
