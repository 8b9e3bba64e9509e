//! The channel protocol, every interleaving: open, drain, suspend, resume, move, break; 2 to 4 ranks.
//!
//! [`model`] says what is modelled. Small jobs are explored to their end (that is demanded), larger ones breadth first as
//! far as a number of steps goes (`MEND_MODEL_STEPS`; `make soak` takes more of them). A second group of tests takes parts of the protocol out and demands that this be noticed.

mod grants;
mod model;
mod pull;
mod steps;
mod world;

use model::{Job, Without};
use stateright::{Checker, Model};

fn job(ranks: u8, flows: &[(u8, u8, u8)], operations: &[u8], rounds: u8) -> Job {
    let (flows, operations) = (flows.to_vec(), operations.to_vec());
    Job {
        ranks,
        flows,
        long: Vec::new(),
        puts: Vec::new(),
        operations,
        rounds,
        aborts: 0,
        breaks: 0,
        computing: 0,
        closes: 0,
        without: Without::Nothing,
    }
}

/// Steps that one test takes, at most, unless `MEND_MODEL_STEPS` says otherwise; several may lead to one state.
const STEPS: usize = 500_000;

/// The checker stops there, and in the middle of a batch.
fn steps() -> usize {
    let wish = std::env::var("MEND_MODEL_STEPS").ok();
    wish.map_or(STEPS, |wish| wish.parse().unwrap_or_else(|_| panic!("MEND_MODEL_STEPS is no number: {wish}")))
}

/// Explores as far as the steps go. Returns whether that was the end.
fn check(name: &str, job: Job) -> bool {
    let limit = steps();
    let checker = job.checker().threads(2).target_state_count(limit).spawn_bfs().join();
    let (states, depth, ended) = (checker.unique_state_count(), checker.max_depth(), checker.state_count() < limit);
    println!("{name}: {states} states, {depth} steps deep, {}", if ended { "all there are" } else { "more are left" });
    checker.assert_no_discovery("messages come once, in order, and never while saved");
    checker.assert_no_discovery("what can go no further is finished");
    assert!(states > 10_000, "little was explored");
    ended
}

/// Explores all of it.
fn check_all(name: &str, job: Job) {
    assert!(check(name, job), "{name}: the steps did not reach the end");
}

#[test]
fn two_ranks_are_saved_and_go_on() {
    check_all("saved", Job { aborts: 1, ..job(2, &[(0, 1, 2), (1, 0, 1)], &[0], 1) });
}

#[test]
fn two_ranks_and_one_moves_twice() {
    check("moved", job(2, &[(0, 1, 2), (1, 0, 1)], &[0b10], 2));
}

#[test]
fn a_failed_move_is_tried_again() {
    check("failed", Job { aborts: 1, ..job(2, &[(0, 1, 2), (1, 0, 1)], &[0b10], 2) });
}

#[test]
fn both_ranks_move_at_once() {
    check("both", job(2, &[(0, 1, 2), (1, 0, 1)], &[0b11, 0], 2));
}

#[test]
fn three_ranks_and_one_moves() {
    check("three", job(3, &[(0, 1, 1), (1, 2, 1), (2, 1, 1)], &[0b010], 1));
}

#[test]
fn four_ranks_and_two_move_at_once() {
    check("four", job(4, &[(0, 1, 1), (1, 2, 1), (3, 0, 1)], &[0b0110], 1));
}

#[test]
fn a_broken_channel_is_known_to_be_broken() {
    check_all("broken", Job { breaks: 1, ..job(2, &[(0, 1, 2), (1, 0, 1)], &[0, 0b10], 1) });
}

#[test]
fn long_messages_are_read_around_a_checkpoint() {
    check_all("read, saved", Job { long: vec![(0, 1)], aborts: 1, ..job(2, &[(0, 1, 2)], &[0], 1) });
}

#[test]
fn long_messages_are_read_while_either_end_moves() {
    check("read, receiver moves", Job { long: vec![(0, 1)], ..job(2, &[(0, 1, 2)], &[0b10], 2) });
    check("read, sender moves", Job { long: vec![(0, 1)], ..job(2, &[(0, 1, 2)], &[0b01], 2) });
    check("read both ways, one moves", Job { long: vec![(0, 1), (1, 0)], ..job(2, &[(0, 1, 1), (1, 0, 1)], &[0b10, 0], 2) });
}

