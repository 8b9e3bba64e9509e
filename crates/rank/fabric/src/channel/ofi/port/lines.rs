//! Whose a message is, whether it may come now, and how many more may: what peers can do to the channels of a port. No I/O.
//!
//! Faults assumed: a message begins with anything. What is not for a line, or not in its order, changes nothing but that line,
//! and a line that was lied to once takes no more.

use super::super::super::ChannelError;
use super::super::{CREDITS, PREFIX, Prefix};
use std::collections::{HashMap, VecDeque};

/// One direction of one channel, at this end.
#[derive(Default)]
pub struct Line {
    /// Buffers that arrived, with their lengths.
    inbox: VecDeque<(u32, usize)>,
    /// Messages that may be sent.
    pub(super) credits: u32,
    /// True at the sender's end: credits come in, not data.
    pub(super) outbound: bool,
    /// Messages read whose credits have not gone back.
    pub(super) owed: u32,
    /// Number of the peer's end.
    pub(super) theirs: u64,
    /// Number of the next message to come.
    expected: u32,
    /// Reads under way.
    pub(in super::super) reads: usize,
    /// Reads that have ended: whose, and whether well.
    pub(in super::super) read: VecDeque<(u64, bool)>,
    fault: Option<ChannelError>,
}

impl Line {
    /// Of the sender's end, or of the receiver's.
    #[must_use]
    pub fn new(outbound: bool) -> Self {
        Self { outbound, ..Self::default() }
    }

    /// Its buffers that nobody has read.
    pub fn unread(&self) -> impl Iterator<Item = u32> + '_ {
        self.inbox.iter().map(|(buffer, _)| *buffer)
    }

    fn deceived(&self) -> bool {
        matches!(self.fault, Some(ChannelError::Protocol(_)))
    }

    fn add(&mut self, credits: u32) {
        match self.credits.checked_add(credits).filter(|sum| *sum <= CREDITS) {
            Some(sum) => self.credits = sum,
            None => self.fault = Some(wrong_sum()),
        }
    }
}

fn wrong_sum() -> ChannelError {
    ChannelError::Protocol("messages and credits do not add up".into())
}

/// The lines of a port, by their numbers.
#[derive(Default)]
pub struct Lines(HashMap<u64, Line>);

impl Lines {
    /// Adds one.
    pub fn insert(&mut self, number: u64, line: Line) {
        self.0.insert(number, line);
    }

    /// Takes one away.
    pub fn remove(&mut self, number: u64) -> Option<Line> {
        self.0.remove(&number)
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Line> {
        self.0.get(&number)
    }

    /// One of them, to change.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Line> {
        self.0.get_mut(&number)
    }

    /// A message of `len` bytes, [`PREFIX`] or more, came into a buffer and begins so. True if the buffer is kept for its line.
    pub fn arrived(&mut self, prefix: Prefix, buffer: u32, len: usize) -> bool {
        let Some(line) = self.0.get_mut(&prefix.line).filter(|line| !line.deceived()) else { return false };
        if line.expected != prefix.sequence {
            line.fault = Some(ChannelError::Protocol(format!("message {} came instead of {}", prefix.sequence, line.expected)));
            return false;
        }
        line.expected = line.expected.wrapping_add(1);
        match (line.outbound, prefix.credits) {
            (true, 1..) if len == PREFIX => line.add(prefix.credits),
            (false, credits) if line.inbox.len() < CREDITS as usize && (credits == 0) == (prefix.back == 0) => {
                line.inbox.push_back((buffer, len));
                if credits > 0 {
                    self.credit(prefix);
                }
                return true;
            }
            _ => line.fault = Some(wrong_sum()),
        }
        false
    }

    /// Credits that came with packets.
    fn credit(&mut self, prefix: Prefix) {
        match self.0.get_mut(&prefix.back) {
            Some(line) if line.outbound => line.add(prefix.credits),
            Some(line) => line.fault = Some(wrong_sum()),
            // That channel has been closed meanwhile.
            None => {}
        }
    }

    /// Messages of a line that were read, and not reported.
    #[must_use]
    pub fn owed(&self, number: u64) -> u32 {
        self.get(number).map_or(0, |line| line.owed)
    }

    /// So many of them were reported.
    pub fn repaid(&mut self, number: u64, credits: u32) {
        if let Some(line) = self.get_mut(number) {
            line.owed -= credits;
        }
    }

    /// Takes a credit. False: none is left.
    pub fn take_credit(&mut self, number: u64) -> bool {
        match self.get_mut(number) {
            Some(line) if line.credits > 0 => {
                line.credits -= 1;
                true
            }
            _ => false,
        }
    }

    /// Puts an unused credit back.
    pub fn return_credit(&mut self, number: u64) {
        if let Some(line) = self.get_mut(number) {
            line.credits += 1;
        }
    }

    /// True if a message may be sent.
    #[must_use]
    pub fn has_credit(&self, number: u64) -> bool {
        self.get(number).is_some_and(|line| line.credits > 0)
    }

    /// True if something arrived.
    #[must_use]
    pub fn has_mail(&self, number: u64) -> bool {
        self.get(number).is_some_and(|line| !line.inbox.is_empty() || !line.read.is_empty() || line.fault.is_some())
    }

    /// The next message: its buffer and length.
    pub fn take_mail(&mut self, number: u64) -> Option<(u32, usize)> {
        self.get_mut(number)?.inbox.pop_front()
    }

    /// A message of a line has been read.
    pub fn done(&mut self, number: u64) {
        if let Some(line) = self.get_mut(number) {
            line.owed += 1;
        }
    }

    /// A send of a line failed.
    pub fn failed(&mut self, number: u64, fault: ChannelError) {
        if let Some(line) = self.get_mut(number) {
            line.fault = Some(fault);
        }
    }

    /// What broke a line.
    #[must_use]
    pub fn fault(&self, number: u64) -> Option<&ChannelError> {
        self.get(number)?.fault.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(sequence: u32, credits: u32, back: u64) -> Prefix {
        Prefix { line: 1, sequence, credits, back }
    }

    fn lines() -> Lines {
        let mut lines = Lines::default();
        lines.insert(1, Line::new(false));
        lines.insert(2, Line::new(true));
        lines
    }

    #[test]
    fn a_line_that_was_lied_to_takes_no_more() {
        let mut lines = lines();
        assert!((0..CREDITS).all(|sequence| lines.arrived(prefix(sequence, 0, 0), sequence, 100)));
        assert!(!lines.arrived(prefix(CREDITS, 0, 0), 9, 100));
        assert!(lines.fault(1).is_some());
        // There would be room for the next one, but the stream has a hole before it.
        assert_eq!(lines.take_mail(1), Some((0, 100)));
        assert!(!lines.arrived(prefix(CREDITS + 1, 0, 0), 9, 100));
        // Whose credits do not arrive may have sent well.
        let mut lines = self::lines();
        lines.failed(1, ChannelError::Provider("gone".into()));
        assert!(lines.arrived(prefix(0, 0, 0), 0, 100));
    }

    #[test]
    fn credits_with_packets_are_for_a_sender_and_never_too_many() {
        let mut lines = lines();
        assert!(lines.arrived(prefix(0, CREDITS, 2), 0, 100));
        assert!((0..CREDITS).all(|_| lines.take_credit(2)) && !lines.take_credit(2));
        assert!(lines.arrived(prefix(1, CREDITS + 1, 2), 1, 100));
        assert!(lines.fault(2).is_some() && lines.fault(1).is_none());
        assert!(lines.arrived(prefix(2, 1, 1), 2, 100));
        assert!(lines.fault(1).is_some());
    }
}
