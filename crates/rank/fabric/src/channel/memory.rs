//! The sender's memory, as the receiver of a channel on the same node reads it: by the sender's process, or by a descriptor.

use super::pace::Prospect;
use crate::counter::cycles;
use mend_kernel::namespaces::peer_of;
use mend_kernel::table::Placed;
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per read by descriptor.
pub const READ: usize = 256 * 1024;
/// By process: each call begins with a look at the process and its rights. It takes half a millisecond.
const LONG_READ_BYTES: usize = 4 << 20;
/// If reading takes so many times longer than copying, the ring is likely to be the faster way for all messages.
const SLOW_FACTOR: u64 = 3;
/// Bytes that are copied and read to compare.
const SAMPLE_BYTES: usize = 64 * 1024;
/// How often: interruptions make single times too long.
const SAMPLE_COUNT: usize = 5;
/// Bytes of a page.
const PAGE: usize = 4096;

/// This process's memory, to read. `None`: the system does not allow it.
pub fn open_own_memory() -> Option<OwnedFd> {
    rustix::fs::open("/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Lets others of this user read this process's memory where Yama would let ancestors only (`ptrace_scope` 1), which some
/// distributions have set. A restored process has to ask again.
pub fn allow_readers() {
    const ANYBODY: libc::c_ulong = libc::c_ulong::MAX;
    if std::fs::read("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.starts_with(b"1")) {
        // SAFETY: the call takes a number and touches no memory. If it fails, readers have the descriptor.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, ANYBODY, 0, 0, 0) };
    }
}

/// The sender's memory.
#[derive(Debug)]
pub struct Memory {
    file: Placed,
    /// Its process, as long as nothing stands in the way of reading it by that.
    process: Option<Pid>,
}

impl Memory {
    /// What `socket` leads to has given us `file`.
    pub fn new(file: Placed, socket: &Placed) -> Self {
        let process = peer_of(socket.as_fd()).ok().and_then(|(_, process)| process);
        Self { file, process }
    }

    /// Bytes per call that are worth it.
    pub fn at_once(&self) -> usize {
        if self.process.is_some() { LONG_READ_BYTES } else { READ }
    }

    /// The descriptor's number.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Leaves the descriptor open.
    pub fn forget(self) {
        self.file.forget();
    }

    /// Reads all `length` bytes from `place` on to `target`.
    ///
    /// # Errors
    /// The sender has ended, or its memory is not (any more) as told.
    ///
    /// # Safety
    /// `target` is this process's to write to.
    pub unsafe fn read(&mut self, place: u64, target: *mut u8, length: usize) -> std::io::Result<()> {
        let mut done = 0;
        while done < length {
            let from = place.checked_add(done as u64).ok_or(std::io::ErrorKind::InvalidInput)?;
            // SAFETY: what is left of the target.
            match unsafe { self.read_some(from, target.wrapping_add(done), length - done) } {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => done += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As [`Memory::read`], of which it reads a first part and says how much; 0: the sender has ended.
    unsafe fn read_some(&mut self, place: u64, target: *mut u8, length: usize) -> std::io::Result<usize> {
        if let Some(process) = self.process {
            let local = libc::iovec { iov_base: target.cast(), iov_len: length };
            let remote = libc::iovec { iov_base: place as *mut libc::c_void, iov_len: length };
            // SAFETY: the kernel writes at most `length` bytes to the target, which the caller vouches for, and checks the rest.
            let read = unsafe { libc::process_vm_readv(process.as_raw_nonzero().get(), &raw const local, 1, &raw const remote, 1, 0) };
            if read > 0 {
                return Ok(read as usize);
            }
            // Not allowed (Yama, seccomp), or not the process any more that it was.
            self.process = None;
        }
        // What else would be under this number would be taken for the message.
        if !self.file.intact() {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let place = i64::try_from(place).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        // The kernel goes in steps of a page's length from where it starts: steps that lie across two pages of the sender
        // cost half as much again.
        let to_boundary = PAGE - place as usize % PAGE;
        let part = if to_boundary < PAGE && length > PAGE { to_boundary } else { length };
        // SAFETY: as above.
        let read = unsafe { libc::pread(self.file.as_raw_fd(), target.cast(), part, place) };
        usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
    }
}

/// What [`prospect`] has found of reading by file and by process: nothing yet, or what a read costs, twice, and one more if that
/// is slow.
static FOUND: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Forgets what was found: this process may be on another machine now.
pub fn look_again() {
    FOUND.iter().for_each(|found| found.store(0, Ordering::Relaxed));
}

/// What reading a process's memory costs here, and whether that is much slower than copying. The kernel goes page by page, with a
/// look at the page table for each; how that compares with plain copying differs between processors by a factor of five.
pub fn prospect(of: Option<&Memory>) -> Prospect {
    prospect_by(of.is_some_and(|memory| memory.process.is_some()))
}

/// The same, of reading by process or by descriptor.
pub fn prospect_by(by_process: bool) -> Prospect {
    let known = &FOUND[usize::from(by_process)];
    if known.load(Ordering::Relaxed) == 0 {
        let process = by_process.then(rustix::process::getpid);
        let memory = open_own_memory().map(|file| Memory { file: file.into(), process });
        let found = memory.and_then(|mut memory| compare(&mut memory)).unwrap_or(Prospect { read: 1, slow: false });
        known.store(found.read.max(1) << 1 | u64::from(found.slow), Ordering::Relaxed);
    }
    let found = known.load(Ordering::Relaxed);
    Prospect { read: found >> 1, slow: found & 1 == 1 }
}

/// Reads and copies a little of this process's memory: takes some 50 µs.
fn compare(memory: &mut Memory) -> Option<Prospect> {
    let (source, mut target) = (vec![1u8; SAMPLE_BYTES], vec![0u8; SAMPLE_BYTES]);
    let (mut copied, mut read) = (u64::MAX, u64::MAX);
    for _ in 0..SAMPLE_COUNT {
        let began = cycles();
        black_box(&mut target).copy_from_slice(black_box(&source));
        copied = copied.min(cycles().saturating_sub(began));
        let began = cycles();
        // SAFETY: the target is as long as the sample.
        unsafe { memory.read(source.as_ptr() as u64, target.as_mut_ptr(), SAMPLE_BYTES) }.ok()?;
        read = read.min(cycles().saturating_sub(began));
    }
    Some(Prospect { read: read * 1024 / SAMPLE_BYTES as u64, slow: read > copied.saturating_mul(SLOW_FACTOR) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// By process and by descriptor; a process that is not (any more) there leaves the descriptor.
    #[test]
    fn memory_is_read_by_either_way() {
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let nobody = Pid::from_raw(gone.id() as i32);
        let source: Vec<u8> = (0..5 * PAGE).map(|at| (at / 3) as u8).collect();
        for process in [Some(rustix::process::getpid()), None, nobody] {
            let mut memory = Memory { file: open_own_memory().unwrap().into(), process };
            let mut target = vec![0; source.len()];
            // SAFETY: as long as told.
            unsafe { memory.read(source.as_ptr() as u64, target.as_mut_ptr(), target.len()) }.unwrap();
            assert!(source == target);
            assert_eq!(memory.process, process.filter(|_| process != nobody));
            // Nothing is mapped there.
            // SAFETY: as above.
            assert!(unsafe { memory.read(1 << 46, target.as_mut_ptr(), 8) }.is_err());
        }
    }

    /// Also where Yama restricts it (tier `vm`): a child may not read its parent then.
    #[test]
    fn neighbours_may_read_by_process() {
        let (source, mut target) = ([7u8; 16], [0u8; 16]);
        let parent = rustix::process::getpid().as_raw_nonzero().get();
        allow_readers();
        // SAFETY: the child makes two system calls, on memory of its own, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let local = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: 16 };
            let remote = libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: 16 };
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(libc::process_vm_readv(parent, &raw const local, 1, &raw const remote, 1, 0) != 16)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours to write to.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
