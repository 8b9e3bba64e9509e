//! The proof that the simulator sees: what keeps a job from harm is taken out, one by one, and defects of old are put back. Each is found
//! within 10,000 seeds.

use mend_job::safeguard::Safeguard::{self, *};
use mend_simulation::{Defect, first_find};

const SEEDS: u64 = 10_000;

const ALL: [Safeguard; 29] = [
    AtHome,
    SourceGoes,
    TargetGoes,
    LostRanksAreTold,
    SilenceIsFailure,
    LostTargetsAreTold,
    NobodyIsLeftWaiting,
    NodesAreEnded,
    EndIsAwaited,
    UnfinishedGoes,
    WritesAreChecked,
    NumbersAreNew,
    BasesAreChecked,
    OneAtATime,
    EndOfInputMoves,
    OneStopsAtATime,
    RemovalWaits,
    AllOrNone,
    LossesEndTheJob,
    OldLossesAreForgotten,
    EndsAreNoFailures,
    SignalsAreObeyed,
    LastRunComesFirst,
    DeadSparesAreLeftOut,
    LostHostsAreNotAwaited,
    OlderOnesWillDo,
    OnlyTheSourceLeavesInput,
    LostInputIsGivenAgain,
    GoneOnesGoEverywhere,
];

#[test]
fn every_safeguard_is_missed() {
    let mut unnoticed = Vec::new();
    for safeguard in ALL {
        match first_find(Some(safeguard), None, SEEDS) {
            Some((seed, found)) => println!("{safeguard:?}: seed {seed}: {found}"),
            None => unnoticed.push(safeguard),
        }
    }
    assert!(unnoticed.is_empty(), "nobody misses {unnoticed:?}");
}

#[test]
fn defects_of_old_are_found() {
    let found = first_find(None, Some(Defect::StaleMarker), SEEDS);
    println!("{found:?}");
    assert!(found.is_some_and(|(_, what)| what.contains("did not drain")));
}
