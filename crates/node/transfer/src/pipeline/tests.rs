//! Pieces, their order, and who hears of what.

use super::*;
use crate::stage::{Checksum, Length, Seal};
use mend_sealed::{Key, Opener};
use std::cell::RefCell;
use std::rc::Rc;

/// What happened to a target.
#[derive(Default)]
struct Story {
    bytes: Vec<u8>,
    committed: bool,
    abandoned: bool,
}

struct Told(Rc<RefCell<Story>>);

impl Target for Told {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.0.borrow_mut().bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn commit(self) -> Result<u64, TransferError> {
        self.0.borrow_mut().committed = true;
        Ok(self.0.borrow().bytes.len() as u64)
    }

    fn abandon(self, error: TransferError) -> TransferError {
        self.0.borrow_mut().abandoned = true;
        error
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// Runs `stages` over these bytes. How it ended, and what the target saw.
fn through(bytes: &[u8], stages: Vec<Box<dyn Stage>>) -> (Result<u64, TransferError>, Story, Progress) {
    let (story, progress) = (Rc::new(RefCell::new(Story::default())), Progress::default());
    let moved = run(&mut Cursor::new(bytes), stages, Told(story.clone()), &progress);
    (moved, story.take(), progress)
}

#[test]
fn what_is_read_arrives_and_is_committed_and_counted() {
    for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7] {
        let bytes = pattern(length);
        let (moved, story, progress) = through(&bytes, vec![Box::new(Length::new(length as u64))]);
        assert_eq!(moved.unwrap(), length as u64);
        assert!(story.bytes == bytes && story.committed && !story.abandoned);
        assert_eq!((progress.bytes_read(), progress.bytes_given()), (length as u64, length as u64));
    }
}

#[test]
fn what_a_stage_refuses_at_the_end_is_abandoned() {
    let bytes = pattern(1000);
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
    assert!(through(&bytes, vec![Box::new(Checksum::new(1000, Some(sum)))]).0.is_ok());
    for (size, sum) in [(1000, Some(sum + 1)), (999, Some(sum)), (1001, None)] {
        let (moved, story, _) = through(&bytes, vec![Box::new(Checksum::new(size, sum))]);
        assert!(matches!(moved, Err(TransferError::OtherContent)) && story.abandoned && !story.committed);
    }
    let (moved, story, _) = through(&bytes, vec![Box::new(Length::new(999))]);
    assert!(matches!(moved, Err(TransferError::Longer { most: 999 })) && story.bytes.is_empty() && story.abandoned);
    let (moved, story, _) = through(&bytes, vec![Box::new(Length::new(1001))]);
    assert!(matches!(moved, Err(TransferError::Torn { found: 1000, wanted: 1001 })) && story.abandoned);
}

/// Stages before one that changes bytes see what is read, those after it what comes of it; what was held back comes at the end.
#[test]
fn a_stage_may_give_on_something_else() {
    let key = Key::from_bytes([5; 32]);
    for length in [0, 10, PIECE_BYTES, 2 * PIECE_BYTES + 9] {
        let bytes = pattern(length);
        let sealed_length = {
            let mut sealer = mend_sealed::Sealer::new(Vec::new(), &key, [1; 32]).unwrap();
            sealer.write_all(&bytes).unwrap();
            sealer.finish().unwrap().1
        };
        let stages: Vec<Box<dyn Stage>> =
            vec![Box::new(Length::new(length as u64)), Box::new(Seal::new(&key).unwrap()), Box::new(Length::new(sealed_length))];
        let (moved, story, progress) = through(&bytes, stages);
        assert_eq!(moved.unwrap(), sealed_length);
        assert_eq!((progress.bytes_read(), progress.bytes_given()), (length as u64, sealed_length));
        let mut opened = Vec::new();
        Opener::new(&story.bytes[..], &key).unwrap().read_to_end(&mut opened).unwrap();
        assert!(opened == bytes);
    }
}

/// Nothing is read while the target has not taken what was read before.
#[test]
fn a_slow_target_slows_the_source() {
    struct Counting<'a>(&'a RefCell<(usize, usize)>);
    impl Read for Counting<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (read, given) = &mut *self.0.borrow_mut();
            assert_eq!(read, given);
            *read += 1;
            Ok(if *read > 20 { 0 } else { buffer.len() })
        }
    }
    impl Source for Counting<'_> {}
    struct Taking<'a>(&'a RefCell<(usize, usize)>);
    impl Target for Taking<'_> {
        fn write(&mut self, _: &[u8]) -> Result<(), TransferError> {
            self.0.borrow_mut().1 += 1;
            Ok(())
        }
        fn commit(self) -> Result<u64, TransferError> {
            Ok(0)
        }
    }
    let counts = RefCell::new((0, 0));
    run(&mut Counting(&counts), Vec::new(), Taking(&counts), &Progress::default()).unwrap();
    assert_eq!(counts.into_inner(), (21, 20));
}

/// A source may know better than the error says why it ended.
#[test]
fn the_source_explains_and_its_failure_is_told() {
    struct Failing(bool);
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            match std::mem::replace(&mut self.0, true) {
                false => Err(io::ErrorKind::Interrupted.into()),
                true => Err(io::Error::other("gone")),
            }
        }
    }
    impl Source for Failing {
        fn explain(&mut self, error: TransferError) -> TransferError {
            assert!(matches!(error, TransferError::Source(_)));
            TransferError::ObjectSource("no such key".into())
        }
    }
    let moved = run(&mut Failing(false), Vec::new(), Nowhere::default(), &Progress::default());
    assert_eq!(moved.unwrap_err().to_string(), "cannot be read: no such key");
}
