//! Checks a whole stream, piece by piece, without keeping any of it.

use crate::fixed::Fixed;
use crate::kept;
use crate::record::{End, HEAD_SIZE, Kind, Ledger, RecordHead};
use crate::{HEADER_SIZE, Header, ImageError, read_header};
use xxhash_rust::xxh3::Xxh3;

/// What a verified stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Its header.
    pub header: Header,
    /// Its end record; `End::stream` is the checksum that a save reports.
    pub end: End,
}

enum State {
    Header,
    Head,
    /// `last`: end of the last range of a `Kept` record.
    Payload {
        kind: Kind,
        head: RecordHead,
        left: u64,
        padding: u64,
        at: u64,
        last: u64,
    },
    Done(End),
}

/// Fed with a stream in pieces of any size.
pub struct Verifier {
    state: State,
    /// Bytes collected of what is read as a whole: header, head, end record.
    held: [u8; HEADER_SIZE],
    held_length: usize,
    header: Header,
    ledger: Option<Ledger>,
    payload: Xxh3,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::new()
    }
}

impl Verifier {
    /// Before the first byte.
    #[must_use]
    pub fn new() -> Self {
        Self { state: State::Header, held: [0; HEADER_SIZE], held_length: 0, header: Header::default(), ledger: None, payload: Xxh3::new() }
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// The first thing that is wrong; nothing after it is meaningful.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), ImageError> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Header => self.collect(bytes, HEADER_SIZE)?,
                State::Head => self.collect(bytes, HEAD_SIZE)?,
                State::Payload { .. } => self.absorb(bytes)?,
                State::Done(_) => return Err(ImageError::Trailing),
            };
        }
        Ok(())
    }

    /// After the last byte.
    ///
    /// # Errors
    /// [`ImageError::Truncated`] if the end record has not come.
    pub fn finish(&self) -> Result<Verified, ImageError> {
        match self.state {
            State::Done(end) => Ok(Verified { header: self.header, end }),
            // A file shorter than a header is judged by what it has.
            State::Header => read_header(&self.held[..self.held_length]).and(Err(ImageError::Truncated)),
            _ => Err(ImageError::Truncated),
        }
    }

    /// Gathers `wanted` bytes of a header or a head, then moves on.
    fn collect<'a>(&mut self, bytes: &'a [u8], wanted: usize) -> Result<&'a [u8], ImageError> {
        let take = bytes.len().min(wanted - self.held_length);
        self.held[self.held_length..self.held_length + take].copy_from_slice(&bytes[..take]);
        self.held_length += take;
        if self.held_length < wanted {
            return Ok(&[]);
        }
        self.held_length = 0;
        if matches!(self.state, State::Header) {
            self.header = read_header(&self.held)?;
            self.ledger = Some(Ledger::new(&self.held));
            self.state = State::Head;
        } else {
            let mut raw = [0; HEAD_SIZE];
            raw.copy_from_slice(&self.held[..HEAD_SIZE]);
            let ledger = self.ledger.as_mut().ok_or(ImageError::Truncated)?;
            let at = ledger.bytes();
            let (kind, head) = ledger.admit(&raw)?;
            self.payload.reset();
            self.state = State::Payload { kind, head, left: head.length, padding: head.padded_length() - head.length, at, last: 0 };
            self.settle()?;
        }
        Ok(&bytes[take..])
    }

    fn absorb<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ImageError> {
        let State::Payload { kind, left, padding, at, last, .. } = &mut self.state else { return Ok(bytes) };
        let take = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        let (now, rest) = bytes.split_at(take);
        self.payload.update(now);
        *left -= take as u64;
        if *kind == Kind::End {
            self.held[self.held_length..self.held_length + take].copy_from_slice(now);
            self.held_length += take;
        }
        if *kind == Kind::Kept {
            let mut ranges = now;
            while !ranges.is_empty() {
                let some = ranges.len().min(kept::RANGE - self.held_length);
                self.held[self.held_length..self.held_length + some].copy_from_slice(&ranges[..some]);
                self.held_length += some;
                ranges = &ranges[some..];
                if self.held_length == kept::RANGE {
                    self.held_length = 0;
                    for (start, end) in kept::ranges(&self.held[..kept::RANGE], *at)? {
                        if start < *last {
                            return Err(ImageError::Inconsistent { at: *at });
                        }
                        *last = end;
                    }
                }
            }
        }
        let skip = if *left == 0 { rest.len().min(*padding as usize) } else { 0 };
        if rest[..skip].iter().any(|byte| *byte != 0) {
            return Err(ImageError::Damaged { at: *at });
        }
        *padding -= skip as u64;
        self.settle()?;
        Ok(&rest[skip..])
    }

    /// Leaves a record when all of it has come.
    fn settle(&mut self) -> Result<(), ImageError> {
        let State::Payload { kind, head, left: 0, padding: 0, at, .. } = self.state else { return Ok(()) };
        if self.payload.digest() != head.payload {
            return Err(ImageError::Damaged { at });
        }
        self.state = State::Head;
        if kind == Kind::End {
            let end = End::decode(&self.held[..self.held_length])?;
            self.ledger.as_ref().ok_or(ImageError::Truncated)?.close(&end)?;
            self.state = State::Done(end);
        }
        self.held_length = 0;
        Ok(())
    }
}

