//! What a process has that no other one can be given by its name: what is deleted, and what belongs to a process that will not be there.

use super::file_systems::{NFS, magic_at};
use rustix::fs::{FileType, Stat};

/// Ending of the name of what is deleted, in `/proc` (proc(5)).
const DELETED: &str = " (deleted)";

/// What to do about a name that is not UTF-8.
pub(crate) const NAMELESS_HINT: &str = "give it a name in UTF-8: images keep no other names yet";

/// A path that images cannot hold, for people: it is not UTF-8. Names of memory (`/memfd:`) are only labels.
pub(crate) fn nameless(link: &[u8]) -> Option<String> {
    let path = link.starts_with(b"/") && !link.starts_with(b"/memfd:");
    (path && core::str::from_utf8(link).is_err()).then(|| format!("whose name is not UTF-8: {}", String::from_utf8_lossy(link)))
}

/// Whether an open file has lost the name that its link tells. A name may end so by itself.
pub(crate) fn is_deleted(link: &str, stat: &Stat) -> bool {
    let is_it = |found: Stat| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino);
    link.ends_with(DELETED) && !rustix::fs::stat(link).is_ok_and(is_it)
}

/// Whether a file that was removed while it was open is kept under a name of its NFS client's (`.nfs`, hexadecimal digits), which removes it when
/// it is closed. `magic` tells the file system's (statfs(2)).
pub(crate) fn is_removed_on_nfs(link: &str, magic: impl FnOnce() -> Option<u64>) -> bool {
    let name = link.rsplit('/').next().unwrap_or(link);
    let kept = name.strip_prefix(".nfs").is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    kept && magic() == Some(NFS)
}

/// The same of a path.
pub(crate) fn is_removed_on_nfs_at(path: &str) -> bool {
    is_removed_on_nfs(path, || magic_at(path))
}

/// Why an open file or directory could not be opened again, by name, and what to do.
pub(crate) fn descriptor(link: &str, stat: &Stat) -> Option<(String, &'static str)> {
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if directory && stat.st_nlink == 0 {
        return Some((format!("deleted directory {}", link.trim_end_matches(DELETED)), "close directories before they are removed"));
    }
    if is_namespace(link) {
        return Some((format!("namespace {link}"), "close it: a restarted rank is in other namespaces"));
    }
    let own = std::fs::read_link("/proc/self").ok().and_then(|own| own.into_os_string().into_string().ok());
    let process = link.strip_prefix("/proc/").map(|rest| rest.split('/').next().unwrap_or(rest));
    match process.filter(|process| process.bytes().all(|byte| byte.is_ascii_digit()) && Some(*process) != own.as_deref()) {
        Some(process) if !process.is_empty() => {
            Some((format!("{link} of another process ({process})"), "close it: that process will not be there after a restart"))
        }
        _ => None,
    }
}

/// "net:[4026531840]"
fn is_namespace(link: &str) -> bool {
    const KINDS: [&str; 8] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];
    link.split_once(":[").is_some_and(|(kind, _)| KINDS.contains(&kind))
}

/// The same of the working directory and of the program's own file.
pub(crate) fn process() -> Vec<(String, &'static str)> {
    let deleted = |name: &str| {
        let link = std::fs::read_link(format!("/proc/self/{name}")).ok()?;
        let link = link.to_string_lossy().into_owned();
        // A name may end so by itself.
        let gone = link.ends_with(DELETED) && !std::path::Path::new(&link).exists() || is_removed_on_nfs_at(&link);
        gone.then(|| link.trim_end_matches(DELETED).to_owned())
    };
    let named = |what: &str, link: &str| {
        let link = rustix::fs::readlink(link, Vec::new()).ok()?;
        nameless(link.as_bytes()).map(|found| (format!("{what} {found}"), NAMELESS_HINT))
    };
    let mut found: Vec<_> = named("working directory", "/proc/self/cwd").into_iter().collect();
    found.extend(named("program", "/proc/self/exe"));
    if let Some(path) = deleted("exe") {
        let what = format!("the program's own file {path} was deleted or replaced");
        found.push((what, "put the same file back under that name for the next run, and leave it there while a job runs"));
    }
    if let Some(path) = deleted("cwd") {
        found.push((format!("the working directory {path} was deleted"), "keep the directory in which a program runs"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;
    use std::fs::File;

    #[test]
    fn what_no_name_leads_to_is_told() {
        let place = tempfile::tempdir().unwrap();
        let stat = |file: &File| fstat(file).unwrap();
        let below = place.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let directory = File::open(&below).unwrap();
        assert_eq!(descriptor(below.to_str().unwrap(), &stat(&directory)), None);
        std::fs::remove_dir(&below).unwrap();
        let (what, _) = descriptor("/tmp/below (deleted)", &stat(&directory)).unwrap();
        assert_eq!(what, "deleted directory /tmp/below");
        let file = tempfile::tempfile().unwrap();
        let told = |link: &str| descriptor(link, &stat(&file)).map(|(what, _)| what);
        assert_eq!(told("net:[4026531840]").unwrap(), "namespace net:[4026531840]");
        assert_eq!(told("/proc/1/status").unwrap(), "/proc/1/status of another process (1)");
        let own = format!("/proc/{}/status", std::process::id());
        for fine in [own.as_str(), "/proc/meminfo", "/proc/self/maps", "/proc/", "/srv/net:[1]", "/tmp/a (deleted)"] {
            assert_eq!(told(fine), None, "{fine}");
        }
        assert_eq!(process(), []);
        assert_eq!(nameless(b"/data/f\xe9").unwrap(), "whose name is not UTF-8: /data/f\u{fffd}");
        assert!(["/data/f\u{e9}".as_bytes(), b"/memfd:f\xe9", b"socket:[1]"].iter().all(|link| nameless(link).is_none()));
        let kept = "/data/.nfs000000000012d68a00000001";
        assert!(is_removed_on_nfs(kept, || Some(0x6969)) && !is_removed_on_nfs(kept, || Some(0xef53)) && !is_removed_on_nfs(kept, || None));
        assert!(["/data/.nfs", "/data/.nfsrc", "/data/nfs00", "/.nfs00/file"].iter().all(|link| !is_removed_on_nfs(link, || Some(0x6969))));
        let odd = place.path().join("a (deleted)");
        let there = File::create(&odd).unwrap();
        assert!(!is_deleted(odd.to_str().unwrap(), &stat(&there)) && is_deleted("/tmp/a (deleted)", &stat(&there)));
    }
}
