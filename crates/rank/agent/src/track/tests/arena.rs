//! Memory of one thread, and everything that a program can do to it.
//!
//! Arenas lie where the kernel places nothing by itself, so that a hole in one stays a hole.

use io_uring::{IoUring, opcode, types};
use mend_kernel::{pagemap, userfault};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate, open};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 4096;
/// Two huge pages.
const PAGES: u64 = 1024;
/// More than an arena, as a mapping may be put near the end of one and then grow.
const FILE_PAGES: u64 = 2 * PAGES;
const BASE: u64 = 0x2100_0000_0000;
const STRIDE: u64 = 64 << 20;

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const MADV_COLLAPSE: i32 = 25;
const MADV_GUARD_INSTALL: i32 = 102;
const MREMAP_DONTUNMAP: i32 = 4;

pub struct Arena {
    base: u64,
    random: ChaCha8Rng,
    file: File,
    direct: OwnedFd,
    /// Where the machine allows it.
    ring: Option<IoUring>,
    path: PathBuf,
    /// By page: a plain store does not end the process.
    writable: Vec<bool>,
    /// Another user of userfaultfd in the process.
    foreign: Option<OwnedFd>,
}

/// A file for reads into memory from a device, and whether they are: any file of a disk will do, but not every file system
/// goes past its cache.
pub fn open_direct() -> (OwnedFd, Result<(), String>) {
    let program = std::env::current_exe().unwrap();
    let buffered = || open(&program, OFlags::RDONLY, Mode::empty()).unwrap();
    match open(&program, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()) {
        Ok(direct) => {
            let goes_past = reads_from_device(&direct);
            (direct, goes_past)
        }
        Err(errno) => (buffered(), Err(format!("{}: O_DIRECT: {errno}", program.display()))),
    }
}

