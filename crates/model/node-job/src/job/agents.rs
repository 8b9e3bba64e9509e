//! Who speaks for which rank, and what becomes of its words.
//!
//! ```text
//! no agent ── Hello (main process) ──► main            restore: awaited ── Restored + what the restorer says ──► main
//!     │                                 │
//!     └── Hello (descendant) ──► descendant ◄───────── Hello (descendant): takes over the fabric; such a rank
//!                                                      is never saved
//! ```
//! Invariant: every image written behind its rank comes to an end that is told. Faults assumed: agents say anything; what does not fit is dropped
//! and noticed.

use super::NodeJob;
use crate::event::{Abandonment, AgentId, Effect, Notice, Word};
use crate::local_rank::Agent;
use mend_messages::agent::{FromAgent, Hello, ToAgent, Unwritten};
use mend_messages::daemon::FromDaemon;
use mend_messages::job::{JobMap, Rank};
use mend_messages::progress::{RankProgress, RankTraffic};
use mend_messages::report::Report;

impl NodeJob {
    /// The first that comes on a connection.
    pub(super) fn first_words(&mut self, id: AgentId, message: FromAgent) {
        match message {
            FromAgent::Hello(hello) => self.hello(id, hello),
            FromAgent::Restored { rank, rebuild_us } => self.restored(id, rank, rebuild_us),
            FromAgent::RestoreFailed { error, files } => {
                let waiting = self.ranks.iter().find(|(_, slot)| slot.awaits(id)).map(|(rank, _)| *rank);
                self.effect(match waiting {
                    Some(rank) => Effect::Tell { rank, word: Word::Abandon(Abandonment::Agent { error, files }) },
                    None => Effect::Notice(Notice::UnknownFailure(error)),
                });
                self.effect(Effect::Close { agent: id });
            }
            _ => self.turn_away(id, Notice::NoIntroduction),
        }
    }

    fn turn_away(&mut self, agent: AgentId, why: Notice) {
        self.effect(Effect::Notice(why));
        self.effect(Effect::Close { agent });
    }

    pub(super) fn hello(&mut self, id: AgentId, hello: Hello) {
        let (protocol, rank) = (hello.protocol, hello.rank);
        if protocol != mend_messages::PROTOCOL {
            return self.turn_away(id, Notice::OtherRelease { rank, protocol });
        }
        let Some(slot) = self.ranks.get_mut(&rank).filter(|slot| slot.restore.is_none()) else {
            return self.turn_away(id, Notice::UnknownRank(rank));
        };
        if !slot.started {
            return slot.early.push((id, hello));
        }
        let Hello { main_process, executable, .. } = hello;
        if main_process {
            slot.main = Some(id);
            // The process executed another program: what its children were is over.
            slot.descendant = None;
        } else {
            slot.descendant = Some(id);
        }
        let attempt = slot.attempt;
        self.enroll(id, (rank, attempt), (!main_process).then(|| executable.clone()), false);
        self.send(FromDaemon::AgentUp { rank, main_process, executable });
    }

    fn restored(&mut self, id: AgentId, rank: Rank, rebuild_us: u64) {
        let Some(slot) = self.ranks.get_mut(&rank).filter(|slot| slot.awaits(id)) else {
            return self.turn_away(id, Notice::NotAwaited(rank));
        };
        let Some((us, bytes)) = slot.restore.take().and_then(|awaited| awaited.built) else {
            self.effect(Effect::Tell { rank, word: Word::Abandon(Abandonment::SpokeEarly) });
            return self.effect(Effect::Close { agent: id });
        };
        (slot.main, slot.started) = (Some(id), true);
        let attempt = slot.attempt;
        self.effect(Effect::Tell { rank, word: Word::Settle });
        self.enroll(id, (rank, attempt), None, true);
        self.send(FromDaemon::Report { rank, report: Report::Rebuilt { us: rebuild_us } });
        self.send(FromDaemon::Restored { rank, attempt, restart_us: us.saturating_add(rebuild_us), bytes });
    }

