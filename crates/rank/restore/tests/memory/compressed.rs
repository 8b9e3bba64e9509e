//! Pages that come compressed, in a round, in a stream and in a file; and blocks that nobody can unpack to what they should be.

use crate::image::{Image, PAGE, Place, file_of, restore, restore_files};
use crate::rounds::Sender;
use lz4_flex::block::{compress_into, get_maximum_output_size};
use mend_image::HEADER_SIZE;
use mend_image::fixed::Fixed;
use mend_image::launch::Mode;
use mend_image::record::{End, HEAD_SIZE, Kind, Ledger, RecordHead};
use mend_image::rounds::{RoundKind, head};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use xxhash_rust::xxh3::xxh3_64;

fn block(pages: &[u8]) -> Vec<u8> {
    let mut room = vec![0; get_maximum_output_size(pages.len())];
    let length = compress_into(pages, &mut room).unwrap();
    room.truncate(length);
    room
}

fn lines(pages: u64) -> Vec<u8> {
    (0..).flat_map(|line| format!("line {line}\n").into_bytes()).take((pages * PAGE) as usize).collect()
}

/// The stream, with each record of pages as a block; those of more than one are changed first.
fn compressed(stream: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let header: [u8; HEADER_SIZE] = stream[..HEADER_SIZE].try_into().unwrap();
    let (mut out, mut ledger) = (header.to_vec(), Ledger::new(&header).on_its_way());
    let mut at = HEADER_SIZE;
    loop {
        let old = RecordHead::decode(&stream[at..at + HEAD_SIZE]).unwrap();
        let mut payload = stream[at + HEAD_SIZE..][..old.length as usize].to_vec();
        at += HEAD_SIZE + old.padded_length() as usize;
        let mut head = RecordHead { own: 0, ..old };
        if old.kind == Kind::Pages as u32 {
            payload = block(&payload);
            if old.length > PAGE {
                change(&mut payload);
            }
            head = head.compressed_to(payload.len() as u32);
        }
        let end = old.kind == Kind::End as u32;
        if end {
            payload = vec![0; End::SIZE];
            ledger.end().encode(&mut payload).unwrap();
            head.payload = xxh3_64(&payload);
        }
        let raw = head.to_bytes();
        ledger.admit(&raw).unwrap();
        out.extend(raw);
        out.extend(&payload);
        out.resize(out.len().next_multiple_of(8), 0);
        if end {
            return out;
        }
    }
}

fn some(place: &Place) -> (Image, Vec<u8>) {
    let content = lines(200);
    let mut image = Image::new(place, 300);
    image.pages = vec![(place.page(1), content.clone()), (place.page(250), vec![7; PAGE as usize])];
    (image, content)
}

fn check(place: &Place, content: &[u8]) {
    assert!((1..201).all(|page| place.content(page) == content[((page - 1) * PAGE) as usize..][..PAGE as usize]));
    assert!(place.content(250) == [7; PAGE as usize] && place.content(0) == [0; PAGE as usize]);
}

#[test]
fn a_stream_and_a_file_of_blocks_fill_what_pages_fill() {
    let place = Place::new(300);
    let (image, content) = some(&place);
    let stream = compressed(&image.stream(), |_| ());
    assert!(stream.len() < image.stream().len() * 2 / 3);
    restore_files(&[file_of(&stream)], Mode::Restart).unwrap();
    check(&place, &content);
    place.clear();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let sending = std::thread::spawn(move || ours.write_all(&stream).unwrap());
    restore(&[theirs.as_raw_fd()], Mode::Migrate).unwrap();
    sending.join().unwrap();
    check(&place, &content);
}

#[test]
fn a_block_that_is_not_what_its_head_says_is_refused() {
    type Change = fn(&mut Vec<u8>);
    let changes: [Change; 5] = [
        // Other bytes, a byte too few and too many, one that unpacks to more, one that refers to what is before it.
        |block| block[20] ^= 1,
        |block| _ = block.pop(),
        |block| block.push(0),
        |block| *block = self::block(&lines(201)),
        |block| *block = vec![0x0f, 0xff, 0xff, 0xff],
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let place = Place::new(300);
        let (image, _) = some(&place);
        let refused = restore_files(&[file_of(&compressed(&image.stream(), change))], Mode::Restart).unwrap_err();
        assert!(refused.contains("damaged"), "{number}: {refused}");
    }
}

#[test]
fn rounds_may_be_compressed() {
    let place = Place::new(200);
    let content = lines(200);
    let mut sender = Sender::new();
    sender.areas(&[(place.page(0), place.page(200), 0)]);
    let block = block(&content);
    sender.put(head(RoundKind::Pages, place.page(0), &content).compressed_to(block.len() as u32), &block);
    sender.done();
    let mut image = crate::rounds::rest(&place, 200);
    image.kept = vec![(place.page(0), place.page(200))];
    sender.restore(&image.stream()).unwrap();
    assert!((0..200).all(|page| place.content(page) == content[(page * PAGE) as usize..][..PAGE as usize]));
}
