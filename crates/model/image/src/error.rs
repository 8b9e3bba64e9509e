//! What can be wrong with an image.

/// Why bytes are not a usable image. Messages don't name file and rank: the caller knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The stream ends before its end record.
    #[error("the image is incomplete: it ends before its end record")]
    Truncated,
    /// The first bytes are not those of an image.
    #[error("this is not an image of a rank")]
    Foreign,
    /// Written by a release with another format.
    #[error("the image has format {found}, this release reads format {expected}", expected = crate::FORMAT)]
    Version {
        /// Format number in the image.
        found: u32,
    },
    /// Another architecture or page size.
    #[error("the image is of another architecture (machine {machine}, {page_size}-byte pages)")]
    Architecture {
        /// ELF machine number.
        machine: u32,
        /// Bytes per page.
        page_size: u32,
    },
    /// The header's checksum does not match.
    #[error("the image's header is damaged")]
    HeaderDamaged,
    /// A record head's or payload's checksum does not match.
    #[error("the image is damaged {at} bytes from its start")]
    Damaged {
        /// Offset of the record.
        at: u64,
    },
    /// A record is well formed but makes no sense here: unknown, out of order, out of bounds.
    #[error("the image holds a record that makes no sense {at} bytes from its start")]
    Inconsistent {
        /// Offset of the record.
        at: u64,
    },
    /// Bytes follow the end record.
    #[error("the image has bytes after its end record")]
    Trailing,
}

impl ImageError {
    /// What a user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            ImageError::Version { .. } => "restart with the release of Mend that took the checkpoint",
            ImageError::Architecture { .. } => "restart on machines of the architecture the checkpoint was taken on",
            ImageError::Foreign => "`mend checkpoints` lists checkpoints; in each, `rank-R.image` is the image of rank R",
            _ => "the file is damaged or was copied incompletely; use another checkpoint (`mend checkpoints`)",
        }
    }
}
