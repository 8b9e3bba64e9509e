//! The agent's thread: what it says to its daemon, and what it does when asked.
//!
//! ```text
//! Running ── Suspend ──► Suspended ── Save ──► Parked ── Resume ──► Running
//!    ▲                      │  ▲                  │
//!    └────── Resume ────────┘  └─ failed Save ────┘
//! ```
//! `Pause` parks the rank in any stage; it leaves that only for an image ([`crate::rollback`]).
//! While suspended, the agent drives the fabric for its peers' sake. A restored process begins in Parked. Requests out
//! of order are refused; nothing that fails here stops the program. In every stage a copy of the process may be writing the
//! last image; the agent says when it is done, and ends it when another image is asked for.

mod background;
mod draining;
pub(crate) mod environment;
mod inspection;
pub(crate) mod link;
mod pausing;
mod precopying;
pub(crate) mod progress;
mod saving;
pub(crate) mod table_thread;
mod traffic;
pub(crate) mod wakeup;

use crate::capture::background_writer::{self, BackgroundWriter};
use crate::capture::dirty_copies::DirtyCopyMemory;
use crate::capture::memory_headroom::CopyBackoff;
use crate::capture::precopy::{Next, Precopy};
use crate::capture::quiesced_process::QuiescedProcess;
use crate::capture::scratch::Scratch;
use crate::descriptors::attached::Attached;
use crate::descriptors::kept_files::KeptFiles;
use crate::descriptors::locks::{Due, Patience};
use crate::descriptors::table;
use crate::memory::file_fingerprints::FileFingerprints;
use crate::network::{Frozen, Network};
use crate::park::Parked;
use crate::track::Tracker;
use environment::AgentEnvironment;
use inspection::{INSPECTION_VALIDITY, Inspected};
use link::Link;
use mend_kernel::table::LiftedLimit;
use mend_messages::PROTOCOL;
use mend_messages::agent::{FromAgent, Hello, Reply, Request, ToAgent, Welcome};
use mend_messages::job::JobMap;
use mend_patience::next_look;
use progress::Reports;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};
use table_thread::OnTableThread;
use traffic::TrafficReports;
use wakeup::WakeupSocket;

/// How long what the fabric put off may wait for the program's next call.
const DELAYED_SEND_LIMIT: Duration = Duration::from_millis(1);
/// Longest pause between two looks at messages that wait for receivers that compute.
const SELDOM_LOOK: Duration = Duration::from_millis(20);
/// How long a suspended rank listens to its peers before it listens to the daemon again, for which all of them wait. At first: see [`next_look`].
const SERVICE_TIME: Duration = Duration::from_micros(100);
/// The same the other way round, where peers have hardly anything to say.
const SERVICE_PAUSE: Duration = Duration::from_millis(1);
/// How long, after each [`SERVICE_PAUSE`], a rank that runs listens to its peers while one of them drains its channels.
const KEEP_UP_TIME: Duration = Duration::from_micros(500);
/// How often a copy whose receiver takes nothing is looked after.
const COPY_LOOK: Duration = Duration::from_secs(1);
/// How long a rank that has moved waits for the locks of its former self.
const LOCK_LIMITS: Patience = Patience { here: Duration::from_secs(10), network: Duration::from_secs(10) };

enum Stage {
    Running,
    Suspended,
    /// Dropped in this order: threads go on, then the fabric.
    Parked {
        threads: Box<QuiescedProcess>,
        fabric: Option<Box<dyn Frozen>>,
    },
}

