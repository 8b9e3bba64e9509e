//! What of a stream is known without keeping it: how long it is, and a running checksum at the beginnings of its lines. Two runs of a
//! program printed the same up to a mark if their checksums there agree.
//!
//! Invariants: marks ascend, none is beyond the end; the newest half of them is complete, older ones are thinned out, so that a digest
//! stays small however much is printed.

pub use mend_job::input::Mark;
use serde::{Deserialize, Serialize};

/// Marks that a digest keeps at most.
const MAX_MARKS: usize = 512;
/// Marks that one call of [`StreamDigest::add`] makes at most.
const MAX_MARKS_PER_CALL: usize = 32;

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDigest {
    end: Mark,
    lines: Vec<Mark>,
    /// The last line is not complete.
    open: bool,
}

impl StreamDigest {
    /// One of which no more than its length is known.
    #[must_use]
    pub fn of_length(at: u64) -> Self {
        Self { end: Mark { at, sum: if at == 0 { Mark::default().sum } else { None } }, ..Self::default() }
    }

    /// How far it goes.
    #[must_use]
    pub fn end(&self) -> Mark {
        self.end
    }

    /// True if it ends in the middle of a line.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Where lines begin behind `from`, ascending.
    #[must_use]
    pub fn lines_beyond(&self, from: u64) -> &[Mark] {
        &self.lines[self.lines.partition_point(|mark| mark.at <= from)..]
    }

    /// Marks behind `from`, the end among them, ascending.
    #[must_use]
    pub fn beyond(&self, from: u64) -> Vec<Mark> {
        let lines = self.lines.iter().copied().filter(|mark| mark.at < self.end.at);
        lines.chain([self.end]).filter(|mark| mark.at > from).collect()
    }

    /// Adds the bytes that follow.
    pub fn add(&mut self, bytes: &[u8]) {
        let (apart, mut rest) = (bytes.len() / MAX_MARKS_PER_CALL, bytes);
        let mut last = self.end.at;
        while let Some(newline) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, more) = rest.split_at(newline + 1);
            self.end = self.end.after(line);
            rest = more;
            if self.end.at - last >= apart as u64 {
                last = self.end.at;
                self.mark();
            }
        }
        self.end = self.end.after(rest);
        if let Some(byte) = bytes.last() {
            self.open = *byte != b'\n';
        }
    }

    /// Goes on, as it was found to.
    pub fn extend(&mut self, end: Mark, lines: &[Mark], open: bool) {
        for line in lines {
            self.end = *line;
            self.mark();
        }
        (self.end, self.open) = (end, open);
    }

    fn mark(&mut self) {
        self.lines.push(self.end);
        if self.lines.len() > MAX_MARKS {
            let mut place = 0;
            self.lines.retain(|_| {
                place += 1;
                place > MAX_MARKS / 2 || place % 2 == 0
            });
        }
    }

    /// It ends at `end`, where a line begins; what was beyond is forgotten.
    pub fn cut(&mut self, end: Mark) {
        self.lines.retain(|mark| mark.at <= end.at);
        (self.end, self.open) = (end, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_leave_the_same_marks_however_they_come() {
        let text: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let mut one = StreamDigest::default();
        text.lines().for_each(|line| one.add(format!("{line}\n").as_bytes()));
        let mut other = StreamDigest::default();
        text.as_bytes().chunks(7).for_each(|piece| other.add(piece));
        assert_eq!((one.end(), one.is_open()), (other.end(), false));
        assert_eq!(one.beyond(0), other.beyond(0));
        assert_eq!(one.beyond(0).len(), 100);
        other.add(b"not ended");
        assert!(other.is_open() && !other.end().agrees(one.end()));
        let half = one.beyond(0)[49];
        one.cut(half);
        assert_eq!((one.end(), one.beyond(0).len(), one.beyond(half.at)), (half, 50, vec![]));
    }

    #[test]
    fn it_stays_small_and_its_end_exact() {
        let mut digest = StreamDigest::default();
        for line in 0..100_000 {
            digest.add(format!("{line}\n").as_bytes());
        }
        assert!(digest.lines.len() <= MAX_MARKS);
        assert_eq!(digest.end().at, 588_890);
        // Each of the last lines is told from the next.
        let marks = digest.beyond(digest.end().at - 600);
        assert_eq!(marks.len(), 100);
        let mut long = StreamDigest::default();
        long.add(&b"x\n".repeat(50_000));
        assert!(long.beyond(0).len() <= MAX_MARKS_PER_CALL + 1);
    }

    #[test]
    fn of_what_is_not_known_nothing_differs() {
        let unknown = StreamDigest::of_length(5).end();
        assert!(unknown.agrees(Mark::default().after(b"12345")));
        assert!(unknown.after(b"6").agrees(Mark::default().after(b"abcdef")));
        assert!(!unknown.agrees(Mark::default()));
    }
}
