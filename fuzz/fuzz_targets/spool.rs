//! A segment of a job's spooled output: whatever it holds, reading it ends without a panic, and what was read is written to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_spool::{Next, SEGMENT_HEAD, encode, encode_message, next, read_segment_head, segment_head};

fn frames(mut rest: &[u8]) {
    while let Next::Whole(frame) = next(rest) {
        let again =
            if frame.is_message { encode_message(frame.position, frame.bytes) } else { encode(frame.stream, frame.position, frame.bytes) };
        assert_eq!(again, rest[..frame.length()]);
        rest = &rest[frame.length()..];
    }
}

fuzz_target!(|data: &[u8]| {
    // The first byte chooses: a segment, frames, or what is printed in one frame, which needs no luck with checksums.
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => {
            if let Ok(Some(before)) = read_segment_head(bytes) {
                assert_eq!(segment_head(before), bytes[..SEGMENT_HEAD]);
                frames(&bytes[SEGMENT_HEAD..]);
            }
        }
        1 => frames(bytes),
        _ => {
            let mut one = encode(mend_messages::daemon::Stream::Stderr, u64::from(*kind), bytes);
            assert!(matches!(next(&one), Next::Whole(frame) if frame.bytes == bytes));
            if let Some(last) = one.last_mut() {
                *last ^= 1;
            }
            assert!(!matches!(next(&one), Next::Whole(_)));
        }
    }
});
