//! What mounts of the pipe say to each other.

use super::{keep, seed};
use mend_messages::frame;
use mend_streams::{Refusal, ToReader, ToWriter, checksum};
use serde::Serialize;

/// Words of one side, as the target takes them: each with a byte before it that is its length.
fn words<M: Serialize>(kind: u8, messages: &[M]) -> Vec<u8> {
    let mut bytes = vec![kind];
    for message in messages {
        // Without the length of the frame, which the connection takes.
        let word = frame::encode(message).expect("a frame")[4..].to_vec();
        bytes.push(u8::try_from(word.len()).expect("a short word"));
        bytes.extend(word);
    }
    bytes
}

#[test]
fn words_of_the_pipe_are_read() {
    let open = |stream: u64| ToReader::Open { stream, name: format!("image{stream}").into_bytes() };
    let chunk = |offset| ToReader::Chunk { stream: 3, offset, length: 64, checksum: checksum(&[7; 64]) };
    let whole = [open(3), chunk(0), chunk(64), ToReader::Alive, ToReader::End { stream: 3, length: 128, whole: true }];
    let broken = [open(3), open(4), chunk(0), ToReader::End { stream: 3, length: 64, whole: false }, chunk(64)];
    let heard = [
        ToWriter::Opened { stream: 0 },
        ToWriter::Credits { stream: 0, more: 2 },
        ToWriter::Taken { stream: 0, through: 10 },
        ToWriter::Refused { stream: 1, why: Refusal::Exists },
        ToWriter::Closed { stream: 0 },
        ToWriter::Alive,
    ];
    keep("pipe", &[seed("whole", words(0, &whole)), seed("broken", words(0, &broken)), seed("heard", words(1, &heard))]);
}
