//! The image's address space: mapped, filled, given its final form.

use crate::anonymous::{NO_FILE, advise, advise_anew, discard, map_there};
use crate::arena::Arena;
use crate::fill::Target;
use crate::list::{Array, List};
use crate::present::{Present, identity, staying};
use crate::rounds::{Early, TOP};
use crate::stream::Record;
use crate::tables::{Tables, open_object};
use crate::{RestoreError, sys};
use mend_image::handoff::{Kept, MAX_KEPT};
use mend_image::launch::{Mode, PutBack};
use mend_image::ranges::Range;
use mend_image::record::{Mapping, Object, mapping, object};

/// While it is built.
pub struct Building<'a> {
    tables: Tables<'a>,
    mode: Mode,
    put_back: Option<PutBack>,
    /// Per mapping: 1 if it was made writable to be filled.
    opened: &'a mut [u8],
    /// Descriptors of memory objects, by object, plus one; 0: none.
    memory: &'a mut [u8],
    /// Descriptors that outlive the restore must be above this: the program's own are made again below.
    top: u32,
}

impl<'a> Building<'a> {
    /// Maps everything, empty; what is mapped already is never replaced. The tables have been checked. Descriptors of memory objects stay
    /// open.
    ///
    /// # Errors
    /// What the kernel refuses, or a file that is gone.
    pub fn map(tables: Tables<'a>, arena: &'a Arena, mode: Mode, top: u32) -> Result<Self, RestoreError<'a>> {
        Self::map_around(tables, arena, mode, top, None)
    }

    /// The same around memory that came ahead of the image: what of it has its place there stays.
    ///
    /// # Errors
    /// As for [`Building::map`].
    pub fn map_over(tables: Tables<'a>, arena: &'a Arena, mode: Mode, top: u32, early: &mut Early) -> Result<Self, RestoreError<'a>> {
        early.make_way(tables.mappings())?;
        Self::map_around(tables, arena, mode, top, Some(early))
    }

    fn map_around(
        tables: Tables<'a>,
        arena: &'a Arena,
        mode: Mode,
        top: u32,
        mut early: Option<&mut Early>,
    ) -> Result<Self, RestoreError<'a>> {
        let mut building = Self::new(tables, arena, mode, top)?;
        building.make_objects()?;
        // Mappings of one file follow each other: its descriptor is kept until another is needed.
        let mut last_file = None;
        for (index, record) in tables.mappings().enumerate() {
            if record.flags & (mapping::VDSO | mapping::VVAR) != 0 {
                continue;
            }
            let mapped = early.as_mut().map_or(Ok(false), |early| early.map_in_group(&record))?;
            if mapped {
                // It has its own protection in the end.
                building.opened[index] = u8::from(record.protection as usize != sys::PROT_READ | sys::PROT_WRITE);
            } else {
                building.map_one(&record, &mut last_file)?;
            }
        }
        early.map_or(Ok(()), |early| early.end_groups(TOP))?;
        close_file(&mut last_file);
        Ok(building)
    }

    fn new(tables: Tables<'a>, arena: &'a Arena, mode: Mode, top: u32) -> Result<Self, RestoreError<'a>> {
        let opened = arena.take(tables.mappings().count())?;
        let memory = arena.take(4 * tables.objects().count())?;
        Ok(Self { tables, mode, put_back: None, opened, memory, top })
    }

    /// Files that were put back hold all that was written to them, by other processes, too: what this one saw of them is not written there.
    #[must_use]
    pub fn after(self, put_back: Option<PutBack>) -> Self {
        Self { put_back, ..self }
    }

    /// Whether a file that is mapped holds what it should.
    fn is_settled(&self, object: u32) -> bool {
        let put_back = |put_back: &PutBack| {
            let record = self.tables.objects().nth(object as usize).filter(|record| record.flags & object::KEPT_BESIDE != 0);
            record.and_then(|record| self.tables.text(record.text, record.text_length)).is_some_and(|path| put_back.includes(path))
        };
        // After a migration the file is as the others see it; what this process wrote is in it already.
        self.mode == Mode::Migrate || self.put_back.as_ref().is_some_and(put_back)
    }

    fn make_objects(&mut self) -> Result<(), RestoreError<'a>> {
        let tables = self.tables;
        for (index, record) in tables.objects().enumerate() {
            if record.flags & object::FILE == 0 {
                let fd = self.make_memory(&record)?;
                self.memory[4 * index..4 * index + 4].copy_from_slice(&(fd as u32 + 1).to_le_bytes());
            }
        }
        Ok(())
    }

    /// The same in a process that lives, all of whose threads stand still in the caller's memory. Private memory of the image that is there
    /// stays, with what it holds; the rest is unmapped, and what is missing is mapped, empty. Returns what stayed, too.
    ///
    /// # Errors
    /// As for [`Building::map`]; [`RestoreError::Unmap`].
    pub fn map_in_place(
        tables: Tables<'a>,
        arena: &'a Arena,
        (mode, top): (Mode, u32),
        present: &Present,
    ) -> Result<(Self, Array<'a, Range>), RestoreError<'a>> {
        let mut building = Self::new(tables, arena, mode, top)?;
        building.make_objects()?;
        let mut last_file = None;
        let (stays, ranges) = {
            let file = |record: &Mapping| match building.memory_of(record.object as usize) {
                Some(_) => Ok(None),
                None => Ok(building.file_of(record.object, &mut last_file).ok().and_then(identity)),
            };
            staying(present, &tables, arena, file)?
        };
        present.clear(ranges.all())?;
        for (record, stays) in tables.mappings().zip(stays.iter()) {
            if record.flags & (mapping::VDSO | mapping::VVAR) != 0 {
                continue;
            }
            if *stays == 0 {
                building.map_one(&record, &mut last_file)?;
                continue;
            }
            if !present.is_protected(&record) {
                protect(&record, record.protection as usize)?;
            }
            advise_anew((record.start, record.end), record.flags);
        }
        close_file(&mut last_file);
        Ok((building, ranges))
    }

    /// Lets these pages be as a fresh mapping gives them.
    pub fn empty(&self, pages: &List) {
        for page in pages.all() {
            discard(*page);
        }
    }

    fn make_memory(&self, record: &Object) -> Result<usize, RestoreError<'static>> {
        let named = (record.flags & object::NAMED != 0).then(nameless_file).flatten();
        let name = self.tables.text(record.text, record.text_length).unwrap_or(b"\0");
        const MFD_CLOEXEC_AND_SEALABLE: usize = 3;
        let made = named.map_or_else(
            // SAFETY: a NUL follows the name; the agent cut names to what the kernel takes.
            || unsafe { sys::call(sys::MEMFD_CREATE, [name.as_ptr() as usize, MFD_CLOEXEC_AND_SEALABLE, 0, 0, 0, 0]) },
            Ok,
        );
        let low = made.map_err(|errno| RestoreError::ObjectMake { errno })?;
        let fd = sys::duplicate_above(low, self.top)?;
        sys::close(low);
        // SAFETY: plain numbers.
        unsafe { sys::call(sys::FTRUNCATE, [fd, record.size as usize, 0, 0, 0, 0]) }
            .map_err(|errno| RestoreError::ObjectSize { size: record.size, errno })?;
        Ok(fd)
    }

    fn memory_of(&self, object: usize) -> Option<usize> {
        let raw = self.memory.get(4 * object..4 * object + 4)?;
        let fd = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        fd.checked_sub(1).map(|fd| fd as usize)
    }

    fn map_one(&self, record: &Mapping, last_file: &mut Option<(u32, usize)>) -> Result<(), RestoreError<'a>> {
        let shared = record.flags & mapping::SHARED != 0;
        let mut flags = sys::MAP_FIXED_NOREPLACE | if shared { sys::MAP_SHARED } else { sys::MAP_PRIVATE };
        if record.flags & mapping::RESERVED == 0 {
            flags |= sys::MAP_NORESERVE;
        }
        if record.flags & mapping::GROWS_DOWN != 0 {
            flags |= sys::MAP_GROWSDOWN;
        }
        let mut reader = None;
        let fd = if record.object == mapping::NO_OBJECT {
            flags |= sys::MAP_ANONYMOUS;
            NO_FILE.0
        } else if let Some(fd) = self.memory_of(record.object as usize) {
            let writable = record.flags & mapping::MAY_WRITE != 0 || record.protection as usize & sys::PROT_WRITE != 0;
            let kept = self.tables.objects().nth(record.object as usize).is_some_and(|object| object.flags & object::KEEP != 0);
            if shared && kept && !writable {
                // A mapping that could be made writable would keep the program's memory from being sealed again.
                reader = Some(open_to_read(fd)?);
            }
            reader.unwrap_or(fd)
        } else {
            self.file_of(record.object, last_file)?
        };
        let (start, length) = (record.start, (record.end - record.start) as usize);
        let pool = (record.flags & mapping::POOL != 0).then(|| from_pool(record, flags)).flatten();
        let mapped = match pool {
            Some(address) if address as u64 == start => Ok(()),
            Some(_) => Err(RestoreError::MapThere { length, start }),
            None => map_there((start, length), record.protection as usize, flags, (fd, record.offset)),
        };
        if let Some(fd) = reader {
            // The mapping lives on.
            sys::close(fd);
        }
        mapped?;
        advise(start, length, record.flags);
        Ok(())
    }

    fn file_of(&self, index: u32, last_file: &mut Option<(u32, usize)>) -> Result<usize, RestoreError<'a>> {
        if let Some((known, fd)) = last_file
            && *known == index
        {
            return Ok(*fd);
        }
        close_file(last_file);
        let record = self.tables.objects().nth(index as usize);
        let path = record.and_then(|record| self.tables.text(record.text, record.text_length));
        let (Some(record), Some(path)) = (record, path) else { return Err(RestoreError::NoObject) };
        let shown = core::str::from_utf8(path).unwrap_or("a file");
        let fd = open_object(path, &record).map_err(|errno| RestoreError::FileGone { path: shown, errno })?;
        *last_file = Some((index, fd));
        Ok(fd)
    }

    fn open(&mut self, index: usize, mapped: &Mapping) -> Result<(), RestoreError<'static>> {
        if mapped.protection as usize & sys::PROT_WRITE == 0 && self.opened[index] == 0 {
            protect(mapped, sys::PROT_READ | sys::PROT_WRITE)?;
            self.opened[index] = 1;
        }
        Ok(())
    }

    /// Gives every mapping its final protection. Returns how many memory objects the agent needs a descriptor of, and names them in `kept`;
    /// closes the others.
    ///
    /// # Errors
    /// What the kernel refuses; [`RestoreError::ManyObjects`].
    pub fn finish(&mut self, kept: &mut [Kept; MAX_KEPT]) -> Result<usize, RestoreError<'static>> {
        for (index, record) in self.tables.mappings().enumerate() {
            if self.opened[index] != 0 {
                protect(&record, record.protection as usize)?;
            }
            if record.flags & mapping::LOCKED != 0 {
                let on_fault = usize::from(record.flags & mapping::LOCK_ON_FAULT != 0);
                let range = [record.start as usize, (record.end - record.start) as usize];
                // SAFETY: pins memory of the image. Refused beyond RLIMIT_MEMLOCK; then it is merely not pinned.
                let _ = unsafe { sys::call(sys::MLOCK2, [range[0], range[1], on_fault, 0, 0, 0]) };
            }
        }
        let mut count = 0;
        for (index, record) in self.tables.objects().enumerate() {
            let Some(fd) = self.memory_of(index) else { continue };
            if record.flags & object::KEEP != 0 {
                if count == MAX_KEPT {
                    return Err(RestoreError::ManyObjects);
                }
                kept[count] = Kept { object: index as u32, fd: fd as i32 };
                count += 1;
            } else {
                // The mappings live on.
                sys::close(fd);
            }
        }
        Ok(count)
    }
}

