//! What incremental images and the tracking for them cost, for people: `benches/tracking.py`, or
//! `cargo test -p mend-agent --release --test pace -- --ignored --nocapture`. `MEND_BENCH_MIB` is the size of the process
//! (1024), `MEND_BENCH_RUNS` how often each thing is measured (5).

mod support;

use mend_messages::agent::{ImageId, Reply, Request, SaveOrder, SaveTarget, Saved};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;
use support::{Rank, compile};

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Some runs take several times as long as others of a kind, plain writes, too: the page cache may have to be given new memory, and
/// in a virtual machine that can be slow to come. A median of few runs then tells which of them were hit.
fn fastest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Inspects, suspends, saves and resumes; milliseconds of the save from its order to its answer.
fn image(rank: &mut Rank, path: &Path, base: Option<ImageId>, track: bool) -> (Saved, f64) {
    rank.inspect();
    assert!(matches!(rank.ask(Request::Suspend), Reply::Suspended { .. }));
    let began = Instant::now();
    let order = SaveOrder { base, track, ..SaveOrder::full(SaveTarget::File(path.to_path_buf())) };
    let saved = match rank.ask(Request::Save(order)) {
        Reply::Saved(saved) => saved,
        other => panic!("unexpected {other:?}"),
    };
    let took = began.elapsed().as_secs_f64() * 1e3;
    rank.resume();
    (saved, took)
}

/// The same while the program runs; milliseconds from the order to suspend until it runs again, and until it is written.
fn snapshot(rank: &mut Rank, path: &Path, base: Option<ImageId>) -> (Saved, f64, f64) {
    rank.inspect_ahead(base);
    let began = Instant::now();
    let saved = rank.snapshot_on(path, base, None);
    rank.resume();
    let stopped = began.elapsed().as_secs_f64() * 1e3;
    rank.await_written(saved.id).unwrap();
    (saved, stopped, began.elapsed().as_secs_f64() * 1e3)
}

fn tell(rank: &mut Rank, order: &str) -> Vec<f64> {
    rank.printed.clear();
    rank.type_in(&format!("{order}\n"));
    let word = order.split(' ').next().unwrap().to_string();
    loop {
        let printed = String::from_utf8_lossy(&rank.printed).into_owned();
        if let Some(line) = printed.lines().find(|line| line.starts_with(&word) && printed.ends_with('\n')) {
            return line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
        }
        rank.read_some();
    }
}

fn start(pid: u32, huge: &str, method: &str) -> Rank {
    let size = number("MEND_BENCH_MIB", 1024).to_string();
    let mut rank = Rank::start_with(pid, &compile("apps/pace.c"), &[&size, huge], &[("MEND_TRACKING", method)]);
    rank.await_line("ready");
    rank
}

/// An empty directory that the rank, which may be another user's, can write to.
fn empty(place: &Path) {
    let _ = std::fs::remove_dir_all(place);
    std::fs::create_dir_all(place).unwrap();
    std::fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
}

/// Uses so many bytes of memory and gives them back. A host may take what was free for a second, and give it anew many times as slowly.
fn warm(bytes: usize) {
    std::hint::black_box(vec![1u8; bytes]);
}

/// Milliseconds to write so many bytes into a new file, a mebibyte at a time, and to make them durable.
fn plain(path: &Path, mut left: usize) -> f64 {
    warm(left);
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let began = Instant::now();
    let mut file = std::fs::File::create(path).unwrap();
    while left > 0 {
        let part = left.min(bytes.len());
        file.write_all(&bytes[..part]).unwrap();
        left -= part;
    }
    file.sync_all().unwrap();
    let took = began.elapsed().as_secs_f64() * 1e3;
    std::fs::remove_file(path).unwrap();
    took
}

