//! What arrives is what was sent, in its order and whole, or it is refused.

use super::*;
use proptest::prelude::*;
use std::io::{Read, Write};

const NONCES: [&[u8; 32]; 2] = [&[1; 32], &[2; 32]];

fn pair() -> (Encryptor, Decryptor) {
    let secret = Secret([7; 32]);
    (initiator(&secret, NONCES, b"context").0, acceptor(&secret, NONCES, b"context").1)
}

fn record(encryptor: &mut Encryptor, plain: &[u8], last: bool) -> Vec<u8> {
    let mut record = [&[0; HEAD][..], plain, &[0; TAG]].concat();
    encryptor.seal(&mut record, last);
    record
}

fn opened(decryptor: &mut Decryptor, record: &[u8]) -> Result<Vec<u8>, CipherError> {
    let mut record = record.to_vec();
    let length = decryptor.open(&mut record)?.length;
    Ok(record[HEAD..HEAD + length].to_vec())
}

#[test]
fn records_of_every_size_arrive_and_hide_what_they_hold() {
    let (mut sender, mut receiver) = pair();
    for length in [0, 1, 15, 16, 17, 4096, MAX_PLAIN] {
        let plain = vec![0x4d; length];
        let (one, two) = (record(&mut sender, &plain, false), record(&mut sender, &plain, false));
        assert_eq!(one.len(), HEAD + length + TAG);
        assert!(one != two, "two records with one nonce");
        assert!(length < 4 || !one.windows(4).any(|part| part == [0x4d; 4]));
        assert_eq!(opened(&mut receiver, &one).unwrap(), plain);
        assert_eq!(opened(&mut receiver, &two).unwrap(), plain);
    }
}

#[test]
fn no_bit_can_be_flipped() {
    let (mut sender, _) = pair();
    let sealed = record(&mut sender, b"something of value", false);
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let (_, mut receiver) = pair();
        assert!(opened(&mut receiver, &changed).is_err(), "bit {bit}");
        // Nothing was used up: the true one is taken still.
        assert_eq!(opened(&mut receiver, &sealed).unwrap(), b"something of value");
    }
}

#[test]
fn records_that_are_repeated_left_out_exchanged_or_sent_back_are_refused() {
    let (mut sender, mut receiver) = pair();
    let sealed: Vec<_> = [b"one", b"two", b"end"].map(|plain| record(&mut sender, plain, false)).into();
    let altered = |number| Err(CipherError::Altered { number });
    assert_eq!(opened(&mut receiver, &sealed[1]), altered(0));
    assert_eq!(opened(&mut receiver, &sealed[0]).unwrap(), b"one");
    assert_eq!(opened(&mut receiver, &sealed[0]), altered(1));
    assert_eq!(opened(&mut receiver, &sealed[2]), altered(1));
    let (_, mut own) = initiator(&Secret([7; 32]), NONCES, b"context");
    assert_eq!(opened(&mut own, &sealed[0]), altered(0));
}

#[test]
fn keys_are_of_one_secret_one_connection_and_one_context() {
    let (mut sender, _) = pair();
    let sealed = record(&mut sender, b"one", false);
    let others = [
        acceptor(&Secret([8; 32]), NONCES, b"context"),
        acceptor(&Secret([7; 32]), [&[1; 32], &[3; 32]], b"context"),
        acceptor(&Secret([7; 32]), [&[3; 32], &[2; 32]], b"context"),
        acceptor(&Secret([7; 32]), [&[2; 32], &[1; 32]], b"context"),
        acceptor(&Secret([7; 32]), NONCES, b"another"),
    ];
    for (_, mut other) in others {
        assert_eq!(opened(&mut other, &sealed), Err(CipherError::Altered { number: 0 }));
    }
}

#[test]
fn a_length_is_bounded_before_anything_comes_of_it() {
    let (_, mut receiver) = pair();
    let told = |length: u32| length.to_le_bytes();
    assert_eq!(receiver.length(told(MAX_PLAIN as u32)), Ok(MAX_RECORD));
    let length = MAX_PLAIN as u32 + 1;
    assert_eq!(receiver.length(told(length)), Err(CipherError::TooLong { number: 0, length }));
    assert_eq!(receiver.length(told(u32::MAX)), Err(CipherError::TooLong { number: 0, length: u32::MAX >> 1 }));
    for short in 0..HEAD + TAG {
        assert!(receiver.open(&mut vec![0; short]).is_err());
    }
}

