//! A ring whose other side writes anything anywhere at any time. The reader refuses or gives payloads that lie within the
//! ring; the writer refuses or writes within it. (Whatever lies outside of the mapping would fault.)
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_fabric::channel::ring::{CAPACITY, MAX_RECORD, Reader, Ring, Writer};
use mend_fabric::engine::buffers::Segment;
use mend_fabric::engine::packet::{Header, Kind};

#[derive(Arbitrary, Debug)]
enum Act {
    /// Bytes at a place of the file.
    Scribble {
        at: u32,
        bytes: Vec<u8>,
    },
    /// A position, near a true one or anywhere.
    Tail {
        near: bool,
        by: i64,
    },
    /// A header that would be read next, with any length, as a record or nearly.
    Record {
        payload: u32,
        mark: u16,
    },
    Read,
    Write {
        payload: u16,
    },
    Flags {
        value: u32,
    },
}

/// Where the words are (see ring.rs).
const TAIL: usize = 128;
const SLEEPS: usize = 192;
const WAITS: usize = 256;
const DATA: usize = 512;

fuzz_target!(|acts: Vec<Act>| {
    let (ring, file) = Ring::create().expect("a ring");
    let hostile = Ring::open(&file).expect("the same ring");
    let shared = Ring::open(&file).expect("the same ring");
    let (mut writer, mut reader) = (Writer::new(ring), Reader::new(hostile));
    let (base, length) = shared.mapping();
    let poke = |at: usize, bytes: &[u8]| {
        let fits = bytes.len().min(length - at);
        // SAFETY: inside the third mapping of the ring.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (base as *mut u8).add(at), fits) };
    };
    let (from, size) = reader.ring().mapping();
    let (mut tail, mut broken) = (0u64, false);
    let body = vec![7; MAX_RECORD];
    for act in acts {
        match act {
            Act::Scribble { at, bytes } => poke(at as usize % length, &bytes),
            Act::Tail { near, by } => poke(TAIL, &if near { tail.wrapping_add_signed(by % 100 * 64) } else { by as u64 }.to_le_bytes()),
            Act::Record { payload, mark } => {
                let mut header = Header::new(Kind::Eager);
                (header.payload, header.padding) = (payload, mark % 4);
                poke(DATA + tail as usize % CAPACITY, header.as_bytes());
            }
            Act::Read if !broken => match reader.peek() {
                Ok(Some((header, payload))) => {
                    assert!(payload.len() <= MAX_RECORD);
                    for part in payload.parts.iter().filter(|part| part.len > 0) {
                        let start = part.base as usize;
                        assert!(start >= from + DATA && start + part.len <= from + size, "outside of the ring");
                    }
                    drop(payload.to_vec());
                    reader.advance();
                    let fixed = if payload.len() >= 1024 {
                        64
                    } else if header.is_brief() {
                        32
                    } else {
                        56
                    };
                    tail += (fixed + payload.len() as u64).next_multiple_of(64);
                }
                Ok(None) => drop(reader.sleep()),
                // The channel is closed then.
                Err(_) => broken = true,
            },
            Act::Read => {}
            Act::Write { payload } => {
                let mut header = Header::new(Kind::Eager);
                // More does not go into one record: the channel cuts it.
                let payload = usize::from(payload).min(MAX_RECORD);
                header.payload = payload as u32;
                match writer.write(&header, &[Segment::of(&body[..payload])]) {
                    Ok(true) => {}
                    Ok(false) => drop(writer.wait_for_room()),
                    Err(_) => return,
                }
                let _ = writer.reader_asleep();
            }
            Act::Flags { value } => {
                poke(SLEEPS, &value.to_le_bytes());
                poke(WAITS, &value.to_le_bytes());
                let _ = reader.writer_waits();
            }
        }
    }
});
