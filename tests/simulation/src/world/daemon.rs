//! What happens: messages arrive, daemons obey, agents answer, faults strike.

use super::World;
use crate::Defect;
use crate::agent::RANK_BYTES;
use crate::agent::failed;
use crate::coming::{Coming, Fault, MILLISECOND_US, NODE_TIMEOUT_US, SECOND_US};
use crate::disk::place;
use crate::feeder::Feeder;
use crate::node::{Node, Phase, Process, node_at};
use mend_job::event::{Event, NodeLoss};
use mend_messages::agent::{ImageId, Reply, Request, SaveMode, SaveOrder, SaveTarget, Unasked, Unwritten, Written};
use mend_messages::control::Ask;
use mend_messages::daemon::{ExitStatus, FromDaemon, Question, RestoreSource, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_messages::tier::TierReport;

/// Of a process that is discarded already.
const LATE: &str = "late";

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
                    let stores = std::mem::take(&mut self.nodes[at].stores);
                    self.nodes[at] = Node { up: self.nodes[at].up, stores, ..Node::default() };
                    if asked && life == self.life {
                        let delay = self.delay();
                        self.plan(delay, Coming::Lost { life, at, how: NodeLoss::Broken("closed".into()) });
                    }
                }
                Ok(())
            }
            Coming::Agent { at, rank, attempt, seq, request } => self.agent(at, rank, attempt, seq, request),
            Coming::Streamed { at, rank, attempt, seq, to, token, until } => self.streamed(at, rank, attempt, seq, (to, token, until)),
            Coming::Precopies { at, rank, attempt, seq, to, token, until } => {
                self.precopies((at, rank, attempt), seq, (to, token, until));
                Ok(())
            }
            Coming::Round { at, rank, attempt, receiver, number } => {
                self.round((at, rank, attempt), receiver, number);
                Ok(())
            }
            Coming::NoTransfer { at, rank, attempt } => {
                let is_left = |process: &&mut Process| process.phase == Phase::Building && !process.receives;
                if let Some(number) = self.process(at, rank, attempt).filter(is_left).map(|process| process.number) {
                    self.nodes[at].ranks.remove(&rank);
                    self.restore_failed(at, (rank, number), "no transfer came", false);
                }
                Ok(())
            }
            Coming::Started { at, rank, attempt } => {
                if let Some(process) = self.process(at, rank, attempt) {
                    process.phase = Phase::Runs;
                    self.work_on_input(at, rank);
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
                let number = process.number;
                if fails {
                    self.nodes[at].ranks.remove(&rank);
                    self.restore_failed(at, (rank, number), "no memory", false);
                    return Ok(());
                }
                process.phase = Phase::Built;
                self.say(at, FromDaemon::Restored { rank, attempt: number, restart_us: 5, bytes: 10 });
                let delay = self.delay();
                self.plan(delay, Coming::FabricUp { at, rank, attempt });
                Ok(())
            }
            Coming::FabricUp { at, rank, attempt } => {
                if let Some(number) = self.process(at, rank, attempt).map(|process| process.number) {
                    let address = FabricAddress { tcp: ([10, 0, 0, at as u8], 9000 + attempt as u16).into(), unix: String::new() };
                    self.say(at, FromDaemon::FabricUp { rank, attempt: number, address });
                }
                Ok(())
            }
            // What a daemon had still to say of a process that it discarded.
            Coming::LastWord { life, at, word } => {
                if self.nodes[at].connection == life && !self.nodes[at].leaving {
                    self.say(at, word);
                }
                Ok(())
            }
            Coming::Piece { life } => self.piece(life),
            Coming::Feeds { at, rank, attempt } => self.feeds(at, rank, attempt),
            Coming::TierWork { life, at, order, until } => {
                self.tier_work(life, at, *order, until);
                Ok(())
            }
            Coming::NoImage { life, at, token } => {
                self.no_image(life, at, token);
                Ok(())
            }
            Coming::Behind { at, rank, attempt, path, id, base } => {
                if self.process(at, rank, attempt).is_some_and(|process| process.behind.take_if(|behind| *behind == id).is_some()) {
                    let whole = self.write_image(at, &path, rank, (id, base));
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
                    if let Event::Drained(names) = &*event {
                        self.note_drained(names);
                    }
                    self.feed(*event)?;
                }
                Ok(())
            }
            Coming::Upkeep { life, bounds } if life == self.life && self.job.is_some() => self.upkeep_done(bounds),
            Coming::Upkeep { .. } => Ok(()),
            Coming::Fault(fault) => self.strike(fault),
            Coming::Condition(at, condition) => self.takes_condition(at, condition),
            Coming::Look => self.look_at_data(),
            Coming::Reading => {
                self.read_paces();
                Ok(())
            }
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

    pub(crate) fn index(&self, at: usize) -> Option<NodeIndex> {
        self.hosts.iter().position(|&host| host == at).map(|node| node as NodeIndex)
    }

    pub(crate) fn process(&mut self, at: usize, rank: Rank, attempt: u64) -> Option<&mut Process> {
        self.nodes[at].ranks.get_mut(&rank).filter(|process| process.attempt == attempt)
    }

    /// The machine hears what a daemon said; some things twice.
    pub(crate) fn heard(&mut self, at: usize, message: FromDaemon) -> Result<(), String> {
        let Some(node) = self.index(at) else { return Ok(()) };
        self.note_heard(at, &message);
        let Some(job) = &self.job else { return Ok(()) };
        match &message {
            FromDaemon::Exited { rank, .. } if job.rank(*rank).is_some_and(|state| state.node == node) => {
                self.reasons.insert("a rank ended");
                self.reasons.insert("a rank did not come to be");
            }
            // What is said late, of a process that was discarded, is no reason for anything.
            FromDaemon::RestoreFailed { error, .. } | FromDaemon::StartFailed { error, .. } if error != LATE => {
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
                | FromDaemon::Round { .. }
                | FromDaemon::PrecopyFailed { .. }
                | FromDaemon::Started { .. }
                | FromDaemon::AgentUp { .. }
                | FromDaemon::FabricUp { .. }
                | FromDaemon::Restored { .. }
                | FromDaemon::Exited { .. }
                | FromDaemon::Tier(TierReport::Done { .. })
        );
        if again && self.chance(30) {
            self.feed(Event::Daemon { node, message: message.clone() })?;
        }
        self.feed(Event::Daemon { node, message })
    }

    fn obey(&mut self, at: usize, message: ToDaemon) -> Result<(), String> {
        match message {
            ToDaemon::Start { rank, attempt: number, stdin } => {
                let feeder = self.new_feeder(None, None, stdin);
                let attempt = self.new_process(at, (rank, number), Phase::Starting, (feeder, stdin));
                let delay = self.delay();
                self.plan(delay, Coming::Started { at, rank, attempt });
            }
            ToDaemon::Restore { rank, attempt: number, source, image, stdin } => {
                self.check_node(at, rank, &source, image)?;
                let moves = matches!(source, RestoreSource::Transfer { .. });
                if let Some(memory) = self.nodes[at].memory.filter(|memory| moves && *memory < RANK_BYTES) {
                    return Err(format!("rank {rank} moves to node {at}, which has {memory} bytes for it"));
                }
                self.restore(at, (rank, number), source, (image, stdin));
            }
            ToDaemon::Compare { seq, rank, needs } => {
                let fails = self.fails(40);
                let found = self.differences.compare(at, &needs);
                let reply = if fails { failed("it cannot restore ranks") } else { Reply::Compared(found) };
                self.say(at, FromDaemon::Agent { seq, rank, reply });
            }
            ToDaemon::Ask(steps) => {
                let first = self.nodes[at].batch.begin(steps);
                self.ask_agents(at, first);
            }
            ToDaemon::SaveTo { seq, rank, address, token, .. } => {
                self.nodes[at].batch.drop_rest();
                self.hold_input(at, rank);
                let to = node_at(address);
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
            ToDaemon::PrecopyTo { seq, rank, address, token } => self.precopy_to(at, rank, seq, address, token),
            ToDaemon::Discard { rank } => self.discard(at, rank),
            ToDaemon::Signal(signal) => {
                let here: Vec<(Rank, u64)> = self.nodes[at].ranks.iter().map(|(rank, process)| (*rank, process.attempt)).collect();
                for (rank, _) in here {
                    if !self.chance(3) {
                        self.dies(at, rank, ExitStatus::Signal(signal));
                    }
                }
            }
            ToDaemon::Stdin { rank, bytes } => {
                if let Some(process) = self.nodes[at].ranks.get_mut(&rank) {
                    process.feeder.push(bytes);
                    self.work_on_input(at, rank);
                }
            }
            ToDaemon::Tier(order) => self.obey_tier(at, *order),
            // A rank that stands still does nothing, as one that is gone.
            ToDaemon::End { .. } | ToDaemon::Pause => self.leave(at, true),
            _ => {}
        }
        Ok(())
    }

    /// Its process is gone at once; what is to be said of it may take a while.
    fn discard(&mut self, at: usize, rank: Rank) {
        self.nodes[at].expected.retain(|_, its| *its != rank);
        let Some(process) = self.nodes[at].ranks.remove(&rank) else { return };
        let (life, attempt) = (self.nodes[at].connection, process.number);
        let building = matches!(process.phase, Phase::Building | Phase::Starting);
        let word = match building {
            false if rank == 0 => Some(FromDaemon::StdinLeft { rank, attempt, bytes: process.feeder.left() }),
            // It failed just before.
            true if self.chance(2) => {
                Some(FromDaemon::RestoreFailed { rank, attempt, error: LATE.into(), hint: String::new(), image: false })
            }
            _ => None,
        };
        if let Some(word) = word {
            let delay = if self.chance(2) { self.draw(2 * SECOND_US) } else { 0 };
            self.plan(delay, Coming::LastWord { life, at, word });
        }
        for seq in process.questions {
            self.reply(at, rank, seq, Reply::Unasked(Unasked::Ended));
        }
    }

    fn new_process(&mut self, at: usize, (rank, number): (Rank, u64), phase: Phase, (feeder, fed): (Feeder, bool)) -> u64 {
        self.attempts += 1;
        let attempt = self.attempts;
        let process = Process { attempt, number, feeder, fed, ..Process::new(phase) };
        self.nodes[at].ranks.insert(rank, process);
        attempt
    }

    fn restore(&mut self, at: usize, (rank, number): (Rank, u64), source: RestoreSource, (image, fed): (Option<ImageId>, bool)) {
        if self.nodes[at].ranks.contains_key(&rank) {
            return self.restore_failed(at, (rank, number), "it is on this node already", false);
        }
        let feeder = self.new_feeder(Some(&source), image, fed);
        match source {
            RestoreSource::Files(chain) => {
                if chain.is_empty() || !chain.iter().all(|path| self.has_file(at, path)) {
                    return self.restore_failed(at, (rank, number), "an image is missing", true);
                }
                if chain.iter().any(|path| self.disk.is_rotten(path)) {
                    self.reasons.insert("an image is bad");
                    return self.restore_failed(at, (rank, number), "it is torn", true);
                }
                let attempt = self.new_process(at, (rank, number), Phase::Building, (feeder, fed));
                if let Some(process) = self.process(at, rank, attempt) {
                    process.restarted = true;
                }
                let delay = self.delay() + self.draw(SECOND_US);
                self.plan(delay, Coming::Built { at, rank, attempt });
            }
            RestoreSource::Transfer { token, .. } => {
                let attempt = self.new_process(at, (rank, number), Phase::Building, (feeder, fed));
                self.nodes[at].expected.insert(token, rank);
                self.plan(NODE_TIMEOUT_US + 5 * SECOND_US, Coming::NoTransfer { at, rank, attempt });
            }
        }
    }

    fn restore_failed(&mut self, at: usize, (rank, number): (Rank, u64), why: &str, image: bool) {
        self.nodes[at].expected.retain(|_, its| *its != rank);
        self.say(at, FromDaemon::RestoreFailed { rank, attempt: number, error: why.into(), hint: String::new(), image });
    }

    pub(crate) fn ask_agents(&mut self, at: usize, step: Vec<Question>) {
        for Question { seq, rank, request } in step {
            match &request {
                Request::Save(_) => self.hold_input(at, rank),
                Request::Resume => {
                    if let Some(process) = self.nodes[at].ranks.get_mut(&rank) {
                        process.feeder.release();
                    }
                    self.work_on_input(at, rank);
                }
                _ => {}
            }
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

    pub(crate) fn hand_to_agent(&mut self, at: usize, rank: Rank, attempt: u64, (seq, request): (u64, Request)) {
        let (now, delay) = (self.now, self.delay());
        let Some(process) = self.process(at, rank, attempt) else { return };
        process.busy_until = process.busy_until.max(now + delay);
        let delay = process.busy_until - now;
        self.plan(delay, Coming::Agent { at, rank, attempt, seq, request });
    }

    pub(crate) fn reply(&mut self, at: usize, rank: Rank, seq: u64, reply: Reply) {
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
        let needs = self.differences.needs(at);
        let Some(process) = self.process(at, rank, attempt).filter(|process| process.questions.contains(&seq)) else { return Ok(()) };
        if process.stuck {
            process.held.push((seq, request));
            return Ok(());
        }
        if let Request::Save(SaveOrder { target: SaveTarget::Begun, .. }) = &request {
            self.save_rest((at, rank, attempt), seq, fails);
            return Ok(());
        }
        if let Request::Save(order) = &request {
            return self.save(at, rank, attempt, seq, order, fails);
        }
        let (was, tracked) = (process.phase, process.tracked);
        let ends = request == Request::EndPrecopy || request == Request::Resume && was != Phase::Runs;
        let ended = process.precopies.take_if(|_| ends);
        let stale = process.stale_marker && defect == Some(Defect::StaleMarker) && matches!(request, Request::SuspendPeer(_));
        let mut reply = process.answer(&request, fails || stale, ImageId::default());
        if let Reply::Inspected(found) = &mut reply {
            found.needs = needs.into();
        }
        if request == Request::Resume {
            let all_or_none = process.restarted && was == Phase::Built;
            if let Some(moment) = tracked.and_then(|(id, _)| self.moments.get_mut(&id)) {
                moment.1.get_or_insert(now);
            }
            if all_or_none {
                self.all_are_built()?;
            }
            self.work_on_input(at, rank);
        }
        self.forsaken(rank, ended);
        self.failed_for_real |= reply.is_failure() || matches!(&reply, Reply::Inspected(found) if !found.obstacles.is_empty());
        self.reply(at, rank, seq, reply);
        Ok(())
    }

    fn save(&mut self, at: usize, rank: Rank, attempt: u64, seq: u64, order: &SaveOrder, fails: bool) -> Result<(), String> {
        let drawn = self.draw(u64::MAX).to_le_bytes();
        let slow = self.delay() + self.draw(3 * SECOND_US);
        let SaveTarget::File(path) = order.target.clone() else { return Err("a save without a file".into()) };
        place(&path).ok_or("a strange name for an image")?;
        let mut id = ImageId([attempt as u8; 16]);
        id.0[..8].copy_from_slice(&drawn);
        let Some(process) = self.process(at, rank, attempt) else { return Ok(()) };
        let (suspended, (base, _)) = (process.phase == Phase::Suspended, process.below(order));
        let at_once = suspended && !fails && order.mode == SaveMode::Stop;
        let whole = !at_once || self.write_image(at, &path, rank, (id, base));
        let Some(process) = self.process(at, rank, attempt) else { return Ok(()) };
        let reply = process.answer(&Request::Save(order.clone()), fails || !whole, id);
        match &reply {
            Reply::Saved(saved) => {
                self.moments.insert(id, (self.now, None));
                self.differences.saved(at, id);
                self.keep_input(at, rank, id);
                if saved.behind {
                    self.plan(slow, Coming::Behind { at, rank, attempt, path, id, base });
                }
            }
            _ => self.failed_for_real |= suspended,
        }
        self.reply(at, rank, seq, reply);
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
        self.move_input(at, rank, to, token);
        let delay = self.delay();
        if self.fails(60) {
            // The source has stored all of it, and it does not come to the target.
            self.failed_for_real = true;
            let late = self.draw(SECOND_US);
            self.plan(delay + late, Coming::NoTransfer { at: to, rank, attempt: other });
        } else {
            self.plan(delay, Coming::Built { at: to, rank, attempt: other });
        }
        if self.fails(60) {
            // The target has all of it, and the source does not hear that.
            self.failed_for_real = true;
            self.reply(at, rank, seq, failed("the connection to the target broke behind the last byte"));
            return Ok(());
        }
        let order = Request::Save(SaveOrder::full(SaveTarget::Descriptor));
        let reply = self.process(at, rank, attempt).map(|process| process.answer(&order, false, ImageId::default()));
        if self.fails(60) {
            // Also when its image is there, and it does not run yet.
            let delay = self.draw(delay + 100 * MILLISECOND_US);
            self.plan(delay, Coming::Fault(Fault::NodeDies(to)));
        }
        if self.fails(20) {
            // Also when its rank runs there already, and it has not told what it was not given.
            let delay = self.draw(delay + SECOND_US);
            self.plan(delay, Coming::Fault(Fault::NodeDies(at)));
        }
        if let Some(reply) = reply {
            self.reply(at, rank, seq, reply);
        }
        Ok(())
    }

    /// The job leaves a node: its ranks are killed, which takes a while.
    fn leave(&mut self, at: usize, asked: bool) {
        self.nodes[at].leaving = true;
        let delay = self.draw(3 * SECOND_US);
        let life = self.nodes[at].connection;
        self.plan(delay, Coming::Reaped { life, at, asked });
    }

    pub(crate) fn dies(&mut self, at: usize, rank: Rank, status: ExitStatus) {
        let Some(process) = self.nodes[at].ranks.remove(&rank) else { return };
        let attempt = process.number;
        for seq in process.questions {
            self.reply(at, rank, seq, Reply::Unasked(Unasked::Left));
        }
        if let Some(id) = process.behind {
            self.say(at, FromDaemon::Written { rank, id, result: Err(Unwritten::Ended) });
        }
        match process.phase {
            Phase::Starting => {
                self.say(at, FromDaemon::StartFailed { rank, attempt, error: "died".into(), hint: String::new(), code: 1 });
            }
            Phase::Building => self.restore_failed(at, (rank, attempt), "died", false),
            _ => self.say(at, FromDaemon::Exited { rank, attempt, status }),
        }
    }
}
