//! Why a job's directory, or a job, cannot be had.

use mend_settings::SettingError;
use std::io;
use std::path::PathBuf;

/// Why a job's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not readable or writable.
    #[error("cannot use {}", path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Nobody said where jobs are, in a way that can be used.
    #[error(transparent)]
    Home(#[from] SettingError),
    /// There cannot be jobs where they are said to be.
    #[error("there can be no directory {} for jobs", path.display())]
    NoPlace {
        /// The directory that was to hold them.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Not what was written.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file that is not as it was written.
        path: PathBuf,
    },
    /// No job of that name.
    #[error("there is no job {name}")]
    NoSuchJob {
        /// As the user gave it.
        name: String,
        /// All there are.
        known: Vec<String>,
    },
    /// Several could be meant.
    #[error("{name} could be any of {}", known.join(", "))]
    Ambiguous {
        /// As the user gave it.
        name: String,
        /// The jobs that it could be.
        known: Vec<String>,
    },
    /// None was named, and several run.
    #[error("the running job could be any of {}", known.join(", "))]
    SeveralRun {
        /// The jobs that run.
        known: Vec<String>,
    },
    /// No job at all.
    #[error("there is no job{qualifier}")]
    None {
        /// " that runs", or empty.
        qualifier: &'static str,
    },
    /// The batch job has no job of its own.
    #[error("the batch job {batch_job} has no job of its own")]
    NoneOfBatch {
        /// Its number.
        batch_job: String,
    },
    /// None that has ended.
    #[error("no job has ended yet; {} running", runs(known))]
    NoneEnded {
        /// Those that run.
        known: Vec<String>,
    },
    /// A name that stands for any job.
    #[error("the name of the job is empty")]
    EmptyName,
    /// Its controller lives.
    #[error("job {id} is running")]
    Running {
        /// The job that runs.
        id: String,
    },
    /// This controller stood still, and another one has the job.
    #[error("another controller has taken the job over: {} is its to write", path.display())]
    TakenOver {
        /// The file that was to be written.
        path: PathBuf,
    },
}

impl RecordError {
    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "make room there, or set MEND_HOME to a directory elsewhere".into()
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotADirectory => {
                    "set MEND_HOME to a directory of yours".into()
                }
                _ => mend_report::process_hint(source).into(),
            },
            Self::Home(_) | Self::NoPlace { .. } => "set MEND_HOME to the path of a directory of yours, from / on".into(),
            Self::Damaged { .. } | Self::TakenOver { .. } => String::new(),
            Self::NoSuchJob { known, .. } if known.is_empty() => "`mend ps --all` lists jobs; is MEND_HOME the same?".into(),
            Self::NoSuchJob { known, .. } => format!("known jobs: {}", some(known)),
            Self::SeveralRun { .. } => "name one of them".into(),
            Self::EmptyName => "is a variable not set? `mend ps --all` lists jobs".into(),
            Self::Ambiguous { .. } => "write more of its name".into(),
            Self::None { .. } => "start one with `mend run -n 4 PROGRAM`; is MEND_HOME the same?".into(),
            Self::NoneOfBatch { .. } => "name the job that is meant; `mend ps --all` lists jobs".into(),
            Self::NoneEnded { .. } => "wait for its end, or end it with `mend kill`".into(),
            Self::Running { id } => format!("end it with `mend kill {id}`"),
        }
    }

    /// With which code `mend` ends: 64 where what it was told can mean no job, or no place for jobs; 69 where that is not there, or not to be had.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::EmptyName | Self::Ambiguous { .. } | Self::SeveralRun { .. } | Self::Home(_) | Self::NoPlace { .. } => 64,
            _ => 69,
        }
    }
}

fn runs(names: &[String]) -> String {
    format!("{} {}", some(names), if names.len() == 1 { "is" } else { "are" })
}

/// Names of jobs, newest first, as many as can be looked over.
#[must_use]
pub fn some(names: &[String]) -> String {
    const MAX_NAMES: usize = 8;
    let shown = names[..names.len().min(MAX_NAMES)].join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} older (`mend ps --all`)"),
    }
}
