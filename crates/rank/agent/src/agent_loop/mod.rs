//! The agent's thread: what it says to its daemon, and what it does when asked.
//!
//! ```text
//! Running ── Suspend ──► Suspended ── Save ──► Parked ── Resume ──► Running
//!    ▲                      │  ▲                  │
//!    └────── Resume ────────┘  └─ failed Save ────┘
//! ```
//! While suspended, the agent drives the fabric for its peers' sake. A restored process begins in Parked. Requests out
//! of order are refused; nothing that fails here stops the program. In every stage a copy of the process may be writing the
//! last image; the agent says when it is done, and ends it when another image is asked for.

mod background;
pub(crate) mod bell;
pub(crate) mod chain;
mod draining;
pub(crate) mod hand;
mod link;
pub(crate) mod place;

use crate::capture::background_writer::{self, BackgroundWriter};
use crate::capture::dirty_copies::DirtyCopyMemory;
use crate::capture::inspect::{self, Surroundings, resident_bytes};
use crate::capture::memory_headroom::{self, CopyBackoff};
use crate::capture::quiesced_process::QuiescedProcess;
use crate::capture::report::ReportPage;
use crate::capture::save::{self, Outcome, Snapshot, save};
use crate::capture::save_request::{CleanInspection, SaveRequest};
use crate::capture::scratch::Scratch;
use crate::capture::shared_copies::SharedCopyMemory;
use crate::capture::target::Target;
use crate::descriptors::attached::Attached;
use crate::descriptors::kept_files::KeptFiles;
use crate::descriptors::locks::Due;
use crate::descriptors::node_files::CopyBuffer;
use crate::descriptors::table;
use crate::descriptors::transient;
use crate::memory::address_space::AddressSpace;
use crate::memory::file_fingerprints::FileFingerprints;
use crate::memory::maps;
use crate::network::{Frozen, Network};
use crate::park::Parked;
use crate::restore;
use crate::track::Tracker;
use bell::Bell;
use chain::chain;
use hand::ByHand;
use link::Link;
use mend_image::cpu::Cpu;
use mend_kernel::table::LiftedLimit;
use mend_messages::PROTOCOL;
use mend_messages::agent::{FromAgent, Hello, ImageId, Inspection, Reply, Request, SaveMode, SaveOrder, SaveTarget, ToAgent, Welcome};
use mend_messages::job::JobMap;
use mend_patience::next_look;
use place::Place;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

/// How long what the fabric put off may wait for the program's next call.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long a suspended rank listens to its peers before it listens to the daemon again, for which all of them wait. At first: see [`next_look`].
const SERVICE: Duration = Duration::from_micros(100);
/// The same the other way round, where peers have hardly anything to say.
const SERVICE_PAUSE: Duration = Duration::from_millis(1);
/// How long, after each [`SERVICE_PAUSE`], a rank that runs listens to its peers while one of them drains its channels.
const KEEP_UP: Duration = Duration::from_micros(500);
/// How long what an inspection found counts as found right before the threads were parked. A program seldom changes it, and if it does
/// between an inspection and the save, it might as well have done so between a look and parking.
const INSPECTION_VALIDITY: Duration = Duration::from_secs(1);
/// How long the agent rests after an inspection: a few slices of the scheduler's, so that it gets a processor at once when it is asked
/// to suspend.
const REST: Duration = Duration::from_millis(8);
/// How long a rank that has moved waits for the locks of its former self.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

enum Stage {
    Running,
    Suspended,
    /// Dropped in this order: threads go on, then the fabric.
    Parked {
        threads: Box<QuiescedProcess>,
        fabric: Option<Box<dyn Frozen>>,
    },
}

/// See [`INSPECTION_VALIDITY`].
struct Inspected {
    at: Instant,
    advice: maps::Advice,
    cpu: Cpu,
    /// If nothing stood in the way.
    clear: Option<CleanInspection>,
    /// Why there is no memory for a copy of the process, if so. `None`: not known.
    fits: Option<Result<(), String>>,
    /// See [`SharedCopyMemory`].
    shared_copy_memory: Option<SharedCopyMemory>,
    /// Where the background writer tells its progress.
    report_page: Option<ReportPage>,
}

