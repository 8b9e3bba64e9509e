//! A world of nodes that do what the machine asks, fail and vanish, by proptest's seeds.

use super::*;
use mend_messages::tier::parse_tiers;
use proptest::prelude::*;

const NODES: u32 = 3;

/// The others are periodic.
fn asked_for(number: u64) -> bool {
    number.is_multiple_of(3)
}

/// What is really stored, and what is to be done.
struct World {
    machine: Replication,
    /// (tier, node, number, rank)
    store: BTreeSet<(usize, Option<NodeIndex>, u64, Rank)>,
    bases: BTreeMap<(u64, Rank), Option<u64>>,
    nodes: BTreeSet<NodeIndex>,
    ranks: u32,
    open: Vec<Action>,
    complete: BTreeSet<(usize, u64)>,
    writers: usize,
}

impl World {
    fn new(tiers: &str, ranks: u32, keep: Option<u32>, writers: usize) -> Self {
        let tiers = parse_tiers(tiers).unwrap();
        let machine = Replication::new(tiers, 0..NODES, keep, 7, writers);
        let (store, bases, complete) = Default::default();
        Self { machine, store, bases, nodes: (0..NODES).collect(), ranks, open: Vec::new(), complete, writers }
    }

    /// With gaps, as where ranks of spawned worlds have ended.
    fn rank_numbers(&self) -> Vec<Rank> {
        (0..self.ranks).map(|at| at + at / 2).collect()
    }

    fn chain(&self, number: u64, rank: Rank) -> Vec<u64> {
        let mut chain = vec![number];
        while let Some(Some(base)) = self.bases.get(&(*chain.last().unwrap(), rank)) {
            chain.push(*base);
        }
        chain
    }

    fn restorable(&self) -> Option<u64> {
        self.restorable_without(NODES)
    }

    /// The newest checkpoint that can be restored when a node is lost.
    fn restorable_without(&self, node: NodeIndex) -> Option<u64> {
        let numbers: BTreeSet<u64> = self.bases.keys().map(|(number, _)| *number).collect();
        numbers.into_iter().rev().find(|&number| {
            let there = |number: u64, rank: Rank| self.store.iter().any(|(_, at, n, r)| (*n, *r) == (number, rank) && *at != Some(node));
            self.rank_numbers().into_iter().all(|rank| self.chain(number, rank).into_iter().all(|number| there(number, rank)))
        })
    }

