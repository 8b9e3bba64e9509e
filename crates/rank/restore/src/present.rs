//! The address space of a living process, as `/proc/self/maps` shows it, and what of it can stay when the process goes back to an image.

use crate::arena::{Arena, Zeroed};
use crate::list::{Array, List};
use crate::tables::Tables;
use crate::{RestoreError, sys};
use mend_freestanding::maps::Line;
use mend_image::ranges::Range;
use mend_image::record::{Mapping, mapping};

/// Room for the text of `/proc/self/maps` at first, bytes.
const FIRST_ROOM: usize = 1 << 20;

/// One mapping that is there.
#[derive(Clone, Copy)]
pub struct Area {
    start: u64,
    end: u64,
    protection: u32,
    shared: bool,
    offset: u64,
    /// 0 without a file.
    device: u64,
    inode: u64,
    /// 1: vdso or vvar, 2: vsyscall.
    kernel: u8,
}

// SAFETY: numbers.
unsafe impl Zeroed for Area {}

const KERNEL_GROUP: u8 = 1;
const VSYSCALL: u8 = 2;

/// What is mapped, by ascending address, but for the restorer's own.
pub struct Present<'a> {
    areas: Array<'a, Area>,
    zone: Range,
}

impl<'a> Present<'a> {
    /// Reads it. What lies in `zone` is the caller's own.
    ///
    /// # Errors
    /// [`RestoreError::Space`], or the arena's.
    pub fn read(arena: &'a Arena, zone: Range) -> Result<Self, RestoreError<'static>> {
        let mut room = FIRST_ROOM;
        loop {
            let bytes = arena.take(room)?;
            let length = read_maps(bytes)?;
            if length < room {
                let mut areas = Array::new(arena);
                for line in bytes[..length].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    let area = parse(line).ok_or(RestoreError::Space { errno: 0 })?;
                    if area.start < zone.0 || area.end > zone.1 {
                        areas.push(area)?;
                    }
                }
                return Ok(Self { areas, zone });
            }
            room *= 4;
        }
    }

    fn over(&self, (start, end): Range) -> &[Area] {
        let all = self.areas.all();
        let first = all.partition_point(|area| area.end <= start);
        let after = all.partition_point(|area| area.start < end);
        &all[first..after.max(first)]
    }

    /// Private memory without a file that holds what it held when it was last protected, as the userfaultfd that observes it has noticed:
    /// populated pages that were not written to since. Where nothing observes, nothing is known; nor where the kernel does not tell.
    /// Source: Documentation/admin-guide/mm/pagemap.rst.
    ///
    /// # Errors
    /// The arena's.
    pub fn unwritten(&self, arena: &'a Arena) -> Result<List<'a>, RestoreError<'static>> {
        let mut found = List::new(arena);
        let Ok(pagemap) = open(c"/proc/self/pagemap") else { return Ok(found) };
        let room = arena.take_array::<Region>(SCAN_REGIONS)?;
        for area in self.areas.all().iter().filter(|area| !area.shared && area.kernel == 0 && area.inode == 0) {
            let mut at = area.start;
            while at < area.end {
                let Some((regions, next)) = scan_unwritten(pagemap, (at, area.end), room) else { break };
                for region in regions {
                    found.push((region.start, region.end))?;
                }
                at = next;
            }
        }
        sys::close(pagemap);
        Ok(found)
    }

    /// Whether the kernel's own mappings lie where the image has them.
    pub fn kernel_group_stays(&self, image: impl Iterator<Item = Mapping>) -> bool {
        let here = self.areas.all().iter().filter(|area| area.kernel == KERNEL_GROUP).map(|area| (area.start, area.end));
        here.eq(image.filter(|record| record.flags & (mapping::VDSO | mapping::VVAR) != 0).map(|record| (record.start, record.end)))
    }

