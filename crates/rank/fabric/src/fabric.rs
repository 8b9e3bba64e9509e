//! The fabric of this process, as the agent and the provider see it.
//!
//! Everything is under one lock ([`crate::lock`]). The fabric has no thread of its own: application threads move
//! packets inside libfabric calls, the agent's thread moves them while a checkpoint or migration is prepared.

use crate::channel::ChannelError;
use crate::counter::cycles;
use crate::engine::Engine;
use crate::engine::slab::Slab;
use crate::engine::traffic::Count;
use crate::identity::Identity;
use crate::idle::{HALFWAY_CYCLES, Idle, NAP, POLLS_PER_COUNTER, Rest, gave_way};
use crate::links::{DrainError, Links};
use crate::lock::{Gate, Guard};
use crate::overdue::Overdue;
use crate::report;
use crate::vector::AddressVector;
use crate::watch;
use mend_messages::job::{FabricAddress, JobMap, Rank};
use mend_patience::{Patience, next_look};
use rustix::io::Errno;
use rustix::thread::futex;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

/// How long a libfabric call waits for the agent to learn this rank's identity.
const IDENTITY_TIME: Duration = Duration::from_secs(30);

/// The listeners cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the fabric cannot listen on {ip}")]
pub struct FabricError {
    ip: IpAddr,
    #[source]
    cause: ChannelError,
}

impl FabricError {
    /// What a user can do about it; empty where nothing is known that would help.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.cause {
            ChannelError::Io(Errno::ADDRNOTAVAIL) => {
                "the address by which the job knows this node must be one of its own: see mendd's --advertise"
            }
            ChannelError::Io(Errno::ADDRINUSE) => "all ports of that address are in use (sysctl net.ipv4.ip_local_port_range)",
            ChannelError::Io(errno) => mend_report::process_hint(&errno.into()),
            _ => "",
        }
    }
}

/// Everything under the lock.
#[derive(Default)]
pub(crate) struct State {
    pub engine: Engine,
    pub links: Links,
    pub vectors: Slab<AddressVector>,
    pub idle: Idle,
    /// One-sided operations that needed no packets since one of them made a round.
    unserved: u32,
    /// A probe has found nothing, and nothing was told since.
    pub probed: bool,
    /// The drain that is under way: when it began, and who is waited for.
    drain: Option<(Instant, Overdue)>,
}

/// One-sided operations that need no packets between two rounds: a program may do nothing else, and others wait for this rank.
const MAX_UNSERVED_OPERATIONS: u32 = 16;

/// How long the end of a process waits for a round that is made for it.
const CEASE_TIME: Duration = Duration::from_millis(100);

impl State {
    /// A round if something waits for one and the program makes none. True if somebody is to look again.
    fn catch_up(&mut self) -> bool {
        let active = self.links.active();
        if self.links.due(&self.engine) {
            self.progress();
        }
        self.links.looked(&self.engine, active)
    }

    /// One round of progress.
    #[inline]
    pub fn progress(&mut self) -> bool {
        let moved = self.links.progress(&mut self.engine);
        if moved {
            self.idle.reset();
        }
        moved
    }

    /// One round of progress for others, by a program that does not wait. True if anything moved.
    #[inline]
    pub fn serve(&mut self) -> bool {
        self.links.overdue(cycles());
        self.progress()
    }

    /// After a one-sided operation that needed no packets.
    #[inline]
    pub fn serve_others(&mut self) {
        self.idle.busy();
        self.unserved += 1;
        if self.unserved >= MAX_UNSERVED_OPERATIONS {
            self.unserved = 0;
            self.serve();
        }
    }

