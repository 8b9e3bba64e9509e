//! Running a command in a node.
//!
//! From outside, the command joins the node's namespaces but stays in the caller's session and process group: the
//! terminal, its Ctrl-C, Ctrl-Z and job control work as for any command of the shell. From inside the lab no process can
//! join another node's PID namespace (setns(2) allows descendants only), so the node's pid 1 runs the command with
//! the caller's files, and signals are passed on; there is no job control then.
//!
//! Invariants: the caller stays in its own namespaces; between fork and exec nothing is allocated; the command is
//! killed when the caller is.
//! Faults assumed: the node or the caller dying at any point.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use mend_kernel::namespaces::{exit_now, fork_sibling, keep_capabilities_over_exec};
use mend_kernel::signal_queue::SignalQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, set_parent_process_death_signal, waitpid,
};
use rustix::thread::move_into_link_name_space;

use crate::client::{Answer, Lab};
use crate::error::{LabError, doing};
use crate::plan;
use crate::protocol::{Joined, LabConnection, Reply, Request, RunEvent, RunSignal, Spawn, ready};

/// Signals that a command gets though they were sent to `mend lab exec`.
const FORWARDED_SIGNALS: [Signal; 7] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::ALARM];

impl Lab {
    /// Runs a command in a node with the calling process's standard streams, working directory and environment (plus
    /// `MEND_LAB`, `MEND_SHARED`, `MEND_SCRATCH`, `MEND_HOME`, `HOSTNAME`), and waits for it. Returns its exit
    /// code, or 128 + n when signal n ended it.
    ///
    /// Signals sent to the calling process meanwhile go to the command; in a process of several threads, only those
    /// that the kernel delivers to the calling one.
    ///
    /// # Errors
    /// `NoSuchNode`, `NodeDead`, `NoDirectory`, `Exec` and those of `status`.
    pub fn exec(&self, node: &str, argv: &[OsString]) -> Result<i32, LabError> {
        let program = argv.first().cloned().unwrap_or_default();
        let directory = env::current_dir().map_err(doing("find the working directory"))?;
        let call = Call { lab: self, node, program: program.to_string_lossy().into_owned(), argv, directory };
        let numbers: Vec<i32> = FORWARDED_SIGNALS.into_iter().chain([Signal::CHILD]).map(Signal::as_raw).collect();
        let signals = SignalQueue::new(&numbers).map_err(doing("signalfd"))?;
        match self.is_ours() {
            true => call.through_the_node(&signals),
            false => call.by_joining(&signals),
        }
    }
}

struct Call<'a> {
    lab: &'a Lab,
    node: &'a str,
    program: String,
    argv: &'a [OsString],
    directory: PathBuf,
}

