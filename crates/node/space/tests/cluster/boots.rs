//! Targets whose nodes were started anew.

use crate::cluster::Cluster;
use std::fs;
use std::process::Command;

/// In namespaces of its own a target sees another number of the node's start.
const OWN_NAMESPACES: [&str; 4] = ["unshare", "-rm", "sh", "-c"];

/// True where this user may make such namespaces; else it is said.
pub fn can_be_made() -> bool {
    let may = Command::new(OWN_NAMESPACES[0]).args([OWN_NAMESPACES[1], "true"]).status().is_ok_and(|status| status.success());
    if !may {
        eprintln!("this user may make no namespaces: no node can seem to be started anew");
    }
    may
}

/// A target comes back as if its node had lost its power.
pub fn start_anew(cluster: &mut Cluster, at: usize) {
    let boot = cluster.directory.path().join("boot");
    fs::write(&boot, "another start").unwrap();
    let script = format!("mount --bind '{}' /proc/sys/kernel/random/boot_id && exec \"$0\" \"$@\"", boot.display());
    cluster.start_by(at, &[OWN_NAMESPACES[0], OWN_NAMESPACES[1], OWN_NAMESPACES[2], OWN_NAMESPACES[3], &script]);
}
