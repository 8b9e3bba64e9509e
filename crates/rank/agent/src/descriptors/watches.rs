//! inotify(7): which files a descriptor watches, and watching them again.
//!
//! The kernel tells device and inode of what is watched, not its path. The path is looked for where programs watch things:
//! the working directory, the directories of open files, what command line and environment name, the usual temporary places,
//! and below all of them to a bounded depth. A watch whose file isn't found there is an obstacle, and so are events that were
//! not read: they cannot be put back.

use crate::process::tasks::entries_in;
use rustix::fs::{AtFlags, CWD, statat};
use std::collections::{HashSet, VecDeque};

/// Directory entries read before the search is given up.
const MAX_SEARCHED_ENTRIES: usize = 50_000;
/// Directories below a starting point.
const MAX_SEARCH_DEPTH: usize = 3;
/// Numbers of watches grow by one with each that is made, and must come out as they were.
const MAX_WATCH_NUMBER: i32 = 100_000;

/// One watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub number: i32,
    pub mask: u32,
    pub path: String,
}

/// As fdinfo has it: "inotify wd:1 ino:23a sdev:800001 mask:3ce ignored_mask:0 …"
fn parse(line: &str) -> Option<(i32, u64, u64, u32)> {
    let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
    let number = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
    let device = number("sdev:")?;
    // The kernel's own form: 20 bits of minor number.
    let device = rustix::fs::makedev((device >> 20) as u32, (device & 0xf_ffff) as u32);
    Some((number("wd:")? as i32, device, number("ino:")?, number("mask:")? as u32))
}

/// The watches in the text of a descriptor's fdinfo. `open_files` are paths where something is likely to be found.
pub(crate) fn find(info: &str, open_files: &[String]) -> Result<Vec<Watch>, &'static str> {
    let mut watches = Vec::new();
    for line in info.lines().filter(|line| line.starts_with("inotify ")) {
        let (number, device, inode, mask) = parse(line).ok_or("inotify watch of an unknown form")?;
        if number > MAX_WATCH_NUMBER {
            return Err("inotify descriptor that has made very many watches");
        }
        let path = search(device, inode, open_files).ok_or("inotify watch of a file that cannot be found by its path")?;
        watches.push(Watch { number, mask, path });
    }
    watches.sort_by_key(|watch| watch.number);
    Ok(watches)
}

fn is(path: &str, device: u64, inode: u64) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_dev == device && stat.st_ino == inode)
}

fn search(device: u64, inode: u64, open_files: &[String]) -> Option<String> {
    let starts = starts(open_files);
    if let Some(path) = starts.iter().find(|path| is(path, device, inode)) {
        return Some(path.clone());
    }
    let mut seen: HashSet<(u64, u64)> = HashSet::new();
    let mut queue: VecDeque<(String, usize)> = starts.into_iter().map(|path| (path, MAX_SEARCH_DEPTH)).collect();
    let mut searched = 0;
    while let Some((directory, depth)) = queue.pop_front() {
        let Ok(stat) = statat(CWD, directory.as_str(), AtFlags::empty()) else { continue };
        if stat.st_dev != device || !seen.insert((stat.st_dev, stat.st_ino)) {
            continue;
        }
        for entry in entries_in(&directory).unwrap_or_default() {
            let path = format!("{}/{}", directory.trim_end_matches('/'), entry.name);
            if entry.inode == inode && is(&path, device, inode) {
                return Some(path);
            }
            if entry.directory && depth > 0 {
                queue.push_back((path, depth - 1));
            }
            searched += 1;
            if searched > MAX_SEARCHED_ENTRIES {
                return None;
            }
        }
    }
    None
}

/// Where the search begins: most likely places first, each with all directories above it at the end.
fn starts(open_files: &[String]) -> Vec<String> {
    let mut starts = Vec::new();
    let link = |path: &str| rustix::fs::readlink(path, Vec::new()).ok().and_then(|link| link.into_string().ok());
    let working = link("/proc/self/cwd").unwrap_or_else(|| "/".to_string());
    starts.push(working.clone());
    starts.extend(open_files.iter().cloned());
    for source in ["/proc/self/cmdline", "/proc/self/environ"] {
        let text = std::fs::read(source).unwrap_or_default();
        for word in text.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()) {
            let value = word.split_once('=').map_or(word, |(_, value)| value);
            if value.starts_with('/') && !value.contains(':') {
                starts.push(value.to_string());
            } else if source.ends_with("cmdline") && !value.is_empty() {
                starts.push(format!("{working}/{value}"));
            }
        }
    }
    starts.extend(["/tmp", "/var/tmp", "/dev/shm", "/etc"].map(str::to_string));
    let above: Vec<String> = starts.iter().flat_map(|path| parents(path)).collect();
    starts.extend(above);
    let mut known = HashSet::new();
    starts.retain(|path| known.insert(path.clone()));
    starts
}

fn parents(path: &str) -> Vec<String> {
    let mut parents: Vec<String> =
        path.match_indices('/').map(|(at, _)| path[..at].to_string()).filter(|parent| !parent.is_empty()).collect();
    parents.reverse();
    parents
}

/// Makes the watches again, each with its number.
pub(crate) fn watch(fd: &rustix::fd::OwnedFd, watches: &[Watch]) -> Result<(), (String, rustix::io::Errno)> {
    use rustix::fs::inotify::{WatchFlags, add_watch, remove_watch};
    for watch in watches {
        let failed = |errno| (watch.path.clone(), errno);
        loop {
            let made = add_watch(fd, watch.path.as_str(), WatchFlags::from_bits_retain(watch.mask)).map_err(failed)?;
            if made == watch.number {
                break;
            }
            if made > watch.number {
                return Err(failed(rustix::io::Errno::EXIST));
            }
            remove_watch(fd, made).map_err(failed)?;
        }
    }
    // What was removed on the way has left events.
    let mut room = vec![0; 4096];
    while rustix::io::ioctl_fionread(fd).unwrap_or(0) > 0 {
        rustix::io::read(fd, &mut room).map_err(|errno| ("inotify".to_string(), errno))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify;

    #[test]
    fn a_watch_is_found_and_made_again_with_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        let file = below.join("file");
        std::fs::write(&file, "x").unwrap();
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        let first = inotify::add_watch(&fd, directory.path(), inotify::WatchFlags::CREATE).unwrap();
        inotify::add_watch(&fd, &file, inotify::WatchFlags::MODIFY | inotify::WatchFlags::CLOSE_WRITE).unwrap();
        inotify::remove_watch(&fd, first).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", rustix::fd::AsRawFd::as_raw_fd(&fd))).unwrap();
        let found = find(&info, &[directory.path().join("other").to_str().unwrap().to_string()]).unwrap();
        let expected = Watch { number: 2, mask: 0xa, path: file.to_str().unwrap().to_string() };
        assert_eq!(found, [expected]);
        let again = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        watch(&again, &found).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", rustix::fd::AsRawFd::as_raw_fd(&again))).unwrap();
        assert_eq!(find(&info, &[below.to_str().unwrap().to_string()]).unwrap(), found);
        assert_eq!(rustix::io::ioctl_fionread(&again).unwrap(), 0);
        std::fs::remove_dir_all(directory.path()).unwrap();
    }
}
