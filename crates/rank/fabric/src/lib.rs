//! The libfabric provider `mend`: matching, rendezvous, and channels that can be drained and reopened somewhere else.
//!
//! Reading order: [`fabric`] (what the agent sees), `provider` (what libfabric sees), [`engine`] (the protocol),
//! [`links`] and [`peer`] (who is reached how), [`channel`] (how packets move), `watch` and `idle` (how a rank
//! sleeps), [`lock`].
//!
//! A message goes: libfabric call → `provider` → [`engine`] → packet → [`links`] → channel ⇒ channel → [`links`] →
//! [`engine`] → completion → `fi_cq_read`.

pub mod channel;
mod closing;
mod counter;
pub mod engine;
pub mod fabric;
pub mod identity;
mod idle;
pub mod links;
pub mod lock;
mod overdue;
pub mod peer;
mod provider;
mod report;
mod vector;
mod watch;

pub use fabric::{Fabric, FabricError, Frozen, fabric};
pub use identity::Identity;
pub use idle::gives_way;
pub use links::DrainError;
pub use provider::provider;
