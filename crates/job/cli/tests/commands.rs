//! What `mend` prints and how it ends, as people see it: every verb's help, and the errors they meet first. Each is a snapshot in
//! `snapshots/`; one that changes is looked at and accepted (CONTRIBUTING.md says how).

use mend_journal::event::{Cause, Entry, Event};
use mend_journal::frame;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Runs `mend` with none of the environment that would change what it says.
fn mend(home: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mend"));
    command.env_clear().env("MEND_HOME", home).env("HOME", home).env("PATH", "/usr/bin:/bin").env("COLUMNS", "100");
    command.envs(settings.iter().copied()).current_dir(home).args(arguments).output().unwrap()
}

/// What was printed, with a name for the directory of this run.
fn printed(home: &Path, bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap().replace(home.to_str().unwrap(), "[HOME]")
}

/// Compares all that a command says with the snapshot of that name; returns its standard output.
fn snapshot(home: &Path, name: &str, arguments: &[&str], settings: &[(&str, &str)]) -> String {
    let said = mend(home, arguments, settings);
    let (code, out, err) = (said.status.code().unwrap(), printed(home, said.stdout), printed(home, said.stderr));
    let environment: String = settings.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let text = format!("$ {environment}mend {}\n{out}--- standard error\n{err}--- exit code {code}", arguments.join(" "));
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
    out
}

/// The verbs below one, as its help lists them.
fn verbs(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What goes on from the line before is indented further.
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn help(home: &Path, path: &[String]) -> usize {
    let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let name = path.iter().fold("help".to_owned(), |name, verb| format!("{name}-{verb}"));
    let below = verbs(&snapshot(home, &name, &words, &[]));
    1 + below.into_iter().map(|verb| help(home, &[path, &[verb]].concat())).sum::<usize>()
}

#[test]
fn every_verb_has_its_help() {
    let home = tempfile::tempdir().unwrap();
    assert!(help(home.path(), &[]) > 20);
}

/// A job that ended, as its directory says.
const ENDED: &str = r#"{"id": "lmp-3f2a9c", "command": ["lmp", "-in", "in.melt"], "size": 4, "hosts": ["a", "b"], "controller_host": "a",
    "controller_port": 1, "controller_pid": 1, "started": 1000, "ended": [2000, "exit code 0"], "checkpoints": "/nonexistent/lmp-3f2a9c"}"#;

/// A home with that job, and files that are no images.
fn with_a_job() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let job = home.path().join("jobs/lmp-3f2a9c");
    std::fs::create_dir_all(&job).unwrap();
    std::fs::write(job.join("job.json"), ENDED).unwrap();
    std::fs::write(home.path().join("text"), "no image at all, though a file that is longer than an image's head: ".repeat(100)).unwrap();
    std::fs::write(home.path().join("empty"), "").unwrap();
    // Of the program's name, as many are: the job is meant.
    std::fs::create_dir(home.path().join("lmp")).unwrap();
    let script = "#!/bin/sh\n#MEND stage-in archive/x y\n#DW jobdw capacity=1\n#BB stage_in source=/a\n#MEND fetch x\n";
    std::fs::write(home.path().join("job.sh"), script).unwrap();
    // Whatever the umask is.
    std::fs::set_permissions(home.path().join("text"), std::fs::Permissions::from_mode(0o644)).unwrap();
    home
}

