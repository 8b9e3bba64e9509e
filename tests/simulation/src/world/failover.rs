//! The controller is lost, at any event, and another one takes its place in the same life (`mend_job::replay`).
//!
//! The successor's machine is told what the lost one's was told. A daemon has had the orders but for some of the last ones, which are lost with the controller's
//! connection, and gets those. What daemons say, and the lost controller had not been told, comes to the successor. Whoever waited for an answer of the lost one
//! waits no more. It is lost between two events, or when it has written one down and done nothing of what follows. Its successor is there within a second; how one comes to be is
//! in `succession.rs`.

use super::World;
use crate::coming::{Coming, SECOND_US};
use mend_job::event::{Effect, VerbId};
use mend_messages::job::NodeIndex;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::BTreeSet;

/// Once in so many events.
const RARITY: u64 = 150;
/// No longer does it take until the successor is there.
const ABSENCE_US: u64 = SECOND_US;

/// When controllers are lost in a world: in half of the worlds, never.
#[derive(Clone)]
pub struct Failovers {
    rng: ChaCha8Rng,
    ever: bool,
    /// They may also lose their power.
    pub by_power: bool,
    /// Verbs whose answers are for nobody.
    lost: BTreeSet<VerbId>,
}

impl Failovers {
    /// What is drawn here changes nothing of what is drawn elsewhere.
    pub fn new(seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6661_696c_6f76_6572);
        Self { rng, ever: seed.is_multiple_of(2), by_power: seed.is_multiple_of(4), lost: BTreeSet::new() }
    }

    /// Nobody waits for the answer to this verb any more.
    pub fn has_lost(&self, verb: VerbId) -> bool {
        self.lost.contains(&verb)
    }

    pub fn draw(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }

    /// Nobody waits for any answer of a controller that is lost.
    pub fn lose_verbs(&mut self, verbs: impl IntoIterator<Item = VerbId>) {
        self.lost.extend(verbs);
    }

    /// Whether the controller is lost now.
    pub fn now(&mut self) -> bool {
        self.ever && self.draw(RARITY) == 0
    }
}

impl World {
    /// The controller is lost before it has done anything of `undone`, which follows from the last event, and a successor is there. What of `undone` it
    /// has to do, besides orders.
    pub(super) fn fail_over(&mut self, undone: Vec<Effect>) -> Result<Vec<Effect>, String> {
        if self.retold.is_none() {
            return Ok(undone);
        }
        let lost = self.lose_all_orders();
        self.is_absent();
        self.go_on_as_successor(undone, &lost)
    }

    /// A successor stands where the lost controller stood, and gives each node the orders that it has not had. `lost`: how many of those that were given these are.
    pub(super) fn go_on_as_successor(&mut self, undone: Vec<Effect>, lost: &[usize]) -> Result<Vec<Effect>, String> {
        let (Some(retold), Some(job)) = (self.retold.take(), &self.job) else { return Ok(undone) };
        let (mut standing, left) = retold.stand()?;
        if standing.job != *job {
            return Err("a successor comes to another state".into());
        }
        let counts = |effect: &Effect| {
            matches!(effect, Effect::Send { .. }) || matches!(effect, Effect::StoreManifest { .. }) && retold.log.is_some()
        };
        let others: Vec<Effect> = undone.into_iter().filter(|effect| !counts(effect)).collect();
        let is_done_at_once = |effect: &&Effect| !matches!(effect, Effect::Print { .. } | Effect::StoreManifest { .. });
        if !others.is_empty() && !others.iter().filter(is_done_at_once).eq(left.iter()) {
            return Err(format!("a successor would do {left:?}, where the lost controller had to do {others:?}"));
        }
        self.summary.failovers += 1;
        if self.options.trace {
            eprintln!("{:>12} the controller is lost, and succeeded", self.now);
        }
        self.tell_processors_again();
        let waiting: Vec<VerbId> = self.verbs.extract_if(.., |_, asked| asked.answers == 0).map(|(verb, _)| verb).collect();
        self.failovers.lose_verbs(waiting);
        self.job = Some(standing.job);
        self.retold = Some(retold);
        self.begin_log_anew(&standing.heard);
        for (node, orders) in (0..).zip(std::mem::take(&mut standing.orders)) {
            let retold = self.retold.as_ref().ok_or("it is there")?;
            let all = orders.kept.into_iter().filter(|order| retold.counts(order)).collect::<Vec<_>>();
            let had = retold.given(node) - lost.get(node as usize).copied().unwrap_or(0);
            for (count, message) in all.into_iter().enumerate().skip(had) {
                let Some(retold) = &mut self.retold else { continue };
                if count >= retold.given(node) {
                    retold.order(node, &message);
                }
                let at = self.hosts[node as usize];
                self.send(at, false, Coming::ToNode { life: self.life, at, message });
            }
        }
        Ok(others)
    }

    /// Nobody is there for a while. Nor does anything else happen meanwhile, so that leases are not over before nodes can see it.
    pub(super) fn is_absent(&mut self) {
        let time = self.failovers.draw(ABSENCE_US);
        self.now += time;
        for coming in self.queue.values_mut() {
            if let Coming::Looks { until, .. } = coming {
                *until += time;
            }
        }
        for node in &mut self.nodes {
            node.lease_until = node.lease_until.map(|until| until + time);
            node.closed = node.closed.map(|closed| closed + time);
        }
    }

    /// The same for each node.
    pub(super) fn lose_all_orders(&mut self) -> Vec<usize> {
        (0..self.hosts.len() as NodeIndex).map(|node| self.lose_orders(node)).collect()
    }

    /// Some of the last orders to a node that have not arrived never do; how many.
    pub(super) fn lose_orders(&mut self, node: NodeIndex) -> usize {
        let (life, to) = (self.life, self.hosts[node as usize]);
        let Some(retold) = &self.retold else { return 0 };
        let is_order = |coming: &Coming| matches!(coming, Coming::ToNode { life: of, at, message } if *of == life && *at == to && retold.counts(message));
        let under_way: Vec<(u64, u64)> = self.queue.iter().filter(|(_, coming)| is_order(coming)).map(|(key, _)| *key).collect();
        let lost = self.failovers.draw(under_way.len() as u64 + 1) as usize;
        for key in &under_way[under_way.len() - lost..] {
            self.queue.remove(key);
        }
        lost
    }
}
