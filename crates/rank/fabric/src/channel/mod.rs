//! Channels: ordered packets from one rank to another.
//!
//! A channel is simplex: the rank that sends opens it, so each pair of ranks has up to two. What is above
//! ([`crate::links`]) knows only these traits; `shm`, `tcp` and `ofi` implement them (docs/channels.md shows how to add
//! one).
//!
//! ```text
//! sender                                      receiver
//!   connect (unix or TCP)  ─────────────────►   accept
//!   ◄──── keyed handshake of mend_messages::auth ────►
//!   HELLO: job, from, to, generation, kind ───►   refused: closed
//!   ◄─────────────────────────────────── ACCEPT   from here on packets flow (REFUSE: not over this medium)
//!   packets, then MARKER n ──────────────────►
//!   ◄──────────────────────────────────── ACK n   all before the marker is delivered
//! ```
//! After the acknowledgement nothing is in flight, whatever the channel is made of. The socket of the handshake
//! stays: it carries the acknowledgements back, and its end tells that the peer is gone.

mod direct;
mod handshake;
pub mod memory;
pub mod ofi;
pub mod opening;
mod pace;
pub mod pending_handshake;
#[cfg(not(fuzzing))]
mod ring;
#[cfg(fuzzing)]
#[allow(missing_docs, reason = "for the fuzz target only")]
pub mod ring;
pub mod shm;
pub mod tcp;

pub use handshake::{Hello, Medium};

use crate::engine::buffers::{Payload, Segment};
use crate::engine::packet::{Header, Queued};
use crate::engine::pull::{Offer, Piece};
use crate::engine::{Grant, Reached, RegionAccess};
use rustix::fd::BorrowedFd;

