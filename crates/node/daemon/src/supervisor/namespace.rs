//! The PID namespace that a job's ranks on this node share.
//!
//! ```text
//! mendd ── fork + exec ──► keeper ── fork ──► pid 1 of the namespace        supervisors enter it by its descriptor
//! ```
//! Ranks that can name each other can read each other's memory with process_vm_readv(2), which the kernel copies once
//! ([decision 21](../../../../../docs/decisions/0021-ranks-of-a-node-share-a-pid-namespace.md)). Their ids must then differ on
//! every node that one of them may come to: a rank's first process has an id that is its own in the job, its threads have what
//! the kernel counts up from a place drawn at random in four million. Where the kernel counts no further than a few
//! ten thousand, or the place cannot be chosen, there is no such namespace, and each rank gets one of its own.
//!
//! The keeper holds the job's lease as a deadline of its own ([`Deadline`]), which the daemon puts off with every sign of life of the
//! controller. If that stops coming, for whatever stands still (the controller, the network, the daemon, the keeper: each may be stopped),
//! the kernel kills the keeper, with it pid 1, and with that all ranks, stopped or not. Pid 1 could not hold it: the kernel keeps its own
//! timer's SIGKILL from it.
//!
//! Invariants: pid 1 dies with its keeper, the keeper with the daemon's end of the socket or at the deadline, and the kernel then kills
//! what is left in the namespace. What pid 1 inherits is of a rank whose reaper was killed, and is killed when the daemon says so.
//! Faults assumed: any step is refused; the daemon or any process here is killed at any moment.

use super::process_tree::{kill_descendants, reap};
use super::spawn::spawn_self;
use super::{await_end, begin, mount_proc, number_of, separate_mounts};
use mend_kernel::deadline::{Deadline, since_boot};
use mend_kernel::namespaces::{fork_and_run, unshare};
use mend_kernel::signal_queue::SignalQueue;
use mend_patience::while_active;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Child;
use tokio::sync::{Notify, OnceCell};

/// Ids from here on were drawn: those of ranks' first processes and of their reapers are lower, and what the kernel counts up
/// in a namespace of a rank's own hardly ever comes so far.
pub const FIRST_DRAWN_PID: u32 = 1 << 17;
/// Fewer ids than that make it likely that two are the same.
const MIN_PID_COUNT: u32 = 1 << 20;
/// How long its keeper may do nothing before pid 1 is there.
const KEEPER_START_TIMEOUT: Duration = Duration::from_secs(5);

/// What the daemon says to sweep; any other number is the deadline from then on, milliseconds since the machine began. What lies in the socket
/// while the keeper stands still means the same when it is read.
const SWEEP_REQUEST: u64 = 0;

/// The namespace, made when the first rank needs it. Dropping it ends every process in it.
#[derive(Debug)]
pub struct SharedNamespace {
    made: OnceCell<Option<Made>>,
    lease: Duration,
    /// The latest deadline that was said, milliseconds since boot.
    deadline_ms: AtomicU64,
    end_seen: Notify,
}

#[derive(Debug)]
struct Made {
    descriptor: OwnedFd,
    /// Does not block. Nobody is woken when it can be written to again.
    control: UnixStream,
    _keeper: Child,
}

impl SharedNamespace {
    /// One whose processes end when it was not [renewed](SharedNamespace::renew) for so long.
    pub fn new(lease: Duration) -> Self {
        Self { made: OnceCell::new(), lease, deadline_ms: AtomicU64::new(0), end_seen: Notify::new() }
    }

    /// To enter it (setns(2)). `None` if there can be none here, for a reason that is logged.
    pub async fn descriptor(&self) -> Option<OwnedFd> {
        let made = self.made.get_or_init(|| async {
            match make().await {
                Ok(made) => {
                    made.say(self.deadline_ms(Duration::ZERO));
                    Some(made)
                }
                Err(error) => {
                    tracing::info!(%error, "each rank gets a PID namespace of its own");
                    None
                }
            }
        });
        made.await.as_ref()?.descriptor.try_clone().ok()
    }

    /// True if it was made and its keeper is gone, so that the kernel kills what is in it: the lease was over, or somebody killed the keeper.
    /// Whoever waits for [`ended`](SharedNamespace::ended) then learns it.
    pub fn has_ended(&self) -> bool {
        let Some(Some(made)) = self.made.get() else { return false };
        let mut ready = [PollFd::new(&made.control, PollFlags::empty())];
        let gone = poll(&mut ready, Some(&Timespec::default())).is_ok() && ready[0].revents().contains(PollFlags::HUP);
        if gone {
            self.end_seen.notify_one();
        }
        gone
    }

    /// Waits until somebody has seen that it [has ended](SharedNamespace::has_ended).
    pub async fn ended(&self) {
        self.end_seen.notified().await;
    }

    /// Ends what was left by ranks whose reapers are gone. To be called when one has ended.
    pub fn sweep(&self) {
        if let Some(Some(made)) = self.made.get() {
            made.say(SWEEP_REQUEST);
        }
    }

