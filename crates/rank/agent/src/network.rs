//! The fabric as the agent sees it. The preloaded object wires the real one in; an agent can live without.

use mend_messages::agent::Welcome;
use mend_messages::job::{FabricAddress, JobMap, Rank};
use std::time::Duration;

/// What a fabric counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were sent or received into, and one-sided operations.
    pub calls: u64,
    /// How long the program looked for messages and found none, in units of the clock.
    pub waited: u64,
    /// A clock that only goes forward while the process lives.
    pub clock: u64,
}

/// Why channels did not drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undrained {
    /// What happened, with the peers.
    pub error: String,
    /// What a user can do about it; may be empty.
    pub hint: &'static str,
}

/// What the agent asks of a fabric. All but `listen`, `on_use`, `on_delay` and `on_loss` are called by the agent's thread alone.
pub trait Network: Sync {
    /// Learns who this rank is. Opens nothing.
    fn introduce(&self, identity: &Welcome);
    /// Opens (after a restore: reopens) the listeners under this identity.
    ///
    /// # Errors
    /// What could not be opened, for people.
    fn listen(&self, identity: &Welcome) -> Result<FabricAddress, String>;
    /// A newer job map.
    fn set_map(&self, map: JobMap);
    /// `announce` is called, once, by the thread that first uses the fabric.
    fn on_use(&self, announce: fn());
    /// `nudge` is called, by any thread, when the fabric has put something off until the program's next call: then
    /// [`Network::catch_up`] is wanted in a while. It must be quick and call nothing of the fabric.
    fn on_delay(&self, nudge: fn());
    /// `announce` is called, by any thread, when a channel breaks with messages under way: then [`Network::losses`] is wanted, now and
    /// until nothing is left. It must be quick and call nothing of the fabric.
    fn on_loss(&self, announce: fn());
    /// Peers to which a channel broke at least `patience` ago and that are not known to have ended or moved since, with the reason; each
    /// is told once. And whether there are others, that broke later.
    fn losses(&self, patience: Duration) -> (Vec<(Rank, String)>, bool);
    /// Peers to which a channel broke, not only closed, since this was asked last, with the reason. Some of them may be well again.
    fn broken(&self) -> Vec<(Rank, String)>;
    /// Peers whose channels have not drained yet.
    fn draining(&self) -> Vec<Rank>;
    /// Does what was put off, unless the program's next call has come meanwhile. True if this is wanted again, in a while that may grow.
    fn catch_up(&self) -> bool;
    /// What was counted so far.
    fn counters(&self) -> Counters;
    /// Bytes and messages that were sent to each rank so far, by its number: put behind what `sent` has.
    fn traffic(&self, sent: &mut Vec<(u64, u64)>);
    /// Whether the program uses the fabric.
    fn in_use(&self) -> bool;
    /// Stops sending, drains all channels, for `time`: true when that is done, else it goes on when this is called again.
    ///
    /// # Errors
    /// Which peer showed no progress for `limit`, or is gone.
    fn suspend(&self, limit: Duration, time: Duration) -> Result<bool, Undrained>;
    /// Drains, as `suspend` does, and closes the channel to one peer, which is about to move. Until `resume` that peer counts on
    /// [`Network::keep_up`].
    ///
    /// # Errors
    /// As `suspend`.
    fn suspend_peer(&self, rank: Rank, limit: Duration, time: Duration) -> Result<bool, Undrained>;
    /// Serves peers for at most `timeout`, while suspended.
    fn serve(&self, timeout: Duration);
    /// Serves peers as long as they have something to say, at most for `time`, while the program runs.
    fn keep_up(&self, time: Duration);
    /// Ends all suspensions.
    fn resume(&self);
    /// Stops all of the fabric's activity until the result is dropped or rebuilt: no lock of it is held by any other
    /// thread. A save does it after `suspend`; an inspection at any time, for a moment.
    fn freeze(&self) -> Box<dyn Frozen>;
}

/// A fabric that stands still.
pub trait Frozen {
    /// Memory not to be saved (first address, length): rings shared with peers. A restored process finds private zero pages
    /// there, which the agent unmaps when [`Frozen::rebuild`] has forgotten them.
    fn excluded_memory(&self, each: &mut dyn FnMut(usize, usize));
    /// Descriptors that the fabric opened and reopens by itself.
    fn own_descriptors(&self, each: &mut dyn FnMut(i32));
    /// True while something else of the process belongs to the network: descriptors, devices, threads of a provider that the
    /// fabric uses. They cannot be told from the program's own, and are gone after `close_provider`.
    fn provider_open(&self) -> bool;
    /// Before a save: closes what belongs to the network but cannot be in an image. It is opened again when it is needed.
    fn close_provider(&mut self);
    /// Right before the threads go on: they may send again over the channels that were kept. [`Network::resume`] follows, which does all
    /// else. Calls nothing outside of the fabric.
    fn reopen(&mut self);
    /// In a restored process: forget channels, listeners and excluded memory of the old one, without closing
    /// descriptors (they aren't open here). `Network::listen` follows when the daemon has answered.
    ///
    /// # Errors
    /// What could not be rebuilt, for people.
    fn rebuild(self: Box<Self>) -> Result<(), String>;
}
