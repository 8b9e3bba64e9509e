//! A controller that goes by its nodes' confirmations while it cannot see the job's lock, and successors that vote and take the lock: whatever comes late or
//! not at all, no lease is renewed after a successor takes it to be over.

use mend_coordination::renewal::{Renewal, confirmed_us, may_seize};
use mend_messages::daemon::{Resumption, Succession};
use mend_node_job::JobTable;
use proptest::prelude::*;

const LIMIT: u64 = 10;
const LEASE: u64 = 4 * LIMIT;
const TIMEOUT: u64 = 20 * LIMIT;
const JOB: [u8; 16] = [1; 16];

fn session(number: u8) -> Resumption {
    Resumption { identity: JOB, epoch: 1, session: [number; 16], delivered: 0 }
}

struct Node {
    table: JobTable,
    heard: u64,
    /// Until when ranks may run here, by the pings of the first controller.
    leased: u64,
}

/// On its way to a node, or back from it.
#[derive(Clone, Debug)]
enum Message {
    Ping { node: usize, sent: u64 },
    Ask { node: usize, sent: u64 },
    Answer { node: usize, sent: u64, yes: bool },
}

#[derive(Clone, Debug)]
enum Step {
    Time(u64),
    /// The controller's look at the lock: with `true` it is answered.
    Look(bool),
    Ping(usize),
    Ask(usize),
    /// A message under way arrives.
    Arrive(usize),
    Lose(usize),
    /// The lease is over, and the job leaves the node.
    Leave(usize),
    /// A successor asks for a vote.
    Vote(usize),
    /// It looks what votes it has, and takes the lock.
    Seize,
    /// The controller's file server gives up its lock.
    Free,
    /// The successor finds the lock free.
    Lock,
    /// It reaches these nodes, by bits, and takes the leases of the others to be over after a while.
    Succeed(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..5usize;
    prop_oneof![
        6 => (1..LEASE).prop_map(Step::Time),
        2 => any::<bool>().prop_map(Step::Look),
        4 => node.clone().prop_map(Step::Ping),
        6 => node.clone().prop_map(Step::Ask),
        12 => (0..8usize).prop_map(Step::Arrive),
        1 => (0..8usize).prop_map(Step::Lose),
        3 => node.clone().prop_map(Step::Leave),
        4 => node.prop_map(Step::Vote),
        2 => Just(Step::Seize),
        1 => Just(Step::Free),
        1 => Just(Step::Lock),
        2 => any::<u8>().prop_map(Step::Succeed),
    ]
}

#[derive(Default)]
struct Successor {
    votes: Vec<Option<bool>>,
    /// It has the lock; with votes, or not.
    locked: Option<bool>,
    /// When the leases of nodes that it has not reached are over.
    over: Option<u64>,
}

/// What the votes are worth without one of the rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    All,
    VotersConfirm,
    NobodyWaits,
}

