//! What the job's machine wants is done: one effect after the other.

use super::Job;
use super::words;
use crate::failure::RankFailure;
use crate::put_files::put_files;
use crate::sink::files_key;
use crate::successor;
use mend_messages::daemon::FromDaemon;
use mend_messages::job::Rank;
use mend_messages::world::World;
use mend_node_job::event::{Effect, Event};
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

impl Job {
    /// Does it. What the machine is to be told of it, if it waits for that.
    pub(super) fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        self.tiers.follow(&effect);
        match effect {
            Effect::Send(message) => self.urgent.send(message),
            Effect::Refuse { seq, rank, why } => {
                let reply = words::refusal(why, self.agentless.get(&rank));
                self.urgent.send(FromDaemon::Agent { seq, rank, reply });
            }
            Effect::NotAdmitted { rank, attempt, restore, why } => {
                self.no_process(rank, attempt, restore, &words::inadmissible(rank, why));
            }
            Effect::Pong => {
                self.urgent.send(FromDaemon::Pong(self.room.now()));
                self.agent_links.progress.tell(&self.urgent);
                self.spaces.tell(&self.urgent);
            }
            Effect::Renew { age_us } => self.namespace.renew(Duration::from_micros(age_us)),
            Effect::StartSuccessor { silent } => self.start_successor(silent),
            Effect::Succeeded => {
                self.held.get_or_insert_with(|| self.node.stay.hold());
                self.node.stay.alone();
                // The lost controller may not have been told, or not have written it down: it was sent before anything had a number.
                self.urgent.send(self.ready.clone());
            }
            Effect::Begin { rank, attempt, stdin, origin } => return self.begin((rank, attempt), stdin, origin),
            Effect::Anew { rank, attempt, order } => return self.begin_anew((rank, attempt), order),
            Effect::Tell { rank, word } => {
                if let Some((_, commands)) = self.tasks.get(&rank) {
                    // To a task that has ended: dropped, its end is on its way.
                    let _ = commands.send(words::command(word));
                }
            }
            Effect::Release { rank, attempt } => {
                if self.tasks.get(&rank).is_some_and(|(its, _)| *its == attempt) {
                    self.tasks.remove(&rank);
                    self.tiers.release(rank);
                }
            }
            Effect::DropStanding(ranks) => self.drop_standing(&ranks),
            Effect::Welcome { agent, rank, attempt, restored } => self.agent_links.welcome(agent, (rank, attempt), restored),
            Effect::TellAgent { agent, message } => self.agent_links.tell(agent, &message),
            Effect::Close { agent } => self.agent_links.close(agent),
            Effect::Ask { agent, rank, attempt, number, request } => self.agent_links.ask(agent, (rank, attempt), number, request),
            Effect::Prepare { number, rank, what } => {
                if let Some((_, commands)) = self.tasks.get(&rank) {
                    self.agent_links.prepare(number, rank, what, commands);
                }
            }
            Effect::Answer { seq, rank, reply } => self.agent_links.pass_back(seq, rank, reply),
            Effect::Keep { agent, number, seq, rank, reply } => {
                let commands = self.tasks.get(&rank).map(|(_, commands)| commands);
                self.agent_links.keep(agent, number, (seq, rank), reply, commands);
            }
            Effect::Written { agent, rank, image, result } => self.agent_links.written(agent, rank, image, result),
            Effect::Progress(progress) => self.agent_links.progress.note(progress),
            Effect::Traffic(traffic) => self.agent_links.progress.note_traffic(traffic),
            Effect::Compare { seq, rank, needs } => self.compare(seq, rank, needs),
            Effect::PutFiles(mut order) => {
                let portable = self.tiers.portable();
                let (urgent, key, progress) = (self.urgent.clone(), self.key.as_ref().map(files_key), self.progress.clone());
                let mounts = self.spaces.mounts();
                let stop = self.stop_putting.clone();
                self.putting.spawn(async move {
                    let portable = portable.opened().await;
                    let put = move || {
                        portable.iter().for_each(|portable| portable.locate(&mut order.files));
                        urgent.send(FromDaemon::FilesPut(put_files(&order, &mounts, key, &progress, &stop).map_err(|error| error.told())));
                    };
                    // It fails only as the daemon does.
                    let _ = tokio::task::spawn_blocking(put).await;
                });
            }
            Effect::Tier(order) => self.tier(*order),
            Effect::Grow(world) => self.grow(&world),
            Effect::Notice(notice) => words::log(&self.introduction.id, notice),
            // The loop's.
            Effect::Leave(_) => {}
        }
        None
    }

    /// The controller is told why a rank has no process.
    pub(super) fn no_process(&self, rank: Rank, attempt: u64, restore: bool, failure: &RankFailure) {
        self.urgent.send(failure.told((rank, attempt), restore));
    }

    /// Starts a successor of the controller, in the order of the nodes' numbers: the first one that has the job's lock is it. The machine is told whether
    /// that could be done, as soon as it is known.
    fn start_successor(&self, silent: bool) {
        let (stay, command, node) = (self.node.stay.clone(), self.introduction.successor.clone(), self.introduction.node);
        let (held, answers) = (stay.hold(), self.answers.clone());
        let starting = async move {
            let _held = held;
            let command = match command {
                // One whose directory hangs waits for it.
                Some(command) if successor::can_start(&command).await != Some(false) => Some(command),
                _ => None,
            };
            // The job may have left meanwhile.
            let _ = answers.send(Event::Successor { started: command.is_some(), silent });
            if let Some(command) = command {
                tracing::info!("a successor of the controller is started");
                successor::start(stay, command, node, silent).await;
            }
        };
        tokio::spawn(starting.in_current_span());
    }

    /// The job has a world more.
    fn grow(&mut self, world: &World) {
        Arc::make_mut(&mut self.introduction).grow(world);
        self.agent_links.introduce(self.introduction.clone());
    }
}
