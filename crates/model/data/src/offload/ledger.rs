//! What is written down of files that were sent to one place: a text of lines that is only ever appended to, so that a sender may be killed at any moment.
//!
//! ```text
//! CHECKSUM {"Head": …}      of which space, and where to
//! CHECKSUM {"Begun": …}     before anything of a file is written there, under a name of its own
//! CHECKSUM {"Named": …}     before it is there under the file's own name: what is there with these bytes is ours
//! CHECKSUM {"Sent": …}      it has arrived, and was compared
//! CHECKSUM {"Dropped": …}   what was begun is gone there
//! CHECKSUM {"Lost": …}      what had arrived is not there any more, or not as it was
//! ```
//! Faults assumed: the last line is cut off, lines of two senders are mixed up, a disk gave some of them up. A line whose checksum is wrong is passed over: the file is sent
//! again then.

use crate::record::Version;
use crate::space::Id;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Lines that say nothing any more, before the text is written anew.
const MOST_STALE: usize = 1000;

/// Of what a ledger is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The space: a later one of the same name has another identity.
    pub space: Id,
    /// Where files are sent to.
    pub uri: String,
    /// The server, of an `s3` address.
    pub endpoint: Option<String>,
}

/// A file that has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Where it is in the space, and there.
    pub path: String,
    /// Which file it was.
    pub id: Id,
    /// Its bytes.
    pub size: u64,
    /// When it had been changed last, nanoseconds since 1970, as the space says it.
    pub changed_ns: i64,
    /// That time stands for all objects ([`changed_ns`](crate::space::written::changed_ns)). Earlier releases noted the latest one of them.
    #[serde(default)]
    pub of_all: bool,
    /// The checksum of its checksums, in hexadecimal digits.
    pub sum: String,
    /// What the place says of what arrived.
    pub there: Version,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Line {
    /// The first one.
    Head(Head),
    /// Something of a file will be written there.
    Begun {
        /// The file.
        path: String,
        /// The name that it has meanwhile; empty if it has none of its own, and what has the file's name may be ours.
        part: String,
    },
    /// It has arrived.
    Sent(Sent),
    /// What was begun is gone.
    Dropped {
        /// The name that it had meanwhile.
        part: String,
    },
    /// What had arrived is not there any more, or not as it was.
    Lost {
        /// The file.
        path: String,
    },
    /// It is about to be there under its own name.
    Named {
        /// The file.
        path: String,
        /// Its bytes.
        size: u64,
        /// As [`Sent::sum`].
        sum: String,
    },
}

impl Line {
    /// As it stands in the text, with its end.
    #[must_use]
    pub fn encode(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        format!("{:016x} {text}\n", xxh3_64(text.as_bytes()))
    }

    fn decode(line: &str) -> Option<Self> {
        let (sum, text) = line.split_once(' ')?;
        (u64::from_str_radix(sum, 16).ok()? == xxh3_64(text.as_bytes())).then(|| serde_json::from_str(text).ok())?
    }
}

/// What the lines add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    sent: BTreeMap<String, Sent>,
    /// Paths of files that are not noted as sent, and of which what is there may be ours.
    begun: BTreeSet<String>,
    /// Lengths and checksums that files were about to have there that are not noted as sent.
    named: BTreeMap<String, BTreeSet<(u64, String)>>,
    /// Names that files have until they are whole, and their own paths.
    parts: BTreeMap<String, String>,
    lines: usize,
}

impl Ledger {
    /// Reads a text; `None` if it is of another space or place, or of none.
    #[must_use]
    pub fn read(text: &str, head: &Head) -> Option<Self> {
        Self::of_lines(text, |found| found == head)
    }

    /// Reads a text, wherever files were sent to; `None` if it is of another space, or of none.
    #[must_use]
    pub fn of_space(text: &str, space: &Id) -> Option<Self> {
        Self::of_lines(text, |found| found.space == *space)
    }

    fn of_lines(text: &str, fits: impl Fn(&Head) -> bool) -> Option<Self> {
        let mut lines = text.lines().filter_map(Line::decode);
        match lines.next() {
            Some(Line::Head(head)) if fits(&head) => {}
            _ => return None,
        }
        let mut ledger = Self::default();
        lines.for_each(|line| ledger.learn(line));
        Some(ledger)
    }

