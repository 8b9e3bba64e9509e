//! Threads as `/proc/self/task` shows them. No call here uses the C library's malloc: threads may be parked inside it.

use rustix::fs::{Mode, OFlags, RawDir, open};
use std::io;
use std::mem::MaybeUninit;

/// A thread of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    /// Its id in the PID namespace of `/proc`, which need not be the process's own.
    pub outer: i32,
}

/// The entries of a directory whose names are numbers.
pub(crate) fn numbers_in(directory: &str) -> io::Result<Vec<i32>> {
    let directory = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut numbers = Vec::new();
    while let Some(entry) = entries.next() {
        if let Some(number) = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// All threads.
pub(crate) fn list() -> io::Result<Vec<Task>> {
    Ok(numbers_in("/proc/self/task")?.into_iter().map(|outer| Task { outer }).collect())
}

impl Task {
    fn read(&self, what: &str) -> Option<String> {
        std::fs::read_to_string(format!("/proc/self/task/{}/{what}", self.outer)).ok()
    }

    /// Its id as the process itself sees it, and whether it still runs. `None` if it is gone.
    pub fn identify(&self) -> Option<(i32, bool)> {
        let status = self.read("status")?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let running = !field("State:")?.trim_start().starts_with(['Z', 'X']);
        let inner = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
        Some((inner, running))
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
