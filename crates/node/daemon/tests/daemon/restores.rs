//! Restores that must fail, each with its reason, and without leaving a process.

use crate::controller::{Controller, Daemon, User, for_each_isolated_user, for_each_user};
use mend_image::cpu::Features;
use mend_image::{Header, put_text};
use mend_messages::agent::ImageId;
use mend_messages::daemon::{ExitStatus, FromDaemon, RestoreBlame, RestoreSource, ToDaemon};
use std::path::PathBuf;

fn header(job: &Controller) -> Header {
    let mut header = Header { rank: 0, size: 1, pid: 1000, id: [7; 16], job: job.introduction.identity, ..Header::default() };
    header.set_cpu(&mend_kernel::processor::detect().needs(Features::default()));
    put_text(&mut header.executable, b"/bin/sh");
    put_text(&mut header.host, b"elsewhere");
    header
}

/// What it says, and whether it blames the image.
async fn refusal(job: &mut Controller, source: RestoreSource) -> (String, bool) {
    refusal_of(job, source, Some(ImageId([7; 16]))).await
}

async fn refusal_of(job: &mut Controller, source: RestoreSource, image: Option<ImageId>) -> (String, bool) {
    job.send(ToDaemon::Restore { rank: 0, attempt: 7, source, image, stdin: false, put_back: None }).await;
    match job.next().await {
        FromDaemon::RestoreFailed { rank: 0, attempt: 7, error, hint, blame } => {
            assert!(!hint.is_empty(), "{error}");
            (error, blame == RestoreBlame::Image)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_restorer_it_is_named() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["true"], 1).await;
        let refused = refusal(&mut job, RestoreSource::Files(vec!["/no/such/image".into()])).await;
        assert_eq!(refused, ("mend-restorer is not installed beside mendd".into(), false));
    });
}

#[test]
fn unusable_images_are_refused_by_name() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start_with_restorer(user, "#!/bin/sh\nexit 1\n");
        let mut job = daemon.job(&["true"], 1).await;
        let good = header(&job);
        let another = Header { job: [9; 16], ..header(&job) };
        let another_moment = Header { id: [8; 16], ..header(&job) };
        let another_rank = Header { rank: 5, size: 8, ..header(&job) };
        let mut elsewhere = header(&job);
        put_text(&mut elsewhere.executable, b"/no/such/program");
        let mut stronger = header(&job);
        stronger.cpu_features = u64::MAX;
        let mut damaged = good.to_bytes();
        damaged[100] ^= 1;
        let mut newer = good.to_bytes();
        newer[8] = 99;
        let cases: [(&str, &[u8], &str); 9] = [
            ("empty", b"", "incomplete"),
            ("foreign", &[b'x'; 5000], "not an image of a rank"),
            ("damaged", &damaged, "header is damaged"),
            ("newer", &newer, "has format 99"),
            ("other-job", &another.to_bytes(), "of another job"),
            ("other-moment", &another_moment.to_bytes(), "of another moment"),
            ("other-rank", &another_rank.to_bytes(), "of rank 5 of 8, not of rank 0 of 1"),
            ("no-program", &elsewhere.to_bytes(), "/no/such/program is not on this node"),
            ("stronger", &stronger.to_bytes(), "processor lacks"),
        ];
        for (name, bytes, words) in cases {
            let path = daemon.file(name, bytes, 0o644);
            let (error, image) = refusal(&mut job, RestoreSource::Files(vec![path.clone()])).await;
            assert!(error.contains(words), "{name}: {error}");
            // What the node lacks, an older image would miss as well.
            assert_eq!(image, !matches!(name, "no-program" | "stronger"), "{name}");
            assert!(error.contains(path.to_str().unwrap()) || !image, "{error}");
        }
        let (error, image) = refusal(&mut job, RestoreSource::Files(vec![PathBuf::from("/no/such/image")])).await;
        assert!(image && error.contains("cannot read the image /no/such/image"), "{error}");
    });
}

