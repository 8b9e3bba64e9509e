//! `mend data replicate --queue`: of the files at some places those have second copies that a job reads which runs or will start soon, and no others.
//!
//! What is to be removed is removed first, so that there is room. Faults assumed: it is killed at any moment; the next one finds what there is left to do.

use super::copying::{copy, files, remove};
use super::{named, opened};
use crate::failure::{Failure, report_all};
use crate::report;
use mend_data::space::window::{Candidate, Job, Plan, Rules, is_below, places as places_of, plan, urgent};
use mend_data::space::{Entry, Id};
use mend_space::client::{Client, Room};
use serde_json::json;
use std::collections::BTreeMap;
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
        let client = block_in_place(|| opened(name))?;
        let wanted = places_of(jobs, &order, name);
        let mut entries: BTreeMap<Id, Entry> = BTreeMap::new();
        for path in paths {
            entries.extend(files(&client, &format!("{name}:{path}"), path)?.into_iter().map(|entry| (entry.id, entry)));
        }
        let candidate = |entry: &Entry| {
            let file = entry.file()?;
            let urgency = wanted.iter().filter(|(place, _)| is_below(&entry.path, place)).map(|(_, urgency)| *urgency).min();
            Some(Candidate { file: entry.id, bytes: file.size, copied: file.replicated_bytes(), urgency })
        };
        let candidates: Vec<Candidate> = entries.values().filter_map(candidate).collect();
        let plan = plan(&candidates, block_in_place(|| room(&client, percent, &candidates)));
        let path = |id: &Id| entries.get(id).map_or("", |entry| entry.path.as_str());
        let done = carry_out(&client, &plan, percent).await;
        code = report_all(&done.failures).unwrap_or(code);
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
        all.push(json!({
            "space": name, "jobs": soon, "kept": names(&plan.keep), "made": done.made, "removed": done.removed,
            "left_out": names(&plan.left_out), "failed": done.failures.len(),
        }));
    }
    if as_json {
        report::json(&all)?;
    }
    Ok(code)
}

/// Bytes that the second copies of all these files may have: a share of what is free without them, less what copies have of which nobody decides here.
fn room(client: &Client, percent: u64, candidates: &[Candidate]) -> u64 {
    let copied: u64 = client.replicated().iter().sum();
    let free: u64 = client.rooms().into_iter().filter_map(Result::ok).map(|room| room.free).fold(0, u64::saturating_add);
    let others = copied.saturating_sub(candidates.iter().map(|file| file.copied).sum());
    share(free.saturating_add(copied), percent).saturating_sub(others)
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

async fn carry_out(client: &Arc<Client>, plan: &Plan, percent: u64) -> Done {
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
        let free = |at: u16, room: &Room| {
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
