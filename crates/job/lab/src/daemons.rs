//! The node daemon: finding it, starting it in a node, waiting until it answers.
//!
//! Faults assumed: no such program, or one that ends at once, or one that never listens.

use std::env;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::error::LabError;
use crate::plan::{self, DAEMON_PORT, LabPlan};
use crate::protocol::Failure;

const DAEMON_PROGRAM: &str = "mendd";
const START_TIMEOUT: Duration = Duration::from_secs(10);
const SHOWN_LOG_LINES: usize = 20;

/// Looks for the daemon where Mend's programs lie: `MEND_LIBDIR`, beside this executable, `../lib/mend`.
pub(crate) fn find() -> Result<PathBuf, LabError> {
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let places: Vec<PathBuf> = env::var_os("MEND_LIBDIR")
        .map(PathBuf::from)
        .into_iter()
        .chain(beside.iter().cloned())
        .chain(beside.iter().filter_map(|bin| Some(bin.parent()?.join("lib/mend"))))
        .map(|place| place.join(DAEMON_PROGRAM))
        .collect();
    let executable = |path: &&PathBuf| rustix::fs::access(*path, rustix::fs::Access::EXEC_OK).is_ok();
    match places.iter().find(executable) {
        Some(found) => Ok(fs::canonicalize(found).unwrap_or_else(|_| found.clone())),
        None => Err(LabError::MissingDaemon(places)),
    }
}

/// Starts the daemon in this node and waits until it accepts connections.
pub(crate) fn start(plan: &LabPlan, program: &Path, node: &str) -> Result<(), Failure> {
    let log = plan::daemon_log(&plan.base, node);
    let mut command = Command::new(program);
    command
        .args(["--listen", &format!("0.0.0.0:{DAEMON_PORT}"), "--name", node])
        .envs(plan::environment(plan.name.as_str(), &plan.base, &plan.home, node, false))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null());
    let mut spawn = || -> io::Result<std::process::Child> {
        let file = fs::File::options().create(true).append(true).open(&log)?;
        mend_kernel::signal_queue::unblock_in(&mut command);
        command.stdout(file.try_clone()?).stderr(file).spawn()
    };
    let mut daemon = match spawn() {
        Ok(daemon) => daemon,
        Err(error) => {
            let shown = program.display();
            return Err(Failure::new(format!("{node}: {shown} cannot be run: {error}")));
        }
    };
    let begun = Instant::now();
    while begun.elapsed() < START_TIMEOUT {
        if listens(DAEMON_PORT) {
            return Ok(());
        }
        if let Ok(Some(status)) = daemon.try_wait() {
            let said = last_lines(&log);
            return Err(Failure::new(format!("{node}: {DAEMON_PROGRAM} ended ({status}) saying: {said}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = last_lines(&log);
    let seconds = START_TIMEOUT.as_secs();
    Err(Failure::new(format!("{node}: {DAEMON_PROGRAM} does not answer on port {DAEMON_PORT} after {seconds} s, saying: {said}")))
}

/// Whether somebody accepts connections on this port of this network namespace. Asked of the kernel and not by
/// connecting, which the daemon would note as a peer that went away without a word.
fn listens(port: u16) -> bool {
    listens_in("/proc/net", port)
}

/// The same in the network namespace of this process.
pub(crate) fn listens_beside(pid: Pid, port: u16) -> bool {
    listens_in(&format!("/proc/{}/net", pid.as_raw_nonzero()), port)
}

fn listens_in(tables: &str, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| fs::read_to_string(format!("{tables}/{table}")).is_ok_and(|table| has_listener(&table, port)))
}

/// Looks for a socket in state LISTEN (10) on `port` in a table of proc_net_tcp(5).
fn has_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().and_then(|local| u16::from_str_radix(local.rsplit(':').next()?, 16).ok());
        local == Some(port) && fields.nth(1) == Some("0A")
    })
}

fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    match lines.is_empty() {
        true => "nothing".to_owned(),
        false => format!("\n{}", lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..].join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_seen() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                        0: 00000000:1BCD 00000000:0000 0A 00000000:00000000 00:00000000\n\
                        1: 0100007F:1BCE 0100007F:1BCD 01 00000000:00000000 00:00000000\n";
        assert!(has_listener(table, 7117));
        assert!(!has_listener(table, 7118));
        assert!(!has_listener("0:\n\n: x", 0));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        drop(listener);
        assert!(!listens(port));
    }
}
