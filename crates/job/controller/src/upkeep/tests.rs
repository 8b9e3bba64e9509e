//! Chains of real (small) images of two ranks: what is removed and merged leaves every memory as it was, wherever it is cut off.

use super::*;
use crate::manifest::{ImageEntry, prepare, publish, tests::manifest};
use mend_image::Header;
use mend_image::fixed::Fixed;
use mend_image::kept;
use mend_image::record::{Kind, Mapping};
use mend_image::write::StreamWriter;
use mend_messages::agent::ImageId;
use mend_messages::tier::{Tier, TierSpec};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const PAGE: u64 = 4096;
const BASE: u64 = 0x10_0000;
const PAGES: u64 = 8;
const TWO: Bounds = Bounds { keep: 2, space_percent: 150 };

/// An image whose page `fill % PAGES` was written; all others are as in `base`, or if there is none, the first `full` are also
/// `fill`.
fn image(rank: u32, fill: u8, base: Option<u8>, full: u64) -> Vec<u8> {
    let id = |fill: u8| [fill + 100 * rank as u8; 16];
    let header = Header {
        rank,
        pid: 7 + rank,
        id: id(fill),
        base: base.map_or([0; 16], id),
        sequence: base.map_or(0, |_| u32::from(fill)),
        ..Header::default()
    };
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::new(&mut bytes, &header).unwrap();
    let mapping = Mapping { start: BASE, end: BASE + PAGES * PAGE, offset: 0, protection: 3, flags: 0, object: u32::MAX, page_shift: 0 };
    let mut payload = vec![0; Mapping::SIZE];
    mapping.encode(&mut payload).unwrap();
    let tables =
        [(Kind::Strings, vec![]), (Kind::Objects, vec![]), (Kind::Mappings, payload), (Kind::Threads, vec![]), (Kind::Process, vec![])];
    for (kind, payload) in tables {
        writer.record(kind, 0, 0, &payload).unwrap();
    }
    let page = u64::from(fill) % PAGES;
    if base.is_some() {
        let around = [(BASE, BASE + page * PAGE), (BASE + (page + 1) * PAGE, BASE + PAGES * PAGE)];
        let payload: Vec<u8> =
            around.iter().filter(|(from, to)| from < to).flat_map(|&(from, to)| [from, to]).flat_map(u64::to_le_bytes).collect();
        assert!(kept::ranges(&payload, 0).is_ok());
        writer.record(Kind::Kept, 0, 0, &payload).unwrap();
        writer.record(Kind::Pages, 0, BASE + page * PAGE, &[fill; PAGE as usize]).unwrap();
    } else {
        writer.record(Kind::Pages, 0, BASE, &vec![fill; (full * PAGE) as usize]).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

/// Publishes a checkpoint; for each rank the number that it builds on.
fn take(directory: &Path, number: u8, bases: [Option<u8>; 2]) {
    take_of(directory, number, bases, PAGES, None);
}

/// The same; a full image holds so many pages, and all are encrypted if there is a key.
fn take_of(directory: &Path, number: u8, bases: [Option<u8>; 2], full: u64, key: Option<&Key>) {
    let part = prepare(directory, number.into()).unwrap();
    let entry = |(rank, base): (u32, Option<u8>)| {
        let mut bytes = image(rank, number, base, full);
        if let Some(key) = key {
            let mut sealer = mend_sealed::Sealer::new(Vec::new(), key, [number + 100 * rank as u8; 32]).unwrap();
            sealer.write_all(&bytes).unwrap();
            bytes = sealer.finish().unwrap().0;
        }
        fs::write(part.join(image_name(rank)), &bytes).unwrap();
        let id = ImageId([number + 100 * rank as u8; 16]);
        let sequence = base.map_or(0, |_| number.into());
        ImageEntry {
            rank,
            host: "a".into(),
            bytes: bytes.len() as u64,
            checksum: 0,
            id,
            base: base.map(u64::from),
            sequence,
            merged: false,
            needs: None,
        }
    };
    let images = (0..2).zip(bases).map(entry).collect();
    publish(&part, &manifest::Manifest { number: number.into(), images, periodic: true, encrypted: key.is_some(), ..manifest() }, key)
        .unwrap();
}

/// Seven checkpoints, each on the one before; rank 1 moved before the fourth.
fn history() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for number in 1..=7 {
        let below = (number > 1).then(|| number - 1);
        take(directory.path(), number, [below, below.filter(|_| number != 4)]);
    }
    directory
}

/// The memory of both ranks as a restart from the checkpoint would have it.
fn memory(directory: &Path, number: u64) -> Vec<Vec<u8>> {
    memory_with(directory, number, None)
}

fn memory_with(directory: &Path, number: u64, key: Option<&Key>) -> Vec<Vec<u8>> {
    let place = directory.join(number.to_string());
    let manifest = manifest::load(&place, key).unwrap();
    let content = |files: Vec<PathBuf>| {
        let mut chain = Chain::open(files.iter().map(|path| ImageFile::open(path, key).unwrap())).unwrap();
        chain.verify().unwrap();
        let pieces = chain.pieces().to_vec();
        pieces.iter().flat_map(|piece| chain.read(piece).unwrap().iter().step_by(PAGE as usize).copied().collect::<Vec<_>>()).collect()
    };
    manifest::chains(&place, &manifest, key).unwrap().into_iter().map(content).collect()
}

fn rules(bounds: Bounds, key: Option<Key>) -> UpkeepRules {
    UpkeepRules { bounds: Some(bounds), key, ..UpkeepRules::default() }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        match entry.path().is_dir() {
            true => names.extend(self::names(&entry.path()).into_iter().map(|below| format!("{name}/{below}"))),
            false => names.push(name),
        }
    }
    names.sort();
    names
}

