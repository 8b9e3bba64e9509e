//! `mend data stage URI NAME:PATH`: files from their sources into a data space.
//!
//! As in staging to a path, sources of one file are mirrors and must agree, and one that changes meanwhile ends it. What differs: a command that is interrupted begins anew, since
//! a space has no partial files.

use super::opened;
use crate::failure::{DAMAGED, FAILED, Failure, UNREACHABLE};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::mirrors::{agree, blame, open, tell_of_failed, told, unchanged};
use crate::progress::Progress;
use crate::report::Staged;
use mend_data::ranges::Range;
use mend_data::record::Source;
use mend_data::space::catalogue::Node;
use mend_data::sums::BLOCK;
use mend_space::client::{Client, Upload};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One file to stage into a space.
pub struct SpaceFile {
    pub client: Arc<Client>,
    /// Where in it.
    pub path: String,
    pub sources: Vec<Source>,
    pub force: bool,
}

struct Filling {
    upload: Upload,
    written: Mutex<Vec<bool>>,
    progress: Arc<Progress>,
}

impl Sink for Filling {
    fn wants(&self, block: u64) -> bool {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(block).ok().and_then(|block| written.get(block)) == Some(&false)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        self.upload.put(block * BLOCK, bytes).map_err(io::Error::other)?;
        if let Some(place) = self.written.lock().unwrap_or_else(PoisonError::into_inner).get_mut(block as usize) {
            *place = true;
        }
        self.progress.came(bytes.len() as u64);
        Ok(Taken::Good)
    }
}

/// The space that a destination names, and the path in it.
///
/// # Errors
/// If there is no such space.
pub fn space_of(path: &[u8]) -> Result<Option<(Arc<Client>, String)>, Failure> {
    let Some((name, path)) = std::str::from_utf8(path).ok().and_then(mend_data::space::split) else { return Ok(None) };
    let client = opened(name).map_err(|failure| {
        let hint =
            if failure.code == FAILED { format!("{}; a file of that name is ./{name}:{path}", failure.hint) } else { failure.hint.clone() };
        Failure { hint, ..failure }
    })?;
    Ok(Some((client, path.to_owned())))
}

/// Whether what is there is what the sources hold; `None` if there is no file.
fn known(file: &SpaceFile, size: u64) -> Option<bool> {
    let names = file.client.names();
    let Some(Node::File(entry)) = names.look(&file.path) else { return None };
    let same = |then: &Source, now: &Source| {
        then.uri == now.uri && matches!((&then.version, &now.version), (Some(then), Some(now)) if then.changed(now).is_none())
    };
    let there = entry.file().filter(|there| there.size == size);
    Some(there.is_some_and(|there| file.sources.iter().any(|now| there.sources.iter().any(|then| same(then, now)))))
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
    let blames: Vec<Option<String>> = origins.iter().map(|origin| origin.as_ref().err().map(blame)).collect();
    let Some(size) = agree(&file.sources, &mut origins, fetcher).await else { return Err(no_source(&file.sources, &blames)) };
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
    let upload = tokio::task::block_in_place(|| Upload::begin(&file.client, &file.path, size, kept))?;
    progress.wants(size, 0);
    let blocks = usize::try_from(size.div_ceil(BLOCK)).unwrap_or(usize::MAX);
    let filling = Arc::new(Filling { upload, written: Mutex::new(vec![false; blocks]), progress: progress.clone() });
    let origins: Origins = Arc::new(origins);
    let fetched = fetcher.fetch(&origins, size, vec![Range { offset: 0, length: size }], &filling).await;
    let fetched = fetched
        .map_err(|error| Failure::new(format!("{shown}: {error}"), "repeat the command: other targets are chosen then", UNREACHABLE))?;
    if !fetched.lost.is_empty() {
        return Err(no_source(&file.sources, &fetched.blames));
    }
    tell_of_failed(&shown, &file.sources, &fetched.blames, progress);
    unchanged(&file.sources, &origins, &fetched.used, fetcher.settings.silence).await.map_err(|why| {
        Failure::new(format!("{shown}: {why} while it was fetched"), "repeat the command to have what it holds now", DAMAGED)
    })?;
    let Some(filling) = Arc::into_inner(filling) else { return Err(Failure::new(format!("{shown} is still being fetched"), "", FAILED)) };
    tokio::task::block_in_place(|| filling.upload.finish())?;
    Ok(staged(size, false))
}