impl Call<'_> {
    fn exec_error(&self, mut source: io::Error) -> LabError {
        // execvp(3) says EACCES for a program it found nowhere as soon as one directory of the PATH was closed to it.
        let named = !self.program.contains('/');
        let path = env::var_os("PATH").unwrap_or_default();
        let found = || env::split_paths(&path).any(|directory| directory.join(&self.program).exists());
        if source.kind() == io::ErrorKind::PermissionDenied && named && !found() {
            source = io::Error::from(rustix::io::Errno::NOENT);
        }
        LabError::Exec { program: self.program.clone(), source }
    }

    fn connection_error(&self, source: io::Error) -> LabError {
        LabError::Connection { lab: self.lab.name().to_string(), source }
    }

    fn variables(&self, joined: &Joined) -> Vec<(&'static str, PathBuf)> {
        let lab = self.lab.name().as_str();
        let has_home = env::var_os("MEND_HOME").is_some();
        plan::environment(lab, &joined.base, &joined.home, self.node, has_home)
    }

    fn by_joining(&self, signals: &SignalQueue) -> Result<i32, LabError> {
        let request = Request::Join { node: self.node.to_owned() };
        let (reply, Answer { files, .. }) = self.lab.ask(request, &[])?;
        let joined = match reply {
            Reply::Joined(joined) => joined,
            other => return Err(self.lab.refusal(other, self.node)),
        };
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let (pids, pid_writer) = pipe().map_err(doing("make a pipe"))?;
        let (stages, stage_writer) = pipe().map_err(doing("make a pipe"))?;
        let entry = Entry {
            namespaces: files,
            user_namespace: joined.user_namespace,
            directory: CString::new(self.directory.as_os_str().as_bytes())
                .map_err(|error| doing("name the working directory")(io::Error::from(error)))?,
            pid: pid_writer,
            stage: stage_writer,
            caller: pidfd_open(getpid(), PidfdFlags::empty()).map_err(doing("open a pidfd"))?,
        };
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).envs(self.variables(&joined));
        // SAFETY: `enter` only makes system calls and allocates nothing.
        unsafe { command.pre_exec(move || entry.enter()) };
        // After that: a Ctrl-C that is meant for the command already must not end the process between.
        signals.undo_in(&mut command);
        // On success the child is the process between, which ends when it has made the command; on failure it was
        // waited for already. The command is our child either way, if it got as far as being forked.
        let started = command.spawn().and_then(|mut between| between.wait());
        drop(command); // and with it our writing ends of the pipes
        let mut raw = [0; 4];
        let command = match io::Read::read_exact(&mut File::from(pids), &mut raw) {
            Ok(()) => Pid::from_raw(i32::from_ne_bytes(raw)),
            Err(_) => None,
        };
        match (started, command) {
            (Ok(_), Some(command)) => attend(command, signals).map_err(doing("wait for the command")),
            (Ok(_), None) => Err(self.why_not_started(io::Error::from(io::ErrorKind::BrokenPipe), stages)),
            (Err(error), command) => {
                if command.is_some() {
                    let _ = waitpid(command, WaitOptions::empty());
                }
                Err(self.why_not_started(error, stages))
            }
        }
    }

    /// Tells apart what failed before the command was there from what failed with it.
    fn why_not_started(&self, error: io::Error, stages: OwnedFd) -> LabError {
        let mut reached = [0; 4];
        let count = rustix::io::read(stages, &mut reached).unwrap_or(0);
        match reached[..count].last() {
            Some(&DIRECTORY) => LabError::NoDirectory(self.directory.clone()),
            Some(&COMMAND) => self.exec_error(error),
            // What fork(2) says in a PID namespace whose pid 1 has ended.
            Some(&FORK) if error.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => {
                LabError::NodeDead { lab: self.lab.name().to_string(), node: self.node.to_owned() }
            }
            _ => LabError::Enter { node: self.node.to_owned(), source: error },
        }
    }

    fn through_the_node(&self, signals: &SignalQueue) -> Result<i32, LabError> {
        let status = self.lab.status()?;
        let joined = Joined { base: status.shared.parent().unwrap_or(&status.shared).to_owned(), home: status.home, user_namespace: false };
        let mut variables: Vec<(OsString, OsString)> = env::vars_os().collect();
        for (key, value) in self.variables(&joined) {
            variables.retain(|(name, _)| name != key);
            variables.push((key.into(), value.into()));
        }
        let bytes = |text: &OsString| text.as_bytes().to_vec();
        let spawn = Spawn {
            argv: self.argv.iter().map(bytes).collect(),
            environment: variables.iter().map(|(key, value)| (bytes(key), bytes(value))).collect(),
            directory: self.directory.clone().into_os_string().into_vec(),
        };
        let sheet = self.sheet(&spawn).map_err(doing("make a memory file"))?;
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        let files = [input.as_fd(), output.as_fd(), errors.as_fd(), sheet.as_fd()];
        let request = Request::Run { node: self.node.to_owned() };
        let (reply, Answer { connection, .. }) = self.lab.ask(request, &files)?;
        match reply {
            Reply::Joined(_) => self.attend_afar(&connection, signals),
            other => Err(self.lab.refusal(other, self.node)),
        }
    }

    /// The command as a memory file: environments may be longer than a packet.
    fn sheet(&self, spawn: &Spawn) -> io::Result<File> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let mut sheet = File::from(rustix::fs::memfd_create("mend-lab-command", flags)?);
        sheet.write_all(&serde_json::to_vec(spawn)?)?;
        Ok(sheet)
    }

    fn attend_afar(&self, connection: &LabConnection, signals: &SignalQueue) -> Result<i32, LabError> {
        loop {
            let woken = ready(&[connection.as_fd(), signals.as_fd()], None).map_err(doing("poll"))?;
            if woken[1] {
                while let Some(arrived) = signals.next().map_err(doing("signalfd"))? {
                    if arrived.signal != Signal::CHILD.as_raw() {
                        let sent = connection.send(&RunSignal(arrived.signal), &[]);
                        sent.map_err(|error| self.connection_error(error))?;
                    }
                }
            }
            if !woken[0] {
                continue;
            }
            let event = connection.receive::<RunEvent>().map_err(|error| self.connection_error(error))?;
            return match event {
                Some((RunEvent::Exited(code), _)) => Ok(code),
                Some((RunEvent::NotStarted(errno), _)) => Err(self.exec_error(io::Error::from_raw_os_error(errno))),
                Some((RunEvent::NoDirectory(_), _)) => Err(LabError::NoDirectory(self.directory.clone())),
                None => Err(LabError::NodeDead { lab: self.lab.name().to_string(), node: self.node.to_owned() }),
            };
        }
    }
}

