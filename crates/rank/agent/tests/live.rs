//! Whole processes that are copied while they run, and go on elsewhere: by the real agent and the real restorer. Each program finds out by
//! itself if anything of it was lost.

mod support;

use mend_image::launch::Mode;
use mend_messages::agent::{Compression, FromAgent, Reply, Request, Round, SaveOrder, SaveTarget};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use support::generations::assert_counted;
use support::skips::skipped;
use support::{ENDLESS_TICKS, Rank, Source, compile};

fn connection() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours.into(), listener.accept().unwrap().0.into())
}

/// One of which nothing comes back: who reads it is another process than the one that builds the rank.
fn one_way() -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours.into(), theirs.into())
}

/// Copies the rank while it runs for some rounds, then stops it. The one that goes on, with what was printed so far, and the last round.
fn moves(rank: Rank, pid: u32, rounds: u32) -> (Rank, Vec<u8>, Round) {
    moves_by(rank, pid, rounds, true)
}

/// The same; the receiver's answers come back, or not.
fn moves_by(mut rank: Rank, pid: u32, rounds: u32, answered: bool) -> (Rank, Vec<u8>, Round) {
    let (ours, theirs) = if answered { connection() } else { one_way() };
    let directory = rank.directory.clone();
    let target = std::thread::spawn(move || Rank::restore(Source::Stream(theirs, pid), Mode::Migrate, &directory).unwrap());
    rank.inspect();
    rank.precopy_by(&ours, answered);
    let last = rank.await_rounds(rounds);
    drop(ours);
    assert!(matches!(rank.ask(Request::Suspend), Reply::Suspended { .. }));
    let order = SaveOrder { compression: rank.compression, ..SaveOrder::full(SaveTarget::Begun) };
    let saved = match rank.ask(Request::Save(order)) {
        Reply::Saved(saved) => saved,
        other => panic!("unexpected {other:?}"),
    };
    assert_eq!(rank.compression == Compression::Always, saved.spared > 0, "{saved:?}");
    assert!(saved.base.is_some() && saved.sequence == 1, "{saved:?}");
    let moved = target.join().unwrap();
    (moved, rank.kill(), last)
}

/// Moves it on after the first of these lines, and a little after that as many times as there are more, and lets it come to its end.
fn goes_on(pid: u32, program: &Path, arguments: &[&str], tracking: &str, lines: &[&str]) -> String {
    goes_on_by(pid, program, arguments, (tracking, Compression::Off), lines)
}

fn goes_on_by(pid: u32, program: &Path, arguments: &[&str], (tracking, compression): (&str, Compression), lines: &[&str]) -> String {
    let mut rank = Rank::start_with(pid, program, arguments, &[("MEND_TRACKING", tracking)]);
    rank.compression = compression;
    let mut printed = Vec::new();
    for (generation, line) in lines.iter().enumerate() {
        rank.comes_to(generation, line);
        let (moved, said, last) = moves(rank, pid, generation as u32 % 3 + 1);
        assert_eq!(compression == Compression::Always, last.spared > 0, "{last:?}");
        printed.extend(said);
        rank = moved;
        rank.compression = compression;
        rank.resume();
    }
    let end = if arguments.contains(&ENDLESS_TICKS) { rank.end() } else { rank.finish() };
    String::from_utf8_lossy(&printed).into_owned() + &end
}

#[test]
fn a_counter_goes_on_counting() {
    let printed = goes_on(3234, &compile("apps/counter.c"), &[ENDLESS_TICKS], "auto", &["tick 5", "tick 15", "tick 25"]);
    assert_counted(&printed);
}

#[test]
fn threads_keep_ids_locks_and_waits() {
    goes_on(3000, &compile("apps/threads.c"), &[ENDLESS_TICKS], "auto", &["tick 3", "tick 10", "tick 20"]);
}

#[test]
fn descriptors_of_all_kinds() {
    goes_on(3001, &compile("apps/descriptors.c"), &[ENDLESS_TICKS], "auto", &["tick 3", "tick 120", "tick 240"]);
}

#[test]
fn signals_handlers_and_timers() {
    goes_on(3002, &compile("apps/signals.c"), &[ENDLESS_TICKS], "auto", &["tick 3", "tick 10", "tick 20"]);
}

#[test]
fn memory_of_all_kinds() {
    goes_on(3003, &compile("apps/memory.c"), &[ENDLESS_TICKS], "auto", &["tick 3", "tick 10", "tick 20"]);
}

#[test]
fn memory_of_all_kinds_by_hashes() {
    goes_on(3004, &compile("apps/memory.c"), &[ENDLESS_TICKS], "hash", &["tick 3", "tick 10", "tick 20"]);
}

#[test]
fn memory_of_all_kinds_where_nothing_is_tracked() {
    goes_on(3005, &compile("apps/memory.c"), &[ENDLESS_TICKS], "off", &["tick 3", "tick 10"]);
}

#[test]
fn memory_of_all_kinds_compressed() {
    for (pid, tracking) in [(3012, "auto"), (3013, "hash")] {
        goes_on_by(pid, &compile("apps/memory.c"), &[ENDLESS_TICKS], (tracking, Compression::Always), &["tick 3", "tick 10"]);
    }
}

