//! The proof that the simulator sees: what keeps a job from harm is taken out, one by one, and defects of old are put back. Each is found
//! within 10,000 seeds.

use mend_job::safeguard::Safeguard;
use mend_node_job::safeguard::Safeguard as NodeSafeguard;
use mend_simulation::{Defect, Options, first_find};
use std::fmt::Debug;

const SEEDS: u64 = 10_000;

/// Takes each of these out of a world by itself; all must be missed.
fn are_missed<T: Copy + Debug>(all: &[T], without: impl Fn(T) -> Options) {
    let mut unnoticed = Vec::new();
    for &safeguard in all {
        match first_find(without(safeguard), SEEDS) {
            Some((seed, found)) => println!("{safeguard:?}: seed {seed}: {found}"),
            None => unnoticed.push(safeguard),
        }
    }
    assert!(unnoticed.is_empty(), "nobody misses {unnoticed:?}");
}

#[test]
fn every_safeguard_is_missed() {
    are_missed(Safeguard::ALL, |safeguard| Options { safeguard: Some(safeguard), ..Options::default() });
}

#[test]
fn every_safeguard_of_nodes_is_missed() {
    are_missed(NodeSafeguard::ALL, |safeguard| Options { on_nodes: Some(safeguard), ..Options::default() });
}

#[test]
fn defects_of_old_are_found() {
    let found = first_find(Options { defect: Some(Defect::StaleMarker), ..Options::default() }, SEEDS);
    println!("{found:?}");
    assert!(found.is_some_and(|(_, what)| what.contains("did not drain")));
}
