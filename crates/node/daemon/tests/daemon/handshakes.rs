//! Who is let in.

use crate::controller::{Daemon, for_each_user};
use mend_messages::auth::{AuthError, GREETING_LENGTH, Greeting, Purpose};
use mend_messages::daemon::{ExitStatus, FromDaemon, ToDaemon};
use mend_messages::job::Secret;
use mend_wire::{HandshakeError, connect};
use std::process::{Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[test]
fn unproven_peers_are_turned_away_and_do_no_harm() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let refused = connect(daemon.address, Purpose::Job, &Secret([1; 32])).await.unwrap_err();
        assert!(matches!(refused, HandshakeError::Rejected), "{refused}");
        let mut unproven = TcpStream::connect(daemon.address).await.unwrap();
        unproven.write_all(&[b'G'; 200]).await.unwrap();
        let mut answer = Vec::new();
        // It gets a greeting, then the end; a reset is an end too.
        let _ = unproven.read_to_end(&mut answer).await;
        assert!(answer.len() <= GREETING_LENGTH);
        // Silent ones take more places than there are, and stay.
        let mut silent = Vec::new();
        for _ in 0..400 {
            silent.push(TcpStream::connect(daemon.address).await.unwrap());
        }
        let mut job = daemon.introduced(daemon.introduction(&["true"], 1)).await;
        job.start(0, false).await;
        assert_eq!(job.until_exit(0).await.status, Some(ExitStatus::Code(0)));
        drop(silent);
    });
}

#[test]
fn another_version_is_told_so() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut stream = TcpStream::connect(daemon.address).await.unwrap();
        let mut other = Greeting::new(Purpose::Job, [7; 32]);
        other.protocol += 1;
        stream.write_all(&other.encode()).await.unwrap();
        let mut bytes = [0; GREETING_LENGTH];
        stream.read_exact(&mut bytes).await.unwrap();
        assert!(matches!(Greeting::decode(&bytes, &other), Err(AuthError::OtherVersion { .. })));
        assert_eq!(stream.read(&mut bytes).await.unwrap_or(0), 0);
    });
}

#[test]
fn garbage_after_the_handshake_ends_the_job() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sleep", "1000"], 1).await;
        job.start(0, false).await;
        assert!(matches!(job.next().await, FromDaemon::Started { .. }));
        // Not a message of this direction: its first byte is no such variant.
        job.connection.sender.send(&[0xffu8; 32]).await.unwrap();
        while job.try_next().await.is_some() {}
    });
}

#[test]
fn two_jobs_run_at_once_and_one_identity_only_once() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut first = daemon.job(&["sh", "-c", "read line; echo first $line"], 1).await;
        let mut second = daemon.job(&["sh", "-c", "read line; echo second $line"], 1).await;
        for job in [&mut first, &mut second] {
            job.start(0, true).await;
        }
        second.send(ToDaemon::Stdin { rank: 0, bytes: b"b\n".to_vec() }).await;
        first.send(ToDaemon::Stdin { rank: 0, bytes: b"a\n".to_vec() }).await;
        assert_eq!(first.until_exit(0).await.out(), "first a");
        assert_eq!(second.until_exit(0).await.out(), "second b");
        let mut twin = daemon.unanswered(first.introduction.clone()).await;
        assert!(matches!(twin.answer().await, Some(FromDaemon::Refused { .. })));
    });
}

#[test]
fn a_daemon_that_cannot_serve_says_why() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let home = tempfile::tempdir().unwrap();
        let run = |listen: String, home: &std::path::Path, log: &str| {
            let output = Command::new(env!("CARGO_BIN_EXE_mendd"))
                .args(["--listen", &listen])
                .env("MEND_HOME", home)
                .env("MEND_LOG", log)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, text) = run(daemon.address.to_string(), home.path(), "");
        assert_eq!(code, Some(1));
        assert!(text.contains(&format!("cannot listen on {}", daemon.address)) && text.contains("hint: another mendd"), "{text}");
        let secret = home.path().join("secret");
        let mut open = std::fs::metadata(&secret).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o640);
        std::fs::set_permissions(&secret, open).unwrap();
        let (code, text) = run("127.0.0.1:0".into(), home.path(), "mend=loud");
        assert_eq!(code, Some(1));
        assert!(text.contains("MEND_LOG cannot be used") && text.contains("hint: write for example MEND_LOG=debug"), "{text}");
        let (code, text) = run("127.0.0.1:0".into(), home.path(), "");
        assert_eq!(code, Some(1));
        assert!(text.contains("can be read by others") && text.contains("hint: chmod 600"), "{text}");
    });
}