#[test]
fn errors_say_what_was_wrong_and_what_to_do() {
    let home = with_a_job();
    let cases: &[(&str, &[&str])] = &[
        ("data-stage-without-a-path", &["data", "stage", "http://archive/x"]),
        ("data-stage-from-no-address", &["data", "stage", "archive/x", "x"]),
        ("data-stage-with-a-password", &["data", "stage", "ftp://me:secret@archive/x", "x"]),
        ("data-stage-with-credentials-themselves", &["data", "stage", "http://archive/x", "x", "--credentials", "secret"]),
        ("data-stage-by-no-script", &["data", "stage", "--script", "nonexistent"]),
        ("data-stage-by-a-script-with-mistakes", &["data", "stage", "--script", "job.sh"]),
        ("no-verb", &[]),
        ("no-such-verb", &["frobnicate"]),
        ("no-such-option", &["ps", "--colour"]),
        ("attach-to-a-job-that-was-not-detached", &["attach", "lmp"]),
        ("checkpoint-without-a-job", &["checkpoint"]),
        ("checkpoint-of-no-such-job", &["checkpoint", "lmp-4"]),
        ("checkpoint-of-an-ended-job", &["checkpoint", "lmp-3f2a9c"]),
        ("checkpoint-in-no-such-mode", &["checkpoint", "--mode", "fast"]),
        ("checkpoints-of-a-job-without-any", &["checkpoints"]),
        ("checkpoints-remove-one-that-is-not-there", &["checkpoints", "lmp", "--remove", "3"]),
        ("drain-no-node", &["drain", "a:2"]),
        ("drain-of-none", &["drain"]),
        ("drain-without-a-node", &["drain", "--deadline", "5"]),
        ("explain-without-a-job", &["explain"]),
        ("image-compact-of-no-image", &["image", "compact", "text", "--to", "new"]),
        ("image-diff-of-no-image", &["image", "diff", "text", "empty"]),
        ("image-show-of-an-empty-file", &["image", "show", "empty"]),
        ("image-show-of-no-file", &["image", "show", "absent"]),
        ("image-show-of-no-image", &["image", "show", "text"]),
        ("image-verify-of-a-directory-without-a-manifest", &["image", "verify", "."]),
        ("kill-without-a-job", &["kill"]),
        ("lab-exec-in-no-lab", &["lab", "exec", "--name", "absent", "node1", "true"]),
        ("lab-up-with-a-bad-name", &["lab", "up", "--name", "a/b"]),
        ("lab-up-with-a-bad-rate", &["lab", "up", "--bandwidth", "fast"]),
        ("log-of-no-such-job", &["log", "lmp-4"]),
        ("logs-of-a-job-that-was-not-detached", &["logs"]),
        ("migrate-no-rank", &["migrate", "c"]),
        ("migrate-too-much", &["migrate", "lmp", "3", "c"]),
        ("migrate-without-a-job", &["migrate", "3"]),
        ("ps-of-no-jobs", &["ps"]),
        ("ps-of-no-jobs-as-json", &["ps", "--json"]),
        ("bench-migrate-into-no-directory", &["bench", "migrate", "--csv", "nope/x.csv"]),
        ("bench-pipe-into-no-directory", &["bench", "pipe", "--svg", "nope/x.svg"]),
        ("restart-a-directory-without-a-checkpoint", &["restart", "./lmp"]),
        ("restart-a-job-beside-a-directory-of-its-name", &["restart", "lmp"]),
        ("restart-a-file", &["restart", "./text"]),
        ("restart-no-such-checkpoint", &["restart", "--checkpoint", "7"]),
        ("restart-no-such-job", &["restart", "lmp-4"]),
        ("restart-without-a-checkpoint", &["restart"]),
        ("rm-all-that-are-older-than-what", &["rm", "--ended", "--older", "7"]),
        ("rm-no-such-job", &["rm", "lmp-4"]),
        ("rm-older-than-a-month", &["rm", "--ended", "--older", "1 month"]),
        ("rm-what", &["rm"]),
        ("run-no-program", &["run", "-n", "4"]),
        ("run-no-ranks", &["run", "-n", "0", "true"]),
        ("run-on-hosts-and-in-a-file", &["run", "--hosts", "a", "-f", "hosts", "true"]),
        ("run-on-an-address-of-ipv6", &["run", "--hosts", "::1", "true"]),
        ("run-on-no-such-file", &["run", "-f", "hosts", "true"]),
        ("run-with-a-bad-interval", &["run", "--interval", "often", "true"]),
        ("run-with-a-bad-key", &["run", "--encryption-key", "text", "true"]),
        ("run-with-a-bad-tier", &["run", "--tiers", "cloud", "true"]),
        ("timeline-of-a-job-without-a-journal", &["timeline", "lmp"]),
        ("timeline-of-no-such-job", &["timeline", "lmp-4"]),
        ("timeline-in-no-such-format", &["timeline", "--format", "png"]),
        ("timeline-in-two-formats", &["timeline", "--format", "svg", "--json"]),
        ("undrain-what-is-not-drained", &["undrain", "a"]),
        ("wait-for-a-job-that-has-ended", &["wait"]),
        ("wait-for-no-such-job", &["wait", "lmp", "lmp-4"]),
    ];
    for (name, arguments) in cases {
        snapshot(home.path(), name, arguments, &[]);
    }
}

