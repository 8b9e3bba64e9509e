//! An image from anybody's disk or network. Random bytes would all fail at the first checksum, so the input describes
//! records, which are sealed with true checksums: what is tried is order, lengths, kinds and totals. Whatever comes, the
//! verifier ends without a panic, says the same however the stream is cut, and accepts nothing that a changed byte was
//! put into.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_image::fixed::Fixed;
use mend_image::record::{End, HEAD_SIZE, Ledger, RecordHead};
use mend_image::verify::{Verified, Verifier};
use mend_image::{HEADER_SIZE, Header, ImageError};
use xxhash_rust::xxh3::xxh3_64;

#[derive(Arbitrary, Debug)]
struct Record {
    kind: u8,
    index: u32,
    address: u64,
    /// Added to the true length.
    lie: Option<i64>,
    payload: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
struct Stream {
    /// Builds on another image, so that it may keep pages.
    incremental: bool,
    records: Vec<Record>,
    honest_end: bool,
    cut: u16,
    flip: Option<(u16, u8)>,
}

fn build(stream: &Stream) -> Vec<u8> {
    let base = [u8::from(stream.incremental); 16];
    let header = Header { base, sequence: u32::from(stream.incremental), ..Header::default() }.to_bytes();
    let mut ledger = Ledger::new(&header);
    let mut bytes = header.to_vec();
    let mut put = |kind: u8, index, address, length: u64, payload: &[u8]| {
        let head = RecordHead { kind: u32::from(kind % 13), index, length, address, payload: xxh3_64(payload), own: 0 }.to_bytes();
        // Refused records stay in the stream: that is what the verifier must see.
        let _ = ledger.admit(&head);
        bytes.extend(head);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        ledger.end()
    };
    // The records that must come first, so that the others get a chance.
    for kind in 1..=5 {
        put(kind, 0, 0, 0, &[]);
    }
    let mut end = None;
    for record in &stream.records {
        let length = (record.payload.len() as u64).wrapping_add_signed(record.lie.unwrap_or(0));
        end = Some(put(record.kind, record.index, record.address, length, &record.payload));
    }
    if let (true, Some(end)) = (stream.honest_end, end) {
        let mut payload = [0; End::SIZE];
        end.encode(&mut payload).expect("the buffer has the record's size");
        put(11, 0, 0, End::SIZE as u64, &payload);
    }
    bytes
}

fn verdict<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Verified, ImageError> {
    let mut verifier = Verifier::new();
    for piece in pieces {
        verifier.feed(piece)?;
    }
    verifier.finish()
}

fuzz_target!(|stream: Stream| {
    let mut bytes = build(&stream);
    let whole = verdict(std::iter::once(bytes.as_slice()));
    let cut = usize::from(stream.cut % 3000) + 1;
    assert_eq!(verdict(bytes.chunks(cut)), whole, "cut every {cut} bytes");
    if let (Ok(_), Some((at, flip @ 1..))) = (whole, stream.flip) {
        let length = bytes.len();
        bytes[usize::from(at) % length] ^= flip;
        assert!(verdict(std::iter::once(bytes.as_slice())).is_err(), "a changed byte was not noticed");
    }
    assert!(bytes.len() >= HEADER_SIZE + 5 * HEAD_SIZE);
});
