//! `mend-data`, which does for a job what takes data spaces and places outside of them: how it is started.

use mend_data::request::Request;
use std::io;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// The program.
pub(crate) const PROGRAM: &str = "mend-data";

/// Lets it see what the job's program sees. What is set here counts: after a restart it may be newer.
pub(crate) fn sees(command: &mut Command, env: &[(String, String)]) {
    command.envs(env.iter().cloned()).envs(std::env::vars_os());
}

/// Starts it, and tells it what to do. It ends with what is returned.
///
/// # Errors
/// It cannot be started, or ends at once.
pub(crate) async fn start(command: &mut Command, request: &Request) -> io::Result<Child> {
    let request = postcard::to_allocvec(request).map_err(io::Error::other)?;
    let mut child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    input.write_all(&request).await?;
    Ok(child)
}
