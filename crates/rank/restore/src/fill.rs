//! Content to where it belongs, from the image and from those it builds on.
//!
//! A [`Pass`] takes what is needed of one image. Of a file, two threads do it: each in turn takes the next head, and then
//! works on that record alone (page faults cost most, then copying, then checksums). Each page of memory is written once:
//! of older images only what no newer one holds or has dropped is read (`mend_image::ranges` says why that is right).

use crate::arena::Arena;
use crate::error::Member;
use crate::list::List;
use crate::lock::Lock;
use crate::stream::{Progress, Record, Stream};
use crate::{RestoreError, sys};
use mend_image::link::LinkError;
use mend_image::ranges::{self, Range, consistent, meet};
use mend_image::record::{Kind, MAX_PAGES};
use mend_image::{Header, kept};

/// Content below which a second thread is not worth its making, bytes.
const SHARED_WORK: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Memory that is filled.
///
/// # Safety
/// Where [`Target::admits`] or [`Target::open_private`] says so, memory may be overwritten with an image's content, and nobody else uses
/// it until that is done.
pub unsafe trait Target: Send {
    /// Makes ready for a record of pages of the newest image. False if they have no place here: they are left out.
    ///
    /// # Errors
    /// What the record does wrong, or why memory cannot be made ready.
    fn admits(&mut self, record: &Record) -> Result<bool, RestoreError<'static>>;

    /// Makes private memory ready to be filled with pages of older images. False if not all of the range is private memory of the image.
    ///
    /// # Errors
    /// Why memory cannot be made ready.
    fn open_private(&mut self, range: Range) -> Result<bool, RestoreError<'static>>;

    /// The descriptor of the memory object that a record of bytes belongs to. `None`: it is left out.
    ///
    /// # Errors
    /// What the record does wrong.
    fn object_of(&self, record: &Record) -> Result<Option<usize>, RestoreError<'static>>;
}

/// Threads that fill.
pub trait Workers {
    /// Calls `work` with 0, and with 1 on another thread at the same time if there is one. Returns when all of it is done.
    fn share(&self, work: &(dyn Fn(usize) + Sync));
}

/// The calling thread alone.
pub struct OneWorker;

impl Workers for OneWorker {
    fn share(&self, work: &(dyn Fn(usize) + Sync)) {
        work(0);
    }
}

/// What a fill works with.
#[derive(Clone, Copy)]
pub struct Resources<'a> {
    /// Where its lists and buffers lie.
    pub arena: &'a Arena,
    /// Where it counts.
    pub progress: &'a Progress,
    /// Who does it.
    pub workers: &'a dyn Workers,
}

/// Fills all memory, which is as fresh mappings give it. `newest` stands behind `first`, the first record after the tables; `older` are
/// descriptors of the images that it builds on, newest first.
///
/// # Errors
/// What is wrong with an image or between two of them, or what the kernel refuses. Memory holds anything then.
pub fn fill<'s>(
    newest: Stream<'s>,
    first: Record<'s>,
    older: &[i32],
    target: &mut dyn Target,
    with: Resources,
) -> Result<(), RestoreError<'static>> {
    fill_chain(newest, first, older, target, None, with).map(drop)
}

/// As [`fill`], but only of the pages in `only` (settled, of whole pages), which are readable; others are left as they are. A page that is
/// what it has to be is not written. Returns those of them that no image holds: they have to become as a fresh mapping gives them. Memory
/// objects are filled as far as the target has them.
///
/// # Errors
/// As for [`fill`].
pub fn rewrite<'a, 's>(
    newest: Stream<'s>,
    first: Record<'s>,
    older: &[i32],
    target: &mut dyn Target,
    only: &[Range],
    with: Resources<'a>,
) -> Result<List<'a>, RestoreError<'static>> {
    fill_chain(newest, first, older, target, Some(only), with)
}