/// Why a channel cannot go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// The system refused.
    #[error("{0}")]
    Io(#[from] rustix::io::Errno),
    /// The peer cannot have a channel over this medium.
    #[error("refused by the peer")]
    Refused,
    /// What came over an encrypted channel is not what the peer sent.
    #[error("{0}")]
    Cipher(#[from] mend_cipher::CipherError),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// A core provider failed; the peer need not be to blame.
    #[error("{0}")]
    Provider(String),
}

/// The sending end.
pub trait Outgoing: Send {
    /// Hands over a packet. False: there is no room now, nothing was taken.
    ///
    /// # Errors
    /// The channel is broken.
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError>;
    /// Like `send`, for a packet that more will follow before the next `flush`: it may wait for that.
    ///
    /// # Errors
    /// The channel is broken.
    fn defer(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        self.send(header, payload)
    }
    /// Like `send`, but without a copy: the payload stays lent until `unsent` is false or `keep` was called. Others may follow;
    /// after the last comes `lent`.
    ///
    /// # Errors
    /// The channel is broken.
    fn lend(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        self.send(header, payload)
    }
    /// Wakes the receiver for what was taken by `lend`, if it sleeps.
    fn lent(&mut self) {}
    /// Copies what is still lent: its owner wants it back.
    fn keep(&mut self) {}
    /// True when nothing that was taken is left in this process.
    ///
    /// # Errors
    /// The channel is broken.
    fn flush(&mut self) -> Result<bool, ChannelError>;
    /// True while something that was taken is still in this process: it needs a `flush`.
    fn unsent(&self) -> bool;
    /// True while the system has something that was taken, and may drop it when this process has ended.
    fn unconfirmed(&self) -> bool {
        false
    }
    /// Payload per packet at which long transfers flow best, bytes.
    fn chunk(&self) -> usize;
    /// Longest message that had better travel at once: where a round trip costs more than a copy, bytes.
    fn eager_limit(&self) -> usize;
    /// Lets the receiver read a message by itself out of the memory given, which stays lent until [`Outgoing::retract`].
    /// `None`: not through this channel, or not now.
    fn offer(&mut self, _message: &[Segment]) -> Option<Offer> {
        None
    }
    /// The receiver has no more use for the offer of this ticket. Tickets of another channel (one that this one has
    /// replaced) come here, too, and must be told apart.
    fn retract(&mut self, _ticket: u64) {}
    /// Longest message that may travel at once although it is not copied, bytes: to a peer that takes part.
    fn lend_limit(&self) -> usize {
        0
    }
    /// How to reach the receiver's memory without its taking part, if this channel can.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }
    /// A marker that the peer has acknowledged, in order; to be called until it gives none.
    ///
    /// # Errors
    /// The channel is broken or the peer closed it; only after every acknowledgement was given.
    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError>;
    /// How far the receiver has got with what is in the channel, in a measure of its own: another number than before is progress.
    fn taken(&mut self) -> u64 {
        0
    }
    /// About to sleep while packets wait: ask for a wake-up when there is room. True if there is room already.
    fn arm(&mut self) -> bool;
    /// Tells a sleeping receiver that there is something, if it asked.
    fn wake(&mut self);
    /// Of a channel that is broken: what it took, if nothing of that has left this process. `None`: some may have.
    fn take_back(&mut self) -> Option<Vec<Queued>> {
        None
    }
    /// The socket to watch.
    fn socket(&self) -> BorrowedFd<'_>;
    /// True if a full channel is announced by the socket (as writable), not by the wakeup socket.
    fn full_by_socket(&self) -> bool;
    /// True if it may stay open, drained, while its rank is suspended. Else it is closed then.
    fn keeps(&self) -> bool {
        true
    }
    /// Descriptors that belong to the channel.
    fn descriptors(&self, f: &mut dyn FnMut(i32));
    /// Mapping that belongs to the channel: address and length.
    fn mapping(&self) -> Option<(usize, usize)>;
    /// Forgets descriptors and mappings without touching them: in a restored process they are not there.
    fn forget(self: Box<Self>);
}

/// Reads and writes of the receiver's memory by the sender alone: an [`Outgoing`] channel's faster way for one-sided operations,
/// after the receiver has granted it. The links use it only while the channel is open: after a drain, nothing touches the
/// memory of the receiver.
pub trait Direct {
    /// True if the receiver is to be asked for a grant of this region; to be called when it will be.
    fn ask(&mut self, key: u64) -> bool;
    /// What the receiver has granted. It is untrusted.
    fn grant(&mut self, key: u64, grant: Grant);
    /// True if it has granted this region, as far as is known.
    fn granted(&self, key: u64) -> bool;
    /// Reads or writes all of `local`, memory lent by the application.
    fn access(&mut self, wanted: &RegionAccess, local: &[Segment]) -> Reached;
}

/// What a receiving end does with what arrives.
pub trait Sink {
    /// Takes a packet. A packet of data or of a write may come as several, each with a part of its payload.
    ///
    /// # Errors
    /// The packet cannot be obeyed.
    fn packet(&mut self, header: &Header, payload: Payload) -> Result<(), ChannelError>;
    /// Where the payload of a packet belongs that is still on its way: memory for the next of its bytes, valid until the
    /// next call of anything. After that the packet goes on as packets of data, by the header as it is then, payloads
    /// at their place already. `None`: nowhere yet.
    fn place(&mut self, header: &mut Header) -> Option<Segment>;
}

impl<F: FnMut(&Header, Payload) -> Result<(), ChannelError>> Sink for F {
    fn packet(&mut self, header: &Header, payload: Payload) -> Result<(), ChannelError> {
        self(header, payload)
    }
    fn place(&mut self, _header: &mut Header) -> Option<Segment> {
        None
    }
}

/// What a receiving end is given.
pub type Deliver<'a> = &'a mut dyn Sink;

/// The receiving end.
pub trait Incoming: Send {
    /// Delivers packets that have arrived, at least one if there is one, and at most about `budget` bytes.
    /// Returns how many packets, or parts of them, came.
    ///
    /// # Errors
    /// The channel is broken; [`ChannelError::Closed`] only after everything the peer sent was delivered.
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError>;
    /// True if there is nothing to receive, as far as one look tells: spares a `receive`.
    fn quiet(&self) -> bool {
        false
    }
    /// The socket became readable.
    ///
    /// # Errors
    /// As [`Incoming::receive`].
    fn event(&mut self) -> Result<(), ChannelError>;
    /// Acknowledges a marker.
    ///
    /// # Errors
    /// The channel is broken.
    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError>;
    /// How to read what the sender offers, if this channel can.
    fn puller(&mut self) -> Option<&mut dyn Puller> {
        None
    }
    /// True if the sender sees what [`Incoming::show`] says, so that it may be granted [`Direct`] access.
    fn shows(&self) -> bool {
        false
    }
    /// Shows the sender of which version grants have to be, and whether none may be used now. It sees that before anything
    /// that this process does after.
    fn show(&self, _version: u64, _barred: bool) {}
    /// True if packets arrive without the socket becoming readable, so that one must look.
    fn polled(&self) -> bool;
    /// About to sleep: ask the sender for a wake-up. True if something is here already.
    fn arm(&mut self) -> bool;
    /// Awake again.
    fn disarm(&mut self);
    /// Nothing is expected soon: gives up buffers that are empty.
    fn relax(&mut self) {}
    /// The sender has ended, whatever the socket says, and nothing is here. True if something of it may come yet, or has come in part.
    fn sender_ended(&mut self) -> bool {
        false
    }
    /// True if it may stay open, drained, while its rank's image is taken. Else it is closed before.
    fn keeps(&self) -> bool {
        true
    }
    /// The socket to watch.
    fn socket(&self) -> BorrowedFd<'_>;
    /// Descriptors that belong to the channel.
    fn descriptors(&self, f: &mut dyn FnMut(i32));
    /// Mapping that belongs to the channel: address and length.
    fn mapping(&self) -> Option<(usize, usize)>;
    /// Forgets descriptors and mappings without touching them.
    fn forget(self: Box<Self>);
}

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// All of it is in place.
    Done,
    /// It was started; [`Puller::completed`] will tell.
    Started,
    /// Nothing was done, because too much is under way; try again later.
    Full,
}

