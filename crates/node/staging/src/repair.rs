//! `mend data repair`: fetches what is damaged, and only that.
//!
//! ```text
//! damaged range ──whole blocks──► source ──► sum as it was? ──► within the file: written in place
//!                                                          └──► behind its end: a partial file, then in place from front to back
//! ```
//! In place, since a job that has the file open keeps its inode, and since only a write makes a disk, Lustre or ext4 give a lost block another place. Nothing is
//! written that is not verified first. A reader sees a block's old bytes or its new ones, page by page; the file grows from front to back, so that what
//! can be read is right at any moment. Faults assumed: killed at any step, which the next repair finds as damage again; sources that changed: they are
//! named and never used.

use crate::check::{self, Checked, Identity, State};
use crate::failure::{DAMAGED, FAILED, Failure};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::medium::{Aligned, Block, Medium, of_medium};
use crate::mirrors;
use crate::names::followed;
use crate::partial::Partial;
use crate::progress::Progress;
use crate::record_file;
use crate::stage;
use mend_data::damage;
use mend_data::ranges::{self, Range};
use mend_data::record::Record;
use mend_data::resume::Begun;
use mend_data::sums::{BLOCK, Sum, Sums};
use rustix::fs::{Timespec, Timestamps};
use serde::Serialize;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page: no block of a file system on this architecture is longer.
const PAGE: u64 = 4096;

/// What became of a damaged file.
#[derive(Debug, Serialize)]
pub struct Repaired {
    pub path: PathBuf,
    /// Ranges that were put in.
    pub ranges: Vec<Range>,
    /// Bytes that came from its sources.
    pub fetched: u64,
    /// Bytes that were cut off behind its end.
    pub cut: u64,
    /// There were no checksums to verify them by: the source's version is all that speaks for them.
    pub unverified: bool,
}

struct Patching {
    file: File,
    size: u64,
    /// Blocks that end before this are written in place at once.
    within: u64,
    sums: Option<Sums>,
    partial: Option<Partial>,
    progress: Arc<Progress>,
    fetched: AtomicU64,
}

impl Patching {
    fn is_behind(&self, block: u64) -> bool {
        ranges::block(block, self.size).end() > self.within
    }
}

impl Sink for Patching {
    fn wants(&self, block: u64) -> bool {
        // What an earlier repair has kept is for behind the end alone.
        !self.is_behind(block) || self.partial.as_ref().is_none_or(|partial| !partial.has(block))
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        let sum = Sum::of(bytes);
        if let Some(why) = self.sums.as_ref().and_then(|sums| stage::differs(sums, block, sum)) {
            return Ok(Taken::Wrong(why));
        }
        let range = ranges::block(block, self.size);
        match &self.partial {
            Some(partial) if self.is_behind(block) => partial.put(block, bytes, sum)?,
            _ => put(&self.file, bytes, range, self.size)?,
        }
        self.fetched.fetch_add(range.length, Ordering::Relaxed);
        self.progress.came(range.length);
        Ok(Taken::Good)
    }
}

/// Repairs what a check found.
pub async fn one(checked: &Checked, fetcher: &Fetcher, progress: &Arc<Progress>) -> Result<Option<Repaired>, Failure> {
    let shown = checked.path.display().to_string();
    let Some(record) = &checked.found.record else {
        return match checked.state {
            State::Failed => Err(Failure::new(format!("{shown}: {}", checked.remarks.join("; ")), "", FAILED)),
            State::Damaged => Err(check::unknown(&checked.path)),
            _ => Ok(None),
        };
    };
    match checked.state {
        State::Missing => back(checked, record, fetcher, progress).await.map(Some),
        State::Damaged => patch(checked, record, fetcher, progress).await.map(Some),
        State::Failed => Err(Failure::new(format!("{shown}: {}", checked.remarks.join("; ")), "", FAILED)),
        State::Whole | State::Readable | State::Unknown => Ok(None),
    }
}

