//! Files that are being staged, so that a command that was interrupted can go on, and what was left behind.
//!
//! Their chunks stay for `MEND_SPACE_BEGUN_S` after their last byte, also when the target is started anew. Nobody sees them.

use super::{Store, failed, held};
use crate::catalogue::read;
use crate::writes::chunk_of;
use mend_data::space::catalogue::Change;
use mend_data::space::target::Failed;
use mend_data::space::{Entry, Id};
use mend_space::server::Failure;
use mend_wire::secret::{from_hex, to_hex};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long a file that is being written, and of which nothing else is known, may stand still before its objects go.
const ABANDONED: Duration = Duration::from_secs(600);

/// How long objects of a file stay that is being staged.
fn patience() -> Duration {
    // A value that makes no sense was refused by the command that staged.
    Duration::from_secs(mend_settings::SPACE_BEGUN.number().unwrap_or(86_400))
}

impl Store {
    /// A file got something just now.
    pub(super) fn touch(&self, file: &Id) {
        held(&self.begun).entry(*file).or_insert((None, Instant::now())).1 = Instant::now();
    }

    /// Objects of this file will come, and stay for a while whatever becomes of who sends them.
    pub(super) fn begin(&self, entry: &Entry) -> Result<(), Failure> {
        let _one = held(self.lock_of(&entry.id));
        match self.known(&entry.id).map(|known| known.change) {
            Some(Change::Gone(_)) => return Err(failed(Failed::Nonsense, "it was removed")),
            Some(Change::There(_)) => return Err(failed(Failed::Nonsense, "it is there already")),
            None => {}
        }
        self.write_down("begun", &entry.id, entry)?;
        self.is_owner(false)?;
        held(&self.begun).insert(entry.id, (Some(entry.clone()), Instant::now()));
        Ok(())
    }

    /// What is known of a file that is being staged.
    pub(super) fn being_staged(&self, file: &Id) -> Option<Entry> {
        held(&self.begun).get(file).and_then(|(entry, _)| entry.clone())
    }

    /// The file is there.
    pub(super) fn is_over(&self, file: &Id) {
        if let Some((Some(_), _)) = held(&self.begun).remove(file) {
            // One that stays goes when the target begins anew.
            let _ = self.bucket.delete(vec![format!("begun/{}", to_hex(file))], Some(self.bucket.limit()));
        }
    }

    /// When the target begins: files that were being staged.
    pub(super) fn read_begun(&self) -> Result<(), Failure> {
        let listed = self.bucket.list("begun", usize::MAX)?;
        let names: Vec<String> = listed.iter().map(|found| found.name.clone()).collect();
        for (found, stored) in listed.iter().zip(self.bucket.get_all(&names)?) {
            let Some(entry) = stored.as_deref().and_then(read::<Entry>).filter(|entry| self.known(&entry.id).is_none()) else { continue };
            if found.age <= patience() {
                held(&self.begun).insert(entry.id, (Some(entry), Instant::now()));
            }
        }
        Ok(())
    }

    /// Removes what was begun and stands still.
    pub(super) fn sweep(&self) {
        let old: Vec<Id> = {
            let mut begun = held(&self.begun);
            let stands_still =
                |(entry, since): &(Option<Entry>, Instant)| since.elapsed() > if entry.is_some() { patience() } else { ABANDONED };
            let old: Vec<Id> = begun.iter().filter(|(_, one)| stands_still(one)).map(|(id, _)| *id).collect();
            begun.retain(|id, _| !old.contains(id));
            old
        };
        for id in old {
            let _ = self.discard(&id);
        }
    }

    /// A file will not be; or a copy of it that was begun here.
    pub(super) fn discard(&self, file: &Id) -> Result<(), Failure> {
        let _one = held(self.lock_of(file));
        held(&self.begun).remove(file);
        match self.known(file) {
            Some(known) if known.entry().is_some() => self.remove_objects(file, &known.held),
            _ => self.remove_all_of(file),
        }
    }

    /// When the target begins: removes what belongs to nothing that is known, if nobody can be writing it, and what is left of files that are gone.
    pub(super) fn tidy(&self) -> Result<(), Failure> {
        let (mut gone, mut others) = (HashSet::new(), Vec::new());
        for below in ["objects", "sums", "begun"] {
            for found in self.bucket.list(below, usize::MAX)? {
                let Some(id) = found.name.split('/').nth(1).and_then(from_hex::<16>) else { continue };
                let position = chunk_of(&found.name).map(|chunk| chunk.position);
                match self.known(&id) {
                    Some(known) if known.entry().is_none() => drop(gone.insert(id)),
                    // A second copy that was begun, or one that came onto others.
                    Some(known) if position.is_some_and(|position| !known.held.contains(&position)) && found.age > ABANDONED => {
                        others.push(found.name)
                    }
                    Some(_) if below == "begun" => others.push(found.name),
                    Some(_) => {}
                    None if found.age > patience().max(ABANDONED) && self.being_staged(&id).is_none() => others.push(found.name),
                    None => {}
                }
            }
        }
        if !others.is_empty() {
            self.bucket.delete(others, None)?;
        }
        gone.iter().try_for_each(|file| self.remove_all_of(file))
    }
}
