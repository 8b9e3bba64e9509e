//! Why an image cannot be taken.

use crate::capture::target::TargetError;
use crate::capture::write_error::WriteError;
use crate::descriptors;
use crate::descriptors::node_files::NodeFileError;
use crate::memory::layout::LayoutError;
use crate::park::ParkError;
use std::io;

/// Why an image could not be taken. The program runs on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error(transparent)]
    Park(#[from] ParkError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Descriptor(#[from] descriptors::DescriptorError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    NodeFile(#[from] NodeFileError),
    #[error("{what} cannot be read: {source}")]
    Read { what: &'static str, source: io::Error },
    #[error("the address space keeps changing")]
    Unstable,
    #[error("{what}")]
    Obstacle { what: String, hint: &'static str },
}

impl SaveError {
    /// The address space cannot be read.
    pub fn address_space(source: io::Error) -> Self {
        SaveError::Read { what: "/proc/self/maps", source }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            SaveError::Park(_) => "try again; if it persists, look at what that thread does (`mend explain`)",
            SaveError::Layout(error) => error.hint(),
            SaveError::Descriptor(error) => error.hint(),
            SaveError::NodeFile(error) => error.hint(),
            SaveError::Target(error) => error.hint(),
            SaveError::Write(error) => error.hint(),
            SaveError::Read { source, .. } => mend_report::proc_hint(source),
            SaveError::Unstable => "try again",
            SaveError::Obstacle { hint, .. } => hint,
        }
    }
}
