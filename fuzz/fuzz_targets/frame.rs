//! The body of a frame from a peer, of every kind of message: whatever it holds, decoding ends without a panic, and what
//! decodes encodes to a frame that decodes to the same. (The same as bytes: a number that is none equals nothing.)
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_messages::{agent, control, daemon, frame, transfer};
use serde::{Serialize, de::DeserializeOwned};

fn round_trip<M: Serialize + DeserializeOwned + std::fmt::Debug>(body: &[u8]) {
    let Ok(message) = frame::decode::<M>(body) else { return };
    let again = frame::encode(&message).expect("a decoded message encodes");
    let (prefix, body) = again.split_first_chunk::<4>().expect("a frame starts with its length");
    assert_eq!(frame::body_length(*prefix), Ok(body.len()));
    let same = frame::decode::<M>(body).expect("an encoded message decodes");
    assert_eq!(frame::encode(&same).as_ref(), Ok(&again), "{message:?}");
}

fuzz_target!(|data: &[u8]| {
    // The first byte chooses the kind, so that the fuzzer needs no luck to reach each.
    let Some((kind, body)) = data.split_first() else { return };
    match kind % 8 {
        0 => round_trip::<agent::FromAgent>(body),
        1 => round_trip::<agent::ToAgent>(body),
        2 => round_trip::<control::Ask>(body),
        3 => round_trip::<control::Answer>(body),
        4 => round_trip::<daemon::FromDaemon>(body),
        5 => round_trip::<daemon::ToDaemon>(body),
        6 => round_trip::<transfer::Offer>(body),
        _ => round_trip::<transfer::Answer>(body),
    }
});