#[test]
fn nothing_follows_the_last_record() {
    let (mut sender, mut receiver) = pair();
    let (last, more) = (record(&mut sender, b"end", true), record(&mut sender, b"more", false));
    assert_eq!(receiver.open(&mut last.clone()), Ok(Opened { length: 3, last: true }));
    assert_eq!(opened(&mut receiver, &more), Err(CipherError::AfterLast));
}

#[test]
fn both_sides_go_on_to_the_next_key_at_the_same_record() {
    let (mut sender, mut receiver) = pair();
    (sender.0.number, receiver.direction.number) = (RECORDS_PER_KEY - 1, RECORDS_PER_KEY - 1);
    let before = sender.0.chain;
    for plain in [b"one", b"two", b"end"] {
        let sealed = record(&mut sender, plain, false);
        assert_eq!(opened(&mut receiver, &sealed).unwrap(), plain);
    }
    assert_ne!(sender.0.chain, before);
    // With the first key the next records would have been refused.
    let (_, mut old) = pair();
    old.direction.number = RECORDS_PER_KEY + 3;
    assert!(opened(&mut old, &record(&mut sender, b"x", false)).is_err());
}

/// A stream of these pieces.
fn stream(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = EncryptedWriter::new(Vec::new(), pair().0);
    pieces.iter().for_each(|piece| writer.write_all(piece).unwrap());
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<Vec<u8>, CipherError> {
    read_by(EncryptedReader::new(bytes, pair().1))
}

fn read_by<R: Read>(mut reader: EncryptedReader<R>) -> Result<Vec<u8>, CipherError> {
    let mut plain = Vec::new();
    match reader.read_to_end(&mut plain) {
        Ok(_) => Ok(plain),
        Err(error) => Err(*error.into_inner().unwrap().downcast().unwrap()),
    }
}

/// Gives at most so many bytes at once.
struct Drops<'a>(&'a [u8], usize);

impl Read for Drops<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(self.1);
        self.0.read(&mut buffer[..length])
    }
}

#[test]
fn only_a_buffered_reader_takes_what_follows_a_stream() {
    let bytes = [stream(&[vec![1; 100]]), b"behind".to_vec()].concat();
    let mut rest = &bytes[..];
    EncryptedReader::new(&mut rest, pair().1).read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(rest, b"behind");
    let mut rest = &bytes[..];
    EncryptedReader::buffered(&mut rest, pair().1, 0).read_to_end(&mut Vec::new()).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn a_stream_that_is_cut_anywhere_is_refused() {
    let bytes = stream(&[vec![1; 100], vec![2; 50]]);
    assert_eq!(read(&bytes).unwrap(), [vec![1; 100], vec![2; 50]].concat());
    for length in 0..bytes.len() {
        assert!(matches!(read(&bytes[..length]), Err(CipherError::Cut { .. })), "cut after {length}");
    }
}

proptest! {
    #[test]
    fn streams_arrive_and_damaged_ones_do_not(
        pieces in prop::collection::vec((0..3usize * MAX_PLAIN).prop_map(|length| (0..length).map(|at| (at % 251) as u8).collect()), 0..4),
        at: prop::sample::Index,
        mask in 1..=u8::MAX,
        drop in 1..200_000usize,
        capacity in 0..300_000usize,
    ) {
        let mut bytes = stream(&pieces);
        prop_assert!(read(&bytes).unwrap() == pieces.concat());
        prop_assert!(read_by(EncryptedReader::buffered(Drops(&bytes, drop), pair().1, capacity)).unwrap() == pieces.concat());
        // All in as few records as can be.
        let mut writer = EncryptedWriter::new(Vec::new(), pair().0);
        writer.write_parts(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        let together = writer.finish().unwrap();
        let length = pieces.concat().len();
        prop_assert_eq!(together.len(), length + (length.div_ceil(MAX_PLAIN) + 1) * (HEAD + TAG));
        prop_assert!(read(&together).unwrap() == pieces.concat());
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        prop_assert!(read(&bytes).is_err());
    }
}
