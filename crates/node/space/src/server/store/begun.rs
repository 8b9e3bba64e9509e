//! Files that are being staged: what is known of them before they are whole, so that a command that was interrupted can go on.
//!
//! Their objects stay for `MEND_SPACE_BEGUN_S` after their last byte, also when the target is started anew. Nobody sees them.

use super::{ABANDONED, Failure, Store, database};
use mend_data::space::catalogue::Change;
use mend_data::space::target::Failed;
use mend_data::space::{Entry, Id};
use redb::{ReadableDatabase, TableDefinition, WriteTransaction};
use std::fs;
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime};

/// Entries of files that are being staged.
const BEGUN: TableDefinition<'_, &[u8; 16], &[u8]> = TableDefinition::new("begun");

/// How long their objects stay.
fn patience() -> Duration {
    // A value that makes no sense was refused by the command that staged.
    Duration::from_secs(mend_settings::SPACE_BEGUN.number().unwrap_or(86_400))
}

/// Makes the table.
pub(super) fn prepare(begun: &WriteTransaction) -> Result<(), Failure> {
    begun.open_table(BEGUN).map_err(database).map(drop)
}

/// The file is there, or gone.
pub(super) fn is_over(begun: &WriteTransaction, file: &Id) -> Result<(), Failure> {
    begun.open_table(BEGUN).map_err(database)?.remove(file).map_err(database)?;
    Ok(())
}

impl Store {
    /// Objects of this file will come, and stay for a while whatever becomes of who sends them.
    pub(super) fn begin(&self, entry: &Entry) -> Result<(), Failure> {
        let begun = self.database.begin_write().map_err(database)?;
        match self.known(&entry.id)? {
            Some(Change::Gone(_)) => return Err(Failure::new(Failed::Nonsense, "it was removed")),
            Some(Change::There(_)) => return Err(Failure::new(Failed::Nonsense, "it is there already")),
            None => {}
        }
        let row = postcard::to_stdvec(entry).map_err(|error| Failure::new(Failed::Nonsense, error.to_string()))?;
        begun.open_table(BEGUN).map_err(database)?.insert(&entry.id, &row[..]).map_err(database)?;
        begun.commit().map_err(database)?;
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.id, Instant::now());
        Ok(())
    }

    /// What is known of a file that is being staged.
    pub(super) fn being_staged(&self, file: &Id) -> Result<Option<Entry>, Failure> {
        let reading = self.database.begin_read().map_err(database)?;
        let row = reading.open_table(BEGUN).map_err(database)?.get(file).map_err(database)?;
        Ok(row.and_then(|row| postcard::from_bytes(row.value()).ok()))
    }

    /// When the target begins: true if an object without an entry stays, since its file may still be staged.
    pub(super) fn stays(&self, file: &Id, object: &fs::DirEntry) -> Result<bool, Failure> {
        let age = SystemTime::now().duration_since(object.metadata()?.modified()?).unwrap_or_default();
        let stays = age <= patience() && self.being_staged(file)?.is_some();
        if stays {
            self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(*file, Instant::now());
        }
        Ok(stays)
    }

    /// When the target begins: forgets those that no object is left of.
    pub(super) fn forget_begun(&self, begun: &WriteTransaction) -> Result<(), Failure> {
        let left = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let young = |row: &[u8]| {
            let made = postcard::from_bytes::<Entry>(row).map_or(0, |entry| u64::try_from(entry.made_ns).unwrap_or(0));
            now.saturating_sub(Duration::from_nanos(made)) <= patience()
        };
        let mut table = begun.open_table(BEGUN).map_err(database)?;
        table.retain(|file, row| left.contains_key(file) || young(row)).map_err(database)
    }

    /// How long a file that is being written may stand still.
    pub(super) fn stands_still(&self, file: &Id) -> Duration {
        if matches!(self.being_staged(file), Ok(Some(_))) { patience() } else { ABANDONED }
    }
}
