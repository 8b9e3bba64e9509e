//! Successors that nodes start by themselves: the job's controller is killed, stands still, or lives and only its connection to a node was closed.
//!
//! The machine of each node says when one is to be started. As in the product each one tries to get the job's lock for ten seconds: when that is free, or with the votes of more than
//! half of the nodes, and of all that answer, that have not heard the controller. Whoever has it takes the controller's place at all nodes that still have the job, whose tables
//! say who may have it. Until then nobody hears what daemons say, and no effect is carried out; nodes whose lease is over let their ranks end.
//!
//! What is asserted: one successor at a time has the job; who was succeeded may have it nowhere; a controller that was killed, or stands still for long, is succeeded where nodes can see to that; ranks live
//! for the whole lease once a successor was started. All else holds as ever: no copy of a rank runs beside another one.

use super::World;
use super::local::LEASE_US;
use crate::coming::{Coming, Fault, HORIZON_US, MILLISECOND_US, SECOND_US};
use mend_coordination::renewal::may_seize;
use mend_job::event::NodeLoss;
use mend_messages::daemon::{Resumption, Succession as Order};
use mend_node_job::event::{End, Event};
use mend_node_job::hold::LinkState;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The job's.
pub(super) const IDENTITY: [u8; 16] = [7; 16];
/// So much later than the node before each one starts its own.
const PRECEDENCE_US: u64 = 100 * MILLISECOND_US;
/// Between two tries to get the lock.
const TRY_INTERVAL_US: u64 = 250 * MILLISECOND_US;
/// How often that is tried.
const MAX_TRIES: u32 = 40;
/// No successor comes that has not come by then.
const FORSAKEN_TIME_US: u64 = 60 * SECOND_US;
/// What remains of a lease at its end for looks at the time.
const LEASE_MARGIN_US: u64 = 2 * SECOND_US;
/// One of so many successors is killed when it tries.
const DEATH_RARITY: u64 = 12;

/// A time in which the job has no controller that does anything.
#[derive(Clone, Debug)]
struct Absence {
    number: u64,
    since: u64,
    /// Its process is gone; else it stands still.
    dead: bool,
    /// How many orders to each node were lost with it.
    lost: Vec<usize>,
    /// What has come for it meanwhile.
    held: Vec<Coming>,
    /// A node has started a successor, or it may be that none could.
    seen_to: bool,
}

/// Who has the job, and who tries to.
pub struct Succession {
    rng: ChaCha8Rng,
    /// Nodes that see the job's directory.
    sees: Vec<bool>,
    /// Who has the lock, or had it last: a number for each.
    holder: u64,
    /// The lock is free.
    free: bool,
    /// The session of the controller that nodes know.
    session: u64,
    absence: Option<Absence>,
    /// How many there were.
    absences: u64,
}

impl Succession {
    pub fn new(seed: u64, nodes: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6865_6972);
        let sees = (0..nodes).map(|_| !rng.next_u64().is_multiple_of(6)).collect();
        Self { rng, sees, holder: 0, free: true, session: 0, absence: None, absences: 0 }
    }

    fn draw(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }
}

fn session(number: u64) -> [u8; 16] {
    u128::from(number).to_le_bytes()
}

impl World {
    /// In a third of the worlds that are disturbed.
    pub(super) fn draw_successions(&mut self) {
        if !self.disturbed || !self.seed.is_multiple_of(3) {
            return;
        }
        for _ in 0..1 + self.succession.draw(3) {
            let at = SECOND_US + self.succession.draw(HORIZON_US);
            let node = self.succession.draw(self.nodes.len() as u64) as usize;
            let fault = match self.succession.draw(5) {
                0..2 => Fault::ControllerKilled,
                2..4 => Fault::ControllerStandsStill(self.succession.draw(2 * LEASE_US)),
                _ => Fault::ConnectionBlinks(node),
            };
            self.plan(at, Coming::Fault(fault));
        }
    }

