//! Copies of portable checkpoints' files on nodes: who has which, who sends what to whom, what a node need not keep.
//!
//! ```text
//! offered by a node ──► the next node in the ring that keeps any receives, the offering one sends ──► taken ──► kept
//! wanted by a node  ──► a node that has it sends                                   ──► taken
//!                   └─► nobody has it: missing
//! a node is lost    ──► who has the same files offers its own again
//! asks for a turn   ──► so many nodes at a time copy to what all share; the others wait in the order in which they asked
//! ```
//! Invariants: a file is on its way to a node at most once; who offered hears that it is kept only after the partner said so; who waits for a file
//! is always answered, also when the node that sends is lost. No more nodes than the setting says have a turn at a tier. A copy is nothing that a restart must believe: the library checks what it reads.
//! Faults assumed: nodes are lost at any moment, transfers fail, daemons say things twice.

use mend_messages::job::NodeIndex;
use mend_messages::portable::{FileName, PortableOrder, PortableReport};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// Who copies to one tier that all nodes share: nodes and the numbers of their turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Turns {
    taken: BTreeMap<NodeIndex, u64>,
    waiting: VecDeque<(NodeIndex, u64)>,
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    writers: usize,
    /// Of the nodes that keep any: each has said so before anything else.
    holds: BTreeMap<NodeIndex, BTreeMap<FileName, u64>>,
    on_way: BTreeMap<(NodeIndex, FileName), Way>,
    turns: BTreeMap<String, Turns>,
}

impl Copies {
    /// `writers`: nodes that may copy to a tier of all nodes at once, at least 1.
    #[must_use]
    pub fn new(writers: usize) -> Self {
        Self { writers: writers.max(1), holds: BTreeMap::new(), on_way: BTreeMap::new(), turns: BTreeMap::new() }
    }

