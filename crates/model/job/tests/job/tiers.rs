//! A restarted job and the copies of its checkpoints: what the restart found and brought counts, and what is on record of object storage.

use crate::world::World;
use mend_job::end::{End, GoesOn};
use mend_job::event::{Effect, Event};
use mend_job::phase::NodeLoss;
use mend_job::setup::{Adopted, AdoptedImage, NodeSetup, Restoring, SearchSetup, Setup, TierSetup};
use mend_messages::agent::{Inspection, Reply, Request, Saved};
use mend_messages::control::Ask;
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_messages::tier::{
    Destination, Holding, ImageLocation, ImageOrigin, ImageRef, NodeStore, Tier, TierDone, TierOrder, TierReport, parse_tiers,
};
use mend_policy::restarts::Restart;
use std::collections::BTreeMap;
use std::path::PathBuf;

const BYTES: u64 = 5;

fn image(rank: Rank) -> ImageRef {
    ImageRef { number: 5, rank, bytes: BYTES, checksum: 0, id: Default::default() }
}

/// A node's memory has these ranks' images of checkpoint 5.
fn memory(ranks: &[Rank]) -> Vec<Holding> {
    vec![Holding { store: NodeStore::Memory, number: 5, images: ranks.iter().map(|rank| (*rank, BYTES)).collect() }]
}

/// A job of as many ranks as `places` on nodes n0, n1, …, restarted from checkpoint 5, of which nodes hold that much. The ranks were on n0, n1, … before.
struct Restarted {
    world: World,
    /// Where nodes put what comes from elsewhere.
    ground: &'static str,
    holdings: BTreeMap<NodeIndex, Vec<Holding>>,
    removed: Vec<(NodeIndex, TierOrder)>,
    emptied: Vec<u64>,
}

impl Restarted {
    fn of(tiers: &str, objects: &[&str], places: [NodeIndex; 2], holdings: [Vec<Holding>; 3]) -> Self {
        Self::with_others(tiers, (tiers, "/dev/shm"), objects, places, holdings)
    }

