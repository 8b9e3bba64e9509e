//! What clients and targets say to each other.
//!
//! ```text
//! client                            mendd of the node                     target, a process of its own
//!   ── Wanted (sealed) ───────────────►  ── starts it, if it is not there ──►
//!   ◄─────────────── Found (sealed) ──
//!   ── Hello (sealed) ───────────────────────────────────────────────────►   another space's directory: Refused
//!   ◄──────────────────────────────────────────────────── Welcome (sealed) ──
//!   ══ requests and answers, one after the other, encrypted with both nonces ══
//! ```
//! Files' bytes ([`Request::is_bulk`], [`Request::wants_bulk`]) pass in the clear unless one of both sides wants them encrypted, too.
//!
//! A client has several connections to a target, and the order of what is asked over different ones is that of their answers. It waits for each answer before it asks something that depends on
//! it. One whose answer does not come is given up with all that was asked over it, which is told to the target before anything else is asked ([`Hello::given_up`]).
//!
//! A request is a frame with a [`Request`], and behind it the bytes that belong to it, as many as it says; so is an answer. Whoever is heard here has proven
//! the user's secret. All lengths are bounded before anything is read ([`Request::payload`], [`Answer::payload`]).

use super::catalogue::Change;
pub use super::failed::Failed;
use super::{Entry, Id};
use crate::patterns::{MAX_REPORTS, MAX_TOUCHES, Report};
use serde::{Deserialize, Serialize};

/// Most bytes behind a request or an answer.
pub const MAX_PAYLOAD: u32 = 4 << 20;
/// Most bytes of the entries in one answer, about.
pub const CHANGES_BYTES: usize = 1 << 20;
/// Most identities in one request.
pub const MAX_IDS: usize = 4096;
/// Most files whose objects are asked for at once: with as many objects as files can have, the answer is not too long.
pub const MAX_SHAPED: usize = 64;
/// Most blocks that one request verifies: 16 MiB are read in any medium's time.
pub const MAX_VERIFIED: u32 = 256;
/// Free bytes of a target that is in a bucket, which has no size: 4 PiB, so that sums over all targets fit.
pub const UNBOUNDED: u64 = 1 << 52;
/// How long one that heals a space is believed to be at it, seconds, unless it says so again.
pub const HEALING: u64 = 20;
/// File and place of objects.
pub type Lacking = Vec<(Id, u16)>;

/// Asks a daemon for the port of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The space that it is of.
    pub space: Id,
    /// Its directory.
    pub directory: String,
    /// Begin a target where none is; else there must be one.
    pub create: bool,
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// It listens on this port.
    Port(u16),
    /// It cannot be had.
    Refused {
        /// What stands in the way.
        why: String,
        /// What to do; may be empty.
        hint: String,
    },
}

/// The first word on a connection to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Which space it must be of.
    pub space: Id,
    /// For the keys.
    pub nonce: [u8; 32],
    /// Files' bytes are to be encrypted, too.
    pub encrypts: bool,
    /// Drawn by the client: all connections with the same one are of one client.
    pub client: Id,
    /// Which of its connections to this target it is; no two have the same number.
    pub number: u64,
    /// Those whose answers the client waits for no longer, at most [`MAX_IDS`]: what was asked over them is not begun any more, and this connection's first request waits for what was.
    pub given_up: Vec<u64>,
}

/// The target's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// It is of that space.
    Yes {
        /// For the keys.
        nonce: [u8; 32],
        /// Files' bytes are encrypted, too: one of both sides wants it.
        encrypts: bool,
    },
    /// It is of another one.
    Refused,
}

