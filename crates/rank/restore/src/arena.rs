//! Memory for tables and lists: parts of one range of addresses, handed out and never taken back one by one.

use crate::RestoreError;
use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering};
use mend_image::ranges::Range;

const ENOMEM: i32 = 12;

/// What may come from zeroed memory.
///
/// # Safety
/// Zeros are a valid value.
pub unsafe trait Zeroed: Copy {}

// SAFETY: two numbers.
unsafe impl Zeroed for Range {}

/// See the module.
pub struct Arena {
    start: u64,
    end: u64,
    next: AtomicU64,
    /// The kernel keeps the range free for it.
    reserved: bool,
}

impl Arena {
    /// One at addresses at which nobody else maps anything: what is in the way there makes [`Arena::take`] fail. It stays for ever.
    #[must_use]
    pub const fn at(start: u64, end: u64) -> Self {
        Self { start, end, next: AtomicU64::new(start), reserved: false }
    }

    /// One wherever there is room for so many bytes; only what is taken of it uses memory. Unmapped when it is dropped.
    ///
    /// # Errors
    /// [`RestoreError::Tables`] if the address space has no such room.
    pub fn reserve(length: usize) -> Result<Self, RestoreError<'static>> {
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
        let length = length.next_multiple_of(4096);
        // SAFETY: a new mapping, without access, wherever the kernel likes.
        let start = unsafe { sys::call(sys::MMAP, [0, length, 0, flags, usize::MAX, 0]) };
        let start = start.map_err(|errno| RestoreError::Tables { length, errno })? as u64;
        Ok(Self { start, end: start + length as u64, next: AtomicU64::new(start), reserved: true })
    }

    /// New zeroed memory, page-aligned.
    ///
    /// # Errors
    /// [`RestoreError::Tables`] if there is no memory, or no room in the range.
    #[expect(clippy::mut_from_ref, reason = "each part is handed out once")]
    pub fn take(&self, length: usize) -> Result<&mut [u8], RestoreError<'static>> {
        let rounded = length.max(1).next_multiple_of(4096);
        let address = self.next.fetch_add(rounded as u64, Ordering::Relaxed);
        let got = match address.checked_add(rounded as u64) {
            Some(end) if end > self.end => Err(ENOMEM),
            None => Err(ENOMEM),
            Some(_) if self.reserved => {
                // SAFETY: makes a part of this arena's own mapping accessible that nobody uses yet.
                unsafe { sys::call(sys::MPROTECT, [address as usize, rounded, sys::PROT_READ | sys::PROT_WRITE, 0, 0, 0]) }.map(drop)
            }
            Some(_) => sys::map_at(address, rounded),
        };
        got.map_err(|errno| RestoreError::Tables { length, errno })?;
        // SAFETY: accessible as of now, zeroed, handed out once; it stays as long as the arena.
        Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut u8, length) })
    }

    /// New memory for so many items.
    ///
    /// # Errors
    /// As for [`Arena::take`].
    #[expect(clippy::mut_from_ref, reason = "each part is handed out once")]
    pub fn take_array<T: Zeroed>(&self, count: usize) -> Result<&mut [T], RestoreError<'static>> {
        let bytes = self.take(count * size_of::<T>())?;
        // SAFETY: page-aligned, zeroed (a valid item, says the trait), as long as needed, handed out once.
        Ok(unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) })
    }

    /// First address after what was handed out.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.reserved {
            // SAFETY: this arena's own mapping; what was handed out of it borrows from it.
            let _ = unsafe { sys::call(sys::MUNMAP, [self.start as usize, (self.end - self.start) as usize, 0, 0, 0, 0]) };
        }
    }
}
