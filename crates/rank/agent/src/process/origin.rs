//! What the process was born with, and what of it the program has changed in a way that nobody can give back.
//!
//! A rank in a container has seccomp filters, namespaces and a user from outside: these it has again wherever it is restored. What
//! came later is the program's own, and where it cannot be made again it stands in the way of a checkpoint, by name. Recorded before
//! the program runs, and anew in every restored process.

use crate::process::{shared_tables, tasks};
use mend_freestanding::syscall;
use mend_kernel::landlock;
use mend_kernel::threads;
use std::sync::{Mutex, PoisonError};

/// What is compared in `/proc/self/ns`: the name there, and one for people.
const NAMESPACES: [(&str, &str); 10] = [
    ("cgroup", "cgroup"),
    ("ipc", "IPC"),
    ("mnt", "mount"),
    ("net", "network"),
    ("pid", "PID"),
    ("pid_for_children", "PID"),
    ("time", "time"),
    ("time_for_children", "time"),
    ("user", "user"),
    ("uts", "UTS"),
];

#[derive(Debug, Default)]
struct Origin {
    credentials: Credentials,
    namespaces: [String; NAMESPACES.len()],
    root: String,
    keyrings: [Option<usize>; 3],
    /// Layers of the Landlock domain.
    landlock: Option<u32>,
    oom_score: Option<String>,
    recorded: bool,
}

/// Of one thread, as its `status` tells.
#[derive(Clone, Debug, Default, PartialEq)]
struct Credentials {
    /// 0: none, 1: strict, 2: filters.
    seccomp: u32,
    filters: u32,
    users: String,
    groups: String,
    supplementary: String,
}

static ORIGIN: Mutex<Option<Origin>> = Mutex::new(None);

impl Credentials {
    fn parse(status: &str) -> Self {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        Self {
            seccomp: field("Seccomp:").parse().unwrap_or(0),
            filters: field("Seccomp_filters:").parse().unwrap_or(0),
            users: field("Uid:").to_string(),
            groups: field("Gid:").to_string(),
            supplementary: field("Groups:").to_string(),
        }
    }

    /// What a thread has that the process was not born with.
    fn added(&self, thread: &Self, name: &str) -> Option<(String, &'static str)> {
        const SECCOMP: &str = "let the program do without its sandbox (seccomp): the kernel gives a filter back to nobody";
        if thread.seccomp == 1 {
            return Some((format!("seccomp strict mode of thread {name}"), SECCOMP));
        }
        if thread.seccomp > self.seccomp || thread.filters > self.filters {
            return Some((format!("seccomp filters of thread {name}"), SECCOMP));
        }
        if (&thread.users, &thread.groups, &thread.supplementary) != (&self.users, &self.groups, &self.supplementary) {
            let what = format!("thread {name} has changed its user or group");
            return Some((what, "start the program as the user that it shall run as"));
        }
        None
    }
}

fn link(path: &str) -> String {
    rustix::fs::readlink(path, Vec::new()).map(|link| String::from_utf8_lossy(link.as_bytes()).into_owned()).unwrap_or_default()
}

fn oom_score() -> Option<String> {
    std::fs::read_to_string("/proc/self/oom_score_adj").ok().map(|text| text.trim().to_string())
}

fn look() -> Origin {
    Origin {
        credentials: Credentials::parse(&std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default()),
        namespaces: NAMESPACES.map(|(name, _)| link(&format!("/proc/self/ns/{name}"))),
        root: link("/proc/self/root"),
        keyrings: threads::keyrings(),
        landlock: landlock::layers(),
        oom_score: oom_score(),
        recorded: true,
    }
}

/// Remembers how the process is now.
pub(crate) fn record() {
    let origin = look();
    *ORIGIN.lock().unwrap_or_else(PoisonError::into_inner) = Some(origin);
}

/// How likely the process is to be killed when memory runs out, if the program has set it.
pub(crate) fn own_oom_score() -> Option<String> {
    let origin = ORIGIN.lock().unwrap_or_else(PoisonError::into_inner);
    let born = origin.as_ref().and_then(|origin| origin.oom_score.clone());
    oom_score().filter(|now| Some(now) != born.as_ref())
}

