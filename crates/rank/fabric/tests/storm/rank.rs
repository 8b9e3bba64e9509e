//! One rank of the storm: an agent thread that does what it is told, and threads that talk to all ranks, themselves
//! included, and check everything that comes.
//!
//! What the n-th message from one thread to another is (length, content, tag) follows from the seed alone, so the receiver
//! knows it without being told. Receives are posted in bursts, late, so that floods of messages come unexpected.

use crate::endpoint::{Done, Endpoint};
use crate::{Draw, Settings, THREADS};
use mend_fabric::{DrainError, Identity, fabric};
use mend_messages::job::{FabricAddress, JobMap, MapEntry, Secret};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Messages a sender may be ahead of its receiver's count.
const WINDOW: u64 = 512;
/// Receives posted at a time per source.
const BURST_PACKETS: u64 = 32;
/// Longest message, bytes: several packets of every channel.
const MAX_MESSAGE_BYTES: usize = 200_000;
/// Bytes of each rank's and thread's place in everybody's exposed memory.
const PLACE: usize = 48 * 1024;

/// Kinds of tags, above which is the receiving thread.
const DIRECTED: u64 = 1;
const WILD: u64 = 2;
const CREDIT: u64 = 3;

fn tag(thread: usize, kind: u64) -> u64 {
    (thread as u64) << 8 | kind
}

/// The n-th message from one rank's thread to another rank: its kind and its words.
fn message(seed: u64, thread: usize, from: u32, to: u32, number: u64) -> (u64, Vec<u64>) {
    let mut draw = Draw::new(seed ^ (thread as u64) << 60 ^ u64::from(from) << 50 ^ u64::from(to) << 40 ^ number.wrapping_mul(0x9e37_79b9));
    let bytes = match draw.below(400) {
        0 => 20_000 + draw.below(MAX_MESSAGE_BYTES as u64 - 20_000),
        1..20 => draw.below(20_000),
        _ => draw.below(200),
    };
    let mut words = vec![u64::from(from) << 32 | number, draw.below(u64::MAX)];
    let key = words[1];
    words.extend((0..bytes / 8).map(|at| key.wrapping_mul(2 * at + 1)));
    // Short enough to come whole on every channel: a wild receive that met the announcement of a rank that was killed would
    // hold up the others behind it, as MPI has it.
    let kind = if bytes < 8000 && draw.below(5) == 0 { WILD } else { DIRECTED };
    (kind, words)
}

fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: the words' bytes; every bit pattern is a byte.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 8 * words.len()) }
}

fn bytes_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: as above, and every bit pattern is a word.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 8 * words.len()) }
}

/// A context: which thread, what, and a number.
fn context(thread: usize, what: usize, number: usize) -> usize {
    thread << 56 | what << 48 | number
}

/// What is between this thread and one rank.
#[derive(Default)]
struct Line {
    sent: u64,
    /// Messages that may have been sent by the receiver's latest count.
    allowed: u64,
    /// Long messages whose memory is still lent: by number.
    lent: VecDeque<(u64, Vec<u64>)>,
    /// Numbers of the messages of each kind still to come, in order, beginning with those posted.
    next: [u64; 2],
    /// Directed receives posted: number, memory, whether it is here.
    posted: VecDeque<(u64, Vec<u64>)>,
    got: u64,
    counted: u64,
    credit: Box<[u64; 1]>,
}

/// Sender and number of a message that is here.
type Known = Option<(u32, u64)>;

/// What the parent may ask for.
struct Seen {
    /// Threads that have sent and got everything.
    finished: AtomicU32,
    /// Messages got from each rank.
    got: Vec<AtomicU64>,
}

struct Worker<'a> {
    seen: &'a Seen,
    me: u32,
    thread: usize,
    settings: &'a Settings,
    endpoint: &'a Endpoint,
    lines: Vec<Line>,
    /// Wild receives in the order they were posted; what each was: sender and number.
    wild: VecDeque<(Vec<u64>, Known)>,
    wild_first: usize,
    wild_left: u64,
    last_wild: Vec<Option<u64>>,
    draw: Draw,
    /// The remote access under way: target, what was written, what was read back.
    access: Option<(u32, bool, Vec<u64>)>,
    /// It is to be tried again after some progress.
    refused: bool,
    accesses: u64,
    /// The parent knows that this thread has sent and got everything; now it only serves.
    told: bool,
}

