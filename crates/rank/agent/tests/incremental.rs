//! Incremental images by the real agent: what a chain of them says is what a full image of the same instant says, and what a
//! process restored from the chain finds.

mod support;

use mend_image::chain::Chain;
use mend_image::launch::Mode;
use mend_image::record::mapping;
use mend_messages::agent::{ImageId, Reply, Request, SaveMode, SaveOrder, SaveTarget, Saved};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use support::skips::skipped;
use support::{Rank, Source, compile};

const PAGE: u64 = 4096;
static ZERO: [u8; PAGE as usize] = [0; PAGE as usize];

/// Saves and resumes; a snapshot is waited for.
fn image(rank: &mut Rank, path: &Path, mode: SaveMode, base: Option<ImageId>, track: bool) -> Saved {
    assert!(matches!(rank.ask(Request::Suspend), Reply::Suspended { .. }));
    let target = SaveTarget::File(path.to_path_buf());
    let saved = match rank.ask(Request::Save(SaveOrder { mode, base, track, ..SaveOrder::full(target) })) {
        Reply::Saved(saved) => saved,
        other => panic!("unexpected {other:?}"),
    };
    rank.resume();
    if !saved.behind {
        return saved;
    }
    let written = rank.await_written(saved.id).unwrap();
    Saved { bytes: written.bytes, pages: written.pages, checksum: written.checksum, ..saved }
}

/// Pages that a chain has something for.
fn pages(files: &[PathBuf]) -> BTreeMap<u64, Vec<u8>> {
    let mut chain = Chain::open(files.iter().map(|file| File::open(file).unwrap())).unwrap();
    let mut pages = BTreeMap::new();
    for piece in chain.pieces().to_vec() {
        let bytes = chain.read(&piece).unwrap();
        pages.extend((piece.start..).step_by(PAGE as usize).zip(bytes.chunks(PAGE as usize).map(<[u8]>::to_vec)));
    }
    pages
}