    /// A poll: one round, and if nothing moves, and it `may_linger`, a rank that waits looks on for a moment, unless somebody else wants
    /// the lock. True if anything moved.
    #[inline]
    pub fn poll(&mut self, gate: &Gate<Self>, may_linger: bool) -> bool {
        let mut moved = self.progress();
        // Asked in any case: that it gave way before what moved is no sign for the next poll.
        let (now, gave_way) = (cycles(), gave_way());
        if self.links.overdue(now) && !moved {
            moved = self.progress();
        }
        if !moved {
            self.idle.comes_back(now, gave_way);
            // A library that only wants to be sure that it misses nothing, as in MPI_Win_fence, has other things to do.
            if may_linger && (gave_way || self.engine.expects()) && self.idle.lingers(now, gave_way) {
                return self.look_on(gate, now);
            }
        }
        self.idle.here(now);
        moved
    }

    /// A step of a drain towards one peer or all. When it began, if it is not over.
    fn drain_step(&mut self, peer: Option<Rank>, limit: Duration) -> Result<Option<Instant>, DrainError> {
        let Self { engine, links, drain, .. } = self;
        let is_meant = |rank: &Rank| peer.is_none_or(|peer| peer == *rank);
        let mut draining = links.undrained(engine);
        draining.retain(is_meant);
        let mut lost = links.lost();
        lost.retain(is_meant);
        if !lost.is_empty() {
            return Err(DrainError::Lost { ranks: lost });
        }
        if draining.is_empty() {
            if let Some(peer) = peer {
                links.close_peer(peer);
            }
            return Ok(None);
        }
        let (began, overdue) = drain.get_or_insert_with(|| (Instant::now(), Overdue::new(limit)));
        let late = overdue.among(&draining, |rank| links.taken(rank));
        if late.is_empty() { Ok(Some(*began)) } else { Err(DrainError::Late { ranks: late }) }
    }

    fn look_on(&mut self, gate: &Gate<Self>, began: u64) -> bool {
        loop {
            for _ in 0..POLLS_PER_COUNTER {
                if !self.links.quiet() && self.progress() {
                    self.idle.lingered(began, cycles());
                    return true;
                }
            }
            if self.idle.lingered(began, cycles()) || gate.wanted() {
                return false;
            }
        }
    }
}

/// The process's fabric.
pub struct Fabric {
    state: Gate<State>,
    ready: AtomicU32,
    used: AtomicBool,
    told: AtomicBool,
    on_use: OnceLock<fn()>,
    /// Somebody else than the program makes a round.
    looking: AtomicBool,
    /// The process ends: nobody is to.
    ending: AtomicBool,
}

static FABRIC: LazyLock<Fabric> = LazyLock::new(|| Fabric {
    state: Gate::new(State::default()),
    ready: AtomicU32::new(0),
    used: AtomicBool::new(false),
    told: AtomicBool::new(false),
    on_use: OnceLock::new(),
    looking: AtomicBool::new(false),
    ending: AtomicBool::new(false),
});

/// The process-wide fabric; exists before libfabric is touched.
#[inline]
pub fn fabric() -> &'static Fabric {
    &FABRIC
}

impl Fabric {
    /// Learns who this rank is, and opens nothing. Called after each Welcome.
    pub fn introduce(&self, identity: Identity) {
        self.state.lock_first().links.introduce(identity);
    }

