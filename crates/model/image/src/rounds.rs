//! What precedes the image of a rank that is copied while it runs: its pages, round by round, before anybody knows what the image will be.
//!
//! ```text
//! stream = Header (rounds = 1, names the rounds)   record*   image (incremental: it builds on the rounds)
//! record = RecordHead   payload   padding to 8 bytes      the same heads as an image's, other kinds
//!
//!   Areas   Mapping*         memory that pages may come for; what lies in no area any more is forgotten
//!   Pages   whole pages      for the head's address, compressed or not; a page may come again, the last one counts
//!   Zeros   as Kept's        pages that hold zeros now
//!   Done    RoundEnd         the receiver answers with one byte, TAKEN, when it has all of it
//!   Alive   nothing          the sender is there, and has nothing to say
//!   Rest    nothing          the image follows; its header is read anew
//! ```
//! The image says of each page that it does not hold whether it is as the rounds have it (`Kept`) or as a fresh mapping gives it: what
//! came for addresses that are mapped no more, or otherwise, is superseded by that. So nothing but the last image decides what the rank
//! has in the end, and a round may send what is gone a moment later.

use crate::fixed::{Fixed, fixed_record};
use crate::kept;
use crate::record::{HEAD_SIZE, MAX_PAGES, MAX_TABLE, PAGES_OF_A_ROUND, RecordHead};
use crate::{HEADER_SIZE, ImageError};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Answer to a complete round.
pub const TAKEN: u8 = b'R';

/// What a record before the image holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundKind {
    /// [`crate::record::Mapping`]s by ascending address: private memory.
    Areas = 64,
    /// Whole pages for `address`.
    Pages = PAGES_OF_A_ROUND as isize,
    /// Pages of zeros: see [`crate::kept`].
    Zeros = 66,
    /// The end of a round, as a [`RoundEnd`].
    Done = 67,
    /// No more than that the sender lives.
    Alive = 68,
    /// Nothing; the image follows.
    Rest = 69,
}

