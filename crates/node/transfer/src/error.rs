//! Why bytes did not arrive.

use mend_image::ImageError;
use mend_sealed::SealError;
use mend_wire::HandshakeError;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::peer::RENDEZVOUS_TIMEOUT;

/// See the module. Callers name what is moved.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The source cannot be read.
    #[error("cannot be read")]
    Source(#[source] io::Error),
    /// The store does not give an object, in its own words.
    #[error("cannot be read: {0}")]
    ObjectSource(String),
    /// The source goes on after its length.
    #[error("is longer than the {most} bytes that were saved")]
    Longer {
        /// Bytes that there may be.
        most: u64,
    },
    /// The source ended before its length.
    #[error("is torn: {found} bytes instead of {wanted}")]
    Torn {
        /// Bytes that came.
        found: u64,
        /// Bytes that there should be.
        wanted: u64,
    },
    /// An agent wrote another number of bytes than it says.
    #[error("{found} bytes came of {expected}")]
    Short {
        /// Bytes that came.
        found: u64,
        /// Bytes that it says it wrote.
        expected: u64,
    },
    /// It is an image, but not the one that is meant.
    #[error("is another image than the one that was saved")]
    OtherImage,
    /// It is no sound image.
    #[error("is damaged")]
    Damaged(#[source] ImageError),
    /// Its encryption is not as it has to be.
    #[error("cannot be used")]
    Sealed(#[source] SealError),
    /// Its checksum or its length is another.
    #[error("it is not what was kept")]
    OtherContent,
    /// The target cannot be written.
    #[error("cannot be written to {place}")]
    Target {
        /// Where it was to be written.
        place: String,
        /// What went wrong in it.
        source: io::Error,
    },
    /// The store does not take an object, in its own words.
    #[error("{0}")]
    ObjectTarget(String),
    /// A file that its user names cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// Nobody wants it any more.
    #[error("the job has left")]
    Cancelled,
    /// The handshake with another node failed.
    #[error("no transfer to the node at {address}")]
    Handshake {
        /// Where to.
        address: SocketAddr,
        /// What went wrong in it.
        source: HandshakeError,
    },
    /// The other node does not want it.
    #[error("the node at {address} does not expect this rank")]
    Unwanted {
        /// Where to.
        address: SocketAddr,
    },
    /// The two daemons were told different things.
    #[error("MEND_ENCRYPT_DATA is not the same at the node at {address} as here, though the job is the same")]
    OtherEncryption {
        /// The other one.
        address: SocketAddr,
    },
    /// Chunks of registered memory cannot be used.
    #[error("memory cannot be moved over libfabric{}: {why}", address.map_or_else(String::new, |address| format!(" by the node at {address}")))]
    NoChunks {
        /// The other node's, if it is there that they cannot.
        address: Option<SocketAddr>,
        /// What is in the way.
        why: String,
    },
    /// What came of an encrypted image is not what was sent, or stopped coming.
    #[error("the image cannot be used: {0}")]
    Altered(String),
    /// The other node did not connect.
    #[error("the other node did not open the transfer within {} s", RENDEZVOUS_TIMEOUT.as_secs())]
    NoSource,
    /// The stream stalled.
    #[error("the image stopped coming for {} s", .0.as_secs_f32())]
    Stalled(Duration),
    /// The other node closed it early.
    #[error("the other node closed the transfer before the image began")]
    Closed,
    /// The connection failed.
    #[error("the transfer's socket failed")]
    Socket(#[source] io::Error),
}

impl TransferError {
    /// Whether what came is to blame, and neither those who read and write it nor the way.
    #[must_use]
    pub fn blames_content(&self) -> bool {
        matches!(self, Self::Longer { .. } | Self::Torn { .. } | Self::OtherImage | Self::Damaged(_) | Self::Sealed(_) | Self::OtherContent)
    }

    /// What a user can do; of a connection's errors, the others are told by whoever knows what was moved.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Handshake { source, .. } => source.hint(),
            Self::Unwanted { .. } | Self::NoSource => "check that the nodes reach each other on mendd's port; look at both daemons' logs",
            Self::OtherEncryption { .. } => "one controller tells all nodes of a job: this is a fault in Mend",
            Self::NoChunks { .. } => {
                "see MEND_OFI_PROVIDER and MEND_MIGRATE_LIBFABRIC, and what `fi_info` finds on both nodes; MEND_MIGRATE_TRANSPORT=tcp does without"
            }
            Self::Altered(_) => {
                "the source rank goes on where it was; look at what lies between the nodes: it stalls, or changes what passes"
            }
            Self::Stalled(_) | Self::Closed | Self::Socket(_) => "the source rank goes on where it was; check the network and try again",
            _ => "",
        }
    }
}