/// What a client asks of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// How it is. → [`Answer::Seen`]
    Look,
    /// What it came to know after this number. → [`Answer::Changes`]
    Changes {
        /// The last one that is known.
        after: u64,
        /// A [`Lease`] is wanted on what is answered.
        lease: bool,
    },
    /// Bytes of an object, which follow. Nothing is durable before [`Request::Settle`]. → [`Answer::Done`]
    Write {
        /// The file.
        file: Id,
        /// Which of its objects.
        position: u16,
        /// Where in the object.
        offset: u64,
        /// How many follow.
        length: u32,
    },
    /// The object is whole: make it durable. → [`Answer::Done`]
    Settle {
        /// The file.
        file: Id,
        /// Which of its objects.
        position: u16,
        /// Bytes that it must have.
        length: u64,
        /// Which life of the target ([`Answer::Seen`]) the bytes were written in: what an earlier one took may be lost.
        life: Id,
    },
    /// Checksums of a page, 16 bytes each, which follow. Durable with the entry. → [`Answer::Done`]
    Sums {
        /// The file.
        file: Id,
        /// Which page of them.
        page: u32,
        /// How many bytes follow.
        length: u32,
    },
    /// Keep an entry. Its objects at these places must be here, with the lengths that they must have. Durable when it is answered. → [`Answer::Done`]
    Put {
        /// The entry.
        entry: Box<Entry>,
        /// Places of objects that this target has.
        positions: Vec<u16>,
    },
    /// Bytes of an object. → [`Answer::Bytes`]
    Read {
        /// The file.
        file: Id,
        /// Which of its objects.
        position: u16,
        /// Where in the object.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// Checksums of a page. → [`Answer::Bytes`]
    ReadSums {
        /// The file.
        file: Id,
        /// Which page of them.
        page: u32,
    },
    /// These are gone; their bytes, too. Durable when it is answered. → [`Answer::Done`]
    Forget {
        /// Entries, whether they are known here or not.
        ids: Vec<Id>,
    },
    /// This file will not be: its bytes can go. → [`Answer::Done`]
    Discard {
        /// The file.
        file: Id,
    },
    /// What ranks touched, seen by the mounts of a node. → [`Answer::Done`]
    Touched {
        /// Of several ranks and files.
        reports: Vec<Report>,
    },
    /// What was touched, as far as it is still known, from the event of this number on. → [`Answer::Bytes`], a [`crate::patterns::Told`]
    Patterns {
        /// Number of the first event that is wanted.
        from: u64,
    },
    /// Objects that this target must have by the entries it knows, and lacks or has too short of. → [`Answer::Bytes`], [`Lacking`]
    Lacking {
        /// Its own place among the targets of the space.
        at: u16,
    },
    /// Checksums that blocks of an object have now, 16 bytes each; 0 of what cannot be read, or, in a file that ranks write, is not as it was written. → [`Answer::Bytes`]
    Verify {
        /// The file.
        file: Id,
        /// Which of its objects.
        position: u16,
        /// The first block, counted in the object.
        first: u64,
        /// How many, at most [`MAX_VERIFIED`].
        count: u32,
    },
    /// Whoever asks is the one that heals the space for [`HEALING`] seconds, unless another one is. → [`Answer::Done`]
    Heal {
        /// Drawn by who asks.
        who: Id,
        /// It reads all files, unless that was done in so many seconds before.
        verify_after: Option<u32>,
        /// It is done.
        done: bool,
    },
    /// The space is no more: all that is in the directory goes, and the target ends. → [`Answer::Done`]
    Leave,
    /// Keep the entry of a file that ranks write, as of [`Request::Put`], and make those of its objects that are new here, empty. → [`Answer::Done`]
    Adopt {
        /// The entry.
        entry: Box<Entry>,
        /// Places of objects that this target has.
        positions: Vec<u16>,
        /// Those of them that are new.
        fresh: Vec<u16>,
    },
    /// Bytes of an object of a file that ranks write, which follow. They are durable after [`Request::Sync`]. → [`Answer::Held`]
    WriteRange {
        /// The file.
        file: Id,
        /// The [`Written::epoch`](super::written::Written::epoch) of the map by which it is written.
        epoch: u32,
        /// Which of its objects.
        position: u16,
        /// Where in the object.
        offset: u64,
        /// How many follow.
        length: u32,
        /// Their checksum ([`sum_of_pieces`](super::written::sum_of_pieces)).
        sum: u128,
        /// When, by the clock of who writes: all copies tell the same.
        changed_ns: i64,
        /// The object ends there, or has these bytes there already; else it is [`Failed::Busy`].
        appends: bool,
    },
    /// Bytes of such an object, compared with their checksums; fewer at its end. → [`Answer::Bytes`]
    ReadRange {
        /// The file.
        file: Id,
        /// Which of its objects.
        position: u16,
        /// Where in the object.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// Such an object is so long now: cut, or with a hole at its end. → [`Answer::Held`]
    Cut {
        /// The file.
        file: Id,
        /// As of [`Request::WriteRange`].
        epoch: u32,
        /// Which of its objects.
        position: u16,
        /// Bytes that it has then.
        length: u64,
        /// As of [`Request::WriteRange`].
        changed_ns: i64,
    },
    /// What was written of such an object becomes durable. → [`Answer::Done`]
    Sync {
        /// The file.
        file: Id,
        /// As of [`Request::WriteRange`].
        epoch: u32,
        /// Which of its objects.
        position: u16,
        /// Since which start of the node ([`Answer::Held`]) it was written: what it took before may be lost.
        boot: Id,
    },
    /// Length and time of the objects of some such files that this target has. → [`Answer::Bytes`], for each file its [`Shape`](super::written::Shape)s
    Shapes {
        /// The files.
        files: Vec<Id>,
    },
    /// Such a file was changed at this time. → [`Answer::Done`]
    Stamp {
        /// The file.
        file: Id,
        /// Nanoseconds since 1970.
        changed_ns: i64,
    },
    /// Bytes, which follow, that another target has of an object that is [filling](super::written::Written::filling) here: what was written meanwhile stays. [`Failed::Absent`] if
    /// it is not known what was, since the target was started anew. → [`Answer::Held`]
    Fill {
        /// The file.
        file: Id,
        /// As of [`Request::WriteRange`].
        epoch: u32,
        /// Which of its objects.
        position: u16,
        /// Where in the object.
        offset: u64,
        /// How many follow.
        length: u32,
        /// Their checksum ([`range_sum`](super::written::range_sum)).
        sum: u128,
        /// When the object that they are of was changed.
        changed_ns: i64,
    },
    /// Whoever asks is the only one that does this for [`CLAIM`](super::written::CLAIM) seconds, unless another one is: then it is [`Failed::Busy`]. → [`Answer::Done`]
    Claim {
        /// What is done.
        claim: Claim,
        /// Drawn by who asks. If it is over for [`NOBODY`], it is over for whoever does it.
        who: Id,
        /// It is done.
        over: bool,
    },
    /// Blocks of an object of a file that ranks write, compared with their checksums; without the bytes of those whose checksum is the one that whoever asks has. These
    /// follow, 16 bytes each; 0 where it has none. → [`Answer::Bytes`], [`BlockTold`](super::blocks::BlockTold)s
    ReadBlocks {
        /// The file.
        file: Id,
        /// Which of its objects.
        position: u16,
        /// The first block, counted in the object.
        first: u64,
        /// How many, at most [`MAX_BLOCKS`](super::blocks::MAX_BLOCKS).
        count: u32,
    },
    /// What a block of an object of such a file had when it was written, which follows, of another copy. It is taken if the block is damaged here and these bytes have the checksum that
    /// it was written with; [`Failed::Absent`] if they do not. Durable when it is answered. → [`Answer::Done`]
    MendBlock {
        /// The file.
        file: Id,
        /// As of [`Request::WriteRange`].
        epoch: u32,
        /// Which of its objects.
        position: u16,
        /// Which block, counted in the object.
        block: u64,
        /// How many bytes follow.
        length: u32,
    },
    /// The files of this target that ranks of a node have open for writing, in the place of what was said before. It lasts [`CLAIM`](super::written::CLAIM) seconds. → [`Answer::Done`]
    Holds {
        /// Drawn by the process that serves the node's mounts.
        who: Id,
        /// The files.
        files: Vec<Id>,
    },
    /// Whether these files, which ranks write, are being written. → [`Answer::Bytes`], for each of them a byte: [`UNSYNCED`], [`HELD`], both added, or 0
    Writing {
        /// The files.
        files: Vec<Id>,
    },
    /// A file will be staged here: what comes of it stays for a while, whatever becomes of who sends it. It is not seen. Durable when it is answered. → [`Answer::Done`]
    Begin {
        /// The file, as it will be.
        entry: Box<Entry>,
    },
}

/// Who ends a [`Claim`] of others, who run no more.
pub const NOBODY: Id = [0; 16];
/// Something of a file was written and not synced.
pub const UNSYNCED: u8 = 1;
/// Some node has a file open for writing.
pub const HELD: u8 = 2;

/// What one client does at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Claim {
    /// Make the file of this path.
    Path(String),
    /// Append to this file.
    Append(Id),
    /// Bring a copy of this file onto another target.
    Move(Id),
    /// Send files of the space away.
    Offload,
}

