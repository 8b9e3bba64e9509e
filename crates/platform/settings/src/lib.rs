//! Every setting of Mend, declared once: name, default, range, meaning. The reference in `docs/settings.md` and
//! the checks of values come from this table alone.
//!
//! A setting is read from the environment variable of its name. Flags of the commands override it.

mod back;
mod batch;
mod check;
mod data;
mod error;
mod failover;
mod health;
mod migration;
mod pipe;
mod program;
mod tiers;

pub use back::{BACK_MIGRATION, TIME_LIMIT};
pub use batch::{BATCH, BATCH_POLL, REQUEUE};
pub use check::check;
pub use data::{
    DATA_ATTEMPTS, DATA_PLUGINS, DATA_READERS, DATA_REQUEST, DATA_STREAMS, DATA_TIMEOUT, FOLLOW_DATA, FOLLOW_DATA_PAUSE, FOLLOW_DATA_RULE,
    OFFLOAD, OFFLOAD_CREDENTIALS, OFFLOAD_SETTLE, SPACE_BEGUN, SPACE_CACHE, SPACE_COPY_DELAY, SPACE_COPY_PERCENT, SPACE_DIRECTORY,
    SPACE_HEDGE, SPACE_LOST, SPACE_PROBE, SPACE_THREADS, SPACE_TIMEOUT, SPACE_VERIFY, SPACE_WATCH, SPACES,
};
pub use error::SettingError;
pub use failover::{DIRECTORY_TIMEOUT, ON_FAILURE, RETRIES, SUCCESSOR, WAIT_FOR_NODES};
pub use health::{
    BMC, BMC_CIPHER, BMC_INTERVAL, BMC_PASSWORD_FILE, BMC_USER, HEALTH, HEALTH_CALM, HEALTH_DISKS, HEALTH_HORIZON, HEALTH_INTERVAL,
    HEALTH_MARKS, HEALTH_PLUGIN_INTERVAL, HEALTH_PLUGIN_TIMEOUT, HEALTH_PLUGINS, HEALTH_PREDICTOR, HEALTH_ROOT, HEALTH_SMARTCTL,
};
pub use migration::{
    MIGRATE_CHUNK, MIGRATE_COMPRESS, MIGRATE_LIBFABRIC, MIGRATE_MODE, MIGRATE_OFI_MODE, MIGRATE_POOL, MIGRATE_TRANSPORT, PRECOPY_ROUNDS,
    PRECOPY_THRESHOLD,
};
pub use pipe::{PIPE_CHUNK, PIPE_MEMORY, PIPE_PORT, PIPE_THREADS, PIPE_TIMEOUT};
pub use program::{OF_MOUNTS, OF_PROGRAM, is_of_run};
pub use tiers::{TIER_HOURS, TIER_RATE, TIER_WRITERS, TIERS, WIDE_FAILURES};

use mend_image::cpu::Features;
use std::path::PathBuf;
use std::time::Duration;

/// What kind of value a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file or directory.
    Path,
    /// Free text.
    Text,
    /// Some of these words, in order, separated by commas.
    List(&'static [&'static str]),
    /// One of these words, or a whole number within bounds, both included.
    WordOrNumber {
        /// The words.
        words: &'static [&'static str],
        /// The least number.
        min: u64,
        /// The greatest number.
        max: u64,
    },
    /// Names of features of processors, separated by commas.
    Features,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number within bounds, both included.
    Number {
        /// The least number.
        min: u64,
        /// The greatest number.
        max: u64,
    },
}

/// A value of [`Kind::WordOrNumber`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordOrNumber {
    /// One of the declared words.
    Word(&'static str),
    /// A number in range.
    Number(u64),
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Environment variable.
    pub name: &'static str,
    /// Kind and range.
    pub kind: Kind,
    /// Used when it is not set; as text, empty for "derived, see meaning".
    pub default: &'static str,
    /// For the user: one sentence with the unit, of at most 200 characters, then what else there is to know.
    pub meaning: &'static str,
}

