//! The image's tables, checked as far as a restore relies on them.

use crate::RestoreError;
use crate::arena::Arena;
use crate::stream::{Record, Stream};
use crate::sys;
use mend_image::ZONES;
use mend_image::fixed::Fixed;
use mend_image::handoff::{Context, Handoff};
use mend_image::launch::Role;
use mend_image::record::{Kind, Mapping, Object, Process, Thread, mapping, object};
use xxhash_rust::xxh3::Xxh3;

/// Highest address of user space with 4-level page tables.
const TOP: u64 = mend_image::END_OF_ADDRESSES;

/// Everything before the pages.
#[derive(Clone, Copy, Default)]
pub struct Tables<'a> {
    strings: &'a [u8],
    objects: &'a [u8],
    mappings: &'a [u8],
    threads: &'a [u8],
    process: &'a [u8],
}

fn records<'a, T: Fixed>(table: &'a [u8]) -> impl Iterator<Item = T> + Clone + use<'a, T> {
    table.chunks_exact(T::SIZE).filter_map(|raw| T::decode(raw).ok())
}

impl<'a> Tables<'a> {
    /// None of any.
    pub const EMPTY: Self = Self { strings: &[], objects: &[], mappings: &[], threads: &[], process: &[] };

    /// Reads everything before the pages, and the head that follows it. `room` holds one record's payload at a time; `unread` is given
    /// the input that the program had not read.
    ///
    /// # Errors
    /// The source's, the arena's, what is wrong with the stream.
    pub fn read<'b>(
        stream: &mut Stream<'b>,
        arena: &'a Arena,
        room: &mut [u8],
        mut unread: impl FnMut(Role, &[u8]),
    ) -> Result<(Self, Record<'b>), RestoreError<'static>> {
        let mut tables = Self::default();
        loop {
            let record = stream.next()?;
            match record.kind {
                Kind::Strings => tables.strings = record.table(arena)?,
                Kind::Objects => tables.objects = record.table(arena)?,
                Kind::Mappings => tables.mappings = record.table(arena)?,
                Kind::Threads => tables.threads = record.table(arena)?,
                Kind::Process => tables.process = record.table(arena)?,
                Kind::Unread => {
                    let bytes = record.passing(room)?;
                    unread(Role::from_number(record.head.index).ok_or_else(|| record.inconsistent())?, bytes);
                }
                Kind::Summary => drop(record.table(arena)?),
                Kind::Pages | Kind::Bytes | Kind::Kept | Kind::End => return Ok((tables, record)),
            }
        }
    }

    /// By ascending address, once they are checked.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + Clone + use<'a> {
        records(self.mappings)
    }

    /// What mappings and descriptors share.
    pub fn objects(&self) -> impl Iterator<Item = Object> + Clone + use<'a> {
        records(self.objects)
    }

    /// Its threads, the first one first.
    pub fn threads(&self) -> impl Iterator<Item = Thread> + Clone + use<'a> {
        records(self.threads)
    }

    fn process(&self) -> Option<Process> {
        Process::decode(self.process).ok()
    }

    /// Index and record of the mapping that holds the whole range.
    #[must_use]
    pub fn mapping_of(&self, start: u64, length: u64) -> Option<(usize, Mapping)> {
        let count = self.mappings.len() / Mapping::SIZE;
        let at = |index: usize| Mapping::decode(&self.mappings[index * Mapping::SIZE..]).ok();
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if at(middle)?.end <= start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = if low < count { at(low)? } else { return None };
        (found.start <= start && start.checked_add(length)? <= found.end).then_some((low, found))
    }

    /// A text, followed by the NUL that the writer put there.
    #[must_use]
    pub fn text(&self, offset: u32, length: u32) -> Option<&'a [u8]> {
        let whole = self.strings.get(offset as usize..)?.get(..length as usize + 1)?;
        whole.ends_with(&[0]).then(|| &whole[..length as usize])
    }

    /// Refuses tables that would make the restorer harm itself.
    ///
    /// # Errors
    /// [`mend_image::ImageError::Inconsistent`].
    pub fn check(&self, stream: &Stream) -> Result<Process, RestoreError<'static>> {
        let mut last = 0;
        let objects = self.objects().count();
        let Some(zone) = ZONES.get(stream.header().zone as usize) else { return Err(stream.inconsistent()) };
        for record in self.mappings() {
            let aligned = (record.start | record.end | record.offset).is_multiple_of(4096);
            let ordered = last <= record.start && record.start < record.end && record.end <= TOP;
            let known = record.object == mapping::NO_OBJECT || (record.object as usize) < objects;
            if !aligned || !ordered || !known || (record.start < zone.1 && record.end > zone.0) {
                return Err(stream.inconsistent());
            }
            last = record.end;
        }
        let plain = |address: u64, length: usize| {
            self.mapping_of(address, length as u64).is_some_and(|(_, found)| found.flags & (mapping::VDSO | mapping::VVAR) == 0)
        };
        if self.threads().count() == 0 || self.threads().any(|thread| !plain(thread.context, size_of::<Context>())) {
            return Err(stream.inconsistent());
        }
        match self.process() {
            Some(process) if plain(process.handoff, size_of::<Handoff>()) && process.handoff.is_multiple_of(8) => Ok(process),
            _ => Err(stream.inconsistent()),
        }
    }

    /// Looks whether each file that the image maps is there and is the one that was mapped. `room` holds what is read of them,
    /// [`object::SAMPLE`] bytes at least.
    ///
    /// # Errors
    /// What is the matter with the first one that is not.
    pub fn check_files(&self, stream: &Stream, room: &mut [u8]) -> Result<(), RestoreError<'a>> {
        for record in self.objects().filter(|record| record.flags & object::FILE != 0) {
            let path = self.text(record.text, record.text_length).ok_or_else(|| stream.inconsistent())?;
            let shown = core::str::from_utf8(path).unwrap_or("a file whose name is not UTF-8");
            let fd = open_object(path, &record).map_err(|errno| RestoreError::FileAbsent { path: shown, errno })?;
            let same = check_file(fd, shown, &record, room);
            sys::close(fd);
            same?;
        }
        Ok(())
    }
}

