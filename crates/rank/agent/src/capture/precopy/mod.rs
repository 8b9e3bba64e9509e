//! Copying the rank's memory to another node while the program runs: rounds of pages in the form of [`mend_image::rounds`], sent by the
//! agent's thread, a window at a time, between all else that it does.
//!
//! ```text
//! Sending: look ─ ripen ─ send what was noticed, … ─ all sent ─► Awaiting the receiver's answer ─► Resting ─► Sending, the next round
//!     any of them ── finish ─► at the border of a record, everything answered: the image may follow
//! ```
//! A window's pages are copied by the kernel (they may vanish at any moment), and what is sent is that copy. Nothing is sent of shared
//! memory, of pools of huge pages, nor of what cannot be observed: the image has all of those.
//!
//! What protection notices is sent [`RIPENING`] later. A system call that writes to memory (`process_vm_writev`, `read` with `O_DIRECT`,
//! `/proc/PID/mem`) takes hold of pages first and writes to them then, past all protection: one that had hold of a page when that was
//! protected has written to it when the copy is made.
//!
//! Invariants: between two steps each page that was noticed (see [`crate::track`]) is sent, or waits here to be, or was released.
//! Faults assumed: the receiver stalls or dies: the copy ends, the program does not notice.

mod window;

use crate::capture::compression::{Compressor, PART, Taken};
use crate::capture::quiesced_process::HeldAllocator;
use crate::capture::write_error::{STALL_LIMIT, WriteError};
use crate::memory::maps::{self, Advice, Area, NODE_MEMORY};
use crate::memory::pages::PAGE;
use crate::park::monotonic;
use crate::park::park;
use crate::track::{LiveScan, Noticed, Prepared, Tracker, devices_write};
use mend_image::fixed::Fixed;
use mend_image::record::{Mapping, mapping};
use mend_image::rounds::{RoundEnd, RoundKind, Rounds, TAKEN};
use mend_image::{Header, kept, ranges};
use mend_kernel::pagemap::{self, Region};
use mend_messages::agent::{Compression, ImageId, Round};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fs::File;
use std::time::{Duration, Instant};
use window::{Buffers, Link, Out, Runs, read};

/// How long threads may take to stop for the list of a round; those that have stopped wait for the others so long.
const PARK_LIMIT: Duration = Duration::from_millis(50);
/// Bytes of a window: a huge page, so that none is split by being protected in part.
const WINDOW: u64 = 2 << 20;
/// The same while it is compressed: a step holds up what else the agent does.
const COMPRESSED_WINDOW: u64 = 4 * PART as u64;
/// Regions that a window can have.
const REGIONS: usize = (WINDOW / PAGE) as usize;
/// From when a page is protected to when it is copied, at least.
const RIPENING: Duration = Duration::from_millis(100);
/// Regions that may wait for that: what is found further is looked at when they are sent.
const NOTICED: usize = 1 << 16;
/// Time that one step looks for changes.
const LOOK: Duration = Duration::from_millis(1);
/// Between two words to the daemon within a round.
const TELL_INTERVAL: Duration = Duration::from_millis(200);
/// A round that found little is not followed by another at once.
const REST: Duration = Duration::from_millis(5);
/// What is little, bytes.
const LITTLE_BYTES: u64 = 256 << 10;
/// A receiver that takes or says nothing for so long is dead. It has what lies in the socket's buffers to take, whatever the link is.
const SILENCE: Duration = Duration::from_secs(120);
/// A pause in which the receiver hears nothing is at most so long.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// What the agent's loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next step, at once.
    Step,
    /// The next step when the socket takes more.
    Writable,
    /// The next step when the receiver has answered.
    Readable,
    /// The next step after this time.
    Rest(Duration),
}

enum State {
    Sending,
    Awaiting,
    Resting(Instant),
}

/// One mapping that pages are sent of.
#[derive(Clone, Copy, Debug)]
struct Source {
    range: (u64, u64),
    /// Not a file's.
    anonymous: bool,
}

