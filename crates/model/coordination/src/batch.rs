//! A batch of requests to the agents of a node, step by step, without the controller in between: where one node has all ranks, that
//! spares every step but the first its way to the controller and back.
//!
//! Invariant: a step begins when everything before it has been answered, and nothing failed.
//! Faults assumed: an answer never comes; then what was to follow is dropped when the controller asks something else.

use mend_messages::daemon::Question;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    awaited: BTreeSet<u64>,
    later: VecDeque<Vec<Question>>,
}

impl Batch {
    /// Takes new steps instead of what was left; returns those to send to agents now.
    pub fn begin(&mut self, steps: Vec<Vec<Question>>) -> Vec<Question> {
        self.later = steps.into();
        self.awaited.clear();
        self.next()
    }

    /// An answer is on its way to the controller. Returns what to send to agents now.
    pub fn answered(&mut self, seq: u64, good: bool) -> Vec<Question> {
        if !self.awaited.remove(&seq) {
            return Vec::new();
        }
        if !good {
            self.drop_rest();
        }
        if self.awaited.is_empty() { self.next() } else { Vec::new() }
    }

    /// Nothing of what is left is sent to agents any more.
    pub fn drop_rest(&mut self) {
        self.later.clear();
    }

    fn next(&mut self) -> Vec<Question> {
        let step = self.later.pop_front().unwrap_or_default();
        self.awaited = step.iter().map(|question| question.seq).collect();
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::agent::Request;

    fn steps() -> Vec<Vec<Question>> {
        let step =
            |seqs: [u64; 2], request: Request| seqs.map(|seq| Question { seq, rank: seq as u32 % 2, request: request.clone() }).into();
        vec![step([4, 5], Request::Suspend), step([6, 7], Request::Inspect { ahead: None, files: false }), step([8, 9], Request::Resume)]
    }

    #[test]
    fn a_step_begins_when_all_of_the_last_one_is_answered() {
        let mut batch = Batch::default();
        assert_eq!(batch.begin(steps()), steps()[0]);
        assert_eq!(batch.answered(5, true), []);
        // Twice, of a later step, of nobody's.
        assert_eq!([5, 6, 99].map(|seq| batch.answered(seq, true)), [vec![], vec![], vec![]]);
        assert_eq!(batch.answered(4, true), steps()[1]);
        assert_eq!(batch.answered(7, true), []);
        assert_eq!(batch.answered(6, true), steps()[2]);
        assert_eq!([8, 9].map(|seq| batch.answered(seq, true)), [vec![], vec![]]);
    }

    #[test]
    fn nothing_follows_a_failure_or_another_order() {
        let mut batch = Batch::default();
        batch.begin(steps());
        assert_eq!([(4, false), (5, true)].map(|(seq, good)| batch.answered(seq, good)), [vec![], vec![]]);
        batch.begin(steps());
        batch.drop_rest();
        assert_eq!([(4, true), (5, true)].map(|(seq, good)| batch.answered(seq, good)), [vec![], vec![]]);
        // What is left of them does not count for the next.
        assert_eq!(batch.begin(steps()), steps()[0]);
    }
}
