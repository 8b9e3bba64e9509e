//! The settings of `mend data`, and of data spaces.

use crate::{Kind, Setting};

/// How wide input is fetched.
pub const DATA_STREAMS: Setting = Setting {
    name: "MEND_DATA_STREAMS",
    kind: Kind::Number { min: 1, max: 256 },
    default: "4",
    meaning: "Requests for ranges that mend data has under way at once, over all sources and files of one command.",
};
/// How long one request is.
pub const DATA_REQUEST: Setting = Setting {
    name: "MEND_DATA_REQUEST_MB",
    kind: Kind::Number { min: 1, max: 65_536 },
    default: "16",
    meaning: "MiB that mend data asks a source for in one request, at most.",
};
/// How long a source may be silent.
pub const DATA_TIMEOUT: Setting = Setting {
    name: "MEND_DATA_TIMEOUT_MS",
    kind: Kind::Number { min: 100, max: 3_600_000 },
    default: "30000",
    meaning: "Milliseconds that a source of mend data may send nothing. A slow source that sends something has all the time it needs.",
};
/// Bound of what is tried again.
pub const DATA_ATTEMPTS: Setting = Setting {
    name: "MEND_DATA_ATTEMPTS",
    kind: Kind::Number { min: 1, max: 1000 },
    default: "4",
    meaning: "Faults in a row after which mend data gives a source up, waiting longer after each. Whatever arrives in between starts the count anew. A source that refuses, is not there or has changed is given up at once.",
};
/// How wide files are checked.
pub const DATA_READERS: Setting = Setting {
    name: "MEND_DATA_READERS",
    kind: Kind::Number { min: 1, max: 256 },
    default: "8",
    meaning: "Threads that mend data check and mend data repair read files with.",
};
/// Where programs for other sources are.
pub const DATA_PLUGINS: Setting = Setting {
    name: "MEND_DATA_PLUGINS",
    kind: Kind::Path,
    default: "",
    meaning: "Directories, separated by colons, with programs mend-source-NAME, which serve addresses NAME:// to mend data; searched before the directory of Mend's parts and PATH.",
};
/// Where targets are that name no directory.
pub const SPACE_DIRECTORY: Setting = Setting {
    name: "MEND_SPACE_DIRECTORY",
    kind: Kind::Path,
    default: "/tmp",
    meaning: "Directory of each node in which targets of a data space are that name none: of mend data create, and of mend run --data NAME:DIR:create. A local disk is meant.",
};
/// How long what was begun stays.
pub const SPACE_BEGUN: Setting = Setting {
    name: "MEND_SPACE_BEGUN_S",
    kind: Kind::Number { min: 1, max: 31_536_000 },
    default: "86400",
    meaning: "Seconds for which targets of a data space keep what an interrupted mend data stage has fetched, after its last byte, so that the same command goes on from there.",
};
/// How long a target may be silent.
pub const SPACE_TIMEOUT: Setting = Setting {
    name: "MEND_SPACE_TIMEOUT_MS",
    kind: Kind::Number { min: 100, max: 3_600_000 },
    default: "5000",
    meaning: "Milliseconds that a target of a data space may take for an answer before it counts as lost.",
};
/// When the other copy is asked.
pub const SPACE_HEDGE: Setting = Setting {
    name: "MEND_SPACE_HEDGE_MS",
    kind: Kind::Number { min: 1, max: 3_600_000 },
    default: "50",
    meaning: "Milliseconds without an answer from a target of a data space after which a reader asks another target that has the same: the second copy of a file, or of its checksums.",
};
/// When a second copy is made again.
pub const SPACE_COPY_DELAY: Setting = Setting {
    name: "MEND_SPACE_COPY_DELAY_S",
    kind: Kind::Number { min: 0, max: 86_400 },
    default: "5",
    meaning: "Seconds after which a second copy that was lost is made again while a job uses the data space.",
};
/// Room of second copies that follow the queue.
pub const SPACE_COPY_PERCENT: Setting = Setting {
    name: "MEND_SPACE_COPY_PERCENT",
    kind: Kind::Number { min: 1, max: 100 },
    default: "50",
    meaning: "Second copies that `mend data replicate --queue` makes have at most this share of the room that is free without them, in per cent, on each target and in all.",
};
/// How often targets are looked at.
pub const SPACE_PROBE: Setting = Setting {
    name: "MEND_SPACE_PROBE_S",
    kind: Kind::Number { min: 0, max: 86_400 },
    default: "10",
    meaning: "Seconds between two looks at all targets of a data space while a job uses it. What two looks in a row find lost is fetched again; 0: only when somebody reads it.",
};
/// How often targets are looked at that nobody may be using.
pub const SPACE_WATCH: Setting = Setting {
    name: "MEND_SPACE_WATCH_S",
    kind: Kind::Number { min: 0, max: 86_400 },
    default: "60",
    meaning: "Seconds between two looks of mendd at all targets of each data space that has one on its node, whether or not a job uses the space. What two looks in a row find lost is fetched again; 0: never.",
};
/// After how long a silent target is lost then.
pub const SPACE_LOST: Setting = Setting {
    name: "MEND_SPACE_LOST_S",
    kind: Kind::Number { min: 0, max: 31_536_000 },
    default: "600",
    meaning: "Seconds after which mendd takes a target of a data space for lost that answered before and says nothing. For the mounts of a job it is lost at once.",
};
/// How often all bytes are.
pub const SPACE_VERIFY: Setting = Setting {
    name: "MEND_SPACE_VERIFY_S",
    kind: Kind::Number { min: 0, max: 31_536_000 },
    default: "3600",
    meaning: "Seconds after which targets of a data space that a job uses read all of its files and compare checksums; 0: never.",
};
/// Room of the cache of a node.
pub const SPACE_CACHE: Setting = Setting {
    name: "MEND_SPACE_CACHE_MB",
    kind: Kind::Number { min: 1, max: 1_048_576 },
    default: "256",
    meaning: "MiB of memory in which blocks of a data space are kept that were read, besides the kernel's page cache: of each node for a mount, of each process for libmend-data.",
};
/// Threads of a mount.
pub const SPACE_THREADS: Setting = Setting {
    name: "MEND_SPACE_THREADS",
    kind: Kind::Number { min: 1, max: 64 },
    default: "4",
    meaning: "Threads that answer the kernel for each mount of a data space.",
};
/// Whether ranks move to their data.
pub const FOLLOW_DATA: Setting = Setting {
    name: "MEND_FOLLOW_DATA",
    kind: Kind::Choice(&["auto", "advise", "off"]),
    default: "advise",
    meaning: "Whether ranks that read data spaces move to nodes that fetch the same: auto, or advise, which only puts into the job's journal what would pay. mend run --follow-data sets it. It stays in the job's environment, so that a restart has the same.",
};
/// By what ranks are brought together.
pub const FOLLOW_DATA_RULE: Setting = Setting {
    name: "MEND_FOLLOW_DATA_RULE",
    kind: Kind::Choice(&["fetches", "diagrams"]),
    default: "fetches",
    meaning: "By what moves of ranks to their data are suggested: fetches, which counts what nodes would fetch less, or diagrams, the access counting diagrams of the PARTE paper. Either way a move has to gain more than it costs.",
};
/// Pause between two looks at what ranks read.
pub const FOLLOW_DATA_PAUSE: Setting = Setting {
    name: "MEND_FOLLOW_DATA_PAUSE_MS",
    kind: Kind::Number { min: 100, max: 3_600_000 },
    default: "5000",
    meaning: "Milliseconds between two times at which the targets of a job's data spaces are asked what its ranks read.",
};
/// What is sent away while a job runs.
pub const OFFLOAD: Setting = Setting {
    name: "MEND_OFFLOAD",
    kind: Kind::Text,
    default: "",
    meaning: "Where files go that a job's ranks write into data spaces, NAME=URI, several separated by blanks; mend run --offload sets it. It stays in the job's environment, so that a restart has the same.",
};
/// How quiet a file must be.
pub const OFFLOAD_SETTLE: Setting = Setting {
    name: "MEND_OFFLOAD_SETTLE_S",
    kind: Kind::Number { min: 0, max: 86_400 },
    default: "10",
    meaning: "Seconds for which a file of a data space must not have changed before it is sent away. Once the job has ended, nothing is waited for.",
};
/// Whose credentials.
pub const OFFLOAD_CREDENTIALS: Setting = Setting {
    name: "MEND_OFFLOAD_CREDENTIALS",
    kind: Kind::Text,
    default: "",
    meaning: "Where the credentials are by which files are sent away: env:PREFIX, file:PATH or profile:NAME. A job's stays in its environment, so that a restart has the same.",
};
/// Where ranks see spaces.
pub const SPACES: Setting = Setting {
    name: "MEND_DATA_SPACES",
    kind: Kind::Text,
    default: "",
    meaning: "Data spaces that a job's ranks see, NAME:DIRECTORY[:OPTIONS] with commas between them, as mend run --data has them. It stays in the job's environment, so that a restart has the same.",
};
