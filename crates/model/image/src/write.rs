//! Writes a stream record by record. (The agent has a writer of its own, which may not allocate.)

use crate::fixed::Fixed;
use crate::record::{End, Kind, Ledger, RecordHead};
use crate::{Header, ImageError};
use std::io::{self, Write};
use xxhash_rust::xxh3::xxh3_64;

/// Why a stream cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The target refuses it.
    #[error("the image cannot be written")]
    Write(#[from] io::Error),
    /// It would not be an image.
    #[error("the records do not make an image")]
    Format(#[from] ImageError),
}

/// A stream under way. It is no image before [`StreamWriter::finish`].
pub struct StreamWriter<W> {
    out: W,
    ledger: Ledger,
}

impl<W: Write> StreamWriter<W> {
    /// Begins with the header.
    ///
    /// # Errors
    /// The target's.
    pub fn new(mut out: W, header: &Header) -> Result<Self, WriteError> {
        let raw = header.to_bytes();
        out.write_all(&raw)?;
        Ok(Self { out, ledger: Ledger::new(&raw) })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`WriteError::Format`] if it may not come here, else the target's.
    pub fn record(&mut self, kind: Kind, index: u32, address: u64, payload: &[u8]) -> Result<(), WriteError> {
        let head = RecordHead::new(kind, index, address, payload.len() as u64, xxh3_64(payload));
        let raw = head.to_bytes();
        self.ledger.admit(&raw)?;
        self.out.write_all(&raw)?;
        self.out.write_all(payload)?;
        Ok(self.out.write_all(&[0; 8][..(head.padded_length() - head.length) as usize])?)
    }

    /// Ends it. What it was written to is flushed, but not made durable.
    ///
    /// # Errors
    /// As for [`StreamWriter::record`].
    pub fn finish(mut self) -> Result<End, WriteError> {
        let end = self.ledger.end();
        let mut payload = [0; End::SIZE];
        end.encode(&mut payload)?;
        self.record(Kind::End, 0, 0, &payload)?;
        self.out.flush()?;
        Ok(end)
    }
}
