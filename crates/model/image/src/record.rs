//! Records after the header, and the ledger that keeps a stream in order on both sides.

use crate::fixed::{Fixed, fixed_record};
use crate::kept;
use crate::{HEADER_SIZE, Header, ImageError};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of a record's head.
pub const HEAD_SIZE: usize = <RecordHead as Fixed>::SIZE;

/// Largest payload of a record of pages, bytes. Bounds what a reader must hold before it knows the checksum.
pub const MAX_PAGES: u64 = 1 << 20;

/// Kind of a record that holds pages ahead of an image: [`crate::rounds::RoundKind::Pages`].
pub const PAGES_OF_A_ROUND: u32 = 65;

/// Largest payload of any other record, bytes.
pub const MAX_TABLE: u64 = 1 << 28;

/// What a record holds. Their order in the stream is that of the numbers; `Unread` may repeat, `Pages`, `Bytes` and `Kept`
/// mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Texts that other records point into by offset and length.
    Strings = 1,
    /// [`Object`]s, which mappings and descriptors refer to by index.
    Objects = 2,
    /// [`Mapping`]s by ascending address.
    Mappings = 3,
    /// [`Thread`]s, the process's first thread first.
    Threads = 4,
    /// One [`Process`].
    Process = 5,
    /// Input that the program had not read yet; `index` is the role's number.
    Unread = 6,
    /// JSON for people and tools; no reader depends on it.
    Summary = 7,
    /// Whole pages for `address`, compressed or not.
    Pages = 8,
    /// Bytes of memory object `index` from offset `address`.
    Bytes = 9,
    /// Pages that are as in the base image: see [`crate::kept`]. In incremental images only.
    Kept = 10,
    /// [`End`].
    End = 11,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Strings,
        Kind::Objects,
        Kind::Mappings,
        Kind::Threads,
        Kind::Process,
        Kind::Unread,
        Kind::Summary,
        Kind::Pages,
        Kind::Bytes,
        Kind::Kept,
        Kind::End,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

fixed_record! {
    /// Announces a record.
    pub struct RecordHead {
        /// A [`Kind`].
        pub kind: u32,
        /// Role or object, see [`Kind`]. Of pages: their bytes as an LZ4 block, before padding; 0: they are as they are.
        pub index: u32,
        /// Bytes of payload, before padding to a multiple of 8; of compressed pages, when they are unpacked.
        pub length: u64,
        /// Address or offset, see [`Kind`].
        pub address: u64,
        /// xxh3-64 of the payload; of compressed pages, when they are unpacked.
        pub payload: u64,
        /// xxh3-64 of the fields above.
        pub own: u64,
    }
}

impl RecordHead {
    /// Head for a payload with this checksum.
    #[must_use]
    pub fn new(kind: Kind, index: u32, address: u64, length: u64, payload: u64) -> Self {
        Self { kind: kind as u32, index, length, address, payload, own: 0 }
    }

