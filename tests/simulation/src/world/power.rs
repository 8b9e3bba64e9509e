//! The machine of the controller loses its power: of what it had written down, what was durable is left, and of the rest some, from its beginning on. A successor
//! knows no more than that.
//!
//! As in the controller, what is written down is made durable a moment later, by another thread, and only then daemons forget what they have said; effects
//! do not wait, but for those that follow [`mend_job::event::Effect::MakeDurable`]; an effect that has an answer is answered before anything else is told, and the answer written down. Daemons have had orders of which the successor does not
//! know, or have not: they say how many. Checkpoints that were published, or removed, are.
//!
//! What is asserted, besides all else: no daemon has forgotten what the log lacks. What was seen of the machine's decisions is forgotten with them.

use super::World;
use super::log::{Log, Seen};
use super::retold::Retold;
use crate::coming::{Coming, Condition, SECOND_US};
use mend_coordination::failure::Trouble;
use mend_job::durable::HeardMessages;
use mend_job::event::{Effect, Event, NodeLoss, Publication, VerbId};
use mend_job::input::Input;
use mend_job::replay::{Standing, Told, What};
use mend_job::safeguard::{Kept, Safeguard};
use mend_job::setup::Setup;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::NodeIndex;
use std::collections::VecDeque;

/// Once in so many effects the power is lost before the next one.
const RARITY: u64 = 1000;
/// Once in so many decisions it is lost when all that follows is under way.
const RARITY_BEHIND_DECISIONS: u64 = 3;

/// Safeguards of the log itself: worlds without them have one.
const OF_LOGS: [Safeguard; 4] =
    [Safeguard::MovesAreDurable, Safeguard::KillsAreDurable, Safeguard::ForgottenIsDurable, Safeguard::UnknownOrdersAreALoss];

impl World {
    /// Whether what the machine is told is written down.
    pub(super) fn may_be_succeeded(&self) -> bool {
        self.options.safeguard.is_none_or(|safeguard| OF_LOGS.contains(&safeguard))
    }

    /// Whether effects are answered at once, as by the controller: only so a log tells what a lost one has done.
    pub(super) fn answers_at_once(&self) -> bool {
        self.retold.as_ref().is_some_and(|retold| retold.log.is_some())
    }

    fn log_safeguards(&self) -> Kept {
        Kept::without(self.options.safeguard)
    }

    pub(super) fn begin_log(&self, setup: Setup) -> Retold {
        let (kept, nodes) = (self.log_safeguards(), setup.nodes.len());
        let log = self.failovers.by_power.then(|| Log::new(&vec![0; nodes], kept, 0, self.seen()));
        let input = self.input().filter(|_| log.is_some()).unwrap_or_else(|| Input::new(Default::default(), setup.stdin));
        Retold::begin(setup, self.now, self.options.safeguard, input, log)
    }

    /// A successor writes down where it stands, with what follows from the last thing that was told: all is durable.
    pub(super) fn begin_log_anew(&mut self, heard: &[u64]) {
        let kept = self.log_safeguards();
        let Some(retold) = &mut self.retold else { return };
        let length = retold.len();
        if let Some(seen) = retold.log.as_mut().and_then(|log| log.seen.remove(&length)) {
            retold.log = Some(Log::new(heard, kept, length, seen));
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            story: self.story.clone(),
            told: self.conditions.told.clone(),
            avoided: self.conditions.avoided.clone(),
            goes_back: self.conditions.goes_back.clone(),
            returns: self.paces.returns.clone(),
            follows: self.data.follows.clone(),
            past: self.data.past.clone(),
            signalled: self.signalled,
        }
    }

    fn has_seen(&mut self, seen: Seen) {
        self.story = seen.story;
        (self.conditions.told, self.conditions.avoided, self.conditions.goes_back) = (seen.told, seen.avoided, seen.goes_back);
        (self.paces.returns, self.data.follows, self.data.past) = (seen.returns, seen.follows, seen.past);
        self.signalled = seen.signalled;
    }

    /// Number of a daemon's message that the machine is about to be told.
    pub(super) fn next_number(&self, event: &Event) -> Option<u64> {
        let log = self.retold.as_ref()?.log.as_ref()?;
        match event {
            Event::Daemon { node, .. } => log.heard.get(*node as usize).map(|heard| heard.last() + 1),
            _ => None,
        }
    }

    pub(super) fn put_into_log(&mut self, what: What, due_us: Option<u64>) {
        let Some(retold) = &mut self.retold else { return };
        let heard = match &what {
            What::Event { event: Event::Daemon { node, .. }, number: Some(number), .. } => Some((*node, *number)),
            _ => None,
        };
        let (now, length) = (self.now, retold.len());
        if let Some(log) = &mut retold.log {
            log.advance(now, length, |bound| self.failovers.draw(bound));
        }
        retold.tell(now, what);
        if retold.log.is_none() {
            return;
        }
        let seen = self.seen();
        let Some(log) = self.retold.as_mut().and_then(|retold| retold.log.as_mut()) else { return };
        log.seen.insert(length + 1, seen);
        let due = due_us.map(|within| now + within);
        log.due = log.due.into_iter().chain(due).min();
        if let Some((node, number)) = heard
            && let Some(heard) = log.heard.get_mut(node as usize)
        {
            heard.hear(number, true);
        }
    }

