//! Merges a chain into one full image that is equal to it in effect.
//!
//! The result has the newest image's tables, memory objects and header, its name included: images that build on the
//! newest one can build on the merged one in its place. Its pages are the chain's live pages by ascending address.
//! Whatever is read is compared with its checksum first, so a damaged chain gives an error and never a good-looking image.
//! Memory: the chain's list of pieces, and one record (at most 1 MiB, or one table) per image.
//!
//! Nothing is made durable and nothing replaced here: the caller writes to a temporary name, syncs and renames, and
//! removes superseded files only after that.

use crate::chain::{Chain, ChainError, Piece};
use crate::record::{End, Kind, MAX_PAGES};
use crate::write::{StreamWriter, WriteError};
use crate::{Header, ImageError};
use std::io::{Read, Seek, Write};
use std::vec::Vec;

/// Why a chain was not merged. What was written so far is worthless.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The chain cannot be read.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The result cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes the full image. Returns its end record (bytes, pages, checksum).
///
/// # Errors
/// See [`MergeError`].
pub fn merge<R: Read + Seek, W: Write>(chain: &mut Chain<R>, out: W) -> Result<End, MergeError> {
    let newest = chain.newest();
    let expected = chain.pieces().iter().map(|piece| piece.end - piece.start).sum();
    let header = Header { base: [0; 16], sequence: 0, expected, ..newest.header };
    let mut writer = StreamWriter::new(out, &header)?;
    let others = newest.others.clone();
    let mut room = Vec::new();
    let mut others = others.into_iter().peekable();
    // Tables come before content, memory objects after the pages.
    let copy = |chain: &mut Chain<R>, writer: &mut StreamWriter<W>, at: u64, room: &mut Vec<u8>| -> Result<(), MergeError> {
        let head = chain.member_mut(0).payload_at(at, room).map_err(|source| ChainError { member: 0, source })?;
        let kind = Kind::from_number(head.kind).ok_or(WriteError::Format(ImageError::Inconsistent { at }))?;
        Ok(writer.record(kind, head.index, head.address, room)?)
    };
    let first_bytes = chain.newest().first_bytes;
    while let Some(at) = others.next_if(|at| first_bytes.is_none_or(|first| *at < first)) {
        copy(chain, &mut writer, at, &mut room)?;
    }
    pages(chain, &mut writer)?;
    for at in others {
        copy(chain, &mut writer, at, &mut room)?;
    }
    Ok(writer.finish()?)
}

/// All live pages, in records as large as may be that cross no border of mappings.
fn pages<R: Read + Seek, W: Write>(chain: &mut Chain<R>, writer: &mut StreamWriter<W>) -> Result<(), MergeError> {
    let (mut gathered, mut address) = (Vec::with_capacity(MAX_PAGES as usize), 0);
    for index in 0..chain.pieces().len() {
        let piece = chain.pieces()[index];
        let mut at = piece.start;
        while at < piece.end {
            let mapping = chain.newest().mapping_of(at);
            let border = mapping.map_or(piece.end, |mapping| mapping.end);
            let starts_mapping = mapping.is_some_and(|mapping| mapping.start == at);
            if address + gathered.len() as u64 != at || gathered.len() as u64 == MAX_PAGES || starts_mapping {
                flush(writer, address, &mut gathered)?;
                address = at;
            }
            let until = piece.end.min(border).min(at + MAX_PAGES - gathered.len() as u64);
            gathered.extend_from_slice(chain.read(&Piece { start: at, end: until, ..piece })?);
            at = until;
        }
    }
    flush(writer, address, &mut gathered)
}

fn flush<W: Write>(writer: &mut StreamWriter<W>, address: u64, gathered: &mut Vec<u8>) -> Result<(), MergeError> {
    if !gathered.is_empty() {
        writer.record(Kind::Pages, 0, address, gathered)?;
        gathered.clear();
    }
    Ok(())
}