/// A read was not possible. The message comes by packets then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's memory cannot be read")]
pub struct NotPulled;

/// Reads of the sender's memory, as it offered it: an [`Incoming`] channel's faster way for long messages.
///
/// A channel that copies by itself (`shm`) answers each read with [`Pulled::Done`]; one whose device copies answers
/// [`Pulled::Started`]. The links acknowledge no marker while a read is under way, and start none between a marker
/// and the next packet: after a drain, nothing touches the memory of either side.
pub trait Puller {
    /// The kind of [`Offer`] it understands, never 0.
    fn kind(&self) -> u32;
    /// Bytes per read at which others are not kept waiting and long messages flow best.
    fn chunk(&self) -> usize;
    /// True if a message of `length` bytes had better come in packets than by reads: it is asked for at once then, so that
    /// they are DATA of the operation `token`.
    fn declines(&mut self, _token: u64, _length: usize) -> bool {
        false
    }
    /// Reads `local.len` bytes at `remote` (an offered piece or a part of one). `token` names the message, not the
    /// read: several may be under way with the same.
    ///
    /// # Errors
    /// [`NotPulled`]; nothing of this read is under way then.
    fn read(&mut self, token: u64, remote: Piece, local: Segment) -> Result<Pulled, NotPulled>;
    /// A read that was started has ended: its token, and whether its bytes are in place.
    fn completed(&mut self) -> Option<(u64, Result<(), NotPulled>)> {
        None
    }
    /// Ends the reads under way; none touches memory any more when this returns, and none is reported.
    fn cancel(&mut self) {}
}

/// Acknowledgement of a marker on the wire: magic and number.
const ACK_MAGIC: [u8; 8] = *b"MENDdone";
/// Bytes of an acknowledgement.
const ACK_LENGTH: usize = 16;

fn encode_ack(marker: u64) -> [u8; ACK_LENGTH] {
    let mut bytes = [0; ACK_LENGTH];
    bytes[..8].copy_from_slice(&ACK_MAGIC);
    bytes[8..].copy_from_slice(&marker.to_le_bytes());
    bytes
}

/// Collects acknowledgements from a socket that may give them in pieces.
#[derive(Debug, Default)]
struct AckReader {
    have: usize,
    bytes: [u8; ACK_LENGTH],
}

impl AckReader {
    fn read(&mut self, socket: BorrowedFd<'_>) -> Result<Option<u64>, ChannelError> {
        use rustix::io::Errno;
        loop {
            match rustix::net::recv(socket, &mut self.bytes[self.have..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ChannelError::Closed),
                Ok((read, _)) => self.have += read,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
            if self.have == ACK_LENGTH {
                self.have = 0;
                return decode_ack(&self.bytes).map(Some);
            }
        }
    }
}

fn decode_ack(bytes: &[u8]) -> Result<u64, ChannelError> {
    match bytes.split_first_chunk() {
        Some((&ACK_MAGIC, number)) => number.try_into().map(u64::from_le_bytes).ok(),
        _ => None,
    }
    .ok_or_else(|| ChannelError::Protocol("not an acknowledgement".into()))
}

/// Sends an acknowledgement; 16 bytes on a socket that carries nothing else always fit its buffer.
fn write_ack(socket: BorrowedFd<'_>, marker: u64) -> Result<(), ChannelError> {
    use rustix::net::SendFlags;
    match rustix::net::send(socket, &encode_ack(marker), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
        ACK_LENGTH => Ok(()),
        _ => Err(ChannelError::Protocol("acknowledgements are not read".into())),
    }
}
