//! What is known of entries, in memory, and how it is written down in the bucket: an object for each.
//!
//! ```text
//! entries/ID    1, a checksum, then what is known of the entry last, and places of its objects that are here
//! begun/ID      1, a checksum, then the entry of a file that is being staged
//! ```
//! Faults assumed: an object has other bytes than were stored.

use mend_data::space::catalogue::Change;
use mend_data::space::layout::Layout;
use mend_data::space::target::CHANGES_BYTES;
use mend_data::space::{Entry, Id};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_128;

/// Layout of what is stored.
const FORMAT: u8 = 1;
/// Bytes before what is stored.
const HEAD: usize = 1 + 16;

/// As it is stored.
pub fn written_down<T: Serialize>(what: &T) -> Vec<u8> {
    let body = postcard::to_stdvec(what).unwrap_or_default();
    [&[FORMAT][..], &xxh3_128(&body).to_le_bytes(), &body].concat()
}

/// What was stored; `None` if it is not as it was.
pub fn read<T: DeserializeOwned>(stored: &[u8]) -> Option<T> {
    let (head, body) = stored.split_at_checked(HEAD)?;
    let right = head[0] == FORMAT && head[1..] == xxh3_128(body).to_le_bytes();
    right.then(|| postcard::from_bytes(body).ok()).flatten()
}

/// What is known of an entry.
#[derive(Clone, Debug)]
pub struct Known {
    pub change: Change,
    /// Places of its objects that are here.
    pub held: Vec<u16>,
}

impl Known {
    /// Its entry, if it is not gone.
    pub fn entry(&self) -> Option<&Entry> {
        match &self.change {
            Change::There(entry) => Some(entry),
            Change::Gone(_) => None,
        }
    }

    /// Bytes that its objects have here.
    fn bytes(&self) -> u64 {
        let layout = self.entry().and_then(Entry::file).map(Layout::of);
        layout.map_or(0, |layout| self.held.iter().map(|position| layout.object_length((*position).into())).sum())
    }
}

/// All of it, in the order in which it came.
#[derive(Debug, Default)]
pub struct Catalogue {
    known: HashMap<Id, (u64, Known)>,
    log: BTreeMap<u64, Id>,
    last: u64,
    used: u64,
}

impl Catalogue {
    /// Takes something in, instead of what was known of the entry before.
    pub fn learn(&mut self, id: Id, known: Known) {
        self.last += 1;
        self.used += known.bytes();
        if let Some((number, before)) = self.known.insert(id, (self.last, known)) {
            self.log.remove(&number);
            self.used = self.used.saturating_sub(before.bytes());
        }
        self.log.insert(self.last, id);
    }

    pub fn get(&self, id: &Id) -> Option<&Known> {
        self.known.get(id).map(|(_, known)| known)
    }

    /// All entries that are not gone.
    pub fn entries(&self) -> impl Iterator<Item = (&Entry, &[u16])> {
        self.known.values().filter_map(|(_, known)| Some((known.entry()?, &known.held[..])))
    }

    /// Bytes that objects have here.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// What came after this number, in order: up to which, whether there is more, and what.
    pub fn after(&self, number: u64) -> (u64, bool, Vec<Change>) {
        let (mut upto, mut bytes, mut changes) = (number, 0, Vec::new());
        for (number, id) in self.log.range(number.saturating_add(1)..) {
            if bytes > CHANGES_BYTES {
                return (upto, true, changes);
            }
            let Some(known) = self.get(id) else { continue };
            bytes += postcard::experimental::serialized_size(&known.change).unwrap_or(CHANGES_BYTES);
            changes.push(known.change.clone());
            upto = *number;
        }
        (upto, false, changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_data::space::{File, Kind};

    fn known(id: u8, version: u64) -> (Id, Known) {
        let file = File { size: 5, stripe: 1 << 20, targets: vec![0], keepers: vec![0], sources: Vec::new(), replicas: Vec::new() };
        let entry = Entry { id: [id; 16], version, path: format!("a{id}"), made_ns: 0, kind: Kind::File(file) };
        ([id; 16], Known { change: Change::There(Box::new(entry)), held: vec![0] })
    }

    #[test]
    fn what_was_stored_is_read_and_what_was_changed_is_not() {
        let stored = written_down(&known(1, 1).1.change);
        assert_eq!(read::<Change>(&stored), Some(known(1, 1).1.change));
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 4;
            assert_eq!(read::<Change>(&damaged), None, "byte {at}");
        }
        assert_eq!(read::<Change>(&stored[..9]), None);
    }

    #[test]
    fn changes_are_told_in_order_and_once() {
        let mut catalogue = Catalogue::default();
        for (id, version) in [(1, 1), (2, 1), (1, 2)] {
            let (id, known) = known(id, version);
            catalogue.learn(id, known);
        }
        let (upto, more, changes) = catalogue.after(0);
        assert_eq!((upto, more, catalogue.used()), (3, false, 10));
        assert_eq!(changes, [known(2, 1).1.change, known(1, 2).1.change]);
        catalogue.learn([2; 16], Known { change: Change::Gone([2; 16]), held: Vec::new() });
        assert_eq!(catalogue.after(3), (4, false, vec![Change::Gone([2; 16])]));
        assert_eq!((catalogue.used(), catalogue.entries().count()), (5, 1));
    }
}