    /// Opens the TCP and the unix listener and tells waiting calls who this rank is. Called when the program uses the fabric, and in each
    /// restored process.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn listen(&self, identity: Identity) -> Result<FabricAddress, FabricError> {
        let ip = identity.ip;
        let address = {
            let mut state = self.state.lock_first();
            match mend_settings::UNEXPECTED.number() {
                Ok(limit) => state.engine.flow.set_limit(limit << 10),
                Err(error) => report::fault(Some(identity.rank), format_args!("{error}; {} is used", mend_settings::UNEXPECTED.default)),
            }
            state.links.listen(identity).map_err(|cause| FabricError { ip, cause })?
        };
        self.ready.store(1, Ordering::Release);
        let _ = futex::wake(&self.ready, futex::Flags::PRIVATE, u32::MAX >> 1);
        Ok(address)
    }

    /// Takes a newer job map and wakes whoever waits.
    pub fn set_map(&self, map: JobMap) {
        let mut state = self.state.lock_first();
        state.links.set_map(map);
        let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
        state.idle.crowded = state.links.neighbours() > processors;
        state.links.crowded = state.idle.crowded;
    }

    /// Registers what is to happen, once, when the program first uses the provider. If it already has, `f` is called
    /// now.
    pub fn on_use(&self, f: fn()) {
        let _ = self.on_use.set(f);
        if self.in_use() {
            self.tell();
        }
    }

    /// `nudge` is called, with the fabric's lock held, when packets start to wait for the program's next call.
    /// Whoever sets it calls [`Fabric::catch_up`] soon after, and again and again as long as that says so.
    pub fn on_delay(&self, nudge: fn()) {
        self.state.lock_first().links.on_delay(nudge);
    }

    /// `announce` is called, with the fabric's lock held, when a channel breaks with messages under way. Whoever sets it calls
    /// [`Fabric::losses`] then and later.
    pub fn on_loss(&self, announce: fn()) {
        self.state.lock_first().links.on_loss(announce);
    }

    /// Peers to which a channel broke at least `patience` ago and that are not known to have ended or moved since, with the reason; each is
    /// told once. And whether there are others, that broke later.
    pub fn losses(&self, patience: Duration) -> (Vec<(Rank, String)>, bool) {
        self.state.lock_first().links.losses(patience)
    }

    /// Peers to which a channel broke, and was not just closed, since this was asked last, with the reason.
    pub fn broken(&self) -> Vec<(Rank, String)> {
        self.state.lock_first().links.broken()
    }

    /// Peers whose channels drain.
    pub fn draining(&self) -> Vec<Rank> {
        let mut state = self.state.lock_first();
        let State { engine, links, .. } = &mut *state;
        links.undrained(engine)
    }

    /// Sends what still waits for a call that the program has not made. True if somebody is to look again.
    pub fn catch_up(&self) -> bool {
        self.looking.store(true, Ordering::SeqCst);
        let again = !self.ending.load(Ordering::SeqCst) && self.state.lock_first().catch_up();
        self.looking.store(false, Ordering::SeqCst);
        again
    }

    /// The process ends: no round is made for it any more, nor is one under way when this returns, since libraries that channels use may go now.
    pub(crate) fn cease(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let mut patience = Patience::with_pause(CEASE_TIME, Duration::from_millis(1));
        // A signal's handler may end the process of a thread that has the lock which the other waits for.
        while self.looking.load(Ordering::SeqCst) && !patience.is_over() {
            std::thread::sleep(patience.pause());
        }
    }

    /// Messages and one-sided operations so far, how long this rank waited for others, and a clock for that, both in cycles of the
    /// processor's counter.
    pub fn counters(&self) -> (u64, u64, u64) {
        let state = self.state.lock_first();
        (state.engine.calls, state.idle.waited(), cycles())
    }

    /// What was sent to each rank so far, in the order of their numbers. `each` is called with the fabric's lock held, and calls nothing of it.
    pub fn traffic(&self, each: impl FnMut(&Count)) {
        self.state.lock_first().engine.traffic.counts().iter().for_each(each);
    }

    fn tell(&self) {
        if let Some(f) = self.on_use.get()
            && !self.told.swap(true, Ordering::AcqRel)
        {
            f();
        }
    }

    /// True once the program has asked for the provider.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// The program asks for the provider.
    pub(crate) fn mark_used(&self) {
        self.used.store(true, Ordering::Release);
        self.tell();
    }

    /// Waits until this rank knows who it is. False after 30 seconds, with a report.
    pub(crate) fn wait_ready(&self) -> bool {
        let mut patience = Patience::new(IDENTITY_TIME);
        while self.ready.load(Ordering::Acquire) == 0 {
            if patience.is_over() {
                report::fault(
                    None,
                    format_args!(
                        "no word from mendd about this rank in {} s; the provider cannot be used (hint: start the program with `mend run`)",
                        IDENTITY_TIME.as_secs()
                    ),
                );
                return false;
            }
            let pause = patience.pause();
            let timeout = futex::Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) };
            let _ = futex::wait(&self.ready, futex::Flags::PRIVATE, 0, Some(&timeout));
        }
        true
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// A round of progress; if nothing moves, a rank that waits looks on for a moment. True if anything moved.
    #[inline]
    pub(crate) fn progress(&self, state: &mut State) -> bool {
        state.poll(&self.state, true)
    }

    /// A round of progress for a program that looks again by another call, and has to go through the MPI library for that: lingering
    /// would hold up what came meanwhile. True if anything moved.
    #[inline]
    pub(crate) fn look(&self, state: &mut State) -> bool {
        state.poll(&self.state, false)
    }

    /// If all there is to tell is that long messages have left, goes on while another arrives.
    #[inline]
    pub(crate) fn keep_step(&self, state: &mut State, queue: u64) {
        if state.engine.leaves_halfway(queue) && !state.idle.crowded {
            let began = cycles();
            while (state.progress() || state.look_on(&self.state, cycles()))
                && state.engine.leaves_halfway(queue)
                && cycles().wrapping_sub(began) < HALFWAY_CYCLES
                && !self.state.wanted()
            {}
        }
    }

    /// After a poll that found nothing, with the lock: rests as the circumstances ask, without the lock. `Some` if it is
    /// worth to poll again at once.
    #[inline]
    pub(crate) fn rest<'a>(&'a self, mut state: Guard<'a, State>) -> Option<Guard<'a, State>> {
        match state.idle.empty_poll() {
            Rest::Poll => return None,
            Rest::Yield => {
                drop(state);
                rustix::thread::sched_yield();
                state = self.lock();
            }
            Rest::Sleep => {
                state = self.sleep(state, NAP);
                state.idle.slept(cycles());
            }
        }
        // It was away for this, not for the program.
        state.idle.here(cycles());
        Some(state)
    }

    /// Lets somebody else have the lock who waits for it.
    pub(crate) fn pass<'a>(&'a self, state: Guard<'a, State>) -> Guard<'a, State> {
        if !self.state.wanted() {
            return state;
        }
        drop(state);
        self.lock()
    }

    /// Sleeps without the lock until woken, at most `time`.
    pub(crate) fn sleep<'a>(&'a self, mut state: Guard<'a, State>, time: Duration) -> Guard<'a, State> {
        let Some(set) = state.links.sleep_set() else { return state };
        if !state.links.prepare_sleep() {
            return state;
        }
        drop(state);
        watch::sleep(set, time);
        let mut state = self.lock();
        state.links.awake();
        state
    }

    /// Like [`Fabric::sleep`], for the agent.
    fn nap_first(&self, time: Duration) {
        let set = {
            let mut state = self.state.lock_first();
            match state.links.sleep_set() {
                Some(set) if state.links.prepare_sleep() => set,
                _ => return,
            }
        };
        watch::sleep(set, time);
        self.state.lock_first().links.awake();
    }

    /// Stops sends to all peers and drains, for `time`: true when everything this rank sent has been delivered, and all is here that was sent by ranks
    /// that have ended, else the drain goes on when this is called again. Peers must be served meanwhile (by their programs or agents). No lock is kept. A peer that shows no progress for `limit`
    /// ends it.
    ///
    /// # Errors
    /// [`DrainError`]; [`Fabric::resume`] is right after that, too.
    pub fn suspend(&self, limit: Duration, time: Duration) -> Result<bool, DrainError> {
        self.state.lock_first().links.begin_suspend();
        self.drain(None, limit, time)
    }

    /// Drains, as [`Fabric::suspend`] does, and closes the channel to a peer that is about to move. Immediate if there is no channel. The peer drains
    /// its own channel to us, for which it must be served until [`Fabric::resume`] (by the program, or [`Fabric::keep_up`]).
    ///
    /// # Errors
    /// [`DrainError`].
    pub fn suspend_peer(&self, peer: Rank, limit: Duration, time: Duration) -> Result<bool, DrainError> {
        self.state.lock_first().links.begin_suspend_peer(peer)?;
        self.drain(Some(peer), limit, time)
    }

    fn drain(&self, peer: Option<Rank>, limit: Duration, time: Duration) -> Result<bool, DrainError> {
        let entered = Instant::now();
        loop {
            let began = {
                let mut state = self.state.lock_first();
                state.progress();
                match state.drain_step(peer, limit) {
                    Ok(Some(began)) => began,
                    over => {
                        state.drain = None;
                        return over.map(|_| true);
                    }
                }
            };
            if entered.elapsed() >= time {
                return Ok(false);
            }
            self.nap_first(next_look(began.elapsed(), NAP));
        }
    }

    /// Moves packets (markers and acknowledgements among them) for a program that is busy; waits at most `timeout` if
    /// there is nothing to do.
    pub fn serve(&self, timeout: Duration) {
        if !self.state.lock_first().progress() {
            self.nap_first(timeout);
            self.state.lock_first().progress();
        }
    }

    /// Moves packets for a program that may be busy, as long as anything moves, at most for `time`.
    pub fn keep_up(&self, time: Duration) {
        let began = Instant::now();
        let mut state = self.state.lock_first();
        // The sockets are looked at, too.
        state.links.look_soon();
        while state.progress() && began.elapsed() < time {
            drop(state);
            state = self.state.lock_first();
        }
    }

    /// Undoes [`Fabric::suspend`] and [`Fabric::suspend_peer`], also after they failed.
    pub fn resume(&self) {
        let mut state = self.state.lock_first();
        state.drain = None;
        state.links.resume();
        state.progress();
    }

    /// Takes the fabric's lock: application threads that call in wait until the guard is dropped.
    pub fn freeze(&self) -> Frozen<'_> {
        Frozen { state: self.state.lock_first() }
    }
}

