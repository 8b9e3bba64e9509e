//! Nodes that are to take no ranks of this user's jobs: a file for each, `$MEND_HOME/drained/NAME.drained`.
//!
//! They count where ranks are placed: at the start of a job, at a restart, at a move. Ranks that are on them stay until they are moved.

use crate::record::{RecordError, home, make_directories};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Host names have dots, too.
const SUFFIX: &str = ".drained";

fn directory() -> Result<PathBuf, RecordError> {
    Ok(home()?.join("drained"))
}

/// The names of all drained nodes.
///
/// # Errors
/// [`RecordError::Io`].
pub fn list() -> Result<BTreeSet<String>, RecordError> {
    let path = directory()?;
    match fs::read_dir(&path) {
        Ok(entries) => {
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            // What is being written ends otherwise.
            Ok(names.filter_map(|name| name.strip_suffix(SUFFIX).map(str::to_owned)).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(source) => Err(RecordError::Io { path, source }),
    }
}

/// One of these that is drained.
///
/// # Errors
/// [`RecordError::Io`].
pub fn any_of<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<Option<String>, RecordError> {
    let drained = list()?;
    Ok(names.find(|name| drained.contains(*name)).cloned())
}

/// Adds a node, durably. Its name is one that [`crate::hosts::parse_list`] takes.
///
/// # Errors
/// [`RecordError::Io`].
pub fn add(name: &str) -> Result<(), RecordError> {
    let directory = directory()?;
    let path = directory.join(format!("{name}{SUFFIX}"));
    let added = make_directories(&directory).and_then(|()| mend_durable::write(&path, b""));
    added.map_err(|source| RecordError::Io { path, source })
}

/// Takes one out again. False if it was not drained.
///
/// # Errors
/// [`RecordError::Io`].
pub fn remove(name: &str) -> Result<bool, RecordError> {
    let path = directory()?.join(format!("{name}{SUFFIX}"));
    match fs::remove_file(&path).and_then(|()| mend_durable::sync_name(&path)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(RecordError::Io { path, source }),
    }
}
