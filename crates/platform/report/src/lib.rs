//! How people are told: an error with its causes and its hint, and (feature `table`) a table.
//!
//! All programs and libraries of Mend use these, so that an error reads the same wherever it comes from.

#[cfg(feature = "table")]
mod table;

#[cfg(feature = "table")]
pub use table::table;

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, Write as _};

/// Writes a line to standard error, as `eprintln!` does, which panics where it cannot: a job must outlive the reader of its messages, and a full disk
/// under them.
#[macro_export]
macro_rules! tell {
    ($($what:tt)*) => { $crate::to_stderr(::std::format_args!("{}\n", ::std::format_args!($($what)*))) };
}

/// Writes to standard error, as [`tell!`] does, without the end of a line.
#[macro_export]
macro_rules! tell_part {
    ($($what:tt)*) => { $crate::to_stderr(::std::format_args!($($what)*)) };
}

/// Writes to standard error, at once; what cannot be written is lost.
pub fn to_stderr(what: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(what.to_string().as_bytes());
}

/// An error with the whole chain of its causes, on one line. A cause that the text before it ends with is not repeated.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.ends_with(&own) {
            text.push_str(": ");
            text.push_str(&own);
        }
        cause = error.source();
    }
    text
}

/// What a program that fails says on standard error; `hint` says what to do, and may be empty.
#[must_use]
pub fn failure(program: &str, what: &str, hint: &str) -> String {
    if hint.is_empty() { format!("{program}: {what}") } else { format!("{program}: {what}\n  hint: {hint}") }
}

/// What to do if a part of a checkpoint cannot be written, by what the kernel said; empty where nothing is known that would help.
#[must_use]
pub fn storage_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull => "make room there, or name another directory for checkpoints, with --checkpoint-dir",
        ErrorKind::QuotaExceeded => "your quota is used up: raise it, or name another directory for checkpoints, with --checkpoint-dir",
        ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "name a directory for checkpoints that you may write to, with --checkpoint-dir"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => "name a directory for checkpoints that all nodes share, with --checkpoint-dir",
        ErrorKind::OutOfMemory => "free memory on that node",
        _ => process_hint(error),
    }
}

/// What to do if a process cannot have a descriptor, a process or something in `/proc`, by what the kernel said; else empty.
#[must_use]
pub fn process_hint(error: &io::Error) -> &'static str {
    // errno(3): these have no kind of their own.
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    match (error.raw_os_error(), error.kind()) {
        (Some(EMFILE), _) => "raise the limit on open files (ulimit -n)",
        (Some(ENFILE), _) => "this node has as many open files as it allows (sysctl fs.file-max)",
        (Some(_), ErrorKind::WouldBlock) => "raise the limit on processes (ulimit -u)",
        (_, ErrorKind::OutOfMemory) => "free memory on that node",
        _ => "",
    }
}

/// What to do if the agent of a rank cannot read something in `/proc`; else empty.
#[must_use]
pub fn proc_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => "the rank needs a readable /proc; a setuid or non-dumpable program has none",
        _ => process_hint(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("the file cannot be read")]
        Read(#[source] Inner),
        #[error("the file cannot be read: {0}")]
        Told(#[source] io::Error),
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{path}")]
    struct Inner {
        path: &'static str,
        source: io::Error,
    }

    #[test]
    fn every_cause_is_told_once() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let chained = Outer::Read(Inner { path: "/x", source: denied() });
        assert_eq!(with_causes(&chained), "the file cannot be read: /x: permission denied");
        assert_eq!(with_causes(&Outer::Told(denied())), "the file cannot be read: permission denied");
    }

    #[test]
    fn hints_are_given_for_their_causes_alone() {
        let hints = |errno: i32| {
            let error = io::Error::from_raw_os_error(errno);
            [storage_hint(&error), process_hint(&error), proc_hint(&error)].map(|hint| {
                let words = ["room", "quota", "may write", "share", "/proc", "ulimit -n", "ulimit -u", "ulimit -f", "memory", "file-max"];
                words.into_iter().find(|word| hint.contains(word)).unwrap_or(hint)
            })
        };
        // ENOSPC, EDQUOT, EFBIG, EACCES, EROFS, ENOENT, EMFILE, ENFILE, EAGAIN, ENOMEM, EIO, EPIPE, EINVAL
        assert_eq!(hints(28), ["room", "", ""]);
        assert_eq!(hints(122), ["quota", "", ""]);
        assert_eq!(hints(27), ["ulimit -f", "", ""]);
        assert_eq!(hints(13), ["may write", "", "/proc"]);
        assert_eq!(hints(30), ["may write", "", ""]);
        assert_eq!(hints(2), ["share", "", "/proc"]);
        assert_eq!(hints(24), ["ulimit -n"; 3]);
        assert_eq!(hints(23), ["file-max"; 3]);
        assert_eq!(hints(11), ["ulimit -u"; 3]);
        assert_eq!(hints(12), ["memory"; 3]);
        for errno in [5, 32, 22] {
            assert_eq!(hints(errno), [""; 3]);
        }
    }

    #[test]
    fn a_hint_has_a_line_of_its_own() {
        assert_eq!(failure("mend", "no job", ""), "mend: no job");
        assert_eq!(failure("mend", "no job", "start one"), "mend: no job\n  hint: start one");
    }
}