impl<'a> Worker<'a> {
    fn new(me: u32, thread: usize, settings: &'a Settings, endpoint: &'a Endpoint, seen: &'a Seen) -> Self {
        let mut worker = Self {
            seen,
            me,
            thread,
            settings,
            endpoint,
            lines: (0..settings.ranks).map(|_| Line { allowed: WINDOW, ..Line::default() }).collect(),
            wild: VecDeque::new(),
            wild_first: 0,
            wild_left: 0,
            last_wild: vec![None; settings.ranks as usize],
            draw: Draw::new(settings.seed ^ u64::from(me) << 32 ^ (thread as u64) << 48),
            access: None,
            refused: false,
            accesses: 0,
            told: false,
        };
        for from in 0..settings.ranks {
            let wild = (0..settings.messages).filter(|number| message(settings.seed, thread, from, me, *number).0 == WILD).count();
            worker.wild_left += wild as u64;
            worker.post_credit(from);
        }
        worker
    }

    fn post_credit(&mut self, from: u32) {
        let memory = bytes_mut(&mut self.lines[from as usize].credit[..]);
        self.endpoint.receive(memory, Some(from), tag(self.thread, CREDIT), 0, context(self.thread, 3, from as usize));
    }

    fn finished(&self) -> bool {
        let count = self.settings.messages;
        let wild = self.wild_left == 0 && self.wild.is_empty();
        wild && self.access.is_none() && self.lines.iter().all(|line| line.sent == count && line.got == count && line.lent.is_empty())
    }

    /// Sends some messages to one rank.
    fn send(&mut self, to: u32) {
        for _ in 0..self.draw.below(100) {
            let line = &mut self.lines[to as usize];
            if line.sent == self.settings.messages.min(line.allowed) {
                return;
            }
            let (kind, words) = message(self.settings.seed, self.thread, self.me, to, line.sent);
            let inject = words.len() < 1000 && line.sent.is_multiple_of(2);
            let (tag, number) = (tag(self.thread, kind), line.sent);
            let own = context(self.thread, 1, (to as usize) << 32 | number as usize);
            line.lent.push_back((number, words));
            let Some((_, words)) = line.lent.back() else { return };
            if !self.endpoint.send(bytes(words), to, tag, own, inject) {
                line.lent.pop_back();
                return;
            }
            line.sent += 1;
            if inject {
                line.lent.pop_back();
            }
        }
    }

    /// Posts receives: a burst from one rank, or from any.
    fn post(&mut self, from: u32) {
        let (seed, thread, me, count) = (self.settings.seed, self.thread, self.me, self.settings.messages);
        let line = &mut self.lines[from as usize];
        while line.posted.len() < BURST_PACKETS as usize && line.next[0] < count {
            let number = line.next[0];
            line.next[0] += 1;
            let (kind, words) = message(seed, thread, from, me, number);
            if kind == DIRECTED {
                line.posted.push_back((number, vec![0; words.len() + 1]));
                let Some((_, memory)) = line.posted.back_mut() else { return };
                let own = context(thread, 2, (from as usize) << 32 | number as usize);
                self.endpoint.receive(bytes_mut(memory), Some(from), tag(thread, DIRECTED), 0, own);
            }
        }
        while self.wild.len() < BURST_PACKETS as usize && self.wild_left > 0 {
            self.wild_left -= 1;
            let number = self.wild_first + self.wild.len();
            self.wild.push_back((vec![0; 2100], None));
            let Some((memory, _)) = self.wild.back_mut() else { return };
            self.endpoint.receive(bytes_mut(memory), None, tag(thread, WILD), 0, context(thread, 4, number));
        }
    }

    /// A message is here and is what it must be.
    fn check(&self, from: u32, number: u64, memory: &[u64], length: usize) {
        let (_, words) = message(self.settings.seed, self.thread, from, self.me, number);
        let same = length == 8 * words.len() && memory[..words.len()] == words;
        assert!(same, "message {number} of rank {from} to rank {} is not what was sent ({length} bytes of {})", self.me, 8 * words.len());
    }

    fn count(&mut self, from: u32) {
        self.lines[from as usize].got += 1;
        self.seen.got[from as usize].fetch_add(1, Ordering::AcqRel);
    }

