//! No process outlives its rank's daemon or controller, and nothing of a rank's last words is lost.

use crate::controller::{Daemon, User, for_each_user, marker, until_no_process_with};
use mend_messages::daemon::{ExitStatus, FromDaemon, ToDaemon};

/// A single rank has a PID namespace of its own, several share one.
const SIZES: [u32; 2] = [1, 2];

/// A program with a child and a detached grandchild, all marked.
fn family(mark: &str) -> Vec<String> {
    let script = "setsid sleep 1000 & sleep 1000 & echo up; wait";
    ["sh", "-c", script, mark].map(str::to_owned).to_vec()
}

#[test]
fn a_killed_daemon_takes_its_ranks_along() {
    for_each_user(async |user| {
        let mut daemon = Daemon::start(user);
        let mark = marker();
        let family = family(&mark);
        let mut job = daemon.job(&family.iter().map(String::as_str).collect::<Vec<_>>(), 2).await;
        job.start(0, false).await;
        assert_eq!(job.line(0).await, "up");
        job.start(1, false).await;
        assert_eq!(job.line(1).await, "up");
        daemon.kill();
        until_no_process_with(&mark).await;
    });
}

#[test]
fn a_lost_controller_ends_its_ranks() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mark = marker();
        let mut job = daemon.job(&["sh", "-c", "echo up; while :; do echo more; done", &mark], 1).await;
        job.start(0, false).await;
        job.next().await;
        drop(job);
        until_no_process_with(&mark).await;
    });
}

/// As that of a controller which is killed before it has read everything.
#[test]
fn a_controller_that_resets_its_connection_ends_its_ranks() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mark = marker();
        let mut job = daemon.job(&["sh", "-c", "echo up; sleep 1000; true", &mark], 1).await;
        job.start(0, false).await;
        assert_eq!(job.line(0).await, "up");
        let stream = job.connection.into_tcp().unwrap();
        stream.set_zero_linger().unwrap();
        drop(stream);
        until_no_process_with(&mark).await;
    });
}

#[test]
fn a_silent_controller_ends_its_ranks() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mark = marker();
        let mut introduction = daemon.introduction(&["sh", "-c", "sleep 1000; true", &mark], 1);
        introduction.lease_ms = 500;
        let mut job = daemon.introduced(introduction).await;
        job.start(0, false).await;
        while job.try_next().await.is_some() {}
        until_no_process_with(&mark).await;
    });
}

#[test]
fn an_end_carries_the_last_words_and_leaves_nobody() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mark = marker();
        let mut job = daemon.job(&["sh", "-c", "seq 1 5000; echo up; sleep 1000; true", &mark], 1).await;
        job.start(0, false).await;
        let mut output = Vec::new();
        while !output.ends_with(b"up\n") {
            if let FromDaemon::Output { bytes, .. } = job.next().await {
                output.extend(bytes);
            }
        }
        job.send(ToDaemon::Ping { at_us: 0 }).await;
        job.send(ToDaemon::End { goes_on: false }).await;
        let mut pong = false;
        while let Some(message) = job.try_next().await {
            assert!(!matches!(message, FromDaemon::Exited { .. }));
            pong |= matches!(message, FromDaemon::Pong(_));
        }
        assert!(pong);
        // The connection closes after the last process: nothing to wait for.
        until_no_process_with(&mark).await;
    });
}

#[test]
fn who_is_killed_reads_no_end_of_its_input_before() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        for end in [ToDaemon::Discard { rank: 0 }, ToDaemon::End { goes_on: false }].iter().cycle().take(30) {
            let mut job = daemon.job(&["sh", "-c", "echo up; read line; echo last"], 1).await;
            job.start(0, true).await;
            assert_eq!(job.line(0).await, "up");
            job.send(end.clone()).await;
            job.send(ToDaemon::End { goes_on: false }).await;
            while let Some(message) = job.try_next().await {
                assert!(!matches!(message, FromDaemon::Output { .. } | FromDaemon::Exited { .. }), "{message:?}");
            }
        }
    });
}

#[test]
fn a_discarded_rank_is_not_reported_and_can_come_again() {
    for_each_user(async |user| {
        for size in SIZES {
            let daemon = Daemon::start(user);
            let mark = marker();
            let mut job = daemon.job(&["sh", "-c", "echo $MEND_RANK_PID; sleep 1000; true", &mark], size).await;
            let mut ids = std::collections::BTreeSet::new();
            for _ in 0..3 {
                job.start(0, false).await;
                ids.insert(job.line(0).await);
                assert!(ids.len() == 1 || user == User::Confined, "{ids:?}");
                job.send(ToDaemon::Discard { rank: 0 }).await;
            }
            job.send(ToDaemon::End { goes_on: false }).await;
            while let Some(message) = job.try_next().await {
                assert!(!matches!(message, FromDaemon::Exited { .. }), "{message:?}");
            }
            until_no_process_with(&mark).await;
        }
    });
}

#[test]
fn children_that_stay_behind_do_not_hold_up_the_exit() {
    for_each_user(async |user| {
        for size in SIZES {
            let daemon = Daemon::start(user);
            let mark = marker();
            // The grandchild keeps the pipes open, and one writes all the time.
            let script = "sh -c 'while :; do echo noise; done' \"$0\" & setsid sleep 1000 & echo done >&2; exit 4";
            let mut job = daemon.job(&["sh", "-c", script, &mark], size).await;
            job.start(0, false).await;
            let run = job.until_exit(0).await;
            assert_eq!(run.status, Some(ExitStatus::Code(4)));
            assert_eq!(run.stderr, b"done\n");
            until_no_process_with(&mark).await;
        }
    });
}

#[test]
fn a_signal_9_ends_all_that_a_rank_started() {
    for_each_user(async |user| {
        for size in SIZES {
            let daemon = Daemon::start(user);
            let mark = marker();
            let family = family(&mark);
            let mut job = daemon.job(&family.iter().map(String::as_str).collect::<Vec<_>>(), size).await;
            job.start(0, false).await;
            assert_eq!(job.line(0).await, "up");
            job.send(ToDaemon::Signal(9)).await;
            assert_eq!(job.until_exit(0).await.status, Some(ExitStatus::Signal(9)));
            until_no_process_with(&mark).await;
        }
    });
}

#[test]
fn a_terminated_daemon_takes_its_ranks_along() {
    for_each_user(async |user| {
        let mut daemon = Daemon::start(user);
        let mark = marker();
        let family = family(&mark);
        let mut job = daemon.job(&family.iter().map(String::as_str).collect::<Vec<_>>(), 1).await;
        job.start(0, false).await;
        assert_eq!(job.line(0).await, "up");
        rustix::process::kill_process(rustix::process::Pid::from_child(&daemon.child), rustix::process::Signal::TERM).unwrap();
        assert!(daemon.child.wait().unwrap().success());
        until_no_process_with(&mark).await;
    });
}

#[test]
fn a_controller_that_does_not_read_holds_its_ranks_not_the_daemon_s_memory() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sh", "-c", "head -c 100000000 /dev/zero"], 1).await;
        job.start(0, false).await;
        assert_eq!(job.next().await, FromDaemon::Started { rank: 0 });
        // The daemon goes on serving others meanwhile.
        let mut other = daemon.job(&["true"], 1).await;
        for _ in 0..20 {
            other.start(0, false).await;
            other.until_exit(0).await;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(peak < 60_000, "{peak} kB");
        assert_eq!(job.until_exit(0).await.stdout.len(), 100_000_000);
    });
}
