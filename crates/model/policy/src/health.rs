//! Whether ranks leave a node for what its sensors say, and how.

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
