//! Ranks that ask for more processes (`MPI_Comm_spawn`): a world more, whose ranks are ranks of the job like all others.
//!
//! ```text
//! asked ─► waits for what is under way ─► placed ─► Grow to all nodes, Start ─► all started ─► operations go on
//!             └ cannot be placed ─► refused           └ one cannot be started, or ends before MPI_Init ─► all of them end, refused; a job that
//!                                                       goes on by itself after a signal has ended one goes back to its checkpoint instead
//! ```
//! Who asked is answered when all of them have called `MPI_Init` ([`mend_coordination::worlds`]); until then a checkpoint holds that it waits.
//!
//! Invariants: no world begins while an operation is under way, and none of these while the ranks of a world are being started, so that each
//! has all ranks or none of a world; a rank that asked is answered, or the job ends.

use super::{AGENTS_US, Job, MAP_DELAY_US, SECOND_US};
use crate::event::{End, Notice};
use crate::notice::SpawnTrouble;
use crate::phase::RankPhase;
use mend_coordination::failure::Gone;
use mend_coordination::pmi::ClientState;
use mend_coordination::spawn_request::SpawnRequest;
use mend_journal::Event;
use mend_journal::event::cut;
use mend_journal::ranks::Ranks;
use mend_messages::daemon::{ExitStatus, ToDaemon};
use mend_messages::job::{MAX_RANKS, NodeIndex, Rank};
use mend_messages::world::World;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Reasons that are told; of more the journal tells.
const MAX_TOLD: usize = 16;

/// What is known of worlds that are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spawning {
    /// Ranks that wait, what they have asked for, and when.
    waiting: VecDeque<(Rank, SpawnRequest, u64)>,
    /// Ranks of a new world that have not started yet.
    starting: BTreeSet<Rank>,
    /// Why there were no processes, as it was told.
    told: Vec<SpawnTrouble>,
}

impl Spawning {
    /// Ranks are being started, or were asked for before `asked_us`: no operation begins that was asked for then.
    pub(crate) fn comes_before(&self, asked_us: u64) -> bool {
        !self.starting.is_empty() || self.waiting.front().is_some_and(|(.., since)| *since <= asked_us)
    }
}

impl Job {
    /// A rank asks for processes.
    pub(crate) fn spawn_asked(&mut self, rank: Rank, request: Result<SpawnRequest, String>) {
        match request {
            Ok(request) if self.spawning.waiting.iter().all(|(other, ..)| *other != rank) => {
                self.spawning.waiting.push_back((rank, request, self.now_us));
            }
            Ok(_) => {}
            Err(why) => self.refuse_spawn(rank, SpawnTrouble::Request(why)),
        }
    }

    /// Begins what is asked for, as soon as nothing is under way.
    pub(crate) fn begin_spawns(&mut self) {
        while self.spawning.starting.is_empty() && self.operation.is_none() && self.ending.is_none() {
            // An operation that was asked for before has its turn.
            let first = |since: u64| self.waiting.front().is_none_or(|(.., asked_us)| since <= *asked_us);
            if !self.spawning.waiting.front().is_some_and(|(.., since)| first(*since)) {
                return;
            }
            let Some((rank, request, _)) = self.spawning.waiting.pop_front() else { return };
            if self.roster.living(rank).is_none() {
                continue;
            }
            match self.place_world(&request) {
                Ok(places) => self.begin_world(rank, &request, &places),
                Err(trouble) => self.refuse_spawn(rank, trouble),
            }
        }
    }

    fn place_world(&self, request: &SpawnRequest) -> Result<Vec<NodeIndex>, SpawnTrouble> {
        let wanted: u32 = request.commands.iter().map(|command| command.ranks).fold(0, u32::saturating_add);
        if self.worlds.size().saturating_add(wanted) > MAX_RANKS {
            return Err(SpawnTrouble::TooMany);
        }
        let mut places = Vec::new();
        for (command, hosts) in request.commands.iter().zip(&request.hosts) {
            for at in 0..command.ranks as usize {
                let host = if hosts.is_empty() { None } else { Some(hosts[at % hosts.len()].as_str()) };
                places.push(self.roster.place_new(host, &places)?);
            }
        }
        Ok(places)
    }

    fn begin_world(&mut self, parent: Rank, request: &SpawnRequest, places: &[NodeIndex]) {
        let world = self.worlds.add(&self.identity, parent, request);
        self.note_world(&world, places);
        self.send_to_all(&ToDaemon::Grow(world.clone()));
        for (rank, &node) in world.ranks().zip(places) {
            let attempt = self.roster.new_attempt();
            self.roster.add(node, attempt);
            self.spawning.starting.insert(rank);
            self.send_to_rank(rank, ToDaemon::Start { rank, attempt, stdin: false });
        }
        self.publish_map();
    }

