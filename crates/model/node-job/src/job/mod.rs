//! The life of a job on this node. All its state is in [`NodeJob`]; everything outside reaches it as an [`Event`].
//!
//! ```text
//! begin ──► held ── End, Pause (all ranks stand still, or had their time) ──► leaves in order
//!             └──── lease over, a later start, nonsense ──► leaves: ranks are killed
//! ```
//! Faults assumed: the controller dies, stalls or asks for steps out of order; ranks and agents die at any moment; what is said of a rank's process
//! comes late, when the rank has another one; agents say anything.

mod agents;
mod pausing;
mod questions;
mod ranks;

use self::pausing::Pausing;
use self::questions::OpenQuestion;
use crate::event::{AgentId, Effect, End, Event, Notice, Setup, Word};
use crate::hold::{Hold, LinkState};
use crate::local_rank::{Agent, LocalRank};
use crate::safeguard::Safeguard;
use mend_coordination::batch::Batch;
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::health::Grade;
use mend_messages::job::{JobMap, Rank};
use mend_messages::tier::TierOrder;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
#[cfg(feature = "sabotage")]
use std::collections::BTreeSet;

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeJob {
    size: u32,
    watches_traffic: bool,
    hold: Hold,
    ranks: BTreeMap<Rank, LocalRank>,
    /// Ranks that an earlier life left standing here.
    standing: BTreeMap<Rank, AgentId>,
    agents: BTreeMap<AgentId, Agent>,
    questions: BTreeMap<u64, OpenQuestion>,
    /// Processes that are to save, whose place is looked for, by the controller's number.
    placing: BTreeMap<u64, u64>,
    /// The next question's number.
    number: u64,
    batch: Batch,
    pausing: Pausing,
    map: Option<JobMap>,
    left: bool,
    /// Empty between two events.
    #[serde(skip)]
    effects: Vec<Effect>,
    #[cfg(feature = "sabotage")]
    sabotaged: BTreeSet<Safeguard>,
}

impl NodeJob {
    /// A job comes to this node.
    #[must_use]
    pub fn begin(setup: Setup) -> (Self, Vec<Effect>) {
        let Setup { size, lease_us, health, standing, watches_traffic } = setup;
        let job = Self {
            size,
            watches_traffic,
            hold: Hold::begin(lease_us, 0),
            ranks: BTreeMap::new(),
            standing: standing.into_iter().collect(),
            agents: BTreeMap::new(),
            questions: BTreeMap::new(),
            placing: BTreeMap::new(),
            number: 0,
            batch: Batch::default(),
            pausing: Pausing::default(),
            map: None,
            left: false,
            effects: Vec::new(),
            #[cfg(feature = "sabotage")]
            sabotaged: BTreeSet::new(),
        };
        let first = (health.grade > Grade::Well).then_some(Effect::Send(FromDaemon::Health(health)));
        (job, first.into_iter().collect())
    }

    /// Something happened, at this time. What is to be done now, in order.
    #[must_use]
    pub fn handle(&mut self, now_us: u64, event: Event) -> Vec<Effect> {
        if self.left {
            return Vec::new();
        }
        self.take(now_us, event);
        if !self.left && self.pausing.is_over(now_us) {
            self.leave(End::Paused);
        }
        std::mem::take(&mut self.effects)
    }

    fn take(&mut self, now_us: u64, event: Event) {
        match event {
            Event::Told(message) => self.told(now_us, message),
            Event::Pinged { at_us } => self.pinged(now_us, at_us),
            Event::ControllerLost => self.leave(End::Lost),
            Event::Link(state) => {
                if state == LinkState::Succeeded {
                    self.effect(Effect::Succeeded);
                }
                if self.hold.linked(state, now_us) && self.keeps(Safeguard::LostControllersAreSucceeded) {
                    self.effect(Effect::StartSuccessor { silent: false });
                }
            }
            Event::Successor { started, silent } => {
                self.hold.succeeds(started && (silent || self.keeps(Safeguard::SuccessorsHaveTheLease)), silent);
            }
            Event::Time => self.look(now_us),
            Event::Superseded => self.leave(End::Superseded),
            Event::NamespaceEnded => {
                // It leaves in any case: this is for how long it stood still itself.
                self.hold.look(now_us);
                self.effect(Effect::Notice(Notice::NamespaceEnded));
                self.leave(End::LeaseOver);
            }
            Event::TimeUp { signal } => self.send(FromDaemon::TimeUp { signal }),
            Event::Health(health) => self.send(FromDaemon::Health(health)),
            Event::AgentAwaited { rank, attempt, agent } => self.agent_awaited(rank, attempt, agent),
            Event::NotBegun { rank, attempt } => self.process_ended(rank, attempt, false),
            Event::Started { rank, attempt, agentless } => self.started(rank, attempt, agentless),
            Event::Built { rank, attempt, us, bytes } => self.built(rank, attempt, (us, bytes)),
            Event::Ended { rank, attempt, not_in_place } => self.process_ended(rank, attempt, not_in_place),
            Event::Agent { agent, first: true, message } => self.first_words(agent, message),
            Event::Agent { agent, first: false, message } => {
                if !self.rollback_refused(agent, &message) {
                    self.words(agent, message);
                }
            }
            Event::AgentGone { agent } => self.gone(agent),
            Event::Placed { seq, rank, order } => self.save(seq, rank, order),
            Event::Prepared { number, request } => self.prepared(number, request),
            Event::Kept { seq, good } => self.answered(seq, good),
        }
    }

    fn look(&mut self, now_us: u64) {
        let look = self.hold.look(now_us);
        if look.suspects && self.keeps(Safeguard::SilentControllersAreSucceeded) {
            self.effect(Effect::StartSuccessor { silent: true });
        }
        if look.over && self.keeps(Safeguard::LeasesEndRanks) {
            self.effect(Effect::Notice(Notice::NotAWord { lease_us: self.hold.lease_us() }));
            self.leave(End::LeaseOver);
        }
    }

