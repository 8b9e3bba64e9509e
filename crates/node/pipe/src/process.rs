//! What is known of the threads that use a mount, from /proc.
//!
//! The kernel closes the files of a process that was killed just as it would close them for any other. That a stream's writer was killed must not look like its end, so at each close somebody
//! asks how its process fares: the kernel waits for the answer, so the process is still there.

use std::fs;

/// The flag of a task that is ending (`PF_EXITING`, linux/sched.h).
const EXITING: u64 = 4;
/// Signals that only stop a process: it may wait on, and stops when it has its answer.
const STOPS: u64 =
    mask(&[rustix::process::Signal::STOP, rustix::process::Signal::TSTP, rustix::process::Signal::TTIN, rustix::process::Signal::TTOU]);

const fn mask(signals: &[rustix::process::Signal]) -> u64 {
    let (mut mask, mut at) = (0, 0);
    while at < signals.len() {
        mask |= 1 << (signals[at].as_raw() - 1);
        at += 1;
    }
    mask
}

/// True if a thread is ending because a signal killed its process. False if nothing is known of it, as of processes outside of this one's PID namespace (number 0).
pub fn is_killed(thread: u32) -> bool {
    thread != 0 && fs::read_to_string(format!("/proc/{thread}/stat")).is_ok_and(|text| is_killed_by(&text))
}

fn is_killed_by(stat: &str) -> bool {
    // The name may hold anything, brackets too.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    // proc(5) counts from 1; the state, which comes first here, is field 3.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    let (Some(flags), Some(code)) = (field(9), field(52)) else { return false };
    flags & EXITING != 0 && code & 0x7f != 0
}

/// True if a signal waits for a thread that it does not block or ignore: the thread wants to be let go. Also if there is no such thread any more.
pub fn is_interrupted(thread: u32) -> bool {
    thread != 0 && fs::read_to_string(format!("/proc/{thread}/status")).map_or(true, |text| wants_out(&text))
}

fn wants_out(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") & !mask("SigIgn") & !STOPS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(flags: u64, code: u64) -> String {
        let zeros = |count: usize| vec!["0"; count].join(" ");
        format!("12 (a) b) D {} {flags} {} {code}\n", zeros(5), zeros(42))
    }

    #[test]
    fn only_who_ends_by_a_signal_is_killed() {
        assert!(is_killed_by(&stat(EXITING | 0x40_0000, 9)));
        assert!(is_killed_by(&stat(EXITING, 0x80 | 11)));
        assert!(!is_killed_by(&stat(EXITING, 1 << 8)), "it has ended with an exit code");
        assert!(!is_killed_by(&stat(0, 9)), "it is stopped");
        assert!(!is_killed_by("") && !is_killed_by("1 (x"));
        assert!(!is_killed(std::process::id()) && !is_killed(0));
    }

    #[test]
    fn only_a_signal_that_is_taken_interrupts() {
        let status = |pending: u64, shared: u64, blocked: u64, ignored: u64| {
            format!(
                "Name:\tx\nSigQ:\t0/1\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
            )
        };
        let (kill, term) = (1 << 8, 1 << 14);
        assert!(wants_out(&status(kill, 0, 0, 0)) && wants_out(&status(0, term, 0, 0)));
        assert!(!wants_out(&status(0, term, term, 0)) && !wants_out(&status(0, term, 0, term)) && !wants_out(&status(0, STOPS, 0, 0)));
        assert!(!is_interrupted(std::process::id()) && !is_interrupted(0));
    }
}
