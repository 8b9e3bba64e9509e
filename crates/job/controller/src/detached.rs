//! A controller that is a process of its own (`mend run --detach`), and where the messages of that process go.
//!
//! ```text
//! caller ── fork ─► controller: a session of its own, no terminal
//!    │ ◄─ its messages, until the ranks run ─┤
//!    │ ◄─ the job's id, when the ranks run ──┘      then the caller returns, with 0
//!    └─ SIGINT, SIGTERM ─► controller               and waits for its end: the user gave the job up before it ran
//! ```
//! If the controller ends before the ranks run, the caller ends with its exit code; if it is killed when it may have a successor, or has one, the caller waits for what that
//! makes of the job. Standard error of the controller is a pipe to a thread of its
//! own. This writes what comes to the job's spool, as standard error, and before the ranks run also to the caller's. So what
//! `mend run` would have told is told, in the order in which it would have been.
//!
//! Invariant: nobody writes a message while he has the spool, or both would wait for each other once the pipe is full. Faults assumed: the caller
//! is killed, or its terminal goes away, at any moment (the job goes on); the controller is killed (messages that are still in the pipe are lost).

use crate::error::{RunError, TAKEN_OVER};
use crate::spool::Spool;
use mend_kernel::namespaces::{close_other_files, fork_and_run};
use mend_kernel::signal_queue::SignalQueue;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, SeekFrom, fstat, seek};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, setsid, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// What a line to the caller begins with: the job of this id goes on if its controller is killed, or its ranks run.
const BEGUN: char = '?';
const ACCEPTED: char = '!';

/// Bytes of messages that are kept until there is a spool.
const MAX_EARLY_BYTES: usize = 1 << 20;

/// The spool of this process's job.
pub type SharedSpool = Arc<Mutex<Spool>>;

/// What this process is if it is a detached controller.
#[derive(Debug)]
struct Detached {
    state: Mutex<State>,
    /// Wakes the thread that carries messages.
    wake: PipeWriter,
}

#[derive(Debug, Default)]
struct State {
    spool: Option<SharedSpool>,
    /// Messages of the time before there was one.
    early: Vec<u8>,
    /// The job that may have another controller from now on.
    begun: Option<String>,
    /// The job whose ranks run.
    accepted: Option<String>,
    over: bool,
    /// The controller that had the spool is silent.
    seizes: bool,
}

static DETACHED: OnceLock<Detached> = OnceLock::new();

/// Locks a spool, or anything else whose changes are whole before anything can panic.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process is a detached controller.
pub(crate) fn is_detached() -> bool {
    DETACHED.get().is_some()
}

/// Where the job of this directory prints to, if this process is detached. Made or opened when it is asked for first.
///
/// # Errors
/// If it cannot be.
pub(crate) fn spool_in(directory: &Path) -> Result<Option<SharedSpool>, RunError> {
    let Some(detached) = DETACHED.get() else { return Ok(None) };
    let limit = mend_settings::SPOOL.number()? << 20;
    let mut state = lock(&detached.state);
    if state.spool.is_none() {
        let mut spool = if state.seizes { Spool::seize(directory, limit)? } else { Spool::open(directory, limit)? };
        spool.write_message(&std::mem::take(&mut state.early));
        state.spool = Some(Arc::new(Mutex::new(spool)));
    }
    Ok(state.spool.clone())
}

/// The job was another controller's, which is silent and may have its spool.
pub(crate) fn seize() {
    if let Some(detached) = DETACHED.get() {
        lock(&detached.state).seizes = true;
    }
}

/// The job goes on if this process is killed: the caller is told its id, once.
pub(crate) fn begun(id: &str) {
    if let Some(detached) = DETACHED.get() {
        lock(&detached.state).begun.get_or_insert_with(|| id.to_owned());
        detached.wake();
    }
}

/// All ranks of the job run, or it came to its end without that: the caller is told its id, once.
pub(crate) fn accept(id: &str) {
    if let Some(detached) = DETACHED.get() {
        lock(&detached.state).accepted.get_or_insert_with(|| id.to_owned());
        detached.wake();
    }
}

impl Detached {
    fn wake(&self) {
        // The thread lives for as long as anybody can call this.
        let _ = (&self.wake).write_all(b".");
    }

    /// Has what is written to standard error carried from here on.
    fn begin(caller: OwnedFd, report: PipeWriter) -> io::Result<JoinHandle<()>> {
        let (messages, standard_error) = io::pipe()?;
        let (woken, wake) = io::pipe()?;
        dup2_stderr(&standard_error)?;
        let detached = DETACHED.get_or_init(|| Self { state: Mutex::default(), wake });
        std::thread::Builder::new().name("messages".into()).spawn(move || detached.carry(messages, woken, Some((caller, report))))
    }

