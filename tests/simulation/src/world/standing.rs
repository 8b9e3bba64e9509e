//! Ranks that stand still between two lives of the job, and go back to a checkpoint in place; or cannot, and are restored anew, alone.
//!
//! As in the daemon, a process that its agent has paused is kept when the job leaves: until a later life of the job takes it over, its rank is not to be here in that life, or nobody
//! has come for it. It goes back then; or refuses, fails midway or dies, at any moment: it is killed, and the rank restored anew with the number that the job has given.
//!
//! What is asserted: nothing is begun beside a process that stands still; ranks stand still only for a life that follows; no process is given up for what another one
//! said; the job counts on the process that is there; when all ranks run nothing stands still where the job is.

use super::World;
use crate::coming::{Coming, Fault, InPlaceFailure, SECOND_US};
use crate::node::{Phase, Process, StandingRanks};
use mend_job::event::{End as JobEnd, GoesOn};
use mend_messages::agent::{FromAgent, Reply};
use mend_messages::daemon::{ExitStatus, FromDaemon, RestoreBlame, RestoreSource, ToDaemon};
use mend_messages::job::{NodeIndex, Rank};
use mend_node_job::NodeJob;
use mend_node_job::event::{Abandonment, AgentId, End, Event, FileOrder};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// How long ranks stand still that nobody comes for.
const STANDING_TIME_US: u64 = 30 * SECOND_US;
/// When no rank is waited for any more that is to be paused, and a little later.
const PAUSED_US: u64 = 3 * SECOND_US + 1;
/// Of so many ranks one refuses, one fails midway, and one dies as it refuses.
const RARITY: u64 = 10;
/// Once in so many lives that some go back in, something else fails meanwhile.
const SECOND_FAILURE_RARITY: u64 = 3;

/// What is drawn for them, which changes nothing of what is drawn elsewhere.
#[derive(Clone)]
pub struct Rollbacks(ChaCha8Rng);

impl Rollbacks {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed ^ 0x696e_2070_6c61_6365))
    }

    fn draw(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound.max(1)
    }
}

impl World {
    /// No rank is left standing for nothing.
    pub(super) fn check_pause(&self, message: &ToDaemon) -> Result<(), String> {
        let Some(job) = self.job.as_ref().filter(|_| matches!(message, ToDaemon::Pause)) else { return Ok(()) };
        let follows = match job.end_reason() {
            Some(JobEnd::NodeLost { goes_on, .. } | JobEnd::MessagesLost { goes_on, .. }) => *goes_on != GoesOn::NoCheckpoint,
            Some(JobEnd::RankKilled { .. }) => true,
            _ => false,
        };
        if follows && !job.is_interrupted() {
            return Ok(());
        }
        Err(format!("ranks are to stand still, and no life follows: it ends by {:?}", job.end_reason()))
    }

    /// The job's ranks on a node are to pause: it looks at the time.
    pub(super) fn awaits_pauses(&mut self, at: usize) {
        let life = self.nodes[at].connection;
        self.plan(PAUSED_US, Coming::OfNode { life, at, event: Box::new(Event::Time) });
    }

    /// The job leaves a node: processes that stand still are set aside, if a life is to follow. Else all end.
    pub(super) fn sets_aside(&mut self, at: usize, end: End) {
        let life = self.nodes[at].connection;
        let Some(stand) = self.nodes[at].job.as_ref().filter(|_| end == End::Paused).map(NodeJob::stand_still) else {
            self.nodes[at].standing = StandingRanks::default();
            return;
        };
        self.nodes[at].standing.life = life;
        for (rank, agent) in stand {
            let Some(process) = self.nodes[at].ranks.get(&rank).filter(|process| process.attempt == agent) else { continue };
            if process.phase != Phase::Paused {
                self.found_on_node = Some(format!("rank {rank} is to stand still on node {at}, and is in the middle of something"));
            }
            let (number, left) = (process.number, process.feeder.left());
            if rank == 0 {
                self.say(at, FromDaemon::StdinLeft { rank, attempt: number, bytes: left });
            }
            if let Some(process) = self.nodes[at].ranks.remove(&rank) {
                self.nodes[at].standing.ranks.insert(rank, process);
            }
        }
        let ranks = self.nodes[at].standing.ranks.keys().copied().collect();
        self.say(at, FromDaemon::Paused { ranks });
    }