#[test]
fn a_timeline_is_drawn_as_its_file_is_named() {
    let home = with_a_job();
    let event = |seq, at, event| Entry { seq, at, node: None, rank: None, event };
    let places = BTreeMap::from([("a".to_owned(), [0, 1].into_iter().collect()), ("b".into(), [2, 3].into_iter().collect())]);
    let (command, hosts, settings) = (vec!["lmp".into()], Vec::new(), BTreeMap::new());
    let started = Event::JobStarted { command, ranks: 4, hosts, settings, release: "1".into(), interval: String::new() };
    let of_rank = |rank: u32| Entry { rank: Some(rank), ..event(3 + u64::from(rank), 1_005_000_000, Event::RankStarted) };
    let begin = [event(1, 1_000_000_000, started), event(2, 1_000_100_000, Event::Placed { places })];
    let end = [event(7, 1_060_000_000, Event::Ended { status: 0, cause: Cause::Done })];
    let entries: Vec<Entry> = begin.into_iter().chain((0..4).map(of_rank)).chain(end).collect();
    let journal: Vec<u8> = [frame::file_head().to_vec()].into_iter().chain(entries.iter().filter_map(frame::encode)).flatten().collect();
    std::fs::write(home.path().join("jobs/lmp-3f2a9c/journal"), journal).unwrap();
    snapshot(home.path(), "timeline-of-a-job", &["timeline"], &[]);
    snapshot(home.path(), "timeline-as-json", &["timeline", "--json"], &[]);
    snapshot(home.path(), "timeline-into-no-directory", &["timeline", "--output", "absent/job.svg"], &[]);
    for (file, begin) in [("job.svg", &b"<svg "[..]), ("job.pftrace", b"\x0a"), ("job.txt", b"lmp-3f2a9c: lmp")] {
        let said = mend(home.path(), &["timeline", "--output", file], &[]);
        assert!(said.status.success() && said.stdout.is_empty() && said.stderr.is_empty(), "{said:?}");
        assert!(std::fs::read(home.path().join(file)).unwrap().starts_with(begin), "{file}");
    }
}

/// The exit code of `mend` with these for standard output and standard error, and what came by a pipe.
fn ends_with(home: &Path, arguments: &[&str], out: Stdio, err: Stdio) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mend"));
    command.env_clear().env("MEND_HOME", home).env("HOME", home).env("PATH", "/usr/bin:/bin").current_dir(home);
    let done = command.args(arguments).stdout(out).stderr(err).spawn().unwrap().wait_with_output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

