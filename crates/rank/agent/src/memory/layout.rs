//! From areas to records: which mapping comes back as what, and which of its pages are stored.

use crate::memory::file_fingerprints::DescribedFiles;
use crate::memory::maps::{Advice, Area, NODE_MEMORY};
use mend_image::record::{Mapping, Object, mapping, object};
use std::collections::HashMap;
use std::io;

/// Most bytes of a memfd's name, as memfd_create(2) has it.
const MAX_MEMFD_NAME_BYTES: usize = 249;

/// Which pages of a mapping the image holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// None: the file has them, or nobody needs them.
    Nothing,
    /// Populated pages that aren't all zero.
    Populated,
    /// The same, but they may vanish while they are written.
    Fleeting,
    /// Pages that no longer are the file's, zero or not.
    Changed,
    /// All that can be read, but for zero pages: its source will not exist.
    Everything,
    /// Populated or resident pages of shared memory.
    Shared,
}

/// One mapping and what is stored of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappingPlan {
    pub mapping: Mapping,
    pub content: Content,
    /// May be in huge pages.
    pub huge: bool,
}

/// Mappings, the objects they refer to, and the texts of those.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub plans: Vec<MappingPlan>,
    pub objects: Vec<Object>,
    pub strings: Vec<u8>,
    /// A zone of addresses in which there is nothing ([`mend_image::ZONES`]).
    pub zone: u32,
    by_path: HashMap<String, u32>,
    by_identity: HashMap<(u64, u64), u32>,
}

/// A mapping that cannot be saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayoutError {
    #[error("{name} is mapped at {start:#x}: {why}")]
    Unsupported { name: String, start: u64, why: &'static str },
    #[error("mapped file {path} cannot be read")]
    File { path: String, source: io::Error },
    #[error("the program has memory in all {} zones of addresses that a restart could use", mend_image::ZONES.len())]
    Zones,
}

impl LayoutError {
    pub fn hint(&self) -> &'static str {
        match self {
            LayoutError::Unsupported { .. } => "use a build or setting of the program that does without it",
            LayoutError::File { source, .. } if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {
                "keep the files that a program maps readable"
            }
            LayoutError::File { source, .. } => mend_report::process_hint(source),
            LayoutError::Zones => "report this program: it places memory wherever Mend's restorer could work",
        }
    }
}

fn free_zone(areas: &[Area]) -> Result<u32, LayoutError> {
    mend_image::free_zone(areas.iter().map(|area| (area.start, area.end))).ok_or(LayoutError::Zones)
}

impl Layout {
    /// Plans every area. `excluded` (ascending, disjoint) come back as empty private memory.
    pub fn plan(areas: &[Area], advice: &Advice, excluded: &[(u64, u64)], files: &mut DescribedFiles) -> Result<Self, LayoutError> {
        let mut layout = Layout { zone: free_zone(areas)?, ..Layout::default() };
        for area in areas {
            layout.plan_area(area, advice, excluded, files)?;
        }
        Ok(layout)
    }

    /// Plans what can be planned, and tells all that stands in the way of the rest. Each file is examined once, however often it is mapped.
    pub fn survey(areas: &[Area], advice: &Advice, files: &mut DescribedFiles) -> (Self, Vec<LayoutError>) {
        let mut layout = Layout::default();
        let mut errors: Vec<LayoutError> = free_zone(areas).err().into_iter().collect();
        for area in areas {
            if !errors.iter().any(|error| matches!(error, LayoutError::File { path, .. } if *path == area.name)) {
                errors.extend(layout.plan_area(area, advice, &[], files).err());
            }
        }
        (layout, errors)
    }

    fn plan_area(&mut self, area: &Area, advice: &Advice, excluded: &[(u64, u64)], files: &mut DescribedFiles) -> Result<(), LayoutError> {
        if area.name == "[vsyscall]" {
            return Ok(());
        }
        let whole = excluded.iter().any(|(start, end)| *start <= area.start && *end >= area.end);
        let template = if whole {
            MappingPlan { mapping: self.record(area, 0), content: Content::Nothing, huge: false }
        } else {
            self.classify(area, advice, files)?
        };
        // Shared memory is excluded as a whole or not at all; private memory may hold an excluded part.
        let mut at = area.start;
        for (start, end) in excluded.iter().filter(|(start, end)| *start < area.end && *end > area.start) {
            let (start, end) = ((*start).max(area.start), (*end).min(area.end));
            self.push(&template, area, at, start);
            let empty = Mapping { flags: 0, object: mapping::NO_OBJECT, offset: 0, ..template.mapping };
            self.push(&MappingPlan { mapping: empty, content: Content::Nothing, huge: false }, area, start, end);
            at = end;
        }
        self.push(&template, area, at, area.end);
        Ok(())
    }

