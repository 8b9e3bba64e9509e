use super::*;
use crate::outbox::{Outbox, queues};
use mend_messages::agent::{Compression, ImageId, Reply, SaveOrder, SaveTarget, Saved, Unasked, Unwritten};
use mend_messages::health::NodeHealth;
use mend_messages::job::{Program, Secret};
use mend_node_job::NodeJob;
use mend_node_job::event::{Event, Refusal, Setup};
use mend_transfer::node_store::OpenNodeStore;
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

/// The tiers of a job, what they tell its controller, and where its ranks save.
type Own = (Tiers, Outbox, mpsc::UnboundedReceiver<ChosenPlace>);

fn tiers(identity: [u8; 16], shared: &NodeTiers) -> Own {
    let (urgent, _, outbox) = queues();
    let (chosen, places) = mpsc::unbounded_channel();
    let patience = Duration::from_secs(30);
    (Tiers::new(job(identity), ("n", &Arc::default(), shared), (urgent, chosen), patience, None, Arc::default()), outbox, places)
}

/// Names the question.
const SEQ: u64 = 7;
const AGENT: u64 = 1;
const IMAGE: ImageId = ImageId([5; 16]);

async fn placed(tiers: &mut Own, store: &NodeStore, needed: u64) -> bool {
    tiers.0.place((SEQ, 0), 1, std::slice::from_ref(store), needed, SaveOrder::full(SaveTarget::File("/last/resort".into())));
    let chosen = tiers.2.recv().await.unwrap();
    assert!(matches!(tiers.0.placed(chosen), Event::Placed { seq: SEQ, rank: 0, .. }));
    loop {
        match tiers.1.next(true).await {
            Some(FromDaemon::Tier(TierReport::Placed { place, .. })) => return place == ImageLocation::NodeStore(store.clone()),
            Some(_) => {}
            None => panic!("nothing is said of the place"),
        }
    }
}

/// Two jobs on a node, its store in this directory, and more bytes than half of the store's room.
fn two_jobs(directory: &tempfile::TempDir) -> (NodeStore, [Own; 2], u64) {
    let store = NodeStore::Directory(directory.path().to_owned());
    let shared = NodeTiers::default();
    let most = OpenNodeStore::open(store.clone(), "n", &[3; 16]).unwrap().room().unwrap() / 3 * 2;
    (store, [[1; 16], [2; 16]].map(|identity| tiers(identity, &shared)), most)
}

/// Both wrote, and ranks were killed for want of memory.
#[tokio::test]
async fn what_one_job_is_about_to_write_is_not_there_for_another() {
    let directory = tempfile::tempdir().unwrap();
    let (store, [mut one, mut other], most) = two_jobs(&directory);
    assert!(placed(&mut one, &store, most).await);
    assert!(!placed(&mut other, &store, most).await);
    // What is written counts in the file system.
    one.0.follow(&sent(SEQ, Unasked::Left));
    assert!(placed(&mut other, &store, most).await);
    assert!(!placed(&mut one, &store, most).await);
    drop(other);
    assert!(placed(&mut one, &store, most).await);
}

fn sent(seq: u64, why: Unasked) -> Effect {
    Effect::Send(FromDaemon::Agent { seq, rank: 0, reply: Reply::Unasked(why) })
}

fn kept(reply: Reply) -> Effect {
    Effect::Keep { agent: AGENT, number: 1, seq: SEQ, rank: 0, reply }
}

fn saved(behind: bool) -> Reply {
    Reply::Saved(Saved {
        id: IMAGE,
        base: None,
        sequence: 0,
        behind,
        bytes: 0,
        spared: 0,
        pages: 0,
        checksum: 0,
        park_us: 0,
        write_us: 0,
        note: None,
    })
}

/// Other jobs had no room any more.
#[tokio::test]
async fn a_save_gives_its_room_back_however_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (store, [mut one, mut other], most) = two_jobs(&directory);
    let failed = || Reply::Failed { error: "no".into(), hint: String::new() };
    let lost = |id| Effect::Send(FromDaemon::Written { rank: 0, id, result: Err(Unwritten::Ended) });
    let written = |image| Effect::Written { agent: AGENT, rank: 0, image, result: Err("no".into()) };
    let ends = [
        vec![sent(SEQ, Unasked::NotHere)],
        vec![Effect::Send(FromDaemon::Agent { seq: SEQ, rank: 0, reply: failed() })],
        vec![Effect::Refuse { seq: SEQ, rank: 0, why: Refusal::Agentless }],
        vec![kept(failed())],
        vec![kept(saved(false))],
        vec![kept(saved(true)), lost(IMAGE)],
        vec![kept(saved(true)), written(IMAGE)],
    ];
    for mut end in ends {
        assert!(placed(&mut one, &store, most).await, "{end:?}");
        // Of other questions, and of an image before.
        for effect in [sent(SEQ - 1, Unasked::Ended), lost(ImageId::default()), written(ImageId::default())] {
            one.0.follow(&effect);
        }
        let last = end.pop().unwrap();
        end.iter().for_each(|effect| one.0.follow(effect));
        assert!(!placed(&mut other, &store, most).await, "{last:?}");
        one.0.follow(&last);
        assert!(placed(&mut other, &store, most).await, "{last:?}");
        other.0.release(0);
    }
}

/// The machine's answer for a rank that is not here.
#[tokio::test]
async fn a_save_of_a_rank_that_is_not_here_gives_its_room_back() {
    let directory = tempfile::tempdir().unwrap();
    let (store, [mut one, mut other], most) = two_jobs(&directory);
    assert!(placed(&mut one, &store, most).await);
    let setup = Setup { size: 1, lease_us: 30_000_000, health: NodeHealth::default(), standing: Vec::new(), watches_traffic: false };
    let (mut machine, _) = NodeJob::begin(setup);
    let order = SaveOrder::full(SaveTarget::File("/".into()));
    for effect in machine.handle(0, Event::Placed { seq: SEQ, rank: 0, order }) {
        one.0.follow(&effect);
    }
    assert!(placed(&mut other, &store, most).await);
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
