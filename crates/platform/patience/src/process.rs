//! Whether a process does anything.

use std::fs;

/// What a process was doing when it was looked at last.
#[derive(Debug)]
pub struct Activity {
    pid: u32,
    ticks: Option<u64>,
}

impl Activity {
    /// Of the process with this id, as seen in `/proc`.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        Self { pid, ticks: None }
    }

    /// True if it has had a processor since the last look, or waits for one, or for a disk. False, too, if it is gone.
    pub fn seen(&mut self) -> bool {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let Some((state, ticks)) = parse(&text) else { return false };
        let before = self.ticks.replace(ticks);
        matches!(state, b'R' | b'D') || before.is_some_and(|before| before < ticks)
    }
}

/// State and processor time, in clock ticks, from a line of `/proc/PID/stat`.
fn parse(stat: &str) -> Option<(u8, u64)> {
    // The name may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((*fields.first()?.as_bytes().first()?, number(11)? + number(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_line_with_any_name_is_read() {
        assert_eq!(parse("7 (a) R ) S 1 7 7 0 -1 4194560 100 0 0 0 3 4 0 0 20 0 1 0 5 6 7"), Some((b'S', 7)));
        assert_eq!(parse("7 (a"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn who_computes_is_seen_and_who_sleeps_or_is_gone_is_not() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut asleep = Command::new("sleep").arg("1000").spawn().unwrap();
        let (mut one, mut other) = (Activity::of(busy.id()), Activity::of(asleep.id()));
        assert!((0..1000).any(|_| one.seen()));
        let pause = std::time::Duration::from_millis(20);
        assert!((0..1000).any(|_| {
            std::thread::sleep(pause);
            !other.seen()
        }));
        busy.kill().unwrap();
        asleep.kill().unwrap();
        busy.wait().unwrap();
        asleep.wait().unwrap();
        assert!(!one.seen(), "it is gone");
    }
}
