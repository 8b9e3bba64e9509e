//! What clients of a data space ask of its targets, and what targets tell of what they know: whatever it is, reading and using it ends without a panic, what is
//! too long is refused before it is read, and every name stays within the space.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_data::patterns::{Recorder, sharing};
use mend_data::ranges::Range;
use mend_data::space::catalogue::{Catalogue, Change, Node};
use mend_data::space::layout::Layout;
use mend_data::space::target::{Answer, MAX_PAYLOAD, Request};
use mend_data::space::written::{self, Shape};
use mend_data::space::{Entry, MAX_TARGETS, Striping, blocks, mounts};
use mend_messages::frame;

fn use_written(entry: &Entry) {
    let Some(file) = entry.written() else { return };
    let range = Range { offset: entry.made_ns.unsigned_abs() >> 1, length: 1 << 20 };
    let mut next = range.offset;
    for (position, _, piece) in written::pieces(file, range, 1 << 18).take(50) {
        assert!(usize::from(position) < file.objects.len() && piece.offset == next && piece.length > 0);
        next = piece.end();
    }
    let shapes: Vec<Shape> =
        (0..file.objects.len() as u16).map(|position| Shape { position, length: entry.version, changed_ns: 0 }).collect();
    assert!(i64::try_from(written::size(file, &shapes)).is_ok());
    let free = [Some(1 << 40), Some(1 << 41), None];
    if let Ok(Some(moved)) = file.moved(&free, |_, at| at > 1, |_, at| at < 2, |_| 1 << 20, usize::from) {
        assert!(moved.objects.iter().all(|copies| copies.iter().all(|at| *at < 2)));
    }
    assert!(!entry.path.split('/').any(|name| matches!(name, "" | "." | "..")));
}

fn use_entry(entry: &Entry) {
    use_written(entry);
    let Some(file) = entry.file() else { return };
    let layout = Layout::of(file);
    for position in 0..file.targets.len() {
        let _ = layout.object_length(position);
    }
    for offset in [0, file.size / 2, file.size.saturating_sub(1)] {
        let pieces: Vec<_> = layout.extents(Range { offset, length: 1 << 20 }).take(20).collect();
        assert!(pieces.iter().all(|piece| piece.position < file.targets.len()));
        let _ = layout.run(offset / mend_data::space::BLOCK, 16);
    }
    assert!(!entry.path.split('/').any(|name| matches!(name, "" | "." | "..")));
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 4 {
        0 => {
            let Ok(request) = frame::decode::<Request>(bytes) else { return };
            assert!(request.payload().is_none_or(|length| length <= MAX_PAYLOAD));
            if let (true, Request::Touched { reports }) = (request.is_sound(), &request) {
                let mut recorder = Recorder::default();
                reports.iter().for_each(|report| recorder.take(report));
                let told = [vec![recorder.tell(0)]];
                for job in sharing::jobs(&told).into_keys() {
                    let ranks = sharing::of_job(&told, &job, 8);
                    assert!(ranks.values().all(|rank| rank.windows.iter().map(|touched| touched.len()).sum::<usize>() <= rank.order.len()));
                }
            }
            if let (true, Request::Adopt { entry, fresh, .. }) = (request.is_sound(), &request) {
                use_entry(entry);
                assert!(fresh.iter().all(|position| usize::from(*position) < MAX_TARGETS));
            }
            if let (true, Request::Put { entry, positions }) = (request.is_sound(), &request) {
                use_entry(entry);
                assert!(positions.iter().all(|position| usize::from(*position) < MAX_TARGETS));
            }
        }
        1 => {
            let Ok(Answer::Changes { changes, .. }) = frame::decode::<Answer>(bytes) else { return };
            let mut names = Catalogue::default();
            for change in changes {
                if let Change::There(entry) = &change {
                    if !entry.is_sound(MAX_TARGETS) {
                        continue;
                    }
                    use_entry(entry);
                }
                names.learn(change);
            }
            let _ = names.total();
            for (name, node) in names.list("") {
                assert!(names.look(&name) == Some(node));
                if node == Node::Directory {
                    let _ = (names.list(&name), names.striping(&name, Striping::default()), names.everything(&name));
                }
            }
            for entry in names.files("") {
                assert!(names.at(&entry.path).is_some_and(|seen| seen.id == entry.id));
            }
        }
        2 => {
            let Some((count, told)) = bytes.split_first() else { return };
            if let Some(told) = blocks::decode(told, u32::from(*count)) {
                assert!(told.len() == usize::from(*count) && blocks::encode(&told) == bytes[1..]);
            }
        }
        _ => {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(read) = mounts::read(&text) {
                assert_eq!(mounts::read(&mounts::write(&read)), Ok(read));
            }
        }
    }
});