    /// A life begins: its controller has the lock. Its session.
    pub(super) fn take_lock(&mut self) -> [u8; 16] {
        self.succession.absence = None;
        self.hold_lock();
        self.succession.session = self.succession.holder;
        session(self.succession.session)
    }

    fn hold_lock(&mut self) {
        (self.succession.holder, self.succession.free) = (self.succession.holder + 1, false);
    }

    pub(super) fn has_controller(&self) -> bool {
        self.succession.absence.is_none()
    }

    /// When the machine is to be told the time.
    pub(super) fn due(&self) -> Option<u64> {
        self.job.as_ref().filter(|_| self.has_controller())?.next_deadline()
    }

    /// What comes, unless it is for a controller that does nothing: that is kept.
    pub(super) fn hold_back(&mut self, coming: Coming) -> Option<Coming> {
        let quiet = self.quiet;
        match &mut self.succession.absence {
            Some(absence) if coming.is_for_controller() => {
                if !(quiet && coming.is_fate()) {
                    absence.held.push(coming);
                }
                None
            }
            _ => Some(coming),
        }
    }

    /// Of what is kept this does not come any more.
    pub(super) fn forget_held(&mut self, lost: impl Fn(&Coming) -> bool) {
        if let Some(absence) = &mut self.succession.absence {
            absence.held.retain(|coming| !lost(coming));
        }
    }

    /// Nodes that have the job's connection.
    fn connected(&self) -> Vec<usize> {
        let is = |at: &usize| self.nodes[*at].up && self.nodes[*at].connection == self.life && !self.nodes[*at].cut;
        self.hosts.iter().copied().filter(is).collect()
    }

    fn could_start(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        node.up && !node.cut && node.connection == self.life && !node.leaving && self.succession.sees[at] && self.retold.is_some()
    }

    fn begin_absence(&mut self, dead: bool, lost: Vec<usize>) -> u64 {
        self.succession.absences += 1;
        let number = self.succession.absences;
        let seen_to = !self.hosts.iter().any(|&at| self.could_start(at));
        self.succession.absence = Some(Absence { number, since: self.now, dead, lost, held: Vec::new(), seen_to });
        self.plan(FORSAKEN_TIME_US, Coming::Forsaken { absence: number });
        number
    }

    /// Its process ends: the lock is free, and its connections close.
    pub(super) fn controller_is_killed(&mut self) {
        if self.job.is_none() || self.retold.is_none() || !self.has_controller() {
            return;
        }
        let lost = self.lose_all_orders();
        self.begin_absence(true, lost);
        self.succession.free = true;
        for at in self.connected() {
            let delay = self.succession.draw(200 * MILLISECOND_US);
            self.plan(delay, Coming::Closed { life: self.life, at });
        }
    }

    pub(super) fn controller_stands_still(&mut self, time: u64) {
        if self.job.is_none() || self.retold.is_none() || !self.has_controller() {
            return;
        }
        let lost = vec![0; self.hosts.len()];
        let absence = self.begin_absence(false, lost);
        for at in self.connected() {
            self.is_pinged_last(at);
            self.wait_for_lease(at);
        }
        self.plan(time, Coming::Wakes { absence });
    }

    /// It stood still, and goes on, unless another one has its place: it ends then.
    pub(super) fn wakes(&mut self, number: u64) -> Result<(), String> {
        let Some(absence) = self.succession.absence.take_if(|absence| absence.number == number && !absence.dead) else { return Ok(()) };
        if !absence.seen_to && self.now > absence.since + LEASE_US {
            return Err("the controller stood still for longer than the lease, and no node has started a successor".into());
        }
        for at in self.hosts.clone() {
            if self.has_job(at) {
                self.is_heard_again(at, None);
            } else {
                self.is_gone(at);
            }
        }
        self.shift_limits(&absence);
        self.goes_on(absence);
        Ok(())
    }

