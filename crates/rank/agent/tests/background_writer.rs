//! Images written while the program runs, by the real agent. Each program finds out by itself if its image held anything
//! that is not of the snapshot's instant.

mod support;

use mend_image::launch::Mode;
use mend_messages::agent::Saved;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use support::generations::generations_behind;
use support::skips::skipped;
use support::{Rank, Source, compile};

/// Slow enough for the program to go on meanwhile.
const SLOW_RATE: u64 = 16 << 20;

#[test]
fn a_counter_goes_on_from_the_snapshot() {
    let rank = Rank::start(7000, &compile("apps/counter.c"), &["1000000"]);
    generations_behind(rank, 3, 1 << 20);
}

#[test]
fn memory_of_every_kind_is_of_one_instant() {
    let rank = Rank::start(7001, &compile("apps/instant.c"), &["1000000"]);
    generations_behind(rank, 3, 4 * SLOW_RATE);
}

/// What a file is called is looked up before the program stands still, and may change until it does.
#[test]
fn a_mapped_file_may_get_another_name_after_the_inspection() {
    let mut rank = Rank::start(7050, &compile("apps/memory.c"), &["1000000"]);
    let directory = rank.directory.clone();
    rank.await_line("tick 100");
    for (generation, name) in ["other", "data", "third"].into_iter().enumerate() {
        let before = if generation == 0 { "data" } else { ["other", "data"][generation - 1] };
        assert!(rank.inspect().obstacles.is_empty());
        std::fs::rename(directory.join(before), directory.join(name)).unwrap();
        // What has the name now is as long, and another file.
        std::fs::write(directory.join(before), vec![b'z'; 4096 * 4]).unwrap();
        let path = directory.join(format!("image-{generation}"));
        let saved = rank.snapshot(&path, None);
        rank.resume();
        rank.await_written(saved.id).unwrap();
        let printed = String::from_utf8(rank.kill()).unwrap();
        assert!(!printed.contains("LOST"), "{printed}");
        rank = Rank::restart(&path, &directory);
        rank.resume();
        rank.two_lines_more();
    }
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("LOST"), "{printed}");
}

#[test]
fn threads_signals_and_memory() {
    for (pid, program) in [(7100, "apps/threads.c"), (7200, "apps/signals.c"), (7300, "apps/memory.c")] {
        let rank = Rank::start(pid, &compile(program), &["1000000"]);
        generations_behind(rank, 2, SLOW_RATE);
    }
}

#[test]
fn python_goes_on() {
    const PROGRAM: &str = r#"
import time
d = {}
for i in range(1, 100001):
    d[i] = [str(k) for k in range(i % 100 * 10)]
    time.sleep(0.02)
    print("tick" if all(len(d[k]) == k % 100 * 10 for k in d) else "LOST", i, flush=True)
"#;
    let rank = Rank::start(7400, Path::new("/usr/bin/python3"), &["-c", PROGRAM]);
    generations_behind(rank, 2, SLOW_RATE);
}

#[test]
fn a_writer_that_is_killed_hurts_nobody() {
    let mut rank = Rank::start(7500, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    let path = rank.directory.join("image");
    let saved = rank.snapshot(&path, Some(1 << 20));
    rank.resume();
    assert!(rank.inspect().obstacles.is_empty());
    let [_, copy] = rank.processes()[..] else { panic!("{:?}", rank.processes()) };
    // SAFETY: plain numbers; a process of this test.
    assert_eq!(unsafe { libc::kill(copy, libc::SIGKILL) }, 0);
    let error = rank.await_written(saved.id).unwrap_err();
    assert!(error.contains("killed by signal 9"), "{error}");
    assert_eq!(rank.processes().len(), 1);
    let left: Vec<_> = std::fs::read_dir(&rank.directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("image")), "{left:?}");
    // It may have been for memory.
    let saved = rank.snapshot(&path, None);
    assert!(!saved.behind && saved.note.as_ref().is_some_and(|note| note.contains("was killed by signal 9")), "{saved:?}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), saved.bytes);
    rank.resume();
    let saved = rank.snapshot(&path, None);
    assert!(saved.behind && saved.note.is_none(), "{saved:?}");
    rank.resume();
    rank.await_written(saved.id).unwrap();
    goes_on(rank);
}

/// Nice value, scheduling policy, class and level of I/O of a process, and how willingly the kernel kills it.
fn standing(process: i32) -> (i32, i32, i64, String) {
    const IOPRIO_WHO_PROCESS: i32 = 1;
    // SAFETY: plain numbers.
    let (nice, policy, io) = unsafe {
        let io = libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, process);
        (libc::getpriority(libc::PRIO_PROCESS, process as u32), libc::sched_getscheduler(process), io)
    };
    let score = std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
    (nice, policy, io, score.trim().to_string())
}

