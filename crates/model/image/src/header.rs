//! The header: who was saved, and where it can go on. Readable on its own.

use crate::cpu::{CpuNeeds, Features};
use crate::fixed::{Fixed, fixed_record};
use crate::{ImageError, launch};

/// Format number; grows whenever an older reader would misread.
pub const FORMAT: u32 = 3;

/// Bytes of the header at the start of a stream.
pub const HEADER_SIZE: usize = 2048;

const MAGIC: [u8; 8] = *b"MendImg\n";
const X86_64: u32 = 62;
const PAGE_SIZE: u32 = 4096;

fixed_record! {
    /// The header as it is in the stream. Times in nanoseconds.
    pub struct Header {
        /// The bytes by which every image begins: "MendImg\n".
        pub magic: [u8; 8],
        /// [`FORMAT`] of the writer.
        pub format: u32,
        /// ELF machine number (62: x86-64).
        pub machine: u32,
        /// Bytes per page.
        pub page_size: u32,
        /// Rank in `MPI_COMM_WORLD`.
        pub rank: u32,
        /// Ranks of the job.
        pub size: u32,
        /// Process id as the process itself sees it; the restored one gets the same.
        pub pid: u32,
        /// Identity of the job.
        pub job: [u8; 16],
        /// Name of this image, random; never zero.
        pub id: [u8; 16],
        /// `id` of the image this one builds on; zero: it is full.
        pub base: [u8; 16],
        /// 0 for a full image, n for the n-th after it.
        pub sequence: u32,
        /// Lowest id of a thread but the first one's; 0: there is none, or the image is of before this was told.
        pub lowest_thread: u32,
        /// `CLOCK_REALTIME` when the threads were parked.
        pub realtime: u64,
        /// `CLOCK_MONOTONIC` then. The restored process must not see an earlier time.
        pub monotonic: u64,
        /// `CLOCK_BOOTTIME` then.
        pub boottime: u64,
        /// The first half of [`CpuNeeds::features`].
        pub cpu_features: u64,
        /// [`CpuNeeds::xsave_mask`].
        pub cpu_xsave_mask: u64,
        /// [`CpuNeeds::xsave_size`].
        pub cpu_xsave_size: u64,
        /// [`CpuNeeds::xsave_layout`].
        pub cpu_xsave_layout: u64,
        /// xxh3-64 of the kernel's vdso; code of the process may return into it.
        pub vdso: u64,
        /// Bytes of the vdso, 0 if there was none.
        pub vdso_size: u64,
        /// Bytes of all records before the first page, an upper bound for the restorer's tables.
        pub tables: u64,
        /// Bytes of pages that the capture expected to store; for progress, not for checks.
        pub expected: u64,
        /// Number of threads.
        pub threads: u32,
        /// Number of mappings.
        pub mappings: u32,
        /// Highest descriptor number in use.
        pub top_descriptor: u32,
        /// Bit per [`launch::Role`] that some descriptor of the process has.
        pub roles: u32,
        /// Release that wrote it, NUL-padded.
        pub release: [u8; 32],
        /// Node's host name, NUL-padded.
        pub host: [u8; 64],
        /// Kernel release, NUL-padded.
        pub kernel: [u8; 64],
        /// Path of the executable, NUL-padded, cut if longer.
        pub executable: [u8; 1024],
        /// Which of [`crate::ZONES`] the process leaves to the restorer. Images of before this was told leave the first.
        pub zone: u32,
        /// 1: [`crate::rounds`] follow, and then the image with a header of its own; 0: the image follows.
        pub rounds: u32,
        /// The second half of [`CpuNeeds::features`]. Images of before this was told have none.
        pub cpu_more_features: u64,
    }
}

impl Default for Header {
    fn default() -> Self {
        Self {
            magic: MAGIC,
            format: FORMAT,
            machine: X86_64,
            page_size: PAGE_SIZE,
            rank: 0,
            size: 0,
            pid: 0,
            job: [0; 16],
            id: [0; 16],
            base: [0; 16],
            sequence: 0,
            lowest_thread: 0,
            realtime: 0,
            monotonic: 0,
            boottime: 0,
            cpu_features: 0,
            cpu_xsave_mask: 0,
            cpu_xsave_size: 0,
            cpu_xsave_layout: 0,
            vdso: 0,
            vdso_size: 0,
            tables: 0,
            expected: 0,
            threads: 0,
            mappings: 0,
            top_descriptor: 0,
            roles: 0,
            release: [0; 32],
            host: [0; 64],
            kernel: [0; 64],
            executable: [0; 1024],
            zone: 0,
            rounds: 0,
            cpu_more_features: 0,
        }
    }
}

impl Header {
    /// What the saved program needs of a processor.
    #[must_use]
    pub fn cpu(&self) -> CpuNeeds {
        CpuNeeds {
            features: Features([self.cpu_features, self.cpu_more_features]),
            xsave_mask: self.cpu_xsave_mask,
            xsave_size: self.cpu_xsave_size,
            xsave_layout: self.cpu_xsave_layout,
        }
    }

    /// Whether it needs the image that it builds on.
    #[must_use]
    pub fn incremental(&self) -> bool {
        self.base != [0; 16]
    }

    /// Notes what the saved program needs of a processor.
    pub fn set_cpu(&mut self, cpu: &CpuNeeds) {
        [self.cpu_features, self.cpu_more_features] = cpu.features.0;
        self.cpu_xsave_mask = cpu.xsave_mask;
        self.cpu_xsave_size = cpu.xsave_size;
        self.cpu_xsave_layout = cpu.xsave_layout;
    }