struct Agent {
    network: OnTableThread,
    environment: AgentEnvironment,
    scratch: Scratch,
    attached: Attached,
    tracker: Tracker,
    link: Link,
    /// `None` while a restored process is rebuilt.
    wakeup: Option<WakeupSocket>,
    /// In a restored process until it goes on: the program's numbers may all be in use, and the agent needs some.
    lifted: Option<LiftedLimit>,
    /// The fabric has listened, and the daemon been told where.
    up: bool,
    identity: Option<Welcome>,
    stage: Stage,
    /// When the order came that suspended the rank. `None` in a restored process, too: its clock may be another node's.
    suspended_at: Option<Instant>,
    /// A map that came while the fabric was frozen.
    held_map: Option<JobMap>,
    /// Locks on files that a rank which has moved takes when its former self is gone.
    locks: Due,
    told_use: bool,
    /// When a peer was let go, which drains its channels meanwhile.
    lets_go: Option<Instant>,
    /// Channels broke, and the daemon was not told of all of them.
    loses: bool,
    /// The process that still writes the last image.
    background: Option<Box<BackgroundWriter>>,
    kept_files: KeptFiles,
    /// Ranks of the job on this node, which are copied at the same time.
    ranks_here: u64,
    /// What the last inspection found; a save soon after it need not look for it while the job waits.
    inspected: Option<Inspected>,
    fingerprints: FileFingerprints,
    /// Made ready for a snapshot that is to follow.
    dirty_copy_memory: Option<DirtyCopyMemory>,
    /// About copies of this process.
    copy_backoff: CopyBackoff,
    /// The rank is copied to another node while it runs.
    precopy: Option<Box<Precopy>>,
    /// Since when the fabric has put something off, while a copy keeps the loop awake.
    late: Option<Instant>,
    /// Pause before the next look at messages that wait for their receivers.
    look_pause: Option<Duration>,
    /// How far the program has come.
    reports: Reports,
    /// With whom it exchanges how much.
    traffic: TrafficReports,
}

/// The thread's whole life. Ends when the daemon is gone.
pub(crate) fn run(
    network: &'static dyn Network,
    environment: AgentEnvironment,
    link: Link,
    wakeup: WakeupSocket,
    attached: Attached,
) -> io::Result<()> {
    let scratch = Scratch::new()?;
    let tracker = Tracker::new(&environment.tracking);
    let mut agent = Agent {
        network: OnTableThread(network),
        environment,
        scratch,
        attached,
        tracker,
        link,
        wakeup: Some(wakeup),
        lifted: None,
        up: false,
        identity: None,
        stage: Stage::Running,
        suspended_at: None,
        held_map: None,
        locks: Due::default(),
        told_use: false,
        lets_go: None,
        loses: false,
        background: None,
        kept_files: KeptFiles::default(),
        ranks_here: 1,
        inspected: None,
        fingerprints: FileFingerprints::default(),
        dirty_copy_memory: None,
        copy_backoff: CopyBackoff::default(),
        precopy: None,
        late: None,
        look_pause: None,
        reports: Reports::default(),
        traffic: TrafficReports::default(),
    };
    agent.link.send(&FromAgent::Hello(Hello {
        protocol: PROTOCOL,
        rank: agent.environment.rank,
        pid: rustix::process::getpid().as_raw_nonzero().get() as u32,
        main_process: agent.environment.main_process,
        executable: std::fs::read_link("/proc/self/exe").unwrap_or_default().to_string_lossy().into_owned(),
    }))?;
    let ended = agent.run_loop();
    if !matches!(agent.stage, Stage::Running) {
        // Whoever asked for silence is gone and can take it back no more. This rank may live on elsewhere already, so it must not
        // say another word: it stays as it is until its rank supervisor ends it, which a daemon's death or a discard brings about.
        std::mem::forget(agent);
    }
    ended
}

/// How long to listen to one side before the other, after a wait that began then.
fn pause(least: Duration, since: Option<Instant>) -> Duration {
    next_look(since.map_or(Duration::ZERO, |since| since.elapsed()), least)
}

