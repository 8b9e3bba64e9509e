//! The PID namespace that ranks of a job share on a node: who is in it, who is not, and that nothing stays in it.

use crate::controller::{Controller, Daemon, for_each_isolated_user, marker, until_no_process_with};
use mend_image::cpu::Features;
use mend_image::{Header, put_text};
use mend_messages::daemon::{ExitStatus, FromDaemon, JobIntroduction, RestoreSource, ToDaemon};
use rustix::process::{Pid, Signal, kill_process};

/// Says in which namespace it is.
const WHERE: &str = "readlink /proc/self/ns/pid; sleep 1000; true";

#[test]
fn ranks_of_a_job_are_in_one_namespace_and_those_of_another_are_not() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sh", "-c", WHERE], 3).await;
        let mut other = daemon.job(&["sh", "-c", WHERE], 3).await;
        let mut seen = Vec::new();
        for rank in 0..3 {
            job.start(rank, false).await;
            seen.push(job.line(rank).await);
        }
        assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
        other.start(0, false).await;
        let another = other.line(0).await;
        let daemons = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert!(another != seen[0] && another != daemons.to_str().unwrap(), "{another}");
    });
}

#[test]
fn ranks_can_be_told_to_have_one_each() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start(user);
        let mut introduction = daemon.introduction(&["sh", "-c", WHERE], 2);
        introduction.program.env.push(("MEND_PID_NAMESPACE".into(), "rank".into()));
        let mut job = daemon.introduced(introduction).await;
        let mut seen = Vec::new();
        for rank in 0..2 {
            job.start(rank, false).await;
            seen.push(job.line(rank).await);
        }
        assert_ne!(seen[0], seen[1]);
    });
}

/// A job of two ranks whose identity gives them the first ids there are: 1000 and 1016, with reapers 1008 and 1024.
fn with_first_ids(daemon: &Daemon, words: &[&str]) -> JobIntroduction {
    JobIntroduction { identity: [0; 16], ..daemon.introduction(words, 2) }
}

/// A program that names files by host and process id (a JVM's hsperfdata) must not find those of another job. A rank has its id again
/// wherever it is started, in a namespace of its own as in a shared one.
#[test]
fn ids_differ_between_jobs_and_not_between_nodes() {
    for_each_isolated_user(async |user| {
        let (one, other) = (Daemon::start(user), Daemon::start(user));
        for size in [1, 2] {
            let mut seen = Vec::new();
            for (daemon, job) in [(&one, 1), (&one, 2), (&other, 1)] {
                let introduction = JobIntroduction {
                    identity: [job + 10 * size as u8; 16],
                    ..daemon.introduction(&["sh", "-c", "echo $$; sh -c 'echo $$'; true"], size)
                };
                let mut job = daemon.introduced(introduction).await;
                job.start(0, false).await;
                let run = job.until_exit(0).await;
                seen.push(run.out().lines().map(str::to_owned).collect::<Vec<_>>());
            }
            assert_ne!(seen[0][0], seen[1][0], "of two jobs");
            assert_eq!(seen[0][0], seen[2][0], "on two nodes");
            assert!(seen[0][1] != seen[1][1] || seen[0][1] != seen[2][1], "children: {seen:?}");
        }
    });
}

/// First processes have the ids that Mend gives, their children what was drawn far above.
#[test]
fn ids_do_not_meet() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start(user);
        let script = "echo $$ $PPID; sh -c 'echo $$'; kill -0 1000 && echo reached";
        let mut job = daemon.introduced(with_first_ids(&daemon, &["sh", "-c", script])).await;
        job.start(1, false).await;
        let run = job.until_exit(1).await;
        let lines: Vec<&str> = run.out().lines().collect();
        // Rank 0 is not there.
        assert_eq!((lines.len(), lines[0]), (2, "1016 1024"), "{run:?}");
        assert!(lines[1].parse::<u32>().unwrap() > 131_072, "{run:?}");
    });
}

