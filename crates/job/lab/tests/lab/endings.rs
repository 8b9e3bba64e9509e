//! However a lab ends, nothing of it stays.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use super::bench::{as_everybody, error_of, send, until, wait_for_line};

#[test]
fn down_leaves_nothing() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "2", "--bandwidth", "1gbit"]);
        bench.shell("node1", "setsid sleep 500000 > /dev/null 2>&1 < /dev/null &");
        let mut sleeper = bench.exec("node2", &["sleep", "500001"]).spawn().unwrap();
        assert!(until(|| bench.remains().iter().any(|found| found.contains(": sleep\x00500001"))));
        bench.down();
        assert_eq!(sleeper.wait().unwrap().code(), Some(128 + libc::SIGKILL));
        bench.assert_clean();
        let output = bench.lab("down", &[]).output().unwrap();
        assert!(error_of(&output).contains("no lab named"), "{output:?}");
    });
}

#[test]
fn a_killed_holder_leaves_nothing() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "2"]);
        bench.shell("node1", "setsid sleep 600000 > /dev/null 2>&1 < /dev/null &");
        let nested = ["unshare", "-Upf", "--map-current-user", "--mount-proc", "sleep", "600001"];
        let mut sleeper = bench.exec("node2", &nested).spawn().unwrap();
        assert!(until(|| bench.remains().iter().any(|found| found.contains(": sleep\x00600001"))));
        send(libc::SIGKILL, bench.holder() as u32);
        assert_eq!(sleeper.wait().unwrap().code(), Some(128 + libc::SIGKILL));
        bench.assert_clean();
        // The name is free again.
        bench.up(&["--nodes", "1"]);
    });
}

#[test]
fn a_stopped_holder_is_ended_by_force() {
    // One user is enough: the holder has ten seconds to answer.
    super::bench::as_user(|bench| {
        bench.up(&["--nodes", "1"]);
        send(libc::SIGSTOP, bench.holder() as u32);
        bench.down();
        bench.assert_clean();
    });
}

#[test]
fn a_lab_that_ends_while_labs_are_listed_hides_no_other() {
    super::bench::two_as_user(|stays, ends| {
        stays.up(&["--nodes", "1"]);
        ends.up(&["--nodes", "1"]);
        let holder = ends.holder() as u32;
        send(libc::SIGSTOP, holder);
        let list =
            stays.command(super::bench::programs().join("lab")).arg("ls").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Time to ask; without it the lab is gone before, and that holds too.
        sleep(Duration::from_millis(200));
        send(libc::SIGKILL, holder);
        let output = list.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let listed = String::from_utf8(output.stdout).unwrap();
        assert!(listed.contains(&stays.name) && !listed.contains(&ends.name), "{listed}");
    });
}

#[test]
fn interrupted_while_starting() {
    as_everybody(|bench| {
        for (round, signal) in [libc::SIGINT, libc::SIGKILL, libc::SIGTERM].into_iter().cycle().take(18).enumerate() {
            let up = bench.lab("up", &["--nodes", "8", "--no-daemons"]).stdout(Stdio::piped()).spawn().unwrap();
            sleep(Duration::from_millis(3 * round as u64));
            send(signal, up.id());
            let output = up.wait_with_output().unwrap();
            // It may have been faster; but then it has said so.
            if output.stdout.starts_with(b"The lab") {
                let _ = bench.lab("down", &[]).output().unwrap();
            } else {
                assert!(!output.status.success());
            }
            bench.assert_clean();
        }
    });
}

#[test]
fn in_the_foreground() {
    as_everybody(|bench| {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGKILL] {
            let mut up = bench.lab("up", &["--foreground", "--nodes", "1", "--no-daemons"]).stdout(Stdio::piped()).spawn().unwrap();
            assert!(wait_for_line(&mut up, "Ctrl-C ends it."));
            assert_eq!(bench.prints("node1", &["uname", "-n"]), "node1");
            send(signal, up.id());
            let code = up.wait().unwrap().code();
            assert_eq!(code, (signal != libc::SIGKILL).then_some(0));
            bench.assert_clean();
        }
        let mut up = bench.lab("up", &["--foreground", "--nodes", "1", "--no-daemons"]).stdout(Stdio::piped()).spawn().unwrap();
        assert!(wait_for_line(&mut up, "Ctrl-C ends it."));
        bench.down();
        assert_eq!(up.wait().unwrap().code(), Some(0));
    });
}