impl RoundKind {
    fn from_number(number: u32) -> Option<Self> {
        let all = [Self::Areas, Self::Pages, Self::Zeros, Self::Done, Self::Alive, Self::Rest];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

fixed_record! {
    /// Ends a round.
    pub struct RoundEnd {
        /// From 0.
        pub number: u64,
        /// Bytes of the stream so far, header included.
        pub bytes: u64,
        /// xxh3-64 over the header and all heads so far, without the one of this record.
        pub stream: u64,
    }
}

/// Keeps count of the records before the image, on both sides.
pub struct Rounds {
    stream: Xxh3,
    bytes: u64,
    number: u64,
    over: bool,
    areas: bool,
    spared: u64,
}

/// Head of a record.
#[must_use]
pub fn head(kind: RoundKind, address: u64, payload: &[u8]) -> RecordHead {
    RecordHead { kind: kind as u32, index: 0, length: payload.len() as u64, address, payload: xxh3_64(payload), own: 0 }
}

impl Rounds {
    /// Starts with the header.
    #[must_use]
    pub fn new(header: &[u8; HEADER_SIZE]) -> Self {
        let mut stream = Xxh3::new();
        stream.update(header);
        Self { stream, bytes: HEADER_SIZE as u64, number: 0, over: false, areas: false, spared: 0 }
    }

    /// Bytes by which the stream is shorter than it would be without compression.
    #[must_use]
    pub fn spared(&self) -> u64 {
        self.spared
    }

    /// Bytes up to the next head.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the end of the round would say now.
    #[must_use]
    pub fn end(&self) -> RoundEnd {
        RoundEnd { number: self.number, bytes: self.bytes, stream: self.stream.digest() }
    }

    /// Accepts the next head.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if the head's checksum is wrong, [`ImageError::Inconsistent`] if it is unknown, out of order or longer than
    /// its kind may be.
    pub fn admit(&mut self, bytes: &[u8; HEAD_SIZE]) -> Result<(RoundKind, RecordHead), ImageError> {
        let at = self.bytes;
        let head = RecordHead::decode(bytes)?;
        if xxh3_64(&bytes[..HEAD_SIZE - 8]) != head.own {
            return Err(ImageError::Damaged { at });
        }
        let inconsistent = ImageError::Inconsistent { at };
        let kind = RoundKind::from_number(head.kind).ok_or(inconsistent)?;
        let fits = match kind {
            RoundKind::Areas => head.length <= MAX_TABLE && head.length.is_multiple_of(crate::record::Mapping::SIZE as u64),
            RoundKind::Pages => self.areas && head.announces_pages(),
            RoundKind::Zeros => head.length <= MAX_PAGES && head.length != 0 && head.length.is_multiple_of(kept::RANGE as u64),
            RoundKind::Done => head.length == RoundEnd::SIZE as u64,
            RoundKind::Alive | RoundKind::Rest => head.length == 0,
        };
        if self.over || !fits || (head.index != 0 && kind != RoundKind::Pages) || head.address.checked_add(head.length).is_none() {
            return Err(inconsistent);
        }
        if kind != RoundKind::Done {
            self.stream.update(bytes);
        }
        self.spared += head.spared();
        self.areas |= kind == RoundKind::Areas;
        self.over = kind == RoundKind::Rest;
        self.bytes += HEAD_SIZE as u64 + head.padded_length();
        Ok((kind, head))
    }

    /// Compares the end of a round with what was read; its head has been admitted.
    ///
    /// # Errors
    /// [`ImageError::Inconsistent`] if they differ: a record was lost or swapped.
    pub fn close(&mut self, end: &RoundEnd) -> Result<(), ImageError> {
        let before = self.bytes - (HEAD_SIZE + RoundEnd::SIZE) as u64;
        let here = RoundEnd { number: self.number, bytes: before, stream: self.stream.digest() };
        self.number += 1;
        if *end == here { Ok(()) } else { Err(ImageError::Inconsistent { at: before }) }
    }
}

const _: () = assert!(RoundEnd::SIZE.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;

    #[test]
    fn rounds_are_kept_in_order() {
        let header = Header { rounds: 1, ..Header::default() }.to_bytes();
        let (mut out, mut back) = (Rounds::new(&header), Rounds::new(&header));
        let page = [7u8; 4096];
        assert!(Rounds::new(&header).admit(&head(RoundKind::Pages, 4096, &page).to_bytes()).is_err(), "for no area");
        let mut both = |raw: [u8; HEAD_SIZE]| {
            out.admit(&raw).unwrap();
            back.admit(&raw).unwrap().0
        };
        assert_eq!(both(head(RoundKind::Areas, 0, &[0; 40]).to_bytes()), RoundKind::Areas);
        assert_eq!(both(head(RoundKind::Pages, 4096, &page).to_bytes()), RoundKind::Pages);
        assert_eq!(both(head(RoundKind::Pages, 4096, &page).to_bytes()), RoundKind::Pages);
        let end = out.end();
        let mut raw = [0; RoundEnd::SIZE];
        end.encode(&mut raw).unwrap();
        let raw = head(RoundKind::Done, 0, &raw).to_bytes();
        out.admit(&raw).unwrap();
        out.close(&end).unwrap();
        back.admit(&raw).unwrap();
        assert_eq!(back.close(&end), Ok(()));
        assert_eq!((out.end(), out.bytes()), (back.end(), back.bytes()));
        assert_eq!(out.end().number, 1);
        // One that was lost.
        out.admit(&head(RoundKind::Alive, 0, &[]).to_bytes()).unwrap();
        let end = out.end();
        back.admit(&raw).unwrap();
        assert!(back.close(&end).is_err());
        assert_eq!(back.admit(&head(RoundKind::Rest, 0, &[]).to_bytes()).unwrap().0, RoundKind::Rest);
        assert!(back.admit(&head(RoundKind::Alive, 0, &[]).to_bytes()).is_err(), "behind the end");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let header = Header::default().to_bytes();
        let refused = |kind, address, payload: &[u8]| {
            let mut rounds = Rounds::new(&header);
            rounds.admit(&head(RoundKind::Areas, 0, &[]).to_bytes()).unwrap();
            rounds.admit(&head(kind, address, payload).to_bytes()).is_err()
        };
        assert!(refused(RoundKind::Areas, 0, &[0; 41]));
        assert!(refused(RoundKind::Pages, 1, &[0; 4096]) && refused(RoundKind::Pages, 0, &[0; 4095]) && refused(RoundKind::Pages, 0, &[]));
        assert!(refused(RoundKind::Zeros, 0, &[0; 17]) && refused(RoundKind::Rest, 0, &[0]) && refused(RoundKind::Done, 0, &[0; 8]));
        let mut flipped = head(RoundKind::Alive, 0, &[]).to_bytes();
        flipped[3] ^= 1;
        assert!(matches!(Rounds::new(&header).admit(&flipped), Err(ImageError::Damaged { .. })));
        let strange = RecordHead { kind: 8, index: 0, length: 4096, address: 0, payload: 0, own: 0 }.to_bytes();
        assert!(Rounds::new(&header).admit(&strange).is_err());
    }
}
