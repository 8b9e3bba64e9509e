//! What is measured of a move.

use serde::Serialize;

/// One measured move of all ranks. Times are in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub strategy: &'static str,
    /// By what the ranks of the job go.
    pub transport: &'static str,
    pub ranks: u32,
    /// What they hold together.
    pub size: u64,
    pub run: u32,
    pub suspend_us: u64,
    pub write_us: u64,
    pub transfer_us: u64,
    pub restart_us: u64,
    pub reconnect_us: u64,
    /// How long the rank stood still that did so for longest.
    pub stopped_us: u64,
    /// From when that one was stopped until its last page was there.
    pub there_us: u64,
    /// As who asked waited for it.
    pub whole_us: u64,
    /// Of all ranks, as they are before compression.
    pub bytes: u64,
    /// What went over the link for them.
    pub sent_bytes: u64,
    /// Of that, while they stood still.
    pub stopped_bytes: u64,
    /// Of the rank that took most; 0: it was not copied while it ran.
    pub rounds: u32,
    /// In files on the way.
    pub stored_bytes: u64,
    /// Bytes of memory in use beyond the ranks, at most; `None`: the nodes are not one machine, or several ranks moved while they ran.
    pub peak_memory: Option<u64>,
}
