//! The restorer's program in this process's memory: mapped as execve(2) would map it, with what it finds on its stacks.

use mend_image::ZONES;
use mend_image::handoff::Rollback;
use object::LittleEndian;
use object::elf::{FileHeader64, PF_R, PF_W, PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::os::raw::c_void;

const PAGE: u64 = 4096;
/// The restorer is small; its headers lie at the file's start.
const HEADER_BYTES: usize = 4096;
/// Where in the zone the list of threads and the stacks lie: behind the program, before what it maps itself.
const BLOCK_OFFSET: u64 = 1 << 30;
const STACK_BYTES: u64 = 8192;
/// For the restorer's arguments and the words of its first stack.
const ARGUMENT_BYTES: u64 = 64 << 10;
const ROLLBACK_BYTES: u64 = (size_of::<Rollback>() as u64).next_multiple_of(PAGE);

/// Why the restorer cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MapError {
    #[error("there are no addresses with the number {0} to work in")]
    Zone(u32),
    #[error("the restorer's file cannot be read: {0}")]
    Read(Errno),
    #[error("the restorer's file is none")]
    Form,
    #[error("the restorer cannot be mapped, or the program has memory where it works: {0}")]
    Map(Errno),
}

fn zone(number: u32) -> Result<(u64, u64), MapError> {
    ZONES.get(number as usize).copied().ok_or(MapError::Zone(number))
}

/// Maps the program. Returns its entry.
pub(super) fn map(file: BorrowedFd, number: u32) -> Result<u64, MapError> {
    let (start, end) = zone(number)?;
    let mut bytes = vec![0; HEADER_BYTES];
    let length = rustix::io::pread(file, &mut bytes, 0).map_err(MapError::Read)?;
    let bytes = &bytes[..length];
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(|_| MapError::Form)?;
    let endian = header.endian().map_err(|_| MapError::Form)?;
    let segments = header.program_headers(endian, bytes).map_err(|_| MapError::Form)?;
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        load(file, segment, endian, (start, start + BLOCK_OFFSET.min(end - start)))?;
    }
    let entry = header.e_entry(endian);
    if (start..end).contains(&entry) { Ok(entry) } else { Err(MapError::Form) }
}

fn load(file: BorrowedFd, segment: &ProgramHeader64<LittleEndian>, endian: LittleEndian, within: (u64, u64)) -> Result<(), MapError> {
    let address = segment.p_vaddr(endian);
    let (in_file, in_memory) = (segment.p_filesz(endian), segment.p_memsz(endian));
    let last = address.checked_add(in_memory).ok_or(MapError::Form)?;
    if address < within.0 || last > within.1 || in_file > in_memory {
        return Err(MapError::Form);
    }
    let flags = segment.p_flags(endian);
    let bit = |flag, bit| if flags & flag != 0 { bit } else { ProtFlags::empty() };
    let protection = bit(PF_R, ProtFlags::READ) | bit(PF_W, ProtFlags::WRITE) | bit(PF_X, ProtFlags::EXEC);
    let (first, skipped) = (address / PAGE * PAGE, address % PAGE);
    let file_end = (address + in_file).next_multiple_of(PAGE);
    let fixed = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    if in_file > 0 {
        let length = (file_end - first) as usize;
        let offset = segment.p_offset(endian).checked_sub(skipped).ok_or(MapError::Form)?;
        // SAFETY: replaces nothing.
        let mapped = unsafe { mmap(first as *mut c_void, length, protection, fixed, file, offset) };
        mapped.map_err(MapError::Map)?;
        if in_memory > in_file {
            // SAFETY: the rest of the last page of a writable segment, mapped just now.
            unsafe {
                std::ptr::write_bytes(
                    (address + in_file) as *mut u8,
                    0,
                    (file_end.min(last.next_multiple_of(PAGE)) - address - in_file) as usize,
                )
            };
        }
    }
    let (from, to) = (if in_file > 0 { file_end } else { first }, last.next_multiple_of(PAGE));
    if to > from {
        // SAFETY: as above.
        unsafe { mmap_anonymous(from as *mut c_void, (to - from) as usize, protection, fixed) }.map_err(MapError::Map)?;
    }
    Ok(())
}

/// Unmaps all of it.
pub(super) fn unmap(number: u32) {
    if let Ok((start, end)) = zone(number) {
        // SAFETY: the zone is empty but for what was mapped here; nobody runs there.
        let _ = unsafe { munmap(start as *mut c_void, (end - start) as usize) };
    }
}

/// What the restorer finds: the list of threads, its arguments, and a stack for each thread.
pub(super) struct Block {
    start: u64,
    first: u64,
}

impl Block {
    /// Writes list and arguments, which name the list's address.
    pub fn make(number: u32, rollback: &Rollback, words: impl FnOnce(u64) -> Option<Vec<String>>) -> Result<Self, MapError> {
        let start = zone(number)?.0 + BLOCK_OFFSET;
        let memory = reserve(start, ROLLBACK_BYTES + ARGUMENT_BYTES)?;
        // SAFETY: page-aligned, long enough, used by nobody yet.
        unsafe { memory.cast::<Rollback>().write(*rollback) };
        let words = words(start).ok_or(MapError::Form)?;
        let all = || std::iter::once("mend-restorer").chain(words.iter().map(String::as_str));
        // argc, argv and its end, the environment's end; the texts lie behind.
        let mut stack = vec![all().count() as u64];
        let texts = start + ROLLBACK_BYTES + ARGUMENT_BYTES / 2;
        let mut text = Vec::new();
        for word in all() {
            stack.push(texts + text.len() as u64);
            text.extend(word.as_bytes());
            text.push(0);
        }
        stack.extend([0, 0]);
        if text.len().max(8 * stack.len()) as u64 > ARGUMENT_BYTES / 2 {
            return Err(MapError::Form);
        }
        let first = start + ROLLBACK_BYTES;
        // SAFETY: within the mapping made above.
        unsafe {
            std::ptr::copy_nonoverlapping(stack.as_ptr(), first as *mut u64, stack.len());
            std::ptr::copy_nonoverlapping(text.as_ptr(), texts as *mut u8, text.len());
        }
        Ok(Self { start, first })
    }

    /// Where the first thread finds its arguments.
    pub fn first_stack(&self) -> u64 {
        self.first
    }

    /// Stacks for so many threads that wait: each with an argument count of zero.
    pub fn stacks(&self, count: usize) -> Result<Vec<u64>, MapError> {
        let first = self.start + ROLLBACK_BYTES + ARGUMENT_BYTES;
        reserve(first, count as u64 * STACK_BYTES)?;
        Ok((1..=count as u64).map(|number| first + number * STACK_BYTES - 64).collect())
    }
}

fn reserve(start: u64, length: u64) -> Result<*mut c_void, MapError> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    unsafe { mmap_anonymous(start as *mut c_void, length as usize, ProtFlags::READ | ProtFlags::WRITE, flags) }.map_err(MapError::Map)
}