    /// A node still has the job, and can be reached.
    fn has_job(&self, at: usize) -> bool {
        self.connected().contains(&at) && !self.nodes[at].leaving
    }

    /// A controller speaks to a node again.
    fn is_heard_again(&mut self, at: usize, state: Option<LinkState>) {
        (self.nodes[at].lease_until, self.nodes[at].closed) = (None, None);
        if let Some(state) = state {
            self.tell_node(at, Event::Link(state));
        }
        self.tell_node(at, Event::Pinged { at_us: self.now });
    }

    /// A controller finds that a node has the job no more.
    fn is_gone(&mut self, at: usize) {
        let delay = self.succession.draw(SECOND_US);
        self.cut(at, NodeLoss::Gone("nobody there has the job".into()), delay);
    }

    /// A node is lost, or the job leaves it in order, while there is no controller: it may have been the only one that could start a successor.
    pub(super) fn excuse_nodes(&mut self) {
        if let Some(absence) = &mut self.succession.absence {
            absence.seen_to = true;
        }
    }

    /// What has come meanwhile comes now.
    fn goes_on(&mut self, absence: Absence) {
        for coming in absence.held {
            self.plan(0, coming);
        }
    }

    /// A signal is not obeyed while nobody hears it.
    fn shift_limits(&mut self, absence: &Absence) {
        let time = self.now - absence.since;
        self.signalled = self.signalled.map(|since| since + time);
    }

    /// The connection to the controller is closed, and the controller lives.
    pub(super) fn connection_blinks(&mut self, at: usize) {
        if self.job.is_some() && self.connected().contains(&at) && self.has_controller() {
            let (life, time) = (self.life, self.succession.draw(3 * SECOND_US / 2));
            self.is_closed(life, at);
            self.plan(time, Coming::Fault(Fault::ConnectionReturns(at)));
        }
    }

    pub(super) fn connection_returns(&mut self, at: usize) {
        if self.job.is_some() && self.has_controller() && self.has_job(at) {
            self.is_heard_again(at, Some(LinkState::Connected));
        }
    }

    /// A node sees that the connection to the controller is closed.
    pub(super) fn is_closed(&mut self, life: u64, at: usize) {
        if self.nodes[at].connection == life && !self.nodes[at].leaving {
            self.nodes[at].closed = None;
            self.is_pinged_last(at);
            self.tell_node(at, Event::Link(LinkState::Closed));
            self.wait_for_lease(at);
        }
    }

    /// The machine of a node wants a successor to be started: it is told whether that could be done.
    pub(super) fn start_successor(&mut self, at: usize, silent: bool) -> Event {
        let started = self.could_start(at);
        if started {
            let index = self.index(at).unwrap_or(0).min(5);
            if !silent {
                self.nodes[at].closed = Some(self.now);
            }
            self.excuse_nodes();
            let delay = PRECEDENCE_US * u64::from(index) + self.succession.draw(PRECEDENCE_US);
            let (life, holder) = (self.life, self.succession.holder);
            self.plan(delay, Coming::Elects { life, at, holder, silent, tries: MAX_TRIES });
        }
        Event::Successor { started, silent }
    }

    /// A successor's process lives, on this node, and the job goes on in the same life.
    fn tries(&self, (life, at): (u64, usize)) -> bool {
        self.nodes[at].up && !self.nodes[at].cut && self.life == life && self.job.is_some()
    }

    /// A successor tries to get the job from who had the lock when it began.
    pub(super) fn elects(&mut self, (life, at): (u64, usize), holder: u64, silent: bool, tries: u32) {
        if !self.tries((life, at)) || self.succession.holder != holder || self.succession.draw(DEATH_RARITY * u64::from(MAX_TRIES)) == 0 {
            return;
        }
        if self.succession.free {
            return self.has_won((life, at));
        }
        if silent {
            let votes = self.votes();
            if may_seize(&votes, self.hosts.len()) {
                let delay = self.succession.draw(TRY_INTERVAL_US);
                return self.plan(delay, Coming::Seizes { life, at, holder });
            }
            if votes.contains(&false) {
                return;
            }
        }
        if tries > 0 {
            self.plan(TRY_INTERVAL_US, Coming::Elects { life, at, holder, silent, tries: tries - 1 });
        }
    }