/// A target's promise that nothing of what a client has heard of it is changed by another client meanwhile. Whoever changes something waits until the leases of others are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// How long it holds, milliseconds, from when it was asked for. 0: there is no promise.
    pub ms: u32,
    /// Another number than the last time: others have changed something since.
    pub others: u64,
}

/// What a target answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// How it is.
    Seen {
        /// Bytes that are free.
        free: u64,
        /// Bytes that its file system has.
        total: u64,
        /// Bytes that its objects have.
        used: u64,
        /// Drawn when its process began.
        life: Id,
    },
    /// What it came to know.
    Changes {
        /// Which database this is of: another one numbers anew.
        instance: Id,
        /// Number of the last of these.
        upto: u64,
        /// Whether there are more.
        more: bool,
        /// In order.
        changes: Vec<Change>,
        /// For how long that is all there is.
        lease: Lease,
    },
    /// It is done.
    Done,
    /// Bytes follow.
    Bytes {
        /// How many.
        length: u32,
    },
    /// It cannot be done.
    Failed {
        /// What kind of failure.
        kind: Failed,
        /// What went wrong, for people.
        why: String,
    },
    /// It has what was written, but not for certain after its node has failed.
    Held {
        /// Which start of its node this is.
        boot: Id,
    },
    /// No answer yet: it is at it. Said now and then while something takes long that changes something.
    AtIt,
}

