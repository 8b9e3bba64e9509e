//! The memory of the test's own process, filled from images.

mod chains;
mod compressed;
mod image;
mod refusals;
mod rounds;

use image::{Image, PAGE, Place, Told, file_object, restore, restore_after, restore_files};
use mend_image::launch::{Mode, PutBack};
use mend_image::record::object;
use std::io::Write;
use std::os::fd::AsRawFd;

fn page_of(byte: u8) -> Vec<u8> {
    vec![byte; PAGE as usize]
}

/// Pages here and there, one of them in memory that is read-only, and shared memory.
fn several(place: &Place) -> Image {
    let mut image = Image::new(place, 8);
    image.protect_first(2);
    let shared = image.share(2);
    image.pages = vec![(place.page(1), page_of(1)), (place.page(4), [page_of(4), page_of(5)].concat())];
    image.bytes = vec![(shared, 100, vec![7; 5000])];
    image.unread = b"left over".to_vec();
    image
}

fn check_several(place: &Place, told: &Told, stream: &[u8]) {
    for (number, byte) in [(0, 0), (1, 1), (2, 0), (3, 0), (4, 4), (5, 5), (6, 0), (7, 0)] {
        assert!(place.content(number) == page_of(byte), "page {number}");
    }
    let shared = [place.content(8), place.content(9)].concat();
    assert_eq!(shared[..100], [0; 100]);
    assert_eq!(shared[100..5100], [7; 5000]);
    assert_eq!(shared[5100..], [0; 8192 - 5100]);
    assert_eq!((place.permissions(1), place.permissions(2), place.permissions(8)), ("r--p".into(), "rw-p".into(), "rw-s".into()));
    assert_eq!(*told, Told { read: stream.len() as u64, placed: 3 * PAGE, unread: b"left over".to_vec() });
}

#[test]
fn a_file_fills_memory() {
    let place = Place::new(10);
    let image = several(&place);
    let told = restore_files(&[image.file()], Mode::Restart).unwrap();
    check_several(&place, &told, &image.stream());
}

#[test]
fn a_socket_fills_memory_while_it_comes() {
    let place = Place::new(10);
    let stream = several(&place).stream();
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let writing = std::thread::spawn({
        let stream = stream.clone();
        move || {
            // Pieces that end anywhere.
            stream.chunks(1000).for_each(|piece| ours.write_all(piece).unwrap());
            // Its end is not what says that the image is complete.
            ours
        }
    });
    let told = restore(&[theirs.as_raw_fd()], Mode::Restart).unwrap();
    check_several(&place, &told, &stream);
    drop(writing.join().unwrap());
}

/// What two threads take in turns comes out as what one takes.
#[test]
fn a_large_file_is_shared_by_two_threads() {
    let place = Place::new(2048);
    let mut image = Image::new(&place, 2048);
    let byte = |page: u64| (page % 251) as u8;
    for first in (0..2048).step_by(64) {
        let content = (first..first + 50).flat_map(|page| page_of(byte(page))).collect();
        image.pages.push((place.page(first), content));
    }
    let told = restore_files(&[image.file()], Mode::Restart).unwrap();
    assert_eq!((told.read, told.placed), (image.stream().len() as u64, 32 * 50 * PAGE));
    for page in 0..2048 {
        assert!(place.content(page) == page_of(if page % 64 < 50 { byte(page) } else { 0 }), "page {page}");
    }
}

/// What a file that others see holds comes back with a restart, unless the file was put back: others may have written to it after this process was saved. After a
/// migration it is in the file already.
#[test]
fn shared_files_are_written_only_by_restarts_that_find_nothing_there() {
    let kept = object::WRITABLE | object::KEPT_BESIDE;
    let all: fn(&str) -> Option<PutBack> = |_| PutBack::all_but([]);
    let others: fn(&str) -> _ = |path| PutBack::all_but([path.as_bytes()]);
    let none: fn(&str) -> _ = |_| None;
    let cases = [
        (Mode::Restart, object::WRITABLE, none, 2),
        (Mode::Restart, object::WRITABLE, all, 2),
        (Mode::Restart, kept, none, 2),
        (Mode::Restart, kept, others, 2),
        (Mode::Restart, kept, all, 9),
        (Mode::Migrate, object::WRITABLE, none, 9),
    ];
    for (mode, flags, put_back, expected) in cases {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&page_of(9)).unwrap();
        let place = Place::new(8);
        let mut image = Image::new(&place, 4);
        let path = file.path().to_str().unwrap().to_owned();
        let number = file_object(&mut image, &path, PAGE, flags, 0);
        image.map_object(number, 1, mend_image::record::mapping::SHARED);
        image.pages = vec![(place.page(4), page_of(2))];
        restore_after(&[image.file().as_raw_fd()], mode, put_back(&path)).unwrap();
        assert!(place.content(4) == page_of(expected));
        assert!(std::fs::read(file.path()).unwrap() == page_of(expected));
    }
}