/// A copy under way.
pub(crate) struct Precopy {
    /// Names the rounds.
    id: ImageId,
    socket: OwnedFd,
    /// The receiver's answers come back on it.
    answers: bool,
    compressor: Box<Compressor>,
    /// What the socket took, and since when it is full.
    taken: Taken,
    full_since: Option<u64>,
    pagemap: File,
    memory: File,
    method: pagemap::Method,
    advice: Advice,
    live: LiveScan,
    rounds: Rounds,
    buffers: Buffers,
    /// What of the buffer is to be sent still.
    waiting: (usize, usize),
    state: State,
    sources: Vec<Source>,
    /// The mapping under way, and where in it to go on. `None`: it is yet to be entered.
    source: usize,
    at: Option<u64>,
    /// What is mapped there ends before this; what of the range lies behind it is another mapping.
    limit: u64,
    /// What was noticed by protection, and waits to be sent; the first that does; and when it was noticed.
    noticed: Vec<(u64, u64)>,
    sent: usize,
    looked: Instant,
    began: Instant,
    told: Instant,
    spoke: Instant,
    /// When the receiver took or said something last.
    moved: Instant,
    round: Round,
    /// Of the round, by hashes.
    hashed: u64,
    /// The threads are stopped for the list of a round. Not if they once did not stop at once.
    parks: bool,
}