/// Where the program says that its memory is.
fn ranges(rank: &Rank) -> Vec<(u64, u64)> {
    let printed = String::from_utf8_lossy(&rank.printed).into_owned();
    let line = printed.lines().rfind(|line| line.starts_with("range ")).unwrap().to_string();
    let words: Vec<u64> = line.split_whitespace().skip(1).map(|word| u64::from_str_radix(word, 16).unwrap()).collect();
    words.chunks(2).map(|pair| (pair[0], pair[1])).collect()
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Changes, an image on the last one, and a full one of the same memory; many times.
fn differential(pid: u32, method: &str, rounds: u64) {
    let seed = number("MEND_DIFFERENTIAL_SEED").unwrap_or(u64::from(std::process::id()) << 20 | u64::from(pid));
    let rounds = number("MEND_DIFFERENTIAL_ROUNDS").unwrap_or(rounds);
    eprintln!("{method}: MEND_DIFFERENTIAL_SEED={seed}");
    let mut rank = Rank::start_with(pid, &compile("apps/mutate.c"), &[], &[("MEND_TRACKING", method)]);
    rank.await_line("ready");
    let tracking = rank.inspect().tracking;
    if tracking.method != method {
        return skipped(&format!("incremental images by {method}"), &tracking.why.join("; "));
    }
    let directory = rank.directory.clone();
    let full = directory.join("full");
    let mut chain: Vec<PathBuf> = Vec::new();
    let mut last: Option<Saved> = None;
    let mut whole = 0;
    for round in 0..rounds {
        rank.printed.clear();
        rank.type_in(&format!("go {}\n", seed + round));
        rank.await_line(&format!("done {}", seed + round));
        if round % 8 == 0 {
            chain.drain(..).for_each(|file| std::fs::remove_file(file).unwrap());
            last = None;
        }
        let mode = if round % 3 == 0 { SaveMode::CopyOnWrite } else { SaveMode::Stop };
        let path = directory.join(format!("image-{}", round % 8));
        let saved = image(&mut rank, &path, mode, last.as_ref().map(|last| last.id), true);
        assert_eq!((saved.base, saved.sequence), (last.as_ref().map(|last| last.id), (round % 8) as u32), "{:?}", saved.note);
        chain.insert(0, path);
        last = Some(saved.clone());
        whole = image(&mut rank, &full, SaveMode::Stop, None, false).pages.max(whole);
        let (said, held) = (pages(&chain), pages(std::slice::from_ref(&full)));
        for (start, end) in ranges(&rank) {
            let difference = (start..end)
                .step_by(PAGE as usize)
                .find(|page| said.get(page).map_or(&ZERO[..], Vec::as_slice) != held.get(page).map_or(&ZERO[..], Vec::as_slice));
            assert_eq!(difference, None, "{method}: round {round} of MEND_DIFFERENTIAL_SEED={seed}, in {start:x}..{end:x}");
        }
        assert!(round % 8 == 0 || saved.pages < whole, "{} of {whole}", saved.pages);
    }
    rank.kill();
    let mut restored = Rank::restore(Source::Chain(&chain), Mode::Restart, &directory).unwrap();
    restored.resume();
    // What was tracked in another life is not tracked in this one.
    let path = directory.join("second-life");
    let first = image(&mut restored, &path, SaveMode::Stop, last.map(|last| last.id), true);
    assert_eq!((first.base, first.sequence), (None, 0));
    assert!(first.note.is_some());
    let second = image(&mut restored, &directory.join("second-life-1"), SaveMode::Stop, Some(first.id), true);
    assert_eq!((second.base, second.sequence), (Some(first.id), 1));
    assert!(second.pages < first.pages / 4, "{} of {}", second.pages, first.pages);
    restored.type_in("end\n");
    restored.finish();
    let mut again = Rank::restore(Source::Chain(&[directory.join("second-life-1"), path]), Mode::Restart, &directory).unwrap();
    again.resume();
    again.type_in("end\n");
    again.finish();
}

#[test]
fn by_write_protection() {
    differential(8000, "write-protect", 40);
}

#[test]
fn by_soft_dirty_bits() {
    differential(8050, "soft-dirty", 40);
}

#[test]
fn by_hashes() {
    differential(8100, "hash", 24);
}

/// Programs that find out by themselves what was lost, restarted from the newest of three.
#[test]
fn programs_go_on_from_a_chain() {
    for (pid, program) in [(8200, "apps/threads.c"), (8300, "apps/memory.c"), (8400, "apps/signals.c"), (8500, "apps/descriptors.c")] {
        let mut rank = Rank::start(pid, &compile(program), &["1000000"]);
        let directory = rank.directory.clone();
        let mut chain = Vec::new();
        let mut last = None;
        for line in ["tick 3", "tick 8", "tick 14"] {
            rank.await_line(line);
            let path = directory.join(format!("image {line}"));
            let saved = image(&mut rank, &path, SaveMode::CopyOnWrite, last, true);
            assert_eq!((saved.base, saved.sequence), (last, chain.len() as u32), "{:?}", saved.note);
            last = Some(saved.id);
            chain.insert(0, path);
        }
        let printed = String::from_utf8(rank.kill()).unwrap();
        let ticks = printed.lines().filter_map(|line| line.strip_prefix("tick ")?.parse::<u32>().ok()).max().unwrap();
        let mut restored = Rank::restore(Source::Chain(&chain), Mode::Restart, &directory).unwrap();
        restored.resume();
        // It had come at least as far as the image.
        restored.await_line(&format!("tick {}", ticks + 5));
        let printed = String::from_utf8(restored.kill()).unwrap();
        assert!(!printed.contains("LOST"), "{program}: {printed}");
    }
}

#[test]
fn an_order_is_followed_as_far_as_that_is_right() {
    let mut rank = Rank::start(8600, &compile("apps/counter.c"), &["1000000"]);
    rank.await_line("tick 3");
    let directory = rank.directory.clone();
    let mut number = 0;
    let mut take = |rank: &mut Rank, base, track| {
        number += 1;
        image(rank, &directory.join(format!("image-{number}")), SaveMode::Stop, base, track)
    };
    assert!(rank.inspect().tracking.since.is_none());
    let plain = take(&mut rank, None, false);
    assert_eq!(take(&mut rank, Some(plain.id), true).base, None);
    let full = take(&mut rank, None, true);
    assert_eq!(rank.inspect().tracking.since, Some(full.id));
    let first = take(&mut rank, Some(full.id), true);
    assert_eq!((first.base, first.sequence), (Some(full.id), 1));
    // An image that is not to be tracked leaves the chain alone, whether it is part of it or not.
    take(&mut rank, None, false);
    let aside = take(&mut rank, Some(first.id), false);
    assert_eq!((aside.base, aside.sequence), (Some(first.id), 2));
    let second = take(&mut rank, Some(first.id), true);
    assert_eq!((second.base, second.sequence), (Some(first.id), 2));
    // One that failed elsewhere is named no more: its base is not tracked any longer.
    assert_eq!(take(&mut rank, Some(first.id), true).base, None);
    rank.kill();
    let mut rank = Rank::start_with(8601, &compile("apps/counter.c"), &["1000000"], &[("MEND_TRACKING", "off")]);
    rank.await_line("tick 3");
    assert_eq!(rank.inspect().tracking.method, "off");
    let full = take(&mut rank, None, true);
    assert_eq!(take(&mut rank, Some(full.id), true).base, None);
    rank.kill();
}

/// Shared memory is in each image.
#[test]
fn shared_memory_is_never_left_to_a_base() {
    let mut rank = Rank::start(8700, &compile("apps/memory.c"), &["1000000"]);
    rank.await_line("tick 3");
    let directory = rank.directory.clone();
    let full = image(&mut rank, &directory.join("full"), SaveMode::Stop, None, true);
    image(&mut rank, &directory.join("next"), SaveMode::Stop, Some(full.id), true);
    let chain = Chain::open(["next", "full"].map(|name| File::open(directory.join(name)).unwrap())).unwrap();
    let shared = |page| chain.newest().mapping_of(page).is_some_and(|found| found.flags & mapping::SHARED != 0);
    assert!(chain.pieces().iter().any(|piece| shared(piece.start)));
    assert!(chain.pieces().iter().all(|piece| piece.member == 0 || !shared(piece.start)));
    rank.kill();
}
