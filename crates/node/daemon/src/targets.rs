//! Targets of data spaces on this node: processes of `mend-space`, one per directory, started when a client asks for one.
//!
//! Each has a port of its own, which it says when it can be reached. It ends with this daemon, whichever way that ends: its standard input ends then. What is in its
//! directory stays. Faults assumed: it ends or is killed, and is started anew for the next client.

use mend_data::space::target::{Found, Wanted};
use mend_data::space::{Id, MAX_PATH};
use mend_wire::Connection;
use mend_wire::secret::to_hex;
use std::collections::HashMap;
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// The program of targets, and of mounts.
pub const PROGRAM: &str = "mend-space";
/// How long a target may take until it can be reached: its database may have to be looked through after a crash.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to say what it wants.
const WORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Those that run, by directory.
#[derive(Debug, Default)]
pub struct Targets(Mutex<HashMap<String, Target>>);

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
    hint: &'static str,
}

impl Targets {
    /// Answers a client that has proven itself.
    pub async fn serve(&self, connection: Connection) {
        let Connection { mut sender, mut receiver } = connection;
        // Who says nothing in time, or anything else, is hung up on.
        let Ok(Ok(wanted)) = timeout(WORD_TIMEOUT, receiver.receive::<Wanted>()).await else { return };
        let found = match self.find(&wanted).await {
            Ok(port) => Found::Port(port),
            Err(Refused { why, hint }) => Found::Refused { why, hint: hint.to_owned() },
        };
        let _ = sender.send(&found).await;
    }

    async fn find(&self, wanted: &Wanted) -> Result<u16, Refused> {
        let fit = wanted.directory.starts_with('/') && wanted.directory.len() <= MAX_PATH && !wanted.directory.contains('\0');
        if !fit {
            return Err(Refused { why: format!("{:?} is no absolute path", wanted.directory), hint: "name a directory by its whole path" });
        }
        // Held meanwhile: there is one target for a directory.
        let mut running = self.0.lock().await;
        if let Some(target) = running.get_mut(&wanted.directory)
            && matches!(target.process.try_wait(), Ok(None))
        {
            return match target.space == wanted.space {
                true => Ok(target.port),
                false => {
                    Err(Refused { why: "the directory is a target of another data space".to_owned(), hint: "choose another directory" })
                }
            };
        }
        let target = start(wanted).await?;
        let port = target.port;
        tracing::info!(directory = wanted.directory, port, "serving a target of a data space");
        running.insert(wanted.directory.clone(), target);
        Ok(port)
    }
}

async fn start(wanted: &Wanted) -> Result<Target, Refused> {
    let log = "look at mendd's log on that node";
    let program = mend_settings::find_part(PROGRAM).ok_or_else(|| Refused {
        why: format!("there is no {PROGRAM} beside mendd"),
        hint: "`make install` installs it; MEND_LIBDIR names another directory",
    })?;
    let failed = |error: io::Error| Refused { why: format!("{PROGRAM} cannot be started: {error}"), hint: log };
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
    match timeout(START_TIMEOUT, BufReader::new(output).read_line(&mut line)).await {
        Ok(read) => drop(read.map_err(failed)?),
        Err(_) => return Err(Refused { why: format!("it said nothing for {} s", START_TIMEOUT.as_secs()), hint: log }),
    }
    match line.trim_end().split_once(' ') {
        Some(("ready", port)) => {
            let port = port.parse().map_err(|_| Refused { why: format!("{PROGRAM} said {port:?} instead of its port"), hint: log })?;
            Ok(Target { space: wanted.space, port, process, _input: input })
        }
        Some(("refused", why)) => {
            Err(Refused { why: format!("{}: {why}", wanted.directory), hint: "`mend data df` shows all targets of the space" })
        }
        _ => Err(Refused { why: format!("{PROGRAM} ended without saying why"), hint: log }),
    }
}
