//! Targets of data spaces on this node: processes of `mend-space`, one per directory, or of `mend-bucket`, one per place in a bucket, started when a client asks for one.
//!
//! Each has a port of its own, which it says when it can be reached. It ends with this daemon, whichever way that ends: its standard input ends then. What is in its
//! directory stays. Faults assumed: it ends or is killed, and is started anew for the next client.

use mend_data::space::target::{Found, Wanted};
use mend_data::space::{Id, MAX_PATH, bucket_obstacle, is_in_bucket};
use mend_wire::Connection;
use mend_wire::secret::to_hex;
use std::collections::HashMap;
use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

/// The program of targets, and of mounts.
pub const PROGRAM: &str = "mend-space";
/// The program of targets in buckets.
const BUCKET_PROGRAM: &str = "mend-bucket";
/// How long a target may take until it can be reached: its database may have to be looked through after a crash.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one in a bucket may take: it reads all its entries.
const BUCKET_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a client may take to say what it wants.
const WORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Those that run, by directory. Each has a lock of its own: one that takes long to begin, since its bucket does not answer, holds up no other one.
#[derive(Debug, Default)]
pub struct Targets {
    all: Mutex<HashMap<String, Arc<Mutex<Option<Target>>>>>,
    asked: Notify,
}

#[derive(Debug)]
struct Target {
    space: Id,
    port: u16,
    process: Child,
    _input: ChildStdin,
}

/// What a client is told that gets no target.
struct Refused {
    why: String,
    hint: String,
}

impl Refused {
    fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { why: why.into(), hint: hint.into() }
    }
}

impl Targets {
    /// Answers a client that has proven itself, as often as it asks.
    pub async fn serve(&self, connection: Connection) {
        let Connection { mut sender, mut receiver } = connection;
        // Who says nothing in time, or anything else, is hung up on.
        while let Ok(Ok(wanted)) = timeout(WORD_TIMEOUT, receiver.receive::<Wanted>()).await {
            let found = match self.find(&wanted).await {
                Ok(port) => Found::Port(port),
                Err(Refused { why, hint }) => Found::Refused { why, hint },
            };
            if sender.send(&found).await.is_err() {
                break;
            }
        }
    }

    /// Whether any target is here.
    pub async fn are_running(&self) -> bool {
        let all: Vec<_> = self.all.lock().await.values().cloned().collect();
        for target in all {
            // One that is just being started counts as well.
            let Ok(mut target) = target.try_lock() else { return true };
            if target.as_mut().is_some_and(|target| matches!(target.process.try_wait(), Ok(None))) {
                return true;
            }
        }
        false
    }

    /// Returns when a target was asked for since this was called last.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    async fn find(&self, wanted: &Wanted) -> Result<u16, Refused> {
        self.asked.notify_one();
        let long = wanted.directory.len() > MAX_PATH || wanted.directory.contains('\0');
        match is_in_bucket(&wanted.directory).then(|| bucket_obstacle(&wanted.directory)) {
            None if long || !wanted.directory.starts_with('/') => {
                return Err(Refused::new(format!("{:?} is no absolute path", wanted.directory), "name a directory by its whole path"));
            }
            Some(Some(why)) => {
                return Err(Refused::new(format!("{:?} is no place in a bucket: {why}", wanted.directory), "write s3://BUCKET/PREFIX"));
            }
            None | Some(None) => {}
        }
        let place = self.all.lock().await.entry(wanted.directory.clone()).or_default().clone();
        // Held meanwhile: there is one target for a directory.
        let mut running = place.lock().await;
        if let Some(target) = running.as_mut()
            && matches!(target.process.try_wait(), Ok(None))
        {
            return match target.space == wanted.space {
                true => Ok(target.port),
                false => Err(Refused::new("the directory is a target of another data space", "choose another directory")),
            };
        }
        *running = None;
        let target = start(wanted).await?;
        let port = target.port;
        tracing::info!(directory = wanted.directory, port, "serving a target of a data space");
        *running = Some(target);
        Ok(port)
    }
}

async fn start(wanted: &Wanted) -> Result<Target, Refused> {
    let log = "look at mendd's log on that node";
    let part = if is_in_bucket(&wanted.directory) { BUCKET_PROGRAM } else { PROGRAM };
    let program = mend_settings::find_part(part).ok_or_else(|| {
        Refused::new(format!("there is no {part} beside mendd"), "`make install` installs it; MEND_LIBDIR names another directory")
    })?;
    let failed = |error: io::Error| Refused::new(format!("{part} cannot be started: {error}"), log);
    let mut process = Command::new(program)
        .args(["target", &to_hex(&wanted.space), &wanted.directory, if wanted.create { "create" } else { "open" }])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A batch system's signals are for the daemon: the last checkpoint needs what is in the space.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(failed(io::ErrorKind::BrokenPipe.into()));
    };
    let mut line = String::new();
    let limit = if part == PROGRAM { START_TIMEOUT } else { BUCKET_TIMEOUT };
    match timeout(limit, BufReader::new(output).read_line(&mut line)).await {
        Ok(read) => drop(read.map_err(failed)?),
        Err(_) => return Err(Refused::new(format!("it said nothing for {} s", limit.as_secs()), log)),
    }
    match line.trim_end().split_once(' ') {
        Some(("ready", port)) => {
            let port = port.parse().map_err(|_| Refused::new(format!("{part} said {port:?} instead of its port"), log))?;
            Ok(Target { space: wanted.space, port, process, _input: input })
        }
        Some(("refused", why)) => {
            let (why, hint) = why.split_once('\t').unwrap_or((why, "`mend data df` shows all targets of the space"));
            Err(Refused::new(format!("{}: {why}", wanted.directory), hint))
        }
        _ => Err(Refused::new(format!("{part} ended without saying why"), log)),
    }
}
