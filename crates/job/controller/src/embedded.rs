//! The daemon that `mend run` starts on this machine when no hosts are named. It listens on the loopback interface
//! only and ends when `mend run` says so, or is gone and nobody goes on with its job: a successor does so on this daemon.

use crate::error::RunError;
use mend_patience::while_active;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// A daemon that does nothing for so long while it starts hangs; as long as it works, or waits for a processor, it is waited for.
const START_LIMIT: Duration = Duration::from_secs(10);
/// One that does nothing for so long has not understood that it is to end. As long as it works it makes checkpoints whole, or removes them.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A running embedded daemon.
#[derive(Debug)]
pub struct Embedded {
    /// Where it listens.
    pub address: SocketAddr,
    /// `None`: another controller has started it. It ends by itself when the job is over.
    child: Option<Child>,
}

/// The word to a daemon that it is to end.
const END: &[u8] = b"end\n";

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
    Ok(Embedded { address, child: Some(child) })
}

impl Embedded {
    /// That of a lost controller.
    #[must_use]
    pub fn of_lost(address: SocketAddr) -> Self {
        Self { address, child: None }
    }

    /// Lets it end and waits for that.
    pub async fn stop(self) {
        if let Some(child) = self.child {
            end_by_word(child).await;
        }
    }
}

/// Tells a process to end that does so at a word, and waits for that: as long as it works, and some seconds more.
pub(crate) async fn end_by_word(mut child: Child) {
    if let Some(mut input) = child.stdin.take() {
        // It may have ended.
        let _ = input.write_all(END).await;
    }
    let pid = child.id().unwrap_or_default();
    if while_active(STOP_LIMIT, pid, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