/// A file that is gone is staged again, and must be what it was.
async fn back(checked: &Checked, record: &Record, fetcher: &Fetcher, progress: &Arc<Progress>) -> Result<Repaired, Failure> {
    let sums = record.known().cloned();
    let unverified = sums.is_none();
    let file = stage::File {
        sources: record.sources.clone(),
        // The file of a link comes back, not a file in the place of the link.
        path: followed(&checked.path),
        sums,
        trusted: checked.found.trusted,
        force: false,
        space: None,
    };
    let staged = stage::one(file, fetcher, progress).await?;
    Ok(Repaired { path: staged.path, ranges: vec![Range { offset: 0, length: staged.size }], fetched: staged.fetched, cut: 0, unverified })
}

async fn patch(checked: &Checked, record: &Record, fetcher: &Fetcher, progress: &Arc<Progress>) -> Result<Repaired, Failure> {
    let shown = checked.path.display().to_string();
    let system = |error: &io::Error| Failure::system(&shown, error);
    let size = record.size;
    let needed = damage::to_fetch(&checked.damages, size);
    let file = OpenOptions::new().read(true).write(true).open(&checked.path).map_err(|error| system(&error))?;
    let before = file.metadata().map_err(|error| system(&error))?;
    let recorded = record_file::load(&checked.path).map_err(|error| system(&error))?.record;
    if checked.identity.is_some_and(|then| then != Identity::of(&before, recorded.as_ref())) {
        let what = format!("{shown}: it changed meanwhile: another file or record is there than was checked; nothing was done to it");
        return Err(Failure::new(what, "repeat the command", FAILED));
    }
    let within = before.len();
    // From here on the file grows; a block that it has only a part of belongs to that.
    let edge = if within >= size { size } else { within / BLOCK * BLOCK };
    let behind: Vec<Range> =
        needed.iter().map(|range| Range::between(range.offset.max(edge), range.end())).filter(|range| range.length > 0).collect();
    let mut sources = record.sources.clone();
    let mut origins = if needed.is_empty() { Vec::new() } else { mirrors::open(&mut sources, fetcher, checked.found.trusted).await };
    // Without checksums nothing else tells that mirrors differ.
    mirrors::agree(&sources, &mut origins, fetcher, record.known().is_some()).await;
    let partial = match behind.is_empty() || origins.iter().all(Result::is_err) {
        true => None,
        false => {
            // As in staging: without checksums a block that is kept may be of any mirror that was asked, and of no other.
            let verified = record.known().is_some();
            let asked = sources.iter().zip(&origins).filter(|(_, origin)| verified || origin.is_ok());
            let begun = Begun { sources: asked.map(|(source, _)| source.clone()).collect(), size };
            let partial = Partial::begin(&followed(&checked.path), &begun, record.known());
            Some(partial.map_err(|error| error.told(&shown))?)
        }
    };
    let within_edge: Vec<Range> =
        needed.iter().map(|range| Range::between(range.offset, range.end().min(edge))).filter(|range| range.length > 0).collect();
    let mut wanted = within_edge.clone();
    wanted.extend(partial.as_ref().map_or_else(|| behind.clone(), |partial| partial.missing(&behind)));
    let wanted = ranges::merged(wanted);
    progress.names(&shown);
    progress.wants(ranges::total(&needed), ranges::total(&needed) - ranges::total(&wanted));
    let sums = record.known().cloned();
    let unverified = sums.is_none() && !needed.is_empty();
    let patching =
        Arc::new(Patching { file, size, within: within.min(size), sums, partial, progress: progress.clone(), fetched: AtomicU64::new(0) });
    let origins: Origins = Arc::new(origins);
    let fetched = fetcher.fetch(&origins, size, wanted, &patching).await.map_err(|error| {
        let hint = "the file is as it was, but for blocks that are right now; `mend data stage --force` fetches it into a new file";
        Failure { hint: hint.to_owned(), ..Failure::system(format!("{shown} cannot be written to"), &error) }
    })?;
    let Some(Patching { file, partial, sums, fetched: count, .. }) = Arc::into_inner(patching) else {
        return Err(Failure::new(format!("{shown} is still being repaired"), "", FAILED));
    };
    // Each block was compared where checksums are known; where none are, the source's version speaks for them.
    let still = if unverified { mirrors::unchanged(&sources, &origins, &fetched.used, fetcher).await } else { Ok(()) };
    if let Err(unsure) = still {
        let ended = || {
            finish(&file, None, &before)?;
            partial.map_or(Ok(()), Partial::discard)
        };
        tokio::task::block_in_place(ended).map_err(|error| system(&error))?;
        let failure = unsure.failure(&shown, "repaired", "`mend data stage --force` fetches all of it", false);
        let what = format!(
            "{}, and there are no checksums: {} bytes that were put in may be what the source holds now",
            failure.what,
            ranges::total(&within_edge)
        );
        return Err(Failure { what, ..failure });
    }
    let lost = fetched.lost;
    let ended = || {
        if let Some(partial) = &partial {
            put_in(&file, size, partial, &behind, &lost)?;
        }
        // A file that could not be repaired loses nothing.
        finish(&file, lost.is_empty().then_some(size), &before)?;
        // What a comparison with the source has taught is remembered. Who may not, compares again.
        if record.known().is_some() && record_file::load(&checked.path)?.record.is_some_and(|kept| kept.known().is_none()) {
            let _ = record_file::keep(&checked.path, &file, record);
        }
        match partial {
            Some(partial) if lost.is_empty() => partial.discard(),
            _ => Ok(()),
        }
    };
    tokio::task::block_in_place(ended).map_err(|error| system(&error))?;
    if !lost.is_empty() {
        let (code, hint) = mirrors::no_help(&fetched.blames);
        let what = format!("{} bytes of {shown} cannot be had from {}", ranges::total(&lost), mirrors::told(&sources, &fetched.blames));
        return Err(Failure::new(what, hint, code));
    }
    mirrors::tell_of_failed(&shown, &sources, &fetched.blames, progress);
    let cut = within.saturating_sub(size);
    if let Some(still) =
        tokio::task::block_in_place(|| look_again(&checked.path, size, sums.as_ref(), &needed)).map_err(|error| system(&error))?
    {
        let what =
            format!("{shown}: {} bytes from offset {} were put in, and are not there when they are read", still.length, still.offset);
        return Err(Failure::new(
            what,
            "its medium does not keep them; `mend data stage --force` fetches the file into a new place",
            DAMAGED,
        ));
    }
    Ok(Repaired { path: checked.path.clone(), ranges: needed, fetched: count.into_inner(), cut, unverified })
}

