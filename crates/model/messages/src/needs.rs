//! What a node must have, besides memory, for a rank to go on there, and what it was found to lack.
//!
//! The rank's agent lists it when a move begins, and the daemon of the target compares it with what is there before anything is sent. The
//! restorer checks the same of the image: what changes in between is refused there.

use mend_image::cpu::CpuNeeds;
use serde::{Deserialize, Serialize};

/// Most files of a list. A program that uses more moves all the same: the restorer looks at all of them.
pub const MAX_FILES: usize = 4096;
/// Most differences that are told.
pub const MAX_DIFFERENCES: usize = 8;

/// What a node must have for a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNeeds {
    /// Of its processor.
    pub processor: CpuNeeds,
    /// xxh3-64 of the kernel's vdso, and its length. Code of the rank may return into it. `None`: it has none, or it was not asked for.
    pub vdso: Option<(u64, u64)>,
    /// Files and directories, each path once or for each use; none if they were not asked for.
    pub files: Vec<NeededFile>,
}

/// A file or directory that must be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeededFile {
    /// Its path, absolute.
    pub path: String,
    /// What the rank does with it, and so what must be the same.
    pub usage: FileUsage,
}

/// What a rank does with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileUsage {
    /// Its program, a library or data, mapped and not changed: it must be the same.
    Mapped {
        /// Its length, bytes.
        size: u64,
        /// When it was changed last, seconds and nanoseconds; `None` for programs and libraries, which may be installed at different times.
        modified: Option<(i64, u64)>,
        /// xxh3-64 of its beginning and its end, as images have it (`mend_image::record::Object`).
        sample: u64,
    },
    /// Open to be read, with so many bytes at least.
    Read {
        /// Its length, bytes.
        size: u64,
    },
    /// Open or mapped to be written. Another node may learn late how long it is.
    Written,
    /// A directory: open, or the working directory.
    Directory,
    /// Something that is only named, whatever it is.
    Place,
}

/// What a node lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Difference {
    /// Its kernel has another vdso.
    Kernel {
        /// Release of the kernel there.
        release: String,
    },
    /// A file is not there, or is another one.
    File {
        /// Its path, as the rank has it.
        path: String,
        /// How it differs.
        what: FileDifference,
    },
}

/// How a file differs from the one that a rank uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileDifference {
    /// It is not there.
    Absent,
    /// It cannot be looked at: the error of the operating system.
    Unreadable(String),
    /// It is not a regular file or not a directory, as it must be.
    Kind,
    /// It has another length, or is too short.
    Size {
        /// Bytes that it has there.
        there: u64,
        /// Bytes that it has where the rank is.
        here: u64,
    },
    /// It has other content, or was changed at another time.
    Content,
}
