//! The fabric, as the agent wants to see it.

use mend_agent::{Network, Undrained};
use mend_fabric::{DrainError, Identity, fabric};
use mend_messages::agent::Welcome;
use mend_messages::job::{FabricAddress, JobMap, Rank};
use mend_report::with_causes;
use std::error::Error;
use std::time::Duration;

/// This process's fabric.
pub struct ProcessFabric;

/// The fabric at rest.
struct AtRest(mend_fabric::Frozen<'static>);

fn told(error: &dyn Error, hint: &str) -> String {
    let what = with_causes(error);
    if hint.is_empty() { what } else { format!("{what} (hint: {hint})") }
}

fn undrained(error: &DrainError) -> Undrained {
    Undrained { error: with_causes(error), hint: error.hint() }
}

fn identity_of(welcome: &Welcome) -> Identity {
    Identity {
        job: welcome.job,
        secret: welcome.secret.clone(),
        rank: welcome.rank,
        size: welcome.size,
        node: welcome.node,
        ip: welcome.ip,
        encrypted: welcome.encrypt_data,
    }
}

impl Network for ProcessFabric {
    fn introduce(&self, identity: &Welcome) {
        fabric().introduce(identity_of(identity));
    }

    fn listen(&self, identity: &Welcome) -> Result<FabricAddress, String> {
        fabric().listen(identity_of(identity)).map_err(|error| told(&error, error.hint()))
    }

    fn set_map(&self, map: JobMap) {
        fabric().set_map(map);
    }

    fn on_use(&self, announce: fn()) {
        fabric().on_use(announce);
    }

    fn on_delay(&self, nudge: fn()) {
        fabric().on_delay(nudge);
    }

    fn on_loss(&self, announce: fn()) {
        fabric().on_loss(announce);
    }

    fn losses(&self, patience: Duration) -> (Vec<(Rank, String)>, bool) {
        fabric().losses(patience)
    }

    fn broken(&self) -> Vec<(Rank, String)> {
        fabric().broken()
    }

    fn draining(&self) -> Vec<Rank> {
        fabric().draining()
    }

    fn catch_up(&self) -> bool {
        fabric().catch_up()
    }

    fn counters(&self) -> mend_agent::Counters {
        let (calls, waited, clock) = fabric().counters();
        mend_agent::Counters { calls, waited, clock }
    }

    fn traffic(&self, sent: &mut Vec<(u64, u64)>) {
        fabric().traffic(|count| sent.push((count.bytes, count.messages)));
    }

    fn in_use(&self) -> bool {
        fabric().in_use()
    }

    fn suspend(&self, limit: Duration, time: Duration) -> Result<bool, Undrained> {
        fabric().suspend(limit, time).map_err(|error| undrained(&error))
    }

    fn suspend_peer(&self, rank: Rank, limit: Duration, time: Duration) -> Result<bool, Undrained> {
        fabric().suspend_peer(rank, limit, time).map_err(|error| undrained(&error))
    }

    fn serve(&self, timeout: Duration) {
        fabric().serve(timeout);
    }

    fn keep_up(&self, time: Duration) {
        fabric().keep_up(time);
    }

    fn resume(&self) {
        fabric().resume();
    }

    fn freeze(&self) -> Box<dyn mend_agent::Frozen> {
        Box::new(AtRest(fabric().freeze()))
    }
}

impl mend_agent::Frozen for AtRest {
    fn excluded_memory(&self, each: &mut dyn FnMut(usize, usize)) {
        self.0.excluded_memory(each);
    }

    fn own_descriptors(&self, each: &mut dyn FnMut(i32)) {
        self.0.own_descriptors(each);
    }

    fn provider_open(&self) -> bool {
        self.0.provider_open()
    }

    fn close_provider(&mut self) {
        self.0.close_provider();
    }

    fn reopen(&mut self) {
        self.0.reopen();
    }

    fn rebuild(mut self: Box<Self>) -> Result<(), String> {
        self.0.rebuild();
        Ok(())
    }
}
