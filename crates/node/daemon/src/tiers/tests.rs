use super::*;
use crate::outbox::{Outbox, queues};
use mend_messages::agent::Compression;
use mend_messages::job::{Program, Secret};
use mend_wire::Source;

fn job(identity: [u8; 16]) -> Arc<JobIntroduction> {
    Arc::new(JobIntroduction {
        epoch: 1,
        ranks: vec![0],
        session: [4; 16],
        id: "job".into(),
        identity,
        secret: Secret([1; 32]),
        size: 1,
        node: 0,
        program: Program { argv: vec!["program".into()], env: Vec::new(), cwd: "/".into(), umask: None, further: Vec::new() },
        encryption_key: None,
        encrypt_data: false,
        compression: Compression::Off,
        transport: mend_messages::chunks::Transport::Tcp,
        node_timeout_ms: 30_000,
        lease_ms: 30_000,
        unused_features: Default::default(),
        successor: None,
        worlds: Vec::new(),
    })
}

fn tiers(identity: [u8; 16], shared: &NodeTiers) -> (Tiers, Outbox) {
    let (urgent, _, outbox) = queues();
    let patience = Duration::from_secs(30);
    (Tiers::new(job(identity), ("n", &Arc::default(), shared), urgent, patience, None, Arc::default()), outbox)
}

async fn placed(tiers: &mut (Tiers, Outbox), store: &NodeStore, needed: u64) -> bool {
    tiers.0.place(0, 1, std::slice::from_ref(store), needed, SaveOrder::full(SaveTarget::File("/last/resort".into())));
    loop {
        match tiers.1.next(true).await {
            Some(FromDaemon::Tier(TierReport::Placed { place, .. })) => return place == ImageLocation::NodeStore(store.clone()),
            Some(_) => {}
            None => panic!("nothing is said of the place"),
        }
    }
}

/// Both wrote, and ranks were killed for want of memory.
#[tokio::test]
async fn what_one_job_is_about_to_write_is_not_there_for_another() {
    let directory = tempfile::tempdir().unwrap();
    let store = NodeStore::Directory(directory.path().to_owned());
    let shared = NodeTiers::default();
    let (mut one, mut other) = (tiers([1; 16], &shared), tiers([2; 16], &shared));
    let most = OpenNodeStore::open(store.clone(), "n", &[3; 16]).unwrap().room().unwrap() / 3 * 2;
    assert!(placed(&mut one, &store, most).await);
    assert!(!placed(&mut other, &store, most).await);
    // What is written counts in the file system.
    one.0.written(0);
    assert!(placed(&mut other, &store, most).await);
    assert!(!placed(&mut one, &store, most).await);
    drop(other);
    assert!(placed(&mut one, &store, most).await);
}

/// Copies fill all threads that the runtime has for what takes no time.
#[test]
fn copies_take_no_threads_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let copies: Vec<_> = (0..8)
            .map(|_| {
                let held = held.clone();
                tokio::spawn(work(false, move || {
                    let _ = held.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
                    Ok(())
                }))
            })
            .collect();
        assert_eq!(crate::bounded::within(Duration::from_secs(20), || 7).await, Some(7));
        drop(release);
        for copy in copies {
            copy.await.unwrap().unwrap();
        }
    });
}