    /// Takes in what a line says.
    pub fn learn(&mut self, line: Line) {
        self.lines += 1;
        match line {
            Line::Head(_) => {}
            Line::Begun { path, part } if part.is_empty() => {
                if !self.sent.contains_key(&path) {
                    self.begun.insert(path);
                }
            }
            Line::Begun { path, part } => drop(self.parts.insert(part, path)),
            Line::Named { path, size, sum } => {
                if !self.sent.contains_key(&path) {
                    self.named.entry(path).or_default().insert((size, sum));
                }
            }
            Line::Sent(sent) => {
                self.begun.remove(&sent.path);
                self.named.remove(&sent.path);
                self.sent.insert(sent.path.clone(), sent);
            }
            Line::Dropped { part } => drop(self.parts.remove(&part)),
            Line::Lost { path } => {
                self.sent.remove(&path);
                self.begun.insert(path);
            }
        }
    }

    /// What is known of a file that was sent under this path last.
    #[must_use]
    pub fn sent(&self, path: &str) -> Option<&Sent> {
        self.sent.get(path)
    }

    /// True if this file has arrived as it is. A line of an earlier release is compared to a microsecond: what is below that stood for no other object.
    #[must_use]
    pub fn has(&self, path: &str, id: &Id, size: u64, changed_ns: i64) -> bool {
        let same_time = |sent: &Sent| match sent.of_all {
            true => sent.changed_ns == changed_ns,
            false => sent.changed_ns.div_euclid(1000) == changed_ns.div_euclid(1000),
        };
        self.sent(path).is_some_and(|sent| (&sent.id, sent.size) == (id, size) && same_time(sent))
    }

    /// True if what has this path there is from here, or may be.
    #[must_use]
    pub fn is_ours(&self, path: &str) -> bool {
        self.sent.contains_key(path) || self.begun.contains(path)
    }

    /// True if what has this path there is from here if it has so many bytes; with a checksum, if it has that one, too.
    #[must_use]
    pub fn was_named(&self, path: &str, size: u64, sum: Option<&str>) -> bool {
        let fits = |(length, known): &(u64, String)| *length == size && sum.is_none_or(|sum| sum == known);
        self.named.get(path).is_some_and(|named| named.iter().any(fits))
    }

    /// Names of what was begun and not ended, with the paths of the files.
    #[must_use]
    pub fn parts(&self) -> Vec<(String, String)> {
        self.parts.iter().map(|(part, path)| (part.clone(), path.clone())).collect()
    }

