//! An image together with those it builds on, opened for tools: what is where, whether it is whole, merging it.
//!
//! [`Chain::open`] reads all heads and the small records, newest image first, and refuses what does not fit: images that
//! do not build on each other, pages outside of mappings, pages stored or kept twice, kept pages that are not private memory.
//! It keeps a list of where each live page is ([`Piece`]), some 32 bytes per run of pages, and no page itself.
//! Content is read, and compared with its checksums, by [`Chain::verify`] (all of it), [`Chain::read`] (some pages) and
//! [`crate::merge`].
//!
//! Faults assumed: files are torn, damaged, swapped or hostile; reads fail. Files do not change while a chain is open.

use crate::fixed::Fixed;
use crate::link::{self, LinkError};
use crate::ranges::{self, Range, consistent, meet};
use crate::record::{End, HEAD_SIZE, Kind, Ledger, MAX_TABLE, Mapping, Object, RecordHead, mapping};
use crate::verify::{self, Verified};
use crate::{HEADER_SIZE, Header, ImageError, kept, read_header};
use std::io::{self, Read, Seek, SeekFrom};
use std::vec::Vec;
use xxhash_rust::xxh3::xxh3_64;

/// Why a chain cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("image {member} of the chain")]
pub struct ChainError {
    /// Which image: 0 is the newest.
    pub member: usize,
    /// What went wrong.
    pub source: Fault,
}

/// What is wrong with one image of a chain.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    /// It is damaged.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It does not fit the one before it.
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl Fault {
    /// What a user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Fault::Read(_) => "look at the file and its directory",
            Fault::Image(error) => error.hint(),
            Fault::Link(error) => error.hint(),
        }
    }
}

/// A run of live pages that one record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The image that holds it: 0 is the newest.
    pub member: usize,
    /// Where in that image the record's head is.
    pub(crate) at: u64,
}

/// One image of a chain.
#[derive(Debug)]
pub struct Member<R> {
    pub(crate) source: R,
    /// Its header.
    pub header: Header,
    /// Its end record.
    pub end: End,
    /// Its mappings.
    pub mappings: Vec<Mapping>,
    /// Its objects.
    pub objects: Vec<Object>,
    /// Its texts, which objects point into.
    pub strings: Vec<u8>,
    /// Bytes of pages that it stores.
    pub stored: u64,
    /// Bytes of pages that it keeps from its base.
    pub kept: u64,
    /// Bytes of memory objects that it stores.
    pub bytes: u64,
    /// Bytes of its pages that no newer image of this chain supersedes.
    pub live: u64,
    /// Where its records are that hold neither pages nor what is kept: tables first, then bytes of memory objects.
    pub(crate) others: Vec<u64>,
    /// The first of them that holds bytes.
    pub(crate) first_bytes: Option<u64>,
    /// The record read last.
    held: Option<(RecordHead, u64, Vec<u8>)>,
}

impl<R> Member<R> {
    /// What it is read from.
    #[must_use]
    pub fn source(&self) -> &R {
        &self.source
    }

    /// What an object's path or name is.
    #[must_use]
    pub fn text(&self, object: &Object) -> Option<&str> {
        let whole = self.strings.get(object.text as usize..)?;
        core::str::from_utf8(whole.get(..object.text_length as usize)?).ok()
    }

