//! Images, chains of them, encrypted files.

use super::{Seed, keep, seed};
use crate::chains::{self, Area, Content, Image};
use crate::images::{self, Record, Stream};
use crate::input::Input;
use crate::sealed::{self, Damage, Sealed, Step};
use arbitrary::{Arbitrary, Unstructured};
use mend_image::ImageError;
use mend_image::chain::Chain;
use mend_image::record::Kind;
use mend_image::verify::{Verified, Verifier};
use std::fmt::Debug;
use std::io::Cursor;

/// The input of a value, which is read as that value.
fn written<T: Input + for<'a> Arbitrary<'a> + PartialEq + Debug>(name: &str, value: &T) -> Seed {
    let bytes = value.to_bytes();
    assert_eq!(T::arbitrary_take_rest(Unstructured::new(&bytes)).as_ref(), Ok(value), "{name}");
    seed(name, bytes)
}

fn verdict(stream: &Stream) -> Result<Verified, ImageError> {
    let mut verifier = Verifier::new();
    verifier.feed(&images::build(stream))?;
    verifier.finish()
}

fn record(kind: Kind, address: u64, payload: &[u8]) -> Record {
    Record { kind: kind as u8, address, payload: payload.to_vec(), ..Record::default() }
}

#[test]
fn images_are_accepted_and_lies_are_not() {
    let page = [7; 4096];
    let range: Vec<u8> = [0x10_0000u64, 0x10_4000].iter().flat_map(|at| at.to_le_bytes()).collect();
    let full = Stream {
        records: vec![
            record(Kind::Unread, 0, b"a line that nobody has read\n"),
            record(Kind::Summary, 0, b"{}"),
            record(Kind::Bytes, 4096, b"memory object"),
            record(Kind::Pages, 0x10_0000, &page),
        ],
        honest_end: true,
        cut: 99,
        ..Stream::default()
    };
    let incremental = Stream {
        incremental: true,
        records: vec![record(Kind::Kept, 0, &range), record(Kind::Bytes, 0, b"memory")],
        honest_end: true,
        flip: Some((2050, 1)),
        ..Stream::default()
    };
    let small = Stream { records: vec![record(Kind::Bytes, 0, b"x")], honest_end: true, ..Stream::default() };
    for good in [&full, &incremental, &small] {
        verdict(good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
    }
    let refused = |change: &dyn Fn(&mut Stream)| {
        let mut bad = full.clone();
        // Seeds are better short: a byte takes two there.
        bad.records[3] = record(Kind::Bytes, 0, b"memory");
        assert!(verdict(&bad).is_ok());
        change(&mut bad);
        assert!(verdict(&bad).is_err(), "{bad:?}");
        bad
    };
    let kept_in_full = refused(&|stream| stream.records[2] = record(Kind::Kept, 0, &range));
    let lie = refused(&|stream| stream.records[1].lie = Some(1 << 40));
    let order = refused(&|stream| stream.records.swap(0, 3));
    let torn = refused(&|stream| stream.honest_end = false);
    let seeds = [
        written("full", &full),
        written("incremental", &incremental),
        written("small", &small),
        written("kept-pages-in-a-full-one", &kept_in_full),
        written("too-long-a-record", &lie),
        written("out-of-order", &order),
        written("without-an-end", &torn),
    ];
    keep("image", &seeds);
}

fn image(sequence: u8, areas: &[(u8, u8)], content: Vec<Content>) -> Image {
    let areas = areas.iter().map(|(start, length)| Area { start: *start, length: *length, shared: false }).collect();
    // Names count from 1, that of the base is the one before.
    Image { id: sequence, base: sequence.wrapping_sub(1), sequence, areas, content, ..Image::default() }
}

fn is_chain(images: &[Image]) -> bool {
    let built: Vec<_> = images.iter().map(|image| chains::build(image).expect("an image")).collect();
    Chain::open(built.iter().map(Cursor::new)).is_ok()
}

#[test]
fn chains_are_accepted_and_what_does_not_fit_is_not() {
    let pages = |start, count, fill| Content::Pages { start, count, fill };
    let kept = |ranges: &[(u8, u8)]| Content::Kept { ranges: ranges.to_vec() };
    let whole = image(0, &[(0, 8), (20, 4)], vec![pages(0, 8, 1), pages(21, 2, 2)]);
    let second = image(1, &[(0, 8), (20, 4)], vec![kept(&[(0, 3), (5, 8)]), pages(3, 2, 3), kept(&[(21, 22)])]);
    let third = image(2, &[(0, 8), (30, 2)], vec![pages(0, 1, 4), kept(&[(1, 4)]), pages(30, 1, 5)]);
    let one = vec![whole.clone()];
    let three = vec![third.clone(), second.clone(), whole.clone()];
    assert!(is_chain(&one) && is_chain(&three));
    let gap = vec![third.clone(), whole.clone()];
    let open = vec![third.clone(), second.clone()];
    let twice = vec![image(1, &[(0, 8)], vec![kept(&[(0, 3)]), pages(2, 2, 3)]), whole.clone()];
    let outside = vec![image(0, &[(0, 2)], vec![pages(1, 2, 1)])];
    let mut other = three.clone();
    other[1].rank = true;
    for bad in [&gap, &open, &twice, &outside, &other] {
        assert!(!is_chain(bad), "{bad:?}");
    }
    let mut shared = three.clone();
    shared[1].areas[0].shared = true;
    let raw =
        vec![Image { table: Some(vec![0; 56]), content: vec![Content::Raw { kind: 7, address: 0, payload: b"{}".to_vec() }], ..whole }];
    let seeds = [
        written("one", &one),
        written("three", &three),
        written("a-gap", &gap),
        written("no-first-one", &open),
        written("a-page-twice", &twice),
        written("a-page-outside", &outside),
        written("of-another-rank", &other),
        written("shared-memory-kept", &shared),
        written("a-table-of-zeros", &raw),
    ];
    keep("chain", &seeds);
}

#[test]
fn encrypted_files_are_as_they_were_sealed_or_not() {
    let steps = vec![
        Step::Read { length: 70_000 },
        Step::Start { at: 131_072 },
        Step::Read { length: 5 },
        Step::End { by: -3 },
        Step::Read { length: 10 },
        Step::Current { by: -200_000 },
        Step::Read { length: 299_999 },
    ];
    let good = |chunks, more| Sealed { chunks, more, steps: steps.clone(), ..Sealed::default() };
    let bad = |damage: Damage| Sealed { damages: vec![damage], ..good(2, 100) };
    let mut seeds: Vec<Seed> = [(0, 0), (0, 100), (1, 16), (1, 17), (2, 15), (2, 400)]
        .iter()
        .map(|(chunks, more)| {
            let file = sealed::build(&good(*chunks, *more));
            assert!(file.bytes == file.honest && mend_sealed::is_sealed(&file.bytes));
            written(&format!("{}-bytes", file.plain.len()), &good(*chunks, *more))
        })
        .collect();
    for (name, damage) in [
        ("a-flip", Damage::Flip { at: 140_000, mask: 4 }),
        ("a-cut-between-chunks", Damage::Cut { at: 64 + 131_072 + 16 }),
        ("a-head-alone", Damage::Cut { at: 64 }),
        ("more", Damage::More { bytes: b"tail".to_vec() }),
        ("exchanged", Damage::Swap { one: 0, other: 1 }),
        ("repeated", Damage::Repeat { chunk: 1 }),
        ("left-out", Damage::LeaveOut { chunk: 1 }),
        ("of-another-file", Damage::Foreign { chunk: 0 }),
        ("of-another-version", Damage::Head { at: 8, bytes: vec![2] }),
        ("of-other-chunks", Damage::Head { at: 12, bytes: vec![1] }),
    ] {
        let file = sealed::build(&bad(damage.clone()));
        assert!(file.bytes != file.honest, "{name}");
        seeds.push(written(name, &bad(damage)));
    }
    seeds.push(written("another-key", &Sealed { other_key: true, ..good(0, 100) }));
    seeds.push(written("plain", &Sealed { raw: Some(b"MendImg\n".to_vec()), ..Sealed::default() }));
    keep("sealed", &seeds);
}
