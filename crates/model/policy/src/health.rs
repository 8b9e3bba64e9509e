//! When ranks leave a node because of what its sensors say, and how.
//!
//! ```text
//! samples ──► Watch of each sensor: marks, hysteresis, trend ──► NodeWatch: the worst of them ──► leaving: live, frozen, or not
//! ```
//! Reading order: [`marks`] (what is too much), [`trend`] (what it will be), [`counts`] (how often it was), [`watch`] (one sensor), [`node`] (all of a node's).
//!
//! Invariants: a grade rises at once and falls only after the sensor was well on the good side of its mark for a while; a sensor that says
//! nonsense (no number, an absurd one) changes nothing. Times are microseconds on the caller's clock.

pub mod counts;
pub mod marks;
pub mod node;
pub mod trend;
pub mod watch;

use mend_messages::control::MoveMode;
use mend_messages::health::{Grade, Leaving, NodeHealth};

/// How ranks leave a node that is so. Past a low mark they run on while they are copied, until a high mark is likely to be passed; past a
/// high mark nothing is worth waiting for. `None`: they stay.
#[must_use]
pub fn leaving(health: &NodeHealth) -> Option<Leaving> {
    let (mode, left_ms) = match health.grade {
        Grade::Well => return None,
        Grade::Low => (MoveMode::Live, health.left_ms),
        Grade::High => (MoveMode::Frozen, None),
    };
    Some(Leaving { mode, left_ms, why: health.why.clone() })
}
