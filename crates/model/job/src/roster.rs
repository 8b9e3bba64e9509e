//! Who belongs to a job: its nodes and its ranks, where each rank is, and what is known of both.

use crate::notice::SpawnTrouble;
use crate::phase::RankPhase;
use crate::setup::NodeSetup;
use mend_coordination::failure::Failure;
use mend_image::cpu::{Cpu, CpuNeeds};
use mend_messages::daemon::{ExitStatus, NodeRoom};
use mend_messages::job::{FabricAddress, JobMap, MapEntry, NodeIndex, Rank};
use mend_policy::back::is_clearly_busier;
use mend_policy::spares::{Candidate, choose_target};
use serde::{Deserialize, Serialize};

/// What is known about a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankState {
    /// Where it is.
    pub node: NodeIndex,
    /// Number of its process there.
    pub attempt: u64,
    /// Grows with every move.
    pub generation: u64,
    /// False while it moves.
    pub open: bool,
    /// Its fabric's listener.
    pub address: Option<FabricAddress>,
    /// What it does.
    pub phase: RankPhase,
    /// Its agent spoke, or will not.
    pub agent: bool,
    /// What it needs of a processor, as its agent or its image told last.
    pub needs: CpuNeeds,
}

impl RankState {
    fn new(node: NodeIndex, phase: RankPhase) -> Self {
        Self { node, attempt: 0, generation: 1, open: true, address: None, phase, agent: false, needs: CpuNeeds::default() }
    }

    /// True once it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, RankPhase::Exited(_))
    }
}

/// A process of a rank, one of those that it has in turn or that it is moved into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) node: NodeIndex,
    pub(crate) rank: Rank,
    /// Its number; no other process of the job has it.
    pub(crate) attempt: u64,
}

/// A rank that is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coming {
    pub(crate) rank: Rank,
    pub(crate) target: NodeIndex,
    /// Memory that it takes there and has not taken yet, bytes.
    pub(crate) bytes: u64,
}

/// A node of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Who it is.
    pub setup: NodeSetup,
    /// False once it is lost or has ended.
    pub alive: bool,
    /// What it has told last that it has to spare.
    pub room: Option<NodeRoom>,
    /// What its processor offers, once it has told.
    pub processor: Option<Cpu>,
    /// Ranks are to leave it: it takes none.
    pub unfit: bool,
}

/// A rank that follows its data takes at most this part of the memory that a node has left.
const FOLLOWER_SHARE: u64 = 4;

/// All nodes and ranks of a job, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) ranks: Vec<RankState>,
    /// Processes that were ordered.
    attempts: u64,
}

impl Roster {
    /// Ranks that are in this phase at these places.
    pub(crate) fn new(nodes: Vec<NodeSetup>, places: &[NodeIndex], phase: RankPhase) -> Self {
        let rank = |&node: &NodeIndex| RankState::new(node, phase);
        Self {
            nodes: nodes.into_iter().map(|setup| NodeState { setup, alive: true, room: None, processor: None, unfit: false }).collect(),
            ranks: places.iter().map(rank).collect(),
            attempts: 0,
        }
    }

    /// Without these ranks: they have ended, in an earlier life of the job.
    pub(crate) fn without(mut self, gone: &[Rank]) -> Self {
        for &rank in gone {
            if let Some(state) = self.ranks.get_mut(rank as usize) {
                (state.phase, state.agent) = (RankPhase::Exited(ExitStatus::Code(0)), true);
            }
        }
        self
    }

    /// The host of each rank that lives, by rank.
    pub(crate) fn living_hosts(&self) -> Vec<Option<String>> {
        let lives = |rank: &RankState| self.is_alive(rank.node) && !rank.has_ended();
        let host = |rank: &RankState| lives(rank).then(|| self.nodes[rank.node as usize].setup.name.clone());
        self.ranks.iter().map(host).collect()
    }

    /// The job has a rank more.
    pub(crate) fn add(&mut self, node: NodeIndex, attempt: u64) {
        self.ranks.push(RankState { attempt, ..RankState::new(node, RankPhase::Starting) });
    }

