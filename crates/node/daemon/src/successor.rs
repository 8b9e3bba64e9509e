//! A successor of a job's controller: `mend take-over`, started on this node when the controller is lost.
//!
//! Each node of the job may start one. They meet at the job's lock, in its directory: one gets it, the others end. Faults assumed: the directory is not
//! on this node; the controller lives and only its connection broke (it has the lock).

use mend_messages::daemon::SuccessorCommand;
use mend_messages::job::NodeIndex;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// So much later than the node before does each one start its own, so that as a rule there is one.
const PRECEDENCE: Duration = Duration::from_millis(100);
/// Most nodes that are waited for so.
const MAX_PRECEDING: NodeIndex = 5;

/// The program: that of the controller, or the one beside this daemon's.
fn executable(command: &SuccessorCommand) -> Option<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("mend")));
    [Some(command.executable.clone()), own].into_iter().flatten().find(|path| path.is_file())
}

/// Whether this node has what it takes.
pub fn can_start(command: &SuccessorCommand) -> bool {
    command.directory.join("job.json").is_file() && executable(command).is_some()
}

/// Starts it. It outlives this daemon. `silent`: the controller's end was not seen, it is only not heard.
pub async fn start(command: SuccessorCommand, node: NodeIndex, silent: bool) {
    tokio::time::sleep(PRECEDENCE * node.min(MAX_PRECEDING)).await;
    let Some(executable) = executable(&command) else { return };
    let mut successor = Command::new(executable);
    // A directory that may go away is not held by it.
    successor.arg("take-over").arg(&command.directory).args(silent.then_some("--silent")).envs(command.environment).current_dir("/");
    match successor.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
        Ok(mut child) => drop(child.wait().await),
        Err(error) => tracing::warn!(%error, "no successor of the controller can be started"),
    }
}
