//! The address space as `/proc/self/maps` and `smaps` show it.

use crate::descriptors::unreachable::is_removed_on_nfs_at;
use mend_freestanding::maps::Line;
use mend_image::record::mapping;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

/// Bytes that are less than `smaps` says of any area.
pub(crate) const SMAPS_READ_BYTES: usize = 512;

/// Where named shared memory lives (shm_overview(7)).
pub(crate) const NODE_MEMORY: &str = "/dev/shm/";
/// What the files begin with in which JVMs show their counters: a user's name follows, and a process id.
pub(crate) const JVM_COUNTERS: &str = "/tmp/hsperfdata_";

/// One line of `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub start: u64,
    pub end: u64,
    /// `PROT_` bits.
    pub protection: u32,
    pub shared: bool,
    pub offset: u64,
    /// Device and inode; (0, 0) for anonymous memory.
    pub identity: (u64, u64),
    /// Path or bracketed name, without " (deleted)".
    pub name: String,
    /// Also of one that an NFS client keeps for those who have it open.
    pub deleted: bool,
}

/// What `smaps` adds to an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advised {
    end: u64,
    /// Bits of [`mapping`].
    pub flags: u32,
    /// Binary logarithm of the page size.
    pub page_shift: u32,
    /// May be in huge pages.
    pub huge: bool,
    /// Holds pages that the kernel may drop when it likes (`MADV_FREE`).
    pub fleeting: bool,
    /// Pages of its own that are in small ones.
    pub small: u64,
    /// Pages of shared memory that are mapped here.
    pub shared: u64,
    /// Why it cannot be saved.
    pub obstacle: Option<&'static str>,
}

/// By the address at which it begins.
pub(crate) type Advice = BTreeMap<u64, Advised>;

/// All areas, ascending. Does not use the C library's malloc.
pub(crate) fn read() -> io::Result<Vec<Area>> {
    // Read as bytes: a path need not be UTF-8, and then it simply isn't found.
    parse_all(&text()?)
}

