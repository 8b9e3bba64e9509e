//! Looks again and again whether a job is still this controller's. One that stood still, or was cut off, may have a successor.

use crate::detached::is_detached;
use crate::job_link::Pulse;
use crate::lock_identity::LockIdentity;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The exit code of a controller whose job goes on under another one: EX_TEMPFAIL.
const TAKEN_OVER: i32 = 75;
/// Which part of a lease it may be since the job was seen to be this controller's for it to renew the lease.
pub const LEASES: u32 = 4;
/// Looks in that time.
const LOOKS: u32 = 3;

/// Looks on a thread of its own, so that neither a slow disk nor a slow reader of output is taken for a lost controller. Ends when it is dropped.
#[derive(Debug)]
pub struct LockWatch {
    /// What renews the lease.
    pub pulse: Pulse,
    over: Arc<AtomicBool>,
}

impl LockWatch {
    /// Begins to watch the lock that this process has taken.
    #[must_use]
    pub fn begin(directory: PathBuf, id: String, ours: LockIdentity, lease: Duration) -> Self {
        let (pulse, over) = (Pulse::begin(lease / LEASES), Arc::new(AtomicBool::new(false)));
        let watch = Self { pulse: pulse.clone(), over: over.clone() };
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let now = Instant::now();
                match LockIdentity::of(&directory) {
                    Some(found) if ours == found => pulse.seen(now),
                    Some(_) => leave(&id),
                    // What cannot be seen gives no leave to go on.
                    None => {}
                }
                std::thread::sleep(lease / LEASES / LOOKS);
            }
        });
        watch
    }
}

/// Ends this process: its job is another controller's.
pub fn leave(id: &str) -> ! {
    // What a detached one says goes to the job's output, which is another's, too. That one has said there that it goes on.
    if !is_detached() {
        mend_report::tell!("mend: another controller has taken job {id} over: this one was silent; `mend attach {id}` follows it");
    }
    std::process::exit(TAKEN_OVER);
}

impl Drop for LockWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