    /// The job has left a node, but for what stands still there.
    pub(super) fn standing_is_kept(&mut self, at: usize) -> StandingRanks {
        let standing = std::mem::take(&mut self.nodes[at].standing);
        if !standing.ranks.is_empty() {
            self.plan(STANDING_TIME_US, Coming::StandingEnds { at, life: standing.life });
        }
        standing
    }

    /// Nobody has come for it.
    pub(super) fn standing_ends(&mut self, at: usize, life: u64) {
        let node = &mut self.nodes[at];
        if node.standing.life == life && node.connection == 0 {
            node.standing = StandingRanks::default();
        }
    }

    /// A life of the job takes over what stands still on a node. Who is not to be here in it ends.
    pub(super) fn takes_over(&mut self, at: usize, places: &[NodeIndex]) -> StandingRanks {
        let mut standing = std::mem::take(&mut self.nodes[at].standing);
        let here = self.index(at);
        standing.ranks.retain(|rank, _| places.get(*rank as usize).copied() == here);
        standing
    }

    pub(super) fn standing_agents(&self, at: usize) -> Vec<(Rank, AgentId)> {
        self.nodes[at].standing.ranks.iter().map(|(rank, process)| (*rank, process.attempt)).collect()
    }

    /// While ranks go back something else may fail.
    pub(super) fn disturb_rollback(&mut self) {
        let stands = self.nodes.iter().any(|node| node.connection == self.life && !node.standing.ranks.is_empty());
        if !stands || !self.disturbed || self.rollbacks.draw(SECOND_FAILURE_RARITY) > 0 {
            return;
        }
        let (node, rank) = (self.rollbacks.draw(self.nodes.len() as u64) as usize, self.rollbacks.draw(u64::from(self.size)) as Rank);
        let fault = match self.rollbacks.draw(4) {
            0 => Fault::NodeDies(node),
            1 => Fault::RankDies(rank, ExitStatus::Signal(9)),
            2 => Fault::CopyDies(rank),
            _ => Fault::ConnectionBreaks(node),
        };
        let delay = self.rollbacks.draw(2 * SECOND_US);
        self.plan(delay, Coming::Fault(fault));
    }

    /// A rank begins to go back in place. What the node's machine is told.
    pub(super) fn goes_back(&mut self, at: usize, (rank, number): (Rank, u64), agent: AgentId, order: FileOrder) -> Vec<Event> {
        let FileOrder { chain, image, stdin: fed, .. } = order;
        let Some(stood) = self.nodes[at].standing.ranks.remove(&rank).filter(|process| process.attempt == agent) else {
            self.found_on_node = Some(format!("rank {rank} is to go back in place, and does not stand still on node {at}"));
            return Vec::new();
        };
        if chain.is_empty() || !chain.iter().all(|path| self.has_file(at, path)) {
            // That is seen before its process is asked.
            self.restore_failed(at, (rank, number), "an image is missing", RestoreBlame::Image);
            return vec![Event::NotBegun { rank, attempt: number }];
        }
        let torn = chain.iter().any(|path| self.disk.is_rotten(path));
        let feeder = self.new_feeder(Some(&RestoreSource::Files(chain)), image, fed);
        let attempt = self.new_process(at, (rank, number), Phase::Building, (feeder, fed));
        if let Some(process) = self.process(at, rank, attempt) {
            (process.restarted, process.goes_back) = (true, Some(stood.attempt));
        }
        let fate = if self.disturbed && !self.quiet { self.rollbacks.draw(RARITY) } else { RARITY };
        let how = match fate {
            _ if torn => Some(InPlaceFailure::Broken),
            0 => Some(InPlaceFailure::Refused),
            1 => Some(InPlaceFailure::Broken),
            2 => Some(InPlaceFailure::KilledAsItRefused),
            _ => None,
        };
        let delay = self.rollbacks.draw(SECOND_US);
        match how {
            Some(how) => self.plan(delay, Coming::FailsInPlace { at, rank, attempt, how }),
            None => self.plan(delay, Coming::Built { at, rank, attempt }),
        }
        vec![Event::AgentAwaited { rank, attempt: number, agent: attempt }]
    }

