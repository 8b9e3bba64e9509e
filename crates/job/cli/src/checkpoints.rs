//! `mend checkpoints`: what there is to restart from, what builds on what, and removing some of it.

use crate::arguments::Checkpoints;
use crate::failure::Failure;
use crate::{journal, report, verbs};
use mend_controller::RunError;
use mend_controller::image_file::key_of_setting;
use mend_controller::known_jobs;
use mend_controller::manifest::{self, Manifest};
use mend_controller::portable;
use mend_controller::record::{self, JobDirectory, JobRecord, RecordError};
use mend_controller::upkeep::remove_by_hand;
use mend_messages::control::{Answer, Ask};
use mend_messages::files::KeptFile;
use mend_report::with_causes;
use mend_sealed::Key;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

#[derive(Serialize)]
struct Listed {
    number: u64,
    usable: bool,
    /// Of a run that was given up: taken by its number alone.
    given_up: bool,
    problem: Option<String>,
    taken: Option<u64>,
    age_s: Option<u64>,
    kind: Option<String>,
    periodic: Option<bool>,
    bases: BTreeSet<u64>,
    needs: BTreeSet<u64>,
    bytes: Option<u64>,
    /// Files that a restart cannot put back, if they are changed.
    not_kept: Vec<String>,
    stopped_us: Option<u64>,
    tiers: Vec<String>,
    directory: String,
    durable_us: Option<u64>,
}

/// `mend checkpoints`.
pub async fn run(arguments: Checkpoints) -> Result<i32, Failure> {
    let (directory, record) = known_jobs::find_any(arguments.job.as_deref())?;
    if !arguments.remove.is_empty() {
        return remove(&directory, &record, &arguments).await;
    }
    let key = key_of_setting().map_err(RunError::from)?;
    let mut all: Vec<Listed> =
        manifest::numbers(&record.checkpoints).into_iter().map(|number| look(&record, number, key.as_ref())).collect();
    all.extend(portable::kept(directory.path()).into_iter().map(of_variables));
    if arguments.json {
        report::json(&all)?;
        return Ok(0);
    }
    let state = journal::state(&directory);
    let failed = journal::last_failure(&state).map(|(at, why)| (report::age(record::now().saturating_sub(at)), why));
    let failed = failed.map(|(age, why)| format!("the last try, {age} ago, failed: {why}; see `mend log {}`", record.id));
    if all.is_empty() {
        crate::report::say!("{} has no checkpoint", record.id);
        failed.iter().for_each(|failed| crate::report::say!("{failed}"));
        return Ok(0);
    }
    crate::report::say!("{}", record.id);
    let heading = ["N", "TAKEN (UTC)", "AGE", "KIND", "NEEDS", "SIZE", "STOPPED", "WHOLE IN", "DIRECTORY"];
    report::table(&heading, &all.iter().map(row).collect::<Vec<_>>());
    for one in &all {
        one.not_kept.iter().for_each(|file| crate::report::say!("{}: {file}", one.number));
    }
    failed.iter().for_each(|failed| crate::report::say!("{failed}"));
    Ok(0)
}

fn row(one: &Listed) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let needs: Vec<String> = one.needs.iter().map(u64::to_string).collect();
    vec![
        one.number.to_string(),
        or_dash(one.taken.map(report::time)),
        or_dash(one.age_s.map(report::age)),
        or_dash(one.kind.clone()),
        or_dash((!needs.is_empty()).then(|| needs.join(","))),
        or_dash(one.bytes.map(report::size)),
        or_dash(one.stopped_us.map(report::duration)),
        or_dash((!one.tiers.is_empty()).then(|| one.tiers.join(" "))),
        match &one.problem {
            Some(problem) => problem.clone(),
            None if one.given_up => format!("{} (given up: `--checkpoint {}` takes it)", one.directory, one.number),
            None => one.directory.clone(),
        },
    ]
}