fn full_disk() -> Stdio {
    std::fs::File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe that nobody reads.
fn no_reader() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
fn a_message_that_cannot_be_written_changes_no_exit_code() {
    let home = with_a_job();
    for (arguments, code) in [(&["log", "lmp-4"][..], 69), (&["run", "--hosts", "a:0", "true"], 64)] {
        assert_eq!(ends_with(home.path(), arguments, Stdio::null(), full_disk()).0, Some(code), "{arguments:?}");
    }
    // Other verbs end by SIGPIPE, as filters do.
    assert_eq!(ends_with(home.path(), &["run", "--hosts", "a:0", "true"], Stdio::null(), no_reader()).0, Some(64));
}

#[test]
fn standard_output_that_cannot_be_written_is_a_failure() {
    let home = with_a_job();
    let verbs: [&[&str]; 6] = [&["ps", "--all"], &["ps", "--all", "--json"], &["checkpoints"], &["settings"], &["version"], &["drain"]];
    for arguments in verbs {
        let (code, said) = ends_with(home.path(), arguments, full_disk(), Stdio::piped());
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(said.contains("standard output cannot be written: No space left on device"), "{arguments:?}: {said}");
    }
    for more in [&["wait"][..], &["wait", "--json"]] {
        let (code, said) = ends_with(home.path(), more, full_disk(), Stdio::piped());
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("standard output cannot be written"), "{said}");
    }
    assert_eq!(ends_with(home.path(), &["ps", "--all"], no_reader(), Stdio::piped()), (None, String::new()));
}

/// More jobs that have ended.
fn with_jobs(count: usize) -> tempfile::TempDir {
    let home = with_a_job();
    for number in 1..count {
        let name = format!("lmp-{number:06}");
        let job = home.path().join("jobs").join(&name);
        std::fs::create_dir_all(job.join("checkpoints/1")).unwrap();
        std::fs::write(job.join("journal"), "").unwrap();
        std::fs::write(job.join("job.json"), ENDED.replace("lmp-3f2a9c", &name)).unwrap();
    }
    home
}

#[test]
fn two_removals_at_once_do_not_fail_for_each_other() {
    const JOBS: usize = 200;
    let home = with_jobs(JOBS);
    let removal = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mend"));
        command.env_clear().env("MEND_HOME", home.path()).env("HOME", home.path()).args(["rm", "--ended", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [removal(), removal(), removal()].map(|child| child.wait_with_output().unwrap());
    let mut names: Vec<String> = Vec::new();
    for done in both {
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        names.extend(told["removed"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()));
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), JOBS);
    assert_eq!(std::fs::read_dir(home.path().join("jobs")).unwrap().count(), 0);
}

#[test]
fn what_went_is_told_though_something_else_did_not() {
    let home = with_jobs(2);
    // Not to be written, so that what is in it stays.
    let stays = home.path().join("jobs/lmp-000001/checkpoints/1");
    std::fs::write(stays.join("image"), "").unwrap();
    std::fs::set_permissions(&stays, std::fs::Permissions::from_mode(0o500)).unwrap();
    let said = mend(home.path(), &["rm", "--ended"], &[]);
    // Root has removed it all the same.
    let _ = std::fs::set_permissions(&stays, std::fs::Permissions::from_mode(0o700));
    if said.status.success() {
        return;
    }
    assert!(String::from_utf8_lossy(&said.stdout).contains("lmp-3f2a9c is removed"), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("lmp-000001"), "{said:?}");
}

#[test]
fn a_home_that_cannot_be_and_a_name_that_means_no_job_are_bad_values() {
    let home = with_jobs(3);
    let in_a_file = home.path().join("text/home");
    let cases: &[(&[&str], &str, &str)] = &[
        (&["ps"], in_a_file.to_str().unwrap(), "there can be no directory"),
        (&["ps"], "relative", "relative"),
        (&["log", ""], home.path().to_str().unwrap(), "the name of the job is empty"),
        (&["log", "lmp-0"], home.path().to_str().unwrap(), "could be any of"),
    ];
    for (arguments, place, expected) in cases {
        let said = mend(home.path(), arguments, &[("MEND_HOME", place)]);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(64), "{arguments:?}: {text}");
        assert!(text.contains(expected) && text.contains("hint: "), "{arguments:?}: {text}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_mend"));
    assert_eq!(command.env_clear().arg("ps").output().unwrap().status.code(), Some(64));
}

