//! What happens: messages arrive, daemons obey, agents answer, faults strike.

use super::World;
use crate::Defect;
use crate::coming::{Coming, Fault, MILLISECOND_US, NODE_TIMEOUT_US, SECOND_US};
use crate::disk::place;
use crate::node::{Node, Phase, Process};
use mend_job::event::{Event, NodeLoss};
use mend_job::roster::RankPhase;
use mend_messages::agent::{
    ImageId, Inspection, Obstacle, Reply, Request, SaveMode, SaveOrder, SaveTarget, Saved, Unasked, Unwritten, Written,
};
use mend_messages::control::Ask;
use mend_messages::daemon::{ExitStatus, FromDaemon, Question, RestoreSource, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};

impl World {
    pub(crate) fn happens(&mut self, coming: Coming) -> Result<(), String> {
        match coming {
            Coming::ToNode { life, at, message } => {
                if self.nodes[at].up && self.nodes[at].connection == life && !self.nodes[at].leaving {
                    self.obey(at, message)?;
                }
                Ok(())
            }
            Coming::ToJob { life, at, message } if life == self.life => self.heard(at, message),
            Coming::ToJob { .. } => Ok(()),
            Coming::Lost { life, at, how } if life == self.life => match self.index(at) {
                Some(node) => self.feed(Event::NodeLost { node, how }),
                None => Ok(()),
            },
            Coming::Lost { .. } => Ok(()),
            Coming::Closed { life, at } => {
                if self.nodes[at].connection == life && !self.nodes[at].leaving {
                    self.leave(at, false);
                }
                Ok(())
            }
            Coming::Reaped { life, at, asked } => {
                if self.nodes[at].connection == life {
                    self.nodes[at] = Node { up: self.nodes[at].up, ..Node::default() };
                    if asked && life == self.life {
                        let delay = self.delay();
                        self.plan(delay, Coming::Lost { life, at, how: NodeLoss::Broken("closed".into()) });
                    }
                }
                Ok(())
            }
            Coming::Agent { at, rank, attempt, seq, request } => self.agent(at, rank, attempt, seq, request),
            Coming::Streamed { at, rank, attempt, seq, to, token, until } => self.streamed(at, rank, attempt, seq, (to, token, until)),
            Coming::NoTransfer { at, rank, attempt } => {
                if self.process(at, rank, attempt).is_some_and(|process| process.phase == Phase::Building) {
                    self.nodes[at].ranks.remove(&rank);
                    self.restore_failed(at, rank, "no transfer came", false);
                }
                Ok(())
            }
            Coming::Started { at, rank, attempt } => {
                if let Some(process) = self.process(at, rank, attempt) {
                    process.phase = Phase::Runs;
                    self.say(at, FromDaemon::Started { rank });
                    self.say(at, FromDaemon::AgentUp { rank, main_process: true, executable: String::new() });
                    let delay = self.delay();
                    self.plan(delay, Coming::FabricUp { at, rank, attempt });
                }
                Ok(())
            }
            Coming::Built { at, rank, attempt } => {
                let fails = self.fails(40);
                let Some(process) = self.process(at, rank, attempt) else { return Ok(()) };
                if fails {
                    self.nodes[at].ranks.remove(&rank);
                    self.restore_failed(at, rank, "no memory", false);
                    return Ok(());
                }
                process.phase = Phase::Built;
                self.say(at, FromDaemon::Restored { rank, restart_us: 5, bytes: 10 });
                let delay = self.delay();
                self.plan(delay, Coming::FabricUp { at, rank, attempt });
                Ok(())
            }
            Coming::FabricUp { at, rank, attempt } => {
                if self.process(at, rank, attempt).is_some() {
                    let address = FabricAddress { tcp: ([10, 0, 0, at as u8], 9000 + attempt as u16).into(), unix: String::new() };
                    self.say(at, FromDaemon::FabricUp { rank, address });
                }
                Ok(())
            }
            Coming::Behind { at, rank, attempt, number, id, base } => {
                if self.process(at, rank, attempt).is_some_and(|process| process.behind.take_if(|behind| *behind == id).is_some()) {
                    let whole = self.disk.write(number, rank, id, base);
                    self.failed_for_real |= !whole;
                    let result = if whole {
                        Ok(Written { bytes: 10, ..Written::default() })
                    } else {
                        Err(Unwritten::Failed("no space left".into()))
                    };
                    self.say(at, FromDaemon::Written { rank, id, result });
                }
                Ok(())
            }
            Coming::Effect { life, event } => {
                if life == self.life {
                    self.effects_under_way -= 1;
                    self.failed_for_real |= self.disk.full;
                    self.feed(*event)?;
                }
                Ok(())
            }
            Coming::Upkeep { life, bounds } if life == self.life && self.job.is_some() => self.upkeep_done(bounds),
            Coming::Upkeep { .. } => Ok(()),
            Coming::Fault(fault) => self.strike(fault),
            Coming::Verb(ask) => {
                let ask = match ask {
                    Ask::Remove { .. } => {
                        let numbers = self.disk.numbers();
                        let kept = self.draw(2) as usize;
                        let first = numbers.len().saturating_sub(1 + self.draw(3) as usize);
                        Ask::Remove { numbers: numbers.into_iter().skip(first).rev().skip(kept).collect() }
                    }
                    ask => ask,
                };
                self.ask(ask)
            }
            Coming::Revive => self.revived(),
        }
    }