    fn carry(&self, mut messages: PipeReader, mut woken: PipeReader, mut caller: Option<(OwnedFd, PipeWriter)>) {
        let (mut buffer, mut told) = (vec![0; 1 << 16], false);
        loop {
            let mut both = [PollFd::new(&messages, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let came = both[0].revents().contains(PollFlags::IN);
            let asked = !both[1].revents().is_empty();
            if came {
                let length = messages.read(&mut buffer).unwrap_or(0);
                self.deliver(&buffer[..length], caller.as_ref().map(|(standard_error, _)| standard_error));
                // All that was said before somebody woke this thread.
                continue;
            }
            if asked && woken.read(&mut buffer).unwrap_or(0) == 0 {
                return;
            }
            let state = lock(&self.state);
            if let (Some(id), Some((_, report)), false) = (&state.begun, &mut caller, told) {
                let _ = writeln!(report, "{BEGUN}{id}");
                told = true;
            }
            if let (Some(id), Some((standard_error, mut report))) = (&state.accepted, caller.take_if(|_| state.accepted.is_some())) {
                drop(standard_error);
                // It may have been killed.
                let _ = writeln!(report, "{ACCEPTED}{id}");
            }
            // Looked at last: a job may end at once.
            if state.over {
                return;
            }
        }
    }

    fn deliver(&self, bytes: &[u8], caller: Option<&OwnedFd>) {
        if let Some(caller) = caller {
            let mut rest = bytes;
            while let Ok(written @ 1..) = rustix::io::write(caller, rest) {
                rest = &rest[written..];
            }
        }
        let mut state = lock(&self.state);
        let Some(spool) = state.spool.clone() else {
            let left = MAX_EARLY_BYTES.saturating_sub(state.early.len()).min(bytes.len());
            state.early.extend_from_slice(&bytes[..left]);
            return;
        };
        drop(state);
        lock(&spool).write_message(bytes);
    }
}

/// What came of a start, as its caller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// All ranks of the job of this id run.
    Accepted(String),
    /// The controller has ended, with this exit code, before they did. It has said why.
    Ended(i32),
    /// The controller was killed before they did, or has lost the job to a successor: another one may go on with the job of this id. The exit code says by what.
    Lost(String, i32),
}

/// Carries the rest of the messages when it is dropped.
struct Carrier(Option<JoinHandle<()>>);

impl Drop for Carrier {
    fn drop(&mut self) {
        let (Some(detached), Some(thread)) = (DETACHED.get(), self.0.take()) else { return };
        lock(&detached.state).over = true;
        detached.wake();
        let _ = thread.join();
        // Its last bytes reach a file server before the spool's lock goes: this process's end closes both in no order.
        if let Some(spool) = &lock(&detached.state).spool {
            let _ = lock(spool).newest().and_then(|newest| newest.map_or(Ok(()), |newest| newest.sync_data()));
        }
    }
}

/// Runs `controller` in a process of its own, without a terminal, until it returns its exit code. Returns when the ranks of its job run, or
/// when it has ended before. To be called before there are threads.
///
/// # Errors
/// Those of the system.
pub fn start(controller: impl FnOnce() -> i32) -> io::Result<Started> {
    let input = standard_input()?;
    let (report, reporting) = io::pipe()?;
    // From here on, so that none ends the caller alone.
    let signals = Cell::new(Some(SignalQueue::new(&[Signal::INT.as_raw(), Signal::TERM.as_raw()])?));
    let queue = &signals;
    let child = fork_and_run(move || {
        let session = setsid();
        // What has come is the caller's to pass on.
        drop(queue.take());
        match session.map_err(io::Error::from).and_then(|_| detach(&input, reporting)) {
            Ok(_carrier) => controller(),
            Err(error) => {
                mend_report::tell!("{}", mend_report::failure("mend", &format!("the job cannot be detached: {error}"), ""));
                1
            }
        }
    })?;
    match signals.take() {
        Some(signals) => accepted(report, child, &signals),
        None => Ok(Started::Ended(1)),
    }
}

/// Runs `controller` as one that is detached, in this process, which nobody waits for. To be called before there are threads.
///
/// # Errors
/// Those of the system.
pub fn here(controller: impl FnOnce() -> i32) -> io::Result<i32> {
    // It leads a session already, if it was started so.
    let _ = setsid();
    let (_, reporting) = io::pipe()?;
    let caller = fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    let _carrier = Carrier(Some(Detached::begin(caller, reporting)?));
    Ok(controller())
}

/// Makes this process, just forked, a controller without a terminal.
fn detach(input: &File, report: PipeWriter) -> io::Result<Carrier> {
    // SAFETY: this process was just forked and never returns to what its caller had open; `input` and `report` are all that it has itself.
    unsafe { close_other_files(&[input.as_fd(), report.as_fd()])? };
    dup2_stdin(input)?;
    dup2_stdout(OpenOptions::new().write(true).open("/dev/null")?)?;
    let caller = fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
    Ok(Carrier(Some(Detached::begin(caller, report)?)))
}

/// What rank 0 reads: a regular file that this process has on standard input, from where it stands; else nothing. The job reads it by an
/// offset of its own, so that the caller (a shell's `while read`, say) and the job do not take lines from each other.
fn standard_input() -> io::Result<File> {
    let found = fstat(rustix::stdio::stdin()).map(|found| FileType::from_raw_mode(found.st_mode));
    match found {
        Ok(FileType::RegularFile) => {
            let at = seek(rustix::stdio::stdin(), SeekFrom::Current(0))?;
            let file = match File::open("/proc/self/fd/0") {
                Ok(file) => file,
                // It was opened by another user.
                Err(_) => return Ok(rustix::io::dup(rustix::stdio::stdin())?.into()),
            };
            seek(&file, SeekFrom::Start(at))?;
            Ok(file)
        }
        _ => File::open("/dev/null"),
    }
}

/// Whether standard input is something that a detached job does not read, and that somebody may have meant for it.
#[must_use]
pub fn leaves_input() -> bool {
    fstat(rustix::stdio::stdin()).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Fifo)
}

