//! `mend migrate`: moves ranks, one or several at once.

use crate::arguments::{Migrate, Moving, Strategy};
use crate::failure::Failure;
use crate::report;
use crate::verbs::{ask_and_watch, ask_of, unexpected};
use mend_controller::RunError;
use mend_controller::drained;
use mend_controller::known_jobs;
use mend_controller::record::{JobDirectory, JobRecord};
use mend_messages::chunks::TransportWord;
use mend_messages::control::{Answer, Ask, MigrationDone, MoveMode, MoveProgress, StopReason, Storage};
use mend_messages::job::Rank;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Runs the command. Exit code 1 if one of several ranks did not move.
pub async fn migrate(arguments: Migrate) -> Result<i32, Failure> {
    let ranks = ranks(&arguments.rank)?;
    if arguments.urgent || arguments.cancel {
        return interfere(&arguments, &ranks).await;
    }
    let avoid = avoided(arguments.to.as_deref())?;
    let manner = Manner::new(arguments.to, avoid, mode(arguments.mode, arguments.strategy)?, arguments.deadline)?;
    let job = known_jobs::find(arguments.job.as_deref(), true)?;
    if ranks.len() > 1 {
        all_are_there(&ranks, &job).await?;
        return several(job, ranks, &manner, arguments.json).await;
    }
    for rank in ranks {
        let done = one(&job, manner.ask(rank), arguments.json, true).await?;
        if arguments.json { report::json(&done)? } else { print(None, &done) }
    }
    Ok(0)
}

/// How ranks are to move.
pub struct Manner {
    to: Option<String>,
    avoid: Vec<String>,
    mode: MoveMode,
    deadline_ms: Option<u64>,
}

impl Manner {
    /// In this mode and as `--deadline` says; to the node of this name, or to any that is not to be avoided.
    pub fn new(to: Option<String>, avoid: Vec<String>, mode: MoveMode, deadline_s: Option<f64>) -> Result<Self, Failure> {
        Ok(Self { to, avoid, mode, deadline_ms: deadline_ms(deadline_s)? })
    }

    fn ask(&self, rank: Rank) -> Ask {
        let Self { to, avoid, mode, deadline_ms } = self;
        Ask::Migrate { rank, to: to.clone(), avoid: avoid.clone(), mode: *mode, deadline_ms: *deadline_ms }
    }
}

/// "3", "2,3,5", "4-7,9": ascending, each once.
fn ranks(text: &str) -> Result<BTreeSet<Rank>, Failure> {
    const MAX_RANKS: u32 = 1 << 20;
    let hint = "write for example `mend migrate lmp-3f2a 3 --to c`, or `2,3,5` or `4-7` for several";
    let wrong = || Failure::usage(format!("`{text}` is not a rank"), hint);
    let number = |text: &str| text.parse::<Rank>().map_err(|_| wrong());
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => drop(all.insert(number(part)?)),
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                if from > to || to - from > MAX_RANKS {
                    return Err(wrong());
                }
                all.extend(from..=to);
            }
        }
    }
    Ok(all)
}

/// None is moved if one of them does not exist: it was not meant. Those that were spawned since the job began count.
async fn all_are_there(ranks: &BTreeSet<Rank>, (directory, record): &(JobDirectory, JobRecord)) -> Result<(), Failure> {
    let Some(last) = ranks.last().filter(|last| **last >= record.size) else { return Ok(()) };
    let Answer::Status(status) = ask_of(directory, record, Ask::Status).await? else { return Err(unexpected()) };
    let most = status.ranks.iter().map(|rank| rank.rank).max().unwrap_or_default();
    if *last > most {
        return Err(Failure::new(format!("job {} has no rank {last}", record.id), format!("its ranks are 0 to {most}"), 1));
    }
    Ok(())
}