/// Whose PID namespace ranks are in.
pub const PID_NAMESPACE: Setting = Setting {
    name: "MEND_PID_NAMESPACE",
    kind: Kind::Choice(&["node", "rank"]),
    default: "node",
    meaning: "Who shares a PID namespace: all ranks of a job on a node (node), or nobody (rank). Ranks that share one copy long messages once.",
};
/// Base directory of a user's secret and jobs.
pub const HOME: Setting = Setting {
    name: "MEND_HOME",
    kind: Kind::Path,
    default: "",
    meaning: "Directory of the user's secret, jobs and checkpoints, the same on all nodes; default ~/.mend.",
};
/// The user's secret.
pub const SECRET_FILE: Setting = Setting {
    name: "MEND_SECRET_FILE",
    kind: Kind::Path,
    default: "",
    meaning: "File with the secret that daemons and controllers share, 64 hexadecimal digits, mode 0600; default $MEND_HOME/secret.",
};
/// Where the parts of Mend are.
pub const LIBDIR: Setting = Setting {
    name: "MEND_LIBDIR",
    kind: Kind::Path,
    default: "",
    meaning: "Directory that is searched first for the parts of Mend (mendd, libmend-fi.so, mend-restorer and others). Then come the directory of the running program, and ../lib/mend from there.",
};
/// Port of the daemons.
pub const PORT: Setting = Setting {
    name: "MEND_PORT",
    kind: Kind::Number { min: 1, max: 65535 },
    default: "7117",
    meaning: "TCP port on which mendd listens and mend looks for it.",
};
/// After how much silence a node counts as dead.
pub const NODE_TIMEOUT: Setting = Setting {
    name: "MEND_NODE_TIMEOUT_MS",
    kind: Kind::Number { min: 500, max: 600_000 },
    default: "3000",
    meaning: "Milliseconds of silence after which a node counts as dead. Only time in which the listener itself could run counts.",
};
/// How long a node keeps a job without a word from its controller.
pub const LEASE: Setting = Setting {
    name: "MEND_LEASE_MS",
    kind: Kind::Number { min: 500, max: 600_000 },
    default: "3000",
    meaning: "Milliseconds that a node goes on with a job without a word from its controller (mend run). Then the kernel ends the job's ranks there, whatever stands still on the node.",
};
/// Bound of a drain.
pub const DRAIN_TIMEOUT: Setting = Setting {
    name: "MEND_DRAIN_TIMEOUT_MS",
    kind: Kind::Number { min: 100, max: 600_000 },
    default: "20000",
    meaning: "Milliseconds without progress of a channel after which its drain, and with it the checkpoint or migration, is given up. The job runs on.",
};
/// How long a checkpoint stops a job.
pub const CHECKPOINT_MODE: Setting = Setting {
    name: "MEND_CHECKPOINT_MODE",
    kind: Kind::Choice(&["copy-on-write", "stop"]),
    default: "copy-on-write",
    meaning: "How long ranks stand still for a checkpoint: for a snapshot of their memory (copy-on-write), or until their images are written (stop). A snapshot's image is written behind the running rank. A rank stands still until its image is written if memory is too short for a snapshot, or if the kernel killed the writer of its last image; the checkpoint says so.",
};
/// Bound of writing behind the program.
pub const WRITE_RATE: Setting = Setting {
    name: "MEND_WRITE_RATE",
    kind: Kind::Number { min: 0, max: 1_000_000 },
    default: "0",
    meaning: "MiB per second at which each rank's image is written behind the running program, at most. 0: as fast as the target takes it. The rate counts from the start of the writing, so a writer catches up on what a slow target held up. The kernel decides when the bytes reach the disk; at the end all of them are made durable. The writer has nice value 10, SCHED_BATCH and the lowest best-effort I/O priority at any rate.",
};
/// What of a program's files goes into a checkpoint.
pub const KEEP_FILES: Setting = Setting {
    name: "MEND_KEEP_FILES_MB",
    kind: Kind::Number { min: 0, max: 1_000_000 },
    default: "64",
    meaning: "MiB up to which a checkpoint copies a file that a program has open for writing. Files open for appending only are not copied. Ranks stand still for the copy. Larger files are kept too where the checkpoint lies on the same file system as the file and that can clone files (XFS, btrfs). A checkpoint names what it does not keep.",
};
/// When checkpoints are taken.
pub const INTERVAL: Setting = Setting {
    name: "MEND_INTERVAL",
    kind: Kind::WordOrNumber { words: &["off", "auto"], min: 1, max: 10_000_000 },
    default: "off",
    meaning: "Seconds from one checkpoint to the next. auto: the interval that costs least, by the measured cost of checkpoints and by MEND_MTBF. off: only when somebody asks. --interval of mend run and mend restart overrides it.",
};
/// Which checkpoints are full.
pub const INCREMENTAL: Setting = Setting {
    name: "MEND_INCREMENTAL",
    kind: Kind::WordOrNumber { words: &["off", "auto"], min: 0, max: 31 },
    default: "auto",
    meaning: "Incremental checkpoints between two full ones, at most. auto: the number that costs least, by measured costs and by MEND_MTBF. Until a restart has been measured, auto takes reading an image to be as fast as writing a full one. off: none. A rank that moved or was restarted begins with a full image. --incremental of mend run and mend restart overrides it.",
};
/// Which checkpoints are kept.
pub const KEEP: Setting = Setting {
    name: "MEND_KEEP",
    kind: Kind::WordOrNumber { words: &["all"], min: 1, max: 1_000_000 },
    default: "2",
    meaning: "Periodic checkpoints that are kept, of those that can be restarted. What they build on is kept too. Checkpoints taken by mend checkpoint stay until mend checkpoints --remove removes them. --keep of mend run and mend restart overrides it.",
};
/// When jobs that ended are removed.
pub const EXPIRE: Setting = Setting {
    name: "MEND_EXPIRE",
    kind: Kind::WordOrNumber { words: &["never"], min: 1, max: 100_000 },
    default: "never",
    meaning: "Days after which jobs that ended are removed, with their checkpoints. They are removed when another job starts with mend run; see mend rm. Portable checkpoints stay.",
};
/// Bound of what a detached job has printed.
pub const SPOOL: Setting = Setting {
    name: "MEND_SPOOL_MB",
    kind: Kind::Number { min: 1, max: 100_000_000 },
    default: "1024",
    meaning: "MiB that the output of a detached job takes in its directory, at most (mend run --detach). When there is more, the oldest part is removed. mend logs says how many bytes are gone.",
};
/// What periodic checkpoints leave free.
pub const DISK_RESERVE: Setting = Setting {
    name: "MEND_DISK_RESERVE",
    kind: Kind::Number { min: 0, max: 1 << 30 },
    default: "1024",
    meaning: "MiB of the checkpoints' file system that periodic checkpoints leave free, or a 20th of it if that is less. Periodic checkpoints pause while less than this and the size of the last checkpoint is free.",
};
/// How often nodes fail.
pub const MTBF: Setting = Setting {
    name: "MEND_MTBF",
    kind: Kind::Number { min: 1, max: 100_000_000 },
    default: "43800",
    meaning: "Hours after which one node fails, on average. A job fails as often as all its nodes together. --interval auto and --incremental auto use it.",
};
/// How many failures are foreseen.
pub const AVERTED: Setting = Setting {
    name: "MEND_AVERTED_PERCENT",
    kind: Kind::Number { min: 0, max: 99 },
    default: "0",
    meaning: "Of a hundred failures of nodes those that are foreseen, so that ranks have left by then (docs/health.md). --interval auto then takes checkpoints less often, as only the others count.",
};
/// Room for chains.
pub const SPACE_PERCENT: Setting = Setting {
    name: "MEND_SPACE_PERCENT",
    kind: Kind::WordOrNumber { words: &["off"], min: 110, max: 100_000 },
    default: "250",
    meaning: "Space of the newest checkpoint and all that it builds on, at most, in per cent of a full one. Beyond it older checkpoints are merged into a full one in the background; with tiers a full checkpoint begins a new chain instead. off: no limit. It bounds chains only: the checkpoints that MEND_KEEP counts or that somebody asked for stay, with what they build on.",
};
/// Channels of the fabric, by preference.
pub const CHANNELS: Setting = Setting {
    name: "MEND_CHANNELS",
    kind: Kind::List(&["shm", "tcp", "ofi"]),
    default: "shm,tcp",
    meaning: "Channels between ranks, best first: shm within a node, tcp, ofi over the provider MEND_OFI_PROVIDER. A pair of ranks uses the first that both can have. tcp is the last resort even if it isn't named.",
};
/// What the `ofi` channel runs over.
pub const OFI_PROVIDER: Setting = Setting {
    name: "MEND_OFI_PROVIDER",
    kind: Kind::Text,
    default: "tcp",
    meaning: "libfabric provider of the ofi channel, as fi_info -l names it: tcp, verbs;ofi_rxm, cxi, efa, … It must offer reliable datagram endpoints with RMA.",
};
/// Whose libfabric the `ofi` channel uses.
pub const OFI_LIBFABRIC: Setting = Setting {
    name: "MEND_OFI_LIBFABRIC",
    kind: Kind::Choice(&["program", "own"]),
    default: "own",
    meaning: "Whose libfabric the ofi channel uses: the program's (program), or a copy of its own (own). Its own copy is unloaded before an image is taken, and with it the RDMA devices that a provider keeps open. With program, a rank that has used RDMA verbs can be neither saved nor moved.",
};
/// How changed pages are noticed.
pub const TRACKING: Setting = Setting {
    name: "MEND_TRACKING",
    kind: Kind::Choice(&["auto", "write-protect", "soft-dirty", "hash", "off"]),
    default: "auto",
    meaning: "How a rank notices which pages change between two images: write-protect, soft-dirty, hash, off, or the first of these that works (auto). write-protect needs userfaultfd (Linux 6.7). soft-dirty needs /proc/self/clear_refs, and a userfaultfd (Linux 5.7) where the kernel forgets what was moved. hash takes hashes of every page, on any kernel. off: every image is full. `mend explain` says which is in use.",
};
/// What images are encrypted with.
pub const ENCRYPTION_KEY: Setting = Setting {
    name: "MEND_ENCRYPTION_KEY",
    kind: Kind::Path,
    default: "",
    meaning: "File with the key that images are encrypted with: 64 hexadecimal digits, mode 0600, the same on all nodes. Without it images are not encrypted.",
};
/// Bulk data between nodes.
pub const ENCRYPT_DATA: Setting = Setting {
    name: "MEND_ENCRYPT_DATA",
    kind: Kind::Choice(&["off", "on"]),
    default: "off",
    meaning: "on: bulk data is encrypted and authenticated on its way between nodes. Bulk data is messages between ranks, images of ranks that move, images that are copied to another node's memory or directories, and files' bytes of data spaces. `mend run` or `mend restart` decides it for all of the job; targets of data spaces and commands that use them look at it, too, and one side suffices there. It costs bandwidth, and MEND_CHANNELS must not name ofi. off: both ends prove the secret, then the data passes in the clear. Commands, output and input are always encrypted.",
};
/// What a node does not offer though its processor has it.
pub const HIDE_CPU_FEATURES: Setting = Setting {
    name: "MEND_HIDE_CPU_FEATURES",
    kind: Kind::Features,
    default: "",
    meaning: "Features of the processor that mendd acts as if its node lacked, by the names in /proc/cpuinfo, separated by commas; default none. A rank that may be using one of them does not come to the node. A rank that runs on the node counts as one that does not use them. In a pool of different nodes, set it on the better ones to what the others lack, and build the programs for what all have: then ranks can move among all of them. Mend does not keep programs from using the features.",
};
/// What a job does without.
pub const IGNORE_CPU_FEATURES: Setting = Setting {
    name: "MEND_IGNORE_CPU_FEATURES",
    kind: Kind::Features,
    default: "",
    meaning: "Features of the processor that the job's program does not use, by the names in /proc/cpuinfo, separated by commas, or `all`; default none. `mend run` or `mend restart` decides it for all of the job. Its ranks may then move to nodes that lack these features, and restart there. A program that uses them all the same ends there with SIGILL. The C library may use them, too, unless GLIBC_TUNABLES forbids it when the program starts. Registers that a node cannot keep are refused whatever is set here.",
};
/// Bound of the messages that wait for their receives.
pub const UNEXPECTED: Setting = Setting {
    name: "MEND_UNEXPECTED_KIB",
    kind: Kind::Number { min: 64, max: 1 << 20 },
    default: "4096",
    meaning: "KiB of messages that may wait in a rank for their receives, of each other rank. Beyond that the sender keeps them until the receiver waits for more. All ranks of a job have the same value.",
};
/// Which log lines are written.
pub const LOG: Setting = Setting {
    name: "MEND_LOG",
    kind: Kind::Text,
    default: "warn",
    meaning: "Filter of the log on standard error: error, warn, info, debug, trace, or per module as in tracing's EnvFilter.",
};

