//! An encrypted file from anybody's disk: bytes of any kind, or one that was sealed and then changed, cut or put together
//! otherwise, read in order, from any place, and as it comes in pieces. Whatever comes, reading ends without a panic; nothing is given out that was not
//! sealed at that place, and no end where there was none; a file that is as it was sealed is read, and no other one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_fuzz::sealed::{File, Sealed, Step, build, key};
use mend_sealed::{Key, Opener, PieceOpener, SealError};
use std::io::{Cursor, Error, Read, Seek, SeekFrom};

fn is_named(error: &Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<SealError>())
}

fn in_order(file: &File, key: &Key, honest: bool) {
    let mut got = Vec::new();
    let read = Opener::new(file.bytes.as_slice(), key).and_then(|mut opener| opener.read_to_end(&mut got));
    assert!(file.plain.starts_with(&got), "something else than was sealed");
    match read {
        Ok(_) => assert!(honest && got == file.plain, "a file that is not what was sealed"),
        Err(error) => assert!(!honest && is_named(&error), "{error}"),
    }
}

/// In pieces of whatever size: the same is given out, and the same is wrong.
fn in_pieces(file: &File, key: &Key, honest: bool) {
    for piece in [1 + file.bytes.len() % 5000, 200_000] {
        let (mut opener, mut got) = (PieceOpener::new(key.clone()), Vec::new());
        let mut give = |plain: &[u8]| {
            got.extend_from_slice(plain);
            Ok::<(), SealError>(())
        };
        let fed = file.bytes.chunks(piece).try_for_each(|piece| opener.feed(piece, &mut give));
        let opened = fed.and_then(|()| opener.finish(&mut give));
        assert!(file.plain.starts_with(&got), "something else than was sealed");
        assert_eq!(opened.is_ok(), honest, "{opened:?}");
        assert!(!honest || got == file.plain, "a part of what was sealed");
    }
}

fn from_any_place(file: &File, key: &Key, honest: bool, steps: &[Step]) {
    let Ok(mut opener) = Opener::new(Cursor::new(&file.bytes), key) else { return };
    let mut at = 0;
    for step in steps.iter().take(24) {
        let to = match step {
            Step::Read { length } => {
                let mut room = vec![0; *length as usize % 300_000];
                match opener.read(&mut room) {
                    Ok(0) => assert!(room.is_empty() || at == file.plain.len() as u64, "an end at {at} of {}", file.plain.len()),
                    Ok(got) => {
                        let start = at as usize;
                        assert_eq!(file.plain.get(start..start + got), Some(&room[..got]), "something else than was sealed at {at}");
                        at += got as u64;
                        continue;
                    }
                    Err(error) => assert!(!honest && is_named(&error), "{error}"),
                }
                SeekFrom::Current(0)
            }
            Step::Start { at } => SeekFrom::Start(u64::from(*at)),
            Step::End { by } => SeekFrom::End(*by),
            Step::Current { by } => SeekFrom::Current(*by),
        };
        match opener.seek(to) {
            Ok(position) => at = position,
            // Before the beginning, or in a damaged chunk: where the reader is then, is not said.
            Err(_) => match opener.seek(SeekFrom::Start(0)) {
                Ok(_) => at = 0,
                Err(error) => panic!("the beginning cannot be found: {error}"),
            },
        }
        assert!(!honest || at <= file.plain.len() as u64, "a place after the end");
    }
}

fuzz_target!(|input: Sealed| {
    let file = build(&input);
    let key = if input.other_key { Key::from_bytes([4; 32]) } else { key() };
    let honest = !input.other_key && file.bytes == file.honest;
    in_order(&file, &key, honest);
    in_pieces(&file, &key, honest);
    from_any_place(&file, &key, honest, &input.steps);
});
