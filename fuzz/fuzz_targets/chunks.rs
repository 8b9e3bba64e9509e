//! What is said of chunks of registered memory: words from another node, orders and answers between a daemon and its carrier. Whatever it is, it is none, or
//! what is read of it is written the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_messages::chunks::{ChunkOrder, Opened, WORD_BYTES, Word};
use mend_messages::frame;
use serde::{Serialize, de::DeserializeOwned};

fn round_trip<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let Ok(message) = frame::decode::<M>(body) else { return };
    let again = frame::encode(&message).expect("a decoded message encodes");
    assert_eq!(frame::decode::<M>(&again[4..]).as_ref(), Ok(&message));
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => {
            for bytes in bytes.as_chunks::<WORD_BYTES>().0 {
                if let Some(word) = Word::decode(bytes) {
                    assert_eq!(word.encode(), *bytes);
                }
            }
        }
        1 => round_trip::<ChunkOrder>(bytes),
        _ => round_trip::<Opened>(bytes),
    }
});