    /// A rank that was to go back in place does not.
    pub(super) fn fails_in_place(&mut self, at: usize, rank: Rank, attempt: u64, how: InPlaceFailure) {
        let Some(process) = self.process(at, rank, attempt) else { return };
        let Some(agent) = process.goes_back else { return };
        match how {
            InPlaceFailure::Refused => {
                process.refuses = true;
                self.refuses(at, agent);
            }
            InPlaceFailure::Broken => drop(self.ends_in_place(at, rank, false)),
            InPlaceFailure::KilledAsItRefused => drop(self.ends_in_place(at, rank, true)),
        }
    }

    /// The agent of a paused rank says that it cannot go back.
    fn refuses(&mut self, at: usize, agent: AgentId) {
        self.tell_node(at, refusal(agent));
    }

    /// A process that goes back in place is killed: true. Its node hears of it after a while; `refused`: only then also that it has refused.
    pub(super) fn ends_in_place(&mut self, at: usize, rank: Rank, refused: bool) -> bool {
        let Some(before) = self.nodes[at].ranks.get(&rank).and_then(|process| process.goes_back) else { return false };
        let Some(Process { attempt: agent, number: attempt, .. }) = self.nodes[at].ranks.remove(&rank) else { return false };
        let life = self.nodes[at].connection;
        let ended = Event::Ended { rank, attempt, not_in_place: true };
        let late = refused.then(|| refusal(before));
        let gone = [Event::AgentGone { agent }, Event::AgentGone { agent: before }];
        let delay = self.rollbacks.draw(SECOND_US / 2);
        for event in std::iter::once(ended).chain(late).chain(gone) {
            self.plan(delay, Coming::OfNode { life, at, event: Box::new(event) });
        }
        true
    }

    /// Another process of a rank that could not go back in place. What the node's machine is told.
    pub(super) fn begins_anew(&mut self, at: usize, (rank, number): (Rank, u64), order: FileOrder) -> Vec<Event> {
        self.summary.anew += 1;
        let FileOrder { chain, image, stdin, .. } = order;
        self.begin_restore(at, (rank, number), RestoreSource::Files(chain), (image, stdin))
    }

    /// A rank is complete: if its process was there before, its agent of before has ended.
    pub(super) fn is_back(&mut self, at: usize, rank: Rank) {
        let before = self.nodes[at].ranks.get_mut(&rank).and_then(|process| process.goes_back.take());
        if let Some(agent) = before {
            self.summary.in_place += 1;
            self.tell_node(at, Event::AgentGone { agent });
        }
    }

    /// A process is given up whose agent failed, or was gone.
    pub(super) fn is_given_up(&mut self, at: usize, rank: Rank, why: Abandonment) {
        let Some(process) = self.nodes[at].ranks.get(&rank) else { return };
        if !process.refuses {
            self.found_on_node =
                Some(format!("the process of rank {rank} on node {at} is given up ({why:?}), and has not said that it fails"));
        }
        let files = matches!(why, Abandonment::Agent { files: true, .. });
        self.not_built(at, rank, "its agent failed", if files { RestoreBlame::Files } else { RestoreBlame::Other });
    }

    /// A process of a rank is about to be there.
    pub(super) fn check_alone(&mut self, at: usize, rank: Rank) {
        let node = &self.nodes[at];
        if node.ranks.contains_key(&rank) || node.standing.ranks.contains_key(&rank) {
            self.found_on_node = Some(format!("a process of rank {rank} is begun beside another one on node {at}"));
        }
    }

    /// When all ranks run.
    pub(super) fn look_at_standing(&self) -> Result<(), String> {
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.connection == self.life && !node.leaving) {
            if let Some(rank) = node.standing.ranks.keys().next() {
                return Err(format!("a process of rank {rank} is left standing on node {at}"));
            }
        }
        Ok(())
    }
}

fn refusal(agent: AgentId) -> Event {
    let reply = Reply::Failed { error: "a thread has descriptors of its own".into(), hint: String::new() };
    Event::Agent { agent, first: false, message: FromAgent::Reply { seq: u64::MAX, reply } }
}
