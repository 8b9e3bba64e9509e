//! A job's journal as a file: whatever it holds, reading it ends without a panic, what it adds up to can be told, and what was read is
//! written and compacted to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_journal::compact::compact;
use mend_journal::frame::{FILE_HEAD, encode, file_head, scan};
use mend_journal::{Entry, State, text};

fn check(entries: &[Entry]) {
    let mut file = file_head().to_vec();
    for entry in entries {
        assert!(!text::sentence(entry).is_empty());
        file.extend(encode(entry).expect("what was read can be written"));
    }
    let again = scan(&file).expect("what was written is a journal");
    assert_eq!((again.end, again.torn, again.damage.len()), (file.len(), 0, 0));
    // As text: what a later release wrote may be read as an event that this one knows only in part.
    assert_eq!(again.entries.len(), entries.len());
    let same = |state: State| State { left_out: 0, ..state };
    let state = same(State::of(&again.entries));
    assert_eq!(same(State::of(&compact(&again.entries, 300))), state);
    let _ = text::standing(&state);
}

fuzz_target!(|data: &[u8]| {
    // The first byte chooses: a file, a file behind a good head, or the bodies of frames, which need no luck with checksums.
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => {
            if let Ok(found) = scan(bytes) {
                assert_eq!(found.end + found.torn, bytes.len());
                check(&found.entries);
            }
        }
        1 => {
            let found = scan(&[&file_head()[..], bytes].concat()).expect("its head is good");
            assert_eq!(found.end + found.torn, FILE_HEAD + bytes.len());
            check(&found.entries);
        }
        _ => {
            let lines = bytes.split(|byte| *byte == b'\n');
            let entries: Vec<Entry> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
            check(&entries);
        }
    }
});
