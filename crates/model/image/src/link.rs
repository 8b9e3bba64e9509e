//! How images of a chain fit together: each incremental image and the one it builds on.

use crate::Header;

/// Most images of a chain. Bounds the descriptors that a restorer is given.
pub const MAX_CHAIN: usize = 64;

/// Why an image is not what another one builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// An incremental image is the last of the chain.
    #[error("the image builds on another one (number {sequence} of its chain), which is not given")]
    Open {
        /// Its place in the chain.
        sequence: u32,
    },
    /// More follows a full image.
    #[error("the image is full and builds on no other one, yet another one is given")]
    Closed,
    /// Another image than the one it was built on.
    #[error("it is not the image that the next newer one builds on")]
    Other,
    /// Of another job, rank or process.
    #[error("it is of another job, rank or process than the image that builds on it")]
    Foreign,
    /// More than [`MAX_CHAIN`].
    #[error("the chain has more than {MAX_CHAIN} images")]
    Long,
}

impl LinkError {
    /// What a user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            LinkError::Long => "compact the chain (`mend image compact`)",
            _ => "give one rank's image and all that it builds on, newest first; `mend checkpoints` shows what builds on what",
        }
    }
}

impl Header {
    /// Whether this image builds on `older`. Places in the chain descend, so that no chain is endless; they may have gaps,
    /// because images in between may have been merged.
    ///
    /// # Errors
    /// What is wrong with `older`.
    pub fn builds_on(&self, older: &Header) -> Result<(), LinkError> {
        if !self.incremental() {
            Err(LinkError::Closed)
        } else if self.base != older.id || older.sequence >= self.sequence {
            Err(LinkError::Other)
        } else if (self.job, self.rank, self.size, self.pid) != (older.job, older.rank, older.size, older.pid) {
            Err(LinkError::Foreign)
        } else {
            Ok(())
        }
    }
}

/// Whether headers, newest first, are a whole chain.
///
/// # Errors
/// The place of the first header that does not fit, and why.
pub fn check<'a>(headers: impl IntoIterator<Item = &'a Header>) -> Result<(), (usize, LinkError)> {
    let mut newer: Option<&Header> = None;
    let mut count = 0;
    for header in headers {
        if count == MAX_CHAIN {
            return Err((count, LinkError::Long));
        }
        if let Some(newer) = newer {
            newer.builds_on(header).map_err(|error| (count, error))?;
        }
        newer = Some(header);
        count += 1;
    }
    match newer {
        Some(oldest) if oldest.incremental() => Err((count - 1, LinkError::Open { sequence: oldest.sequence })),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_chains_of_one_process() {
        let full = Header { id: [1; 16], pid: 7, ..Header::default() };
        let first = Header { id: [2; 16], base: [1; 16], sequence: 1, ..full };
        let second = Header { id: [3; 16], base: [2; 16], sequence: 2, ..full };
        let merged = Header { base: [0; 16], sequence: 0, ..first };
        assert_eq!(check([&full]), Ok(()));
        assert_eq!(check([&second, &first, &full]), Ok(()));
        assert_eq!(check([&second, &merged]), Ok(()));
        assert_eq!(check([&second, &first]), Err((1, LinkError::Open { sequence: 1 })));
        assert_eq!(check([&second, &full]), Err((1, LinkError::Other)));
        assert_eq!(check([&full, &full]), Err((1, LinkError::Closed)));
        let endless = Header { base: [3; 16], ..first };
        assert_eq!(check([&second, &endless, &second, &endless]), Err((2, LinkError::Other)));
        assert_eq!(check([&second, &Header { rank: 1, ..first }, &full]), Err((1, LinkError::Foreign)));
        let own = Header { base: [2; 16], ..first };
        assert_eq!(check([&own, &own]), Err((1, LinkError::Other)));
        assert_eq!(check(core::iter::empty()), Ok(()));
    }
}
