//! Copies of portable checkpoints' files on nodes: who has which, who sends what to whom, what a node need not keep.
//!
//! ```text
//! offered by a node ──► the next node in the ring receives, the offering one sends ──► taken ──► kept
//! wanted by a node  ──► a node that has it sends                                   ──► taken
//!                   └─► nobody has it: missing
//! ```
//! Invariants: a file is on its way to a node at most once; who offered hears that it is kept only after the partner said so; who waits for a file
//! is always answered, also when the node that sends is lost. A copy is nothing that a restart must believe: the library checks what it reads.
//! Faults assumed: nodes are lost at any moment, transfers fail, daemons say things twice.

use mend_messages::job::NodeIndex;
use mend_messages::portable::{FileName, PortableOrder, PortableReport};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest text of the library that is looked at, bytes.
pub const MAX_TEXT: u64 = 64 << 10;

/// Why a file is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Way {
    from: NodeIndex,
    /// A rank waits for it.
    wanted: bool,
}

/// What the controller has to order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This, of this node.
    Order(NodeIndex, PortableOrder),
    /// A transfer with a new token: `to` receives, `from` sends.
    Transfer {
        /// The file.
        name: FileName,
        /// Its length.
        bytes: u64,
        /// Who has it.
        from: NodeIndex,
        /// Who gets it.
        to: NodeIndex,
        /// A rank waits for it.
        hurry: bool,
    },
}

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    holds: BTreeMap<NodeIndex, BTreeMap<FileName, u64>>,
    on_way: BTreeMap<(NodeIndex, FileName), Way>,
}

impl Copies {
    /// A daemon reports. `alive`: nodes of the job, ascending.
    pub fn reported(&mut self, node: NodeIndex, report: PortableReport, alive: &[NodeIndex]) -> Vec<Step> {
        match report {
            PortableReport::Holds { files } => {
                self.holds.insert(node, files.into_iter().collect());
                Vec::new()
            }
            PortableReport::Offer { name, bytes } => {
                self.holds.entry(node).or_default().insert(name.clone(), bytes);
                let after = alive.iter().find(|&&other| other > node).or(alive.first());
                match after.filter(|&&partner| partner != node) {
                    Some(&partner) => self.transfer((name, bytes), node, partner, false),
                    None => Vec::new(),
                }
            }
            // Which people are told.
            PortableReport::NotCopied { .. } => Vec::new(),
            PortableReport::Wanted { name } => self.wanted(node, name, alive),
            PortableReport::Taken { name, result } => {
                let way = self.on_way.remove(&(node, name.clone()));
                match (result, way) {
                    (Ok(bytes), way) => {
                        self.holds.entry(node).or_default().insert(name.clone(), bytes);
                        way.filter(|way| !way.wanted).map(|way| Step::Order(way.from, PortableOrder::Kept { name })).into_iter().collect()
                    }
                    (Err(_), Some(way)) if way.wanted => {
                        // Not from there again: another node, or nobody, has it.
                        self.holds.entry(way.from).or_default().remove(&name);
                        self.wanted(node, name, alive)
                    }
                    // It is offered again.
                    (Err(_), _) => Vec::new(),
                }
            }
        }
    }

    fn wanted(&mut self, node: NodeIndex, name: FileName, alive: &[NodeIndex]) -> Vec<Step> {
        let has = |other: &NodeIndex| Some((*other, *self.holds.get(other)?.get(&name)?));
        match alive.iter().filter(|&&other| other != node).find_map(has) {
            Some((from, bytes)) => self.transfer((name, bytes), from, node, true),
            None => vec![Step::Order(node, PortableOrder::Missing { name })],
        }
    }

    fn transfer(&mut self, (name, bytes): (FileName, u64), from: NodeIndex, to: NodeIndex, wanted: bool) -> Vec<Step> {
        let key = (to, name.clone());
        if let Some(way) = self.on_way.get_mut(&key) {
            way.wanted |= wanted;
            return Vec::new();
        }
        self.on_way.insert(key, Way { from, wanted });
        vec![Step::Transfer { name, bytes, from, to, hurry: wanted }]
    }

    /// A node is lost, with what it had.
    pub fn lost(&mut self, node: NodeIndex, alive: &[NodeIndex]) -> Vec<Step> {
        self.holds.remove(&node);
        self.on_way.retain(|(to, _), _| *to != node);
        let broken: Vec<(NodeIndex, FileName)> =
            self.on_way.iter().filter(|(_, way)| way.from == node && way.wanted).map(|(key, _)| key.clone()).collect();
        self.on_way.retain(|_, way| way.from != node);
        broken.into_iter().flat_map(|(to, name)| self.wanted(to, name, alive)).collect()
    }
}

/// What the library's rank 0 says of a directory of checkpoints, in its file `targets`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The newest that counts.
    pub newest: u64,
    /// Which one is to be copied to which tier.
    pub tiers: BTreeMap<String, u64>,
}

impl Targets {
    /// Reads it. Lines that say nothing are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for (name, number) in text.lines().filter_map(|line| line.split_once(" = ")) {
            let Ok(number) = number.parse() else { continue };
            if name == "newest" {
                found.newest = number;
            } else {
                found.tiers.insert(name.to_owned(), number);
            }
        }
        found
    }
}

