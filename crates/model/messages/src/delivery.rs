//! Delivery of messages in order and exactly once, over connections that may break in between.
//!
//! ```text
//! sender                                        receiver
//!   │ Segment { message: (1, a) } ───────────────► │ delivers a
//!   │ Segment { message: (2, b) } ──────── ✗       │
//!   │            the connection breaks             │
//!   │ ◄──────────── on a new connection: "up to 1" │
//!   │ Segment { message: (2, b) } ───────────────► │ delivers b
//!   │ ◄─────────────── Segment { acknowledged: 2 } │
//!   └ forgets a and b
//! ```
//! Each direction numbers its messages from 1. A sender keeps a message until the receiver has acknowledged it, and sends again on the next
//! connection what the receiver has not had. A receiver skips what it has had. It may acknowledge later than it is delivered: who comes in its
//! place is sent what it has not acknowledged.
//!
//! Faults assumed: connections break at any byte; the peer lies about its numbers.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What goes over a connection: an acknowledgement, and perhaps a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment<M> {
    /// Every message up to this number has been delivered to the one who sends this.
    pub acknowledged: u64,
    /// A message with its number.
    pub message: Option<(u64, M)>,
}

/// A peer's number that cannot be: the peer is not who it was, or is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// It acknowledges what was never sent, or what it had acknowledged before is missing now.
    #[error("the peer acknowledges message {acknowledged}, but only {kept_from} to {sent} may be acknowledged now")]
    Acknowledged {
        /// What it said.
        acknowledged: u64,
        /// The last message that is known to have been delivered.
        kept_from: u64,
        /// The last message that was sent.
        sent: u64,
    },
    /// A message is missing before this one.
    #[error("message {number} came, but {expected} is next")]
    Missing {
        /// The number that came.
        number: u64,
        /// The number that should have come.
        expected: u64,
    },
}

/// The messages of one direction that the receiver has not acknowledged.
#[derive(Clone, Debug)]
pub struct SendWindow<M> {
    kept: VecDeque<M>,
    /// Number of the last message that was acknowledged.
    acknowledged: u64,
    /// How many of `kept` the peer had when this connection began, or were sent on it.
    sent: usize,
}

impl<M> Default for SendWindow<M> {
    fn default() -> Self {
        Self { kept: VecDeque::new(), acknowledged: 0, sent: 0 }
    }
}

impl<M: Clone> SendWindow<M> {
    /// Adds a message behind all others.
    pub fn push(&mut self, message: M) {
        self.kept.push_back(message);
    }

    /// How many messages are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Number of the last message that was acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// True if everything has been acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The next message to send on this connection, with its number. It counts as sent from then on.
    pub fn next_unsent(&mut self) -> Option<(u64, M)> {
        let message = self.kept.get(self.sent)?.clone();
        self.sent += 1;
        Some((self.acknowledged + self.sent as u64, message))
    }

    /// Forgets what the peer has acknowledged. An older acknowledgement than the last one changes nothing.
    ///
    /// # Errors
    /// [`SequenceError::Acknowledged`] if that was not sent yet.
    pub fn acknowledge(&mut self, through: u64) -> Result<(), SequenceError> {
        let last = self.acknowledged + self.sent as u64;
        if through > last {
            return Err(SequenceError::Acknowledged { acknowledged: through, kept_from: self.acknowledged, sent: last });
        }
        let count = through.saturating_sub(self.acknowledged) as usize;
        self.kept.drain(..count);
        self.sent -= count;
        self.acknowledged = self.acknowledged.max(through);
        Ok(())
    }

    /// Begins a new connection, to a peer that has had everything up to `through`: the rest is sent again. Nothing is acknowledged by that: a peer that comes in its
    /// place may have had less.
    ///
    /// # Errors
    /// [`SequenceError::Acknowledged`] if the peer lacks what it had acknowledged, or has what was never sent.
    pub fn resume(&mut self, through: u64) -> Result<(), SequenceError> {
        let sent = self.acknowledged + self.sent as u64;
        if through < self.acknowledged || through > sent {
            return Err(SequenceError::Acknowledged { acknowledged: through, kept_from: self.acknowledged, sent });
        }
        self.sent = (through - self.acknowledged) as usize;
        Ok(())
    }
}

