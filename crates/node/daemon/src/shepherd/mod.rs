//! One shepherd per rank: a process between the daemon and the rank that owns the rank's namespaces and its end.
//!
//! ```text
//! mendd ── fork + exec ──► shepherd ── fork ──► reaper (pid 1 of the namespace) ── clone3(set_tid) ──► rank
//! ```
//! The reaper dies when the daemon's end of the control socket is gone or the shepherd dies, and the kernel then kills
//! whatever is in its PID namespace: no process of a rank outlives its daemon, whichever way that ends.
//! Where namespaces are refused, one process is shepherd and reaper, and kills the descendants it finds in `/proc`.
//!
//! Invariants: a single thread, so it may fork; the daemon's instructions are trusted (same program, private socket).
//! Faults assumed: the daemon or any part of this chain is killed at any moment; any launch step is refused.

mod kin;
pub mod order;
mod reaper;
mod spawn;
mod start;

pub use spawn::{ShepherdLink, SpawnError, spawn};

use mend_kernel::namespaces::{fork_and_run, unshare};
use mend_messages::frame;
use order::{ClockOffsets, Event, Instruction, Launch, MAX_FILES, Step};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, setpgid, waitpid};
use rustix::thread::UnshareFlags;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// A step that failed.
#[derive(Clone, Copy, Debug)]
struct Refused {
    step: Step,
    errno: i32,
}

impl Refused {
    fn at(step: Step) -> impl FnOnce(io::Error) -> Refused {
        move |error| Refused { step, errno: error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()) }
    }
}

/// The hidden subcommand: becomes the shepherd of the control socket on standard input. Returns the exit code.
pub fn run() -> i32 {
    // Short slices are for the daemon; the rank has what it would have without Mend.
    let _ = mend_kernel::slice::restore();
    // A process group of its own: a terminal's Ctrl-C is the controller's business.
    let _ = setpgid(None, None);
    let Ok(control) = rustix::io::dup(rustix::stdio::stdin()) else { return 1 };
    let mut control = UnixStream::from(control);
    let Ok(null) = std::fs::File::open("/dev/null") else { return 1 };
    if rustix::stdio::dup2_stdin(&null).is_err() {
        return 1;
    }
    let (launch, files) = match receive_launch(&mut control) {
        Ok(received) => received,
        Err(_) => return 1,
    };
    if !launch.isolated {
        return reaper::run(control, &launch, files);
    }
    let Ok(mut report) = control.try_clone() else { return 1 };
    match isolate(&launch).and_then(|()| fork_reaper(control, launch, files)) {
        Ok(reaper) => {
            // The reaper alone holds the rank's pipes and the control socket from here on.
            drop(report);
            while matches!(waitpid(Some(reaper), WaitOptions::empty()), Err(Errno::INTR)) {}
            0
        }
        Err(Refused { step, errno }) => {
            let _ = send(&mut report, &Event::Failed { step, errno });
            1
        }
    }
}

fn isolate(launch: &Launch) -> Result<(), Refused> {
    if let Some(clock) = launch.clock {
        unshare(UnshareFlags::NEWTIME).map_err(Refused::at(Step::Clock))?;
        std::fs::write("/proc/self/timens_offsets", offsets_text(clock)).map_err(Refused::at(Step::Clock))?;
    }
    unshare(UnshareFlags::NEWPID | UnshareFlags::NEWNS).map_err(Refused::at(Step::Namespaces))?;
    // What is mounted on the node later must appear for the rank, and nothing the other way round.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|errno| Refused { step: Step::Namespaces, errno: errno.raw_os_error() })?;
    if let Some(directory) = &launch.shared_memory {
        // Where it is refused, the rank shares the node's.
        let _ = mount_bind(directory, "/dev/shm");
    }
    Ok(())
}

/// The line format of `/proc/PID/timens_offsets`: seconds may be negative, nanoseconds not.
fn offsets_text(clock: ClockOffsets) -> String {
    const SECOND: i64 = 1_000_000_000;
    let line = |name: &str, ns: i64| format!("{name} {} {}\n", ns.div_euclid(SECOND), ns.rem_euclid(SECOND));
    line("monotonic", clock.monotonic_ns) + &line("boottime", clock.boottime_ns)
}

fn fork_reaper(control: UnixStream, launch: Launch, files: Vec<OwnedFd>) -> Result<Pid, Refused> {
    fork_and_run(move || {
        // A shepherd that died before this line took nothing along, but the daemon sees it dead and closes its end.
        if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
            return 1;
        }
        // Refused where parts of /proc are masked (containers): /proc/self still works in the one that is there.
        let _ = mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None);
        reaper::run(control, &launch, files)
    })
    .map_err(Refused::at(Step::Fork))
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
        Instruction::Launch(launch) if launch.numbers.len() == files.len() => Ok((*launch, files)),
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
