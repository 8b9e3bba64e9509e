//! Starting programs: what they find, what they may do, how they end.

use crate::controller::{Daemon, for_each_isolated_user, for_each_user};
use mend_messages::daemon::{ExitStatus, FromDaemon, JobIntroduction, ToDaemon};
use std::process::Command;

const SIGTERM: i32 = 15;

#[test]
fn exit_codes_and_signals_come_through() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sh", "-c", "test $MEND_RANK = 0 && exit 3; kill -9 $$"], 2).await;
        job.start(0, false).await;
        let run = job.until_exit(0).await;
        assert!(run.started);
        assert_eq!(run.status, Some(ExitStatus::Code(3)));
        job.start(1, false).await;
        assert_eq!(job.until_exit(1).await.status, Some(ExitStatus::Signal(9)));
    });
}

#[test]
fn all_output_comes_in_order_and_before_the_exit() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sh", "-c", "seq 1 200000; echo end >&2"], 1).await;
        job.start(0, false).await;
        let run = job.until_exit(0).await;
        let wanted: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
        assert!(run.stdout == wanted.as_bytes());
        assert_eq!(run.stderr, b"end\n");
    });
}

#[test]
fn standard_input_is_fed_or_empty() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["cat"], 2).await;
        job.start(0, true).await;
        job.start(1, false).await;
        for bytes in [&b"one "[..], b"two", b""] {
            job.send(ToDaemon::Stdin { rank: 0, bytes: bytes.to_vec() }).await;
        }
        let mut output = Vec::new();
        let (mut taken, mut exited) = (0, 0);
        while exited < 2 || taken < 2 {
            match job.next().await {
                FromDaemon::Output { rank, bytes, .. } => {
                    assert_eq!(rank, 0);
                    output.extend(bytes);
                }
                FromDaemon::StdinTaken { rank: 0 } => taken += 1,
                FromDaemon::Exited { status, .. } => {
                    assert_eq!(status, ExitStatus::Code(0));
                    exited += 1;
                }
                FromDaemon::Started { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(output, b"one two");
    });
}

#[test]
fn signals_reach_the_program() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
        let mut job = daemon.job(&["sh", "-c", script], 1).await;
        job.start(0, false).await;
        assert_eq!(job.line(0).await, "ready");
        job.send(ToDaemon::Signal(SIGTERM)).await;
        let run = job.until_exit(0).await;
        assert_eq!((run.out(), run.status), ("caught", Some(ExitStatus::Code(7))));
    });
}

#[test]
fn pmi_bytes_go_both_ways() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sh", "-c", "echo cmd=init >&$PMI_FD; read line <&$PMI_FD; echo $PMI_RANK/$PMI_SIZE $line"], 2).await;
        job.start(1, false).await;
        job.send(ToDaemon::Pmi { rank: 1, bytes: b"cmd=response\n".to_vec() }).await;
        let run = job.until_exit(1).await;
        assert_eq!(run.pmi, b"cmd=init\n");
        assert_eq!(run.out(), "1/2 cmd=response");
    });
}

#[test]
fn a_rank_has_its_own_ids_and_nothing_it_should_not() {
    for_each_isolated_user(async |user| {
        let daemon = Daemon::start(user);
        // A shell's redirections come and go; what `ls` sees beyond 0 to 3 is its own directory.
        let script = "test $$ = $MEND_RANK_PID || echo pid $$; ps -o pgid= -p $$ | tr -d ' '; \
            grep -E 'Cap(Inh|Amb)' /proc/self/status; grep SigIgn /proc/self/status; grep SigBlk /proc/self/status; ls /proc/$$/fd";
        // An identity with which ids begin at 1000.
        let introduction = JobIntroduction { identity: [0; 16], ..daemon.introduction(&["sh", "-c", script], 3) };
        let mut job = daemon.introduced(introduction).await;
        job.start(2, false).await;
        let run = job.until_exit(2).await;
        let zeros = "0000000000000000";
        let wanted = format!("1032\nCapInh:\t{zeros}\nCapAmb:\t{zeros}\nSigIgn:\t{zeros}\nSigBlk:\t{zeros}\n0\n1\n2\n3");
        assert_eq!(run.out(), wanted, "{}", String::from_utf8_lossy(&run.stderr));
        drop(job);
        let mut job = daemon.job(&["sh", "-c", "grep CapEff /proc/self/status; id -u"], 1).await;
        job.start(0, false).await;
        let run = job.until_exit(0).await;
        match run.out().split_once('\n').unwrap() {
            (_, "0") => {}
            (capabilities, _) => assert_eq!(capabilities, format!("CapEff:\t{zeros}")),
        }
    });
}

