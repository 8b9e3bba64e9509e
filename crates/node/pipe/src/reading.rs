//! The mount where streams are read. Writing mounts connect to it; a thread hears each of them, and one answers.
//!
//! ```text
//! Open ──► a file is there          read ──► bytes, or waits for a Chunk ──► memory is free ─► Credits
//! Chunk ─► memory ─► Taken          close before the end ─► Closed
//! ```

use crate::failure::Failure;
use crate::link::{self, Hook, Link, Listening, Speaking};
use crate::mounting::{FIRST_STREAM, Looks, Served, as_stream, errno, held, name, number, patience, serve};
use crate::process;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, Request, TimeOrNow,
};
use mend_messages::job::Secret;
use mend_settings::{PIPE_CHUNK, PIPE_MEMORY};
use mend_streams::shares::FEWEST_CHUNKS;
use mend_streams::{Effect, Incoming, ToReader, ToWriter};
use mend_wire::{HandshakeError, HandshakeSlot, admit_all};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::net::{TcpListener, TcpStream};

/// Answers that may wait for a writing mount: one that makes so many streams and hears nothing is broken.
const MOST_ANSWERS: usize = 1024;

/// Who waits for bytes, and the thread that does.
#[derive(Debug)]
struct Waiter(ReplyData, u32);

/// What is to be said to a writing mount. What adds up is said once.
#[derive(Debug)]
struct Outbox {
    hook: Hook,
    answers: VecDeque<ToWriter>,
    credits: BTreeMap<u64, u32>,
    taken: BTreeMap<u64, u64>,
}

impl Outbox {
    fn new(hook: Hook) -> Self {
        Self { hook, answers: VecDeque::new(), credits: BTreeMap::new(), taken: BTreeMap::new() }
    }

    fn put(&mut self, message: ToWriter) {
        match message {
            ToWriter::Credits { stream, more } => *self.credits.entry(stream).or_insert(0) += more,
            ToWriter::Taken { stream, through } => {
                self.taken.insert(stream, through);
            }
            closed @ ToWriter::Closed { stream } => {
                // What was taken before counts: whoever waits for that has got through.
                self.answers.extend(self.taken.remove(&stream).map(|through| ToWriter::Taken { stream, through }));
                self.answers.push_back(closed);
            }
            other => self.answers.push_back(other),
        }
        if self.answers.len() > MOST_ANSWERS {
            self.hook.end();
        }
    }

    fn next(&mut self) -> Option<ToWriter> {
        let credits = |(stream, more)| ToWriter::Credits { stream, more };
        let taken = |(stream, through)| ToWriter::Taken { stream, through };
        self.answers.pop_front().or_else(|| self.credits.pop_first().map(credits)).or_else(|| self.taken.pop_first().map(taken))
    }
}

struct State {
    streams: Incoming<Waiter>,
    links: BTreeMap<u64, Outbox>,
    next_link: u64,
}

struct Reading {
    state: Mutex<State>,
    /// There is something to be said, or a connection has ended.
    wake: Condvar,
    secret: Secret,
    patience: Duration,
    looks: Looks,
}

struct Files(Arc<Reading>);

/// Listens for writing mounts, and serves a directory in which their streams are read.
pub fn run(address: SocketAddr, directory: &Path) -> Result<(), Failure> {
    let patience = patience()?;
    let (memory, chunk) = (number(&PIPE_MEMORY)? << 20, (number(&PIPE_CHUNK)? << 10) as u32);
    if memory < u64::from(FEWEST_CHUNKS) * u64::from(chunk) {
        let what = format!("{} MiB of memory hold fewer than {FEWEST_CHUNKS} chunks of {} KiB", memory >> 20, chunk >> 10);
        return Err(Failure::usage(what, format!("raise {}, or lower {}", PIPE_MEMORY.name, PIPE_CHUNK.name)));
    }
    let path = mend_settings::secret_file().map_err(|error| Failure::usage(mend_report::with_causes(&error), "see `mend settings`"))?;
    let secret = mend_wire::secret::load_or_create(&path).map_err(|error| Failure::new(mend_report::with_causes(&error), error.hint()))?;
    let taken = |error: io::Error| {
        let hint =
            format!("is another reading mount there? --listen=ADDRESS:PORT or {} chooses another port", mend_settings::PIPE_PORT.name);
        Failure::new(format!("{address} cannot be listened on: {error}"), hint)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(taken)?;
    let listener = runtime.block_on(listen(address)).map_err(taken)?;
    let bound = listener.local_addr().map_err(taken)?;
    let state = State { streams: Incoming::new(memory, chunk, FIRST_STREAM), links: BTreeMap::new(), next_link: 0 };
    let reading = Arc::new(Reading { state: Mutex::new(state), wake: Condvar::new(), secret, patience, looks: Looks::new(0o400, chunk) });
    let door = reading.clone();
    std::thread::spawn(move || runtime.block_on(admit_all(listener, |stream, peer, slot| admit(door.clone(), stream, peer, slot))));
    serve(Files(reading.clone()), &reading, chunk, directory, &format!("ready {bound}"))
}

/// On all addresses: those of IPv4 alone where there is no IPv6.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && matches!(
                    rustix::io::Errno::from_io_error(&error),
                    Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL)
                ) =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

async fn admit(reading: Arc<Reading>, stream: TcpStream, peer: SocketAddr, slot: HandshakeSlot) -> Result<(), HandshakeError> {
    let (chunk, patience) = (reading.looks.chunk, reading.patience);
    let link = slot.hold(link::accept(stream, &reading.secret, chunk, patience)).await?;
    reading.begin(peer, link).map_err(HandshakeError::Broken)
}

