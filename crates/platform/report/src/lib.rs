//! How people are told: an error with its causes and its hint, and (feature `table`) a table.
//!
//! All programs and libraries of Mend use these, so that an error reads the same wherever it comes from.

#[cfg(feature = "table")]
mod table;

#[cfg(feature = "table")]
pub use table::table;

use std::error::Error;

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
    fn a_hint_has_a_line_of_its_own() {
        assert_eq!(failure("mend", "no job", ""), "mend: no job");
        assert_eq!(failure("mend", "no job", "start one"), "mend: no job\n  hint: start one");
    }
}
