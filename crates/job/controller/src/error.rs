//! Why a job could not be started or did not end well.

use crate::hosts::HostsError;
use crate::input::InputError;
use crate::manifest::ManifestError;
use crate::record::RecordError;
use crate::spool_reader::SpoolError;
use mend_coordination::placement::PlacementError;
use mend_job::choice::Blame;
use mend_messages::chunks::CHUNKS;
use mend_sealed::KeyError;
use mend_settings::SettingError;
use mend_wire::HandshakeError;
use mend_wire::secret::SecretError;
use std::io;
use std::path::PathBuf;

/// The exit code of `mend run` for a lost node: EX_TEMPFAIL.
pub const NODE_LOST: i32 = 75;
/// The exit code of a controller whose job goes on under another one: as if it had been killed (128 + SIGKILL), and not one that the job may have.
pub const TAKEN_OVER: i32 = 137;

/// Errors of `run` and `restart`. See [`RunError::hint`] and [`RunError::exit_code`].
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting cannot be used.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The user's secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The job may run: its controller is not known to be gone, nor that too few of its nodes confirm it for it to go on.
    #[error("job {id} may still run: its controller on {host} cannot be seen, and {unknown} of its {nodes} nodes cannot be reached")]
    MayRun {
        /// The job.
        id: String,
        /// Where its controller was.
        host: String,
        /// Nodes that cannot be reached.
        unknown: usize,
        /// How many it has in all.
        nodes: usize,
        /// Seconds after which the ranks there have ended.
        left_s: u64,
    },
    /// The key for images cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A host name or host file cannot be used.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// Nowhere to run.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The job's directory cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A detached job's output cannot be spooled.
    #[error("the job's output cannot be spooled")]
    Spool(#[from] SpoolError),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A host's daemon cannot be reached.
    #[error("node {host}: no usable mendd")]
    Node {
        /// Name as the user gave it.
        host: String,
        /// What the connection came to.
        source: HandshakeError,
    },
    /// A host's name has no address.
    #[error("node {host}: no such host")]
    NoSuchHost {
        /// Name as the user gave it.
        host: String,
        /// What the look-up came to.
        source: io::Error,
    },
    /// A host takes no ranks.
    #[error("node {host} is drained: it takes no ranks")]
    Drained {
        /// Name as the user gave it.
        host: String,
    },
    /// A daemon was reached, and did not tell how its node is.
    #[error("node {host} does not tell how it is: {why}")]
    Unseen {
        /// Name as the user gave it.
        host: String,
        /// What went wrong, as a text.
        why: String,
    },
    /// No host is left.
    #[error("none of the hosts {hosts} answers")]
    NoHostLeft {
        /// Names, with commas.
        hosts: String,
    },
    /// The daemon for this machine could not be started.
    #[error("cannot start mendd on this machine: {why}")]
    Embedded {
        /// What kept it from starting.
        why: String,
    },
    /// A rank did not start.
    #[error("rank {rank} on {host}: {error}")]
    Start {
        /// The rank that did not start.
        rank: u32,
        /// The host that was to start it.
        host: String,
        /// What kept it from starting.
        error: String,
        /// Way out.
        hint: String,
        /// As a shell would give.
        code: i32,
    },
    /// A rank could not be rebuilt; nothing runs, the checkpoint is untouched.
    #[error("rank {rank} on {host} cannot be restored: {error}")]
    Restore {
        /// The rank that was not rebuilt.
        rank: u32,
        /// The host that was to rebuild it.
        host: String,
        /// What kept it from being rebuilt.
        error: String,
        /// Way out.
        hint: String,
        /// It is the image that is at fault: an older checkpoint may do.
        image: bool,
        /// Ranks were placed where they lived: where the checkpoint has them it may do.
        moved: bool,
    },
    /// A file of the program's is not what it was; nothing runs, the checkpoint is untouched.
    #[error("on {host}: {error}")]
    File {
        /// The host that was to put it back.
        host: String,
        /// Which file, and why.
        error: String,
        /// What the checkpoint kept of it cannot be used.
        kept: bool,
        /// As of [`RunError::Restore`].
        moved: bool,
    },
    /// A node fell silent or died.
    #[error("node {host} is lost ({why}), and with it rank(s) {ranks}; the job was stopped")]
    NodeLost {
        /// The node that is lost.
        host: String,
        /// How it showed.
        why: String,
        /// With commas.
        ranks: String,
        /// What continues it.
        hint: String,
    },
    /// The connection between two ranks broke, and both live.
    #[error("messages between rank {} on {} and rank {} on {} are lost ({why}); the job was stopped", ranks.0, hosts.0, ranks.1, hosts.1)]
    MessagesLost {
        /// The two ranks that the connection joined.
        ranks: (u32, u32),
        /// The hosts that these ranks are on.
        hosts: (String, String),
        /// How it showed.
        why: String,
        /// What continues it.
        hint: String,
    },
    /// A failure has stopped the job, and it could not go on by itself.
    #[error("job {job} cannot go on by itself")]
    NotHealed {
        /// The job.
        job: String,
        /// What stands in the way.
        #[source]
        source: Box<RunError>,
        /// Nodes that are missing may be all that it takes.
        wants_nodes: bool,
    },
    /// Checkpoints could not be written where they are wanted.
    #[error("checkpoints cannot be written below {}", path.display())]
    CheckpointDirectory {
        /// The directory that they are wanted in.
        path: PathBuf,
        /// What went wrong there.
        source: io::Error,
    },
    /// An address for the verbs cannot be had.
    #[error("cannot listen for the verbs on this job")]
    Listen(#[source] io::Error),
    /// The user ended it before its ranks ran, or between two of its lives.
    #[error("ended by signal {signal} while no rank ran")]
    Interrupted {
        /// The signal that came.
        signal: i32,
    },
    /// So did `mend kill`.
    #[error("ended by `mend kill` while no rank ran")]
    Killed,
    /// A batch system cannot be used.
    #[error("the nodes of the batch job cannot be used")]
    Batch(#[from] mend_batch::BatchError),
    /// Spares of an allocation are wanted, and there is none.
    #[error("--spare-nodes: this is not within a batch job whose nodes the job takes")]
    NoAllocation,
    /// A batch system did not start the daemons.
    #[error("{system} does not start mendd on the nodes of the batch job: {why}")]
    BatchDaemons {
        /// The batch system.
        system: &'static str,
        /// What went wrong.
        why: String,
    },
    /// The batch system wanted the job to end.
    #[error("the time of the job is up (signal {signal}): it was stopped{}", at(checkpoint.as_ref()))]
    TimeUp {
        /// The signal that it has sent.
        signal: i32,
        /// The job.
        job: String,
        /// Its newest checkpoint.
        checkpoint: Option<u64>,
    },
    /// Its data spaces cannot be had; `mend-data` has said why.
    #[error("the job's data cannot be had, so its ranks were not started")]
    Data {
        /// What that ended with.
        code: i32,
    },
    /// Standard input is not what it was to be.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The tiers cannot be used.
    #[error("the list of tiers cannot be used")]
    Tiers(#[from] mend_messages::tier::TierError),
    /// A channel was asked for that does not encrypt.
    #[error(
        "MEND_ENCRYPT_DATA=on and MEND_CHANNELS={channels} exclude each other: messages over a libfabric provider (ofi) are not encrypted"
    )]
    Unencryptable {
        /// The channels.
        channels: String,
    },
    /// A transport was asked for that does not encrypt.
    #[error(
        "MEND_ENCRYPT_DATA=on and MEND_MIGRATE_TRANSPORT=ofi exclude each other: memory that moves over a libfabric provider is not encrypted"
    )]
    UnencryptableMoves,
    /// The pool holds too few or too many chunks.
    #[error("MEND_MIGRATE_POOL_KIB={pool} holds {} chunks of MEND_MIGRATE_CHUNK_KIB={chunk}, and has to hold {} to {}", pool / chunk, CHUNKS.0, CHUNKS.1)]
    Chunks {
        /// KiB of it.
        pool: u64,
        /// KiB of a chunk, at least 1.
        chunk: u64,
    },
    /// A daemon refuses the job.
    #[error("node {host} refuses the job: {error}")]
    Refused {
        /// The node that refuses.
        host: String,
        /// The reason that its daemon gives.
        error: String,
    },
}