    fn publish(&mut self, number: u64, incremental: bool, farther: bool) {
        let mut images = Vec::new();
        for rank in self.rank_numbers() {
            let home = *self.nodes.iter().nth(rank as usize % self.nodes.len()).unwrap();
            // Only an image that the machine still knows can be built on, as the controller names them.
            let base = (incremental && number > 1 && self.bases.contains_key(&(number - 1, rank))).then(|| number - 1);
            let tier = usize::from(farther && rank == 0);
            let site = (tier, (!self.machine.tiers()[tier].tier.is_common()).then_some(home));
            self.store.insert((site.0, site.1, number, rank));
            self.bases.insert((number, rank), base);
            let image = ImageRef { number, rank, bytes: 1, checksum: 0, id: Default::default() };
            images.push(Published { image, base, sites: vec![site] });
        }
        let actions = self.machine.published(number, !asked_for(number), images);
        self.take(actions);
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            match &action {
                Action::Remove { number, tier, node, ranks } => {
                    let before = self.restorable();
                    assert!(self.machine.tiers()[*tier].keep > 0 || !asked_for(*number), "{action:?}");
                    let site = (!self.machine.tiers()[*tier].tier.is_common()).then_some(*node);
                    self.store.retain(|(t, n, number_, rank)| (*t, *n, *number_) != (*tier, site, *number) || !ranks.contains(rank));
                    assert_eq!(before, self.restorable(), "{action:?}");
                }
                Action::Complete { number, tier } => {
                    for rank in self.rank_numbers() {
                        for number in self.chain(*number, rank) {
                            assert!(self.store.iter().any(|(t, _, n, r)| (*t, *n, *r) == (*tier, number, rank)), "{action:?}");
                        }
                    }
                    self.complete.insert((*tier, *number));
                }
                Action::GaveUp { .. } => {}
                Action::Copy { node, target, .. } => {
                    assert!(self.nodes.contains(node) && target.is_none_or(|target| target != *node && self.nodes.contains(&target)));
                    self.open.push(action);
                }
                Action::Manifest { .. } => self.open.push(action),
            }
        }
        for (tier, spec) in self.machine.tiers().iter().enumerate() {
            let copying = |action: &&Action| matches!(action, Action::Copy { to, .. } if *to == tier);
            let nodes: Vec<NodeIndex> = self
                .open
                .iter()
                .filter(copying)
                .map(|action| match action {
                    Action::Copy { node, .. } => *node,
                    _ => unreachable!(),
                })
                .collect();
            assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), nodes.len(), "a node copies twice at once for {}", spec.tier);
            assert!(!spec.tier.is_common() || nodes.len() <= self.writers);
        }
    }

    fn finish(&mut self, which: usize, good: bool) {
        if self.open.is_empty() {
            return;
        }
        let action = self.open.remove(which % self.open.len());
        let (task, result) = match action {
            Action::Copy { task, image, node, from, to, target } => {
                let source = |(t, n, number, rank): &(usize, Option<NodeIndex>, u64, Rank)| {
                    *t == from && n.is_none_or(|n| n == node) && (*number, *rank) == (image.number, image.rank)
                };
                // What a copy reads may be gone only if its checkpoint is.
                let there = self.store.iter().any(source);
                assert!(there || !self.bases.contains_key(&(image.number, image.rank)), "the source went: {image:?}");
                if good && there {
                    let site = (!self.machine.tiers()[to].tier.is_common()).then_some(target.unwrap_or(node));
                    self.store.insert((to, site, image.number, image.rank));
                }
                (task, if good && there { Ok(()) } else { Err("full".into()) })
            }
            Action::Manifest { task, .. } => (task, if good { Ok(()) } else { Err("full".into()) }),
            _ => unreachable!(),
        };
        let actions = self.machine.finished(task, result);
        self.take(actions);
    }

    fn lose(&mut self, node: NodeIndex) {
        if self.nodes.len() == 1 || !self.nodes.remove(&node) {
            return;
        }
        self.store.retain(|(_, at, ..)| *at != Some(node));
        self.open.retain(|action| match action {
            Action::Copy { node: by, target, .. } => *by != node && *target != Some(node),
            Action::Manifest { node: by, .. } => *by != node,
            _ => true,
        });
        let actions = self.machine.lost(node);
        self.take(actions);
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.open.is_empty() {
                return;
            }
            self.finish(0, true);
        }
        panic!("it does not end");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish { incremental: bool, farther: bool },
    Finish { which: usize, good: bool },
    Lose(NodeIndex),
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(incremental, farther)| Step::Publish { incremental, farther }),
        12 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(which, good)| Step::Finish { which, good }),
        1 => (0..NODES).prop_map(Step::Lose),
    ]
}

const LISTS: [&str; 6] = [
    "shared",
    "memory,shared",
    "memory,partner,shared@2",
    "memory,partner,local:/l,shared,s3://b",
    "local:/l@1,s3://b@1",
    "memory@2,partner@1,shared@1",
];

