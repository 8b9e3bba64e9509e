//! What cannot be done is refused by name, and the program runs on.

mod support;

use mend_image::launch::Mode;
use mend_messages::agent::{FromAgent, Reply, Request, SaveOrder, SaveTarget};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use support::{ENDLESS_TICKS, Rank, Refusal, Source, compile, skips::skipped};

fn refusal(path: &Path, directory: &Path) -> String {
    match Rank::restore(Source::File(path), Mode::Restart, directory) {
        Err(Refusal(text)) => text,
        Ok(_) => panic!("restored what it should refuse"),
    }
}

#[test]
fn obstacles_are_named_beforehand_and_at_the_save_and_go_away() {
    let program = compile("apps/obstacle.c");
    for (number, (kind, name)) in [
        ("socket", "socket listening on 0.0.0.0:"),
        ("child", "child process"),
        ("sysv", "System V shared memory"),
        ("semaphores", "System V semaphores"),
        ("memories", "more than 1000 files that are memory"),
        ("undumpable", "/proc/self/pagemap"),
        ("timer", "POSIX timer 0 on the processor time of a thread"),
        ("deleted", "deleted file"),
        ("inotify", "inotify descriptor with unread events"),
        ("pipe", "pipe from another process"),
        ("pair", "socket to another process"),
        ("files", "has descriptors of its own (unshare, CLONE_FILES)"),
        ("place", "has a working directory and a umask of its own (unshare, CLONE_FS)"),
    ]
    .into_iter()
    .enumerate()
    {
        if kind == "undumpable" && !support::as_user() && rustix::process::geteuid().is_root() {
            skipped("a program whose memory its user may not read", "root may read it");
            continue;
        }
        let mut rank = Rank::start(3000 + number as u32 * 10, &program, &[kind]);
        rank.await_line("ready");
        let image = rank.directory.join("image");
        let inspection = rank.inspect();
        assert!(inspection.obstacles.iter().any(|obstacle| obstacle.what.contains(name)), "{kind}: {inspection:?}");
        let (error, _) = rank.try_save(&image).expect_err(kind);
        assert!(error.contains(name), "{kind}: {error}");
        assert!(!image.exists());
        rank.resume();
        rank.type_in("drop it\n");
        rank.await_line("dropped");
        assert_eq!(rank.inspect().obstacles, [], "{kind}");
        rank.save(&image);
        rank.resume();
        rank.type_in("end\n");
        rank.finish();
    }
}

#[test]
fn a_program_that_leaves_no_zone_to_the_restorer_is_named() {
    let mut rank = Rank::start(3290, &compile("apps/zones.c"), &["3", ENDLESS_TICKS]);
    rank.await_line("tick 1");
    let found = rank.inspect();
    assert!(found.obstacles.iter().any(|obstacle| obstacle.what.contains("zones of addresses")), "{found:?}");
    let (error, _) = rank.try_save(&rank.directory.join("image")).expect_err("no zone is free");
    assert!(error.contains("zones of addresses"), "{error}");
    rank.resume();
    rank.end();
}

#[test]
fn a_netlink_socket_is_waited_for_unless_it_stays() {
    let program = compile("apps/interfaces.c");
    let mut rank = Rank::start(3300, &program, &[]);
    rank.await_line("ready");
    let image = rank.directory.join("image");
    for _ in 0..30 {
        assert_eq!(rank.inspect().obstacles, []);
        rank.save(&image);
        rank.resume();
    }
    rank.two_lines_more();
    rank.kill();
    let mut rank = Rank::start(3310, &program, &["hold"]);
    rank.await_line("ready");
    let obstacles = rank.inspect().obstacles;
    assert!(obstacles.iter().any(|obstacle| obstacle.what.contains("netlink socket (fd ")), "{obstacles:?}");
    let (error, _) = rank.try_save(&rank.directory.join("image")).unwrap_err();
    assert!(error.contains("netlink socket"), "{error}");
    rank.resume();
    rank.two_lines_more();
    rank.kill();
}

#[test]
fn memory_shared_with_another_process_is_named() {
    let program = compile("apps/obstacle.c");
    let name = format!("/mend-agent-shared-{}", std::process::id());
    let mut one = Rank::start(3220, &program, &["named", &name]);
    one.await_line("ready");
    assert_eq!(one.inspect().obstacles, []);
    let mut other = Rank::start(3230, &program, &["named", &name]);
    other.await_line("ready");
    let obstacles = one.inspect().obstacles;
    if support::as_user() || !rustix::process::geteuid().is_root() {
        // Each rank is in a user namespace of its own, and the kernel does not let one look at another.
        return;
    }
    assert!(obstacles.iter().any(|obstacle| obstacle.what.contains(&name) && obstacle.what.contains("another process")), "{obstacles:?}");
    let image = one.directory.join("image");
    let (error, _) = one.try_save(&image).unwrap_err();
    assert!(error.contains(&name), "{error}");
    one.resume();
    other.type_in("drop it\nend\n");
    other.finish();
    one.save(&image);
    one.resume();
    one.type_in("drop it\nend\n");
    one.finish();
}