/// All settings, in the order of the reference.
pub const ALL: &[Setting] = &[
    HOME,
    SECRET_FILE,
    LIBDIR,
    PORT,
    NODE_TIMEOUT,
    LEASE,
    SUCCESSOR,
    DIRECTORY_TIMEOUT,
    BATCH,
    REQUEUE,
    BATCH_POLL,
    ON_FAILURE,
    RETRIES,
    WAIT_FOR_NODES,
    DRAIN_TIMEOUT,
    MIGRATE_MODE,
    MIGRATE_COMPRESS,
    MIGRATE_TRANSPORT,
    MIGRATE_OFI_MODE,
    MIGRATE_POOL,
    MIGRATE_CHUNK,
    MIGRATE_LIBFABRIC,
    PRECOPY_THRESHOLD,
    PRECOPY_ROUNDS,
    CHECKPOINT_MODE,
    WRITE_RATE,
    KEEP_FILES,
    INTERVAL,
    INCREMENTAL,
    KEEP,
    EXPIRE,
    SPOOL,
    DISK_RESERVE,
    MTBF,
    AVERTED,
    SPACE_PERCENT,
    TIERS,
    TIER_RATE,
    TIER_WRITERS,
    WIDE_FAILURES,
    TIER_HOURS,
    PID_NAMESPACE,
    CHANNELS,
    OFI_PROVIDER,
    OFI_LIBFABRIC,
    TRACKING,
    UNEXPECTED,
    ENCRYPTION_KEY,
    ENCRYPT_DATA,
    HIDE_CPU_FEATURES,
    IGNORE_CPU_FEATURES,
    BACK_MIGRATION,
    TIME_LIMIT,
    HEALTH,
    HEALTH_INTERVAL,
    HEALTH_MARKS,
    HEALTH_CALM,
    HEALTH_HORIZON,
    HEALTH_DISKS,
    HEALTH_ROOT,
    HEALTH_PLUGINS,
    HEALTH_PLUGIN_INTERVAL,
    HEALTH_PLUGIN_TIMEOUT,
    HEALTH_PREDICTOR,
    HEALTH_SMARTCTL,
    BMC,
    BMC_USER,
    BMC_PASSWORD_FILE,
    BMC_CIPHER,
    BMC_INTERVAL,
    DATA_STREAMS,
    DATA_REQUEST,
    DATA_TIMEOUT,
    DATA_ATTEMPTS,
    DATA_READERS,
    DATA_PLUGINS,
    SPACE_DIRECTORY,
    SPACE_BEGUN,
    SPACE_TIMEOUT,
    SPACE_HEDGE,
    SPACE_CACHE,
    SPACE_PROBE,
    SPACE_WATCH,
    SPACE_LOST,
    SPACE_VERIFY,
    SPACE_COPY_DELAY,
    SPACE_COPY_PERCENT,
    SPACE_THREADS,
    SPACES,
    FOLLOW_DATA,
    FOLLOW_DATA_RULE,
    FOLLOW_DATA_PAUSE,
    OFFLOAD,
    OFFLOAD_SETTLE,
    OFFLOAD_CREDENTIALS,
    PIPE_MEMORY,
    PIPE_CHUNK,
    PIPE_PORT,
    PIPE_TIMEOUT,
    PIPE_THREADS,
    LOG,
];

