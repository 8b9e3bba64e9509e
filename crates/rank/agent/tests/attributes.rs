//! What the kernel keeps beside memory: `tests/apps/attributes.c` sets all of it and finds out by itself what was lost. The same
//! program stands in the way of a checkpoint by one thing at a time, which must be told by name.

mod support;

use mend_image::launch::Mode;
use std::fs::File;
use std::path::PathBuf;
use support::{Rank, Source, compile, skips::skipped};

const PROGRAM: &str = "../../../../tests/apps/attributes.c";

/// What this kernel or this user may not do is no failure, and is told.
fn tell_skipped(printed: &str) {
    for line in printed.lines().filter_map(|line| line.strip_prefix("skipped ")) {
        let (what, why) = line.split_once(": ").unwrap_or((line, ""));
        skipped(what, why);
    }
}

/// Twice: what is lost in the second life is seen, too.
fn lives(pid: u32, mode: Mode) {
    let mut rank = Rank::start(pid, &compile(PROGRAM), &["all", "go"]);
    rank.await_line("ready");
    tell_skipped(&String::from_utf8_lossy(&rank.printed));
    let directory = rank.directory.clone();
    for life in 0..2 {
        assert_eq!(rank.inspect().obstacles, []);
        let image: PathBuf = directory.join(format!("image-{life}"));
        rank.save(&image);
        let printed = String::from_utf8_lossy(&rank.kill()).into_owned();
        assert!(!printed.contains("LOST"), "in life {life}: {printed}");
        rank = Rank::restore(Source::File(&image), mode, &directory).unwrap();
        rank.resume();
        // It looks again as long as it is let.
        rank.await_more(1);
    }
    File::create(directory.join("go")).unwrap();
    rank.finish();
}

#[test]
fn everything_comes_back_at_a_restart() {
    lives(5000, Mode::Restart);
}

#[test]
fn everything_comes_along_in_a_migration() {
    lives(5010, Mode::Migrate);
}

#[test]
fn what_cannot_come_back_is_named() {
    for (number, (item, name, seen_at_once)) in [
        ("seccomp", "seccomp filters of thread", true),
        ("seccomp-thread", "seccomp filters of thread", true),
        ("rseq", "rseq area that isn't the C library's", false),
        ("keyring", "process keyring", false),
        ("namespace", "namespace", true),
        ("chroot", "root directory (chroot)", true),
        ("user", "changed its user", true),
        ("lease", "lease on a file", true),
        ("dnotify", "watched by F_NOTIFY", true),
        ("mqueue", "POSIX message queue", true),
        ("secretmem", "secret memory", true),
        ("ldt", "segments of its own", true),
        ("io_uring", "io_uring", true),
        ("pkey", "protection key", true),
        ("landlock", "Landlock domain", false),
        ("landlock-thread", "Landlock domain", false),
        ("dispatch", "PR_SET_SYSCALL_USER_DISPATCH", false),
        ("dispatch-all", "PR_SET_SYSCALL_USER_DISPATCH", false),
        ("ioperm", "I/O ports", false),
        ("iopl", "I/O ports", false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut rank = Rank::start(5100 + number as u32 * 10, &compile(PROGRAM), &[item, "go"]);
        rank.await_line("ready");
        if String::from_utf8_lossy(&rank.printed).contains("skipped") {
            tell_skipped(&String::from_utf8_lossy(&rank.printed));
            continue;
        }
        let found = rank.inspect().obstacles;
        let named = found.iter().find(|obstacle| obstacle.what.contains(name));
        assert_eq!(named.is_some(), seen_at_once, "{item}: {found:?}");
        assert!(named.is_none_or(|obstacle| !obstacle.hint.is_empty()), "{item}: {found:?}");
        let image = rank.directory.join("image");
        let (error, hint) = rank.try_save(&image).expect_err(item);
        // Whoever has left the directory in which /proc is cannot even be looked at.
        assert!((error.contains(name) || item == "chroot") && !hint.is_empty(), "{item}: {error} ({hint})");
        assert!(!image.exists());
        rank.resume();
        File::create(rank.directory.join("go")).unwrap();
        rank.finish();
    }
}
