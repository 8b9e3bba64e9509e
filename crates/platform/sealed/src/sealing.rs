//! Plain bytes in, a sealed file out.

use crate::{CHUNK, FileKeys, HEAD, Key, TAG_BYTES};
use aead_stream::StreamPrimitive;
use std::io::{self, Write};

/// Seals what is written to it. Without [`Sealer::finish`] the file lacks its last chunk and is refused when read.
pub struct Sealer<W: Write> {
    out: W,
    keys: FileKeys,
    number: u32,
    chunk: Vec<u8>,
    stored: u64,
}

impl<W: Write> Sealer<W> {
    /// Begins a file. `salt` must be random: it is what sets this file's key apart.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(mut out: W, key: &Key, salt: [u8; 32]) -> io::Result<Self> {
        let keys = FileKeys::derive(key, &salt);
        out.write_all(&keys.head)?;
        Ok(Self { out, keys, number: 0, chunk: Vec::with_capacity(CHUNK + TAG_BYTES), stored: HEAD as u64 })
    }

    fn seal(&mut self, last: bool) -> io::Result<()> {
        let failed = || io::Error::other("a stream of more than 2³² chunks cannot be encrypted");
        self.keys.stream.encrypt_in_place(self.number, last, &self.keys.head, &mut self.chunk).map_err(|_| failed())?;
        self.out.write_all(&self.chunk)?;
        self.stored += self.chunk.len() as u64;
        self.chunk.clear();
        self.number = if last { self.number } else { self.number.checked_add(1).ok_or_else(failed)? };
        Ok(())
    }

    /// What it writes to.
    pub fn output(&mut self) -> &mut W {
        &mut self.out
    }

    /// Ends the file; gives back what it was written to, and its length in bytes.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.seal(true)?;
        self.out.flush()?;
        Ok((self.out, self.stored))
    }
}

impl<W: Write> Write for Sealer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk waits for more: only then is it known not to be the last.
        if self.chunk.len() == CHUNK && !bytes.is_empty() {
            self.seal(false)?;
        }
        let take = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..take]);
        Ok(take)
    }

    /// Chunks that are not full stay: flushing them would make them the last.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
