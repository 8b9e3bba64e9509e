//! Shared copies: copies of memory that a copy of the process would share with the program. They are made while the threads stand still;
//! the copy of the process writes them in the background.
//!
//! To copy a page takes a tenth of the time that it takes to write it, since the memory for it was made ready while the program ran. What
//! does not fit is written at once.
//!
//! ```text
//! memory: ┌ payloads, one after the other ─► ...        ... ◄─ kind, index, address and length of each record ┐
//! ```
//! Source: madvise(2), `MADV_POPULATE_WRITE` (Linux 5.14).

use crate::memory::pages::PAGE;
use mend_image::record::Kind;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Most bytes that are made ready.
const MAX_READY_BYTES: u64 = 16 << 20;
/// Bytes beside that for what comes until the threads stand still, and for what tells of the payloads.
const SLACK_BYTES: usize = 256 << 10;

/// Memory for shared copies, made ready while the program runs.
pub(crate) struct SharedCopyMemory {
    base: usize,
    length: usize,
}

/// Which record a payload belongs to.
#[derive(Clone, Copy)]
struct Entry {
    kind: Kind,
    index: u32,
    address: u64,
    length: usize,
}

/// What is in a [`SharedCopyMemory`].
#[derive(Clone, Copy)]
pub(crate) struct SharedCopies {
    base: usize,
    end: usize,
    filled: usize,
    entries: usize,
}

impl SharedCopyMemory {
    /// Maps and populates memory for so many pages and some more.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` or `EFAULT` where it cannot be populated.
    pub fn new(pages: u64) -> Result<Self, Errno> {
        let length = (pages * PAGE).min(MAX_READY_BYTES) as usize + SLACK_BYTES;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), length, protection, flags)? } as usize;
        let memory = Self { base, length };
        // SAFETY: advice on the mapping made above, which nobody else knows.
        unsafe { madvise(base as *mut _, length, Advice::LinuxPopulateWrite)? };
        Ok(memory)
    }

    /// Address range, not to be saved.
    pub fn range(&self) -> (u64, u64) {
        (self.base as u64, (self.base + self.length) as u64)
    }

    /// Nothing is in it yet.
    ///
    /// # Safety
    /// The memory outlives what is put into it, in this process and in those that share its memory, and is lent once.
    pub unsafe fn lend(&self) -> SharedCopies {
        SharedCopies { base: self.base, end: self.base + self.length, filled: 0, entries: 0 }
    }
}

impl Drop for SharedCopyMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, no longer borrowed.
        let _ = unsafe { munmap(self.base as *mut _, self.length) };
    }
}

impl SharedCopies {
    /// Copies a record's payload. False if it does not fit.
    pub fn put(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> bool {
        if self.filled + payload.len() + (self.entries + 1) * size_of::<Entry>() > self.end - self.base {
            return false;
        }
        // SAFETY: within the memory, which was lent to this alone, below all entries.
        unsafe {
            core::ptr::copy_nonoverlapping(payload.as_ptr(), (self.base + self.filled) as *mut u8, payload.len());
            self.entry(self.entries).write_unaligned(Entry { kind, index, address, length: payload.len() });
        }
        self.filled += payload.len();
        self.entries += 1;
        true
    }

    /// Calls with each record, in order.
    pub fn each<E>(&self, mut each: impl FnMut(Kind, u32, u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut at = self.base;
        for number in 0..self.entries {
            // SAFETY: both were written by `put`.
            let (entry, payload) = unsafe {
                let entry = self.entry(number).read_unaligned();
                (entry, core::slice::from_raw_parts(at as *const u8, entry.length))
            };
            each(entry.kind, entry.index, entry.address, payload)?;
            at += entry.length;
        }
        Ok(())
    }

    fn entry(&self, number: usize) -> *mut Entry {
        (self.end as *mut Entry).wrapping_sub(number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_come_back_in_order_until_the_memory_is_full() {
        let memory = SharedCopyMemory::new(3).unwrap();
        // SAFETY: lent once, and used while the memory is there.
        let mut copies = unsafe { memory.lend() };
        let payload = |number: u64| vec![number as u8; (number as usize * 977) % 9000];
        let mut fitted = 0;
        while copies.put(Kind::Bytes, fitted as u32 + 1, fitted << 12, &payload(fitted)) {
            fitted += 1;
        }
        assert!(fitted > 20);
        let mut seen = 0;
        let told: Result<(), ()> = copies.each(|kind, index, address, bytes| {
            assert_eq!((kind, index, address), (Kind::Bytes, seen as u32 + 1, seen << 12));
            assert_eq!(bytes, payload(seen));
            seen += 1;
            Ok(())
        });
        assert_eq!((told, seen), (Ok(()), fitted));
    }
}
