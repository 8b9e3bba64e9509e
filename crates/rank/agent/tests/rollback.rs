//! Whole processes that go back to an image in place. Each program finds out by itself if anything of it is not as it was then.

mod support;

use mend_messages::agent::{FromAgent, Reply, Request, ToAgent};
use mend_messages::job::JobMap;
use std::path::Path;
use std::time::{Duration, Instant};
use support::generations::assert_counted;
use support::rollback::rollbacks;
use support::{ENDLESS_TICKS, Rank, compile};

#[test]
fn a_counter_counts_from_its_image_on() {
    let rank = Rank::start(4234, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    let printed = rollbacks(rank, &["tick 5", "tick 15", "tick 25"]);
    assert_counted(&printed);
}

#[test]
fn threads_keep_ids_locks_and_waits() {
    let rank = Rank::start(5000, &compile("apps/threads.c"), &[ENDLESS_TICKS, "steady"]);
    rollbacks(rank, &["tick 3", "tick 10", "tick 11", "tick 20"]);
}

#[test]
fn descriptors_of_all_kinds() {
    let rank = Rank::start(5001, &compile("apps/descriptors.c"), &[ENDLESS_TICKS]);
    rollbacks(rank, &["tick 3", "tick 120", "tick 240"]);
}

#[test]
fn signals_handlers_and_timers() {
    let rank = Rank::start(5002, &compile("apps/signals.c"), &[ENDLESS_TICKS]);
    rollbacks(rank, &["tick 3", "tick 10", "tick 20"]);
}

/// The peers that it waits for may be lost.
#[test]
fn a_rank_that_drains_its_channels_is_paused_at_once() {
    let mut rank = Rank::start_with(5020, &compile("apps/counter.c"), &[ENDLESS_TICKS], &[("MEND_TEST_NEVER_DRAINS", "1")]);
    rank.await_line("tick 3");
    rank.say(&ToAgent::Request { seq: 100, request: Request::Suspend });
    std::thread::sleep(Duration::from_millis(300));
    let asked = Instant::now();
    // What comes with it keeps its turn.
    rank.say(&ToAgent::Map(JobMap::default()));
    rank.say(&ToAgent::Request { seq: 101, request: Request::Pause });
    assert!(matches!(rank.hear(), FromAgent::Reply { seq: 100, reply: Reply::Failed { .. } }));
    assert!(matches!(rank.hear(), FromAgent::Reply { seq: 101, reply: Reply::Paused }));
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    rank.kill();
}

/// Nothing is measured: a timer of the process, which lasts half as long, must run out first.
#[test]
fn relative_timeouts_last_as_long_as_they_would_have() {
    let mut rank = Rank::start(5018, &compile("apps/asleep.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 4");
    let path = rank.directory.join("image");
    rank.save(&path);
    rank.resume();
    for _ in 0..2 {
        // The clock runs on to after the timeouts of the image.
        rank.await_line("awake");
        rank.roll_back(std::slice::from_ref(&path)).unwrap();
        rank.printed.clear();
        rank.resume();
    }
    rank.await_line("awake");
    rank.end();
}

/// How likely the process is to be killed when memory runs out: as the program has set it, or nobody.
#[test]
fn what_the_program_has_set_is_in_the_images_after_it_went_back() {
    const PROGRAM: &str = r#"
import os, time
score = "/proc/self/oom_score_adj"
print("born", open(score).read().strip(), flush=True)
asked = None
while not os.path.exists("end"):
    if os.path.exists("set") and asked is None:
        asked = "500"
        open(score, "w").write(asked)
    time.sleep(0.02)
    print("score", asked, open(score).read().strip(), flush=True)
print("OK", flush=True)
"#;
    let mut rank = Rank::start(5017, Path::new("/usr/bin/python3"), &["-c", PROGRAM]);
    let directory = rank.directory.clone();
    let (before, since, last) = (directory.join("before"), directory.join("since"), directory.join("last"));
    rank.two_lines_more();
    let printed = String::from_utf8_lossy(&rank.printed).into_owned();
    let born = printed.lines().find_map(|line| line.strip_prefix("born ")).unwrap().to_owned();
    rank.save(&before);
    rank.resume();
    std::fs::write(directory.join("set"), "").unwrap();
    rank.await_line("score 500 500");
    rank.save(&since);
    rank.resume();
    rank.two_lines_more();
    rank.roll_back(&[since]).unwrap();
    rank.printed.clear();
    rank.resume();
    rank.two_lines_more();
    rank.save(&last);
    rank.resume();
    // To before it was set.
    std::fs::remove_file(directory.join("set")).unwrap();
    rank.two_lines_more();
    rank.roll_back(&[before]).unwrap();
    rank.printed.clear();
    rank.resume();
    rank.await_line(&format!("score None {born}"));
    rank.kill();
    let mut rank = Rank::restart(&last, &directory);
    rank.resume();
    rank.await_line("score 500 500");
    std::fs::write(directory.join("end"), "").unwrap();
    rank.finish();
}

#[test]
fn memory_of_all_kinds() {
    let rank = Rank::start(5003, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    rollbacks(rank, &["tick 3", "tick 10", "tick 20"]);
}

#[test]
fn what_a_process_has_changed_since_is_as_it_was() {
    for (tracked, pid) in [(false, 5004), (true, 5014)] {
        let mut rank = Rank::start(pid, &compile("apps/since.c"), &[ENDLESS_TICKS]);
        rank.await_line("tick 3");
        let path = rank.directory.join("image");
        drop(if tracked { rank.save_on(&path, None) } else { rank.save(&path) });
        rank.resume();
        std::fs::write(rank.directory.join("change"), "").unwrap();
        for _ in 0..3 {
            rank.await_line("changed");
            rank.roll_back(std::slice::from_ref(&path)).unwrap();
            rank.printed.clear();
            rank.resume();
        }
        rank.await_line("changed");
        rank.end();
    }
}

/// Where the kernel has noticed what was written, no other page is even read.
#[test]
fn only_what_was_written_is_read() {
    const PROGRAM: &str = r#"
import os, time, zlib
still = os.urandom(48 << 20)
digest = zlib.crc32(still)
for i in range(1, 100000):
    time.sleep(0.03)
    print("tick" if i % 20 or zlib.crc32(still) == digest else "LOST", i, flush=True)
"#;
    let mut rank = Rank::start(5015, Path::new("/usr/bin/python3"), &["-c", PROGRAM]);
    let directory = rank.directory.clone();
    rank.await_line("tick 3");
    let (plain, tracked) = (directory.join("plain"), directory.join("tracked"));
    rank.save(&plain);
    rank.resume();
    let saved = rank.save_on(&tracked, None);
    rank.resume();
    rank.two_lines_more();
    rank.roll_back(&[tracked]).unwrap();
    let noticed = rank.restorer_read;
    rank.printed.clear();
    rank.resume();
    rank.two_lines_more();
    rank.roll_back(&[plain]).unwrap();
    rank.resume();
    // One of them tells of what it has not written.
    rank.await_more(21);
    assert!(rank.restorer_read > saved.bytes / 2 && noticed < rank.restorer_read / 4, "{noticed} of {}", rank.restorer_read);
    assert!(!String::from_utf8(rank.kill()).unwrap().contains("LOST"));
}

#[test]
fn python_goes_back() {
    const PROGRAM: &str = include_str!("apps/consumer.py");
    let rank = Rank::start(5005, Path::new("/usr/bin/python3"), &["-c", PROGRAM, ENDLESS_TICKS]);
    rollbacks(rank, &["tick 5", "tick 15", "tick 25"]);
}

/// Also one that has been restarted, and goes back to an image from before.
#[test]
fn chains_and_earlier_images_and_other_processes() {
    let mut rank = Rank::start(5006, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    let directory = rank.directory.clone();
    let place = |name: &str| directory.join(name);
    rank.await_line("tick 3");
    let full = rank.save_on(&place("full"), None);
    rank.resume();
    rank.await_line("tick 9");
    let next = rank.save_on(&place("next"), Some(full.id));
    assert_eq!(next.base, Some(full.id));
    rank.resume();
    for chain in [vec![place("next"), place("full")], vec![place("full")], vec![place("next"), place("full")]] {
        rank.two_lines_more();
        rank.roll_back(&chain).unwrap();
        rank.printed.clear();
        rank.resume();
    }
    rank.two_lines_more();
    rank.kill();
    let mut rank = Rank::restart(&place("full"), &directory);
    rank.resume();
    rank.two_lines_more();
    rank.roll_back(&[place("next"), place("full")]).unwrap();
    rank.printed.clear();
    rank.resume();
    rank.two_lines_more();
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("LOST"), "{printed}");
}

/// In whatever it is about: an image is being written in its background, or it is copied while it runs, or it stands still.
#[test]
fn a_rank_is_paused_in_any_stage() {
    let mut rank = Rank::start(5007, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    let directory = rank.directory.clone();
    rank.await_line("tick 3");
    let first = directory.join("first");
    rank.save(&first);
    rank.resume();
    rank.two_lines_more();
    let go_back = |rank: &mut Rank| {
        rank.roll_back(std::slice::from_ref(&first)).unwrap();
        rank.printed.clear();
        rank.resume();
        rank.two_lines_more();
    };
    let behind = rank.snapshot(&directory.join("behind"), Some(1 << 16));
    rank.resume();
    go_back(&mut rank);
    assert!(behind.behind && !directory.join("behind").exists());
    let (stream, _reader) = std::os::unix::net::UnixStream::pair().unwrap();
    rank.precopy_by(&stream, false);
    go_back(&mut rank);
    rank.save(&directory.join("saved"));
    go_back(&mut rank);
    assert!(matches!(rank.ask(Request::Suspend), Reply::Suspended { .. }));
    go_back(&mut rank);
    rank.end();
}

#[test]
fn what_cannot_go_back_says_why() {
    // A thread of the image has ended.
    const ENDED: &str = r#"
import threading, time
stop = threading.Event()
t = threading.Thread(target=stop.wait); t.start()
print("tick 1", flush=True); input()
stop.set(); t.join()
print("tick 2", flush=True); time.sleep(600)
"#;
    let refused = |program: &str, pid: u32| {
        let mut rank = Rank::start(pid, Path::new("/usr/bin/python3"), &["-c", program]);
        rank.await_line("tick 1");
        let path = rank.directory.join("image");
        rank.save(&path);
        rank.resume();
        rank.type_in("\n");
        rank.await_line("tick 2");
        rank.roll_back(&[path]).unwrap_err().0
    };
    let why = refused(ENDED, 5008);
    assert!(why.contains("has ended since"), "{why}");
    const CHILD: &str = r#"
import subprocess, time
print("tick 1", flush=True); input()
child = subprocess.Popen(["sleep", "20"])
print("tick 2", flush=True); time.sleep(600)
"#;
    let why = refused(CHILD, 5009);
    assert_eq!(why, "it has child processes");
    const PRIVILEGES: &str = r#"
import ctypes, time
print("tick 1", flush=True); input()
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0
print("tick 2", flush=True); time.sleep(600)
"#;
    let why = refused(PRIVILEGES, 5010);
    assert!(why.contains("has given up privileges since"), "{why}");
}