/// The process in the namespace of `program`, the only one with these words, that has this id there.
fn outer_id(mark: &str, inner: u32) -> Option<Pid> {
    let processes = || std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let marked = |path: &std::path::Path| String::from_utf8_lossy(&std::fs::read(path.join("cmdline")).unwrap_or_default()).contains(mark);
    let namespace = |path: &std::path::Path| std::fs::read_link(path.join("ns/pid")).ok();
    let wanted = processes().find(|path| marked(path)).and_then(|path| namespace(&path))?;
    let found = processes().find(|path| {
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let id = status.lines().find_map(|line| line.strip_prefix("NSpid:")?.split_whitespace().last()?.parse().ok());
        id == Some(inner) && namespace(path).as_ref() == Some(&wanted)
    })?;
    Pid::from_raw(found.file_name()?.to_str()?.parse().ok()?)
}

#[test]
fn what_a_killed_reaper_leaves_is_ended_and_the_others_go_on() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start(user);
        let mark = marker();
        // Their children are marked with their rank's number, too.
        let script = "setsid sh -c 'sleep 1000; true' $0$PMI_RANK & sh -c 'sleep 1000; true' $0$PMI_RANK & echo up; wait";
        let mut job = daemon.introduced(with_first_ids(&daemon, &["sh", "-c", script, &mark])).await;
        for rank in 0..2 {
            job.start(rank, false).await;
            assert_eq!(job.line(rank).await, "up");
        }
        let (first, second) = (format!("{mark}0"), format!("{mark}1"));
        // Its children say `up` before they are what they are to be.
        let reaper = loop {
            match outer_id(&first, 1008) {
                Some(found) => break found,
                None => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        };
        kill_process(reaper, Signal::KILL).unwrap();
        assert_eq!(job.until_exit(0).await.status, Some(ExitStatus::Signal(9)));
        until_no_process_with(&first).await;
        assert!(outer_id(&second, 1016).is_some());
        // The place is free again.
        job.start(0, false).await;
        assert_eq!(job.line(0).await, "up");
        job.send(ToDaemon::Discard { rank: 0 }).await;
        until_no_process_with(&first).await;
        job.send(ToDaemon::Signal(9)).await;
        assert_eq!(job.until_exit(1).await.status, Some(ExitStatus::Signal(9)));
        until_no_process_with(&mark).await;
    });
}

/// Restores that end at once, of images whose threads had these ids; where the restorer found itself.
async fn places(daemon: &Daemon, job: &mut Controller, cases: &[(u32, u32)]) -> Vec<String> {
    let mut seen = Vec::new();
    for &(pid, lowest_thread) in cases {
        let mut header = Header { rank: 1, size: 2, pid, lowest_thread, id: [7; 16], job: job.introduction.identity, ..Header::default() };
        header.set_cpu(&mend_kernel::processor::detect().needs(Features::default()));
        put_text(&mut header.executable, b"/bin/sh");
        let path = daemon.file("image", &header.to_bytes(), 0o644);
        job.send(ToDaemon::Restore {
            rank: 1,
            attempt: 1,
            source: RestoreSource::Files(vec![path]),
            image: None,
            stdin: false,
            put_back: None,
        })
        .await;
        match job.next().await {
            FromDaemon::RestoreFailed { rank: 1, .. } => {}
            other => panic!("{other:?}"),
        }
        seen.push(std::fs::read_to_string(daemon.directory.path().join("seen")).unwrap().trim().to_owned());
    }
    seen
}

#[test]
fn a_saved_rank_comes_into_it_if_its_ids_are_fit_and_free() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start_with_restorer(user, "#!/bin/sh\nexec >\"${0%/*}/seen\"\nreadlink /proc/self/ns/pid\n");
        let mut job = daemon.introduced(with_first_ids(&daemon, &["sh", "-c", WHERE])).await;
        job.start(0, false).await;
        let shared = job.line(0).await;
        // Drawn; counted from the beginning; not told; rank 0 has the id.
        let seen = places(&daemon, &mut job, &[(1016, 200_000), (1016, 20), (1016, 0), (1000, 200_000)]).await;
        assert_eq!(seen[0], shared);
        assert!(seen[1..].iter().all(|one| one.starts_with("pid:") && *one != shared), "{seen:?}, {shared}");
    });
}
