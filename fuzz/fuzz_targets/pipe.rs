//! What the two mounts of the pipe say to each other: whatever it is, it is nonsense or carried out, memory stays bounded, and every name can be a file's.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_messages::frame;
use mend_streams::message::{MAX_CHUNK, is_name};
use mend_streams::{Incoming, Outgoing, ToReader, ToWriter};

const CHUNK: u32 = 64;
const MEMORY: u64 = 32 * CHUNK as u64;

/// Words of the one side, each with its length before it.
fn words(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first()?;
        let (word, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        Some(word)
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    if kind % 2 == 0 {
        let mut streams: Incoming<u64> = Incoming::new(MEMORY, CHUNK, 2);
        for word in words(bytes) {
            let Ok(message) = frame::decode::<ToReader>(word) else { continue };
            assert!(message.payload().is_none_or(|length| length <= MAX_CHUNK));
            let said = match message {
                ToReader::Open { stream, name } => streams.open(1, stream, name),
                ToReader::Chunk { stream, offset, length, checksum } => {
                    streams.chunk(1, stream, offset, checksum, vec![7; length.min(2 * CHUNK) as usize])
                }
                ToReader::End { stream, length, whole } => streams.end(1, stream, length, whole),
                ToReader::Alive => {
                    let first = streams.list().map(|(_, id)| id).next();
                    Ok(first.map(|id| streams.read(id, 100, 0)).unwrap_or_default())
                }
            };
            if said.is_err() {
                streams.lost(1);
            }
            assert!(streams.waiting() <= MEMORY);
            assert!(streams.list().all(|(name, _)| is_name(name)) && streams.list().count() <= 8);
        }
    } else {
        let mut streams: Outgoing<u64> = Outgoing::new(0);
        streams.connected(CHUNK);
        for at in 0..3 {
            streams.make(vec![b'a' + at], 0);
        }
        for word in words(bytes) {
            let Ok(message) = frame::decode::<ToWriter>(word) else { continue };
            if streams.heard(message).is_err() {
                streams.lost();
            }
            for id in 0..3 {
                if streams.is_there(id) {
                    streams.write(id, b"some bytes", 1);
                }
            }
            while streams.next_message().is_some() {}
        }
    }
});
