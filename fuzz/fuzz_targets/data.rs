//! What stands with staged files, what plug-ins answer, what job scripts say: whatever it is, reading it ends without a panic, and what was read is written
//! to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_data::record::Record;
use mend_data::{dialogue, directives, resume, uri};

fuzz_target!(|data: &[u8]| {
    // The first byte chooses; half of the records and logs get the checksum that they lack.
    let Some((kind, bytes)) = data.split_first() else { return };
    let summed = || {
        let mut bytes = bytes.to_vec();
        bytes.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
        bytes
    };
    let record = |bytes: &[u8]| {
        if let Ok(record) = Record::decode(bytes) {
            let again = record.encode().expect("what is read can be written");
            assert_eq!(Record::decode(&again), Ok(record));
        }
    };
    let log = |bytes: &[u8]| {
        if let Some((begun, claims, good)) = resume::read(bytes) {
            assert!(good <= bytes.len());
            let entries = claims.iter().flat_map(|(block, sum)| resume::entry(*block, *sum));
            let again: Vec<u8> = begun.head().into_iter().chain(entries).collect();
            assert_eq!(resume::read(&again), Some((begun, claims, again.len())));
        }
    };
    match kind % 6 {
        0 => record(bytes),
        1 => record(&summed()),
        2 => log(bytes),
        3 => log(&summed()),
        4 => drop(dialogue::answer(bytes)),
        _ => {
            let text = String::from_utf8_lossy(bytes);
            let script = directives::read(&text, &|name| (name.len() % 2 == 0).then(|| name.to_owned()));
            for one in script.stage_in {
                assert!(one.uris.iter().all(|uri| uri::Address::parse(uri).is_ok()));
            }
            assert!(uri::safe_name(&text).is_none_or(|name| name.split('/').all(|part| part != "..")));
            assert_eq!(uri::decoded(&uri::encoded(&text)), text);
        }
    }
});
