//! Compares a file without checksums with its source, block by block. What the source holds is what it is measured by, and remembered.
//!
//! A block comes from any of several mirrors. One that differs is damaged only if all mirrors hold the same there: where they differ from each other, nobody knows which is right.

use crate::check::{Checked, State};
use crate::failure::{DAMAGED, Failure, UNREACHABLE};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::medium::{Aligned, Block, Medium};
use crate::mirrors;
use crate::origin::Origin;
use crate::progress::Progress;
use crate::record_file;
use mend_data::damage::{self, Cause};
use mend_data::plan::Fault;
use mend_data::ranges::{self, Range};
use mend_data::record::Known;
use mend_data::sums::{BLOCK, Sum, Sums};
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
    let mut opened = mirrors::open(&mut record.sources, fetcher, checked.found.trusted).await;
    let size = record.size;
    let answer: Vec<bool> = opened.iter().map(Result::is_ok).collect();
    mirrors::agree(&record.sources, &mut opened, fetcher, false).await;
    let disagrees = |(at, origin): (usize, &Result<Origin, Fault>)| match origin {
        Err(Fault::Final(why)) if answer[at] => Some(format!("{}: {why}", record.sources[at].uri)),
        _ => None,
    };
    let mut disagree: Vec<String> = opened.iter().enumerate().filter_map(disagrees).collect();
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
    let differing: Vec<(u64, Sum)> =
        (0..).zip(&found).filter_map(|(index, one)| one.filter(|(_, same)| !same).map(|(sum, _)| (index, sum))).collect();
    if origins.iter().flatten().count() > 1 && disagree.is_empty() {
        for (block, sum) in &differing {
            if let Some(at) = mirrors::other(&origins, size, *block, *sum, fetcher).await {
                disagree.push(format!("{}: it holds other bytes than another one at offset {}", record.sources[at].uri, block * BLOCK));
                break;
            }
        }
    }
    if !differing.is_empty() && !disagree.is_empty() {
        let what = format!("{shown} differs from its sources, and they differ from each other: {}", disagree.join("; "));
        return Err(Failure::new(
            what,
            "`mend data sources FILE --remove URI` takes one out that is wrong; then repeat the command",
            DAMAGED,
        ));
    }
    mirrors::tell_of_failed(&shown, &record.sources, &fetched.blames, progress);
    let differs: Vec<u64> = differing.into_iter().map(|(index, _)| index).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::fetch::waited;
    use crate::settings::Settings;
    use mend_data::record::{Record, Source};
    use std::fs;

    const SIZE: u64 = 8 * BLOCK;

    /// Compares a file with two mirrors, each of which differs from the first mirror in these blocks.
    fn compared(file: &[u64], mirror: &[u64]) -> Result<Checked, String> {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str, differs: &[u64]| {
            let mut content: Vec<u8> = (0..SIZE).map(|at| (at / 3) as u8).collect();
            for block in differs {
                let at = (block * BLOCK) as usize;
                content[at..at + name.len()].copy_from_slice(name.as_bytes());
            }
            let path = directory.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let mirrors = [make("one", &[]), make("other", mirror)];
        let path = make("file", file);
        let sources = mirrors.iter().map(|path| Source { uri: format!("file://{}", path.display()), ..Source::default() }).collect();
        let record = Record { sources, size: SIZE, sums: Known::Nowhere };
        record_file::keep(&path, &File::open(&path).unwrap(), &record).map_err(|error| error.into_io()).unwrap();
        let mut checked = check::all(std::slice::from_ref(&path), 1).remove(0);
        let (fetcher, progress) = (Fetcher::new(Settings::small()), Arc::new(Progress::new(true)));
        let done = waited(compare(&mut checked, &fetcher, &progress));
        done.map(|()| checked).map_err(|failure| failure.what)
    }

    #[test]
    fn a_block_is_damaged_if_all_mirrors_say_so() {
        assert_eq!(compared(&[], &[]).unwrap().state, State::Whole);
        let checked = compared(&[2, 5], &[]).unwrap();
        let found: Vec<u64> = checked.damages.iter().map(|damage| damage.range.offset / BLOCK).collect();
        assert_eq!((checked.state, found), (State::Damaged, vec![2, 5]));
    }

    #[test]
    fn where_mirrors_differ_nobody_knows_which_is_right() {
        // Between those blocks by which mirrors are compared, and in one of them.
        for block in [2, 3] {
            let refused = compared(&[block], &[block]).unwrap_err();
            assert!(refused.contains("they differ from each other: file:///"), "{refused}");
        }
        // It is what one of them holds.
        assert_eq!(compared(&[], &[3]).unwrap().state, State::Whole);
        assert!(compared(&[], &[2]).map_or(true, |checked| checked.state == State::Whole));
    }
}
