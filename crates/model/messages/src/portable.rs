//! Files of portable checkpoints (libmend-app) in the stores of nodes: their names, and what controller and daemons say of them.
//!
//! ```text
//! controller                             daemon
//!   ── TierOrder::OpenPortable ──────────►  once: the job's tiers         ── Holds ──►  what its store has
//!                                           a file for the partner's memory ── Offer ──►
//!   ── Receive{token} ───────────────────►  the partner's daemon          ── Taken ──►
//!   ── Send{token} ──────────────────────►  the daemon that has it
//!   ── Kept ─────────────────────────────►  the one that offered it
//!                                           a rank waits for a file       ── Wanted ──►
//!   ── Receive and Send, or Missing ─────►
//!   ── Lost ─────────────────────────────►  what a lost node had of its    (offers that again)
//!                                           it has no file any more        ── Gone ───►
//!                                           there is something to copy     ── Asks ───►  to what all nodes share
//!   ── Turn ─────────────────────────────►                                 ── Over ───►
//! ```
//! A file is named by what it is, never by a path: what comes from others cannot lead anywhere else.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Digits of a key.
const KEY_DIGITS: usize = 32;

/// One of the two files that a rank has of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    /// The variables, `rank-R.h5`.
    Variables,
    /// By what they are known to be whole, `rank-R.seal`.
    Seal,
}

/// A file: `KEY/checkpoint-N/rank-R.h5` or `.seal`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName {
    key: String,
    /// Number of the checkpoint.
    pub checkpoint: u64,
    /// The library's rank, which need not be the job's.
    pub rank: u32,
    /// Which file.
    pub part: Part,
}

/// It is no such name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it names no file of a portable checkpoint")]
pub struct NotAName;

/// True for what stands for a directory of checkpoints: 32 hexadecimal digits.
#[must_use]
pub fn is_key(text: &str) -> bool {
    text.len() == KEY_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Name of a checkpoint's directory, as the library writes it.
#[must_use]
pub fn checkpoint_name(checkpoint: u64) -> String {
    format!("checkpoint-{checkpoint:06}")
}

/// The number in a name of a checkpoint's directory.
#[must_use]
pub fn checkpoint_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("checkpoint-")?.parse().ok()?;
    (checkpoint_name(number) == name).then_some(number)
}

impl FileName {
    /// One below this key. `None`: that is no key.
    #[must_use]
    pub fn new(key: &str, checkpoint: u64, rank: u32, part: Part) -> Option<Self> {
        is_key(key).then(|| Self { key: key.to_owned(), checkpoint, rank, part })
    }

    /// What stands for the directory of checkpoints.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its name in the checkpoint's directory.
    #[must_use]
    pub fn file(&self) -> String {
        let suffix = match self.part {
            Part::Variables => "h5",
            Part::Seal => "seal",
        };
        format!("rank-{:05}.{suffix}", self.rank)
    }

    /// The file of this name in the directory of a checkpoint below a key.
    #[must_use]
    pub fn of_file(key: &str, checkpoint: u64, file: &str) -> Option<Self> {
        let (stem, part) = match (file.strip_suffix(".h5"), file.strip_suffix(".seal")) {
            (Some(stem), _) => (stem, Part::Variables),
            (_, Some(stem)) => (stem, Part::Seal),
            _ => return None,
        };
        let name = Self::new(key, checkpoint, stem.strip_prefix("rank-")?.parse().ok()?, part)?;
        (name.file() == file).then_some(name)
    }

    /// The rank's other file.
    #[must_use]
    pub fn with(&self, part: Part) -> Self {
        Self { part, ..self.clone() }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.key, checkpoint_name(self.checkpoint), self.file())
    }
}

impl FromStr for FileName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let mut words = text.split('/');
        let (Some(key), Some(directory), Some(file), None) = (words.next(), words.next(), words.next(), words.next()) else {
            return Err(NotAName);
        };
        let number = checkpoint_number(directory).ok_or(NotAName)?;
        Self::of_file(key, number, file).ok_or(NotAName)
    }
}