/// The text of `/proc/self/maps`. The kernel looks for the place where the last piece ended and gives a page at most, so small pieces
/// take longer.
pub(crate) fn text() -> io::Result<Vec<u8>> {
    const READ_BYTES: usize = 16 << 10;
    let mut file = File::open("/proc/self/maps")?;
    let (mut text, mut length) = (Vec::with_capacity(4 * READ_BYTES), 0);
    loop {
        text.resize(length + READ_BYTES, 0);
        match file.read(&mut text[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(length);
    Ok(text)
}

/// All areas of the text of `/proc/self/maps`.
pub(crate) fn parse_all(text: &[u8]) -> io::Result<Vec<Area>> {
    let unknown = |line| io::Error::other(format!("/proc/self/maps has a line of unknown form: {}", String::from_utf8_lossy(line)));
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| parse(line).ok_or_else(|| unknown(line))).collect()
}

fn parse(line: &[u8]) -> Option<Area> {
    let line = Line::parse(line)?;
    let name = String::from_utf8_lossy(line.name);
    let (name, deleted) = name.strip_suffix(" (deleted)").map_or_else(|| (&*name, is_removed_on_nfs_at(&name)), |name| (name, true));
    Some(Area {
        start: line.start,
        end: line.end,
        protection: line.protection,
        shared: line.shared,
        offset: line.offset,
        identity: (line.device.0 << 32 | line.device.1, line.inode),
        name: if name.contains('\\') { name.replace("\\012", "\n") } else { name.to_string() },
        deleted,
    })
}

/// Reads what `maps` does not tell. Takes some ten milliseconds per GiB of small pages, so it is read before threads are
/// parked and matched by address.
pub(crate) fn advice() -> Advice {
    smaps().map_or_else(|_| Advice::new(), |text| parse_smaps(&String::from_utf8_lossy(&text)))
}

fn parse_smaps(text: &str) -> Advice {
    let mut advice = Advice::new();
    let mut area: Option<(u64, Advised)> = None;
    for line in text.lines() {
        let kibibytes = || line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let Some((start, advised)) = &mut area else {
            area = head(line);
            continue;
        };
        if line.starts_with("KernelPageSize:") {
            advised.page_shift = 10 + kibibytes().max(1).ilog2();
        } else if let Some(eligible) = line.strip_prefix("THPeligible:") {
            advised.huge = eligible.trim() == "1";
        } else if line.starts_with("Rss:") && advised.shared != 0 {
            advised.shared = kibibytes() / 4;
        } else if line.starts_with("Anonymous:") {
            advised.small = kibibytes() / 4;
        } else if line.starts_with("AnonHugePages:") {
            advised.small = advised.small.saturating_sub(kibibytes() / 4);
        } else if line.starts_with("LazyFree:") {
            advised.fleeting = kibibytes() != 0;
        } else if line.starts_with("ProtectionKey:") && kibibytes() != 0 {
            advised.obstacle = Some("memory under a protection key (pkey_mprotect) cannot be saved yet");
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            advised.flags = flags.split_whitespace().map(flag_bit).fold(mapping::RESERVED, |bits, bit| bits ^ bit);
            if flags.split_whitespace().any(|flag| flag == "ss") {
                advised.obstacle = Some("a shadow stack cannot be saved yet");
            }
            if flags.split_whitespace().any(|flag| flag == "sf") {
                advised.obstacle = Some("a file in persistent memory (MAP_SYNC) cannot be saved yet");
            }
            advice.insert(*start, *advised);
            area = None;
        }
    }
    advice
}

/// The text of `/proc/self/smaps`, a piece at a time: more than one area with one call, and the kernel may run out of its own
/// buffer in the middle of one and walk through all the pages of that once more (`seq_read_iter`).
fn smaps() -> io::Result<Vec<u8>> {
    let mut file = File::open("/proc/self/smaps")?;
    let (mut text, mut piece) = (Vec::new(), [0; SMAPS_READ_BYTES]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(text),
            Ok(count) => text.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The line that begins an area.
fn head(line: &str) -> Option<(u64, Advised)> {
    let advised = |area: &Area| Advised { end: area.end, page_shift: 12, shared: u64::from(area.is_shared_memory()), ..Advised::default() };
    parse(line.as_bytes()).map(|area| (area.start, advised(&area)))
}

fn flag_bit(flag: &str) -> u32 {
    match flag {
        "gd" => mapping::GROWS_DOWN,
        "hg" => mapping::HUGE,
        "nh" => mapping::NO_HUGE,
        "lo" => mapping::LOCKED,
        "dd" => mapping::NO_DUMP,
        "dc" => mapping::NO_FORK,
        "wf" => mapping::WIPE_ON_FORK,
        "mw" => mapping::MAY_WRITE,
        "lf" => mapping::LOCK_ON_FAULT,
        "mg" => mapping::MERGEABLE,
        "rr" => mapping::RANDOM,
        "sr" => mapping::SEQUENTIAL,
        // Memory is set aside for every mapping but these.
        "nr" => mapping::RESERVED,
        "sl" => mapping::SEALED,
        _ => 0,
    }
}

impl Area {
    /// What `smaps` said about this area.
    pub fn advised(&self, advice: &Advice) -> Advised {
        match advice.range(..=self.start).next_back() {
            Some((_, advised)) if self.start < advised.end => *advised,
            _ => Advised { page_shift: 12, flags: mapping::RESERVED, ..Advised::default() },
        }
    }

    /// Private memory from a huge page pool.
    pub fn is_private_pool(&self) -> bool {
        !self.shared && self.name == "/anon_hugepage"
    }

    /// Plain memory without a file behind it, private to the process.
    pub fn is_anonymous(&self) -> bool {
        !self.shared && (self.name.is_empty() || self.name.starts_with('[') || self.name == "/dev/zero")
    }

    /// The kernel's code in user space, or its data.
    pub fn is_vdso(&self) -> bool {
        self.name == "[vdso]"
    }

    /// The data that the vdso reads.
    pub fn is_vvar(&self) -> bool {
        self.name == "[vvar]" || self.name == "[vvar_vclock]"
    }

    /// Memory that lives only as long as somebody maps it or holds a descriptor of it. A named object in `/dev/shm`
    /// counts, too: the name is this node's, and one that a restart finds there again would be stale. So does the file in which a
    /// JVM shows its counters: it is named after a process of this node, and any other JVM removes it when that is gone.
    pub fn is_shared_memory(&self) -> bool {
        let nameless = self.deleted || self.name.is_empty() || self.name.starts_with("[anon_shmem");
        self.shared && (nameless || self.name.starts_with("/dev/shm/") || self.name.starts_with(JVM_COUNTERS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kinds() {
        let area =
            parse(b"7f0a00000000-7f0a00021000 r-xp 00001000 fd:01 1234                       /opt/with space/lib.so (deleted)").unwrap();
        assert_eq!((area.start, area.end, area.offset), (0x7f0a_0000_0000, 0x7f0a_0002_1000, 0x1000));
        assert_eq!((area.protection, area.shared, area.deleted), (5, false, true));
        assert_eq!(area.name, "/opt/with space/lib.so");
        assert_eq!(area.identity, (0xfd << 32 | 1, 1234));
        let area = parse(b"7ffc0000-7ffd0000 rw-p 00000000 00:00 0 ").unwrap();
        assert!(area.is_anonymous() && area.name.is_empty());
        assert!(parse(b"1000-2000 rw-s 00000000 00:01 77 /memfd:x y (deleted)").unwrap().is_shared_memory());
        assert!(parse(b"1000-9000 rw-s 00000000 00:01 77 /tmp/hsperfdata_me/1000").unwrap().is_shared_memory());
        assert!(!parse(b"1000-9000 r--p 00000000 00:01 77 /tmp/hsperfdata_me/1000").unwrap().is_shared_memory());
        assert!(parse(b"garbage").is_none());
    }

    #[test]
    fn what_smaps_tells_of_persistent_memory_is_an_obstacle() {
        let of =
            |flags: &str| parse_smaps(&format!("1000-2000 rw-s 00000000 00:01 77 /mnt/pmem/file\nVmFlags: {flags}\n"))[&0x1000].obstacle;
        assert_eq!(of("rd wr sh mr mw me ms"), None);
        assert!(of("rd wr sh mr mw me ms sf").unwrap().contains("MAP_SYNC"));
    }

    #[test]
    fn this_process_can_be_read() {
        let areas = read().unwrap();
        assert!(areas.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(areas.iter().any(Area::is_vdso));
        let stack = areas.iter().find(|area| area.name == "[stack]").unwrap();
        let advised = stack.advised(&advice());
        assert_ne!(advised.flags & mapping::GROWS_DOWN, 0);
        assert_eq!((advised.page_shift, advised.fleeting, advised.obstacle), (12, false, None));
    }
}
