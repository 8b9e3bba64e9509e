//! Fetches ranges of files from where they came from, through `mend-data`, which knows all kinds of sources.
//!
//! ```text
//! reader ──Ranges frame──► mend-data ranges ──► source
//!        ◄──answer, bytes──
//! ```
//! A few processes for as long as they are of use; who comes while all are busy waits. Faults assumed: a process dies or says nonsense, and another one is started for the next range.

use mend_data::ranges::Range;
use mend_data::record::Source;
use mend_data::request::{RangeAnswer, RangeRequest};
use mend_data::space::target::MAX_PAYLOAD;
use mend_messages::frame;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The program that fetches from sources.
const PROGRAM: &str = "mend-data";
/// Processes at once: while what one has fetched is compared and put back, bytes come through the other.
const PROCESSES: usize = 2;

/// Fetches ranges from sources.
#[derive(Debug)]
pub struct Repairer {
    program: PathBuf,
    processes: Mutex<Processes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Processes {
    idle: Vec<Running>,
    /// How many others fetch something.
    busy: usize,
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
        mend_settings::find_part(PROGRAM).map(Self::with)
    }

    /// The one in this directory; `None` if it is not there.
    #[must_use]
    pub fn find_in(directory: &Path) -> Option<Self> {
        Some(directory.join(PROGRAM)).filter(|program| program.exists()).map(Self::with)
    }

    fn with(program: PathBuf) -> Self {
        Self { program, processes: Mutex::default(), changed: Condvar::new() }
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        // They are only ever changed as a whole.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as that is so.
    fn wait_while(&self, condition: impl Fn(&mut Processes) -> bool) -> MutexGuard<'_, Processes> {
        self.changed.wait_while(self.processes(), condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the processes when they have nothing more to do.
    pub(super) fn rest(&self) {
        self.wait_while(|processes| processes.busy > 0).idle.clear();
    }

    /// Bytes of a file that has these sources and this size. They are not asked for if they are not `wanted` any more when their turn comes.
    ///
    /// # Errors
    /// Why no source gives them.
    pub(super) fn fetch(&self, sources: &[Source], size: u64, range: Range, wanted: impl Fn() -> bool) -> Result<Vec<u8>, String> {
        if sources.is_empty() {
            return Err("no source of it is known".to_owned());
        }
        let request = RangeRequest { sources: sources.to_vec(), size, range };
        let mut processes = self.wait_while(|processes| processes.idle.is_empty() && processes.busy >= PROCESSES);
        if !wanted() {
            drop(processes);
            // Who was told of a process that is free may have been this one.
            self.changed.notify_all();
            return Err("it is not wanted any more".to_owned());
        }
        let idle = processes.idle.pop();
        processes.busy += 1;
        drop(processes);
        let (running, fetched) = match idle.map_or_else(|| self.start(), Ok) {
            Ok(mut running) => match running.exchange(&request) {
                Ok(fetched) => (Some(running), fetched),
                Err(error) => (None, Err(format!("{PROGRAM} ended: {error}"))),
            },
            Err(error) => (None, Err(format!("{} cannot be started: {error}", self.program.display()))),
        };
        let mut processes = self.processes();
        processes.busy -= 1;
        processes.idle.extend(running);
        drop(processes);
        self.changed.notify_all();
        fetched
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