    fn done(&mut self, done: Done) {
        let (what, number) = (done.context >> 48 & 0xff, done.context & 0xffff_ffff_ffff);
        let (peer, which) = ((number >> 32) as u32, number as u64 & 0xffff_ffff);
        match what {
            1 => {
                let lent = &mut self.lines[peer as usize].lent;
                let at = lent.iter().position(|(number, _)| *number == which).expect("a completion for each send");
                lent.remove(at);
            }
            2 => {
                assert!(done.receive);
                let posted = &mut self.lines[peer as usize].posted;
                let at = posted.iter().position(|(number, _)| *number == which).expect("a completion for each receive");
                let (_, memory) = posted.remove(at).expect("just found");
                self.check(peer, which, &memory, done.length);
                self.count(peer);
            }
            3 => {
                let from = number as u32;
                let line = &mut self.lines[from as usize];
                assert!(line.credit[0] + WINDOW > line.allowed, "a count came twice or late");
                line.allowed = line.credit[0] + WINDOW;
                self.post_credit(from);
            }
            4 => {
                let at = number - self.wild_first;
                let first = self.wild[at].0[0];
                let (from, which) = ((first >> 32) as u32, first & 0xffff_ffff);
                assert!(from < self.settings.ranks, "a wild message of nobody");
                self.check(from, which, &self.wild[at].0, done.length);
                self.wild[at].1 = Some((from, which));
                self.count(from);
                // Receives match in the order they were posted: so must each sender's messages.
                while let Some((_, Some((from, which)))) = self.wild.front() {
                    let last = &mut self.last_wild[*from as usize];
                    assert!(last.is_none_or(|last| last < *which), "wild messages of rank {from} overtook each other");
                    *last = Some(*which);
                    self.wild.pop_front();
                    self.wild_first += 1;
                }
            }
            _ => self.accessed(),
        }
    }

    /// Tells a sender how far we are, as long as it waits for that.
    fn give_credit(&mut self, to: u32) {
        let line = &mut self.lines[to as usize];
        let due = line.got >= line.counted + WINDOW / 4 && line.counted + WINDOW < self.settings.messages;
        if due && self.endpoint.send(bytes(&[line.got]), to, tag(self.thread, CREDIT), 0, true) {
            line.counted = line.got;
        }
    }

    /// Writes into another rank's memory, at this rank's and thread's place.
    fn begin_access(&mut self) {
        let target = self.draw.below(u64::from(self.settings.ranks)) as u32;
        let length = 1 + self.draw.below(PLACE as u64 / 8);
        let key = self.draw.below(u64::MAX);
        let words = (0..length).map(|at| key ^ at).collect();
        self.access = Some((target, false, words));
        self.go_on_access();
    }

    fn place(&self) -> u64 {
        ((self.me as usize * THREADS + self.thread) * PLACE) as u64
    }

    /// Writes, or reads back.
    fn go_on_access(&mut self) {
        let place = self.place();
        let Some((target, back, words)) = &mut self.access else { return };
        let (own, half) = (context(self.thread, 5, usize::from(*back)), words.len() / 2);
        let words = if *back { &mut words[half..] } else { &mut words[..] };
        self.refused = !self.endpoint.access(!*back, bytes_mut(words), *target, place, 1, own);
    }

    /// A write is followed by a read of the same place, which must give what was written.
    fn accessed(&mut self) {
        let Some((target, back, mut words)) = self.access.take() else { return };
        let length = words.len();
        if back {
            let (written, read) = words.split_at(length / 2);
            assert!(written == read, "rank {target} does not hold what rank {} wrote", self.me);
            self.accesses += 1;
            return;
        }
        words.resize(2 * length, 0);
        self.access = Some((target, true, words));
        self.go_on_access();
    }

    fn turn(&mut self, mail: &[Mutex<Vec<Done>>]) {
        for done in self.endpoint.poll() {
            let thread = done.context >> 56;
            if thread == self.thread {
                self.done(done);
            } else {
                mail[thread].lock().expect("a lock").push(done);
            }
        }
        let mine = std::mem::take(&mut *mail[self.thread].lock().expect("a lock"));
        mine.into_iter().for_each(|done| self.done(done));
        if self.refused {
            self.go_on_access();
        }
        let peer = self.draw.below(u64::from(self.settings.ranks)) as u32;
        match self.draw.below(64) {
            0..20 => self.send(peer),
            20..30 => self.post(peer),
            30..36 => self.give_credit(peer),
            36..40 if self.access.is_none() && !self.told => self.begin_access(),
            // The program computes: its agent alone serves the peers.
            40 if self.draw.below(200) == 0 => std::thread::sleep(Duration::from_millis(self.draw.below(8))),
            _ => {}
        }
    }
}

fn identity(settings: &Settings, rank: u32, node: u32) -> Identity {
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Identity { job: [5; 16], secret: Secret([6; 32]), rank, size: settings.ranks, node, ip, encrypted: false }
}

