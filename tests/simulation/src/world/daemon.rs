//! What happens: messages arrive, daemons are told, agents answer, faults strike.

use super::World;
use crate::Defect;
use crate::agent::RANK_BYTES;
use crate::agent::failed;
use crate::coming::{Coming, Fault, MILLISECOND_US, SECOND_US};
use crate::disk::place;
use crate::node::{Node, Phase, Process, Receiver};
use mend_job::event::{Event, NodeLoss};
use mend_messages::agent::{FromAgent, ImageId, Reply, Request, SaveMode, SaveOrder, SaveTarget, Written};
use mend_messages::control::Ask;
use mend_messages::daemon::{FromDaemon, RestoreBlame, RestoreSource, ToDaemon};
use mend_messages::job::{FabricAddress, NodeIndex, Rank};
use mend_messages::tier::TierReport;
use mend_node_job::event::Event as NodeEvent;

/// Of a process that is discarded already.
pub(super) const LATE_ERROR: &str = "late";

impl World {
    pub(crate) fn happens(&mut self, coming: Coming) -> Result<(), String> {
        if let Some(coming) = self.hold_back(coming) {
            self.comes(coming)?;
        }
        self.found_on_node.take().map_or(Ok(()), Err)
    }

    fn comes(&mut self, coming: Coming) -> Result<(), String> {
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
                // Of a connection in whose place another one is already nothing is seen.
                if self.job.is_none() || !self.has_controller() {
                    self.is_closed(life, at);
                }
                Ok(())
            }
            Coming::Elects { life, at, holder, silent, tries } => {
                self.elects((life, at), holder, silent, tries);
                Ok(())
            }
            Coming::Seizes { life, at, holder } => {
                self.seizes((life, at), holder);
                Ok(())
            }
            Coming::Succeeds { life, at, holder } => self.succeeds((life, at), holder),
            Coming::Wakes { absence } => self.wakes(absence),
            Coming::Forsaken { absence } => self.is_forsaken(absence),
            Coming::Looks { life, at, until } => self.looks(life, at, until),
            Coming::Prepared { life, at, rank, number, request } => {
                self.prepared(life, (at, rank), number, request);
                Ok(())
            }
            Coming::OfNode { life, at, event } => {
                if self.nodes[at].connection == life {
                    self.tell_node(at, *event);
                }
                Ok(())
            }
            Coming::Reaped { life, at, asked } => {
                if self.nodes[at].connection == life {
                    let stores = std::mem::take(&mut self.nodes[at].stores);
                    let standing = self.standing_is_kept(at);
                    self.nodes[at] = Node { up: self.nodes[at].up, stores, standing, ..Node::default() };
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
                if self.process(at, rank, attempt).filter(is_left).is_some() {
                    self.not_built(at, rank, "no transfer came", RestoreBlame::Other);
                }
                Ok(())
            }
            Coming::Started { at, rank, attempt } => {
                self.program_starts(at, rank, attempt);
                Ok(())
            }
            Coming::Built { at, rank, attempt } => {
                let fails = self.fails(40);
                if self.process(at, rank, attempt).is_some() {
                    self.rank_is_built(at, rank, attempt, fails);
                }
                Ok(())
            }
            Coming::FailsInPlace { at, rank, attempt, how } => {
                self.fails_in_place(at, rank, attempt, how);
                Ok(())
            }
            Coming::StandingEnds { at, life } => {
                self.standing_ends(at, life);
                Ok(())
            }
            Coming::FabricUp { at, rank, attempt } => {
                if self.process(at, rank, attempt).is_some() {
                    let address = FabricAddress { tcp: ([10, 0, 0, at as u8], 9000 + attempt as u16).into(), unix: String::new() };
                    self.agent_says(at, attempt, FromAgent::FabricUp(address));
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
                    let result = if whole { Ok(Written { bytes: 10, ..Written::default() }) } else { Err("no space left".into()) };
                    self.agent_says(at, attempt, FromAgent::Written { id, result });
                }
                Ok(())
            }
            Coming::Effect { life, event } => {
                if life == self.life {
                    self.effects_under_way -= 1;
                    self.note_answer(&event);
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
            FromDaemon::RestoreFailed { error, .. } | FromDaemon::StartFailed { error, .. } if error != LATE_ERROR => {
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
            self.feed_again(Event::Daemon { node, message: message.clone() })?;
        }
        self.feed(Event::Daemon { node, message })
    }

    pub(crate) fn obey(&mut self, at: usize, message: ToDaemon) -> Result<(), String> {
        if let ToDaemon::Restore { rank, source, image, .. } = &message {
            self.check_node(at, *rank, source, *image)?;
            let moves = matches!(source, RestoreSource::Transfer { .. });
            if let Some(memory) = self.nodes[at].memory.filter(|memory| moves && *memory < RANK_BYTES) {
                return Err(format!("rank {rank} moves to node {at}, which has {memory} bytes for it"));
            }
        }
        if matches!(message, ToDaemon::Pause) {
            self.awaits_pauses(at);
        }
        self.tell_node(at, NodeEvent::Told(message));
        Ok(())
    }

    pub(crate) fn hand_to_agent(&mut self, at: usize, rank: Rank, attempt: u64, (seq, request): (u64, Request)) {
        let (now, delay) = (self.now, self.delay());
        let Some(process) = self.process(at, rank, attempt) else { return };
        process.busy_until = process.busy_until.max(now + delay);
        let delay = process.busy_until - now;
        self.plan(delay, Coming::Agent { at, rank, attempt, seq, request });
    }

    /// An agent answers its daemon.
    pub(crate) fn reply(&mut self, at: usize, rank: Rank, number: u64, reply: Reply) {
        let Some(process) = self.nodes[at].ranks.get_mut(&rank) else { return };
        process.questions.retain(|open| *open != number);
        let agent = process.attempt;
        self.agent_says(at, agent, FromAgent::Reply { seq: number, reply });
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
        if let Request::Save(SaveOrder { target: SaveTarget::Descriptor, .. }) = &request {
            self.save_into_transfer((at, rank, attempt), seq);
            return Ok(());
        }
        if let Request::Precopy { .. } = &request {
            self.begins_to_copy((at, rank, attempt), seq);
            return Ok(());
        }
        if let Request::Save(order) = &request {
            return self.save(at, rank, attempt, seq, order, fails);
        }
        let (was, tracked) = (process.phase, process.tracked);
        let ends = matches!(request, Request::EndPrecopy | Request::Pause) || request == Request::Resume && was != Phase::Runs;
        let ended = process.precopies.take_if(|_| ends);
        let given_up = process.behind.take_if(|_| request == Request::Pause);
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
        if let Some(id) = given_up {
            self.agent_says(at, attempt, FromAgent::Written { id, result: Err("the rank goes back to an earlier image".into()) });
        }
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

    /// A daemon has met the target of a save, or not.
    fn streamed(
        &mut self,
        at: usize,
        rank: Rank,
        attempt: u64,
        number: u64,
        (to, token, until): (usize, [u8; 16], u64),
    ) -> Result<(), String> {
        let life = self.nodes[at].connection;
        let target = &mut self.nodes[to];
        let there = target.up && target.connection == life && !target.leaving;
        if there && !target.expected.contains_key(&token) && self.now < until {
            // A stream may be there before the order to expect it.
            self.plan(100 * MILLISECOND_US, Coming::Streamed { at, rank, attempt, seq: number, to, token, until });
            return Ok(());
        }
        let expected = there && target.expected.remove(&token) == Some(rank);
        let building = target.ranks.get(&rank).filter(|process| expected && process.phase == Phase::Building);
        let receiver = building.map(|process| Receiver { at: to, attempt: process.attempt, token });
        let request = match receiver {
            Some(receiver) => {
                if let Some(process) = self.process(at, rank, attempt) {
                    process.opened = Some(receiver);
                }
                Ok(Request::Save(SaveOrder::full(SaveTarget::Descriptor)))
            }
            None => {
                self.failed_for_real = true;
                Err(failed("the connection to the target broke"))
            }
        };
        self.prepared(life, (at, rank), number, request);
        Ok(())
    }

    /// An agent writes its rank into the stream that its daemon has opened.
    fn save_into_transfer(&mut self, (at, rank, attempt): (usize, Rank, u64), seq: u64) {
        let Some(process) = self.process(at, rank, attempt) else { return };
        let (suspended, receiver) = (process.phase == Phase::Suspended, process.opened.take());
        if !suspended {
            self.reply(at, rank, seq, failed("it is not suspended"));
            return self.forsaken(rank, receiver);
        }
        let Some(Receiver { at: to, attempt: other, token }) = receiver.filter(|receiver| self.builds(rank, *receiver)) else {
            self.failed_for_real = true;
            return self.reply(at, rank, seq, failed("the connection to the target broke"));
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
            return self.reply(at, rank, seq, failed("the connection to the target broke behind the last byte"));
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
    }
}
