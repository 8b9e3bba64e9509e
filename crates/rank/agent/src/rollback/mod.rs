//! Going back to an image in place: the process stays, with its threads and its MPI library, and only what differs is written.
//!
//! ```text
//! agent: pause ── all threads parked ── RollBack ── restorer mapped, threads sent there ──► the agent's thread goes there, too, and ends
//! restorer, by the program's first thread: rewrites memory, makes an agent's thread anew ──► parked, as the image has it
//! ```
//! A restart begins the restorer as a program; here the agent maps it into the process, in the zone of addresses that the image leaves free.
//! From there on both are the same: the agent of the image finds itself restored, and closes, opens and sets what a restart does
//! ([`crate::restore`]), after it has undone what the process got since ([`leftovers`]).
//!
//! Until the threads are sent to the restorer a refusal costs nothing, and they stay parked. After that there is no way back: whatever fails ends the process,
//! and the rank is restarted in a new one.

mod lazily_freed;
pub(crate) mod leftovers;
mod restorer;

use crate::descriptors::table;
use crate::park::Parked;
use crate::process::{attributes, origin, tasks, timers};
use mend_image::handoff::{MAX_ROLLBACK_THREADS, ROLLBACK_MAGIC, Rollback};
use mend_image::launch::{Arguments, ImageFds, Mode, Role};
use mend_kernel::table::LiftedLimit;
use mend_kernel::threads::{Registration, segment_base};
use mend_messages::agent::RollbackOrder;
use mend_messages::files::PutBack;
use restorer::{Block, MapError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::convert::Infallible;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;

/// Most descriptors that come with an order.
const MAX_FILES: usize = 64;
/// Those before the images: the restorer's file, its control socket, the agent's connection.
const FIXED_FILES: usize = 3;

/// Why a process cannot go back. It is as it was, parked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RollbackError {
    #[error("its agent shares the program's descriptors")]
    SharedTable,
    #[error("it has child processes")]
    Children,
    #[error("{0}")]
    Own(String),
    #[error("its oom_score_adj cannot be what it was: {0}")]
    OomScore(std::io::Error),
    #[error("it has POSIX timers, and before Linux 6.15 the kernel gives their numbers to no others")]
    Timers,
    #[error("its memory cannot be kept as it is: {0}")]
    Memory(std::io::Error),
    #[error("it has more than {MAX_ROLLBACK_THREADS} threads")]
    ManyThreads,
    #[error("the descriptors for it did not come")]
    Files,
    #[error("descriptors cannot be given to the program's threads: {0}")]
    Give(Errno),
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Whether the process, whose threads may run, could go back at all.
pub(crate) fn possible() -> Result<(), RollbackError> {
    if !table::apart() {
        return Err(RollbackError::SharedTable);
    }
    if tasks::has_children() {
        return Err(RollbackError::Children);
    }
    Ok(())
}

/// Takes the process, whose threads are parked, back to the images that come through `socket`. `observed`: the tracker has noticed what
/// changed since the image. Does not return if that begins.
pub(crate) fn roll_back(parked: &Parked, order: &RollbackOrder, socket: &OwnedFd, observed: bool) -> Result<Infallible, RollbackError> {
    possible()?;
    // What the kernel takes back from nobody. No image would have been taken with it: the program has got it since.
    let own = origin::obstacles().into_iter().next().or_else(|| attributes::obstacle(parked));
    if let Some((what, _)) = own {
        return Err(RollbackError::Own(what));
    }
    if !timers::can_come_back_here() {
        return Err(RollbackError::Timers);
    }
    lazily_freed::keep().map_err(RollbackError::Memory)?;
    origin::put_back_oom_score().map_err(RollbackError::OomScore)?;
    let files = receive(socket)?;
    let images = order.images as usize;
    if files.len() != FIXED_FILES + images + order.roles.len() {
        return Err(RollbackError::Files);
    }
    let (given, process) = (&files[1..], rustix::process::getpid().as_raw_nonzero().get());
    // The program may have used up its descriptors.
    let lifted = LiftedLimit::new();
    let numbers = table::give(parked, given).map_err(RollbackError::Give)?;
    let others = parked.threads().filter(|slot| slot.tid != process).map(|slot| slot.tid as u32);
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let others: Vec<u32> = others.chain([own]).collect();
    // As in a new process; the restorer and the image's agent pin what the image has pinned. What comes from here on must not be.
    attributes::unpin_memory();
    let begin = || -> Result<(u64, Block, Vec<u64>), RollbackError> {
        let mut rollback = Rollback {
            magic: ROLLBACK_MAGIC,
            count: others.len() as u32,
            observed: u32::from(observed),
            threads: [0; MAX_ROLLBACK_THREADS],
        };
        rollback.threads.get_mut(..others.len()).ok_or(RollbackError::ManyThreads)?.copy_from_slice(&others);
        let mut attach = [None; 4];
        for (role, number) in order.roles.iter().zip(&numbers[2 + images..]) {
            let role = Role::from_number(u32::from(*role)).ok_or(RollbackError::Files)?;
            attach[role as usize] = Some(*number);
        }
        let entry = restorer::map(files[0].as_fd(), order.zone)?;
        let arguments = |address| {
            let images = ImageFds::collect(numbers[2..2 + images].iter().copied())?;
            let (in_place, put_back) = (Some(address), order.put_back.as_ref().and_then(PutBack::argument));
            let (control_fd, agent_fd, mode) = (numbers[0], numbers[1], Mode::Restart);
            Some(Arguments { images, control_fd, agent_fd, attach, mode, put_back, in_place }.words())
        };
        let block = Block::make(order.zone, &rollback, arguments)?;
        let stacks = block.stacks(others.len())?;
        Ok((entry, block, stacks))
    };
    let (entry, block, stacks) = match begin() {
        Ok(begun) => begun,
        Err(error) => {
            parked.close(&numbers);
            restorer::unmap(order.zone);
            drop(lifted);
            return Err(error);
        }
    };
    // From here on only the restorer, or the process's end, lets go of anything.
    parked.leave(entry, |slot| {
        let at = others.iter().position(|tid| *tid == slot.tid as u32);
        at.map_or(block.first_stack(), |at| stacks[at])
    });
    let registration = Registration::of_this_thread(crate::process::rseq::area(segment_base(false)));
    // SAFETY: the entry of the restorer, with a stack of this thread's own in the restorer's memory; nothing here is used again.
    unsafe {
        registration.withdraw();
        crate::park::context::leave(entry, stacks[others.len() - 1])
    }
}

/// The descriptors that come with one byte.
fn receive(socket: &OwnedFd) -> Result<Vec<OwnedFd>, RollbackError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    if received.is_ok_and(|received| received.bytes == 1) { Ok(files) } else { Err(RollbackError::Files) }
}
