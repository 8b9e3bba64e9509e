//! The lines between Mend and a plug-in, `mend-source-NAME`, which serves addresses `NAME://…` over one session.
//!
//! ```text
//! Mend                                  plug-in, on its standard output
//! mend-source 1                         mend-source 1
//! credentials REFERENCE                 (nothing; only if the source has one)
//! stat URI                              size BYTES [modified NANOSECONDS] [etag TEXT]
//! read OFFSET LENGTH URI                data BYTES, a newline, so many bytes; again, until LENGTH bytes are sent
//! list URI                              name NAME, a line for each file below; then: end
//! quit                                  (it ends)
//! any of them                           error TEXT      will not pass: no such file, not allowed
//!                                       later TEXT      may pass
//! ```
//! A line ends with a newline and has at most [`MAX_LINE`] bytes. One request at a time. Faults assumed: the plug-in sends anything, or nothing.

use crate::record::Version;

/// Most bytes of a line, without its newline.
pub const MAX_LINE: usize = 8192;
/// Most bytes of one `data`.
pub const MAX_DATA: u64 = 16 << 20;
/// What both say first.
pub const GREETING: &str = "mend-source 1";

/// What a plug-in answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `mend-source 1`.
    Greeting,
    /// What a source holds.
    Stat(Version),
    /// So many bytes follow.
    Data(u64),
    /// A file below.
    Name(String),
    /// No more of them.
    End,
    /// It cannot be had.
    Error(String),
    /// It cannot be had now.
    Later(String),
}

/// Why a line is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it answered {0:?}, which is none of the answers it may give")]
pub struct NoAnswer(String);

/// Reads a line, without its newline.
///
/// # Errors
/// [`NoAnswer`], with the beginning of the line.
pub fn answer(line: &[u8]) -> Result<Answer, NoAnswer> {
    let refused = || NoAnswer(String::from_utf8_lossy(line).chars().take(60).collect());
    let text = std::str::from_utf8(line).map_err(|_| refused())?;
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        _ if text == GREETING => Ok(Answer::Greeting),
        "size" => version(rest).map(Answer::Stat).ok_or_else(refused),
        "data" => rest.parse().ok().filter(|bytes| (1..=MAX_DATA).contains(bytes)).map(Answer::Data).ok_or_else(refused),
        "name" if !rest.is_empty() => Ok(Answer::Name(rest.to_owned())),
        "end" if rest.is_empty() => Ok(Answer::End),
        "error" => Ok(Answer::Error(rest.to_owned())),
        "later" => Ok(Answer::Later(rest.to_owned())),
        _ => Err(refused()),
    }
}

/// `BYTES [modified NANOSECONDS] [etag TEXT]`
fn version(text: &str) -> Option<Version> {
    let (text, etag) = match text.split_once(" etag ") {
        Some((text, etag)) => (text, Some(etag.to_owned())),
        None => (text, None),
    };
    let (size, modified) = match text.split_once(" modified ") {
        Some((size, modified)) => (size, Some(modified.parse().ok()?)),
        None => (text, None),
    };
    Some(Version { size: size.parse().ok()?, etag, modified_ns: modified })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn answers() {
        let version = |size, etag: Option<&str>, modified_ns| Answer::Stat(Version { size, etag: etag.map(str::to_owned), modified_ns });
        for (line, expected) in [
            ("mend-source 1", Answer::Greeting),
            ("size 5", version(5, None, None)),
            ("size 5 modified -7", version(5, None, Some(-7))),
            ("size 5 modified 7 etag a b", version(5, Some("a b"), Some(7))),
            ("size 5 etag x", version(5, Some("x"), None)),
            ("data 16777216", Answer::Data(MAX_DATA)),
            ("name a b", Answer::Name("a b".into())),
            ("end", Answer::End),
            ("error no such file", Answer::Error("no such file".into())),
            ("later busy", Answer::Later("busy".into())),
        ] {
            assert_eq!(answer(line.as_bytes()), Ok(expected), "{line}");
        }
        for line in ["", "mend-source 2", "size", "size -1", "size 5 modified x", "data 0", "data 16777217", "name", "end now", "ok"] {
            assert!(answer(line.as_bytes()).is_err(), "{line}");
        }
        assert!(answer(b"\xff").unwrap_err().to_string().contains("none of the answers"));
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in "(size|data|name|end| |etag|modified|[0-9-]){0,9}") {
            let _ = answer(line.as_bytes());
        }
    }
}
