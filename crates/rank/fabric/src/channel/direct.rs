//! The receiver's memory, as the sender of a channel on the same node reads and writes it for one-sided operations: by process,
//! without the receiver's taking part.
//!
//! ```text
//! sender                                            receiver
//!   WRITE or READ that asks ──────────────────────►   is the region there, and this rank not suspended?
//!   ◄──────────────────────── GRANT (or of nothing), then the answer
//!   word of the ring as granted, and not barred? (Barred: later.)
//!   process_vm_writev / process_vm_readv ═══════════► memory
//!   version still the same? done; else WRITE or READ
//! ```
//! The word is the receiver's: a version, raised before the end of any region, and a bit that bars while its rank is suspended.
//! A grant is good for one version. Grants end with the channel.
//!
//! The receiver is untrusted. Its process is the one at the other end of the socket, by the kernel's word; a false grant
//! or version leads to places in that process's own memory alone.

use crate::engine::buffers::{MAX_SEGMENTS, Segment};
use crate::engine::{Grant, Reached, RegionAccess};
use mend_kernel::namespaces::peer_of;
use rustix::fd::BorrowedFd;
use rustix::process::Pid;
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

/// Set in the word while nothing may be touched.
const BARRED: u64 = 1;
/// Regions of a peer that are known at a time. A program that uses more asks again.
const MAX_KEYS: usize = 4096;

/// The word for a version.
pub fn word(version: u64, barred: bool) -> u64 {
    version << 1 | if barred { BARRED } else { 0 }
}

/// See the module.
#[derive(Debug)]
pub struct Target {
    /// As long as nothing stands in the way of reaching its memory.
    process: Option<Pid>,
    /// Version that `keys` belongs to.
    version: u64,
    /// What was asked for, and granted.
    keys: HashMap<u64, Option<Grant>>,
}

impl Target {
    /// The process that `socket` leads to.
    pub fn new(socket: BorrowedFd<'_>) -> Self {
        Self::of(peer_of(socket).ok().and_then(|(_, process)| process))
    }

    fn of(process: Option<Pid>) -> Self {
        Self { process, version: 0, keys: HashMap::new() }
    }

    /// True if it can be named, so that it can name us, too.
    pub fn is_named(&self) -> bool {
        self.process.is_some()
    }

    /// What is known under another version is known no more. False: nothing may be touched.
    fn look(&mut self, word: u64) -> bool {
        let version = word >> 1;
        if version != self.version {
            self.version = version;
            self.keys.clear();
        }
        word & BARRED == 0
    }

    /// True if the receiver is to be asked for a grant.
    pub fn ask(&mut self, key: u64, word: u64) -> bool {
        if self.process.is_none() || !self.look(word) || self.keys.contains_key(&key) {
            return false;
        }
        if self.keys.len() == MAX_KEYS {
            self.keys.clear();
        }
        self.keys.insert(key, None);
        true
    }

    /// The answer. What was not asked for is not kept; what is of another version by now, or grants nothing, may be asked for again.
    pub fn grant(&mut self, key: u64, grant: Grant, word: u64) {
        self.look(word);
        if self.keys.remove(&key).is_some() && grant.version == self.version && grant.access != 0 {
            self.keys.insert(key, Some(grant));
        }
    }

    /// True if this region was granted and may be so still.
    pub fn granted(&self, key: u64) -> bool {
        self.process.is_some() && matches!(self.keys.get(&key), Some(Some(_)))
    }