    /// The controller lived so long ago: what is here lives on for another lease from then on.
    pub fn renew(&self, age: Duration) {
        if let Some(Some(made)) = self.made.get() {
            made.say(self.deadline_ms(age));
        }
    }

    /// It never comes earlier: whoever speaks late has not spoken in vain before.
    fn deadline_ms(&self, age: Duration) -> u64 {
        let at = since_boot() + self.lease.saturating_sub(age);
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX).max(SWEEP_REQUEST + 1);
        self.deadline_ms.fetch_max(at_ms, Ordering::Relaxed).max(at_ms)
    }
}

impl Made {
    fn say(&self, what: u64) {
        // A full socket holds enough of these; a closed one has nothing left to sweep or to keep alive. A few bytes go whole or not at all.
        let _ = (&self.control).write(&what.to_be_bytes());
    }
}

async fn make() -> io::Result<Made> {
    let (ours, keeper) = spawn_self("namespace", true)?;
    ours.set_nonblocking(true)?;
    let mut control = tokio::net::UnixStream::from_std(ours)?;
    let pid = keeper.id().unwrap_or_default();
    let errno = while_active(KEEPER_START_TIMEOUT, pid, control.read_i32()).await.map_err(|_| io::ErrorKind::TimedOut)??;
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let pid = keeper.id().ok_or(io::ErrorKind::UnexpectedEof)?;
    let descriptor = File::open(format!("/proc/{pid}/ns/pid_for_children"))?.into();
    Ok(Made { descriptor, control: control.into_std()?, _keeper: keeper })
}

/// The hidden subcommand: keeps a namespace until standard input, a socket, ends. Returns the exit code.
pub fn keep() -> i32 {
    let Ok(mut control) = begin() else { return 1 };
    let first = separate_mounts().and_then(|()| unshare(UnshareFlags::NEWPID)).and_then(|()| {
        let (ours, theirs) = UnixStream::pair()?;
        let daemon = control.try_clone()?;
        let first = fork_and_run(move || be_first(theirs, &daemon))?;
        Ok((first, ours))
    });
    match first {
        Ok((first, inner)) => {
            let _ = watch(&mut control, inner);
            await_end(first);
            0
        }
        Err(error) => {
            let _ = control.write_all(&number_of(&error).to_be_bytes());
            1
        }
    }
}

/// The keeper: passes on what pid 1 says once and what the daemon says to it, and keeps the deadline. Returns when either has gone.
fn watch(control: &mut UnixStream, mut inner: UnixStream) -> io::Result<()> {
    let mut word = [0; 4];
    inner.read_exact(&mut word)?;
    let deadline = Deadline::new();
    if let Err(error) = &deadline {
        word = number_of(error).to_be_bytes();
    }
    control.write_all(&word)?;
    let deadline = deadline?;
    inner.set_nonblocking(true)?;
    let mut word = [0; 8];
    loop {
        let mut ready = [PollFd::new(&*control, PollFlags::IN), PollFd::new(&inner, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let (told, gone) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
        if gone {
            return Ok(());
        }
        if told {
            control.read_exact(&mut word)?;
            match u64::from_be_bytes(word) {
                // A full socket holds enough of these.
                SWEEP_REQUEST => drop(inner.write(&[0])),
                ms => deadline.set(Duration::from_millis(ms))?,
            }
        }
    }
}

/// Pid 1: reaps, and sweeps when told to.
fn be_first(mut control: UnixStream, daemon: &UnixStream) -> i32 {
    let ready = set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from).and_then(|()| prepare());
    let said = match &ready {
        Ok(_) => 0,
        Err(error) => number_of(error),
    };
    let (Ok(()), Ok(orphans)) = (control.write_all(&said.to_be_bytes()), ready) else { return 1 };
    loop {
        // Of the daemon's socket only the end is of interest here: should the keeper have died before it was known whose death is pid 1's.
        let ends = PollFd::new(daemon, PollFlags::empty());
        let mut ready = [PollFd::new(&control, PollFlags::IN), PollFd::new(&orphans, PollFlags::IN), ends];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return 1,
        }
        if !ready[2].revents().is_empty() {
            return 0;
        }
        let (told, signalled) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
        if signalled {
            while let Ok(Some(_)) = orphans.next() {}
        }
        if told {
            match control.read(&mut [0; 64]) {
                Ok(1..) => kill_descendants(),
                _ => return 0,
            }
        }
        reap();
    }
}

fn prepare() -> io::Result<SignalQueue> {
    // Its own /proc, to find what it inherits.
    mount_proc()?;
    let most: u32 = fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse().map_err(io::Error::other)?;
    if most < MIN_PID_COUNT {
        return Err(Errno::RANGE.into());
    }
    // Up to three quarters: behind it the kernel begins again from 300.
    let room = most / 4 * 3 - FIRST_DRAWN_PID;
    let drawn = FIRST_DRAWN_PID + u32::from_ne_bytes(mend_wire::random_bytes::<4>()) % room;
    fs::write("/proc/sys/kernel/ns_last_pid", drawn.to_string())?;
    SignalQueue::new(&[Signal::CHILD.as_raw()])
}
