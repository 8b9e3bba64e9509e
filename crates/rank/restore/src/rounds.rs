//! Memory that is filled before it is known what the image will be: rounds of pages of a process that still runs elsewhere.
//!
//! ```text
//! Stream::open ─► receive: areas are mapped where they are there, pages put to their addresses, again and again
//!              ─► Stream::open, Tables ─► Building::map_over: what has its place already stays; what is mapped otherwise now is moved aside
//!              ─► fill_rest: the image's own pages; of those that it keeps, copies of what was moved aside; what it does not have is dropped
//! ```
//! Invariants: nothing outside of the areas that were announced is touched; no page of an area outlives [`fill_rest`] that the image
//! neither holds nor keeps.

use crate::anonymous::{discard, has_advice, map_marked, map_private, mark_private, settle_as_one, unmap, unmark};
use crate::arena::{Arena, Zeroed};
use crate::fill::{Found, Resources, Scope, Target, run, take_room};
use crate::list::{Array, List};
use crate::lock::Lock;
use crate::stream::{Record, Source, Stream};
use crate::{RestoreError, sys};
use mend_image::fixed::Fixed;
use mend_image::link::LinkError;
use mend_image::ranges::{self, Range, meet};
use mend_image::record::{HEAD_SIZE, MAX_PAGES, Mapping, RecordHead, mapping};
use mend_image::rounds::{RoundEnd, RoundKind, Rounds, TAKEN};
use mend_image::{Header, ImageError, ZONES, kept};

/// Highest address of user space with 4-level page tables.
pub(crate) const TOP: u64 = mend_image::END_OF_ADDRESSES;
/// A sender may be busy with its own node's affairs for so long between two records, milliseconds.
const PATIENCE_MS: i32 = 600_000;
/// What must be the same of a mapping and of an area for the one to take the other's place.
const CLASS: u32 = mapping::RESERVED
    | mapping::HUGE
    | mapping::NO_HUGE
    | mapping::NO_DUMP
    | mapping::NO_FORK
    | mapping::WIPE_ON_FORK
    | mapping::MERGEABLE
    | mapping::RANDOM
    | mapping::SEQUENTIAL
    | mapping::GROWS_DOWN
    | mapping::POOL;

/// Memory that the kernel has in one mapping, whatever is mapped beside it later.
#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    flags: u32,
}

// SAFETY: numbers.
unsafe impl Zeroed for Piece {}

/// Mappings that must be able to be one.
#[derive(Clone, Copy)]
struct Group {
    start: u64,
    end: u64,
    flags: u32,
    /// Nothing stays in it.
    empty: bool,
}

// SAFETY: numbers, and a `bool`, of which zero is a value.
unsafe impl Zeroed for Group {}

/// Memory that has no place in the image where it was, and lies elsewhere now.
#[derive(Clone, Copy)]
struct Aside {
    start: u64,
    end: u64,
    to: u64,
}

// SAFETY: numbers.
unsafe impl Zeroed for Aside {}

/// Pieces, ascending.
type Pieces<'a> = Array<'a, Piece>;

/// Adds what belongs to the mapping of the last piece, if it follows that and is of the same class; else as a piece of its own.
fn extend(pieces: &mut Pieces, piece: Piece) -> Result<(), RestoreError<'static>> {
    match pieces.all_mut().last_mut() {
        Some(last) if (last.end, last.flags) == (piece.start, piece.flags) => {
            last.end = piece.end;
            Ok(())
        }
        _ => pieces.push(piece),
    }
}

/// What came ahead of an image.
pub struct Early<'a> {
    arena: &'a Arena,
    header: Header,
    pieces: Pieces<'a>,
    /// The next list of areas, and memory for the one after it.
    listed: Pieces<'a>,
    spare: Pieces<'a>,
    /// A list is being announced.
    listing: bool,
    /// Memory that has its place in the image.
    placed: List<'a>,
    /// See [`Early::make_way`].
    groups: Array<'a, Group>,
    /// The group that is being mapped or the next one, and whether it is marked.
    group: usize,
    marked: bool,
    /// Memory that has not.
    aside: Array<'a, Aside>,
}

