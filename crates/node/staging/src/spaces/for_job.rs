//! Data spaces that a job has for as long as it is there: `mend run --data NAME:DIR:create`.
//!
//! ```text
//! before ranks start ── none of that name ──► one target on each of the job's nodes ──► what is to be staged
//!                    └─ the job's own, from before ──► where its nodes' daemons are now
//! the job is over ──► files that were sent nowhere are named ──► the space goes
//! ```
//! Invariant: only a space whose description names the job is changed or removed. Faults assumed: the command is killed in between, and the space stays, described as the job's; nodes that had
//! targets are not the job's any more.

use super::making::{self, default_directory};
use super::{healing, ledger_file, opened};
use crate::failure::{FAILED, Failure, UNREACHABLE};
use crate::fetch::Fetcher;
use crate::{report, stage};
use mend_data::request::{StageOptions, Wanted};
use mend_data::space::mounts::Made;
use mend_data::space::{COPIES, Entry, FORMAT, Space, Striping, Target, is_name};
use mend_space::descriptor::{self, DescriptorError};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Most files that are named.
const NAMED: usize = 20;

/// A job, as it is about to begin.
pub struct Beginning {
    pub job: String,
    /// It had them before.
    pub again: bool,
    /// Name and daemon of each of its nodes.
    pub nodes: Vec<(String, SocketAddr)>,
    /// The spaces, and how each is made.
    pub spaces: Vec<(String, Made)>,
    pub stage: Vec<Wanted>,
    pub quiet: bool,
}

/// Makes what a job is to have, or finds it again. If something cannot be had, what was made here goes.
pub async fn begin(beginning: Beginning, fetcher: &Fetcher) -> Result<i32, Failure> {
    let Beginning { job, again, nodes, spaces, stage, quiet } = beginning;
    let mut made = Vec::new();
    let undo = |made: &[String]| made.iter().for_each(|name| drop(making::destroy(name, true)));
    for (name, how) in spaces {
        let there = tokio::task::block_in_place(|| find_or_make(&job, again, &nodes, &name, &how, quiet));
        match there {
            Ok(Had::Made) => made.push(name),
            Ok(Had::Own) => {}
            Ok(Had::Other) => match healing::ready(&[name], fetcher).await {
                Ok(0) => {}
                failed => {
                    undo(&made);
                    return failed;
                }
            },
            Err(failure) => {
                undo(&made);
                return Err(failure);
            }
        }
    }
    if stage.is_empty() {
        return Ok(0);
    }
    let staged = stage::run(stage, StageOptions { quiet, ..StageOptions::default() }, fetcher).await;
    if !matches!(staged, Ok(0)) {
        undo(&made);
    }
    staged
}

/// What was found.
enum Had {
    Made,
    Own,
    Other,
}

fn find_or_make(job: &str, again: bool, nodes: &[(String, SocketAddr)], name: &str, how: &Made, quiet: bool) -> Result<Had, Failure> {
    if !is_name(name) {
        return Err(Failure::bad_value(format!("{name:?} is no name for a data space"), ""));
    }
    match descriptor::usable(name) {
        Ok(space) if space.job.as_deref() == Some(job) => moved(space, nodes).map(|()| Had::Own),
        Ok(Space { job: Some(other), .. }) => Err(Failure::new(
            format!("the data space {name} was made for job {other}"),
            format!("choose another name, for example {name}-$SLURM_JOB_ID; `mend data destroy {name}` removes it if that job is over"),
            FAILED,
        )),
        Ok(_) => Ok(Had::Other),
        Err(DescriptorError::Unknown(_)) if again => Err(Failure::new(
            format!("the data space {name} that was made for job {job} is not there any more"),
            "run the job anew; `keep` beside `create` has a space stay",
            UNREACHABLE,
        )),
        Err(DescriptorError::Unknown(_)) => make(job, nodes, name, how, quiet).map(|()| Had::Made),
        Err(error) => Err(error.into()),
    }
}