/// Writes a block in place. The file's last page is read by the kernel before a part of it is written: if it is lost, that gives EIO, and the page is
/// given back first.
fn put(file: &File, bytes: &[u8], range: Range, size: u64) -> io::Result<()> {
    match file.write_all_at(bytes, range.offset) {
        Err(error) if of_medium(&error) && range.end() == size && !size.is_multiple_of(PAGE) => {
            file.set_len((size - size % PAGE).max(range.offset))?;
            file.write_all_at(bytes, range.offset)
        }
        done => done,
    }
}

/// What was fetched for behind the end, from front to back, as far as there is no gap.
fn put_in(file: &File, size: u64, partial: &Partial, behind: &[Range], lost: &[Range]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for block in behind.iter().flat_map(|range| range.offset / BLOCK..range.end().div_ceil(BLOCK)) {
        let range = ranges::block(block, size);
        if lost.iter().any(|lost| lost.offset < range.end() && range.offset < lost.end()) || !partial.has(block) {
            break;
        }
        partial.read(block, &mut bytes)?;
        // It was kept by a file system that has just lost something.
        if partial.sum(block) != Some(Sum::of(&bytes)) {
            return Err(io::Error::other("what was fetched is not what is read again"));
        }
        put(file, &bytes, range, size)?;
    }
    Ok(())
}

/// Durable, with the times that it had, and cut to this length if it is longer.
fn finish(file: &File, size: Option<u64>, before: &Metadata) -> io::Result<()> {
    if let Some(size) = size.filter(|size| before.len() > *size) {
        file.set_len(size)?;
    }
    file.sync_all()?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times =
        Timestamps { last_access: time(before.atime(), before.atime_nsec()), last_modification: time(before.mtime(), before.mtime_nsec()) };
    // Who does not own the file may write it, and not set its times.
    let _ = rustix::fs::futimens(file, &times);
    Ok(())
}