    fn index(&self, at: usize) -> Option<NodeIndex> {
        self.hosts.iter().position(|&host| host == at).map(|node| node as NodeIndex)
    }

    fn process(&mut self, at: usize, rank: Rank, attempt: u64) -> Option<&mut Process> {
        self.nodes[at].ranks.get_mut(&rank).filter(|process| process.attempt == attempt)
    }

    /// The machine hears what a daemon said; some things twice.
    fn heard(&mut self, at: usize, message: FromDaemon) -> Result<(), String> {
        let Some(node) = self.index(at) else { return Ok(()) };
        let Some(job) = &self.job else { return Ok(()) };
        match &message {
            FromDaemon::Exited { rank, .. } if job.rank(*rank).is_some_and(|state| state.node == node) => {
                self.reasons.insert("a rank ended");
                self.reasons.insert("a rank did not come to be");
            }
            FromDaemon::RestoreFailed { .. } | FromDaemon::StartFailed { .. } => {
                self.reasons.insert("a rank did not come to be");
            }
            FromDaemon::MessagesLost { rank, peer, .. } => {
                let node = |rank: Rank| job.rank(rank).map_or(0, |state| state.node);
                self.lost_told.push((*rank, *peer, node(*rank), node(*peer)));
            }
            _ => {}
        }
        let again = matches!(
            message,
            FromDaemon::Agent { .. }
                | FromDaemon::Written { .. }
                | FromDaemon::Started { .. }
                | FromDaemon::AgentUp { .. }
                | FromDaemon::FabricUp { .. }
                | FromDaemon::Restored { .. }
                | FromDaemon::Exited { .. }
        );
        if again && self.chance(30) {
            self.feed(Event::Daemon { node, message: message.clone() })?;
        }
        self.feed(Event::Daemon { node, message })
    }

    fn obey(&mut self, at: usize, message: ToDaemon) -> Result<(), String> {
        match message {
            ToDaemon::Start { rank, .. } => {
                let attempt = self.new_process(at, rank, Phase::Starting, false);
                let delay = self.delay();
                self.plan(delay, Coming::Started { at, rank, attempt });
            }
            ToDaemon::Restore { rank, source, .. } => self.restore(at, rank, source),
            ToDaemon::Ask(steps) => {
                let first = self.nodes[at].batch.begin(steps);
                self.ask_agents(at, first);
            }
            ToDaemon::SaveTo { seq, rank, address, token } => {
                self.nodes[at].batch.drop_rest();
                let to = match address.ip() {
                    std::net::IpAddr::V4(ip) => ip.octets()[3] as usize,
                    std::net::IpAddr::V6(_) => 0,
                };
                match self.nodes[at].ranks.get_mut(&rank) {
                    Some(process) if process.phase == Phase::Suspended => {
                        process.questions.push(seq);
                        let attempt = process.attempt;
                        let delay = self.delay() + self.draw(2 * SECOND_US);
                        let until = self.now + NODE_TIMEOUT_US;
                        self.plan(delay, Coming::Streamed { at, rank, attempt, seq, to, token, until });
                    }
                    Some(_) => self.reply(at, rank, seq, failed("it is not suspended")),
                    None => self.reply(at, rank, seq, Reply::Unasked(Unasked::NotHere)),
                }
            }
            ToDaemon::Discard { rank } => {
                if let Some(process) = self.nodes[at].ranks.remove(&rank) {
                    for seq in process.questions {
                        self.reply(at, rank, seq, Reply::Unasked(Unasked::Ended));
                    }
                }
                self.nodes[at].expected.retain(|_, its| *its != rank);
            }
            ToDaemon::Signal(signal) => {
                let here: Vec<(Rank, u64)> = self.nodes[at].ranks.iter().map(|(rank, process)| (*rank, process.attempt)).collect();
                for (rank, _) in here {
                    if !self.chance(3) {
                        self.dies(at, rank, ExitStatus::Signal(signal));
                    }
                }
            }
            ToDaemon::End => self.leave(at, true),
            _ => {}
        }
        Ok(())
    }