    /// The head as bytes, its own checksum filled in.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEAD_SIZE] {
        let mut bytes = [0; HEAD_SIZE];
        // The array has the record's size, so this cannot fail.
        let _ = self.encode(&mut bytes);
        let own = xxh3_64(&bytes[..HEAD_SIZE - 8]);
        bytes[HEAD_SIZE - 8..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Whether it can announce ranges of kept pages.
    fn announces_ranges(&self) -> bool {
        self.length <= MAX_PAGES
            && self.length != 0
            && self.length.is_multiple_of(kept::RANGE as u64)
            && (self.address, self.index) == (0, 0)
    }

    /// The same for pages that come as an LZ4 block of `compressed` bytes. Only a stream between two nodes has such.
    #[must_use]
    pub fn compressed_to(self, compressed: u32) -> Self {
        Self { index: compressed, ..self }
    }

    /// Bytes of the LZ4 block that the pages of this record come as; `None`: they come as they are.
    #[must_use]
    pub fn compressed(&self) -> Option<u64> {
        let pages = self.kind == Kind::Pages as u32 || self.kind == PAGES_OF_A_ROUND;
        Some(u64::from(self.index)).filter(|bytes| pages && *bytes != 0)
    }

    /// Bytes that compression has spared.
    pub(crate) fn spared(&self) -> u64 {
        self.compressed().map_or(0, |bytes| self.length.saturating_sub(bytes.next_multiple_of(8)))
    }

    /// Whether it is of whole pages, compressed to less or not at all.
    pub(crate) fn announces_pages(&self) -> bool {
        let whole = self.length <= MAX_PAGES && self.length != 0 && self.length.is_multiple_of(4096) && self.address.is_multiple_of(4096);
        whole && u64::from(self.index) < self.length
    }

    /// Bytes from the head's end to the next head.
    #[must_use]
    pub fn padded_length(&self) -> u64 {
        self.compressed().unwrap_or(self.length).next_multiple_of(8)
    }
}

fixed_record! {
    /// Something that mappings and descriptors share: a file, or memory that the restorer makes anew.
    pub struct Object {
        /// See [`object`].
        pub flags: u32,
        /// Path of a file, name of a memory object: offset in the strings.
        pub text: u32,
        /// Bytes of that text.
        pub text_length: u32,
        /// Mode bits of a file.
        pub mode: u32,
        /// The length in bytes.
        pub size: u64,
        /// Modification time of a file, seconds.
        pub mtime: i64,
        /// … and nanoseconds.
        pub mtime_ns: u64,
        /// xxh3-64 of the first and the last 64 KiB of a file ([`object::SAMPLE`]).
        pub sample: u64,
    }
}

/// Flags of an [`Object`].
pub mod object {
    /// A file found by its path; otherwise memory made anew.
    pub const FILE: u32 = 1;
    /// The file is mapped shared and writable.
    pub const WRITABLE: u32 = 2;
    /// An ELF file: its modification time may differ (installed separately on each node).
    pub const ELF: u32 = 4;
    /// The restored agent needs a descriptor for it.
    pub const KEEP: u32 = 8;
    /// Made in `/dev/shm`, without a name, where that can be: the restored agent gives it one. Goes with [`KEEP`].
    pub const NAMED: u32 = 16;
    /// The program writes the file through a descriptor, too: a checkpoint keeps its content beside the images, and a restart puts it back before the restorer begins
    /// ([`crate::launch::PutBack`]).
    pub const KEPT_BESIDE: u32 = 32;
    /// Bytes at either end of a file that are hashed.
    pub const SAMPLE: u64 = 64 << 10;
}

fixed_record! {
    /// One mapping of the address space.
    pub struct Mapping {
        /// First address, page-aligned.
        pub start: u64,
        /// First address after it.
        pub end: u64,
        /// Offset in the object.
        pub offset: u64,
        /// `PROT_` bits.
        pub protection: u32,
        /// See [`mapping`].
        pub flags: u32,
        /// Index of its [`Object`]; [`mapping::NO_OBJECT`] for anonymous memory.
        pub object: u32,
        /// With [`mapping::POOL`]: binary logarithm of the page size. Else zero.
        pub page_shift: u32,
    }
}

/// Flags of a [`Mapping`].
pub mod mapping {
    /// `MAP_SHARED`.
    pub const SHARED: u32 = 1;
    /// `MAP_GROWSDOWN`.
    pub const GROWS_DOWN: u32 = 2;
    /// The kernel's vdso, to be moved here.
    pub const VDSO: u32 = 4;
    /// One of the kernel's vvar mappings, to be moved here with the vdso.
    pub const VVAR: u32 = 8;
    /// `MADV_HUGEPAGE`.
    pub const HUGE: u32 = 16;
    /// `MADV_NOHUGEPAGE`.
    pub const NO_HUGE: u32 = 32;
    /// `mlock`ed.
    pub const LOCKED: u32 = 64;
    /// `MADV_DONTDUMP`.
    pub const NO_DUMP: u32 = 128;
    /// `MADV_DONTFORK`.
    pub const NO_FORK: u32 = 256;
    /// `MADV_WIPEONFORK`.
    pub const WIPE_ON_FORK: u32 = 512;
    /// The mapping may be made writable, whatever its protection is now.
    pub const MAY_WRITE: u32 = 1024;
    /// Pages of a huge page pool (`MAP_HUGETLB`); ordinary ones serve where the pool is empty.
    pub const POOL: u32 = 2048;
    /// `mlock2(MLOCK_ONFAULT)`; goes with [`LOCKED`].
    pub const LOCK_ON_FAULT: u32 = 4096;
    /// `MADV_MERGEABLE`.
    pub const MERGEABLE: u32 = 8192;
    /// `MADV_RANDOM`.
    pub const RANDOM: u32 = 1 << 14;
    /// `MADV_SEQUENTIAL`.
    pub const SEQUENTIAL: u32 = 1 << 15;
    /// Made without `MAP_NORESERVE`: memory is set aside for it where that can be. Images of older releases lack it.
    pub const RESERVED: u32 = 1 << 16;
    /// `mseal`ed; the restored agent does it, last of all.
    pub const SEALED: u32 = 1 << 17;
    /// [`super::Mapping::object`] of anonymous memory.
    pub const NO_OBJECT: u32 = u32::MAX;
}

fixed_record! {
    /// One thread.
    pub struct Thread {
        /// Id as the process itself sees it.
        pub tid: u32,
        /// See [`thread`].
        pub flags: u32,
        /// Address of its [`crate::handoff::Context`] in the restored memory.
        pub context: u64,
        /// Base of the fs segment (TLS).
        pub fs: u64,
        /// Base of the gs segment.
        pub gs: u64,
    }
}

/// Flags of a [`Thread`].
pub mod thread {
    /// The agent's own, whose id means nothing to the program. Images of older releases lack it.
    pub const AGENT: u32 = 1;
}

fixed_record! {
    /// What the restorer sets for the process as a whole. The rest is done by the restored agent.
    pub struct Process {
        /// Fields of `struct prctl_mm_map`, in its order: start_code, end_code, start_data, end_data, start_brk, brk, start_stack,
        /// arg_start, arg_end, env_start, env_end.
        pub layout: [u64; 11],
        /// The auxiliary vector.
        pub auxv: [u64; 64],
        /// Bytes used in it.
        pub auxv_size: u64,
        /// Address of the [`crate::handoff::Handoff`] in the restored memory.
        pub handoff: u64,
        /// `personality(2)`.
        pub personality: u64,
        /// Capabilities: effective, permitted, inheritable.
        pub capabilities: [u64; 3],
        /// Dynamic xstate features the program asked for (`ARCH_GET_XCOMP_PERM`).
        pub xstate_permitted: u64,
        /// Executable: offset in the strings.
        pub executable: u32,
        /// Bytes of that text.
        pub executable_length: u32,
    }
}

fixed_record! {
    /// Ends a stream.
    pub struct End {
        /// Records, this one included.
        pub records: u64,
        /// Bytes of the whole stream, header and this record included.
        pub bytes: u64,
        /// Pages stored.
        pub pages: u64,
        /// xxh3-64 over the header and all heads before this record.
        pub stream: u64,
    }
}

/// Keeps count of a stream while it is written or read, and refuses records out of order.
pub struct Ledger {
    stream: Xxh3,
    incremental: bool,
    last: u32,
    records: u64,
    bytes: u64,
    pages: u64,
    spared: u64,
    compression: bool,
}

impl Ledger {
    /// Starts with the header.
    #[must_use]
    pub fn new(header: &[u8; HEADER_SIZE]) -> Self {
        let mut stream = Xxh3::new();
        stream.update(header);
        let incremental = Header::decode(header).is_ok_and(|header| header.incremental());
        Self { stream, incremental, last: 0, records: 0, bytes: HEADER_SIZE as u64, pages: 0, spared: 0, compression: false }
    }

