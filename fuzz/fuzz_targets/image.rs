//! An image from anybody's disk or network. Random bytes would all fail at the first checksum, so the input describes
//! records, which are sealed with true checksums: what is tried is order, lengths, kinds and totals. Whatever comes, the
//! verifier ends without a panic, says the same however the stream is cut, and accepts nothing that a changed byte was
//! put into.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_fuzz::images::{Stream, build};
use mend_image::record::HEAD_SIZE;
use mend_image::verify::{Verified, Verifier};
use mend_image::{HEADER_SIZE, ImageError};

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
