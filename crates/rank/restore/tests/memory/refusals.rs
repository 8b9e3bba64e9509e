//! Streams that are no usable image of this process.

use crate::image::{Image, PAGE, Place, file_object, file_of, restore, restore_files};
use crate::{page_of, several};
use mend_image::ZONES;
use mend_image::launch::{Failure, Mode};
use mend_image::record::object;
use mend_restore::RestoreError;
use proptest::prelude::*;
use std::io::Write;
use std::os::fd::AsRawFd;

fn refusal(images: &[&Image]) -> String {
    let files: Vec<_> = images.iter().map(|image| image.file()).collect();
    restore_files(&files, Mode::Restart).unwrap_err()
}

proptest! {
    /// Every byte counts: of the header, of heads, tables, pages, what is kept, and the end.
    #[test]
    fn a_flipped_bit_is_noticed(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let place = Place::new(10);
        let mut image = several(&place);
        // Padding between records is not checked.
        image.unread.resize(16, b'x');
        let mut stream = image.stream();
        let at = at.index(stream.len());
        stream[at] ^= 1 << bit;
        prop_assert!(restore_files(&[file_of(&stream)], Mode::Restart).is_err());
        place.clear();
    }

    /// From a file or from a connection that ends.
    #[test]
    fn a_torn_stream_is_noticed(at in any::<prop::sample::Index>(), socket in any::<bool>()) {
        let place = Place::new(10);
        let stream = several(&place).stream();
        let cut = &stream[..at.index(stream.len())];
        let error = if socket {
            let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || ours.write_all(cut).unwrap());
                restore(&[theirs.as_raw_fd()], Mode::Restart).unwrap_err()
            })
        } else {
            restore_files(&[file_of(cut)], Mode::Restart).unwrap_err()
        };
        prop_assert_eq!(error, format!("the stream ends {} bytes from its start", cut.len()));
    }
}

#[test]
fn what_is_no_image_is_foreign() {
    for bytes in [vec![0; 1 << 16], b"#!/bin/sh\n".repeat(1000)] {
        assert_eq!(restore_files(&[file_of(&bytes)], Mode::Restart).unwrap_err(), "this is not an image of a rank");
    }
    assert_eq!(restore(&[-1], Mode::Restart).unwrap_err(), "reading the stream failed 0 bytes from its start");
}

#[test]
fn chains_are_whole_and_of_one_process() {
    let place = Place::new(4);
    let mut full = Image::new(&place, 4);
    full.pages = vec![(place.page(1), page_of(1))];
    let mut newer = Image::new(&place, 4).builds_on(&full);
    newer.kept = vec![(place.page(1), place.page(2))];
    assert_eq!(refusal(&[&newer]), "the image builds on another one (number 1 of its chain), which is not given");
    place.clear();
    let second = "image 1 of those that the image builds on: ";
    let mut other = full.clone();
    other.header.id = [9; 16];
    assert_eq!(refusal(&[&newer, &other]), format!("{second}it is not the image that the next newer one builds on"));
    place.clear();
    let mut foreign = full.clone();
    foreign.header.rank = 3;
    assert_eq!(refusal(&[&newer, &foreign]), format!("{second}it is of another job, rank or process than the image that builds on it"));
    place.clear();
    assert_eq!(refusal(&[&full, &full]), format!("{second}the image is full and builds on no other one, yet another one is given"));
    place.clear();
    // Damage in an older image is said to be there.
    let mut stream = full.stream();
    let last_page = stream.len() - PAGE as usize;
    stream[last_page] ^= 1;
    let error = restore_files(&[newer.file(), file_of(&stream)], Mode::Restart).unwrap_err();
    assert!(error.starts_with(&format!("{second}the image is damaged ")), "{error}");
}

