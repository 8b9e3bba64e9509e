//! How a command ends that could not do what it was asked: cause, way out, exit code.

use std::fmt::Display;
use std::io::{self, ErrorKind};

/// It could not be done here: the disk, a permission.
pub const FAILED: i32 = 1;
/// A value that makes no sense.
pub const BAD_VALUE: i32 = 64;
/// A file is damaged, or its source holds another content now.
pub const DAMAGED: i32 = 65;
/// No source delivers.
pub const UNREACHABLE: i32 = 69;

/// A failed command, or a failed file of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, with its causes.
    pub what: String,
    /// What to do; may be empty.
    pub hint: String,
    /// How the program ends.
    pub code: i32,
}

impl Failure {
    /// A failure of this exit code.
    pub fn new(what: impl Into<String>, hint: impl Into<String>, code: i32) -> Self {
        Self { what: what.into(), hint: hint.into(), code }
    }

    /// A value that makes no sense.
    pub fn bad_value(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(what, hint, BAD_VALUE)
    }

    /// What the file system said of something.
    pub fn system(what: impl Display, error: &io::Error) -> Self {
        let hint = match error.kind() {
            ErrorKind::StorageFull => "make room there, then repeat the command: what was fetched is not fetched again",
            ErrorKind::QuotaExceeded => "your quota is used up: raise it, then repeat the command: what was fetched is not fetched again",
            ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "name a place that you may write to, or change its mode (chmod u+w)"
            }
            _ => mend_report::process_hint(error),
        };
        Self::new(format!("{what}: {error}"), hint, FAILED)
    }

    /// Tells it on standard error; the exit code.
    pub fn report(&self) -> i32 {
        mend_report::tell!("{}", mend_report::failure("mend data", &self.what, &self.hint));
        self.code
    }
}

/// Reports each of several failures. The exit code of the last; `None`: there is none.
pub fn report_all<'a>(failures: impl IntoIterator<Item = &'a Failure>) -> Option<i32> {
    failures.into_iter().fold(None, |_, failure| Some(failure.report()))
}
