//! Long messages that the receiver reads straight out of the sender's memory.
//!
//! ```text
//! sender                                receiver
//!   RTS with an offer ────────────────►   matched: the links read the sender's memory into the buffer
//!   ◄──────────────────────────── ACK     done: the buffer is the sender's application's again
//!   ◄──────────────────────────── CTS     the read is not possible (any more): DATA… as without an offer
//! ```
//! An offer is made by the channel that leads to the receiver and understood by one of the same kind; what it says
//! stays true until the sending operation ends, because the application lends its buffer that long. It is only ever
//! used to read from the peer that made it, so a false one harms nobody else. The sender may be moved or restored
//! between RTS and read: then there is no channel of that kind, or the read fails, and CTS takes over.

use super::buffers::{Buffers, Segment};
use super::packet::{Header, Kind, flag};
use super::{Engine, Operation, Outlet};
use mend_messages::job::Rank;

/// One piece of a peer's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it is; what that means is the channel's affair.
    pub address: u64,
    /// The length in bytes.
    pub length: u64,
    /// What the peer's channel wants to see; 0 if nothing.
    pub key: u64,
}

/// Encoded piece, bytes.
const PIECE: usize = 24;
const _: () = assert!(size_of::<Piece>() == PIECE);

/// What a sending channel says about a message that the receiver may read by itself.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Kind of channel that can use it, never 0.
    pub kind: u32,
    /// Number under which the channel keeps what it has to undo, see [`crate::channel::Outgoing::retract`].
    pub ticket: u64,
    /// The memory, in the order of the message.
    pub pieces: Vec<Piece>,
}

impl Offer {
    /// Puts the offer into an RTS; the payload that goes with it is in `pieces`.
    pub(super) fn announce(&self, header: &mut Header) -> Option<Segment> {
        header.aux = self.kind;
        match self.pieces.as_slice() {
            // The usual case needs no payload, so that the RTS is as short as it can be.
            [Piece { address, key: 0, .. }] => {
                header.address = *address;
                None
            }
            pieces => {
                header.payload = size_of_val(pieces) as u32;
                Some(Segment { base: pieces.as_ptr().cast_mut().cast(), len: size_of_val(pieces) })
            }
        }
    }
}

/// What an RTS offers: the kind of channel and the pieces. `None`: nothing, or nothing sensible.
fn offered(header: &Header, body: &[u8]) -> Option<(u32, Vec<Piece>)> {
    if header.aux == 0 {
        return None;
    }
    if body.is_empty() {
        return Some((header.aux, vec![Piece { address: header.address, length: header.length, key: 0 }]));
    }
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
    let pieces: Vec<Piece> = body
        .chunks_exact(PIECE)
        .map(|piece| Piece { address: word(&piece[..8]), length: word(&piece[8..16]), key: word(&piece[16..]) })
        .collect();
    let total = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length))?;
    (body.len().is_multiple_of(PIECE) && total >= header.length).then_some((header.aux, pieces))
}

/// A read of a peer's memory for the links to do.
#[derive(Debug)]
pub struct Pull {
    /// The receiving operation, for [`Engine::pulled`].
    pub operation: u64,
    /// Kind of channel that made the offer.
    pub kind: u32,
    /// The peer's memory: at least `length` bytes.
    pub pieces: Vec<Piece>,
    /// Where it goes: at least `length` bytes.
    pub buffers: Buffers,
    /// Bytes to read, never 0.
    pub length: usize,
}

impl Pull {
    /// What is next after `offset` bytes: a place of the peer's memory and one of ours, in one piece each, of the same
    /// length, which is at most `most`. `None` at the end.
    #[must_use]
    pub fn next(&self, offset: usize, most: usize) -> Option<(Piece, Segment)> {
        let left = self.length.checked_sub(offset).filter(|left| *left > 0)?;
        let mut skip = offset as u64;
        let piece = self.pieces.iter().find(|piece| {
            let hit = skip < piece.length;
            if !hit {
                skip -= piece.length;
            }
            hit
        })?;
        let most = left.min(most).min(usize::try_from(piece.length - skip).unwrap_or(usize::MAX));
        let local = self.buffers.slice(offset, most).segments().first().copied()?;
        Some((Piece { address: piece.address.wrapping_add(skip), length: local.len as u64, key: piece.key }, local))
    }
}

