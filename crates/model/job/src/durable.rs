//! When what a job's machine is told is made durable, and what daemons may forget by then. The machine of a controller may lose its power: what
//! it has written down and not made durable is gone then, all of it or the end of it.
//!
//! ```text
//! told ─► written down ─► what follows is done ─► within SOON_US or LATE_US: durable ─► the daemon that said it forgets it
//!                     └─► durable, if it decides which copy of a rank runs or that the job ends ([`Effect::MakeDurable`]) ─► done
//! ```
//! Most of what follows does not wait. A daemon that has had an order which the log does not tell of is known by the number of its orders, and its node counts as lost
//! ([`crate::replay::Orders::after`]). What daemons have said, and the log does not tell of, they say again.

use crate::event::{Effect, Event};
use crate::safeguard::{Kept, Safeguard};
use mend_messages::daemon::FromDaemon;

/// Within this what matters is about to be made durable, microseconds.
pub const SOON_US: u64 = 50_000;
/// Within this are readings, of which the next ones tell as much. Until then their daemons keep them, a few each second.
pub const LATE_US: u64 = 5_000_000;

/// Within how many microseconds this is to be made durable, after these effects of it were found; `None`: nobody waits for that.
#[must_use]
pub fn due_us(event: &Event, effects: &[Effect]) -> Option<u64> {
    match event {
        _ if !effects.is_empty() => Some(SOON_US),
        Event::Daemon { message: FromDaemon::Pong(_) | FromDaemon::Progress(_), .. } => Some(LATE_US),
        Event::Daemon { .. } => Some(SOON_US),
        _ => None,
    }
}

/// How far the messages of one daemon have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeardMessages {
    heard: u64,
    durable: u64,
    safeguards: Kept,
}

impl HeardMessages {
    /// Messages up to this number are durable.
    #[must_use]
    pub fn through(number: u64, safeguards: Kept) -> Self {
        Self { heard: number, durable: number, safeguards }
    }

    /// The machine was told this message, or does not need it. `waits`: it is written down, so that it is to be durable before it is forgotten.
    pub fn hear(&mut self, number: u64, waits: bool) {
        self.heard = self.heard.max(number);
        if !waits || !self.safeguards.keeps(Safeguard::ForgottenIsDurable) {
            self.durable = self.heard;
        }
    }

    /// Messages up to this number are on disk.
    pub fn is_durable(&mut self, through: u64) {
        self.durable = self.durable.max(through);
    }

    /// Number of the last message that the machine was told.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.heard
    }

    /// The daemon may forget its messages up to this one.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::health::NodeHealth;

    #[test]
    fn nothing_is_forgotten_before_it_is_durable() {
        let mut heard = HeardMessages::through(2, Kept::default());
        heard.hear(3, true);
        assert_eq!((heard.last(), heard.confirmed()), (3, 2));
        heard.is_durable(3);
        heard.hear(4, true);
        heard.is_durable(1);
        assert_eq!((heard.last(), heard.confirmed()), (4, 3));
        // There is no log any more.
        heard.hear(5, false);
        assert_eq!(heard.confirmed(), 5);
    }

    #[test]
    fn what_a_daemon_says_is_made_durable_though_nothing_follows_from_it() {
        let said = |message| Event::Daemon { node: 0, message };
        assert_eq!(due_us(&said(FromDaemon::Health(NodeHealth::default())), &[]), Some(SOON_US));
        assert_eq!(due_us(&said(FromDaemon::Progress(Vec::new())), &[]), Some(LATE_US));
        assert_eq!(due_us(&said(FromDaemon::Progress(Vec::new())), &[Effect::List]), Some(SOON_US));
        assert_eq!((due_us(&Event::Time, &[]), due_us(&Event::Time, &[Effect::List])), (None, Some(SOON_US)));
    }
}
