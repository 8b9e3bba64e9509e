//! Which pages of two chains differ in effect.
//!
//! A page that a chain does not hold is as a fresh mapping gives it: zero in anonymous memory, as in the file in a mapped
//! one. So a page of zeros that only one of them holds is no difference in anonymous memory. Memory objects (shared memory
//! with descriptors) are not compared.

use crate::chain::{Chain, ChainError, Piece};
use crate::record::mapping;
use std::io::{Read, Seek};

/// How pages differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Both hold them, with other content.
    Changed,
    /// Only the first holds them.
    Gone,
    /// Only the second holds them.
    New,
}

/// A run of pages that differ in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// How the two images differ there.
    pub how: How,
}

/// Which of the two chains cannot be read, and why.
#[derive(Debug, thiserror::Error)]
#[error("the {} chain cannot be read", if *second { "second" } else { "first" })]
pub struct DiffError {
    /// False: the first.
    pub second: bool,
    /// What went wrong.
    pub source: ChainError,
}

const PAGE_SIZE: u64 = 4096;

/// Reports the differences by ascending address, runs joined.
///
/// # Errors
/// See [`DiffError`].
pub fn diff<A: Read + Seek, B: Read + Seek>(
    first: &mut Chain<A>,
    second: &mut Chain<B>,
    mut report: impl FnMut(Difference),
) -> Result<(), DiffError> {
    let mut run: Option<Difference> = None;
    let mut add = |start: u64, how: How| match &mut run {
        Some(run) if run.end == start && run.how == how => run.end += PAGE_SIZE,
        run => {
            run.replace(Difference { start, end: start + PAGE_SIZE, how }).into_iter().for_each(&mut report);
        }
    };
    let (mut a, mut b, mut at) = (0, 0, 0);
    loop {
        let one = next(first.pieces(), &mut a, at);
        let other = next(second.pieces(), &mut b, at);
        let start = match (one, other) {
            (None, None) => break,
            (Some(one), None) => one.start.max(at),
            (None, Some(other)) => other.start.max(at),
            (Some(one), Some(other)) => one.start.min(other.start).max(at),
        };
        // Up to the next border of either.
        let border = |piece: &Piece| if piece.start > start { piece.start } else { piece.end };
        let end = one.iter().chain(&other).map(border).min().unwrap_or(start);
        let cut = |piece: Option<Piece>| piece.filter(|piece| piece.start <= start).map(|piece| Piece { start, end, ..piece });
        let (one, other) = (cut(one), cut(other));
        let zero_counts = |mapped: Option<u32>| mapped.is_none_or(|object| object != mapping::NO_OBJECT);
        let counts = zero_counts(first.newest().mapping_of(start).map(|mapped| mapped.object))
            || zero_counts(second.newest().mapping_of(start).map(|mapped| mapped.object));
        let left = one.map(|piece| first.read(&piece)).transpose().map_err(|source| DiffError { second: false, source })?;
        let right = other.map(|piece| second.read(&piece)).transpose().map_err(|source| DiffError { second: true, source })?;
        for page in 0..(end - start) / PAGE_SIZE {
            let how = match (page_of(left, page), page_of(right, page)) {
                (Some(x), Some(y)) => (x != y).then_some(How::Changed),
                (Some(x), None) => (counts || x.iter().any(|byte| *byte != 0)).then_some(How::Gone),
                (None, Some(y)) => (counts || y.iter().any(|byte| *byte != 0)).then_some(How::New),
                (None, None) => None,
            };
            if let Some(how) = how {
                add(start + page * PAGE_SIZE, how);
            }
        }
        at = end;
    }
    run.into_iter().for_each(report);
    Ok(())
}

fn page_of(bytes: Option<&[u8]>, page: u64) -> Option<&[u8]> {
    bytes.map(|bytes| &bytes[(page * PAGE_SIZE) as usize..][..PAGE_SIZE as usize])
}

/// The first piece that ends behind `at`.
fn next(pieces: &[Piece], index: &mut usize, at: u64) -> Option<Piece> {
    while pieces.get(*index).is_some_and(|piece| piece.end <= at) {
        *index += 1;
    }
    pieces.get(*index).copied()
}
