//! Programs that are saved and simply go on, and programs that move through a stream.

mod support;

use mend_image::launch::Mode;
use mend_image::{HEADER_SIZE, read_header};
use mend_messages::agent::{FromAgent, Reply};
use rustix::net::RecvFlags;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use support::{ENDLESS_TICKS, Rank, Source, compile};

#[test]
fn saved_many_times_and_never_disturbed() {
    for (number, program) in ["apps/threads.c", "apps/signals.c", "apps/memory.c", "apps/descriptors.c"].into_iter().enumerate() {
        let mut rank = Rank::start(4000 + number as u32 * 100, &compile(program), &["1000000"]);
        rank.await_line("tick 1");
        let image = rank.directory.join("image");
        for _ in 0..25 {
            rank.save(&image);
            rank.resume();
            // A thread that was not yet asleep while it was written shows here.
            mend_image::verify::verify(&mut std::fs::File::open(&image).unwrap()).unwrap().unwrap();
        }
        // With each line the program has looked at all that it has.
        rank.two_lines_more();
        rank.kill();
    }
}

/// Signals that come while a rank stands still end calls of those threads alone whose handlers run, and those that nobody notices end none.
#[test]
fn signals_that_wait_interrupt_whom_they_concern() {
    for (number, arguments) in [&["1000000"][..], &["1000000", "reads"]].into_iter().enumerate() {
        let mut rank = Rank::start(4950 + number as u32 * 10, &compile("apps/interrupted.c"), arguments);
        rank.await_line("tick 3");
        let image = rank.directory.join("image");
        for time in 1..=20 {
            rank.save(&image);
            for signal in [libc::SIGWINCH, libc::SIGUSR1] {
                // SAFETY: plain numbers; a process of this test.
                assert_eq!(unsafe { libc::kill(rank.processes()[0], signal) }, 0);
            }
            rank.resume();
            rank.await_line(&format!("handled {time}"));
        }
        let printed = String::from_utf8(rank.kill()).unwrap();
        assert!(!printed.contains("LOST"), "{printed}");
    }
}

#[test]
fn a_program_that_begins_to_use_the_fabric_while_it_is_saved_goes_on() {
    let environment = [("MEND_TEST_USED_WHILE_SAVED", "1")];
    let mut rank = Rank::start_with(4900, &compile("apps/counter.c"), &["1000000"], &environment);
    let image = rank.directory.join("image");
    rank.save(&image);
    rank.resume();
    // Only a thread that was parked meanwhile can listen.
    assert!(matches!(rank.hear(), FromAgent::FabricInUse));
    assert!(matches!(rank.hear(), FromAgent::FabricUp(_)));
    rank.kill();
}

#[test]
fn a_rank_moves_through_a_stream_and_its_source_waits() {
    let mut source = Rank::start(4500, &compile("apps/threads.c"), &[ENDLESS_TICKS]);
    source.await_line("tick 5");
    let directory = source.directory.clone();
    let (ours, theirs) = UnixStream::pair().unwrap();
    source.save_into(&theirs);
    drop(theirs);
    // As a daemon does: look at the header without taking it.
    let mut header = [0; HEADER_SIZE];
    let (count, _) = rustix::net::recv(&ours, &mut header, RecvFlags::PEEK | RecvFlags::WAITALL).unwrap();
    assert_eq!(count, HEADER_SIZE);
    let pid = read_header(&header).unwrap().pid;
    let mut target = Rank::restore(Source::Stream(ours.into(), pid), Mode::Migrate, &directory).unwrap();
    assert!(matches!(source.hear(), FromAgent::Reply { reply: Reply::Saved(_), .. }));
    source.kill();
    target.resume();
    target.end();
}

#[test]
fn a_receiver_that_dies_leaves_the_source_running() {
    let mut source = Rank::start(4600, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    source.await_line("tick 3");
    for bytes in [0, 1000, 100_000, 1_000_000] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        source.save_into(&theirs);
        drop(theirs);
        ours.read_exact(&mut vec![0; bytes]).unwrap();
        drop(ours);
        match source.hear() {
            FromAgent::Reply { reply: Reply::Failed { error, .. }, .. } => assert!(error.contains("writing the image failed"), "{error}"),
            other => panic!("after {bytes} bytes: unexpected {other:?}"),
        }
        source.resume();
    }
    source.end();
}

#[test]
fn a_parked_rank_whose_daemon_is_gone_never_runs_again() {
    // It may have moved: two of it would talk to the same peers.
    let mut rank = Rank::start(4700, &compile("apps/counter.c"), &["1000"]);
    rank.await_line("tick 3");
    let image = rank.directory.join("image");
    rank.save(&image);
    rank.hang_up();
    // Long enough for many ticks.
    std::thread::sleep(Duration::from_millis(500));
    let printed = String::from_utf8(rank.kill()).unwrap();
    let ticks = printed.lines().count();
    let mut moved = Rank::restart(&image, &image.with_file_name("."));
    assert_eq!(moved.resume(), Duration::ZERO, "how long it lay in its image is nobody's time");
    let next = format!("tick {}", ticks + 1);
    moved.await_line(&next);
    assert_eq!(String::from_utf8_lossy(&moved.printed).lines().next(), Some(&next[..]));
}

#[test]
fn a_rank_tells_how_long_it_was_stopped() {
    let mut rank = Rank::start(4750, &compile("apps/counter.c"), &["1000"]);
    rank.await_line("tick 1");
    let image = rank.directory.join("image");
    for pause in [Duration::from_millis(60), Duration::ZERO] {
        let began = Instant::now();
        rank.save(&image);
        std::thread::sleep(pause);
        let stopped = rank.resume();
        assert!(pause < stopped && stopped <= began.elapsed(), "{stopped:?} of {:?}, {pause:?} of them idle", began.elapsed());
    }
}

#[test]
fn a_sender_that_is_killed_leaves_the_program_running() {
    let mut rank = Rank::start(4800, &compile("apps/instant.c"), &["1000000"]);
    rank.await_line("round 50");
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1) {
        println!("no process beside the program sends on one processor");
        return;
    }
    let path = rank.directory.join("image");
    rank.save(&path);
    rank.resume();
    // The reader takes as much as it needs for a sender to begin, and then nothing more.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rank.save_into(&writer);
    drop(writer);
    let mut reader = std::fs::File::from(reader);
    let sender = loop {
        reader.read_exact(&mut [0; 64 << 10]).unwrap();
        if let [_, sender] = rank.processes()[..] {
            break sender;
        }
    };
    // SAFETY: plain numbers; a process of this test.
    assert_eq!(unsafe { libc::kill(sender, libc::SIGKILL) }, 0);
    match rank.hear() {
        FromAgent::Reply { reply: Reply::Failed { error, .. }, .. } => assert!(error.contains("sends the image has ended"), "{error}"),
        other => panic!("unexpected {other:?}"),
    }
    assert_eq!(rank.processes().len(), 1);
    rank.resume();
    rank.two_lines_more();
    rank.save(&path);
    let directory = rank.directory.clone();
    assert!(!String::from_utf8_lossy(&rank.kill()).contains("LOST"));
    let mut rank = Rank::restart(&path, &directory);
    rank.resume();
    rank.two_lines_more();
    assert!(!String::from_utf8_lossy(&rank.kill()).contains("LOST"));
}
