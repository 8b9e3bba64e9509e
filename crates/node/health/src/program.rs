//! Running other people's programs: bounded in time and output, and killed with all their children.
//!
//! Invariant: what is run belongs to root or to this daemon's user, and nobody else may write to it.

use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

/// What is kept of a program's output, bytes; the rest is read and dropped.
const MOST_OUTPUT: usize = 64 << 10;

/// Why a program was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ProgramFailure {
    /// Others may have changed it.
    #[error("refused: {} may be written by others (owner {owner}, mode {mode:03o}); it must belong to root or to mendd's user, and `chmod go-w` it", path.display())]
    Writable {
        /// The file or directory.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// It is not there.
    #[error("{}", path.display())]
    Missing {
        /// The file or directory.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// It cannot be started, or not be read from.
    #[error("cannot be run")]
    Run(#[source] io::Error),
    /// It took too long.
    #[error("took longer than {} ms and was killed", .0.as_millis())]
    Hung(Duration),
}

/// What a program did.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed, as far as it is kept.
    pub stdout: String,
    /// What it complained of, as far as it is kept.
    pub stderr: String,
}

impl Ended {
    /// Its first line: of standard output, else of standard error.
    #[must_use]
    pub fn first_line(&self) -> &str {
        let first = [&self.stdout, &self.stderr].into_iter().find_map(|text| text.lines().map(str::trim).find(|line| !line.is_empty()));
        first.unwrap_or_default()
    }
}

/// Refuses what others can write to.
///
/// # Errors
/// [`ProgramFailure::Writable`], [`ProgramFailure::Missing`]
pub fn trusted(path: &Path) -> Result<(), ProgramFailure> {
    let found = std::fs::metadata(path).map_err(|source| ProgramFailure::Missing { path: path.to_owned(), source })?;
    let (owner, mode) = (found.uid(), found.permissions().mode() & 0o777);
    if mode & 0o022 == 0 && (owner == 0 || owner == geteuid().as_raw()) {
        return Ok(());
    }
    Err(ProgramFailure::Writable { path: path.to_owned(), owner, mode })
}

/// Kills a program and all that it has started when it goes out of sight.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // It may have ended by itself.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

async fn kept(stream: impl AsyncRead + Unpin) -> String {
    let (mut stream, mut kept, mut piece) = (stream, Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut piece).await {
        kept.extend_from_slice(&piece[..length.min(MOST_OUTPUT - kept.len())]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Runs a program with this on its standard input, for so long at most.
///
/// # Errors
/// [`ProgramFailure::Run`], [`ProgramFailure::Hung`]
pub async fn run(program: &Path, arguments: &[&str], input: &[u8], limit: Duration) -> Result<Ended, ProgramFailure> {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(ProgramFailure::Run)?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id as i32)));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // It need not read it.
            let _ = stdin.write_all(input).await;
        }
    };
    let listen = async {
        match (stdout, stderr) {
            (Some(stdout), Some(stderr)) => tokio::join!(kept(stdout), kept(stderr)),
            _ => (String::new(), String::new()),
        }
    };
    // What it leaves behind may hold its output open: that, too, is waited for no longer.
    let whole = async { tokio::join!(feed, listen, child.wait()) };
    let ended = timeout(limit, whole).await;
    match ended {
        Ok((_, (stdout, stderr), status)) => {
            let status = status.map_err(ProgramFailure::Run)?;
            group.0 = None;
            Ok(Ended { status, stdout, stderr })
        }
        Err(_) => Err(ProgramFailure::Hung(limit)),
    }
}

/// A program by its name, in PATH or where administrators' programs are.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    places.map(|place| place.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Instant;

    fn script(directory: &Path, text: &str) -> PathBuf {
        let path = directory.join("script");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn what_hangs_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "sleep 600 & echo $! > $0.child; echo here; wait");
        // On a busy machine it may be killed before it has a child: then it gets more time.
        let mut child = None;
        for limit in [1, 4, 16, 64].map(Duration::from_secs) {
            let begun = Instant::now();
            let failure = run(&path, &[], b"", limit).await.unwrap_err();
            assert!(matches!(failure, ProgramFailure::Hung(_)), "{failure}");
            assert!(begun.elapsed() < limit + Duration::from_secs(60));
            child = fs::read_to_string(directory.path().join("script.child")).ok().and_then(|text| text.trim().parse::<i32>().ok());
            if child.is_some() {
                break;
            }
        }
        let child = child.expect("it had no time for a child");
        let gone = || rustix::process::test_kill_process(Pid::from_raw(child).unwrap()).is_err() || zombie(child);
        for _ in 0..1000 {
            if gone() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("its child lives");
    }

    fn zombie(pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }

    #[tokio::test]
    async fn output_is_bounded_and_input_need_not_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "yes | head -c 1000000; echo complaint >&2; exit 3");
        let ended = run(&path, &[], &[b'x'; 1 << 20], Duration::from_secs(30)).await.unwrap();
        assert_eq!((ended.status.code(), ended.stdout.len(), ended.stderr.as_str()), (Some(3), MOST_OUTPUT, "complaint\n"));
    }

    #[test]
    fn what_others_can_write_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = script(directory.path(), "true");
        assert!(trusted(&path).is_ok());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
        let refused = trusted(&path).unwrap_err().to_string();
        assert!(refused.contains(&path.display().to_string()) && refused.contains("775"), "{refused}");
        assert!(matches!(trusted(Path::new("/nowhere")), Err(ProgramFailure::Missing { .. })));
    }
}