/// Receives all rounds from a stream whose header announced them; the image follows on the same descriptor.
///
/// # Errors
/// The source's, what is wrong with a record, or what the kernel refuses.
pub fn receive<'a>(stream: Stream, arena: &'a Arena) -> Result<Early<'a>, RestoreError<'static>> {
    let (source, header) = stream.into_source(PATIENCE_MS);
    let mut rounds = Rounds::new(&header.to_bytes());
    let new = || Pieces::new(arena);
    let mut early = Early {
        arena,
        header,
        pieces: new(),
        listed: new(),
        spare: new(),
        listing: false,
        placed: List::new(arena),
        groups: Array::new(arena),
        group: 0,
        marked: false,
        aside: Array::new(arena),
    };
    let room = take_room(arena)?;
    loop {
        let at = rounds.bytes();
        let mut raw = [0; HEAD_SIZE];
        source.read_slice(at, &mut raw)?;
        let (kind, head) = rounds.admit(&raw).map_err(|error| source.damaged(error))?;
        let inconsistent = || source.damaged(ImageError::Inconsistent { at });
        if kind != RoundKind::Areas && core::mem::take(&mut early.listing) {
            early.settle()?;
        }
        let place = at + HEAD_SIZE as u64;
        match kind {
            RoundKind::Areas => early.list(payload(&source, place, &head, room)?, head.address == 0).ok_or_else(inconsistent)??,
            RoundKind::Pages => {
                if !early.has((head.address, head.address + head.length)) {
                    return Err(inconsistent());
                }
                // SAFETY: within areas, which nobody uses yet.
                unsafe { source.fill(place, &head, room)? };
            }
            RoundKind::Zeros => {
                let zeros = kept::ranges(payload(&source, place, &head, room)?, at).map_err(|error| source.damaged(error))?;
                for range in zeros {
                    early.drop_pages(range);
                }
            }
            RoundKind::Done => {
                let end = RoundEnd::decode(payload(&source, place, &head, room)?).map_err(|error| source.damaged(error))?;
                rounds.close(&end).map_err(|error| source.damaged(error))?;
                source.answer(&[TAKEN])?;
            }
            RoundKind::Alive => {}
            RoundKind::Rest => return Ok(early),
        }
    }
}

fn payload<'b>(source: &Source, at: u64, head: &RecordHead, room: &'b mut [u8]) -> Result<&'b [u8], RestoreError<'static>> {
    let padded = head.padded_length() as usize;
    let room = room.get_mut(..padded).ok_or_else(|| source.damaged(ImageError::Inconsistent { at }))?;
    source.read_slice(at, room)?;
    let payload = &room[..head.length as usize];
    source.check(at, head, payload)?;
    Ok(payload)
}