// How far the way into the node has been gone: each is noted when what is named there begins.
const ENTRY: u8 = b'e';
const DIRECTORY: u8 = b'd';
const FORK: u8 = b'f';
const COMMAND: u8 = b'c';

/// What a process needs on its way into a node.
struct Entry {
    namespaces: Vec<OwnedFd>,
    user_namespace: bool,
    directory: CString,
    pid: OwnedFd,
    stage: OwnedFd,
    /// The caller, as a pidfd: from within the node it has no pid.
    caller: OwnedFd,
}

impl Entry {
    /// Joins the namespaces and forks once more, for a PID namespace is entered by children only. That child is made
    /// the caller's parent's, which can thus wait for it; the process between ends.
    fn enter(&self) -> io::Result<()> {
        self.note(ENTRY)?;
        for namespace in &self.namespaces {
            move_into_link_name_space(namespace.as_fd(), None)?;
        }
        if self.user_namespace {
            keep_capabilities_over_exec()?;
        }
        self.note(DIRECTORY)?;
        rustix::process::chdir(self.directory.as_c_str())?;
        self.note(FORK)?;
        // SAFETY: the child goes on to exec(2), with nothing but system calls before.
        if let Some(child) = unsafe { fork_sibling() }? {
            let raw = child.as_raw_nonzero().get().to_ne_bytes();
            let written = rustix::io::write(&self.pid, &raw);
            exit_now(i32::from(written.is_err()));
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The caller may have died before that; then nobody would end the command.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.caller, PollFlags::IN)], Some(&now))? != 0 {
            exit_now(1);
        }
        self.note(COMMAND)
    }

    fn note(&self, stage: u8) -> io::Result<()> {
        rustix::io::write(&self.stage, &[stage])?;
        Ok(())
    }
}

/// Waits for the command, passing signals on; stops when it stops, as job control expects.
fn attend(command: Pid, signals: &SignalQueue) -> io::Result<i32> {
    loop {
        while let Some((_, status)) = waitpid(Some(command), WaitOptions::NOHANG | WaitOptions::UNTRACED)? {
            if status.stopped() {
                kill_process(getpid(), Signal::STOP)?;
                kill_process(command, Signal::CONT)?;
            } else {
                return Ok(exit_code(status));
            }
        }
        ready(&[signals.as_fd()], None)?;
        while let Some(arrived) = signals.next()? {
            // What the terminal sends, it has sent to the command as well: it is in our process group.
            let theirs_too = arrived.from_kernel || arrived.signal == Signal::CHILD.as_raw();
            if let (false, Some(signal)) = (theirs_too, Signal::from_named_raw(arrived.signal)) {
                let _ = kill_process(command, signal);
            }
        }
    }
}

fn exit_code(status: WaitStatus) -> i32 {
    let status: ExitStatus = std::os::unix::process::ExitStatusExt::from_raw(status.as_raw());
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    status.code().unwrap_or(128 + signal.unwrap_or(0))
}
