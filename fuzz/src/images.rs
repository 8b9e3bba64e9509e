//! One stream of records, sealed with true checksums.

use crate::input::input_struct;
use mend_image::Header;
use mend_image::fixed::Fixed;
use mend_image::record::{End, Kind, Ledger, RecordHead};
use xxhash_rust::xxh3::xxh3_64;

input_struct! {
    /// A record as it is told, true or not.
    pub struct Record {
        pub kind: u8,
        pub index: u32,
        pub address: u64,
        /// Added to the true length.
        pub lie: Option<i64>,
        pub payload: Vec<u8>,
    }
}

input_struct! {
    /// What comes after the records that must come first.
    pub struct Stream {
        /// Builds on another image, so that it may keep pages.
        pub incremental: bool,
        pub records: Vec<Record>,
        pub honest_end: bool,
        pub cut: u16,
        pub flip: Option<(u16, u8)>,
    }
}

/// The stream's bytes.
pub fn build(stream: &Stream) -> Vec<u8> {
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
    for kind in Kind::Strings as u8..=Kind::Process as u8 {
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
        put(Kind::End as u8, 0, 0, End::SIZE as u64, &payload);
    }
    bytes
}