fn accepted(mut report: PipeReader, controller: Pid, signals: &SignalQueue) -> io::Result<Started> {
    let (mut said, mut buffer) = (Vec::new(), [0; 512]);
    let mut given_up = loop {
        let given_up = next_signal(signals, &report)?;
        if given_up.is_some() {
            break given_up;
        }
        match report.read(&mut buffer)? {
            0 => break None,
            read => said.extend_from_slice(&buffer[..read]),
        }
    };
    let said = String::from_utf8_lossy(&said);
    let job = |of: char| said.lines().find_map(|line| line.strip_prefix(of)).map(str::to_owned);
    if let (Some(id), None) = (job(ACCEPTED), given_up) {
        return Ok(Started::Accepted(id));
    }
    // It ends without that, or is to.
    let process = pidfd_open(controller, PidfdFlags::empty())?;
    loop {
        if let Some(signal) = given_up {
            // It may have ended.
            let _ = kill_process(controller, signal);
        }
        given_up = next_signal(signals, &process)?;
        if given_up.is_none() {
            let (code, killed) = exit_code(controller);
            // One that stood still may have a successor, and ends by itself then.
            return Ok(match job(BEGUN).filter(|_| killed || code == TAKEN_OVER) {
                Some(id) => Started::Lost(id, code),
                None => Started::Ended(code),
            });
        }
    }
}

/// Waits for a signal, or until there is something to read (`None`).
fn next_signal(signals: &SignalQueue, or: &impl AsFd) -> io::Result<Option<Signal>> {
    loop {
        let mut both = [PollFd::new(signals, PollFlags::IN), PollFd::new(or, PollFlags::IN)];
        match poll(&mut both, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let readable = !both[1].revents().is_empty();
        match signals.next()?.and_then(|arrived| Signal::from_named_raw(arrived.signal)) {
            None if readable => return Ok(None),
            None => {}
            signal => return Ok(signal),
        }
    }
}

/// Of a process that has ended, as a shell has it, and whether a signal ended it.
fn exit_code(process: Pid) -> (i32, bool) {
    // It is gone if this process was started with SIGCHLD ignored.
    let Ok(Some((_, status))) = waitpid(Some(process), WaitOptions::empty()) else { return (1, false) };
    let killed = status.terminating_signal().map(|signal| 128 + signal);
    (status.exit_status().or(killed).unwrap_or(1), killed.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn started(said: &str, controller: &str) -> Started {
        let signals = SignalQueue::new(&[]).unwrap();
        let (report, mut reporting) = io::pipe().unwrap();
        reporting.write_all(said.as_bytes()).unwrap();
        drop(reporting);
        #[expect(clippy::zombie_processes, reason = "`accepted` waits for it")]
        let child = Command::new("sh").args(["-c", controller]).spawn().unwrap();
        accepted(report, Pid::from_child(&child), &signals).unwrap()
    }

    #[test]
    fn who_waits_for_a_start_tells_a_job_that_goes_on_from_one_that_has_ended() {
        assert_eq!(started("?job-1\n!job-1\n", "exit 0"), Started::Accepted("job-1".into()));
        assert_eq!(started("?job-1\n", "exit 75"), Started::Ended(75));
        assert_eq!(started("?job-1\n", "kill -KILL $$"), Started::Lost("job-1".into(), 137));
        // It stood still, and sees that another one goes on with it.
        assert_eq!(started("?job-1\n", "exit 137"), Started::Lost("job-1".into(), 137));
        assert_eq!(started("", "exit 137"), Started::Ended(137));
        // Nobody can go on with it yet.
        assert_eq!(started("", "kill -KILL $$"), Started::Ended(137));
    }
}
