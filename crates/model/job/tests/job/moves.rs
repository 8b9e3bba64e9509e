//! Moves that are cancelled, and moves to nodes that take no ranks any more; several that want one rank off its node.

use crate::world::{World, answer_once};
use mend_coordination::failure::Failure;
use mend_job::event::{Effect, Event, Outcome};
use mend_job::setup::{NodeSetup, Setup};
use mend_messages::agent::{Inspection, Reply, Request};
use mend_messages::control::{Ask, MoveMode};
use mend_messages::daemon::{ExitStatus, FromDaemon, ToDaemon};
use mend_messages::health::{LeaveReason, Leaving};
use mend_messages::job::{FabricAddress, MapEntry, NodeIndex, Rank};

fn reply(_: Rank, request: &Request) -> Reply {
    match request {
        Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
        Request::Suspend | Request::SuspendPeer(_) => Reply::Suspended { us: 1 },
        _ => Reply::Resumed { stopped_us: 1 },
    }
}

pub(crate) fn migrate(rank: Rank, to: Option<&str>, avoid: &[&str]) -> Ask {
    let avoid = avoid.iter().map(|&name| name.to_owned()).collect();
    Ask::Migrate { rank, to: to.map(str::to_owned), avoid, mode: MoveMode::Frozen, deadline_ms: None }
}

/// Ranks 0 and 1 on nodes 0 and 1, and nobody on the others.
pub(crate) fn with_nodes(count: u8, change: impl FnOnce(&mut Setup)) -> World {
    World::of(|setup| {
        let spares = (2..count).map(|at| NodeSetup { name: format!("n{at}"), address: ([10, 0, 0, at], 7000).into() });
        setup.nodes.extend(spares);
        change(setup);
    })
}

/// The last word to each verb.
fn answers(world: &World) -> Vec<(u64, Outcome)> {
    let answer = |effect: &Effect| match effect {
        Effect::Answer { outcome: Outcome::Progress, .. } => None,
        Effect::Answer { verb, outcome } => Some((*verb, outcome.clone())),
        _ => None,
    };
    world.effects.iter().filter_map(answer).collect()
}

/// The node that is to compare what a rank needs, once its agent has answered.
fn asked_target(world: &mut World) -> Option<NodeIndex> {
    answer_once(world, reply);
    world.effects.iter().find_map(|effect| match effect {
        Effect::Send { node, message: ToDaemon::Compare { .. } } => Some(*node),
        _ => None,
    })
}

/// The next order to build a rank: the node and the number of the process.
fn built(world: &World) -> Option<(NodeIndex, u64)> {
    world.effects.iter().find_map(|effect| match effect {
        Effect::Send { node, message: ToDaemon::Restore { attempt, .. } } => Some((*node, *attempt)),
        _ => None,
    })
}

/// A rank whose agent was asked to inspect it arrives at its target.
pub(crate) fn arrives(world: &mut World, rank: Rank) {
    let target = asked_target(world);
    answer_once(world, reply);
    answer_once(world, reply);
    let (node, attempt) = built(world).expect("its target is to build it");
    assert_eq!(Some(node), target);
    answer_once(world, reply);
    world.handle(Event::Daemon { node, message: FromDaemon::Restored { rank, attempt, restart_us: 1, bytes: 1 } });
    let address = FabricAddress { tcp: ([10, 0, 0, 9], 1).into(), unix: String::new() };
    world.handle(Event::Daemon { node, message: FromDaemon::FabricUp { rank, attempt, address } });
    assert_eq!(world.node(rank), node);
    answer_once(world, reply);
}

