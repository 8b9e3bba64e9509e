//! `mend data stage URI NAME:PATH`: files from their sources into a data space.
//!
//! As in staging to a path, sources of one file are mirrors and must agree, and one that changes meanwhile ends it. A command
//! that was interrupted goes on where it was: what its targets have and is right is not fetched again.

use super::begun_log::BegunLog;
use super::opened;
use crate::failure::{FAILED, Failure, UNREACHABLE};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::mirrors::{Unsure, agree, blame, broken_off, open, tell_of_failed, told, told_of_new_begin, unchanged};
use crate::origin::Origin;
use crate::progress::Progress;
use crate::report::Staged;
use mend_data::plan::Fault;
use mend_data::ranges::{self, Range};
use mend_data::record::Source;
use mend_data::resume::Begun;
use mend_data::space::catalogue::Node;
use mend_data::sums::BLOCK;
use mend_data::uri::same_address;
use mend_space::client::{Client, NotSeen, Upload};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// One file to stage into a space.
pub struct SpaceFile {
    pub client: Arc<Client>,
    /// Where in it.
    pub path: String,
    pub sources: Vec<Source>,
    pub force: bool,
}

/// The log of what was fetched cannot be written: it is not the space that fails.
#[derive(Debug)]
struct NotNoted(io::Error);

impl fmt::Display for NotNoted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "what was fetched cannot be noted: {}", self.0)
    }
}

impl std::error::Error for NotNoted {}

/// How staging ends that a piece has broken off.
fn stopped(shown: &str, error: &io::Error) -> Failure {
    let what = format!("{shown}: {error}");
    if error.get_ref().is_some_and(|cause| cause.is::<NotNoted>()) {
        return Failure::new(what, "make room for $MEND_HOME", FAILED);
    }
    let hint = "repeat the command to go on: what was fetched is not fetched again, and other targets take the place of lost ones";
    Failure::new(what, hint, UNREACHABLE)
}

struct Filling {
    upload: Upload,
    log: BegunLog,
    progress: Arc<Progress>,
}

impl Filling {
    /// Takes pieces that are holes of the source as zeros: they are not noted, and who goes on finds that out again. How many bytes they have.
    fn put_holes(&self, holes: &[Range], size: u64) -> Result<u64, mend_space::Fault> {
        if !self.upload.takes_holes() {
            return Ok(0);
        }
        let mut taken = 0;
        for hole in holes {
            let pieces = (hole.offset.div_ceil(BLOCK)..hole.end().div_ceil(BLOCK)).map(|piece| (piece, ranges::block(piece, size)));
            for (_, range) in pieces.filter(|(piece, range)| range.end() <= hole.end() && self.wants(*piece)) {
                self.upload.put_zeros(range)?;
                taken += range.length;
            }
        }
        Ok(taken)
    }
}

impl Sink for Filling {
    fn wants(&self, block: u64) -> bool {
        !self.upload.has(block)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        self.upload.put(block * BLOCK, bytes).map_err(io::Error::other)?;
        if let Some(sum) = self.upload.claim(block) {
            self.log.claim(block, sum).map_err(|error| io::Error::other(NotNoted(error)))?;
        }
        self.progress.came(bytes.len() as u64);
        Ok(Taken::Good)
    }
}

/// The space that a destination names, and the path in it. A slash at its end stays: what comes goes into that directory.
///
/// # Errors
/// If there is no such space, or names in it cannot be like that.
pub fn space_of(path: &[u8]) -> Result<Option<(Arc<Client>, String)>, Failure> {
    let lossy = String::from_utf8_lossy(path);
    let Some((name, path)) = mend_data::space::split(&lossy) else { return Ok(None) };
    let text = match &lossy {
        Cow::Borrowed(text) => *text,
        Cow::Owned(shown) => {
            let hint = format!("choose another name in the space; a file of that name is ./{shown}");
            return Err(Failure::bad_value(format!("{shown} is no UTF-8, as paths in data spaces are"), hint));
        }
    };
    let into = if mend_data::space::is_directory(text) { "/" } else { "" };
    let client = opened(name).map_err(|failure| {
        let hint =
            if failure.code == FAILED { format!("{}; a file of that name is ./{name}:{path}", failure.hint) } else { failure.hint.clone() };
        Failure { hint, ..failure }
    })?;
    Ok(Some((client, format!("{path}{into}"))))
}