fn fill_chain<'a, 's>(
    mut newest: Stream<'s>,
    first: Record<'s>,
    older: &[i32],
    target: &mut dyn Target,
    only: Option<&[Range]>,
    with: Resources<'a>,
) -> Result<List<'a>, RestoreError<'static>> {
    let rooms = [Lock::new(take_room(with.arena)?), Lock::new(take_room(with.arena)?)];
    let mut newer: Header = *newest.header();
    let scope = only.map_or(Scope::Everything, Scope::Of);
    let Found { stored, kept } = run(&mut newest, Some(first), (scope, only.is_some()), target, with, &rooms)?;
    let (mut wanted, mut missing) = (List::new(with.arena), List::new(with.arena));
    match only {
        None => wanted = kept,
        Some(only) => {
            wanted.extend(meet(only, kept.all()))?;
            missing.extend(ranges::without(only, stored.all()))?;
        }
    }
    for range in wanted.all() {
        if !target.open_private(*range)? {
            return Err(newest.inconsistent());
        }
    }
    for (member, fd) in older.iter().enumerate() {
        let mut stream = Stream::open(*fd, member + 1, with.progress)?;
        newer.builds_on(stream.header()).map_err(|error| RestoreError::Link { member: Member(member + 1), error })?;
        newer = *stream.header();
        let Found { stored, kept } = run(&mut stream, None, (Scope::Older(wanted.all()), only.is_some()), target, with, &rooms)?;
        let (mut rest, mut taken, mut still) = (List::new(with.arena), List::new(with.arena), List::new(with.arena));
        rest.extend(meet(wanted.all(), kept.all()))?;
        if only.is_some() {
            taken.extend(meet(wanted.all(), stored.all()))?;
            still.extend(ranges::without(missing.all(), taken.all()))?;
            missing = still;
        }
        wanted = rest;
    }
    if newer.incremental() {
        return Err(RestoreError::Link { member: Member(0), error: LinkError::Open { sequence: newer.sequence } });
    }
    Ok(missing)
}

/// A buffer for content that has to be looked at first.
pub(crate) fn take_room(arena: &Arena) -> Result<&mut [u8], RestoreError<'static>> {
    arena.take(MAX_PAGES as usize + 8)
}

/// What is wanted of an image.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// All that the newest holds.
    Everything,
    /// These pages of the newest, and its memory objects.
    Of(&'a [Range]),
    /// These pages, which newer images leave to it.
    Older(&'a [Range]),
}

/// Which pages an image holds and which it keeps, settled.
pub(crate) struct Found<'a> {
    pub stored: List<'a>,
    pub kept: List<'a>,
}

/// Takes what is needed of one image. If told to compare, memory has content, and what is right stays.
pub(crate) fn run<'a, 's>(
    stream: &mut Stream<'s>,
    first: Option<Record<'s>>,
    (scope, compare): (Scope, bool),
    target: &mut dyn Target,
    with: Resources<'a>,
    rooms: &[Lock<&mut [u8]>; 2],
) -> Result<Found<'a>, RestoreError<'static>> {
    let large = stream.file_length() >= SHARED_WORK;
    let (stored, kept) = (List::new(with.arena), List::new(with.arena));
    let state = State { stream, target, first, stored, kept, done: false, failed: None };
    let pass = Pass { lock: Lock::new(state), scope, compare, progress: with.progress };
    if large {
        with.workers.share(&|worker| rooms[worker].with(|room| pass.work(room)));
    } else {
        rooms[0].with(|room| pass.work(room));
    }
    let mut state = pass.lock.into_inner();
    if let Some(error) = state.failed {
        return Err(error);
    }
    if !consistent(state.stored.all_mut(), state.kept.all_mut()) {
        return Err(state.stream.inconsistent());
    }
    Ok(Found { stored: state.stored, kept: state.kept })
}

struct Pass<'p, 's, 'a> {
    lock: Lock<State<'p, 's, 'a>>,
    scope: Scope<'p>,
    /// Memory has content already, of which what is right stays.
    compare: bool,
    progress: &'p Progress,
}

struct State<'p, 's, 'a> {
    stream: &'p mut Stream<'s>,
    target: &'p mut dyn Target,
    first: Option<Record<'s>>,
    stored: List<'a>,
    kept: List<'a>,
    done: bool,
    /// What ended it.
    failed: Option<RestoreError<'static>>,
}