#[test]
fn a_thread_that_does_not_stop_is_named_and_all_go_on() {
    let mut rank = Rank::start(3200, &compile("apps/obstacle.c"), &["blocker"]);
    rank.await_line("ready");
    let image = rank.directory.join("image");
    let (error, _) = rank.try_save(&image).unwrap_err();
    assert!(error.contains("stubborn") && error.contains("did not stop"), "{error}");
    rank.resume();
    rank.type_in("drop it\n");
    // The signal that was under way arrives now, and finds nothing to do.
    rank.await_line("dropped");
    rank.save(&image);
    rank.resume();
    rank.type_in("end\n");
    rank.finish();
}

#[test]
fn a_first_thread_that_has_ended_is_named() {
    let mut rank = Rank::start(3210, &compile("apps/obstacle.c"), &["first-thread"]);
    rank.await_line("ready");
    let image = rank.directory.join("image");
    assert!(rank.inspect().obstacles.iter().any(|obstacle| obstacle.what.contains("first thread has ended")));
    let (error, _) = rank.try_save(&image).unwrap_err();
    assert!(error.contains("first thread has ended"), "{error}");
    rank.resume();
    rank.type_in("end\n");
    rank.finish();
}

#[test]
fn requests_out_of_order_and_bad_targets() {
    let mut rank = Rank::start(3100, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    let target = || SaveTarget::File("/nonexistent/directory/image".into());
    assert!(matches!(rank.ask(Request::Save(SaveOrder::full(target()))), Reply::Failed { .. }));
    assert_eq!(rank.resume(), Duration::ZERO, "it was not stopped");
    let (error, _) = rank.try_save(Path::new("/nonexistent/directory/image")).unwrap_err();
    assert!(error.contains("/nonexistent/directory/image"), "{error}");
    assert!(matches!(rank.ask(Request::Save(SaveOrder::full(SaveTarget::Descriptor))), Reply::Failed { .. }));
    let image = rank.directory.join("image");
    rank.save(&image);
    // Parked: nothing but Resume makes sense now.
    assert!(matches!(rank.ask(Request::Suspend), Reply::Failed { .. }));
    assert!(matches!(rank.ask(Request::Save(SaveOrder::full(target()))), Reply::Failed { .. }));
    rank.resume();
    rank.end();
}

/// The descriptor of a request that was refused is not taken for the next one's.
#[test]
fn a_refused_save_leaves_no_descriptor_behind() {
    let mut rank = Rank::start(3130, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    let directory = rank.directory.clone();
    let (wrong, image) = (File::create(directory.join("wrong")).unwrap(), File::create(directory.join("image")).unwrap());
    rank.send_with(Request::Save(SaveOrder::full(SaveTarget::Descriptor)), &wrong);
    assert!(matches!(rank.hear(), FromAgent::Reply { reply: Reply::Failed { .. }, .. }), "it was not suspended");
    rank.save_into(&image);
    assert!(matches!(rank.hear(), FromAgent::Reply { reply: Reply::Saved(_), .. }));
    assert_eq!(wrong.metadata().unwrap().len(), 0);
    rank.kill();
    let mut rank = Rank::restart(&directory.join("image"), &directory);
    rank.resume();
    rank.end();
}

/// A file of another user's that was made private when it was open: nobody can open it again.
#[test]
fn a_file_that_cannot_be_opened_again_is_named() {
    const PROGRAM: &str = r#"
import sys, time
theirs = None
while theirs is None:
    try: theirs = open("theirs", "r+")
    except OSError: time.sleep(0.01)
print("ready", flush=True)
sys.stdin.read()
print("OK")
"#;
    if !support::as_user() {
        return skipped("a file of another user's", "only root can make one for a rank of an ordinary user");
    }
    let mut rank = Rank::start(3140, Path::new("/usr/bin/python3"), &["-c", PROGRAM]);
    let (theirs, image) = (rank.directory.join("theirs"), rank.directory.join("image"));
    std::fs::write(&theirs, "text").unwrap();
    std::fs::set_permissions(&theirs, Permissions::from_mode(0o666)).unwrap();
    rank.await_line("ready");
    assert_eq!(rank.inspect().obstacles, []);
    std::fs::set_permissions(&theirs, Permissions::from_mode(0o644)).unwrap();
    let named = |what: &str| what.contains("theirs") && what.contains("another user");
    let found = rank.inspect().obstacles;
    assert!(found.iter().any(|obstacle| named(&obstacle.what)), "{found:?}");
    let (error, hint) = rank.try_save(&image).unwrap_err();
    assert!(named(&error) && !hint.is_empty(), "{error} ({hint})");
    rank.resume();
    std::fs::set_permissions(&theirs, Permissions::from_mode(0o666)).unwrap();
    rank.save(&image);
    rank.resume();
    rank.close_stdin();
    rank.finish();
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let mut rank = Rank::start(3110, &compile("apps/limited.c"), &["4000"]);
    rank.await_line("tick 3");
    let image = rank.directory.join("image");
    let (error, _) = rank.try_save(&image).unwrap_err();
    assert!(error.contains("writing the image failed"), "{error}");
    let names: Vec<_> = std::fs::read_dir(&rank.directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("image")), "{names:?}");
    rank.resume();
    rank.end();
}

#[test]
fn damaged_and_incomplete_images_are_refused() {
    let mut rank = Rank::start(3120, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    let directory = rank.directory.clone();
    let image = directory.join("image");
    rank.save(&image);
    rank.kill();
    let whole = std::fs::read(&image).unwrap();
    let verified = mend_image::verify::verify(&mut whole.as_slice()).unwrap().unwrap();
    assert_eq!(verified.end.bytes, whole.len() as u64);
    let broken = directory.join("broken");
    let with = |bytes: &[u8]| {
        std::fs::write(&broken, bytes).unwrap();
        refusal(&broken, &directory)
    };
    assert!(with(&whole[..whole.len() - 1]).contains("ends"));
    assert!(with(&whole[..whole.len() / 2]).contains("ends"));
    assert!(with(&whole[..5000]).contains("ends"));
    for at in [3000, 20_000, whole.len() / 2, whole.len() - 50] {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        let text = with(&flipped);
        assert!(text.contains("damaged") || text.contains("no sense"), "{at}: {text}");
    }
    assert!(with(b"hello").contains("not an image"));
    // The undamaged one still works.
    let mut rank = Rank::restart(&image, &directory);
    rank.resume();
    rank.two_lines_more();
}

#[test]
fn files_that_are_gone_or_changed_are_named() {
    let original = compile("apps/counter.c");
    let directory = original.parent().unwrap().join("moving");
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join("counter-copy");
    std::fs::copy(&original, &program).unwrap();
    let mut rank = Rank::start(3130, &program, &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    let image = rank.directory.join("image");
    rank.save(&image);
    rank.kill();
    let elsewhere = directory.join("elsewhere");
    std::fs::rename(&program, &elsewhere).unwrap();
    let text = refusal(&image, &directory);
    assert!(text.contains("counter-copy") && text.contains("cannot be opened"), "{text}");
    std::fs::copy(compile("apps/input.c"), &program).unwrap();
    let text = refusal(&image, &directory);
    assert!(text.contains("counter-copy"), "{text}");
    std::fs::rename(&elsewhere, &program).unwrap();
    let mut rank = Rank::restart(&image, &directory);
    rank.resume();
    rank.two_lines_more();
}

#[test]
fn files_written_to_are_cut_back_at_a_restart_and_never_at_a_migration() {
    let mut rank = Rank::start(3140, &compile("apps/appender.c"), &["200"]);
    rank.await_line("tick 5");
    let directory = rank.directory.clone();
    let (image, log) = (directory.join("image"), directory.join("log"));
    rank.save(&image);
    let length = std::fs::metadata(&log).unwrap().len();
    rank.resume();
    rank.two_lines_more();
    rank.kill();
    let longer = std::fs::metadata(&log).unwrap().len();
    assert!(longer > length);
    drop(Rank::restore(Source::File(&image), Mode::Migrate, &directory).unwrap());
    assert_eq!(std::fs::metadata(&log).unwrap().len(), longer);
    let mut rank = Rank::restart(&image, &directory);
    assert_eq!(std::fs::metadata(&log).unwrap().len(), length);
    rank.resume();
    rank.finish();
    let lines: Vec<String> = std::fs::read_to_string(&log).unwrap().lines().map(str::to_string).collect();
    assert_eq!(lines, (1..=200).map(|line| format!("line {line}")).collect::<Vec<_>>());
    std::fs::write(&log, "short").unwrap();
    let text = refusal(&image, &directory);
    assert!(text.contains("log") && text.contains("fewer"), "{text}");
    std::fs::remove_file(&log).unwrap();
    assert!(refusal(&image, &directory).contains("cannot be opened again"));
}