#[test]
fn the_library_is_preloaded_ahead_of_the_user_s() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut introduction = daemon.introduction(&["sh", "-c", "echo $LD_PRELOAD; echo $FI_PROVIDER:$FI_PROVIDER_PATH"], 1);
        introduction.program.env.push(("LD_PRELOAD".into(), "libm.so.6".into()));
        let mut job = daemon.job(&["true"], 1).await;
        job.send(ToDaemon::End { goes_on: false }).await;
        while job.try_next().await.is_some() {}
        let mut job = daemon.introduced(introduction).await;
        job.start(0, false).await;
        let here = daemon.directory.path().display();
        assert_eq!(job.until_exit(0).await.out(), format!("{here}/libmend-fi.so:libm.so.6\nmend:{here}"));
    });
}

#[test]
fn what_cannot_be_started_is_refused_by_name() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        std::fs::create_dir(daemon.directory.path().join("folder")).unwrap();
        daemon.file("plain", b"text", 0o644);
        daemon.file("orphan", b"#!/no/such/interpreter\n", 0o755);
        daemon.file("noise", &[0x7f, b'E', b'L', b'F', 0, 0], 0o755);
        for (program, code, words) in [
            ("no-such-program-anywhere", 127, "no such program in PATH"),
            ("./absent", 127, "no such file"),
            ("./folder", 126, "is a directory"),
            ("./plain", 126, "is not executable"),
            ("./orphan", 127, "/no/such/interpreter"),
            ("./noise", 126, "cannot execute"),
        ] {
            let mut job = daemon.job(&[program], 1).await;
            job.start(0, false).await;
            match job.next().await {
                FromDaemon::StartFailed { rank: 0, attempt: 1, error, hint, code: found } => {
                    assert!(error.contains(words), "{error}");
                    assert!(!hint.is_empty(), "{error}");
                    assert_eq!(found, code, "{error}");
                }
                other => panic!("{program}: {other:?}"),
            }
        }
        let mut introduction = daemon.introduction(&["true"], 1);
        introduction.program.cwd = "/no/such/directory".into();
        let mut job = daemon.introduced(introduction).await;
        job.start(0, false).await;
        match job.next().await {
            FromDaemon::StartFailed { error, .. } => assert!(error.contains("working directory /no/such/directory"), "{error}"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn an_mpi_that_cannot_be_carried_is_refused_by_name() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let build = |script: &str| {
            let built = Command::new("sh").args(["-ec", script]).current_dir(daemon.directory.path()).status().unwrap();
            assert!(built.success());
        };
        build(
            "mkdir -p other fabric; echo 'int MPI_Init(void){return 0;}' > mpi.c; echo 'int MPI_Init(void); int main(void){return MPI_Init();}' > main.c",
        );
        build(
            "cc -shared -fPIC -Wl,-soname,libmpi.so.40 -o other/libmpi.so.40 mpi.c; cc -o with-other main.c other/libmpi.so.40 -Wl,-rpath,'$ORIGIN/other'",
        );
        build("echo 'int fi_getinfo(void){return 0;}' | cc -shared -fPIC -x c - -Wl,-soname,libfabric.so.1 -o fabric/libfabric.so.1");
        build(
            "cc -shared -fPIC -Wl,-soname,libmpi.so.12 -Wl,--no-as-needed -o fabric/libmpi.so.12 mpi.c fabric/libfabric.so.1 -Wl,-rpath,'$ORIGIN'",
        );
        build("cc -o with-fabric main.c fabric/libmpi.so.12 -Wl,-rpath,'$ORIGIN/fabric' -Wl,-rpath-link,fabric");
        let mut job = daemon.job(&["./with-other"], 1).await;
        job.start(0, false).await;
        match job.next().await {
            FromDaemon::StartFailed { error, hint, code: 1, .. } => {
                assert!(error.contains("other/libmpi.so.40 does not use libfabric"), "{error}");
                assert!(hint.contains("ch4:ofi"), "{hint}");
            }
            other => panic!("{other:?}"),
        }
        let mut job = daemon.job(&["./with-fabric"], 1).await;
        job.start(0, false).await;
        assert_eq!(job.until_exit(0).await.status, Some(ExitStatus::Code(0)));
        drop(job);
        std::fs::rename(daemon.directory.path().join("fabric/libfabric.so.1"), daemon.directory.path().join("elsewhere")).unwrap();
        // A libfabric of the system would rightly be found instead.
        if !std::path::Path::new("/usr/lib/x86_64-linux-gnu/libfabric.so.1").exists() {
            let mut job = daemon.job(&["./with-fabric"], 1).await;
            job.start(0, false).await;
            match job.next().await {
                FromDaemon::StartFailed { error, .. } => assert!(error.contains("needs libfabric.so.1"), "{error}"),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn input_that_a_discarded_rank_was_not_given_comes_back() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sleep", "1000"], 1).await;
        job.start(0, true).await;
        assert_eq!(job.next().await, FromDaemon::Started { rank: 0 });
        // One piece at a time, until the pipe is full.
        let piece = |number: u8| vec![number; 4096];
        let mut number = 0;
        loop {
            job.send(ToDaemon::Stdin { rank: 0, bytes: piece(number) }).await;
            job.send(ToDaemon::Ping { at_us: 0 }).await;
            // Answers to pings for so long, without one to the piece, mean that it waits.
            let (mut taken, mut pongs, began) = (false, 0, std::time::Instant::now());
            while !taken && (pongs < 50 || began.elapsed().as_secs() < 2) {
                match job.next().await {
                    FromDaemon::StdinTaken { rank: 0 } => taken = true,
                    FromDaemon::Pong(_) => {
                        pongs += 1;
                        job.send(ToDaemon::Ping { at_us: 0 }).await;
                    }
                    other => panic!("{other:?}"),
                }
            }
            if !taken {
                break;
            }
            number += 1;
        }
        job.send(ToDaemon::Discard { rank: 0 }).await;
        loop {
            match job.next().await {
                FromDaemon::StdinLeft { rank: 0, attempt: 1, bytes } => break assert_eq!(bytes, piece(number)),
                FromDaemon::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
        // Its successor was given all, and that is said, too.
        job.start(0, true).await;
        assert_eq!(job.next().await, FromDaemon::Started { rank: 0 });
        job.send(ToDaemon::Discard { rank: 0 }).await;
        assert_eq!(job.next().await, FromDaemon::StdinLeft { rank: 0, attempt: 2, bytes: Vec::new() });
    });
}

#[test]
fn a_hundred_ranks_need_no_higher_limit_and_get_none() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sh", "-c", "ulimit -Sn; read line"], 100).await;
        for rank in 0..100 {
            job.start(rank, true).await;
        }
        let mut lines = 0;
        while lines < 100 {
            match job.next().await {
                FromDaemon::Started { .. } => {}
                FromDaemon::Output { bytes, .. } => {
                    assert_eq!(bytes, b"256\n");
                    lines += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    });
}