impl From<FileName> for String {
    fn from(name: FileName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for FileName {
    type Error = NotAName;

    fn try_from(text: String) -> Result<Self, NotAName> {
        text.parse()
    }
}

/// What a controller asks of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortableOrder {
    /// Send a file to another node.
    Send {
        /// The file.
        name: FileName,
        /// The other node's daemon.
        address: SocketAddr,
        /// Token that it was told in `Receive`.
        token: [u8; 16],
        /// A rank waits for it: as fast as possible.
        hurry: bool,
    },
    /// Take a file from another node among this one's copies. → [`PortableReport::Taken`]
    Receive {
        /// The file.
        name: FileName,
        /// Its length.
        bytes: u64,
        /// Token that the other node will present.
        token: [u8; 16],
    },
    /// The partner has the file that was offered.
    Kept {
        /// The file.
        name: FileName,
    },
    /// No node of the job has the file that is wanted.
    Missing {
        /// The file.
        name: FileName,
    },
    /// A node is lost that had copies of these files.
    Lost {
        /// Files that this node has, too.
        names: Vec<FileName>,
    },
    /// This node may copy to a tier that all nodes share. → [`PortableReport::Over`]
    Turn {
        /// Name of the tier.
        tier: String,
        /// The number with which it asked.
        turn: u64,
    },
}

/// What a daemon tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortableReport {
    /// The files in its store, with their lengths.
    Holds {
        /// All of them.
        files: Vec<(FileName, u64)>,
    },
    /// A file is to be copied to a partner's memory.
    Offer {
        /// The file.
        name: FileName,
        /// Its length.
        bytes: u64,
    },
    /// A rank waits for a file that is not here.
    Wanted {
        /// The file.
        name: FileName,
    },
    /// A file has come from another node, or why not.
    Taken {
        /// The file.
        name: FileName,
        /// Its length.
        result: Result<u64, String>,
    },
    /// A file cannot be copied to what all nodes share, for now. Said once a minute at most.
    NotCopied {
        /// The file.
        name: FileName,
        /// Name of the tier where it should be.
        tier: String,
        /// What went wrong.
        why: String,
    },
    /// This node has no file of a checkpoint any more.
    Gone {
        /// What stands for the directory of checkpoints.
        key: String,
        /// Number of the checkpoint.
        checkpoint: u64,
    },
    /// There is something to copy to a tier that all nodes share. Said again while there is no answer.
    Asks {
        /// Name of the tier.
        tier: String,
        /// Grows with each turn.
        turn: u64,
    },
    /// A turn has been used, or is not needed.
    Over {
        /// Name of the tier.
        tier: String,
        /// The turn's number.
        turn: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn names_read_as_they_are_written_and_nothing_else_is_one() {
        for (checkpoint, rank, part) in [(7, 3, Part::Variables), (1_234_567, 100_000, Part::Seal)] {
            let name = FileName::new(KEY, checkpoint, rank, part).unwrap();
            assert_eq!(name.to_string().parse(), Ok(name.clone()));
            let bytes = postcard::to_allocvec(&name).unwrap();
            assert_eq!(postcard::from_bytes::<FileName>(&bytes).unwrap(), name);
        }
        assert_eq!(FileName::new(KEY, 7, 3, Part::Seal).unwrap().to_string(), format!("{KEY}/checkpoint-000007/rank-00003.seal"));
        let long = format!("{KEY}/checkpoint-000007/rank-00003.h5/x");
        let wrong = [
            "../checkpoint-000007/rank-00003.h5".to_owned(),
            format!("{KEY}/checkpoint-7/rank-00003.h5"),
            format!("{KEY}/checkpoint-000007/../rank-00003.h5"),
            format!("{KEY}/checkpoint-000007/rank-+0003.h5"),
            format!("{KEY}/checkpoint-000007/manifest"),
            long,
            String::new(),
        ];
        for text in wrong {
            assert_eq!(text.parse::<FileName>(), Err(NotAName), "{text}");
            let bytes = postcard::to_allocvec(&text).unwrap();
            assert!(postcard::from_bytes::<FileName>(&bytes).is_err());
        }
        assert!(FileName::new(&KEY.to_uppercase(), 7, 3, Part::Seal).is_none());
    }
}