    /// Those of the nodes that answer.
    fn votes(&mut self) -> Vec<bool> {
        let silent = self.succession.absence.as_ref().is_some_and(|absence| self.now - absence.since >= LEASE_US / 3);
        let of = self.resumption(self.succession.session);
        let asked: Vec<usize> = self.connected().into_iter().filter(|&at| !self.nodes[at].leaving).collect();
        asked.into_iter().map(|at| self.nodes[at].table.vote(&of, silent)).collect()
    }

    fn resumption(&self, number: u64) -> Resumption {
        Resumption { identity: IDENTITY, epoch: self.life, session: session(number), delivered: 0 }
    }

    /// It has the votes, and takes the lock from whoever still has it, who ends when he sees that.
    pub(super) fn seizes(&mut self, (life, at): (u64, usize), holder: u64) {
        if !self.tries((life, at)) || self.succession.holder != holder {
            return;
        }
        match &mut self.succession.absence {
            Some(absence) => absence.dead = true,
            None => self.controller_is_killed(),
        }
        self.has_won((life, at));
    }

    fn has_won(&mut self, (life, at): (u64, usize)) {
        self.hold_lock();
        let delay = self.succession.draw(SECOND_US);
        self.plan(delay, Coming::Succeeds { life, at, holder: self.succession.holder });
    }

    /// It has read the log, and goes on with the job at all nodes that still have it.
    pub(super) fn succeeds(&mut self, (life, at): (u64, usize), holder: u64) -> Result<(), String> {
        if self.succession.holder != holder || self.life != life {
            return Ok(());
        }
        if !self.tries((life, at)) || self.succession.draw(DEATH_RARITY) == 0 {
            // Its lock is free again.
            self.succession.free = true;
            return Ok(());
        }
        let Some(absence) = self.succession.absence.take() else { return Err("a successor goes on beside the controller".into()) };
        self.summary.node_started += 1;
        let (before, now) = (self.resumption(self.succession.session), self.resumption(holder));
        let order = Order { of: before.clone(), session: now.session };
        for at in self.hosts.clone() {
            if !self.has_job(at) || !self.nodes[at].table.succeed(&order) {
                self.is_gone(at);
                continue;
            }
            let table = &self.nodes[at].table;
            if table.may_resume(&before) || table.confirms(&before) || !table.may_resume(&now) {
                return Err(format!("node {at} does not know who has the job"));
            }
            self.is_heard_again(at, Some(LinkState::Succeeded));
        }
        self.succession.session = holder;
        let left = self.go_on_as_successor(Vec::new(), &absence.lost)?;
        self.shift_limits(&absence);
        self.goes_on(absence);
        self.carry_out(left)
    }

    /// No successor has come: the nodes' leases are over, and the job is nobody's.
    pub(super) fn is_forsaken(&mut self, number: u64) -> Result<(), String> {
        let Some(absence) = self.succession.absence.take_if(|absence| absence.number == number) else { return Ok(()) };
        if !absence.seen_to {
            return Err("the job has no controller, and no node starts a successor".into());
        }
        self.controller_died();
        Ok(())
    }

    /// The job leaves a node.
    pub(super) fn check_lease(&mut self, at: usize, end: End) {
        if end.is_orderly() {
            self.excuse_nodes();
        }
        let closed = self.nodes[at].closed.filter(|_| end == End::LeaseOver && !self.has_controller());
        if closed.is_some_and(|closed| self.now < closed + LEASE_US - LEASE_MARGIN_US) {
            self.found_on_node = Some(format!("ranks end on node {at} before their lease does, and a successor was started"));
        }
    }
}
