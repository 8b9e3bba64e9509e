//! Another machine is told what the job's machine was told: it comes to the same state, and gives the same orders. On this rests that a controller can be
//! succeeded (`mend_job::replay`).

use super::World;
use mend_job::Job;
use mend_job::event::{Effect, Event};
use mend_job::input::Input;
use mend_job::replay::{Standing, Told, What};
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
}

impl Retold {
    pub fn begin(setup: Setup, begun_us: u64) -> Self {
        let orders = vec![Vec::new(); setup.nodes.len()];
        Self { setup, begun_us, told: Vec::new(), orders, checked: std::cell::Cell::new(0) }
    }

    pub fn tell(&mut self, at_us: u64, event: &Event) {
        self.told.push(Told { at_us, what: What::Event { event: event.clone(), number: None, printed: None } });
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
        let input = Input::new(Default::default(), self.setup.stdin);
        let mut standing = Standing::begin(self.setup.clone(), self.begun_us, input, Vec::new());
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
            if !given.iter().eq(again.kept.iter().filter(|order| !is_manifest(order))) {
                return Err("a machine that is told the same gives other orders".into());
            }
        }
        Ok(())
    }
}

/// Manifests are read from files when they are sent; here there are none.
pub fn is_manifest(order: &ToDaemon) -> bool {
    matches!(order, ToDaemon::Tier(order) if matches!(**order, TierOrder::Manifest { .. }))
}

impl World {
    /// Gives the machine an event and has its effects carried out.
    pub fn feed(&mut self, event: Event) -> Result<(), String> {
        let written_down = self.chance(24);
        let Some(job) = &mut self.job else { return Ok(()) };
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
        if let Some(retold) = &mut self.retold {
            retold.tell(self.now, &event);
        }
        let mut effects = job.handle(self.now, event);
        let (at_once, later) = (self.failovers.now(), self.failovers.now());
        if at_once {
            effects = self.fail_over(effects)?;
        }
        self.carry_out(effects)?;
        if later {
            self.fail_over(Vec::new())?;
        }
        match (&self.retold, &self.job) {
            (Some(retold), Some(job)) if written_down && retold.is_due() => retold.check(job),
            _ => Ok(()),
        }
    }
}
