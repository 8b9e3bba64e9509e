//! `mend lab exec`: exit codes, streams, signals, terminals, from outside and from inside a lab.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use super::bench::{as_everybody, error_of, programs, send, until, wait_for_line};

#[test]
fn exit_codes_streams_and_directory_are_the_command_s() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "1"]);
        assert_eq!(bench.code("node1", &["sh", "-c", "exit 7"]), 7);
        assert_eq!(bench.code("node1", &["sh", "-c", "kill -TERM $$"]), 128 + libc::SIGTERM);
        assert_eq!(bench.code("node1", &["no-such-program"]), 127);
        assert_eq!(bench.code("node1", &["/etc/passwd"]), 126);
        assert_eq!(bench.code("node1", &["ls", "--no-such-option"]), 2);
        assert_eq!(bench.prints("node1", &["pwd"]), "/tmp");
        let output = bench.exec("node1", &["sh", "-c", "echo out; echo err >&2"]).output().unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        let mut cat = bench.exec("node1", &["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        cat.stdin.take().unwrap().write_all(b"through").unwrap();
        assert_eq!(cat.wait_with_output().unwrap().stdout, b"through");
        // A directory that the lab covers.
        let base = bench.status()["shared"].as_str().unwrap().replace("/shared", "");
        let hidden = format!("{base}/sub");
        if std::fs::create_dir(&hidden).is_ok() {
            let output = bench.exec("node1", &["pwd"]).current_dir(&hidden).output().unwrap();
            assert!(error_of(&output).contains("not visible in the lab"), "{output:?}");
            std::fs::remove_dir(&hidden).unwrap();
        }
    });
}

#[test]
fn signals_are_passed_on() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "1"]);
        let script = "trap 'exit 42' TERM; trap 'exit 43' INT; echo ready; while :; do sleep 0.01; done";
        for (signal, code) in [(libc::SIGTERM, 42), (libc::SIGINT, 43), (libc::SIGUSR1, 128 + libc::SIGUSR1)] {
            let mut child = bench.exec("node1", &["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
            assert!(wait_for_line(&mut child, "ready"));
            send(signal, child.id());
            assert_eq!(child.wait().unwrap().code(), Some(code), "signal {signal}");
        }
        // Not even SIGKILL leaves the command running alone.
        let mut child = bench.exec("node1", &["sleep", "200000"]).spawn().unwrap();
        let runs = || bench.remains().iter().any(|found| found.contains("sleep\x00200000"));
        assert!(until(runs));
        send(libc::SIGKILL, child.id());
        child.wait().unwrap();
        assert!(until(|| !runs()));
        // At whatever point of its start it comes.
        for round in 0..40 {
            let mut child = bench.exec("node1", &["sleep", "700000"]).spawn().unwrap();
            std::thread::sleep(std::time::Duration::from_micros(100 * round));
            send(libc::SIGKILL, child.id());
            child.wait().unwrap();
            assert!(until(|| !bench.remains().iter().any(|found| found.contains("700000"))), "round {round}");
        }
    });
}

#[test]
fn from_inside_a_lab() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "2"]);
        let lab = programs().join("lab");
        let lab = lab.to_str().unwrap();
        let inner = |args: &[&str]| bench.exec("head", &[&[lab], args].concat());
        let output =
            inner(&["exec", "node2", "sh", "-c", "uname -n; pwd; echo $HOSTNAME $MEND_LAB; echo bad >&2; exit 9"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("node2\n/tmp\nnode2 {}\n", bench.name));
        assert_eq!((output.status.code(), error_of(&output).as_str()), (Some(9), "bad\n"));
        assert_eq!(inner(&["exec", "node1", "sh", "-c", "kill -9 $$"]).status().unwrap().code(), Some(137));
        assert_eq!(inner(&["exec", "node1", "no-such-program"]).output().unwrap().status.code(), Some(127));
        let output = inner(&["exec", "node9", "true"]).output().unwrap();
        assert!(error_of(&output).contains("head node1 node2"), "{output:?}");
        // Input, and an environment longer than a packet.
        let mut wc = inner(&["exec", "node1", "sh", "-c", "cat; echo ${#LONG}"]);
        let mut wc = wc.env("LONG", "x".repeat(100_000)).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        wc.stdin.take().unwrap().write_all(b"through ").unwrap();
        assert_eq!(wc.wait_with_output().unwrap().stdout, b"through 100000\n");
        // Signals: the outer exec passes them to the inner one, that to the command.
        let script = "trap 'exit 42' TERM; echo ready; while :; do sleep 0.01; done";
        let mut child = inner(&["exec", "node1", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        assert!(wait_for_line(&mut child, "ready"));
        send(libc::SIGTERM, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(42));
        let mut child = inner(&["exec", "node1", "sleep", "300000"]).spawn().unwrap();
        let runs = || bench.remains().iter().any(|found| found.contains("sleep\x00300000"));
        assert!(until(runs));
        send(libc::SIGKILL, child.id());
        child.wait().unwrap();
        assert!(until(|| !runs()));
        // The other verbs.
        assert!(inner(&["kill", "node2"]).status().unwrap().success());
        assert_eq!(bench.status()["nodes"][2]["state"], "dead");
        assert!(String::from_utf8_lossy(&inner(&["ls"]).output().unwrap().stdout).contains("dead"));
        inner(&["down"]).status().unwrap();
        bench.assert_clean();
    });
}

