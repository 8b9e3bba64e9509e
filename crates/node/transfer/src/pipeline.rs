//! A source, stages, a target, and the loop that moves pieces through them.
//!
//! ```text
//! read ─► piece ─► stage ─► stage ─► write          until the source ends
//!                  end  ──► end  ──► commit         then; an error at any point: abandon
//! ```
//! Invariants: a target is committed only after every stage has seen the end of the source and found nothing wrong; one piece is in a
//! pipeline at a time. Faults assumed: sources end early or fail, targets are full or go away.

use crate::TransferError;
use crate::progress::Progress;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::os::unix::net::UnixStream;

/// Bytes that are moved at a time.
pub const PIECE_BYTES: usize = 256 << 10;

/// Where bytes come from.
pub trait Source: Read {
    /// What the source knows better about why nothing more came than the error says.
    fn explain(&mut self, error: TransferError) -> TransferError {
        error
    }
}

impl Source for File {}
impl Source for &File {}
impl Source for UnixStream {}
impl<R: Read> Source for mend_sealed::Opener<R> {}
impl<T: AsRef<[u8]>> Source for Cursor<T> {}
impl<A: Source, B: Source> Source for io::Chain<A, B> {}

/// What happens to bytes on their way.
pub trait Stage {
    /// Takes a piece and gives on what comes of it.
    ///
    /// # Errors
    /// What is wrong with the bytes, or that of a later part.
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError>;

    /// The source has ended: gives on what was held back.
    ///
    /// # Errors
    /// As for [`Stage::pass`].
    fn end(&mut self, _rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        Ok(())
    }
}

/// Where bytes go.
pub trait Target {
    /// Takes bytes; waits until there is room for them.
    ///
    /// # Errors
    /// Why it cannot.
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError>;

    /// All has come and is good: makes it count. Bytes that are there now.
    ///
    /// # Errors
    /// Why it cannot.
    fn commit(self) -> Result<u64, TransferError>;

    /// It is given up. What the target knows better about why than the error says.
    fn abandon(self, error: TransferError) -> TransferError
    where
        Self: Sized,
    {
        error
    }
}

/// The stages behind one, and the target.
pub struct Rest<'r, 's> {
    stages: &'r mut [Box<dyn Stage + 's>],
    target: &'r mut dyn FnMut(&[u8]) -> Result<(), TransferError>,
}

impl Rest<'_, '_> {
    /// Gives bytes on.
    ///
    /// # Errors
    /// Those of the stages behind and of the target.
    pub fn give(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        match self.stages.split_first_mut() {
            Some((stage, stages)) => stage.pass(bytes, &mut Rest { stages, target: self.target }),
            None => (self.target)(bytes),
        }
    }

    fn end(&mut self) -> Result<(), TransferError> {
        let Some((stage, stages)) = self.stages.split_first_mut() else { return Ok(()) };
        let mut rest = Rest { stages, target: self.target };
        stage.end(&mut rest)?;
        rest.end()
    }
}

/// Moves all that the source has through the stages into the target, and commits that. What the target says of it: bytes. Blocks.
///
/// # Errors
/// The first part's that failed. The target is abandoned.
pub fn run<T: Target>(
    source: &mut dyn Source,
    mut stages: Vec<Box<dyn Stage + '_>>,
    mut target: T,
    progress: &Progress,
) -> Result<u64, TransferError> {
    let mut write = |bytes: &[u8]| {
        target.write(bytes)?;
        progress.count_given(bytes.len());
        Ok(())
    };
    let moved = move_all(source, &mut Rest { stages: &mut stages, target: &mut write }, progress);
    match moved {
        Ok(()) => target.commit(),
        Err(error) => {
            let error = target.abandon(error);
            Err(source.explain(error))
        }
    }
}

fn move_all(source: &mut dyn Source, rest: &mut Rest, progress: &Progress) -> Result<(), TransferError> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match source.read(&mut piece) {
            Ok(0) => return rest.end(),
            Ok(length) => {
                progress.count_read(length);
                rest.give(&piece[..length])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(TransferError::Source(error)),
        }
    }
}

/// A target that keeps nothing: the stages are what counts.
#[derive(Debug, Default)]
pub struct Nowhere(u64);

impl Target for Nowhere {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.0 += bytes.len() as u64;
        Ok(())
    }

    fn commit(self) -> Result<u64, TransferError> {
        Ok(self.0)
    }
}

/// A connection to a process or node that takes bytes as they come, and judges by itself whether they were all.
#[derive(Debug)]
pub struct Stream<W> {
    out: W,
    /// What it is called in errors.
    place: &'static str,
    bytes: u64,
}

impl<W: Write> Stream<W> {
    /// Writes to `out`.
    pub fn new(out: W, place: &'static str) -> Self {
        Self { out, place, bytes: 0 }
    }
}

impl<W: Write> Target for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.out.write_all(bytes).map_err(|source| TransferError::Target { place: self.place.into(), source })?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn commit(mut self) -> Result<u64, TransferError> {
        self.out.flush().map_err(|source| TransferError::Target { place: self.place.into(), source })?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests;