    /// Reads or writes all of `local`.
    ///
    /// # Safety
    /// `local` is lent by the application for this.
    pub unsafe fn access(&mut self, wanted: &RegionAccess, local: &[Segment], word: impl Fn() -> u64) -> Reached {
        let Some(process) = self.process else { return Reached::Not };
        let barred = !self.look(word());
        let length = local.iter().map(|segment| segment.len).sum();
        let granted = self.keys.get(&wanted.key).and_then(Option::as_ref).and_then(|grant| grant.locate(wanted, length));
        let Some(base) = granted.filter(|_| local.len() <= MAX_SEGMENTS) else { return Reached::Not };
        if barred {
            return Reached::Later;
        }
        let remote = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: length };
        let entry = |segment: &Segment| libc::iovec { iov_base: segment.base.cast(), iov_len: segment.len };
        let mut list = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_SEGMENTS];
        for (to, segment) in list.iter_mut().zip(local) {
            *to = entry(segment);
        }
        let (process, count) = (process.as_raw_nonzero().get(), local.len() as libc::c_ulong);
        // SAFETY: the kernel touches what the caller vouches for, and checks the rest.
        let moved = unsafe {
            match wanted.write {
                true => libc::process_vm_writev(process, list.as_ptr(), count, &raw const remote, 1, 0),
                false => libc::process_vm_readv(process, list.as_ptr(), count, &raw const remote, 1, 0),
            }
        };
        if moved < 0 {
            let error = std::io::Error::last_os_error().raw_os_error();
            // Others than those of the place itself are lasting: not allowed (Yama, seccomp), or not that process any more.
            if !matches!(error, Some(libc::EFAULT | libc::ENOMEM)) {
                self.process = None;
            }
        }
        // What was moved was moved before the word is looked at. The bar may have come meanwhile: what is saved of the receiver is
        // saved when this rank has let go of the channel.
        fence(Ordering::SeqCst);
        self.look(word());
        if usize::try_from(moved) == Ok(length) && self.granted(wanted.key) { Reached::Done } else { Reached::Not }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use mend_fabric_sys::{FI_REMOTE_READ, FI_REMOTE_WRITE};
    use std::cell::Cell;

    const KEY: u64 = 9;

    fn own() -> Target {
        Target::of(Some(rustix::process::getpid()))
    }

    fn grant(memory: &mut [u8], version: u64) -> Grant {
        Grant { base: memory.as_mut_ptr() as u64, length: memory.len() as u64, access: FI_REMOTE_READ | FI_REMOTE_WRITE, version }
    }

    fn granted(memory: &mut [u8]) -> Target {
        let mut target = own();
        assert!(target.ask(KEY, 0) && !target.ask(KEY, 0));
        target.grant(KEY, grant(memory, 0), 0);
        target
    }

    fn access(target: &mut Target, write: bool, address: u64, local: &mut [u8], word: impl Fn() -> u64) -> Reached {
        let cut = local.len() / 3;
        let (one, other) = local.split_at_mut(cut);
        let segments = [Segment { base: one.as_mut_ptr(), len: one.len() }, Segment { base: other.as_mut_ptr(), len: other.len() }];
        // SAFETY: both are this test's.
        unsafe { target.access(&RegionAccess { write, key: KEY, address }, &segments, word) }
    }

    fn done(target: &mut Target, write: bool, address: u64, local: &mut [u8], word: impl Fn() -> u64) -> bool {
        access(target, write, address, local, word) == Reached::Done
    }

    #[test]
    fn memory_is_reached_within_what_was_granted() {
        let mut memory: Vec<u8> = (0..10_000).map(|at| (at / 7) as u8).collect();
        let mut target = granted(&mut memory);
        let mut read = vec![0; 5000];
        assert!(done(&mut target, false, 100, &mut read, || 0));
        assert_eq!(read, memory[100..5100]);
        read.fill(9);
        assert!(done(&mut target, true, 5000, &mut read, || 0));
        assert!(memory[5000..].iter().all(|byte| *byte == 9) && memory[4999] != 9);
        for address in [5001, 10_000, 10_001, u64::MAX, u64::MAX - 4999] {
            assert!(!done(&mut target, true, address, &mut read, || 0));
        }
        // For reading only.
        target.keys.insert(KEY, Some(Grant { access: FI_REMOTE_READ, ..grant(&mut memory, 0) }));
        assert!(!done(&mut target, true, 0, &mut read, || 0) && done(&mut target, false, 0, &mut read, || 0));
    }

    #[test]
    fn a_newer_version_and_the_bar_end_it() {
        let mut memory = vec![1; 64];
        let mut target = granted(&mut memory);
        let mut local = [0; 64];
        assert_eq!(access(&mut target, false, 0, &mut local, || word(0, true)), Reached::Later);
        assert_eq!(access(&mut target, false, 65, &mut local, || word(0, true)), Reached::Not);
        assert!(done(&mut target, false, 0, &mut local, || word(0, false)));
        // The bar comes after the first look: what was done is done.
        let looks = Cell::new(0);
        assert!(done(&mut target, false, 0, &mut local, || looks.replace(word(0, true))));
        // It changes after the first look: what was read does not count.
        let looks = Cell::new(0);
        let changes = || looks.replace(word(1, false));
        assert!(!done(&mut target, false, 0, &mut local, changes));
        assert!(!done(&mut target, false, 0, &mut local, || word(1, false)));
        // An answer of yesterday, one that nobody asked for, and one while it is barred.
        target.grant(KEY, grant(&mut memory, 1), word(1, false));
        assert!(!done(&mut target, false, 0, &mut local, || word(1, false)));
        assert!(!target.ask(KEY, word(1, true)) && target.ask(KEY, word(1, false)));
        target.grant(KEY, grant(&mut memory, 0), word(1, false));
        assert!(!done(&mut target, false, 0, &mut local, || word(1, false)) && target.ask(KEY, word(1, false)));
        target.grant(KEY, Grant { access: 0, ..grant(&mut memory, 1) }, word(1, false));
        assert!(!done(&mut target, false, 0, &mut local, || word(1, false)) && target.ask(KEY, word(1, false)));
        target.grant(KEY, grant(&mut memory, 1), word(1, false));
        assert!(done(&mut target, false, 0, &mut local, || word(1, false)));
    }

    #[test]
    fn what_cannot_be_reached_goes_by_packets() {
        let mut memory = vec![1; 64];
        let mut local = [0; 64];
        // Nothing is mapped there, which says nothing of other places.
        let mut target = granted(&mut memory);
        target.keys.insert(KEY, Some(Grant { base: 1 << 46, ..grant(&mut memory, 0) }));
        assert!(!done(&mut target, true, 0, &mut local, || 0) && target.process.is_some());
        target.keys.insert(KEY, Some(Grant { base: u64::MAX - 8, length: u64::MAX, ..grant(&mut memory, 0) }));
        assert!(!done(&mut target, true, 0, &mut local, || 0) && !done(&mut target, true, 9, &mut local, || 0));
        target.keys.insert(KEY, Some(grant(&mut memory, 0)));
        assert!(done(&mut target, false, 0, &mut local, || 0));
        // The process has ended: it is not tried again.
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        target.process = Pid::from_raw(gone.id() as i32);
        assert!(!done(&mut target, false, 0, &mut local, || 0) && target.process.is_none());
        assert!(!target.ask(7, 0));
        // It was never known.
        assert!(!Target::of(None).ask(KEY, 0));
    }

    #[test]
    fn keys_are_bounded() {
        let mut target = own();
        for key in 0..3 * MAX_KEYS as u64 {
            assert!(target.ask(key, 0));
        }
        assert!(target.keys.len() <= MAX_KEYS);
    }
}