    /// The mapping that holds an address.
    #[must_use]
    pub fn mapping_of(&self, address: u64) -> Option<&Mapping> {
        let at = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(at).filter(|mapping| mapping.start <= address)
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Chain<R> {
    members: Vec<Member<R>>,
    pieces: Vec<Piece>,
}

/// What one look over an image's heads found.
struct Found {
    end: End,
    tables: [Vec<u8>; 3],
    stored: Vec<(Range, u64)>,
    kept: Vec<Range>,
    others: Vec<u64>,
    first_bytes: Option<u64>,
    bytes: u64,
}

impl<R: Read + Seek> Chain<R> {
    /// Opens an image and those it builds on, newest first.
    ///
    /// # Errors
    /// The first image that cannot be used, and why. A chain of no images is [`LinkError::Open`].
    pub fn open(sources: impl IntoIterator<Item = R>) -> Result<Self, ChainError> {
        let chain = Self::survey(sources)?;
        match chain.members.last() {
            Some(oldest) if oldest.header.incremental() => {
                let source = LinkError::Open { sequence: oldest.header.sequence }.into();
                Err(ChainError { member: chain.members.len() - 1, source })
            }
            _ => Ok(chain),
        }
    }

    /// As [`Chain::open`], but the oldest image may build on one that is not given: then not all live pages are known.
    ///
    /// # Errors
    /// As for [`Chain::open`].
    pub fn survey(sources: impl IntoIterator<Item = R>) -> Result<Self, ChainError> {
        let mut chain = Self { members: Vec::new(), pieces: Vec::new() };
        let mut wanted: Option<Vec<Range>> = None;
        for (member, source) in sources.into_iter().enumerate() {
            if member == link::MAX_CHAIN {
                return Err(ChainError { member, source: LinkError::Long.into() });
            }
            let kept = chain.add(source, wanted.as_deref()).map_err(|source| ChainError { member, source })?;
            wanted = Some(match wanted {
                Some(wanted) => meet(&wanted, &kept).collect(),
                None => kept,
            });
        }
        if chain.members.is_empty() {
            return Err(ChainError { member: 0, source: LinkError::Open { sequence: 0 }.into() });
        }
        chain.pieces.sort_unstable();
        Ok(chain)
    }

    fn add(&mut self, mut source: R, wanted: Option<&[Range]>) -> Result<Vec<Range>, Fault> {
        let (raw, header) = header_of(&mut source)?;
        if let Some(newer) = self.members.last() {
            newer.header.builds_on(&header)?;
        }
        let Found { end, tables: [strings, objects, mappings], mut stored, mut kept, others, first_bytes, bytes } =
            survey(&mut source, &raw)?;
        let (objects, mappings) = (decode_all(&objects), decode_all(&mappings));
        stored.sort_unstable();
        let mut pages: Vec<Range> = stored.iter().map(|(range, _)| *range).collect();
        if !consistent(&mut pages, &mut kept) || !covered(&mappings, &pages, 0) || !covered(&mappings, &kept, mapping::SHARED) {
            return Err(ImageError::Inconsistent { at: end.bytes }.into());
        }
        let (member, mut live) = (self.members.len(), 0);
        for (range, at) in stored {
            let mut take = |(start, end): Range| {
                live += end - start;
                self.pieces.push(Piece { start, end, member, at });
            };
            match wanted {
                None => take(range),
                Some(wanted) => ranges::parts(wanted, range).for_each(take),
            }
        }
        self.members.push(Member {
            source,
            header,
            end,
            mappings,
            objects,
            strings,
            stored: ranges::length(&pages),
            kept: ranges::length(&kept),
            bytes,
            live,
            others,
            first_bytes,
            held: None,
        });
        Ok(kept)
    }

    /// Its images, newest first.
    #[must_use]
    pub fn members(&self) -> &[Member<R>] {
        &self.members
    }

    /// Whether the oldest image is full.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.members.last().is_some_and(|oldest| !oldest.header.incremental())
    }

    /// The newest image: what the chain is an image of.
    #[must_use]
    pub fn newest(&self) -> &Member<R> {
        &self.members[0]
    }

    pub(crate) fn member_mut(&mut self, member: usize) -> &mut Member<R> {
        &mut self.members[member]
    }

    /// Where each live page is, by ascending address.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Reads every byte of every image and compares all checksums.
    ///
    /// # Errors
    /// The first image that is damaged, and where.
    pub fn verify(&mut self) -> Result<Vec<Verified>, ChainError> {
        let mut all = Vec::new();
        for (member, image) in self.members.iter_mut().enumerate() {
            let mut read = || -> Result<Verified, Fault> {
                image.source.seek(SeekFrom::Start(0))?;
                Ok(verify::verify(&mut image.source)??)
            };
            all.push(read().map_err(|source| ChainError { member, source })?);
        }
        Ok(all)
    }

    /// The content of a run of pages that lies within one piece.
    ///
    /// # Errors
    /// The image that holds it cannot be read or is damaged there.
    pub fn read(&mut self, piece: &Piece) -> Result<&[u8], ChainError> {
        let member = piece.member;
        self.members[member].page_record(piece.at, piece.start, piece.end).map_err(|source| ChainError { member, source })
    }
}

impl<R: Read + Seek> Member<R> {
    /// Pages of the record at `at`, whose payload is read and checked as a whole and held for the next call.
    fn page_record(&mut self, at: u64, start: u64, end: u64) -> Result<&[u8], Fault> {
        if self.held.as_ref().is_none_or(|(_, known, _)| *known != at) {
            let mut room = self.held.take().map(|(_, _, room)| room).unwrap_or_default();
            let head = self.payload_at(at, &mut room)?;
            self.held = Some((head, at, room));
        }
        let (head, _, room) = self.held.as_ref().ok_or(ImageError::Inconsistent { at })?;
        let from = start.checked_sub(head.address).ok_or(ImageError::Inconsistent { at })? as usize;
        Ok(room.get(from..from + (end - start) as usize).ok_or(ImageError::Inconsistent { at })?)
    }