/// What one thread does with one record.
enum Task<'s> {
    /// All its pages go to their places.
    Whole(Record<'s>),
    /// Some of its pages do.
    Parts(Record<'s>),
    /// Its bytes go into this memory object.
    Object(Record<'s>, usize),
    /// Nothing of it is needed, but it has to be read over or checked.
    Pass(Record<'s>),
    Nothing,
    End,
}

impl<'s> Pass<'_, 's, '_> {
    fn work(&self, room: &mut [u8]) {
        loop {
            match self.step(room) {
                Ok(true) => {}
                Ok(false) => return,
                // Of two threads that fail, the first one is heard.
                Err(error) => {
                    self.lock.with(|state| _ = state.failed.get_or_insert(error));
                    return;
                }
            }
        }
    }

    /// Does what is to be done with one record. False after the last one.
    fn step(&self, room: &mut [u8]) -> Result<bool, RestoreError<'static>> {
        match self.lock.with(|state| self.next(state, room))? {
            Task::Whole(record) => {
                // SAFETY: the target admitted it; `consistent` refuses an image that has pages twice, and what two records of it
                // write to the same place is then not relied on.
                unsafe { record.fill_place(room)? };
                self.progress.place(record.head.length);
            }
            Task::Parts(record) => self.take_parts(&record, room)?,
            Task::Object(record, fd) => fill_object(&record, fd, room)?,
            Task::Pass(record) => record.skip(room)?,
            Task::Nothing => {}
            Task::End => return Ok(false),
        }
        Ok(true)
    }

    /// Reads the next head and decides.
    fn next(&self, state: &mut State<'_, 's, '_>, room: &mut [u8]) -> Result<Task<'s>, RestoreError<'static>> {
        if state.done || state.failed.is_some() {
            return Ok(Task::End);
        }
        let record = match state.first.take() {
            Some(first) => first,
            None => state.stream.next()?,
        };
        let range = (record.head.address, record.head.address + record.head.length);
        match record.kind {
            Kind::Pages => {
                state.stored.push(range)?;
                Ok(match self.share_of(range) {
                    Share::None => Task::Pass(record),
                    _ if !matches!(self.scope, Scope::Older(_)) && !state.target.admits(&record)? => Task::Pass(record),
                    Share::Whole if !self.compare => Task::Whole(record),
                    Share::Whole => Task::Parts(record),
                    Share::Parts => Task::Parts(record),
                })
            }
            Kind::Kept => {
                let payload = record.passing(room)?;
                state.kept.extend(kept::ranges(payload, 0).map_err(|_| record.inconsistent())?)?;
                Ok(Task::Nothing)
            }
            Kind::End => {
                state.stream.close(&record)?;
                state.done = true;
                Ok(Task::End)
            }
            _ if matches!(self.scope, Scope::Older(_)) => Ok(Task::Pass(record)),
            Kind::Bytes => Ok(state.target.object_of(&record)?.map_or(Task::Pass(record), |fd| Task::Object(record, fd))),
            _ => Err(record.inconsistent()),
        }
    }

    /// How much of a record's pages is wanted.
    fn share_of(&self, range: Range) -> Share {
        let (Scope::Of(wanted) | Scope::Older(wanted)) = self.scope else { return Share::Whole };
        match ranges::parts(wanted, range).next() {
            None => Share::None,
            Some(all) if all == range => Share::Whole,
            Some(_) => Share::Parts,
        }
    }

    fn take_parts(&self, record: &Record, room: &mut [u8]) -> Result<(), RestoreError<'static>> {
        let everything = [(record.head.address, record.head.address + record.head.length)];
        let wanted = match self.scope {
            Scope::Everything => &everything[..],
            Scope::Of(wanted) | Scope::Older(wanted) => wanted,
        };
        let (start, length) = (record.head.address, record.head.length);
        let payload = record.passing(room)?;
        for (from, to) in ranges::parts(wanted, (start, start + length)) {
            let (part, count) = (&payload[(from - start) as usize..], (to - from) as usize);
            // SAFETY: the target admitted the record, or opened as private memory what is wanted of older images.
            let place = unsafe { core::slice::from_raw_parts_mut(from as *mut u8, count) };
            if !self.compare {
                place.copy_from_slice(&part[..count]);
                self.progress.place(to - from);
                continue;
            }
            for (place, page) in place.chunks_mut(PAGE).zip(part.chunks(PAGE)) {
                if !same(place, page) {
                    place.copy_from_slice(page);
                    self.progress.place(PAGE as u64);
                }
            }
        }
        Ok(())
    }
}

/// Whether two pages are equal. By words: the restorer has no memcmp that is worth the name.
fn same(one: &[u8], other: &[u8]) -> bool {
    // Of whole pages nothing is left over.
    let ((one, _), (other, _)) = (one.as_chunks::<64>(), other.as_chunks::<64>());
    let word = |block: &[u8; 64], at: usize| u64::from_ne_bytes(*block.as_chunks::<8>().0.get(at).unwrap_or(&[0; 8]));
    one.iter().zip(other).all(|(one, other)| (0..8).fold(0, |differs, at| differs | (word(one, at) ^ word(other, at))) == 0)
}

/// How much of a record is wanted.
enum Share {
    Whole,
    Parts,
    None,
}

fn fill_object(record: &Record, fd: usize, room: &mut [u8]) -> Result<(), RestoreError<'static>> {
    let mut bytes = record.passing(room)?;
    let mut at = record.head.address as usize;
    while !bytes.is_empty() {
        // SAFETY: reads `bytes`.
        match unsafe { sys::call(sys::PWRITE, [fd, bytes.as_ptr() as usize, bytes.len(), at, 0, 0]) } {
            Ok(count) => {
                bytes = &bytes[count.min(bytes.len())..];
                at += count;
            }
            Err(sys::EINTR) => {}
            Err(errno) => return Err(RestoreError::ObjectFill { errno }),
        }
    }
    Ok(())
}
