//! Whole processes, saved and restored by the real agent and the real restorer. Each program finds out by itself if
//! anything of it was lost. Run with `MEND_TEST_AS_USER=1` (as root) to do it all as an ordinary user.

mod support;

use mend_image::launch::Role;
use std::path::Path;
use support::generations::{assert_counted, generations};
use support::{ENDLESS_TICKS, Rank, compile};

#[test]
fn a_counter_goes_on_counting_over_three_generations() {
    let rank = Rank::start(1234, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    let printed = generations(rank, &["tick 5", "tick 15", "tick 25"]);
    assert_counted(&printed);
}

#[test]
fn threads_keep_ids_locks_and_waits() {
    let rank = Rank::start(2000, &compile("apps/threads.c"), &[ENDLESS_TICKS]);
    generations(rank, &["tick 3", "tick 10", "tick 11", "tick 20"]);
}

#[test]
fn descriptors_of_all_kinds() {
    // Each line is far from the one before: while a slow disk takes what the program wrote, it goes on.
    let rank = Rank::start(2001, &compile("apps/descriptors.c"), &[ENDLESS_TICKS]);
    generations(rank, &["tick 3", "tick 120", "tick 240"]);
}

#[test]
fn signals_handlers_and_timers() {
    let rank = Rank::start(2002, &compile("apps/signals.c"), &[ENDLESS_TICKS]);
    generations(rank, &["tick 3", "tick 10", "tick 20"]);
}

#[test]
fn memory_of_all_kinds() {
    let rank = Rank::start(2003, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    generations(rank, &["tick 3", "tick 10", "tick 20"]);
}

/// The C library waits until each thread has done so, the agent's as well.
#[test]
fn all_threads_change_their_group() {
    let rank = Rank::start(2006, &compile("apps/groups.c"), &[ENDLESS_TICKS]);
    generations(rank, &["tick 3", "tick 10", "tick 20"]);
}

/// A file that was made read-only and written to, and one whose mode was taken away when it was open.
#[test]
fn files_that_are_open_although_their_modes_deny_it() {
    let rank = Rank::start(2007, &compile("apps/denied.c"), &[ENDLESS_TICKS]);
    generations(rank, &["tick 3", "tick 10", "tick 20"]);
}

/// Also those that ring while the image's timers and signals are read.
#[test]
fn each_timer_rings_once() {
    for round in 0..3 {
        let mut rank = Rank::start(2010 + round * 10, &compile("apps/once.c"), &[]);
        rank.await_line("ready");
        let (directory, image) = (rank.directory.clone(), rank.directory.join("image"));
        rank.save(&image);
        rank.kill();
        let mut rank = Rank::restart(&image, &directory);
        rank.resume();
        rank.finish();
    }
}

/// The list of threads that the kernel gives may lack one that lives, when another one ends just then.
#[test]
fn no_thread_runs_while_an_image_is_taken() {
    let mut rank = Rank::start(2040, &compile("apps/relay.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 1");
    let image = rank.directory.join("image");
    let tasks = |pid: i32| -> Vec<(String, String)> {
        let all = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let state = |stat: &str| stat[stat.rfind(')').unwrap()..].split_whitespace().nth(1).unwrap().to_owned();
        let threads =
            all.filter_map(|task| Some((task.file_name().into_string().ok()?, std::fs::read_to_string(task.path().join("stat")).ok()?)));
        let mut found: Vec<_> = threads.filter(|(_, stat)| !stat.contains("(mend-agent)")).map(|(tid, stat)| (tid, state(&stat))).collect();
        found.sort();
        found
    };
    for round in 0..20 {
        match rank.try_save(&image) {
            Ok(_) => {}
            // It says so, and stops none for good.
            Err((error, _)) if error.contains("threads are started faster") => {
                rank.resume();
                continue;
            }
            Err((error, hint)) => panic!("{error} ({hint})"),
        }
        let program = rank.processes()[0];
        let found = tasks(program);
        assert!(found.iter().all(|(_, state)| state == "S"), "round {round}: {found:?}");
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(tasks(program), found, "round {round}");
        rank.resume();
    }
    rank.end();
}

/// A program was refused whose memory happened to lie where the restorer works.
#[test]
fn memory_where_a_restorer_could_work() {
    for zones in ["1", "2"] {
        let rank = Rank::start(2004, &compile("apps/zones.c"), &[zones, ENDLESS_TICKS]);
        generations(rank, &["tick 3", "tick 10", "tick 20"]);
    }
}

#[test]
fn python_goes_on() {
    const PROGRAM: &str = include_str!("apps/consumer.py");
    let rank = Rank::start(2004, Path::new("/usr/bin/python3"), &["-c", PROGRAM, ENDLESS_TICKS]);
    generations(rank, &["tick 5", "tick 15", "tick 25"]);
}

#[test]
fn unread_input_is_not_lost() {
    let mut rank = Rank::start(2005, &compile("apps/input.c"), &[]);
    rank.await_line("ready");
    rank.type_in("one\ntwo\nthree\nfour\n");
    rank.await_line("got one");
    let directory = rank.directory.clone();
    let path = directory.join("image");
    rank.save(&path);
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("four"));
    let mut rank = Rank::restart(&path, &directory);
    assert!(matches!(&rank.unread[..], [(Role::Stdin, bytes)] if bytes.ends_with(b"four\n")));
    rank.close_stdin();
    std::fs::write(directory.join("go"), "").unwrap();
    rank.resume();
    let printed = printed + &rank.finish();
    assert_eq!(printed, "ready\ngot one\ngot two\ngot three\ngot four\nOK\n");
}