proptest! {
    #[test]
    fn nothing_needed_goes_and_all_tiers_come_to_hold_the_newest(
        list in prop::sample::select(LISTS.to_vec()),
        ranks in 1u32..6,
        (keep, writers) in (prop::option::of(1u32..4), 1usize..3),
        steps in prop::collection::vec(a_step(), 1..120),
        again in any::<bool>(),
        every in prop::collection::vec(0u32..5, 5),
    ) {
        let mut world = World::new(list, ranks, keep, writers);
        world.machine.stagger(&every);
        let mut number = 0;
        for step in steps {
            match step {
                Step::Publish { incremental, farther } => {
                    number += 1;
                    let farther = farther && world.machine.tiers().len() > 1 && !matches!(world.machine.tiers()[1].tier, Tier::Partner);
                    world.publish(number, incremental, farther);
                }
                Step::Finish { which, good } => world.finish(which, good),
                Step::Lose(node) => world.lose(node),
            }
        }
        world.settle();
        // One more, with nobody failing: every tier that can hold it does. It builds on what there is, if it can be restored.
        world.machine.stagger(&[1; 5]);
        number += 1;
        let incremental = world.restorable() == Some(number - 1) && again;
        world.publish(number, incremental, false);
        world.settle();
        for (tier, spec) in world.machine.tiers().iter().enumerate() {
            let possible = spec.tier != Tier::Partner || world.nodes.len() > 1;
            // A tier is not filled from those farther away: a chain that begins there stays in part.
            if !incremental {
                prop_assert_eq!(world.complete.contains(&(tier, number)), possible, "{}", spec.tier);
            } else if spec.tier.is_common() && tier + 1 == world.machine.tiers().len() {
                prop_assert!(world.complete.contains(&(tier, number)), "{} does not hold the chain", spec.tier);
            }
        }
        prop_assert_eq!(world.restorable(), Some(number));
        prop_assert!(world.machine.needed().contains(&number));
        // What a tier keeps is bounded: that many checkpoints, and what they build on (nothing, here, for the newest).
        let bounded = |(_, spec): &(usize, &TierSpec)| spec.keep == 1 && spec.tier != Tier::Partner && !incremental;
        for (tier, spec) in world.machine.tiers().iter().enumerate().filter(bounded) {
            let held: BTreeSet<u64> = world.store.iter().filter(|(t, ..)| *t == tier).map(|(_, _, number, _)| *number).collect();
            prop_assert_eq!(held, BTreeSet::from([number]), "{}", spec.tier);
        }
    }
}

proptest! {
    #[test]
    fn what_partners_had_as_a_whole_outlives_any_one_node(
        list in prop::sample::select(vec!["memory,partner", "memory,partner,shared@1", "local:/l@1,partner,s3://b@1"]),
        ranks in 1u32..6,
        steps in prop::collection::vec(a_step(), 1..120),
        every in prop::collection::vec(0u32..5, 3),
    ) {
        let mut world = World::new(list, ranks, Some(1), 1);
        world.machine.stagger(&every);
        let mut number = 0;
        for step in steps {
            match step {
                Step::Publish { incremental, .. } => {
                    number += 1;
                    world.publish(number, incremental, false);
                }
                Step::Finish { which, good } => world.finish(which, good),
                Step::Lose(_) => {}
            }
            let had = world.complete.iter().filter(|(tier, _)| *tier > 0).map(|(_, number)| *number).max();
            for node in 0..NODES {
                prop_assert!(world.restorable_without(node) >= had, "without node {node}: {:?}", world.store);
            }
        }
    }
}

#[test]
fn a_tier_gets_every_so_manieth_checkpoint_and_those_that_were_asked_for() {
    let mut world = World::new("memory,partner,shared", 2, None, 1);
    world.machine.stagger(&[1, 2, 4]);
    let mut had: Vec<Vec<u64>> = vec![Vec::new(); 3];
    // Those of 3, 6 and 9 were asked for.
    for number in [1, 2, 4, 5, 7, 8, 9, 10, 11, 13, 14, 16] {
        world.publish(number, false, false);
        world.settle();
        for (tier, had) in had.iter_mut().enumerate() {
            had.extend(world.complete.contains(&(tier, number)).then_some(number));
        }
    }
    assert_eq!(had[0], [1, 2, 4, 5, 7, 8, 9, 10, 11, 13, 14, 16]);
    assert_eq!(had[1], [1, 4, 7, 9, 11, 14]);
    assert_eq!(had[2], [1, 7, 9, 14]);
}

