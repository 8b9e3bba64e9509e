//! Storage tiers of checkpoints: their names, and what a controller asks of a daemon about them.
//!
//! ```text
//! controller                                   daemon
//!   ── Open ─────────────────────────────────────►   once: which stores, what may stay in them
//!   ── Save{seq, …} ─────────────────────────────►   ── Placed{seq, place}, then `Agent` with the same seq
//!   ── Manifest{task}, Copy{task}, Receive{task},
//!      Fetch{task}, Inventory{task} ───────────────►   ── Done{task}
//!   ── Send{image, token} ───────────────────────►   no answer: the receiver's counts
//!   ── Remove, Close ────────────────────────────►   no answer
//! ```
//! A *node store* is a directory on one node, in its memory or on its disk. It holds images of this node's ranks and, as
//! their partner, of other nodes'. Every task is answered once; an image that a `Done` speaks well of has been read as
//! a whole and is what the reference says, unless a `Fetch` did not ask for that.

use crate::agent::{ImageId, SaveOrder};
use crate::job::Rank;
use crate::portable::{PortableOrder, PortableReport};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A place for copies of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Shared memory of the rank's own node.
    Memory,
    /// Shared memory of another node of the job.
    Partner,
    /// A directory of the rank's own node.
    Local(PathBuf),
    /// The job's checkpoint directory, which all nodes see.
    Shared,
    /// Object storage: `s3://BUCKET/PREFIX`.
    Object(String),
}

/// A tier and how many restorable checkpoints it keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TierSpec {
    /// The kind of tier.
    pub tier: Tier,
    /// How many checkpoints it keeps; 0 stands for all.
    pub keep: u32,
}

/// Why a list of tiers cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// No such tier.
    #[error("`{0}` is not a tier")]
    Unknown(String),
    /// A directory is not an absolute path.
    #[error("`{0}` is not an absolute path")]
    Relative(String),
    /// Not a whole number above 0.
    #[error("`{0}` keeps no whole number of checkpoints")]
    Keep(String),
    /// No bucket, or characters that a key cannot have.
    #[error("`{0}` names no bucket")]
    Bucket(String),
    /// A tier is named twice.
    #[error("`{0}` is named twice")]
    Twice(String),
    /// A partner's memory or object storage comes first.
    #[error("`{0}` cannot be the first tier: a rank writes its image on its own node or in the shared directory")]
    First(String),
    /// None at all.
    #[error("no tier is named")]
    None,
}

impl TierError {
    /// What a user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "write for example memory,partner,local:/scratch,shared,s3://bucket/prefix; NAME@2 keeps two checkpoints there"
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => formatter.write_str("memory"),
            Self::Partner => formatter.write_str("partner"),
            Self::Local(path) => write!(formatter, "local:{}", path.display()),
            Self::Shared => formatter.write_str("shared"),
            Self::Object(address) => formatter.write_str(address),
        }
    }
}

impl Tier {
    /// Checkpoints that it keeps if nothing is said: 0 means all.
    #[must_use]
    pub fn usual_keep(&self) -> u32 {
        match self {
            Self::Memory | Self::Partner => 1,
            Self::Local(_) => 2,
            Self::Shared | Self::Object(_) => 0,
        }
    }

    /// All nodes write to the same place: not all of them at once, then.
    #[must_use]
    pub fn is_common(&self) -> bool {
        matches!(self, Self::Shared | Self::Object(_))
    }

    /// It goes with the job: when the job has ended well, nothing of it is left there.
    #[must_use]
    pub fn is_scratch(&self) -> bool {
        !self.is_common()
    }

    /// The directory on a node in which it keeps images; `None` if it has none there.
    #[must_use]
    pub fn store(&self) -> Option<NodeStore> {
        match self {
            Self::Memory | Self::Partner => Some(NodeStore::Memory),
            Self::Local(path) => Some(NodeStore::Directory(path.clone())),
            Self::Shared | Self::Object(_) => None,
        }
    }
}

impl fmt::Display for TierSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keep == self.tier.usual_keep() {
            true => self.tier.fmt(formatter),
            false => write!(formatter, "{}@{}", self.tier, self.keep),
        }
    }
}

impl From<TierSpec> for String {
    fn from(spec: TierSpec) -> Self {
        spec.to_string()
    }
}

impl TryFrom<String> for TierSpec {
    type Error = TierError;

    fn try_from(text: String) -> Result<Self, TierError> {
        text.parse()
    }
}

impl FromStr for TierSpec {
    type Err = TierError;

