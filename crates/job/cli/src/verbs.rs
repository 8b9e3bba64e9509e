//! The verbs on jobs.

use crate::arguments::{Mode, Ps, TakeCheckpoint, Verb};
use crate::explain::Explain;
use crate::failure::Failure;
use crate::{journal, report};
use mend_controller::being_restarted;
use mend_controller::client::{self, AskError};
use mend_controller::job_end;
use mend_controller::known_jobs;
use mend_controller::record::{JobDirectory, JobRecord};
use mend_controller::removal::size_of;
use mend_messages::agent::SaveMode;
use mend_messages::control::{Answer, Ask, Explanation, JobStatus, RankStatus};
use serde::Serialize;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::time::timeout;

/// Longest time a killed job may take to be gone: its daemons have 10 s for its ranks.
const KILL_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time that `mend ps` and `mend drain` wait for a job's controller. One that is lost has a successor by then.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(15);

/// Asks and turns a refusal into a failure.
async fn ask(job: Option<&str>, what: Ask) -> Result<Answer, Failure> {
    let (directory, record) = known_jobs::find(job, true)?;
    ask_of(&directory, &record, what).await
}

pub async fn ask_of(directory: &JobDirectory, record: &JobRecord, what: Ask) -> Result<Answer, Failure> {
    ask_and_watch(directory, record, what, |_| {}).await
}