    fn new_process(&mut self, at: usize, rank: Rank, phase: Phase, restarted: bool) -> u64 {
        self.attempts += 1;
        let (attempt, stuck, tracked, behind, held, questions) = (self.attempts, false, None, None, Vec::new(), Vec::new());
        let process = Process { attempt, phase, restarted, stuck, tracked, behind, held, busy_until: 0, questions, stale_marker: false };
        self.nodes[at].ranks.insert(rank, process);
        attempt
    }

    fn restore(&mut self, at: usize, rank: Rank, source: RestoreSource) {
        if self.nodes[at].ranks.contains_key(&rank) {
            return self.restore_failed(at, rank, "it is on this node already", false);
        }
        match source {
            RestoreSource::Files(chain) => {
                if chain.is_empty() || !chain.iter().all(|path| self.disk.has(path)) {
                    return self.restore_failed(at, rank, "an image is missing", true);
                }
                if chain.iter().any(|path| self.disk.is_rotten(path)) {
                    self.reasons.insert("an image is bad");
                    return self.restore_failed(at, rank, "it is torn", true);
                }
                let attempt = self.new_process(at, rank, Phase::Building, true);
                let delay = self.delay() + self.draw(SECOND_US);
                self.plan(delay, Coming::Built { at, rank, attempt });
            }
            RestoreSource::Transfer { token } => {
                let attempt = self.new_process(at, rank, Phase::Building, false);
                self.nodes[at].expected.insert(token, rank);
                self.plan(NODE_TIMEOUT_US + 5 * SECOND_US, Coming::NoTransfer { at, rank, attempt });
            }
        }
    }

    fn restore_failed(&mut self, at: usize, rank: Rank, why: &str, image: bool) {
        self.nodes[at].expected.retain(|_, its| *its != rank);
        self.say(at, FromDaemon::RestoreFailed { rank, error: why.into(), hint: String::new(), image });
    }

    fn ask_agents(&mut self, at: usize, step: Vec<Question>) {
        for Question { seq, rank, request } in step {
            match self.nodes[at].ranks.get_mut(&rank) {
                Some(process) if process.phase == Phase::Building => self.reply(at, rank, seq, Reply::Unasked(Unasked::Restoring)),
                Some(process) => {
                    process.questions.push(seq);
                    let attempt = process.attempt;
                    self.hand_to_agent(at, rank, attempt, (seq, request));
                }
                None => self.reply(at, rank, seq, Reply::Unasked(Unasked::NotHere)),
            }
        }
    }

    fn hand_to_agent(&mut self, at: usize, rank: Rank, attempt: u64, (seq, request): (u64, Request)) {
        let (now, delay) = (self.now, self.delay());
        let Some(process) = self.process(at, rank, attempt) else { return };
        process.busy_until = process.busy_until.max(now + delay);
        let delay = process.busy_until - now;
        self.plan(delay, Coming::Agent { at, rank, attempt, seq, request });
    }

    fn reply(&mut self, at: usize, rank: Rank, seq: u64, reply: Reply) {
        if let Some(process) = self.nodes[at].ranks.get_mut(&rank) {
            process.questions.retain(|open| *open != seq);
        }
        let next = self.nodes[at].batch.answered(seq, !reply.is_failure());
        self.say(at, FromDaemon::Agent { seq, rank, reply });
        self.ask_agents(at, next);
    }

