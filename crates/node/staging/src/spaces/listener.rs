//! To whom it is told what was healed, as soon as it is.

use crate::report::event;
use mend_messages::space_report::{Healed, HealingFault, SpaceEvent};
use std::time::Instant;

/// See the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// By a line.
    User,
    /// By an event.
    Daemon,
    Nobody,
}

impl Listener {
    /// Tells a daemon that a file is whole again, which took from `begun` until now.
    pub fn healed(self, begun: Instant, healed: impl FnOnce() -> Healed) {
        if self == Self::Daemon {
            let us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            event(&SpaceEvent::Healed(Healed { us, ..healed() }));
        }
    }

    /// Tells a daemon that a file is not made whole.
    pub fn not_healed(self, file: &str, why: HealingFault) {
        if self == Self::Daemon {
            event(&SpaceEvent::NotHealed { file: file.to_owned(), why });
        }
    }
}
