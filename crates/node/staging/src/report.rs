//! What is printed: sentences for people, JSON for programs.

use crate::failure::{FAILED, Failure};
use mend_messages::frame;
use mend_messages::space_report::SpaceEvent;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// What became of a file.
#[derive(Debug, Serialize)]
pub struct Staged {
    pub path: PathBuf,
    pub size: u64,
    /// Bytes that came from its sources now.
    pub fetched: u64,
    /// Bytes that an earlier command had fetched.
    pub resumed: u64,
    /// It was there already, from the same source.
    pub already: bool,
    pub sources: Vec<String>,
    pub seconds: f64,
}

/// Prints a value as one JSON document.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string(), "", FAILED))?;
    line(&text);
    Ok(())
}

/// A line on standard output. Whoever has closed it wants no more.
pub fn line(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(FAILED);
    }
}

/// What happened to a space, for the process that serves its mounts: a frame on standard output. If that process is gone, nobody misses it.
pub fn event(event: &SpaceEvent) {
    if let Ok(frame) = frame::encode(event) {
        let mut out = std::io::stdout();
        let _ = out.write_all(&frame).and_then(|()| out.flush());
    }
}

/// Bytes, for people.
pub fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// How many files, for people.
pub fn files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

/// A staged file, on a line.
pub fn staged(one: &Staged) {
    let path = one.path.display();
    if one.already {
        return line(&format!("{path}: {}, there already", size(one.size)));
    }
    let resumed = if one.resumed > 0 { format!(", {} of it by an earlier command", size(one.resumed)) } else { String::new() };
    line(&format!("{path}: {} in {:.1} s{resumed}", size(one.size), one.seconds));
}
