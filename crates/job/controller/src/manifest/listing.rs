//! Which checkpoints a directory has, by their names alone.

use std::fs;
use std::io;
use std::path::Path;

/// Numbers of the complete checkpoints in `directory`, ascending; none if it can't be listed.
#[must_use]
pub fn numbers(directory: &Path) -> Vec<u64> {
    listed(directory).unwrap_or_default()
}

/// The same, for whoever would let go of what isn't listed.
///
/// # Errors
/// Those of the file system, also if there is no such directory: its file system may be away.
pub fn listed(directory: &Path) -> io::Result<Vec<u64>> {
    let names: Vec<_> = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The same, at the beginning of a life: a job without a directory has no checkpoints.
///
/// # Errors
/// Those of the file system.
pub fn listed_at_first(directory: &Path) -> io::Result<Vec<u64>> {
    match listed(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}
