//! What the machine has recorded: its records, put one after the other, tell a story that holds together.
//!
//! Invariants: a checkpoint or migration begins once and ends once; its decision is durable before anything that follows from it is done.

use mend_job::event::{Publication, Record};
use mend_journal::Event;
use mend_messages::job::Rank;
use std::collections::BTreeMap;

/// What is under way, as the records of this life say; true once it is decided.
#[derive(Clone, Debug, Default)]
pub struct Story {
    checkpoints: BTreeMap<u64, bool>,
    migrations: BTreeMap<Rank, bool>,
    /// There was too little room when it was last told.
    pub short: bool,
}

impl Story {
    fn begins<K: Ord + std::fmt::Debug>(open: &mut BTreeMap<K, bool>, key: K, what: &str) -> Result<(), String> {
        let again = format!("{what} {key:?} is recorded to begin twice");
        open.insert(key, false).map_or(Ok(()), |_| Err(again))
    }

    fn is_decided<K: Ord + std::fmt::Debug>(open: &mut BTreeMap<K, bool>, key: K, durable: bool, what: &str) -> Result<(), String> {
        match open.get_mut(&key) {
            Some(decided) if durable && !*decided => *decided = true,
            _ => return Err(format!("the decision for {what} {key:?} is not durable, or not the only one")),
        }
        Ok(())
    }

    fn ends<K: Ord + std::fmt::Debug>(open: &mut BTreeMap<K, bool>, key: K, well: bool, what: &str) -> Result<(), String> {
        match open.remove(&key) {
            Some(decided) if decided || !well => Ok(()),
            found => Err(format!("{what} {key:?} is recorded to end, and before it was {found:?}")),
        }
    }

    /// One more record.
    pub fn take(&mut self, record: &Record) -> Result<(), String> {
        let (checkpoints, migrations) = (&mut self.checkpoints, &mut self.migrations);
        match record {
            Record::Happened { rank, durable, event, .. } => match (event, rank) {
                (Event::CheckpointAsked { checkpoint, .. }, _) => Self::begins(checkpoints, *checkpoint, "checkpoint"),
                (Event::CheckpointDecided { checkpoint }, _) => Self::is_decided(checkpoints, *checkpoint, *durable, "checkpoint"),
                (Event::CheckpointCommitted { checkpoint, .. }, _) => Self::ends(checkpoints, *checkpoint, true, "checkpoint"),
                (Event::MigrationAsked { .. }, Some(rank)) => Self::begins(migrations, *rank, "the migration of rank"),
                (Event::MigrationDecided { .. }, Some(rank)) => Self::is_decided(migrations, *rank, *durable, "the migration of rank"),
                (Event::MigrationCommitted { .. }, Some(rank)) => Self::ends(migrations, *rank, true, "the migration of rank"),
                _ => Ok(()),
            },
            Record::CheckpointFailed { checkpoint, .. } => Self::ends(checkpoints, *checkpoint, false, "checkpoint"),
            Record::MigrationUndone { rank, .. } => Self::ends(migrations, *rank, false, "the migration of rank"),
            Record::NodeLost { .. } | Record::NowhereToGo { .. } | Record::Cause(_) => Ok(()),
        }
    }

    /// Whether this checkpoint is under way.
    pub fn has_begun(&self, checkpoint: u64) -> bool {
        self.checkpoints.contains_key(&checkpoint)
    }

    /// A checkpoint is to be published.
    pub fn publishes(&self, publication: &Publication) -> Result<(), String> {
        let number = publication.number;
        if self.checkpoints.get(&number) != Some(&true) {
            return Err(format!("checkpoint {number} is published before that is recorded"));
        }
        if publication.periodic && self.short {
            return Err(format!("checkpoint {number} is periodic, and it was said that there is no room for it"));
        }
        Ok(())
    }

    /// The job is over.
    pub fn is_complete(&self) -> Result<(), String> {
        if self.checkpoints.is_empty() && self.migrations.is_empty() {
            return Ok(());
        }
        Err(format!("it is over, and its records have no end of checkpoints {:?}, migrations {:?}", self.checkpoints, self.migrations))
    }

    /// It is told that there is too little room, or enough again; `full`: there was too little.
    pub fn told_of_free_space(&mut self, short: bool, full: bool) -> Result<(), String> {
        if std::mem::replace(&mut self.short, short) == short {
            return Err("it is told twice how much room there is".into());
        }
        if short && !full {
            return Err("it is told that there is no room, and there was".into());
        }
        Ok(())
    }
}
