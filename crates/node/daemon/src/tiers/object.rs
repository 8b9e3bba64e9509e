//! Images in object storage, through `mend-object`, which is run for each.
//!
//! Invariant: an object gets its last piece only after all of the image has been seen to be good, and the store makes it
//! only when its length is the image's. Faults assumed: the program is not installed; the store refuses or hangs.

use crate::tiers::copy::{self, CopyError, Expected, Pace};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const OBJECT_PROGRAM: &str = "mend-object";
/// Bytes of what it says that are passed on.
const MAX_ERROR_BYTES: u64 = 1000;

fn failed(place: &str, source: std::io::Error) -> CopyError {
    CopyError::Target { place: place.to_owned(), source }
}

fn start(words: &[&str], input: Stdio, output: Stdio) -> Result<Child, CopyError> {
    let program = mend_settings::find_part(OBJECT_PROGRAM)
        .ok_or_else(|| std::io::Error::other(format!("{OBJECT_PROGRAM} is not installed beside mendd")));
    let mut command = Command::new(program.map_err(CopyError::Source)?);
    command.args(words).stdin(input).stdout(output).stderr(Stdio::piped()).current_dir("/");
    command.spawn().map_err(CopyError::Source)
}

/// Waits for the program's end; what it said if it failed.
fn end(mut child: Child) -> Result<(), CopyError> {
    drop(child.stdin.take());
    let mut said = String::new();
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(MAX_ERROR_BYTES).read_to_string(&mut said);
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(CopyError::Damaged(said.trim().to_owned())),
        Err(error) => Err(CopyError::Source(error)),
    }
}

/// Stores an image.
pub fn put(source: &mut impl Read, expected: &Expected, pace: &Pace, address: &str) -> Result<(), CopyError> {
    let mut child = start(&["put", address, &expected.image.bytes.to_string()], Stdio::piped(), Stdio::null())?;
    let mut held = Vec::new();
    let mut input = child.stdin.take();
    let fed = match &mut input {
        Some(input) => copy::copy_checked(source, expected, pace, |piece| {
            input.write_all(&held).map_err(|source| failed(address, source))?;
            held.clear();
            held.extend_from_slice(piece);
            Ok(())
        })
        .and_then(|()| input.write_all(&held).map_err(|source| failed(address, source))),
        None => Ok(()),
    };
    drop(input);
    // An image that is not good ends early, and its object is refused for its length.
    match (fed, end(child)) {
        (Ok(()), ended) => ended,
        // That the program went away is told better by itself.
        (Err(CopyError::Target { .. }), Err(said)) => Err(said),
        (Err(error), _) => Err(error),
    }
}

/// Stores a small text.
pub fn put_text(text: &[u8], address: &str) -> Result<(), CopyError> {
    let mut child = start(&["put", address, &text.len().to_string()], Stdio::piped(), Stdio::null())?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text));
    end(child)?;
    written.map_err(|source| failed(address, source))
}

/// Gets an image into a file, which appears only if the image is good.
pub fn get(address: &str, expected: &Expected, pace: &Pace, place: &Path) -> Result<(), CopyError> {
    let mut child = start(&["get", address], Stdio::null(), Stdio::piped())?;
    let got = match child.stdout.take() {
        // Not more than the image may have: the rest would only fill the disk.
        Some(output) => copy::into_file(&mut output.take(expected.image.bytes + 1), expected, pace, place),
        None => Ok(()),
    };
    match (got, end(child)) {
        (Ok(()), _) => Ok(()),
        // The store's own words say more than that the image is too short.
        (Err(CopyError::Damaged(_)), Err(CopyError::Damaged(said))) if !said.is_empty() => {
            Err(CopyError::Damaged(format!("cannot be read: {said}")))
        }
        (Err(error), _) => Err(error),
    }
}

/// Removes objects.
pub fn delete(addresses: &[String]) -> Result<(), CopyError> {
    let words: Vec<&str> = std::iter::once("delete").chain(addresses.iter().map(String::as_str)).collect();
    end(start(&words, Stdio::null(), Stdio::null())?)
}
