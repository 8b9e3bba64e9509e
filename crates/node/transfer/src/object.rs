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
    /// What the program said when it ended early.
    said: Option<String>,
}

impl ObjectSource {
    /// Begins to read it.
    ///
    /// # Errors
    /// That the program cannot be run.
    pub fn get(address: &str) -> Result<Self, TransferError> {
        start(&["get", address], Stdio::null(), Stdio::piped()).map(Self::of)
    }

    fn of(mut child: Child) -> Self {
        let output = child.stdout.take();
        Self { child: Some(child), output, said: None }
    }

    fn end(&mut self) -> Result<(), TransferError> {
        // What was not read is not wanted.
        drop(self.output.take());
        self.child.take().map_or(Ok(()), end)
    }
}

impl Read for ObjectSource {
    /// The end of what comes is the object's only if the program ended well.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.output.as_mut().map_or(Ok(0), |output| output.read(buffer))?;
        if read == 0 && !buffer.is_empty() {
            self.end().map_err(|error| match error {
                TransferError::ObjectTarget(said) => {
                    self.said = Some(said);
                    io::Error::other(format!("{OBJECT_PROGRAM} ended early"))
                }
                error => io::Error::other(error),
            })?;
        }
        Ok(read)
    }
}

impl Source for ObjectSource {
    fn explain(&mut self, error: TransferError) -> TransferError {
        if let Err(TransferError::ObjectTarget(said)) = self.end() {
            self.said = Some(said);
        }
        match (self.said.take(), error) {
            // The store's own words say more than that nothing more came, or that the image is too short.
            (Some(said), error) if !said.is_empty() && (error.blames_content() || matches!(error, TransferError::Source(_))) => {
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

/// Addresses that are given to one process: the kernel bounds what a command line holds.
const ADDRESSES_AT_ONCE: usize = 1000;

/// Removes objects. One that cannot be removed keeps no other.
///
/// # Errors
/// What the store says of the first that stays.
pub fn delete(addresses: &[String]) -> Result<(), TransferError> {
    let some = |addresses: &[String]| {
        let words: Vec<&str> = std::iter::once("delete").chain(addresses.iter().map(String::as_str)).collect();
        end(start(&words, Stdio::null(), Stdio::null())?)
    };
    addresses.chunks(ADDRESSES_AT_ONCE).map(some).fold(Ok(()), Result::and)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic_file::AtomicFile;
    use crate::pipeline::run;
    use crate::progress::Progress;
    use std::fs;

    #[test]
    fn an_object_that_is_refused_or_cut_short_gets_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("rank-00000.variables");
        let got = |script: &str| {
            let mut program = Command::new("sh");
            program.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut source = ObjectSource::of(program.spawn().unwrap());
            run(&mut source, Vec::new(), AtomicFile::new(place.clone()).unwrap(), &Progress::default())
        };
        for (script, told) in [
            ("echo 'it refuses: 403' >&2; exit 1", "cannot be read: it refuses: 403"),
            ("echo half; echo 'it was cut' >&2; exit 1", "cannot be read: it was cut"),
            ("echo half; kill -KILL $$", "cannot be read"),
        ] {
            assert_eq!(got(script).unwrap_err().to_string(), told);
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        }
        assert_eq!(got("echo whole").unwrap(), 6);
        assert_eq!(fs::read(&place).unwrap(), b"whole\n");
    }
}