/// Verifies a stream from a reader.
///
/// # Errors
/// The reader's own error, or what is wrong with the stream.
#[cfg(feature = "std")]
pub fn verify(reader: &mut impl std::io::Read) -> std::io::Result<Result<Verified, ImageError>> {
    let mut verifier = Verifier::new();
    let mut buffer = std::vec![0; 256 << 10];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(verifier.finish()),
            Ok(length) => {
                if let Err(error) = verifier.feed(&buffer[..length]) {
                    return Ok(Err(error));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;
    use xxhash_rust::xxh3::xxh3_64;

    fn stream(pages: &[u8]) -> Vec<u8> {
        stream_with(Header { rank: 2, ..Header::default() }, &[(Kind::Pages, pages)])
    }

    fn stream_with(header: Header, content: &[(Kind, &[u8])]) -> Vec<u8> {
        let header = header.to_bytes();
        let mut ledger = Ledger::new(&header);
        let mut bytes = header.to_vec();
        let put = |ledger: &mut Ledger, bytes: &mut Vec<u8>, kind, payload: &[u8]| {
            let address = if kind == Kind::Pages { 4096 } else { 0 };
            let head = RecordHead::new(kind, 0, address, payload.len() as u64, xxh3_64(payload)).to_bytes();
            let _ = ledger.admit(&head);
            bytes.extend(head);
            bytes.extend(payload);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        };
        for (kind, payload) in [(Kind::Strings, &b"abc"[..]), (Kind::Objects, b""), (Kind::Mappings, b""), (Kind::Threads, b"xx")] {
            put(&mut ledger, &mut bytes, kind, payload);
        }
        put(&mut ledger, &mut bytes, Kind::Process, b"process");
        for (kind, payload) in content {
            put(&mut ledger, &mut bytes, *kind, payload);
        }
        let mut end = [0; End::SIZE];
        ledger.end().encode(&mut end).unwrap();
        put(&mut ledger, &mut bytes, Kind::End, &end);
        bytes
    }

    #[test]
    fn a_whole_stream_verifies_and_trailing_bytes_do_not() {
        let mut bytes = stream(&[7; 8192]);
        let verified = verify(&mut bytes.as_slice()).unwrap().unwrap();
        assert_eq!((verified.header.rank, verified.end.pages, verified.end.bytes), (2, 2, bytes.len() as u64));
        bytes.push(0);
        assert_eq!(verify(&mut bytes.as_slice()).unwrap(), Err(ImageError::Trailing));
        assert_eq!(verify(&mut &b""[..]).unwrap(), Err(ImageError::Truncated));
        assert_eq!(verify(&mut &b"#!/bin/sh\n"[..]).unwrap(), Err(ImageError::Foreign));
    }

    #[test]
    fn kept_pages_are_ranges_in_an_incremental_image() {
        let incremental = Header { base: [1; 16], sequence: 1, ..Header::default() };
        let kept = |ranges: &[u64]| ranges.iter().flat_map(|at| at.to_le_bytes()).collect::<Vec<u8>>();
        let good = kept(&[0x1000, 0x2000, 0x5000, 0x9000]);
        let content: [(Kind, &[u8]); 3] = [(Kind::Kept, &good), (Kind::Pages, &[7; 4096]), (Kind::Kept, &good)];
        let bytes = stream_with(incremental, &content);
        for cut in [1, 15, 16, 17, 1000, bytes.len()] {
            let mut verifier = Verifier::new();
            bytes.chunks(cut).for_each(|piece| verifier.feed(piece).unwrap());
            assert_eq!(verifier.finish().unwrap().end.pages, 1);
        }
        let refused = |header: Header, ranges: &[u64]| {
            let bytes = stream_with(header, &[(Kind::Kept, &kept(ranges))]);
            matches!(verify(&mut bytes.as_slice()).unwrap(), Err(ImageError::Inconsistent { .. }))
        };
        assert!(refused(Header::default(), &[0x1000, 0x2000]), "in a full image");
        assert!(refused(incremental, &[0x1000, 0x2000, 0x1000, 0x3000]), "overlapping");
        assert!(refused(incremental, &[0x1000, 0x1000]) && refused(incremental, &[0x1000, 0x2800]) && refused(incremental, &[0x1000]));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(cut in 1..5000usize) {
            let bytes = stream(&[9; 4096]);
            let mut verifier = Verifier::new();
            for piece in bytes.chunks(cut) {
                verifier.feed(piece).unwrap();
            }
            prop_assert!(verifier.finish().is_ok());
        }

        #[test]
        fn any_cut_and_any_flip_is_noticed(at in 0..6000usize, bit in 0..8u8) {
            let bytes = stream(&[9; 4096]);
            let at = at % bytes.len();
            prop_assert!(verify(&mut &bytes[..at]).unwrap().is_err());
            let mut flipped = bytes;
            flipped[at] ^= 1 << bit;
            prop_assert!(verify(&mut flipped.as_slice()).unwrap().is_err());
        }

        #[test]
        fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
            let valid = stream(&[1; 4096]);
            for prefix in [0, 8, HEADER_SIZE, HEADER_SIZE + HEAD_SIZE] {
                let mut mixed = valid[..prefix].to_vec();
                mixed.append(&mut bytes.clone());
                prop_assert!(verify(&mut mixed.as_slice()).unwrap().is_err());
            }
            bytes.clear();
        }
    }
}