    fn enroll(&mut self, id: AgentId, (rank, attempt): (Rank, u64), descendant: Option<String>, restored: bool) {
        self.effect(Effect::Welcome { agent: id, rank, attempt, restored });
        if let Some(map) = self.map.clone() {
            self.effect(Effect::TellAgent { agent: id, message: ToAgent::Map(map) });
        }
        if self.watches_traffic {
            self.effect(Effect::TellAgent { agent: id, message: ToAgent::WatchTraffic });
        }
        self.agents.insert(id, Agent { rank, attempt, descendant, abandoned: false, behind: Vec::new() });
    }

    /// The map changed.
    pub(super) fn tell_map(&mut self, map: &JobMap) {
        let agents: Vec<AgentId> = self.agents.iter().filter(|(_, agent)| !agent.abandoned).map(|(id, _)| *id).collect();
        for agent in agents {
            self.effect(Effect::TellAgent { agent, message: ToAgent::Map(map.clone()) });
        }
    }

    /// What an agent says that has introduced itself.
    pub(super) fn words(&mut self, id: AgentId, message: FromAgent) {
        let Some((rank, attempt)) = self.speaks_for(id) else { return };
        let Some(slot) = self.ranks.get(&rank) else { return };
        // Of a main process and its child only the child's fabric counts.
        let speaks_for_fabric = slot.descendant.or(slot.main) == Some(id);
        match message {
            FromAgent::FabricUp(address) if speaks_for_fabric => self.send(FromDaemon::FabricUp { rank, attempt, address }),
            FromAgent::FabricInUse if speaks_for_fabric => self.send(FromDaemon::FabricInUse { rank }),
            FromAgent::MessagesLost { peer, why } if speaks_for_fabric => self.send(FromDaemon::MessagesLost { rank, peer, why }),
            FromAgent::FabricUp(_) | FromAgent::FabricInUse | FromAgent::MessagesLost { .. } => {}
            FromAgent::Progress(progress) => self.effect(Effect::Progress(RankProgress { rank, attempt, progress })),
            FromAgent::Traffic(traffic) if speaks_for_fabric => self.effect(Effect::Traffic(RankTraffic { rank, attempt, traffic })),
            FromAgent::Traffic(_) => {}
            FromAgent::Report(report) => self.send(FromDaemon::Report { rank, report }),
            FromAgent::Round(round) => self.send(FromDaemon::Round { rank, round }),
            FromAgent::PrecopyFailed { error, hint } => self.send(FromDaemon::PrecopyFailed { rank, error, hint }),
            FromAgent::Reply { seq, reply } => self.reply(id, seq, reply),
            FromAgent::Written { id: image, result } => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.behind.retain(|behind| *behind != image);
                }
                self.effect(Effect::Written { agent: id, rank, image, result });
            }
            FromAgent::Hello(_) | FromAgent::Restored { .. } | FromAgent::RestoreFailed { .. } => {
                self.effect(Effect::Notice(Notice::AgentTwice(rank)));
            }
        }
    }

    /// The connection of an agent ended.
    pub(super) fn gone(&mut self, id: AgentId) {
        self.pause_lost(id);
        if let Some((&rank, slot)) = self.ranks.iter().find(|(_, slot)| slot.awaits(id)) {
            // Also when its process or its restorer dies, which its own end then tells better.
            if slot.restore.is_some_and(|awaited| awaited.built.is_some()) {
                self.effect(Effect::Tell { rank, word: Word::Abandon(Abandonment::WentAway) });
            }
            return;
        }
        for slot in self.ranks.values_mut() {
            slot.early.retain(|(early, _)| *early != id);
        }
        let Some(agent) = self.agents.remove(&id) else { return };
        if let Some(slot) = self.slot(agent.rank, agent.attempt) {
            slot.left |= slot.main == Some(id);
            slot.main = slot.main.filter(|&main| main != id);
            slot.descendant = slot.descendant.filter(|&descendant| descendant != id);
        }
        self.unwritten(agent);
        self.agent_lost(id);
    }

    /// What an agent that is gone had not written is told.
    pub(super) fn unwritten(&mut self, agent: Agent) {
        for id in agent.behind {
            self.send(FromDaemon::Written { rank: agent.rank, id, result: Err(Unwritten::Ended) });
        }
    }
}