    /// Reads a record's head and payload at an offset.
    pub(crate) fn payload_at(&mut self, at: u64, room: &mut Vec<u8>) -> Result<RecordHead, Fault> {
        let mut raw = [0; HEAD_SIZE];
        self.source.seek(SeekFrom::Start(at))?;
        self.source.read_exact(&mut raw).map_err(torn)?;
        let head = RecordHead::decode(&raw)?;
        read_payload(&mut self.source, &head, at, room)?;
        Ok(head)
    }
}

/// A stream that ends early is damaged, not unreadable.
fn torn(error: io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ImageError::Truncated.into(),
        _ => error.into(),
    }
}

fn header_of(source: &mut (impl Read + Seek)) -> Result<([u8; HEADER_SIZE], Header), Fault> {
    source.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    source.take(HEADER_SIZE as u64).read_to_end(&mut bytes)?;
    let header = read_header(&bytes)?;
    let mut raw = [0; HEADER_SIZE];
    raw.copy_from_slice(&bytes);
    Ok((raw, header))
}

/// Reads a payload that a checked head announced, in steps: the length is believed only as far as there are bytes.
pub(crate) fn read_payload(source: &mut impl Read, head: &RecordHead, at: u64, room: &mut Vec<u8>) -> Result<(), Fault> {
    room.clear();
    if head.length > MAX_TABLE || source.take(head.length).read_to_end(room)? as u64 != head.length {
        return Err(ImageError::Truncated.into());
    }
    if xxh3_64(room) != head.payload { Err(ImageError::Damaged { at }.into()) } else { Ok(()) }
}

/// Looks at every head; reads the tables that tools need, what is kept, and the end.
fn survey<R: Read + Seek>(source: &mut R, header: &[u8; HEADER_SIZE]) -> Result<Found, Fault> {
    let mut ledger = Ledger::new(header);
    source.seek(SeekFrom::Start(HEADER_SIZE as u64))?;
    let mut source = io::BufReader::with_capacity(4096, source);
    let (mut tables, mut stored, mut kept_ranges, mut bytes) = (<[Vec<u8>; 3]>::default(), Vec::new(), Vec::new(), 0);
    let (mut others, mut first_bytes, mut room) = (Vec::new(), None, Vec::new());
    loop {
        let at = ledger.bytes();
        let mut raw = [0; HEAD_SIZE];
        source.read_exact(&mut raw).map_err(torn)?;
        let (kind, head) = ledger.admit(&raw)?;
        let range = (head.address, head.address + head.length);
        let mut taken = 0;
        if !matches!(kind, Kind::Pages | Kind::Kept | Kind::End) {
            others.push(at);
        }
        match kind {
            Kind::Strings | Kind::Objects | Kind::Mappings => {
                read_payload(&mut source, &head, at, &mut tables[kind as usize - 1])?;
                taken = head.length;
            }
            Kind::Kept => {
                read_payload(&mut source, &head, at, &mut room)?;
                taken = head.length;
                kept_ranges.extend(kept::ranges(&room, at)?);
            }
            Kind::Pages => stored.push((range, at)),
            Kind::Bytes => {
                first_bytes.get_or_insert(at);
                bytes += head.length;
            }
            Kind::End => {
                read_payload(&mut source, &head, at, &mut room)?;
                let end = End::decode(&room)?;
                ledger.close(&end)?;
                let end_of_file = source.seek(SeekFrom::End(0))?;
                return match end_of_file.cmp(&end.bytes) {
                    core::cmp::Ordering::Less => Err(ImageError::Truncated.into()),
                    core::cmp::Ordering::Equal => Ok(Found { end, tables, stored, kept: kept_ranges, others, first_bytes, bytes }),
                    core::cmp::Ordering::Greater => Err(ImageError::Trailing.into()),
                };
            }
            Kind::Threads | Kind::Process | Kind::Unread | Kind::Summary => {}
        }
        source.seek_relative((head.padded_length() - taken) as i64)?;
    }
}

fn decode_all<T: Fixed>(table: &[u8]) -> Vec<T> {
    table.chunks_exact(T::SIZE).filter_map(|raw| T::decode(raw).ok()).collect()
}

/// Whether all ranges of a settled list lie within mappings that have none of `flags` and are not the kernel's.
fn covered(mappings: &[Mapping], list: &[Range], flags: u32) -> bool {
    let refused = flags | mapping::VDSO | mapping::VVAR;
    let ordered =
        mappings.iter().all(|mapping| mapping.start < mapping.end) && mappings.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let mut next = mappings.iter().peekable();
    let mut inside = |(start, end): Range| {
        let mut at = start;
        while at < end {
            while next.next_if(|mapping| mapping.end <= at).is_some() {}
            match next.peek() {
                Some(mapping) if mapping.start <= at && mapping.flags & refused == 0 => at = mapping.end,
                _ => return false,
            }
        }
        true
    };
    ordered && list.iter().all(|range| inside(*range))
}