/// What one direction's receiver knows: the number of the last message that it delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered(u64);

impl Delivered {
    /// All messages up to this number have been delivered.
    #[must_use]
    pub fn through(last: u64) -> Self {
        Self(last)
    }

    /// The number of the last message that was delivered; 0 before the first.
    #[must_use]
    pub fn last(self) -> u64 {
        self.0
    }

    /// True if the message with this number is the next one; false if it has been delivered already and is to be skipped.
    ///
    /// # Errors
    /// [`SequenceError::Missing`] if others should have come before it.
    pub fn is_next(self, number: u64) -> Result<bool, SequenceError> {
        let expected = self.0 + 1;
        if number > expected {
            return Err(SequenceError::Missing { number, expected });
        }
        Ok(number == expected)
    }

    /// The next message has been delivered.
    pub fn advance(&mut self) {
        self.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push,
        Send,
        /// The first segment under way arrives.
        Arrive,
        /// All that has been delivered is acknowledged.
        Acknowledge,
        /// What is under way in both directions is lost; a new connection begins.
        Break,
        /// So is the receiver. Another one comes, which has what was acknowledged.
        Succeed,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Push),
            4 => Just(Step::Send),
            4 => Just(Step::Arrive),
            2 => Just(Step::Acknowledge),
            1 => Just(Step::Break),
            1 => Just(Step::Succeed),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn every_message_is_delivered_once_and_in_order(steps in steps()) {
            let (mut window, mut delivered) = (SendWindow::default(), Delivered::default());
            let (mut under_way, mut pushed, mut got) = (VecDeque::new(), 0u64, Vec::new());
            let arrive = |(number, message): (u64, u64), delivered: &mut Delivered, got: &mut Vec<u64>| {
                if delivered.is_next(number).unwrap() {
                    got.push(message);
                    delivered.advance();
                }
            };
            for step in steps {
                match step {
                    Step::Push => { pushed += 1; window.push(pushed); }
                    Step::Send => under_way.extend(window.next_unsent()),
                    Step::Arrive => if let Some(segment) = under_way.pop_front() { arrive(segment, &mut delivered, &mut got) },
                    Step::Acknowledge => window.acknowledge(delivered.last()).unwrap(),
                    Step::Break => { under_way.clear(); window.resume(delivered.last()).unwrap(); }
                    Step::Succeed => {
                        under_way.clear();
                        delivered = Delivered::through(window.acknowledged());
                        got.truncate(delivered.last() as usize);
                        window.resume(delivered.last()).unwrap();
                    }
                }
            }
            window.resume(delivered.last()).unwrap();
            while let Some(segment) = window.next_unsent() {
                arrive(segment, &mut delivered, &mut got);
            }
            window.acknowledge(delivered.last()).unwrap();
            prop_assert!(window.is_empty());
            prop_assert_eq!(got, (1..=pushed).collect::<Vec<_>>());
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let mut window = SendWindow::default();
        window.push('a');
        window.push('b');
        assert_eq!(window.next_unsent(), Some((1, 'a')));
        let unsent = SequenceError::Acknowledged { acknowledged: 2, kept_from: 0, sent: 1 };
        assert_eq!(window.acknowledge(2), Err(unsent), "it was not sent");
        window.acknowledge(1).unwrap();
        window.acknowledge(0).unwrap();
        let lost = SequenceError::Acknowledged { acknowledged: 0, kept_from: 1, sent: 1 };
        assert_eq!(window.resume(0), Err(lost), "the peer had it");
        assert_eq!(Delivered::default().is_next(2), Err(SequenceError::Missing { number: 2, expected: 1 }));
        assert_eq!(Delivered(3).is_next(3), Ok(false));
    }
}
