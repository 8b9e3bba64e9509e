//! Starts the agent in a process that is a rank, with its threads.

use crate::agent_loop::environment::AgentEnvironment;
use crate::agent_loop::link::Link;
use crate::agent_loop::run;
use crate::agent_loop::table_thread;
use crate::agent_loop::wakeup::{WakeupSocket, announce_delay, announce_loss, announce_use, reconnect_if_asked};
use crate::descriptors::attached::Attached;
use crate::descriptors::table;
use crate::network::Network;
use crate::process::{origin, rseq};
use mend_kernel::threads::{BLOCKED_BY_OWN_THREADS, block_signals, wait, wake};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const STACK_BYTES: usize = 512 << 10;
const DRAIN_LIMIT_MS: u64 = 20_000;

struct Prepared {
    network: &'static dyn Network,
    environment: AgentEnvironment,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();
static STARTED: OnceLock<()> = OnceLock::new();

/// Called by the object's constructor. Does nothing outside a rank. In the rank's first process the agent starts now; in a descendant only when that uses the
/// fabric. Where the object was not preloaded, a thread of the program loads it just now.
pub fn start(network: &'static dyn Network, preloaded: bool) {
    let Some(environment) = environment() else { return };
    let main_process = environment.main_process;
    rseq::find();
    origin::record();
    let _ = PREPARED.set(Prepared { network, environment });
    network.on_use(|| {
        spawn_once(true);
        announce_use();
    });
    network.on_delay(announce_delay);
    network.on_loss(announce_loss);
    if main_process {
        spawn_once(preloaded);
    }
}

fn environment() -> Option<AgentEnvironment> {
    let number = |name: &str| std::env::var(name).ok()?.trim().parse::<u32>().ok();
    Some(AgentEnvironment {
        rank: number("MEND_RANK")?,
        socket: std::env::var_os("MEND_SOCKET")?.into(),
        main_process: number("MEND_RANK_PID") == Some(std::process::id()),
        pmi: number("PMI_FD").and_then(|fd| i32::try_from(fd).ok()),
        tracking: std::env::var("MEND_TRACKING").unwrap_or_default(),
        drain_limit: Duration::from_millis(number("MEND_DRAIN_TIMEOUT_MS").map_or(DRAIN_LIMIT_MS, u64::from)),
    })
}

/// With `waits` the agent has what it needs of the process when this returns. While an object is loaded by dlopen(3) that cannot be: the dynamic linker holds its
/// lock, and a thread that begins takes it.
fn spawn_once(waits: bool) {
    STARTED.get_or_init(|| {
        let ready = Arc::new((AtomicU32::new(0), AtomicBool::new(false)));
        let told = ready.clone();
        // Without the thread the program runs unprotected; the daemon sees that no agent speaks.
        let agent = spawn("mend-agent", move || {
            // The program's threads may keep every processor busy; without short slices it only answers later.
            let _ = mend_kernel::slice::shorten();
            let apart = table::leave(&[]);
            let wakeup = WakeupSocket::open();
            let attached = PREPARED.get().map(|prepared| Attached::find(prepared.environment.pmi)).unwrap_or_default();
            // A program that changes its root directory first of all leaves the daemon's socket behind.
            let link = PREPARED.get().map(|prepared| Link::connect(&prepared.environment.socket));
            told.1.store(apart, Ordering::Relaxed);
            told.0.store(1, Ordering::Release);
            wake(&told.0);
            drop(told);
            if let (Some(prepared), Some(Ok(link)), Ok(wakeup)) = (PREPARED.get(), link, wakeup) {
                // Whatever ends the loop ends only the loop.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    run(prepared.network, prepared.environment.clone(), link, wakeup, attached)
                }));
            }
        });
        // What it does before may meet a number of the program's.
        while agent && waits && ready.0.load(Ordering::Acquire) == 0 {
            wait(&ready.0, 0, None);
        }
        if !waits || ready.1.load(Ordering::Relaxed) {
            spawn("mend-table", || {
                let _ = mend_kernel::slice::shorten();
                table_thread::serve(reconnect_if_asked);
            });
        }
    });
}

/// Starts a thread of Mend's. False if there can be none.
fn spawn(name: &str, life: impl FnOnce() + Send + 'static) -> bool {
    // The new thread inherits it.
    let before = block_signals(BLOCKED_BY_OWN_THREADS);
    let spawned = std::thread::Builder::new().name(name.to_string()).stack_size(STACK_BYTES).spawn(life);
    block_signals(before);
    spawned.is_ok()
}
