//! Locks on files: flock(2), and POSIX and open-file-description locks of fcntl(2), as `/proc/self/fdinfo` shows them.
//!
//! A POSIX lock is lost as soon as its process closes any descriptor of the file. So these are taken last of all, and
//! while the rank runs on, nothing of the agent opens such a file (see [`crate::memory::layout`]).

use crate::descriptors::file_systems::{is_shared_file_system, magic_of};
use crate::descriptors::table::take;
use crate::descriptors::{Descriptors, Open};
use mend_freestanding::{check, syscall};
use std::time::{Duration, Instant};

/// What took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Flock,
    Posix,
    Description,
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub kind: Kind,
    writes: bool,
    start: i64,
    /// 0: to the end.
    length: i64,
}

/// The locks in the text of a descriptor's fdinfo. `Err` names one that cannot be taken again.
pub(crate) fn parse(info: &str) -> Result<Vec<Lock>, &'static str> {
    info.lines().filter_map(|line| line.strip_prefix("lock:")).map(parse_one).collect()
}

/// "1: POSIX  ADVISORY  WRITE 359 00:13:11691 0 EOF"
fn parse_one(line: &str) -> Result<Lock, &'static str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, kind, _, access, _, _, start, end] = words[..] else { return Err("lock of an unknown form") };
    let kind = match kind {
        "FLOCK" => Kind::Flock,
        "POSIX" => Kind::Posix,
        "OFDLCK" => Kind::Description,
        _ => return Err("lease on a file (F_SETLEASE)"),
    };
    let unknown = "lock of an unknown form";
    let start: i64 = start.parse().map_err(|_| unknown)?;
    let length = if end == "EOF" { 0 } else { end.parse::<i64>().map_err(|_| unknown)? - start + 1 };
    Ok(Lock { kind, writes: access == "WRITE", start, length })
}

impl Lock {
    /// Takes it without waiting. The error is an errno.
    fn take(&self, fd: i32) -> Result<(), i32> {
        if self.kind == Kind::Flock {
            let operation = libc::LOCK_NB | if self.writes { libc::LOCK_EX } else { libc::LOCK_SH };
            // SAFETY: plain numbers.
            return check(unsafe { syscall(libc::SYS_flock, [fd as usize, operation as usize, 0, 0, 0, 0]) }).map(drop);
        }
        let wanted = libc::flock {
            l_type: if self.writes { libc::F_WRLCK } else { libc::F_RDLCK } as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: self.start,
            l_len: self.length,
            l_pid: 0,
        };
        let command = if self.kind == Kind::Posix { libc::F_SETLK } else { libc::F_OFD_SETLK };
        // SAFETY: fcntl reads one `struct flock`.
        check(unsafe { syscall(libc::SYS_fcntl, [fd as usize, command as usize, (&raw const wanted) as usize, 0, 0, 0]) }).map(drop)
    }
}

/// Between two tries to take a lock: at first, and at last.
const SHORT_PAUSE: Duration = Duration::from_millis(5);
const LONG_PAUSE: Duration = Duration::from_millis(500);

/// How long locks are waited for: of files that this node alone has, and of those that others see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub here: Duration,
    pub network: Duration,
}

impl Patience {
    fn for_file(&self, fd: i32) -> Duration {
        let shared = take(fd).is_ok_and(|file| magic_of(file).is_some_and(is_shared_file_system));
        if shared { self.network } else { self.here }
    }
}

/// Locks to be taken, each with a descriptor and a name for people.
#[derive(Debug, Default)]
pub(crate) struct Due {
    locks: Vec<(i32, Lock, String)>,
}

impl Due {
    /// All locks of these descriptors.
    pub fn of(descriptors: &Descriptors) -> Self {
        let mut due = Due::default();
        for (index, Open { what, locks, .. }) in descriptors.opens.iter().enumerate() {
            let Some(fd) = descriptors.number_of(index) else { continue };
            due.locks.extend(locks.iter().map(|lock| (fd, *lock, what.name())));
        }
        due
    }

    /// Takes all of them; waits at most this long for those that somebody else holds.
    ///
    /// # Errors
    /// The file, and the errno.
    pub fn take(&self, patience: Patience) -> Result<(), (String, i32)> {
        let began = Instant::now();
        for (fd, lock, name) in &self.locks {
            let mut pause = SHORT_PAUSE;
            loop {
                match lock.take(*fd) {
                    Ok(()) => break,
                    Err(libc::EAGAIN | libc::EACCES) if began.elapsed() < patience.for_file(*fd) => {
                        std::thread::sleep(pause);
                        // Each try is a question to a file server, perhaps.
                        pause = (pause * 2).min(LONG_PAUSE);
                    }
                    Err(errno) => return Err((name.clone(), errno)),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn lines_of_all_kinds() {
        let info = "pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF\nlock:\t2: POSIX  ADVISORY  READ 9 00:13:1 10 19\n";
        let whole = Lock { kind: Kind::Flock, writes: true, start: 0, length: 0 };
        assert_eq!(parse(info), Ok(vec![whole, Lock { kind: Kind::Posix, writes: false, start: 10, length: 10 }]));
        assert!(parse("lock:\t1: LEASE  ACTIVE    READ 9 00:13:1 0 EOF\n").unwrap_err().contains("lease"));
    }

    #[test]
    fn a_lock_that_is_held_is_shown_and_excludes_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = Lock { kind: Kind::Description, writes: true, start: 5, length: 7 };
        lock.take(file.as_file().as_raw_fd()).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_file().as_raw_fd())).unwrap();
        assert_eq!(parse(&info), Ok(vec![lock]));
        let other = file.reopen().unwrap();
        let due = Due { locks: vec![(other.as_raw_fd(), lock, "the file".to_string())] };
        let patience = Patience { here: Duration::ZERO, network: Duration::ZERO };
        assert_eq!(due.take(patience), Err(("the file".to_string(), libc::EAGAIN)));
        let soon = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(file);
        });
        let patience = Patience { here: Duration::from_secs(60), network: Duration::from_secs(60) };
        assert_eq!(due.take(patience), Ok(()));
        soon.join().unwrap();
    }
}
