//! Spooled output: a segment with both streams, its frames alone, and what is printed in one.

use super::{keep, seed};
use mend_messages::daemon::Stream;
use mend_spool::{Positions, encode, segment_head};

#[test]
fn spooled_output_is_read() {
    let before = Positions { stdout: 70_000, stderr: 12 };
    let frames =
        [encode(Stream::Stdout, 70_000, b"step 1\n"), encode(Stream::Stderr, 12, b"a remark\n"), encode(Stream::Stdout, 70_007, b"")];
    let frames = frames.concat();
    let seeds = [
        seed("segment", [&[0], &segment_head(before)[..], &frames].concat()),
        seed("frames", [&[1], &frames[..]].concat()),
        seed("text", *b"\x02some text\n"),
    ];
    keep("spool", &seeds);
}