/// Whether a read of a page that is in the cache is one from the device all the same, by what the kernel counts.
fn reads_from_device(file: &OwnedFd) -> Result<(), String> {
    let counted = || {
        let table = std::fs::read_to_string("/proc/thread-self/io").map_err(|error| format!("/proc/thread-self/io: {error}"))?;
        mend_kernel::memory::number(&table, "read_bytes:").ok_or("/proc/thread-self/io has no read_bytes".to_string())
    };
    #[repr(align(4096))]
    struct Page([u8; PAGE as usize]);
    let mut page = Page([0; PAGE as usize]);
    let mut read = || rustix::io::pread(file, &mut page.0, 0).map_err(|errno| format!("a read of a page: {errno}"));
    let mut before = 0;
    for _ in 0..2 {
        before = counted()?;
        let got = read()?;
        assert_eq!(got, PAGE as usize);
    }
    if counted()? >= before + PAGE { Ok(()) } else { Err("the file system reads through its cache in spite of O_DIRECT".to_string()) }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this arena's own addresses, which nobody refers to.
        unsafe { libc::munmap(self.base as *mut _, (PAGES * PAGE) as usize) };
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Arena {
    pub fn new(seed: u64) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // A daemon removes from there what begins as its own files do.
        let path = PathBuf::from(format!("/dev/shm/tracking-arena-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        ftruncate(&file, FILE_PAGES * PAGE).unwrap();
        for page in (0..FILE_PAGES).step_by(8) {
            file.write_all_at(&random.next_u64().to_ne_bytes(), page * PAGE).unwrap();
        }
        let direct = open_direct().0;
        let base = BASE + number % 64 * STRIDE;
        let ring = IoUring::new(2).ok();
        let mut arena = Self { base, random, file, direct, ring, path, writable: vec![false; PAGES as usize], foreign: None };
        arena.map(0..PAGES, true, None);
        arena
    }

    pub fn range(&self) -> Range<u64> {
        self.base..self.base + PAGES * PAGE
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    fn at(&self, page: u64) -> *mut libc::c_void {
        (self.base + page * PAGE) as *mut _
    }

    fn bytes(span: &Range<u64>) -> usize {
        ((span.end - span.start) * PAGE) as usize
    }

    fn span(&mut self) -> Range<u64> {
        let length = match self.random.random_range(0..5) {
            // What the kernel may treat as one.
            4 => 512,
            choice => 1 + self.random.random_range(0..[1, 4, 32, 512][choice as usize]),
        };
        let start = if length > 256 { self.random.random_range(0..2) * 512 } else { self.random.random_range(0..PAGES) };
        start..(start + length).min(PAGES)
    }

    /// A new mapping in place of what was there: anonymous, or of the file from this page on.
    fn map(&mut self, span: Range<u64>, writable: bool, file: Option<u64>) {
        let protection = if writable { READ_WRITE } else { libc::PROT_READ };
        let (flags, fd) = match file {
            Some(_) => (libc::MAP_PRIVATE | libc::MAP_FIXED, self.file.as_raw_fd()),
            None => (ANONYMOUS, -1),
        };
        // SAFETY: this arena's own addresses, which nobody else refers to.
        let mapped =
            unsafe { libc::mmap(self.at(span.start), Self::bytes(&span), protection, flags, fd, (file.unwrap_or(0) * PAGE) as i64) };
        assert_eq!(mapped, self.at(span.start));
        self.set(span, writable);
    }

    fn set(&mut self, span: Range<u64>, writable: bool) {
        self.writable[span.start as usize..span.end as usize].fill(writable);
    }

    fn advise(&self, span: &Range<u64>, advice: i32) -> bool {
        // SAFETY: this arena's own addresses, which nobody else refers to.
        unsafe { libc::madvise(self.at(span.start), Self::bytes(span), advice) == 0 }
    }

    /// Plain stores, one per page.
    fn store(&mut self, span: Range<u64>) {
        for page in span.filter(|page| self.writable[*page as usize]).collect::<Vec<_>>() {
            let (offset, value) = (self.random.random_range(0..PAGE / 8) * 8, self.random.next_u64());
            // Now and then a page becomes zero again.
            let whole = value.is_multiple_of(16);
            let place = (self.base + page * PAGE) as *mut u8;
            // SAFETY: a writable page of this arena.
            unsafe {
                if whole { place.write_bytes(0, PAGE as usize) } else { place.add(offset as usize).cast::<u64>().write_volatile(value) }
            }
        }
    }

    /// One operation, chosen at random. What the kernel refuses is no operation.
    pub fn operate(&mut self) {
        let span = self.span();
        let (address, length) = (self.at(span.start), Self::bytes(&span));
        // No page behind the file's end: a store to one ends the process.
        let from = self.random.random_range(0..PAGES - (span.end - span.start) + 1);
        match self.random.random_range(0..31) {
            0..6 => self.store(span),
            29 => self.read_by_ring(&span, false),
            30 => self.read_by_ring(&span, true),
            6 => self.read(&span, false),
            7 => self.read(&span, true),
            8 => self.write_from_outside(&span),
            9 => {
                // Goes through protection.
                let memory = File::options().write(true).open("/proc/self/mem").unwrap();
                let _ = memory
                    .write_at(&self.random.next_u64().to_ne_bytes(), self.base + span.start * PAGE + self.random.random_range(0..4000));
            }
            10 | 11 => drop(self.advise(&span, libc::MADV_DONTNEED)),
            12 => drop(self.advise(&span, libc::MADV_FREE)),
            13 => drop(self.advise(&span, libc::MADV_FREE) && self.advise(&span, libc::MADV_PAGEOUT)),
            14 => {
                let advice = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE, MADV_COLLAPSE][self.random.random_range(0..3) as usize];
                self.advise(&(span.start / 512 * 512..span.start / 512 * 512 + 512), advice);
            }
            15 => {
                let advice = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE][self.random.random_range(0..2) as usize];
                self.advise(&span, advice);
            }
            16 => self.map(span, true, None),
            17 => self.map(span, !from.is_multiple_of(4), Some(from)),
            18 => {
                // SAFETY: this arena's own addresses; mapped again at once.
                unsafe { libc::munmap(address, length) };
                self.map(span.clone(), true, None);
                self.store(span);
            }
            19 | 20 => self.protect(span),
            21 | 22 => self.move_away(span),
            23 => self.grow_or_shrink(span),
            24 => self.fork_and_store(span),
            25 => self.change_file(&span),
            26 => {
                self.advise(&span, MADV_GUARD_INSTALL);
                self.set(span, false);
            }
            27 => self.observe_too(span),
            _ => {
                // A huge page that is then split.
                let huge = span.start / 512 * 512..span.start / 512 * 512 + 512;
                self.map(huge.clone(), true, None);
                self.advise(&huge, libc::MADV_HUGEPAGE);
                self.store(huge.start..huge.start + 1);
                self.store(span);
            }
        }
    }

    /// By the kernel, from a file.
    fn read(&mut self, span: &Range<u64>, direct: bool) {
        let fd = if direct { self.direct.as_raw_fd() } else { self.file.as_raw_fd() };
        let from = self.random.random_range(0..PAGES) * PAGE;
        // SAFETY: writes to this arena's own addresses, or refuses.
        unsafe { libc::pread(fd, self.at(span.start), Self::bytes(span), from as i64) };
    }

    /// By the kernel too, asynchronously, into memory that was not pinned for it before.
    fn read_by_ring(&mut self, span: &Range<u64>, direct: bool) {
        let from = self.random.random_range(0..PAGES) * PAGE;
        let (to, length) = (self.at(span.start).cast(), Self::bytes(span) as u32);
        let Some(ring) = &mut self.ring else { return };
        let fd = if direct { self.direct.as_raw_fd() } else { self.file.as_raw_fd() };
        let read = opcode::Read::new(types::Fd(fd), to, length).offset(from).build();
        // SAFETY: writes to this arena's own addresses, or refuses; nothing else happens to them until it is complete.
        unsafe { ring.submission().push(&read) }.unwrap();
        // A wait may end early.
        while ring.completion().next().is_none() {
            let _ = ring.submit_and_wait(1);
        }
    }

    fn write_from_outside(&mut self, span: &Range<u64>) {
        let content = vec![self.random.next_u64(); Self::bytes(span) / 8];
        let local = libc::iovec { iov_base: content.as_ptr() as *mut _, iov_len: Self::bytes(span) };
        let remote = libc::iovec { iov_base: self.at(span.start), iov_len: Self::bytes(span) };
        // SAFETY: reads `content`, writes to this arena's own addresses.
        unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    }

    fn protect(&mut self, span: Range<u64>) {
        let protection = [libc::PROT_NONE, libc::PROT_READ, READ_WRITE][self.random.random_range(0..3) as usize];
        // SAFETY: this arena's own addresses; `writable` says what may be stored to.
        unsafe { libc::mprotect(self.at(span.start), Self::bytes(&span), protection) };
        if protection != READ_WRITE {
            self.set(span, false);
        }
    }

    /// `mremap` to another place, with or without leaving an empty mapping behind.
    fn move_away(&mut self, span: Range<u64>) {
        let length = span.end - span.start;
        let to = if length == 512 { 512 - span.start } else { self.random.random_range(0..PAGES - length + 1) };
        if to < span.end && span.start < to + length {
            return;
        }
        let stay = self.random.random_range(0..2) == 0;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | if stay { MREMAP_DONTUNMAP } else { 0 };
        // SAFETY: both within this arena, not overlapping.
        let moved = unsafe { libc::mremap(self.at(span.start), Self::bytes(&span), Self::bytes(&span), flags, self.at(to)) };
        if moved == libc::MAP_FAILED {
            // The kernel may have removed the target, or moved a part.
            self.map(to..to + length, true, None);
            return self.map(span, true, None);
        }
        let writable = self.writable[span.start as usize..span.end as usize].to_vec();
        self.writable[to as usize..(to + length) as usize].copy_from_slice(&writable);
        if !stay {
            self.map(span, true, None);
        }
    }

    fn grow_or_shrink(&mut self, span: Range<u64>) {
        let more = 1 + self.random.random_range(0..16);
        if span.end + more > PAGES {
            return;
        }
        let (behind, longer) = (span.end..span.end + more, span.start..span.end + more);
        // SAFETY: this arena's own addresses; what is not mapped afterwards is mapped again below.
        let grown = unsafe {
            libc::munmap(self.at(behind.start), Self::bytes(&behind));
            libc::mremap(self.at(span.start), Self::bytes(&span), Self::bytes(&longer), 0)
        };
        if grown == libc::MAP_FAILED {
            return self.map(behind, true, None);
        }
        let writable = self.writable[span.end as usize - 1];
        self.set(behind.clone(), writable);
        self.store(behind.clone());
        if self.random.random_range(0..2) == 0 {
            // SAFETY: as above.
            unsafe { libc::mremap(self.at(span.start), Self::bytes(&longer), Self::bytes(&span), 0) };
            self.map(behind, true, None);
        }
    }

    /// Parent and child write to what they share copy-on-write.
    fn fork_and_store(&mut self, span: Range<u64>) {
        // SAFETY: the child makes plain stores and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for page in span.filter(|page| self.writable[*page as usize]) {
                // SAFETY: a writable page of this arena.
                unsafe { ((self.base + page * PAGE) as *mut u8).write_volatile(0xcc) };
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        self.store(span);
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }

    /// Under private mappings of it.
    fn change_file(&mut self, span: &Range<u64>) {
        let (offset, length) = (span.start * PAGE, Self::bytes(span) as u64);
        match self.random.random_range(0..3) {
            0 => drop(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)),
            1 => {
                // Takes private copies of pages behind the new end away, too.
                ftruncate(&self.file, offset).unwrap();
                ftruncate(&self.file, FILE_PAGES * PAGE).unwrap();
            }
            _ => self.file.write_all_at(&self.random.next_u64().to_ne_bytes(), offset).unwrap(),
        }
    }

    /// Somebody else in the process observes a range in the same way, and begins anew; or stops.
    fn observe_too(&mut self, span: Range<u64>) {
        if self.foreign.take().is_some() {
            return;
        }
        self.foreign = userfault::open().ok();
        let Some(foreign) = &self.foreign else { return };
        let (foreign, start, end) = (foreign.as_raw_fd(), self.base + span.start * PAGE, self.base + span.end * PAGE);
        self.map(span.clone(), true, None);
        self.store(span.clone());
        // Whoever copies it meanwhile may have been faster.
        if userfault::register(foreign, start, end).is_err() {
            return;
        }
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let mut found = [pagemap::Region::default(); 8];
        let _ = pagemap::written(pagemap.as_raw_fd(), start, end, true, &mut found);
        self.store(span.start..span.start + 1);
    }
}
