//! The address space the restorer starts in: finding out about it, and leaving it.

use crate::report::fail;
use crate::zone::{self, COPY, VDSO_WAITS, ZONE};
use core::format_args as text;
use mend_image::launch::Failure;
use mend_image::record::{Mapping, mapping};
use mend_restore::sys;

const MAX_MAPPINGS: usize = 64;

/// One of the restorer's own mappings.
#[derive(Clone, Copy, Default)]
pub struct Own {
    pub start: u64,
    pub end: u64,
    protection: usize,
    vdso: bool,
    vvar: bool,
    vsyscall: bool,
}

/// What was mapped when the restorer started.
pub struct Space {
    own: [Own; MAX_MAPPINGS],
    count: usize,
}

impl Space {
    /// Reads `/proc/self/maps`.
    pub fn read() -> Self {
        let bytes = zone::take(64 << 10);
        // SAFETY: a NUL-terminated path; flags O_RDONLY.
        let fd = unsafe { sys::call(sys::OPEN, [c"/proc/self/maps".as_ptr() as usize, 0, 0, 0, 0, 0]) };
        let fd = fd.unwrap_or_else(|errno| fail(Failure::Kernel, errno, text!("/proc/self/maps cannot be read; the restorer needs /proc")));
        let mut length = 0;
        while length < bytes.len() {
            let rest = &mut bytes[length..];
            // SAFETY: reads into `rest`.
            match unsafe { sys::call(sys::READ, [fd, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0]) } {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(errno) => fail(Failure::Kernel, errno, text!("/proc/self/maps cannot be read")),
            }
        }
        // SAFETY: a descriptor of our own.
        let _ = unsafe { sys::call(sys::CLOSE, [fd, 0, 0, 0, 0, 0]) };
        let mut space = Self { own: [Own::default(); MAX_MAPPINGS], count: 0 };
        for line in bytes[..length].split(|byte| *byte == b'\n') {
            if let Some(own) = parse(line) {
                if space.count == MAX_MAPPINGS {
                    fail(Failure::Kernel, 0, text!("the restorer finds itself in a crowded address space"));
                }
                space.own[space.count] = own;
                space.count += 1;
            }
        }
        space
    }

    fn iter(&self) -> impl Iterator<Item = &Own> {
        self.own[..self.count].iter()
    }

    /// The kernel's code.
    pub fn vdso(&self) -> Option<&'static [u8]> {
        let own = self.iter().find(|own| own.vdso)?;
        // SAFETY: mapped readable by the kernel; moved only after the last use of this slice.
        Some(unsafe { core::slice::from_raw_parts(own.start as *const u8, (own.end - own.start) as usize) })
    }

    fn kernel_group(&self) -> impl Iterator<Item = &Own> {
        self.iter().filter(|own| own.vdso || own.vvar)
    }

    /// Whether the kernel's mappings here are shaped as the image's.
    pub fn same_shape(&self, image: impl Iterator<Item = Mapping> + Clone) -> bool {
        let wanted = image.filter(|record| record.flags & (mapping::VDSO | mapping::VVAR) != 0);
        let Some(first) = wanted.clone().next() else { return true };
        let Some(base) = self.kernel_group().next() else { return false };
        wanted.clone().count() == self.kernel_group().count()
            && self.kernel_group().zip(wanted).all(|(own, record)| {
                own.start - base.start == record.start.wrapping_sub(first.start)
                    && own.end - own.start == record.end.wrapping_sub(record.start)
                    && own.vdso == (record.flags & mapping::VDSO != 0)
            })
    }

    /// Moves the kernel's mappings aside, the program's own pages into anonymous memory, and unmaps the rest.
    pub fn leave(&self) {
        let base = self.kernel_group().next().map_or(0, |own| own.start);
        for own in self.kernel_group() {
            move_mapping(own.start, own.end - own.start, VDSO_WAITS + (own.start - base));
        }
        for own in self.iter().filter(|own| !own.vdso && !own.vvar && !own.vsyscall) {
            if own.start >= ZONE.0 && own.end <= ZONE.1 {
                if own.start < COPY {
                    become_anonymous(own);
                }
                continue;
            }
            // SAFETY: nothing there is used any more: the stack is static, arguments are parsed.
            if let Err(errno) = unsafe { sys::call(sys::MUNMAP, [own.start as usize, (own.end - own.start) as usize, 0, 0, 0, 0]) } {
                fail(Failure::Kernel, errno, text!("the restorer's own memory at {:#x} cannot be unmapped", own.start));
            }
        }
    }

    /// Puts the kernel's mappings where the image had them, or away.
    pub fn place_kernel_group(&self, image: impl Iterator<Item = Mapping>) {
        let base = self.kernel_group().next().map_or(0, |own| own.start);
        let mut places = image.filter(|record| record.flags & (mapping::VDSO | mapping::VVAR) != 0);
        for own in self.kernel_group() {
            let (waits, length) = (VDSO_WAITS + (own.start - base), own.end - own.start);
            match places.next() {
                Some(place) => move_mapping(waits, length, place.start),
                // SAFETY: nobody uses it.
                None => drop(unsafe { sys::call(sys::MUNMAP, [waits as usize, length as usize, 0, 0, 0, 0]) }),
            }
        }
    }
}

