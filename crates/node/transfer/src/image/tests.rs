//! Images that are good, and others.

use super::*;
use crate::pipeline::Stream;
use mend_image::record::Kind;
use mend_image::write::StreamWriter;
use mend_messages::agent::ImageId;
use mend_messages::tier::ImageRef;
use mend_sealed::Key;
use std::io::Cursor;
use std::io::Write;
use std::path::PathBuf;

/// An error with all its causes.
fn said(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", said(cause)),
        None => error.to_string(),
    }
}

/// A small sound image, of which `expected` is then what a manifest would say.
fn an_image(expected: &mut Expected, pages: &[u8]) -> Vec<u8> {
    let header =
        mend_image::Header { job: expected.job, rank: expected.image.rank, id: expected.image.id.0, ..mend_image::Header::default() };
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::new(&mut bytes, &header).unwrap();
    for (kind, payload) in [(Kind::Strings, &b"abc"[..]), (Kind::Objects, b""), (Kind::Mappings, b""), (Kind::Threads, b"xx")] {
        writer.record(kind, 0, 0, payload).unwrap();
    }
    writer.record(Kind::Process, 0, 0, b"process").unwrap();
    writer.record(Kind::Pages, 0, 4096, pages).unwrap();
    let end = writer.finish().unwrap();
    (expected.image.bytes, expected.image.checksum) = (bytes.len() as u64, end.stream);
    bytes
}

fn expected(rank: u32) -> Expected {
    let image = ImageRef { number: 1, rank, bytes: 0, checksum: 0, id: ImageId([3; 16]) };
    Expected { job: [5; 16], image, key: None }
}

/// An empty directory for one image.
struct TestTarget {
    directory: tempfile::TempDir,
    path: PathBuf,
    mover: Mover,
}

impl TestTarget {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-2.image");
        Self { directory, path, mover: Mover::new(0, Arc::default()) }
    }

    /// What it says names the reason, and nothing stays.
    fn refuses(&self, bytes: &[u8], expected: &Expected, what: &str) {
        let refused = said(&self.mover.into_file(&mut Cursor::new(bytes), expected, &self.path).unwrap_err());
        assert!(refused.contains(what), "{refused}, not {what}");
        assert_eq!(std::fs::read_dir(self.directory.path()).unwrap().count(), 0, "{what}");
    }

    fn takes(&self, bytes: &[u8], expected: &Expected) {
        self.mover.into_file(&mut Cursor::new(bytes), expected, &self.path).unwrap();
        assert_eq!(std::fs::read(&self.path).unwrap(), bytes);
        assert_eq!((self.mover.progress.bytes_read(), self.mover.progress.bytes_given()), (bytes.len() as u64, bytes.len() as u64));
    }
}

/// A sound image that is not the one that is meant.
fn another_image(wanted: &Expected) -> Vec<u8> {
    let mut another = wanted.clone();
    another.image.id = ImageId([4; 16]);
    an_image(&mut another, &[7; 8192])
}

fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    flipped[3000] ^= 1;
    flipped
}

#[test]
fn only_the_image_that_was_meant_gets_its_name() {
    let target = TestTarget::new();
    let mut wanted = expected(2);
    let bytes = an_image(&mut wanted, &[7; 8192]);
    target.refuses(&bytes[..3000], &wanted, "torn");
    target.refuses(&flipped(&bytes), &wanted, "damaged");
    target.refuses(&another_image(&wanted), &wanted, "another image");
    target.refuses(&[&bytes[..], b"x"].concat(), &wanted, "longer");
    let target = TestTarget::new();
    target.takes(&bytes, &wanted);
    let TestTarget { mover, path, .. } = &target;
    mover.check(path, &wanted).unwrap();
    assert!(mover.check(path, &Expected { job: [6; 16], ..wanted.clone() }).is_err());
    measure(path, &wanted).unwrap();
    let longer = Expected { image: ImageRef { bytes: wanted.image.bytes + 1, ..wanted.image }, ..wanted.clone() };
    assert!(matches!(measure(path, &longer), Err(TransferError::Torn { .. })));
    assert!(matches!(measure(Path::new("/nowhere"), &wanted), Err(TransferError::Source(_))));
    let mut poured = Vec::new();
    mover.pour(path, Stream::new(&mut poured, "the other node")).unwrap();
    assert_eq!(poured, bytes);
    mover.cancel();
    assert!(matches!(mover.pour(path, Stream::new(&mut poured, "the other node")), Err(TransferError::Cancelled)));
}

#[test]
fn an_encrypted_image_is_copied_as_it_is_and_checked_with_its_key() {
    let mut wanted = expected(2);
    let plain = an_image(&mut wanted, &[7; 8192]);
    let key = |byte: u8| Some(Key::from_bytes([byte; 32]));
    let seal = |plain: &[u8]| {
        let mut sealer = mend_sealed::Sealer::new(Vec::new(), &key(1).unwrap(), [9; 32]).unwrap();
        sealer.write_all(plain).unwrap();
        sealer.finish().unwrap().0
    };
    let bytes = seal(&plain);
    wanted.key = key(1);
    wanted.image.bytes = bytes.len() as u64;
    TestTarget::new().takes(&bytes, &wanted);
    let target = TestTarget::new();
    let of = |key: Option<Key>| Expected { key, ..wanted.clone() };
    target.refuses(&bytes, &of(None), "it is encrypted");
    target.refuses(&bytes, &of(key(2)), "encrypted with another key");
    target.refuses(&flipped(&bytes), &wanted, "damaged or was changed");
    target.refuses(&seal(&another_image(&wanted)), &wanted, "another image");
    target.refuses(&bytes[..3000], &wanted, "torn");
    target.refuses(&bytes[..10], &wanted, "torn");
    target.refuses(&[&bytes[..], b"x"].concat(), &wanted, "longer");
    let unsealed = Expected { image: ImageRef { bytes: plain.len() as u64, ..wanted.image }, ..wanted.clone() };
    target.refuses(&plain, &unsealed, "it is not encrypted");
}

#[test]
fn a_full_target_leaves_nothing() {
    let mut wanted = expected(0);
    let bytes = an_image(&mut wanted, &[7; 4096]);
    let mover = Mover::new(0, Arc::default());
    let refused = mover.into_file(&mut Cursor::new(&bytes), &wanted, Path::new("/proc/nowhere/rank-0.image")).unwrap_err();
    assert!(matches!(refused, TransferError::Target { .. }), "{refused}");
}
