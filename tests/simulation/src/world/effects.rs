//! What the job's machine wants is done, as its controller would: at once, or answered a while later.

use super::World;
use crate::coming::{Coming, SECOND_US};
use crate::disk::no_space;
use mend_job::event::{Asker, Effect, Event, FreeSpace, Publication, Record};
use std::collections::VecDeque;

impl World {
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        let mut at_once = Vec::new();
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            if self.options.trace {
                eprintln!("{:>12}     => {effect:?}", self.now);
            }
            match effect {
                Effect::Send { node, message } => {
                    self.check_removal(&message)?;
                    self.check_pause(&message)?;
                    if let Some(retold) = &mut self.retold {
                        retold.order(node, &message);
                    }
                    let at = self.hosts[node as usize];
                    self.send(at, false, Coming::ToNode { life: self.life, at, message });
                }
                Effect::Answer { verb, outcome } => self.answered(verb, outcome)?,
                Effect::Tell(notice) => self.told(&notice)?,
                Effect::Prepare { number, base } => {
                    // With tiers nobody looks at images, which may be anywhere.
                    let is_there = |number| !self.tiers.is_empty() || self.disk.is_restorable(number);
                    let good = base.is_some_and(|(number, ids)| self.disk.is_of(number, &ids) && is_there(number));
                    let result = if self.disk.prepare(number) { Ok(good) } else { Err(no_space()) };
                    self.later(Event::Prepared { number, result });
                }
                Effect::Publish(publication) => {
                    let number = publication.number;
                    let result = self.publish(&publication)?;
                    self.later(Event::Published { number, result });
                }
                Effect::Discard { number } => self.disk.discard(number),
                Effect::Remove { asker, numbers } => self.remove(asker, &numbers)?,
                Effect::ListDrained => self.list_drained(),
                Effect::List => {
                    // By the clock, which is as good as drawn.
                    let fails = self.disturbed && !self.quiet && (self.now / SECOND_US).is_multiple_of(10);
                    let listed = if fails { Event::NotListed } else { Event::Listed(self.disk.numbers()) };
                    self.later(listed);
                }
                Effect::StartUpkeep { bounds, .. } => {
                    if std::mem::replace(&mut self.upkeep, true) {
                        return Err("two rounds of upkeep at once".into());
                    }
                    let delay = self.draw(4 * SECOND_US);
                    self.plan(delay, Coming::Upkeep { life: self.life, bounds });
                }
                Effect::Over => self.over()?,
                Effect::MeasureFreeSpace => {
                    let room = self.free_space();
                    self.later(Event::FreeSpace(room));
                }
                Effect::Record(record) => {
                    if let (Record::NodeLost { node, .. }, Some(last)) = (&*record, &mut self.last) {
                        last.lost.extend(last.hosts.get(*node as usize).cloned());
                    }
                    self.check_target(&record)?;
                    self.check_return(&record)?;
                    self.check_following(&record)?;
                    self.story.take(&record)?;
                    if matches!(*record, Record::Happened { durable: true, .. }) {
                        self.note_decision();
                    }
                }
                Effect::Print { .. }
                | Effect::OutputEnds { .. }
                | Effect::CancelUpkeep
                | Effect::KeepRestarts(_)
                | Effect::KeepRates { .. } => {}
                Effect::Note { number } => self.note_input(number),
                Effect::Stdin(wanted) if self.answers_at_once() => self.answer = self.stdin_effect(wanted),
                Effect::Stdin(wanted) => at_once.extend(self.stdin_effect(wanted)),
                Effect::MakeDurable => self.make_durable(),
                Effect::KeepTiers { number, complete } => self.check_tiers(number, &complete)?,
                Effect::StoreManifest { task, number, node, to } => self.store_manifest(task, number, node, to),
                Effect::RemoveImages { number, ranks } => {
                    self.note_removal(number);
                    self.disk.remove_images(number, &ranks);
                }
                Effect::RemoveIfEmpty { number } => {
                    let gone = self.disk.remove_if_empty(number);
                    self.later(Event::Emptied { number, gone });
                }
            }
            self.go_on_after_effect(&mut queue)?;
        }
        // Before anything else is told to the machine.
        at_once.into_iter().try_for_each(|event| self.feed(event))
    }

    pub(crate) fn later(&mut self, event: Event) {
        if self.answers_at_once() {
            self.answer = Some(event);
            return;
        }
        self.effects_under_way += 1;
        let delay = self.delay();
        self.plan(delay, Coming::Effect { life: self.life, event: Box::new(event) });
    }

    /// What the file system of the checkpoints says, if it says anything.
    fn free_space(&self) -> Option<FreeSpace> {
        let left = if self.disk.full { 0 } else { 1 << 30 };
        self.knows_free_space.then_some(FreeSpace { left, all: 1 << 30 })
    }

    fn publish(&mut self, publication: &Publication) -> Result<Result<String, mend_coordination::failure::Trouble>, String> {
        self.story.publishes(publication)?;
        if let Some(found) = self.was_published(publication) {
            return Ok(found);
        }
        if !self.disk.publish(publication) {
            return Ok(Err(no_space()));
        }
        self.summary.checkpoints += 1;
        let hosts = self.last.as_ref().map(|last| last.hosts.clone()).unwrap_or_default();
        let of_ranks = publication.images.iter().map(|image| hosts[image.node as usize].clone()).collect();
        self.manifests.insert(publication.number, (hosts, of_ranks));
        if !self.numbers_of_life.insert(publication.number) {
            return Err(format!("the number {} was given twice", publication.number));
        }
        let moments = publication.images.iter().filter_map(|image| self.moments.get(&image.id));
        let (from, until) =
            moments.fold((0, u64::MAX), |(from, until), moment| (from.max(moment.0), until.min(moment.1.unwrap_or(u64::MAX))));
        if from > until {
            return Err(format!("checkpoint {} is not of one moment", publication.number));
        }
        Ok(Ok(format!("/c/{}", publication.number)))
    }

    fn remove(&mut self, asker: Asker, numbers: &[u64]) -> Result<(), String> {
        if self.upkeep {
            return Err("checkpoints are removed while they are being merged".into());
        }
        let result = if self.disk.remove(numbers) { Ok(()) } else { Err(no_space()) };
        if let Some((before, _)) = self.time_up.as_mut()
            && before.is_some_and(|before| result.is_ok() && numbers.contains(&before))
        {
            *before = self.disk.numbers().last().copied();
        }
        self.later(Event::Removed { asker, result });
        Ok(())
    }
}