// SAFETY: what is admitted lies in mappings of the image, which `Building::map` made where nothing was, and nobody runs in them yet.
unsafe impl Target for Building<'_> {
    /// False if the file that the pages belong to has them.
    fn admits(&mut self, record: &Record) -> Result<bool, RestoreError<'static>> {
        let head = &record.head;
        let (index, mapped) = self.tables.mapping_of(head.address, head.length).ok_or_else(|| record.inconsistent())?;
        if mapped.flags & (mapping::VDSO | mapping::VVAR) != 0 {
            return Err(record.inconsistent());
        }
        let file = mapped.object != mapping::NO_OBJECT && self.memory_of(mapped.object as usize).is_none();
        if file && mapped.flags & mapping::SHARED != 0 && self.is_settled(mapped.object) {
            return Ok(false);
        }
        self.open(index, &mapped)?;
        Ok(true)
    }

    fn open_private(&mut self, (start, end): Range) -> Result<bool, RestoreError<'static>> {
        let mut at = start;
        while at < end {
            let Some((index, mapped)) = self.tables.mapping_of(at, 4096) else { return Ok(false) };
            if mapped.flags & (mapping::VDSO | mapping::VVAR | mapping::SHARED) != 0 {
                return Ok(false);
            }
            self.open(index, &mapped)?;
            at = mapped.end;
        }
        Ok(true)
    }

    fn object_of(&self, record: &Record) -> Result<Option<usize>, RestoreError<'static>> {
        self.memory_of(record.head.index as usize).map(Some).ok_or_else(|| record.inconsistent())
    }
}

