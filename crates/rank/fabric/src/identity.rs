//! Who a rank is.

use mend_messages::job::{NodeIndex, Rank, Secret};
use std::net::IpAddr;

/// Who this rank is, from the daemon's Welcome.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Permanent identity of the job.
    pub job: [u8; 16],
    /// Key of the channels' handshakes.
    pub secret: Secret,
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub size: u32,
    /// Node this rank is on now.
    pub node: NodeIndex,
    /// Address of the TCP listener.
    pub ip: IpAddr,
    /// Whether what goes to other nodes is encrypted.
    pub encrypted: bool,
}