fn move_mapping(from: u64, length: u64, to: u64) {
    // SAFETY: MREMAP_MAYMOVE | MREMAP_FIXED to a place that is free or belongs to the restorer.
    if let Err(errno) = unsafe { sys::call(sys::MREMAP, [from as usize, length as usize, length as usize, 3, to as usize, 0]) } {
        fail(Failure::Kernel, errno, text!("the mapping at {from:#x} cannot be moved to {to:#x}"));
    }
}

/// Replaces pages of the restorer's file by copies: the kernel lets `/proc/self/exe` change only when no page of the old one is mapped.
fn become_anonymous(own: &Own) {
    let length = (own.end - own.start) as usize;
    if let Err(errno) = sys::map_at(COPY, length) {
        fail(Failure::Kernel, errno, text!("no memory for a copy of the restorer"));
    }
    // SAFETY: both ranges are mapped; the copy replaces the original in one step and is equal to it. The stack lies in one of
    // these ranges: between copy and move only `length`, `own` and return addresses are used, which stay as copied.
    unsafe {
        move_self(own.start as usize, length, COPY as usize, own.protection);
    }
}

/// Copies, protects and moves without touching the stack in between.
///
/// # Safety
/// See [`become_anonymous`].
#[unsafe(naked)]
unsafe extern "C" fn move_self(from: usize, length: usize, copy: usize, protection: usize) {
    core::arch::naked_asm!(
        "push rbx",
        "push r12",
        "push r13",
        "mov rbx, rdi",
        "mov r12, rsi",
        "mov r13, rdx",
        "mov r9, rcx",
        "mov rsi, rbx",
        "mov rdi, r13",
        "mov rcx, r12",
        "rep movsb",
        "mov eax, 10", // mprotect(copy, length, protection)
        "mov rdi, r13",
        "mov rsi, r12",
        "mov rdx, r9",
        "syscall",
        "mov eax, 25", // mremap(copy, length, length, MAYMOVE | FIXED, from)
        "mov rdi, r13",
        "mov rsi, r12",
        "mov rdx, r12",
        "mov r10d, 3",
        "mov r8, rbx",
        "syscall",
        "pop r13",
        "pop r12",
        "pop rbx",
        "ret",
    )
}

/// "start-end perm offset dev inode   name"
fn parse(line: &[u8]) -> Option<Own> {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let (range, permissions) = (words.next()?, words.next()?);
    let name = words.nth(3).unwrap_or_default();
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let bit = |letter: u8, bit: usize| if permissions.contains(&letter) { bit } else { 0 };
    Some(Own {
        start: hexadecimal(&range[..dash])?,
        end: hexadecimal(&range[dash + 1..])?,
        protection: bit(b'r', 1) | bit(b'w', 2) | bit(b'x', 4),
        vdso: name == b"[vdso]",
        vvar: name == b"[vvar]" || name == b"[vvar_vclock]",
        vsyscall: name == b"[vsyscall]",
    })
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok()
}
