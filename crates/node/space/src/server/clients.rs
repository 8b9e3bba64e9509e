//! What a target knows of its clients, whatever keeps its objects: who touched what, and whose turn it is. All of it is in memory.

use super::turns::{Claims, Turns};
use super::{Answered, Failure};
use mend_data::patterns::Recorder;
use mend_data::space::target::{Answer, Failed, Request};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub struct Clients {
    recorder: Mutex<Recorder>,
    turns: Turns,
    claims: Claims,
}

impl Clients {
    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers what is not about objects and entries.
    ///
    /// # Errors
    /// [`Failed::Busy`] if it is another client's turn; [`Failed::Nonsense`] for any other request.
    pub fn answer(&self, request: Request) -> Answered {
        match request {
            Request::Touched { reports } => {
                let mut recorder = self.recorder();
                reports.iter().for_each(|report| recorder.take(report));
            }
            Request::Patterns { from } => return encoded(&self.recorder().tell(from)),
            Request::Heal { who, verify_after, done } => self.turns.take(who, verify_after, done)?,
            Request::Claim { claim, who, over } => self.claims.take(claim, who, over)?,
            _ => return Err(Failure::new(Failed::Nonsense, "the request is about objects")),
        }
        Ok((Answer::Done, Vec::new()))
    }
}

/// An answer of these bytes. It does not fail; that is how all are answered.
pub fn bytes(bytes: Vec<u8>) -> Answered {
    // Requests for more are refused.
    Ok((Answer::Bytes { length: bytes.len() as u32 }, bytes))
}

/// An answer that is encoded.
///
/// # Errors
/// [`Failed::Nonsense`] if it cannot be.
pub fn encoded<T: Serialize>(what: &T) -> Answered {
    bytes(postcard::to_stdvec(what).map_err(|error| Failure::new(Failed::Nonsense, error.to_string()))?)
}