fn protect(record: &Mapping, protection: usize) -> Result<(), RestoreError<'static>> {
    // SAFETY: changes only the protection of a mapping of the image.
    unsafe { sys::call(sys::MPROTECT, [record.start as usize, (record.end - record.start) as usize, protection, 0, 0, 0]) }
        .map(drop)
        .map_err(|errno| RestoreError::Protect { start: record.start, errno })
}

/// A file in `/dev/shm` that can be given a name there, if the rank may make one.
fn nameless_file() -> Option<usize> {
    const O_TMPFILE_RDWR_CLOEXEC: usize = 0x41_0000 | 2 | 0x8_0000;
    // SAFETY: the path ends with a NUL.
    unsafe { sys::call(sys::OPEN, [c"/dev/shm".as_ptr() as usize, O_TMPFILE_RDWR_CLOEXEC, 0o600, 0, 0, 0]) }.ok()
}

/// Memory of a huge page pool, if there is enough.
fn from_pool(record: &Mapping, flags: usize) -> Option<usize> {
    const MAP_HUGETLB: usize = 0x4_0000;
    const SHIFT: u32 = 26;
    // With reservation: without, an empty pool would end the process later.
    let flags = flags & !sys::MAP_NORESERVE | MAP_HUGETLB | (record.page_shift as usize & 0x3f) << SHIFT;
    let length = (record.end - record.start) as usize;
    // SAFETY: MAP_FIXED_NOREPLACE: replaces nothing.
    unsafe { sys::call(sys::MMAP, [record.start as usize, length, record.protection as usize, flags, usize::MAX, 0]) }.ok()
}

/// Another descriptor of memory, through which it cannot be written.
fn open_to_read(fd: usize) -> Result<usize, RestoreError<'static>> {
    const O_CLOEXEC: usize = 0o2_000_000;
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let (mut digits, mut rest) = ([0u8; 10], fd);
    let mut count = 0;
    while count == 0 || rest > 0 {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    for index in 0..count {
        path[14 + index] = digits[count - 1 - index];
    }
    // SAFETY: a NUL-terminated path.
    unsafe { sys::call(sys::OPEN, [path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0]) }.map_err(|errno| RestoreError::ObjectRead { errno })
}

fn close_file(last_file: &mut Option<(u32, usize)>) {
    if let Some((_, fd)) = last_file.take() {
        sys::close(fd);
    }
}
