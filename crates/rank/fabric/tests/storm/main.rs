//! Messages by the million between real processes, whose channels are drained, switched between shared memory, TCP and a core
//! provider of libfabric, and broken off in the middle of a drain, at random moments.
//!
//! ```text
//! parent: one of   all suspend, resume                                          every MEAN_MS or so
//!                  one moves: it and its channels suspend, it loses every descriptor and mapping, rises on another
//!                  node with a new address and generation, resume
//!                  the same given up half way: too little time, resume
//! ranks:  [`rank`], two threads each
//! ```
//! A seed decides what is sent and what is disturbed; when what comes is left to the machine. Printed; repeated with
//! `MEND_STORM_SEED`. `MEND_STORM_MESSAGES` is how many each thread sends to each rank, `MEND_STORM_MEAN_MS` the mean time
//! between disturbances. Once over the default channels, then over mixtures, with little room for messages nobody asked for.

mod endpoint;
mod rank;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

/// Threads per rank that send and receive.
pub const THREADS: usize = 2;
/// Time a drain has that must succeed. A rank may be kept from running by all others.
const PATIENCE: u64 = 60_000;

/// What makes a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many processes take part.
    pub ranks: u32,
    /// What decides everything but the order in which things happen.
    pub seed: u64,
    /// How many each thread sends to each rank.
    pub messages: u64,
    mean: u64,
    /// What each rank's channels are to be made of, in turn (`MEND_CHANNELS`); none: the default.
    channels: &'static [&'static str],
}

/// Every pair of these has another choice; some pairs have no ring though they share a node.
const MIXED: &[&str] = &["shm,ofi", "ofi", "ofi,shm", "shm,tcp"];

/// A sequence of its own for each seed.
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// The seed's sequence, from its beginning.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// The next number, less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

struct Ranks {
    settings: Settings,
    children: Vec<Child>,
    said: Vec<BufReader<UnixStream>>,
    told: Vec<UnixStream>,
    /// Node, generation, address of each.
    places: Vec<(u32, u64, String)>,
    version: u64,
}