    /// Nothing more is done before that.
    pub(super) fn make_durable(&mut self) {
        if let Some(retold) = &mut self.retold {
            let length = retold.len();
            if let Some(log) = &mut retold.log {
                log.is_durable(length);
            }
        }
    }

    /// Something is decided.
    pub(super) fn note_decision(&mut self) {
        if let Some(log) = self.retold.as_mut().and_then(|retold| retold.log.as_mut()) {
            log.decided = true;
        }
    }

    /// All that follows from an event was done, and just then the controller is lost.
    pub(super) fn is_lost_behind(&mut self) -> bool {
        let decided = self.retold.as_mut().and_then(|retold| retold.log.as_mut()).is_some_and(|log| std::mem::take(&mut log.decided));
        decided && !self.quiet && self.failovers.draw(RARITY_BEHIND_DECISIONS) == 0
    }

    /// Images of a checkpoint are removed.
    pub(super) fn note_removal(&mut self, number: u64) {
        if let Some(retold) = &mut self.retold {
            let length = retold.len();
            if let Some(log) = &mut retold.log {
                log.removals.push((length, number));
            }
        }
    }

    /// What is so as an effect was done.
    pub(super) fn note_answer(&mut self, answer: &Event) {
        self.failed_for_real |= self.disk.full;
        if let Event::Drained(names) = answer {
            self.note_drained(names);
        }
    }

    /// An effect was done: its answer is told, or the controller is lost.
    pub(super) fn go_on_after_effect(&mut self, queue: &mut VecDeque<Effect>) -> Result<(), String> {
        if let Some(answer) = self.answer.take() {
            self.note_answer(&answer);
            queue.extend(self.handle(What::Answer(answer.clone()), answer, false)?);
            if self.failovers.now() {
                *queue = self.lose_controller(std::mem::take(queue).into())?.into();
            }
        } else if self.answers_at_once() && !self.quiet && !queue.is_empty() && self.failovers.draw(RARITY) == 0 {
            *queue = self.lose_power()?.into();
        }
        Ok(())
    }

    /// The controller is lost as [`World::fail_over`] has it, or by its power. What its successor has to do.
    pub(super) fn lose_controller(&mut self, undone: Vec<Effect>) -> Result<Vec<Effect>, String> {
        if self.answers_at_once() && !self.quiet && self.failovers.draw(2) == 0 { self.lose_power() } else { self.fail_over(undone) }
    }

    /// See the module's head. What a successor has to do, besides orders.
    pub(super) fn lose_power(&mut self) -> Result<Vec<Effect>, String> {
        if self.job.is_none() {
            return Ok(Vec::new());
        }
        let (now, safeguards) = (self.now, self.log_safeguards());
        let Some(mut retold) = self.retold.take() else { return Ok(Vec::new()) };
        let length = retold.len();
        let Some(log) = &mut retold.log else { return Err("it has no log".into()) };
        log.advance(now, length, |bound| self.failovers.draw(bound));
        let left = log.durable + self.failovers.draw((length - log.durable) as u64 + 1) as usize;
        let seen = log.seen.get(&left).cloned().ok_or("a log ends where nothing was seen")?;
        let forgotten: Vec<u64> = log.heard.iter().map(HeardMessages::confirmed).collect();
        self.removed_unknown.extend(log.removals.iter().filter(|(written, _)| *written > left).map(|(_, number)| *number));
        let lost = retold.cut(left);
        if self.options.trace {
            eprintln!("{now:>12} !! the controller loses its power, and {} of {length} entries of its log", lost.len());
        }
        let (mut standing, effects) = retold.stand()?;
        (self.summary.failovers, self.summary.power_losses) = (self.summary.failovers + 1, self.summary.power_losses + 1);
        (self.disturbed, self.failed_for_real) = (true, true);
        self.has_seen(seen);
        self.is_absent();
        self.tell_processors_again();
        self.verbs_are_lost();
        self.retold = Some(retold);
        let orders = std::mem::take(&mut standing.orders);
        let had: Vec<u64> = (0..orders.len() as NodeIndex).map(|node| self.orders_had(node)).collect();
        let known: Vec<Vec<ToDaemon>> = orders.iter().map(|orders| orders.kept.iter().cloned().collect()).collect();
        for (node, (orders, had)) in (0..).zip(orders.into_iter().zip(had)) {
            let at = self.hosts[node as usize];
            if !self.answers(at) {
                continue;
            }
            self.repeats(node, &lost, forgotten[node as usize])?;
            match orders.after(had, safeguards) {
                Ok(rest) => {
                    for message in rest.kept {
                        self.send(at, false, Coming::ToNode { life: self.life, at, message });
                    }
                }
                Err(unknown) => self.is_lost_to_successor(at, &format!("{unknown:?}"))?,
            }
        }
        if let Some(retold) = &mut self.retold {
            retold.know(known);
        }
        self.tell_again(&lost);
        self.succeed_work(&standing);
        self.begin_log_anew(&standing.heard);
        self.job = Some(standing.job);
        Ok(effects)
    }