    /// Also accepts compressed pages: the stream goes from one node to another, and is not kept.
    #[must_use]
    pub fn on_its_way(self) -> Self {
        Self { compression: true, ..self }
    }

    /// Bytes by which the stream is shorter than it would be without compression.
    #[must_use]
    pub fn spared(&self) -> u64 {
        self.spared
    }

    /// Bytes up to the next head.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pages so far.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Accepts the next head and says what it announces.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if the head's checksum is wrong, [`ImageError::Inconsistent`] if it is unknown, out of order,
    /// repeated or longer than its kind may be.
    pub fn admit(&mut self, bytes: &[u8; HEAD_SIZE]) -> Result<(Kind, RecordHead), ImageError> {
        let at = self.bytes;
        let head = RecordHead::decode(bytes)?;
        if xxh3_64(&bytes[..HEAD_SIZE - 8]) != head.own {
            return Err(ImageError::Damaged { at });
        }
        let inconsistent = ImageError::Inconsistent { at };
        let kind = Kind::from_number(head.kind).ok_or(inconsistent)?;
        let repeats = matches!(kind, Kind::Unread | Kind::Pages | Kind::Bytes | Kind::Kept);
        // Content mixes: each may follow the other.
        let rank = if matches!(kind, Kind::Bytes | Kind::Kept) { Kind::Pages as u32 } else { kind as u32 };
        // Everything up to the process is there, one after the other; only `Unread`, `Summary` and content may be absent.
        let skips =
            rank > Kind::Process as u32 && self.last < Kind::Process as u32 || rank <= Kind::Process as u32 && rank != self.last + 1;
        if rank < self.last || (rank == self.last && !repeats) || skips {
            return Err(inconsistent);
        }
        let fits = match kind {
            Kind::Pages => head.announces_pages() && (self.compression || head.index == 0),
            Kind::Bytes => head.length <= MAX_PAGES && head.length != 0,
            Kind::Kept => self.incremental && head.announces_ranges(),
            Kind::Unread => head.length <= MAX_PAGES,
            Kind::End => head.length == End::SIZE as u64,
            _ => head.length <= MAX_TABLE,
        };
        if !fits || head.address.checked_add(head.length).is_none() {
            return Err(inconsistent);
        }
        if kind != Kind::End {
            self.stream.update(bytes);
        }
        self.last = rank;
        self.records += 1;
        self.bytes += HEAD_SIZE as u64 + head.padded_length();
        self.spared += head.spared();
        if kind == Kind::Pages {
            self.pages += head.length / 4096;
        }
        Ok((kind, head))
    }