/// Waits until the writer stands where a writer belongs, and looks whether the program is where it was.
fn stands_back(rank: &Rank, before: &(i32, i32, i64, String), score: &str) {
    const LOWEST_BEST_EFFORT: i64 = 2 << 13 | 7;
    let [program, copy] = rank.processes()[..] else { panic!("{:?}", rank.processes()) };
    let wanted = (10, libc::SCHED_BATCH, LOWEST_BEST_EFFORT, score.to_string());
    let began = std::time::Instant::now();
    while standing(copy) != wanted {
        assert!(began.elapsed().as_secs() < 60, "{:?}, not {wanted:?}", standing(copy));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(standing(program), *before);
}

#[test]
fn a_writer_stands_behind_the_program_and_keeps_to_its_rate() {
    let mut rank = Rank::start(7550, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    let path = rank.directory.join("image");
    let before = standing(rank.processes()[0]);
    assert_ne!((before.0, before.1), (10, libc::SCHED_BATCH));
    let saved = rank.snapshot(&path, Some(SLOW_RATE));
    rank.resume();
    stands_back(&rank, &before, "1000");
    let written = rank.await_written(saved.id).unwrap();
    // Three kinds of its memory are private and a copy's own; what is shared was written before, at once.
    let least = 3 * 2048 * 4096 * 1_000_000 / SLOW_RATE;
    assert!(written.pages >= 3 * 2048 && written.write_us >= least, "{written:?} in less than {least} us");
    goes_on(rank);

    // The same where it shares the program's memory, with which the kernel would have to kill both.
    let Some((mut rank, full, path)) = mostly_still(7560) else { return };
    let before = standing(rank.processes()[0]);
    rank.inspect_ahead(Some(full.id));
    let saved = rank.snapshot_on(&path, Some(full.id), Some(1 << 20));
    rank.resume();
    let [program, copy] = rank.processes()[..] else { panic!("{:?}", rank.processes()) };
    assert!(saved.behind && same_memory(program, copy), "{saved:?}");
    stands_back(&rank, &before, &before.3);
    let written = rank.await_written(saved.id).unwrap();
    assert!(written.pages >= 512 && written.write_us >= 512 * 4096 * 1_000_000 / (1 << 20), "{written:?}");
    goes_on(rank);
}

/// Ends a program without end, which must have found nothing wrong until now.
fn goes_on(mut rank: Rank) {
    rank.two_lines_more();
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("LOST"), "{printed}");
}

/// Ends a program, which must have found nothing wrong until now; nor does the one that its images are made into.
fn goes_on_from(rank: Rank, chain: &[PathBuf]) {
    let directory = rank.directory.clone();
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("LOST"), "{printed}");
    let mut rank = Rank::restore(Source::Chain(chain), Mode::Restart, &directory).unwrap();
    rank.resume();
    goes_on(rank);
}