impl Reading {
    /// Hears a writing mount from here on.
    fn begin(self: &Arc<Self>, peer: SocketAddr, (listening, speaking, hook): Link) -> io::Result<()> {
        let link = {
            let mut state = held(&self.state);
            let link = state.next_link;
            state.next_link += 1;
            state.links.insert(link, Outbox::new(hook));
            link
        };
        let own = self.clone();
        std::thread::Builder::new().name(format!("hear {}", peer.ip())).spawn(move || own.hear_all(link, peer, listening))?;
        let own = self.clone();
        std::thread::Builder::new().name(format!("answer {}", peer.ip())).spawn(move || {
            if own.answer_all(link, speaking).is_err()
                && let Some(outbox) = held(&own.state).links.get(&link)
            {
                // Who hears it ends, too, and says so.
                outbox.hook.end();
            }
        })?;
        Ok(())
    }

    fn hear_all(&self, link: u64, peer: SocketAddr, mut listening: Listening) {
        let error = loop {
            match listening.next_with_bytes().and_then(|(message, bytes)| self.heard(link, message, bytes)) {
                Ok(effects) => self.carry_out(effects),
                Err(error) => break error,
            }
        };
        let effects = {
            let mut state = held(&self.state);
            if let Some(outbox) = state.links.remove(&link) {
                outbox.hook.end();
            }
            let unfinished = state.streams.unfinished(link);
            if unfinished > 0 {
                mend_report::tell!(
                    "mend pipe: {peer}: the connection is lost, and {unfinished} stream(s) with it: {}",
                    mend_report::with_causes(&error)
                );
            }
            state.streams.lost(link)
        };
        self.carry_out(effects);
    }

    fn heard(&self, link: u64, message: ToReader, bytes: Vec<u8>) -> io::Result<Vec<Effect<Waiter>>> {
        let streams = &mut held(&self.state).streams;
        let effects = match message {
            ToReader::Open { stream, name } => streams.open(link, stream, name),
            ToReader::Chunk { stream, offset, checksum, .. } => streams.chunk(link, stream, offset, checksum, bytes),
            ToReader::End { stream, length, whole } => streams.end(link, stream, length, whole),
            ToReader::Alive => Ok(Vec::new()),
        };
        effects.map_err(io::Error::other)
    }

    /// Says what there is to say, until the connection ends.
    fn answer_all(&self, link: u64, mut speaking: Speaking) -> io::Result<()> {
        let beat = speaking.beat;
        loop {
            let until = Instant::now() + beat;
            let mut state = held(&self.state);
            let message = loop {
                let Some(outbox) = state.links.get_mut(&link) else { return Ok(()) };
                if let Some(next) = outbox.next() {
                    break next;
                }
                let now = Instant::now();
                if now >= until {
                    break ToWriter::Alive;
                }
                state = self.wake.wait_timeout(state, until - now).map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
            };
            drop(state);
            speaking.say(&message, &[])?;
        }
    }

    fn carry_out(&self, effects: Vec<Effect<Waiter>>) {
        let mut answers = Vec::new();
        {
            let mut state = held(&self.state);
            for effect in effects {
                match effect {
                    Effect::Send(link, message) => {
                        if let Some(outbox) = state.links.get_mut(&link) {
                            outbox.put(message);
                        }
                    }
                    Effect::Answer(waiter, content) => answers.push((waiter, content)),
                }
            }
        }
        self.wake.notify_all();
        for (Waiter(reply, _), content) in answers {
            match content {
                Ok(content) => reply.data(content.bytes()),
                Err(trouble) => reply.error(errno(trouble)),
            }
        }
    }
}

impl Served for Reading {
    fn look_after_waiting(&self) {
        let threads: Vec<u32> = held(&self.state).streams.readers().map(|waiter| waiter.1).collect();
        let stopped: Vec<u32> = threads.into_iter().filter(|thread| process::is_interrupted(*thread)).collect();
        if !stopped.is_empty() {
            let effects = held(&self.state).streams.interrupt(|waiter| stopped.contains(&waiter.1));
            self.carry_out(effects);
        }
    }

    fn leave(&self) {
        // Writing mounts learn it by the end of their connections, as of a process that is killed.
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
        _number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
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
        reply.error(Errno::EPERM);
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EACCES);
        }
        let opened = held(&self.0.state).streams.open_for_reading(number.0);
        match opened {
            Ok(()) => reply.opened(FileHandle(number.0), as_stream() | FopenFlags::FOPEN_NOFLUSH),
            Err(trouble) => reply.error(errno(trouble)),
        }
    }

    fn read(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Where in the file is not asked: the kernel knows no place in a stream.
        let effects = held(&self.0.state).streams.read(handle.0, size, Waiter(reply, request.pid()));
        self.0.carry_out(effects);
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
        let effects = held(&self.0.state).streams.close(handle.0);
        self.0.carry_out(effects);
        reply.ok();
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, text: &OsStr, reply: ReplyEmpty) {
        let discarded = name(text).and_then(|name| held(&self.0.state).streams.discard(&name).map_err(errno));
        match discarded {
            Ok(effects) => {
                self.0.carry_out(effects);
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, _request: &Request, _number: INodeNo, _handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        let streams = held(&self.0.state).streams.list().map(|(name, id)| (name.to_vec(), id)).collect();
        Looks::list(streams, offset, reply);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        let streams = held(&self.0.state).streams.list().count();
        self.0.looks.room(streams, reply);
    }

    fn create(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, _flags: i32, reply: ReplyCreate) {
        reply.error(Errno::EROFS);
    }

    fn mknod(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, _rdev: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn mkdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn symlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn link(&self, _request: &Request, _number: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
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