    /// Where a new rank goes: to this host, or where ranks are fewest for its processors. `coming`: where those go that are placed with it.
    pub(crate) fn place_new(&self, host: Option<&str>, coming: &[NodeIndex]) -> Result<NodeIndex, SpawnTrouble> {
        if let Some(name) = host {
            let node = self.nodes.iter().position(|node| node.setup.name == name).map(|node| node as NodeIndex);
            let node = node.ok_or_else(|| SpawnTrouble::NoSuchHost(name.to_owned()))?;
            return match self.is_alive(node) && !self.is_unfit(node) {
                true => Ok(node),
                false => Err(SpawnTrouble::TakesNone(name.to_owned())),
            };
        }
        let living = self.ranks.iter().filter(|rank| !rank.has_ended()).map(|rank| rank.node);
        let places: Vec<NodeIndex> = living.chain(coming.iter().copied()).collect();
        let on = |node: NodeIndex| places.iter().filter(|&&place| place == node).count() as u32;
        let candidate = |node: NodeIndex| Candidate { node, ranks: on(node), room: self.room(node, &[]) };
        let candidates: Vec<Candidate> = self.alive().into_iter().filter(|&node| !self.is_unfit(node)).map(candidate).collect();
        choose_target(&candidates, None).ok_or(SpawnTrouble::NoNode)
    }

