//! Files of data spaces that are sent away: where to, which of them are ready for it, and what has been sent.
//!
//! `ledger` is what is written down of what was sent, `quiet` tells files that are still being written from those that are not. This file has what people name: `NAME=URI`, and
//! what a sender tells a job's controller.

pub mod ledger;
pub mod quiet;

use crate::space::is_name;
use crate::space::mounts::Mount;
use crate::uri::{Address, encoded};
use serde::{Deserialize, Serialize};

/// The variable, in the environment of a job's program: it goes where the program goes, into checkpoints as well.
pub const VARIABLE: &str = "MEND_OFFLOAD";
/// Schemes of places that files can be written to.
pub const WRITABLE: [&str; 7] = ["file", "s3", "sftp", "webdav", "webdavs", "ftp", "ftps"];

/// A space whose files are sent away, and where to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offload {
    /// Name of the space.
    pub space: String,
    /// The directory that they are sent to. What follows the last `/` of it is a part of its name, too.
    pub uri: String,
}

/// Looks whether files can be written there.
///
/// # Errors
/// Why not.
pub fn check_destination(uri: &str) -> Result<Address<'_>, String> {
    let address = Address::parse(uri).map_err(|error| error.to_string())?;
    match address.scheme.as_str() {
        scheme if WRITABLE.contains(&scheme) => Ok(address),
        "http" | "https" => Err(format!("{uri}: an HTTP server takes no files; a WebDAV server does, as webdav:// or webdavs://")),
        scheme => Err(format!("{uri}: files cannot be sent to {scheme}://, but to {}", WRITABLE.map(|one| format!("{one}://")).join(", "))),
    }
}

/// Reads `NAME=URI`, several with blanks between them.
///
/// # Errors
/// What is wrong with it.
pub fn read(text: &str) -> Result<Vec<Offload>, String> {
    let mut all: Vec<Offload> = Vec::new();
    for word in text.split_whitespace() {
        let (space, uri) = word.split_once('=').ok_or_else(|| format!("`{word}` is no NAME=URI"))?;
        let space = space.strip_suffix(':').unwrap_or(space);
        if !is_name(space) {
            return Err(format!("`{space}` is no name of a data space"));
        }
        check_destination(uri)?;
        let one = Offload { space: space.to_owned(), uri: uri.to_owned() };
        if !all.contains(&one) {
            all.push(one);
        }
    }
    Ok(all)
}

/// The first of these whose space ranks do not write into, as they see spaces: nothing of it can be sent.
#[must_use]
pub fn unwritten<'a>(all: &'a [Offload], mounts: &[Mount]) -> Option<&'a Offload> {
    all.iter().find(|one| !is_written(&one.space, mounts))
}

/// Whether ranks write into a space.
#[must_use]
pub fn is_written(space: &str, mounts: &[Mount]) -> bool {
    mounts.iter().any(|mount| mount.space == space && mount.writable)
}

/// One of these, as it was given: blanks in an address stand as `%20`.
#[must_use]
pub fn word(given: &str) -> String {
    given.chars().map(|one| if one.is_whitespace() { encoded(&one.to_string()) } else { one.to_string() }).collect()
}

/// The text of these.
#[must_use]
pub fn write(all: &[Offload]) -> String {
    all.iter().map(|one| format!("{}={}", one.space, one.uri)).collect::<Vec<_>>().join(" ")
}

/// What the environment of a job's program says, not yet read; empty if nothing is sent away.
#[must_use]
pub fn of_environment(env: &[(String, String)]) -> &str {
    env.iter().find(|(name, _)| name == VARIABLE).map_or("", |(_, value)| value.as_str())
}

/// What a sender tells of a look at the files, a line of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Files that have arrived since it told last.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that are not sent, or have changed since.
    pub left: u64,
    /// What stands in the way, and what to do; may be empty.
    pub failure: Option<(String, String)>,
}

/// How long a sender waits after looks at which something failed, seconds: twice as long each time.
#[must_use]
pub fn pause_s(failures_in_a_row: u32) -> u64 {
    const FIRST_PAUSE_S: u64 = 10;
    const LONGEST_PAUSE_S: u64 = 600;
    FIRST_PAUSE_S.saturating_mul(1 << failures_in_a_row.saturating_sub(1).min(16)).min(LONGEST_PAUSE_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_where_is_read_as_it_is_written() {
        let all = read(" out=file:///archive/run7/  more:=s3://bucket/a=b out=s3://bucket/x,y").unwrap();
        assert_eq!(write(&all), "out=file:///archive/run7/ more=s3://bucket/a=b out=s3://bucket/x,y");
        assert_eq!(read(&write(&all)), Ok(all));
        assert_eq!(read("a=file:///x a=file:///x").unwrap().len(), 1);
        assert_eq!(read(&word("a=file:///my files/\t")).unwrap()[0].uri, "file:///my%20files/%09");
        for (bad, said) in [
            ("out", "no NAME=URI"),
            ("o ut=file:///x", "no NAME=URI"),
            ("-a=file:///x", "no name of a data space"),
            ("out=/archive", "no SCHEME://"),
            ("out=https://archive/x", "webdav://"),
            ("out=tar:///x", "cannot be sent to tar://"),
            ("out=ftp://me:secret@host/x", "has a password"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.contains(said) && !error.contains("secret@"), "{error}");
        }
    }

    #[test]
    fn tries_come_later_and_later() {
        assert_eq!([1, 2, 3, 7, 8, u32::MAX].map(pause_s), [10, 20, 40, 600, 600, 600]);
    }
}
