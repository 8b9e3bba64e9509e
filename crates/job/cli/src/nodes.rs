//! `mend node ls` and `mend health`: the nodes, and how they are.

use crate::failure::Failure;
use crate::report;
use clap::{Args, Subcommand};
use mend_controller::record::{JobDirectory, JobRecord};
use mend_controller::{RunError, client, drained, hosts, known_jobs, look};
use mend_messages::control::{Answer, Ask};
use mend_messages::health::{Grade, Milli, NodeReport, Reading, Unread};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// How long a job may take to say where its daemons are.
const LIMIT: Duration = Duration::from_secs(3);

/// `mend node`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes: whether they are up, sick, drained or down, their ranks, load and memory.
    Ls(Nodes),
}

/// `mend node ls`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend node ls                        the nodes of your running jobs, and those that are drained
  mend node ls --hosts a,b            these

up: it takes ranks. sick: ranks leave it, `mend health NODE` says why. drained: `mend drain` was told so. down: its mendd does not \
answer. RANKS are those of all your jobs, LOAD is the average of the last minute.")]
pub struct Nodes {
    /// Nodes to list, written as for `mend run --hosts`; default: those of your running jobs and drained ones; if no job runs, this machine's mendd
    #[arg(long, value_name = "LIST")]
    pub hosts: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend health`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend health                         the nodes of your running jobs
  mend health b                       every sensor of b: value, marks, trend, time to the high mark
  mend health a,b --json              for programs

A node is sick when one of its sensors has passed its low mark: ranks leave it while they run. Past a high mark they leave it \
at once. docs/health.md lists the sensors, and says how to add some. The exit code is 1 if a node is sick or does not answer.")]
pub struct Health {
    /// The nodes, written as for `mend run --hosts`; default: those of your running jobs; if none runs, this machine's mendd
    pub node: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A node, as it is found.
struct Found {
    name: String,
    drained: bool,
    report: Result<NodeReport, String>,
}

impl Found {
    /// In one word.
    fn state(&self) -> &'static str {
        match &self.report {
            _ if self.drained => "drained",
            Err(_) => "down",
            Ok(report) if report.health.grade > Grade::Well => "sick",
            Ok(_) => "up",
        }
    }
}

/// What programs are told of a node.
#[derive(Serialize)]
struct Told<'a> {
    node: &'a str,
    state: &'a str,
    drained: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    watched: Option<bool>,
    grade: Option<Grade>,
    why: Option<&'a str>,
    left_s: Option<f64>,
    ranks: Option<u32>,
    load: Option<f64>,
    processors: Option<u32>,
    memory: Option<u64>,
    memory_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sensors: Option<Vec<ToldSensor<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<Vec<ToldUnread<'a>>>,
}

#[derive(Serialize)]
struct ToldSensor<'a> {
    sensor: &'a str,
    value: f64,
    unit: &'a str,
    low: Option<f64>,
    high: Option<f64>,
    grade: Grade,
    per_minute: Option<f64>,
    left_s: Option<f64>,
    age_s: f64,
}

#[derive(Serialize)]
struct ToldUnread<'a> {
    source: &'a str,
    error: &'a str,
    failed: bool,
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn told_sensor(reading: &Reading) -> ToldSensor<'_> {
    ToldSensor {
        sensor: &reading.sensor,
        value: reading.value.value(),
        unit: &reading.unit,
        low: reading.marks.map(|(low, _)| low.value()),
        high: reading.marks.map(|(_, high)| high.value()),
        grade: reading.grade,
        per_minute: reading.per_minute.map(Milli::value),
        left_s: reading.left_ms.map(seconds),
        age_s: seconds(reading.age_ms),
    }
}

fn told_unread(unread: &Unread) -> ToldUnread<'_> {
    ToldUnread { source: &unread.source, error: &unread.error, failed: unread.failed }
}

fn told(found: &Found, all: bool) -> Told<'_> {
    let report = found.report.as_ref().ok();
    Told {
        node: &found.name,
        state: found.state(),
        drained: found.drained,
        error: found.report.as_ref().err().map(String::as_str),
        watched: report.map(|report| report.watched),
        grade: report.map(|report| report.health.grade),
        why: report.map(|report| report.health.why.as_str()).filter(|why| !why.is_empty()),
        left_s: report.and_then(|report| report.health.left_ms).map(seconds),
        ranks: report.map(|report| report.ranks),
        load: report.map(|report| f64::from(report.room.load) / 100.0),
        processors: report.map(|report| report.room.processors),
        memory: report.map(|report| report.memory),
        memory_free: report.map(|report| report.room.memory),
        sensors: report.filter(|_| all).map(|report| report.readings.iter().map(told_sensor).collect()),
        unread: report.filter(|_| all).map(|report| report.unread.iter().map(told_unread).collect()),
    }
}

/// Where the daemons of running jobs are: a batch system starts them on ports of its own.
async fn daemons(running: &[(JobDirectory, JobRecord)]) -> BTreeMap<String, SocketAddr> {
    let mut known = BTreeMap::new();
    for (directory, record) in running.iter().filter(|(_, record)| !record.goes_on) {
        // One that does not answer is no reason not to look at the others.
        if let Ok(Ok(Answer::Status(status))) = timeout(LIMIT, client::ask(directory, record, &Ask::Status, |_| {})).await {
            known.extend(status.hosts.into_iter().zip(status.daemons));
        }
    }
    known
}

/// Nodes that are named, else those of running jobs and those that are drained. One that nothing but a job of one machine names, and has no
/// daemon of its own, is left out.
async fn find(named: Option<&str>, also_drained: bool) -> Result<Vec<Found>, Failure> {
    let drained = drained::list()?;
    let (mut names, mut alone) = (Vec::<String>::new(), BTreeSet::new());
    let running: Vec<_> = known_jobs::list()?.into_iter().filter(|(directory, _)| directory.is_running()).collect();
    let known = daemons(&running).await;
    match named {
        Some(list) => {
            let listed = hosts::parse_list(list).map_err(|error| Failure::usage(error.to_string(), error.hint()))?;
            names.extend(listed.into_iter().map(|host| host.name));
        }
        None => {
            for (_, record) in running {
                if record.hosts.len() == 1 && record.hosts[0] == record.controller_host {
                    alone.insert(record.controller_host.clone());
                }
                // Those that it has lost may be back, or are still down: either is what people look for.
                names.extend(record.hosts.into_iter().chain(record.lost).chain(record.absent));
            }
            names.extend(drained.iter().filter(|_| also_drained).cloned());
            names.sort();
            names.dedup();
        }
    }
    if names.is_empty() {
        alone.insert(client::host_name());
        names.push(client::host_name());
    }
    let port = mend_settings::PORT.number().map_err(RunError::from)? as u16;
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file().map_err(RunError::from)?).map_err(RunError::from)?;
    let found = look::ask_all(&names, &known, port, &secret).await.into_iter().map(|(name, report)| Found {
        drained: drained.contains(&name),
        name,
        report,
    });
    let found: Vec<Found> =
        found.filter(|one| one.report.is_ok() || one.drained || named.is_some() || !alone.contains(&one.name)).collect();
    if found.is_empty() {
        let error = "no node is known: none of your jobs runs on several nodes, and no mendd answers here";
        return Err(Failure::new(error, "name nodes: `mend health a,b`, `mend node ls --hosts a,b`", 1));
    }
    Ok(found)
}

/// Whether a mendd answers on this node.
pub async fn answers(name: &str) -> Result<bool, Failure> {
    Ok(find(Some(name), false).await?.iter().any(|found| found.report.is_ok()))
}

/// `mend node ls`.
pub async fn node(command: NodeCommand) -> Result<i32, Failure> {
    let NodeCommand::Ls(Nodes { hosts, json }) = command;
    let found = find(hosts.as_deref(), true).await?;
    if json {
        report::json(&found.iter().map(|one| told(one, false)).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let row = |one: &Found| match &one.report {
        Ok(report) => vec![
            one.name.clone(),
            one.state().to_owned(),
            report.ranks.to_string(),
            format!("{:.2} of {}", f64::from(report.room.load) / 100.0, report.room.processors),
            format!("{} of {}", report::size(report.room.memory), report::size(report.memory)),
            report.health.why.clone(),
        ],
        Err(error) => vec![one.name.clone(), one.state().to_owned(), "-".into(), "-".into(), "-".into(), error.clone()],
    };
    report::table(&["NODE", "STATE", "RANKS", "LOAD", "MEMORY FREE", "WHY"], &found.iter().map(row).collect::<Vec<_>>());
    Ok(0)
}

/// `mend health`. Exit code 1 if a node is not well.
pub async fn health(arguments: Health) -> Result<i32, Failure> {
    let found = find(arguments.node.as_deref(), false).await?;
    let well = |one: &Found| one.report.as_ref().is_ok_and(|report| report.health.grade == Grade::Well);
    let code = i32::from(!found.iter().all(well));
    if arguments.json {
        report::json(&found.iter().map(|one| told(one, true)).collect::<Vec<_>>())?;
        return Ok(code);
    }
    for one in &found {
        show(one);
    }
    Ok(code)
}

fn show(found: &Found) {
    let drained = if found.drained { " (drained)" } else { "" };
    let report = match &found.report {
        Ok(report) => report,
        Err(error) => return crate::report::say!("{}{drained}: down: {error}", found.name),
    };
    match report.health.grade {
        _ if !report.watched => crate::report::say!("{}{drained}: not watched (MEND_HEALTH is off there)", found.name),
        Grade::Well => crate::report::say!("{}{drained}: well", found.name),
        Grade::Low => crate::report::say!("{}{drained}: sick, past a low mark: {}", found.name, report.health.why),
        Grade::High => crate::report::say!("{}{drained}: sick, past a high mark: {}", found.name, report.health.why),
    }
    let row = |reading: &Reading| {
        let dash = || "-".to_owned();
        let shown = |value: Milli| plain(value.value());
        let state = match reading.grade {
            Grade::Well => "well",
            Grade::Low => "low",
            Grade::High => "high",
        };
        vec![
            format!("  {}", reading.sensor),
            if reading.value == Milli(0) && reading.unit.is_empty() && reading.marks.is_none() { dash() } else { shown(reading.value) },
            reading.unit.clone(),
            reading.marks.map_or_else(dash, |(low, _)| shown(low)),
            reading.marks.map_or_else(dash, |(_, high)| shown(high)),
            reading.per_minute.map_or_else(dash, |slope| format!("{:+}", (slope.value() * 10.0).round() / 10.0)),
            reading.left_ms.map_or_else(dash, |ms| format!("{} s", ms.div_ceil(1000))),
            state.to_owned(),
        ]
    };
    if !report.readings.is_empty() {
        let heading = ["  SENSOR", "VALUE", "UNIT", "LOW", "HIGH", "PER MIN", "HIGH IN", "STATE"];
        report::table(&heading, &report.readings.iter().map(row).collect::<Vec<_>>());
    }
    for unread in &report.unread {
        let what = if unread.failed { "failed" } else { "not here" };
        crate::report::say!("  {what}: {}: {}", unread.source, unread.error);
    }
}

/// No more decimals than it has, three at most.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
