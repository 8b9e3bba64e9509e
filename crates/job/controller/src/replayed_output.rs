//! Output that a rank prints again after a restart: held back, and compared line by line with what was shown.

use crate::stream_digest::{Mark, StreamDigest};
use mend_job::replay::Compared;
use std::collections::VecDeque;

/// Bytes of a stream that are held back at most while they are compared.
const MAX_HELD_BYTES: usize = 256 << 10;

/// It differs from what was shown: the stream ends at `at` now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divergence {
    pub(crate) at: Mark,
    /// What was shown ends in the middle of a line.
    pub(crate) open: bool,
}

/// One stream of one rank.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// What the rank has printed in all its lives.
    pub(crate) now: Mark,
    /// Marks of what was shown beyond that, ascending.
    pub(crate) ahead: VecDeque<Mark>,
    /// What was shown ends in the middle of a line.
    open: bool,
    /// Printed again and not compared yet, from this mark on.
    pub(crate) held: Vec<u8>,
    pub(crate) agreed: Mark,
    /// Lines since the checkpoint up to there.
    pub(crate) lines: u64,
}

impl Replay {
    pub(crate) fn new(now: Mark, found: Option<&StreamDigest>) -> Self {
        let ahead = found.map(|digest| digest.beyond(now.at)).unwrap_or_default();
        let open = found.is_some_and(StreamDigest::is_open);
        Self { now, ahead: ahead.into(), open, held: Vec::new(), agreed: now, lines: 0 }
    }

    /// What is to be printed of these bytes, and where it begins to differ from what was shown.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> (Vec<u8>, Option<Divergence>) {
        while let Some(mark) = self.ahead.front().copied() {
            let (before, rest) = bytes.split_at(bytes.len().min((mark.at - self.now.at) as usize));
            self.now = self.now.after(before);
            self.held.extend_from_slice(before);
            bytes = rest;
            if self.now.at < mark.at {
                self.bound();
                return (Vec::new(), None);
            }
            if !self.now.agrees(mark) {
                let (held, anew) = self.differ();
                self.now = self.now.after(bytes);
                return ([&held, bytes].concat(), Some(anew));
            }
            self.ahead.pop_front();
            self.lines += newlines(&self.held);
            self.held.clear();
            self.agreed = self.now;
        }
        self.now = self.now.after(bytes);
        (bytes.to_vec(), None)
    }

    pub(crate) fn differ(&mut self) -> (Vec<u8>, Divergence) {
        self.ahead.clear();
        (std::mem::take(&mut self.held), Divergence { at: self.agreed, open: self.open })
    }

    /// The oldest of what is held is forgotten, in whole lines.
    fn bound(&mut self) {
        if self.held.len() > MAX_HELD_BYTES {
            let most = &self.held[..MAX_HELD_BYTES / 2];
            let forgotten: Vec<u8> =
                self.held.drain(..most.iter().rposition(|byte| *byte == b'\n').map_or(MAX_HELD_BYTES / 2, |at| at + 1)).collect();
            self.lines += newlines(&forgotten);
            self.agreed = self.agreed.after(&forgotten);
        }
    }
}