#[test]
fn a_chain_written_behind_is_of_the_last_ones_instant() {
    for (pid, tracking) in [(8100, "write-protect"), (8200, "soft-dirty"), (8300, "hash")] {
        let program = compile("apps/instant.c");
        let mut rank = Rank::start_with(pid, &program, &["1000000"], &[("MEND_TRACKING", tracking)]);
        rank.await_line("round 50");
        if rank.inspect().tracking.method != tracking {
            skipped(&format!("chains written behind, by {tracking}"), &rank.inspect().tracking.why.join("; "));
            rank.kill();
            continue;
        }
        let directory = rank.directory.clone();
        let (mut chain, mut base) = (Vec::new(), None);
        for number in 0..3 {
            rank.two_lines_more();
            let path = directory.join(format!("image-{number}"));
            let saved = rank.snapshot_on(&path, base, Some(4 * SLOW_RATE));
            assert!(saved.behind && saved.base == base && saved.sequence == number as u32, "{tracking}: {saved:?}");
            rank.resume();
            rank.await_written(saved.id).unwrap();
            base = Some(saved.id);
            chain.insert(0, path);
        }
        println!("{tracking}:");
        goes_on_from(rank, &chain);
    }
}

#[test]
fn nothing_builds_on_an_image_that_was_not_written() {
    let mut rank = Rank::start(8400, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    let path = rank.directory.join("image");
    let good = rank.snapshot_on(&path, None, None);
    rank.resume();
    rank.await_written(good.id).unwrap();
    let lost = rank.snapshot_on(&path, Some(good.id), Some(1 << 20));
    rank.resume();
    // The next one ends its writer, and is to build on the last that is good: since then too much is unknown.
    let full = rank.snapshot_on(&path, Some(good.id), None);
    rank.resume();
    assert!(rank.await_written(lost.id).is_err());
    rank.await_written(full.id).unwrap();
    assert_eq!((full.base, full.sequence), (None, 0));
    assert!(full.note.unwrap().contains("full, because changes"));
    goes_on(rank);
}

#[test]
fn a_newer_image_ends_the_older_ones_writer() {
    let mut rank = Rank::start(7600, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    let (first, second) = (rank.directory.join("first"), rank.directory.join("second"));
    let slow = rank.snapshot(&first, Some(1 << 20));
    rank.resume();
    let saved = rank.save(&second);
    assert!(!saved.behind && saved.bytes != 0);
    let error = rank.await_written(slow.id).unwrap_err();
    assert!(error.contains("another image was asked for"), "{error}");
    rank.resume();
    assert!(!first.exists() && second.exists());
    goes_on(rank);
}

#[test]
fn a_writer_ends_with_its_rank_and_with_its_daemon() {
    let mut rank = Rank::start(7700, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    let directory = rank.directory.clone();
    rank.snapshot(&directory.join("image"), Some(1 << 20));
    rank.resume();
    let [_, copy] = rank.processes()[..] else { panic!("{:?}", rank.processes()) };
    rank.hang_up();
    await_end(copy);
    rank.kill();

    let mut rank = Rank::start(7800, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    rank.snapshot(&directory.join("image"), Some(1 << 20));
    rank.resume();
    let [_, copy] = rank.processes()[..] else { panic!("{:?}", rank.processes()) };
    rank.kill();
    await_end(copy);
}

/// Whether two processes share their memory.
fn same_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: i32 = 1;
    // SAFETY: plain numbers.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    assert!(order >= 0, "{}", std::io::Error::last_os_error());
    order == 0
}

/// A rank that changes little of its memory, and a full image of it. `None` where changes are not noticed by write protection.
fn mostly_still(pid: u32) -> Option<(Rank, Saved, PathBuf)> {
    let mut rank = Rank::start(pid, &compile("apps/mostly_still.c"), &["1000000"]);
    rank.await_line("round 50");
    let tracking = rank.inspect().tracking;
    if tracking.method != "write-protect" {
        skipped("copies of what little changed", &tracking.why.join("; "));
        rank.kill();
        return None;
    }
    let path = rank.directory.join("image-0");
    let full = rank.snapshot_on(&path, None, None);
    rank.resume();
    rank.await_written(full.id).unwrap();
    Some((rank, full, path))
}

#[test]
fn what_little_changed_is_copied_instead_of_the_process() {
    let Some((mut rank, full, path)) = mostly_still(8500) else { return };
    let (mut chain, mut base) = (vec![path], full.id);
    for number in 1..4 {
        rank.two_lines_more();
        rank.inspect_ahead(Some(base));
        let path = rank.directory.join(format!("image-{number}"));
        let saved = rank.snapshot_on(&path, Some(base), Some(1 << 20));
        assert!(saved.behind && saved.base == Some(base) && saved.note.is_none(), "{saved:?}");
        let [program, copy] = rank.processes()[..] else { panic!("{:?}", rank.processes()) };
        assert!(same_memory(program, copy));
        rank.resume();
        rank.two_lines_more();
        let written = rank.await_written(saved.id).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), written.bytes);
        assert!((512..1500).contains(&written.pages), "{written:?}");
        base = saved.id;
        chain.insert(0, path);
    }
    goes_on_from(rank, &chain);
}

#[test]
fn a_writer_that_shares_memory_hurts_nobody_whatever_becomes_of_it() {
    let Some((mut rank, full, path)) = mostly_still(8600) else { return };
    let begin = |rank: &mut Rank, base| {
        rank.inspect_ahead(Some(base));
        let saved = rank.snapshot_on(&path, Some(base), Some(1 << 16));
        let [program, copy] = rank.processes()[..] else { panic!("{:?}", rank.processes()) };
        assert!(saved.behind && same_memory(program, copy));
        rank.resume();
        (saved, copy)
    };
    // It is killed.
    let (saved, copy) = begin(&mut rank, full.id);
    // SAFETY: plain numbers; a process of this test.
    assert_eq!(unsafe { libc::kill(copy, libc::SIGKILL) }, 0);
    let error = rank.await_written(saved.id).unwrap_err();
    assert!(error.contains("killed by signal 9"), "{error}");
    rank.two_lines_more();
    // Another image is asked for, and made ready for, meanwhile.
    let full = rank.snapshot_on(&path, None, None);
    rank.resume();
    rank.await_written(full.id).unwrap();
    let (slow, _) = begin(&mut rank, full.id);
    rank.inspect_ahead(Some(slow.id));
    let next = rank.snapshot_on(&path, Some(slow.id), None);
    rank.resume();
    assert!(rank.await_written(slow.id).unwrap_err().contains("another image was asked for"));
    rank.await_written(next.id).unwrap();
    // The daemon ends.
    let (_, copy) = begin(&mut rank, next.id);
    rank.hang_up();
    await_end(copy);
    rank.kill();
}

/// Until a process runs no more.
fn await_end(process: i32) {
    let began = std::time::Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        if stat.is_empty() || stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']) {
            return;
        }
        assert!(began.elapsed().as_secs() < 60, "{stat}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_target_that_vanishes_is_told() {
    let mut rank = Rank::start(7900, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    let place = rank.directory.join("place");
    std::fs::create_dir(&place).unwrap();
    // The rank may be another user's.
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777)).unwrap();
    let saved = rank.snapshot(&place.join("image"), Some(SLOW_RATE));
    rank.resume();
    std::fs::remove_dir_all(&place).unwrap();
    let error = rank.await_written(saved.id).unwrap_err();
    assert!(error.contains("place/image cannot be renamed"), "{error}");
    goes_on(rank);
}

#[test]
fn where_no_copy_can_be_made_the_program_stands_still() {
    if !support::as_user() && rustix::process::geteuid().is_root() {
        return skipped("a rank that may make no process", "root has no limit on processes");
    }
    let mut rank = Rank::start(8000, &compile("apps/uncopied.c"), &[]);
    rank.await_line("ready");
    let path = rank.directory.join("image");
    let saved = rank.snapshot(&path, None);
    assert!(!saved.behind && saved.bytes == std::fs::metadata(&path).unwrap().len());
    assert!(saved.note.unwrap().contains("could not be copied"));
    rank.resume();
    rank.type_in("end\n");
    rank.finish();
}
