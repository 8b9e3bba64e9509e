//! `mend logs`: what a detached job has printed.

use crate::failure::Failure;
use clap::Args;
use mend_controller::job_end;
use mend_controller::known_jobs;
use mend_controller::record::{JobDirectory, JobRecord};
use mend_controller::spool;
use mend_controller::spool_reader::{Found, SpoolError, SpoolReader};
use mend_messages::daemon::Stream;
use mend_report::with_causes;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Between two looks at output that is followed.
pub const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);

/// `mend logs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend logs                                        of the job that runs, or ended last
  mend logs lmp-3f2a --follow                      print more as it comes, to the job's end
  mend logs lmp-3f2a > out.txt 2> err.txt          both streams, apart

The output of a job that was started with `--detach`, and of one that outlived its `mend run` from then on, is kept in its directory, also \
after its end, until `mend rm`. Its standard output \
goes to standard output, its standard error to standard error, with the messages that `mend run` would have printed there. \
MEND_SPOOL_MB bounds what is kept. Beyond it the oldest part is removed, and mend says how many bytes are gone. `mend log` shows the \
journal: what happened to the job.")]
pub struct Logs {
    /// The job; default: the one that runs, else the one that ended last
    pub job: Option<String>,
    /// Print more as it comes, to the job's end
    #[arg(short, long)]
    pub follow: bool,
    /// Only what it printed to standard output
    #[arg(long)]
    pub stdout: bool,
    /// Only what it printed to standard error
    #[arg(long)]
    pub stderr: bool,
}

/// What is shown of a job's output.
pub struct Shown {
    reader: SpoolReader,
    stdout: bool,
    stderr: bool,
}

impl From<SpoolError> for Failure {
    fn from(error: SpoolError) -> Self {
        Self::new(with_causes(&error), error.hint(), 1)
    }
}

fn named(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "standard output",
        Stream::Stderr => "standard error",
    }
}

fn write(stream: Stream, bytes: &[u8]) -> Result<(), SpoolError> {
    let written = match stream {
        Stream::Stdout => {
            let mut out = io::stdout().lock();
            // What follows on the other stream may go to the same place.
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Stream::Stderr => io::stderr().lock().write_all(bytes),
    };
    written.map_err(|source| SpoolError::Io { path: named(stream).into(), source })
}

fn tell_damage(path: &Path) {
    mend_report::tell!("mend: {} is damaged: some of the output is left out here", path.display());
}

impl Shown {
    /// All that was printed and is kept, or what is printed from now on.
    pub fn of(directory: &JobDirectory, record: &JobRecord, from_start: bool) -> Result<Self, Failure> {
        if !spool::is_there(directory.path()) {
            let hint = format!("its output went where it was started; `mend log {}` shows what happened to it", record.id);
            return Err(Failure::new(format!("job {} was not started with --detach: its output is not kept", record.id), hint, 1));
        }
        let reader = if from_start { SpoolReader::from_start(directory.path()) } else { SpoolReader::at_end(directory.path())? };
        Ok(Self { reader, stdout: true, stderr: true })
    }

    /// Shows what there is now.
    pub fn more(&mut self) -> Result<(), Failure> {
        let (stdout, stderr) = (self.stdout, self.stderr);
        let wanted = |stream| if stream == Stream::Stdout { stdout } else { stderr };
        self.reader.read(|found| {
            match found {
                Found::Bytes(stream, bytes) if wanted(stream) => write(stream, bytes)?,
                Found::Gone(stream, bytes) if wanted(stream) => {
                    let what = named(stream);
                    mend_report::tell!(
                        "mend: {bytes} bytes of {what} are gone here: more was printed than MEND_SPOOL_MB keeps, or the disk was full"
                    );
                }
                Found::Damaged(path) => tell_damage(path),
                Found::Bytes(..) | Found::Gone(..) => {}
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Shows the rest: the job has ended. Says if there is more that cannot be read.
    pub fn end(&mut self) -> Result<(), Failure> {
        self.reader.open_again();
        self.more()?;
        if let Some(path) = self.reader.damaged() {
            tell_damage(&path);
        }
        Ok(())
    }
}

/// `mend logs`.
pub async fn logs(arguments: Logs) -> Result<i32, Failure> {
    let (directory, record) = known_jobs::find_any(arguments.job.as_deref())?;
    let mut shown = Shown::of(&directory, &record, true)?;
    if arguments.stdout != arguments.stderr {
        (shown.stdout, shown.stderr) = (arguments.stdout, arguments.stderr);
    }
    loop {
        // Asked before it is read, so that all is read when it has ended.
        let over = !arguments.follow || job_end::look(&directory)?.is_some();
        if over {
            shown.end()?;
            return Ok(0);
        }
        shown.more()?;
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}
