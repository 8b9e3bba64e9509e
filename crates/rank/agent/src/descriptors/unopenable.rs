//! Files that look like others and cannot be opened again.

use mend_freestanding::syscall;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{FileType, Stat};

/// A file that looks like others and cannot be opened again; what it is, and a hint.
pub(crate) fn obstacle(fd: BorrowedFd, stat: &Stat, link: &str) -> Option<(String, &'static str)> {
    const MQUEUE_MAGIC: u64 = 0x1980_0202;
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Directory {
        // Who asks for F_NOTIFY becomes the one who is told; nothing else tells of it.
        // SAFETY: takes numbers.
        let owner = unsafe { syscall(libc::SYS_fcntl, [fd.as_raw_fd() as usize, libc::F_GETOWN as usize, 0, 0, 0, 0]) };
        return (owner != 0).then(|| (format!("directory watched by F_NOTIFY {link}"), "watch directories with inotify"));
    }
    if link.starts_with("/secretmem") {
        return Some(("secret memory (memfd_secret)".to_string(), "use ordinary memory: what is secret cannot be read, even by its owner"));
    }
    if kind != FileType::RegularFile {
        return None;
    }
    match rustix::fs::fstatfs(fd).ok()?.f_type as u64 {
        MQUEUE_MAGIC => Some((format!("POSIX message queue {link}"), "close message queues before a checkpoint")),
        HUGETLBFS_MAGIC => Some((format!("file in a huge page pool {link}"), "use anonymous memory with MAP_HUGETLB")),
        _ => None,
    }
}
