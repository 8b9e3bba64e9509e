//! File systems that hang: they hold up the job that uses them, and nobody else.

use crate::controller::{Controller, Daemon, User};
use mend_messages::agent::{Reply, SaveOrder, SaveTarget};
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::tier::{ImageLocation, NodeStore, TierOrder, TierReport};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A directory whose file server never says a word.
struct Hanging {
    path: PathBuf,
    server: Option<File>,
}

impl Hanging {
    /// `None` if this user may mount nothing.
    fn at(path: &Path) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let server = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = CString::new(options).unwrap();
        mount("hanging", path, "fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str())).ok()?;
        Some(Self { path: path.to_owned(), server: Some(server) })
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // With it ends whoever waits for an answer.
        self.server = None;
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

/// Orders that a rank which is not here saves in the job's only store.
async fn save(job: &mut Controller, store: &NodeStore) {
    let stores = vec![store.clone()];
    let order = SaveOrder::full(SaveTarget::File("/last/resort".into()));
    job.send(ToDaemon::Tier(Box::new(TierOrder::Open { stores: stores.clone(), keep: vec![], rate: 0 }))).await;
    job.send(ToDaemon::Tier(Box::new(TierOrder::Save { seq: 1, rank: 0, number: 1, stores, needed: 1, order }))).await;
}

/// Where it goes; and why not into the store, if anything is said of that.
async fn place(job: &mut Controller) -> (ImageLocation, Vec<String>) {
    let (mut placed, mut passed_over) = (None, Vec::new());
    loop {
        match job.next().await {
            FromDaemon::Tier(TierReport::PassedOver { why, .. }) => passed_over.push(why),
            FromDaemon::Tier(TierReport::Placed { rank: 0, number: 1, place }) => placed = Some(place),
            FromDaemon::Agent { seq: 1, rank: 0, reply: Reply::Unasked(_) } => {
                return (placed.expect("its place is told before"), passed_over);
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn leaves(mut job: Controller) {
    job.send(ToDaemon::End { goes_on: false }).await;
    while let Some(said) = job.try_next().await {
        assert!(matches!(said, FromDaemon::Progress(_) | FromDaemon::Tier(_)), "{said:?}");
    }
}

#[test]
fn a_directory_that_hangs_holds_up_its_own_job_alone_and_is_named() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("only root mounts a file system where its daemon sees it");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let daemon = Daemon::start(User::Ourselves);
        let away = daemon.directory.path().join("away");
        let Some(_hanging) = Hanging::at(&away) else { return eprintln!("nothing can be mounted here") };
        let there = daemon.directory.path().join("there");
        std::fs::create_dir(&there).unwrap();
        let (away, there) = (NodeStore::Directory(away), NodeStore::Directory(there));
        let mut held_up = daemon.job(&["true"], 1).await;
        save(&mut held_up, &away).await;
        for _ in 0..2 {
            let mut other = daemon.job(&["true"], 1).await;
            save(&mut other, &there).await;
            assert_eq!(place(&mut other).await, (ImageLocation::NodeStore(there.clone()), vec![]));
            leaves(other).await;
        }
        let (place, why) = place(&mut held_up).await;
        assert_eq!(place, ImageLocation::File("/last/resort".into()));
        let NodeStore::Directory(path) = away else { unreachable!() };
        assert!(!why.is_empty() && why.iter().all(|why| why.contains(path.to_str().unwrap())), "{why:?}");
        leaves(held_up).await;
    });
}
