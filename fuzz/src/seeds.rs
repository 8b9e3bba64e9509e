//! The kept first inputs of the targets whose formats have encoders here: what each stands for, and that it still does.
//!
//! `fuzz/run.py --write-seeds` writes them, after a format has changed (`MEND_WRITE_SEEDS`).

mod chunks;
mod data;
mod files;
mod journal;
mod messages;
mod network;
mod pipe;
mod space;
mod spool;
mod tiers;
mod values;

// What the instrumented code calls.
use libfuzzer_sys as _;
use std::path::Path;

/// One input, by the name of its file.
struct Seed {
    name: String,
    bytes: Vec<u8>,
}

fn seed(name: &str, bytes: impl Into<Vec<u8>>) -> Seed {
    Seed { name: name.to_owned(), bytes: bytes.into() }
}

/// The files of a target are those inputs, byte for byte; other files beside them are what once failed.
fn keep(target: &str, seeds: &[Seed]) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    for Seed { name, bytes } in seeds {
        let path = directory.join(name);
        if std::env::var_os("MEND_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(&directory).expect("a directory of seeds");
            std::fs::write(&path, bytes).expect("a seed");
        }
        let kept = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(kept == *bytes, "{} is not what is written now: fuzz/run.py --write-seeds", path.display());
    }
}