#[test]
fn a_tier_that_has_nothing_or_could_not_have_its_turn_does_not_wait_for_the_next() {
    let mut world = World::new("memory,partner", 2, None, 1);
    world.machine.stagger(&[1, 50]);
    world.publish(1, false, false);
    while !world.open.is_empty() {
        world.finish(0, false);
    }
    assert!(!world.complete.contains(&(1, 1)));
    world.publish(2, false, false);
    world.settle();
    world.publish(4, false, false);
    world.settle();
    assert!(world.complete.contains(&(1, 2)) && !world.complete.contains(&(1, 4)));
    // A node goes with the partner's copies of 2; of 4 the other node's images are left.
    world.publish(5, false, false);
    world.lose(1);
    world.settle();
    world.publish(7, false, false);
    world.settle();
    assert!(world.store.iter().any(|(tier, _, number, _)| (*tier, *number) == (1, 7)), "{:?}", world.store);
}

#[test]
fn a_checkpoint_removed_by_others_goes_everywhere() {
    let mut world = World::new("memory,partner,shared", 2, None, 1);
    world.publish(1, false, false);
    world.settle();
    world.publish(2, false, false);
    world.settle();
    assert_eq!(world.machine.needed(), [2].into());
    assert_eq!(world.machine.complete(2).len(), 3);
    world.bases.retain(|(number, _), _| *number != 1);
    let actions = world.machine.forgotten(1);
    assert!(actions.iter().all(|action| matches!(action, Action::Remove { number: 1, .. })));
}

#[test]
fn what_is_being_copied_stays_when_its_target_is_given_up() {
    let mut world = World::new("memory,partner", 2, None, 1);
    world.publish(1, false, false);
    let copies = world.open.len();
    (0..copies).for_each(|_| world.finish(0, true));
    assert!(world.open.iter().all(|action| matches!(action, Action::Manifest { .. })) && world.open.len() == 2);
    // The copy of rank 0 goes with its node, and is made again while the other node stores the manifest.
    world.lose(1);
    assert!(matches!(world.open[..], [Action::Manifest { .. }, Action::Copy { image: ImageRef { number: 1, rank: 0, .. }, .. }]));
    world.publish(2, false, false);
    world.finish(0, false);
    assert!(world.store.contains(&(0, Some(0), 1, 0)));
    world.settle();
    assert_eq!(world.store.iter().map(|(_, _, number, _)| *number).collect::<BTreeSet<_>>(), [2].into());
}

#[test]
fn a_tier_without_a_number_keeps_what_was_asked_for_and_the_newest_others() {
    let mut world = World::new("memory,shared", 2, Some(2), 1);
    for (number, incremental) in [(1, false), (2, true), (3, false), (4, false), (5, false), (6, false), (7, false), (8, true)] {
        world.publish(number, incremental, false);
        world.settle();
    }
    let held =
        |tier: usize| -> BTreeSet<u64> { world.store.iter().filter(|(t, ..)| *t == tier).map(|(_, _, number, _)| *number).collect() };
    assert_eq!((held(0), held(1)), ([7, 8].into(), [3, 6, 7, 8].into()));
}

#[test]
fn what_lies_beside_the_tiers_counts_and_goes_when_newer_checkpoints_are_there() {
    let mut machine = Replication::new(parse_tiers("memory").unwrap(), 0..2, Some(1), 7, 1);
    let published = |number, sites| {
        let image = ImageRef { number, rank: 0, bytes: 1, checksum: 0, id: Default::default() };
        vec![Published { image, base: None, sites }]
    };
    machine.adopt(1, true, published(1, Vec::new()), &[]);
    assert!(!machine.is_restorable(1));
    machine.brought(1, 0, (machine.beside(), None));
    assert!(machine.is_restorable(1));
    let gone = Action::Remove { number: 1, tier: machine.beside(), node: 0, ranks: vec![0] };
    assert!(
        !machine.published(2, false, published(2, vec![(0, Some(1))])).contains(&gone),
        "it is the newest of those that nobody asked for"
    );
    assert!(machine.published(3, true, published(3, vec![(0, Some(1))])).contains(&gone));
    assert!(!machine.is_anywhere(1));
}