    /// A daemon takes a successor.
    fn answers(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        node.up && node.connection == self.life && !node.cut
    }

    /// Nobody hears of what was asked: what it asked for may have been done.
    fn verbs_are_lost(&mut self) {
        let all: Vec<VerbId> = self.verbs.keys().copied().collect();
        self.failovers.lose_verbs(all);
        self.verbs.retain(|_, asked| asked.answers > 0);
    }

    /// How many orders a node has had: some of those that are under way never arrive.
    fn orders_had(&mut self, node: NodeIndex) -> u64 {
        let given = self.retold.as_ref().map_or(0, |retold| retold.given(node));
        (given - self.lose_orders(node)) as u64
    }

    /// A daemon says again what it has not forgotten, before what it has said since.
    fn repeats(&mut self, node: NodeIndex, lost: &[Told], forgotten: u64) -> Result<(), String> {
        let (at, life) = (self.hosts[node as usize], self.life);
        let said = self.take_out(|coming| matches!(coming, Coming::ToJob { life: of, at: there, .. } if (*of, *there) == (life, at)));
        for told in lost {
            match &told.what {
                What::Event { event: Event::Daemon { node: of, message }, number: Some(number), .. } if *of == node => {
                    if *number <= forgotten {
                        return Err(format!("the log lacks message {number} of node {at}, which has forgotten those up to {forgotten}"));
                    }
                    self.send(at, true, Coming::ToJob { life, at, message: message.clone() });
                }
                _ => {}
            }
        }
        said.into_iter().for_each(|coming| self.send(at, true, coming));
        Ok(())
    }

    /// It has had orders of which the successor does not know, and has no controller any more: its ranks end when the lease is over.
    fn is_lost_to_successor(&mut self, at: usize, why: &str) -> Result<(), String> {
        let life = self.life;
        for had in self.take_out(|coming| matches!(coming, Coming::ToNode { life: of, at: there, .. } if (*of, *there) == (life, at))) {
            self.happens(had)?;
        }
        let delay = self.failovers.draw(SECOND_US);
        self.is_pinged_last(at);
        self.cut(at, NodeLoss::Broken(why.into()), delay);
        self.wait_for_lease(at);
        Ok(())
    }

    /// What was told, and neither daemons nor the log tell, is found out anew; but for verbs and signals.
    fn tell_again(&mut self, lost: &[Told]) {
        let life = self.life;
        for told in lost {
            match &told.what {
                What::Event { event: Event::NodeLost { node, how }, .. } => {
                    self.plan(0, Coming::Lost { life, at: self.hosts[*node as usize], how: how.clone() });
                }
                What::Event { event: Event::Leave { node, leaving, .. }, .. } => {
                    self.plan(0, Coming::Condition(self.hosts[*node as usize], Condition::BatchSystem(leaving.clone())));
                }
                // What a user removes before the successor has seen it was not there for it.
                What::Answer(Event::Published { number, result: Ok(_) }) => drop(self.numbers_of_life.remove(number)),
                What::Answer(Event::Published { number, result: Err(_) }) => drop(self.failed_unknown.insert(*number)),
                // A successor sees that they are gone when it looks, as where a user has removed them.
                What::Answer(Event::Removed { result: Ok(()), .. }) => self.vanished = Some(self.now),
                // Only it had heard of that; daemons say it again.
                What::Event { event: Event::TimeUp { .. }, .. } => self.time_up = None,
                _ => {}
            }
        }
    }

    /// What the lost controller did besides goes on where the log ends.
    fn succeed_work(&mut self, standing: &Standing) {
        let life = self.life;
        self.retain(|coming| !matches!(coming, Coming::Upkeep { life: of, .. } | Coming::Piece { life: of } if *of == life));
        self.upkeep = standing.upkeep;
        if standing.upkeep {
            let delay = self.failovers.draw(SECOND_US);
            self.plan(delay, Coming::Upkeep { life, bounds: None });
        }
        self.succeed_input(&standing.input, standing.wants_input);
        // What was begun of checkpoints that nobody knows of any more is removed by who takes those numbers next.
        for number in self.disk.unfinished().into_iter().filter(|number| !self.story.has_begun(*number)).collect::<Vec<_>>() {
            self.disk.discard(number);
        }
    }

    /// A checkpoint of this number is there already: a lost controller has published it, or it is another one. Or a lost controller has removed its images, as it could not be published: the
    /// controller looks for them then.
    pub(super) fn was_published(&mut self, publication: &Publication) -> Option<Result<String, Trouble>> {
        let number = publication.number;
        if self.failed_unknown.contains(&number) && self.tiers.is_empty() && !self.disk.has_parts(publication) {
            return Some(Err(crate::disk::no_space()));
        }
        self.disk.publication(number)?;
        if self.disk.unfinished().contains(&number) {
            self.failed_for_real = true;
            return Some(Err(crate::disk::no_space()));
        }
        self.numbers_of_life.insert(number);
        Some(Ok(format!("/c/{number}")))
    }
}