impl Early<'_> {
    /// Adds areas to the list under way, or to a new one. `None`: they are not what a list can have.
    fn list(&mut self, payload: &[u8], first: bool) -> Option<Result<(), RestoreError<'static>>> {
        if first {
            self.listed.clear();
        }
        self.listing = true;
        let zone = ZONES.get(self.header.zone as usize)?;
        for raw in payload.chunks_exact(Mapping::SIZE) {
            let record = Mapping::decode(raw).ok()?;
            let last = self.listed.all().last().map_or(0, |last| last.end);
            let aligned = (record.start | record.end).is_multiple_of(4096);
            let outside = record.start >= zone.1 || record.end <= zone.0;
            if !aligned || record.start < last.max(4096) || record.start >= record.end || record.end > TOP || !outside {
                return None;
            }
            let piece = Piece { start: record.start, end: record.end, flags: record.flags & CLASS };
            if let Err(error) = self.listed.push(piece) {
                return Some(Err(error));
            }
        }
        Some(Ok(()))
    }

    /// Maps what is new in the list, and unmaps what is no longer in it.
    fn settle(&mut self) -> Result<(), RestoreError<'static>> {
        self.spare.clear();
        let mut old = 0;
        // The piece that the last part is of.
        let mut part_of = None;
        for area in self.listed.all().iter().copied() {
            let mut at = area.start;
            while at < area.end {
                // What lies before it is in no area any more.
                while let Some(piece) = self.pieces.all_mut().get_mut(old).filter(|piece| piece.start < at) {
                    unmap((piece.start, piece.end.min(at)));
                    piece.start = piece.end.min(at);
                    old += usize::from(piece.start == piece.end);
                }
                match self.pieces.all().get(old).copied().filter(|piece| piece.start < area.end) {
                    Some(piece) if piece.start == at => {
                        let end = piece.end.min(area.end);
                        let part = Piece { end, ..piece };
                        if part_of.replace(old) == Some(old) {
                            extend(&mut self.spare, part)?
                        } else {
                            self.spare.push(part)?
                        }
                        self.pieces.all_mut()[old].start = end;
                        old += usize::from(end == piece.end);
                        at = end;
                    }
                    found => {
                        let end = found.map_or(area.end, |piece| piece.start);
                        let new = Piece { start: at, end, ..area };
                        map_private(at, end, area.flags)?;
                        // The kernel joins it to what lies before it, and not if it was something else before it was advised.
                        if has_advice(area.flags) {
                            self.spare.push(new)?
                        } else {
                            extend(&mut self.spare, new)?
                        }
                        part_of = None;
                        at = end;
                    }
                }
            }
        }
        for piece in &self.pieces.all()[old..] {
            unmap((piece.start, piece.end));
        }
        core::mem::swap(&mut self.pieces, &mut self.spare);
        Ok(())
    }

    /// Pieces that have something in common with a range.
    fn within(&self, (start, end): Range) -> impl Iterator<Item = Piece> + '_ {
        let all = self.pieces.all();
        let first = all.partition_point(|piece| piece.end <= start);
        all[first..].iter().take_while(move |piece| piece.start < end).copied()
    }

    fn has(&self, (start, end): Range) -> bool {
        let mut at = start;
        for piece in self.within((start, end)) {
            if piece.start > at {
                return false;
            }
            at = piece.end;
        }
        at >= end
    }

    fn drop_pages(&self, (start, end): Range) {
        for piece in self.within((start, end)) {
            discard((piece.start.max(start), piece.end.min(end)));
        }
    }

    /// Whether a mapping is of private memory without a file that ordinary pages make up.
    fn has_plain_memory(record: &Mapping) -> bool {
        const OTHER: u32 = mapping::SHARED | mapping::VDSO | mapping::VVAR | mapping::GROWS_DOWN | mapping::POOL;
        record.object == mapping::NO_OBJECT && record.flags & OTHER == 0
    }

    /// Whether a mapping can have the memory of a piece as it is.
    fn fits(record: &Mapping, piece: &Piece) -> bool {
        Self::has_plain_memory(record) && record.flags & CLASS == piece.flags
    }

    /// Before anything of the image is mapped: takes away what is in the way of its mappings (ascending), and notes what stays.
    ///
    /// A program may count on its mapping being one (mremap does), but two that hold pages of different descent (`anon_vma`) are never joined
    /// by the kernel. So of a mapping one piece stays, the largest, and what is mapped beside it has to join that, not what lies next to the
    /// mapping: therefore both carry a mark while they are mapped. Mappings that follow each other and differ in protection may become one the
    /// next moment: they count as one.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(crate) fn make_way(&mut self, mappings: impl Iterator<Item = Mapping>) -> Result<(), RestoreError<'static>> {
        let mut at = 0;
        let mut ahead = mappings.peekable();
        while let Some(first) = ahead.next() {
            let mut last = first;
            while let Some(next) = ahead.next_if(|next| Self::may_join(&last, next)) {
                last = next;
            }
            self.unmap_within((at, first.start));
            let group = (first.start, last.end);
            at = group.1;
            let clip = |piece: &Piece, (start, end): Range| (piece.start.max(start), piece.end.min(end));
            let fitting = self.within(group).filter(|piece| Self::fits(&first, piece));
            let stays = fitting.map(|piece| clip(&piece, group)).max_by_key(|range| range.1 - range.0);
            let index = self.pieces.all().partition_point(|piece| piece.end <= group.0);
            for index in index..self.pieces.all().len() {
                let piece = self.pieces.all()[index];
                if piece.start >= group.1 {
                    break;
                }
                let range = clip(&piece, group);
                if Some(range) == stays { self.placed.push(range)? } else { self.move_aside(range)? }
            }
            let several = first.end != last.end && Self::has_plain_memory(&first);
            if stays.is_some() || several {
                self.groups.push(Group { start: group.0, end: group.1, flags: first.flags, empty: stays.is_none() })?;
            }
        }
        self.unmap_within((at, TOP));
        Ok(())
    }

    /// Comes to a mapping (ascending): ends the groups before it, begins its own. True if it is in one, and what was missing of it is mapped
    /// now: readable and writable.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(crate) fn map_in_group(&mut self, record: &Mapping) -> Result<bool, RestoreError<'static>> {
        self.end_groups(record.start)?;
        let Some(group) = self.groups.all().get(self.group).copied().filter(|group| group.start <= record.start) else { return Ok(false) };
        if !self.marked {
            for range in ranges::parts(self.placed.all(), (group.start, group.end)) {
                mark_private(range, group.flags)?;
            }
            self.marked = true;
        }
        self.holes(record).try_for_each(|hole| map_marked(hole, record.flags))?;
        Ok(true)
    }

    /// Ends all groups that lie below an address: nothing is missing of them any more.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(crate) fn end_groups(&mut self, below: u64) -> Result<(), RestoreError<'static>> {
        while let Some(group) = self.groups.all().get(self.group).copied().filter(|group| group.end <= below) {
            if core::mem::take(&mut self.marked) {
                if group.empty {
                    settle_as_one((group.start, group.end));
                }
                unmark((group.start, group.end), group.flags)?;
            }
            self.group += 1;
        }
        Ok(())
    }

    /// Whether two mappings would be one if their protection were the same.
    fn may_join(one: &Mapping, next: &Mapping) -> bool {
        const SAME: u32 = CLASS | mapping::SHARED | mapping::VDSO | mapping::VVAR;
        let alike = one.flags & SAME == next.flags & SAME && (one.object, next.object) == (mapping::NO_OBJECT, mapping::NO_OBJECT);
        alike && one.end == next.start && one.protection != next.protection
    }

    /// Takes away the pieces between two mappings.
    fn unmap_within(&self, (start, end): Range) {
        for piece in self.within((start, end)) {
            unmap((piece.start.max(start), piece.end.min(end)));
        }
    }

    fn move_aside(&mut self, (start, end): Range) -> Result<(), RestoreError<'static>> {
        const MREMAP_MAYMOVE_FIXED: usize = 3;
        let length = (end - start) as usize;
        let to = self.arena.take(length)?.as_mut_ptr() as usize;
        // SAFETY: replaces memory that was just handed out, and is used by nobody, by a part of an area.
        unsafe { sys::call(sys::MREMAP, [start as usize, length, length, MREMAP_MAYMOVE_FIXED, to, 0]) }
            .map_err(|errno| RestoreError::Map { length, start, errno })?;
        self.aside.push(Aside { start, end, to: to as u64 })
    }

    /// The parts of a mapping that have no memory yet, ascending.
    fn holes(&self, record: &Mapping) -> impl Iterator<Item = Range> + '_ {
        let mut at = record.start;
        let end = record.end;
        let mut placed = ranges::parts(self.placed.all(), (at, end));
        core::iter::from_fn(move || {
            loop {
                if at >= end {
                    return None;
                }
                let next = placed.next().unwrap_or((end, end));
                let hole = (at, next.0);
                at = next.1;
                if hole.0 < hole.1 {
                    return Some(hole);
                }
            }
        })
    }
}