    /// A number for a process that is going to be ordered.
    pub(crate) fn new_attempt(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    /// The process that a rank is.
    pub(crate) fn process(&self, rank: Rank) -> Process {
        let RankState { node, attempt, .. } = self.ranks[rank as usize];
        Process { node, rank, attempt }
    }

    /// All nodes, lost ones too.
    pub(crate) fn node_numbers(&self) -> std::ops::Range<NodeIndex> {
        0..self.nodes.len() as NodeIndex
    }

    /// All ranks, ended ones too.
    pub(crate) fn rank_numbers(&self) -> std::ops::Range<Rank> {
        0..self.ranks.len() as Rank
    }

    pub(crate) fn is_alive(&self, node: NodeIndex) -> bool {
        self.nodes.get(node as usize).is_some_and(|node| node.alive)
    }

    /// Nodes that are not lost.
    pub(crate) fn alive(&self) -> Vec<NodeIndex> {
        self.node_numbers().filter(|&node| self.is_alive(node)).collect()
    }

    pub(crate) fn node_name(&self, node: NodeIndex) -> &str {
        self.nodes.get(node as usize).map_or("", |node| &node.setup.name)
    }

    pub(crate) fn node_of(&self, rank: Rank) -> Option<NodeIndex> {
        self.ranks.get(rank as usize).map(|state| state.node)
    }

    /// The generation of a rank that has not ended.
    pub(crate) fn living(&self, rank: Rank) -> Option<u64> {
        self.ranks.get(rank as usize).filter(|state| !state.has_ended()).map(|state| state.generation)
    }

    /// Ranks that have not ended.
    pub(crate) fn all_living(&self) -> Vec<Rank> {
        self.rank_numbers().filter(|&rank| self.living(rank).is_some()).collect()
    }

    /// Ranks that live on a node.
    pub(crate) fn living_on(&self, node: NodeIndex) -> Vec<Rank> {
        self.all_living().into_iter().filter(|&rank| self.node_of(rank) == Some(node)).collect()
    }

    pub(crate) fn is_one_node(&self) -> bool {
        let mut living = self.ranks.iter().filter(|rank| !rank.has_ended()).map(|rank| rank.node);
        living.next().is_none_or(|first| living.all(|node| node == first))
    }

    /// Nodes that a rank may move to which names none: those that are alive, are not its own and not to be avoided.
    fn candidates(&self, rank: Rank, avoid: &[String], coming: &[Coming]) -> Vec<Candidate> {
        let mut places: Vec<NodeIndex> = self.ranks.iter().map(|rank| rank.node).collect();
        coming.iter().for_each(|one| places[one.rank as usize] = one.target);
        let takes = |node: &NodeIndex| *node != places[rank as usize] && !avoid.iter().any(|name| name == self.node_name(*node));
        let living = |rank: usize| !self.ranks[rank].has_ended();
        let on = |node: NodeIndex| places.iter().enumerate().filter(|&(rank, &place)| place == node && living(rank)).count() as u32;
        let candidate = |node: NodeIndex| Candidate { node, ranks: on(node), room: self.room(node, coming) };
        self.alive().into_iter().filter(|&node| !self.is_unfit(node)).filter(takes).map(candidate).collect()
    }

    /// Whether ranks are to leave a node.
    pub(crate) fn is_unfit(&self, node: NodeIndex) -> bool {
        self.nodes.get(node as usize).is_some_and(|node| node.unfit)
    }

    /// What a node has left when all that is on its way has come.
    fn room(&self, node: NodeIndex, coming: &[Coming]) -> Option<NodeRoom> {
        let room = self.nodes.get(node as usize)?.room?;
        let promised = coming.iter().filter(|one| one.target == node).map(|one| one.bytes).fold(0, u64::saturating_add);
        Some(NodeRoom { memory: room.memory.saturating_sub(promised), ..room })
    }

    /// Whether a rank can run on a node's processor, as far as is known.
    ///
    /// # Errors
    /// [`Failure::Processor`]
    pub(crate) fn runs_on(&self, rank: Rank, node: NodeIndex) -> Result<(), Failure> {
        let processor = self.nodes.get(node as usize).and_then(|node| node.processor.as_ref());
        let runs = processor.map_or(Ok(()), |processor| self.ranks[rank as usize].needs.runs_on(processor));
        runs.map_err(|why| Failure::Processor { rank, node, why })
    }

    /// Where a rank moves that needs so many bytes, and was to move to `target`: there if it fits, or where it does if nobody has `named`
    /// the target. `coming`: other ranks that are on their way.
    ///
    /// # Errors
    /// [`Failure::NoRoom`], [`Failure::Processor`]
    pub(crate) fn find_room(
        &self,
        (rank, needs): (Rank, u64),
        (target, named): (NodeIndex, bool),
        avoid: &[String],
        coming: &[Coming],
    ) -> Result<NodeIndex, Failure> {
        let left = |room: Option<NodeRoom>| room.map_or(u64::MAX, |room| room.memory);
        let (there, runs) = (left(self.room(target, coming)), self.runs_on(rank, target));
        if there >= needs && runs.is_ok() && (named || !self.is_unfit(target)) {
            return Ok(target);
        }
        let mut candidates = if named { Vec::new() } else { self.candidates(rank, avoid, coming) };
        candidates.retain(|one| self.runs_on(rank, one.node).is_ok());
        choose_target(&candidates, Some(needs)).ok_or_else(|| {
            let most = candidates.iter().map(|one| (one.node, left(one.room))).max_by_key(|(_, left)| *left);
            match (most, runs) {
                (None, Err(failure)) => failure,
                (most, _) => {
                    let (node, left) = most.unwrap_or((target, there));
                    Failure::NoRoom { rank, node, needs, left }
                }
            }
        })
    }

    /// Whether a rank of so many bytes may follow its data to this node: a node is not filled with what is there for its data alone.
    ///
    /// # Errors
    /// [`Failure::TooLargeToFollow`]
    pub(crate) fn fits_as_follower(&self, (rank, needs): (Rank, u64), node: NodeIndex, coming: &[Coming]) -> Result<NodeIndex, Failure> {
        match self.room(node, coming).map(|room| room.memory) {
            Some(left) if needs > left / FOLLOWER_SHARE => Err(Failure::TooLargeToFollow { rank, node, needs, left }),
            _ => Ok(node),
        }
    }

    /// Whether a node is clearly busier than another, by what both have told: threads that want to run, per processor.
    pub(crate) fn is_busier(&self, node: NodeIndex, than: NodeIndex) -> bool {
        let load = |node: NodeIndex| {
            let room = self.nodes.get(node as usize)?.room?;
            Some(f64::from(room.load) / 100.0 / f64::from(room.processors.max(1)))
        };
        // A node with a thread for each processor is as good as one that has nothing to do.
        load(node).zip(load(than)).is_some_and(|(there, here)| is_clearly_busier(there, here.max(1.0)))
    }

    /// Where else a rank moves that needs so many bytes: where it fits, and is not to avoid.
    pub(crate) fn find_other(&self, (rank, needs): (Rank, u64), avoid: &[String], coming: &[Coming]) -> Option<NodeIndex> {
        let mut candidates = self.candidates(rank, avoid, coming);
        candidates.retain(|one| self.runs_on(rank, one.node).is_ok());
        choose_target(&candidates, Some(needs))
    }

    /// Places ranks elsewhere that cannot run on the processors of their nodes: each on the node with the fewest ranks on which it can, of
    /// equal ones on the first. Returns those that were placed elsewhere, and why.
    ///
    /// # Errors
    /// The first that can run nowhere: [`Failure::Processor`].
    pub(crate) fn place_by_processor(&mut self) -> Result<Vec<Failure>, Failure> {
        let mut elsewhere = Vec::new();
        for rank in self.all_living() {
            let Err(why) = self.runs_on(rank, self.ranks[rank as usize].node) else { continue };
            let ranks = |node: &NodeIndex| self.ranks.iter().filter(|rank| rank.node == *node && !rank.has_ended()).count();
            let fitting = self.alive().into_iter().filter(|&node| self.runs_on(rank, node).is_ok());
            let Some(node) = fitting.min_by_key(ranks) else { return Err(why) };
            self.ranks[rank as usize].node = node;
            elsewhere.push(why);
        }
        Ok(elsewhere)
    }

    /// Where a rank may move, if it may: to the node of this name, or to one that is not to be avoided. `coming`: ranks that are
    /// on their way.
    pub(crate) fn move_target(&self, rank: Rank, (to, avoid): (Option<&str>, &[String]), coming: &[Coming]) -> Result<NodeIndex, Failure> {
        let Some(state) = self.ranks.get(rank as usize) else {
            return Err(Failure::NoSuchRank { rank, size: self.ranks.len() as u32 });
        };
        if state.has_ended() {
            return Err(Failure::MovesNoMore { rank });
        }
        match to {
            Some(name) => match self.nodes.iter().position(|node| node.setup.name == name) {
                None => Err(Failure::NoSuchNode { name: name.to_owned() }),
                Some(node) if !self.nodes[node].alive => Err(Failure::NodeIsLost { node: node as NodeIndex }),
                Some(node) if self.nodes[node].unfit && node as NodeIndex != state.node => {
                    Err(Failure::TakesNone { node: node as NodeIndex })
                }
                Some(node) if node as NodeIndex == state.node => Err(Failure::ThereAlready { rank, node: state.node }),
                Some(node) => Ok(node as NodeIndex),
            },
            None => choose_target(&self.candidates(rank, avoid, coming), None).ok_or(Failure::NoOtherNode),
        }
    }

    /// Where every rank is, for the agents.
    pub(crate) fn map(&self, version: u64) -> JobMap {
        let entry = |(rank, state): (usize, &RankState)| MapEntry {
            rank: rank as Rank,
            node: state.node,
            generation: state.generation,
            open: state.open,
            address: state.address.clone(),
            ended: state.has_ended(),
        };
        JobMap { version, entries: self.ranks.iter().enumerate().map(entry).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_image::cpu::{CpuMismatch, Features};

    const ALL: Features = Features([0b11, 0]);
    const FEWER: Features = Features([0b01, 0]);

    /// Nodes with such processors, none of which has told its memory; all ranks on the first, and what they need is all.
    fn roster(processors: &[Option<Features>], ranks: usize) -> Roster {
        let setup = |at: usize| NodeSetup { name: format!("n{at}"), address: ([10, 0, 0, at as u8], 7000).into() };
        let nodes = (0..processors.len()).map(setup).collect();
        let mut roster = Roster::new(nodes, &vec![0; ranks], RankPhase::Running);
        for (node, features) in roster.nodes.iter_mut().zip(processors) {
            node.processor = features.map(|features| Cpu { features, ..Cpu::default() });
        }
        for rank in &mut roster.ranks {
            rank.needs = CpuNeeds { features: ALL, ..CpuNeeds::default() };
        }
        roster
    }

    fn lacks(rank: Rank, node: NodeIndex) -> Failure {
        Failure::Processor { rank, node, why: CpuMismatch::Features(Features([0b10, 0])) }
    }

    #[test]
    fn a_rank_moves_to_a_node_whose_processor_will_do() {
        let mut roster = roster(&[Some(ALL), Some(FEWER), Some(ALL), None], 2);
        let find = |roster: &Roster, target, named| roster.find_room((0, 10), (target, named), &[], &[]);
        assert_eq!(find(&roster, 2, true), Ok(2));
        assert_eq!(find(&roster, 1, true), Err(lacks(0, 1)));
        assert_eq!(find(&roster, 1, false), Ok(2));
        // What has not told is not known to lack anything.
        assert_eq!(find(&roster, 3, true), Ok(3));
        // Memory and processor are asked alike: each is the reason where the other would do.
        let room = |memory| Some(NodeRoom { memory, processors: 2, load: 0 });
        (roster.nodes[1].room, roster.nodes[2].room, roster.nodes[3].alive) = (room(100), room(5), false);
        assert_eq!(find(&roster, 1, false), Err(Failure::NoRoom { rank: 0, node: 2, needs: 10, left: 5 }));
        roster.nodes[2].alive = false;
        assert_eq!(find(&roster, 1, false), Err(lacks(0, 1)));
        roster.ranks[0].needs.features = FEWER;
        assert_eq!(find(&roster, 1, false), Ok(1));
    }

    #[test]
    fn a_rank_follows_its_data_where_it_is_small_and_the_node_is_not_busier() {
        let mut roster = roster(&[None; 3], 1);
        let room = |memory, processors, load| Some(NodeRoom { memory, processors, load });
        let fits = |roster: &Roster, needs| roster.fits_as_follower((0, needs), 1, &[]);
        assert_eq!((fits(&roster, 1 << 50), roster.is_busier(1, 0)), (Ok(1), false), "nothing is known");
        (roster.nodes[0].room, roster.nodes[1].room) = (room(400, 2, 200), room(400, 2, 350));
        assert_eq!(fits(&roster, 100), Ok(1));
        assert_eq!(fits(&roster, 101), Err(Failure::TooLargeToFollow { rank: 0, node: 1, needs: 101, left: 400 }));
        assert!(roster.fits_as_follower((0, 90), 1, &[Coming { rank: 0, target: 1, bytes: 80 }]).is_err(), "others are on their way");
        assert!(!roster.is_busier(1, 0) && !roster.is_busier(0, 1), "as busy, within what changes all the time");
        roster.nodes[1].room = room(400, 2, 351);
        assert!(roster.is_busier(1, 0));
        // Per processor; and a thread for each is no load.
        roster.nodes[1].room = room(400, 4, 351);
        assert!(!roster.is_busier(1, 0));
        (roster.nodes[0].room, roster.nodes[1].room) = (room(400, 2, 0), room(400, 2, 300));
        assert!(!roster.is_busier(1, 0));
    }

    #[test]
    fn ranks_of_a_restart_leave_nodes_that_will_not_do() {
        let mut three = roster(&[Some(FEWER), Some(ALL), Some(ALL)], 4);
        three.ranks[3].node = 1;
        three.ranks[2].needs.features = FEWER;
        assert_eq!(three.place_by_processor(), Ok(vec![lacks(0, 0), lacks(1, 0)]));
        assert_eq!(three.ranks.iter().map(|rank| rank.node).collect::<Vec<_>>(), [2, 1, 0, 1]);
        assert_eq!(three.place_by_processor(), Ok(Vec::new()));
        assert_eq!(roster(&[Some(FEWER), Some(FEWER)], 1).place_by_processor(), Err(lacks(0, 0)));
    }
}
