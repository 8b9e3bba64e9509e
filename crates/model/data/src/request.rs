//! What `mend` asks of `mend-data`, which it becomes: on standard input, in one piece. Both are of one release, so it has no version.

use crate::ranges::Range;
use crate::record::Source;
use crate::space::mounts::Made;
use crate::space::window::{Job, Rules};
use crate::space::{Id, Striping};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// A path, whatever bytes it has.
pub type PathBytes = Vec<u8>;

/// One command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// `mend data stage`.
    Stage {
        /// Each destination with its sources.
        wanted: Vec<Wanted>,
        /// How it is done.
        options: StageOptions,
    },
    /// `mend data check`.
    Check {
        /// Files and directories.
        paths: Vec<PathBytes>,
        /// Compare with the source what has no checksums.
        against_source: bool,
        /// Print JSON.
        json: bool,
    },
    /// `mend data repair`.
    Repair {
        /// Files and directories.
        paths: Vec<PathBytes>,
        /// As in a check.
        against_source: bool,
        /// Print JSON.
        json: bool,
    },
    /// `mend data sources`.
    Sources {
        /// The file.
        path: PathBytes,
        /// Sources to add.
        add: Vec<String>,
        /// Sources to remove.
        remove: Vec<String>,
        /// Where credentials of the added ones are.
        credentials: Option<String>,
        /// Server of added `s3` addresses.
        endpoint: Option<String>,
        /// Print JSON.
        json: bool,
    },
    /// `mend data mv`.
    Move {
        /// A file.
        from: PathBytes,
        /// Its new name, or a directory.
        to: PathBytes,
    },
    /// Verbs about data spaces.
    Space(SpaceRequest),
}

/// What a job's ranks touch is to be told, for as long as somebody reads it: a line of JSON for each look. This is a line of JSON, too; those behind it tell what ranks
/// send each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowRequest {
    /// The job.
    pub job: String,
    /// Spaces that its ranks see.
    pub spaces: Vec<String>,
    /// Ranks that each node may have, by name; more only where there are more.
    pub slots: BTreeMap<String, u32>,
    /// Pause between two looks, milliseconds.
    pub pause_ms: u64,
    /// By access counting diagrams, not by what nodes fetch.
    pub diagrams: bool,
}

/// What a node's daemon knows of a space that it looks at, whether or not a job uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Which space that is: nothing is done with another one of its name.
    pub space: Id,
    /// Targets that are lost. Others that do not answer are away, and keep what they have.
    pub lost: BTreeSet<u16>,
    /// The process that asks. What is asked for ends with it.
    pub parent: u32,
}