impl Setting {
    /// The first sentence of the meaning, and the further ones.
    fn sentences(&self) -> (&'static str, &'static str) {
        match self.meaning.split_once(". ") {
            Some((first, more)) => (&self.meaning[..=first.len()], more),
            None => (self.meaning, ""),
        }
    }

    /// What it may be, for people.
    #[must_use]
    pub fn values(&self) -> String {
        match self.kind {
            Kind::Path => "path".to_owned(),
            Kind::Text => "text".to_owned(),
            Kind::List(words) => format!("of {}", words.join(", ")),
            Kind::WordOrNumber { words, min, max } => format!("{} or {min} to {max}", words.join(", ")),
            Kind::Features => "names".to_owned(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Number { min, max } => format!("{min} to {max}"),
        }
    }

    /// The value as text: the environment's, else the default.
    #[must_use]
    pub fn text(&self) -> String {
        match std::env::var_os(self.name) {
            // What is no UTF-8 is not the default: who reads it will not find it, and says so.
            Some(value) if !value.is_empty() => value.to_string_lossy().into_owned(),
            _ => self.default.to_owned(),
        }
    }

    /// True if the environment has a value for it.
    #[must_use]
    pub fn is_set(&self) -> bool {
        std::env::var_os(self.name).is_some_and(|value| !value.is_empty())
    }

    /// The value as a number.
    ///
    /// # Errors
    /// [`SettingError::Number`] if it is none or out of the declared range.
    pub fn number(&self) -> Result<u64, SettingError> {
        let (min, max) = match self.kind {
            Kind::Number { min, max } => (min, max),
            Kind::Path | Kind::Text | Kind::List(_) | Kind::Features | Kind::Choice(_) | Kind::WordOrNumber { .. } => (0, u64::MAX),
        };
        let value = self.text();
        match value.parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(SettingError::Number { name: self.name, value, min, max }),
        }
    }

