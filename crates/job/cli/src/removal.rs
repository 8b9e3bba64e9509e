//! `mend rm`.

use crate::arguments::Remove;
use crate::failure::Failure;
use crate::report;
use mend_controller::record::{self, JobDirectory, JobRecord};
use mend_controller::removal::{Removed, is_older, remove};

/// Removes the jobs that were named, or those that ended. Of several that are named none goes if one of them runs.
pub fn run(arguments: &Remove) -> Result<i32, Failure> {
    let jobs = match arguments.ended {
        true => ended(arguments)?,
        false => named(&arguments.jobs)?,
    };
    let mut removed: Vec<Removed> = Vec::new();
    for (directory, record) in jobs {
        removed.push(remove(&directory, &record)?);
    }
    let freed: u64 = removed.iter().map(|one| one.bytes).sum();
    if arguments.json {
        report::json(&serde_json::json!({ "removed": removed, "freed": freed }))?;
        return Ok(0);
    }
    for Removed { id, bytes, left, in_tiers } in &removed {
        println!("{id} is removed: {}", report::size(*bytes));
        if let Some(left) = left {
            println!("  {} stays: it holds other things, too, or a run uses it", left.display());
        }
        if *in_tiers {
            println!("  {}", report::LEFT_IN_TIERS);
        }
    }
    match removed.len() {
        0 => println!("there is nothing to remove"),
        1 => {}
        several => println!("{several} jobs, {} freed", report::size(freed)),
    }
    Ok(0)
}

fn ended(arguments: &Remove) -> Result<Vec<(JobDirectory, JobRecord)>, Failure> {
    let mut jobs = record::list()?;
    let old = |directory: &JobDirectory, record: &JobRecord| arguments.older.is_none_or(|age| is_older(directory, record, age));
    jobs.retain(|(directory, record)| old(directory, record) && !directory.is_running());
    Ok(jobs)
}

fn named(names: &[String]) -> Result<Vec<(JobDirectory, JobRecord)>, Failure> {
    let mut jobs: Vec<(JobDirectory, JobRecord)> = Vec::new();
    for name in names {
        let (directory, record) = record::find(Some(name), false)?;
        if directory.is_running() {
            return Err(record::RecordError::Running { id: record.id }.into());
        }
        if jobs.iter().all(|(_, known)| known.id != record.id) {
            jobs.push((directory, record));
        }
    }
    Ok(jobs)
}
