//! Whatever controllers say to a node: a job has one start there, and one controller may resume it.

use mend_messages::daemon::{Resumption, Succession};
use mend_node_job::JobTable;
use mend_node_job::table::Present;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn resumption(job: u8, epoch: u64, session: u8) -> Resumption {
    Resumption { identity: [job; 16], epoch, session: [session; 16], delivered: 0 }
}

fn succession(job: u8, epoch: u64, old: u8, new: u8) -> Succession {
    Succession { of: resumption(job, epoch, old), session: [new; 16] }
}

#[test]
fn a_later_start_waits_for_an_earlier_one_to_leave() {
    let mut table = JobTable::default();
    assert_eq!(table.enter([1; 16], 5, [1; 16]), Ok(()));
    assert_eq!(table.enter([1; 16], 5, [2; 16]), Err(Present::Here { epoch: 5 }));
    assert_eq!(table.enter([1; 16], 4, [2; 16]), Err(Present::Here { epoch: 5 }));
    assert_eq!(table.enter([1; 16], 6, [2; 16]), Err(Present::Leaving));
    table.leave(&[1; 16]);
    assert_eq!(table.enter([1; 16], 6, [2; 16]), Ok(()));
    assert!(!table.may_resume(&resumption(1, 5, 1)));
}

#[test]
fn a_successor_that_was_lost_before_it_wrote_its_session_down_has_one_itself() {
    let mut table = JobTable::default();
    table.enter([1; 16], 1, [1; 16]).unwrap();
    assert!(table.succeed(&succession(1, 1, 1, 2)));
    // Nobody but the table knows of session 2.
    assert!(table.succeed(&succession(1, 1, 1, 3)));
    assert!(table.may_resume(&resumption(1, 1, 3)) && !table.may_resume(&resumption(1, 1, 2)));
    assert!(table.succeed(&succession(1, 1, 3, 4)));
    assert!(!table.succeed(&succession(1, 1, 1, 5)), "two controllers back");
}

#[test]
fn the_newest_leases_that_were_over_are_kept_in_mind() {
    let mut table = JobTable::default();
    for number in 0..20 {
        table.enter([number; 16], 1, [number; 16]).unwrap();
        table.note_lease_over(&[number; 16], 1000 + u64::from(number), 7);
        table.leave(&[number; 16]);
    }
    let kept = |number| table.lease_over(&[number; 16]).map(|over| (over.lease_us, over.stood_still_us));
    assert_eq!((kept(19), kept(4), kept(3)), (Some((1019, 7)), Some((1004, 7)), None));
    table.note_lease_over(&[99; 16], 1, 1);
    assert_eq!(table.lease_over(&[99; 16]), None);
}

#[derive(Clone, Debug)]
enum Said {
    Introduced { job: u8, epoch: u64, session: u8 },
    Left { job: u8 },
    Succeeded { job: u8, epoch: u64, old: u8, new: u8 },
}

fn said() -> impl Strategy<Value = Said> {
    let (job, epoch, session) = (0..2u8, 1..4u64, 0..6u8);
    prop_oneof![
        (job.clone(), epoch.clone(), session.clone()).prop_map(|(job, epoch, session)| Said::Introduced { job, epoch, session }),
        job.clone().prop_map(|job| Said::Left { job }),
        (job, epoch, session.clone(), session).prop_map(|(job, epoch, old, new)| Said::Succeeded { job, epoch, old, new }),
    ]
}

proptest! {
    #[test]
    fn one_start_of_a_job_and_one_controller_for_it(all in proptest::collection::vec(said(), 1..60)) {
        let mut table = JobTable::default();
        // Epoch, and the controller's session, of each job that is here.
        let mut here: BTreeMap<u8, (u64, u8)> = BTreeMap::new();
        for one in all {
            match one {
                Said::Introduced { job, epoch, session } => {
                    let entered = table.enter([job; 16], epoch, [session; 16]);
                    match here.get(&job) {
                        None => {
                            prop_assert_eq!(entered, Ok(()));
                            here.insert(job, (epoch, session));
                        }
                        Some((present, _)) if *present >= epoch => prop_assert_eq!(entered, Err(Present::Here { epoch: *present })),
                        Some(_) => prop_assert_eq!(entered, Err(Present::Leaving)),
                    }
                }
                Said::Left { job } => {
                    table.leave(&[job; 16]);
                    here.remove(&job);
                }
                Said::Succeeded { job, epoch, old, new } => {
                    let may = table.is_here(&resumption(job, epoch, old));
                    prop_assert_eq!(table.succeed(&succession(job, epoch, old, new)), may);
                    if may {
                        let known = here.get_mut(&job).unwrap();
                        prop_assert_eq!(known.0, epoch);
                        known.1 = new;
                    }
                }
            }
            let text = postcard::to_allocvec(&table).unwrap();
            prop_assert_eq!(&postcard::from_bytes::<JobTable>(&text).unwrap(), &table);
            for job in 0..2 {
                let may: Vec<_> = (1..4).flat_map(|epoch| (0..6).map(move |session| (epoch, session))).filter(|(epoch, session)| table.may_resume(&resumption(job, *epoch, *session))).collect();
                prop_assert_eq!(may, here.get(&job).copied().into_iter().collect::<Vec<_>>());
            }
        }
    }
}