fn make(job: &str, nodes: &[(String, SocketAddr)], name: &str, how: &Made, quiet: bool) -> Result<(), Failure> {
    let id = mend_wire::random_bytes();
    let base = match &how.bucket {
        Some(place) => format!("{place}/{name}"),
        None => default_directory(name, how.memory)?,
    };
    // A node that was lost may have a directory of an earlier one.
    let directory = format!("{base}-{:08x}", u32::from_be_bytes([id[0], id[1], id[2], id[3]]));
    let copies = if how.one_copy { 1 } else { COPIES };
    // What ranks write is on two targets, also if there is one node. They write nothing into a bucket.
    let least = if how.bucket.is_some() { 1 } else { copies };
    let places = nodes.iter().cycle().take(nodes.len().max(least));
    // Nodes may share the directory.
    let target = |(at, (host, address)): (usize, &(String, SocketAddr))| Target {
        host: host.clone(),
        address: *address,
        directory: format!("{directory}-{at}"),
    };
    let targets = places.enumerate().map(target).collect();
    let space = Space {
        format: FORMAT,
        name: name.to_owned(),
        id,
        targets,
        striping: Striping::default(),
        copies,
        job: Some(job.to_owned()),
        ending: false,
    };
    making::make(&space)?;
    if !quiet {
        let nodes = count(nodes.len(), "node");
        match &how.bucket {
            Some(place) => mend_report::tell!("mend: the data space {name} is in {place}, served by {nodes} of this job"),
            None => mend_report::tell!("mend: the data space {name} is on {nodes} of this job"),
        }
    }
    Ok(())
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The daemons of its nodes may be others now. What is in a bucket any node can serve.
fn moved(mut space: Space, nodes: &[(String, SocketAddr)]) -> Result<(), Failure> {
    let now: BTreeMap<&str, SocketAddr> = nodes.iter().map(|(name, address)| (name.as_str(), *address)).collect();
    let before = space.targets.clone();
    for (at, target) in space.targets.iter_mut().enumerate() {
        match now.get(target.host.as_str()) {
            Some(address) => target.address = *address,
            None if target.is_in_bucket() && !nodes.is_empty() => (target.host, target.address) = nodes[at % nodes.len()].clone(),
            None => {}
        }
    }
    if space.targets != before {
        descriptor::replace(&space)?;
    }
    let hosts: Vec<String> = space.targets.iter().map(|target| target.host.clone()).collect();
    opened(&space.name).map(drop).map_err(|failure| Failure {
        what: format!("the data space {} of this job cannot be reached on any of {}: {}", space.name, hosts.join(", "), failure.what),
        hint: "go on with the job on those nodes, where its data is".to_owned(),
        code: UNREACHABLE,
    })
}

/// Files that ranks wrote and that were sent nowhere as they are now.
fn sent_nowhere(name: &str) -> Result<Vec<String>, Failure> {
    let client = opened(name)?;
    let written: Vec<Entry> = client.names().files("").into_iter().filter(|entry| entry.written().is_some()).cloned().collect();
    let ledgers = ledger_file::all(name, &client.space.id);
    let mut left = Vec::new();
    for (entry, shape) in written.iter().zip(client.shapes(&written)) {
        let sent = shape.is_ok_and(|(size, changed_ns)| ledgers.iter().any(|ledger| ledger.has(&entry.path, &entry.id, size, changed_ns)));
        if !sent {
            left.push(entry.path.clone());
        }
    }
    Ok(left)
}

/// Ends the spaces that were made for a job. Files that were sent nowhere are named before.
pub fn end(job: &str, names: &[String], kept: &[String]) -> Result<i32, Failure> {
    let of_job = |name: &String| descriptor::load(name).ok().filter(|space| space.job.as_deref() == Some(job));
    for mut space in kept.iter().filter_map(of_job) {
        space.job = None;
        // Daemons of the job alone end with it, and others may be started.
        let port = mend_settings::PORT.number().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))? as u16;
        space.targets.iter_mut().for_each(|target| target.address.set_port(port));
        descriptor::replace(&space)?;
    }
    let mut code = 0;
    for name in names.iter().filter(|name| of_job(name).is_some()) {
        match sent_nowhere(name) {
            Ok(left) if left.is_empty() => {}
            Ok(left) => {
                let more = if left.len() > NAMED { format!(" and {} more", left.len() - NAMED) } else { String::new() };
                let named = left.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
                let files = report::files(left.len() as u64);
                mend_report::tell!(
                    "mend: the data space {name} goes with job {job}, and {files} in it that were sent nowhere: {named}{more}"
                );
            }
            Err(failure) => {
                mend_report::tell!("mend: the data space {name} goes with job {job}; what was in it is not known: {}", failure.what)
            }
        }
        // Nodes that the job has lost do not answer any more.
        if let Err(failure) = making::destroy(name, true) {
            code = failure.report();
        }
    }
    Ok(code)
}