/// What of this end of a stream is to be compared again, or printed, where so much was shown; and whether some of it is to be printed.
pub(crate) fn left_of(Compared { start, bytes, ended }: &Compared, found: Option<&StreamDigest>) -> (Compared, bool) {
    let mut replay = Replay::new(*start, found);
    let (printed, _) = replay.take(bytes);
    let prints = !printed.is_empty() || *ended && !replay.held.is_empty();
    let bytes = if printed.is_empty() { replay.held } else { printed };
    (Compared { start: replay.agreed, bytes, ended: *ended }, prints)
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> StreamDigest {
        let mut digest = StreamDigest::default();
        text.split_inclusive('\n').for_each(|line| digest.add(line.as_bytes()));
        digest
    }

    /// What is printed after all of this was shown and the checkpoint was taken behind `then`, and where it differed.
    fn replay(before: &str, then: &str, again: &str) -> (String, Option<u64>) {
        let mut replay = Replay::new(Mark::default().after(then.as_bytes()), Some(&shown(before)));
        let (mut printed, mut differs) = (Vec::new(), None);
        for piece in again.as_bytes().chunks(3) {
            let (bytes, anew) = replay.take(piece);
            if let Some(anew) = anew {
                differs = Some(anew.at.at);
                printed.extend(anew.open.then_some(b'\n'));
            }
            printed.extend(bytes);
        }
        assert_eq!(replay.now, Mark::default().after(then.as_bytes()).after(again.as_bytes()));
        (String::from_utf8(printed).unwrap(), differs)
    }

    #[test]
    fn what_is_the_same_is_not_printed_again() {
        assert_eq!(replay("one\ntwo\nthr", "one\n", "two\nthree\nfour\n"), ("ee\nfour\n".into(), None));
        assert_eq!(replay("one\n", "one\n", "two\n"), ("two\n".into(), None));
        assert_eq!(replay("one\ntwo\n", "on", "e\ntwo\n"), (String::new(), None));
    }

    #[test]
    fn what_differs_is_printed_from_the_beginning_of_its_line() {
        assert_eq!(replay("one\ntook 5 s\nend\n", "one\n", "took 17 s\nend\n"), ("took 17 s\nend\n".into(), Some(4)));
        assert_eq!(replay("one\na\ntook 5 s\nend\n", "one\n", "a\ntook 6 s\nend\nmore\n"), ("took 6 s\nend\nmore\n".into(), Some(6)));
        // The line that was shown in part ends first.
        assert_eq!(replay("one\ntook 5", "one\n", "took 6 s\nend\n"), ("\ntook 6 s\nend\n".into(), Some(4)));
    }

    #[test]
    fn of_output_that_is_only_counted_so_much_is_dropped() {
        let mut replay = Replay::new(Mark { at: 4, sum: None }, Some(&StreamDigest::of_length(9)));
        assert_eq!(replay.take(b"other\nmore\n").0, b"\nmore\n");
    }

    #[test]
    fn what_a_lost_controller_has_not_printed_is_found() {
        let begins = |text: &str| Mark::default().after(text.as_bytes());
        let left = |before: &str, bytes: &str, ended| {
            let all = Compared { start: Mark::default(), bytes: bytes.into(), ended };
            let (left, prints) = left_of(&all, Some(&shown(before)));
            (left.start, String::from_utf8(left.bytes).unwrap(), prints)
        };
        // It differs in its second line, and goes on.
        assert_eq!(left("a\nb\nc\nd\n", "a\nX\nY\n", false), (begins("a\n"), "X\nY\n".into(), true));
        // That was printed in part.
        assert_eq!(left("a\nX\n", "a\nX\nY\n", false), (begins("a\nX\n"), "Y\n".into(), true));
        assert_eq!(left("a\nX\nY\n", "a\nX\nY\n", false), (begins("a\nX\nY\n"), String::new(), false));
        // The middle of a line is printed if no more comes.
        assert_eq!(left("a\nlonger\n", "a\nlo", false), (begins("a\n"), "lo".into(), false));
        assert_eq!(left("a\nlonger\n", "a\nlo", true), (begins("a\n"), "lo".into(), true));
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let mut before = StreamDigest::default();
        before.add(&[b'x'; 4 * MAX_HELD_BYTES]);
        before.add(b"\n");
        let mut replay = Replay::new(Mark::default(), Some(&before));
        for _ in 0..5 * MAX_HELD_BYTES / 1000 {
            replay.take(&[b'y'; 1000]);
            assert!(replay.held.len() <= MAX_HELD_BYTES + 1000);
        }
        assert!(replay.ahead.is_empty());
    }
}