impl Engine {
    /// Tries to have an announced message read from the sender's memory into operation `id`.
    pub(super) fn pull(&self, out: &mut impl Outlet, peer: Rank, id: u64, header: &Header, body: &[u8]) -> bool {
        let Some((kind, pieces)) = offered(header, body) else { return false };
        let Some(Operation::Receive(landing)) = self.operations.get(id) else { return false };
        out.pull(peer, Pull { operation: id, kind, pieces, buffers: landing.target.buffers.clone(), length: landing.expected })
    }

    /// A read that [`Outlet::pull`] accepted has ended: with everything in place, or (`complete` false) without; then
    /// the message is asked for as if nothing had been offered.
    pub fn pulled(&mut self, out: &mut impl Outlet, id: u64, complete: bool) {
        if !complete {
            if let Some(Operation::Receive(landing)) = self.operations.get(id) {
                let answer = landing.clearance(id);
                out.post(landing.peer, &answer, &[]);
            }
            return;
        }
        if !matches!(self.operations.get(id), Some(Operation::Receive(_))) {
            // Its endpoint was closed meanwhile.
            return;
        }
        let Some(Operation::Receive(landing)) = self.operations.remove(id) else { return };
        let header = landing.announcement;
        if !header.has(flag::ACK) {
            let mut answer = Header::new(Kind::Ack);
            answer.from = header.to;
            answer.to = header.from;
            answer.id = header.id;
            out.post(landing.peer, &answer, &[]);
        }
        self.delivered(out, landing.endpoint, landing.target, &header, (landing.peer, header.from), landing.expected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(pieces: &[(u64, u64)], locals: &[usize], length: usize) -> Pull {
        let pieces = pieces.iter().map(|(address, length)| Piece { address: *address, length: *length, key: 7 }).collect();
        let mut base = 0x1000usize;
        let segments = locals.iter().map(|len| {
            base += 0x1000;
            Segment { base: base as *mut u8, len: *len }
        });
        Pull { operation: 1, kind: 1, pieces, buffers: Buffers::Many(segments.collect()), length }
    }

    #[test]
    fn both_sides_are_cut_where_either_ends() {
        let pull = pull(&[(100, 3), (500, 0), (200, 10)], &[5, 4], 8);
        let (mut at, mut cuts) = (0, Vec::new());
        while let Some((piece, local)) = pull.next(at, 4) {
            assert_eq!(piece.length, local.len as u64);
            cuts.push((piece.address, local.base as usize, local.len));
            at += local.len;
        }
        assert_eq!(cuts, [(100, 0x2000, 3), (200, 0x2003, 2), (202, 0x3000, 3)]);
    }

    #[test]
    fn an_offer_survives_its_wire_form_and_nonsense_is_none() {
        let mut header = Header::new(Kind::Rts);
        header.length = 30;
        assert_eq!(offered(&header, &[]), None);
        let pieces = vec![Piece { address: 1, length: 10, key: 2 }, Piece { address: 3, length: 20, key: 4 }];
        let offer = Offer { kind: 9, ticket: 0, pieces: pieces.clone() };
        let body = super::super::buffers::gather(&[offer.announce(&mut header).unwrap()]);
        assert_eq!((header.aux, header.payload as usize), (9, body.len()));
        assert_eq!(offered(&header, &body), Some((9, pieces)));
        assert_eq!(offered(&header, &body[..47]), None);
        header.length = 31;
        assert_eq!(offered(&header, &body), None);
        let one = Offer { kind: 1, ticket: 0, pieces: vec![Piece { address: 77, length: 31, key: 0 }] };
        let mut header = Header::new(Kind::Rts);
        header.length = 31;
        assert!(one.announce(&mut header).is_none());
        assert_eq!(offered(&header, &[]), Some((1, one.pieces)));
    }
}
