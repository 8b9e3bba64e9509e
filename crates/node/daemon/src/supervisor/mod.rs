//! One rank supervisor per rank: a process between the daemon and the rank that owns the rank's namespaces and its end.
//!
//! ```text
//! mendd ── fork + exec ──► supervisor ── fork ──► reaper ── clone3(set_tid) ──► rank
//! ```
//! The reaper is in the PID namespace that the job's ranks share on this node ([`namespace`]), or pid 1 of one of its own
//! where there is none or its id is taken. It ends when the daemon's end of the control socket is gone or the supervisor dies.
//! The kernel then kills whatever is in a namespace of its own; in a shared one it kills the descendants that it finds in
//! `/proc`, and if it was killed itself, the namespace's pid 1 does. No process of a rank outlives its daemon, whichever way
//! that ends. Where namespaces are refused, one process is supervisor and reaper, and kills the descendants, too.
//!
//! Invariants: a single thread, so it may fork; the daemon's instructions are trusted (same program, private socket).
//! Faults assumed: the daemon or any part of this chain is killed at any moment; any launch step is refused.

mod data;
pub mod namespace;
pub mod order;
mod process_tree;
mod reaper;
mod spawn;
mod start;

pub use spawn::{RankSupervisor, SpawnError, send_files, spawn};

use mend_kernel::namespaces::{fork_and_run, unshare};
use mend_kernel::program::fork_with_pid;
use mend_messages::frame;
use order::{ClockOffsets, Event, Instruction, Launch, MAX_FILES, Step};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, setpgid, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Reapers in a shared namespace have ids of their own, too, between those of two ranks: a restored program finds its parent's
/// as it was.
pub const REAPER_PID_OFFSET: u32 = 8;
/// Where the ids of all but a rank's first process may begin in a namespace of its own.
const OWN_PIDS: std::ops::Range<u32> = 300..28_000;
/// How long an earlier process of the rank may take to be gone from a shared namespace.
const LEAVING_TIME: Duration = Duration::from_secs(2);

/// A step that failed.
#[derive(Clone, Copy, Debug)]
struct Refused {
    step: Step,
    errno: i32,
}

impl Refused {
    fn at(step: Step) -> impl FnOnce(io::Error) -> Refused {
        move |error| Refused { step, errno: number_of(&error) }
    }
}

/// Its error number, to be sent.
fn number_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}

/// The hidden subcommand: becomes the rank supervisor of the control socket on standard input. Returns the exit code.
pub fn run() -> i32 {
    let Ok(mut control) = begin() else { return 1 };
    let (launch, mut files) = match receive_launch(&mut control) {
        Ok(received) => received,
        Err(_) => return 1,
    };
    if !launch.isolated {
        return reaper::run(control, &launch, files);
    }
    let shared = launch.shared.then(|| files.remove(0));
    let Ok(mut report) = control.try_clone() else { return 1 };
    let spaces: Vec<OwnedFd> = files.drain(..launch.spaces.len()).collect();
    match isolate(&launch, &spaces).and_then(|()| fork_reaper(control, launch, files, shared)) {
        Ok(reaper) => {
            // The reaper alone holds the rank's pipes and the control socket from here on.
            drop(report);
            await_end(reaper);
            0
        }
        Err(Refused { step, errno }) => {
            let _ = send(&mut report, &Event::Failed { step, errno });
            1
        }
    }
}

/// What a hidden subcommand does first. Its control socket, instead of which standard input is empty.
fn begin() -> io::Result<UnixStream> {
    // Short slices are for the daemon; a rank has what it would have without Mend.
    let _ = mend_kernel::slice::restore();
    // A process group of its own: a terminal's Ctrl-C is the controller's business.
    let _ = setpgid(None, None);
    let control = rustix::io::dup(rustix::stdio::stdin())?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(control.into())
}

fn await_end(child: Pid) {
    while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
}

/// Mounts of its own: what is mounted on the node later must appear here, and nothing the other way round.
fn separate_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// The `/proc` of this process's PID namespace.
fn mount_proc() -> io::Result<()> {
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}

fn isolate(launch: &Launch, spaces: &[OwnedFd]) -> Result<(), Refused> {
    if let Some(clock) = launch.clock {
        unshare(UnshareFlags::NEWTIME).map_err(Refused::at(Step::Clock))?;
        std::fs::write("/proc/self/timens_offsets", offsets_text(clock)).map_err(Refused::at(Step::Clock))?;
    }
    separate_mounts().map_err(Refused::at(Step::Namespaces))?;
    if let Some((directory, seen)) = &launch.portable {
        // Where it is refused, the library sees that nothing is offered there. First of all: it may lie in the node's /dev/shm.
        let _ = mount_bind(directory, seen);
    }
    if let Some(directory) = &launch.shared_memory {
        // Where it is refused, the rank shares the node's.
        let _ = mount_bind(directory, "/dev/shm");
    }
    for (((directory, writable), server), at) in launch.spaces.iter().zip(spaces).zip(0..) {
        std::fs::create_dir_all(directory).map_err(Refused::at(Step::SpaceDirectory(at)))?;
        data::mount_space(directory, *writable, server, &launch.whose).map_err(Refused::at(Step::DataSpace(at)))?;
    }
    Ok(())
}

