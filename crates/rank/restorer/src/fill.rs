//! Content to where it belongs, from the image and from those it builds on.
//!
//! A [`Pass`] takes what is needed of one image. Of a file, two threads do it: each in turn takes the next head, and then
//! works on that record alone (page faults cost most, then copying, then checksums). Each page of memory is written once:
//! of older images only what no newer one holds or has dropped is read (`mend_image::ranges` says why that is right).

use crate::arena;
use crate::companion;
use crate::list::List;
use crate::lock::Lock;
use crate::report::fail;
use crate::space::Building;
use crate::stream::{Record, Stream};
use crate::sys;
use core::cell::UnsafeCell;
use core::format_args as text;
use core::sync::atomic::{AtomicU64, Ordering};
use mend_image::launch::Failure;
use mend_image::link::LinkError;
use mend_image::ranges::{self, Range, consistent, meet};
use mend_image::record::{Kind, MAX_PAGES, Thread};
use mend_image::{Header, kept};

/// Content below which a second thread is not worth its making, bytes.
const SHARED_WORK: u64 = 1 << 20;

static PLACED: AtomicU64 = AtomicU64::new(0);

/// Bytes of pages written to memory so far.
pub fn bytes_placed() -> u64 {
    PLACED.load(Ordering::Relaxed)
}

/// Fills all memory. `stream` stands behind `first`, the first record after the tables; `older` are descriptors of the images
/// that it builds on, newest first.
pub fn fill(mut stream: Stream, first: Record, older: &[i32], building: &mut Building, threads: impl Iterator<Item = Thread> + Clone) {
    let rooms = [Room::new(), Room::new()];
    let mut newer: Header = *stream.header();
    let mut wanted = run(&mut stream, Some(first), None, building, threads.clone(), &rooms);
    if !wanted.all().iter().all(|range| building.open_private(*range)) {
        stream.inconsistent();
    }
    for (member, fd) in older.iter().enumerate() {
        let mut stream = Stream::open(*fd, member + 1);
        newer.builds_on(stream.header()).unwrap_or_else(|error| {
            fail(Failure::Image, 0, text!("image {} of those that the image builds on: {error}", member + 1));
        });
        newer = *stream.header();
        let kept = run(&mut stream, None, Some(wanted.all()), building, threads.clone(), &rooms);
        let mut rest = List::default();
        meet(wanted.all(), kept.all()).for_each(|range| rest.push(range));
        wanted = rest;
    }
    if newer.incremental() {
        fail(Failure::Image, 0, text!("{}", LinkError::Open { sequence: newer.sequence }));
    }
}

/// Takes what is needed of one image. Returns what it keeps.
fn run(
    stream: &mut Stream,
    first: Option<Record>,
    wanted: Option<&[Range]>,
    building: &mut Building,
    threads: impl Iterator<Item = Thread> + Clone,
    rooms: &[Room; 2],
) -> List {
    let large = stream.file_length() >= SHARED_WORK;
    let state = State { stream, building, first, stored: List::default(), kept: List::default(), done: false };
    let pass = Pass { lock: Lock::new(state), wanted };
    if large {
        companion::share(threads, &|worker| pass.work(&rooms[worker]));
    } else {
        pass.work(&rooms[0]);
    }
    let mut state = pass.lock.into_inner();
    if !consistent(state.stored.all_mut(), state.kept.all_mut()) {
        state.stream.inconsistent();
    }
    state.kept
}

/// A buffer for content that has to be looked at first. Each is used by one thread.
struct Room(UnsafeCell<&'static mut [u8]>);
// SAFETY: `run` gives each worker its own.
unsafe impl Sync for Room {}

impl Room {
    fn new() -> Self {
        Self(UnsafeCell::new(arena::take(MAX_PAGES as usize + 8)))
    }
}

struct Pass<'a> {
    lock: Lock<State<'a>>,
    /// Pages that newer images leave to this one; `None`: this is the newest.
    wanted: Option<&'a [Range]>,
}

struct State<'a> {
    stream: &'a mut Stream,
    building: &'a mut Building,
    first: Option<Record>,
    stored: List,
    kept: List,
    done: bool,
}

/// What one thread does with one record.
enum Task {
    /// All its pages go to their places.
    Whole(Record),
    /// Some of its pages do.
    Parts(Record),
    /// Its bytes go into this memory object.
    Object(Record, usize),
    /// Nothing of it is needed, but it has to be read over or checked.
    Pass(Record),
    Nothing,
    End,
}

impl Pass<'_> {
    fn work(&self, room: &Room) {
        // SAFETY: each worker has a room of its own.
        let room: &mut [u8] = unsafe { &mut *room.0.get() };
        loop {
            match self.lock.with(|state| self.next(state, room)) {
                Task::Whole(record) => {
                    record.fill_place();
                    PLACED.fetch_add(record.head.length, Ordering::Relaxed);
                }
                Task::Parts(record) => self.take_parts(&record, room),
                Task::Object(record, fd) => fill_object(&record, fd, room),
                Task::Pass(record) => record.skip(room),
                Task::Nothing => {}
                Task::End => return,
            }
        }
    }

    /// Reads the next head and decides.
    fn next(&self, state: &mut State, room: &mut [u8]) -> Task {
        if state.done {
            return Task::End;
        }
        let record = state.first.take().unwrap_or_else(|| state.stream.next());
        let range = (record.head.address, record.head.address + record.head.length);
        match (record.kind, self.wanted) {
            (Kind::Pages, None) => {
                state.stored.push(range);
                if state.building.admits(&record) { Task::Whole(record) } else { Task::Pass(record) }
            }
            (Kind::Pages, Some(wanted)) => {
                state.stored.push(range);
                let mut parts = ranges::parts(wanted, range);
                match parts.next() {
                    None => Task::Pass(record),
                    Some(all) if all == range => Task::Whole(record),
                    Some(_) => Task::Parts(record),
                }
            }
            (Kind::Bytes, None) => Task::Object(record, state.building.object_of(&record)),
            (Kind::Kept, _) => {
                let payload = record.passing(room);
                let ranges = kept::ranges(payload, 0).unwrap_or_else(|_| record.inconsistent());
                ranges.for_each(|range| state.kept.push(range));
                Task::Nothing
            }
            (Kind::End, _) => {
                state.stream.close(&record);
                state.done = true;
                Task::End
            }
            (_, Some(_)) => Task::Pass(record),
            (_, None) => record.inconsistent(),
        }
    }

    fn take_parts(&self, record: &Record, room: &mut [u8]) {
        let (start, length) = (record.head.address, record.head.length);
        let payload = record.passing(room);
        for (from, to) in ranges::parts(self.wanted.unwrap_or_default(), (start, start + length)) {
            let (part, count) = (&payload[(from - start) as usize..], (to - from) as usize);
            // SAFETY: `fill` made sure that what is wanted is private memory of the image, made writable, and no other record has it.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), from as *mut u8, count) };
            PLACED.fetch_add(to - from, Ordering::Relaxed);
        }
    }
}

fn fill_object(record: &Record, fd: usize, room: &mut [u8]) {
    let mut bytes = record.passing(room);
    let mut at = record.head.address as usize;
    while !bytes.is_empty() {
        // SAFETY: reads `bytes`.
        match unsafe { sys::call(sys::PWRITE, [fd, bytes.as_ptr() as usize, bytes.len(), at, 0, 0]) } {
            Ok(count) => {
                bytes = &bytes[count.min(bytes.len())..];
                at += count;
            }
            Err(sys::EINTR) => {}
            Err(errno) => fail(Failure::Kernel, errno, text!("shared memory cannot be filled")),
        }
    }
}
