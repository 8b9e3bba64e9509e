//! Memory of tests.

const PAGE_SIZE: u64 = 4096;

/// Readable and writable pages, none of them populated, between two that are neither: threads of other tests fill huge pages, and one
/// of those may reach into a mapping that the kernel has joined with theirs.
pub fn apart(pages: u64) -> u64 {
    let length = ((pages + 2) * PAGE_SIZE) as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, advice on it, and its protection.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        libc::madvise(base, length, libc::MADV_NOHUGEPAGE);
        let start = base.wrapping_byte_add(PAGE_SIZE as usize);
        assert_eq!(libc::mprotect(start, (pages * PAGE_SIZE) as usize, libc::PROT_READ | libc::PROT_WRITE), 0);
        start as u64
    }
}