/// What `--mode` and `--strategy` say, else the setting.
pub fn mode(asked: Option<Moving>, strategy: Option<Strategy>) -> Result<MoveMode, Failure> {
    let storage = match strategy {
        None | Some(Strategy::Pipeline) => None,
        Some(Strategy::Shared) => Some(Storage::Shared),
        Some(Strategy::Local) => Some(Storage::Local),
        Some(Strategy::Staged) => Some(Storage::Staged),
    };
    if let Some(storage) = storage {
        return match asked {
            Some(Moving::Live) => Err(Failure::usage(
                "--mode live and this --strategy exclude each other: a rank that runs is copied through the pipeline",
                "leave one of them out",
            )),
            _ => Ok(MoveMode::Stored(storage)),
        };
    }
    Ok(match asked {
        Some(Moving::Auto) => MoveMode::Auto,
        Some(Moving::Live) => MoveMode::Live,
        Some(Moving::Frozen) => MoveMode::Frozen,
        None => match mend_settings::MIGRATE_MODE.choice().map_err(RunError::from)? {
            "live" => MoveMode::Live,
            "frozen" => MoveMode::Frozen,
            _ => MoveMode::Auto,
        },
    })
}

/// What `--deadline` says, in milliseconds.
fn deadline_ms(seconds: Option<f64>) -> Result<Option<u64>, Failure> {
    match seconds {
        Some(seconds) if !(0.0..=1e9).contains(&seconds) => {
            Err(Failure::usage(format!("`--deadline {seconds}` is no time"), "give seconds, like --deadline 20"))
        }
        seconds => Ok(seconds.map(|seconds| (seconds * 1000.0) as u64)),
    }
}

/// The nodes that take no ranks; the one that was named must not be among them.
fn avoided(to: Option<&str>) -> Result<Vec<String>, Failure> {
    let drained = drained::list()?;
    match to.filter(|to| drained.contains(*to)) {
        Some(to) => {
            Err(Failure::new(format!("{to} is drained: it takes no ranks"), format!("`mend undrain {to}`, or name another node"), 1))
        }
        None => Ok(drained.into_iter().collect()),
    }
}

/// Hurries or cancels moves that are under way.
async fn interfere(arguments: &Migrate, ranks: &BTreeSet<Rank>) -> Result<i32, Failure> {
    let (directory, record) = known_jobs::find(arguments.job.as_deref(), true)?;
    let (mut ended, mut failed) = (Vec::new(), Vec::new());
    for &rank in ranks {
        let what = if arguments.urgent { Ask::Hurry { rank } } else { Ask::CancelMove { rank } };
        let done = match ask_of(&directory, &record, what).await {
            Ok(Answer::Hurried) => "hurried",
            Ok(Answer::CancelledMove) => "cancelled",
            Ok(_) => return Err(unexpected()),
            Err(failure) => {
                ended.push(serde_json::json!({ "rank": rank, "error": failure.text() }));
                failed.push(failure);
                continue;
            }
        };
        ended.push(serde_json::json!({ done: rank }));
        match done {
            _ if arguments.json => {}
            "hurried" => crate::report::say!("rank {rank} is stopped and moved"),
            _ => crate::report::say!("rank {rank} goes on where it is"),
        }
    }
    let code = i32::from(!failed.is_empty());
    match (&ended[..], arguments.json) {
        ([one], true) if failed.is_empty() => report::json(one)?,
        // As of several that move: what failed is told in it.
        ([_, _, ..], true) => return report::json(&ended).map(|()| code),
        _ => {}
    }
    Failure::of_several(failed)
}

/// Moves one rank. `shows`: how far it is goes to a terminal.
async fn one((directory, record): &(JobDirectory, JobRecord), ask: Ask, json: bool, shows: bool) -> Result<MigrationDone, Failure> {
    let told = |answer: &Answer| match answer {
        Answer::Moving(progress) if json => drop(report::json_line(progress)),
        Answer::Moving(progress) if shows && std::io::stderr().is_terminal() => mend_report::tell_part!("\r\x1b[K{}", moving(progress)),
        _ => {}
    };
    match ask_and_watch(directory, record, ask, told).await? {
        Answer::Migrated(done) => Ok(done),
        _ => Err(unexpected()),
    }
}

/// What became of one of several ranks, for programs.
#[derive(Serialize)]
#[serde(untagged)]
enum Moved {
    Done(Box<MigrationDone>),
    Failed { rank: Rank, error: String },
}

/// A job that runs.
pub type Running = Arc<(JobDirectory, JobRecord)>;