fn at(checkpoint: Option<&u64>) -> String {
    checkpoint.map_or_else(|| ", and has no checkpoint".into(), |number| format!(" at checkpoint {number}"))
}

impl RunError {
    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Secret(error) => error.hint(),
            Self::MayRun { left_s, .. } => {
                format!("try again in {left_s} s, when what may run there has ended; or where the nodes can be reached")
            }
            Self::Key(error) => error.hint(),
            Self::Node { source, .. } => source.hint().to_owned(),
            Self::File { kept: true, .. } => "restart from another checkpoint with --checkpoint N".into(),
            Self::File { .. } => {
                "put the file back as it was, or restart from another checkpoint with --checkpoint N; MEND_KEEP_FILES_MB bounds what is kept".into()
            }
            Self::NoSuchHost { .. } => "check the spelling, or write its address".into(),
            Self::CheckpointDirectory { .. } => "name a directory of yours with --checkpoint-dir, which all hosts share".into(),
            Self::NotHealed { job, wants_nodes: true, .. } => {
                format!("`mend restart {job}` when nodes are there again; `--wait-for-nodes SECONDS` has the job wait so long for them")
            }
            Self::NotHealed { source, .. } => source.hint(),
            Self::Drained { host } => format!("`mend undrain {host}`, or name other hosts with --hosts"),
            Self::Unseen { .. } => "look at mendd's log on that node".into(),
            Self::NoHostLeft { .. } => "name hosts that run mendd with --hosts".into(),
            Self::Embedded { .. } => "mendd, libmend-fi.so and mend-restorer must lie beside mend, or in MEND_LIBDIR".into(),
            Self::Start { hint, .. } | Self::Restore { hint, .. } | Self::NodeLost { hint, .. } | Self::MessagesLost { hint, .. } => {
                hint.clone()
            }
            Self::Record(error) => error.hint(),
            Self::Spool(error) => error.hint().to_owned(),
            Self::Manifest(error) => error.hint(),
            Self::Hosts(error) => error.hint().to_owned(),
            Self::Tiers(error) => error.hint().to_owned(),
            Self::Unencryptable { .. } => {
                "leave ofi out of MEND_CHANNELS, or set MEND_ENCRYPT_DATA=off if nobody else reads that network".into()
            }
            Self::UnencryptableMoves => {
                "set MEND_MIGRATE_TRANSPORT=tcp, or MEND_ENCRYPT_DATA=off if nobody else reads that network".into()
            }
            Self::Chunks { pool, chunk } if pool / chunk < CHUNKS.0 => "make the pool larger, or its chunks smaller".into(),
            Self::Chunks { .. } => "make the pool smaller, or its chunks larger".into(),
            Self::Input(InputError::NotKept { .. }) => "`mend restart` takes what comes then for new input; give the job its input as a file".into(),
            Self::Input(InputError::Short { .. }) => {
                "`mend restart --input same` if what it is given begins with all that was read, `--input new` to go on without it".into()
            }
            Self::Input(_) => "give the job the same input, or say that it is another one with --input new".into(),
            Self::Batch(error) => error.hint().to_owned(),
            Self::NoAllocation => "leave --hosts away within a batch job, or name spares with --spares".into(),
            Self::BatchDaemons { .. } => "mend must be installed where all nodes see it; MEND_BATCH=none runs the job on this machine alone".into(),
            Self::TimeUp { job, checkpoint: Some(_), .. } => {
                format!("the same command goes on from it when the batch job is queued again; so does `mend restart {job}` anywhere")
            }
            Self::TimeUp { checkpoint: None, .. } => {
                "give it more time for its last checkpoint (Slurm: --signal=TERM@SECONDS), or have some taken before, with --interval".into()
            }
            Self::Setting(_) | Self::Placement(_) | Self::Listen(_) | Self::Refused { .. } | Self::Interrupted { .. } | Self::Killed | Self::Data { .. } => {
                String::new()
            }
        }
    }

    /// What is to blame that a restart failed.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Restore { moved: true, .. } | Self::File { moved: true, .. } => Blame::Places,
            Self::Restore { image: true, .. } => Blame::Image,
            Self::Manifest(_) | Self::File { kept: true, .. } => Blame::Checkpoint,
            _ => Blame::Elsewhere,
        }
    }

    /// True if all that is missing is nodes.
    #[must_use]
    pub fn wants_nodes(&self) -> bool {
        matches!(
            self,
            Self::Node { .. }
                | Self::NoSuchHost { .. }
                | Self::Drained { .. }
                | Self::Unseen { .. }
                | Self::NoHostLeft { .. }
                | Self::NodeLost { .. }
        )
    }

    /// Exit code of the command: as a shell for a program that cannot be started, 75 (EX_TEMPFAIL: a restart can go
    /// on) for a lost node, lost messages or a time that is up, 69 (EX_UNAVAILABLE) for unreachable nodes, 65 (EX_DATAERR) for a bad image, else 1.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Start { code, .. } | Self::Data { code } => *code,
            Self::NotHealed { wants_nodes: true, .. } => NODE_LOST,
            Self::NotHealed { source, .. } => source.exit_code(),
            Self::NodeLost { .. } | Self::MessagesLost { .. } | Self::TimeUp { .. } | Self::MayRun { .. } => NODE_LOST,
            Self::Node { .. }
            | Self::NoSuchHost { .. }
            | Self::Drained { .. }
            | Self::Unseen { .. }
            | Self::NoHostLeft { .. }
            | Self::Refused { .. } => 69,
            Self::BatchDaemons { .. } => 69,
            Self::Manifest(_) | Self::Restore { .. } | Self::File { .. } => 65,
            Self::Hosts(_)
            | Self::Setting(_)
            | Self::Placement(_)
            | Self::Key(_)
            | Self::Tiers(_)
            | Self::Unencryptable { .. }
            | Self::UnencryptableMoves
            | Self::Chunks { .. }
            | Self::CheckpointDirectory { .. }
            | Self::NoAllocation
            | Self::Batch(
                mend_batch::BatchError::InTask { .. } | mend_batch::BatchError::NotWithin { .. } | mend_batch::BatchError::Setting(_),
            )
            | Self::Input(_) => 64,
            Self::Record(error) if error.exit_code() == 64 => 64,
            Self::Interrupted { signal } => 128 + signal,
            Self::Killed => 137,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_does_not_fit_its_chunks_is_told_which_way_to_go() {
        let of = |pool, chunk| RunError::Chunks { pool, chunk };
        let few = "MEND_MIGRATE_POOL_KIB=64 holds 3 chunks of MEND_MIGRATE_CHUNK_KIB=20, and has to hold 4 to 65536";
        assert_eq!((of(64, 20).to_string().as_str(), of(64, 20).hint().as_str()), (few, "make the pool larger, or its chunks smaller"));
        assert!(of(1 << 19, 4).to_string().contains("holds 131072 chunks"));
        assert_eq!(of(1 << 19, 4).hint(), "make the pool smaller, or its chunks larger");
    }

    #[test]
    fn a_kept_file_that_is_damaged_blames_the_checkpoint_and_a_changed_one_does_not() {
        let file = |kept| RunError::File { host: "a".into(), error: "torn".into(), kept, moved: false };
        assert!(matches!((file(true).blame(), file(false).blame()), (Blame::Checkpoint, Blame::Elsewhere)));
        assert_ne!(file(true).hint(), file(false).hint());
    }
}
