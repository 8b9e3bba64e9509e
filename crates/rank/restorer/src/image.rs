//! The image's tables, checked as far as the restorer relies on them.

use crate::report::fail;
use crate::stream::Stream;
use crate::sys;
use core::format_args as text;
use mend_image::ZONE;
use mend_image::fixed::Fixed;
use mend_image::handoff::{Context, Handoff};
use mend_image::launch::Failure;
use mend_image::record::{Mapping, Object, Process, Thread, mapping, object};
use xxhash_rust::xxh3::Xxh3;

/// Highest address of user space with 4-level page tables.
const TOP: u64 = 0x7fff_ffff_f000;

/// Everything before the pages.
#[derive(Clone, Copy)]
pub struct Tables {
    pub strings: &'static [u8],
    pub objects: &'static [u8],
    pub mappings: &'static [u8],
    pub threads: &'static [u8],
    pub process: &'static [u8],
}

fn records<T: Fixed>(table: &'static [u8]) -> impl Iterator<Item = T> + Clone {
    table.chunks_exact(T::SIZE).filter_map(|raw| T::decode(raw).ok())
}

impl Tables {
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + Clone + use<> {
        records(self.mappings)
    }

    pub fn objects(&self) -> impl Iterator<Item = Object> + Clone + use<> {
        records(self.objects)
    }

    pub fn threads(&self) -> impl Iterator<Item = Thread> + Clone + use<> {
        records(self.threads)
    }

    pub fn process(&self) -> Option<Process> {
        Process::decode(self.process).ok()
    }

    /// Index and record of the mapping that holds the whole range.
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
    pub fn text(&self, offset: u32, length: u32) -> Option<&'static [u8]> {
        let whole = self.strings.get(offset as usize..)?.get(..length as usize + 1)?;
        whole.ends_with(&[0]).then(|| &whole[..length as usize])
    }

    /// Refuses tables that would make the restorer harm itself.
    pub fn check(&self, stream: &Stream) -> Process {
        let mut last = 0;
        let objects = self.objects().count();
        for record in self.mappings() {
            let aligned = (record.start | record.end | record.offset).is_multiple_of(4096);
            let ordered = last <= record.start && record.start < record.end && record.end <= TOP;
            let known = record.object == mapping::NO_OBJECT || (record.object as usize) < objects;
            if !aligned || !ordered || !known || (record.start < ZONE.1 && record.end > ZONE.0) {
                stream.inconsistent();
            }
            last = record.end;
        }
        let plain = |address: u64, length: usize| {
            self.mapping_of(address, length as u64).is_some_and(|(_, found)| found.flags & (mapping::VDSO | mapping::VVAR) == 0)
        };
        if self.threads().count() == 0 || self.threads().any(|thread| !plain(thread.context, size_of::<Context>())) {
            stream.inconsistent();
        }
        match self.process() {
            Some(process) if plain(process.handoff, size_of::<Handoff>()) && process.handoff.is_multiple_of(8) => process,
            _ => stream.inconsistent(),
        }
    }

    /// Looks whether each file that the image maps is there and is the one that was mapped.
    pub fn check_files(&self, stream: &Stream, room: &mut [u8]) {
        for record in self.objects().filter(|record| record.flags & object::FILE != 0) {
            let Some(path) = self.text(record.text, record.text_length) else { stream.inconsistent() };
            let shown = core::str::from_utf8(path).unwrap_or("a file whose name is not UTF-8");
            let fd = open_object(path, &record)
                .unwrap_or_else(|errno| fail(Failure::File, errno, text!("{shown}, which the saved process has mapped, cannot be opened")));
            let mut stat = [0u64; 18];
            // SAFETY: fstat writes 144 bytes.
            if let Err(errno) = unsafe { sys::call(sys::FSTAT, [fd, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) } {
                fail(Failure::File, errno, text!("{shown} cannot be examined"));
            }
            // struct stat on x86-64: size at 48, mtime at 88.
            let (size, mtime, mtime_ns) = (stat[6], stat[11] as i64, stat[12]);
            let writable = record.flags & object::WRITABLE != 0;
            if size != record.size && !(writable && size > record.size) {
                fail(Failure::File, 0, text!("{shown} has {size} bytes, the one that the saved process has mapped had {}", record.size));
            }
            if !writable {
                let older = record.flags & object::ELF == 0 && (mtime, mtime_ns) != (record.mtime, record.mtime_ns);
                if older || sample(fd, size, room) != Some(record.sample) {
                    fail(
                        Failure::File,
                        0,
                        text!("{shown} is not the file that the saved process has mapped: it was changed or is another build"),
                    );
                }
            }
            // SAFETY: our own descriptor.
            let _ = unsafe { sys::call(sys::CLOSE, [fd, 0, 0, 0, 0, 0]) };
        }
    }
}

/// Opens a mapped file as its mappings need it.
pub fn open_object(path: &[u8], record: &Object) -> Result<usize, i32> {
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
