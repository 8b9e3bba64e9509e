//! A target whose medium takes nothing more for a while.

use crate::cluster::Cluster;
use rustix::process::{Pid, Resource, prlimit};

/// Whether the medium of a target takes anything.
pub fn takes(cluster: &Cluster, at: usize, takes: bool) {
    let process = Pid::from_child(cluster.targets[at].as_ref().unwrap());
    let before = rustix::process::getrlimit(Resource::Fsize);
    let limit = rustix::process::Rlimit { current: if takes { before.current } else { Some(0) }, ..before };
    prlimit(Some(process), Resource::Fsize, limit).unwrap();
}

/// True if a target has ended by itself.
pub fn has_ended(cluster: &mut Cluster, at: usize) -> bool {
    cluster.targets[at].as_mut().unwrap().try_wait().unwrap().is_some()
}