#[test]
fn one_sided_operations_are_done_around_a_checkpoint() {
    let one_way = Job { puts: vec![(0, 1, 3)], ..job(2, &[], &[0], 1) };
    check_all("put, saved", Job { aborts: 1, ..one_way.clone() });
    check_all("put, saved, a region ends", Job { closes: 1, ..one_way });
    check("put both ways, saved", Job { puts: vec![(0, 1, 2), (1, 0, 2)], closes: 1, ..job(2, &[], &[0], 1) });
}

#[test]
fn one_sided_operations_are_done_while_either_end_moves() {
    let one_way = Job { puts: vec![(0, 1, 3)], closes: 1, ..job(2, &[], &[0b10], 1) };
    check_all("put, target moves", one_way.clone());
    check_all("put, origin moves", Job { operations: vec![0b01], ..one_way });
    check("put beside messages, one of three moves", Job { puts: vec![(0, 1, 2), (2, 1, 2)], ..job(3, &[(0, 1, 1)], &[0b010], 1) });
}

/// Channels that are used one way only, and programs that make no calls while their ranks are saved and moved.
#[test]
fn a_rank_moves_while_its_peers_compute() {
    let one_way = |flow, operations: &[u8]| Job { computing: 0b11, ..job(2, &[flow], operations, 2) };
    check_all("computing, sender saved and moved", one_way((0, 1, 2), &[0, 0b01]));
    check_all("computing, receiver saved and moved", one_way((0, 1, 2), &[0, 0b10]));
    check("computing, tried again", Job { aborts: 1, ..one_way((0, 1, 2), &[0, 0b01]) });
    check("computing, three", Job { computing: 0b111, ..job(3, &[(1, 0, 1), (2, 1, 1)], &[0, 0b010], 2) });
    check("computing, both move", one_way((0, 1, 1), &[0b11, 0]));
    check("computing, read, sender moves", Job { long: vec![(0, 1)], ..one_way((0, 1, 2), &[0, 0b01]) });
}

/// Takes a part out: some run must go wrong.
fn must_fail(without: Without, job: Job) {
    let checker = Job { without, ..job }.checker().threads(2).target_state_count(steps()).spawn_bfs().join();
    let found = checker.discoveries();
    let shown = ["messages come once, in order, and never while saved", "what can go no further is finished"];
    let wrong = shown.iter().find_map(|name| found.get(name).map(|path| (name, path)));
    let (name, path) = wrong.unwrap_or_else(|| panic!("without {without:?} nothing went wrong in {} states", checker.unique_state_count()));
    println!("without {without:?}: not \"{name}\" after {} steps", path.clone().into_actions().len());
}

#[test]
fn every_part_of_the_protocol_is_needed() {
    let flows = [(0, 1, 2), (1, 0, 1)];
    must_fail(Without::Acknowledgement, job(2, &flows, &[0], 1));
    must_fail(Without::Hold, job(2, &flows, &[0b10], 1));
    must_fail(Without::Service, Job { computing: 0b11, ..job(2, &[(0, 1, 2)], &[0, 0b01], 2) });
    must_fail(Without::Release, job(2, &flows, &[0b10], 1));
    must_fail(Without::MarkerNumber, Job { aborts: 1, ..job(2, &[(0, 1, 2)], &[0], 2) });
    must_fail(Without::Loss, Job { breaks: 1, ..job(2, &flows, &[0], 0) });
    let long = |operations: &[u8], rounds| Job { long: vec![(0, 1)], ..job(2, &[(0, 1, 1)], operations, rounds) };
    must_fail(Without::ReadsEnd, long(&[0], 1));
    must_fail(Without::Pause, long(&[0], 1));
    must_fail(Without::Repeat, long(&[], 0));
    let puts = Job { puts: vec![(0, 1, 3)], ..job(2, &[], &[0], 1) };
    must_fail(Without::Bar, puts.clone());
    must_fail(Without::Granted, puts.clone());
    let closed = Job { rounds: 0, closes: 1, ..puts };
    must_fail(Without::Version, closed.clone());
    must_fail(Without::SecondLook, closed);
    must_fail(Without::Number, Job { aborts: 1, ..job(2, &[(0, 1, 1)], &[0], 1) });
}