impl Agent {
    fn run_loop(&mut self) -> io::Result<()> {
        loop {
            self.await_message()?;
            match self.link.receive()? {
                ToAgent::Welcome(welcome) => self.welcome(welcome)?,
                ToAgent::Map(map) => {
                    let node = self.identity.as_ref().map(|identity| identity.node);
                    self.ranks_here = map.entries.iter().filter(|entry| Some(entry.node) == node).count() as u64;
                    match self.stage {
                        Stage::Parked { .. } => self.held_map = Some(map),
                        _ => self.network.set_map(map),
                    }
                }
                ToAgent::Request { seq, request } => self.answer(seq, request)?,
                ToAgent::WatchTraffic => self.traffic.begin(),
            }
        }
    }

    /// Until the daemon says something: serves peers if suspended, tells the daemon of the fabric's first use, catches up on
    /// what the fabric put off, tells of an image that is complete.
    fn await_message(&mut self) -> io::Result<()> {
        if self.link.is_ahead() {
            return Ok(());
        }
        loop {
            // Only the table thread can listen in the program's table; a program that was parked as it began to use the fabric waits for that.
            let table_thread_is_parked = matches!(self.stage, Stage::Parked { .. }) && table::apart();
            if !self.told_use && !table_thread_is_parked && self.identity.is_some() && wakeup::used() {
                self.told_use = true;
                self.link.send(&FromAgent::FabricInUse)?;
                self.listen()?;
            }
            self.tell_losses()?;
            self.tell_progress()?;
            self.tell_traffic()?;
            let (joins, precopies) = (self.joins(), self.precopies());
            let timeout = match self.stage {
                Stage::Suspended if self.network.in_use() => Some(Duration::ZERO),
                Stage::Suspended => Some(pause(SERVICE_PAUSE, self.suspended_at)),
                Stage::Running if self.lets_go.is_some() => Some(pause(SERVICE_PAUSE, self.lets_go)),
                Stage::Running if precopies == Some(Next::Step) => Some(Duration::ZERO),
                Stage::Running if joins => Some(Duration::ZERO),
                Stage::Running if wakeup::delayed() => Some(DELAYED_SEND_LIMIT),
                Stage::Running if self.look_pause.is_some() => self.look_pause,
                Stage::Running if precopies.is_some() => match precopies {
                    Some(Next::Rest(time)) => Some(time),
                    _ => Some(COPY_LOOK),
                },
                _ => (self.loses || self.background.is_some() || self.dirty_copy_memory.is_some() || self.inspected.is_some())
                    .then_some(background_writer::CHECK_INTERVAL)
                    .or((self.progresses() || self.traffic.are_wanted()).then_some(progress::INTERVAL)),
            };
            let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
            let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let link = input(self.link.fd());
            let wakeup = self.wakeup.as_ref().map_or_else(|| link.clone(), |wakeup| input(wakeup.as_fd()));
            let copy = self.background.as_ref().map(|background| input(background.ended()));
            let receiver = self.precopy.as_ref().and_then(|precopy| {
                let flags = match precopies? {
                    Next::Writable => PollFlags::OUT,
                    Next::Readable => PollFlags::IN,
                    Next::Step | Next::Rest(_) => return None,
                };
                Some(PollFd::from_borrowed_fd(precopy.fd(), flags))
            });
            let mut all = [link.clone(), wakeup, link.clone(), link];
            let mut count = 2;
            for other in [copy, receiver].into_iter().flatten() {
                all[count] = other;
                count += 1;
            }
            let descriptors = &mut all[..count];
            match poll(descriptors, timeout.as_ref()) {
                Ok(0) => {
                    match self.stage {
                        // Its program may call nothing for long.
                        Stage::Running if self.lets_go.is_some() => self.network.keep_up(KEEP_UP_TIME),
                        Stage::Running if precopies.is_some() => {}
                        Stage::Running if joins => self.tracker.join_some(),
                        Stage::Running => self.catch_up(),
                        Stage::Suspended if self.network.in_use() => self.network.serve(pause(SERVICE_TIME, self.suspended_at)),
                        Stage::Suspended | Stage::Parked { .. } => {}
                    }
                    self.go_on_copying(precopies)?;
                    self.check_background_writer()?;
                    self.dirty_copy_memory.take_if(|dirty_copy_memory| dirty_copy_memory.is_stale());
                    self.inspected.take_if(|found| found.at.elapsed() > INSPECTION_VALIDITY);
                }
                Ok(_) => {
                    let (link, wakeup) = (!descriptors[0].revents().is_empty(), !descriptors[1].revents().is_empty());
                    self.check_background_writer()?;
                    if let Some(wakeup) = self.wakeup.as_ref().filter(|_| wakeup) {
                        wakeup.drain();
                    }
                    self.go_on_copying(precopies)?;
                    if link {
                        return Ok(());
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next step of a copy, if there is one under way; what the fabric put off meanwhile has its time, too.
    fn go_on_copying(&mut self, precopies: Option<Next>) -> io::Result<()> {
        if precopies.is_none() {
            return Ok(());
        }
        if wakeup::delayed() {
            self.catch_up_if_late(DELAYED_SEND_LIMIT);
        } else if let Some(pause) = self.look_pause {
            self.catch_up_if_late(pause);
        } else {
            self.late = None;
        }
        self.precopy_some()
    }

    /// The program runs, and tells how far it has come or uses the fabric, which counts.
    fn progresses(&self) -> bool {
        matches!(self.stage, Stage::Running) && self.identity.is_some() && (self.told_use || progress::tells())
    }

    fn tell_progress(&mut self) -> io::Result<()> {
        if !self.progresses() {
            return Ok(());
        }
        let network = &self.network;
        match self.reports.due(|| network.counters()) {
            Some(progress) => self.link.send(&FromAgent::Progress(progress)),
            None => Ok(()),
        }
    }

    fn tell_traffic(&mut self) -> io::Result<()> {
        let Some(me) = self.identity.as_ref().map(|identity| identity.rank).filter(|_| matches!(self.stage, Stage::Running)) else {
            return Ok(());
        };
        let network = &self.network;
        match self.traffic.due(me, |sent| network.traffic(sent)) {
            Some(traffic) => self.link.send(&FromAgent::Traffic(traffic)),
            None => Ok(()),
        }
    }

    /// Does what the fabric put off.
    fn catch_up(&mut self) {
        let nudged = wakeup::take_delayed();
        if !nudged && self.look_pause.is_none() {
            return;
        }
        let pause = self.look_pause.filter(|_| !nudged).map_or(DELAYED_SEND_LIMIT, |pause| (2 * pause).min(SELDOM_LOOK));
        self.look_pause = self.network.catch_up().then_some(pause);
    }

    /// Huge pages that the tracking of changes has split are to be joined. Not while a copy has them, too.
    fn joins(&self) -> bool {
        self.background.is_none() && self.precopy.is_none() && self.tracker.has_split()
    }

    fn welcome(&mut self, welcome: Welcome) -> io::Result<()> {
        self.network.introduce(&welcome);
        if matches!(self.stage, Stage::Parked { .. }) {
            progress::forget();
            self.reports = Reports::default();
            self.traffic.begin_anew();
        }
        self.identity = Some(welcome);
        self.told_use = false;
        self.up = false;
        // A program that has not begun to use the fabric gets no descriptors of it; but a restored one is waited for.
        if matches!(self.stage, Stage::Parked { .. }) { self.listen() } else { Ok(()) }
    }

    /// Opens the fabric's listeners, once in each life.
    fn listen(&mut self) -> io::Result<()> {
        let Some(welcome) = self.identity.as_ref().filter(|_| !self.up) else { return Ok(()) };
        self.up = true;
        match self.network.listen(welcome) {
            Ok(address) => self.link.send(&FromAgent::FabricUp(address)),
            // A program without MPI does not need it; one with MPI gets the fabric's own error.
            Err(_) => Ok(()),
        }
    }

    fn answer(&mut self, seq: u64, request: Request) -> io::Result<()> {
        let reply = match request {
            Request::Inspect { ahead, files } => Reply::Inspected(self.inspect(ahead, files)),
            Request::Suspend => self.suspend(),
            // The rank keeps running: only one peer is let go.
            Request::SuspendPeer(rank) => self.let_go(rank),
            Request::Save(order) => match self.save(order)? {
                Some(reply) => reply,
                // Restored: that request was answered in another life.
                None => return Ok(()),
            },
            Request::KeepFiles(order) => match &self.stage {
                Stage::Parked { threads, .. } => Reply::Kept(self.kept_files.keep(&threads.descriptors, &order)),
                _ => refused("files are kept only while the rank stands still"),
            },
            Request::Precopy { answered, compression } => self.begin_precopy(answered, compression),
            Request::EndPrecopy => {
                self.precopy = None;
                Reply::PrecopyEnded
            }
            Request::SyncFiles => self.kept_files.synced(),
            Request::Pause => return self.pause(seq),
            Request::RollBack(_) => refused("only a paused rank can go back to an image"),
            Request::Resume => return self.resume(seq),
        };
        self.link.send(&FromAgent::Reply { seq, reply })
    }

    fn resume(&mut self, seq: u64) -> io::Result<()> {
        self.dirty_copy_memory = None;
        if !matches!(self.stage, Stage::Running) {
            // Its own move came to nothing. One of another rank is nothing to a copy that is under way.
            self.precopy = None;
        }
        self.lets_go = None;
        let locks = std::mem::take(&mut self.locks).take(LOCK_LIMITS);
        let mut quiesced = match std::mem::replace(&mut self.stage, Stage::Running) {
            Stage::Parked { threads, mut fabric } => {
                if self.lifted.is_some() {
                    self.leave(&threads.parked);
                }
                if let (Some(fabric), None) = (&mut fabric, &self.held_map) {
                    fabric.reopen();
                }
                Some(threads)
            }
            _ => None,
        };
        let reply = match locks {
            Ok(()) => Reply::Resumed { stopped_us: self.suspended_at.take().map_or(0, micros_since) },
            Err((file, _)) => Reply::Failed {
                error: format!("the rank goes on without its lock on {file}, which somebody else took while it moved"),
                hint: String::new(),
            },
        };
        // The threads have waited, so the scheduler would rather see them run than the agent: what others of the job wait for comes
        // first.
        let told = self.link.send(&FromAgent::Reply { seq, reply });
        if let Some(threads) = &mut quiesced {
            threads.release();
        }
        if let Some(map) = self.held_map.take() {
            self.network.set_map(map);
        }
        self.network.resume();
        drop(quiesced);
        if let Some(background) = &self.background {
            background.open_gate();
        }
        self.tracker.tidy();
        told
    }

    /// The agent's, in the program's table.
    fn own_descriptors(&self) -> Vec<i32> {
        if table::apart() { Vec::new() } else { self.descriptors() }
    }

    fn descriptors(&self) -> Vec<i32> {
        let copy = self.background.iter().flat_map(|background| background.descriptors());
        let wakeup = self.wakeup.iter().map(WakeupSocket::raw);
        let precopy = self.precopy.iter().flat_map(|precopy| precopy.descriptors());
        [self.link.raw()].into_iter().chain(wakeup).chain(self.tracker.descriptors()).chain(copy).chain(precopy).collect()
    }

    /// In a restored process that is about to go on, whose threads are parked: a table of the agent's own again.
    fn leave(&mut self, parked: &Parked) {
        let own = self.descriptors();
        if table::leave(&own) {
            parked.close(&own);
        }
        self.lifted = None;
    }
}

fn micros_since(at: Instant) -> u64 {
    at.elapsed().as_micros() as u64
}

fn refused(error: &str) -> Reply {
    Reply::Failed { error: error.to_string(), hint: String::new() }
}