    fn from_str(text: &str) -> Result<Self, TierError> {
        // Only digits after an @ are a number to keep: a directory's name may hold one.
        let (name, keep) = match text.rsplit_once('@') {
            Some((name, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => (name, Some(digits)),
            _ => (text, None),
        };
        let tier = match name {
            "memory" => Tier::Memory,
            "partner" => Tier::Partner,
            "shared" => Tier::Shared,
            _ => match (name.strip_prefix("local:"), name.strip_prefix("s3://")) {
                (Some(path), _) if path.starts_with('/') => Tier::Local(PathBuf::from(path)),
                (Some(path), _) => return Err(TierError::Relative(path.to_owned())),
                (_, Some(place)) if is_place(place) => Tier::Object(format!("s3://{}", place.trim_end_matches('/'))),
                (_, Some(_)) => return Err(TierError::Bucket(name.to_owned())),
                _ => return Err(TierError::Unknown(name.to_owned())),
            },
        };
        let keep = match keep {
            Some(digits) => digits.parse().map_err(|_| TierError::Keep(text.to_owned()))?,
            None => tier.usual_keep(),
        };
        // Zero is how "all" is written out; a tier of one's node that is never cleared would fill it.
        if keep == 0 && tier.is_scratch() {
            return Err(TierError::Keep(text.to_owned()));
        }
        Ok(Self { tier, keep })
    }
}

/// `BUCKET[/PREFIX]`, of characters that mean the same in every store.
fn is_place(place: &str) -> bool {
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    !bucket.is_empty() && plain(bucket) && plain(prefix) && !prefix.split('/').any(|part| part == "." || part == "..")
}

/// Reads a list of tiers, nearest first, separated by commas.
///
/// # Errors
/// [`TierError`].
pub fn parse_tiers(text: &str) -> Result<Vec<TierSpec>, TierError> {
    let mut specs: Vec<TierSpec> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let spec: TierSpec = word.parse()?;
        if specs.iter().any(|other| other.tier == spec.tier) {
            return Err(TierError::Twice(spec.tier.to_string()));
        }
        specs.push(spec);
    }
    match specs.first() {
        None => Err(TierError::None),
        Some(first) if matches!(first.tier, Tier::Partner | Tier::Object(_)) => Err(TierError::First(first.tier.to_string())),
        Some(_) => Ok(specs),
    }
}

/// Where a node keeps images.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeStore {
    /// In its shared memory.
    Memory,
    /// Below this directory of its own.
    Directory(PathBuf),
}

impl fmt::Display for NodeStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => formatter.write_str("memory"),
            Self::Directory(path) => path.display().fmt(formatter),
        }
    }
}

/// Where a rank's image was written first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageLocation {
    /// On a store of its node.
    NodeStore(NodeStore),
    /// As this file of the shared directory.
    File(PathBuf),
}

/// One image as its checkpoint's manifest knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageRef {
    /// Number of the checkpoint.
    pub number: u64,
    /// The rank that it is an image of.
    pub rank: Rank,
    /// Length, bytes.
    pub bytes: u64,
    /// The stream's own checksum.
    pub checksum: u64,
    /// The random name of the image.
    pub id: ImageId,
}

/// Where an image is copied to by the node that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Destination {
    /// A store of the same node.
    NodeStore(NodeStore),
    /// A file of this path.
    File(PathBuf),
    /// This object, `s3://BUCKET/KEY`.
    Object(String),
}

/// Where a node that wants an image takes it from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageOrigin {
    /// Its own store.
    NodeStore(NodeStore),
    /// A file of this path.
    File(PathBuf),
    /// Another node, which will present this token; it is put in the node's first store that has room.
    Node {
        /// One-time random token, chosen by the controller.
        token: [u8; 16],
    },
    /// An object, which is put in the node's first store that has room.
    Object(String),
}