fn parse_map(line: &str) -> Option<JobMap> {
    let mut parts = line.split('\t');
    let version = parts.next()?.parse().ok()?;
    let entry = |(rank, text): (usize, &str)| {
        let mut words = text.split(' ');
        let (node, generation) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let address = FabricAddress { tcp: words.next()?.parse().ok()?, unix: words.next()?.into() };
        Some(MapEntry { rank: rank as u32, node, generation, open: true, address: Some(address), ended: false })
    };
    Some(JobMap { version, entries: parts.enumerate().filter_map(entry).collect() })
}

/// What this process is on another node after a move: nothing that the channels shared is left.
fn die_and_rise() {
    let (mut descriptors, mut mappings) = (Vec::new(), Vec::new());
    let mut frozen = fabric().freeze();
    frozen.close_provider();
    frozen.own_descriptors(&mut |fd| descriptors.push(fd));
    frozen.excluded_memory(&mut |address, length| mappings.push((address, length)));
    frozen.rebuild();
    for fd in descriptors {
        // SAFETY: the fabric has forgotten it.
        unsafe { libc::close(fd) };
    }
    for (address, length) in mappings {
        // SAFETY: the fabric has forgotten it.
        unsafe { libc::munmap(address as *mut _, length) };
    }
}

fn up(settings: &Settings, rank: u32, node: u32) -> String {
    let address = fabric().listen(identity(settings, rank, node)).expect("the fabric listens");
    format!("up {} {}", address.tcp, address.unix)
}

/// Does what the storm's parent says, until it says no more.
fn obey(settings: &Settings, rank: u32, socket: UnixStream, seen: &Seen, over: &AtomicBool) {
    let mut answers = socket.try_clone().expect("a socket");
    let mut say = move |text: String| writeln!(answers, "{text}").expect("the parent listens");
    say(up(settings, rank, 0));
    let drained = |result: Result<bool, DrainError>| match result {
        Ok(_) => "ok".to_owned(),
        Err(DrainError::Late { .. }) => "late".to_owned(),
        Err(other) => format!("lost {other}"),
    };
    for line in BufReader::new(socket).lines().map_while(Result::ok) {
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let number = || rest.split(' ').next().and_then(|word| word.parse::<u32>().ok()).unwrap_or(0);
        let limit = || {
            let time = rest.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
            Duration::from_millis(time)
        };
        match verb {
            "map" => fabric().set_map(parse_map(rest).expect("a map")),
            "suspend" => say(drained(fabric().suspend(limit(), Duration::MAX))),
            "peer" => say(drained(fabric().suspend_peer(number(), limit(), Duration::MAX))),
            "resume" => {
                fabric().resume();
                say("ok".into());
            }
            "rise" => {
                die_and_rise();
                say(up(settings, rank, number()));
            }
            "over?" => say(format!("done {}", seen.finished.load(Ordering::Acquire))),
            "got?" => say(format!("got {}", seen.got[number() as usize].load(Ordering::Acquire))),
            _ => break,
        }
    }
    over.store(true, Ordering::Release);
}

/// An MPI library has loaded libfabric long before; here it is the one that `make setup` installs.
fn load_libfabric() {
    let venv = std::env::var("MEND_VENV").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.venv").into());
    let path = CString::new(format!("{venv}/lib/mpich/libfabric.so.1")).expect("a path");
    assert!(mend_fabric_sys::Library::load(&path).is_some(), "no libfabric at {path:?}; run `make setup`");
}

/// A rank's whole life.
pub fn run(settings: &Settings, rank: u32, socket: UnixStream) {
    let got = (0..settings.ranks).map(|_| AtomicU64::new(0)).collect();
    let (seen, over) = (Seen { finished: AtomicU32::new(0), got }, AtomicBool::new(false));
    load_libfabric();
    std::thread::scope(|scope| {
        scope.spawn(|| obey(settings, rank, socket, &seen, &over));
        let endpoint = Endpoint::open(settings.ranks);
        let mut exposed = vec![0u64; settings.ranks as usize * THREADS * PLACE / 8];
        endpoint.expose(bytes_mut(&mut exposed), 1);
        let mail: Vec<Mutex<Vec<Done>>> = (0..THREADS).map(|_| Mutex::default()).collect();
        std::thread::scope(|workers| {
            for thread in 0..THREADS {
                let (endpoint, mail, seen, over) = (&endpoint, &mail, &seen, &over);
                workers.spawn(move || {
                    let mut worker = Worker::new(rank, thread, settings, endpoint, seen);
                    while !over.load(Ordering::Acquire) {
                        worker.turn(mail);
                        if !worker.told && worker.finished() {
                            worker.told = true;
                            assert!(worker.accesses > 0, "no remote memory was touched");
                            seen.finished.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                    assert!(worker.told, "stopped before its end");
                });
            }
        });
        endpoint.close();
    });
}
