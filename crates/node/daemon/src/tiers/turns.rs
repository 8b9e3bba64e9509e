//! This node's turns at the tiers that all nodes share, of which the controller grants so many at a time (`PortableReport::Asks`).
//!
//! Invariants: each turn has a number of its own, so that nothing that is said of one is taken for another; a turn is granted only while it is asked for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What this node may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It may copy.
    Granted,
    /// It asks, with this number.
    Ask(u64),
    /// It has asked.
    Wait,
}

#[derive(Debug, Default)]
struct Turn {
    number: u64,
    asked: Option<Instant>,
    granted: bool,
}

/// By the names of tiers.
#[derive(Debug, Default)]
pub struct Turns(HashMap<String, Turn>);

impl Turns {
    /// There is something to copy to a tier. Who waits longer than `again` asks again.
    pub fn look(&mut self, tier: &str, again: Duration, now: Instant) -> Look {
        let turn = self.0.entry(tier.to_owned()).or_default();
        if turn.granted {
            return Look::Granted;
        }
        if turn.asked.is_some_and(|at| now.saturating_duration_since(at) <= again) {
            return Look::Wait;
        }
        turn.number += u64::from(turn.asked.is_none());
        turn.asked = Some(now);
        Look::Ask(turn.number)
    }

    /// The controller grants one. False: it is not asked for any more.
    pub fn grant(&mut self, tier: &str, number: u64) -> bool {
        let turn = self.0.get_mut(tier).filter(|turn| turn.number == number && turn.asked.is_some());
        turn.map(|turn| turn.granted = true).is_some()
    }

    /// It is used, or not needed: the number of the turn that was asked for.
    pub fn end(&mut self, tier: &str) -> Option<u64> {
        let turn = self.0.get_mut(tier).filter(|turn| turn.asked.is_some())?;
        turn.asked = None;
        turn.granted = false;
        Some(turn.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_asked_for_granted_and_ended_by_its_number() {
        let (mut turns, begun, again) = (Turns::default(), Instant::now(), Duration::from_secs(30));
        assert_eq!(turns.end("shared"), None);
        assert!(!turns.grant("shared", 1));
        assert_eq!(turns.look("shared", again, begun), Look::Ask(1));
        assert_eq!(turns.look("shared", again, begun + again), Look::Wait);
        assert_eq!(turns.look("shared", again, begun + 2 * again), Look::Ask(1));
        assert!(turns.grant("shared", 1));
        assert_eq!(turns.look("shared", again, begun + 2 * again), Look::Granted);
        assert_eq!(turns.end("shared"), Some(1));
        // What comes late is of no use, also when the next one has been asked for.
        assert!(!turns.grant("shared", 1));
        assert_eq!(turns.look("shared", again, begun), Look::Ask(2));
        assert!(!turns.grant("shared", 1));
        assert_eq!(turns.look("object", again, begun), Look::Ask(1));
        assert_eq!(turns.look("shared", again, begun), Look::Wait);
    }
}
