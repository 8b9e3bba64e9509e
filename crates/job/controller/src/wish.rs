//! What whoever may end a job wants of it, told while none of its machines is there to decide.

use crate::error::RunError;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Its user wants it to end.
    End(i32),
    /// So it said with `mend kill`.
    Kill,
    /// Its batch system wants it to end: a last checkpoint comes first.
    TimeUp(i32),
}

impl Wish {
    /// How the job ends by it when none of its lives is under way. `checkpoint`: its newest.
    pub(crate) fn end(self, job: &str, checkpoint: Option<u64>) -> RunError {
        match self {
            Self::End(signal) => RunError::Interrupted { signal },
            Self::Kill => RunError::Killed,
            Self::TimeUp(signal) => RunError::TimeUp { signal, job: job.to_owned(), checkpoint },
        }
    }
}
