//! Whether a successor may have a job: it takes the lock when that is free, or with the votes of more than half of the job's nodes.
//!
//! ```text
//! lock free ─────────────────────────────────────────────► its file is replaced, and the job is the successor's
//! lock held, the controller silent ── nodes vote ────────► seized at once: ranks wait
//!           │                      └─ their leases are over ► seized after a while, in which a controller that lives begins the job's next life
//!           └── its process is about to be gone, or it lives ► looked at again, for some seconds
//! ```
//! A process that was killed has its lock until what it waits for in a file system has come. So the lock is looked at several times, and what a look takes that the
//! directory holds up does not count. A node whose lease is over confirms nobody in that life of the job any more, so its word is worth a vote.
//!
//! Faults assumed: the controller was killed, stands still, or lives and only its connections broke; the directory hangs meanwhile; nodes are silent for a while.

use super::last_controller::{replaced, votes};
use super::log;
use crate::job_link::Vote;
use crate::job_lock::JobLock;
use crate::lock_identity::LockIdentity;
use crate::record::{JobDirectory, RecordError};
use mend_coordination::renewal::may_seize;
use std::time::{Duration, Instant};

/// How long it is tried, as far as the directory answers.
const TRYING_TIME: Duration = Duration::from_secs(10);
/// Of a look no more than this counts.
const LOOK_TIME: Duration = Duration::from_millis(250);
/// Bounds of the time between two looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// A controller that lives begins the job's next life within half of a lease: so long is it waited for, and this long at most.
const NEXT_LIFE_TIME: Duration = Duration::from_secs(5);

/// The lock that was won.
pub(super) struct Won {
    pub(super) lock: JobLock,
    /// If it was taken with votes: those of the nodes of the life of this epoch.
    pub(super) voted: Option<u64>,
}

/// What the nodes of a life say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ballot {
    /// More than half of all, and all that answer, have not heard the controller for a third of the lease.
    Enough {
        epoch: u64,
        /// Ranks of the job wait for a controller.
        urgent: bool,
        lease: Duration,
    },
    /// A node has heard it.
    Heard,
    /// Neither, or the job is between two lives, when a controller has nothing to say to nodes.
    Short,
}

/// Tries to get the job. `silent`: its controller was not seen to end, it is only not heard. `None`: another process has it, or it needs none.
pub(super) async fn elect(directory: &JobDirectory, id: &str, silent: bool) -> Option<Won> {
    let (mut tried, mut pause, mut without_ranks) = (Duration::ZERO, PAUSE.0, None);
    // Of whoever holds it now, and of no successor that has it by then.
    let holder = LockIdentity::of(directory.path());
    while tried < TRYING_TIME {
        let began = Instant::now();
        if directory.record().is_ok_and(|record| record.ended.is_some()) {
            return None;
        }
        match directory.lock(id) {
            Ok(lock) => return replaced(directory, id, lock).await.map(|lock| Won { lock, voted: None }),
            Err(RecordError::Running { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, "the job's lock cannot be looked at");
                return None;
            }
        }
        let now = LockIdentity::of(directory.path());
        if now.is_some() && holder.is_some() && now != holder {
            break;
        }
        if let (true, Some(holder)) = (silent, holder) {
            match ballot(directory, holder).await {
                Ballot::Enough { epoch, urgent, lease } => {
                    let since = *without_ranks.get_or_insert(began);
                    if urgent || since.elapsed() > (lease / 2).min(NEXT_LIFE_TIME) {
                        match directory.seize_lock(id, holder) {
                            Ok(lock) => return Some(Won { lock, voted: Some(epoch) }),
                            Err(error) => tracing::info!(%error, "the job's lock is not taken"),
                        }
                    }
                }
                Ballot::Heard => break,
                Ballot::Short => without_ranks = None,
            }
        }
        tried += began.elapsed().min(LOOK_TIME) + pause;
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PAUSE.1);
    }
    tracing::info!("no successor is needed");
    None
}

/// Asks the nodes whether they have heard the controller, the holder of the lock: whether it is lost, and not only the way from it to here.
async fn ballot(directory: &JobDirectory, holder: LockIdentity) -> Ballot {
    let (Some(found), Ok(record)) = (log::read(directory.path()), directory.record()) else { return Ballot::Short };
    let life = found.life.clone();
    let standing = found.stand(&record);
    if standing.job.is_over() {
        return Ballot::Short;
    }
    match votes(&life, life.lease_ms / 3).await {
        Ok(mut votes) => {
            // The job runs on without these: that their leases are over says nothing of its controller.
            for (node, _) in &standing.lost {
                votes.get_mut(*node as usize).and_then(Option::take);
            }
            match count(&votes, life.epoch, Duration::from_millis(life.lease_ms)) {
                // Whoever has taken its place meanwhile, as a restart, has no nodes yet.
                Ballot::Enough { urgent: false, .. } if life.holder != holder.number() => Ballot::Short,
                ballot => ballot,
            }
        }
        Err(error) => {
            tracing::warn!(%error, "nodes cannot be asked for their votes");
            Ballot::Short
        }
    }
}

fn count(votes: &[Option<Vote>], epoch: u64, lease: Duration) -> Ballot {
    let said: Vec<Vote> = votes.iter().copied().flatten().filter(|vote| *vote != Vote::Absent).collect();
    let given: Vec<bool> = said.iter().map(|vote| *vote != Vote::Controller).collect();
    if may_seize(&given, votes.len()) {
        return Ballot::Enough { epoch, urgent: said.contains(&Vote::Successor), lease };
    }
    if given.contains(&false) { Ballot::Heard } else { Ballot::Short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_whose_leases_are_over_vote_and_are_in_no_hurry() {
        let lease = Duration::from_secs(3);
        let counted = |votes: &[Option<Vote>]| count(votes, 7, lease);
        let enough = |urgent| Ballot::Enough { epoch: 7, urgent, lease };
        assert_eq!(counted(&[Some(Vote::LeaseOver), Some(Vote::LeaseOver)]), enough(false));
        assert_eq!(counted(&[Some(Vote::LeaseOver), Some(Vote::Successor), None]), enough(true));
        // Half of them is not enough, and those that know nothing of the job say nothing.
        assert_eq!(counted(&[Some(Vote::LeaseOver), None]), Ballot::Short);
        assert_eq!(counted(&[Some(Vote::Successor), Some(Vote::Absent)]), Ballot::Short);
        assert_eq!(counted(&[Some(Vote::Successor), Some(Vote::Successor), Some(Vote::Controller)]), Ballot::Heard);
    }
}