#[test]
fn wherever_a_round_is_cut_off_nothing_that_is_kept_is_lost() {
    let expected = {
        let whole = history();
        [6, 7].map(|number| memory(whole.path(), number))
    };
    assert_eq!(expected[1], [[1, 1, 2, 3, 4, 5, 6, 7], [4, 4, 4, 4, 4, 5, 6, 7]]);
    let go = AtomicBool::new(false);
    let mut cuts = 0;
    loop {
        let directory = history();
        let directory = directory.path();
        let mut left = cuts;
        // As SIGKILL: nothing that would run after it does.
        let cut = catch_unwind(AssertUnwindSafe(|| {
            stepped_round(directory, &rules(TWO, None), &go, &mut || match left {
                0 => resume_unwind(Box::new(())),
                _ => left -= 1,
            })
        }));
        for (number, expected) in [6, 7].into_iter().zip(&expected) {
            assert_eq!(&memory(directory, number), expected, "checkpoint {number}, cut {cuts}");
        }
        for number in manifest::numbers(directory) {
            assert!(manifest::load(&directory.join(number.to_string()), None).is_ok(), "checkpoint {number}, cut {cuts}");
        }
        let done = round(directory, &rules(TWO, None), &go);
        assert_eq!((done.failure, done.newest), (None, Some((7, vec![1, 1]))));
        for (number, expected) in [6, 7].into_iter().zip(&expected) {
            assert_eq!(&memory(directory, number), expected);
        }
        let files = ["6/manifest.json", "6/rank-0.merged.image", "6/rank-1.merged.image"];
        let files = [&files[..], &["7/manifest.json", "7/rank-0.image", "7/rank-1.image"]].concat();
        assert_eq!(names(directory), files, "cut {cuts}");
        if cut.is_ok() {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 25, "{cuts}");
}

#[test]
fn what_builds_on_a_merged_one_goes_on() {
    let directory = history();
    let directory = directory.path();
    let go = AtomicBool::new(false);
    assert!(round(directory, &rules(Bounds { keep: 1, ..TWO }, None), &go).failure.is_none());
    assert_eq!(manifest::numbers(directory), [7]);
    take(directory, 8, [Some(7), Some(7)]);
    let after = memory(directory, 8);
    assert_eq!(after[0], [8, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(after[1], [8, 4, 4, 4, 4, 5, 6, 7]);
}

#[test]
fn what_object_storage_has_of_a_merged_one_is_forgotten_before() {
    let directory = history();
    let directory = directory.path();
    let place = |number: u64| directory.join(number.to_string());
    for number in 1..=7 {
        tiers::record_held(&place(number), vec!["shared".into(), "s3://b/p".into()]).unwrap();
    }
    let mut merged = false;
    let done = stepped_round(directory, &rules(TWO, None), &AtomicBool::new(false), &mut || {
        merged = manifest::load(&place(6), None).unwrap().images.iter().all(|image| image.merged);
        if merged {
            assert_eq!([6, 7].map(|number| tiers::held(&place(number))), [["shared"], ["shared"]]);
        }
    });
    assert!(merged && done.merged == Some(6), "{done:?}");
}

#[test]
fn what_a_restart_looks_for_in_tiers_is_not_merged() {
    let directory = history();
    let directory = directory.path();
    for number in 1..=7 {
        let place = directory.join(number.to_string());
        let local = TierSpec { tier: Tier::Local("/local".into()), keep: 1 };
        let manifest = manifest::load(&place, None).unwrap();
        manifest::replace(&place, &manifest::Manifest { tiers: vec![local], ..manifest }, None).unwrap();
    }
    let before = names(directory);
    let done = round(directory, &rules(TWO, None), &AtomicBool::new(false));
    assert!(done.merged.is_none() && done.failure.is_none(), "{done:?}");
    assert_eq!(names(directory), before);
}

#[test]
fn what_grows_and_supersedes_nothing_is_not_merged() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for number in 1..=7 {
        take_of(directory, number, [(number > 1).then(|| number - 1); 2], 1, None);
    }
    let before = names(directory);
    let bounds = Bounds { keep: 1, space_percent: 250 };
    let found = survey(directory, None);
    assert!(retention::merge(&found.known, false, bounds).is_some(), "seven times the first one's size");
    let done = round(directory, &rules(bounds, None), &AtomicBool::new(false));
    assert!(done.failure.is_none(), "{done:?}");
    assert_eq!(names(directory), before);
    // Weighed once: tables that are gone by then are not missed by the next round.
    let next = UpkeepRules { weighed: done.weighed, ..rules(bounds, None) };
    fs::write(
        directory.join("1").join(image_name(0)),
        vec![0; fs::metadata(directory.join("1").join(image_name(0))).unwrap().len() as usize],
    )
    .unwrap();
    let [knows, forgot] = [next, rules(bounds, None)].map(|rules| round(directory, &rules, &AtomicBool::new(false)));
    assert!(knows.failure.is_none() && knows.weighed == done.weighed && forgot.failure.is_some());
}

#[test]
fn with_a_key_what_is_merged_is_encrypted_and_authenticated() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let key = Key::from_bytes([7; 32]);
    for number in 1..=7 {
        take_of(directory, number, [(number > 1).then(|| number - 1); 2], PAGES, Some(&key));
    }
    let before = memory_with(directory, 7, Some(&key));
    // Nothing is merged or removed for what somebody else may have written.
    let all = manifest::numbers(directory);
    let done = round(directory, &rules(TWO, Some(Key::from_bytes([8; 32]))), &AtomicBool::new(false));
    let told = done.failure.unwrap();
    assert!(told.contains("checkpoint 1 may need any of them") && told.contains("encrypted with another key"), "{told}");
    assert_eq!(manifest::numbers(directory), all);
    let done = round(directory, &rules(TWO, Some(key.clone())), &AtomicBool::new(false));
    assert_eq!((done.failure, done.newest), (None, Some((7, vec![1, 1]))));
    assert_eq!(manifest::numbers(directory), [6, 7]);
    assert_eq!(memory_with(directory, 7, Some(&key)), before);
    let merged = directory.join("6").join(merged_name(0));
    assert!(ImageFile::open(&merged, Some(&key)).unwrap().is_sealed());
}

#[test]
fn a_damaged_chain_is_told_of_and_left_as_it_is() {
    let directory = history();
    let directory = directory.path();
    let victim = directory.join("1").join(image_name(0));
    let mut bytes = fs::read(&victim).unwrap();
    let page = bytes.len() - 3 * PAGE as usize;
    bytes[page] ^= 1;
    fs::write(&victim, bytes).unwrap();
    let before = names(directory);
    let done = round(directory, &rules(TWO, None), &AtomicBool::new(false));
    assert!(done.damaged && done.failure.is_some_and(|text| text.contains("rank 0: the images of checkpoint 6")));
    assert_eq!(names(directory), before);
}

#[test]
fn a_cancelled_round_leaves_everything_as_it_was() {
    let directory = history();
    let before = names(directory.path());
    let done = round(directory.path(), &rules(TWO, None), &AtomicBool::new(true));
    assert!(done.failure.is_none() && !done.damaged);
    assert_eq!(names(directory.path()), before);
}

#[test]
fn a_round_that_is_cancelled_when_all_is_merged_takes_no_image_away() {
    let directory = history();
    let directory = directory.path();
    let merged = || [0, 1].iter().all(|rank| directory.join("6").join(merged_name(*rank)).exists());
    let cancel = AtomicBool::new(false);
    // What was merged goes again then.
    let done = stepped_round(directory, &rules(TWO, None), &cancel, &mut || _ = cancel.fetch_or(merged(), Ordering::Relaxed));
    assert!(cancel.load(Ordering::Relaxed) && done.failure.is_none() && done.merged.is_none(), "{done:?}");
    let manifest = manifest::load(&directory.join("6"), None).unwrap();
    assert!(manifest.images.iter().all(|image| !image.merged && directory.join("6").join(image.file()).exists()));
    assert_eq!(memory(directory, 6), memory(history().path(), 6));
}

#[test]
fn by_hand_only_what_nobody_needs() {
    let directory = history();
    let directory = directory.path();
    let error = remove_by_hand(directory, &[7, 3]).unwrap_err();
    assert_eq!(error.to_string(), "checkpoint 3 cannot be removed: checkpoint 4 builds on it");
    assert_eq!(error.hint(), "remove 4 first");
    let error = remove_by_hand(directory, &[7, 12]).unwrap_err();
    assert_eq!((error.to_string(), error.hint()), ("there is no checkpoint 12".into(), "there are 1, 2, 3, 4, 5, 6, 7".into()));
    assert_eq!(manifest::numbers(directory).len(), 7, "all or none");
    remove_by_hand(directory, &[6, 7, 5, 7]).unwrap();
    assert_eq!(manifest::numbers(directory), [1, 2, 3, 4]);
    // A damaged manifest may go, and holds nothing up.
    fs::write(directory.join("3/manifest.json"), "{").unwrap();
    remove_by_hand(directory, &[4]).unwrap();
    remove_by_hand(directory, &[3]).unwrap();
    assert_eq!(manifest::numbers(directory), [1, 2]);
    // One of another release may need anything.
    let other = directory.join("2/manifest.json");
    fs::write(&other, fs::read_to_string(&other).unwrap().replace(&format!("\"format\":{}", manifest::FORMAT), "\"format\":9")).unwrap();
    assert!(matches!(remove_by_hand(directory, &[1]), Err(RemoveError::Unknown { number: 1 })));
    remove_by_hand(directory, &[2, 1]).unwrap();
}

#[test]
fn leftovers_are_swept_up_and_strangers_left_alone() {
    let directory = history();
    let directory = directory.path();
    let before = names(directory);
    fs::create_dir(directory.join("9.old")).unwrap();
    for leftover in ["9.old/rank-0.image", "2/rank-1.merged.image", "3/rank-0.merged.image.new"] {
        fs::write(directory.join(leftover), "x").unwrap();
    }
    for stranger in ["notes.old", "2/notes"] {
        fs::write(directory.join(stranger), "x").unwrap();
    }
    sweep(directory);
    let mut left = names(directory);
    left.retain(|name| !name.contains("notes"));
    assert_eq!(left, before);
    assert!(directory.join("notes.old").exists() && directory.join("2/notes").exists());
}

#[test]
fn a_merge_that_fails_midway_leaves_nothing() {
    let directory = history();
    let directory = directory.path();
    let before = names(directory);
    let second = directory.join("6").join(partial_name(1));
    fs::create_dir(&second).unwrap();
    let done = round(directory, &rules(TWO, None), &AtomicBool::new(false));
    assert!(done.merged.is_none() && done.failure.is_some(), "{done:?}");
    fs::remove_dir(&second).unwrap();
    assert!(!names(directory).iter().any(|name| name.contains(".merged.")), "{:?}", names(directory));
    let done = round(directory, &rules(TWO, None), &AtomicBool::new(false));
    assert!(done.merged == Some(6) && before != names(directory), "{done:?}");
}
