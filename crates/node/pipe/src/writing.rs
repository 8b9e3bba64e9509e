//! The mount where streams are written.
//!
//! ```text
//! create ─► Open ──► Opened ─► the tool has its file
//! write ──► memory ─► Chunk (a thread sends, streams in turn) ──► Taken
//! close ──► waits for Taken; the last one ─► End
//! ```
//! A connection that is lost breaks all streams. The next file that is made opens another connection.

use crate::failure::Failure;
use crate::link::{self, Hook, Link, Listening, Speaking};
use crate::mounting::{FIRST_STREAM, Looks, REMEMBERED, Served, as_stream, errno, held, name, number, patience, serve};
use crate::process;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use mend_messages::job::Secret;
use mend_settings::{PIPE_CHUNK, PIPE_MEMORY};
use mend_streams::{Answer, Outgoing, ToReader, ToWriter, Trouble};
use mend_wire::HandshakeError;
use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Who waits, and the thread that does.
#[derive(Debug)]
enum Waiter {
    Made(ReplyCreate),
    Written(ReplyWrite, u32),
    Synced(ReplyEmpty, u32),
}

impl Waiter {
    fn thread(&self) -> u32 {
        match self {
            Self::Made(_) => 0,
            Self::Written(_, thread) | Self::Synced(_, thread) => *thread,
        }
    }
}

/// Which connection there is, counted.
#[derive(Debug)]
enum Connected {
    Not,
    Trying,
    Yes(u64, Hook),
    /// There is to be none ([`discard`]).
    Nowhere,
}

#[derive(Debug)]
struct State {
    streams: Outgoing<Waiter>,
    connected: Connected,
    connections: u64,
    /// A message has been taken from the streams and is on its way into the connection.
    sending: bool,
}

impl State {
    fn is_current(&self, connection: u64) -> bool {
        matches!(&self.connected, Connected::Yes(current, _) if *current == connection)
    }
}

struct Writing {
    state: Mutex<State>,
    /// There is something to be sent, or a connection has ended.
    wake: Condvar,
    place: String,
    address: SocketAddr,
    secret: Secret,
    patience: Duration,
    looks: Looks,
}

/// The file system of the kernel's requests.
struct Files(Arc<Writing>);

/// Connects to the reading mount at a place, and serves a directory in which streams are written.
pub fn run(place: &str, directory: &Path) -> Result<(), Failure> {
    let address = crate::resolved(crate::split(place)?)?;
    let patience = patience()?;
    let path = mend_settings::secret_file().map_err(|error| Failure::usage(mend_report::with_causes(&error), "see `mend settings`"))?;
    let secret = mend_wire::secret::load(&path).map_err(|error| Failure::new(mend_report::with_causes(&error), error.hint()))?;
    let (link, chunk) = dial(address, &secret, patience).map_err(|error| Failure::unreachable(place, &error))?;
    let state = State { streams: Outgoing::new(FIRST_STREAM), connected: Connected::Trying, connections: 0, sending: false };
    let looks = Looks::new(0o200, chunk);
    let writing =
        Arc::new(Writing { state: Mutex::new(state), wake: Condvar::new(), place: place.to_owned(), address, secret, patience, looks });
    writing.begin(link, chunk).map_err(|error| Failure::new(format!("no thread can be started: {error}"), ""))?;
    serve(Files(writing.clone()), &writing, chunk, directory, "ready")
}

/// Serves a directory in which streams are written, and lets go of all that is written: so it is measured what comes through the kernel and this process without a network.
pub fn discard(directory: &Path) -> Result<(), Failure> {
    let (chunk, memory) = (number(&PIPE_CHUNK)? << 10, number(&PIPE_MEMORY)? << 20);
    let mut streams = Outgoing::new(FIRST_STREAM);
    streams.connected(chunk as u32);
    let state = State { streams, connected: Connected::Nowhere, connections: 0, sending: false };
    let writing = Arc::new(Writing {
        state: Mutex::new(state),
        wake: Condvar::new(),
        place: "nowhere".to_owned(),
        address: SocketAddr::from(([0; 4], 0)),
        secret: Secret(Default::default()),
        patience: patience()?,
        looks: Looks::new(0o200, chunk as u32),
    });
    let own = writing.clone();
    // What a stream gets that is alone.
    let credits = (memory / chunk / 4).max(1) as u32;
    std::thread::spawn(move || own.take_all(credits));
    serve(Files(writing.clone()), &writing, chunk as u32, directory, "ready")
}

fn dial(address: SocketAddr, secret: &Secret, patience: Duration) -> Result<(Link, u32), HandshakeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HandshakeError::Broken)?;
    runtime.block_on(link::open(address, secret, patience))
}