    /// Whether all of a mapping of the image is there in a form in which only its content has to be put right: private memory, of the file
    /// with this device and inode if it is of one.
    pub fn holds(&self, record: &Mapping, file: Option<(u64, u64)>) -> bool {
        if record.flags & (mapping::SHARED | mapping::POOL) != 0 {
            return false;
        }
        let (device, inode) = file.unwrap_or_default();
        let mut at = record.start;
        for area in self.over((record.start, record.end)) {
            let offset = if file.is_some() { area.offset.wrapping_add(at.wrapping_sub(area.start)) } else { 0 };
            let wanted = if file.is_some() { record.offset + (at - record.start) } else { 0 };
            let same = !area.shared && area.kernel == 0 && (area.device, area.inode) == (device, inode) && offset == wanted;
            if area.start > at || !same {
                return false;
            }
            at = area.end.min(record.end);
        }
        at == record.end
    }

    /// Whether all of it has this protection.
    pub fn is_protected(&self, record: &Mapping) -> bool {
        self.over((record.start, record.end)).iter().all(|area| area.protection == record.protection)
    }

    /// Unmaps everything outside of `kept`, which is sorted, but for the kernel's own mappings.
    ///
    /// # Errors
    /// [`RestoreError::Unmap`]: sealed memory.
    pub fn clear(&self, kept: &[Range]) -> Result<(), RestoreError<'static>> {
        for area in self.areas.all().iter().filter(|area| area.kernel == 0) {
            let whole = [(area.start, area.end)];
            for (start, end) in mend_image::ranges::without(&whole, kept) {
                debug_assert!(end <= self.zone.0 || start >= self.zone.1);
                // SAFETY: memory of a program whose threads all stand still in the restorer's own.
                let done = unsafe { sys::call(sys::MUNMAP, [start as usize, (end - start) as usize, 0, 0, 0, 0]) };
                done.map_err(|errno| RestoreError::Unmap { start, errno })?;
            }
        }
        Ok(())
    }
}

/// `struct page_region`
#[derive(Clone, Copy)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

// SAFETY: numbers.
unsafe impl Zeroed for Region {}

/// Regions that one call tells.
const SCAN_REGIONS: usize = 4096;

/// Populated pages that were not written to, and up to where the range was looked at; `None`: nothing is known of it.
fn scan_unwritten(pagemap: usize, (start, end): Range, room: &mut [Region]) -> Option<(&[Region], u64)> {
    const PAGEMAP_SCAN: usize = 0xc060_6610;
    const CHECK_OBSERVED: u64 = 2; // PM_SCAN_CHECK_WPASYNC
    const WRITTEN: u64 = 1 << 1;
    const PRESENT_OR_SWAPPED: u64 = 1 << 3 | 1 << 4;
    // size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any of, returned
    let (vec, length) = (room.as_mut_ptr() as u64, room.len() as u64);
    let mut arguments = [96, CHECK_OBSERVED, start, end, 0, vec, length, 0, WRITTEN, WRITTEN, PRESENT_OR_SWAPPED, PRESENT_OR_SWAPPED];
    // SAFETY: the kernel writes at most `length` regions into `room`, and `walk_end`.
    let count = unsafe { sys::call(sys::IOCTL, [pagemap, PAGEMAP_SCAN, arguments.as_mut_ptr() as usize, 0, 0, 0]) }.ok()?;
    let next = if count < room.len() { end } else { arguments[4].clamp(start, end) };
    (next > start).then(|| (&room[..count.min(room.len())], next))
}

/// Opens a file to read it.
fn open(path: &core::ffi::CStr) -> Result<usize, i32> {
    const O_CLOEXEC: usize = 0o2_000_000;
    // SAFETY: a NUL-terminated path.
    unsafe { sys::call(sys::OPEN, [path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0]) }
}

