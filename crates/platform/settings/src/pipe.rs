//! Settings of the pipe's mounts.

use crate::{Kind, Setting};

/// Memory of all streams.
pub const PIPE_MEMORY: Setting = Setting {
    name: "MEND_PIPE_MB",
    kind: Kind::Number { min: 1, max: 4096 },
    default: "8",
    meaning: "MiB of memory that a node takes for all streams of a mount of the pipe together. The reading node's value holds for both.",
};
/// Size of a chunk.
pub const PIPE_CHUNK: Setting = Setting {
    name: "MEND_PIPE_CHUNK_KB",
    kind: Kind::Number { min: 4, max: 1024 },
    default: "128",
    meaning: "KiB of a chunk of the pipe. A quarter of the chunks that fit into MEND_PIPE_MB, 64 at most, is how many streams there may be at once. The reading node's value holds for both.",
};
/// Where a reading mount listens.
pub const PIPE_PORT: Setting = Setting {
    name: "MEND_PIPE_PORT",
    kind: Kind::Number { min: 1, max: 65535 },
    default: "7118",
    meaning: "TCP port on which a reading mount of the pipe listens, and a writing one looks for it, unless it is said.",
};
/// When a node of the pipe counts as lost.
pub const PIPE_TIMEOUT: Setting = Setting {
    name: "MEND_PIPE_TIMEOUT_MS",
    kind: Kind::Number { min: 500, max: 3_600_000 },
    default: "5000",
    meaning: "Milliseconds of silence of the other mount of the pipe after which its streams are broken.",
};
/// Threads of a mount.
pub const PIPE_THREADS: Setting = Setting {
    name: "MEND_PIPE_THREADS",
    kind: Kind::Number { min: 1, max: 64 },
    default: "2",
    meaning: "Threads that answer the kernel for each mount of the pipe.",
};