    /// The end record's payload for what was admitted so far; its own head is admitted after this.
    #[must_use]
    pub fn end(&self) -> End {
        End {
            records: self.records + 1,
            bytes: self.bytes + (HEAD_SIZE + End::SIZE) as u64,
            pages: self.pages,
            stream: self.stream.digest(),
        }
    }

    /// Compares an end record with what was read; its head has been admitted.
    ///
    /// # Errors
    /// [`ImageError::Inconsistent`] if the totals differ: a record was lost or swapped.
    pub fn close(&self, end: &End) -> Result<(), ImageError> {
        let here = End { records: self.records, bytes: self.bytes, pages: self.pages, stream: self.stream.digest() };
        if *end == here { Ok(()) } else { Err(ImageError::Inconsistent { at: self.bytes }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;

    #[test]
    fn the_ledger_refuses_lost_and_misplaced_records() {
        let mut ledger = Ledger::new(&Header::default().to_bytes());
        let head = |kind, length| RecordHead::new(kind, 0, 0, length, 0).to_bytes();
        assert!(ledger.admit(&head(Kind::Objects, 0)).is_err());
        ledger.admit(&head(Kind::Strings, 3)).unwrap();
        assert!(ledger.admit(&head(Kind::Strings, 3)).is_err());
        assert!(ledger.admit(&head(Kind::Pages, 4096)).is_err());
        ledger.admit(&head(Kind::Objects, 0)).unwrap();
        ledger.admit(&head(Kind::Mappings, 0)).unwrap();
        assert!(ledger.admit(&head(Kind::Process, 0)).is_err());
        ledger.admit(&head(Kind::Threads, 0)).unwrap();
        ledger.admit(&head(Kind::Process, 0)).unwrap();
        ledger.admit(&head(Kind::Bytes, 10)).unwrap();
        ledger.admit(&head(Kind::Pages, 8192)).unwrap();
        ledger.admit(&head(Kind::Bytes, 10)).unwrap();
        assert!(ledger.admit(&head(Kind::Unread, 1)).is_err());
        assert!(ledger.admit(&head(Kind::Pages, 100)).is_err());
        assert!(ledger.admit(&head(Kind::Pages, MAX_PAGES + 4096)).is_err());
        let mut flipped = head(Kind::Pages, 4096);
        flipped[9] ^= 1;
        assert!(matches!(ledger.admit(&flipped), Err(ImageError::Damaged { .. })));
        let end = ledger.end();
        ledger.admit(&head(Kind::End, End::SIZE as u64)).unwrap();
        assert_eq!(ledger.close(&end), Ok(()));
        assert_eq!((end.records, end.pages), (9, 2));
        assert!(ledger.close(&End { pages: 3, ..end }).is_err());
    }
}
