//! `mend data stage`: one file or a directory from its sources to its place.
//!
//! ```text
//! sources ──versions──► agree? ──► partial file, resumed ──► blocks ──► still the same versions? ──► name, record
//! ```
//! Sources of one file are mirrors. Their lengths must be the same, and so must the first, middle and last block of each and of the first one, before a
//! byte of both can be in one file.

use crate::failure::{DAMAGED, FAILED, Failure, UNREACHABLE, report_all};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::mirrors::{Unsure, agree, blame, broken_off, open, tell_of_failed, told, told_of_new_begin, unchanged};
use crate::names::{followed, path_of};
use crate::origin::Origin;
use crate::partial::Partial;
use crate::progress::Progress;
use crate::record_file::{self, KeepError};
use crate::report::Staged;
use crate::spaces::filling::{self, SpaceFile};
use futures_util::{StreamExt, stream};
use mend_data::plan::Fault;
use mend_data::ranges::{self, Range};
use mend_data::record::{Record, Source};
use mend_data::request::{StageOptions, Wanted};
use mend_data::resume::Begun;
use mend_data::space::catalogue::Node;
use mend_data::sums::{Sum, Sums};
use mend_data::uri::{Address, decoded, safe_name, same_address};
use mend_space::client::Client;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// One file to stage.
pub struct File {
    pub sources: Vec<Source>,
    pub path: PathBuf,
    /// What it must sum up to, if that is known.
    pub sums: Option<Sums>,
    /// The records of other users name no credentials of ours.
    pub trusted: bool,
    pub force: bool,
    /// The data space that it goes into; the path is one in it.
    pub space: Option<Arc<Client>>,
}

struct Filling {
    partial: Partial,
    sums: Option<Sums>,
    progress: Arc<Progress>,
    fetched: std::sync::atomic::AtomicU64,
}

impl Sink for Filling {
    fn wants(&self, block: u64) -> bool {
        !self.partial.has(block)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        let sum = Sum::of(bytes);
        if let Some(why) = self.sums.as_ref().and_then(|sums| differs(sums, block, sum)) {
            return Ok(Taken::Wrong(why));
        }
        self.partial.put(block, bytes, sum)?;
        self.progress.came(bytes.len() as u64);
        self.fetched.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
        Ok(Taken::Good)
    }
}

/// How a block differs from what is known of it.
pub fn differs(sums: &Sums, block: u64, sum: Sum) -> Option<String> {
    (sums.get(block) != Some(sum))
        .then(|| format!("it sent other bytes than were staged, at offset {}", block.saturating_mul(mend_data::sums::BLOCK)))
}

/// The record of what is there already, if it is what is wanted.
fn already(path: &Path, sources: &[Source], length: u64) -> Option<Record> {
    let record = record_file::load(path).ok()?.record.filter(|record| record.size == length)?;
    let same = |then: &Source, now: &Source| same_address(&then.uri, &now.uri) && then.endpoint == now.endpoint && then.still_holds(now);
    sources.iter().any(|now| record.sources.iter().any(|then| same(then, now))).then_some(record)
}