impl Request {
    /// How many bytes follow; `None` if that is more than any request has.
    #[must_use]
    pub fn payload(&self) -> Option<u32> {
        let length = match self {
            Self::Write { length, .. }
            | Self::Sums { length, .. }
            | Self::WriteRange { length, .. }
            | Self::Fill { length, .. }
            | Self::MendBlock { length, .. } => *length,
            Self::ReadBlocks { count, .. } => count.checked_mul(16)?,
            _ => 0,
        };
        (length <= MAX_PAYLOAD).then_some(length)
    }

    /// True if files' bytes follow.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteRange { .. } | Self::Fill { .. } | Self::MendBlock { .. })
    }

    /// Entries and files of which clients see something else after it.
    #[must_use]
    pub fn changed(&self) -> &[Id] {
        match self {
            Self::Put { entry, .. } | Self::Adopt { entry, .. } => std::slice::from_ref(&entry.id),
            Self::Forget { ids } => ids,
            Self::WriteRange { file, .. } | Self::Cut { file, .. } | Self::Stamp { file, .. } | Self::Fill { file, .. } => {
                std::slice::from_ref(file)
            }
            _ => &[],
        }
    }

    /// True if files' bytes follow its answer.
    #[must_use]
    pub fn wants_bulk(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::ReadRange { .. } | Self::ReadBlocks { .. })
    }

    /// True if a target can look at it: what a holder of the secret sends may be wrong all the same.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        match self {
            Self::Write { offset, length, .. } | Self::WriteRange { offset, length, .. } | Self::Fill { offset, length, .. } => {
                offset.checked_add(u64::from(*length)).is_some_and(|end| i64::try_from(end).is_ok())
            }
            Self::Read { offset, length, .. } | Self::ReadRange { offset, length, .. } => {
                *length <= MAX_PAYLOAD && offset.checked_add(u64::from(*length)).is_some_and(|end| i64::try_from(end).is_ok())
            }
            Self::Sums { length, .. } => length % 16 == 0 && u64::from(*length) <= 16 * super::SUMS_OF_PAGE,
            Self::Put { entry, positions } => {
                let staged = entry.file().map(|file| file.targets.len());
                let places = staged.or_else(|| entry.written().map(|file| file.objects.len())).unwrap_or(0);
                entry.is_sound(super::MAX_TARGETS) && positions.iter().all(|position| usize::from(*position) < places)
            }
            Self::Adopt { entry, positions, fresh } => {
                let places = entry.written().map_or(0, |file| file.objects.len());
                let good = |position: &u16| usize::from(*position) < places && positions.contains(position);
                entry.is_sound(super::MAX_TARGETS) && positions.iter().chain(fresh).all(good)
            }
            Self::Begin { entry } => entry.is_sound(super::MAX_TARGETS) && entry.file().is_some(),
            Self::Verify { count, .. } => *count <= MAX_VERIFIED,
            Self::MendBlock { block, length, .. } => {
                let end = block.checked_add(1).and_then(|end| end.checked_mul(super::BLOCK));
                u64::from(*length) <= super::BLOCK && end.is_some_and(|end| i64::try_from(end).is_ok())
            }
            Self::ReadBlocks { first, count, .. } => {
                let end = first.checked_add(u64::from(*count)).and_then(|end| end.checked_mul(super::BLOCK));
                *count <= super::blocks::MAX_BLOCKS && end.is_some_and(|end| i64::try_from(end).is_ok())
            }
            Self::Forget { ids } | Self::Holds { files: ids, .. } | Self::Writing { files: ids } => ids.len() <= MAX_IDS,
            Self::Shapes { files } => files.len() <= MAX_SHAPED,
            Self::Cut { length, .. } => i64::try_from(*length).is_ok(),
            Self::Claim { claim: Claim::Path(path), .. } => super::is_path(path),
            Self::Touched { reports } => {
                let touches: usize = reports.iter().map(|report| report.touches.len()).sum();
                reports.iter().all(Report::is_sound) && reports.len() <= MAX_REPORTS && touches <= MAX_TOUCHES
            }
            Self::Look
            | Self::Leave
            | Self::Patterns { .. }
            | Self::Lacking { .. }
            | Self::Heal { .. }
            | Self::Changes { .. }
            | Self::Settle { .. }
            | Self::ReadSums { .. }
            | Self::Sync { .. }
            | Self::Stamp { .. }
            | Self::Claim { claim: Claim::Append(_) | Claim::Move(_) | Claim::Offload, .. }
            | Self::Discard { .. } => true,
        }
    }
}

