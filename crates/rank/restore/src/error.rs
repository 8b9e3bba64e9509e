//! Why memory cannot be filled from an image.

use core::fmt;
use mend_image::ImageError;
use mend_image::handoff::MAX_KEPT;
use mend_image::launch::Failure;
use mend_image::link::LinkError;

/// Which image of a chain a message is about: 0 is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member(pub usize);

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            member => write!(formatter, "image {member} of those that the image builds on: "),
        }
    }
}

/// See the module. Messages are complete: they cross a process's end as one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError<'a> {
    /// The stream is shorter than its records say.
    #[error("{member}the stream ends {at} bytes from its start")]
    Ended {
        /// The image that this is about.
        member: Member,
        /// Bytes that came.
        at: u64,
    },
    /// A socket's other end sends nothing.
    #[error("nothing came for {seconds} s, {at} bytes from the stream's start")]
    Silent {
        /// For how long.
        seconds: i32,
        /// Bytes that came.
        at: u64,
    },
    /// The kernel does not read any further.
    #[error("{member}reading the stream failed {at} bytes from its start")]
    Unreadable {
        /// The image that this is about.
        member: Member,
        /// Bytes that came.
        at: u64,
        /// The error's number.
        errno: i32,
    },
    /// A stream is no usable image.
    #[error("{member}{error}")]
    Image {
        /// The image that this is about.
        member: Member,
        /// What is wrong with it.
        error: ImageError,
    },
    /// An image is not the one that the next newer one builds on, or one is missing.
    #[error("{member}{error}")]
    Link {
        /// Which image; 0 also stands for the whole chain.
        member: Member,
        /// What is wrong with it.
        error: LinkError,
    },
    /// A mapping of a file without the file's record.
    #[error("a mapping names no object")]
    NoObject,
    /// More memory objects than can be handed over.
    #[error("the image has more than {MAX_KEPT} memory objects with descriptors")]
    ManyObjects,
    /// A mapped file is not there, or may not be opened.
    #[error("{path}, which the saved process has mapped, cannot be opened")]
    FileAbsent {
        /// Its path.
        path: &'a str,
        /// The error's number.
        errno: i32,
    },
    /// fstat(2) failed.
    #[error("{path} cannot be examined")]
    FileUnknown {
        /// Its path.
        path: &'a str,
        /// The error's number.
        errno: i32,
    },
    /// A mapped file has another size.
    #[error("{path} has {size} bytes, the one that the saved process has mapped had {saved}")]
    FileSize {
        /// Its path.
        path: &'a str,
        /// Bytes that it has.
        size: u64,
        /// Bytes that it had.
        saved: u64,
    },
    /// A mapped file has other content.
    #[error("{path} is not the file that the saved process has mapped: it was changed or is another build")]
    FileChanged {
        /// Its path.
        path: &'a str,
    },
    /// A file that was there a moment ago cannot be mapped.
    #[error("{path} cannot be opened")]
    FileGone {
        /// Its path.
        path: &'a str,
        /// The error's number.
        errno: i32,
    },
    /// The limit on open files is too low.
    #[error("descriptor {fd} cannot be moved above {top}; the limit on open files is too low")]
    Descriptors {
        /// The descriptor.
        fd: usize,
        /// What its new number must be above.
        top: u32,
        /// The error's number.
        errno: i32,
    },
    /// No memory for what is read.
    #[error("no memory for tables of {length} bytes")]
    Tables {
        /// Bytes asked for.
        length: usize,
        /// The error's number.
        errno: i32,
    },
    /// No memory object.
    #[error("shared memory cannot be made")]
    ObjectMake {
        /// The error's number.
        errno: i32,
    },
    /// A memory object cannot be as large as it was.
    #[error("shared memory of {size} bytes cannot be made")]
    ObjectSize {
        /// Bytes that it had.
        size: u64,
        /// The error's number.
        errno: i32,
    },
    /// A memory object refuses its content.
    #[error("shared memory cannot be filled")]
    ObjectFill {
        /// The error's number.
        errno: i32,
    },
    /// A memory object has no descriptor that only reads.
    #[error("shared memory cannot be opened for reading")]
    ObjectRead {
        /// The error's number.
        errno: i32,
    },
    /// `/proc/self/maps` cannot be read, or has another form.
    #[error("/proc/self/maps cannot be read")]
    Space {
        /// The error's number.
        errno: i32,
    },
    /// munmap(2) failed.
    #[error("memory at {start:#x}, which the image does not have, cannot be unmapped")]
    Unmap {
        /// The first address.
        start: u64,
        /// The error's number.
        errno: i32,
    },
    /// The kernel maps nothing there.
    #[error("{length} bytes at {start:#x} cannot be mapped")]
    Map {
        /// The length in bytes.
        length: usize,
        /// The first address.
        start: u64,
        /// The error's number.
        errno: i32,
    },
    /// The kernel maps it somewhere else.
    #[error("{length} bytes at {start:#x} cannot be mapped there")]
    MapThere {
        /// The length in bytes.
        length: usize,
        /// The first address.
        start: u64,
    },
    /// mprotect(2) failed.
    #[error("the protection of memory at {start:#x} cannot be set")]
    Protect {
        /// The first address.
        start: u64,
        /// The error's number.
        errno: i32,
    },
}

impl RestoreError<'_> {
    /// What kind of failure it is for whoever asked for the restore.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Ended { .. } | Self::Silent { .. } | Self::Unreadable { .. } => Failure::Stream,
            Self::Image { .. } | Self::Link { .. } | Self::NoObject | Self::ManyObjects => Failure::Image,
            Self::FileAbsent { .. }
            | Self::FileUnknown { .. }
            | Self::FileSize { .. }
            | Self::FileChanged { .. }
            | Self::FileGone { .. } => Failure::File,
            Self::Descriptors { .. } => Failure::Launch,
            Self::Tables { .. }
            | Self::ObjectMake { .. }
            | Self::ObjectSize { .. }
            | Self::ObjectFill { .. }
            | Self::ObjectRead { .. }
            | Self::Space { .. }
            | Self::Unmap { .. }
            | Self::Map { .. }
            | Self::MapThere { .. }
            | Self::Protect { .. } => Failure::Kernel,
        }
    }

    /// The kernel's reason, 0 if it gave none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Unreadable { errno, .. }
            | Self::FileAbsent { errno, .. }
            | Self::FileUnknown { errno, .. }
            | Self::FileGone { errno, .. }
            | Self::Descriptors { errno, .. }
            | Self::Tables { errno, .. }
            | Self::ObjectMake { errno }
            | Self::ObjectSize { errno, .. }
            | Self::ObjectFill { errno }
            | Self::ObjectRead { errno }
            | Self::Space { errno }
            | Self::Unmap { errno, .. }
            | Self::Map { errno, .. }
            | Self::Protect { errno, .. } => *errno,
            _ => 0,
        }
    }
}