/// The line format of `/proc/PID/timens_offsets`: seconds may be negative, nanoseconds not.
fn offsets_text(clock: ClockOffsets) -> String {
    const SECOND: i64 = 1_000_000_000;
    let line = |name: &str, ns: i64| format!("{name} {} {}\n", ns.div_euclid(SECOND), ns.rem_euclid(SECOND));
    line("monotonic", clock.monotonic_ns) + &line("boottime", clock.boottime_ns)
}

fn fork_reaper(control: UnixStream, launch: Launch, files: Vec<OwnedFd>, shared: Option<OwnedFd>) -> Result<Pid, Refused> {
    let id = Pid::from_raw((launch.pid + REAPER_PID_OFFSET) as i32);
    // Only the new process takes it.
    let mut given = Some((control, launch, files));
    let mut reap = |shared: bool| {
        let Some((control, mut launch, files)) = given.take() else { return 1 };
        launch.shared = shared;
        // A supervisor that died before this line took nothing along, but the daemon sees it dead and closes its end.
        if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
            return 1;
        }
        // Refused where parts of /proc are masked (containers): /proc/self still works in the one that is there.
        let _ = mount_proc();
        if !shared {
            let _ = draw_last_pid();
        }
        reaper::run(control, &launch, files)
    };
    if let (Some(namespace), Some(id)) = (shared, id)
        && let Some(reaper) = fork_into(&namespace, id, || reap(true)).map_err(Refused::at(Step::Namespaces))?
    {
        return Ok(reaper);
    }
    unshare(UnshareFlags::NEWPID).map_err(Refused::at(Step::Namespaces))?;
    fork_and_run(|| reap(false)).map_err(Refused::at(Step::Fork))
}

/// Forks a process with this id. An earlier process of the rank, which had it, may just be leaving.
fn fork_as(id: Pid, mut child: impl FnMut() -> i32) -> io::Result<Pid> {
    let patience = Instant::now() + LEAVING_TIME;
    loop {
        match fork_with_pid(id, &mut child) {
            Err(error) if error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) && Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(2));
            }
            forked => return forked,
        }
    }
}

/// Forks a process with this id in the namespace; `None` if that cannot be. The caller's further children are where its others are.
fn fork_into(namespace: &OwnedFd, id: Pid, mut child: impl FnMut() -> i32) -> io::Result<Option<Pid>> {
    let own = File::open("/proc/self/ns/pid")?;
    if move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ProcessID)).is_err() {
        return Ok(None);
    }
    if let Ok(pid) = fork_as(id, &mut child) {
        return Ok(Some(pid));
    }
    move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
    Ok(None)
}

/// In a namespace of a rank's own: what the kernel counts up from here on begins at a place drawn at random, or children would have the
/// same ids in every job. They stay below what every node accepts, so that the ids of threads can be given back anywhere.
fn draw_last_pid() -> io::Result<()> {
    let drawn = OWN_PIDS.start + u32::from_ne_bytes(mend_wire::random_bytes::<4>()) % (OWN_PIDS.end - OWN_PIDS.start);
    std::fs::write("/proc/sys/kernel/ns_last_pid", drawn.to_string())
}

fn receive_launch(control: &mut UnixStream) -> io::Result<(Launch, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(&*control, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != 1 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    match receive(control)? {
        Instruction::Launch(launch) if launch.numbers.len() + usize::from(launch.shared) + launch.spaces.len() == files.len() => {
            Ok((*launch, files))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads one instruction; an error also at the end of the stream.
fn receive(control: &mut UnixStream) -> io::Result<Instruction> {
    let mut prefix = [0; 4];
    control.read_exact(&mut prefix)?;
    let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
    control.read_exact(&mut body)?;
    frame::decode(&body).map_err(io::Error::other)
}

fn send(control: &mut UnixStream, event: &Event) -> io::Result<()> {
    control.write_all(&frame::encode(event).map_err(io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_before_the_initial_clock_have_negative_seconds_only() {
        let text = offsets_text(ClockOffsets { monotonic_ns: -1, boottime_ns: 1_500_000_000 });
        assert_eq!(text, "monotonic -1 999999999\nboottime 1 500000000\n");
    }
}