    fn pinged(&mut self, now_us: u64, at_us: u64) {
        let age_us = self.hold.pinged(at_us, now_us);
        self.hold.heard(age_us, now_us);
        self.effect(Effect::Renew { age_us });
    }

    fn told(&mut self, now_us: u64, message: ToDaemon) {
        self.hold.spoke(now_us);
        match message {
            ToDaemon::Ping { at_us } => {
                self.pinged(now_us, at_us);
                self.effect(Effect::Pong);
            }
            ToDaemon::Start { rank, attempt, stdin } => self.start(rank, attempt, stdin),
            ToDaemon::Restore { rank, attempt, source, image, stdin, put_back } => {
                self.restore((rank, attempt), source, (image, put_back), stdin);
            }
            ToDaemon::Grow(world) => {
                self.size = self.size.max(world.ranks().end);
                self.effect(Effect::Grow(world));
            }
            ToDaemon::Pmi { rank, bytes } => self.tell_rank(rank, Word::Pmi(bytes)),
            ToDaemon::Stdin { rank, bytes } => self.tell_rank(rank, Word::Stdin(bytes)),
            ToDaemon::Signal(signal) => {
                let all: Vec<Rank> = self.ranks.keys().copied().collect();
                all.into_iter().for_each(|rank| self.tell_rank(rank, Word::Signal(signal)));
            }
            ToDaemon::Compare { seq, rank, needs } => self.effect(Effect::Compare { seq, rank, needs }),
            ToDaemon::PutFiles(order) => self.effect(Effect::PutFiles(order)),
            ToDaemon::Discard { rank } => self.discard(rank),
            ToDaemon::Map(map) => self.publish(map),
            ToDaemon::Ask(steps) => self.ask_all(steps),
            ToDaemon::SaveTo { seq, rank, address, token, way } => self.save_to(seq, rank, (address, token), way),
            ToDaemon::PrecopyTo { seq, rank, address, token } => self.precopy_to(seq, rank, address, token),
            ToDaemon::Tier(order) => {
                if let TierOrder::Save { seq, rank, .. } = &*order {
                    self.is_to_save(*seq, *rank);
                }
                self.effect(Effect::Tier(order));
            }
            ToDaemon::End { goes_on } => self.leave(End::Asked { goes_on }),
            ToDaemon::Pause => self.pause(now_us),
            ToDaemon::Introduce(_)
            | ToDaemon::Resume(_)
            | ToDaemon::Succeed(_)
            | ToDaemon::AskVote { .. }
            | ToDaemon::AskConfirmed { .. }
            | ToDaemon::Look => {
                self.effect(Effect::Notice(Notice::IntroducedTwice));
            }
        }
    }

    fn publish(&mut self, map: JobMap) {
        // All ranks that shall be here are: what else stands here ends.
        let standing: Vec<Rank> = std::mem::take(&mut self.standing).into_keys().collect();
        if !standing.is_empty() {
            self.effect(Effect::DropStanding(standing));
        }
        self.tell_map(&map);
        self.map = Some(map);
    }

    fn leave(&mut self, end: End) {
        self.left = true;
        self.effect(Effect::Leave(end));
    }

    fn tell_rank(&mut self, rank: Rank, word: Word) {
        match self.ranks.contains_key(&rank) {
            true => self.effect(Effect::Tell { rank, word }),
            // It ended while this was under way.
            false => self.effect(Effect::Notice(Notice::NotHere(rank))),
        }
    }

    fn send(&mut self, message: FromDaemon) {
        self.effect(Effect::Send(message));
    }

    fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// How long the lease is, microseconds.
    #[must_use]
    pub fn lease_us(&self) -> u64 {
        self.hold.lease_us()
    }

    /// How long this daemon itself stood still in the last lease, microseconds.
    #[must_use]
    pub fn stood_still_us(&self) -> u64 {
        self.hold.stood_still_us()
    }

    /// When [`Event::Time`] is due, if nothing happens before. Any event can change it.
    #[must_use]
    pub fn look_at_us(&self) -> u64 {
        self.hold.look_at_us().min(self.pausing.over_at_us().unwrap_or(u64::MAX))
    }

    /// The ranks that are here.
    #[must_use]
    pub fn ranks(&self) -> &BTreeMap<Rank, LocalRank> {
        &self.ranks
    }

    /// For which process an agent speaks, if its words count.
    #[must_use]
    pub fn speaks_for(&self, agent: AgentId) -> Option<(Rank, u64)> {
        let known = self.agents.get(&agent)?;
        let counts = |slot: &&LocalRank| slot.attempt == known.attempt || !self.keeps(Safeguard::EarlierProcessesAreIgnored);
        self.ranks.get(&known.rank).filter(counts).map(|_| (known.rank, known.attempt))
    }

    /// Ranks that stand still, and their agents.
    #[must_use]
    pub fn stand_still(&self) -> Vec<(Rank, AgentId)> {
        self.pausing.paused.iter().filter(|(_, agent)| self.agents.contains_key(agent)).map(|(rank, agent)| (*rank, *agent)).collect()
    }

    #[cfg(feature = "sabotage")]
    fn keeps(&self, safeguard: Safeguard) -> bool {
        !self.sabotaged.contains(&safeguard)
    }

    /// True: only the simulator takes safeguards out.
    #[cfg(not(feature = "sabotage"))]
    const fn keeps(&self, _safeguard: Safeguard) -> bool {
        true
    }

    /// Takes a safeguard out.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, safeguard: Safeguard) {
        self.sabotaged.insert(safeguard);
    }
}