    /// The value as a list of words, each once.
    ///
    /// # Errors
    /// [`SettingError::List`] if a word is not one of the declared ones, comes twice, or there is none.
    pub fn words(&self) -> Result<Vec<&'static str>, SettingError> {
        let Kind::List(known) = self.kind else { return Ok(Vec::new()) };
        let value = self.text();
        let mut words: Vec<&'static str> = Vec::new();
        for word in value.split(',').map(str::trim) {
            match known.iter().find(|known| **known == word) {
                Some(known) if !words.contains(known) => words.push(known),
                _ => return Err(SettingError::List { name: self.name, value, words: known.join(", ") }),
            }
        }
        Ok(words)
    }

    /// `flag` if it is given, else the value: as one of the declared words or a number.
    ///
    /// # Errors
    /// If it is neither: [`SettingError::Given`], or [`SettingError::WordOrNumber`] if it is the variable's value, which may
    /// also have become a flag's.
    pub fn word_or_number(&self, flag: Option<&str>) -> Result<WordOrNumber, SettingError> {
        let Kind::WordOrNumber { words, min, max } = self.kind else { return self.number().map(WordOrNumber::Number) };
        let own = self.text();
        let value = flag.unwrap_or(&own);
        match (words.iter().find(|word| **word == value), value.parse()) {
            (Some(word), _) => Ok(WordOrNumber::Word(word)),
            (None, Ok(number)) if (min..=max).contains(&number) => Ok(WordOrNumber::Number(number)),
            _ if value != own => Err(SettingError::Given { words: words.join(", "), min, max }),
            _ => Err(SettingError::WordOrNumber { name: self.name, value: own, words: words.join(", "), min, max }),
        }
    }

    /// The value as one of the declared words.
    ///
    /// # Errors
    /// [`SettingError::Choice`] if it is none of them.
    pub fn choice(&self) -> Result<&'static str, SettingError> {
        let Kind::Choice(known) = self.kind else { return Ok("") };
        let value = self.text();
        let found = known.iter().find(|known| **known == value.trim());
        found.copied().ok_or_else(|| SettingError::Choice { name: self.name, value, words: known.join(", ") })
    }

    /// The value as features of a processor.
    ///
    /// # Errors
    /// [`SettingError::Feature`] if one of the names is none that Mend knows.
    pub fn features(&self) -> Result<Features, SettingError> {
        Features::named(&self.text()).map_err(|word| SettingError::Feature { name: self.name, word: word.to_owned() })
    }

    /// The value as milliseconds.
    ///
    /// # Errors
    /// As [`Setting::number`].
    pub fn milliseconds(&self) -> Result<Duration, SettingError> {
        self.number().map(Duration::from_millis)
    }
}