    fn note_world(&mut self, world: &World, places: &[NodeIndex]) {
        let mut found: BTreeMap<String, Vec<(Rank, Rank)>> = BTreeMap::new();
        for (rank, &node) in world.ranks().zip(places) {
            found.entry(self.roster.node_name(node).to_owned()).or_default().push((rank, rank));
        }
        let places = found.into_iter().map(|(node, ranks)| (node, Ranks::from(ranks))).collect();
        let number = self.worlds.spawned().count() as u32;
        self.record_rank(world.parent, Event::WorldSpawned { world: number, command: cut(world.command()), places });
    }

    fn refuse_spawn(&mut self, rank: Rank, trouble: SpawnTrouble) {
        self.note_spawn_failed(rank, trouble);
        let effects = self.worlds.refuse(rank);
        self.apply(effects);
    }

    /// The program gets an MPI error that does not say why.
    fn note_spawn_failed(&mut self, rank: Rank, trouble: SpawnTrouble) {
        self.record_rank(rank, Event::SpawnFailed { why: cut(trouble.to_string()) });
        if !self.spawning.told.contains(&trouble) && self.spawning.told.len() < MAX_TOLD {
            self.spawning.told.push(trouble.clone());
            self.tell(Notice::SpawnFailed { rank, trouble });
        }
    }

    /// A world is beginning: for so long an operation waits that was asked for then.
    pub(crate) fn awaits_worlds(&self, asked_us: u64) -> bool {
        self.worlds.is_beginning() && self.now_us.saturating_sub(asked_us) < AGENTS_US
    }

    /// The first rank that has ended, and that a checkpoint cannot do without.
    pub(crate) fn first_ended(&self) -> Option<Rank> {
        self.roster.rank_numbers().find(|&rank| self.roster.living(rank).is_none() && !self.worlds.may_leave(rank))
    }

    /// A rank has ended. While others go on, they are told soon, before they have to drain channels: it closed its own with messages under way.
    pub(crate) fn rank_ended(&mut self, rank: Rank) {
        if self.worlds.may_leave(rank) {
            self.anew.rank_ended(self.now_us);
            self.map_is_due(MAP_DELAY_US);
        } else if self.roster.ranks.iter().any(|rank| !rank.has_ended()) {
            // The others may end, too: no map for each of them.
            self.map_is_due(SECOND_US);
        }
    }

    /// Tells all agents at once what they are going to hear soon.
    pub(crate) fn tell_of_ends(&mut self) {
        if self.map_due_us.is_some() {
            self.publish_map();
        }
    }

    /// A rank's process runs.
    pub(crate) fn spawned_rank_started(&mut self, rank: Rank) {
        self.spawning.starting.remove(&rank);
    }

    /// A rank cannot be started. True if it is one of a world whose parent can be told.
    pub(crate) fn spawned_rank_not_started(&mut self, rank: Rank, error: &str, hint: &str) -> bool {
        let fails = self.worlds.unanswered(rank).is_some();
        if fails {
            self.give_up_world(rank, SpawnTrouble::NotStarted { error: error.to_owned(), hint: hint.to_owned() });
        }
        fails
    }

    /// A rank has ended. True if that was before it began, and its parent was told.
    pub(crate) fn spawned_rank_ended_early(&mut self, rank: Rank, status: ExitStatus) -> bool {
        let early = self.worlds.unanswered(rank).is_some() && self.worlds.client(rank) == ClientState::Silent;
        let fails = early && self.ending.is_none() && self.interrupted.is_none() && !self.heals_its_loss(rank, status);
        if fails {
            self.give_up_world(rank, SpawnTrouble::Ended(status));
        }
        fails
    }

    /// Whether the job goes back to a checkpoint if this is how a rank ends. Only a signal is nothing that the program may have meant.
    fn heals_its_loss(&self, rank: Rank, status: ExitStatus) -> bool {
        let (ExitStatus::Signal(signal), Some(healing), None) = (status, &self.healing, &self.time_up) else { return false };
        healing.goes_on(&End::RankKilled { rank, signal }, false, self.newest_listed())
    }

    /// All ranks of the world of this one end, and who asked for it is told that there are none.
    fn give_up_world(&mut self, rank: Rank, trouble: SpawnTrouble) {
        let Some(world) = self.worlds.unanswered(rank).cloned() else { return };
        self.note_spawn_failed(world.parent, trouble);
        for rank in world.ranks() {
            self.spawning.starting.remove(&rank);
            if self.roster.living(rank).is_some() {
                self.send_to_rank(rank, ToDaemon::Discard { rank });
                self.roster.ranks[rank as usize].phase = RankPhase::Exited(ExitStatus::Signal(9));
            }
        }
        for rank in world.ranks() {
            self.rank_ended(rank);
            self.operation_lost(rank, Gone::Ended);
        }
        let effects = self.worlds.give_up(rank);
        self.apply(effects);
    }
}
