//! Mistakes and machines that refuse: each with its own message and hint, and nothing left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::bench::{Bench, STAND_IN, as_everybody, as_user, error_of, programs};

#[test]
fn bad_input_is_named() {
    as_everybody(|bench| {
        let fails = |args: &[&str], code: i32, wanted: &str| {
            let output = bench.command(programs().join("lab")).args(args).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
            let error = error_of(&output);
            assert!(error.contains(wanted) && error.contains("hint: "), "{args:?}: {error}");
        };
        fails(&["up", "--name", "no/such name"], 64, "cannot be the name");
        fails(&["up", "--nodes", "0"], 64, "1 to 64 nodes, not 0");
        fails(&["up", "--nodes", "65"], 64, "1 to 64 nodes, not 65");
        fails(&["up", "--bandwidth", "fast"], 64, "`fast` is not a bandwidth");
        fails(&["exec", "--name", "nowhere", "node1", "true"], 69, "no lab named `nowhere`");
        fails(&["kill", "--name", "nowhere", "node1"], 69, "no lab named `nowhere`");
        fails(&["status", "--name", "nowhere"], 69, "no lab named `nowhere`");
        bench.up(&["--nodes", "2"]);
        let name = bench.name.as_str();
        fails(&["up", "--name", name, "--no-daemons"], 1, "is up already");
        fails(&["exec", "--name", name, "node3", "true"], 69, "has no node `node3`");
        fails(&["kill", "--name", name, "nodeone"], 69, "head node1 node2");
    });
}

#[test]
fn only_the_user_who_started_a_lab_commands_it() {
    // SAFETY: geteuid(2) cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return; // it takes two users
    }
    as_user(|bench| {
        bench.up(&["--nodes", "1"]);
        // Another user's lab of that name is another lab.
        let root = std::process::Command::new(programs().join("lab")).args(["down", "--name", &bench.name]).output().unwrap();
        assert!(error_of(&root).contains("no lab named"), "{root:?}");
        assert_eq!(bench.prints("node1", &["uname", "-n"]), "node1");
    });
}

#[test]
fn no_user_namespaces() {
    as_user(|bench| {
        // The limit is that of a user namespace made for this test, not the machine's.
        let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                      exec setpriv --ambient-caps -all --inh-caps -all \"$0\" up --no-daemons --name \"$1\"";
        let output = bench
            .command("unshare")
            .args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", script])
            .arg(programs().join("lab"))
            .arg(&bench.name)
            .output()
            .unwrap();
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("refuses to make namespaces") && error.contains("user.max_user_namespaces"), "{error}");
        bench.assert_clean();
    });
}

#[test]
fn daemons_are_started_and_missed() {
    as_everybody(|bench| {
        let place = PathBuf::from(format!("/tmp/mend-lab-daemon-{}", bench.name));
        fs::create_dir(&place).unwrap();
        let up = |bench: &Bench| {
            let mut up = bench.lab("up", &["--nodes", "2"]);
            up.env("MEND_LIBDIR", &place).output().unwrap()
        };
        let output = up(bench);
        assert!(error_of(&output).contains("`mendd` was not found"), "{output:?}");
        assert!(error_of(&output).contains("--no-daemons"), "{output:?}");
        let daemon = |script: &str| {
            fs::write(place.join("mendd"), format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(place.join("mendd"), fs::Permissions::from_mode(0o755)).unwrap();
        };
        daemon("echo cannot do $4 today >&2; exit 3");
        let output = up(bench);
        assert_eq!(output.status.code(), Some(1));
        assert!(error_of(&output).contains("cannot do node") && error_of(&output).contains("exit status: 3"), "{output:?}");
        bench.assert_clean();
        let tests = programs().join("tests");
        daemon(&format!("test -s $MEND_HOME/secret && LISTEN=$2 exec {} {}", tests.display(), STAND_IN.join(" ")));
        let output = up(bench);
        assert!(output.status.success(), "{output:?}");
        assert!(bench.shell("node1", "cat $MEND_SHARED/log/node2.log").contains("listening"));
        assert_eq!(bench.status()["nodes"][1]["daemon"], true);
        assert_eq!(bench.status()["nodes"][0]["daemon"], false);
        bench.down();
        bench.assert_clean();
        fs::remove_dir_all(&place).unwrap();
    });
}