/// Full images of two ranks, each on its node, in these tiers.
fn two_images(machine: &Replication, number: u64, tiers: &[usize]) -> Vec<Published> {
    let site = |rank: Rank, tier: usize| match &machine.tiers()[tier].tier {
        Tier::Partner => (tier, Some(1 - rank)),
        spec if spec.is_common() => (tier, None),
        _ => (tier, Some(rank)),
    };
    let image = |rank| ImageRef { number, rank, bytes: 1, checksum: 0, id: Default::default() };
    let of_rank = |rank| Published { image: image(rank), base: None, sites: tiers.iter().map(|tier| site(rank, *tier)).collect() };
    (0..2).map(of_rank).collect()
}

/// A job of two nodes that was restarted from `origin`, with what was there before.
fn restarted(list: &str, keep: Option<u32>, (origin, abandoned): (u64, &[(u64, u64)]), before: &[(u64, &[usize])]) -> Replication {
    let mut machine = Replication::new(parse_tiers(list).unwrap(), 0..2, keep, 7, 1);
    machine.restarted(Some(origin), abandoned);
    before.iter().for_each(|(number, tiers)| machine.adopt(*number, true, two_images(&machine, *number, tiers), &[]));
    machine
}

/// What is removed, as (tier, number), when all that is wanted is done.
fn carried_out(machine: &mut Replication, mut actions: Vec<Action>) -> BTreeSet<(usize, u64)> {
    let mut removed = BTreeSet::new();
    while let Some(action) = actions.pop() {
        match action {
            Action::Copy { task, .. } | Action::Manifest { task, .. } => actions.extend(machine.finished(task, Ok(()))),
            Action::Remove { number, tier, .. } => drop(removed.insert((tier, number))),
            Action::Complete { .. } | Action::GaveUp { .. } => {}
        }
    }
    removed
}

#[test]
fn checkpoints_that_were_given_up_stay_and_push_out_none() {
    let mut machine = restarted("memory@2,partner@2", None, (4, &[(4, 5)]), &[(4, &[0, 1]), (5, &[0, 1])]);
    assert_eq!(machine.needed(), [4].into());
    let actions = machine.published(6, true, two_images(&machine, 6, &[0]));
    // Before 6 is at the partner.
    let mut without = machine.clone();
    without.lost(1);
    assert!(!without.is_restorable(6) && without.is_restorable(4));
    assert_eq!(carried_out(&mut machine, actions), [].into());
    let actions = machine.published(7, true, two_images(&machine, 7, &[0]));
    assert_eq!(carried_out(&mut machine, actions), [(0, 4), (1, 4)].into());
    assert!(machine.is_restorable(5) && machine.complete(5).len() == 2);
}

#[test]
fn the_checkpoint_that_a_job_was_restarted_from_is_copied_again_though_newer_ones_were_given_up() {
    let mut machine = restarted("memory,partner", Some(1), (4, &[(4, 5)]), &[(4, &[0, 1]), (5, &[0, 1])]);
    let mut three = Replication::new(parse_tiers("memory,partner").unwrap(), 0..3, Some(1), 7, 1);
    three.restarted(Some(4), &[(4, 5)]);
    [4, 5].into_iter().for_each(|number| three.adopt(number, true, two_images(&machine, number, &[0, 1]), &[]));
    let copies = |actions: Vec<Action>| -> BTreeSet<u64> {
        actions.iter().filter_map(|action| if let Action::Copy { image, .. } = action { Some(image.number) } else { None }).collect()
    };
    assert_eq!(copies(three.lost(1)), [4].into());
    assert_eq!(copies(machine.lost(1)), [].into(), "nobody is left for it");
}