#[test]
fn second_copies_of_nonsense_follow_no_queue() {
    let home = with_a_job();
    let said = mend(home.path(), &["data", "replicate", "--queue", "--every", "1", "nonsense"], &[]);
    assert_eq!(said.status.code(), Some(64), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("nonsense is no place in a data space"), "{said:?}");
}

#[test]
fn files_that_could_be_sent_nowhere_are_no_job() {
    let home = with_a_job();
    let spaces = ["--data", "output:/mnt/out:create,input:/mnt/in"];
    let cases: [(&[&str], &str, &str); 4] = [
        (&[], "otput=file:///archive", "MEND_OFFLOAD: ranks do not write into the data space otput"),
        (&[], "input=file:///archive", "MEND_OFFLOAD: ranks do not write into the data space input"),
        (&["--genv", "MEND_OFFLOAD", "output"], "", "MEND_OFFLOAD: `output` is no NAME=URI"),
        (&["--env", "MEND_OFFLOAD", "output=tar:///x"], "", "MEND_OFFLOAD: tar:///x: files cannot be sent to tar://"),
    ];
    for (options, set, expected) in cases {
        let arguments = [&["run"], &spaces[..], options, &["true"]].concat();
        let said = mend(home.path(), &arguments, &[("MEND_OFFLOAD", set)]);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(64), "{arguments:?}: {text}");
        assert!(text.contains(expected) && text.contains("hint: for example --offload"), "{arguments:?}: {text}");
    }
}

#[test]
fn a_setting_that_cannot_be_used_is_named() {
    let home = with_a_job();
    let cases = [
        ("setting-of-the-log", "MEND_LOG", "mend=loud", "ps"),
        ("setting-beyond-its-bounds", "MEND_KEEP", "0", "run"),
        ("setting-that-is-no-number", "MEND_EXPIRE", "soon", "run"),
        ("setting-that-is-no-choice", "MEND_CHECKPOINT_MODE", "fast", "run"),
    ];
    for (name, setting, value, verb) in cases {
        let arguments: &[&str] = if verb == "run" { &["run", "true"] } else { &[verb] };
        snapshot(home.path(), name, arguments, &[(setting, value)]);
    }
}

/// In a batch job another one's end is not taken for that of its own.
#[test]
fn a_batch_job_without_a_job_of_its_own_waits_for_none_and_ends_none() {
    let home = with_a_job();
    let of_slurm = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "a")];
    for verb in ["wait", "kill"] {
        let said = mend(home.path(), &[verb], &of_slurm);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(69), "{verb}: {text}");
        assert!(text.contains("the batch job 7 has no job of its own"), "{verb}: {text}");
    }
    assert_eq!(mend(home.path(), &["wait", "lmp-3f2a9c"], &of_slurm).status.code(), Some(0));
    assert_eq!(mend(home.path(), &["wait"], &[]).status.code(), Some(0));
}

#[test]
fn a_job_that_may_go_on_keeps_its_node_from_being_drained() {
    let home = with_a_job();
    let job = home.path().join("jobs/lmp-3f2a9c");
    let has_node = ENDED.replace(r#"["a", "b"]"#, r#"["127.0.0.1"]"#);
    std::fs::write(job.join("job.json"), has_node.replace(r#"[2000, "exit code 0"]"#, "null")).unwrap();
    // Its controller has just been killed.
    std::fs::write(job.join("told"), "").unwrap();
    let mut drain = Command::new(env!("CARGO_BIN_EXE_mend"));
    drain.env_clear().env("MEND_HOME", home.path()).env("HOME", home.path()).env("MEND_PORT", "1").args(["drain", "127.0.0.1"]);
    let mut draining = drain.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let drained = home.path().join("drained/127.0.0.1.drained");
    while !drained.exists() {
        assert_eq!(draining.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(draining.try_wait().unwrap(), None, "it waits for who goes on with the job");
    std::fs::write(job.join("job.json"), has_node).unwrap();
    assert_eq!(draining.wait().unwrap().code(), Some(0));
}
