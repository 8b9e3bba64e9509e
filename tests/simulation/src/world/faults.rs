//! Faults strike: nodes, ranks, agents, connections, disks, the controller.

use super::World;
use crate::coming::{Coming, Fault, NODE_TIMEOUT_US};
use crate::node::{Node, Phase};
use mend_job::event::{Event, NodeLoss};
use mend_job::phase::RankPhase;
use mend_messages::control::{Ask, MoveMode};
use mend_messages::daemon::{ExitStatus, FromDaemon};
use mend_messages::job::Rank;

impl World {
    pub(crate) fn strike(&mut self, fault: Fault) -> Result<(), String> {
        if self.options.trace {
            eprintln!("{:>12} !! {fault:?}", self.now);
        }
        self.summary.faults += 1;
        let life = self.life;
        let placed = |world: &Self, rank: Rank| world.job.as_ref()?.rank(rank).map(|state| world.hosts[state.node as usize]);
        match fault {
            Fault::NodeDies(at) => {
                let connected = self.nodes[at].connection == life && self.nodes[at].up;
                let mut stores = std::mem::take(&mut self.nodes[at].stores);
                stores.reboot();
                self.nodes[at] = Node { stores, ..Node::default() };
                if connected && self.job.is_some() {
                    let how = if self.chance(2) { NodeLoss::Silent(10_000) } else { NodeLoss::Broken("reset".into()) };
                    let delay = if how == NodeLoss::Silent(10_000) { NODE_TIMEOUT_US } else { self.delay() };
                    self.cut(at, how, delay);
                }
            }
            Fault::ConnectionBreaks(at) => {
                if self.nodes[at].connection == life && self.job.is_some() {
                    let delay = self.draw(NODE_TIMEOUT_US);
                    self.is_pinged_last(at);
                    self.cut(at, NodeLoss::Silent(10_000), delay);
                    self.wait_for_lease(at);
                }
            }
            Fault::RankDies(rank, status) => {
                if let Some(at) = placed(self, rank) {
                    self.dies(at, rank, status);
                }
            }
            Fault::CopyDies(rank) => {
                let with: Vec<usize> = (0..self.nodes.len()).filter(|&at| self.nodes[at].ranks.contains_key(&rank)).collect();
                if !with.is_empty() {
                    let at = with[self.draw(with.len() as u64) as usize];
                    self.dies(at, rank, ExitStatus::Signal(9));
                }
            }
            Fault::Stuck(rank, again) => {
                if let Some(at) = placed(self, rank)
                    && let Some(process) = self.nodes[at].ranks.get_mut(&rank)
                {
                    process.stuck = true;
                    let attempt = process.attempt;
                    self.failed_for_real = true;
                    if let Some(delay) = again {
                        self.plan(delay, Coming::Fault(Fault::Unstuck(at, rank, attempt)));
                    }
                }
            }
            Fault::Unstuck(at, rank, attempt) => {
                if let Some(process) = self.process(at, rank, attempt) {
                    process.stuck = false;
                    let (held, receiver) = (std::mem::take(&mut process.held), process.precopies);
                    self.work_on_input(at, rank);
                    for asked in held {
                        self.hand_to_agent(at, rank, attempt, asked);
                    }
                    if let Some(receiver) = receiver {
                        self.plan(0, Coming::Round { at, rank, attempt, receiver, number: 1 });
                    }
                }
            }
            Fault::DiskFull(time) => {
                self.disk.full = true;
                self.failed_for_real = true;
                self.plan(time, Coming::Fault(Fault::DiskEmpty));
            }
            Fault::DiskEmpty => self.disk.full = false,
            Fault::ControllerDies => self.controller_died(),
            Fault::ControllerKilled => self.controller_is_killed(),
            Fault::ControllerStandsStill(time) => self.controller_stands_still(time),
            Fault::ConnectionBlinks(at) => self.connection_blinks(at),
            Fault::ConnectionReturns(at) => self.connection_returns(at),
            Fault::Signal => {
                self.reasons.insert("a signal");
                if self.job.is_some() && self.signalled.is_none() {
                    self.signalled = Some(self.now);
                    return self.feed(Event::Signal(15));
                }
            }
            Fault::TimeUp => {
                if let (Some(job), None) = (&self.job, self.time_up) {
                    self.reasons.insert("its time was up");
                    let built = |rank| job.rank(rank).is_none_or(|state| !matches!(state.phase, RankPhase::Restoring(_)));
                    self.time_up = Some((self.disk.numbers().last().copied(), !(0..self.size).all(built)));
                    return self.time_is_up();
                }
            }
            Fault::MessagesLost(one, other) => self.break_channel(one, other, true)?,
            Fault::OldLoss(one, other) => {
                self.break_channel(one, other, false)?;
                let mode = if self.chance(2) { MoveMode::Live } else { MoveMode::Frozen };
                return self.ask(Ask::Migrate { rank: one, to: None, avoid: Vec::new(), mode, deadline_ms: None });
            }
            Fault::ImageRots(rank) => {
                if let Some(newest) = self.disk.numbers().last().filter(|_| self.tiers.is_empty()) {
                    self.disk.rot(*newest, rank);
                }
            }
            Fault::NewestVanishes => {
                let rebuilt = self.job.as_ref().is_none_or(|job| {
                    let complete = |rank| job.rank(rank).is_some_and(|state| !matches!(state.phase, RankPhase::Restoring(_)));
                    (0..self.size).all(complete)
                });
                let idle = rebuilt && self.disk.unfinished().is_empty() && self.effects_under_way == 0 && !self.upkeep;
                if let Some(newest) = self.disk.numbers().last().copied().filter(|_| idle) {
                    self.disk.vanish(newest);
                    self.vanished = Some(self.now);
                }
            }
        }
        Ok(())
    }

