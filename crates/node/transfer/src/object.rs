//! Objects of a store, through `mend-object`, which is run for each.
//!
//! Invariant: an object gets its last piece only after all of it has been seen to be good, and the store makes it
//! only when its length is right. Faults assumed: the program is not installed; the store refuses or hangs.

use crate::TransferError;
use crate::pipeline::{Source, Target};
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const OBJECT_PROGRAM: &str = "mend-object";
/// Bytes of what it says that are passed on.
const MAX_ERROR_BYTES: u64 = 1000;

fn start(words: &[&str], input: Stdio, output: Stdio) -> Result<Child, TransferError> {
    let program =
        mend_settings::find_part(OBJECT_PROGRAM).ok_or_else(|| io::Error::other(format!("{OBJECT_PROGRAM} is not installed beside mendd")));
    let mut command = Command::new(program.map_err(TransferError::Source)?);
    command.args(words).stdin(input).stdout(output).stderr(Stdio::piped()).current_dir("/");
    command.spawn().map_err(TransferError::Source)
}

/// Waits for the program's end; what it said if it failed.
fn end(mut child: Child) -> Result<(), TransferError> {
    drop(child.stdin.take());
    let mut said = String::new();
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(MAX_ERROR_BYTES).read_to_string(&mut said);
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(TransferError::ObjectTarget(said.trim().to_owned())),
        Err(error) => Err(TransferError::Source(error)),
    }
}

/// An object that is being stored.
pub struct ObjectTarget {
    address: String,
    /// `None`: its end was waited for.
    child: Option<Child>,
    input: Option<ChildStdin>,
    /// The last piece, which the store does not get before all is good.
    held: Vec<u8>,
    bytes: u64,
}

impl ObjectTarget {
    /// Begins one of so many bytes.
    ///
    /// # Errors
    /// That the program cannot be run.
    pub fn put(address: &str, bytes: u64) -> Result<Self, TransferError> {
        let mut child = start(&["put", address, &bytes.to_string()], Stdio::piped(), Stdio::null())?;
        let input = child.stdin.take();
        Ok(Self { address: address.to_owned(), child: Some(child), input, held: Vec::new(), bytes: 0 })
    }

    fn write_held(&mut self) -> Result<(), TransferError> {
        let written = self.input.as_mut().map_or(Ok(()), |input| input.write_all(&self.held));
        self.bytes += self.held.len() as u64;
        self.held.clear();
        written.map_err(|source| TransferError::Target { place: self.address.clone(), source })
    }

    /// Ends the input, and waits for the program.
    fn end(&mut self) -> Result<(), TransferError> {
        drop(self.input.take());
        self.child.take().map_or(Ok(()), end)
    }
}

impl Target for ObjectTarget {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.write_held()?;
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    fn commit(mut self) -> Result<u64, TransferError> {
        match self.write_held() {
            Ok(()) => self.end().map(|()| self.bytes),
            Err(error) => Err(self.abandon(error)),
        }
    }

    /// What was begun ends early, and its object is refused for its length.
    fn abandon(mut self, error: TransferError) -> TransferError {
        match (error, self.end()) {
            // That the program went away is told better by itself.
            (TransferError::Target { .. }, Err(said)) => said,
            (error, _) => error,
        }
    }
}

impl Drop for ObjectTarget {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// An object that is being read.
pub struct ObjectSource {
    /// `None`: its end was waited for.
    child: Option<Child>,
    output: Option<ChildStdout>,
}

impl ObjectSource {
    /// Begins to read it.
    ///
    /// # Errors
    /// That the program cannot be run.
    pub fn get(address: &str) -> Result<Self, TransferError> {
        let mut child = start(&["get", address], Stdio::null(), Stdio::piped())?;
        let output = child.stdout.take();
        Ok(Self { child: Some(child), output })
    }

    fn end(&mut self) -> Result<(), TransferError> {
        // What was not read is not wanted.
        drop(self.output.take());
        self.child.take().map_or(Ok(()), end)
    }
}

impl Read for ObjectSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.output.as_mut().map_or(Ok(0), |output| output.read(buffer))
    }
}

impl Source for ObjectSource {
    fn explain(&mut self, error: TransferError) -> TransferError {
        match (self.end(), error) {
            // The store's own words say more than that the image is too short.
            (Err(TransferError::ObjectTarget(said)), error) if error.blames_content() && !said.is_empty() => {
                TransferError::ObjectSource(said)
            }
            (_, error) => error,
        }
    }
}

impl Drop for ObjectSource {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Stores a small text.
///
/// # Errors
/// What the store says.
pub fn put_text(text: &[u8], address: &str) -> Result<(), TransferError> {
    let mut target = ObjectTarget::put(address, text.len() as u64)?;
    match target.write(text) {
        Ok(()) => target.commit().map(drop),
        Err(error) => Err(target.abandon(error)),
    }
}

/// Removes objects.
///
/// # Errors
/// What the store says.
pub fn delete(addresses: &[String]) -> Result<(), TransferError> {
    let words: Vec<&str> = std::iter::once("delete").chain(addresses.iter().map(String::as_str)).collect();
    end(start(&words, Stdio::null(), Stdio::null())?)
}
