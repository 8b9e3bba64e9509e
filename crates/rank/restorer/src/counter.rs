//! The number after which the kernel counts up ids in this PID namespace (`ns_last_pid`): how a thread without privileges makes
//! another with the id that it is to have, if somebody with privileges turns the counter for it.
//!
//! Other ranks share the namespace. While one restorer turns the counter, others wait (a lock on the namespace itself), and in the end
//! it is where it was: what is counted up otherwise must not come near ids that belong to a rank.

use mend_restore::sys;

const COUNTER: &[u8] = b"/proc/sys/kernel/ns_last_pid\0";
const NAMESPACE: &[u8] = b"/proc/self/ns/pid\0";
const READ_WRITE: usize = 0o2_000_002; // O_RDWR | O_CLOEXEC
const READ_ONLY: usize = 0o2_000_000;
const LOCK_EX: usize = 2;

/// Nobody turns the counter while this lives: a thread that may have any id must not get one that another rank is about to get.
pub struct Unturned {
    namespace: Option<usize>,
}

impl Unturned {
    /// Waits until whoever turns it is done. Where there is no lock to be had, nobody can turn it.
    pub fn wait() -> Self {
        let namespace = open(NAMESPACE, READ_ONLY);
        if let Some(namespace) = namespace {
            // SAFETY: an open descriptor.
            let _ = unsafe { sys::call(sys::FLOCK, [namespace, LOCK_EX, 0, 0, 0, 0]) };
        }
        Self { namespace }
    }
}

impl Drop for Unturned {
    fn drop(&mut self) {
        if let Some(namespace) = self.namespace {
            // And the lock.
            close(namespace);
        }
    }
}

/// The counter, and what it was.
pub struct Counter {
    file: usize,
    namespace: usize,
    before: ([u8; 16], usize),
}

impl Counter {
    /// `None` if it cannot be had here.
    pub fn open() -> Option<Self> {
        let namespace = open(NAMESPACE, READ_ONLY)?;
        let Some(file) = open(COUNTER, READ_WRITE) else {
            close(namespace);
            return None;
        };
        let mut counter = Self { file, namespace, before: ([0; 16], 0) };
        let text = &mut counter.before.0;
        // SAFETY: open descriptors; pread writes at most the length of `text`.
        counter.before.1 = unsafe {
            sys::call(sys::FLOCK, [namespace, LOCK_EX, 0, 0, 0, 0]).ok()?;
            sys::call(sys::PREAD, [file, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]).ok()?
        };
        Some(counter)
    }

    /// Lets the next id be the one after this. Takes the privilege over the namespace.
    pub fn set(&self, last: u32) -> bool {
        let (mut text, mut at, mut rest) = ([0; 16], 16, last);
        loop {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break self.write(&text[at..]);
            }
        }
    }

    /// Back to what it was.
    pub fn put_back(&self) {
        self.write(&self.before.0[..self.before.1]);
    }

    fn write(&self, text: &[u8]) -> bool {
        // SAFETY: an open descriptor; reads `text`.
        unsafe { sys::call(sys::PWRITE, [self.file, text.as_ptr() as usize, text.len(), 0, 0, 0]) }.is_ok()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        close(self.file);
        // And the lock.
        close(self.namespace);
    }
}

fn open(path: &[u8], flags: usize) -> Option<usize> {
    // SAFETY: the path ends with a NUL.
    unsafe { sys::call(sys::OPEN, [path.as_ptr() as usize, flags, 0, 0, 0, 0]) }.ok()
}

fn close(file: usize) {
    // SAFETY: our own descriptor, closed once.
    let _ = unsafe { sys::call(sys::CLOSE, [file, 0, 0, 0, 0, 0]) };
}
