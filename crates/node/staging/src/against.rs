//! Compares a file without checksums with its source, block by block. What the source holds is what it is measured by, and remembered.

use crate::check::{Checked, State};
use crate::failure::{Failure, UNREACHABLE};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::medium::{Aligned, Block, Medium};
use crate::mirrors;
use crate::progress::Progress;
use crate::record_file;
use mend_data::damage::{self, Cause};
use mend_data::ranges::{self, Range};
use mend_data::record::Known;
use mend_data::sums::{Sum, Sums};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

struct Comparing {
    medium: Option<Medium>,
    size: u64,
    progress: Arc<Progress>,
    /// Of the source's blocks, and whether the file has the same.
    found: Mutex<Vec<Option<(Sum, bool)>>>,
}

impl Sink for Comparing {
    fn wants(&self, block: u64) -> bool {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).get(block as usize).is_some_and(Option::is_none)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        let mut memory = Aligned::new();
        let own = match &self.medium {
            Some(medium) => medium.read(ranges::block(block, self.size), &mut memory)?,
            None => Block::Read(&[]),
        };
        // What a short file lacks of a block is missing, not different.
        let same = matches!(own, Block::Read(own) if bytes.starts_with(own));
        self.progress.came(bytes.len() as u64);
        self.found.lock().unwrap_or_else(PoisonError::into_inner)[block as usize] = Some((Sum::of(bytes), same));
        Ok(Taken::Good)
    }
}

/// Compares a checked file that has sources and no checksums with them.
pub async fn compare(checked: &mut Checked, fetcher: &Fetcher, progress: &Arc<Progress>) -> Result<(), Failure> {
    let Some(record) = checked.found.record.as_mut().filter(|record| record.known().is_none()) else { return Ok(()) };
    if checked.state == State::Failed {
        return Ok(());
    }
    let shown = checked.path.display().to_string();
    let opened = mirrors::open(&mut record.sources, fetcher, checked.found.trusted).await;
    let size = record.size;
    let origins: Origins = Arc::new(opened);
    progress.wants(size, 0);
    progress.names(&shown);
    let medium = if checked.state == State::Missing {
        None
    } else {
        Some(Medium::open(&checked.path).map_err(|error| Failure::system(&shown, &error))?)
    };
    let found = Mutex::new(vec![None; ranges::blocks(size) as usize]);
    let comparing = Arc::new(Comparing { medium, size, progress: progress.clone(), found });
    let whole = vec![Range { offset: 0, length: size }];
    let fetched = fetcher.fetch(&origins, size, whole, &comparing).await.map_err(|error| Failure::system(&shown, &error))?;
    if !fetched.lost.is_empty() || origins.iter().all(Result::is_err) {
        let what = format!("{shown} cannot be compared with {}", mirrors::told(&record.sources, &fetched.blames));
        return Err(Failure::new(what, "", UNREACHABLE));
    }
    // What is compared with a source of two versions is neither right nor wrong.
    mirrors::unchanged(&record.sources, &origins, &fetched.used, fetcher)
        .await
        .map_err(|unsure| unsure.failure(&shown, "compared with it", "repeat the command to compare with what it holds now", false))?;
    let found = std::mem::take(&mut *comparing.found.lock().unwrap_or_else(PoisonError::into_inner));
    let differs: Vec<u64> = (0..).zip(&found).filter(|(_, one)| one.is_some_and(|(_, same)| !same)).map(|(index, _)| index).collect();
    record.sums = Known::Here(Sums::new(found.into_iter().flatten().map(|(sum, _)| sum).collect()));
    if checked.state == State::Missing {
        return Ok(());
    }
    if differs.is_empty() && checked.damages.is_empty() {
        checked.state = State::Whole;
        // Known from now on. Who may not write it compares it again the next time.
        if let Ok(file) = File::open(&checked.path) {
            let _ = record_file::keep(&checked.path, &file, record);
        }
        return Ok(());
    }
    let mut bad: Vec<(Range, Cause)> =
        ranges::of_blocks(differs, size.min(checked.size)).into_iter().map(|range| (range, Cause::Differs)).collect();
    bad.retain(|(range, _)| !checked.damages.iter().any(|damage| damage.range.offset < range.end() && range.offset < damage.range.end()));
    bad.extend(checked.damages.iter().map(|damage| (damage.range, damage.cause)));
    checked.damages = damage::of_file(checked.size, size, &bad);
    checked.state = State::Damaged;
    Ok(())
}
