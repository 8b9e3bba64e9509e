//! Why a target does not do what it is asked.

use serde::{Deserialize, Serialize};

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failed {
    /// There is no such object, or no such page.
    Absent,
    /// The object is shorter than it must be.
    Short,
    /// The medium does not give or take it.
    Medium,
    /// There is no room.
    Full,
    /// The request makes no sense.
    Nonsense,
    /// Another one is at it.
    Busy,
    /// The file is on other targets now.
    Moved,
    /// The target's file system has no files that long.
    TooLong,
}