#[test]
fn a_chain_that_does_not_fit_is_refused_by_name() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start_with_restorer(user, "#!/bin/sh\nexit 1\n");
        let mut job = daemon.job(&["true"], 1).await;
        let full = Header { id: [1; 16], ..header(&job) };
        let newer = Header { id: [2; 16], base: [1; 16], sequence: 1, ..full };
        let another = Header { id: [3; 16], ..full };
        let [full, newer, another] =
            [("full", full), ("newer", newer), ("another", another)].map(|(name, header)| daemon.file(name, &header.to_bytes(), 0o644));
        let cases = [
            (vec![&newer], &newer, "builds on another one (number 1 of its chain), which is not given"),
            (vec![&newer, &another], &another, "not the image that the next newer one builds on"),
            (vec![&full, &another], &another, "is full and builds on no other"),
        ];
        for (chain, named, words) in cases {
            let (error, image) = refusal_of(&mut job, RestoreSource::Files(chain.into_iter().cloned().collect()), None).await;
            assert!(image && error.contains(words) && error.contains(named.to_str().unwrap()), "{error}");
        }
        // A whole chain gets as far as the restorer.
        let (error, _) = refusal_of(&mut job, RestoreSource::Files(vec![newer, full]), None).await;
        assert_eq!(error, "mend-restorer ended without saying why");
        let (error, _) = refusal(&mut job, RestoreSource::Files(Vec::new())).await;
        assert_eq!(error, "no image was named to restore the rank from");
    });
}

#[test]
fn a_restorer_that_is_killed_is_a_rank_that_is_killed() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start_with_restorer(user, "#!/bin/sh\nkill -9 $$\n");
        let mut job = daemon.job(&["true"], 1).await;
        let source = RestoreSource::Files(vec![daemon.file("image", &header(&job).to_bytes(), 0o644)]);
        job.send(ToDaemon::Restore { rank: 0, attempt: 7, source, image: Some(ImageId([7; 16])), stdin: false, put_back: None }).await;
        assert_eq!(job.next().await, FromDaemon::Exited { rank: 0, attempt: 7, status: ExitStatus::Signal(9) });
        // The rank's place is free again.
        job.start(0, false).await;
        job.until_exit(0).await;
    });
}

#[test]
fn a_restorer_has_its_pid_its_clock_and_its_descriptors() {
    for_each_isolated_user(async |user| {
        // It tells what it finds through the image's own file, which it was given for reading only. The shell's pipe to grep may be closed while ls looks.
        let script = "#!/bin/sh\n\
            exec >\"${0%/*}/seen\" 2>&1\n\
            echo pid $$; cut -d. -f1 /proc/uptime; ls -l /proc/$$/fd 2>/dev/null | grep -c 'image$'; echo \"$@\"\n";
        let daemon = Daemon::start_with_restorer(user, script);
        let mut job = daemon.job(&["true"], 1).await;
        let mut saved = header(&job);
        // Far ahead of any clock here.
        const SECOND: u64 = 1_000_000_000;
        (saved.pid, saved.monotonic, saved.boottime) = (4711, 500_000_000 * SECOND, 500_000_000 * SECOND);
        saved.roles = 0b1110;
        let path = daemon.file("image", &saved.to_bytes(), 0o644);
        refusal(&mut job, RestoreSource::Files(vec![path])).await;
        let seen = std::fs::read_to_string(daemon.directory.path().join("seen")).unwrap();
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines[0], "pid 4711");
        assert!(lines[1].parse::<u64>().unwrap() >= 500_000_000, "{seen}");
        assert_eq!(lines[2], "1", "{seen}");
        assert_eq!(lines[3], "--image-fd 5 --control-fd 3 --agent-fd 4 --attach stdout=6 --attach stderr=7 --attach pmi=8 --mode restart");
    });
}

#[test]
fn a_node_without_namespaces_says_so() {
    for_each_user(async |user| {
        if user == User::Confined {
            let daemon = Daemon::start_with_restorer(user, "#!/bin/sh\nexit 1\n");
            let mut job = daemon.job(&["true"], 1).await;
            let (error, _) = refusal(&mut job, RestoreSource::Files(vec!["/no/such/image".into()])).await;
            assert!(error.contains("this node refuses user and PID namespaces"), "{error}");
        }
    });
}
