//! What a run did: worlds in which nothing happens show nothing.

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Events that the machine took.
    pub events: u64,
    /// Checkpoints that were published.
    pub checkpoints: u64,
    /// Migrations that came about.
    pub migrations: u64,
    /// Those of ranks that were copied while they ran.
    pub live: u64,
    /// Ranks that were to go back.
    pub returns: u64,
    /// Moves of ranks to their data.
    pub followers: u64,
    /// Lives of the job.
    pub lives: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Controllers that were succeeded in the same life.
    pub failovers: u64,
    /// Those of them whose successor a node has started.
    pub node_started: u64,
    /// Ranks that went back to a checkpoint in place.
    pub in_place: u64,
    /// Ranks that were to, and were restored anew.
    pub anew: u64,
    /// Those whose machine has lost its power, and with it some of what they had written down.
    pub power_losses: u64,
}