struct Agent {
    network: ByHand,
    place: Place,
    scratch: Scratch,
    attached: Attached,
    tracker: Tracker,
    link: Link,
    /// `None` in a restored process until it goes on.
    bell: Option<Bell>,
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
}

/// The thread's whole life. Ends when the daemon is gone.
pub(crate) fn run(network: &'static dyn Network, place: Place, bell: Bell, attached: Attached) -> io::Result<()> {
    let link = Link::connect(&place.socket)?;
    let scratch = Scratch::new()?;
    let tracker = Tracker::new(&place.tracking);
    let mut agent = Agent {
        network: ByHand(network),
        place,
        scratch,
        attached,
        tracker,
        link,
        bell: Some(bell),
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
    };
    agent.link.send(&FromAgent::Hello(Hello {
        protocol: PROTOCOL,
        rank: agent.place.rank,
        pid: rustix::process::getpid().as_raw_nonzero().get() as u32,
        main_process: agent.place.main_process,
        executable: std::fs::read_link("/proc/self/exe").unwrap_or_default().to_string_lossy().into_owned(),
    }))?;
    let ended = agent.converse();
    if !matches!(agent.stage, Stage::Running) {
        // Whoever asked for silence is gone and can take it back no more. This rank may live on elsewhere already, so it must not
        // say another word: it stays as it is until its shepherd ends it, which a daemon's death or a discard brings about.
        std::mem::forget(agent);
    }
    ended
}

/// How long to listen to one side before the other, after a wait that began then.
fn pause(least: Duration, since: Option<Instant>) -> Duration {
    next_look(since.map_or(Duration::ZERO, |since| since.elapsed()), least)
}