#[test]
fn a_cancelled_rank_goes_on_before_all_of_it_was_sent() {
    let mut world = World::new();
    world.handle(Event::Ask { verb: 1, ask: migrate(1, Some("n0"), &[]) });
    asked_target(&mut world);
    answer_once(&mut world, reply);
    answer_once(&mut world, reply);
    let save = world.take_sent().into_iter().find_map(|(_, message)| match message {
        ToDaemon::SaveTo { seq, .. } => Some(seq),
        _ => None,
    });
    let seq = save.expect("it is sent");
    world.handle(Event::Ask { verb: 2, ask: Ask::CancelMove { rank: 1 } });
    assert!(matches!(answers(&world)[..], [(2, Outcome::CancelledMove)]));
    // Its source writes into what its target reads, and notices.
    assert!(world.take_sent().contains(&(0, ToDaemon::Discard { rank: 1 })));
    let failed = Reply::Failed { error: "broken pipe".into(), hint: String::new() };
    world.hear(1, FromDaemon::Agent { seq, rank: 1, reply: failed });
    assert!(world.effects.contains(&Effect::MakeDurable), "one of two copies is about to run");
    assert_eq!(answer_once(&mut world, reply), [(0, "resume"), (1, "resume")]);
    assert!(matches!(answers(&world)[..], [(2, _), (1, Outcome::Failed(Failure::Cancelled { rank: 1 }))]), "{:?}", answers(&world));
}

/// Whose entry it is in the maps that were sent to node 0: what each says of a rank.
fn maps<T>(sent: &[(NodeIndex, ToDaemon)], rank: Rank, of: impl Fn(&MapEntry) -> T) -> Vec<T> {
    let maps = sent.iter().filter_map(|(node, message)| if let (0, ToDaemon::Map(map)) = (node, message) { Some(map) } else { None });
    maps.map(|map| of(&map.entries[rank as usize])).collect()
}

#[test]
fn a_rank_that_stays_where_it_was_is_no_other_process_for_its_peers() {
    let mut world = World::new();
    let before = world.job.rank(1).unwrap().generation;
    world.handle(Event::Ask { verb: 1, ask: migrate(1, Some("n0"), &[]) });
    asked_target(&mut world);
    answer_once(&mut world, reply);
    let late = |_, request: &Request| match request {
        Request::SuspendPeer(_) => Reply::Failed { error: "the channels with ranks [1] did not drain in time".into(), hint: String::new() },
        other => reply(0, other),
    };
    assert_eq!(answer_once(&mut world, late), [(0, "suspend-peer"), (1, "suspend")]);
    let sent = world.take_sent();
    assert_eq!(maps(&sent, 1, |entry| (entry.generation, entry.open)), [(before, true)]);
    let resumed = sent.iter().any(|(_, message)| matches!(message, ToDaemon::Ask(_)));
    assert!(resumed && world.job.rank(1).unwrap().generation == before);
}

#[test]
fn peers_know_of_a_rank_that_has_ended_before_they_drain() {
    let mut world = World::new();
    let attempt = world.attempt(1);
    world.hear(1, FromDaemon::Exited { rank: 1, attempt, status: ExitStatus::Code(0) });
    assert!(maps(&world.take_sent(), 1, |entry| entry.ended).is_empty(), "the others may end as well");
    world.handle(Event::Ask { verb: 1, ask: migrate(0, Some("n1"), &[]) });
    let sent = world.take_sent();
    assert_eq!(maps(&sent, 1, |entry| entry.ended), [true]);
    assert!(sent.iter().any(|(_, message)| matches!(message, ToDaemon::Ask(_))));
    // Or after a while.
    let mut world = World::new();
    let attempt = world.attempt(1);
    world.hear(1, FromDaemon::Exited { rank: 1, attempt, status: ExitStatus::Code(0) });
    world.now_us = world.job.next_deadline().unwrap();
    world.handle(Event::Time);
    assert_eq!(maps(&world.take_sent(), 1, |entry| entry.ended), [true]);
}

#[test]
fn peers_know_of_a_rank_that_ends_while_another_is_copied_before_they_drain() {
    let mut world = World::new();
    world.handle(Event::Ask { verb: 1, ask: migrate(0, Some("n1"), &[]) });
    assert_eq!(answer_once(&mut world, reply), [(0, "inspect")]);
    let attempt = world.attempt(1);
    world.hear(1, FromDaemon::Exited { rank: 1, attempt, status: ExitStatus::Code(0) });
    assert_eq!(answer_once(&mut world, reply), [(0, "compare")]);
    let sent = world.take_sent();
    assert_eq!(maps(&sent, 1, |entry| entry.ended), [true]);
    let asked = sent.iter().position(|(_, message)| matches!(message, ToDaemon::Ask(_))).unwrap();
    assert!(sent[..asked].iter().any(|(_, message)| matches!(message, ToDaemon::Map(_))), "{sent:?}");
}

