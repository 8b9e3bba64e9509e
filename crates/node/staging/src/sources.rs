//! `mend data sources` and `mend data mv`: what a file remembers of where it came from, shown, changed, and taken along.

use crate::failure::{BAD_VALUE, FAILED, Failure};
use crate::fetch::Fetcher;
use crate::mirrors;
use crate::names::{self, beside};
use crate::record_file;
use crate::report;
use mend_data::plan::Fault;
use mend_data::ranges;
use mend_data::record::{Known, Record, Source};
use mend_data::uri::{Address, same_address};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// What is to be changed.
pub struct Change {
    pub add: Vec<String>,
    pub remove: Vec<String>,
    pub credentials: Option<String>,
    pub endpoint: Option<String>,
}

#[derive(Serialize)]
struct Shown<'a> {
    path: &'a Path,
    size: u64,
    checksums: Option<u64>,
    sources: &'a [Source],
}

/// `mend data sources`.
pub async fn run(path: PathBuf, change: Change, json: bool, fetcher: &Fetcher) -> Result<i32, Failure> {
    let shown = path.display().to_string();
    let system = |error: &io::Error| Failure::system(&shown, error);
    let found = record_file::load(&path).map_err(|error| system(&error))?;
    found.remarks.iter().for_each(|remark| mend_report::tell!("mend data: {shown}: {remark}"));
    let unusable = found.record.is_none() && !found.remarks.is_empty();
    let mut record = found.record;
    if !change.add.is_empty() || !change.remove.is_empty() {
        if unusable && change.add.is_empty() {
            return Err(Failure::new(format!("{shown}: its record cannot be read"), "--add URI writes a new one", FAILED));
        }
        let file = File::open(&path).map_err(|error| system(&error))?;
        let about = file.metadata().map_err(|error| system(&error))?;
        if !about.is_file() {
            return Err(Failure::bad_value(format!("{shown} is no file"), "sources are of files: name one"));
        }
        let length = about.len();
        let mut new = record.unwrap_or(Record { sources: Vec::new(), size: length, sums: Known::Nowhere });
        remove(&mut new, &change.remove, &shown)?;
        add(&mut new, &change, &shown, fetcher).await?;
        if new.sources.is_empty() {
            forget(&path, &file).map_err(|error| system(&error))?;
            return Ok(0);
        }
        if let Known::Beside(_) = new.sums {
            new.sums = Known::Nowhere;
        }
        record_file::keep(&path, &file, &new).map_err(|error| system(&error.into_io()))?;
        record = Some(new);
    }
    let Some(record) = record else {
        std::fs::symlink_metadata(&path).map_err(|error| system(&error))?;
        return Err(Failure::new(format!("{shown}: no source is known for it"), "--add URI names one", FAILED));
    };
    let checksums = record.known().map(|sums| sums.count());
    if json {
        report::json(&Shown { path: &path, size: record.size, checksums, sources: &record.sources })?;
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = record.sources.iter().map(row).collect();
    report::line(&mend_report::table(&["SOURCE", "VERSION", "CREDENTIALS"], &rows));
    let known = checksums.map_or_else(|| "no checksums".to_owned(), |count| format!("{count} checksums, one per MiB"));
    report::line(&format!("{}, {known}", report::size(record.size)));
    Ok(0)
}

fn row(source: &Source) -> Vec<String> {
    let at = source.endpoint.as_ref().map_or_else(String::new, |endpoint| format!(" at {endpoint}"));
    let version = source.version.as_ref().map(|version| match (&version.etag, version.modified_ns) {
        (Some(etag), _) => etag.clone(),
        (None, Some(modified)) => format!("modified {}", modified.div_euclid(1_000_000_000)),
        (None, None) => format!("{} bytes", version.size),
    });
    vec![format!("{}{at}", source.uri), version.unwrap_or_else(|| "unknown".into()), source.credentials.clone().unwrap_or_default()]
}

fn remove(record: &mut Record, uris: &[String], shown: &str) -> Result<(), Failure> {
    for uri in uris {
        let before = record.sources.len();
        record.sources.retain(|source| !same_address(&source.uri, uri));
        if record.sources.len() == before {
            return Err(Failure::new(format!("{uri} is no source of {shown}"), "`mend data sources FILE` lists them", BAD_VALUE));
        }
    }
    Ok(())
}

/// A source is asked before it is remembered: one of another length is none of this file, and neither is one that differs in blocks whose checksums
/// are known. Some of them are looked at, not all: that would be to fetch the file.
async fn add(record: &mut Record, change: &Change, shown: &str, fetcher: &Fetcher) -> Result<(), Failure> {
    let environment = || std::env::var("AWS_ENDPOINT_URL").ok().filter(|value| !value.is_empty());
    for uri in &change.add {
        Address::parse(uri).map_err(|error| Failure::bad_value(error.to_string(), ""))?;
        let endpoint = change.endpoint.clone().or_else(environment).filter(|_| uri.starts_with("s3://"));
        let mut sources = [Source { uri: uri.clone(), endpoint, credentials: change.credentials.clone(), version: None }];
        let opened = mirrors::open(&mut sources, fetcher, true).await;
        let refused = |fault: &Fault| Failure::new(format!("{uri}: {}", mirrors::blame(fault)), "", crate::failure::UNREACHABLE);
        if let Some(Err(fault)) = opened.first() {
            return Err(refused(fault));
        }
        let [source] = sources;
        let size = source.version.as_ref().map_or(record.size, |version| version.size);
        let empty = record.sources.is_empty() && record.sums == Known::Nowhere;
        if size != record.size && !empty {
            let what = format!("{uri} has {size} bytes, {shown} has {} by its other sources", record.size);
            return Err(Failure::new(what, "all sources of a file hold the same", crate::failure::DAMAGED));
        }
        if let (Some(sums), Some(Ok(origin)), true) = (record.known(), opened.first(), size > 0 && size == record.size) {
            let differs = mirrors::differs(origin, size, sums, fetcher).await.map_err(|fault| refused(&fault))?;
            if let Some(at) = differs {
                let what = format!("{uri} holds other bytes than the checksums of {shown} say, at offset {at}");
                return Err(Failure::new(what, "all sources of a file hold the same", crate::failure::DAMAGED));
            }
        }
        if size != record.size {
            mend_report::tell!(
                "mend data: {shown}: it has {} bytes, its source has {size}: `mend data repair` fetches what is missing",
                record.size
            );
            record.size = size;
        }
        if record.known().is_some_and(|sums| sums.count() != ranges::blocks(size)) {
            record.sums = Known::Nowhere;
        }
        record.sources.retain(|known| !same_address(&known.uri, &source.uri) || known.endpoint != source.endpoint);
        record.sources.push(source);
    }
    Ok(())
}

fn forget(path: &Path, file: &File) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::fremovexattr(file, mend_data::record::ATTRIBUTE) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => record_file::forget_beside(path),
        Err(error) => Err(error.into()),
    }
}

