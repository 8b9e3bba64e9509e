//! Images that are sealed with true checksums and say that they build on each other.

use crate::input::{input_enum, input_struct};
use mend_image::fixed::Fixed;
use mend_image::record::{Kind, Mapping, mapping};
use mend_image::write::StreamWriter;
use mend_image::{Header, kept};

pub const PAGE: u64 = 4096;

input_struct! {
    /// A mapping, in pages.
    pub struct Area {
        pub start: u8,
        pub length: u8,
        pub shared: bool,
    }
}

input_enum! {
    /// A record.
    pub enum Content {
        Pages { start: u8, count: u8, fill: u8 },
        Kept { ranges: Vec<(u8, u8)> },
        /// Anything at all, of any kind.
        Raw { kind: u8, address: u64, payload: Vec<u8> },
    }
}

input_struct! {
    /// An image.
    pub struct Image {
        pub id: u8,
        pub base: u8,
        pub sequence: u8,
        pub rank: bool,
        /// Instead of well-formed ones.
        pub table: Option<Vec<u8>>,
        pub areas: Vec<Area>,
        pub content: Vec<Content>,
    }
}

fn at(page: u8) -> u64 {
    0x10_0000 + u64::from(page) * PAGE
}

/// An image's bytes. `None`: no writer would have begun it.
pub fn build(image: &Image) -> Option<Vec<u8>> {
    let sequence = u32::from(image.sequence % 8);
    let base = if sequence == 0 { 0 } else { image.base % 8 + 1 };
    let header = Header { id: [image.id % 8 + 1; 16], base: [base; 16], sequence, rank: u32::from(image.rank), ..Header::default() };
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::new(&mut bytes, &header).ok()?;
    let mut table = Vec::new();
    for area in &image.areas {
        let mut raw = [0; Mapping::SIZE];
        let (start, end) = (at(area.start), at(area.start) + u64::from(area.length) * PAGE);
        let flags = if area.shared { mapping::SHARED } else { 0 };
        Mapping { start, end, offset: 0, protection: 3, flags, object: mapping::NO_OBJECT, page_shift: 0 }.encode(&mut raw).ok()?;
        table.extend(raw);
    }
    let table = image.table.as_ref().unwrap_or(&table);
    for (kind, payload) in
        [(Kind::Strings, &[][..]), (Kind::Objects, &[]), (Kind::Mappings, table), (Kind::Threads, &[]), (Kind::Process, &[])]
    {
        writer.record(kind, 0, 0, payload).ok()?;
    }
    for content in &image.content {
        // What the writer refuses never was in the stream.
        let _ = match content {
            Content::Pages { start, count, fill } => {
                writer.record(Kind::Pages, 0, at(*start), &vec![*fill; usize::from(*count % 16) * PAGE as usize])
            }
            Content::Kept { ranges } => {
                let mut payload = vec![0; ranges.len() * kept::RANGE];
                for ((start, end), raw) in ranges.iter().zip(payload.chunks_exact_mut(kept::RANGE)) {
                    kept::put((at(*start), at(*end)), raw).ok()?;
                }
                writer.record(Kind::Kept, 0, 0, &payload)
            }
            Content::Raw { kind, address, payload } => match Kind::from_number(u32::from(kind % 12)) {
                Some(Kind::End) | None => Ok(()),
                Some(kind) => writer.record(kind, 0, *address, payload),
            },
        };
    }
    writer.finish().ok()?;
    Some(bytes)
}
