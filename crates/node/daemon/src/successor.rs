//! A successor of a job's controller: `mend take-over`, started on this node when the controller is lost.
//!
//! Each node of the job may start one. They meet at the job's lock, in its directory: one gets it, the others end. Faults assumed: the directory is not
//! on this node, or its file system hangs; the controller lives and only its connection broke (it has the lock).

use crate::bounded;
use crate::node::Node;
use crate::stay::Stay;
use mend_messages::daemon::{BETWEEN_LIVES, JobIntroduction, SuccessorCommand};
use mend_messages::job::NodeIndex;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};

/// So much later than the node before does each one start its own, so that as a rule there is one.
const PRECEDENCE: Duration = Duration::from_millis(100);
/// Time before the first look for the controller of a job that is about to go on: a next life as a rule is here by then.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two looks for the controller of a job that is about to go on.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// So many looks in a row may fail before no more are taken: ten minutes.
const MOST_FAILURES: u32 = 30;
/// Most nodes that are waited for so.
const MAX_PRECEDING: NodeIndex = 5;

/// The program: that of the controller, or the one beside this daemon's.
fn executable(command: &SuccessorCommand) -> Option<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("mend")));
    [Some(command.executable.clone()), own].into_iter().flatten().find(|path| path.is_file())
}

/// Whether this node has what it takes. `None`: that cannot be seen within a second.
pub async fn can_start(command: &SuccessorCommand) -> Option<bool> {
    let command = command.clone();
    let look = move || command.directory.join("job.json").is_file() && executable(&command).is_some();
    bounded::within(bounded::PATIENCE, look).await
}

/// Starts it. It outlives this daemon, unless a batch system ends what a daemon of its started: this one stays until then. `silent`: the controller's end was not
/// seen, it is only not heard.
pub async fn start(stay: Arc<Stay>, command: SuccessorCommand, node: NodeIndex, silent: bool) {
    let _held = stay.hold();
    tokio::time::sleep(PRECEDENCE * node.min(MAX_PRECEDING)).await;
    let options = if silent { vec!["--silent".to_owned()] } else { Vec::new() };
    run(&command, options).await;
}

/// As it is started by a daemon that has variables of these names. The controller's settings are its own, also where the controller left them at their defaults; of the daemon's
/// it has only where the parts of Mend are on this node.
fn prepared(executable: &Path, command: &SuccessorCommand, options: &[String], ours: impl Iterator<Item = OsString>) -> Command {
    let mut successor = Command::new(executable);
    for name in ours.filter(|name| name.as_encoded_bytes().starts_with(b"MEND_") && name != mend_settings::LIBDIR.name) {
        successor.env_remove(name);
    }
    // A directory that may go away is not held by it.
    successor.arg("take-over").arg(&command.directory).args(options).envs(command.environment.iter().cloned()).current_dir("/");
    successor
}

/// Runs it to its end: that of the job, if it has become the controller.
async fn run(command: &SuccessorCommand, options: Vec<String>) -> Option<ExitStatus> {
    let command = command.clone();
    match bounded::apart(move || begin(&command, &options)).await {
        Ok(mut child) => child.wait().await.ok(),
        Err(error) => {
            tracing::warn!(%error, "no successor of the controller can be started");
            None
        }
    }
}

fn begin(command: &SuccessorCommand, options: &[String]) -> io::Result<Child> {
    let executable = executable(command).ok_or(io::ErrorKind::NotFound)?;
    let mut successor = prepared(&executable, command, options, std::env::vars_os().map(|(name, _)| name));
    successor.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}

/// Sees to it that a job which has left, and is about to go on, has a controller: no connection would tell of its loss. `silent`: it has left since its lease was over, so that
/// nobody knows whether it has a controller at all.
///
/// A second after the job has left, and then ever more seldom, a successor looks whether it is needed. Over when the job's next life is here, or
/// the job is over, or runs elsewhere.
pub async fn await_next_life(node: Arc<Node>, job: Arc<JobIntroduction>, silent: bool) {
    let Some(command) = job.successor.clone() else { return };
    let _held = node.stay.hold();
    if can_start(&command).await == Some(false) {
        return;
    }
    let mut options = vec!["--between".to_owned(), job.epoch.to_string()];
    options.extend(silent.then(|| "--silent".to_owned()));
    let (mut pause, mut failures) = (FIRST_PAUSE, 0);
    while failures < MOST_FAILURES {
        tokio::time::sleep(pause + PRECEDENCE * job.node.min(MAX_PRECEDING)).await;
        if node.secret_of(&job.identity).is_some() {
            return;
        }
        match run(&command, options.clone()).await.and_then(|ended| ended.code()) {
            Some(0) => return,
            Some(BETWEEN_LIVES) => failures = 0,
            // It was killed, the directory failed, or that was the job's own code, of which the next look knows.
            _ => failures += 1,
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_the_controllers_settings_and_not_the_daemons() {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let command = SuccessorCommand {
            executable: "/opt/mend".into(),
            directory: "/shared/u/.mend/jobs/a".into(),
            environment: vec![set("MEND_LEASE_MS", "9000"), set("MEND_HOME", "/shared/u/.mend")],
        };
        let ours = ["MEND_LEASE_MS", "MEND_RETRIES", "MEND_HOME", "MEND_LIBDIR", "PATH", "MENDED"].map(OsString::from);
        let successor = prepared(Path::new("/opt/mend"), &command, &["--silent".to_owned()], ours.into_iter());
        let changed = |name: &str| successor.as_std().get_envs().find(|(known, _)| *known == name).map(|(_, value)| value);
        assert_eq!(changed("MEND_LEASE_MS"), Some(Some("9000".as_ref())));
        assert_eq!(changed("MEND_HOME"), Some(Some("/shared/u/.mend".as_ref())));
        assert_eq!(changed("MEND_RETRIES"), Some(None));
        // They stay as they are.
        assert_eq!([changed("MEND_LIBDIR"), changed("PATH"), changed("MENDED")], [None; 3]);
    }
}
