//! Channels over a core provider of libfabric: `verbs;ofi_rxm`, `cxi`, `efa`, `tcp`, … (`MEND_OFI_PROVIDER`).
//!
//! Between two ranks the handshake goes over a TCP connection like any other; then both know each other's endpoint and
//! the numbers of both directions, and packets travel as messages of the provider. The connection stays for the
//! acknowledgement of markers, and its end tells that the peer is gone.
//!
//! ```text
//! sender                                                     receiver
//!   stage ≤ BUFFER bytes ── message: line, sequence, bytes ──►   buffer posted beforehand (CREDITS per sender)
//!   credits += n       ◄── message: line, sequence, n ─────      n buffers read and posted again
//! ```
//! Credits travel with messages of packets to the same peer, if there are any; a message of their own they get when
//! [`RETURN`] are due and nothing else is to be read.
//!
//! *Who goes first.* Providers connect two endpoints when the first message goes between them. If both ends begin at once,
//! one of the two connections has to give way, and libfabric's `tcp` and `ofi_rxm` (as of 2.6) may then close the one that
//! the peer has kept and sent on: messages are lost. So of each pair only the end with the lower address begins. A sender there
//! has its credits from the start; a sender with the higher address gets its first ones in a message, before which it can
//! send nothing.
//!
//! Packets are a stream of bytes cut into messages: a long packet takes several, and while there is no credit, short
//! ones gather in one. So a burst of short packets costs few messages, and a peer that does not read holds up its own
//! sender only. Memory: (CREDITS + CREDIT_MESSAGES) · BUFFER bytes per active peer and direction pair.
//!
//! Long messages are not sent: the receiver reads them out of the sender's registered memory (`reads`), which is what
//! RDMA networks do best.
//!
//! A channel is not kept while its rank is suspended: endpoints, queues and registered memory are this process's on this
//! node, a provider may hold sockets, devices and threads for them, and none of that can be in an image. The sender
//! closes the channel when its marker is acknowledged, the receiver when that is done; when a rank is saved, nothing
//! uses its port any more and [`port::Port`] is closed as a whole. After that everything is opened anew.
//!
//! What a provider refuses is not tried again. If the peer's connection does not end soon after, the peer lives and the messages under way
//! are lost: the channel says so then, and not before (`broken`). Where no message has left yet, a sender gives its packets back, and they go
//! over another channel.
//!
//! What a provider keeps while its libfabric is loaded, as `verbs` does with devices, is in the way of every image; so it belongs to a
//! libfabric of the port's own, which goes with the port (`mend_fabric_sys::Instance`), or to the program's if that cannot be.

#[cfg(not(fuzzing))]
mod assembly;
#[cfg(fuzzing)]
pub mod assembly;
mod broken;
pub mod contact;
mod incoming;
mod outgoing;
pub mod port;
mod reads;
#[cfg(test)]
mod tests;

pub use incoming::{OfiAdmission, OfiIncoming};
pub use outgoing::{OfiOpening, OfiOutgoing};

/// Bytes of a message, prefix included: enough for 8 KiB in one packet. With [`CREDITS`], a peer with channels both ways
/// costs 64 KiB, with what keeps account of them (`links/tests/memory.rs`).
pub const BUFFER: usize = 12 * 1024 + 384;
/// Messages that a sender may have under way. Two long messages each way need four: an announcement and an answer each.
pub const CREDITS: u32 = 4;
/// Messages read before their credits go back in a message of their own.
const RETURN: u32 = 3;
/// Messages with credits that may be under way to a sender: at most all credits are, in lots of [`RETURN`] or more.
const CREDIT_MESSAGES: usize = (CREDITS / RETURN) as usize;
/// Encoded prefix, bytes.
pub const PREFIX: usize = 24;
/// Bytes of packets in one message.
const CONTENT: usize = BUFFER - PREFIX;

const _: () = assert!((CREDITS as usize + CREDIT_MESSAGES) * BUFFER <= 64 * 1024);

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Number of the receiving end.
    pub line: u64,
    /// Counts the messages on this line.
    pub sequence: u32,
    /// So many messages were read of those of the line `back`; 0: none.
    pub credits: u32,
    /// Number of the sending end that may use the credits; 0: the line itself is one, and no packets follow.
    pub back: u64,
}

impl Prefix {
    /// Wire form.
    pub fn encode(self, bytes: &mut [u8; BUFFER]) {
        bytes[..8].copy_from_slice(&self.line.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.credits.to_le_bytes());
        bytes[16..PREFIX].copy_from_slice(&self.back.to_le_bytes());
    }

    /// Reads the wire form. Nothing is judged.
    #[must_use]
    pub fn decode(bytes: &[u8; BUFFER]) -> Self {
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(long)
        };
        let pair = long(8);
        Self { line: long(0), sequence: pair as u32, credits: (pair >> 32) as u32, back: long(16) }
    }
}
