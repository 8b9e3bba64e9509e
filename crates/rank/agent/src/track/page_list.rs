//! Lists with room for an item per page of the program, in memory of their own that is not saved. A scan fills them while the agent may
//! allocate nothing; nothing else changes them.

use core::marker::PhantomData;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Memory for `capacity` items. Any bytes, zeros above all, must be valid for them.
pub(super) struct PageList<T: Copy> {
    base: usize,
    capacity: usize,
    /// With copies of the process, too.
    shared: bool,
    items: PhantomData<T>,
}

/// A list as it is lent to a scan: the same memory, borrowed by nobody else meanwhile.
#[derive(Clone, Copy)]
pub(super) struct LentPages<T: Copy> {
    base: usize,
    capacity: usize,
    items: PhantomData<T>,
}

/// Plain words: all that lists hold.
pub(super) trait Words: Copy {}

impl<T: Words> PageList<T> {
    pub const EMPTY: Self = Self { base: 0, capacity: 0, shared: false, items: PhantomData };
    /// What a copy of the process writes to it is in the list of both.
    pub const SHARED: Self = Self { shared: true, ..Self::EMPTY };

    /// Bytes of the mapping.
    fn length(&self) -> usize {
        (self.capacity * size_of::<T>()).next_multiple_of(4096)
    }

    /// Makes room for this many items; the old ones are lost if there was too little. Memory is taken page by page as it
    /// fills.
    pub fn reserve(&mut self, items: usize) -> Result<(), Errno> {
        if items <= self.capacity {
            return Ok(());
        }
        self.release();
        let length = (items * size_of::<T>()).next_multiple_of(4096);
        let sharing = if self.shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, sharing | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), length, protection, flags)? };
        (self.base, self.capacity) = (base as usize, items);
        Ok(())
    }

    /// Address range; empty if there is none.
    pub fn range(&self) -> (u64, u64) {
        (self.base as u64, (self.base + self.length()) as u64)
    }

    pub fn lend(&self) -> LentPages<T> {
        LentPages { base: self.base, capacity: self.capacity, items: PhantomData }
    }

    /// Gives the memory back, but not the addresses.
    pub fn empty(&self) {
        if self.capacity != 0 {
            // SAFETY: this list's own mapping, of which nobody has a slice now.
            let _ = unsafe {
                madvise(self.base as *mut _, self.length(), if self.shared { Advice::LinuxRemove } else { Advice::LinuxDontNeed })
            };
        }
    }

    fn release(&mut self) {
        if self.capacity != 0 {
            // SAFETY: this list's own mapping, of which nobody has a slice now.
            let _ = unsafe { munmap(self.base as *mut _, self.length()) };
        }
        self.forget();
    }

    /// In a restored process, where the mapping is somebody else's to remove.
    pub fn forget(&mut self) {
        (self.base, self.capacity) = (0, 0);
    }
}

impl<T: Words> LentPages<T> {
    /// The first `count` items.
    ///
    /// # Safety
    /// The list must outlive the slice, and nobody may write to it meanwhile.
    pub unsafe fn items(&self, count: usize) -> &'static [T] {
        if self.capacity == 0 {
            return &[];
        }
        // SAFETY: mapped, zeroed at first, plain words; the caller answers for the rest.
        unsafe { core::slice::from_raw_parts(self.base as *const T, count.min(self.capacity)) }
    }

    /// Puts an item at a place. False if there is no room for it.
    ///
    /// # Safety
    /// The list must still be there, and nobody may have a slice of it.
    pub unsafe fn put(&self, at: usize, item: T) -> bool {
        if at >= self.capacity {
            return false;
        }
        // SAFETY: within the mapping; the caller answers for the rest.
        unsafe { (self.base as *mut T).add(at).write(item) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    impl Words for u64 {}

    #[test]
    fn a_list_grows_and_holds_no_more_than_it_says() {
        let mut list = PageList::<u64>::EMPTY;
        list.reserve(10).unwrap();
        let small = list.range();
        let lent = list.lend();
        // SAFETY: nobody has a slice.
        unsafe {
            assert!(lent.put(9, 7));
            assert!(!lent.put(10, 7));
            assert_eq!(lent.items(99).len(), 10);
            assert_eq!(lent.items(10)[9], 7);
        }
        list.reserve(5).unwrap();
        assert_eq!(list.range(), small);
        list.reserve(10_000).unwrap();
        assert_ne!(list.range().1 - list.range().0, small.1 - small.0);
        list.empty();
        list.release();
        assert_eq!(list.range(), (0, 0));
    }
}
