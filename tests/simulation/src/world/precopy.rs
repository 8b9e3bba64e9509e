//! Ranks that are copied while they run, as a contract.
//!
//! An agent that copies says how far it is until it is saved into what it has begun, resumed, told to end that, or its target is gone,
//! which it says once. A target that was left by its source says that it cannot be built.

use super::World;
use crate::agent::failed;
use crate::coming::{Coming, Fault, MILLISECOND_US, SECOND_US};
use crate::node::{Phase, Receiver};
use mend_messages::agent::{Compression, FromAgent, Reply, Request, Round, Saved};
use mend_messages::job::Rank;

impl World {
    /// A daemon has met the target of a copy, or not.
    pub(crate) fn precopies(&mut self, (at, rank, attempt): (usize, Rank, u64), number: u64, (to, token, until): (usize, [u8; 16], u64)) {
        let life = self.nodes[at].connection;
        let target = &mut self.nodes[to];
        let there = target.up && target.connection == life && !target.leaving;
        if there && !target.expected.contains_key(&token) && self.now < until {
            self.plan(100 * MILLISECOND_US, Coming::Precopies { at, rank, attempt, seq: number, to, token, until });
            return;
        }
        let expected = there && target.expected.remove(&token) == Some(rank);
        let building = target.ranks.get(&rank).filter(|process| expected && process.phase == Phase::Building);
        let receiver = building.map(|process| Receiver { at: to, attempt: process.attempt, token });
        let request = match (receiver, self.process(at, rank, attempt)) {
            (Some(receiver), Some(process)) => {
                process.opened = Some(receiver);
                Ok(Request::Precopy { answered: true, compression: Compression::Off })
            }
            (receiver, _) => {
                self.failed_for_real = true;
                self.forsaken(rank, receiver);
                Err(failed("no transfer"))
            }
        };
        self.prepared(life, (at, rank), number, request);
    }

    /// The agent begins.
    pub(crate) fn begins_to_copy(&mut self, (at, rank, attempt): (usize, Rank, u64), number: u64) {
        let fails = self.fails(60);
        let Some(process) = self.process(at, rank, attempt) else { return };
        let (runs, opened) = (process.phase == Phase::Runs, process.opened.take());
        match opened.filter(|receiver| !fails && runs && self.builds(rank, *receiver)) {
            None => {
                self.failed_for_real = true;
                self.reply(at, rank, number, failed("it cannot be copied while it runs"));
                self.forsaken(rank, opened);
            }
            Some(receiver) => {
                if let Some(process) = self.process(at, rank, attempt) {
                    process.precopies = Some(receiver);
                }
                if let Some(building) = self.process(receiver.at, rank, receiver.attempt) {
                    building.receives = true;
                }
                self.reply(at, rank, number, Reply::Precopying);
                let delay = self.delay();
                self.plan(delay, Coming::Round { at, rank, attempt, receiver, number: 0 });
            }
        }
    }

    /// The agent has sent something more.
    pub(crate) fn round(&mut self, (at, rank, attempt): (usize, Rank, u64), receiver: Receiver, number: u32) {
        let (breaks, more, left) = (self.fails(60), self.delay() + self.draw(SECOND_US), self.draw(4 << 20));
        let alive = self.builds(rank, receiver);
        let done = !self.chance(3);
        let Some(process) = self.process(at, rank, attempt).filter(|process| process.precopies == Some(receiver)) else { return };
        if process.stuck {
            // It goes on when it can.
            return;
        }
        if breaks || !alive {
            process.precopies = None;
            self.failed_for_real = true;
            let error = "the connection to the target broke".into();
            self.agent_says(at, attempt, FromAgent::PrecopyFailed { error, hint: String::new() });
            return self.forsaken(rank, Some(receiver));
        }
        let round =
            Round { number, done, bytes: 1 << 20, us: 1000, total: u64::from(number + 1) << 20, left: Some(left), ..Round::default() };
        self.agent_says(at, attempt, FromAgent::Round(round));
        self.plan(more, Coming::Round { at, rank, attempt, receiver, number: number + u32::from(done) });
    }

    pub(crate) fn builds(&mut self, rank: Rank, receiver: Receiver) -> bool {
        self.process(receiver.at, rank, receiver.attempt).is_some_and(|process| process.phase == Phase::Building)
    }

    /// Nothing more comes to a process that is being built: its daemon says so after a while.
    pub(crate) fn forsaken(&mut self, rank: Rank, receiver: Option<Receiver>) {
        if let Some(Receiver { at, attempt, .. }) = receiver {
            if let Some(building) = self.process(at, rank, attempt) {
                building.receives = false;
            }
            let delay = self.delay();
            self.plan(delay, Coming::NoTransfer { at, rank, attempt });
        }
    }

    /// What changed last follows into the stream that was begun.
    pub(crate) fn save_rest(&mut self, (at, rank, attempt): (usize, Rank, u64), seq: u64, fails: bool) {
        let Some(process) = self.process(at, rank, attempt) else { return };
        let (suspended, receiver) = (process.phase == Phase::Suspended, process.precopies.take());
        let Some(receiver) = receiver.filter(|_| suspended) else {
            self.failed_for_real = true;
            return self.reply(at, rank, seq, failed("nothing was begun"));
        };
        if fails || !self.builds(rank, receiver) {
            self.failed_for_real = true;
            self.reply(at, rank, seq, failed("the connection to the target broke"));
            return self.forsaken(rank, Some(receiver));
        }
        self.move_input(at, rank, receiver.at, receiver.token);
        let delay = self.delay();
        self.plan(delay, Coming::Built { at: receiver.at, rank, attempt: receiver.attempt });
        if self.fails(60) {
            // The target has all of it, and the source does not hear that.
            self.failed_for_real = true;
            return self.reply(at, rank, seq, failed("the connection to the target broke behind the last byte"));
        }
        if let Some(process) = self.process(at, rank, attempt) {
            process.phase = Phase::Parked;
        }
        if self.fails(60) {
            let delay = self.draw(delay + 100 * MILLISECOND_US);
            self.plan(delay, Coming::Fault(Fault::NodeDies(receiver.at)));
        }
        self.reply(at, rank, seq, Reply::Saved(Saved { bytes: 10, ..Saved::default() }));
    }
}
