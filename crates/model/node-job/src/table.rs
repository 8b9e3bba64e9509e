//! The jobs that are on a node: which start of each, and which controller may have it.
//!
//! A job's epoch grows with each start, and a session names its controller. A later start makes an earlier one leave. A controller's successor brings a
//! session of its own, after which the one before cannot resume the job.

use mend_messages::daemon::{Resumption, Succession};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Of so many jobs a node keeps in mind that their lease was over.
const LEASES_OVER: usize = 16;

/// Names a job among all others of its user.
pub type Identity = [u8; 16];

/// A start of a job that is on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Start {
    epoch: u64,
    session: [u8; 16],
    /// The session before: a successor that was lost before it could write down the new one knows that.
    before: [u8; 16],
    /// The node has voted for a successor of this session's controller.
    voted: bool,
}

impl Start {
    fn is(&self, of: &Resumption) -> bool {
        self.epoch == of.epoch && [self.session, self.before].contains(&of.session)
    }
}

/// A job that has left the node since its lease was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseOver {
    /// The session that it had, and the one before.
    sessions: [[u8; 16]; 2],
    /// How long the lease was, microseconds.
    pub lease_us: u64,
    /// For how much of it the node itself stood still, microseconds.
    pub stood_still_us: u64,
}

/// Why a start of a job cannot come to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// An earlier start of it is here, and has to leave first.
    Leaving,
    /// This start, or a later one, is here.
    Here {
        /// The epoch of that.
        epoch: u64,
    },
}

/// All jobs on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTable {
    jobs: BTreeMap<Identity, Start>,
    /// The newest ones, newest first.
    leases_over: VecDeque<LeaseOver>,
}

impl JobTable {
    /// A job comes. Where an earlier start of it is here that one is to be told to leave, and this one to be entered again when it has left.
    ///
    /// # Errors
    /// This or another start of the job is here: [`Present`] says which, and whether it leaves.
    pub fn enter(&mut self, identity: Identity, epoch: u64, session: [u8; 16]) -> Result<(), Present> {
        match self.jobs.get(&identity) {
            Some(present) if present.epoch >= epoch => Err(Present::Here { epoch: present.epoch }),
            Some(_) => Err(Present::Leaving),
            None => {
                self.jobs.insert(identity, Start { epoch, session, before: session, voted: false });
                Ok(())
            }
        }
    }

    /// A job has left.
    pub fn leave(&mut self, identity: &Identity) {
        self.jobs.remove(identity);
    }

    /// Whether a controller that comes back may have its job: this start is here, and nobody has taken the controller's place.
    #[must_use]
    pub fn may_resume(&self, of: &Resumption) -> bool {
        self.jobs.get(&of.identity).is_some_and(|job| (job.epoch, job.session) == (of.epoch, of.session))
    }

    /// A successor takes the place of a job's controller. False if that start of the job is not here, or another successor has it.
    #[must_use]
    pub fn succeed(&mut self, Succession { of, session }: &Succession) -> bool {
        let Some(job) = self.jobs.get_mut(&of.identity).filter(|job| job.is(of)) else { return false };
        *job = Start { epoch: job.epoch, session: *session, before: of.session, voted: false };
        true
    }

    /// A successor asks for this node's vote; the controller was `silent` for as long as it takes. True if it has the vote.
    ///
    /// A vote is never taken back: who has it may be about to take the job's lock at any later time.
    #[must_use]
    pub fn vote(&mut self, of: &Resumption, silent: bool) -> bool {
        let Some(job) = self.jobs.get_mut(&of.identity).filter(|job| silent && job.is(of)) else { return false };
        job.voted = true;
        true
    }

    /// Whether the controller of this session has the job as far as this node knows: nobody has succeeded it here, or may be about to with this node's vote.
    #[must_use]
    pub fn confirms(&self, of: &Resumption) -> bool {
        self.may_resume(of) && self.jobs.get(&of.identity).is_some_and(|job| !job.voted)
    }

    /// Whether this start of a job is here, and its controller is this one or that one's successor.
    #[must_use]
    pub fn is_here(&self, of: &Resumption) -> bool {
        self.jobs.get(&of.identity).is_some_and(|job| job.is(of))
    }

    /// Keeps in mind that a job leaves since its lease is over, for its controller when that comes back.
    pub fn note_lease_over(&mut self, identity: &Identity, lease_us: u64, stood_still_us: u64) {
        let Some(sessions) = self.jobs.get(identity).map(|job| [job.session, job.before]) else { return };
        self.leases_over.truncate(LEASES_OVER - 1);
        self.leases_over.push_front(LeaseOver { sessions, lease_us, stood_still_us });
    }

    /// What is kept in mind of the job of this session.
    #[must_use]
    pub fn lease_over(&self, session: &[u8; 16]) -> Option<LeaseOver> {
        self.leases_over.iter().find(|over| over.sessions.contains(session)).copied()
    }
}