    /// A daemon reports. `alive`: nodes of the job, ascending.
    pub fn reported(&mut self, node: NodeIndex, report: PortableReport, alive: &[NodeIndex]) -> Vec<Step> {
        match report {
            PortableReport::Holds { files } => {
                self.holds.insert(node, files.into_iter().collect());
                Vec::new()
            }
            PortableReport::Offer { name, bytes } => {
                self.holds.entry(node).or_default().insert(name.clone(), bytes);
                let partners: Vec<NodeIndex> =
                    alive.iter().copied().filter(|other| *other != node && self.holds.contains_key(other)).collect();
                match partners.iter().find(|&&other| other > node).or(partners.first()) {
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
            PortableReport::Gone { key, checkpoint } => {
                if let Some(held) = self.holds.get_mut(&node) {
                    held.retain(|name, _| name.checkpoint != checkpoint || name.key() != key);
                }
                Vec::new()
            }
            PortableReport::Asks { tier, turn } => self.asks(node, tier, turn),
            PortableReport::Over { tier, turn } => {
                let Some(turns) = self.turns.get_mut(&tier) else { return Vec::new() };
                turns.waiting.retain(|waiting| *waiting != (node, turn));
                if turns.taken.get(&node) == Some(&turn) {
                    turns.taken.remove(&node);
                }
                self.next_turns(&tier)
            }
        }
    }

    fn asks(&mut self, node: NodeIndex, tier: String, turn: u64) -> Vec<Step> {
        let turns = self.turns.entry(tier.clone()).or_default();
        if turns.taken.get(&node).is_some_and(|taken| *taken != turn) {
            // It does not know that turn any more.
            turns.taken.remove(&node);
        }
        if turns.taken.contains_key(&node) {
            return vec![Step::Order(node, PortableOrder::Turn { tier, turn })];
        }
        let again = turns.waiting.contains(&(node, turn));
        if !again {
            turns.waiting.retain(|(waiting, _)| *waiting != node);
            turns.waiting.push_back((node, turn));
        }
        let mut steps = self.next_turns(&tier);
        if again && steps.is_empty() {
            // It waits long: who does not use its turn says so.
            let taken = self.turns.get(&tier).into_iter().flat_map(|turns| &turns.taken);
            steps.extend(taken.map(|(&node, &turn)| Step::Order(node, PortableOrder::Turn { tier: tier.clone(), turn })));
        }
        steps
    }

    fn next_turns(&mut self, tier: &str) -> Vec<Step> {
        let mut steps = Vec::new();
        let Some(turns) = self.turns.get_mut(tier) else { return steps };
        while turns.taken.len() < self.writers {
            let Some((node, turn)) = turns.waiting.pop_front() else { break };
            turns.taken.insert(node, turn);
            steps.push(Step::Order(node, PortableOrder::Turn { tier: tier.to_owned(), turn }));
        }
        steps
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
        let had = self.holds.remove(&node).unwrap_or_default();
        let mut steps = Vec::new();
        for other in alive.iter().filter(|other| **other != node) {
            let held = self.holds.get(other).into_iter().flat_map(BTreeMap::keys);
            let names: Vec<FileName> = held.filter(|name| had.contains_key(*name)).cloned().collect();
            if !names.is_empty() {
                steps.push(Step::Order(*other, PortableOrder::Lost { names }));
            }
        }
        let tiers: Vec<String> = self.turns.keys().cloned().collect();
        for tier in tiers {
            if let Some(turns) = self.turns.get_mut(&tier) {
                turns.taken.remove(&node);
                turns.waiting.retain(|(waiting, _)| *waiting != node);
            }
            steps.extend(self.next_turns(&tier));
        }
        self.on_way.retain(|(to, _), _| *to != node);
        let broken: Vec<(NodeIndex, FileName)> =
            self.on_way.iter().filter(|(_, way)| way.from == node && way.wanted).map(|(key, _)| key.clone()).collect();
        self.on_way.retain(|_, way| way.from != node);
        steps.extend(broken.into_iter().flat_map(|(to, name)| self.wanted(to, name, alive)));
        steps
    }
}

/// What the library's rank 0 says of a directory of checkpoints, in its file `targets`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The newest that counts.
    pub newest: u64,
    /// Which one is to be copied to which tier, with all that it links to.
    pub tiers: BTreeMap<String, u64>,
    /// The newest that partners' memories have as a whole, if that is not the one which is copied there.
    pub keep: Option<u64>,
}

impl Targets {
    /// Reads it. Lines that say nothing are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for (name, number) in text.lines().filter_map(|line| line.split_once(" = ")) {
            let Ok(number) = number.parse() else { continue };
            match name {
                "newest" => found.newest = number,
                "keep" => found.keep = Some(number),
                _ => drop(found.tiers.insert(name.to_owned(), number)),
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
    /// It may be written just now.
    pub young: bool,
}

/// The oldest checkpoint that one links to, as the first lines of its manifest tell.
#[must_use]
pub fn oldest_linked(manifest: &str, checkpoint: u64) -> u64 {
    let told = manifest.lines().find_map(|line| line.strip_prefix("needs ")?.parse().ok());
    told.unwrap_or(checkpoint).min(checkpoint)
}

/// Checkpoints that count, by their numbers, and the oldest that each links to.
pub type Chains = BTreeMap<u64, u64>;

/// Which of these a node need not keep: not the `keep` newest that count, not what is to be copied, not what may still be written, and nothing that one of these links to.
/// What is newer than the newest is of a life of the program that went back to before it, and stays as in the directory. `chains`: of what is held, of the newest and of the targets.
#[must_use]
pub fn surplus(held: &[Held], targets: &Targets, chains: &Chains, keep: u32) -> Vec<u64> {
    let counts = |number: u64| chains.contains_key(&number);
    let mut newest: Vec<u64> = held.iter().map(|one| one.number).filter(|&number| counts(number) && number <= targets.newest).collect();
    newest.sort_unstable_by(|a, b| b.cmp(a));
    newest.truncate(keep.max(1) as usize);
    let mut kept: BTreeSet<u64> = targets.tiers.values().copied().chain(targets.keep).chain([targets.newest]).chain(newest).collect();
    kept.extend(held.iter().map(|one| one.number).filter(|&number| number > targets.newest));
    let linked = |number: u64| kept.iter().any(|one| chains.get(one).is_some_and(|&oldest| (oldest..=*one).contains(&number)));
    let goes = |one: &&Held| !kept.contains(&one.number) && if counts(one.number) { !linked(one.number) } else { !one.young };
    held.iter().filter(goes).map(|one| one.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::portable::Part;

    fn name(checkpoint: u64, rank: u32) -> FileName {
        FileName::new("0123456789abcdef0123456789abcdef", checkpoint, rank, Part::Variables).unwrap()
    }

    /// Of a job whose nodes, these, all keep such files.
    fn copies_on(nodes: &[NodeIndex]) -> Copies {
        let mut copies = Copies::new(2);
        for &node in nodes {
            copies.reported(node, PortableReport::Holds { files: Vec::new() }, nodes);
        }
        copies
    }

    #[test]
    fn a_node_that_keeps_none_is_offered_none() {
        let mut copies = copies_on(&[0, 2]);
        let offer = |name: FileName| PortableReport::Offer { name, bytes: 9 };
        let way = |to| Step::Transfer { name: name(7, 0), bytes: 9, from: 0, to, hurry: false };
        assert_eq!(copies.reported(0, offer(name(7, 0)), &[0, 1, 2]), [way(2)]);
        assert_eq!(copies_on(&[0]).reported(0, offer(name(7, 0)), &[0, 1, 2]), []);
    }

    #[test]
    fn a_file_that_is_offered_goes_to_the_next_node_once() {
        let mut copies = copies_on(&[0, 1, 2]);
        let offer = || PortableReport::Offer { name: name(7, 1), bytes: 9 };
        let way = Step::Transfer { name: name(7, 1), bytes: 9, from: 2, to: 0, hurry: false };
        assert_eq!(copies.reported(2, offer(), &[0, 1, 2]), [way]);
        assert_eq!(copies.reported(2, offer(), &[0, 1, 2]), []);
        let taken = PortableReport::Taken { name: name(7, 1), result: Ok(9) };
        assert_eq!(copies.reported(0, taken, &[0, 1, 2]), [Step::Order(2, PortableOrder::Kept { name: name(7, 1) })]);
        // Alone there is no partner; after a failure it is offered again.
        assert_eq!(copies_on(&[2]).reported(2, offer(), &[2]), []);
        let mut copies = copies_on(&[0, 2]);
        copies.reported(2, offer(), &[0, 2]);
        assert_eq!(copies.reported(0, PortableReport::Taken { name: name(7, 1), result: Err("full".into()) }, &[0, 2]), []);
        assert_eq!(copies.reported(2, offer(), &[0, 2]).len(), 1);
    }

    #[test]
    fn who_wants_a_file_is_answered_whatever_happens() {
        let mut copies = Copies::new(2);
        for node in [1, 2] {
            copies.reported(node, PortableReport::Holds { files: vec![(name(7, 1), 9)] }, &[0, 1, 2]);
        }
        let wanted = PortableReport::Wanted { name: name(7, 1) };
        let from = |node| Step::Transfer { name: name(7, 1), bytes: 9, from: node, to: 0, hurry: true };
        assert_eq!(copies.reported(0, wanted.clone(), &[0, 1, 2]), [from(1)]);
        assert_eq!(copies.reported(0, wanted.clone(), &[0, 1, 2]), []);
        let again = Step::Order(2, PortableOrder::Lost { names: vec![name(7, 1)] });
        assert_eq!(copies.lost(1, &[0, 2]), [again, from(2)]);
        let failed = PortableReport::Taken { name: name(7, 1), result: Err("torn".into()) };
        let missing = Step::Order(0, PortableOrder::Missing { name: name(7, 1) });
        assert_eq!(copies.reported(0, failed, &[0, 2]), [missing]);
        assert_eq!(copies.reported(0, PortableReport::Wanted { name: name(8, 1) }, &[0, 2]).len(), 1);
    }

    #[test]
    fn a_copy_on_its_way_to_a_partner_is_also_what_a_rank_there_waits_for() {
        let mut copies = copies_on(&[0, 1]);
        copies.reported(0, PortableReport::Offer { name: name(7, 1), bytes: 9 }, &[0, 1]);
        assert_eq!(copies.reported(1, PortableReport::Wanted { name: name(7, 1) }, &[0, 1]), []);
        let missing = Step::Order(1, PortableOrder::Missing { name: name(7, 1) });
        assert_eq!(copies.lost(0, &[1]), [missing]);
    }

    #[test]
    fn a_node_keeps_the_newest_that_counts_and_what_is_copied() {
        let held = |number, young| Held { number, young };
        let targets = Targets::parse("newest = 40\nshared = 10\nnonsense\npartner = x\n");
        assert_eq!(targets, Targets { newest: 40, tiers: [("shared".to_owned(), 10)].into(), keep: None });
        // Each is full.
        let chains: Chains = [10, 20, 30, 40, 60].into_iter().map(|number| (number, number)).collect();
        let all = [
            held(10, false),
            held(20, false),
            held(25, false),
            held(30, false),
            held(35, true),
            held(40, true),
            held(50, true),
            held(60, false),
        ];
        assert_eq!(surplus(&all, &targets, &chains, 1), [20, 25, 30]);
        assert_eq!(surplus(&all, &targets, &chains, 2), [20, 25]);
        // Of the one which partners have as a whole nothing goes.
        let targets = Targets::parse("newest = 40\nshared = 10\npartner = 40\nkeep = 20\n");
        assert_eq!(surplus(&all, &targets, &chains, 1), [25, 30]);
        // Before anything is known, nothing goes.
        assert_eq!(surplus(&all, &Targets::default(), &chains, 1), [0; 0]);
        // What counts and is not here as a whole goes for nothing that is not there.
        assert_eq!(surplus(&[held(20, false)], &targets, &chains, 1), [0; 0]);
    }

    #[test]
    fn what_is_linked_to_stays_as_long_as_what_is_kept_needs_it() {
        let all: Vec<Held> = (1..=9).map(|number| Held { number: number * 10, young: false }).collect();
        // 10 is full, 20 and 30 build on it; 40 is full, 50 does not count, 60 builds on 40; 70 is full, 80 builds on it, 90 is of an abandoned life and builds on 70.
        let chains: Chains = [(10, 10), (20, 10), (30, 10), (40, 40), (60, 40), (70, 70), (80, 70), (90, 70)].into();
        let targets = |text: &str| Targets::parse(text);
        assert_eq!(surplus(&all, &targets("newest = 80\n"), &chains, 1), [10, 20, 30, 40, 50, 60]);
        assert_eq!(surplus(&all, &targets("newest = 80\n"), &chains, 2), [10, 20, 30, 40, 50, 60]);
        assert_eq!(surplus(&all, &targets("newest = 80\n"), &chains, 3), [10, 20, 30, 50]);
        // A tier that is behind needs what its target links to, and not what lies between the chains.
        assert_eq!(surplus(&all, &targets("newest = 80\nshared = 20\n"), &chains, 1), [30, 40, 50, 60]);
        // What is newer than the newest also needs what it links to.
        let gone_back = targets("newest = 40\n");
        assert_eq!(surplus(&all, &gone_back, &chains, 1), [10, 20, 30]);
        // The newest is not here, for want of room, but what it links to is.
        let without: Vec<Held> = all.iter().copied().filter(|one| one.number < 80).collect();
        assert_eq!(surplus(&without, &targets("newest = 80\n"), &chains, 1), [10, 20, 30, 40, 50, 60]);
    }

    #[test]
    fn a_lost_node_s_copies_are_offered_again_by_who_has_the_files() {
        let mut copies = Copies::new(1);
        for node in [0, 1] {
            copies.reported(node, PortableReport::Holds { files: vec![(name(7, 1), 9), (name(8, 1), 9)] }, &[0, 1, 2]);
        }
        copies.reported(2, PortableReport::Holds { files: vec![(name(7, 2), 9)] }, &[0, 1, 2]);
        // What a node has no more nobody asks it for.
        copies.reported(0, PortableReport::Gone { key: name(7, 1).key().to_owned(), checkpoint: 7 }, &[0, 1, 2]);
        assert_eq!(copies.lost(1, &[0, 2]), [Step::Order(0, PortableOrder::Lost { names: vec![name(8, 1)] })]);
        assert_eq!(copies.lost(1, &[0, 2]), []);
    }

    #[test]
    fn no_more_nodes_than_allowed_have_a_turn() {
        let mut copies = Copies::new(2);
        let alive = [0, 1, 2, 3];
        let asks = |turn| PortableReport::Asks { tier: "shared".into(), turn };
        let over = |turn| PortableReport::Over { tier: "shared".into(), turn };
        let may = |node, turn| Step::Order(node, PortableOrder::Turn { tier: "shared".into(), turn });
        assert_eq!(copies.reported(0, asks(1), &alive), [may(0, 1)]);
        assert_eq!(copies.reported(1, asks(5), &alive), [may(1, 5)]);
        assert_eq!(copies.reported(2, asks(1), &alive), []);
        assert_eq!(copies.reported(3, asks(1), &alive), []);
        // Other tiers have turns of their own.
        assert_eq!(copies.reported(3, PortableReport::Asks { tier: "object".into(), turn: 1 }, &alive).len(), 1);
        // Who has a turn is told again; who has waited long has the others asked.
        assert_eq!(copies.reported(0, asks(1), &alive), [may(0, 1)]);
        assert_eq!(copies.reported(2, asks(1), &alive), [may(0, 1), may(1, 5)]);
        // An old turn's end ends no new one, and who asked first is next.
        assert_eq!(copies.reported(1, over(4), &alive), []);
        assert_eq!(copies.reported(1, over(5), &alive), [may(2, 1)]);
        assert_eq!(copies.lost(2, &[0, 1, 3]), [may(3, 1)]);
        // One that asks with a new number has forgotten its turn.
        assert_eq!(copies.reported(1, asks(6), &[0, 1, 3]), []);
        assert_eq!(copies.reported(3, asks(2), &[0, 1, 3]), [may(1, 6)]);
        assert_eq!(copies.reported(3, over(2), &[0, 1, 3]), []);
        assert_eq!(copies.reported(0, over(1), &[0, 1, 3]), []);
    }
}
