//! Fetches ranges of files from where they came from, through `mend-data`, which knows all kinds of sources.
//!
//! ```text
//! reader ──Ranges frame──► mend-data ranges ──► source
//!        ◄──answer, bytes──
//! ```
//! One process for as long as it is of use; who comes meanwhile waits. Faults assumed: the process dies or says nonsense, and is started anew for the next one.

use mend_data::ranges::Range;
use mend_data::record::Source;
use mend_data::request::{RangeAnswer, RangeRequest};
use mend_data::space::target::MAX_PAYLOAD;
use mend_messages::frame;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The program that fetches from sources.
const PROGRAM: &str = "mend-data";

/// Fetches ranges from sources.
#[derive(Debug)]
pub struct Repairer {
    program: PathBuf,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Repairer {
    /// `None` if the program is not installed.
    #[must_use]
    pub fn find() -> Option<Self> {
        Some(Self { program: mend_settings::find_part(PROGRAM)?, running: Mutex::default() })
    }

    /// The one in this directory; `None` if it is not there.
    #[must_use]
    pub fn find_in(directory: &Path) -> Option<Self> {
        Some(directory.join(PROGRAM)).filter(|program| program.exists()).map(|program| Self { program, running: Mutex::default() })
    }

    /// Ends the process, if there is one, when it has nothing more to do.
    pub(super) fn rest(&self) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Bytes of a file that has these sources and this size.
    ///
    /// # Errors
    /// Why no source gives them.
    pub fn fetch(&self, sources: &[Source], size: u64, range: Range) -> Result<Vec<u8>, String> {
        if sources.is_empty() {
            return Err("no source of it is known".to_owned());
        }
        let request = RangeRequest { sources: sources.to_vec(), size, range };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            *running = Some(self.start().map_err(|error| format!("{} cannot be started: {error}", self.program.display()))?);
        }
        let Some(helper) = running.as_mut() else { return Err(String::new()) };
        helper.exchange(&request).unwrap_or_else(|error| {
            *running = None;
            Err(format!("{PROGRAM} ended: {error}"))
        })
    }

    fn start(&self) -> io::Result<Running> {
        let mut child = Command::new(&self.program).arg("ranges").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        match (input, output) {
            (Some(input), Some(output)) => Ok(Running { child, input, output: BufReader::new(output) }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Running {
    fn exchange(&mut self, request: &RangeRequest) -> io::Result<Result<Vec<u8>, String>> {
        self.input.write_all(&frame::encode(request).map_err(io::Error::other)?)?;
        let mut prefix = [0; 4];
        self.output.read_exact(&mut prefix)?;
        let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
        self.output.read_exact(&mut body)?;
        match frame::decode(&body).map_err(io::Error::other)? {
            RangeAnswer::Failed(why) => Ok(Err(why)),
            RangeAnswer::Bytes(length) if length <= u64::from(MAX_PAYLOAD) => {
                let mut bytes = vec![0; length as usize];
                self.output.read_exact(&mut bytes)?;
                Ok(Ok(bytes))
            }
            RangeAnswer::Bytes(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
