//! How a command ends when it could not do what it was asked: cause, way out, exit code.

use mend_controller::RunError;
use mend_controller::client::AskError;
use mend_controller::hosts::HostsError;
use mend_controller::images::ImagesError;
use mend_controller::manifest::ManifestError;
use mend_controller::record::RecordError;
use mend_lab::LabError;
use mend_settings::SettingError;
use std::error::Error;

/// A failed command. Exit codes: 1 it could not be done, 2 wrong usage (by clap), 64 bad value, 65 unusable image or
/// checkpoint, 69 node or job not reachable, 75 node lost (a restart can go on), 126/127 as a shell for a program that
/// cannot be started; else the job's own.
#[derive(Debug)]
pub struct Failure {
    what: String,
    hint: String,
    code: i32,
}

impl Failure {
    pub fn new(what: impl Into<String>, hint: impl Into<String>, code: i32) -> Self {
        Self { what: what.into(), hint: hint.into(), code }
    }

    pub fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(what, hint, 64)
    }

    fn of(error: &dyn Error, hint: String, code: i32) -> Self {
        Self { what: mend_report::with_causes(error), hint, code }
    }

    /// What went wrong, with its causes.
    pub fn text(&self) -> &str {
        &self.what
    }

    /// The end of a verb of which some parts failed: all are printed but the last, which ends it.
    ///
    /// # Errors
    /// The last one.
    pub fn of_several(mut failed: Vec<Self>) -> Result<i32, Self> {
        let Some(last) = failed.pop() else { return Ok(0) };
        for failure in failed {
            failure.report();
        }
        Err(last)
    }

    /// Prints it and returns the exit code.
    pub fn report(&self) -> i32 {
        mend_report::tell!("{}", mend_report::failure("mend", &self.what, &self.hint));
        self.code
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Self::of(&error, error.hint(), error.exit_code())
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        let code = if let AskError::Record(error) = &error { error.exit_code() } else { 69 };
        Self::of(&error, error.hint(), code)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        Self::of(&error, error.hint(), error.exit_code())
    }
}

impl From<ManifestError> for Failure {
    fn from(error: ManifestError) -> Self {
        Self::of(&error, error.hint(), 65)
    }
}

impl From<ImagesError> for Failure {
    fn from(error: ImagesError) -> Self {
        let code = match error {
            ImagesError::OfCheckpoint { .. } => 64,
            ImagesError::Write { .. } => 1,
            _ => 65,
        };
        Self::of(&error, error.hint(), code)
    }
}

impl From<HostsError> for Failure {
    fn from(error: HostsError) -> Self {
        Self::of(&error, error.hint().to_owned(), 64)
    }
}

impl From<SettingError> for Failure {
    fn from(error: SettingError) -> Self {
        Self::of(&error, String::new(), 64)
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Self::of(&error, error.hint().unwrap_or_default(), error.exit_code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_cause_is_told_once() {
        let source = || io::Error::from(io::ErrorKind::PermissionDenied);
        for error in [
            LabError::Exec { program: "app".into(), source: source() },
            LabError::Enter { node: "node1".into(), source: source() },
            LabError::Connection { lab: "lab".into(), source: source() },
            LabError::System { what: "socket", source: source() },
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.what.matches("permission denied").count(), 1, "{}", failure.what);
        }
    }
}
