//! Thousands of worlds. `MEND_SIMULATION_SEEDS=FROM..TO` chooses others.

use mend_simulation::{Options, Summary, run};

fn seeds() -> std::ops::Range<u64> {
    let named = std::env::var("MEND_SIMULATION_SEEDS").ok();
    let parsed = named.as_deref().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    parsed.unwrap_or(0..3000)
}

#[test]
fn whatever_happens_a_job_keeps_its_promises() {
    let (mut all, mut found) = (Summary::default(), Vec::new());
    for seed in seeds() {
        match run(seed, Options::default()) {
            Ok(summary) => {
                all.events += summary.events;
                all.checkpoints += summary.checkpoints;
                all.migrations += summary.migrations;
                all.live += summary.live;
                all.returns += summary.returns;
                all.followers += summary.followers;
                all.lives += summary.lives;
                all.faults += summary.faults;
                all.failovers += summary.failovers;
                all.node_started += summary.node_started;
                all.in_place += summary.in_place;
                all.anew += summary.anew;
                all.power_losses += summary.power_losses;
            }
            Err(what) => found.push((seed, what)),
        }
    }
    println!("{all:?}");
    assert!(found.is_empty(), "{} of them: {:#?}", found.len(), &found[..found.len().min(10)]);
    // Worlds in which nothing happens show nothing.
    let worlds = seeds().end - seeds().start;
    assert!(
        worlds < 1000
            || all.checkpoints > worlds
                && all.migrations > worlds / 10
                && all.live > worlds / 30
                && all.returns > worlds / 100
                && all.followers > worlds / 100
                && all.faults > worlds
                && all.failovers > worlds / 4
                && all.node_started > worlds / 30
                && all.in_place > worlds / 30
                && all.anew > worlds / 150
                && all.power_losses > worlds / 20
                && all.lives > worlds
    );
}