/// The same; `told` gets what comes before the last answer.
pub async fn ask_and_watch(
    directory: &JobDirectory,
    record: &JobRecord,
    what: Ask,
    mut told: impl FnMut(&Answer),
) -> Result<Answer, Failure> {
    let show = std::io::stderr().is_terminal();
    // Something is told that says more than seconds.
    let better = std::sync::atomic::AtomicBool::new(false);
    let waiting = async {
        // Something to look at, but only where it takes long enough to wonder.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut seconds = 1u64;
        loop {
            if show && !better.load(std::sync::atomic::Ordering::Relaxed) {
                mend_report::tell_part!("\r{}: {seconds} s ", record.id);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            seconds += 1;
        }
    };
    let meanwhile = |answer: &Answer| match answer {
        Answer::Progress(text) => mend_report::tell!("mend: {text}"),
        answer => {
            better.store(true, std::sync::atomic::Ordering::Relaxed);
            told(answer);
        }
    };
    let answer = tokio::select! {
        answer = client::ask(directory, record, &what, meanwhile) => answer,
        () = waiting => Err(AskError::Ended(None)),
    };
    if show {
        mend_report::tell_part!("\r\x1b[K");
    }
    match answer? {
        Answer::Failed { error, hint } => Err(Failure::new(error, hint, 1)),
        answer => Ok(answer),
    }
}

pub fn unexpected() -> Failure {
    Failure::new("the controller answered something else", "is it of the same release?", 1)
}

#[derive(Serialize)]
struct Listed {
    id: String,
    state: String,
    command: Vec<String>,
    ranks: u32,
    started: u64,
    hosts: Vec<String>,
    last_checkpoint: Option<u64>,
    /// Bytes on disk, of its directory and its checkpoints; with --all.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Why it ended, as a code with data.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<mend_journal::event::Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<JobStatus>,
}

/// `mend ps`.
pub async fn ps(arguments: Ps) -> Result<i32, Failure> {
    let mut jobs = Vec::new();
    let found = match arguments.jobs.is_empty() {
        true => known_jobs::list()?,
        false => arguments.jobs.iter().map(|name| known_jobs::find(Some(name), false)).collect::<Result<_, _>>()?,
    };
    for (directory, record) in found {
        let answer = match journal::goes_on(&directory) && !record.goes_on && record.ended.is_none() {
            true => Some(timeout(STATUS_TIMEOUT, client::ask(&directory, &record, &Ask::Status, |_| {})).await),
            false => None,
        };
        // The job may have ended meanwhile, or nobody has taken its lost controller's place.
        let running = journal::goes_on(&directory);
        let record = directory.record().unwrap_or(record);
        if !running && !arguments.all && arguments.jobs.is_empty() {
            continue;
        }
        let silent = matches!(answer, Some(Err(_)));
        let status = match answer {
            Some(Ok(Ok(Answer::Status(status)))) => Some(status),
            _ => None,
        };
        let cause = if running { None } else { crate::journal::state(&directory).ended.map(|end| end.cause) };
        let state = match (&status, &record.ended) {
            (Some(status), _) => status.state.clone(),
            (None, _) if running && record.goes_on => "restarting".into(),
            (None, _) if being_restarted::is(&directory) => "restarting".into(),
            // Its controller stays for that.
            (None, Some((_, how))) if running && !record.unsent.is_empty() => format!("ended: {how}; its output is being sent away"),
            (None, Some((_, how))) if running => format!("ending: {how}"),
            (None, None) if running && !directory.is_running() => "its controller is lost; another one is expected".into(),
            (None, None) if silent => format!("its controller on {} does not answer", record.controller_host),
            (None, None) if running => "starting".into(),
            (None, Some((_, how))) if how.starts_with("exit code") && !how.ends_with(" 0") && cause.is_some() => {
                format!("ended: {how}: {}", cause.as_ref().map(mend_journal::text::cause).unwrap_or_default())
            }
            (None, Some((_, how))) => format!("ended: {how}"),
            (None, None) => match job_end::of_journal(&directory) {
                Some(code) => format!("ended: exit code {code}"),
                None => "ended: its controller was killed".into(),
            },
        };
        let unsent = if !running && !record.unsent.is_empty() { "; not all of its output was sent away" } else { "" };
        let state = format!("{state}{unsent}");
        jobs.push(Listed {
            bytes: arguments.all.then(|| size_of(&directory, &record)),
            state,
            ranks: status.as_ref().map_or(record.size, |status| shown(status).count() as u32),
            started: record.started,
            last_checkpoint: record.branch.newest(&record.checkpoints),
            id: record.id,
            command: record.command,
            hosts: record.hosts,
            cause,
            status,
        });
    }
    if arguments.json {
        report::json(&jobs)?;
        return Ok(0);
    }
    let row = |job: &Listed| {
        vec![
            job.id.clone(),
            job.state.clone(),
            job.ranks.to_string(),
            places(job),
            job.last_checkpoint.map_or_else(|| "-".into(), |number| number.to_string()),
        ]
        .into_iter()
        .chain(job.bytes.map(report::size))
        .chain([job.command.join(" ")])
        .collect()
    };
    let size = arguments.all.then_some("SIZE");
    let heading: Vec<&str> = ["JOB", "STATE", "RANKS", "PLACES", "CHECKPOINT"].into_iter().chain(size).chain(["COMMAND"]).collect();
    report::table(&heading, &jobs.iter().map(row).collect::<Vec<_>>());
    Ok(0)
}

/// Ranks of a job that may still do something: those of a spawned world that have ended are not shown.
fn shown(status: &JobStatus) -> impl Iterator<Item = &RankStatus> {
    status.ranks.iter().filter(|rank| rank.world == 0 || !rank.ended)
}

/// "a:0,1 b:2,3 c" with a spare c, and "4=1.0" for the rank 4 of the job that is rank 0 of the first spawned world.
fn places(job: &Listed) -> String {
    let Some(status) = &job.status else { return job.hosts.join(",") };
    let name = |rank: &RankStatus| match rank.world {
        0 => rank.rank.to_string(),
        world => format!("{}={world}.{}", rank.rank, rank.world_rank),
    };
    let on = |host: &String| {
        let ranks: Vec<String> = shown(status).filter(|rank| &rank.host == host).map(name).collect();
        if ranks.is_empty() { host.clone() } else { format!("{host}:{}", ranks.join(",")) }
    };
    status.hosts.iter().map(on).collect::<Vec<_>>().join(" ")
}

/// `mend checkpoint`.
pub async fn checkpoint(arguments: TakeCheckpoint) -> Result<i32, Failure> {
    let mode = arguments.mode.map(|mode| match mode {
        Mode::CopyOnWrite => SaveMode::CopyOnWrite,
        Mode::Stop => SaveMode::Stop,
    });
    let ask = ask(arguments.job.as_deref(), Ask::Checkpoint { mode });
    let Answer::Checkpoint(done) = ask.await? else { return Err(unexpected()) };
    if arguments.json {
        report::json(&done)?;
    } else {
        let stopped = report::duration(done.stopped_us);
        crate::report::say!("checkpoint {}: {} in {}", done.number, report::size(done.bytes), done.directory);
        crate::report::say!("  stopped for {stopped}: {}", report::phases(&done.phases));
        crate::report::say!("  durable after {}", report::duration(done.durable_us));
        done.notes.iter().for_each(|note| crate::report::say!("  {note}"));
    }
    Ok(0)
}

/// What the policy has chosen for periodic checkpoints, and by what.
fn chosen(interval_s: f64, status: &JobStatus) -> String {
    let every = format!("a checkpoint every {}", report::duration((interval_s * 1e6) as u64));
    let incrementals = match status.incrementals {
        0 => "all full".to_owned(),
        some => format!("{some} incremental to a full one"),
    };
    let by = match status.restarts_measured {
        0 => "estimated".to_owned(),
        1 => "as 1 restart of the job took".to_owned(),
        several => format!("as {several} restarts of the job took"),
    };
    match status.extra_recovery_s {
        Some(extra) => {
            let longer = report::duration((extra * 1e6) as u64);
            format!("{every}, {incrementals}; an incremental one is taken to make a restart {longer} longer ({by})")
        }
        None => format!("{every}, {incrementals}"),
    }
}

/// `mend kill`.
pub async fn kill(arguments: Verb) -> Result<i32, Failure> {
    let (directory, record) = known_jobs::find_own(arguments.job.as_deref(), true)?;
    let Answer::Killed = ask_of(&directory, &record, Ask::Kill).await? else { return Err(unexpected()) };
    // What follows it (a restart, say) wants the job's lock.
    let asked = std::time::Instant::now();
    while directory.is_running() {
        let ended = || directory.record().is_ok_and(|record| record.ended.is_some());
        if asked.elapsed() > KILL_TIMEOUT && ended() {
            mend_report::tell!("mend: the process of `mend run` still sends files away; SIGINT ends it");
            break;
        }
        if asked.elapsed() > KILL_TIMEOUT {
            let error = format!("{} was told to end and still runs", record.id);
            return Err(Failure::new(error, "look at the process of `mend run`; is its output being read?", 1));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if arguments.json {
        report::json(&serde_json::json!({ "killed": record.id }))?;
    } else {
        crate::report::say!("{} is ended", record.id);
    }
    Ok(0)
}

/// `mend explain`. Exit code 1 if something stands in the way.
pub async fn explain(arguments: Explain) -> Result<i32, Failure> {
    if arguments.why {
        return journal::decisions(arguments.job.as_deref(), arguments.json);
    }
    let (directory, record) = known_jobs::find(arguments.job.as_deref(), true)?;
    let Answer::Explained(ranks) = ask_of(&directory, &record, Ask::Explain).await? else { return Err(unexpected()) };
    // The job's own, not what this command's environment has.
    let limit = record.keep_files.unwrap_or(u64::MAX);
    let clear = |one: &Explanation| one.inspection.as_ref().is_ok_and(|found| found.obstacles.is_empty());
    let code = i32::from(!ranks.iter().all(clear));
    if arguments.json {
        report::json(&ranks)?;
        return Ok(code);
    }
    for Explanation { rank, host, inspection } in &ranks {
        match inspection {
            Err(why) => crate::report::say!("rank {rank} on {host}: cannot be saved: {why}"),
            Ok(found) => {
                let fabric = if found.fabric_in_use { "messages over Mend's fabric" } else { "no MPI over Mend's fabric" };
                let changes = report::tracking(&found.tracking);
                let what = format!("{} thread(s), {} to save, {changes}, {fabric}", found.threads, report::size(found.image_bytes));
                match found.obstacles.is_empty() {
                    true => crate::report::say!("rank {rank} on {host}: can be saved ({what})"),
                    false => crate::report::say!("rank {rank} on {host}: cannot be saved ({what})"),
                }
                for obstacle in &found.obstacles {
                    crate::report::say!("    {}", obstacle.what);
                    crate::report::say!("      hint: {}", obstacle.hint);
                }
                for (path, size) in found.written_files.iter().filter(|(_, size)| *size > limit) {
                    let size = report::size(*size);
                    crate::report::say!(
                        "    remark: {path} ({size}) is open for writing, and kept with checkpoints only where its file system can clone it"
                    );
                }
                for why in &found.tracking.why {
                    crate::report::say!("    changed pages are not noticed by {why}");
                }
            }
        }
    }
    if let Answer::Status(status) = ask_of(&directory, &record, Ask::Status).await?
        && let Some(interval_s) = status.interval_s
    {
        crate::report::say!("{}", chosen(interval_s, &status));
    }
    Ok(code)
}
