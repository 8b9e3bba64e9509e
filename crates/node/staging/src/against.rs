//! Compares a file without checksums with its source, block by block. What the source holds is what it is measured by, and remembered.
//!
//! A block comes from any of several mirrors. What differs from it is damaged, and what is missing is filled from it, only if all mirrors hold the same there: where they differ from each
//! other, nobody knows which is right.

use crate::check::{Checked, State};
use crate::failure::{DAMAGED, Failure};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::medium::{Aligned, Block, Medium};
use crate::mirrors::{self, Given};
use crate::progress::Progress;
use crate::record_file;
use mend_data::damage::{self, Cause};
use mend_data::ranges::{self, Range};
use mend_data::record::Known;
use mend_data::sums::{BLOCK, Sum, Sums};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Comparing {
    medium: Option<Medium>,
    size: u64,
    progress: Arc<Progress>,
    /// Of the source's blocks.
    found: Mutex<Vec<Option<Compared>>>,
}

/// What the file has of a block.
#[derive(Clone, Copy, PartialEq)]
enum Own {
    Same,
    /// It ends within the block or before it, and has nothing else.
    Lacks,
    Differs,
}

#[derive(Clone, Copy)]
struct Compared {
    sum: Sum,
    own: Own,
    /// The mirror that sent it.
    by: usize,
}

impl Comparing {
    fn found(&self) -> MutexGuard<'_, Vec<Option<Compared>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Comparing {
    fn wants(&self, block: u64) -> bool {
        self.found().get(block as usize).is_some_and(Option::is_none)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        let mut memory = Aligned::new();
        let own = match &self.medium {
            Some(medium) => medium.read(ranges::block(block, self.size), &mut memory)?,
            None => Block::Read(&[]),
        };
        let own = match own {
            Block::Read(own) if own == bytes => Own::Same,
            // What a short file lacks of a block is missing, not different.
            Block::Read(own) if bytes.starts_with(own) => Own::Lacks,
            _ => Own::Differs,
        };
        self.progress.came(bytes.len() as u64);
        self.found()[block as usize] = Some(Compared { sum: Sum::of(bytes), own, by: usize::MAX });
        Ok(Taken::Good)
    }

    fn came_from(&self, source: usize, block: u64) {
        if let Some(compared) = &mut self.found()[block as usize] {
            compared.by = source;
        }
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
    let differ = mirrors::agree(&record.sources, &mut opened, fetcher, false).await.differ;
    let told = |at: &usize| opened[*at].as_ref().err().map(|fault| format!("{}: {}", record.sources[*at].uri, mirrors::blame(fault)));
    let mut disagree: Vec<String> = differ.iter().filter_map(told).collect();
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
        let (code, hint) = mirrors::no_help(&fetched.blames);
        return Err(Failure::new(what, hint, code));
    }
    // What is compared with a source of two versions is neither right nor wrong.
    mirrors::unchanged(&record.sources, &origins, &fetched.used, fetcher)
        .await
        .map_err(|unsure| unsure.failure(&shown, "compared with it", "repeat the command to compare with what it holds now", false))?;
    let found = std::mem::take(&mut *comparing.found());
    let blocks = || (0..).zip(found.iter().flatten());
    // What the file has not itself is to come from a mirror.
    let needed: Vec<Given> =
        blocks().filter(|(_, one)| one.own != Own::Same).map(|(block, one)| Given { block, sum: one.sum, by: one.by }).collect();
    if disagree.is_empty() {
        let asked = (0..origins.len()).filter(|at| !fetched.out[*at]).collect();
        if let Some((at, block)) = mirrors::other(&origins, asked, size, &needed, fetcher).await {
            disagree.push(format!("{}: it holds other bytes than another one at offset {}", record.sources[at].uri, block * BLOCK));
        }
    }
    if !needed.is_empty() && !disagree.is_empty() {
        let what = format!("{shown} differs from its sources, and they differ from each other: {}", disagree.join("; "));
        return Err(Failure::new(
            what,
            "`mend data sources FILE --remove URI` takes one out that is wrong; then repeat the command",
            DAMAGED,
        ));
    }
    mirrors::tell_of_failed(&shown, &record.sources, &fetched.blames, progress);
    let differs: Vec<u64> = blocks().filter(|(_, one)| one.own == Own::Differs).map(|(block, _)| block).collect();
    record.sums = Known::Here(Sums::new(found.iter().flatten().map(|one| one.sum).collect()));
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
        compared_with_length(SIZE, file, mirror)
    }

    fn compared_with_length(length: u64, file: &[u64], mirror: &[u64]) -> Result<Checked, String> {
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
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
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
        // In what the file has not.
        for (length, block) in [(2 * BLOCK, 2), (2 * BLOCK, 3), (3 * BLOCK + 5, 3), (4 * BLOCK + 5, 4)] {
            let refused = compared_with_length(length, &[], &[block]).unwrap_err();
            assert!(refused.contains("they differ from each other: file:///"), "{refused}");
        }
        assert_eq!(compared_with_length(3 * BLOCK + 5, &[], &[]).unwrap().state, State::Damaged);
        // It is what one of them holds.
        assert_eq!(compared(&[], &[3]).unwrap().state, State::Whole);
        assert!(compared(&[], &[2]).map_or(true, |checked| checked.state == State::Whole));
    }
}
