//! How a target that begins hears of its entries: those of a snapshot that a listing says are as they were, and the others one by one.
//!
//! Faults assumed: the snapshot is old, damaged or not there, which costs time alone; an entry is damaged, and is told of by other targets.

use super::{Store, held};
use crate::catalogue::{Known, read, written_down};
use mend_data::space::Id;
use mend_data::space::catalogue::Change;
use mend_space::server::Failure;
use mend_wire::secret::from_hex;
use std::collections::HashMap;
use std::sync::PoisonError;

/// A snapshot is made anew if so many entries were read one by one.
const MIN_NEW_ENTRIES: usize = 256;
const NAME: &str = "snapshot";

/// Entries with the tags of their objects, and the places of their objects that are here.
pub(super) type Snapshot = Vec<(Id, String, Change, Vec<u16>)>;

impl Store {
    pub(super) fn read_catalogue(&self) -> Result<(), Failure> {
        let listed = self.bucket.list("entries", usize::MAX)?;
        let stored = if listed.len() < MIN_NEW_ENTRIES { None } else { self.bucket.get_all(&[NAME.to_owned()])?.pop().flatten() };
        let kept: Snapshot = stored.as_deref().and_then(read).unwrap_or_default();
        let kept: HashMap<Id, (String, Change, Vec<u16>)> =
            kept.into_iter().map(|(id, tag, change, held)| (id, (tag, change, held))).collect();
        let (mut snapshot, mut others) = (Snapshot::new(), Vec::new());
        for found in listed {
            let Some(id) = found.name.strip_prefix("entries/").and_then(from_hex::<16>) else { continue };
            match kept.get(&id).filter(|(tag, _, _)| found.tag.as_ref() == Some(tag)) {
                Some((tag, change, held)) => snapshot.push((id, tag.clone(), change.clone(), held.clone())),
                None => others.push((id, found.tag, found.name)),
            }
        }
        let names: Vec<String> = others.iter().map(|(_, _, name)| name.clone()).collect();
        let mut untold = Vec::new();
        for ((id, tag, name), stored) in others.into_iter().zip(self.bucket.get_all(&names)?) {
            match (stored.as_deref().and_then(read::<(Change, Vec<u16>)>), tag) {
                (Some((change, held)), Some(tag)) => snapshot.push((id, tag, change, held)),
                (Some((change, held)), None) => untold.push((id, Known { change, held })),
                // Other targets know the entry, too; this one is found to lack its objects.
                (None, _) => mend_report::tell!("mend-bucket: {}: {name} is not as it was stored", self.bucket.shown()),
            }
        }
        let mut catalogue = self.catalogue.write().unwrap_or_else(PoisonError::into_inner);
        for (id, _, change, held) in &snapshot {
            catalogue.learn(*id, Known { change: change.clone(), held: held.clone() });
        }
        untold.into_iter().for_each(|(id, known)| catalogue.learn(id, known));
        if names.len() >= MIN_NEW_ENTRIES {
            *held(&self.snapshot) = snapshot;
        }
        Ok(())
    }

    /// Stores what was read, for whoever serves the target next.
    pub(super) fn keep_snapshot(&self) -> Result<(), Failure> {
        let snapshot = std::mem::take(&mut *held(&self.snapshot));
        if snapshot.is_empty() { Ok(()) } else { self.bucket.put_long(NAME, written_down(&snapshot)) }
    }
}
