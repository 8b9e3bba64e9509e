//! Plays the daemon: starts a program with the agent preloaded, talks with the agent, restores images.
#![allow(dead_code, missing_docs)]

mod built;
pub mod generations;
pub mod rollback;
pub mod skips;

pub use built::{compile, restorer};

use built::{preload, shared_directory};
use mend_image::launch::{Arguments, GO, Mode, Role, STATUS_HEAD, Status};
use mend_messages::agent::{
    Compression, FromAgent, Hello, ImageId, Inspection, Reply, Request, Round, SaveMode, SaveOrder, SaveTarget, Saved, ToAgent, Welcome,
    Written,
};
use mend_messages::frame;
use mend_messages::job::Secret;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything; reaching it is a failure. A slow machine may be given more time: `MEND_TEST_PATIENCE`, in seconds.
fn limit() -> Duration {
    let asked = std::env::var("MEND_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(60))
}

/// Whether tests run as another user than the one who runs them (root only).
pub fn as_user() -> bool {
    std::env::var_os("MEND_TEST_AS_USER").is_some()
}

/// Far more ticks than any test waits for.
pub const ENDLESS_TICKS: &str = "100000";

pub struct Rank {
    child: Child,
    /// It ends when there is a file `end`.
    pub endless: bool,
    agent: UnixStream,
    pub directory: PathBuf,
    output: UnixStream,
    stdin: Option<UnixStream>,
    pub printed: Vec<u8>,
    /// For what goes into a stream.
    pub compression: Compression,
    seq: u64,
    written: Vec<(ImageId, Result<Written, String>)>,
    /// Rounds of a copy that were told of.
    rounds: Vec<Round>,
    /// What the restorer reported.
    pub unread: Vec<(Role, Vec<u8>)>,
    /// Microseconds from its start to its readiness.
    pub restorer_us: u64,
    /// Bytes of pages that the restorer wrote to memory.
    pub restorer_placed: u64,
    /// Bytes of images that it read.
    pub restorer_read: u64,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn supervise(keep: bool, pid: u32) -> Command {
    let program = compile("support/supervise.c");
    let mut command = if as_user() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    if keep {
        command.arg("-c");
    }
    command.arg(pid.to_string());
    command
}

/// Passes descriptors on to a child under their own numbers.
fn inherit(command: &mut Command, descriptors: Vec<i32>) {
    // SAFETY: only fcntl between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for fd in &descriptors {
                if libc::fcntl(*fd, libc::F_SETFD, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

pub fn read_message(stream: &mut UnixStream) -> std::io::Result<FromAgent> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let mut body = vec![0; frame::body_length(prefix).unwrap()];
    stream.read_exact(&mut body)?;
    Ok(frame::decode(&body).unwrap())
}

fn welcome() -> ToAgent {
    let ip = std::net::Ipv4Addr::LOCALHOST.into();
    ToAgent::Welcome(Welcome {
        job: [7; 16],
        secret: Secret([9; 32]),
        rank: 0,
        size: 1,
        node: 0,
        ip,
        encrypt_data: false,
        unused_features: Default::default(),
    })
}

/// How a restore went wrong.
#[derive(Debug)]
pub struct Refusal(pub String);

fn header_of(path: &Path) -> Result<mend_image::Header, Refusal> {
    let mut bytes = [0; mend_image::HEADER_SIZE];
    let got = std::fs::File::open(path).unwrap().read(&mut bytes).unwrap();
    mend_image::read_header(&bytes[..got]).map_err(|error| Refusal(error.to_string()))
}

pub enum Source<'a> {
    File(&'a Path),
    /// An image and what it builds on, newest first.
    Chain(&'a [PathBuf]),
    /// A stream and the pid of its header.
    Stream(OwnedFd, u32),
}

impl Rank {
    /// A process that has just been started, with our ends of what it was given.
    fn around(child: Child, agent: UnixStream, directory: PathBuf, output: UnixStream, stdin: UnixStream) -> Self {
        agent.set_read_timeout(Some(limit())).unwrap();
        Self {
            child,
            endless: false,
            agent,
            directory,
            output,
            stdin: Some(stdin),
            printed: Vec::new(),
            compression: Compression::Off,
            seq: 0,
            written: Vec::new(),
            rounds: Vec::new(),
            unread: Vec::new(),
            restorer_us: 0,
            restorer_placed: 0,
            restorer_read: 0,
        }
    }

    /// Starts a program under the agent with this pid.
    pub fn start(pid: u32, program: &Path, arguments: &[&str]) -> Self {
        Self::start_with(pid, program, arguments, &[])
    }

    pub fn start_with(pid: u32, program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        // Built before the program begins: it runs for a time only.
        restorer(0);
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = shared_directory().join(format!("rank-{number}"));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let socket = directory.join("agent");
        let listener = UnixListener::bind(&socket).unwrap();
        std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let (output, theirs) = UnixStream::pair().unwrap();
        let (stdin, stdin_theirs) = UnixStream::pair().unwrap();
        let mut command = supervise(false, pid);
        command.arg("/usr/bin/env").arg(format!("LD_PRELOAD={}", preload().display())).arg(program).args(arguments);
        command.env("MEND_RANK", "0").env("MEND_RANK_PID", pid.to_string()).env("MEND_SOCKET", &socket);
        command.envs(environment.iter().copied());
        command.current_dir(&directory);
        command.stdin(Stdio::from(OwnedFd::from(stdin_theirs)));
        command.stdout(Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()))).stderr(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().unwrap();
        drop(command);
        let (agent, _) = listener.accept().unwrap();
        let mut rank = Self::around(child, agent, directory, output, stdin);
        rank.endless = arguments.contains(&ENDLESS_TICKS);
        loop {
            match read_message(&mut rank.agent) {
                Ok(FromAgent::Hello(Hello { rank: 0, main_process: true, .. })) => break,
                other => {
                    // The wrapper `env` was the first process; the program says hello anew.
                    let _ = other;
                    rank.agent = listener.accept().unwrap().0;
                    rank.agent.set_read_timeout(Some(limit())).unwrap();
                }
            }
        }
        rank.say(&welcome());
        rank
    }

    pub fn say(&mut self, message: &ToAgent) {
        self.agent.write_all(&frame::encode(message).unwrap()).unwrap();
    }

    pub fn hear(&mut self) -> FromAgent {
        read_message(&mut self.agent).unwrap_or_else(|error| panic!("the agent is gone ({error}): {}", self.drain_output()))
    }

    fn drain_output(&mut self) -> String {
        self.output.set_nonblocking(true).unwrap();
        let _ = self.output.read_to_end(&mut self.printed);
        self.output.set_nonblocking(false).unwrap();
        String::from_utf8_lossy(&self.printed).into_owned()
    }

    pub fn ask(&mut self, request: Request) -> Reply {
        self.seq += 1;
        let seq = self.seq;
        self.say(&ToAgent::Request { seq, request });
        loop {
            match self.hear() {
                FromAgent::Reply { seq: answered, reply } if answered == seq => return reply,
                FromAgent::Written { id, result } => self.written.push((id, result)),
                FromAgent::Round(round) => self.rounds.push(round),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    pub fn inspect(&mut self) -> Inspection {
        self.inspect_ahead(None)
    }

    /// Inspects before a snapshot on `base` that is to follow.
    pub fn inspect_ahead(&mut self, ahead: Option<ImageId>) -> Inspection {
        match self.ask(Request::Inspect { ahead, files: true }) {
            Reply::Inspected(inspection) => inspection,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Suspends and saves; threads stay parked.
    pub fn try_save(&mut self, path: &Path) -> Result<Saved, (String, String)> {
        assert!(matches!(self.ask(Request::Suspend), Reply::Suspended { .. }));
        match self.ask(Request::Save(SaveOrder::full(SaveTarget::File(path.to_path_buf())))) {
            Reply::Saved(saved) => Ok(saved),
            Reply::Failed { error, hint } => Err((error, hint)),
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn save(&mut self, path: &Path) -> Saved {
        self.try_save(path).unwrap_or_else(|(error, hint)| panic!("save failed: {error} ({hint})"))
    }

    fn suspend_and_save(&mut self, order: SaveOrder) -> Saved {
        assert!(matches!(self.ask(Request::Suspend), Reply::Suspended { .. }));
        match self.ask(Request::Save(order)) {
            Reply::Saved(saved) => saved,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Suspends and saves, what changed since `base` if it can; changes are noticed from now on. Threads stay parked.
    pub fn save_on(&mut self, path: &Path, base: Option<ImageId>) -> Saved {
        self.suspend_and_save(SaveOrder { base, track: true, ..SaveOrder::full(SaveTarget::File(path.to_path_buf())) })
    }

    /// Suspends and takes a snapshot, to be written behind; threads stay parked.
    pub fn snapshot(&mut self, path: &Path, rate: Option<u64>) -> Saved {
        self.snapshot_on(path, None, rate)
    }

    /// The same, on another image if changes since that are known; those from here on are to be.
    pub fn snapshot_on(&mut self, path: &Path, base: Option<ImageId>, rate: Option<u64>) -> Saved {
        let order = SaveOrder::full(SaveTarget::File(path.to_path_buf()));
        self.suspend_and_save(SaveOrder { mode: SaveMode::CopyOnWrite, base, track: true, rate, ..order })
    }

    /// Waits until this image is written, or is not going to be.
    pub fn await_written(&mut self, id: ImageId) -> Result<Written, String> {
        loop {
            if let Some(at) = self.written.iter().position(|(written, _)| *written == id) {
                return self.written.remove(at).1;
            }
            match self.hear() {
                FromAgent::Written { id, result } => self.written.push((id, result)),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// The program's process, as `/proc` shows it, and its children.
    pub fn processes(&self) -> Vec<i32> {
        let children = |pid: i32| -> Vec<i32> {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
            lists.flat_map(|list| list.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<_>>()).collect()
        };
        let is_program = |pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() != "supervise" && name.trim() != "setpriv"
        };
        let mut program = vec![self.child.id() as i32];
        while !is_program(&program[0]) {
            program = children(program[0]);
        }
        let copies = children(program[0]);
        program.into_iter().take(1).chain(copies).collect()
    }

    /// Suspends and saves into a stream.
    pub fn save_into(&mut self, stream: &impl AsFd) {
        assert!(matches!(self.ask(Request::Suspend), Reply::Suspended { .. }));
        let order = SaveOrder { compression: self.compression, ..SaveOrder::full(SaveTarget::Descriptor) };
        self.send_with(Request::Save(order), stream);
    }

    /// Copies it into a stream while it runs.
    pub fn precopy(&mut self, stream: &impl AsFd) {
        self.precopy_by(stream, true);
    }

    /// The same, with or without the receiver's answers.
    pub fn precopy_by(&mut self, stream: &impl AsFd, answered: bool) {
        self.send_with(Request::Precopy { answered, compression: self.compression }, stream);
        match self.hear() {
            FromAgent::Reply { reply: Reply::Precopying, .. } => {}
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Waits until so many rounds are complete. Returns the last one.
    pub fn await_rounds(&mut self, count: u32) -> Round {
        loop {
            if let Some(last) = self.rounds.iter().rfind(|round| round.done && round.number + 1 >= count) {
                let last = *last;
                self.rounds.clear();
                return last;
            }
            if count == 0 {
                return Round::default();
            }
            match self.hear() {
                FromAgent::Round(round) => self.rounds.push(round),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Asks, with a descriptor, and does not wait for the reply.
    pub fn send_with(&mut self, request: Request, stream: &impl AsFd) {
        self.seq += 1;
        let message = ToAgent::Request { seq: self.seq, request };
        let bytes = frame::encode(&message).unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
        let descriptors = [stream.as_fd()];
        assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
        let sent = rustix::net::sendmsg(&self.agent, &[IoSlice::new(&bytes)], &mut ancillary, rustix::net::SendFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// How long it says that it was stopped.
    pub fn resume(&mut self) -> Duration {
        match self.ask(Request::Resume) {
            Reply::Resumed { stopped_us } => Duration::from_micros(stopped_us),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Reads output until this line was printed.
    pub fn await_line(&mut self, line: &str) {
        self.await_output(line, |printed| printed.lines().any(|printed| printed == line));
    }

    /// Waits for the line, or, but for the first time, for a little more.
    pub fn comes_to(&mut self, time: usize, line: &str) {
        if time == 0 {
            self.await_line(line);
        } else {
            self.two_lines_more();
        }
    }

    /// Reads output until two more lines are there than now.
    pub fn two_lines_more(&mut self) {
        let seen = self.drain_output().lines().count();
        self.await_output("two lines more", |printed| printed.lines().count() >= seen + 2);
    }

    fn await_output(&mut self, what: &str, there: impl Fn(&str) -> bool) {
        let began = Instant::now();
        self.output.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while !there(&String::from_utf8_lossy(&self.printed)) {
            assert!(began.elapsed() < limit(), "{what:?} never came: {}", String::from_utf8_lossy(&self.printed));
            let mut bytes = [0; 4096];
            match self.output.read(&mut bytes) {
                Ok(0) => panic!("ended before {what:?}: {}", String::from_utf8_lossy(&self.printed)),
                Ok(count) => self.printed.extend(&bytes[..count]),
                // Nothing for a while.
                Err(_) => {}
            }
        }
    }

    /// Reads output until so many more lines were printed than were read.
    pub fn await_more(&mut self, lines: usize) {
        let whole_lines = |printed: &str| printed.matches('\n').count();
        let wanted = whole_lines(&String::from_utf8_lossy(&self.printed)) + lines;
        self.await_output("more lines", |printed| whole_lines(printed) >= wanted);
    }

    /// Reads some output, or nothing for a while.
    pub fn read_some(&mut self) {
        self.output.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut bytes = [0; 4096];
        if let Ok(count) = self.output.read(&mut bytes) {
            assert!(count != 0, "ended: {}", String::from_utf8_lossy(&self.printed));
            self.printed.extend(&bytes[..count]);
        }
    }

    pub fn type_in(&mut self, text: &str) {
        self.stdin.as_ref().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Closes the connection to the agent.
    pub fn hang_up(&mut self) {
        self.agent.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Kills it, as a node's death would.
    pub fn kill(mut self) -> Vec<u8> {
        self.child.kill().unwrap();
        let _ = self.child.wait();
        self.drain_output();
        std::mem::take(&mut self.printed)
    }

    /// Lets a program that ends when there is a file `end` run a little further, and come to its end: it lives as long as the test
    /// needs it, however slow that is, and no longer.
    pub fn end(&mut self) -> String {
        self.two_lines_more();
        std::fs::write(self.directory.join("end"), "").unwrap();
        self.finish()
    }

    /// Waits for its end; it must have found everything in order.
    pub fn finish(&mut self) -> String {
        self.output.set_read_timeout(Some(limit())).unwrap();
        let began = Instant::now();
        let mut bytes = [0; 65536];
        loop {
            match self.output.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.printed.extend(&bytes[..count]),
                Err(error) => panic!("no end after {:?} ({error}): {}", began.elapsed(), String::from_utf8_lossy(&self.printed)),
            }
        }
        let status = self.child.wait().unwrap();
        let text = String::from_utf8_lossy(&self.printed).into_owned();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{text}");
        assert!(text.lines().any(|line| line == "OK"), "{text}");
        text
    }

    /// Restores from an image; the process stands parked.
    pub fn restore(source: Source, mode: Mode, directory: &Path) -> Result<Self, Refusal> {
        let header = match &source {
            Source::File(path) => header_of(path)?,
            Source::Chain(files) => header_of(&files[0])?,
            Source::Stream(_, pid) => mend_image::Header { pid: *pid, ..Default::default() },
        };
        let images: Vec<OwnedFd> = match source {
            Source::File(path) => vec![std::fs::File::open(path).unwrap().into()],
            Source::Chain(files) => files.iter().map(|file| std::fs::File::open(file).unwrap().into()).collect(),
            Source::Stream(stream, _) => vec![stream],
        };
        let image_fds: Vec<i32> = images.iter().map(AsRawFd::as_raw_fd).collect();
        let (control, control_theirs) = UnixStream::pair().unwrap();
        let (agent, agent_theirs) = UnixStream::pair().unwrap();
        let (output, theirs) = UnixStream::pair().unwrap();
        let (stdin, stdin_theirs) = UnixStream::pair().unwrap();
        let arguments = Arguments {
            images: mend_image::launch::ImageFds::collect(image_fds.iter().copied()).unwrap(),
            control_fd: control_theirs.as_raw_fd(),
            agent_fd: agent_theirs.as_raw_fd(),
            attach: [Some(stdin_theirs.as_raw_fd()), Some(theirs.as_raw_fd()), Some(theirs.as_raw_fd()), None],
            mode,
            put_back: None,
            in_place: None,
        };
        let mut command = supervise(true, header.pid);
        command.arg(restorer(header.zone)).args(arguments.words());
        let given = [control_theirs.as_raw_fd(), agent_theirs.as_raw_fd(), theirs.as_raw_fd(), stdin_theirs.as_raw_fd()];
        inherit(&mut command, image_fds.into_iter().chain(given).collect());
        let child = command.spawn().unwrap();
        drop(command);
        drop((images, control_theirs, agent_theirs, theirs, stdin_theirs));
        let mut rank = Self::around(child, agent, directory.to_path_buf(), output, stdin);
        rank.await_ready(control)?;
        match read_message(&mut rank.agent) {
            Ok(FromAgent::Restored { rank: 0, .. }) => {}
            Ok(FromAgent::RestoreFailed { error, .. }) => return Err(Refusal(error)),
            other => panic!("unexpected {other:?}: {:?} {}", rank.child.try_wait(), rank.drain_output()),
        }
        rank.say(&welcome());
        assert!(matches!(rank.hear(), FromAgent::FabricUp(_)));
        Ok(rank)
    }

    fn await_ready(&mut self, mut control: UnixStream) -> Result<(), Refusal> {
        control.set_read_timeout(Some(limit())).unwrap();
        loop {
            let mut head = [0; STATUS_HEAD];
            if let Err(error) = control.read_exact(&mut head) {
                panic!("the restorer is gone ({error}): {:?}", self.child.wait());
            }
            let mut payload = vec![0; Status::payload_length(&head).unwrap()];
            control.read_exact(&mut payload).unwrap();
            match Status::decode(&head, &payload).unwrap() {
                Status::Unread { role, bytes } => {
                    if role == Role::Stdin {
                        self.stdin.as_ref().unwrap().write_all(bytes).unwrap();
                    }
                    self.unread.push((role, bytes.to_vec()));
                }
                Status::Ready { us, placed, bytes } => {
                    self.restorer_read = bytes;
                    self.restorer_us = us;
                    self.restorer_placed = placed;
                    break;
                }
                Status::Failed { failure, errno, text } => {
                    return Err(Refusal(format!("{failure:?} {errno}: {}", String::from_utf8_lossy(text))));
                }
            }
        }
        control.write_all(&[GO]).unwrap();
        Ok(())
    }

    /// Restores from a file.
    pub fn restart(path: &Path, directory: &Path) -> Self {
        Self::restore(Source::File(path), Mode::Restart, directory).unwrap_or_else(|refusal| panic!("restore refused: {refusal:?}"))
    }
}
