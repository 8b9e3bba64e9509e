//! Images made with mend-image's writer, restored into the memory of the test's own process.

use mend_image::Header;
use mend_image::fixed::Fixed;
use mend_image::kept;
use mend_image::launch::{Mode, PutBack};
use mend_image::ranges::Range;
use mend_image::record::{Kind, Mapping, Object, Process, Thread, mapping, object};
use mend_image::write::StreamWriter;
use mend_restore::arena::Arena;
use mend_restore::fill::{self, Resources, Workers};
use mend_restore::space::Building;
use mend_restore::stream::{Progress, Stream};
use mend_restore::tables::Tables;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

pub const PAGE: u64 = 4096;
const READ: u32 = 1;
const READ_WRITE: u32 = 3;
/// Far from what the kernel chooses by itself, and from the zone that no image may use.
static NEXT_PLACE: AtomicU64 = AtomicU64::new(0x2100_0000_0000);

/// Addresses for one test's mappings; what is mapped there goes when it is dropped.
pub struct Place {
    pub start: u64,
    length: u64,
}

impl Place {
    pub fn new(pages: u64) -> Self {
        let length = pages * PAGE;
        Self { start: NEXT_PLACE.fetch_add(length + (1 << 30), Ordering::Relaxed), length }
    }

    /// The address of a page.
    pub fn page(&self, number: u64) -> u64 {
        self.start + number * PAGE
    }

    /// Maps it, writable, with a byte in every place.
    pub fn map(&self, byte: u8) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: replaces nothing; the memory belongs to this place.
        unsafe {
            mmap_anonymous(self.start as *mut _, self.length as usize, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap();
            std::ptr::write_bytes(self.start as *mut u8, byte, self.length as usize);
        }
    }

    /// What a page holds.
    pub fn content(&self, number: u64) -> Vec<u8> {
        // SAFETY: callers look at pages that are mapped readable.
        unsafe { std::slice::from_raw_parts(self.page(number) as *const u8, PAGE as usize) }.to_vec()
    }

    /// Permissions of the mapping that holds a page, as the kernel shows them.
    pub fn permissions(&self, number: u64) -> String {
        let address = self.page(number);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            (u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap()).contains(&address)
        };
        maps.lines().find(holds).unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    /// Takes away what is mapped there.
    pub fn clear(&self) {
        // SAFETY: only this test's mappings lie there.
        unsafe { rustix::mm::munmap(self.start as *mut _, self.length as usize).unwrap() };
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What an image is made of. Its first mapping's first page holds context and hand-over.
#[derive(Clone)]
pub struct Image {
    pub header: Header,
    pub mappings: Vec<Mapping>,
    pub objects: Vec<Object>,
    pub strings: Vec<u8>,
    pub pages: Vec<(u64, Vec<u8>)>,
    pub bytes: Vec<(u32, u64, Vec<u8>)>,
    pub kept: Vec<Range>,
    pub unread: Vec<u8>,
    pub handoff: u64,
}

impl Image {
    /// One private writable mapping.
    pub fn new(place: &Place, pages: u64) -> Self {
        let all = Mapping {
            start: place.start,
            end: place.page(pages),
            offset: 0,
            protection: READ_WRITE,
            flags: 0,
            object: mapping::NO_OBJECT,
            page_shift: 0,
        };
        Self {
            header: Header { id: [1; 16], ..Header::default() },
            mappings: vec![all],
            objects: Vec::new(),
            strings: Vec::new(),
            pages: Vec::new(),
            bytes: Vec::new(),
            kept: Vec::new(),
            unread: Vec::new(),
            handoff: place.start,
        }
    }

    /// As the first of these is the base of the second, and so on.
    pub fn builds_on(mut self, older: &Self) -> Self {
        self.header.id = [older.header.id[0] + 1; 16];
        self.header.base = older.header.id;
        self.header.sequence = older.header.sequence + 1;
        self
    }

    /// Makes a mapping read-only, another follows: the first `pages` of it are.
    pub fn protect_first(&mut self, pages: u64) {
        let first = self.mappings[0];
        let middle = first.start + pages * PAGE;
        self.mappings = vec![Mapping { end: middle, protection: READ, ..first }, Mapping { start: middle, ..first }];
    }

    /// Adds a text, with the NUL that is to follow it, padded to a whole number of words.
    pub fn text(&mut self, text: &str) -> (u32, u32) {
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes().chain([0]));
        self.strings.resize(self.strings.len().next_multiple_of(8), 0);
        (at, text.len() as u32)
    }

    /// Adds shared memory of so many pages, mapped where the last mapping ends.
    pub fn share(&mut self, pages: u64) -> u32 {
        let (text, text_length) = self.text("shared");
        self.objects.push(Object { flags: 0, text, text_length, mode: 0, size: pages * PAGE, mtime: 0, mtime_ns: 0, sample: 0 });
        let number = self.objects.len() as u32 - 1;
        self.map_object(number, pages, mapping::SHARED);
        number
    }

    pub fn map_object(&mut self, object: u32, pages: u64, flags: u32) {
        let last = *self.mappings.last().unwrap();
        self.mappings.push(Mapping { start: last.end, end: last.end + pages * PAGE, flags, object, ..last });
    }

    /// The stream.
    pub fn stream(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = StreamWriter::new(&mut out, &self.header).unwrap();
        writer.record(Kind::Strings, 0, 0, &self.strings).unwrap();
        writer.record(Kind::Objects, 0, 0, &table(&self.objects)).unwrap();
        writer.record(Kind::Mappings, 0, 0, &table(&self.mappings)).unwrap();
        writer.record(Kind::Threads, 0, 0, &table(&[Thread { tid: 1, flags: 0, context: self.handoff, fs: 0, gs: 0 }])).unwrap();
        let process = Process {
            layout: [0; 11],
            auxv: [0; 64],
            auxv_size: 0,
            handoff: self.handoff,
            personality: 0,
            capabilities: [0; 3],
            xstate_permitted: 0,
            executable: 0,
            executable_length: 0,
        };
        writer.record(Kind::Process, 0, 0, &table(&[process])).unwrap();
        if !self.unread.is_empty() {
            writer.record(Kind::Unread, 0, 0, &self.unread).unwrap();
        }
        if !self.kept.is_empty() {
            let mut payload = vec![0; self.kept.len() * kept::RANGE];
            kept::fill(&mut self.kept.iter().copied(), &mut payload).unwrap();
            writer.record(Kind::Kept, 0, 0, &payload).unwrap();
        }
        for (address, content) in &self.pages {
            writer.record(Kind::Pages, 0, *address, content).unwrap();
        }
        for (object, offset, content) in &self.bytes {
            writer.record(Kind::Bytes, *object, *offset, content).unwrap();
        }
        writer.finish().unwrap();
        out
    }

    /// The stream in a file.
    pub fn file(&self) -> std::fs::File {
        file_of(&self.stream())
    }
}

fn table<T: Fixed>(records: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; records.len() * T::SIZE];
    for (record, room) in records.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
        record.encode(room).unwrap();
    }
    bytes
}