#[test]
fn memory_of_a_stopped_program_compressed() {
    let mut rank = Rank::start(3014, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    rank.compression = Compression::Always;
    let (ours, theirs) = connection();
    let directory = rank.directory.clone();
    let target = std::thread::spawn(move || Rank::restore(Source::Stream(theirs, 3014), Mode::Migrate, &directory).unwrap());
    rank.save_into(&ours);
    let FromAgent::Reply { reply: Reply::Saved(saved), .. } = rank.hear() else { panic!("it is not saved") };
    drop(ours);
    let mut moved = target.join().unwrap();
    assert!(saved.spared > 0);
    assert_eq!(moved.restorer_read, saved.bytes);
    rank.kill();
    moved.resume();
    moved.end();
}

#[test]
fn who_is_stopped_before_the_first_round_is_complete_loses_nothing() {
    let mut rank = Rank::start(3006, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    let (mut moved, _, _) = moves(rank, 3006, 0);
    moved.resume();
    moved.end();
}

#[test]
fn where_a_file_is_open_for_direct_io_the_image_has_all_of_memory() {
    let probe = std::env::temp_dir().join(format!("mend-direct-{}", std::process::id()));
    let opened = std::fs::OpenOptions::new().write(true).create(true).custom_flags(libc::O_DIRECT).open(&probe);
    let _ = std::fs::remove_file(&probe);
    if let Err(error) = opened {
        return skipped("a move with a file that is open for direct I/O", &error.to_string());
    }
    let mut rank = Rank::start(3011, &compile("apps/direct.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    let (ours, theirs) = connection();
    let directory = rank.directory.clone();
    let target = std::thread::spawn(move || Rank::restore(Source::Stream(theirs, 3011), Mode::Migrate, &directory).unwrap());
    rank.inspect();
    rank.precopy(&ours);
    rank.await_rounds(1);
    drop(ours);
    assert!(matches!(rank.ask(Request::Suspend), Reply::Suspended { .. }));
    let Reply::Saved(saved) = rank.ask(Request::Save(SaveOrder::full(SaveTarget::Begun))) else { panic!("it is not saved") };
    assert_eq!(saved.base, None);
    let mut moved = target.join().unwrap();
    rank.kill();
    moved.resume();
    moved.end();
}

#[test]
fn a_receiver_whose_answers_do_not_come_back_has_all_of_it_too() {
    let mut rank = Rank::start(3010, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    let (mut moved, _, _) = moves_by(rank, 3010, 2, false);
    moved.resume();
    moved.end();
}

#[test]
fn a_receiver_that_goes_away_costs_the_program_nothing() {
    let mut rank = Rank::start(3007, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    let (ours, theirs) = connection();
    rank.precopy(&ours);
    drop((ours, theirs));
    loop {
        match rank.hear() {
            FromAgent::Round(_) => {}
            FromAgent::PrecopyFailed { .. } => break,
            other => panic!("unexpected {other:?}"),
        }
    }
    // And then it can be moved.
    let (mut moved, _, _) = moves(rank, 3007, 1);
    moved.resume();
    moved.end();
}

#[test]
fn a_chain_of_images_holds_all_that_changed_after_a_copy_that_came_to_nothing() {
    let mut rank = Rank::start(3008, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    let directory = rank.directory.clone();
    let paths: Vec<_> = (0..3).map(|number| directory.join(format!("image-{number}"))).collect();
    rank.await_line("tick 3");
    let first = rank.save_on(&paths[0], None);
    rank.resume();
    let (ours, theirs) = connection();
    // Nobody answers; what is noticed is used up all the same.
    rank.precopy(&ours);
    rank.two_lines_more();
    assert!(matches!(rank.ask(Request::EndPrecopy), Reply::PrecopyEnded));
    drop((ours, theirs));
    let second = rank.save_on(&paths[1], Some(first.id));
    assert_eq!(second.base, None, "what changed meanwhile is not known");
    rank.resume();
    rank.two_lines_more();
    let third = rank.save_on(&paths[2], Some(second.id));
    assert_eq!(third.base, Some(second.id));
    rank.kill();
    let chain = [paths[2].clone(), paths[1].clone()];
    let mut rank = Rank::restore(Source::Chain(&chain), Mode::Restart, &directory).unwrap();
    rank.resume();
    rank.end();
}

#[test]
fn requests_out_of_order_are_refused() {
    let mut rank = Rank::start(3009, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    rank.await_line("tick 3");
    assert!(matches!(rank.ask(Request::EndPrecopy), Reply::PrecopyEnded));
    assert!(rank.ask(Request::Precopy { answered: true, compression: Compression::Off }).is_failure(), "without a socket");
    assert!(matches!(rank.ask(Request::Suspend), Reply::Suspended { .. }));
    assert!(rank.ask(Request::Save(SaveOrder::full(SaveTarget::Begun))).is_failure(), "nothing was begun");
    rank.resume();
    rank.end();
}
