//! Compares what a rank needs that may move here with what is here, as its restorer would find it: ranks see the files that this daemon sees,
//! but for their `/dev/shm` and `/proc`, of which nothing is asked.
//!
//! Faults assumed: file systems are slow or hang, so this runs in a thread of its own and the controller waits only so long; files change
//! meanwhile, which the restorer finds; paths are of any length and lead anywhere, so nothing but regular files is opened.

use mend_kernel::sample::Sample;
use mend_kernel::vdso;
use mend_messages::needs::{Difference, FileDifference, FileUsage, MAX_DIFFERENCES, NeededFile, NodeNeeds};
use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions, metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// What is not the same here, the first of it.
pub fn differences(needs: &NodeNeeds) -> Vec<Difference> {
    let release = || rustix::system::uname().release().to_string_lossy().into_owned();
    // Where it is not known here the restorer will tell.
    let other_kernel = needs.vdso.is_some_and(|vdso| vdso::identity().is_some_and(|own| own != vdso));
    let kernel = other_kernel.then(|| Difference::Kernel { release: release() });
    let file = |file: &NeededFile| Some(Difference::File { path: file.path.clone(), what: differs(file)? });
    kernel.into_iter().chain(needs.files.iter().filter_map(file)).take(MAX_DIFFERENCES).collect()
}

fn differs(file: &NeededFile) -> Option<FileDifference> {
    let found = match metadata(&file.path) {
        Ok(found) => found,
        Err(error) => return Some(failed(&error)),
    };
    match &file.usage {
        FileUsage::Place => None,
        FileUsage::Directory => (!found.is_dir()).then_some(FileDifference::Kind),
        _ if !found.is_file() => Some(FileDifference::Kind),
        FileUsage::Written => None,
        // Opened, as a network file system may tell only then how long it is now.
        FileUsage::Read { size } => match open(&file.path).and_then(|opened| opened.metadata()) {
            Ok(now) => (now.len() < *size).then_some(FileDifference::Size { there: now.len(), here: *size }),
            Err(error) => Some(failed(&error)),
        },
        FileUsage::Mapped { size, modified, sample } => match look(&file.path) {
            Ok((now, _)) if now.len() != *size => Some(FileDifference::Size { there: now.len(), here: *size }),
            Ok((now, here)) => {
                let other_time = modified.is_some_and(|modified| modified != (now.mtime(), now.mtime_nsec() as u64));
                (other_time || here != *sample).then_some(FileDifference::Content)
            }
            Err(error) => Some(failed(&error)),
        },
    }
}

fn failed(error: &io::Error) -> FileDifference {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FileDifference::Absent,
        _ => FileDifference::Unreadable(error.to_string()),
    }
}

/// It was a regular file a moment ago; whatever it is by now, this does not wait.
fn open(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32).open(path)
}

/// A file's length and times, and the hash of its beginning and end as images have it.
fn look(path: &str) -> io::Result<(Metadata, u64)> {
    let file = open(path)?;
    let found = file.metadata()?;
    let hash = Sample::of(&file, found.len())?.hash;
    Ok((found, hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, SystemTime};

    fn mapped(path: &str, elf: bool) -> NeededFile {
        let (found, sample) = look(path).unwrap();
        let modified = (!elf).then(|| (found.mtime(), found.mtime_nsec() as u64));
        NeededFile { path: path.into(), usage: FileUsage::Mapped { size: found.len(), modified, sample } }
    }

    #[test]
    fn what_is_not_the_same_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (file, other) = (path("file"), path("other"));
        std::fs::write(&file, vec![7; 200_000]).unwrap();
        let (program, data) = (mapped(&file, true), mapped(&file, false));
        let needed = |path: &str, usage| NeededFile { path: path.into(), usage };
        let whole = directory.path().to_str().unwrap();
        let uses = [
            needed(&file, FileUsage::Read { size: 200_000 }),
            needed(&file, FileUsage::Read { size: 1 }),
            needed(&file, FileUsage::Written),
            needed(whole, FileUsage::Directory),
            needed(whole, FileUsage::Place),
            program.clone(),
            data.clone(),
        ];
        for file in &uses {
            assert_eq!(differs(file), None, "{file:?}");
        }
        assert_eq!(differs(&needed(&other, FileUsage::Written)), Some(FileDifference::Absent));
        assert_eq!(differs(&needed(&format!("{file}/below"), FileUsage::Place)), Some(FileDifference::Absent));
        assert_eq!(differs(&needed(whole, FileUsage::Written)), Some(FileDifference::Kind));
        assert_eq!(differs(&needed(&file, FileUsage::Directory)), Some(FileDifference::Kind));
        let longer = FileDifference::Size { there: 200_000, here: 200_001 };
        assert_eq!(differs(&needed(&file, FileUsage::Read { size: 200_001 })), Some(longer));
        // Installed at another time: of a program that is nothing.
        let opened = File::options().write(true).open(&file).unwrap();
        opened.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(5)).unwrap();
        assert_eq!((differs(&program), differs(&data)), (None, Some(FileDifference::Content)));
        opened.write_all_at(b"x", 199_999).unwrap();
        assert_eq!(differs(&program), Some(FileDifference::Content));
        opened.set_len(100).unwrap();
        assert_eq!(differs(&program), Some(FileDifference::Size { there: 100, here: 200_000 }));
    }

    #[test]
    fn the_kernel_is_compared_and_not_all_is_told() {
        let own = vdso::identity();
        assert_eq!(differences(&NodeNeeds { vdso: own, ..NodeNeeds::default() }), []);
        let absent = |number: usize| NeededFile { path: format!("/no/such/{number}"), usage: FileUsage::Written };
        let needs = NodeNeeds { vdso: Some((1, 2)), files: (0..20).map(absent).collect(), ..NodeNeeds::default() };
        let found = differences(&needs);
        assert_eq!(found.len(), MAX_DIFFERENCES);
        assert_eq!(matches!(found[0], Difference::Kernel { .. }), own.is_some());
    }
}
