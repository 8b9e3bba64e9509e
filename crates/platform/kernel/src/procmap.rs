//! The mappings of a process by a call for each (`PROCMAP_QUERY`, Linux 6.11): half the time of reading them as text, without names.
//!
//! Source: include/uapi/linux/fs.h.

use mend_freestanding::{check, syscall};

const PROCMAP_QUERY: usize = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// A mapping, as a line of `/proc/PID/maps` tells it but for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First address, and the first after it.
    pub range: (u64, u64),
    /// `PROT_` bits.
    pub protection: u32,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Of the first byte in the file; 0 for private anonymous memory.
    pub offset: u64,
    /// Device (major in the upper half) and inode; (0, 0) for anonymous memory.
    pub identity: (u64, u64),
}

#[repr(C)]
#[derive(Default)]
struct Arguments {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}
const _: () = assert!(size_of::<Arguments>() == 104);

/// The mapping that contains an address, or else the next one; `None` if there is none. `maps` is an open `/proc/PID/maps`. Allocates
/// nothing.
///
/// # Errors
/// The errno: `ENOTTY` where the kernel does not know the call.
pub fn at_or_after(maps: i32, address: u64) -> Result<Option<Mapped>, i32> {
    let mut arguments = Arguments { size: 104, query_flags: COVERING_OR_NEXT, query_addr: address, ..Arguments::default() };
    // SAFETY: reads and writes `arguments`, in which no room for names is given.
    match check(unsafe { syscall(libc::SYS_ioctl, [maps as usize, PROCMAP_QUERY, (&raw mut arguments) as usize, 0, 0, 0]) }) {
        Ok(_) => {}
        Err(libc::ENOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    let protection = [(READABLE, libc::PROT_READ), (WRITABLE, libc::PROT_WRITE), (EXECUTABLE, libc::PROT_EXEC)];
    let bits = protection.map(|(flag, bit)| if arguments.vma_flags & flag != 0 { bit as u32 } else { 0 });
    Ok(Some(Mapped {
        range: (arguments.vma_start, arguments.vma_end),
        protection: bits.into_iter().fold(0, |all, bit| all | bit),
        shared: arguments.vma_flags & SHARED != 0,
        offset: arguments.vma_offset,
        identity: (u64::from(arguments.dev_major) << 32 | u64::from(arguments.dev_minor), arguments.inode),
    }))
}
