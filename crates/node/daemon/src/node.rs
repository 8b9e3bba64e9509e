//! What all jobs on this node share.

use crate::privileges::Isolation;
use mend_messages::job::Secret;
use mend_transfer::peer::Admitted;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// This node.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The user's secret: controllers must hold it.
    pub secret: Secret,
    /// Address for ranks of other nodes; `None` takes the one that the controller reached.
    pub advertised: Option<IpAddr>,
    /// It listens on all addresses.
    pub everywhere: bool,
    /// Limit on open files that this daemon was started with, for its ranks; `None` if there was none.
    pub open_files: Option<u64>,
    /// Whether ranks get namespaces.
    pub isolation: Isolation,
    /// `libmend-fi.so`, if it was found.
    pub library: Option<PathBuf>,
    /// `mend-restorer`, if it was found.
    pub restorer: Option<PathBuf>,
    /// Jobs that are here, by identity.
    pub jobs: Mutex<HashMap<[u8; 16], TransferQueue>>,
}

/// How transfers find their job.
#[derive(Debug)]
pub struct TransferQueue {
    secret: Secret,
    transfers: mpsc::Sender<Admitted>,
}

/// A job's presence; dropping it takes the job off the list.
#[derive(Debug)]
pub struct JobRegistration {
    node: Arc<Node>,
    identity: [u8; 16],
}

impl Node {
    fn jobs(&self) -> MutexGuard<'_, HashMap<[u8; 16], TransferQueue>> {
        // The map is only ever changed by whole entries, so a panic elsewhere leaves it sound.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job on the list; `None` if it is there already.
    pub fn register(self: &Arc<Self>, identity: [u8; 16], secret: Secret, transfers: mpsc::Sender<Admitted>) -> Option<JobRegistration> {
        let mut jobs = self.jobs();
        if jobs.contains_key(&identity) {
            return None;
        }
        jobs.insert(identity, TransferQueue { secret, transfers });
        Some(JobRegistration { node: self.clone(), identity })
    }

    /// The secret of a job that is here.
    pub fn secret_of(&self, identity: &[u8; 16]) -> Option<Secret> {
        self.jobs().get(identity).map(|job| job.secret.clone())
    }

    /// Hands a transfer to its job; closes it if the job has left.
    pub async fn deliver(&self, admitted: Admitted) {
        let transfers = self.jobs().get(&admitted.job).map(|job| job.transfers.clone());
        if let Some(transfers) = transfers {
            // A job that is leaving drops it, which closes it.
            let _ = transfers.send(admitted).await;
        }
    }
}

impl Drop for JobRegistration {
    fn drop(&mut self) {
        self.node.jobs().remove(&self.identity);
    }
}
