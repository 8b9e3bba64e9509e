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

    /// Ends it; gives back what it was written to.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<W> {
        self.send(0, true)?;
        self.out.flush()?;
        Ok(self.out)
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
        if length > 0 {
            self.record[HEAD..HEAD + length].copy_from_slice(&bytes[..length]);
            self.send(length, false)?;
        }
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
    record: Vec<u8>,
    /// Plain bytes that were not given out are `record[start..end]`.
    start: usize,
    end: usize,
    ended: bool,
}

impl<R: Read> EncryptedReader<R> {
    /// Reads a stream from its beginning.
    #[must_use]
    pub fn new(input: R, decryptor: Decryptor) -> Self {
        Self { input, decryptor, record: vec![0; MAX_RECORD], start: 0, end: 0, ended: false }
    }

    /// Opens the next record that holds something.
    fn fill(&mut self) -> io::Result<()> {
        while self.start == self.end && !self.ended {
            self.receive(0, HEAD)?;
            let mut head = [0; HEAD];
            head.copy_from_slice(&self.record[..HEAD]);
            let length = self.decryptor.length(head)?;
            self.receive(HEAD, length)?;
            let opened = self.decryptor.open(&mut self.record[..length])?;
            (self.start, self.end, self.ended) = (HEAD, HEAD + opened.length, opened.last);
        }
        Ok(())
    }

    fn receive(&mut self, from: usize, to: usize) -> io::Result<()> {
        let mut have = from;
        while have < to {
            match self.input.read(&mut self.record[have..to]) {
                Ok(0) => return Err(self.decryptor.cut().into()),
                Ok(length) => have += length,
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
        let length = buffer.len().min(self.end - self.start);
        buffer[..length].copy_from_slice(&self.record[self.start..self.start + length]);
        self.start += length;
        Ok(length)
    }
}