    /// The same in a job that had other tiers before.
    fn with_others(
        before: &str,
        (tiers, ground): (&str, &'static str),
        objects: &[&str],
        places: [NodeIndex; 2],
        holdings: [Vec<Holding>; 3],
    ) -> Self {
        let (before, specs) = (parse_tiers(before).unwrap(), parse_tiers(tiers).unwrap());
        let objects = objects.iter().map(|object| Tier::Object((*object).to_owned())).collect();
        let change = |setup: &mut Setup| {
            setup.nodes = (0..3u8).map(|at| NodeSetup { name: format!("n{at}"), address: ([10, 0, 0, at], 7000).into() }).collect();
            setup.places = places.into();
            setup.tiers = Some(TierSetup { specs: specs.clone(), rate: 0, writers: 1, wide_percent: 0 });
            setup.listed = vec![5];
            let adopted = |rank: Rank| AdoptedImage { image: image(rank), host: format!("n{rank}"), base: None, shared: false };
            setup.adopted = vec![Adopted { number: 5, periodic: false, images: (0..2).map(adopted).collect(), objects }];
            let lineage = (0..2).map(|rank| vec![image(rank)]).collect();
            setup.restoring = Some(Restoring {
                number: 5,
                chains: vec![Vec::new(); 2],
                images: vec![Default::default(); 2],
                needs: Vec::new(),
                reads: Restart { read_us: 0, full: BYTES, incremental: 0 },
                checkpoint: "/c/5".into(),
                files: Vec::new(),
                search: Some(SearchSetup { specs: before, rate: 0, lineage, shared: BTreeMap::new(), check: false }),
            });
        };
        let world = World::beginning(change);
        let holdings = (0..).zip(holdings).collect();
        let mut restarted = Self { world, ground, holdings, removed: Vec::new(), emptied: Vec::new() };
        restarted.answer_all();
        restarted
    }

    fn says(&mut self, node: NodeIndex, message: FromDaemon) {
        self.world.handle(Event::Daemon { node, message });
    }

    fn done(&mut self, node: NodeIndex, task: u64, found: TierDone) {
        self.says(node, FromDaemon::Tier(TierReport::Done { task, result: Ok(found) }));
    }

    /// Until nothing more is wanted.
    fn answer_all(&mut self) {
        while !self.world.effects.is_empty() {
            for effect in std::mem::take(&mut self.world.effects) {
                match effect {
                    Effect::Send { node, message } => self.answer(node, message),
                    Effect::Prepare { number, .. } => self.world.handle(Event::Prepared { number, result: Ok(true) }),
                    Effect::Publish(publication) => {
                        let number = publication.number;
                        self.world.handle(Event::Published { number, result: Ok(format!("/c/{number}")) });
                    }
                    Effect::StoreManifest { task, node, .. } => self.done(node, task, TierDone::Stored),
                    Effect::RemoveIfEmpty { number } => {
                        self.emptied.push(number);
                        self.world.handle(Event::Emptied { number, gone: true });
                    }
                    _ => {}
                }
            }
        }
    }

    fn answer(&mut self, node: NodeIndex, message: ToDaemon) {
        match message {
            ToDaemon::Tier(order) => self.answer_tier(node, *order),
            ToDaemon::Restore { rank, attempt, .. } => {
                self.says(node, FromDaemon::Restored { rank, attempt, restart_us: 1, bytes: 1 });
                let address = FabricAddress { tcp: ([10, 0, 0, 1], 1).into(), unix: String::new() };
                self.says(node, FromDaemon::FabricUp { rank, attempt, address });
            }
            ToDaemon::Ask(steps) => {
                for question in steps.into_iter().flatten() {
                    let reply = match question.request {
                        Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
                        Request::Suspend => Reply::Suspended { us: 1 },
                        Request::KeepFiles(_) => Reply::Kept(Vec::new()),
                        _ => Reply::Resumed { stopped_us: 1 },
                    };
                    self.says(node, FromDaemon::Agent { seq: question.seq, rank: question.rank, reply });
                }
            }
            _ => {}
        }
    }

    fn answer_tier(&mut self, node: NodeIndex, order: TierOrder) {
        match order {
            TierOrder::Inventory { task } => {
                let held = self.holdings.get(&node).cloned().unwrap_or_default();
                self.done(node, task, TierDone::Holdings(held));
            }
            TierOrder::Fetch { task, image, from, .. } => {
                assert_ne!(from, ImageOrigin::File("".into()));
                let path = PathBuf::from(format!("{}/mend.0/n{node}/07/5/rank-{}.image", self.ground, image.rank));
                self.done(node, task, TierDone::Image(path));
            }
            TierOrder::Copy { task, .. } | TierOrder::Receive { task, .. } => self.done(node, task, TierDone::Stored),
            TierOrder::Save { seq, rank, number, stores, .. } => {
                let place = ImageLocation::NodeStore(stores[0].clone());
                self.says(node, FromDaemon::Tier(TierReport::Placed { rank, number, place }));
                self.says(node, FromDaemon::Agent { seq, rank, reply: Reply::Saved(Saved::default()) });
            }
            order @ TierOrder::Remove { .. } => self.removed.push((node, order)),
            _ => {}
        }
    }

    fn checkpoint(&mut self) {
        self.world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
        self.answer_all();
        assert_eq!(self.world.job.newest_listed(), Some(6));
    }

    /// From what the job can go on that has lost this node.
    fn loses(&mut self, node: NodeIndex) -> GoesOn {
        self.world.handle(Event::NodeLost { node, how: NodeLoss::Silent(1) });
        match self.world.job.end_reason() {
            Some(End::NodeLost { goes_on, .. }) => *goes_on,
            other => panic!("{other:?}"),
        }
    }

    fn removes_from_memory(&self, node: NodeIndex, rank: Rank) -> bool {
        self.removes(NodeStore::Memory, node, rank)
    }

    fn removes(&self, store: NodeStore, node: NodeIndex, rank: Rank) -> bool {
        let place = Destination::NodeStore(store);
        self.removed.contains(&(node, TierOrder::Remove { place, number: 5, ranks: vec![rank] }))
    }
}

#[test]
fn what_object_storage_has_by_the_record_counts() {
    let objects = ["s3://b/p"];
    let mut job = Restarted::of("memory,s3://b/p", &objects, [0, 1], [memory(&[0]), memory(&[1]), Vec::new()]);
    job.checkpoint();
    assert_eq!(job.emptied, [0; 0], "checkpoint 5 is in object storage");
    // Rank 1's image was fetched from there when its node was lost.
    let mut job = Restarted::of("memory,s3://b/p", &objects, [0, 2], [memory(&[0]), Vec::new(), Vec::new()]);
    assert_eq!(job.loses(0), GoesOn::From(5));
    // Without the record nothing is known of it.
    let mut job = Restarted::of("memory,s3://b/p", &[], [0, 2], [memory(&[0]), Vec::new(), Vec::new()]);
    assert_eq!(job.loses(0), GoesOn::NotAllThere);
}

#[test]
fn objects_go_and_the_manifest_with_the_last_of_them() {
    let mut job = Restarted::of("memory,s3://b/p@1", &["s3://b/p"], [0, 1], [memory(&[0]), memory(&[1]), Vec::new()]);
    job.checkpoint();
    assert_eq!(job.emptied, [5]);
    let place = Destination::Object("s3://b/p/job/5/manifest.json".into());
    let objects: Vec<&TierOrder> = job
        .removed
        .iter()
        .map(|(_, order)| order)
        .filter(|order| matches!(order, TierOrder::Remove { place: Destination::Object(_), .. }))
        .collect();
    assert_eq!(objects, [&TierOrder::Remove { place, number: 5, ranks: vec![0, 1] }]);
}

#[test]
fn what_a_restart_has_fetched_counts_and_goes() {
    // n0 is lost: rank 0's image comes from its partner to n2.
    let holdings = || [Vec::new(), memory(&[1, 0]), Vec::new()];
    let mut job = Restarted::of("memory,partner", &[], [2, 1], holdings());
    assert!(!job.removes_from_memory(2, 0));
    job.checkpoint();
    assert!(job.removes_from_memory(2, 0), "{:?}", job.removed);
    // n1 is lost before that: what n2 has is enough for rank 0.
    let mut holdings = holdings();
    holdings[2] = memory(&[1]);
    let mut job = Restarted::of("memory,partner", &[], [2, 1], holdings);
    assert_eq!(job.loses(1), GoesOn::From(5));
}

#[test]
fn what_was_fetched_into_a_tier_that_is_new_goes_from_there() {
    let holdings = [memory(&[0]), memory(&[1]), Vec::new()];
    let mut job = Restarted::with_others("memory,shared", ("local:/b@1,memory,shared", "/b"), &[], [2, 1], holdings);
    job.checkpoint();
    assert!(job.removes(NodeStore::Directory("/b".into()), 2, 0), "{:?}", job.removed);
    assert!(!job.removes_from_memory(2, 0), "{:?}", job.removed);
}