#[test]
fn a_terminal_stays_a_terminal() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "1"]);
        let script = "test -t 0 && test -t 1 && echo tty; trap 'echo caught; exit 44' INT; echo ready; while :; do sleep 0.01; done";
        let (mut master, mut child) = on_terminal(bench.exec("node1", &["sh", "-c", script]));
        let mut seen = Vec::new();
        read_until(&mut master, &mut seen, "ready");
        assert!(String::from_utf8_lossy(&seen).contains("tty"));
        master.write_all(b"\x03").unwrap(); // Ctrl-C
        read_until(&mut master, &mut seen, "caught");
        assert_eq!(child.wait().unwrap().code(), Some(44));
    });
}

#[test]
fn a_shell_in_a_node_has_job_control() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "1"]);
        let (mut master, mut child) = on_terminal(bench.exec("node1", &["bash", "--norc", "-im"]));
        let mut seen = Vec::new();
        master.write_all(b"sleep 400000\n").unwrap();
        let sleeper =
            || bench.remains().iter().find_map(|found| found.strip_prefix("/proc/")?.split_once(": sleep\x00400000")?.0.parse().ok());
        // SAFETY: tcgetpgrp(3) reads no memory; of a terminal's master it tells the foreground group of the terminal.
        let in_front = |master: &std::fs::File| sleeper() == Some(unsafe { libc::tcgetpgrp(master.as_raw_fd()) });
        assert!(until(|| in_front(&master)));
        master.write_all(b"\x1a").unwrap(); // Ctrl-Z
        read_until(&mut master, &mut seen, "Stopped");
        assert!(until(|| !in_front(&master)));
        master.write_all(b"fg\n").unwrap();
        assert!(until(|| in_front(&master)));
        master.write_all(b"\x03").unwrap(); // Ctrl-C
        assert!(until(|| sleeper().is_none()));
        // Split, so that the echo of what is typed is not taken for the answer.
        master.write_all(b"echo al''ive\n").unwrap();
        read_until(&mut master, &mut seen, "alive");
        master.write_all(b"exit 5\n").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(5));
        assert!(!String::from_utf8_lossy(&seen).contains("no job control"));
    });
}

/// Starts a command as the leader of a session with a terminal of its own.
fn on_terminal(mut command: std::process::Command) -> (std::fs::File, std::process::Child) {
    let (mut master, mut slave) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are written on success; name, settings and size may be null.
    assert_eq!(unsafe { libc::openpty(&mut master, &mut slave, null, null.cast(), null.cast()) }, 0);
    // SAFETY: openpty has just opened both for us.
    let (master, slave) = unsafe { (std::fs::File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
    let stream = || Stdio::from(slave.try_clone().unwrap());
    command.stdin(stream()).stdout(stream()).stderr(stream());
    // SAFETY: only system calls between fork and exec; 0 is the terminal.
    unsafe {
        command.pre_exec(|| match libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 {
            true => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        });
    }
    let child = command.spawn().unwrap();
    (master, child)
}

fn read_until(master: &mut std::fs::File, seen: &mut Vec<u8>, wanted: &str) {
    let mut chunk = [0; 256];
    while !String::from_utf8_lossy(seen).contains(wanted) {
        match master.read(&mut chunk) {
            Ok(count @ 1..) => seen.extend(&chunk[..count]),
            other => panic!("{other:?} after {:?}", String::from_utf8_lossy(seen)),
        }
    }
}