    /// No message comes through any more; the machine hears of it after a while.
    pub(crate) fn cut(&mut self, at: usize, how: NodeLoss, delay: u64) {
        let life = self.life;
        self.failed_for_real = true;
        self.excuse_nodes();
        self.reasons.insert("a node was lost");
        self.drop_messages(life, at);
        self.plan(delay, Coming::Lost { life, at, how });
    }

    /// The batch system wants the job to end: the daemons say so, which it has sent a signal, or the controller has heard of it by itself.
    fn time_is_up(&mut self) -> Result<(), String> {
        let (signal, life) = (15, self.life);
        let speaks = |at: &usize| self.nodes[*at].up && self.nodes[*at].connection == life && self.index(*at).is_some();
        let daemons: Vec<usize> = (0..self.nodes.len()).filter(speaks).collect();
        if self.chance(2)
            && let Some((first, others)) = daemons.split_first()
        {
            for at in others {
                self.say(*at, FromDaemon::TimeUp { signal });
            }
            return self.heard(*first, FromDaemon::TimeUp { signal });
        }
        self.feed(Event::TimeUp { signal })
    }

    fn break_channel(&mut self, one: Rank, other: Rank, real: bool) -> Result<(), String> {
        let placed = |world: &Self, rank: Rank| world.job.as_ref()?.rank(rank).map(|state| world.hosts[state.node as usize]);
        let (Some(at), Some(with)) = (placed(self, one), placed(self, other)) else { return Ok(()) };
        let runs = |world: &Self, at: usize, rank: Rank| {
            world.nodes[at].ranks.get(&rank).filter(|process| process.phase == Phase::Runs).map(|process| process.attempt)
        };
        if one == other || at == with {
            return Ok(());
        }
        if let (Some(first), Some(second)) = (runs(self, at, one), runs(self, with, other)) {
            if real {
                self.hung = Some((one, first, other, second, self.now));
            }
            self.say(at, FromDaemon::MessagesLost { rank: one, peer: other, why: "reset".into() });
            if real && self.chance(2) {
                self.say(with, FromDaemon::MessagesLost { rank: other, peer: one, why: "reset".into() });
            }
        }
        Ok(())
    }
}
