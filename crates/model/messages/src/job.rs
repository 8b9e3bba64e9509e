//! What a job is: its identity, its ranks, and where they are at the moment.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Index of a process in `MPI_COMM_WORLD`.
pub type Rank = u32;

/// Most ranks that a user may ask for.
pub const MAX_RANKS: u32 = 1_000_000;

/// Index of a node in the job's host list (hosts first, then spares); stable for the job's life.
pub type NodeIndex = u32;

/// A random 256-bit key shared by the parts of one job (or, for a daemon, by all that one user runs).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Where a rank's fabric can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricAddress {
    /// Listener for ranks on other nodes.
    pub tcp: SocketAddr,
    /// Listener for ranks on the same node: name of an abstract unix socket, without the leading NUL.
    pub unix: String,
}

/// One rank's place in the job map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapEntry {
    /// The rank this entry is about.
    pub rank: Rank,
    /// Two ranks with the same node index reach each other by shared memory.
    pub node: NodeIndex,
    /// Grows each time the rank moves or is restarted. A peer suspended towards generation `g` reopens its
    /// channel when it sees an entry with `open == true`.
    pub generation: u64,
    /// False while the rank is moving: its peers keep their packets.
    pub open: bool,
    /// `None` until the rank's fabric is up.
    pub address: Option<FabricAddress>,
    /// It has ended, as a rank may before the job does: that it closed its channels is no loss.
    pub ended: bool,
}

/// Where every rank is. Replaced as a whole; `version` only grows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMap {
    /// Orders maps of one job.
    pub version: u64,
    /// One entry per rank, ascending.
    pub entries: Vec<MapEntry>,
}

/// What the user asked to run; kept in every checkpoint's manifest.
///
/// A job may run several programs in one world, as MPI's standard has it for `mpiexec` (MPI 4.1, 11.5, form B): the first ranks run the
/// first one, those from [`FurtherProgram::first`] on another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Command and arguments, the command resolved by the daemon's node (PATH of `env`).
    pub argv: Vec<String>,
    /// The complete environment of the ranks, before Mend's own variables.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Permissions that files of ranks don't get, as umask(2) has it; `None`: those that the daemon's don't get.
    #[serde(default)]
    pub umask: Option<u32>,
    /// Programs of later ranks, by ascending first rank.
    pub further: Vec<FurtherProgram>,
}

/// A program that ranks run from some rank on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherProgram {
    /// The first of its ranks.
    pub first: Rank,
    /// As in [`Program`].
    pub argv: Vec<String>,
    /// As in [`Program`].
    pub env: Vec<(String, String)>,
    /// As in [`Program`].
    pub cwd: PathBuf,
}

/// What one rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankProgram<'a> {
    /// Command and arguments.
    pub argv: &'a [String],
    /// The complete environment, before Mend's own variables.
    pub env: &'a [(String, String)],
    /// Working directory.
    pub cwd: &'a Path,
}

impl Program {
    /// What `rank` runs.
    #[must_use]
    pub fn of(&self, rank: Rank) -> RankProgram<'_> {
        match self.further.iter().rev().find(|further| further.first <= rank) {
            Some(FurtherProgram { argv, env, cwd, .. }) => RankProgram { argv, env, cwd },
            None => RankProgram { argv: &self.argv, env: &self.env, cwd: &self.cwd },
        }
    }

    /// The first rank of each program but the first.
    #[must_use]
    pub fn boundaries(&self) -> Vec<Rank> {
        self.further.iter().map(|further| further.first).collect()
    }

    /// All commands with their arguments, and a colon between two.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let further = self.further.iter().flat_map(|further| std::iter::once(":".to_owned()).chain(further.argv.iter().cloned()));
        self.argv.iter().cloned().chain(further).collect()
    }

    /// The environments of all programs, to be changed.
    pub fn environments(&mut self) -> impl Iterator<Item = &mut Vec<(String, String)>> {
        std::iter::once(&mut self.env).chain(self.further.iter_mut().map(|further| &mut further.env))
    }
}
