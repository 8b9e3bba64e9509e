//! What a daemon, an agent or a fabric has noticed and nobody asked for: on its way to the job's journal.

use crate::job::Rank;
use serde::{Deserialize, Serialize};

/// Something that was noticed at a rank. It asks nobody to do anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// A channel to or from this peer broke with messages under way. If the peer has ended, or moves, nothing is wrong.
    ChannelBroke {
        /// The other end.
        peer: Rank,
        /// How the channel broke.
        why: String,
    },
    /// The channels with these peers take long to drain.
    DrainSlow {
        /// The other ends.
        peers: Vec<Rank>,
        /// So far, microseconds.
        waited_us: u64,
    },
    /// The restorer has filled the rank's memory.
    ImageRead {
        /// Microseconds from its start.
        us: u64,
        /// Bytes of the image.
        bytes: u64,
    },
    /// The rank's process has gone back to its image in place.
    WentBack {
        /// Bytes of memory that were rewritten.
        bytes: u64,
    },
    /// The rank's process could not go back in place: it was killed, and another one is restored.
    NotInPlace {
        /// What stood in the way.
        why: String,
    },
    /// The restored agent has reopened files and the rest.
    Rebuilt {
        /// The time it took, in microseconds.
        us: u64,
    },
    /// A process of the rank's, or one of Mend's that it needs, was ended by somebody else.
    ProcessKilled {
        /// Which, and what is known of it.
        what: String,
    },
}