    /// An agent has done what it was asked, or cannot.
    fn agent(&mut self, at: usize, rank: Rank, attempt: u64, seq: u64, request: Request) -> Result<(), String> {
        let now = self.now;
        let fails = self.fails(40);
        let defect = self.options.defect;
        let Some(process) = self.process(at, rank, attempt).filter(|process| process.questions.contains(&seq)) else { return Ok(()) };
        if process.stuck {
            process.held.push((seq, request));
            return Ok(());
        }
        let reply = match request {
            Request::Inspect { .. } if fails => {
                let obstacles = vec![Obstacle { what: "a socket".into(), hint: String::new() }];
                Reply::Inspected(Inspection { obstacles, ..Inspection::default() })
            }
            Request::Inspect { .. } => Reply::Inspected(Inspection { image_bytes: 10, ..Inspection::default() }),
            Request::Suspend | Request::SuspendPeer(_) if fails => failed("channels did not drain in time"),
            Request::SuspendPeer(_) if process.stale_marker && defect == Some(Defect::StaleMarker) => {
                failed("channels did not drain in time")
            }
            Request::Suspend => {
                if process.phase == Phase::Runs {
                    process.phase = Phase::Suspended;
                }
                Reply::Suspended { us: 1 }
            }
            Request::SuspendPeer(_) => Reply::Suspended { us: 1 },
            Request::KeepFiles(_) => Reply::Kept(Vec::new()),
            Request::SyncFiles => Reply::Synced,
            Request::Save(order) => return self.save(at, rank, attempt, seq, &order, fails),
            Request::Resume => {
                let all_or_none = process.restarted && process.phase == Phase::Built;
                let (was, tracked) = (process.phase, process.tracked);
                process.phase = Phase::Runs;
                process.stale_marker |= was == Phase::Parked;
                if let Some(moment) = tracked.and_then(|(id, _)| self.moments.get_mut(&id)) {
                    moment.1.get_or_insert(now);
                }
                if all_or_none {
                    self.all_are_built()?;
                }
                Reply::Resumed { stopped_us: 1 }
            }
        };
        self.failed_for_real |= reply.is_failure() || matches!(&reply, Reply::Inspected(found) if !found.obstacles.is_empty());
        self.reply(at, rank, seq, reply);
        Ok(())
    }

    fn save(&mut self, at: usize, rank: Rank, attempt: u64, seq: u64, order: &SaveOrder, fails: bool) -> Result<(), String> {
        let now = self.now;
        let drawn = self.draw(u64::MAX).to_le_bytes();
        let slow = self.delay() + self.draw(3 * SECOND_US);
        let Some(process) = self.process(at, rank, attempt) else { return Ok(()) };
        if process.phase != Phase::Suspended {
            self.reply(at, rank, seq, failed("it is not suspended"));
            return Ok(());
        }
        let SaveTarget::File(path) = &order.target else { return Err("a save without a file".into()) };
        let (number, _) = place(path).ok_or("a strange name for an image")?;
        let mut id = ImageId([attempt as u8; 16]);
        id.0[..8].copy_from_slice(&drawn);
        let below = process.tracked.filter(|(tracked, _)| order.base == Some(*tracked));
        let (base, sequence) = (below.map(|(id, _)| id), below.map_or(0, |(_, sequence)| sequence + 1));
        let behind = order.mode == SaveMode::CopyOnWrite;
        let mut whole = !fails;
        if !behind && whole {
            whole = self.disk.write(number, rank, id, base);
        }
        if !whole {
            self.failed_for_real = true;
            self.reply(at, rank, seq, failed("no space left"));
            return Ok(());
        }
        self.moments.insert(id, (now, None));
        if let Some(process) = self.process(at, rank, attempt) {
            process.phase = Phase::Parked;
            process.tracked = Some((id, sequence));
            process.behind = behind.then_some(id);
        }
        if behind {
            self.plan(slow, Coming::Behind { at, rank, attempt, number, id, base });
        }
        let bytes = if behind { 0 } else { 10 };
        self.reply(at, rank, seq, Reply::Saved(Saved { id, base, sequence, behind, bytes, ..Saved::default() }));
        Ok(())
    }

    fn streamed(
        &mut self,
        at: usize,
        rank: Rank,
        attempt: u64,
        seq: u64,
        (to, token, until): (usize, [u8; 16], u64),
    ) -> Result<(), String> {
        let life = self.nodes[at].connection;
        let Some(process) = self.process(at, rank, attempt).filter(|process| process.questions.contains(&seq)) else { return Ok(()) };
        if process.phase != Phase::Suspended {
            self.reply(at, rank, seq, failed("it is not suspended"));
            return Ok(());
        }
        let target = &mut self.nodes[to];
        let there = target.up && target.connection == life && !target.leaving;
        if there && !target.expected.contains_key(&token) && self.now < until {
            // A stream may be there before the order to expect it.
            self.plan(100 * MILLISECOND_US, Coming::Streamed { at, rank, attempt, seq, to, token, until });
            return Ok(());
        }
        let expected = there && target.expected.remove(&token) == Some(rank);
        let building =
            target.ranks.get(&rank).filter(|process| expected && process.phase == Phase::Building).map(|process| process.attempt);
        let Some(other) = building else {
            self.failed_for_real = true;
            self.reply(at, rank, seq, failed("the connection to the target broke"));
            return Ok(());
        };
        let delay = self.delay();
        self.plan(delay, Coming::Built { at: to, rank, attempt: other });
        if self.fails(60) {
            // The target has all of it, and the source does not hear that.
            self.failed_for_real = true;
            self.reply(at, rank, seq, failed("the connection to the target broke behind the last byte"));
            return Ok(());
        }
        if let Some(process) = self.process(at, rank, attempt) {
            process.phase = Phase::Parked;
        }
        if self.fails(60) {
            // Also when its image is there, and it does not run yet.
            let delay = self.draw(delay + 100 * MILLISECOND_US);
            self.plan(delay, Coming::Fault(Fault::NodeDies(to)));
        }
        self.reply(at, rank, seq, Reply::Saved(Saved { bytes: 10, ..Saved::default() }));
        Ok(())
    }