/// Fills all memory from an image that follows rounds, and from those. `newest` stands behind `first`, the first record after the tables.
///
/// # Errors
/// What is wrong with the image, or what the kernel refuses. Memory holds anything then.
pub fn fill_rest<'s>(
    mut newest: Stream<'s>,
    first: Record<'s>,
    early: &Early,
    target: &mut dyn Target,
    with: Resources,
) -> Result<(), RestoreError<'static>> {
    let rooms = [Lock::new(take_room(with.arena)?), Lock::new(take_room(with.arena)?)];
    let header = *newest.header();
    let Found { stored, kept } = run(&mut newest, Some(first), (Scope::Everything, false), target, with, &rooms)?;
    let builds = if header.incremental() { header.builds_on(&early.header) } else { Ok(()) };
    builds.map_err(|error: LinkError| RestoreError::Link { member: crate::error::Member(0), error })?;
    for range in kept.all() {
        if !target.open_private(*range)? {
            return Err(newest.inconsistent());
        }
    }
    for aside in early.aside.all() {
        for (start, end) in meet(kept.all(), &[(aside.start, aside.end)]) {
            let from = aside.to + (start - aside.start);
            // SAFETY: the target opened what is kept; the memory aside is nobody else's.
            unsafe { core::ptr::copy_nonoverlapping(from as *const u8, start as *mut u8, (end - start) as usize) };
            with.progress.place(end - start);
        }
        unmap((aside.to, aside.to + (aside.end - aside.start)));
    }
    let mut left = List::new(with.arena);
    left.extend(ranges::without(early.placed.all(), stored.all()))?;
    ranges::without(left.all(), kept.all()).for_each(discard);
    Ok(())
}

const _: () = assert!(MAX_PAGES as usize >= (1 << 20) / Mapping::SIZE * Mapping::SIZE);
