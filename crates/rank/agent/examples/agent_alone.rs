//! The agent without a fabric as a preloadable object, for this crate's tests.

use mend_agent::{Counters, Frozen, Network, RankAllocator, Undrained};
use mend_messages::agent::Welcome;
use mend_messages::job::{FabricAddress, JobMap, Rank};
use std::sync::OnceLock;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: RankAllocator = RankAllocator;

/// Set in a program's environment: it begins to use the fabric at the very moment at which it is saved.
const USED_WHILE_SAVED: &str = "MEND_TEST_USED_WHILE_SAVED";

/// Set in a program's environment: its channels do not drain.
const NEVER_DRAINS: &str = "MEND_TEST_NEVER_DRAINS";

/// A fabric that nobody uses.
struct Nobody;

static ANNOUNCE: OnceLock<fn()> = OnceLock::new();

impl Network for Nobody {
    fn introduce(&self, _: &Welcome) {}
    fn listen(&self, identity: &Welcome) -> Result<FabricAddress, String> {
        Ok(FabricAddress { tcp: (identity.ip, 1).into(), unix: String::new() })
    }
    fn set_map(&self, _: JobMap) {}
    fn on_use(&self, announce: fn()) {
        let _ = ANNOUNCE.set(announce);
    }
    fn on_delay(&self, _: fn()) {}
    fn on_loss(&self, _: fn()) {}
    fn broken(&self) -> Vec<(Rank, String)> {
        Vec::new()
    }
    fn draining(&self) -> Vec<Rank> {
        Vec::new()
    }
    fn losses(&self, _: Duration) -> (Vec<(Rank, String)>, bool) {
        (Vec::new(), false)
    }
    fn catch_up(&self) -> bool {
        false
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn traffic(&self, _: &mut Vec<(u64, u64)>) {}
    fn in_use(&self) -> bool {
        false
    }
    fn suspend(&self, _: Duration, time: Duration) -> Result<bool, Undrained> {
        let drains = std::env::var_os(NEVER_DRAINS).is_none();
        if !drains {
            std::thread::sleep(time);
        }
        Ok(drains)
    }
    fn suspend_peer(&self, _: Rank, _: Duration, _: Duration) -> Result<bool, Undrained> {
        Ok(true)
    }
    fn serve(&self, timeout: Duration) {
        std::thread::sleep(timeout);
    }
    fn keep_up(&self, _: Duration) {}
    fn resume(&self) {}
    fn freeze(&self) -> Box<dyn Frozen> {
        if let Some(announce) = ANNOUNCE.get().filter(|_| std::env::var_os(USED_WHILE_SAVED).is_some()) {
            announce();
        }
        Box::new(Still)
    }
}

struct Still;

impl Frozen for Still {
    fn reopen(&mut self) {}
    fn excluded_memory(&self, _: &mut dyn FnMut(usize, usize)) {}
    fn own_descriptors(&self, _: &mut dyn FnMut(i32)) {}
    fn provider_open(&self) -> bool {
        false
    }
    fn close_provider(&mut self) {}
    fn rebuild(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

extern "C" fn constructor() {
    mend_agent::start(&Nobody, true);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