/// Moves several ranks at once: they are copied beside each other, and of each job's one at a time is stopped. What becomes of each is printed as
/// it comes, with the job's name if it is `named`, unless it is wanted as JSON.
pub async fn all(
    ranks: impl IntoIterator<Item = (Running, Rank)>,
    manner: &Manner,
    json: bool,
    named: bool,
) -> Result<Vec<(String, Rank, Result<MigrationDone, Failure>)>, Failure> {
    let mut moves = JoinSet::new();
    for (job, rank) in ranks {
        let ask = manner.ask(rank);
        moves.spawn(async move { (job.1.id.clone(), rank, one(&job, ask, json, false).await) });
    }
    let mut ended = Vec::new();
    while let Some(joined) = moves.join_next().await {
        let (job, rank, result) = joined.map_err(|error| Failure::new(format!("a move was given up: {error}"), "", 1))?;
        match &result {
            _ if json => {}
            Ok(done) => print(named.then_some(job.as_str()), done),
            Err(failure) => drop(failure.report()),
        }
        ended.push((job, rank, result));
    }
    ended.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    Ok(ended)
}

async fn several(job: (JobDirectory, JobRecord), ranks: BTreeSet<Rank>, manner: &Manner, json: bool) -> Result<i32, Failure> {
    let job = Arc::new(job);
    let ended = all(ranks.into_iter().map(|rank| (Arc::clone(&job), rank)), manner, json, false).await?;
    let code = i32::from(ended.iter().any(|(.., result)| result.is_err()));
    if json {
        let moved = |(_, rank, result)| match result {
            Ok(done) => Moved::Done(Box::new(done)),
            Err(failure) => Moved::Failed { rank, error: Failure::text(&failure).to_owned() },
        };
        report::json(&ended.into_iter().map(moved).collect::<Vec<_>>())?;
    }
    Ok(code)
}

fn print(job: Option<&str>, done: &MigrationDone) {
    let (size, stopped) = (report::size(done.bytes), report::duration(done.stopped_us));
    let job = job.map(|job| format!("{job}: ")).unwrap_or_default();
    let sent = if done.sent_bytes == done.bytes { String::new() } else { format!(", compressed to {}", report::size(done.sent_bytes)) };
    let over = match done.transport {
        TransportWord::Tcp => String::new(),
        other => format!(" over {}", other.text()),
    };
    crate::report::say!("{job}rank {} moved from {} to {}{over}: {size}{sent}", done.rank, done.from, done.to);
    if let Some(live) = done.precopied {
        let (while_ran, us) = (report::size(live.bytes), report::duration(live.us));
        crate::report::say!("  {while_ran} in {} round(s) while it ran, {us}; then {}", live.rounds, stop_reason(live.why));
        crate::report::say!("  {} while it stood still", report::size(live.stopped_bytes));
    }
    crate::report::say!("  stopped for {stopped}: {}", report::phases(&done.phases));
}

/// "rank 3: round 1, 1.2 GiB sent, 410 MiB/s, changes 3 MiB/s, 12 MiB left: 30 ms "
fn moving(progress: &MoveProgress) -> String {
    let per_second = |rate: u64| format!("{}/s", report::size(rate));
    let mut text = format!("rank {}: round {}, {} sent", progress.rank, progress.round, report::size(progress.bytes));
    if progress.rate > 0 {
        text += &format!(", {}", per_second(progress.rate));
    }
    if let Some(dirty) = progress.dirty_rate {
        text += &format!(", changes {}", per_second(dirty));
    }
    if let Some(left) = progress.left {
        text += &format!(", {} left", report::size(left));
    }
    if let Some(us) = progress.left_us {
        text += &format!(": {}", report::duration(us));
    }
    text + " "
}

fn stop_reason(why: StopReason) -> &'static str {
    match why {
        StopReason::LittleLeft => "little was left",
        StopReason::NotShrinking => "it changed as fast as it was sent",
        StopReason::Deadline => "the time that was given was nearly over",
        StopReason::RoundLimit => "there were as many rounds as may be",
        StopReason::Urgent => "it was urgent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_a_list_and_nonsense_is_named() {
        let numbers = |text| ranks(text).ok().map(|all| all.into_iter().collect::<Vec<_>>());
        assert_eq!(numbers("3"), Some(vec![3]));
        assert_eq!(numbers("5,2,3,2"), Some(vec![2, 3, 5]));
        assert_eq!(numbers("4-6,0"), Some(vec![0, 4, 5, 6]));
        for wrong in ["", "x", "1,", "3-1", "-2", "0-4294967295", "1 2"] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }
}
