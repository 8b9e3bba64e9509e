//! What a migration tells of itself: for people, for the journal, for the next time.

use super::{Manner, Migration, State};
use mend_messages::control::{MoveProgress, Precopied, Storage};
use mend_policy::precopy::{MeasuredRates, Precopy};

impl Migration {
    /// How the rank moves; if that was left open, as it was decided.
    #[must_use]
    pub fn manner(&self) -> Manner {
        self.manner
    }

    /// Where its image is stored on its way, if it is.
    #[must_use]
    pub fn storage(&self) -> Option<Storage> {
        self.manner.mode.storage()
    }

    /// Name of the phase that it is in; `None` when it is over.
    #[must_use]
    pub fn phase(&self) -> Option<&'static str> {
        Some(match self.state {
            State::Inspecting => "inspect",
            State::Comparing => "compare",
            State::Waiting => "wait",
            State::Precopying => "precopy",
            State::Withdrawing => "withdraw",
            State::Suspending => "suspend",
            State::Moving => "move",
            State::Connecting => "connect",
            State::Resuming => "resume",
            State::Undoing => "undo",
            State::Done => return None,
        })
    }

    /// How far it has come, for people.
    #[must_use]
    pub fn progress(&self) -> Option<MoveProgress> {
        let precopy = self.precopy.as_ref()?;
        let (last, rate) = (precopy.last(), precopy.rate());
        let left = precopy.left();
        Some(MoveProgress {
            rank: self.rank,
            round: last.number,
            done: last.done,
            round_bytes: last.bytes,
            bytes: last.total,
            rate,
            dirty_rate: precopy.dirty_rate(),
            left,
            left_us: left.filter(|_| rate > 0).map(|left| left.saturating_mul(1_000_000) / rate),
        })
    }

    /// What was seen of the rank, for the next time.
    #[must_use]
    pub fn rates(&self) -> Option<MeasuredRates> {
        self.precopy.as_ref().and_then(Precopy::rates)
    }

    /// What was sent before the rank stood still.
    pub(super) fn precopied(&self) -> Option<Precopied> {
        let (precopy, (why, stopped_us)) = (self.precopy.as_ref()?, self.stop?);
        let last = precopy.last();
        Some(Precopied {
            rounds: last.number + 1,
            bytes: last.total,
            stopped_bytes: self.bytes,
            us: stopped_us.saturating_sub(self.precopying_us.unwrap_or(stopped_us)),
            why,
        })
    }
}
