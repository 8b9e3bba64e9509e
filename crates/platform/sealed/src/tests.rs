//! What is sealed opens to what it was, and to nothing else.

use crate::{CHUNK, HEAD, Key, Opener, PieceOpener, SealError, Sealer, TAG_BYTES, is_sealed};
use proptest::prelude::*;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

fn key() -> Key {
    Key::from_bytes([3; 32])
}

fn sealed(plain: &[u8], salt: u8) -> Vec<u8> {
    let mut sealer = Sealer::new(Vec::new(), &key(), [salt; 32]).unwrap();
    sealer.write_all(plain).unwrap();
    let (bytes, length) = sealer.finish().unwrap();
    assert_eq!(bytes.len() as u64, length);
    bytes
}

/// What it opens to; read as a whole or fed in pieces, which is the same.
fn opened(bytes: &[u8], key: &Key) -> Result<Vec<u8>, SealError> {
    let mut plain = Vec::new();
    let read = Opener::new(bytes, key).and_then(|mut opener| opener.read_to_end(&mut plain));
    let read = match read {
        Ok(_) => Ok(plain),
        Err(error) => Err(*error.into_inner().unwrap().downcast::<SealError>().unwrap()),
    };
    for piece in [7001, CHUNK + TAG_BYTES, 1 << 20] {
        assert!(opened_by_pieces(bytes, key, piece) == read, "pieces of {piece} bytes");
    }
    read
}

fn opened_by_pieces(bytes: &[u8], key: &Key, piece: usize) -> Result<Vec<u8>, SealError> {
    let (mut opener, mut plain) = (PieceOpener::new(key.clone()), Vec::new());
    let mut give = |some: &[u8]| {
        plain.extend_from_slice(some);
        Ok(())
    };
    bytes.chunks(piece).try_for_each(|piece| opener.feed(piece, &mut give))?;
    opener.finish(&mut give)?;
    Ok(plain)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[test]
fn every_length_around_a_chunk_comes_back() {
    for length in [0, 1, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7] {
        let plain = pattern(length);
        let bytes = sealed(&plain, 1);
        assert!(is_sealed(&bytes));
        assert_eq!(bytes.len(), HEAD + length + TAG_BYTES * length.div_ceil(CHUNK).max(1));
        assert_eq!(opened(&bytes, &key()).unwrap(), plain, "{length}");
    }
}

#[test]
fn nothing_of_the_plain_text_shows_and_no_two_files_are_alike() {
    let plain = vec![b'A'; 4096];
    let (one, other) = (sealed(&plain, 1), sealed(&plain, 2));
    assert!(!one.windows(8).any(|window| window == b"AAAAAAAA"));
    assert_ne!(one[HEAD..], other[HEAD..]);
}

#[test]
fn the_wrong_key_and_a_plain_file_are_told_apart() {
    let bytes = sealed(b"text", 1);
    assert_eq!(opened(&bytes, &Key::from_bytes([4; 32])), Err(SealError::Key));
    assert_eq!(opened(b"text", &key()), Err(SealError::Plain));
    assert_eq!(opened(b"", &key()), Err(SealError::Plain));
    let mut newer = bytes;
    newer[8] = 2;
    assert_eq!(opened(&newer, &key()), Err(SealError::Version(2)));
}

#[test]
fn chunks_cannot_be_left_out_moved_repeated_or_taken_from_elsewhere() {
    let bytes = sealed(&pattern(3 * CHUNK + 7), 1);
    let other = sealed(&pattern(3 * CHUNK + 7), 2);
    let step = CHUNK + TAG_BYTES;
    let chunk = |from: &[u8], number: usize| from[HEAD + number * step..from.len().min(HEAD + (number + 1) * step)].to_vec();
    let joined = |chunks: &[Vec<u8>]| [bytes[..HEAD].to_vec(), chunks.concat()].concat();
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| chunk(&bytes, number));
    assert!(opened(&joined(&[a.clone(), b.clone(), c.clone(), d.clone()]), &key()).is_ok());
    for wrong in [
        vec![b.clone(), a.clone(), c.clone(), d.clone()],
        vec![a.clone(), c.clone(), d.clone()],
        vec![a.clone(), b.clone(), b.clone(), c.clone(), d.clone()],
        vec![a.clone(), b.clone(), c.clone()],
        vec![a.clone()],
        vec![],
        vec![a.clone(), b.clone(), c.clone(), d.clone(), d.clone()],
        vec![a, b, c, chunk(&other, 3)],
    ] {
        assert!(matches!(opened(&joined(&wrong), &key()), Err(SealError::Damaged { .. })));
    }
}

#[test]
fn what_was_not_finished_does_not_open() {
    let mut file = Vec::new();
    let mut sealer = Sealer::new(&mut file, &key(), [1; 32]).unwrap();
    sealer.write_all(&pattern(2 * CHUNK + 9)).unwrap();
    drop(sealer);
    assert!(matches!(opened(&file, &key()), Err(SealError::Damaged { .. })));
}

#[test]
fn an_error_of_the_input_is_passed_on() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }
    let bytes = sealed(&pattern(CHUNK + 5), 1);
    let mut opener = Opener::new(bytes[..HEAD + 10].chain(Failing), &key()).unwrap();
    assert_eq!(opener.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::TimedOut);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_flip_and_any_cut_is_noticed(length in 0..2 * CHUNK + 50, at: prop::sample::Index, bit in 0..8u8, by_pieces in 1..70_000usize) {
        let plain = pattern(length);
        let mut sealer = Sealer::new(Vec::new(), &key(), [9; 32]).unwrap();
        for piece in plain.chunks(by_pieces) {
            sealer.write_all(piece).unwrap();
        }
        let (bytes, _) = sealer.finish().unwrap();
        prop_assert_eq!(opened(&bytes, &key()).unwrap(), plain);
        let at = at.index(bytes.len());
        prop_assert!(opened(&bytes[..at], &key()).is_err());
        let mut flipped = bytes;
        flipped[at] ^= 1 << bit;
        prop_assert!(opened(&flipped, &key()).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_place_can_be_read(length in 0..3 * CHUNK + 50, places in prop::collection::vec((any::<prop::sample::Index>(), 1..200_000usize, 0..3u8), 1..8)) {
        let plain = pattern(length);
        let mut opener = Opener::new(Cursor::new(sealed(&plain, 1)), &key()).unwrap();
        let mut here = 0;
        for (at, wanted, way) in places {
            let at = at.index(length + 1);
            let to = match way {
                0 => SeekFrom::Start(at as u64),
                1 => SeekFrom::End(at as i64 - length as i64),
                _ => SeekFrom::Current(at as i64 - here as i64),
            };
            prop_assert_eq!(opener.seek(to).unwrap(), at as u64);
            let mut bytes = Vec::new();
            (&mut opener).take(wanted as u64).read_to_end(&mut bytes).unwrap();
            prop_assert_eq!(&bytes, &plain[at..length.min(at + wanted)]);
            here = at + bytes.len();
            prop_assert_eq!(opener.stream_position().unwrap(), here as u64);
        }
    }
}

#[test]
fn a_code_is_of_one_text_and_one_key() {
    let code = key().authenticate(b"text");
    assert!(key().confirms(b"text", &code) && code == key().authenticate(b"text"));
    assert!(!key().confirms(b"texts", &code) && !Key::from_bytes([4; 32]).confirms(b"text", &code));
    let mut other = code;
    other[31] ^= 1;
    assert!(!key().confirms(b"text", &other));
}
