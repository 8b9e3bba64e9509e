//! `mend data replicate --queue`: of the files at some places those have second copies that a job reads which runs or will start soon, and no others.
//!
//! What is to be removed is removed first, so that there is room. Faults assumed: it is killed at any moment; the next one finds what there is left to do.

use super::copying::{copy, files, remove, written_by_ranks};
use super::{named, opened};
use crate::failure::{Failure, report_all};
use crate::report;
use mend_data::space::window::{Candidate, Job, ReplicaPlan, Rules, Sure, is_below, places as places_of, plan, urgent};
use mend_data::space::{Entry, Id};
use mend_space::Fault;
use mend_space::client::{Client, TargetCapacity};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::task::block_in_place;

/// Follows the queue once; the exit code.
pub async fn follow(places: &[String], jobs: &[Job], nodes: u64, rules: &Rules, as_json: bool) -> Result<i32, Failure> {
    let percent =
        mend_settings::SPACE_COPY_PERCENT.number().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))?;
    let order = urgent(jobs, nodes, rules);
    let mut spaces: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for place in places {
        let (name, path) = named(place)?;
        spaces.entry(name).or_default().push(path);
    }
    let mut all = Vec::new();
    let mut code = 0;
    for (name, paths) in spaces {
        let wanted = Wanted { jobs, order: &order, places: places_of(jobs, &order, name), percent };
        match in_space(name, &paths, &wanted, as_json).await {
            Ok((told, failed)) => {
                code = failed.unwrap_or(code);
                all.push(told);
            }
            // A space that cannot be had holds up no other one.
            Err(failure) => code = failure.report(),
        }
    }
    if as_json {
        report::json(&all)?;
    }
    Ok(code)
}

/// What the queue wants of a space.
struct Wanted<'a> {
    jobs: &'a [Job],
    /// Which of them are urgent, the most urgent first.
    order: &'a [usize],
    /// What these read in the space.
    places: HashMap<String, usize>,
    percent: u64,
}

/// The same in one space: what is told as JSON, and the exit code if something failed.
async fn in_space(name: &str, paths: &[&str], wanted: &Wanted<'_>, as_json: bool) -> Result<(Value, Option<i32>), Failure> {
    let Wanted { jobs, order, places, percent } = wanted;
    let client = block_in_place(|| opened(name))?;
    let mut entries: BTreeMap<Id, Entry> = BTreeMap::new();
    for path in paths {
        // What is not there yet, or not any more, has no files.
        if client.names().look(path).is_none() {
            continue;
        }
        let place = format!("{name}:{path}");
        // It may be staged, or come to be, while the queue is followed: no reason to end that.
        if let Some(why) = written_by_ranks(&client, &place, path) {
            mend_report::tell!("mend data: {why}; it is passed over");
            continue;
        }
        let found = files(&client, &place, path)?;
        entries.extend(found.into_iter().map(|entry| (entry.id, entry)));
    }
    let candidate = |entry: &Entry| {
        let file = entry.file()?;
        let urgency = places.iter().filter(|(place, _)| is_below(&entry.path, place)).map(|(_, urgency)| *urgency).min();
        Some(Candidate { file: entry.id, bytes: file.size, copied: file.replicated_bytes(), urgency })
    };
    let candidates: Vec<Candidate> = entries.values().filter_map(candidate).collect();
    let (room, silent) = block_in_place(|| room(&client, *percent, &candidates));
    let unsure = order.iter().filter_map(|at| jobs.get(*at)).find(|job| job.is_unsure);
    if let Some(job) = unsure {
        mend_report::tell!(
            "mend data: {name}: no second copy is removed: the script of job {} does not say clearly what it reads",
            job.name
        );
    } else if let Some(fault) = &silent {
        mend_report::tell!("mend data: {name}: no second copy is removed for want of room: {fault}");
    }
    let plan = plan(&candidates, room, Sure { of_reads: unsure.is_none(), of_room: silent.is_none() });
    let path = |id: &Id| entries.get(id).map_or("", |entry| entry.path.as_str());
    let done = carry_out(&client, &plan, *percent).await;
    let code = report_all(&done.failures);
    for id in &plan.left_out {
        mend_report::tell!(
            "mend data: {name}:{} gets no second copy: those of more urgent jobs take the {percent} % of the free room that second copies may have",
            path(id)
        );
    }
    if !as_json {
        let left_out =
            if plan.left_out.is_empty() { String::new() } else { format!(", {} left out", report::files(plan.left_out.len() as u64)) };
        report::line(&format!(
            "{name}: {} with second copies for {} that run{} or start soon; {} made, {} removed{left_out}",
            report::files(plan.keep.len() as u64),
            if order.len() == 1 { "1 job".to_owned() } else { format!("{} jobs", order.len()) },
            if order.len() == 1 { "s" } else { "" },
            report::size(done.made),
            report::size(done.removed)
        ));
    }
    let soon: Vec<&str> = order.iter().map(|at| jobs[*at].name.as_str()).collect();
    let names = |ids: &[Id]| ids.iter().map(|id| path(id).to_owned()).collect::<Vec<String>>();
    let told = json!({
        "space": name, "jobs": soon, "kept": names(&plan.keep), "made": done.made, "removed": done.removed,
        "left_out": names(&plan.left_out), "failed": done.failures.len(),
    });
    Ok((told, code))
}

/// Bytes that the second copies of all these files may have: a share of what is free without them, less what copies have of which nobody decides here. And why a target does not say how much it
/// has free, if one does not: there may be more room then.
fn room(client: &Client, percent: u64, candidates: &[Candidate]) -> (u64, Option<Fault>) {
    let copied: u64 = client.replicated().iter().sum();
    let (mut free, mut silent) = (0_u64, None);
    for room in client.rooms() {
        match room {
            Ok(room) => free = free.saturating_add(room.free),
            Err(fault) => silent = Some(fault),
        }
    }
    let others = copied.saturating_sub(candidates.iter().map(|file| file.copied).sum());
    (share(free.saturating_add(copied), percent).saturating_sub(others), silent)
}

fn share(bytes: u64, percent: u64) -> u64 {
    bytes / 100 * percent + bytes % 100 * percent / 100
}

#[derive(Default)]
struct Done {
    made: u64,
    removed: u64,
    failures: Vec<Failure>,
}

async fn carry_out(client: &Arc<Client>, plan: &ReplicaPlan, percent: u64) -> Done {
    let mut done = Done::default();
    for id in &plan.remove {
        match remove(client, id).await {
            Ok(bytes) => done.removed += bytes.unwrap_or(0),
            Err(failure) => done.failures.push(failure),
        }
    }
    for id in &plan.keep {
        // No target is filled, either.
        let replicated = block_in_place(|| client.replicated());
        let free = |at: u16, room: &TargetCapacity| {
            let own = replicated.get(usize::from(at)).copied().unwrap_or(0);
            share(room.free.saturating_add(own), percent).saturating_sub(own)
        };
        match copy(client, id, free).await {
            Ok(bytes) => done.made += bytes.unwrap_or(0),
            Err(failure) => {
                done.failures.push(Failure { hint: format!("MEND_SPACE_COPY_PERCENT is {percent}; {}", failure.hint), ..failure })
            }
        }
    }
    done
}