fn look(record: &JobRecord, number: u64, key: Option<&Key>) -> Listed {
    let directory = record.checkpoints.join(number.to_string());
    let read = manifest::read_alone(&directory, key);
    let problem = match &read {
        Ok(found) => manifest::check(&directory, found, key).err().map(|error| with_causes(&error)),
        Err(error) => Some(with_causes(error)),
    };
    // A damaged one still says what it is, if its manifest is good.
    let found = read.as_ref().ok();
    let tiers = found.map(|found| tiers(&directory, found)).unwrap_or_default();
    // What lay on nodes goes at such an end, and the record says so.
    let problem =
        problem.or_else(|| (tiers.is_empty() && record.exit_code == Some(0)).then(|| "gone from its nodes at the job's end".into()));
    Listed {
        number,
        usable: problem.is_none(),
        given_up: record.branch.is_abandoned(number),
        problem,
        taken: found.map(|found| found.taken),
        age_s: found.map(|found| record::now().saturating_sub(found.taken)),
        kind: found.map(|found| found.kind().to_string()),
        periodic: found.map(|found| found.periodic),
        bases: found.map(Manifest::bases).unwrap_or_default(),
        needs: found.map(|found| needs(record, found)).unwrap_or_default(),
        bytes: found.map(|found| found.bytes() + found.kept_bytes()),
        not_kept: found.map(|found| found.files.iter().filter_map(KeptFile::not_kept).collect()).unwrap_or_default(),
        stopped_us: found.map(|found| found.stopped_us),
        tiers,
        directory: directory.to_string_lossy().into_owned(),
        durable_us: found.map(|found| found.durable_us),
    }
}

/// One of the program's own variables.
fn of_variables(kept: portable::Kept) -> Listed {
    Listed {
        number: kept.number,
        usable: true,
        given_up: false,
        problem: None,
        taken: Some(kept.taken),
        age_s: Some(record::now().saturating_sub(kept.taken)),
        kind: Some("portable".to_owned()),
        periodic: None,
        bases: BTreeSet::new(),
        needs: kept.needs,
        bytes: Some(kept.bytes),
        not_kept: Vec::new(),
        stopped_us: None,
        tiers: kept.tiers,
        directory: kept.directory.to_string_lossy().into_owned(),
        durable_us: None,
    }
}

/// Tiers that hold the whole checkpoint: as the job recorded it, or the shared directory where nothing else takes part.
fn tiers(directory: &Path, manifest: &Manifest) -> Vec<String> {
    if manifest.tiers.is_empty() { vec!["shared".to_owned()] } else { mend_controller::tiers::held(directory) }
}

/// All that a checkpoint builds on, as far as it can be followed.
fn needs(record: &JobRecord, manifest: &Manifest) -> BTreeSet<u64> {
    let mut found = manifest.bases();
    let mut open: Vec<u64> = found.iter().copied().collect();
    while let Some(number) = open.pop() {
        if let Ok(below) = manifest::read_alone(&record.checkpoints.join(number.to_string()), None) {
            open.extend(below.bases().into_iter().filter(|base| found.insert(*base)));
        }
    }
    found
}

async fn remove(directory: &JobDirectory, record: &JobRecord, arguments: &Checkpoints) -> Result<i32, Failure> {
    match directory.lock(&record.id) {
        // Nobody else removes, or builds on, anything while the lock is held.
        Ok(_lock) => {
            let in_tiers = mend_controller::tiers::hold_any(&record.checkpoints, &arguments.remove);
            remove_by_hand(&record.checkpoints, &arguments.remove).map_err(|error| Failure::new(with_causes(&error), error.hint(), 1))?;
            journal::note_removed(directory, &arguments.remove);
            if in_tiers {
                mend_report::tell!("mend: {}", report::LEFT_IN_TIERS);
            }
        }
        Err(RecordError::Running { .. }) => {
            let ask = Ask::Remove { numbers: arguments.remove.clone() };
            let Answer::Removed = verbs::ask_of(directory, record, ask).await? else { return Err(verbs::unexpected()) };
        }
        Err(error) => return Err(error.into()),
    }
    if arguments.json {
        report::json(&serde_json::json!({ "removed": arguments.remove }))?;
    } else {
        let numbers: Vec<String> = arguments.remove.iter().map(u64::to_string).collect();
        crate::report::say!("removed: {}", numbers.join(", "));
    }
    Ok(0)
}
