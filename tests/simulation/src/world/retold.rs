//! Another machine is told what the job's machine was told: it comes to the same state, and gives the same orders. On this rests that a controller can be
//! succeeded (`mend_job::replay`).

use super::World;
use super::log::Log;
use mend_job::Job;
use mend_job::durable::{SOON_US, due_us};
use mend_job::event::{Effect, Event};
use mend_job::input::Input;
use mend_job::replay::{Standing, Told, What};
use mend_job::safeguard::Safeguard;
use mend_job::setup::Setup;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::NodeIndex;
use mend_messages::tier::TierOrder;

/// All of one life.
#[derive(Clone)]
pub struct Retold {
    setup: Setup,
    begun_us: u64,
    told: Vec<Told>,
    orders: Vec<Vec<ToDaemon>>,
    /// How many events there were when it was checked last.
    checked: std::cell::Cell<usize>,
    /// Taken out of the machine.
    safeguard: Option<Safeguard>,
    /// What standard input was before.
    input: Input,
    /// What of it is durable, in worlds whose controllers lose their power.
    pub log: Option<Log>,
}

impl Retold {
    pub fn begin(setup: Setup, begun_us: u64, safeguard: Option<Safeguard>, input: Input, log: Option<Log>) -> Self {
        let orders = vec![Vec::new(); setup.nodes.len()];
        Self { setup, begun_us, told: Vec::new(), orders, checked: std::cell::Cell::new(0), safeguard, input, log }
    }

    pub fn tell(&mut self, at_us: u64, what: What) {
        self.told.push(Told { at_us, what });
    }

    /// How many things were told.
    pub fn len(&self) -> usize {
        self.told.len()
    }

    /// Only so much is left of it. Returns the rest.
    pub fn cut(&mut self, left: usize) -> Vec<Told> {
        self.checked.set(0);
        self.told.split_off(left)
    }

    /// A successor knows of these orders alone.
    pub fn know(&mut self, orders: impl IntoIterator<Item = Vec<ToDaemon>>) {
        self.orders = orders.into_iter().collect();
    }

    /// Whether an order is one of those that are compared and counted: manifests are answered late where answers come late.
    pub fn counts(&self, order: &ToDaemon) -> bool {
        self.log.is_some() || !is_manifest(order)
    }

    pub fn order(&mut self, node: NodeIndex, message: &ToDaemon) {
        if let Some(orders) = self.orders.get_mut(node as usize) {
            orders.push(message.clone());
        }
    }

    /// Whether it is worth to look: each time that there is half as much again.
    pub fn is_due(&self) -> bool {
        self.told.len() > self.checked.get() * 3 / 2
    }

    /// How many orders a node was given.
    pub fn given(&self, node: NodeIndex) -> usize {
        self.orders.get(node as usize).map_or(0, Vec::len)
    }

    /// Where a successor stands, and what it has to do of what follows from the last event, besides orders.
    pub fn stand(&self) -> Result<(Standing, Vec<Effect>), String> {
        let mut standing = Standing::begin(self.setup.clone(), self.begun_us, self.input.clone(), Vec::new());
        if let Some(safeguard) = self.safeguard {
            standing.job.sabotage(safeguard);
        }
        let manifest = |_| Vec::new();
        for told in &self.told {
            let bytes = postcard::to_allocvec(told).map_err(|error| error.to_string())?;
            standing.take(postcard::from_bytes(&bytes).map_err(|error| error.to_string())?, &manifest);
        }
        let left = standing.left(&manifest);
        Ok((standing, left))
    }

    /// Whether a successor would stand where `job` stands.
    pub fn check(&self, job: &Job) -> Result<(), String> {
        self.checked.set(self.told.len());
        let (standing, _) = self.stand()?;
        if standing.job != *job {
            return Err("a machine that is told the same comes to another state".into());
        }
        for (given, again) in self.orders.iter().zip(&standing.orders) {
            if !given.iter().eq(again.kept.iter().filter(|order| self.counts(order))) {
                return Err("a machine that is told the same gives other orders".into());
            }
        }
        Ok(())
    }
}

/// Manifests are read from files when they are sent; here there are none.
fn is_manifest(order: &ToDaemon) -> bool {
    matches!(order, ToDaemon::Tier(order) if matches!(**order, TierOrder::Manifest { .. }))
}

impl World {
    /// Gives the machine an event and has its effects carried out.
    pub fn feed(&mut self, event: Event) -> Result<(), String> {
        let number = self.next_number(&event);
        self.feed_as(What::Event { event: event.clone(), number, printed: None }, event)
    }

    /// Gives it a message that it has had.
    pub fn feed_again(&mut self, event: Event) -> Result<(), String> {
        self.feed_as(What::Event { event: event.clone(), number: None, printed: None }, event)
    }

    /// A piece of standard input was read.
    pub fn feed_input(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        let what = What::Input(bytes.clone());
        match self.pass_input(bytes) {
            Some(bytes) => self.feed_as(what, Event::Stdin(bytes)),
            None => {
                self.put_into_log(what, Some(SOON_US));
                Ok(())
            }
        }
    }

    fn feed_as(&mut self, what: What, event: Event) -> Result<(), String> {
        let written_down = self.chance(24);
        let mut effects = self.handle(what, event, written_down)?;
        let (at_once, later) = (self.failovers.now(), self.failovers.now());
        if at_once {
            effects = self.lose_controller(effects)?;
        }
        self.carry_out(effects)?;
        if later || self.is_lost_behind() {
            let left = self.lose_controller(Vec::new())?;
            self.carry_out(left)?;
        }
        match (&self.retold, &self.job) {
            (Some(retold), Some(job)) if written_down && retold.is_due() => retold.check(job),
            _ => Ok(()),
        }
    }

    /// Writes down what the machine is told, and tells it. What follows.
    pub fn handle(&mut self, what: What, event: Event, written_down: bool) -> Result<Vec<Effect>, String> {
        let Some(job) = &mut self.job else { return Ok(Vec::new()) };
        if written_down {
            let bytes = postcard::to_allocvec(job).map_err(|error| error.to_string())?;
            let read: Job = postcard::from_bytes(&bytes).map_err(|error| error.to_string())?;
            if read != *job {
                return Err("the machine is another after it was written down and read back".into());
            }
            *job = read;
        }
        self.summary.events += 1;
        if self.options.trace {
            eprintln!("{:>12} {event:?}", self.now);
        }
        let effects = job.handle(self.now, event.clone());
        self.put_into_log(what, due_us(&event, &effects));
        Ok(effects)
    }
}
