//! What a target finds out about its own objects.

use super::{Failure, LOG, Store, database};
use mend_data::space::catalogue::Change;
use mend_data::space::layout::Layout;
use mend_data::space::target::{Failed, Lacking, MAX_PAYLOAD};
use mend_data::space::{BLOCK, Id, block_sum};
use redb::ReadableDatabase;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Bytes of one object's name in an answer, at most.
const NAMED: usize = 16 + 3;

impl Store {
    pub(super) fn lacking(&self, at: u16) -> Result<Vec<u8>, Failure> {
        let mut lacking: Lacking = Vec::new();
        let reading = self.database.begin_read().map_err(database)?;
        let log = reading.open_table(LOG).map_err(database)?;
        for row in log.range(0..).map_err(database)? {
            let (_, row) = row.map_err(database)?;
            let Ok(Change::There(entry)) = postcard::from_bytes::<Change>(row.value()) else { continue };
            if let Some(file) = entry.written() {
                let lost = |position: &u16| !self.path(&entry.id, *position).exists() || self.is_short(&entry.id, *position);
                lacking.extend(file.positions(at).filter(lost).map(|position| (entry.id, position)));
            }
            let Some(file) = entry.file() else { continue };
            let layout = Layout::of(file);
            for position in file.positions(at) {
                let must = layout.object_length(position.into());
                let has = fs::metadata(self.path(&entry.id, position)).map(|found| found.len());
                if must > 0 && has.ok() != Some(must) {
                    lacking.push((entry.id, position));
                }
            }
            if lacking.len() >= MAX_PAYLOAD as usize / NAMED {
                // The rest is found when these are there again.
                break;
            }
        }
        postcard::to_stdvec(&lacking).map_err(|error| Failure::new(Failed::Nonsense, error.to_string()))
    }

    pub(super) fn verify(&self, file: &Id, position: u16, first: u64, count: u32) -> Result<Vec<u8>, Failure> {
        let known = match self.known(file)? {
            Some(Change::There(entry)) => Some(*entry),
            _ => self.being_staged(file)?,
        };
        let entry = known.ok_or_else(|| Failure::new(Failed::Absent, "it does not know this file"))?;
        if entry.written().is_some() {
            return self.verify_written(file, position, first, count);
        }
        let layout = entry.file().map(Layout::of).ok_or_else(|| Failure::new(Failed::Nonsense, "it is a directory"))?;
        let length = layout.object_length(usize::from(position));
        let object = File::open(self.path(file, position))?;
        let mut sums = Vec::new();
        for number in first..first.saturating_add(count.into()) {
            let offset = number.saturating_mul(BLOCK);
            if offset >= length {
                break;
            }
            let mut bytes = vec![0; (length - offset).min(BLOCK) as usize];
            let index = layout.file_offset(usize::from(position), offset) / BLOCK;
            let sum = object.read_exact_at(&mut bytes, offset).map_or(0, |()| block_sum(file, index, &bytes));
            sums.extend_from_slice(&sum.to_le_bytes());
        }
        Ok(sums)
    }
}