impl Writing {
    /// Uses a connection from here on.
    fn begin(self: &Arc<Self>, (listening, speaking, hook): Link, chunk: u32) -> io::Result<()> {
        let connection = {
            let mut state = held(&self.state);
            state.connections += 1;
            state.streams.connected(chunk);
            state.connected = Connected::Yes(state.connections, hook);
            state.connections
        };
        for (what, run) in [
            (
                "send",
                Box::new({
                    let own = self.clone();
                    move || own.send_all(connection, speaking)
                }) as Box<dyn FnOnce() -> io::Result<()> + Send>,
            ),
            (
                "hear",
                Box::new({
                    let own = self.clone();
                    move || own.hear_all(connection, listening)
                }),
            ),
        ] {
            let own = self.clone();
            std::thread::Builder::new().name(what.to_owned()).spawn(move || {
                if let Err(error) = run() {
                    own.ended(connection, &error);
                }
            })?;
        }
        Ok(())
    }

    /// Sends what there is, until the connection ends.
    fn send_all(&self, connection: u64, mut speaking: Speaking) -> io::Result<()> {
        let beat = speaking.beat;
        loop {
            let until = Instant::now() + beat;
            let mut state = held(&self.state);
            state.sending = false;
            let (message, bytes) = loop {
                if !state.is_current(connection) {
                    return Ok(());
                }
                if let Some(next) = state.streams.next_message() {
                    break next;
                }
                let now = Instant::now();
                if now >= until {
                    break (ToReader::Alive, Vec::new());
                }
                state = self.wake.wait_timeout(state, until - now).map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
            };
            state.sending = true;
            drop(state);
            speaking.say(&message, &bytes)?;
        }
    }

    /// Answers as a reader does that takes everything at once.
    fn take_all(&self, credits: u32) {
        loop {
            let mut state = held(&self.state);
            let (message, bytes) = loop {
                if let Some(next) = state.streams.next_message() {
                    break next;
                }
                state = self.wake.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            };
            drop(state);
            drop(bytes);
            let said = match message {
                ToReader::Open { stream, .. } => vec![ToWriter::Opened { stream }, ToWriter::Credits { stream, more: credits }],
                ToReader::Chunk { stream, offset, length, .. } => {
                    vec![ToWriter::Taken { stream, through: offset + u64::from(length) }, ToWriter::Credits { stream, more: 1 }]
                }
                ToReader::End { .. } | ToReader::Alive => Vec::new(),
            };
            for word in said {
                // The machine has just said what this answers.
                let answers = held(&self.state).streams.heard(word).unwrap_or_default();
                self.answer(answers);
            }
        }
    }

    fn hear_all(&self, connection: u64, mut listening: Listening) -> io::Result<()> {
        loop {
            let message: ToWriter = listening.next()?;
            let answers = {
                let mut state = held(&self.state);
                if !state.is_current(connection) {
                    return Ok(());
                }
                state.streams.heard(message).map_err(io::Error::other)?
            };
            self.wake.notify_all();
            self.answer(answers);
        }
    }

    /// A connection has ended, and with it all streams.
    fn ended(&self, connection: u64, error: &io::Error) {
        let answers = {
            let mut state = held(&self.state);
            if !state.is_current(connection) {
                return;
            }
            if let Connected::Yes(_, hook) = std::mem::replace(&mut state.connected, Connected::Not) {
                hook.end();
            }
            if state.streams.list().next().is_some() {
                mend_report::tell!(
                    "mend pipe: {}: the connection is lost, and its streams are broken: {}",
                    self.place,
                    mend_report::with_causes(error)
                );
            }
            state.streams.lost()
        };
        self.wake.notify_all();
        self.answer(answers);
    }

    /// Has a connection made, if there is none.
    fn connect(self: &Arc<Self>) {
        {
            let mut state = held(&self.state);
            if !matches!(state.connected, Connected::Not) {
                return;
            }
            state.connected = Connected::Trying;
        }
        let own = self.clone();
        std::thread::spawn(move || {
            let begun = dial(own.address, &own.secret, own.patience)
                .map_err(|error| mend_report::with_causes(&error))
                .and_then(|(link, chunk)| own.begin(link, chunk).map_err(|error| error.to_string()));
            if let Err(why) = begun {
                mend_report::tell!("mend pipe: {}: {why}", own.place);
                let answers = {
                    let mut state = held(&own.state);
                    state.connected = Connected::Not;
                    state.streams.lost()
                };
                own.answer(answers);
            }
        });
    }