/// Whether what is there is what the sources hold; `None` if there is no file.
fn known(file: &SpaceFile, size: u64) -> Option<bool> {
    let names = file.client.names();
    let Some(Node::File(entry)) = names.look(&file.path) else { return None };
    let same = |then: &Source, now: &Source| same_address(&then.uri, &now.uri) && then.still_holds(now);
    let there = entry.file().filter(|there| there.size == size);
    Some(there.is_some_and(|there| file.sources.iter().any(|now| there.sources.iter().any(|then| same(then, now)))))
}

/// Begins, or goes on. How many bytes are there.
fn begin(file: &SpaceFile, begun: Begun, holes: &[Range], progress: &Arc<Progress>) -> Result<(Filling, u64), Failure> {
    let (client, path) = (&file.client, &file.path);
    let shown = format!("{}:{path}", client.space.name);
    let failed = |error: io::Error| stopped(&shown, &io::Error::other(NotNoted(error)));
    let (log, before) = BegunLog::open(&client.space, path)?;
    if let Some(before) = before {
        if before.begun.goes_on_as(&begun) {
            match Upload::go_on(client, before.entry.clone(), begun.sources.clone(), &before.claims) {
                Ok((upload, there)) => {
                    log.go_on(upload.entry(), &begun, &before.begun, &before.claims).map_err(failed)?;
                    return Ok((Filling { upload, log, progress: progress.clone() }, there));
                }
                // A target has let go of it, or was told that it will not be.
                Err(mend_space::Fault::Failed { .. }) => {}
                // In the place of a lost target room for a whole object is looked for, which a sparse file may not need.
                Err(mend_space::Fault::Other(_)) if !holes.is_empty() => Upload::discard(client, &before.entry),
                Err(fault) => return Err(fault.into()),
            }
        } else {
            Upload::discard(client, &before.entry);
            progress.tell(&told_of_new_begin(&shown));
        }
    }
    let stored = begun.size.saturating_sub(ranges::total(holes));
    let upload = Upload::begin_sparse(client, path, (begun.size, stored), begun.sources.clone())?;
    log.begin(upload.entry(), &begun).map_err(failed)?;
    Ok((Filling { upload, log, progress: progress.clone() }, 0))
}