/// The fabric at rest, while its process's image is written or put back together.
pub struct Frozen<'a> {
    state: Guard<'a, State>,
}

impl Frozen<'_> {
    /// Address and length of memory that is not saved: what channels share with other processes.
    pub fn excluded_memory(&self, f: &mut dyn FnMut(usize, usize)) {
        self.state.links.mappings(f);
    }

    /// Descriptors that are not saved: listeners, sockets, event descriptors.
    pub fn own_descriptors(&self, f: &mut dyn FnMut(i32)) {
        self.state.links.descriptors(f);
    }

    /// True while objects of a core provider are open: some descriptors, devices and threads of the process are its.
    #[must_use]
    pub fn provider_open(&self) -> bool {
        self.state.links.port_open()
    }

    /// Before a save: closes what no image can hold, a core provider's objects and the channels over them. Everything
    /// is drained; it is opened again when it is needed.
    pub fn close_provider(&mut self) {
        self.state.links.close_port();
    }

    /// The first part of [`Fabric::resume`], which must follow: sends go on over the channels that were kept.
    pub fn reopen(&mut self) {
        self.state.links.reopen();
    }

    /// In a restored process: forgets every descriptor and mapping of the old life without touching them. Then drop
    /// this and call [`Fabric::listen`] with the new identity, [`Fabric::set_map`], [`Fabric::resume`].
    pub fn rebuild(&mut self) {
        self.state.links.forget();
        self.state.idle.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_hint_follows_what_the_kernel_said() {
        let error = |cause: ChannelError| FabricError { ip: IpAddr::from([10, 0, 0, 1]), cause };
        let says = |errno: Errno, word: &str| error(errno.into()).hint().contains(word);
        assert!(says(Errno::ADDRNOTAVAIL, "--advertise"));
        assert!(says(Errno::ADDRINUSE, "ports"));
        assert!(says(Errno::MFILE, "ulimit -n"));
        assert!(says(Errno::NOMEM, "memory"));
        assert_eq!(error(Errno::PERM.into()).hint(), "");
        assert_eq!(error(ChannelError::Refused).hint(), "");
        let denied = error(Errno::ACCESS.into());
        assert_eq!(denied.to_string(), "the fabric cannot listen on 10.0.0.1");
        assert!(denied.source().is_some());
    }
}
