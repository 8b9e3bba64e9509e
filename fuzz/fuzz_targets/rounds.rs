//! Records before the image of a rank that moves live, from whoever holds the job's secret. Random bytes would fail at the first checksum,
//! so the input describes records, which are sealed with true checksums. Whatever comes, the ledger ends without a panic, says the same
//! each time, never goes back, and takes the end of a round for one only if nothing was left out, put in or changed before it.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_image::fixed::Fixed;
use mend_image::kept;
use mend_image::record::RecordHead;
use mend_image::rounds::{RoundEnd, Rounds};
use mend_image::{HEADER_SIZE, Header};

#[derive(Arbitrary, Debug)]
struct Input {
    records: Vec<Record>,
    /// A record that the reader does not see.
    lost: Option<u8>,
}

#[derive(Arbitrary, Debug)]
struct Record {
    kind: u8,
    index: u8,
    address: u64,
    length: u16,
    payload: u64,
    /// The end of a round as it is, not what the fields say.
    ends: bool,
    flip: Option<u16>,
}

fuzz_target!(|input: Input| {
    let header: [u8; HEADER_SIZE] = Header { rounds: 1, ..Header::default() }.to_bytes();
    let (mut writer, mut reader) = (Rounds::new(&header), Rounds::new(&header));
    let mut same = true;
    for (number, record) in input.records.iter().enumerate() {
        let end = writer.end();
        let mut payload = [0; RoundEnd::SIZE];
        end.encode(&mut payload).unwrap();
        let length = if record.ends { RoundEnd::SIZE as u64 } else { u64::from(record.length) * 8 };
        let kind = if record.ends { 67 } else { 60 + u32::from(record.kind % 16) };
        let head =
            RecordHead { kind, index: u32::from(record.index / 200), length, address: record.address, payload: record.payload, own: 0 };
        let mut raw = head.to_bytes();
        if let Some(at) = record.flip {
            raw[usize::from(at / 8) % raw.len()] ^= 1 << (at % 8);
        }
        let before = reader.bytes();
        let written = writer.admit(&raw);
        assert!(record.flip.is_none() || written.is_err(), "a flipped bit");
        if input.lost.is_some_and(|lost| usize::from(lost) == number) {
            same &= written.is_err();
            continue;
        }
        let read = reader.admit(&raw);
        assert!(reader.bytes() >= before);
        assert!(!same || read == written, "the two sides differ");
        if let (Ok(_), true) = (&written, record.ends) {
            let _ = writer.close(&end);
            assert!(read.is_err() || reader.close(&end).is_ok() == same, "an end that is none, or none that is one");
        }
        let _ = kept::ranges(&payload, 0);
    }
});