/// Stages one file.
///
/// # Errors
/// Of sources, of targets, or if something else is there.
pub async fn one(mut file: SpaceFile, fetcher: &Fetcher, progress: &Arc<Progress>) -> Result<Staged, Failure> {
    let began = Instant::now();
    let shown = format!("{}:{}", file.client.space.name, file.path);
    if !mend_data::space::is_path(&file.path) {
        return Err(Failure::bad_value(format!("{shown} is no path that a file can have"), "names of at most 255 bytes, no `..`"));
    }
    progress.names(&shown);
    let mut origins = open(&mut file.sources, fetcher, true).await;
    let no_source = |sources: &[Source], blames: &[Option<String>]| {
        Failure::new(format!("{shown} cannot be had from {}", told(sources, blames)), "", UNREACHABLE)
    };
    let blames = |origins: &[Result<Origin, Fault>]| origins.iter().map(|origin| origin.as_ref().err().map(blame)).collect::<Vec<_>>();
    let Some(size) = agree(&file.sources, &mut origins, fetcher, false).await.size else {
        return Err(no_source(&file.sources, &blames(&origins)));
    };
    let uris: Vec<String> = file.sources.iter().map(|source| source.uri.clone()).collect();
    let staged = |fetched: u64, already: bool| Staged {
        path: PathBuf::from(&shown),
        size,
        fetched,
        resumed: 0,
        already,
        sources: uris.clone(),
        seconds: began.elapsed().as_secs_f64(),
    };
    if !file.force
        && let Some(known) = known(&file, size)
    {
        if known {
            return Ok(staged(0, true));
        }
        let hint = "--force replaces it; `mend data ls --json` shows where it came from";
        return Err(Failure::new(format!("{shown} is there, and is not what its source holds now"), hint, FAILED));
    }
    for (source, origin) in file.sources.iter().zip(&origins) {
        if let Err(fault) = origin {
            progress.tell(&format!("mend data: {shown}: without {}: {}", source.uri, blame(fault)));
        }
    }
    let kept: Vec<Source> =
        file.sources.iter().zip(&origins).filter(|(_, origin)| origin.is_ok()).map(|(source, _)| source.clone()).collect();
    let begun = Begun { sources: kept, size };
    // Others were compared with the first one in a few blocks alone: nothing tells whose hole is right.
    let holes = origins.iter().flatten().next().map_or_else(Vec::new, |origin| origin.holes(size));
    let (filling, resumed) = tokio::task::block_in_place(|| begin(&file, begun, &holes, progress))?;
    let zeros =
        tokio::task::block_in_place(|| filling.put_holes(&holes, size)).map_err(|fault| stopped(&shown, &io::Error::other(fault)))?;
    let missing = ranges::of_blocks((0..ranges::blocks(size)).filter(|piece| filling.wants(*piece)), size);
    progress.wants(size, resumed + zeros);
    let filling = Arc::new(filling);
    let origins: Origins = Arc::new(origins);
    let fetched = fetcher.fetch(&origins, size, missing, &filling).await.map_err(|error| stopped(&shown, &error))?;
    if !fetched.lost.is_empty() {
        return Err(broken_off(no_source(&file.sources, &fetched.blames), &fetched.blames));
    }
    tell_of_failed(&shown, &file.sources, &fetched.blames, progress);
    let still = unchanged(&file.sources, &origins, &fetched.used, fetcher).await;
    let Some(filling) = Arc::into_inner(filling) else { return Err(Failure::new(format!("{shown} is still being fetched"), "", FAILED)) };
    let Filling { upload, log, .. } = filling;
    if let Err(unsure) = still {
        if let Unsure::Changed(_) = unsure {
            // Some of it may be of one version, some of another.
            tokio::task::block_in_place(|| Upload::discard(&file.client, upload.entry()));
            let _ = log.end();
        }
        return Err(unsure.failure(&shown, "fetched", "repeat the command to have what it holds now", true));
    }
    let entry = upload.entry().clone();
    match tokio::task::block_in_place(|| upload.finish(file.force)) {
        // Another one has staged the same meanwhile.
        Err(NotSeen::Taken) if known(&file, size) == Some(true) => {
            tokio::task::block_in_place(|| Upload::discard(&file.client, &entry));
            let _ = log.end();
            return Ok(staged(size - resumed - zeros, true));
        }
        finished => finished.map_err(|not_seen| match not_seen {
            NotSeen::Fault(fault) => fault.into(),
            why => {
                let hint = match &why {
                    NotSeen::Taken => "--force replaces it; what was fetched is not fetched again",
                    _ => "stage it to another path",
                };
                Failure::new(format!("{shown}: {why}"), hint, FAILED)
            }
        })?,
    }
    // What stays of the log is of no file any more: the next command looks at what is there first.
    let _ = log.end();
    Ok(Staged { resumed, ..staged(size - resumed - zeros, false) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_space_that_is_no_utf_8_is_refused_and_is_no_file() {
        assert!(space_of(b"input:a\xff").err().unwrap().hint.contains("./input:a"));
        assert!(space_of(b"./input:a\xff").unwrap().is_none() && space_of(b"a\xff").unwrap().is_none());
    }

    #[test]
    fn a_log_that_cannot_be_written_is_no_fault_of_the_space() {
        let full = io::Error::other(NotNoted(io::ErrorKind::StorageFull.into()));
        let failure = stopped("input:x", &full);
        assert_eq!((failure.code, failure.hint.as_str()), (FAILED, "make room for $MEND_HOME"));
        assert!(failure.what.starts_with("input:x: what was fetched cannot be noted: "), "{}", failure.what);
        assert_eq!(stopped("input:x", &io::Error::other("a target is lost")).code, UNREACHABLE);
    }
}