/// Device and inode of an open file, as `/proc/self/maps` shows them.
pub(crate) fn identity(fd: usize) -> Option<(u64, u64)> {
    let mut stat = [0u64; 18];
    // SAFETY: fstat writes 144 bytes; `struct stat` begins with device and inode.
    unsafe { sys::call(sys::FSTAT, [fd, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    Some((stat[0], stat[1]))
}

/// The length of the text, as far as it fits.
fn read_maps(bytes: &mut [u8]) -> Result<usize, RestoreError<'static>> {
    let refused = |errno| RestoreError::Space { errno };
    let fd = open(c"/proc/self/maps").map_err(refused)?;
    let mut length = 0;
    let result = loop {
        let rest = &mut bytes[length..];
        if rest.is_empty() {
            break Ok(length);
        }
        // SAFETY: reads into `rest`.
        match unsafe { sys::call(sys::READ, [fd, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0]) } {
            Ok(0) => break Ok(length),
            Ok(count) => length += count,
            Err(sys::EINTR) => {}
            Err(errno) => break Err(refused(errno)),
        }
    };
    sys::close(fd);
    result
}

fn parse(line: &[u8]) -> Option<Area> {
    let line = Line::parse(line)?;
    Some(Area {
        start: line.start,
        end: line.end,
        protection: line.protection,
        shared: line.shared,
        offset: line.offset,
        device: line.device_number(),
        inode: line.inode,
        kernel: match line.name {
            b"[vdso]" | b"[vvar]" | b"[vvar_vclock]" => KERNEL_GROUP,
            b"[vsyscall]" => VSYSCALL,
            _ => 0,
        },
    })
}

/// Which mappings of an image are there and stay.
pub(crate) fn staying<'a>(
    present: &Present,
    tables: &Tables,
    arena: &'a Arena,
    mut file: impl FnMut(&Mapping) -> Result<Option<(u64, u64)>, RestoreError<'static>>,
) -> Result<(&'a mut [u8], Array<'a, Range>), RestoreError<'static>> {
    let stays = arena.take(tables.mappings().count())?;
    let mut ranges = Array::new(arena);
    for (record, stays) in tables.mappings().zip(stays.iter_mut()) {
        if record.flags & (mapping::VDSO | mapping::VVAR) != 0 {
            continue;
        }
        let anonymous = record.object == mapping::NO_OBJECT;
        let identity = if anonymous { None } else { file(&record)? };
        if (anonymous || identity.is_some()) && present.holds(&record, identity) {
            *stays = 1;
            ranges.push((record.start, record.end))?;
        }
    }
    Ok((stays, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_if_it_is_the_same() {
        let arena = Arena::reserve(64 << 20).unwrap();
        let mut areas = Array::new(&arena);
        for line in [
            &b"1000-3000 rw-p 00000000 00:00 0"[..],
            b"3000-4000 r--p 00000000 00:00 0",
            b"5000-7000 r-xp 00001000 08:01 9   /bin/x",
            b"8000-9000 rw-s 00000000 00:01 4   /memfd:x",
        ] {
            areas.push(parse(line).unwrap()).unwrap();
        }
        let present = Present { areas, zone: (1 << 40, 2 << 40) };
        let record = |start, end, offset| Mapping { start, end, offset, protection: 3, flags: 0, object: 0, page_shift: 0 };
        let file = Some((0x801, 9));
        // Two mappings of two protections are one to the image, or a part of one is.
        assert!(present.holds(&record(0x1000, 0x4000, 0), None) && present.holds(&record(0x2000, 0x3000, 0), None));
        assert!(present.is_protected(&record(0x1000, 0x3000, 0)) && !present.is_protected(&record(0x1000, 0x4000, 0)));
        assert!(!present.holds(&record(0x1000, 0x5000, 0), None), "a gap");
        assert!(!present.holds(&record(0x5000, 0x6000, 0), None), "a file's");
        assert!(present.holds(&record(0x6000, 0x7000, 0x2000), file) && present.holds(&record(0x5000, 0x7000, 0x1000), file));
        assert!(!present.holds(&record(0x6000, 0x7000, 0x1000), file), "another place of the file");
        assert!(!present.holds(&record(0x5000, 0x7000, 0x1000), Some((0x801, 8))), "another file");
        assert!(!present.holds(&record(0x8000, 0x9000, 0), Some((1, 4))), "shared");
    }
}