fn run(nodes: usize, steps: &[Step], rules: Rules) -> Result<(), String> {
    let mut all: Vec<Node> = (0..nodes).map(|_| Node { table: JobTable::default(), heard: 0, leased: LEASE }).collect();
    for node in &mut all {
        node.table.enter(JOB, 1, [1; 16]).unwrap();
    }
    let (mut now, mut free, mut messages) = (0, false, Vec::new());
    let mut controller = Some(Renewal::begin(0, nodes, LIMIT, TIMEOUT));
    let mut successor = Successor { votes: vec![None; nodes], ..Successor::default() };
    for step in steps {
        match *step {
            Step::Time(more) => now += more,
            Step::Look(answered) => {
                if answered && successor.locked.is_some() && !free {
                    controller = None;
                } else if let Some(known) = controller.as_mut().filter(|_| answered && !free) {
                    known.seen(now);
                }
            }
            Step::Ping(node) if node < nodes && controller.as_ref().is_some_and(|known| known.may_renew(now)) => {
                messages.push(Message::Ping { node, sent: now });
            }
            Step::Ask(node) if node < nodes && controller.as_ref().is_some_and(|known| known.needs_confirmations(now)) => {
                messages.push(Message::Ask { node, sent: now });
            }
            Step::Arrive(at) if at < messages.len() => match messages.remove(at) {
                Message::Ping { node, sent } => {
                    let node = &mut all[node];
                    if node.table.may_resume(&session(1)) {
                        node.heard = now;
                        node.leased = node.leased.max(sent + LEASE);
                    }
                }
                Message::Ask { node, sent } => {
                    let confirms = match rules {
                        Rules::VotersConfirm => all[node].table.may_resume(&session(1)),
                        _ => all[node].table.confirms(&session(1)),
                    };
                    messages.push(Message::Answer { node, sent, yes: confirms });
                }
                Message::Answer { node, sent, yes } => {
                    if let Some(known) = &mut controller {
                        known.confirmed(node, sent, yes);
                    }
                }
            },
            Step::Lose(at) if at < messages.len() => drop(messages.remove(at)),
            Step::Vote(node) if node < nodes && successor.locked.is_none() => {
                let silent = now - all[node].heard >= LEASE / 3;
                let table = &mut all[node].table;
                successor.votes[node] = Some(table.vote(&session(1), silent) || table.lease_over(&[1; 16]).is_some());
            }
            Step::Leave(node) if node < nodes && now >= all[node].leased => {
                all[node].table.note_lease_over(&JOB, LEASE, 0);
                all[node].table.leave(&JOB);
            }
            Step::Seize if successor.locked.is_none() && !free => {
                let votes: Vec<bool> = successor.votes.iter().flatten().copied().collect();
                if may_seize(&votes, nodes) {
                    successor.locked = Some(true);
                }
            }
            // It sees the lock no more from then on, and what it saw before is as old as it is.
            Step::Free => free = true,
            Step::Lock if free && successor.locked.is_none() => successor.locked = Some(false),
            Step::Succeed(bits) if successor.over.is_none() => {
                let Some(voted) = successor.locked else { continue };
                let mut reached = 0;
                for node in (0..nodes).filter(|node| bits & (1 << node) != 0) {
                    if all[node].table.succeed(&Succession { of: session(1), session: [2; 16] }) {
                        reached += 1;
                        // Its ranks run on, under the successor.
                        all[node].leased = 0;
                    }
                }
                let confirmed = if rules == Rules::NobodyWaits { 0 } else { confirmed_us(nodes - reached, nodes, voted, TIMEOUT) };
                successor.over = Some(now + LIMIT + confirmed + LEASE);
            }
            _ => {}
        }
        if let Some(over) = successor.over {
            for (number, node) in all.iter().enumerate() {
                if node.leased > over {
                    return Err(format!(
                        "at {now} node {number} has ranks until {}, and the successor takes them to be gone at {over}",
                        node.leased
                    ));
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn no_lease_is_renewed_after_a_successor_takes_it_to_be_over(nodes in 1..6usize, steps in proptest::collection::vec(step(), 1..120)) {
        prop_assert_eq!(run(nodes, &steps, Rules::All), Ok(()));
    }
}

/// A controller that sees nothing of the lock, two nodes that confirm it, and a successor with the votes of these two.
#[test]
fn a_node_that_confirms_after_its_vote_leads_to_two_controllers() {
    let mut steps = vec![Step::Time(LEASE / 2)];
    steps.extend([Step::Vote(0), Step::Vote(1), Step::Seize, Step::Succeed(0b100)]);
    for _ in 0..8 {
        steps.extend([Step::Ask(0), Step::Arrive(0), Step::Arrive(0), Step::Ask(1), Step::Arrive(0), Step::Arrive(0)]);
        steps.extend([Step::Ping(0), Step::Arrive(0), Step::Time(LIMIT)]);
    }
    assert_eq!(run(3, &steps, Rules::All), Ok(()));
    assert!(run(3, &steps, Rules::VotersConfirm).is_err());
}

/// The file server has given up the lock of a controller that two of three nodes confirm; the successor is at the third.
#[test]
fn a_successor_with_few_nodes_that_does_not_wait_leads_to_two_controllers() {
    let mut steps = vec![Step::Free, Step::Time(LIMIT), Step::Lock, Step::Succeed(0b100)];
    for _ in 0..30 {
        steps.extend([Step::Ask(0), Step::Arrive(0), Step::Arrive(0), Step::Ask(1), Step::Arrive(0), Step::Arrive(0)]);
        steps.extend([Step::Ping(0), Step::Arrive(0), Step::Time(LIMIT)]);
    }
    assert_eq!(run(3, &steps, Rules::All), Ok(()));
    assert!(run(3, &steps, Rules::NobodyWaits).is_err());
}
