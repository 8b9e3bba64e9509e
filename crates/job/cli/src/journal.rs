//! `mend log`: what happened to a job, and what `ps` and `checkpoints` read from its journal.

use crate::failure::Failure;
use crate::report;
use clap::Args;
use mend_controller::failover;
use mend_controller::journal_file::{self, Journal, JournalError};
use mend_controller::known_jobs;
use mend_controller::record::JobDirectory;
use mend_journal::event::{Asker, Event};
use mend_journal::{Entry, State, text};
use mend_report::with_causes;
use serde::Serialize;
use std::time::Duration;

/// Between two looks at a journal that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// `mend log`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend log                                         of the job that runs, or ended last
  mend log lmp-3f2a --follow                       print new events as they happen, to the job's end
  mend log --json | jq '.[-1].data.cause'          why it ended

Times are UTC. In JSON an event has a number (seq), a time (at, microseconds since 1970), a name (event), data and a \
sentence (text), and a node and a rank if it is about one. With --follow each event is a line; else all are an array.")]
pub struct Log {
    /// The job; default: the one that runs, else the one that ended last
    pub job: Option<String>,
    /// Print new events as they happen, to the job's end
    #[arg(short, long)]
    pub follow: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        Self::new(with_causes(&error), error.hint(), 69)
    }
}

/// An entry as it is shown.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    text: String,
}

fn shown(entry: &Entry) -> Shown<'_> {
    Shown { entry, text: text::sentence(entry) }
}

fn line(entry: &Entry) -> String {
    format!("{}  {}", report::precise_time(entry.at), text::sentence(entry))
}

/// Whether a job has a controller, or is about to have another one.
pub fn goes_on(directory: &JobDirectory) -> bool {
    directory.is_running() || failover::awaits_successor(directory)
}

/// A controller that was killed writes no end; the next one does. Until there is one, this stands for it.
pub fn unwritten_end(entries: &[Entry]) -> Option<Entry> {
    let last = entries.last().filter(|_| State::of(entries).is_open())?;
    Some(Entry { seq: last.seq + 1, at: last.at, node: None, rank: None, event: Event::ControllerDied })
}

/// `mend log`.
pub async fn log(arguments: Log) -> Result<i32, Failure> {
    let (directory, _) = known_jobs::find_any(arguments.job.as_deref())?;
    let mut next = 0;
    let mut version = None;
    loop {
        // Asked before it is read: what is written between the two is read, and an end is not missed.
        let running = goes_on(&directory);
        let now = journal_file::version(directory.path());
        let changed = now != version || now.is_none();
        if changed || !running {
            version = now;
            let mut found = journal_file::read(directory.path())?;
            if !running {
                found.entries.extend(unwritten_end(&found.entries));
            }
            if found.damaged > 0 && next == 0 {
                mend_report::tell!("mend: {} bytes of the journal are damaged and left out", found.damaged);
            }
            // A summary has the number of the last event that it stands for.
            let new: Vec<&Entry> = found.entries.iter().filter(|entry| entry.seq >= next).collect();
            print(&new, &arguments)?;
            next = new.last().map_or(next, |entry| entry.seq + 1);
        }
        if !arguments.follow || !running {
            return Ok(0);
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// `mend explain --why`: the entries that tell of decisions.
pub fn decisions(job: Option<&str>, json: bool) -> Result<i32, Failure> {
    let (directory, _) = known_jobs::find_any(job)?;
    let running = goes_on(&directory);
    let mut found = journal_file::read(directory.path())?;
    if !running {
        found.entries.extend(unwritten_end(&found.entries));
    }
    let chosen: Vec<&Entry> =
        found.entries.iter().filter(|entry| entry.event.is_decision() || entry.event == Event::ControllerDied).collect();
    print(&chosen, &Log { job: None, follow: false, json })?;
    Ok(0)
}

fn print(entries: &[&Entry], arguments: &Log) -> Result<(), Failure> {
    match (arguments.json, arguments.follow) {
        (true, false) => report::json(&entries.iter().map(|entry| shown(entry)).collect::<Vec<_>>())?,
        (true, true) => {
            for entry in entries {
                let text = serde_json::to_string(&shown(entry)).map_err(|error| Failure::new(error.to_string(), "", 1))?;
                crate::report::say!("{text}");
            }
        }
        (false, _) => entries.iter().for_each(|entry| crate::report::say!("{}", line(entry))),
    }
    report::written()
}

/// What a job's journal adds up to; empty where there is none.
pub fn state(directory: &JobDirectory) -> State {
    journal_file::read(directory.path()).map(|found| State::of(&found.entries)).unwrap_or_default()
}

/// Checkpoints of a job that does not run were removed by hand. The caller holds its lock.
pub fn note_removed(directory: &JobDirectory, checkpoints: &[u64]) {
    let mut journal = Journal::open(directory.path());
    journal.decide(Event::CheckpointRemoved { checkpoints: checkpoints.to_vec(), by: Asker::User });
}

/// The last failure of a checkpoint, if none succeeded since: when, seconds since 1970, and why.
pub fn last_failure(state: &State) -> Option<(u64, &str)> {
    let last = state.failures.values().max_by_key(|found| found.last)?;
    let since = state.checkpoints.values().map(|facts| facts.at).max().unwrap_or(0).max(state.begun);
    (last.last > since).then_some((last.last / 1_000_000, last.error.as_str()))
}