/// Full, nothing changed, a tenth changed; while the threads stand still, and in the background.
fn sizes(pid: u32, huge: &str, method: &str, place: &Path) {
    let mut rank = start(pid, huge, method);
    let (mut full, mut none, mut tenth, mut parked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut stopped, mut behind, mut tenth_behind) = (Vec::new(), Vec::new(), Vec::new());
    let (mut plain_full, mut plain_tenth) = (Vec::new(), Vec::new());
    let mut pages = (0, 0);
    let size = (number("MEND_BENCH_MIB", 1024) as usize) << 20;
    for _ in 0..number("MEND_BENCH_RUNS", 5) {
        empty(place);
        warm(size);
        let (first, took) = image(&mut rank, &place.join("full"), None, true);
        full.push(took);
        let (second, took) = image(&mut rank, &place.join("none"), Some(first.id), true);
        none.push(took);
        parked.push((second.park_us + second.write_us) as f64 / 1e3);
        tell(&mut rank, "dirty 10");
        warm(size / 8);
        let (third, took) = image(&mut rank, &place.join("tenth"), Some(second.id), true);
        tenth.push(took);
        assert_eq!((second.base, third.base), (Some(first.id), Some(second.id)));
        pages = (second.pages, third.pages);
        let [whole, part] = ["full", "tenth"].map(|name| std::fs::metadata(place.join(name)).unwrap().len() as usize);
        empty(place);
        plain_full.push(plain(&place.join("plain"), whole));
        plain_tenth.push(plain(&place.join("plain"), part));
        empty(place);
        warm(size);
        let (first, _, written) = snapshot(&mut rank, &place.join("full"), None);
        behind.push(written);
        tell(&mut rank, "dirty 10");
        warm(size / 4);
        let (second, took, written) = snapshot(&mut rank, &place.join("tenth"), Some(first.id));
        stopped.push(took);
        tenth_behind.push(written);
        assert_eq!(second.base, Some(first.id));
    }
    std::fs::remove_dir_all(place).unwrap();
    let ratio = |part: &[f64], whole: &[f64]| median(part.iter().zip(whole).map(|(part, whole)| part / whole).collect());
    println!(
        "{} {method:13} full {:7.1} ms; nothing changed {:6.2} ms (threads stood still {:.2} ms, {} pages); a tenth changed {:6.1} ms ({} pages), {:.3} of full",
        kind(huge),
        median(full.clone()),
        median(none),
        median(parked),
        pages.0,
        median(tenth.clone()),
        pages.1,
        ratio(&tenth, &full),
    );
    println!(
        "{} {method:13} as many bytes written by one thread and made durable: {:7.1} ms and {:6.1} ms for a tenth of the pages, {:.3} of full",
        kind(huge),
        median(plain_full.clone()),
        median(plain_tenth.clone()),
        ratio(&plain_tenth, &plain_full),
    );
    println!(
        "{} {method:13} in the background: full written after {:7.1} ms; a tenth changed {:6.1} ms, {:.3} of full, stopped {:.1} ms",
        kind(huge),
        median(behind.clone()),
        median(tenth_behind.clone()),
        ratio(&tenth_behind, &behind),
        median(stopped)
    );
    println!(
        "{} {method:13} fastest runs: full {:.1} ms, a tenth of the pages {:.1} ms; plain writes {:.1} and {:.1} ms; in the background {:.1} and {:.1} ms",
        kind(huge),
        fastest(&full),
        fastest(&tenth),
        fastest(&plain_full),
        fastest(&plain_tenth),
        fastest(&behind),
        fastest(&tenth_behind)
    );
    rank.kill();
}

fn kind(huge: &str) -> &'static str {
    if huge == "1" { "huge pages" } else { "4k pages  " }
}

/// Two processes that differ in their tracking alone take turns.
fn slowdown(pid: u32, huge: &str) {
    let mut ranks = [start(pid, huge, "auto"), start(pid + 1, huge, "off")];
    let place = PathBuf::from(format!("/dev/shm/pace-image-{}", std::process::id()));
    let (mut stream, mut random, mut first) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..number("MEND_BENCH_RUNS", 5) {
        let mut paces = Vec::new();
        for rank in &mut ranks {
            image(rank, &place, None, true);
            std::fs::remove_file(&place).unwrap();
        }
        let touched = tell(&mut ranks[0], "touch")[0];
        first.push((touched, tell(&mut ranks[0], "raw")[0]));
        tell(&mut ranks[1], "touch");
        for turn in [0, 1, 1, 0] {
            paces.push(tell(&mut ranks[turn], "pace 400"));
        }
        let pair = |what: usize| (paces[0][what] + paces[3][what]) / (paces[1][what] + paces[2][what]);
        stream.push(pair(0));
        random.push(pair(1));
    }
    let ratio = median(first.iter().map(|(ours, raw)| ours / raw).collect());
    let (ours, raw) = first.iter().copied().unzip();
    println!(
        "{} first touch {:.0} ns a page, raw {:.0} ns: ratio {ratio:.3}; after it, tracked / not: in order {:.3}, at random {:.3}",
        kind(huge),
        median(ours),
        median(raw),
        median(stream),
        median(random)
    );
    ranks.into_iter().for_each(|rank| drop(rank.kill()));
}

#[test]
#[ignore = "measures, proves nothing"]
fn incremental_images() {
    let name = format!("pace-{}", std::process::id());
    for (what, place) in [("tmpfs", PathBuf::from("/dev/shm")), ("disk", std::env::temp_dir())] {
        println!("{what}:");
        for (number, huge) in ["0", "1"].into_iter().enumerate() {
            sizes(5100 + number as u32 * 10, huge, "write-protect", &place.join(&name));
            if what == "tmpfs" {
                sizes(5200 + number as u32 * 10, huge, "hash", &place.join(&name));
            }
        }
    }
}

#[test]
#[ignore = "measures, proves nothing"]
fn tracking() {
    slowdown(5300, "0");
    slowdown(5310, "1");
}