/// `$MEND_HOME`, else `~/.mend`. Not created.
///
/// # Errors
/// [`SettingError::NoHome`] if neither variable is set, [`SettingError::RelativeHome`] if its meaning depends on the directory that one is in.
pub fn home() -> Result<PathBuf, SettingError> {
    if let Some(named) = std::env::var_os(HOME.name).filter(|named| !named.is_empty()).map(PathBuf::from) {
        return if named.is_absolute() { Ok(named) } else { Err(SettingError::RelativeHome { name: HOME.name, path: named }) };
    }
    match std::env::var_os("HOME") {
        Some(home) if !home.is_empty() => Ok(PathBuf::from(home).join(".mend")),
        _ => Err(SettingError::NoHome { name: HOME.name }),
    }
}

/// `$MEND_SECRET_FILE`, else `secret` in [`home`].
///
/// # Errors
/// As [`home`].
pub fn secret_file() -> Result<PathBuf, SettingError> {
    let named = SECRET_FILE.text();
    if named.is_empty() { Ok(home()?.join("secret")) } else { Ok(PathBuf::from(named)) }
}

/// The path of `part` ("mendd", "libmend-fi.so", "mend-restorer"): `$MEND_LIBDIR`, else beside the
/// running program, else `../lib/mend` from there. `None` if it is in none of them.
#[must_use]
pub fn find_part(part: &str) -> Option<PathBuf> {
    let named = LIBDIR.text();
    let first = (!named.is_empty()).then(|| PathBuf::from(named).join(part)).filter(|path| path.exists());
    first.or_else(|| {
        let program = std::env::current_exe().ok()?;
        let beside = program.parent()?;
        [beside.join(part), beside.join("../lib/mend").join(part)].into_iter().find(|path| path.exists())
    })
}

/// The reference of all settings, as Markdown: a table with the first sentence of each, below it the further ones.
#[must_use]
pub fn reference() -> String {
    let mut further = String::new();
    let mut page = String::from("| variable | value | default | meaning |\n| --- | --- | --- | --- |\n");
    for setting in ALL {
        let kind = setting.values();
        let default = if setting.default.is_empty() { "see meaning" } else { setting.default };
        let (first, more) = setting.sentences();
        page.push_str(&format!("| `{}` | {kind} | {default} | {first} |\n", setting.name));
        if !more.is_empty() {
            further.push_str(&format!("- `{}`: {more}\n", setting.name));
        }
    }
    format!("{page}\nMore about some of them:\n\n{further}")
}

#[cfg(test)]
mod tests;