    fn answer(&self, answers: impl IntoIterator<Item = Answer<Waiter>>) {
        for answer in answers {
            match answer {
                Answer::Made(Waiter::Made(reply), id) => {
                    reply.created(&REMEMBERED, &self.looks.attributes(INodeNo(id)), Generation(0), FileHandle(id), as_stream());
                }
                Answer::Done(Waiter::Written(reply, _), length) => reply.written(length),
                Answer::Made(Waiter::Synced(reply, _), _) | Answer::Done(Waiter::Synced(reply, _), _) => reply.ok(),
                Answer::Failed(Waiter::Made(reply), Trouble::Broken) => reply.error(Errno::EHOSTUNREACH),
                Answer::Failed(Waiter::Made(reply), trouble) => reply.error(errno(trouble)),
                Answer::Failed(Waiter::Written(reply, _), trouble) => reply.error(errno(trouble)),
                Answer::Failed(Waiter::Synced(reply, _), trouble) => reply.error(errno(trouble)),
                // No such answer is given to who makes or writes.
                Answer::Made(Waiter::Written(reply, _), _) => reply.error(Errno::EIO),
                Answer::Done(Waiter::Made(reply), _) => reply.error(Errno::EIO),
            }
        }
    }

    /// Puts something to the streams, answers at once if there is an answer, and has sent what there is to send.
    fn put(&self, ask: impl FnOnce(&mut Outgoing<Waiter>) -> Option<Answer<Waiter>>) {
        let answer = ask(&mut held(&self.state).streams);
        self.wake.notify_all();
        self.answer(answer);
    }
}

impl Served for Writing {
    fn look_after_waiting(&self) {
        let threads: Vec<u32> = held(&self.state).streams.waiting().map(Waiter::thread).collect();
        let stopped: Vec<u32> = threads.into_iter().filter(|thread| process::is_interrupted(*thread)).collect();
        if !stopped.is_empty() {
            let answers = held(&self.state).streams.interrupt(|waiter| stopped.contains(&waiter.thread()));
            self.answer(answers);
        }
    }

    fn leave(&self) {
        let until = Instant::now() + self.patience;
        let wait_while = |goes_on: &dyn Fn(&State) -> bool| {
            while goes_on(&held(&self.state)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let is_current = |state: &State| matches!(state.connected, Connected::Yes(..));
        wait_while(&|state| is_current(state) && (state.sending || state.streams.has_unfinished()));
        if let Connected::Yes(_, hook) = &held(&self.state).connected {
            hook.end_speaking();
        }
        // The other side reads all, and ends the connection: only then nothing is lost that is under way.
        wait_while(&is_current);
    }
}

impl Filesystem for Files {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.0.looks.agree(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, text: &OsStr, reply: ReplyEntry) {
        let number = name(text).map(|name| held(&self.0.state).streams.named(&name));
        self.0.looks.found(number, reply);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.0.looks.show(number, || held(&self.0.state).streams.is_there(number.0), reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Times and permissions mean nothing here, and tools that set them need not fail for it.
        if size.is_some() { reply.error(Errno::EINVAL) } else { reply.attr(&REMEMBERED, &self.0.looks.attributes(number)) }
    }

    fn create(&self, _request: &Request, _parent: INodeNo, text: &OsStr, _mode: u32, _umask: u32, flags: i32, reply: ReplyCreate) {
        let name = match name(text) {
            Ok(name) if OpenFlags(flags).acc_mode() == OpenAccMode::O_WRONLY => name,
            Ok(_) => return reply.error(Errno::EACCES),
            Err(errno) => return reply.error(errno),
        };
        self.0.put(|streams| streams.make(name, Waiter::Made(reply)));
        self.0.connect();
    }

    fn open(&self, _request: &Request, _number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // Whoever made it is its only writer.
        reply.error(if flags.acc_mode() == OpenAccMode::O_WRONLY { Errno::EBUSY } else { Errno::EACCES });
    }

    fn write(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Where in the file is not asked: the kernel knows no place in a stream.
        self.0.put(|streams| streams.write(handle.0, data, Waiter::Written(reply, request.pid())));
    }

    fn flush(&self, request: &Request, _number: INodeNo, handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        let killed = process::is_killed(request.pid());
        self.0.put(|streams| streams.flush(handle.0, killed, Waiter::Synced(reply, request.pid())));
    }

    fn fsync(&self, request: &Request, _number: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.0.put(|streams| streams.flush(handle.0, false, Waiter::Synced(reply, request.pid())));
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        held(&self.0.state).streams.release(handle.0);
        self.0.wake.notify_all();
        reply.ok();
    }

    fn readdir(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        let streams = held(&self.0.state).streams.list().map(|(name, id)| (name.to_vec(), id)).collect();
        Looks::list(streams, offset, reply);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        let streams = held(&self.0.state).streams.list().count();
        self.0.looks.room(streams, reply);
    }

    fn mknod(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, _rdev: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn symlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn link(&self, _request: &Request, _number: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
