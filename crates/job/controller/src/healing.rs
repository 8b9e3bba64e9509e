//! How a job that a failure has stopped goes on by itself: in the same process, from its last checkpoint, on the nodes that are left.
//!
//! ```text
//! a life of the job ── a failure, and a checkpoint ──► wait until no rank of it can live ──► restart ──► the next life
//!                   └─ anything else ──► the end
//! ```
//! Whether it goes on is decided by [`mend_job::healing`]. Invariants: the job's lock is held from its first life to its last; no rank is
//! started before every earlier one has been reaped, its daemon is known to be gone, or its lease is over. Faults assumed: nodes fall silent
//! and live; the user ends the job between two lives; no node answers.

use crate::batch::{BatchSession, InBatch, daemons_of};
use crate::candidates::Candidates;
use crate::embedded::Embedded;
use crate::end_on_record::put_end_on_record;
use crate::error::{NODE_LOST, RunError};
use crate::failover::{self, log, watch};
use crate::host_connections::one_answers;
use crate::input::Wanted;
use crate::job_lock::JobLock;
use crate::kill_request;
use crate::life::{Constants, Life};
use crate::lock_identity::LockIdentity;
use crate::made_spaces::Begins;
use crate::offload::Offloads;
use crate::record::{JobDirectory, JobRecord, put_unsent_on_record};
use crate::restart::{Notes, RestartSpec, first_life_of_restart, restart_newest};
use crate::signals::Signals;
use crate::start::{RunSpec, first_life};
use crate::time_left::process_began;
use crate::wish::Wish;
use mend_job::choice::Blame;
use mend_report::with_causes;
use rustix::process::Signal;
use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Between two looks for nodes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a new job to its end. Returns its exit code.
///
/// # Errors
/// See [`RunError`].
pub async fn run(mut spec: RunSpec) -> Result<i32, RunError> {
    // The clock of `MEND_TIME_LIMIT_S` runs from now on.
    let _ = process_began();
    let (signals, mut strays) = Signals::new();
    let mut batch = None;
    if spec.hosts.is_empty()
        && let Some(session) = BatchSession::find().await?
    {
        signals.are_of_batch();
        let said = spec.ranks.or_else(|| session.said_ranks(spec.spare_nodes));
        // Daemons take their time: before the turn, which others wait for.
        let unusable = session.unusable(&signals).await?;
        let placed = session.place(&spec.program, said).await;
        if placed.is_err() {
            session.stop().await;
        }
        let (place, unfinished) = placed?;
        let ranks = unfinished.as_ref().map(JobRecord::first_world).or(said).unwrap_or_else(|| session.room(spec.spare_nodes, &unusable));
        spec.ranks = Some(ranks);
        (spec.hosts, spec.spares) = session.share_out(ranks, spec.spare_nodes, &unusable);
        let in_batch = (Arc::new(session), place);
        if let Some(job) = unfinished {
            return go_on_in_batch(&job, spec, in_batch, signals, strays).await;
        }
        batch = Some(in_batch);
    } else if spec.spare_nodes > 0 {
        return Err(RunError::NoAllocation);
    }
    let in_batch = batch.clone();
    let first = tokio::select! {
        biased;
        first = first_life(spec, batch, signals) => first,
        // Before there is a job that could be told.
        Some(wish) = strays.recv() => Err(wish.end("", None)),
    };
    see_through_in_batch(first, in_batch, strays).await
}

/// A batch job was queued again, and runs the command of a job that is not finished.
async fn go_on_in_batch(
    record: &JobRecord,
    spec: RunSpec,
    in_batch: InBatch,
    signals: Signals,
    mut strays: mpsc::UnboundedReceiver<Wish>,
) -> Result<i32, RunError> {
    if !spec.quiet {
        mend_report::tell!("mend: job {} of this batch job is not finished: it goes on from its last checkpoint", record.id);
    }
    let restart = RestartSpec {
        candidates: Candidates::of(record),
        hosts: spec.hosts,
        spares: spec.spares,
        tiers: spec.tiers,
        repeat_output: false,
        input: Wanted::Auto,
        any_owner: false,
        encryption_key: spec.encryption_key,
        periodic: spec.periodic,
        healing: spec.healing,
        quiet: spec.quiet,
        batch: Some(in_batch.clone()),
        run_began: None,
        // Nobody looks at what a node that failed had: its ranks may never read that again.
        begins: Begins::ByItself,
        stood: Vec::new(),
    };
    let first = first_life_of_restart(restart, signals, &mut strays).await;
    see_through_in_batch(first, Some(in_batch), strays).await
}