/// A checkpoint of which a node has files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub number: u64,
    /// It has a manifest.
    pub counts: bool,
    /// It may be written just now.
    pub young: bool,
}

/// Which of these a node need not keep: not the `keep` newest that count, not what is to be copied, not what may still be written.
/// What is newer than the newest is of a life of the program that went back to before it, and stays as in the directory.
#[must_use]
pub fn surplus(held: &[Held], targets: &Targets, keep: u32) -> Vec<u64> {
    let copied: BTreeSet<u64> = targets.tiers.values().copied().collect();
    let mut counting: Vec<u64> = held.iter().filter(|one| one.counts && one.number <= targets.newest).map(|one| one.number).collect();
    counting.sort_unstable_by(|a, b| b.cmp(a));
    counting.truncate(keep.max(1) as usize);
    let goes = |one: &&Held| {
        one.number <= targets.newest && !counting.contains(&one.number) && !copied.contains(&one.number) && (one.counts || !one.young)
    };
    held.iter().filter(goes).map(|one| one.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::portable::Part;

    fn name(checkpoint: u64, rank: u32) -> FileName {
        FileName::new("0123456789abcdef0123456789abcdef", checkpoint, rank, Part::Variables).unwrap()
    }

    #[test]
    fn a_file_that_is_offered_goes_to_the_next_node_once() {
        let mut copies = Copies::default();
        let offer = || PortableReport::Offer { name: name(7, 1), bytes: 9 };
        let way = Step::Transfer { name: name(7, 1), bytes: 9, from: 2, to: 0, hurry: false };
        assert_eq!(copies.reported(2, offer(), &[0, 1, 2]), [way]);
        assert_eq!(copies.reported(2, offer(), &[0, 1, 2]), []);
        let taken = PortableReport::Taken { name: name(7, 1), result: Ok(9) };
        assert_eq!(copies.reported(0, taken, &[0, 1, 2]), [Step::Order(2, PortableOrder::Kept { name: name(7, 1) })]);
        // Alone there is no partner; after a failure it is offered again.
        assert_eq!(Copies::default().reported(2, offer(), &[2]), []);
        let mut copies = Copies::default();
        copies.reported(2, offer(), &[0, 2]);
        assert_eq!(copies.reported(0, PortableReport::Taken { name: name(7, 1), result: Err("full".into()) }, &[0, 2]), []);
        assert_eq!(copies.reported(2, offer(), &[0, 2]).len(), 1);
    }

    #[test]
    fn who_wants_a_file_is_answered_whatever_happens() {
        let mut copies = Copies::default();
        for node in [1, 2] {
            copies.reported(node, PortableReport::Holds { files: vec![(name(7, 1), 9)] }, &[0, 1, 2]);
        }
        let wanted = PortableReport::Wanted { name: name(7, 1) };
        let from = |node| Step::Transfer { name: name(7, 1), bytes: 9, from: node, to: 0, hurry: true };
        assert_eq!(copies.reported(0, wanted.clone(), &[0, 1, 2]), [from(1)]);
        assert_eq!(copies.reported(0, wanted.clone(), &[0, 1, 2]), []);
        assert_eq!(copies.lost(1, &[0, 2]), [from(2)]);
        let failed = PortableReport::Taken { name: name(7, 1), result: Err("torn".into()) };
        let missing = Step::Order(0, PortableOrder::Missing { name: name(7, 1) });
        assert_eq!(copies.reported(0, failed, &[0, 2]), [missing]);
        assert_eq!(copies.reported(0, PortableReport::Wanted { name: name(8, 1) }, &[0, 2]).len(), 1);
    }

    #[test]
    fn a_copy_on_its_way_to_a_partner_is_also_what_a_rank_there_waits_for() {
        let mut copies = Copies::default();
        copies.reported(0, PortableReport::Offer { name: name(7, 1), bytes: 9 }, &[0, 1]);
        assert_eq!(copies.reported(1, PortableReport::Wanted { name: name(7, 1) }, &[0, 1]), []);
        let missing = Step::Order(1, PortableOrder::Missing { name: name(7, 1) });
        assert_eq!(copies.lost(0, &[1]), [missing]);
    }

    #[test]
    fn a_node_keeps_the_newest_that_counts_and_what_is_copied() {
        let held = |number, counts, young| Held { number, counts, young };
        let targets = Targets::parse("newest = 40\nshared = 10\nnonsense\npartner = x\n");
        assert_eq!(targets, Targets { newest: 40, tiers: [("shared".to_owned(), 10)].into() });
        let all = [
            held(10, true, false),
            held(20, true, false),
            held(25, false, false),
            held(30, true, false),
            held(35, false, true),
            held(40, true, true),
            held(50, false, true),
            held(60, true, false),
        ];
        assert_eq!(surplus(&all, &targets, 1), [20, 25, 30]);
        assert_eq!(surplus(&all, &targets, 2), [20, 25]);
        // Before anything is known, nothing goes.
        assert_eq!(surplus(&all, &Targets::default(), 1), Vec::<u64>::new());
        // What counts and is not here as a whole goes for nothing that is not there.
        assert_eq!(surplus(&[held(20, true, false)], &targets, 1), Vec::<u64>::new());
    }
}