    /// The job leaves a node: its ranks are killed, which takes a while.
    fn leave(&mut self, at: usize, asked: bool) {
        self.nodes[at].leaving = true;
        let delay = self.draw(3 * SECOND_US);
        let life = self.nodes[at].connection;
        self.plan(delay, Coming::Reaped { life, at, asked });
    }

    fn dies(&mut self, at: usize, rank: Rank, status: ExitStatus) {
        let Some(process) = self.nodes[at].ranks.remove(&rank) else { return };
        for seq in process.questions {
            self.reply(at, rank, seq, Reply::Unasked(Unasked::Left));
        }
        if let Some(id) = process.behind {
            self.say(at, FromDaemon::Written { rank, id, result: Err(Unwritten::Ended) });
        }
        match process.phase {
            Phase::Starting => {
                self.say(at, FromDaemon::StartFailed { rank, error: "died".into(), hint: String::new(), code: 1 });
            }
            Phase::Building => self.restore_failed(at, rank, "died", false),
            _ => self.say(at, FromDaemon::Exited { rank, status }),
        }
    }

    fn strike(&mut self, fault: Fault) -> Result<(), String> {
        if self.options.trace {
            eprintln!("{:>12} !! {fault:?}", self.now);
        }
        self.summary.faults += 1;
        let life = self.life;
        let placed = |world: &Self, rank: Rank| world.job.as_ref()?.rank(rank).map(|state| world.hosts[state.node as usize]);
        match fault {
            Fault::NodeDies(at) => {
                let connected = self.nodes[at].connection == life && self.nodes[at].up;
                self.nodes[at] = Node::default();
                if connected && self.job.is_some() {
                    let how = if self.chance(2) { NodeLoss::Silent(10_000) } else { NodeLoss::Broken("reset".into()) };
                    let delay = if how == NodeLoss::Silent(10_000) { NODE_TIMEOUT_US } else { self.delay() };
                    self.cut(at, how, delay);
                }
            }
            Fault::ConnectionBreaks(at) => {
                if self.nodes[at].connection == life && self.job.is_some() {
                    let delay = self.draw(NODE_TIMEOUT_US);
                    self.plan(delay, Coming::Closed { life, at });
                    let delay = self.draw(NODE_TIMEOUT_US);
                    self.cut(at, NodeLoss::Silent(10_000), delay);
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
                    for asked in std::mem::take(&mut process.held) {
                        self.hand_to_agent(at, rank, attempt, asked);
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
            Fault::Signal => {
                self.reasons.insert("a signal");
                if self.job.is_some() && self.signalled.is_none() {
                    self.signalled = Some(self.now);
                    return self.feed(Event::Signal(15));
                }
            }
            Fault::MessagesLost(one, other) => self.break_channel(one, other, true)?,
            Fault::OldLoss(one, other) => {
                self.break_channel(one, other, false)?;
                return self.ask(Ask::Migrate { rank: one, to: None });
            }
            Fault::ImageRots(rank) => {
                if let Some(newest) = self.disk.numbers().last() {
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
                }
            }
        }
        Ok(())
    }

    /// No message comes through any more; the machine hears of it after a while.
    fn cut(&mut self, at: usize, how: NodeLoss, delay: u64) {
        let life = self.life;
        self.failed_for_real = true;
        self.reasons.insert("a node was lost");
        self.drop_messages(life, at);
        self.plan(delay, Coming::Lost { life, at, how });
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

fn failed(why: &str) -> Reply {
    Reply::Failed { error: why.into(), hint: String::new() }
}