/// The first of these blocks that cannot be read back, or reads as something else.
fn look_again(path: &Path, size: u64, sums: Option<&Sums>, put: &[Range]) -> io::Result<Option<Range>> {
    let medium = Medium::open(path)?;
    let mut memory = Aligned::new();
    for block in put.iter().flat_map(|range| range.offset / BLOCK..range.end().div_ceil(BLOCK)) {
        let range = ranges::block(block, size);
        let good = match medium.read(range, &mut memory)? {
            Block::Read(bytes) => bytes.len() as u64 == range.length && sums.is_none_or(|sums| sums.get(block) == Some(Sum::of(bytes))),
            Block::Unreadable(_) => false,
        };
        if !good {
            return Ok(Some(range));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::waited;
    use crate::settings::Settings;
    use mend_data::record::{Known, Source};

    #[test]
    fn a_block_within_the_file_is_fetched_also_if_an_earlier_command_has_kept_it() {
        let directory = tempfile::tempdir().unwrap();
        let [source, path] = ["source", "x"].map(|name| directory.path().join(name));
        let size = 5 * BLOCK;
        let content: Vec<u8> = (0..size).map(|at| (at / 7 + at / BLOCK) as u8).collect();
        let block = |index: u64| &content[(index * BLOCK) as usize..((index + 1) * BLOCK) as usize];
        std::fs::write(&source, &content).unwrap();
        let fetcher = Fetcher::new(Settings::small());
        let mut sources = vec![Source { uri: format!("file://{}", source.display()), ..Source::default() }];
        let opened = waited(mirrors::open(&mut sources, &fetcher, true));
        assert!(opened[0].is_ok());
        let sums = Sums::new((0..5).map(|index| Sum::of(block(index))).collect());
        let mut damaged = content[..3 * BLOCK as usize].to_vec();
        damaged[BLOCK as usize + 7] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let record = Record { sources: sources.clone(), size, sums: Known::Here(sums) };
        record_file::keep(&path, &File::open(&path).unwrap(), &record).map_err(|error| error.into_io()).unwrap();
        let partial = Partial::begin(&path, &Begun { sources, size }, None).unwrap();
        for index in [1, 4] {
            partial.put(index, block(index), Sum::of(block(index))).unwrap();
        }
        drop(partial);
        let checked = check::all(std::slice::from_ref(&path), 1);
        assert_eq!(checked[0].state, State::Damaged);
        let progress = Arc::new(Progress::new(true));
        let repaired = waited(one(&checked[0], &fetcher, &progress));
        let repaired = repaired.map_err(|failure| failure.what).unwrap().unwrap();
        assert!(std::fs::read(&path).unwrap() == content);
        assert_eq!(repaired.fetched, 2 * BLOCK);
    }

    #[test]
    fn without_checksums_what_a_mirror_has_sent_that_is_gone_is_fetched_again() {
        let directory = tempfile::tempdir().unwrap();
        let [one_source, other, path] = ["one", "other", "x"].map(|name| directory.path().join(name));
        let size = 4 * BLOCK;
        let content: Vec<u8> = (0..size).map(|at| (at / 7 + at / BLOCK) as u8).collect();
        std::fs::write(&one_source, &content).unwrap();
        std::fs::write(&other, &content).unwrap();
        std::fs::write(&path, &content[..BLOCK as usize]).unwrap();
        let fetcher = Fetcher::new(Settings::small());
        let mut sources =
            [&one_source, &other].map(|path| Source { uri: format!("file://{}", path.display()), ..Source::default() }).to_vec();
        assert!(waited(mirrors::open(&mut sources, &fetcher, true)).iter().all(Result::is_ok));
        let record = Record { sources: sources.clone(), size, sums: Known::Nowhere };
        record_file::keep(&path, &File::open(&path).unwrap(), &record).map_err(|error| error.into_io()).unwrap();
        // A block that the other one has sent, which held something else there.
        let partial = Partial::begin(&path, &Begun { sources, size }, None).unwrap();
        let sent = vec![9; BLOCK as usize];
        partial.put(2, &sent, Sum::of(&sent)).unwrap();
        drop(partial);
        std::fs::remove_file(&other).unwrap();
        let checked = check::all(std::slice::from_ref(&path), 1);
        assert_eq!(checked[0].state, State::Damaged);
        let repaired = waited(one(&checked[0], &fetcher, &Arc::new(Progress::new(true))));
        let repaired = repaired.map_err(|failure| failure.what).unwrap().unwrap();
        assert!(std::fs::read(&path).unwrap() == content);
        assert_eq!(repaired.fetched, 3 * BLOCK);
    }
}