/// Looks whether an open file is the one that was mapped.
fn check_file<'a>(fd: usize, path: &'a str, record: &Object, room: &mut [u8]) -> Result<(), RestoreError<'a>> {
    let mut stat = [0u64; 18];
    // SAFETY: fstat writes 144 bytes.
    unsafe { sys::call(sys::FSTAT, [fd, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }
        .map_err(|errno| RestoreError::FileUnknown { path, errno })?;
    // struct stat on x86-64: size at 48, mtime at 88.
    let (size, mtime, mtime_ns) = (stat[6], stat[11] as i64, stat[12]);
    let writable = record.flags & object::WRITABLE != 0;
    if size != record.size && !(writable && size > record.size) {
        return Err(RestoreError::FileSize { path, size, saved: record.size });
    }
    if !writable {
        let older = record.flags & object::ELF == 0 && (mtime, mtime_ns) != (record.mtime, record.mtime_ns);
        if older || sample(fd, size, room) != Some(record.sample) {
            return Err(RestoreError::FileChanged { path });
        }
    }
    Ok(())
}

/// Opens a mapped file as its mappings need it.
pub(crate) fn open_object(path: &[u8], record: &Object) -> Result<usize, i32> {
    const O_RDWR: usize = 2;
    const O_CLOEXEC: usize = 0o2_000_000;
    let flags = O_CLOEXEC | if record.flags & object::WRITABLE != 0 { O_RDWR } else { 0 };
    // SAFETY: `Tables::text` made sure that a NUL follows the path.
    unsafe { sys::call(sys::OPEN, [path.as_ptr() as usize, flags, 0, 0, 0, 0]) }
}

/// xxh3-64 of the first and the last [`object::SAMPLE`] bytes, as the agent computed it.
fn sample(fd: usize, size: u64, room: &mut [u8]) -> Option<u64> {
    let length = object::SAMPLE.min(size) as usize;
    let mut hash = Xxh3::new();
    for offset in [0, size - length as u64] {
        let mut done = 0;
        while done < length {
            let rest = &mut room[done..length];
            // SAFETY: reads into `rest`.
            match unsafe { sys::call(sys::PREAD, [fd, rest.as_mut_ptr() as usize, rest.len(), offset as usize + done, 0, 0]) } {
                Ok(0) => return None,
                Ok(count) => done += count,
                Err(sys::EINTR) => {}
                Err(_) => return None,
            }
        }
        hash.update(&room[..length]);
    }
    Some(hash.digest())
}