impl Precopy {
    /// Begins: sends the header, and lists what there is.
    pub fn begin(
        (socket, answers, compression): (OwnedFd, bool, Compression),
        tracker: &mut Tracker,
        mut header: Header,
        advice: Advice,
        scratch: (u64, u64),
    ) -> Result<Self, String> {
        let mut id = [0; 16];
        match rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()) {
            Ok(16) => {}
            _ => return Err("the kernel gives no random numbers".into()),
        }
        (header.id, header.rounds) = (id, 1);
        let raw = header.to_bytes();
        let open = |path: &str| File::open(path).map_err(|error| format!("{path}: {error}"));
        let (pagemap, memory) = (open("/proc/self/pagemap")?, open("/proc/self/mem")?);
        let buffers = Buffers::new().map_err(|errno| format!("no memory: {errno}"))?;
        // The receiver takes pages at the speed of its page faults: see the outlet.
        let _ = rustix::net::sockopt::set_tcp_congestion(&socket, "cubic");
        let now = Instant::now();
        let mut precopy = Self {
            id: ImageId(id),
            method: pagemap::probe(pagemap.as_raw_fd()),
            socket,
            answers,
            compressor: Box::new(Compressor::new(compression, true)),
            taken: Taken::default(),
            full_since: None,
            pagemap,
            memory,
            advice,
            live: tracker.begin_rounds(devices_write)?,
            rounds: Rounds::new(&raw),
            buffers,
            waiting: (0, 0),
            state: State::Sending,
            sources: Vec::new(),
            source: 0,
            at: None,
            limit: 0,
            noticed: Vec::new(),
            sent: 0,
            looked: now,
            began: now,
            told: now,
            spoke: now,
            moved: now,
            round: Round::default(),
            hashed: 0,
            parks: true,
        };
        precopy.buffers.split().1[..raw.len()].copy_from_slice(&raw);
        precopy.waiting = (0, raw.len());
        precopy.send_all().map_err(|error| error.to_string())?;
        precopy.list(&tracker.memory().chain([scratch]).collect::<Vec<_>>()).map_err(|error| error.to_string())?;
        Ok(precopy)
    }

    /// Its socket, to be polled.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Descriptors that are not the program's.
    pub fn descriptors(&self) -> [i32; 4] {
        [self.socket.as_raw_fd(), self.pagemap.as_raw_fd(), self.memory.as_raw_fd(), self.live.descriptor()]
    }

    /// Memory that is not the program's.
    pub fn memory(&self) -> (u64, u64) {
        self.buffers.range()
    }

    /// What the loop waits for.
    pub fn next(&self) -> Next {
        match self.state {
            _ if self.waiting.0 < self.waiting.1 => Next::Writable,
            State::Sending if !self.looks() && self.sent < self.noticed.len() => match RIPENING.saturating_sub(self.looked.elapsed()) {
                Duration::ZERO => Next::Step,
                time => Next::Rest(time),
            },
            State::Sending => Next::Step,
            State::Awaiting if self.answers => Next::Readable,
            State::Awaiting => Next::Step,
            State::Resting(until) => Next::Rest(until.saturating_duration_since(Instant::now()).min(ALIVE_INTERVAL)),
        }
    }

    /// Goes on a little. Returns what the daemon is to be told.
    pub fn step(&mut self, excluded: &[(u64, u64)]) -> Result<Option<Round>, WriteError> {
        if self.waiting.0 < self.waiting.1 {
            self.send_some()?;
            if self.moved.elapsed() >= SILENCE {
                return Err(WriteError::Stalled);
            }
        } else {
            match self.state {
                State::Sending if self.looks() => self.look()?,
                State::Sending if self.sent < self.noticed.len() => {
                    if self.looked.elapsed() >= RIPENING {
                        self.send_noticed()?;
                    }
                }
                State::Sending => self.end_round()?,
                State::Awaiting => {
                    if self.answered(RecvFlags::DONTWAIT)? {
                        return Ok(Some(self.completed()));
                    }
                    if self.moved.elapsed() >= SILENCE {
                        return Err(WriteError::Stalled);
                    }
                }
                State::Resting(until) => {
                    if Instant::now() >= until {
                        self.list(excluded)?;
                    } else if self.spoke.elapsed() >= ALIVE_INTERVAL {
                        self.put(|out, rounds| out.record(rounds, RoundKind::Alive, 0, &[]))?;
                    }
                }
            }
        }
        if self.told.elapsed() < TELL_INTERVAL {
            return Ok(None);
        }
        self.told = Instant::now();
        Ok(Some(self.now(false)))
    }

    /// Everything that was noticed is sent, and the receiver has it: the image follows on the socket. It builds on what this names.
    pub fn finish(mut self, tracker: &mut Tracker) -> Result<(OwnedFd, Prepared), WriteError> {
        // The image has what was noticed and is not sent.
        self.noticed.drain(..).skip(self.sent).for_each(|range| self.live.withdraw(range, Noticed::ByProtection));
        self.sent = 0;
        self.send_all()?;
        if matches!(self.state, State::Awaiting) && !self.answered(RecvFlags::empty())? {
            return Err(WriteError::Stalled);
        }
        self.put(|out, rounds| out.record(rounds, RoundKind::Rest, 0, &[]))?;
        self.send_all()?;
        let prepared = tracker.prepare_rest(&mut self.live, self.id);
        Ok((self.socket, prepared))
    }

    fn now(&self, done: bool) -> Round {
        let left = match done {
            true => self.left(),
            // What the round has not come to; later ones send no more than that, mostly.
            false if self.round.number == 0 => {
                let ahead = self.sources.iter().skip(self.source).map(|source| source.range.1 - source.range.0).sum::<u64>();
                Some(ahead.min(crate::capture::inspect::resident_bytes().saturating_sub(self.round.bytes)))
            }
            false => None,
        };
        Round { done, us: self.began.elapsed().as_micros() as u64, left, ..self.round }
    }

    fn left(&self) -> Option<u64> {
        let anonymous = self.sources.iter().filter(|source| source.anonymous).map(|source| source.range);
        self.live.left(self.pagemap.as_raw_fd(), anonymous).map(|left| left + if self.round.number == 0 { 0 } else { self.hashed })
    }

    fn completed(&mut self) -> Round {
        self.live.end_round();
        self.told = Instant::now();
        let round = self.now(true);
        let little = round.left.unwrap_or(round.bytes) <= LITTLE_BYTES;
        self.state = State::Resting(Instant::now() + if little { REST } else { Duration::ZERO });
        self.round = Round { number: round.number + 1, bytes: 0, ..self.round };
        self.began = Instant::now();
        round
    }

    /// What is mapped, taken under observation. The threads stand still for that, for less than a millisecond and about two per GiB that is
    /// observed for the first time: so the list is of one moment, and no mapping is taken in part. Where they do not stop at once, they
    /// run on, and each mapping is taken when its turn comes.
    fn areas(&mut self) -> Result<Vec<Area>, WriteError> {
        let read = || maps::read().map_err(|error| WriteError::Pagemap(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
        if !self.parks {
            return read();
        }
        let allocator = HeldAllocator::hold();
        let parked = match park(PARK_LIMIT) {
            Ok(parked) => parked,
            Err(_) => {
                drop(allocator);
                self.parks = false;
                return read();
            }
        };
        let areas = read()?;
        let anonymous = areas.iter().filter(|area| sends(area) && area.is_anonymous()).map(|area| (area.start, area.end));
        self.live.observe_at_rest(self.pagemap.as_raw_fd(), anonymous);
        drop(parked);
        drop(allocator);
        Ok(areas)
    }

    /// Begins a round: what is mapped now.
    fn list(&mut self, excluded: &[(u64, u64)]) -> Result<(), WriteError> {
        let areas = self.areas()?;
        let mut without: Vec<_> = excluded.iter().copied().chain([self.buffers.range()]).collect();
        without.sort_unstable();
        let mut payload = Vec::new();
        self.sources.clear();
        // The program maps memory while the kernel lists it, in several reads: what has merged meanwhile with memory that was listed
        // already is listed from its start.
        let mut reached = 0;
        for area in areas.iter().filter(|area| sends(area)) {
            let begin = area.start.max(reached);
            reached = reached.max(area.end);
            if begin >= area.end {
                continue;
            }
            let advised = area.advised(&self.advice);
            let flags = advised.flags | if area.name == "[stack]" { mapping::GROWS_DOWN } else { 0 };
            for (start, end) in ranges::without(&[(begin, area.end)], &without) {
                let (offset, protection, object) = (0, area.protection, mapping::NO_OBJECT);
                let record = Mapping { start, end, offset, protection, flags, object, page_shift: 0 };
                let at = payload.len();
                payload.resize(at + Mapping::SIZE, 0);
                record.encode(&mut payload[at..]).map_err(|_| WriteError::Format)?;
                self.sources.push(Source { range: (start, end), anonymous: area.is_anonymous() });
            }
        }
        (self.source, self.at, self.limit, self.hashed) = (0, None, 0, 0);
        self.looked = Instant::now();
        (self.round.bytes, self.began, self.state) = (0, Instant::now(), State::Sending);
        // As many as there are mappings: they may be more than the buffer takes.
        for part in payload_parts(&payload) {
            let first = core::ptr::eq(part.as_ptr(), payload.as_ptr());
            self.put(|out, rounds| out.record(rounds, RoundKind::Areas, u64::from(!first) * PAGE, part))?;
            self.send_all()?;
        }
        Ok(())
    }

    /// Whether there is more to look at before what was noticed is sent.
    fn looks(&self) -> bool {
        self.source < self.sources.len() && self.sent == 0 && self.noticed.len() < NOTICED
    }

    /// Looks at windows for a while, until something has to be sent at once.
    fn look(&mut self) -> Result<(), WriteError> {
        let began = Instant::now();
        while self.looks() && self.waiting.0 == self.waiting.1 && began.elapsed() < LOOK {
            self.next_window()?;
        }
        Ok(())
    }

    /// Looks at the next window of the mapping under way. What changed of it by hashes is sent.
    fn next_window(&mut self) -> Result<(), WriteError> {
        let Source { range: (start, end), anonymous } = self.sources[self.source];
        let pagemap = self.pagemap.as_raw_fd();
        let at = match self.at {
            Some(at) => at,
            None => {
                let from = start.max(self.limit);
                match self.live.enter(pagemap, (from, end), anonymous) {
                    Some(limit) => {
                        self.limit = limit;
                        from
                    }
                    None => {
                        (self.source, self.limit) = (self.source + 1, 0);
                        return Ok(());
                    }
                }
            }
        };
        let limit = self.limit;
        let mut regions = [Region::default(); REGIONS];
        let found = if at < limit { self.live.window(pagemap, self.method, (at, limit), (anonymous, WINDOW), &mut regions) } else { None };
        let Some((count, next, noticed)) = found else {
            self.at = None;
            if limit >= end {
                (self.source, self.limit) = (self.source + 1, 0);
            }
            return Ok(());
        };
        self.at = Some(next);
        if noticed == Noticed::ByHash {
            return self.send_pages(&regions[..count], noticed);
        }
        for region in &regions[..count] {
            match self.noticed.last_mut().filter(|last| last.1 == region.start && last.0 >= start) {
                Some(last) => last.1 = region.end,
                None => self.noticed.push((region.start, region.end)),
            }
        }
        self.looked = Instant::now();
        Ok(())
    }

    /// Sends of what was noticed as much as one window has.
    fn send_noticed(&mut self) -> Result<(), WriteError> {
        let (mut regions, mut count) = ([Region::default(); REGIONS], 0);
        let mut left = if self.compressor.compresses() { COMPRESSED_WINDOW } else { WINDOW };
        while let Some(waits) = self.noticed.get_mut(self.sent).filter(|_| count < REGIONS && left > 0) {
            let end = waits.1.min(waits.0 + left);
            (regions[count].start, regions[count].end) = (waits.0, end);
            (count, left) = (count + 1, left - (end - waits.0));
            waits.0 = end;
            if waits.0 == waits.1 {
                self.sent += 1;
            }
        }
        if self.sent == self.noticed.len() {
            self.noticed.clear();
            self.sent = 0;
        }
        self.send_pages(&regions[..count], Noticed::ByProtection)
    }

    /// Sends pages, one window's at most, as they are now.
    fn send_pages(&mut self, regions: &[Region], noticed: Noticed) -> Result<(), WriteError> {
        let (copy, out) = self.buffers.split();
        let mut out = Out { bytes: out, length: 0 };
        let mut link = Link { compressor: &mut self.compressor, socket: self.socket.as_fd(), taken: self.taken };
        let spared = self.rounds.spared();
        let mut zeros: Vec<(u64, u64)> = Vec::new();
        for region in regions {
            let mut at = region.start;
            while at < region.end {
                // If not all of it can be read: page by page.
                let mut length = (region.end - at) as usize;
                if !(at == region.start && read(self.memory.as_fd(), at, &mut copy[..length])) {
                    length = PAGE as usize;
                    if !read(self.memory.as_fd(), at, &mut copy[..length]) {
                        self.live.withdraw((at, at + PAGE), noticed);
                        at += PAGE;
                        continue;
                    }
                }
                let runs = Runs { zeros: &mut zeros, out: &mut out, rounds: &mut self.rounds, link: &mut link };
                runs.put_all(&mut self.live, at, &copy[..length], noticed)?;
                at += length as u64;
            }
        }
        if !zeros.is_empty() {
            let mut payload = [0; REGIONS * kept::RANGE];
            let length = kept::fill(&mut zeros.into_iter(), &mut payload).map_err(|_| WriteError::Format)?;
            out.record(&mut self.rounds, RoundKind::Zeros, 0, &payload[..length])?;
        }
        self.waiting = (0, out.length);
        self.round.spared = self.rounds.spared();
        let bytes = out.length as u64 + self.round.spared - spared;
        (self.round.bytes, self.round.total) = (self.round.bytes + bytes, self.round.total + bytes);
        if noticed == Noticed::ByHash {
            self.hashed += bytes;
        }
        self.send_some()
    }

    fn end_round(&mut self) -> Result<(), WriteError> {
        let mut payload = [0; RoundEnd::SIZE];
        let end = self.rounds.end();
        end.encode(&mut payload).map_err(|_| WriteError::Format)?;
        self.put(|out, rounds| out.record(rounds, RoundKind::Done, 0, &payload))?;
        self.rounds.close(&end).map_err(|_| WriteError::Format)?;
        self.state = State::Awaiting;
        Ok(())
    }

    /// Fills the buffer, which is empty, and sends of it what goes.
    fn put(&mut self, fill: impl FnOnce(&mut Out, &mut Rounds) -> Result<(), WriteError>) -> Result<(), WriteError> {
        let mut out = Out { bytes: self.buffers.split().1, length: 0 };
        fill(&mut out, &mut self.rounds)?;
        self.waiting = (0, out.length);
        self.spoke = Instant::now();
        self.send_some()
    }

    fn send_some(&mut self) -> Result<(), WriteError> {
        while self.waiting.0 < self.waiting.1 {
            let (from, to) = self.waiting;
            let bytes = &self.buffers.split().1[from..to];
            match send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => {
                    self.waiting.0 += count;
                    self.moved = Instant::now();
                    self.taken.bytes += count as u64;
                    self.taken.full_ns += self.full_since.take().map_or(0, |since| monotonic() - since);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.full_since.get_or_insert_with(monotonic);
                    return Ok(());
                }
                Err(error) => return Err(WriteError::Out(error)),
            }
        }
        Ok(())
    }

    /// Sends all that waits.
    fn send_all(&mut self) -> Result<(), WriteError> {
        loop {
            self.send_some()?;
            if self.waiting.0 == self.waiting.1 {
                return Ok(());
            }
            match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&STALL_LIMIT)) {
                Ok(0) => return Err(WriteError::Stalled),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(WriteError::Out(error)),
            }
        }
    }

    /// Whether the receiver has answered that it has the round.
    fn answered(&mut self, flags: RecvFlags) -> Result<bool, WriteError> {
        if !self.answers {
            return Ok(true);
        }
        if !flags.contains(RecvFlags::DONTWAIT) {
            let limit = Timespec { tv_sec: STALL_LIMIT.tv_sec, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit));
        }
        let mut byte = [0];
        match recv(&self.socket, &mut byte[..], RecvFlags::DONTWAIT) {
            Ok((1, _)) if byte[0] == TAKEN => Ok(true),
            Ok((0, _)) => Err(WriteError::Out(Errno::CONNRESET)),
            Ok(_) => Err(WriteError::Format),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(WriteError::Out(error)),
        }
    }
}

/// Pieces of a table that fit the buffer. At least one.
fn payload_parts(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    const MAX_PART_BYTES: usize = (1 << 20) / Mapping::SIZE * Mapping::SIZE;
    let empty = payload.is_empty().then_some(payload);
    empty.into_iter().chain(payload.chunks(MAX_PART_BYTES))
}

/// Whether pages of an area are sent ahead.
fn sends(area: &Area) -> bool {
    let kernels = area.is_vdso() || area.is_vvar() || area.name == "[vsyscall]";
    let anonymous = area.is_anonymous() && !kernels;
    let private_file = !area.shared && area.identity != (0, 0) && !area.deleted && !area.name.starts_with(NODE_MEMORY);
    anonymous || private_file && !area.is_private_pool() && !area.is_anonymous()
}