/// A file of these bytes, at its start.
pub fn file_of(bytes: &[u8]) -> std::fs::File {
    use std::io::Seek;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// Two threads.
pub struct TwoThreads;

impl Workers for TwoThreads {
    fn share(&self, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            scope.spawn(|| work(1));
            work(0);
        });
    }
}

/// What a restore told.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    pub read: u64,
    pub placed: u64,
    pub unread: Vec<u8>,
}

/// Maps and fills as the restorer does. An error as it is said.
pub fn restore(sources: &[RawFd], mode: Mode) -> Result<Told, String> {
    restore_after(sources, mode, None)
}

/// The same after files have been put back.
pub fn restore_after(sources: &[RawFd], mode: Mode, put_back: Option<PutBack>) -> Result<Told, String> {
    let (arena, progress) = (Arena::reserve(1 << 30).unwrap(), Progress::new());
    let all = || -> Result<Told, mend_restore::RestoreError<'_>> {
        let mut stream = Stream::open(sources[0], 0, &progress)?;
        let room = arena.take(mend_image::record::MAX_PAGES as usize + 8)?;
        let mut unread = Vec::new();
        let (tables, first) = Tables::read(&mut stream, &arena, room, |_, bytes| unread.extend(bytes))?;
        tables.check(&stream)?;
        tables.check_files(&stream, room)?;
        let mut building = Building::map(tables, &arena, mode, 0)?.after(put_back);
        let resources = Resources { arena: &arena, progress: &progress, workers: &TwoThreads };
        fill::fill(stream, first, &sources[1..], &mut building, resources)?;
        building.finish(&mut [mend_image::handoff::Kept::default(); mend_image::handoff::MAX_KEPT])?;
        Ok(Told { read: progress.bytes_read(), placed: progress.bytes_placed(), unread })
    };
    all().map_err(|error| error.to_string())
}

/// As [`restore`], of files.
pub fn restore_files(files: &[std::fs::File], mode: Mode) -> Result<Told, String> {
    let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    restore(&numbers, mode)
}

/// Object records of a file that is mapped.
pub fn file_object(image: &mut Image, path: &str, size: u64, flags: u32, sample: u64) -> u32 {
    let (text, text_length) = image.text(path);
    image.objects.push(Object {
        flags: object::FILE | object::ELF | flags,
        text,
        text_length,
        mode: 0,
        size,
        mtime: 0,
        mtime_ns: 0,
        sample,
    });
    image.objects.len() as u32 - 1
}
