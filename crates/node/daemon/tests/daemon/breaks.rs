//! A connection that breaks is nothing, as long as the controller comes back; an earlier start of a job makes way for a later one.

use crate::controller::{Daemon, for_each_user, marker, until_no_process_with};
use mend_messages::daemon::{FromDaemon, ToDaemon};

/// Prints what it reads, with a number.
const ECHO: [&str; 3] = ["sh", "-c", "echo up; n=0; while read line; do n=$((n + 1)); echo $n $line; done"];

#[test]
fn a_job_goes_on_with_another_connection_and_nothing_is_lost_or_doubled() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&ECHO, 1).await;
        job.start(0, true).await;
        assert_eq!(job.line(0).await, "up");
        let mut expected = String::new();
        for round in 1..=20 {
            job.send(ToDaemon::Stdin { rank: 0, bytes: format!("round {round}\n").into_bytes() }).await;
            expected += &format!("{round} round {round}\n");
            // Before, while or after the daemon and the rank have had it.
            tokio::time::sleep(std::time::Duration::from_micros(300 * (round % 7))).await;
            assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Resumed { .. })), "round {round}");
        }
        job.send(ToDaemon::Stdin { rank: 0, bytes: Vec::new() }).await;
        let run = job.until_exit(0).await;
        assert_eq!(String::from_utf8(run.stdout).unwrap(), expected);
    });
}

#[test]
fn output_that_waits_for_a_controller_is_bounded_and_arrives_whole() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sh", "-c", "echo up; read line; seq 1 2000000"], 1).await;
        job.start(0, true).await;
        assert_eq!(job.line(0).await, "up");
        job.send(ToDaemon::Stdin { rank: 0, bytes: b"go\n".to_vec() }).await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Resumed { .. })));
        let run = job.until_exit(0).await;
        let expected: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
        assert!(String::from_utf8(run.stdout).unwrap() == expected);
    });
}

#[test]
fn who_comes_back_must_be_who_left() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&ECHO, 1).await;
        job.start(0, true).await;
        assert_eq!(job.line(0).await, "up");
        let session = job.introduction.session;
        job.introduction.session[0] ^= 1;
        assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Refused { .. })));
        job.introduction.session = session;
        job.introduction.epoch += 1;
        assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Refused { .. })));
        job.introduction.epoch -= 1;
        assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Resumed { .. })));
        job.send(ToDaemon::Stdin { rank: 0, bytes: b"a\n".to_vec() }).await;
        assert_eq!(job.line(0).await, "1 a");
    });
}

#[test]
fn a_successor_gives_the_orders_that_are_missing_and_the_lost_controller_is_refused() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&ECHO, 1).await;
        job.start(0, true).await;
        assert_eq!(job.line(0).await, "up");
        for round in 1..=10 {
            // The start, and a line of each round before.
            let orders = round;
            let lost = job.introduction.session;
            job.send(ToDaemon::Ping { at_us: round }).await;
            job.send(ToDaemon::Stdin { rank: 0, bytes: format!("{round}\n").into_bytes() }).await;
            tokio::time::sleep(std::time::Duration::from_micros(300 * (round % 7))).await;
            let Some(FromDaemon::Succeeded { orders: had }) = daemon.succeed(&mut job).await else { panic!("round {round}") };
            // It says whether it has had the last one, and is given it if not.
            assert!(had == orders || had == orders + 1, "{had} of {orders} and one");
            if had == orders {
                job.send(ToDaemon::Stdin { rank: 0, bytes: format!("{round}\n").into_bytes() }).await;
            }
            // Nor need it know what the lost one was told first.
            let (mut line, mut is_told) = (String::new(), false);
            while line.is_empty() || !is_told {
                match job.next().await {
                    FromDaemon::Output { bytes, .. } => line = String::from_utf8(bytes).unwrap(),
                    FromDaemon::Ready { .. } => is_told = true,
                    FromDaemon::Pong(_) | FromDaemon::StdinTaken { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(line, format!("{round} {round}\n"));
            let current = std::mem::replace(&mut job.introduction.session, lost);
            assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Refused { .. })), "the lost controller is let in");
            job.introduction.session = current;
            assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Resumed { .. })));
        }
    });
}

#[test]
fn what_a_lost_controller_had_and_did_not_confirm_is_told_to_its_successor() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&ECHO, 1).await;
        job.start(0, true).await;
        assert_eq!(job.line(0).await, "up");
        job.confirmed = Some(job.delivered.last());
        for round in 1..=3 {
            job.send(ToDaemon::Stdin { rank: 0, bytes: b"a\n".to_vec() }).await;
            assert_eq!(job.line(0).await, format!("{round} a"));
            // What it has had is not confirmed by that.
            assert!(matches!(daemon.resume(&mut job).await, Some(FromDaemon::Resumed { .. })));
        }
        assert!(matches!(daemon.succeed(&mut job).await, Some(FromDaemon::Succeeded { .. })));
        let mut again = Vec::new();
        while !again.ends_with(b"3 a\n") {
            match job.next().await {
                FromDaemon::Output { bytes, .. } => again.extend(bytes),
                FromDaemon::Ready { .. } | FromDaemon::StdinTaken { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(String::from_utf8(again).unwrap(), "1 a\n2 a\n3 a\n");
    });
}

#[test]
fn a_later_start_ends_an_earlier_one_first_and_an_earlier_one_is_refused() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mark = marker();
        let mut first = daemon.job(&["sh", "-c", "echo up; sleep 1000; true", &mark], 1).await;
        first.start(0, false).await;
        assert_eq!(first.line(0).await, "up");
        let mut later = first.introduction.clone();
        later.epoch += 1;
        let mut second = daemon.introduced(later.clone()).await;
        // By the answer nothing of the first is left.
        until_no_process_with(&mark).await;
        assert!(first.try_next().await.is_none());
        second.start(0, false).await;
        assert_eq!(second.line(0).await, "up");
        let mut old = daemon.unanswered(first.introduction.clone()).await;
        let Some(FromDaemon::Refused { error }) = old.answer().await else { panic!("an earlier start is let in") };
        assert!(error.contains("later start"), "{error}");
    });
}