/// Records that are well formed, with right checksums, but would have a restore write where it must not.
#[test]
fn well_formed_nonsense_is_refused() {
    let refuse = |change: &dyn Fn(&mut Image, &Place)| {
        let place = Place::new(16);
        let mut image = several(&place);
        change(&mut image, &place);
        let error = refusal(&[&image]);
        assert!(error.starts_with("the image holds a record that makes no sense "), "{error}");
    };
    // Pages where nothing is mapped, and beyond a mapping's end.
    refuse(&|image, place| image.pages.push((place.page(12), page_of(1))));
    refuse(&|image, place| image.pages.push((place.page(7), vec![1; 4 * PAGE as usize])));
    // A page twice.
    refuse(&|image, place| image.pages.push((place.page(5), page_of(1))));
    // The restorer's own place, mappings out of order, a mapping of no object that there is.
    refuse(&|image, _| image.mappings[1].start = ZONES[0].0);
    refuse(&|image, _| image.mappings.swap(0, 1));
    refuse(&|image, _| image.mappings[2].object = 5);
    // Hand-over outside of the image.
    refuse(&|image, place| image.handoff = place.page(15));
    refuse(&|image, place| image.handoff = place.page(2) - 8);
    // Content of memory that there is none of.
    refuse(&|image, _| image.bytes.push((7, 0, vec![1])));
    // Shared memory cannot be as in an older image; nor can what is stored here.
    for kept in [(8, 9), (5, 6)] {
        let place = Place::new(16);
        let full = several(&place);
        let mut newer = several(&place).builds_on(&full);
        newer.kept = vec![(place.page(kept.0), place.page(kept.1))];
        assert!(refusal(&[&newer, &full]).starts_with("the image holds a record that makes no sense "));
    }
}

#[test]
fn what_is_mapped_already_is_not_replaced() {
    let place = Place::new(16);
    place.map(3);
    let error = refusal(&[&several(&place)]);
    assert_eq!(error, format!("8192 bytes at {:#x} cannot be mapped", place.start));
    assert!(place.content(1) == page_of(3));
}

#[test]
fn mapped_files_are_those_that_were_mapped() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&page_of(9)).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let with = |path: &str, size: u64, sample: u64| {
        let place = Place::new(8);
        let mut image = Image::new(&place, 4);
        let number = file_object(&mut image, path, size, 0, sample);
        image.map_object(number, 1, 0);
        restore_files(&[image.file()], Mode::Restart).map(|_| place.content(4))
    };
    // The agent hashes the first and the last bytes, which overlap in a small file.
    let content = [page_of(9), page_of(9)].concat();
    let sample = xxhash_rust::xxh3::xxh3_64(&content);
    const { assert!(object::SAMPLE > PAGE) };
    assert!(with(&path, PAGE, sample).unwrap() == page_of(9));
    assert_eq!(
        with(&path, PAGE, sample + 1).unwrap_err(),
        format!("{path} is not the file that the saved process has mapped: it was changed or is another build")
    );
    assert_eq!(
        with(&path, 5000, sample).unwrap_err(),
        format!("{path} has 4096 bytes, the one that the saved process has mapped had 5000")
    );
    assert_eq!(with("/nowhere/at/all", PAGE, sample).unwrap_err(), "/nowhere/at/all, which the saved process has mapped, cannot be opened");
}

#[test]
fn kinds_of_failure_are_told_apart() {
    for (error, failure, errno) in [
        (RestoreError::Silent { seconds: 30, at: 7 }, Failure::Stream, 0),
        (RestoreError::NoObject, Failure::Image, 0),
        (RestoreError::FileAbsent { path: "/a", errno: 2 }, Failure::File, 2),
        (RestoreError::Descriptors { fd: 5, top: 9, errno: 24 }, Failure::Launch, 24),
        (RestoreError::Map { length: 1, start: 2, errno: 12 }, Failure::Kernel, 12),
    ] {
        assert_eq!((error.failure(), error.errno()), (failure, errno), "{error}");
    }
    assert_eq!(RestoreError::Silent { seconds: 30, at: 7 }.to_string(), "nothing came for 30 s, 7 bytes from the stream's start");
}
