//! What a node must have for the rank to go on there: the files and directories that the rank maps and has open, and the kernel's vdso.
//!
//! What an image brings with it is left out: memory with a name, what is in the rank's `/dev/shm`, deleted files, pipes, sockets. So is what
//! every node has by itself: files in `/proc` and `/sys`, harmless devices.

use crate::descriptors::{Descriptors, PathKind, What};
use crate::memory::layout::Layout;
use crate::memory::maps::NODE_MEMORY;
use mend_image::record::object;
use mend_messages::needs::{FileUsage, MAX_FILES, NeededFile};
use std::collections::BTreeSet;

/// Files that are mapped and open, and the working directory.
pub(crate) fn files(layout: &Layout, descriptors: &Descriptors) -> Vec<NeededFile> {
    let mut files = mapped(layout);
    let known: BTreeSet<String> = files.iter().map(|file| file.path.clone()).collect();
    files.extend(open(descriptors).into_iter().filter(|file| !known.contains(&file.path)));
    // A directory that has another name by now is an obstacle, and named as one.
    let working = std::fs::read_link("/proc/self/cwd").ok().and_then(|path| path.into_os_string().into_string().ok());
    files.extend(working.map(|path| NeededFile { path, usage: FileUsage::Directory }));
    files.retain(|file| !file.path.starts_with(NODE_MEMORY));
    files.truncate(MAX_FILES);
    files
}

fn mapped(layout: &Layout) -> Vec<NeededFile> {
    let file = |record: &mend_image::record::Object| {
        let text = layout.strings.get(record.text as usize..(record.text + record.text_length) as usize)?;
        let usage = match record.flags {
            flags if flags & object::FILE == 0 => return None,
            flags if flags & object::WRITABLE != 0 => FileUsage::Written,
            flags => FileUsage::Mapped {
                size: record.size,
                modified: (flags & object::ELF == 0).then_some((record.mtime, record.mtime_ns)),
                sample: record.sample,
            },
        };
        Some(NeededFile { path: std::str::from_utf8(text).ok()?.to_owned(), usage })
    };
    layout.objects.iter().filter_map(file).collect()
}

fn open(descriptors: &Descriptors) -> Vec<NeededFile> {
    let mut found: Vec<NeededFile> = Vec::new();
    for open in &descriptors.opens {
        if let What::Inotify { watches } = &open.what {
            found.extend(watches.iter().map(|watch| NeededFile { path: watch.path.clone(), usage: FileUsage::Place }));
        }
        let What::Path { path, kind, size } = &open.what else { continue };
        if path.starts_with("/proc/") || path.starts_with("/sys/") {
            continue;
        }
        let usage = match kind {
            PathKind::File if open.flags & libc::O_ACCMODE == libc::O_RDONLY => FileUsage::Read { size: *size },
            PathKind::File => FileUsage::Written,
            PathKind::Directory => FileUsage::Directory,
            PathKind::Place => FileUsage::Place,
            // What is not there is replaced by a stream of the job's, or is everywhere.
            PathKind::Device => continue,
        };
        let file = NeededFile { path: path.clone(), usage };
        if !found.contains(&file) {
            found.push(file);
        }
    }
    found
}
