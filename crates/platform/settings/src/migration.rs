//! Settings of ranks that move.

use crate::{Kind, Setting};

/// How a rank moves unless it is said.
pub const MIGRATE_MODE: Setting = Setting {
    name: "MEND_MIGRATE_MODE",
    kind: Kind::Choice(&["auto", "live", "frozen"]),
    default: "auto",
    meaning: "live: a rank that moves runs on while most of its memory is copied. frozen: it stands still for all of it. auto: live, unless that is known to be of no use.",
};
/// Whether ranks are compressed on their way.
pub const MIGRATE_COMPRESS: Setting = Setting {
    name: "MEND_MIGRATE_COMPRESS",
    kind: Kind::Choice(&["auto", "off", "always"]),
    default: "auto",
    meaning: "Whether memory of a rank that moves is compressed (LZ4) on its way. auto: piece by piece, while the link takes less than compressing gives and, of a rank that runs, a processor is idle. always: every piece. A piece that gets no shorter goes as it is. `mend run` or `mend restart` decides it for all of the job.",
};
/// By what ranks move.
pub const MIGRATE_TRANSPORT: Setting = Setting {
    name: "MEND_MIGRATE_TRANSPORT",
    kind: Kind::Choice(&["tcp", "ofi"]),
    default: "tcp",
    meaning: "By what memory of a rank that moves goes to the other node: one TCP connection (tcp), or chunks of registered memory over the provider MEND_OFI_PROVIDER of libfabric (ofi). With ofi a process of each node, mend-chunks, holds the chunks. Where libfabric or the provider cannot be used, a move is refused before the rank is stopped. ofi excludes MEND_ENCRYPT_DATA=on. Moves with --strategy go over TCP. `mend run` or `mend restart` decides it for all of the job.",
};
/// Who moves the bytes of chunks.
pub const MIGRATE_OFI_MODE: Setting = Setting {
    name: "MEND_MIGRATE_OFI_MODE",
    kind: Kind::Choice(&["read", "write"]),
    default: "read",
    meaning: "With MEND_MIGRATE_TRANSPORT=ofi, who moves the bytes: the node that a rank comes to reads them (read), or the one that it leaves writes them (write). `mend run` or `mend restart` decides it for all of the job.",
};
/// Memory of chunks.
pub const MIGRATE_POOL: Setting = Setting {
    name: "MEND_MIGRATE_POOL_KIB",
    kind: Kind::Number { min: 64, max: 1 << 22 },
    default: "8192",
    meaning: "KiB of registered memory that a node takes for all ranks together that move with MEND_MIGRATE_TRANSPORT=ofi. It holds 4 chunks or more, at most 65536. A quarter is left to ranks that come. Jobs with other values, or another provider, mode or libfabric, have a pool of their own. `mend run` or `mend restart` decides it for all of the job.",
};
/// Size of a chunk.
pub const MIGRATE_CHUNK: Setting = Setting {
    name: "MEND_MIGRATE_CHUNK_KIB",
    kind: Kind::Number { min: 4, max: 16384 },
    default: "128",
    meaning: "KiB of a chunk of the memory of MEND_MIGRATE_POOL_KIB. A pool holds at most 65536 of them. `mend run` or `mend restart` decides it for all of the job.",
};
/// The libfabric for chunks.
pub const MIGRATE_LIBFABRIC: Setting = Setting {
    name: "MEND_MIGRATE_LIBFABRIC",
    kind: Kind::Path,
    default: "",
    meaning: "File of the libfabric with which mendd moves ranks over MEND_MIGRATE_TRANSPORT=ofi; default the one that the rank has loaded, else libfabric.so.1.",
};
/// What is few enough to stop a rank for.
pub const PRECOPY_THRESHOLD: Setting = Setting {
    name: "MEND_PRECOPY_THRESHOLD_KIB",
    kind: Kind::Number { min: 0, max: 1 << 30 },
    default: "1024",
    meaning: "KiB of changed memory that are few enough for a rank that is copied while it runs to be stopped and moved.",
};
/// Bound of copying a rank that runs.
pub const PRECOPY_ROUNDS: Setting = Setting {
    name: "MEND_PRECOPY_ROUNDS",
    kind: Kind::Number { min: 1, max: 1000 },
    default: "30",
    meaning: "Rounds in which a rank is copied while it runs, at most; then it is stopped and moved, however much is left.",
};