/// Before the process goes back to an image in place: what it has then counts as inherited.
pub(crate) fn put_back_oom_score() -> std::io::Result<()> {
    let changed = own_oom_score().is_some();
    let origin = ORIGIN.lock().unwrap_or_else(PoisonError::into_inner);
    match origin.as_ref().and_then(|origin| origin.oom_score.as_ref()).filter(|_| changed) {
        Some(born) => std::fs::write("/proc/self/oom_score_adj", born),
        None => Ok(()),
    }
}

/// What the program has made its own that cannot be made again, and hints.
pub(crate) fn obstacles() -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    let origin = ORIGIN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(origin) = origin.as_ref().filter(|origin| origin.recorded) else { return found };
    let mut apart = None;
    for task in tasks::list().unwrap_or_default() {
        let Some(status) = task.status() else { continue };
        apart = apart.or_else(|| shared_tables::obstacle(&task, &status));
        found.extend(origin.credentials.added(&Credentials::parse(&status), &task.name()));
    }
    // All threads of a program are likely to have the same: it is told once.
    found.dedup_by(|one, other| one.1 == other.1);
    found.extend(apart);
    for ((name, people), born) in NAMESPACES.iter().zip(&origin.namespaces) {
        if link(&format!("/proc/self/ns/{name}")) != *born {
            let what = format!("the program has made or entered a {people} namespace");
            if found.last().is_none_or(|(last, _)| *last != what) {
                found.push((what, "start the program within that namespace, or let it do without"));
            }
        }
    }
    if link("/proc/self/root") != origin.root {
        found.push(("the program has changed its root directory (chroot)".to_string(), "start the program within that directory"));
    }
    if has_local_descriptors() {
        let what = "the program has segments of its own (modify_ldt)".to_string();
        found.push((what, "use a 64-bit build of the program, or one that does without them"));
    }
    found
}

/// What of a thread's keyrings, which only itself can name, is the program's own.
pub(crate) fn own_keyring(thread: i32, keyrings: [Option<usize>; 3]) -> Option<(String, &'static str)> {
    let origin = ORIGIN.lock().unwrap_or_else(PoisonError::into_inner);
    let born = origin.as_ref()?.keyrings;
    let at = keyrings.iter().zip(born).position(|(now, born)| *now != born)?;
    Some((format!("thread {thread} has a {} keyring of its own", ["session", "process", "thread"][at]), KEYS))
}

/// A thread that has more layers of Landlock rules than the process was born with.
pub(crate) fn own_landlock(thread: i32, layers: Option<u32>) -> Option<(String, &'static str)> {
    let origin = ORIGIN.lock().unwrap_or_else(PoisonError::into_inner);
    let born = origin.as_ref()?.landlock?;
    let hint = "let the program do without its sandbox (Landlock): the kernel gives it back to nobody";
    (layers? > born).then(|| (format!("thread {thread} is in a Landlock domain of its own"), hint))
}

const KEYS: &str = "let the program keep its keys in the user's keyring";

fn has_local_descriptors() -> bool {
    let mut bytes = [0u64; 8];
    // SAFETY: modify_ldt(0) writes at most as many bytes as it is told.
    let got = unsafe { syscall(libc::SYS_modify_ldt, [0, bytes.as_mut_ptr() as usize, size_of_val(&bytes), 0, 0, 0]) };
    got > 0 && bytes != [0; 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_from_outside_are_no_obstacle_and_own_ones_are() {
        let status = |seccomp: u32, filters: u32, user: &str| {
            Credentials::parse(&format!(
                "Name:\tx\nUid:\t{user}\nGid:\t5\t5\t5\t5\nGroups:\t1 2 \nSeccomp:\t{seccomp}\nSeccomp_filters:\t{filters}\n"
            ))
        };
        let container = status(2, 1, "7\t7\t7\t7");
        assert_eq!(container.added(&container, "x"), None);
        assert!(container.added(&status(2, 2, "7\t7\t7\t7"), "x").unwrap().0.contains("seccomp filters of thread x"));
        assert!(container.added(&status(2, 1, "7\t8\t7\t7"), "x").unwrap().0.contains("changed its user"));
        let free = status(0, 0, "7\t7\t7\t7");
        assert!(free.added(&container, "x").unwrap().0.contains("seccomp filters"));
        assert!(free.added(&status(1, 0, "7\t7\t7\t7"), "x").unwrap().0.contains("strict"));
    }
}