#[test]
fn what_a_restart_has_passed_over_pushes_out_none() {
    let mut machine = restarted("memory,shared", Some(1), (4, &[]), &[(4, &[1]), (5, &[1])]);
    let actions = machine.published(6, true, two_images(&machine, 6, &[0]));
    let mut without = machine.clone();
    without.lost(1);
    assert!(!without.is_restorable(6) && without.is_restorable(4));
    assert_eq!(carried_out(&mut machine, actions), [(1, 4), (1, 5)].into());
    // What a restart has brought beside the tiers goes when a newer one is whole in them.
    let mut machine = restarted("memory", Some(1), (4, &[]), &[(4, &[])]);
    (0..2).for_each(|rank| machine.brought(4, rank, (machine.beside(), None)));
    let actions = machine.published(5, true, two_images(&machine, 5, &[0]));
    assert!(actions.iter().all(|action| !matches!(action, Action::Remove { .. })), "{actions:?}");
    assert_eq!(carried_out(&mut machine, actions), [(1, 4)].into());
}

#[test]
fn with_a_checkpoint_go_the_manifests_of_what_it_builds_on() {
    let mut machine = Replication::new(parse_tiers("memory,s3://b").unwrap(), 0..1, None, 7, 1);
    machine.stagger(&[1, 2]);
    let mut stored = |number: u64| -> Vec<u64> {
        let image = ImageRef { number, rank: 0, bytes: 1, checksum: 0, id: Default::default() };
        let base = (number > 1).then(|| number - 1);
        let mut actions = machine.published(number, true, vec![Published { image, base, sites: vec![(0, Some(0))] }]);
        let mut stored = Vec::new();
        while let Some(action) = actions.pop() {
            match action {
                Action::Copy { task, .. } => actions.extend(machine.finished(task, Ok(()))),
                Action::Manifest { task, number, tier, .. } => {
                    stored.extend((tier == 1).then_some(number));
                    actions.extend(machine.finished(task, Ok(())));
                }
                _ => {}
            }
        }
        stored.sort_unstable();
        stored
    };
    // The second one is passed over there.
    assert_eq!([1, 2, 3].map(&mut stored), [vec![1], vec![], vec![2, 3]]);
}

#[test]
fn what_is_on_record_counts_with_all_that_it_builds_on() {
    let mut machine = Replication::new(parse_tiers("memory,s3://b").unwrap(), 0..1, None, 7, 1);
    let image = |number| ImageRef { number, rank: 0, bytes: 1, checksum: 0, id: Default::default() };
    for (number, base, whole) in [(1, None, &[][..]), (2, Some(1), &[1]), (3, Some(2), &[])] {
        machine.adopt(number, true, vec![Published { image: image(number), base, sites: Vec::new() }], whole);
    }
    assert_eq!([1, 2, 3].map(|number| machine.is_restorable(number)), [true, true, false]);
    assert_eq!(machine.complete(2).len(), 1);
    assert!(machine.is_in(1, 1) && !machine.is_in(1, 0));
}

#[test]
fn nodes_take_turns_in_an_order_of_the_checkpoint() {
    let mut orders = BTreeSet::new();
    for number in 1..20 {
        let mut machine = Replication::new(parse_tiers("memory,shared").unwrap(), 0..3, None, 1, 1);
        let image = |rank| ImageRef { number, rank, bytes: 1, checksum: 0, id: Default::default() };
        let images = (0..3).map(|rank| Published { image: image(rank), base: None, sites: vec![(0, Some(rank))] }).collect();
        let (mut actions, mut order) = (machine.published(number, true, images), Vec::new());
        while let Some(action) = actions.pop() {
            match action {
                Action::Copy { task, node, .. } => {
                    order.push(node);
                    actions.extend(machine.finished(task, Ok(())));
                }
                Action::Manifest { task, .. } => actions.extend(machine.finished(task, Ok(()))),
                _ => {}
            }
        }
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 3);
        orders.insert(order);
    }
    assert!(orders.len() > 2, "{orders:?}");
}