/// Sees a job through, and then ends the daemons that its batch system has started, or has the batch job queued again.
pub(crate) async fn see_through_in_batch(
    first: Result<(Life, Constants), RunError>,
    in_batch: Option<InBatch>,
    mut strays: mpsc::UnboundedReceiver<Wish>,
) -> Result<i32, RunError> {
    let (result, quiet, told) = match first {
        Ok((life, constants)) => {
            let (quiet, signals) = (constants.quiet, life.signals.clone());
            (see_through(life, constants, &mut strays).await, quiet, signals.time_was_up())
        }
        Err(error) => (Err(error), false, None),
    };
    if let Some((session, _)) = in_batch {
        session.stop().await;
        if let Err(RunError::TimeUp { checkpoint: Some(number), job, .. }) = &result {
            session.requeue((job, *number), quiet, told, &mut strays).await;
        }
    }
    result
}

/// Continues a job from a checkpoint to its end: the newest whose images are good. Returns its exit code.
///
/// # Errors
/// See [`RunError`].
pub async fn restart(mut spec: RestartSpec) -> Result<i32, RunError> {
    // The clock of `MEND_TIME_LIMIT_S` runs from now on.
    let _ = process_began();
    let (signals, mut strays) = Signals::new();
    if spec.hosts.is_empty()
        && let Some(session) = BatchSession::find().await?
    {
        signals.are_of_batch();
        let unusable = session.unusable(&signals).await?;
        spec.hosts = session.all_hosts(&unusable);
        // Which command it is, its checkpoint says; a batch job that is queued again does not restart by the number.
        let place = session.record(0);
        spec.batch = Some((Arc::new(session), place));
    }
    let in_batch = spec.batch.clone();
    let first = first_life_of_restart(spec, signals, &mut strays).await;
    see_through_in_batch(first, in_batch, strays).await
}

/// Has the job go on for as long as it does. Returns its exit code.
///
/// # Errors
/// What ended it early.
async fn see_through(life: Life, constants: Constants, strays: &mut mpsc::UnboundedReceiver<Wish>) -> Result<i32, RunError> {
    let (id, offloads, spaces) = (life.id.clone(), life.offloads.clone(), life.spaces.clone());
    let (result, rest) = to_its_end(life, &constants, strays).await;
    // A job that goes on later sends what it has then; and its time is up.
    let unclear = offloads.as_ref().is_some_and(Offloads::is_unclear);
    let mut left = Vec::new();
    if let Some(offloads) = offloads.filter(|_| !matches!(result, Err(RunError::TimeUp { checkpoint: Some(_), .. }))) {
        let holder = rest.as_ref().map(|(lock, _)| lock.identity());
        // Should this process be killed meanwhile, whoever asks for the job's end is told.
        put_unsent_on_record(&id, holder, offloads.places());
        let unsent = offloads.finish(&id, constants.quiet, strays).await;
        left = unsent.iter().map(|(space, _)| space.clone()).collect();
        put_unsent_on_record(&id, holder, unsent);
    }
    if unclear {
        left = spaces.names();
    }
    let goes_on = result.as_ref().is_err_and(|error| error.exit_code() == NODE_LOST);
    if !goes_on {
        spaces.end(&id, &left).await;
    }
    // It serves targets of data spaces until then.
    if let Some((_lock, Some(embedded))) = rest {
        embedded.stop().await;
    }
    result
}

/// How it ended, and its lock and the daemon of this process, if it still has them.
async fn to_its_end(
    mut life: Life,
    constants: &Constants,
    strays: &mut mpsc::UnboundedReceiver<Wish>,
) -> (Result<i32, RunError>, Option<(JobLock, Option<Embedded>)>) {
    while let Some(checkpoint) = life.end.goes_on {
        if let Err(error) = &life.end.result {
            mend_report::tell!("mend: {error}");
        }
        mend_report::tell!("mend: job {} goes on by itself, from checkpoint {checkpoint} if that is good", life.id);
        life = match next_life(life, constants, strays).await {
            Ok(next) => next,
            Err((error, notes)) => return (Err(error), notes.into_rest()),
        };
    }
    (life.end.result, Some((life.lock, life.embedded)))
}

