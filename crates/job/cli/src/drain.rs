//! `mend drain` and `mend undrain`: all ranks of this user's jobs leave a node, and it takes none until it is undrained.

use crate::arguments::{Drain, Undrain};
use crate::failure::Failure;
use crate::migrate::{self, Manner, Running, mode};
use crate::verbs::STATUS_TIMEOUT;
use crate::{nodes, report};
use mend_controller::client;
use mend_controller::known_jobs;
use mend_controller::record;
use mend_controller::{STAGING, being_restarted, drained, failover, hosts};
use mend_messages::control::{Answer, Ask, MigrationDone};
use mend_messages::job::Rank;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Ranks may have come to the node while others left it: it is looked at again so often.
const LOOKS: u32 = 3;
/// Ranks that are on their way to the node are waited for so often, a second each time: they come, or their job sees that it is drained.
const WAITS: u32 = 30;

/// What became of a rank, for programs.
#[derive(Serialize)]
struct Left {
    job: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<Box<MigrationDone>>,
    rank: Rank,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs `mend drain`. Exit code 1 if a rank is still on the node, or a job does not say whether one is.
pub async fn drain(arguments: Drain) -> Result<i32, Failure> {
    let Some(node) = &arguments.node else { return list(arguments.json) };
    let node = name(node)?;
    // Bad options are told before anything is changed.
    let avoid = drained::list()?.into_iter().chain([node.clone()]).collect();
    let manner = Manner::new(None, avoid, mode(arguments.mode, None)?, arguments.deadline)?;
    warn_of_unknown(&node).await?;
    // From here on nothing comes to it.
    drained::add(&node)?;
    let (mut tried, mut left, mut waits) = (BTreeSet::new(), Vec::new(), 0);
    let mut silent = BTreeMap::new();
    for _ in 0..LOOKS {
        let mut all = ranks_on(&node, &mut silent).await?;
        while waits < WAITS && !all.is_empty() && all.iter().all(|one| one.comes) {
            waits += 1;
            sleep(Duration::from_secs(1)).await;
            all = ranks_on(&node, &mut silent).await?;
        }
        let there = all.into_iter().filter(|one| !one.comes).filter_map(|one| Some((one.job, one.rank?)));
        let here: Vec<_> = there.filter(|(job, rank)| tried.insert((job.1.id.clone(), *rank))).collect();
        if here.is_empty() {
            break;
        }
        for (job, rank, result) in migrate::all(here, &manner, arguments.json, true).await? {
            let (moved, error) = match result {
                Ok(done) => (Some(Box::new(done)), None),
                Err(failure) => (None, Some(failure.text().to_owned())),
            };
            left.push(Left { job, rank, moved, error });
        }
    }
    let named = |one: &OnNode| one.rank.map_or_else(|| one.job.1.id.clone(), |rank| format!("{}:{rank}", one.job.1.id));
    let stayed: Vec<String> = ranks_on(&node, &mut silent).await?.iter().map(named).collect();
    tell(&arguments, &node, left, &stayed, &silent)?;
    Ok(i32::from(!stayed.is_empty() || !silent.is_empty()))
}

/// A node may be drained before a job has it; a name that nothing knows is more often misspelt.
async fn warn_of_unknown(node: &str) -> Result<(), Failure> {
    let of_jobs = |(directory, record): &(_, record::JobRecord)| {
        record::JobDirectory::is_running(directory) && record.hosts.iter().any(|host| host == node)
    };
    if !known_jobs::list()?.iter().any(of_jobs) && !nodes::answers(node).await? {
        mend_report::tell!(
            "mend: no running job of yours has a node {node}, and no mendd answers there; nodes are named as in --hosts (`mend node ls`)"
        );
    }
    Ok(())
}

fn tell(arguments: &Drain, node: &str, mut left: Vec<Left>, stayed: &[String], silent: &BTreeMap<String, String>) -> Result<(), Failure> {
    left.sort_by(|one, other| (&one.job, one.rank).cmp(&(&other.job, other.rank)));
    for (directory, record) in known_jobs::list()? {
        if record.controller_host == node && directory.is_running() {
            mend_report::tell!(
                "mend: `mend run` of job {} is itself on {node}: when it ends another process takes its place, and `mend attach` shows what the job prints; \
                 with MEND_SUCCESSOR=off the job ends with it",
                record.id
            );
        }
    }
    for (job, why) in silent {
        let what = format!("job {job} does not say where its ranks are: {why}");
        mend_report::tell!("{}", mend_report::failure("mend", &what, "`mend ps` shows what it does"));
    }
    if arguments.json {
        let silent: Vec<&String> = silent.keys().collect();
        return report::json(&serde_json::json!({ "node": node, "ranks": left, "still_there": stayed, "silent": silent }));
    }
    if stayed.is_empty() && silent.is_empty() {
        crate::report::say!("{node} is drained: no rank of yours is on it, and it takes none until `mend undrain {node}`");
        return Ok(());
    }
    if stayed.is_empty() {
        let jobs = silent.keys().cloned().collect::<Vec<_>>().join(" ");
        crate::report::say!("{node} takes no more ranks; whether these jobs have some on it is not known: {jobs}");
    } else {
        crate::report::say!("{node} takes no more ranks, but of yours are still on it, or on their way to it: {}", stayed.join(" "));
    }
    crate::report::say!("  `mend drain {node}` tries again; `mend undrain {node}` gives it up");
    Ok(())
}

/// Runs `mend undrain`.
pub fn undrain(arguments: &Undrain) -> Result<i32, Failure> {
    let node = name(&arguments.node)?;
    if !drained::remove(&node)? {
        let known = drained::list()?.into_iter().collect::<Vec<_>>().join(", ");
        let hint = if known.is_empty() { "no node is".to_owned() } else { format!("drained: {known}") };
        return Err(Failure::new(format!("{node} is not drained"), hint, 1));
    }
    if arguments.json {
        report::json(&serde_json::json!({ "undrained": node }))?;
    } else {
        crate::report::say!("{node} takes ranks again");
    }
    Ok(0)
}

fn list(json: bool) -> Result<i32, Failure> {
    let names = drained::list()?;
    if json {
        report::json(&names)?;
    } else if names.is_empty() {
        crate::report::say!("no node is drained");
    } else {
        names.iter().for_each(|name| crate::report::say!("{name}"));
    }
    Ok(0)
}

/// The node's name, if a host can have it.
fn name(text: &str) -> Result<String, Failure> {
    let wrong = || Failure::usage(format!("`{text}` is not the name of a node"), "write it as in --hosts, without :RANKS");
    match hosts::parse_list(text).map_err(|_| wrong())?.as_slice() {
        [host] if host.name == text && !text.starts_with('.') => Ok(host.name.clone()),
        _ => Err(wrong()),
    }
}

/// A rank that is on a node, or is on its way to it.
struct OnNode {
    job: Running,
    /// `None`: any of a job's whose ranks cannot be asked for just now.
    rank: Option<Rank>,
    comes: bool,
}

/// Those of all jobs that run. A job that ends meanwhile is passed over; one that does not answer is noted, with why, and not asked again.
async fn ranks_on(node: &str, silent: &mut BTreeMap<String, String>) -> Result<Vec<OnNode>, Failure> {
    let mut all = Vec::new();
    for (directory, record) in known_jobs::list()? {
        let running = directory.is_running();
        if !running && !failover::awaits_successor(&directory) {
            continue;
        }
        let restarted = being_restarted::is(&directory);
        // It has no ranks any more; what they wrote may still be sent away.
        let over = record.ended.is_some() && !restarted;
        if over || silent.contains_key(&record.id) {
            continue;
        }
        // Whoever gives it another life may have looked up drained nodes before; whoever takes it over finds its ranks where they are.
        let mut unsettled = !running || record.goes_on || restarted;
        if !unsettled {
            match timeout(STATUS_TIMEOUT, client::ask(&directory, &record, &Ask::Status, |_| {})).await {
                Ok(Ok(Answer::Status(status))) if status.state != STAGING => {
                    let job = Arc::new((directory, record));
                    let living = status.ranks.iter().filter(|rank| !rank.ended);
                    let found = living.filter(|rank| rank.host == node || rank.to.as_deref() == Some(node));
                    all.extend(found.map(|rank| OnNode { job: Arc::clone(&job), rank: Some(rank.rank), comes: rank.host != node }));
                    continue;
                }
                // They have not begun; or its controller answers no verb any more, as its ranks end.
                Ok(Ok(_)) => unsettled = true,
                _ if !directory.is_running() => unsettled = failover::awaits_successor(&directory),
                // It is about to go on.
                _ if directory.record().is_ok_and(|now| now.goes_on || being_restarted::is(&directory)) => unsettled = true,
                // It has ended just now.
                _ if directory.record().is_ok_and(|now| now.ended.is_some()) => {}
                Ok(Err(error)) => drop(silent.insert(record.id.clone(), mend_report::with_causes(&error))),
                Err(_) => {
                    let why = format!("its controller on {} has not answered for {} s", record.controller_host, STATUS_TIMEOUT.as_secs());
                    silent.insert(record.id.clone(), why);
                }
            }
        }
        if unsettled && record.hosts.iter().chain(&record.absent).any(|host| host == node) {
            all.push(OnNode { job: Arc::new((directory, record)), rank: None, comes: true });
        }
    }
    Ok(all)
}