impl Ranks {
    fn start(settings: Settings) -> Self {
        let mut ranks = Self { settings, children: Vec::new(), said: Vec::new(), told: Vec::new(), places: Vec::new(), version: 0 };
        for rank in 0..ranks.settings.ranks {
            let (ours, theirs) = UnixStream::pair().expect("a socket pair");
            let theirs = OwnedFd::from(theirs);
            let fd = theirs.as_raw_fd();
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.env("MEND_RANK", rank.to_string()).env("MEND_STORM_FD", fd.to_string());
            command.env("MEND_STORM_SEED", ranks.settings.seed.to_string()).env("MEND_STORM_MESSAGES", ranks.settings.messages.to_string());
            command.env("MEND_STORM_RANKS", ranks.settings.ranks.to_string());
            if !ranks.settings.channels.is_empty() {
                let choice = ranks.settings.channels[rank as usize % ranks.settings.channels.len()];
                command.env("MEND_CHANNELS", choice).env("MEND_UNEXPECTED_KIB", "64");
            }
            // SAFETY: only fcntl between fork and exec.
            unsafe {
                command.pre_exec(move || if libc::fcntl(fd, libc::F_SETFD, 0) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) });
            }
            ranks.children.push(command.spawn().expect("a rank"));
            ranks.said.push(BufReader::new(ours.try_clone().expect("a socket")));
            ranks.told.push(ours);
        }
        for rank in 0..ranks.settings.ranks {
            let address = ranks.hear(rank).strip_prefix("up ").expect("an address").to_owned();
            ranks.places.push((0, 1, address));
        }
        ranks.publish();
        ranks
    }

    fn tell(&mut self, rank: u32, line: &str) {
        writeln!(self.told[rank as usize], "{line}").unwrap_or_else(|error| panic!("rank {rank} is gone: {error}"));
    }

    fn hear(&mut self, rank: u32) -> String {
        let mut line = String::new();
        let got = self.said[rank as usize].read_line(&mut line).unwrap_or(0);
        assert!(got > 0, "rank {rank} is gone");
        line.trim_end().to_owned()
    }

    fn publish(&mut self) {
        self.version += 1;
        let places: Vec<String> = self.places.iter().map(|(node, generation, address)| format!("{node} {generation} {address}")).collect();
        let line = format!("map {}\t{}", self.version, places.join("\t"));
        (0..self.settings.ranks).for_each(|rank| self.tell(rank, &line));
    }

    /// Asks all ranks at once; true if all are drained.
    fn drain(&mut self, request: impl Fn(u32) -> String, must: bool) -> bool {
        let all = 0..self.settings.ranks;
        all.clone().for_each(|rank| self.tell(rank, &request(rank)));
        let answers: Vec<String> = all.map(|rank| self.hear(rank)).collect();
        assert!(answers.iter().all(|answer| answer == "ok" || answer == "late"), "{answers:?}");
        let drained = answers.iter().all(|answer| answer == "ok");
        assert!(drained || !must, "a drain did not end: {answers:?}");
        drained
    }

    fn resume(&mut self) {
        self.drain(|_| "resume".into(), true);
    }

    fn disturb(&mut self, draw: &mut Draw) -> usize {
        let kind = draw.below(4) as usize;
        let hasty = kind == 3;
        let time = if hasty { draw.below(3) } else { PATIENCE };
        if kind == 0 {
            self.drain(|_| format!("suspend {time}"), true);
            self.resume();
            return kind;
        }
        let moving = draw.below(self.settings.ranks.into()) as u32;
        let request = |rank| if rank == moving { format!("suspend {time}") } else { format!("peer {moving} {time}") };
        let drained = self.drain(request, !hasty);
        if drained {
            let node = draw.below(self.settings.ranks.into()) as u32;
            if kind == 1 {
                self.tell(moving, &format!("rise {node}"));
                self.places[moving as usize].2 = self.hear(moving).strip_prefix("up ").expect("an address").to_owned();
            }
            let place = &mut self.places[moving as usize];
            (place.0, place.1) = (node, place.1 + 1);
            self.publish();
        }
        self.resume();
        kind
    }

    fn over(&mut self) -> bool {
        let all = 0..self.settings.ranks;
        all.clone().for_each(|rank| self.tell(rank, "over?"));
        let done = format!("done {THREADS}");
        all.map(|rank| self.hear(rank)).filter(|answer| *answer == done).count() == self.settings.ranks as usize
    }

    fn stop(mut self) {
        (0..self.settings.ranks).for_each(|rank| self.tell(rank, "stop"));
        for (rank, child) in self.children.iter_mut().enumerate() {
            let status = child.wait().expect("a child");
            assert!(status.success(), "rank {rank} ended with {status}");
        }
        self.children.clear();
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn storm(settings: Settings) {
    let over = if settings.channels.is_empty() { "the default channels".to_owned() } else { settings.channels.join(" and ") };
    println!(
        "storm: {} ranks, {} messages each way and thread, over {over}, MEND_STORM_SEED={}",
        settings.ranks, settings.messages, settings.seed
    );
    let mut draw = Draw::new(settings.seed);
    let mut ranks = Ranks::start(settings.clone());
    let mut counts = [0; 4];
    while !ranks.over() {
        std::thread::sleep(Duration::from_micros(draw.below(2000 * settings.mean)));
        counts[ranks.disturb(&mut draw)] += 1;
    }
    ranks.stop();
    let total = settings.messages * u64::from(settings.ranks).pow(2) * THREADS as u64;
    println!(
        "storm: {total} messages arrived once, whole and in order, through {} suspends, {} moves to a new process's channels, {} changes of \
         node, {} hasty tries",
        counts[0], counts[1], counts[2], counts[3]
    );
    assert!(counts.iter().all(|count| *count > 0), "too short to be disturbed in every way: {counts:?}");
}

/// One rank is killed in the middle of everything. The others go on with each other, and say who is lost when they are to
/// be saved.
fn killed(settings: Settings) {
    let mut draw = Draw::new(settings.seed);
    let count = settings.messages * THREADS as u64;
    let mut ranks = Ranks::start(settings);
    // Half of them on another node: it is missed over both channels.
    let victim = ranks.settings.ranks - 1;
    assert!(ranks.drain(|rank| if rank == 0 { format!("suspend {PATIENCE}") } else { format!("peer 0 {PATIENCE}") }, true));
    (ranks.places[0].0, ranks.places[0].1) = (1, 2);
    ranks.publish();
    ranks.resume();
    let got = |ranks: &mut Ranks, rank, from: u32| {
        ranks.tell(rank, &format!("got? {from}"));
        ranks.hear(rank).strip_prefix("got ").and_then(|text| text.parse::<u64>().ok()).expect("a number")
    };
    // Only who has something under way to it can have lost something.
    for from in 0..victim {
        let before = got(&mut ranks, victim, from);
        assert!(before < count, "all of rank {from}'s messages were there before the kill");
        while got(&mut ranks, victim, from) == before {
            std::thread::sleep(Duration::from_micros(draw.below(200)));
        }
    }
    ranks.children[victim as usize].kill().expect("SIGKILL");
    for rank in 0..victim {
        for from in 0..victim {
            while got(&mut ranks, rank, from) < count {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    for rank in 0..victim {
        ranks.tell(rank, &format!("suspend {PATIENCE}"));
        let answer = ranks.hear(rank);
        assert!(answer.starts_with("lost") && answer.contains(&format!("[{victim}]")), "rank {rank} says {answer:?}");
        ranks.tell(rank, "resume");
        assert_eq!(ranks.hear(rank), "ok");
    }
    println!("storm: rank {victim} was killed; the others got all of each other's messages");
}

fn main() {
    let ranks = number("MEND_STORM_RANKS", 4) as u32;
    let messages = number("MEND_STORM_MESSAGES", 60_000);
    let settings = Settings { ranks, seed: number("MEND_STORM_SEED", 1), messages, mean: number("MEND_STORM_MEAN_MS", 20), channels: &[] };
    if let Ok(fd) = std::env::var("MEND_STORM_FD") {
        let rank = number("MEND_RANK", 0) as u32;
        // A thread that fails must not leave the others, and the parent, waiting.
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            eprintln!("storm: rank {rank}: {what}");
            tell(what);
            std::process::abort();
        }));
        // SAFETY: the descriptor that the parent left for this process alone.
        let socket = unsafe { OwnedFd::from_raw_fd(fd.parse().expect("a descriptor")) };
        rank::run(&settings, rank, socket.into());
        return;
    }
    // `cargo test WORD` names tests; this program is one.
    if std::env::args().skip(1).any(|word| !word.starts_with('-') && !"storm".contains(&word)) {
        return;
    }
    storm(settings.clone());
    storm(Settings { messages: settings.messages / 4, channels: MIXED, ..settings.clone() });
    killed(Settings { messages: settings.messages.min(5000), ..settings });
    // The form that the runner of all tests counts.
    println!("test result: ok. 3 passed; 0 failed;");
}