    /// Path of the executable, as far as it is UTF-8.
    #[must_use]
    pub fn executable(&self) -> &str {
        text(&self.executable)
    }

    /// Release of Mend that wrote the image.
    #[must_use]
    pub fn release(&self) -> &str {
        text(&self.release)
    }

    /// Host it was saved on.
    #[must_use]
    pub fn host(&self) -> &str {
        text(&self.host)
    }

    /// Kernel release of that host.
    #[must_use]
    pub fn kernel(&self) -> &str {
        text(&self.kernel)
    }

    /// Whether some descriptor of the process has this role.
    #[must_use]
    pub fn uses(&self, role: launch::Role) -> bool {
        self.roles & (1 << role as u32) != 0
    }

    /// The header as the first [`HEADER_SIZE`] bytes of a stream: padding zero, checksum last.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        // The size of the record is checked below at compile time, so this cannot fail.
        let _ = self.encode(&mut bytes);
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER_SIZE - 8]);
        bytes[HEADER_SIZE - 8..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

const _: () = assert!(<Header as Fixed>::SIZE <= HEADER_SIZE - 8);

/// Copies `text` into a NUL-padded field, cut to fit.
pub fn put_text(field: &mut [u8], text: &[u8]) {
    let length = text.len().min(field.len());
    field.fill(0);
    field[..length].copy_from_slice(&text[..length]);
}

/// The text of a NUL-padded field, up to the first byte that isn't UTF-8.
fn text(field: &[u8]) -> &str {
    let field = &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())];
    match core::str::from_utf8(field) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&field[..error.valid_up_to()]).unwrap_or_default(),
    }
}

/// Reads the header from the first bytes of a stream.
///
/// # Errors
/// Says whether these bytes are no image, one of another format or architecture, or a damaged one.
pub fn read_header(bytes: &[u8]) -> Result<Header, ImageError> {
    if bytes.get(..8).is_none_or(|magic| magic != MAGIC) {
        return Err(if bytes.len() < 8 && MAGIC.starts_with(bytes) { ImageError::Truncated } else { ImageError::Foreign });
    }
    // The format number is looked at before the checksum: another format may lay the header out differently.
    let found = bytes.get(8..12).ok_or(ImageError::Truncated)?;
    let found = u32::from_le_bytes([found[0], found[1], found[2], found[3]]);
    if found != FORMAT {
        return Err(ImageError::Version { found });
    }
    let bytes = bytes.get(..HEADER_SIZE).ok_or(ImageError::Truncated)?;
    if xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER_SIZE - 8]).to_le_bytes() != bytes[HEADER_SIZE - 8..] {
        return Err(ImageError::HeaderDamaged);
    }
    let header = Header::decode(bytes)?;
    if header.machine != X86_64 || header.page_size != PAGE_SIZE {
        return Err(ImageError::Architecture { machine: header.machine, page_size: header.page_size });
    }
    if header.incremental() != (header.sequence != 0) || header.zone as usize >= crate::ZONES.len() {
        return Err(ImageError::Inconsistent { at: 0 });
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Header {
        let mut header = Header { rank: 3, size: 4, pid: 4711, monotonic: 99, ..Header::default() };
        header.set_cpu(&CpuNeeds { features: Features([3, 5]), xsave_mask: 7, xsave_size: 832, xsave_layout: 99 });
        put_text(&mut header.executable, "/opt/lämmps/lmp".as_bytes());
        header
    }

    #[test]
    fn round_trip() {
        let header = sample();
        let read = read_header(&header.to_bytes()).unwrap();
        assert_eq!(read, header);
        assert_eq!(read.executable(), "/opt/lämmps/lmp");
    }

    #[test]
    fn a_zone_that_there_is_not_is_refused() {
        let read = |zone| read_header(&Header { zone, ..sample() }.to_bytes()).map(|header| header.zone);
        let count = crate::ZONES.len() as u32;
        assert_eq!(read(count - 1), Ok(count - 1));
        assert_eq!(read(count), Err(ImageError::Inconsistent { at: 0 }));
    }

    #[test]
    fn each_fault_has_its_name() {
        let bytes = sample().to_bytes();
        assert_eq!(read_header(b""), Err(ImageError::Truncated));
        assert_eq!(read_header(b"\x7fELF\x02\x01\x01\0"), Err(ImageError::Foreign));
        assert_eq!(read_header(&bytes[..100]), Err(ImageError::Truncated));
        let mut other = bytes;
        other[8] = 9;
        assert_eq!(read_header(&other), Err(ImageError::Version { found: 9 }));
        let mut damaged = bytes;
        damaged[40] ^= 1;
        assert_eq!(read_header(&damaged), Err(ImageError::HeaderDamaged));
        let foreign = Header { machine: 183, ..sample() };
        assert_eq!(read_header(&foreign.to_bytes()), Err(ImageError::Architecture { machine: 183, page_size: 4096 }));
    }

    #[test]
    fn what_builds_on_nothing_is_the_first() {
        let number = |base, sequence| read_header(&Header { base: [base; 16], sequence, ..sample() }.to_bytes()).is_ok();
        assert!(number(0, 0) && number(7, 1) && number(7, 9));
        assert!(!number(0, 1) && !number(7, 0));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(byte in 0..HEADER_SIZE, bit in 0..8u8) {
            let mut bytes = sample().to_bytes();
            bytes[byte] ^= 1 << bit;
            prop_assert!(read_header(&bytes).is_err());
        }
    }
}