impl Agent {
    fn converse(&mut self) -> io::Result<()> {
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
            }
        }
    }

    /// Until the daemon says something: serves peers if suspended, tells the daemon of the fabric's first use, catches up on
    /// what the fabric put off, tells of an image that is complete.
    fn await_message(&mut self) -> io::Result<()> {
        loop {
            // Only the hand can listen in the program's table; a program that was parked as it began to use the fabric waits for that.
            let hand_is_parked = matches!(self.stage, Stage::Parked { .. }) && table::apart();
            if !self.told_use && !hand_is_parked && self.identity.is_some() && bell::used() {
                self.told_use = true;
                self.link.send(&FromAgent::FabricInUse)?;
                self.listen()?;
            }
            self.tell_losses()?;
            let joins = self.joins();
            let timeout = match self.stage {
                Stage::Suspended if self.network.in_use() => Some(Duration::ZERO),
                Stage::Suspended => Some(pause(SERVICE_PAUSE, self.suspended_at)),
                Stage::Running if self.lets_go.is_some() => Some(pause(SERVICE_PAUSE, self.lets_go)),
                Stage::Running if joins => Some(Duration::ZERO),
                Stage::Running if bell::delayed() => Some(PATIENCE),
                _ => (self.loses || self.background.is_some() || self.dirty_copy_memory.is_some() || self.inspected.is_some())
                    .then_some(background_writer::CHECK_INTERVAL),
            };
            let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
            let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let link = input(self.link.fd());
            let bell = self.bell.as_ref().map_or_else(|| link.clone(), |bell| input(bell.as_fd()));
            let copy = self.background.as_ref().map(|background| input(background.ended()));
            let count = 2 + usize::from(copy.is_some());
            let descriptors = &mut [link.clone(), bell, copy.unwrap_or(link)][..count];
            match poll(descriptors, timeout.as_ref()) {
                Ok(0) => {
                    match self.stage {
                        // Its program may call nothing for long.
                        Stage::Running if self.lets_go.is_some() => self.network.keep_up(KEEP_UP),
                        Stage::Running if joins => self.tracker.join_some(),
                        Stage::Running => {
                            bell::take_delayed();
                            self.network.catch_up();
                        }
                        Stage::Suspended if self.network.in_use() => self.network.serve(pause(SERVICE, self.suspended_at)),
                        Stage::Suspended | Stage::Parked { .. } => {}
                    }
                    self.check_background_writer()?;
                    self.dirty_copy_memory.take_if(|dirty_copy_memory| dirty_copy_memory.is_stale());
                    self.inspected.take_if(|found| found.at.elapsed() > INSPECTION_VALIDITY);
                }
                Ok(_) => {
                    let (link, bell) = (!descriptors[0].revents().is_empty(), !descriptors[1].revents().is_empty());
                    self.check_background_writer()?;
                    if let Some(bell) = self.bell.as_ref().filter(|_| bell) {
                        bell.silence();
                    }
                    if link {
                        return Ok(());
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Huge pages that the tracking of changes has split are to be joined. Not while a copy has them, too.
    fn joins(&self) -> bool {
        self.background.is_none() && self.tracker.has_split()
    }

    fn welcome(&mut self, welcome: Welcome) -> io::Result<()> {
        self.network.introduce(&welcome);
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
            Request::Inspect { ahead } => Reply::Inspected(self.inspect(ahead)),
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
            Request::SyncFiles => self.kept_files.synced(),
            Request::Resume => return self.resume(seq),
        };
        self.link.send(&FromAgent::Reply { seq, reply })
    }

    fn inspect(&mut self, ahead: Option<ImageId>) -> Inspection {
        self.inspected = None;
        let still = (!matches!(self.stage, Stage::Parked { .. })).then(bell::Still::new);
        let tracking = self.tracker.describe();
        // Before the fabric is held: both take long, and the program's calls would wait.
        let (advice, cpu) = (maps::advice(), Cpu::detect());
        self.dirty_copy_memory = ahead.and_then(|base| self.make_ready(base, &advice));
        // Held for an examination, so that no channel is opened between listing the fabric's descriptors and looking at all, and let go
        // while transient descriptors are waited for.
        let ((held, surroundings, descriptors), errors) = transient::examine_again(|errors| {
            let (held, surroundings) = self.surroundings();
            let descriptors = inspect::descriptors(&self.attached, &surroundings, errors);
            (held, surroundings, descriptors)
        });
        let (found, loose) = inspect::inspect(&surroundings, &descriptors, &errors, &advice, &mut self.fingerprints, self.network.in_use());
        drop(held);
        let clear = found.obstacles.is_empty() && !surroundings.provider_open;
        let clear = clear.then(|| (descriptors.written_files(), CopyBuffer::new(loose)));
        // Another copy gives its memory back before the next one is made.
        let fits = self.background.is_none().then(|| self.fits());
        let shared_copy_memory = SharedCopyMemory::new(advice.values().map(|advised| advised.shared).sum()).ok();
        let report_page = ReportPage::new().ok();
        drop(descriptors);
        drop(still);
        // Last, since all of that has taken memory.
        let clear =
            clear.map(|(written_files, copy_buffer)| CleanInspection { written_files, copy_buffer, space: AddressSpace::read().ok() });
        // It has had more of the processor than its share, which the program is owed: later that would be while the job waits.
        std::thread::sleep(REST);
        self.inspected = Some(Inspected { at: Instant::now(), advice, cpu, clear, fits, shared_copy_memory, report_page });
        Inspection { tracking, ..found }
    }

    /// What of the process is not the program's, true as long as the fabric is held. A parked rank's is held already.
    fn surroundings(&self) -> (Option<Box<dyn Frozen>>, Surroundings) {
        let held = (!matches!(self.stage, Stage::Parked { .. })).then(|| self.network.freeze());
        let (mut own, mut excluded) = (self.own_descriptors(), Vec::new());
        own.extend(bell::cord());
        if let Some(held) = &held {
            held.own_descriptors(&mut |fd| own.push(fd));
            held.excluded_memory(&mut |start, length| excluded.push((start as u64, (start + length) as u64)));
        }
        excluded.extend(self.tracker.memory());
        excluded.extend(self.background.iter().flat_map(|background| background.memory()));
        let provider_open = held.as_ref().is_some_and(|held| held.provider_open());
        let copy = self.background.as_ref().and_then(|background| background.outer());
        (held, Surroundings { own, excluded, provider_open, copy, main_process: self.place.main_process })
    }

    /// Memory for copies of what changed since an image, if that is to be copied.
    fn make_ready(&self, base: ImageId, advice: &maps::Advice) -> Option<DirtyCopyMemory> {
        let changed = self.tracker.changed(base, &maps::read().ok()?)?;
        DirtyCopyMemory::for_changes(changed, advice.values().map(|advised| advised.small).sum(), self.ranks_here)
    }

    fn resume(&mut self, seq: u64) -> io::Result<()> {
        self.dirty_copy_memory = None;
        self.lets_go = None;
        let locks = std::mem::take(&mut self.locks).take(LOCK_LIMIT);
        let mut quiesced = match std::mem::replace(&mut self.stage, Stage::Running) {
            Stage::Parked { threads, mut fabric } => {
                if self.bell.is_none() {
                    self.leave(&threads.parked)?;
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
        let bell = self.bell.iter().map(Bell::raw);
        [self.link.raw()].into_iter().chain(bell).chain(self.tracker.descriptors()).chain(copy).collect()
    }

    /// In a restored process that is about to go on, whose threads are parked: a table of the agent's own again.
    fn leave(&mut self, parked: &Parked) -> io::Result<()> {
        let own = self.descriptors();
        if table::leave(&own) {
            parked.close(&own);
        }
        self.bell = Some(Bell::open()?);
        self.lifted = None;
        Ok(())
    }

    /// Whether there is memory for a copy of the process; why not.
    fn fits(&self) -> Result<(), String> {
        memory_headroom::shortage(resident_bytes(), self.ranks_here).map_or(Ok(()), Err)
    }

    /// What a save that shall not stop the program for long needs; or why it has to.
    fn snapshot(
        &mut self,
        order: &SaveOrder,
        fits: Option<Result<(), String>>,
        (shared_copy_memory, report_page): (Option<SharedCopyMemory>, Option<ReportPage>),
    ) -> Result<Option<Snapshot>, String> {
        let dirty_copy_memory = self.dirty_copy_memory.take().filter(|_| order.base.is_some());
        if order.mode == SaveMode::Stop {
            return Ok(None);
        }
        let stopped = |why: &str| format!("the program stood still while the image was written: {why}");
        match self.copy_backoff.advises_against().or_else(|| fits.unwrap_or_else(|| self.fits()).err()) {
            Some(why) => Err(stopped(&why)),
            None => match report_page.map_or_else(ReportPage::new, Ok) {
                Ok(report_page) => Ok(Some(Snapshot { report_page, rate: order.rate, dirty_copy_memory, shared_copy_memory })),
                Err(errno) => Err(stopped(&errno.to_string())),
            },
        }
    }

    /// `None` in a restored process.
    fn save(&mut self, order: SaveOrder) -> io::Result<Option<Reply>> {
        if !matches!(self.stage, Stage::Suspended) {
            return Ok(Some(refused("a rank is saved only while it is suspended")));
        }
        if let Some(background) = &mut self.background {
            match background.give_up("another image was asked for") {
                Some(result) => self.tell_written(result)?,
                None => return Ok(Some(refused("the process that wrote the last image hangs in its target"))),
            }
        }
        let (advice, cpu, clear, fits, memory) = match self.inspected.take().filter(|found| found.at.elapsed() < INSPECTION_VALIDITY) {
            Some(Inspected { advice, cpu, clear, fits, shared_copy_memory, report_page, .. }) => {
                (Some(advice), Some(cpu), clear, fits, (shared_copy_memory, report_page))
            }
            None => (None, None, None, None, (None, None)),
        };
        let (snapshot, note) = match self.snapshot(&order, fits, memory) {
            Ok(snapshot) => (snapshot, None),
            Err(why) => (None, Some(why)),
        };
        let files_kept = order.files_kept;
        let target = match (order.target, self.link.take_descriptor()) {
            (SaveTarget::File(path), _) => Target::File(path),
            (SaveTarget::Descriptor, Some(descriptor)) => Target::Stream(descriptor),
            (SaveTarget::Descriptor, None) => return Ok(Some(refused("no descriptor came with the request"))),
        };
        let Some(identity) = self.identity.clone() else { return Ok(Some(refused("the daemon has not welcomed this agent"))) };
        let still = bell::Still::new();
        let prepared = self.tracker.prepare(order.base, order.track);
        let advice = advice.unwrap_or_else(maps::advice);
        let mut frozen = self.network.freeze();
        frozen.close_provider();
        let mut own_descriptors = self.own_descriptors();
        frozen.own_descriptors(&mut |fd| own_descriptors.push(fd));
        own_descriptors.extend(bell::cord());
        if let (Target::Stream(stream), false) = (&target, table::apart()) {
            own_descriptors.push(stream.as_raw_fd());
        }
        let (start, end) = self.scratch.range();
        let mut excluded = vec![(start as u64, end as u64)];
        frozen.excluded_memory(&mut |start, length| excluded.push((start as u64, (start + length) as u64)));
        excluded.extend(self.tracker.memory());
        excluded.extend(snapshot.iter().flat_map(Snapshot::memory));
        excluded.sort_unstable();
        let (scratch, attached, identity) = (&self.scratch, &self.attached, &identity);
        let mut request = SaveRequest { scratch, attached, identity, own_descriptors, excluded, advice, cpu, clear, files_kept };
        match save(&mut request, target, &mut self.fingerprints, &mut self.tracker, prepared, snapshot) {
            Ok(Outcome::Saved(mut saved, quiesced, background)) => {
                saved.note = save::joined(note, saved.note);
                self.stage = Stage::Parked { threads: quiesced, fabric: Some(frozen) };
                self.background = background;
                if self.background.is_none() {
                    self.copy_backoff.stood_still();
                }
                Ok(Some(Reply::Saved(*saved)))
            }
            Ok(Outcome::Restored(quiesced)) => {
                table::join();
                still.end();
                let rings: Vec<_> = request.excluded.iter().filter(|(from, _)| *from != start as u64).copied().collect();
                self.restored(quiesced, frozen, &rings).map(|()| None)
            }
            Err(error) => Ok(Some(Reply::Failed { error: chain(&error), hint: error.hint().to_string() })),
        }
    }

    /// The process has just come back. Its other threads are parked, its descriptors are the restorer's.
    fn restored(&mut self, quiesced: Box<QuiescedProcess>, frozen: Box<dyn Frozen>, rings: &[(u64, u64)]) -> io::Result<()> {
        let began = Instant::now();
        self.tracker.forget();
        self.copy_backoff = CopyBackoff::default();
        let handoff = match restore::handoff(&self.scratch) {
            Ok(handoff) => handoff,
            // Nothing is known about this process, not even how to speak to the daemon.
            Err(_) => restore::end_process(),
        };
        // The streams have new identities.
        self.attached = Attached::behind(handoff.attach.map(|fd| (fd >= 0).then_some(fd)));
        if let Some(bell) = self.bell.take() {
            bell.forget();
        }
        let result = restore::rebuild(&quiesced, &handoff).map_err(|error| chain(&error)).map(|locks| self.locks = locks);
        self.lifted = Some(LiftedLimit::new());
        self.link.adopt(handoff.agent_fd);
        let result = result.and_then(|()| frozen.rebuild());
        if let Err(error) = result {
            self.link.send(&FromAgent::RestoreFailed { error })?;
            // The daemon ends this process; its threads never run.
            loop {
                if self.link.receive().is_err() {
                    restore::end_process();
                }
            }
        }
        for (start, end) in rings {
            // SAFETY: memory of channels that the fabric has forgotten; nobody refers to it.
            unsafe { mend_kernel::raw::syscall(libc::SYS_munmap, [*start as usize, (end - start) as usize, 0, 0, 0, 0]) };
        }
        self.stage = Stage::Parked { threads: quiesced, fabric: None };
        self.held_map = None;
        self.suspended_at = None;
        let rebuild_us = micros_since(began);
        self.link.send(&FromAgent::Restored { rank: self.place.rank, rebuild_us })
    }
}

fn micros_since(at: Instant) -> u64 {
    at.elapsed().as_micros() as u64
}

fn refused(error: &str) -> Reply {
    Reply::Failed { error: error.to_string(), hint: String::new() }
}
