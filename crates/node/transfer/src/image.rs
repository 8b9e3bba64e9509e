//! Images moved as a whole: from one place to another, seen to be good on their way.
//!
//! Invariant: a copy gets its name only after every byte of it has been seen to be the image that was meant: its job,
//! rank, name, length, all checksums; with a key, every byte also opened with that. An encrypted image is copied as it is
//! stored. Faults assumed: the source is torn, foreign or damaged, or ends early; the target
//! is full; the job leaves in the middle.

use crate::TransferError;
use crate::atomic_file::AtomicFile;
use crate::object::{ObjectSource, ObjectTarget};
use crate::pace::Pace;
use crate::pipeline::{Nowhere, Source, Stage, Target, run};
use crate::progress::Progress;
use crate::stage::{Expected, ImageCheck, Length, Paced};
use mend_kernel::untrusted::open_regular;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// What moves images of one job on this node.
#[derive(Clone, Debug)]
pub struct Mover {
    pace: Arc<Pace>,
    progress: Arc<Progress>,
}

impl Mover {
    /// With others that share it, at most `rate` bytes per second; 0: no bound.
    #[must_use]
    pub fn new(rate: u64, progress: Arc<Progress>) -> Self {
        Self { pace: Arc::new(Pace::new(rate)), progress }
    }

    /// Ends all that it and those made from it move.
    pub fn cancel(&self) {
        self.pace.cancel();
    }

    /// Moves an image into a target, which is committed only if it is good.
    ///
    /// # Errors
    /// What is wrong with it, or with the target.
    pub fn into_target(&self, source: &mut dyn Source, expected: &Expected, target: impl Target) -> Result<(), TransferError> {
        let stages: Vec<Box<dyn Stage + '_>> =
            vec![Box::new(Length::new(expected.image.bytes)), Box::new(Paced(&self.pace)), Box::new(ImageCheck::new(expected))];
        run(source, stages, target, &self.progress).map(drop)
    }

    /// Checks the image in a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, path: &Path, expected: &Expected) -> Result<(), TransferError> {
        self.into_target(&mut open(path)?, expected, Nowhere::default())
    }

    /// Copies an image into a file, which appears only if the image is good.
    ///
    /// # Errors
    /// What is wrong with it, or with the file.
    pub fn into_file(&self, source: &mut dyn Source, expected: &Expected, place: &Path) -> Result<(), TransferError> {
        let target = AtomicFile::new(place.to_owned());
        let target = target.map_err(|source| TransferError::Target { place: place.display().to_string(), source })?;
        self.into_target(source, expected, target)
    }

    /// Copies an image into an object, which appears only if the image is good.
    ///
    /// # Errors
    /// What is wrong with it, or what the store says.
    pub fn into_object(&self, source: &mut dyn Source, expected: &Expected, address: &str) -> Result<(), TransferError> {
        self.into_target(source, expected, ObjectTarget::put(address, expected.image.bytes)?)
    }

    /// Copies a file of this length that is no image, and that its reader checks. It appears only when all of it is there.
    ///
    /// # Errors
    /// Another length, those of reading and writing.
    pub fn file_into_file(&self, source: &mut dyn Source, bytes: u64, place: &Path) -> Result<(), TransferError> {
        let target = AtomicFile::new(place.to_owned());
        let target = target.map_err(|source| TransferError::Target { place: place.display().to_string(), source })?;
        let stages: Vec<Box<dyn Stage + '_>> = vec![Box::new(Length::new(bytes)), Box::new(Paced(&self.pace))];
        run(source, stages, target, &self.progress).map(drop)
    }

    /// The same into an object.
    ///
    /// # Errors
    /// Another length, or what the store says.
    pub fn file_into_object(&self, source: &mut dyn Source, bytes: u64, address: &str) -> Result<(), TransferError> {
        let stages: Vec<Box<dyn Stage + '_>> = vec![Box::new(Length::new(bytes)), Box::new(Paced(&self.pace))];
        run(source, stages, ObjectTarget::put(address, bytes)?, &self.progress).map(drop)
    }

    /// An object that no image is, into a file that appears only when all of it is there.
    ///
    /// # Errors
    /// Those of writing, or what the store says.
    pub fn object_into_file(&self, address: &str, place: &Path) -> Result<(), TransferError> {
        let target = AtomicFile::new(place.to_owned());
        let target = target.map_err(|source| TransferError::Target { place: place.display().to_string(), source })?;
        run(&mut ObjectSource::get(address)?, Vec::new(), target, &self.progress).map(drop)
    }

    /// Writes a file to another node as it is: the receiver checks.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn pour(&self, path: &Path, to: impl Target) -> Result<(), TransferError> {
        let stages: Vec<Box<dyn Stage + '_>> = vec![Box::new(Paced(&self.pace))];
        run(&mut open(path)?, stages, to, &self.progress).map(drop)
    }
}

/// An image's file, to be read.
///
/// # Errors
/// [`TransferError::Source`].
pub fn open(path: &Path) -> Result<File, TransferError> {
    open_regular(path).map_err(TransferError::Source)
}

/// Checks that a file can be read and is as long as the image, and nothing of what it holds.
///
/// # Errors
/// That it is not.
pub fn measure(path: &Path, expected: &Expected) -> Result<(), TransferError> {
    let (found, wanted) = (open(path)?.metadata().map_err(TransferError::Source)?.len(), expected.image.bytes);
    if found == wanted { Ok(()) } else { Err(TransferError::Torn { found, wanted }) }
}

#[cfg(test)]
mod tests;
