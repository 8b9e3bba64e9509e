//! Records over a blocking stream, one way.

use crate::{Decryptor, Encryptor, HEAD, MAX_PLAIN, MAX_RECORD, TAG};
use std::io::{self, Read, Write};

/// Encrypts what is written to it, each call at once. Without [`EncryptedWriter::finish`] the reader finds it cut.
#[derive(Debug)]
pub struct EncryptedWriter<W: Write> {
    out: W,
    encryptor: Encryptor,
    record: Vec<u8>,
}

impl<W: Write> EncryptedWriter<W> {
    /// Begins a stream.
    #[must_use]
    pub fn new(out: W, encryptor: Encryptor) -> Self {
        Self { out, encryptor, record: vec![0; MAX_RECORD] }
    }

    /// What it writes to. Whatever is written there by others comes between two records.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Ends it; gives back what it was written to.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<W> {
        self.send(0, true)?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes all of these, one behind the other, in as few records as they fit into.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write_parts(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut filled = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(MAX_PLAIN - filled));
                self.record[HEAD + filled..HEAD + filled + now.len()].copy_from_slice(now);
                filled += now.len();
                rest = later;
                if filled == MAX_PLAIN {
                    self.send(filled, false)?;
                    filled = 0;
                }
            }
        }
        if filled > 0 { self.send(filled, false) } else { Ok(()) }
    }

    fn send(&mut self, length: usize, last: bool) -> io::Result<()> {
        let record = &mut self.record[..HEAD + length + TAG];
        self.encryptor.seal(record, last);
        self.out.write_all(record)
    }
}

impl<W: Write> Write for EncryptedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(MAX_PLAIN);
        self.write_parts(&[&bytes[..length]])?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Decrypts what it reads. What is wrong with it is an [`io::Error`] with a [`crate::CipherError`] in it; it ends only with the last record.
#[derive(Debug)]
pub struct EncryptedReader<R: Read> {
    input: R,
    decryptor: Decryptor,
    /// Where records are opened. What was received of the next ones is `buffer[received.start..received.end]`.
    buffer: Vec<u8>,
    received: std::ops::Range<usize>,
    /// Plain bytes that were not given out are `buffer[plain.start..plain.end]`, before what was received.
    plain: std::ops::Range<usize>,
    /// No more is read than the next record has.
    exact: bool,
    ended: bool,
}

impl<R: Read> EncryptedReader<R> {
    /// Reads a stream from its beginning, and nothing that comes behind its last record.
    #[must_use]
    pub fn new(input: R, decryptor: Decryptor) -> Self {
        let buffer = vec![0; MAX_RECORD];
        Self { input, decryptor, buffer, received: 0..0, plain: 0..0, exact: true, ended: false }
    }

    /// Reads a stream that is alone on its way: up to so many bytes at once, a record's at least.
    #[must_use]
    pub fn buffered(input: R, decryptor: Decryptor, capacity: usize) -> Self {
        Self { buffer: vec![0; capacity.max(MAX_RECORD)], exact: false, ..Self::new(input, decryptor) }
    }

    /// Opens the next record that holds something.
    fn fill(&mut self) -> io::Result<()> {
        while self.plain.is_empty() && !self.ended {
            self.receive(HEAD)?;
            let mut head = [0; HEAD];
            head.copy_from_slice(&self.buffer[self.received.start..self.received.start + HEAD]);
            let length = self.decryptor.length(head)?;
            self.receive(length)?;
            let start = self.received.start;
            let opened = self.decryptor.open(&mut self.buffer[start..start + length])?;
            self.received.start += length;
            (self.plain, self.ended) = (start + HEAD..start + HEAD + opened.length, opened.last);
        }
        Ok(())
    }

    /// Has so many bytes of the next record in the buffer. No plain ones are left in it.
    fn receive(&mut self, wanted: usize) -> io::Result<()> {
        if self.received.start + wanted > self.buffer.len() || self.received.is_empty() {
            self.buffer.copy_within(self.received.clone(), 0);
            self.received = 0..self.received.len();
        }
        while self.received.len() < wanted {
            let until = if self.exact { self.received.start + wanted } else { self.buffer.len() };
            match self.input.read(&mut self.buffer[self.received.end..until]) {
                Ok(0) => return Err(self.decryptor.cut().into()),
                Ok(length) => self.received.end += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for EncryptedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.fill()?;
        let length = buffer.len().min(self.plain.len());
        buffer[..length].copy_from_slice(&self.buffer[self.plain.start..self.plain.start + length]);
        self.plain.start += length;
        Ok(length)
    }
}
