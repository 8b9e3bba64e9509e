//! Chains of images from anybody's disk. The input describes images that are sealed with true checksums: what is tried is how
//! they name each other, what they keep and store and where. Whatever comes, opening ends without a panic and with bounded
//! memory; and a chain that is accepted has each live page once, within its mappings, and is equal in effect to what it is
//! merged into.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_image::chain::Chain;
use mend_image::diff::diff;
use mend_image::fixed::Fixed;
use mend_image::merge::merge;
use mend_image::record::{Kind, Mapping, mapping};
use mend_image::write::StreamWriter;
use mend_image::{Header, kept};
use std::io::Cursor;

const PAGE: u64 = 4096;

#[derive(Arbitrary, Debug)]
struct Area {
    start: u8,
    length: u8,
    shared: bool,
}

#[derive(Arbitrary, Debug)]
enum Content {
    Pages {
        start: u8,
        count: u8,
        fill: u8,
    },
    Kept(Vec<(u8, u8)>),
    /// Anything at all, of any kind.
    Raw {
        kind: u8,
        address: u64,
        payload: Vec<u8>,
    },
}

#[derive(Arbitrary, Debug)]
struct Image {
    id: u8,
    base: u8,
    sequence: u8,
    rank: bool,
    /// Instead of well-formed ones.
    table: Option<Vec<u8>>,
    areas: Vec<Area>,
    content: Vec<Content>,
}

fn at(page: u8) -> u64 {
    0x10_0000 + u64::from(page) * PAGE
}

fn build(image: &Image) -> Option<Vec<u8>> {
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
            Content::Kept(ranges) => {
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

fuzz_target!(|images: Vec<Image>| {
    let Some(images) = images.iter().take(6).map(build).collect::<Option<Vec<_>>>() else { return };
    let open = || Chain::open(images.iter().map(Cursor::new));
    let Ok(mut chain) = open() else { return };
    let mut last = 0;
    for piece in chain.pieces() {
        assert!(last <= piece.start && piece.start < piece.end, "a page is there twice");
        let inside = |at| chain.newest().mapping_of(at).is_some();
        assert!((piece.start..piece.end).step_by(PAGE as usize).all(inside), "a page is outside of all mappings");
        last = piece.end;
    }
    chain.verify().expect("what was sealed has its checksums");
    let mut merged = Vec::new();
    merge(&mut chain, &mut merged).expect("an accepted chain can be merged");
    let mut whole = Chain::open([Cursor::new(&merged)]).expect("what was merged is an image");
    assert_eq!(whole.members()[0].live, chain.members().iter().map(|member| member.live).sum::<u64>());
    diff(&mut chain, &mut whole, |found| panic!("{found:?}")).expect("both can be read");
});
