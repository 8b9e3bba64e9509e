//! Threads as `/proc/self/task` shows them. No call here uses the C library's malloc: threads may be parked inside it.

use rustix::fs::{FileType, Mode, OFlags, RawDir, RawDirEntry, open};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A thread of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    /// Its id in the PID namespace of `/proc`, which need not be the process's own.
    pub outer: i32,
}

/// An entry of a directory.
pub(crate) struct Entry {
    pub name: String,
    pub inode: u64,
    pub directory: bool,
}

/// The entries of a directory whose names are text, but for `.` and `..`.
pub(crate) fn entries_in(directory: &str) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    each_in(Path::new(directory), |entry| {
        if let Ok(name) = entry.file_name().to_str() {
            found.push(Entry { name: name.to_string(), inode: entry.ino(), directory: entry.file_type() == FileType::Directory });
        }
    })?;
    Ok(found)
}

/// The names in a directory, ascending, but for `.` and `..`.
pub(crate) fn names_in(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    each_in(directory, |entry| found.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()))?;
    found.sort_unstable();
    Ok(found)
}

fn each_in(directory: &Path, mut each: impl FnMut(&RawDirEntry)) -> io::Result<()> {
    let directory = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            each(&entry);
        }
    }
    Ok(())
}

/// The entries of a directory whose names are numbers.
pub(crate) fn numbers_in(directory: &str) -> io::Result<Vec<i32>> {
    Ok(entries_in(directory)?.iter().filter_map(|entry| entry.name.parse().ok()).collect())
}

/// Whether the process has children. Where the kernel does not tell, it has.
pub(crate) fn has_children() -> bool {
    let Ok(tasks) = list() else { return true };
    tasks.iter().any(|task| task.read("children").is_none_or(|children| !children.trim().is_empty()) && task.identify().is_some())
}

/// All threads. One that lives may be missing if another one ends meanwhile: the kernel goes on from the one that it has told last.
pub(crate) fn list() -> io::Result<Vec<Task>> {
    Ok(numbers_in("/proc/self/task")?.into_iter().map(|outer| Task { outer }).collect())
}

/// How many threads there are, those that have ended and are not gone yet among them. `None` where the kernel does not tell.
pub(crate) fn count() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

/// All threads by their ids as the process itself sees them. In a restored process their numbers in `/proc` may be others than they were.
pub(crate) fn by_thread() -> io::Result<HashMap<i32, Task>> {
    Ok(list()?.into_iter().filter_map(|task| Some((task.identify()?.0, task))).collect())
}

impl Task {
    fn read(&self, what: &str) -> Option<String> {
        std::fs::read_to_string(format!("/proc/self/task/{}/{what}", self.outer)).ok()
    }

    /// All that `/proc` says of it in lines. `None` if it is gone.
    pub fn status(&self) -> Option<String> {
        self.read("status")
    }

    /// Its id as the process itself sees it, and whether it still runs. `None` if it is gone.
    pub fn identify(&self) -> Option<(i32, bool)> {
        let status = self.read("status")?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let running = !field("State:")?.trim_start().starts_with(['Z', 'X']);
        let inner = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
        // One that is just going has none any more.
        (inner > 0).then_some((inner, running))
    }

    /// Signals pending for this thread alone, and for the process, as masks.
    pub fn pending(&self) -> (u64, u64) {
        let status = self.read("status").unwrap_or_default();
        let mask = |name: &str| {
            let text = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            u64::from_str_radix(text.trim(), 16).unwrap_or(0)
        };
        (mask("SigPnd:"), mask("ShdPnd:"))
    }

    /// Processor it ran on last, when it got to or left one last (nanoseconds on that one's clock), and how often it gave one
    /// up by itself. `None` where the kernel does not tell.
    pub fn sched(&self) -> Option<(usize, i64, u64)> {
        let text = self.read("sched")?;
        let stat = self.read("stat")?;
        let processor = stat[stat.rfind(')')? + 1..].split_whitespace().nth(36)?.parse().ok()?;
        let since = milliseconds(sched_field(&text, "se.exec_start")?)?;
        Some((processor, since, sched_field(&text, "nr_voluntary_switches")?.parse().ok()?))
    }

    /// Whether it gains no new privileges, and the capabilities that it may have. `None` if it is gone.
    pub fn privileges(&self) -> Option<(bool, u64)> {
        let status = self.read("status")?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some((field("NoNewPrivs:")? == "1", u64::from_str_radix(field("CapPrm:")?, 16).ok()?))
    }

    /// Name, for people.
    pub fn name(&self) -> String {
        self.read("comm").unwrap_or_default().trim_end().to_string()
    }

    /// The system call it is blocked in: number, six arguments, stack pointer, address after the call.
    pub fn blocked_call(&self) -> Option<[u64; 9]> {
        let text = self.read("syscall")?;
        let mut words = text.split_whitespace();
        let mut call = [0; 9];
        call[0] = words.next()?.parse().ok()?;
        for value in &mut call[1..] {
            *value = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(call)
    }
}

/// The value of a line "name   :   value".
pub(crate) fn sched_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    Some(line.split_once(':')?.1.trim())
}

/// "12.000345" (milliseconds) as nanoseconds.
pub(crate) fn milliseconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.')?;
    (fraction.len() == 6).then_some(())?;
    Some(whole.parse::<i64>().ok()? * 1_000_000 + fraction.parse::<i64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_shows_its_call() {
        let (sender, receiver) = std::sync::mpsc::channel::<i32>();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        });
        let tid = receiver.recv().unwrap();
        let task = list().unwrap().into_iter().find(|task| task.identify().is_some_and(|(inner, _)| inner == tid)).unwrap();
        let call = loop {
            match task.blocked_call() {
                Some(call) if call[0] == libc::SYS_futex as u64 => break call,
                _ => std::thread::yield_now(),
            }
        };
        assert_ne!(call[8], 0);
        drop(end);
        thread.join().unwrap();
    }
}
