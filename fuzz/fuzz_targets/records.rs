//! An encrypted stream, whole or as somebody on the way has left it. What is read is what was sent, in order, up to the first record that
//! was touched, and then an error; only a stream that nobody touched ends well.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_cipher::EncryptedReader;
use mend_fuzz::records::{Records, build, keys};
use std::io::Read;

fuzz_target!(|input: Records| {
    let stream = build(&input);
    let mut reader = EncryptedReader::new(&stream.bytes[..], keys().1);
    let (mut read, mut piece) = (Vec::new(), vec![0; usize::from(input.read) + 1]);
    let ended = loop {
        match reader.read(&mut piece) {
            Ok(0) => break true,
            Ok(length) => read.extend_from_slice(&piece[..length]),
            Err(_) => break false,
        }
    };
    assert!(stream.plain.starts_with(&read), "something else than what was sent");
    assert_eq!(ended, stream.bytes.starts_with(&stream.honest), "an end that nobody sent, or none where one was");
    assert!(!ended || read == stream.plain);
    // What lies before the first change was delivered.
    let same = stream.bytes.iter().zip(&stream.honest).take_while(|(one, other)| one == other).count();
    assert_eq!(read.len(), stream.whole(same), "records that nobody touched");
});