    /// The text anew, if much of it says nothing any more.
    #[must_use]
    pub fn compacted(&self, head: &Head) -> Option<String> {
        let named = || self.named.iter().flat_map(|(path, all)| all.iter().map(move |(size, sum)| (path, *size, sum)));
        let live = self.sent.len() + self.begun.len() + self.parts.len() + named().count();
        if self.lines <= 2 * live + MOST_STALE {
            return None;
        }
        let begun = self.begun.iter().map(|path| Line::Begun { path: path.clone(), part: String::new() });
        let parts = self.parts.iter().map(|(part, path)| Line::Begun { path: path.clone(), part: part.clone() });
        let sent = self.sent.values().cloned().map(Line::Sent);
        let named = named().map(|(path, size, sum)| Line::Named { path: path.clone(), size, sum: sum.clone() });
        Some(
            std::iter::once(Line::Head(head.clone()))
                .chain(sent)
                .chain(begun)
                .chain(parts)
                .chain(named)
                .map(|line| line.encode())
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> Head {
        Head { space: [1; 16], uri: "file:///archive/".into(), endpoint: None }
    }

    fn sent(path: &str, size: u64) -> Line {
        let there = Version { size, etag: None, modified_ns: Some(5) };
        Line::Sent(Sent { path: path.into(), id: [2; 16], size, changed_ns: 7, of_all: true, sum: "ab".into(), there })
    }

    fn begun(path: &str, part: &str) -> Line {
        Line::Begun { path: path.into(), part: part.into() }
    }

    fn text(lines: &[Line]) -> String {
        std::iter::once(&Line::Head(head())).chain(lines).map(Line::encode).collect()
    }

    #[test]
    fn a_file_has_arrived_only_as_it_was_noted() {
        let ledger = Ledger::read(&text(&[begun("a b\n", "p1"), sent("a b\n", 3)]), &head()).unwrap();
        assert!(ledger.has("a b\n", &[2; 16], 3, 7));
        assert!(!ledger.has("a b\n", &[2; 16], 4, 7) && !ledger.has("a b\n", &[2; 16], 3, 8) && !ledger.has("a b\n", &[3; 16], 3, 7));
        assert!(!ledger.has("a", &[2; 16], 3, 7));
        assert_eq!(ledger.parts(), [("p1".to_owned(), "a b\n".to_owned())]);
    }

    #[test]
    fn a_line_of_an_earlier_release_tells_the_latest_object_s_time() {
        let text = |line: Line| serde_json::to_string(&line).unwrap().replace(",\"of_all\":true", "").replace(":7,", ":1234567,");
        let line: Line = serde_json::from_str(&text(sent("a", 3))).unwrap();
        assert!(matches!(&line, Line::Sent(sent) if !sent.of_all && sent.changed_ns == 1_234_567));
        let mut ledger = Ledger::default();
        ledger.learn(line);
        assert!(ledger.has("a", &[2; 16], 3, 1_234_567) && ledger.has("a", &[2; 16], 3, 1_234_001));
        assert!(!ledger.has("a", &[2; 16], 3, 1_235_567) && !ledger.has("a", &[2; 16], 4, 1_234_567));
    }

    fn named(path: &str, size: u64, sum: &str) -> Line {
        Line::Named { path: path.into(), size, sum: sum.into() }
    }

    #[test]
    fn what_was_begun_under_a_name_of_its_own_makes_no_file_ours_and_has_not_arrived() {
        let mut ledger = Ledger::read(&text(&[begun("a", "p1"), begun("b", ""), Line::Dropped { part: "p1".into() }]), &head()).unwrap();
        assert!(!ledger.is_ours("a") && ledger.is_ours("b") && !ledger.is_ours("c") && ledger.sent("a").is_none());
        assert!(ledger.parts().is_empty());
        ledger.learn(sent("a", 1));
        assert!(ledger.is_ours("a") && ledger.has("a", &[2; 16], 1, 7));
        ledger.learn(Line::Lost { path: "a".into() });
        assert!(ledger.is_ours("a") && !ledger.has("a", &[2; 16], 1, 7));
    }

    #[test]
    fn what_was_about_to_have_its_name_is_known_by_its_bytes_until_it_has_arrived() {
        let mut ledger = Ledger::read(&text(&[named("a", 3, "x"), named("a", 4, "y")]), &head()).unwrap();
        assert!(!ledger.is_ours("a") && ledger.was_named("a", 3, None) && ledger.was_named("a", 4, Some("y")));
        assert!(!ledger.was_named("a", 3, Some("y")) && !ledger.was_named("a", 5, None) && !ledger.was_named("b", 3, None));
        ledger.learn(sent("a", 3));
        assert!(ledger.is_ours("a") && !ledger.was_named("a", 3, None));
    }

    #[test]
    fn another_space_s_ledger_is_none() {
        let written = text(&[sent("a", 1)]);
        assert_eq!(Ledger::read(&written, &Head { space: [9; 16], ..head() }), None);
        assert_eq!(Ledger::read(&written, &Head { endpoint: Some("http://s".into()), ..head() }), None);
        assert_eq!(Ledger::read("", &head()), None);
    }

    #[test]
    fn a_text_that_is_written_anew_says_the_same() {
        let mut lines: Vec<Line> = (0..2000).flat_map(|size| [begun("a", "p"), sent("a", size)]).collect();
        lines.extend([
            begun("b", "q"),
            begun("c", "r"),
            Line::Dropped { part: "r".into() },
            begun("d", ""),
            named("c", 3, "x"),
            named("c", 4, "y"),
        ]);
        let ledger = Ledger::read(&text(&lines), &head()).unwrap();
        let anew = Ledger::read(&ledger.compacted(&head()).unwrap(), &head()).unwrap();
        assert_eq!(Ledger { lines: 0, ..anew.clone() }, Ledger { lines: 0, ..ledger });
        assert_eq!(anew.compacted(&head()), None);
    }

    proptest! {
        /// A killed sender leaves a part of a line, and the next one begins a line of its own.
        #[test]
        fn a_line_that_is_cut_or_damaged_takes_no_other_along(cut in 0_usize..200, flipped in 0_usize..200) {
            let (first, last) = (sent("a", 1).encode(), sent("b", 2).encode());
            let mut middle = sent("lost", 9).encode().into_bytes();
            middle.truncate(cut.min(middle.len() - 1));
            if let Some(byte) = middle.get_mut(flipped) {
                *byte ^= 4;
            }
            let written = [Line::Head(head()).encode().as_bytes(), first.as_bytes(), &middle, b"\n", last.as_bytes()].concat();
            let ledger = Ledger::read(&String::from_utf8_lossy(&written), &head()).unwrap();
            prop_assert!(ledger.has("a", &[2; 16], 1, 7) && ledger.has("b", &[2; 16], 2, 7));
            // Without its end it is whole all the same.
            prop_assert!(ledger.sent("lost").is_none() || middle.len() + 1 == sent("lost", 9).encode().len());
        }
    }
}