impl Answer {
    /// How many bytes follow; `None` if that is more than any answer has.
    #[must_use]
    pub fn payload(&self) -> Option<u32> {
        let length = if let Self::Bytes { length } = self { *length } else { 0 };
        (length <= MAX_PAYLOAD).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_leads_beyond_files_is_refused() {
        let write = |offset, length| Request::Write { file: [0; 16], position: 0, offset, length };
        assert_eq!(write(0, MAX_PAYLOAD).payload(), Some(MAX_PAYLOAD));
        assert_eq!(write(0, MAX_PAYLOAD + 1).payload(), None);
        assert!(write(5, 7).is_sound() && !write(u64::MAX, 1).is_sound() && !write(i64::MAX as u64, 1).is_sound());
        let read = |offset, length| Request::Read { file: [0; 16], position: 0, offset, length };
        assert!(read(5, 7).is_sound() && !read(0, MAX_PAYLOAD + 1).is_sound() && !read(u64::MAX, 1).is_sound());
        let blocks = |first, count| Request::ReadBlocks { file: [0; 16], position: 0, first, count };
        assert!(blocks(9, 3).is_sound() && blocks(9, 3).payload() == Some(48) && blocks(0, u32::MAX).payload().is_none());
        assert!(
            !blocks(0, super::super::blocks::MAX_BLOCKS + 1).is_sound()
                && !blocks(u64::MAX, 1).is_sound()
                && !blocks(1 << 48, 1).is_sound()
        );
        let sums = |length| Request::Sums { file: [0; 16], page: 0, length };
        assert!(sums(32).is_sound() && !sums(31).is_sound() && !sums(65_552).is_sound());
        assert!(!Request::Forget { ids: vec![[0; 16]; MAX_IDS + 1] }.is_sound());
        assert!(
            !Request::Writing { files: vec![[0; 16]; MAX_IDS + 1] }.is_sound()
                && Request::Writing { files: vec![[0; 16]; MAX_IDS] }.is_sound()
        );
        assert!(!Request::Holds { who: [0; 16], files: vec![[0; 16]; MAX_IDS + 1] }.is_sound());
        assert_eq!(Answer::Bytes { length: u32::MAX }.payload(), None);
        let who = crate::patterns::Who { job: String::new(), rank: None, node: String::new() };
        let report = |touches| Report {
            who: who.clone(),
            file: [0; 16],
            touches: vec![crate::patterns::Touch { block: 0, count: 1, written: false, fetched: false }; touches],
            waited_us: 0,
        };
        assert!(Request::Touched { reports: vec![report(MAX_TOUCHES)] }.is_sound());
        assert!(!Request::Touched { reports: vec![report(MAX_TOUCHES), report(1)] }.is_sound());
        assert!(!Request::Touched { reports: vec![report(0); MAX_REPORTS + 1] }.is_sound());
    }
}
