//! The packet: what travels on a channel.
//!
//! A packet is a [`Header`] and up to [`MAX_PAYLOAD`] bytes. Both ends run the same release on the same kind of
//! processor (x86-64, little endian), which the handshake's protocol number stands for, so the header's memory
//! is its wire form.
//!
//! ```text
//! message ≤ eager limit        EAGER ──►                        (◄── ACK if delivery-complete was asked)
//!                                                               (◄── TAKEN now and then, see [`super::flow`])
//!                                                               (◄── HOLD, RELEASE; HELD ──►, see [`super::back_pressure`])
//! longer message               RTS ──►  ◄── CTS  DATA… ──►      (◄── ACK)
//!   that the receiver reads    RTS ──►                         ◄── ACK
//! RMA write                    WRITE… ──►  ◄── ACK              (◄── GRANT before it, if that was asked for)
//! RMA read                     READ ──►  ◄── DATA…  (or ACK)     (as for a write)
//! drain (handled by the links) MARKER ──►
//! ```

use std::mem::{offset_of, size_of};

/// Largest payload of one packet, bytes.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// Largest payload of one message, packet of data or write on a channel that need not hold it whole, bytes.
pub const MAX_STREAMED: usize = 512 * 1024;
/// Size of an encoded header, bytes.
pub const HEADER: usize = size_of::<Header>();
/// Bytes of it that say everything about a brief one, see [`Header::is_brief`].
pub const BRIEF_BYTES: usize = offset_of!(Header, length);

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A whole message. `id` is the sender's operation if [`flag::ACK`] is set.
    Eager = 1,
    /// Announces a message of `length` bytes. `id`: the sender's operation. `aux` not 0: an offer ([`super::pull`]).
    Rts = 2,
    /// Asks for the first `length` bytes of an announced message. `id`: the sender's operation, `address`: the receiver's.
    Cts = 3,
    /// `payload` bytes at offset `address` of the receiving operation `id`.
    Data = 4,
    /// The operation `id` of the packet's receiver is done; `aux` is 0 or an errno.
    Ack = 5,
    /// RMA write at `address` of the region `tag`; [`flag::LAST`] ends the operation `id` of `length` bytes.
    Write = 6,
    /// RMA read of `length` bytes at `address` of the region `tag` into operation `id`.
    Read = 7,
    /// Everything sent before on this channel must be delivered, then marker `id` acknowledged.
    Marker = 8,
    /// `length` bytes of the messages that came at once were taken, ever.
    Taken = 9,
    /// Messages to endpoint `from` are to stay with the packet's receiver, if of the same [`flag::TAGGED`].
    Hold = 10,
    /// Some of them may leave.
    Release = 11,
    /// More of them are here.
    Held = 12,
    /// The packet's receiver may access the region `tag` by itself: `length` bytes from `address` on, in the ways `aux`, while the
    /// version is `id`.
    Grant = 13,
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// The message is matched by tag, else by order alone.
    pub const TAGGED: u8 = 1;
    /// `data` is remote completion data.
    pub const DATA: u8 = 2;
    /// The sender completes when the receiver says so.
    pub const ACK: u8 = 4;
    /// Last packet of a write.
    pub const LAST: u8 = 8;
    /// The sender of a read or write could access the region by itself, if that were granted.
    pub const ASKS: u8 = 16;
}

/// Fixed part of a packet. Fields mean what [`Kind`] says.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// A [`Kind`]; unchecked until [`Header::kind`].
    pub kind: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Endpoint of the sender.
    pub from: u16,
    /// Endpoint of the receiver.
    pub to: u16,
    /// Bytes after the payload that mean nothing: see the tcp channel. In a ring a mark, elsewhere 0.
    pub padding: u16,
    /// Bytes that follow the header.
    pub payload: u32,
    /// Small argument.
    pub aux: u32,
    /// Tag, or key of a region.
    pub tag: u64,
    /// Remote completion data.
    pub data: u64,
    /// Length of the whole message or transfer.
    pub length: u64,
    /// An operation.
    pub id: u64,
    /// Offset, address in a region, or a second operation.
    pub address: u64,
}

const _: () = assert!(
    HEADER == 56
        && BRIEF_BYTES == 32
        && offset_of!(Header, id) == 40
        && offset_of!(Header, payload) == 8
        && offset_of!(Header, address) == 48
);

impl Header {
    /// A header of this kind with every other field zero.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self { kind: kind as u8, flags: 0, from: 0, to: 0, padding: 0, payload: 0, aux: 0, tag: 0, data: 0, length: 0, id: 0, address: 0 }
    }

    /// The kind, `None` for a number that is none.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        Some(match self.kind {
            1 => Kind::Eager,
            2 => Kind::Rts,
            3 => Kind::Cts,
            4 => Kind::Data,
            5 => Kind::Ack,
            6 => Kind::Write,
            7 => Kind::Read,
            8 => Kind::Marker,
            9 => Kind::Taken,
            10 => Kind::Hold,
            11 => Kind::Release,
            12 => Kind::Held,
            13 => Kind::Grant,
            _ => return None,
        })
    }

    /// True for a message that comes whole and is not acknowledged: the fields from `length` on are its payload's length,
    /// 0 and 0, and need not travel.
    #[must_use]
    #[inline]
    pub fn is_brief(&self) -> bool {
        self.kind == Kind::Eager as u8 && self.flags & flag::ACK == 0
    }

    /// Puts the fields in place that a brief header travels without.
    #[inline]
    pub fn complete_brief(&mut self) {
        if self.is_brief() {
            (self.length, self.id, self.address) = (u64::from(self.payload), 0, 0);
        }
    }

    /// Wire form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; HEADER] {
        // SAFETY: Header is repr(C), has no padding bytes (its field sizes add up to 56, asserted above) and the
        // target has alignment 1.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }

    /// The first eight bytes of the wire form, as a word: kind, flags, endpoints and padding.
    #[must_use]
    #[inline]
    pub fn first_word(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Reads a header from wire form.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HEADER]) -> Self {
        // SAFETY: every bit pattern is a valid Header (integers only); read_unaligned needs no alignment.
        unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() }
    }

    /// True if `flags` contains the bit.
    #[must_use]
    pub fn has(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_wire_form() {
        let mut header = Header::new(Kind::Cts);
        header.tag = 0x0123_4567_89ab_cdef;
        header.payload = 77;
        assert_eq!(Header::from_bytes(header.as_bytes()), header);
        assert_eq!(header.kind(), Some(Kind::Cts));
        header.kind = 200;
        assert_eq!(header.kind(), None);
    }
}
/// A packet that waits.
pub struct Queued {
    /// Its header.
    pub header: Header,
    /// Its payload, copied.
    pub payload: Vec<u8>,
}