/// `mend data mv`: a file and what stands beside it, within a file system.
pub fn rename(from: PathBuf, to: PathBuf) -> Result<i32, Failure> {
    let to = if to.is_dir() { to.join(from.file_name().unwrap_or_default()) } else { to };
    let (old, new) = (record_file::place_of(&from), beside(&to, names::RECORD));
    if fs::symlink_metadata(&to).is_ok() {
        return Err(Failure::new(format!("{} is there", to.display()), "remove it first", FAILED));
    }
    fs::symlink_metadata(&from).map_err(|error| Failure::system(from.display(), &error))?;
    let there = record_file::place_of(&to);
    if fs::symlink_metadata(&there).is_ok() {
        let hint = format!("`mend data repair` fetches that file again; remove {} if it is not wanted any more", there.display());
        return Err(Failure::new(format!("{} is gone, and what stands beside it says where it came from", to.display()), hint, FAILED));
    }
    let has_beside = fs::symlink_metadata(&old).is_ok();
    // The record first, as a copy: a file without its record is worse than a record without its file.
    let done = (|| {
        if has_beside {
            record_file::copy_beside(&old, &new)?;
        }
        // What has come there meanwhile stays.
        if let Err(error) = mend_durable::rename_new(&from, &to) {
            if has_beside {
                // The error that led here is the one to tell.
                let _ = fs::remove_file(&new);
            }
            return Err(error);
        }
        if has_beside { fs::remove_file(&old) } else { Ok(()) }
    })();
    done.map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::CrossesDevices => {
            let hint = "copy it with its attributes (cp --preserve=xattr), or stage it there";
            Failure::new(format!("{} is in another file system than {}", to.display(), from.display()), hint, FAILED)
        }
        io::ErrorKind::AlreadyExists => Failure::new(format!("{} is there", to.display()), "remove it first", FAILED),
        _ => Failure::system(format!("{} to {}", from.display(), to.display()), &error),
    })?;
    Ok(0)
}