/// What a controller asks of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierOrder {
    /// The job's stores on this node, in the order of preference; what is in them of other checkpoints than these, and
    /// what was never finished, is removed.
    Open {
        /// Node stores.
        stores: Vec<NodeStore>,
        /// Numbers of the checkpoints that there are.
        keep: Vec<u64>,
        /// Bound of copying, bytes per second; 0: none.
        rate: u64,
    },
    /// Save the (suspended) rank in the first of these stores that has room for `needed` bytes, else in the file.
    Save {
        /// As in `daemon::Question`.
        seq: u64,
        /// The rank whose agent is asked.
        rank: Rank,
        /// Number of the checkpoint.
        number: u64,
        /// Where, best first.
        stores: Vec<NodeStore>,
        /// Bytes that it may take.
        needed: u64,
        /// The rest of the order; its target is the file of last resort.
        order: SaveOrder,
    },
    /// Store a checkpoint's manifest.
    Manifest {
        /// Number of the task.
        task: u64,
        /// Number of the checkpoint.
        number: u64,
        /// Where: a store, or an object. Never a file: the shared directory has its manifest from the controller.
        to: Destination,
        /// As in the checkpoint directory.
        #[serde(with = "serde_bytes")]
        text: Vec<u8>,
    },
    /// Copy an image that is here, checking it.
    Copy {
        /// Number of the task.
        task: u64,
        /// The image that this is about.
        image: ImageRef,
        /// Where it is.
        from: ImageLocation,
        /// Where it goes.
        to: Destination,
    },
    /// Send an image that is here to another node.
    Send {
        /// The image that this is about.
        image: ImageRef,
        /// Where it is.
        from: ImageLocation,
        /// The other node's daemon.
        address: SocketAddr,
        /// Token that it was told in `Receive` or `Fetch`.
        token: [u8; 16],
        /// A restart waits for it: as fast as possible.
        hurry: bool,
    },
    /// Take an image from another node into a store, checking it.
    Receive {
        /// Number of the task.
        task: u64,
        /// The image that this is about.
        image: ImageRef,
        /// Where it goes.
        store: NodeStore,
        /// Token that the other node will present.
        token: [u8; 16],
    },
    /// Have this image here for a restart, whole. What comes from elsewhere is checked on its way. → the file
    Fetch {
        /// Number of the task.
        task: u64,
        /// The image that this is about.
        image: ImageRef,
        /// The place that it comes from.
        from: ImageOrigin,
        /// Where it is put if it comes from elsewhere and no store has room.
        spare: PathBuf,
        /// Check it also where it is here already; else whoever restores it finds out.
        check: bool,
    },
    /// What of the job is in the stores? → [`TierDone::Holdings`]
    Inventory {
        /// Number of the task.
        task: u64,
    },
    /// Stop copying for these checkpoints, and remove what there is of them.
    Remove {
        /// The place that this is about; in object storage what is below an address that ends with a `/`, or what is beside a manifest, and that last.
        place: Destination,
        /// Number of the checkpoint.
        number: u64,
        /// Whose images; none: the whole checkpoint.
        ranks: Vec<Rank>,
    },
    /// The job has ended well: nothing of it is left in any store.
    Close,
    /// Ranks may write files of portable checkpoints to this node's store of the first tier. → [`PortableReport::Holds`]
    OpenPortable {
        /// The job's tiers, of which the first is of the node.
        tiers: Vec<TierSpec>,
    },
    /// About these files.
    Portable(PortableOrder),
}

/// What a finished task found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierDone {
    /// It is there.
    Stored,
    /// The image to restart from.
    Image(PathBuf),
    /// What is in the stores.
    Holdings(Vec<Holding>),
}

/// Images of one checkpoint in one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The store that it lies in.
    pub store: NodeStore,
    /// Number of the checkpoint.
    pub number: u64,
    /// Rank and length in bytes; the content has not been looked at.
    pub images: Vec<(Rank, u64)>,
}

/// What a daemon tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierReport {
    /// Where a `Save` put the image; before the agent's answer.
    Placed {
        /// The rank that this is about.
        rank: Rank,
        /// Number of the checkpoint.
        number: u64,
        /// The place that this is about.
        place: ImageLocation,
    },
    /// A store of this node cannot be used, or took no image: what would be there goes to the next tier.
    PassedOver {
        /// The store that this is about.
        store: NodeStore,
        /// Why, for people.
        why: String,
    },
    /// A task is over.
    Done {
        /// Number of the task.
        task: u64,
        /// What came of it, or why nothing did.
        result: Result<TierDone, String>,
    },
    /// About files of portable checkpoints.
    Portable(PortableReport),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_as_they_are_written() {
        for text in ["shared", "memory,partner,local:/scratch,shared,s3://bucket/some/prefix", "memory@3,local:/a@b,shared@4"] {
            let specs = parse_tiers(text).unwrap();
            let written: Vec<String> = specs.iter().map(ToString::to_string).collect();
            assert_eq!(written.join(","), text);
        }
        assert_eq!(parse_tiers("local:/a@b").unwrap()[0].tier, Tier::Local("/a@b".into()));
        assert_eq!(parse_tiers("shared,local:/a@7").unwrap()[1], TierSpec { tier: Tier::Local("/a".into()), keep: 7 });
        assert_eq!(parse_tiers("shared,s3://b/").unwrap()[1].tier, Tier::Object("s3://b".into()));
    }

    #[test]
    fn what_is_no_list_of_tiers_is_refused_by_name() {
        for (text, wanted) in [
            ("", TierError::None),
            ("memory,tape", TierError::Unknown("tape".into())),
            ("local:scratch", TierError::Relative("scratch".into())),
            ("memory,memory@2", TierError::Twice("memory".into())),
            ("partner,shared", TierError::First("partner".into())),
            ("s3://b/p", TierError::First("s3://b/p".into())),
            ("shared,s3://", TierError::Bucket("s3://".into())),
            ("shared,s3://b/../c", TierError::Bucket("s3://b/../c".into())),
            ("memory@0", TierError::Keep("memory@0".into())),
            ("memory@99999999999", TierError::Keep("memory@99999999999".into())),
        ] {
            assert_eq!(parse_tiers(text), Err(wanted), "{text}");
        }
    }
}
