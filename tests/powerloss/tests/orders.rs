//! The program as the tests use it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// As automake has it.
const SKIPPED: i32 = 77;

struct Running {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut process = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        Self { process, orders, answers }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line
    }

    fn order(&mut self, text: &str) -> String {
        writeln!(self.orders.as_mut().unwrap(), "{text}").unwrap();
        self.line()
    }

    fn end(mut self) -> Option<i32> {
        drop(self.orders.take());
        self.process.wait().unwrap().code()
    }
}

fn mounted(place: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(place.to_str().unwrap())
}

#[test]
fn a_namespace_that_has_the_mount_too_keeps_nobody_waiting() {
    // With fusermount3 an ordinary user can mount, and still have no namespace.
    if !Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status().unwrap().success() {
        let _ = std::io::stderr().write_all(b"skipped: a namespace that has the mount too: only root makes one\n");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut disk = Running::start(env!("CARGO_BIN_EXE_mend-powerloss"), &[directory.path().to_str().unwrap()]);
    if disk.line() != "mounted\n" {
        assert_eq!(disk.end(), Some(SKIPPED));
        return;
    }
    std::fs::write(directory.path().join("kept"), "it").unwrap();
    let script = "grep -c powerloss /proc/self/mountinfo; read -r end";
    let mut other = Running::start("unshare", &["--mount", "--propagation", "private", "sh", "-c", script]);
    assert_ne!(other.line(), "0\n");
    assert_eq!(disk.order("restore 1"), "mounted\n");
    assert!(mounted(directory.path()));
    assert_eq!(disk.end(), Some(0));
    assert!(!mounted(directory.path()));
    assert_eq!(other.end(), Some(1));
}