    fn push(&mut self, template: &MappingPlan, area: &Area, start: u64, end: u64) {
        if start < end {
            let offset = if template.mapping.object == mapping::NO_OBJECT { 0 } else { area.offset + (start - area.start) };
            self.plans.push(MappingPlan { mapping: Mapping { start, end, offset, ..template.mapping }, ..*template });
        }
    }

    fn classify(&mut self, area: &Area, advice: &Advice, files: &mut DescribedFiles) -> Result<MappingPlan, LayoutError> {
        let advised = area.advised(advice);
        let mut record = self.record(area, advised.flags | if area.shared { mapping::SHARED } else { 0 });
        if area.name == "[stack]" {
            record.flags |= mapping::GROWS_DOWN;
        }
        let content = if area.is_vdso() || area.is_vvar() {
            record.flags = if area.is_vdso() { mapping::VDSO } else { mapping::VVAR };
            Content::Nothing
        } else if let Some(why) = unsupported(area).or(advised.obstacle) {
            return Err(LayoutError::Unsupported { name: area.name.clone(), start: area.start, why });
        } else if area.is_private_pool() {
            record.flags |= mapping::POOL;
            record.page_shift = advised.page_shift;
            Content::Populated
        } else if area.is_anonymous() {
            if advised.fleeting { Content::Fleeting } else { Content::Populated }
        } else if area.is_shared_memory() {
            record.object = self.memory_object(area);
            Content::Shared
        } else if area.deleted || area.name.starts_with(NODE_MEMORY) {
            Content::Everything
        } else {
            if advised.page_shift != 12 {
                let why = "a file in a huge page pool cannot be saved";
                return Err(LayoutError::Unsupported { name: area.name.clone(), start: area.start, why });
            }
            record.object = self.file_object(area, record.flags & mapping::MAY_WRITE != 0, files)?;
            match (area.shared, area.protection & libc::PROT_WRITE as u32 != 0) {
                (false, _) => Content::Changed,
                (true, true) => Content::Populated,
                (true, false) => Content::Nothing,
            }
        };
        Ok(MappingPlan { mapping: record, content, huge: advised.huge })
    }

    fn record(&self, area: &Area, flags: u32) -> Mapping {
        Mapping {
            start: area.start,
            end: area.end,
            offset: area.offset,
            protection: area.protection,
            flags,
            object: mapping::NO_OBJECT,
            page_shift: 0,
        }
    }

    fn memory_object(&mut self, area: &Area) -> u32 {
        let end = area.offset + (area.end - area.start);
        if let Some(index) = self.by_identity.get(&area.identity) {
            let object = &mut self.objects[*index as usize];
            object.size = object.size.max(end);
            return *index;
        }
        let name = [NODE_MEMORY, "/memfd:"].iter().find_map(|prefix| area.name.strip_prefix(prefix)).unwrap_or("shared");
        self.memory(area.identity, name, end)
    }

    /// Adds memory that the restorer makes anew, unless it is known already.
    pub fn memory(&mut self, identity: (u64, u64), name: &str, size: u64) -> u32 {
        if let Some(index) = self.by_identity.get(&identity) {
            let object = &mut self.objects[*index as usize];
            object.size = object.size.max(size);
            return *index;
        }
        let (text, text_length) = self.text(cut(name, MAX_MEMFD_NAME_BYTES));
        let object = Object { flags: 0, text, text_length, mode: 0, size, mtime: 0, mtime_ns: 0, sample: 0 };
        let index = self.add(object);
        self.by_identity.insert(identity, index);
        index
    }

    /// The memory that is known by this identity.
    pub fn known_memory(&self, identity: (u64, u64)) -> Option<u32> {
        self.by_identity.get(&identity).copied()
    }