/// The job's next life; else why there is none, with what the one before has left.
async fn next_life(life: Life, constants: &Constants, strays: &mut mpsc::UnboundedReceiver<Wish>) -> Result<Life, (RunError, Notes)> {
    let Life { end, embedded, lock, id, checkpoints, tiers, signals, .. } = life;
    let (holder, directory) = (lock.identity(), lock.job_directory());
    let mut notes = Notes::of(&id, lock, embedded);
    let next = async {
        wait_until(end.reaped, &id).await;
        let patience = Instant::now() + constants.options.patience()?;
        loop {
            notes.leave_if_succeeded();
            let mut spec = RestartSpec::of_next_life(&checkpoints, &id, &tiers, constants, &end);
            match restart_newest(&mut spec, constants.key.as_ref(), end.healing.clone(), &signals, &mut notes).await {
                Err(error) if wants_nodes(&id, &error) && Instant::now() < patience => {
                    tracing::info!(error = with_causes(&error), "nodes are waited for");
                    notes.tell_of_waiting(&error, patience);
                    wait_for_nodes(&id, &error, constants, (&signals, patience)).await?;
                }
                next => return next,
            }
        }
    };
    let next = tokio::select! {
        // A life that is over is not thrown away for what came at that very time.
        biased;
        next = next => next,
        Some(wish) = strays.recv() => {
            if wish == Wish::End(Signal::HUP.as_raw()) && hand_over(&directory) {
                // As while a life runs: its terminal was closed, and a successor goes on in its place.
                std::process::exit(128 + Signal::HUP.as_raw());
            }
            Err(wish.end(&id, Candidates::to_go_on_from(&checkpoints, &id).newest()))
        }
        () = kill_request::wanted(&id) => Err(RunError::Killed),
        never = show_life(&directory, &id, holder) => match never {},
    };
    if let Err(error) = next {
        if !notes.written {
            notes.write(&id, &error);
        }
        let how = error.to_string();
        let error = match error {
            RunError::Interrupted { .. } | RunError::Killed | RunError::TimeUp { .. } => error,
            error => RunError::NotHealed { job: id.clone(), wants_nodes: wants_nodes(&id, &error), source: Box::new(error) },
        };
        if let Some(lock) = notes.lock() {
            put_end_on_record(&id, lock, how, error.exit_code());
        }
        return Err((error, notes));
    }
    next.map_err(|error| (error, notes))
}

/// Shows that this controller lives, however long it waits between two lives, and ends this process if a successor has the job.
async fn show_life(directory: &JobDirectory, id: &str, holder: LockIdentity) -> Infallible {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        match LockIdentity::of(directory.path()) {
            Some(found) if found == holder => log::touch(directory.path()),
            Some(_) => watch::leave(id),
            None => {}
        }
    }
}

/// Has another process go on with the job when this one ends, if it can: what was decided is written down. It is started here: there may be no daemon that would.
fn hand_over(directory: &JobDirectory) -> bool {
    if log::written(directory.path()).is_none() {
        return false;
    }
    let Some(command) = failover::command(directory.path()) else { return false };
    let mut successor = Command::new(&command.executable);
    // Of a group of its own: the terminal's end is not told to it.
    successor.arg("take-over").arg(&command.directory).current_dir("/").process_group(0);
    let begun = successor.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    begun.inspect_err(|error| tracing::warn!(%error, "no successor of this controller can be started")).is_ok()
}

/// Whether nodes may help that are missing now: there are too few, or what they have of a checkpoint is nowhere else.
fn wants_nodes(id: &str, error: &RunError) -> bool {
    error.wants_nodes() || error.blame() != Blame::Elsewhere && !absent(id).is_empty()
}

/// Nodes of the job that its last restart did not have.
fn absent(id: &str) -> Vec<String> {
    JobDirectory::open(id).and_then(|directory| directory.record()).map(|record| record.absent).unwrap_or_default()
}

/// Until another try may bring something else than this error.
async fn wait_for_nodes(
    id: &str,
    error: &RunError,
    constants: &Constants,
    (signals, patience): (&Signals, Instant),
) -> Result<(), RunError> {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        // A try that finds out who answers costs little; one that begins to restore does not.
        if error.wants_nodes() || Instant::now() >= patience {
            return Ok(());
        }
        if one_answers(absent(id), &daemons_of(constants.batch.as_ref(), signals).await?).await? {
            return Ok(());
        }
    }
}

/// What cannot be told to have ended may live on until its lease is over.
async fn wait_until(reaped: Option<Instant>, id: &str) {
    let Some(left) = reaped.map(|reaped| reaped.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero()) else { return };
    if left > LOOK_INTERVAL {
        mend_report::tell!(
            "mend: job {id} waits {} s: ranks on a node that cannot be asked may live for so long",
            left.as_secs_f32().ceil()
        );
    }
    tokio::time::sleep(left).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::SystemTime;

    #[tokio::test]
    async fn who_waits_between_two_lives_is_seen_to_live() {
        let place = tempfile::tempdir().unwrap();
        let lock = JobDirectory::at(place.path()).lock("a-job").unwrap();
        let directory = lock.job_directory();
        let told = File::create(place.path().join("told")).unwrap();
        let is_expected = || crate::failover::is_expected(&directory);
        for _ in 0..2 {
            told.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
            assert!(!is_expected());
            let seen = async {
                while !is_expected() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                () = seen => {}
                never = show_life(&directory, "a-job", lock.identity()) => match never {},
            }
        }
    }
}
