//! The address space at one moment, and whether it has changed since.

use crate::allocator;
use crate::memory::maps::{self, Area};
use mend_kernel::procmap::{self, Mapped};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The address space at one moment: the text of `/proc/self/maps`, and what it says.
pub(crate) struct AddressSpace {
    text: Vec<u8>,
    pub areas: Vec<Area>,
    /// What the allocator had changed when it was so.
    changes: Option<u64>,
    /// Names of files are those of a moment when the program ran.
    pub recent: bool,
}

impl AddressSpace {
    /// Reads it.
    pub fn read() -> io::Result<Self> {
        let changes = allocator::changes();
        let text = maps::text()?;
        let areas = maps::parse_all(&text)?;
        Ok(Self { text, areas, changes, recent: false })
    }

    /// The one that was read while the program ran, if the process has the same mappings still; else a new one. The threads stand still.
    pub fn recent_or_new(space: Option<Self>, maps: BorrowedFd) -> io::Result<Self> {
        let changes = allocator::changes();
        match space {
            Some(space) if space.unchanged(maps)? => Ok(Self { changes, recent: true, ..space }),
            _ => Self::read(),
        }
    }

    /// The same as [`AddressSpace::unchanged`], while the threads stand still: mappings are changed by nothing but the agent's allocator then.
    pub fn unchanged_while_quiesced(&self, maps: BorrowedFd) -> io::Result<bool> {
        let still = self.changes.is_some() && self.changes == allocator::changes();
        debug_assert!(!still || self.unchanged(maps).unwrap_or(true));
        if still { Ok(true) } else { self.unchanged(maps) }
    }

    /// Whether the process has the same mappings still, as its open `/proc/self/maps` tells. Allocates nothing. What other processes may
    /// change at any time, names of files, is not compared where mappings can be asked for without.
    pub fn unchanged(&self, maps: BorrowedFd) -> io::Result<bool> {
        let mut at = 0;
        for area in self.areas.iter().filter(|area| area.name != "[vsyscall]") {
            let expected = Mapped {
                range: (area.start, area.end),
                protection: area.protection,
                shared: area.shared,
                offset: area.offset,
                identity: area.identity,
            };
            match procmap::at_or_after(maps.as_raw_fd(), at) {
                Ok(Some(found)) if found == expected => at = area.end,
                Ok(_) => return Ok(false),
                Err(_) => return Ok(hash_of(maps)? == xxh3_64(&self.text)),
            }
        }
        Ok(procmap::at_or_after(maps.as_raw_fd(), at) == Ok(None))
    }
}

/// Reads a `/proc` file from its start without allocating.
fn hash_of(file: BorrowedFd) -> io::Result<u64> {
    let mut hash = Xxh3::new();
    let (mut at, mut buffer) = (0, [0; 16 << 10]);
    loop {
        match rustix::io::pread(file, &mut buffer, at) {
            Ok(0) => return Ok(hash.digest()),
            Ok(count) => {
                hash.update(&buffer[..count]);
                at += count as u64;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pages::PAGE;
    use rustix::fd::AsFd;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use std::fs::File;

    #[test]
    fn a_space_lasts_until_a_mapping_changes() {
        // Other tests map what they like meanwhile, so a child whose threads are no more is examined.
        let none = core::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { mmap_anonymous(none, 3 * PAGE as usize, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap();
        let (first, last) = (page, page.wrapping_byte_add(2 * PAGE as usize));
        // SAFETY: the child makes system calls and allocates by Rust's allocator alone, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let told = std::panic::catch_unwind(|| {
                let maps = File::open("/proc/self/maps").unwrap();
                let mut lasted = Vec::with_capacity(3);
                // To read it takes memory until there is enough.
                let mut read = (0..50).map(|_| AddressSpace::read().unwrap());
                let space = read.find(|space| space.unchanged(maps.as_fd()).unwrap()).unwrap();
                // Not writable meanwhile: older kernels would remember that, and leave it a mapping of its own.
                // SAFETY: pages of the mapping made above, to which nobody refers.
                unsafe { mprotect(first, PAGE as usize, MprotectFlags::empty()) }.unwrap();
                lasted.push(space.unchanged(maps.as_fd()).unwrap());
                // SAFETY: as above.
                unsafe { mprotect(first, PAGE as usize, MprotectFlags::READ) }.unwrap();
                lasted.push(space.unchanged(maps.as_fd()).unwrap());
                // SAFETY: as above.
                unsafe { munmap(last, PAGE as usize) }.unwrap();
                lasted.push(space.unchanged(maps.as_fd()).unwrap());
                lasted == [false, true, false]
            });
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!told.is_ok_and(|good| good))) };
        }
        let mut status = 0;
        // SAFETY: writes the status of the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        // SAFETY: the mapping made above.
        unsafe { munmap(page, 3 * PAGE as usize) }.unwrap();
    }
}
