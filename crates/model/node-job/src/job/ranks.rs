//! Which ranks are here, with which process: admission, discarding, the ends of tasks.
//!
//! ```text
//! Start, Restore ──► here ── Discard ─────────────────────────► gone; its task kills what is left, and ends later
//!                     │ └─── its task is over ──► gone
//!                     └───── it cannot go back in place ──► another process, from the same files, with the same number
//! ```
//! Invariants: a rank has one process here at a time; what ends late ends nothing of a rank's next process.

use super::NodeJob;
use crate::event::{AgentId, Effect, FileOrder, Inadmissible, Origin};
use crate::local_rank::{LocalRank, PendingRestore};
use crate::safeguard::Safeguard;
use mend_messages::agent::{ImageId, Unasked};
use mend_messages::daemon::RestoreSource;
use mend_messages::files::PutBack;
use mend_messages::job::Rank;

impl NodeJob {
    fn inadmissible(&self, rank: Rank) -> Option<Inadmissible> {
        if self.ranks.contains_key(&rank) {
            Some(Inadmissible::Present)
        } else {
            (rank >= self.size).then_some(Inadmissible::NoSuchRank { size: self.size })
        }
    }

    pub(super) fn start(&mut self, rank: Rank, attempt: u64, stdin: bool) {
        if let Some(why) = self.inadmissible(rank) {
            return self.effect(Effect::NotAdmitted { rank, attempt, restore: false, why });
        }
        let standing = self.standing.remove(&rank);
        self.drop_standing(rank, standing);
        self.ranks.insert(rank, LocalRank::starting(attempt));
        self.effect(Effect::Begin { rank, attempt, stdin, origin: Origin::Start });
    }

    /// A process that stands still does not go back in place: it ends before the rank has another one.
    fn drop_standing(&mut self, rank: Rank, standing: Option<AgentId>) {
        if standing.is_some() {
            self.effect(Effect::DropStanding(vec![rank]));
        }
    }

    pub(super) fn restore(
        &mut self,
        (rank, attempt): (Rank, u64),
        source: RestoreSource,
        (image, put_back): (Option<ImageId>, Option<PutBack>),
        stdin: bool,
    ) {
        if let Some(why) = self.inadmissible(rank) {
            return self.effect(Effect::NotAdmitted { rank, attempt, restore: true, why });
        }
        let standing = self.standing.remove(&rank).filter(|_| self.keeps(Safeguard::StandingRanksGoBack));
        let mut in_place = None;
        let origin = match (source, standing) {
            (RestoreSource::Files(chain), Some(agent)) => {
                let order = FileOrder { chain, image, stdin, put_back };
                in_place = Some(order.clone());
                self.pausing.going_back.insert(agent, rank);
                Origin::InPlace { agent, order }
            }
            (RestoreSource::Files(chain), None) => Origin::Files(FileOrder { chain, image, stdin, put_back }),
            (RestoreSource::Transfer { token, way }, standing) => {
                self.drop_standing(rank, standing);
                Origin::Transfer { token, way, image }
            }
        };
        self.ranks.insert(rank, LocalRank::restoring(attempt, in_place));
        self.effect(Effect::Begin { rank, attempt, stdin, origin });
    }

    /// The slot of a rank, if it has this process.
    pub(super) fn slot(&mut self, rank: Rank, attempt: u64) -> Option<&mut LocalRank> {
        let any = !self.keeps(Safeguard::EarlierProcessesAreIgnored);
        self.ranks.get_mut(&rank).filter(|slot| slot.attempt == attempt || any)
    }

    pub(super) fn agent_awaited(&mut self, rank: Rank, attempt: u64, agent: AgentId) {
        if let Some(slot) = self.slot(rank, attempt) {
            slot.restore = Some(PendingRestore { agent: Some(agent), built: None });
        }
    }

    pub(super) fn started(&mut self, rank: Rank, attempt: u64, agentless: bool) {
        let Some(slot) = self.slot(rank, attempt) else { return };
        (slot.started, slot.agentless) = (true, agentless);
        for (agent, hello) in std::mem::take(&mut slot.early) {
            self.hello(agent, hello);
        }
    }

    pub(super) fn built(&mut self, rank: Rank, attempt: u64, built: (u64, u64)) {
        if let Some(awaited) = self.slot(rank, attempt).and_then(|slot| slot.restore.as_mut()) {
            awaited.built = Some(built);
        }
    }

    /// Its task kills and reaps; a new process of the rank may come at once. Its agent keeps its connection until then: one that sees it end
    /// would let a saved rank run on, which goes on elsewhere.
    pub(super) fn discard(&mut self, rank: Rank) {
        if let Some(slot) = self.ranks.remove(&rank)
            && self.keeps(Safeguard::DiscardedProcessesEnd)
        {
            self.let_go(rank, slot);
        }
    }

    fn let_go(&mut self, rank: Rank, slot: LocalRank) {
        self.effect(Effect::Release { rank, attempt: slot.attempt });
        for (agent, _) in slot.early {
            self.effect(Effect::Close { agent });
        }
        for agent in self.agents.values_mut().filter(|agent| (agent.rank, agent.attempt) == (rank, slot.attempt)) {
            agent.abandoned = true;
        }
        self.answer_lost(|question| question.is_of(rank, slot.attempt), Unasked::Ended);
    }

    pub(super) fn process_ended(&mut self, rank: Rank, attempt: u64, not_in_place: bool) {
        let order = self.slot(rank, attempt).and_then(|slot| slot.in_place.take()).filter(|_| self.keeps(Safeguard::RefusersBeginAnew));
        if let (true, Some(order), Some(slot)) = (not_in_place, order, self.slot(rank, attempt)) {
            slot.restore = Some(PendingRestore::default());
            // What the agent of the process that is gone says late is not about the next one.
            if self.keeps(Safeguard::RefusalsAreOfOneProcess) {
                self.pausing.going_back.retain(|_, going| *going != rank);
            }
            return self.effect(Effect::Anew { rank, attempt, order });
        }
        if self.slot(rank, attempt).is_some()
            && let Some(slot) = self.ranks.remove(&rank)
        {
            self.let_go(rank, slot);
        }
        // Nothing of this process is left: no image is written behind it any more.
        let gone = self.agents.extract_if(.., |_, agent| (agent.rank, agent.attempt) == (rank, attempt)).collect::<Vec<_>>();
        for (id, agent) in gone {
            self.unwritten(agent);
            self.effect(Effect::Close { agent: id });
        }
    }
}