#[test]
fn nothing_goes_on_to_a_node_that_ranks_are_to_leave() {
    let leave = || Event::Leave {
        node: 2,
        reason: LeaveReason::Health,
        leaving: Some(Leaving { mode: MoveMode::Live, left_ms: None, why: "hot".into() }),
    };
    let mut world = with_nodes(3, |_| {});
    world.handle(Event::Ask { verb: 1, ask: migrate(1, None, &[]) });
    assert_eq!(asked_target(&mut world), Some(2));
    world.effects.clear();
    world.handle(leave());
    assert_eq!(asked_target(&mut world), Some(0), "another one will do");
    assert_eq!(answers(&world).len(), 0);
    // Somebody has named it.
    let mut world = with_nodes(3, |_| {});
    world.handle(Event::Ask { verb: 1, ask: migrate(1, Some("n2"), &[]) });
    assert_eq!(asked_target(&mut world), Some(2));
    world.handle(leave());
    assert!(matches!(answers(&world)[..], [(1, Outcome::Failed(Failure::TakesNone { node: 2 }))]));
}

#[test]
fn who_waited_does_not_go_to_a_node_that_was_drained_meanwhile() {
    let mut world = with_nodes(3, |_| {});
    world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
    world.handle(Event::Ask { verb: 2, ask: migrate(1, None, &[]) });
    world.now_us += 60_000_000;
    world.take_sent();
    world.effects.clear();
    world.handle(Event::Prepared { number: 1, result: Ok(false) });
    world.answer_agents();
    world.handle(Event::Published { number: 1, result: Ok("/c/1".into()) });
    assert!(world.effects.contains(&Effect::ListDrained), "{:?}", world.effects);
    assert_eq!(answer_once(&mut world, reply), []);
    world.handle(Event::Drained(vec!["n2".into()]));
    assert_eq!(asked_target(&mut world), Some(0));
    // It is drained, too, while the rank is being compared.
    world.handle(Event::Drained(vec!["n0".into(), "n2".into()]));
    assert!(matches!(answers(&world)[..], [.., (2, Outcome::Failed(Failure::NoOtherNode))]), "{:?}", answers(&world));
}

#[test]
fn a_rank_that_several_want_off_its_node_moves_once() {
    let mut world = with_nodes(4, |_| {});
    world.handle(Event::Ask { verb: 1, ask: migrate(1, None, &[]) });
    world.handle(Event::Ask { verb: 2, ask: migrate(1, None, &["n1"]) });
    world.handle(Event::Ask { verb: 3, ask: migrate(1, None, &["n1", "n2"]) });
    arrives(&mut world, 1);
    let moved = |outcome: &Outcome| matches!(outcome, Outcome::Migrated(done) if done.from == "n1" && done.to == "n2");
    let had: Vec<u64> = answers(&world).iter().filter(|(_, outcome)| moved(outcome)).map(|(verb, _)| *verb).collect();
    assert_eq!(had, [2, 1]);
    // The last one does not want it where it is now.
    assert_eq!(asked_target(&mut world), Some(3));
}

#[test]
fn a_move_that_goes_nowhere_is_not_in_the_way_of_the_last_checkpoint() {
    let mut world = with_nodes(3, |_| {});
    world.handle(Event::Ask { verb: 1, ask: migrate(1, None, &[]) });
    let leaving = Some(Leaving { mode: MoveMode::Live, left_ms: None, why: "hot".into() });
    world.handle(Event::Leave { node: 2, reason: LeaveReason::Health, leaving });
    world.handle(Event::TimeUp { signal: 15 });
    (0..3).for_each(|_| drop(answer_once(&mut world, reply)));
    assert!(matches!(answers(&world)[..], [(1, Outcome::Failed(_))]), "{:?}", answers(&world));
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Prepare { .. })), "{:?}", world.effects);
}
