//! Peers that are waited for in vain: their channels are to drain, and they show no progress.

use mend_messages::job::Rank;
use mend_patience::Patience;
use std::time::Duration;

/// Longest time between two looks that is held against a peer. Whoever drains looks every millisecond, if it gets a processor.
const MAX_COUNTED_PAUSE: Duration = Duration::from_millis(20);

/// A peer that is waited for.
#[derive(Debug)]
struct Wait {
    rank: Rank,
    /// How far it had got.
    taken: u64,
    patience: Patience,
}

/// Watches them.
#[derive(Debug)]
pub struct Overdue {
    limit: Duration,
    waits: Vec<Wait>,
}

impl Overdue {
    /// A drain begins. A peer is overdue after `limit` without progress.
    pub fn new(limit: Duration) -> Self {
        Self { limit, waits: Vec::new() }
    }

    /// Those of the peers still to be waited for that are overdue; `taken` says how far each has got.
    pub fn among(&mut self, draining: &[Rank], mut taken: impl FnMut(Rank) -> u64) -> Vec<Rank> {
        self.waits.retain(|wait| draining.contains(&wait.rank));
        let mut late = Vec::new();
        for &rank in draining {
            let now = taken(rank);
            match self.waits.iter_mut().find(|wait| wait.rank == rank) {
                Some(wait) if wait.taken != now => {
                    wait.taken = now;
                    wait.patience.renew();
                }
                Some(wait) => late.extend(wait.patience.is_over().then_some(rank)),
                None => self.waits.push(Wait { rank, taken: now, patience: Patience::with_pause(self.limit, MAX_COUNTED_PAUSE) }),
            }
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_something_is_not_overdue_and_who_takes_nothing_is() {
        let mut overdue = Overdue::new(Duration::from_millis(60));
        let mut steps = 0;
        let late = loop {
            steps += 1;
            let late = overdue.among(&[1, 2, 3], |rank| if rank == 2 { 7 } else { steps });
            if !late.is_empty() {
                break late;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(late, [2]);
        assert!(steps > 3, "it was looked at a few times");
        // Who has drained and begins once more begins anew.
        assert_eq!(overdue.among(&[1, 3], |_| 7), []);
        assert_eq!(overdue.among(&[1, 2, 3], |_| 7), []);
    }
}
