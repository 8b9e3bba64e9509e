//! What can go wrong with a lab, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why a `mend lab` command failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The lab's name has characters that cannot stand in a socket's or a host's name.
    #[error("`{0}` cannot be the name of a lab")]
    BadName(String),
    /// Too few or too many nodes.
    #[error("a lab has 1 to {max} nodes, not {asked}")]
    BadNodeCount {
        /// The most that there can be.
        max: u32,
        /// What was asked for.
        asked: u32,
    },
    /// Not a rate, or not one that can be shaped.
    #[error("`{0}` is not a bandwidth")]
    BadBandwidth(String),
    /// A lab of that name runs already, or is just starting.
    #[error("the lab `{0}` is up already")]
    AlreadyUp(String),
    /// Nothing answers under that name.
    #[error("no lab named `{0}` is up")]
    NoSuchLab(String),
    /// The lab has no such node.
    #[error("the lab `{lab}` has no node `{node}`")]
    NoSuchNode {
        /// The lab's name.
        lab: String,
        /// What was asked for.
        node: String,
        /// The names it does have.
        known: Vec<String>,
    },
    /// The node was killed or died.
    #[error("`{node}` of the lab `{lab}` is dead")]
    NodeDead {
        /// The lab's name.
        lab: String,
        /// The node's name.
        node: String,
    },
    /// The lab's socket belongs to somebody else.
    #[error("the lab `{lab}` is served by user {uid}, not by you")]
    OtherUser {
        /// The lab's name.
        lab: String,
        /// Who serves it.
        uid: u32,
    },
    /// The lab was started by a Mend with another protocol.
    #[error("the lab `{0}` was started by another version of Mend")]
    OtherVersion(String),
    /// Talking to the holder failed.
    #[error("the lab `{lab}` does not answer")]
    Connection {
        /// The lab's name.
        lab: String,
        /// What the socket said.
        source: io::Error,
    },
    /// A program that the lab needs is not installed.
    #[error("the program `{0}` is not installed")]
    MissingTool(&'static str),
    /// None of the directories a lab can cover is free.
    #[error("no directory to put the lab's files on: tried {0}")]
    NoPlace(String),
    /// The node daemon's executable is nowhere to be found.
    #[error("the node daemon `mendd` was not found (looked in {})", show(.0))]
    MissingDaemon(Vec<PathBuf>),
    /// The lab could not be built; the holder says why.
    #[error("the lab could not be started: {message}")]
    Setup {
        /// What failed.
        message: String,
        /// What to do about it, if that is known.
        hint: Option<String>,
    },
    /// The caller has several threads, so it cannot become a lab.
    #[error("a lab can only be started from a process with a single thread")]
    Threads,
    /// The program could not be started in the node.
    #[error("`{program}` cannot be run")]
    Exec {
        /// The program's name.
        program: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The working directory does not exist in the node.
    #[error("the working directory {0} is not visible in the lab")]
    NoDirectory(PathBuf),
    /// The node could not be entered.
    #[error("`{node}` cannot be entered")]
    Enter {
        /// The node's name.
        node: String,
        /// What went wrong.
        source: io::Error,
    },
    /// `down` asked, but the lab is still there.
    #[error("the lab `{0}` does not end")]
    StillUp(String),
    /// A call to the operating system failed where none should.
    #[error("{what}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn show(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

impl LabError {
    /// What the user can do about it; `None` where nothing better than the message is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            LabError::BadName(_) => "use 1 to 32 lower-case letters, digits and `-`, beginning with a letter".into(),
            LabError::BadNodeCount { .. } => "choose another --nodes".into(),
            LabError::BadBandwidth(_) => "write it as tc does, from 64kbit to 400gbit: 1gbit, 250mbit, 1.5gbit, 100mbps (bytes)".into(),
            LabError::AlreadyUp(name) => format!("use it, end it with `mend lab down --name {name}`, or choose another --name"),
            LabError::NoSuchLab(name) => format!("`mend lab ls` shows what is up; `mend lab up --name {name}` starts it"),
            LabError::NoSuchNode { known, .. } => format!("its nodes are {}", known.join(" ")),
            LabError::NodeDead { lab, .. } => {
                format!("a dead node stays dead; `mend lab down --name {lab}` and `mend lab up` make a new cluster")
            }
            LabError::OtherUser { .. } => "choose another --name".into(),
            LabError::OtherVersion(name) => {
                format!("end it with the version that started it, or kill its process, then `mend lab up --name {name}`")
            }
            LabError::Connection { lab, .. } => format!("`mend lab down --name {lab}` ends it by force"),
            LabError::MissingTool(_) => "apt-get install iproute2".into(),
            LabError::NoPlace(_) => "work from another directory: the lab covers one of these, which must not hold your \
                 working directory, your home or Mend itself"
                .into(),
            LabError::MissingDaemon(_) => "install mendd beside mend, set MEND_LIBDIR, or use --no-daemons".into(),
            LabError::Setup { hint, .. } => return hint.clone(),
            LabError::Threads => "call mend_lab before starting threads or a runtime".into(),
            LabError::NoDirectory(_) => "cd to another directory first".into(),
            LabError::Enter { source, .. } if source.raw_os_error() == Some(EPERM) => {
                "run it as the user who started the lab, outside of other containers".into()
            }
            LabError::Exec { .. } | LabError::Enter { .. } | LabError::StillUp(_) | LabError::System { .. } => return None,
        })
    }

    /// True if the lab has ended, or hung up without an answer because it is ending.
    pub(crate) fn is_an_end(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self {
            LabError::NoSuchLab(_) => true,
            LabError::Connection { source, .. } => matches!(source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof),
            _ => false,
        }
    }

    /// The exit code that a command line should end with: as a shell does for a program that was not found (127)
    /// or cannot be executed (126), 64 for a value that cannot be used, 69 for a lab or node that is not there, else 1.
    pub fn exit_code(&self) -> i32 {
        match self {
            LabError::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            LabError::Exec { .. } => 126,
            LabError::BadName(_) | LabError::BadNodeCount { .. } | LabError::BadBandwidth(_) => 64,
            LabError::NoSuchLab(_) | LabError::NoSuchNode { .. } | LabError::NodeDead { .. } | LabError::Connection { .. } => 69,
            _ => 1,
        }
    }
}

/// `EPERM` of errno(3).
const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();

/// Turns an error of the operating system into one that says what was being done.
pub(crate) fn doing<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LabError {
    move |source| LabError::System { what, source: source.into() }
}