/// Stages one file.
pub async fn one(mut file: File, fetcher: &Fetcher, progress: &Arc<Progress>) -> Result<Staged, Failure> {
    let began = Instant::now();
    let shown = file.path.display().to_string();
    progress.names(&shown);
    let mut origins = open(&mut file.sources, fetcher, file.trusted).await;
    let no_source = |sources: &[Source], blames: &[Option<String>]| {
        Failure::new(format!("{shown} cannot be had from {}", told(sources, blames)), "", UNREACHABLE)
    };
    let blames = |origins: &[Result<Origin, Fault>]| origins.iter().map(|origin| origin.as_ref().err().map(blame)).collect::<Vec<_>>();
    let Some(size) = agree(&file.sources, &mut origins, fetcher, file.sums.is_some()).await.size else {
        return Err(no_source(&file.sources, &blames(&origins)));
    };
    if let Some(sums) = file.sums.as_ref().filter(|sums| sums.count() != ranges::blocks(size)) {
        let what = format!("{shown}: its source has {size} bytes now, and not {} blocks as when it was staged", sums.count());
        return Err(Failure::new(what, "", DAMAGED));
    }
    let uris = || file.sources.iter().map(|source| source.uri.clone()).collect::<Vec<_>>();
    match fs::metadata(&file.path) {
        Ok(there) if there.is_dir() => return Err(Failure::new(format!("{shown} is a directory"), "", FAILED)),
        Ok(_) if file.force => {}
        Ok(there) => {
            if already(&file.path, &file.sources, there.len()).filter(|record| record.size == size).is_some() {
                let seconds = began.elapsed().as_secs_f64();
                return Ok(Staged { path: file.path.clone(), size, fetched: 0, resumed: 0, already: true, sources: uris(), seconds });
            }
            let hint = "--force replaces it; `mend data sources` shows where it came from";
            return Err(Failure::new(format!("{shown} is there, and is not what its source holds now"), hint, FAILED));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Failure::system(&shown, &error)),
    }
    // What could not be had or compared is no source of this file, and is not remembered.
    let kept = || {
        let used = file.sources.iter().zip(&origins).filter(|(_, origin)| origin.is_ok());
        used.map(|(source, _)| source.clone()).collect::<Vec<Source>>()
    };
    let begun = Begun { sources: kept(), size };
    let partial = Partial::begin(&file.path, &begun, file.sums.as_ref()).map_err(|error| error.told(&shown))?;
    if partial.began_anew {
        progress.tell(&told_of_new_begin(&shown));
    }
    for (source, origin) in file.sources.iter().zip(&origins) {
        if let Err(fault) = origin {
            progress.tell(&format!("mend data: {shown}: without {}: {}", source.uri, blame(fault)));
        }
    }
    // Others were compared with the first one in a few blocks alone, and without checksums nothing tells whose hole is right.
    let first = if file.sums.is_some() { origins.len() } else { 1 };
    for origin in origins.iter().flatten().take(first) {
        partial.put_holes(&origin.holes(size), file.sums.as_ref());
    }
    let missing = partial.missing(&[Range { offset: 0, length: size }]);
    progress.wants(size, size - ranges::total(&missing));
    let resumed = partial.resumed;
    let filling = Arc::new(Filling { partial, sums: file.sums.take(), progress: progress.clone(), fetched: 0.into() });
    let sources = kept();
    let origins: Origins = Arc::new(origins);
    let fetched = fetcher.fetch(&origins, size, missing, &filling).await.map_err(|error| Failure::system(&shown, &error))?;
    if !fetched.lost.is_empty() {
        return Err(broken_off(no_source(&file.sources, &fetched.blames), &fetched.blames));
    }
    tell_of_failed(&shown, &file.sources, &fetched.blames, progress);
    let still = unchanged(&file.sources, &origins, &fetched.used, fetcher).await;
    let count = filling.fetched.load(std::sync::atomic::Ordering::Relaxed);
    let Some(filling) = Arc::into_inner(filling) else { return Err(Failure::new(format!("{shown} is still being fetched"), "", FAILED)) };
    if let Err(unsure) = still {
        if let Unsure::Changed(_) = unsure {
            // Some of it may be of one version, some of another. What cannot be removed is not gone on with either: its source has changed.
            let _ = filling.partial.discard();
        }
        return Err(unsure.failure(&shown, "fetched", "repeat the command to have what it holds now", true));
    }
    let published = tokio::task::block_in_place(|| filling.partial.publish(sources, file.force)).map_err(KeepError::into_io);
    if let Err(error) = published {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(Failure::system(&shown, &error));
        }
        let hint = "--force replaces it, and what was fetched is not fetched again";
        return Err(Failure::new(format!("{shown} is there now: another one has made it meanwhile"), hint, FAILED));
    }
    Ok(Staged {
        path: file.path.clone(),
        size,
        fetched: count,
        resumed,
        already: false,
        sources: uris(),
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Where a file goes that is asked for under `path`: a directory gets it under its own name.
fn destination(uri: &str, path: &[u8], space: Option<&Arc<Client>>) -> Result<PathBuf, Failure> {
    let given = path_of(path.to_vec());
    let directory = match space {
        Some(client) => given.to_str().is_some_and(|given| client.names().look(given.trim_end_matches('/')) == Some(Node::Directory)),
        None => given.is_dir(),
    };
    if !(path.ends_with(b"/") || directory) {
        // A link's target is replaced, not the link.
        return Ok(if space.is_none() { followed(&given) } else { given });
    }
    let name = Address::parse(uri).map(|address| decoded(address.file_name())).unwrap_or_default();
    let name = safe_name(&name)
        .ok_or_else(|| Failure::bad_value(format!("{uri} has no name for a file in {}", given.display()), "name the file, too"))?;
    Ok(given.join(name))
}

/// What is asked for, as files: directories are listed.
async fn files(wanted: &Wanted, space: Option<&Arc<Client>>, options: &StageOptions, fetcher: &Fetcher) -> Result<Vec<File>, Failure> {
    let endpoint = options.endpoint.clone().or_else(|| std::env::var("AWS_ENDPOINT_URL").ok().filter(|value| !value.is_empty()));
    let source = |uri: String| {
        let endpoint = endpoint.clone().filter(|_| uri.starts_with("s3://"));
        Source { uri, endpoint, credentials: options.credentials.clone(), version: None }
    };
    let file = |uris: Vec<String>, path| File {
        sources: uris.into_iter().map(source).collect(),
        path,
        sums: None,
        trusted: true,
        force: options.force,
        space: space.cloned(),
    };
    let directories = wanted.uris.iter().filter(|uri| Address::parse(uri).is_ok_and(|address| address.is_directory())).count();
    if directories == 0 {
        return Ok(vec![file(wanted.uris.clone(), destination(&wanted.uris[0], &wanted.path, space)?)]);
    }
    if directories < wanted.uris.len() {
        return Err(Failure::bad_value(
            "some addresses name a directory, with a slash at the end, and some a file",
            "all sources of a file hold the same",
        ));
    }
    let root = path_of(wanted.path.clone());
    let mut blames = Vec::new();
    for uri in &wanted.uris {
        let listed = match Origin::open(&source(uri.clone()), fetcher.settings.silence, true) {
            Ok(origin) => origin.list(fetcher.settings.silence).await,
            Err(fault) => Err(fault),
        };
        match listed {
            Ok(names) => {
                let mut files = Vec::new();
                for name in names {
                    let decoded = decoded(&name);
                    let below = safe_name(&decoded).ok_or_else(|| {
                        Failure::new(
                            format!("{uri} lists {decoded:?}, which would lead out of {}; nothing was fetched", root.display()),
                            "",
                            UNREACHABLE,
                        )
                    })?;
                    files.push(file(wanted.uris.iter().map(|uri| format!("{uri}{name}")).collect(), root.join(below)));
                }
                return Ok(files);
            }
            Err(fault) => blames.push(format!("{uri}: {}", blame(&fault))),
        }
    }
    Err(Failure::new(format!("the files of {} cannot be listed: {}", root.display(), blames.join("; ")), "", UNREACHABLE))
}

fn ready(path: &Path) -> Result<(), Failure> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    directory.map_or(Ok(()), |directory| fs::create_dir_all(directory).map_err(|error| Failure::system(directory.display(), &error)))
}

/// Carries out the command; its exit code.
pub async fn run(wanted: Vec<Wanted>, options: StageOptions, fetcher: &Fetcher) -> Result<i32, Failure> {
    let progress = Arc::new(Progress::new(options.quiet));
    let mut all = Vec::new();
    for one in wanted {
        let line = one.line;
        let named = |failure: Failure| match line {
            Some(line) => Failure { what: format!("line {line}: {}", failure.what), ..failure },
            None => failure,
        };
        let (space, one) = match tokio::task::block_in_place(|| filling::space_of(&one.path)).map_err(named)? {
            Some((client, path)) => (Some(client), Wanted { path: path.into_bytes(), ..one }),
            None => (None, one),
        };
        let found = files(&one, space.as_ref(), &options, fetcher).await.map_err(named)?;
        if found.is_empty() && space.is_none() {
            let root = path_of(one.path.clone());
            fs::create_dir_all(&root).map_err(|error| Failure::system(root.display(), &error))?;
        }
        all.extend(found);
    }
    let staging = all.into_iter().map(|file| {
        let progress = progress.clone();
        async move {
            if let Some(client) = file.space {
                let path = file.path.to_string_lossy().into_owned();
                return filling::one(SpaceFile { client, path, sources: file.sources, force: file.force }, fetcher, &progress).await;
            }
            ready(&file.path)?;
            one(file, fetcher, &progress).await
        }
    });
    let done: Vec<Result<Staged, Failure>> = stream::iter(staging).buffered(fetcher.settings.streams).collect().await;
    progress.end();
    let failed: Vec<&Failure> = done.iter().filter_map(|one| one.as_ref().err()).collect();
    let code = report_all(failed.iter().copied()).unwrap_or(0);
    let staged: Vec<&Staged> = done.iter().filter_map(|one| one.as_ref().ok()).collect();
    if options.json {
        crate::report::json(&staged)?;
    } else if !options.quiet {
        staged.iter().for_each(|one| crate::report::staged(one));
    }
    Ok(code)
}
