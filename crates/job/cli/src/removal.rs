//! `mend rm`.

use crate::arguments::Remove;
use crate::failure::Failure;
use crate::report;
use mend_controller::known_jobs;
use mend_controller::record::{JobDirectory, JobRecord, RecordError};
use mend_controller::removal::{Removed, is_older, remove};

/// Removes the jobs that were named, or those that ended. Of several that are named none goes if one of them runs. What goes is told of, also where
/// something else cannot.
pub fn run(arguments: &Remove) -> Result<i32, Failure> {
    let jobs = match arguments.ended {
        true => ended(arguments)?,
        false => named(&arguments.jobs)?,
    };
    let mut removed: Vec<Removed> = Vec::new();
    let mut failed: Vec<Failure> = Vec::new();
    for (directory, record) in jobs {
        match remove(&directory, &record, arguments.older) {
            Ok(one) => removed.push(one),
            // It goes on, or has since it was looked at, or somebody else has removed it or does so just now.
            Err(RecordError::Running { .. } | RecordError::NoSuchJob { .. }) if arguments.ended => {}
            Err(error) => failed.push(error.into()),
        }
    }
    tell(&removed, failed.is_empty(), arguments.json)?;
    Failure::of_several(failed)
}

fn tell(removed: &[Removed], all: bool, json: bool) -> Result<(), Failure> {
    let freed: u64 = removed.iter().map(|one| one.bytes).sum();
    if json {
        return report::json(&serde_json::json!({ "removed": removed, "freed": freed }));
    }
    for Removed { id, bytes, left, in_tiers } in removed {
        crate::report::say!("{id} is removed: {}", report::size(*bytes));
        if let Some(left) = left {
            crate::report::say!("  {} stays: it holds other things, too, or a run uses it", left.display());
        }
        if *in_tiers {
            crate::report::say!("  {}", report::LEFT_IN_TIERS);
        }
    }
    match removed.len() {
        0 if all => crate::report::say!("there is nothing to remove"),
        0 | 1 => {}
        several => crate::report::say!("{several} jobs, {} freed", report::size(freed)),
    }
    Ok(())
}

fn ended(arguments: &Remove) -> Result<Vec<(JobDirectory, JobRecord)>, Failure> {
    let mut jobs = known_jobs::list()?;
    let old = |directory: &JobDirectory, record: &JobRecord| arguments.older.is_none_or(|age| is_older(directory, record, age));
    jobs.retain(|(directory, record)| old(directory, record) && !directory.is_running());
    Ok(jobs)
}

fn named(names: &[String]) -> Result<Vec<(JobDirectory, JobRecord)>, Failure> {
    let mut jobs: Vec<(JobDirectory, JobRecord)> = Vec::new();
    for name in names {
        let (directory, record) = known_jobs::find(Some(name), false)?;
        if directory.is_running() {
            return Err(RecordError::Running { id: record.id }.into());
        }
        if jobs.iter().all(|(_, known)| known.id != record.id) {
            jobs.push((directory, record));
        }
    }
    Ok(jobs)
}
