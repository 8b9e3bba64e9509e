//! Whole processes that go back to an image in place. Each program finds out by itself if anything of it is not as it was then.

mod support;

use support::{Rank, compile, rollbacks};

#[test]
fn a_counter_counts_from_its_image_on() {
    let rank = Rank::start(4234, &compile("apps/counter.c"), &["150"]);
    let printed = rollbacks(rank, &["tick 5", "tick 15", "tick 25"]);
    let expected: Vec<String> = (1..=150).map(|tick| format!("tick {tick}")).chain(["OK".to_string()]).collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn threads_keep_ids_locks_and_waits() {
    let rank = Rank::start(5000, &compile("apps/threads.c"), &["120"]);
    rollbacks(rank, &["tick 3", "tick 10", "tick 11", "tick 20"]);
}

#[test]
fn descriptors_of_all_kinds() {
    let rank = Rank::start(5001, &compile("apps/descriptors.c"), &["500"]);
    rollbacks(rank, &["tick 3", "tick 120", "tick 240"]);
}

#[test]
fn signals_handlers_and_timers() {
    let rank = Rank::start(5002, &compile("apps/signals.c"), &["90"]);
    rollbacks(rank, &["tick 3", "tick 10", "tick 20"]);
}

#[test]
fn memory_of_all_kinds() {
    let rank = Rank::start(5003, &compile("apps/memory.c"), &["100"]);
    rollbacks(rank, &["tick 3", "tick 10", "tick 20"]);
}
