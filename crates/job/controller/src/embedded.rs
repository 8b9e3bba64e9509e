//! The daemon that `mend run` starts on this machine when no hosts are named. It listens on the loopback interface
//! only and ends when its standard input does, that is with `mend run`, however that ends.

use crate::error::RunError;
use mend_patience::while_active;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// A daemon that does nothing for so long while it starts hangs; as long as it works, or waits for a processor, it is waited for.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A running embedded daemon.
#[derive(Debug)]
pub struct Embedded {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
}

/// Starts it under the name `name`.
///
/// # Errors
/// [`RunError::Embedded`].
pub async fn start(name: &str) -> Result<Embedded, RunError> {
    let failed = |why: String| RunError::Embedded { why };
    let program = mend_settings::find_part("mendd").ok_or_else(|| failed("mendd is not installed beside mend".into()))?;
    let mut command = Command::new(&program);
    if !mend_settings::HEALTH.is_set() {
        // There is no other node to go to.
        command.env(mend_settings::HEALTH.name, "off");
    }
    let mut child = command
        .args(["--listen", "127.0.0.1:0", "--name", name, "--ready-fd", "1", "--until-eof"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(format!("{}: {error}", program.display())))?;
    let stdout = child.stdout.take().ok_or_else(|| failed("it has no standard output".into()))?;
    let mut line = String::new();
    let pid = child.id().unwrap_or_default();
    match while_active(START_LIMIT, pid, BufReader::new(stdout).read_line(&mut line)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("it is not ready, and has done nothing for {} s", START_LIMIT.as_secs()))),
    }
    let address = line.trim().parse().map_err(|_| failed("it ended at once (its message is above)".into()))?;
    Ok(Embedded { address, child })
}

impl Embedded {
    /// Lets it end and waits for that, at most some seconds.
    pub async fn stop(self) {
        end_with_input(self.child).await;
    }
}

/// Ends the standard input of a process that ends with it, and waits for that, at most some seconds.
pub(crate) async fn end_with_input(mut child: Child) {
    drop(child.stdin.take());
    if timeout(STOP_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