/// A verb about a data space. A place is `NAME:PATH`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SpaceRequest {
    /// `mend data create`.
    Create {
        /// What it is called.
        name: String,
        /// Host and directory of each target.
        targets: Vec<(String, String)>,
        /// For its files, unless a directory says otherwise.
        striping: Striping,
        /// Targets on which each byte is that ranks write.
        copies: usize,
    },
    /// `mend data destroy`.
    Destroy {
        /// Which one.
        name: String,
        /// Forget it even where something of it cannot be removed.
        force: bool,
    },
    /// `mend data ls`.
    List {
        /// Where; `None` lists spaces.
        place: Option<String>,
        /// Print JSON.
        json: bool,
    },
    /// `mend data df`.
    Df {
        /// Which one.
        name: String,
        /// Print JSON.
        json: bool,
    },
    /// `mend data rm`.
    Remove {
        /// What is removed.
        places: Vec<String>,
        /// Directories with all below them, too.
        recursive: bool,
    },
    /// `mend data getstripe`.
    GetStripe {
        /// Of what.
        place: String,
        /// Print JSON.
        json: bool,
    },
    /// `mend data setstripe`.
    SetStripe {
        /// Of which directory.
        place: String,
        /// How new files below it are spread.
        striping: Striping,
    },
    /// `mend data get`.
    Get {
        /// A file.
        place: String,
        /// A path, or `-` for standard output.
        to: PathBytes,
    },
    /// `mend data mount`.
    Mount {
        /// Which one.
        name: String,
        /// Where it is seen.
        directory: PathBytes,
    },
    /// `mend data patterns`.
    Patterns {
        /// Which one.
        name: String,
        /// Of which job; `None`: the only one that is told of.
        job: Option<String>,
        /// Blocks of a window.
        window: u32,
        /// By the rule of the PARTE paper.
        paper: bool,
        /// Where a picture of it goes.
        svg: Option<PathBytes>,
        /// Print JSON.
        json: bool,
    },
    /// `mend data unmount`.
    Unmount {
        /// Where one is seen.
        directory: PathBytes,
    },
    /// Of those that serve mounts: fetch what targets lack, unless another one does.
    Heal {
        /// Name of the space.
        name: String,
        /// Read all files, unless that was done in so many seconds before.
        verify_after: Option<u32>,
        /// Of the daemon's looks alone.
        watched: Option<Watched>,
    },
    /// `mend run`: tell of files that cannot be had.
    Ready {
        /// Names of the spaces.
        names: Vec<String>,
    },
    /// `mend data replicate`.
    Replicate {
        /// Files, and directories with all below them.
        places: Vec<String>,
        /// Remove second copies.
        remove: bool,
        /// Print JSON.
        json: bool,
    },
    /// `mend data replicate --queue`: second copies of what jobs read that run or will start soon, and of nothing else.
    ReplicateFor {
        /// Files, and directories with all below them, of which it decides.
        places: Vec<String>,
        /// The queue, in its order.
        jobs: Vec<Job>,
        /// Nodes that there are.
        nodes: u64,
        /// Which jobs are soon.
        rules: Rules,
        /// Print JSON.
        json: bool,
    },
    /// Of those that serve mounts: make second copies again that were lost, unless another one does.
    CopyAgain {
        /// Name of the space.
        name: String,
        /// Of the daemon's looks alone.
        watched: Option<Watched>,
    },
    /// `mend data offload`, and what sends files away for a job.
    Offload {
        /// A space, or a path in it.
        place: String,
        /// The directory that files are sent to.
        uri: String,
        /// How it is done.
        options: OffloadOptions,
    },
    /// `mend run` and `mend restart`, before ranks start: make the spaces that a job is to have, or find them again, and stage what is wanted.
    Begin {
        /// The job.
        job: String,
        /// It had them before.
        again: bool,
        /// Its nodes: name and daemon.
        nodes: Vec<(String, SocketAddr)>,
        /// The spaces, and how each is made.
        spaces: Vec<(String, Made)>,
        /// What is staged then.
        stage: Vec<Wanted>,
        /// Print nothing unless something is wrong.
        quiet: bool,
    },
    /// The job is over: the spaces that were made for it go, or are nobody's.
    End {
        /// The job.
        job: String,
        /// Those that go.
        names: Vec<String>,
        /// Those that stay.
        kept: Vec<String>,
    },
}

/// How files are sent away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadOptions {
    /// Where the credentials are: a reference.
    pub credentials: Option<String>,
    /// Server of `s3` addresses.
    pub endpoint: Option<String>,
    /// How long a file must not have changed, milliseconds.
    pub settle_ms: u64,
    /// Replace what is there and did not come from the space.
    pub force: bool,
    /// Only say what would be sent.
    pub dry_run: bool,
    /// Print nothing unless something is wrong.
    pub quiet: bool,
    /// Print JSON.
    pub json: bool,
    /// For whom it is done, if a job's controller asks. It gets lines with [`News`](crate::offload::News).
    pub job: Option<ForJob>,
}

/// A job that has its files sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForJob {
    /// Which one; a sender for the same job takes the place of an earlier one.
    pub identity: [u8; 16],
    /// Its ranks have ended: what is left is sent, once. Else files are sent for as long as somebody reads the lines.
    pub ended: bool,
}

/// One file or directory to stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Where it can be had; all hold the same.
    pub uris: Vec<String>,
    /// Where it is to be.
    pub path: PathBytes,
    /// Line of a job script that asks for it.
    pub line: Option<usize>,
}

/// How files are staged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageOptions {
    /// Where the credentials are: a reference.
    pub credentials: Option<String>,
    /// Server of `s3` addresses.
    pub endpoint: Option<String>,
    /// Replace what is there.
    pub force: bool,
    /// No progress.
    pub quiet: bool,
    /// Print JSON.
    pub json: bool,
}

/// What is asked of `mend-data ranges`, in frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// Where the file can be had.
    pub sources: Vec<Source>,
    /// Bytes of the file.
    pub size: u64,
    /// Which of them.
    pub range: Range,
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RangeAnswer {
    /// So many bytes follow.
    Bytes(u64),
    /// No source gives them.
    Failed(String),
}