    fn file_object(&mut self, area: &Area, may_write: bool, files: &mut DescribedFiles) -> Result<u32, LayoutError> {
        let writable = area.shared && (may_write || area.protection & libc::PROT_WRITE as u32 != 0);
        let flags = object::FILE | if writable { object::WRITABLE } else { 0 };
        if let Some(index) = self.by_path.get(&area.name) {
            self.objects[*index as usize].flags |= flags;
            return Ok(*index);
        }
        let failed = |source| LayoutError::File { path: area.name.clone(), source };
        let mut object = files.describe(&area.name).map_err(failed)?;
        object.flags |= flags;
        (object.text, object.text_length) = self.text(&area.name);
        let index = self.add(object);
        self.by_path.insert(area.name.clone(), index);
        Ok(index)
    }

    /// Says of files that are mapped and written, and which of these a checkpoint keeps.
    pub fn mark_kept(&mut self, written: &[(String, u64)]) {
        let Self { objects, strings, .. } = self;
        for object in objects.iter_mut().filter(|object| object.flags & object::WRITABLE != 0) {
            let path = strings.get(object.text as usize..).and_then(|rest| rest.get(..object.text_length as usize));
            if written.iter().any(|(kept, _)| Some(kept.as_bytes()) == path) {
                object.flags |= object::KEPT_BESIDE;
            }
        }
    }

    fn add(&mut self, object: Object) -> u32 {
        self.objects.push(object);
        (self.objects.len() - 1) as u32
    }

    /// Stores a text; returns where it is.
    pub fn text(&mut self, text: &str) -> (u32, u32) {
        let at = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        // Paths are handed to the kernel as they stand here.
        self.strings.push(0);
        (at, text.len() as u32)
    }
}

/// At most so many bytes of a text, whole characters.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Why an area cannot be saved, if so.
fn unsupported(area: &Area) -> Option<&'static str> {
    if area.end > mend_image::END_OF_ADDRESSES {
        return Some("memory beyond 2^47 (5-level page tables) cannot be saved yet");
    }
    let name = area.name.as_str();
    if name.starts_with("/SYSV") {
        return Some("System V shared memory belongs to several processes");
    }
    if name == "/[aio]" || name.starts_with("anon_inode:") || name.starts_with("socket:") || name == "[uprobes]" {
        return Some("memory shared with the kernel cannot be saved");
    }
    if name == "/secretmem" {
        return Some("secret memory (memfd_secret) cannot be read");
    }
    if name.starts_with("/dev/") && name != "/dev/zero" && !name.starts_with("/dev/shm/") {
        return Some("device memory cannot be saved");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::file_fingerprints::FileFingerprints;
    use crate::memory::maps;

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!((cut("short", 249), cut("aäb", 2), cut("aäb", 3), cut("", 3)), ("short", "a", "aä", ""));
    }

    #[test]
    fn a_survey_names_every_obstacle_and_looks_at_each_file_once() {
        let file = std::env::current_exe().unwrap();
        let file = file.display();
        let text = format!(
            "555555554000-555555555000 r--p 00000000 08:01 41 {file}\n\
             555555555000-555555556000 r-xp 00001000 08:01 41 {file}\n\
             555555556000-555555557000 rw-p 00002000 08:01 41 {file}\n\
             7f0000000000-7f0000001000 rw-s 00000000 00:01 42 /SYSV00000000\n\
             7f0000001000-7f0000002000 r--p 00000000 08:01 43 /nonexistent/library.so\n\
             7f0000002000-7f0000003000 r-xp 00001000 08:01 43 /nonexistent/library.so\n\
             7f0000003000-7f0000004000 rw-s 00000000 00:05 44 /dev/accelerator\n\
             ffff00000000-ffff00001000 rw-p 00000000 00:00 0 \n"
        );
        let areas = maps::parse_all(text.as_bytes()).unwrap();
        let (layout, errors) = Layout::survey(&areas, &Advice::new(), &mut FileFingerprints::default().files(&[]));
        assert_eq!((layout.plans.len(), layout.objects.len()), (3, 1));
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 4, "{told:?}");
        for (error, name) in told.iter().zip(["/SYSV00000000", "/nonexistent/library.so", "/dev/accelerator", "0xffff00000000"]) {
            assert!(error.contains(name), "{told:?}");
        }
    }
}
