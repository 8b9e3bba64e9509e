//! What a node is: its own network, name and files; killed, it is gone.

use super::bench::{as_everybody, error_of, programs, until};

#[test]
fn nodes_have_names_addresses_and_files_of_their_own() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "3"]);
        let ids = bench.command("id").output().unwrap().stdout;
        for (node, address) in [("head", 254), ("node1", 1), ("node2", 2), ("node3", 3)] {
            assert_eq!(bench.prints(node, &["uname", "-n"]), node);
            let found = bench.prints(node, &["getent", "hosts", node]);
            assert_eq!(found.split_whitespace().next().unwrap(), format!("10.77.0.{address}"));
            assert!(bench.prints(node, &["ip", "-brief", "address", "show", "lo"]).contains("127.0.0.1/8"));
            assert_eq!(bench.prints(node, &["id"]), String::from_utf8_lossy(&ids).trim());
            assert_eq!(bench.prints(node, &["sh", "-c", "echo $HOSTNAME $MEND_LAB"]), format!("{node} {}", bench.name));
        }
        bench.shell("node1", "echo mine > /dev/shm/x; echo mine > $MEND_SCRATCH/x; echo ours > $MEND_SHARED/x");
        for node in ["head", "node2", "node3"] {
            assert_eq!(bench.shell(node, "ls /dev/shm $MEND_SCRATCH | grep -c x || :"), "0");
            assert_eq!(bench.shell(node, "cat $MEND_SHARED/x"), "ours");
        }
        assert_eq!(bench.shell("node1", "cat /dev/shm/x $MEND_SCRATCH/x"), "mine\nmine");
        assert!(!std::path::Path::new("/dev/shm/x").exists());
        assert_eq!(bench.shell("node2", "stat -c %a $MEND_HOME/secret; wc -c < $MEND_HOME/secret"), "600\n64");
        // Only this node's processes and devices.
        assert_eq!(bench.shell("node1", "readlink /proc/self/ns/pid"), bench.shell("node1", "readlink /proc/1/ns/pid"));
        assert_eq!(bench.shell("node1", "ls /sys/class/net | tr '\\n' ' '"), "eth0 lo");
        // The network works between all of them.
        let mut listener = bench.listener("node2");
        for node in ["head", "node1", "node2", "node3"] {
            assert!(bench.reaches(node, "node2"), "{node}");
        }
        assert!(!bench.reaches("node1", "node3"));
        bench.down();
        assert_eq!(listener.wait().unwrap().code(), Some(128 + libc::SIGKILL));
        bench.assert_clean();
    });
}

#[test]
fn bandwidth_is_shaped_in_both_directions() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "2", "--bandwidth", "250mbit"]);
        for node in ["head", "node1", "node2"] {
            let shown = bench.prints(node, &["tc", "-s", "qdisc", "show", "dev", "eth0"]);
            assert!(shown.contains("tbf") && shown.contains("rate 250Mbit"), "{shown}");
        }
        // The other direction is in the holder's network namespace.
        let holder = bench.holder().to_string();
        let mut seen = bench.command("nsenter");
        seen.args(["-t", &holder, "-n"]);
        if bench.command("id").arg("-u").output().unwrap().stdout != b"0\n" {
            seen.args(["-U", "--preserve-credentials"]);
        }
        let output = seen.args(["tc", "-s", "qdisc"]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(shown.matches("rate 250Mbit").count(), 3, "{output:?}");
        assert_eq!(bench.status()["bandwidth"], 250_000_000);
    });
}

#[test]
fn a_killed_node_is_gone_for_everybody() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "3"]);
        let mut listener = bench.listener("node2");
        // Something the node's own commands left running, too.
        bench.shell("node2", "setsid sleep 100000 > /dev/null 2>&1 < /dev/null &");
        assert!(until(|| bench.remains().iter().any(|found| found.contains("100000"))));
        assert!(bench.reaches("node1", "node2"));
        let output = bench.lab("kill", &["node2"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(!bench.remains().iter().any(|found| found.contains("100000")));
        assert_eq!(listener.wait().unwrap().code(), Some(128 + libc::SIGKILL));
        assert!(!bench.reaches("node1", "node2"));
        assert_eq!(bench.status()["nodes"][2]["state"], "dead");
        for verb in [bench.exec("node2", &["true"]), bench.lab("kill", &["node2"])] {
            let mut verb = verb;
            let output = verb.output().unwrap();
            assert_eq!(output.status.code(), Some(69));
            assert!(error_of(&output).contains("`node2`") && error_of(&output).contains("is dead"), "{output:?}");
        }
        // The others don't care.
        let mut other = bench.listener("node3");
        assert!(bench.reaches("node1", "node3"));
        // A node that dies by itself is noticed as well.
        let pids = bench.prints("node1", &["sh", "-c", "grep NSpid /proc/1/status"]);
        assert!(!pids.is_empty());
        bench.down();
        other.wait().unwrap();
        bench.assert_clean();
    });
}

#[test]
fn namespaces_can_be_nested_in_a_node() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "1"]);
        let nested = ["unshare", "-U", "--map-current-user", "--keep-caps", "-T", "-p", "-f", "--mount-proc"];
        let shown = bench.prints("node1", &[&nested[..], &["sh", "-c", "echo $$; id -u"]].concat());
        let id = bench.prints("node1", &["id", "-u"]);
        assert_eq!(shown, format!("1\n{id}"));
    });
}

#[test]
fn labs_stand_beside_and_inside_each_other() {
    as_everybody(|bench| {
        bench.up(&["--nodes", "1"]);
        as_everybody(|other| {
            other.up(&["--nodes", "1"]);
            other.shell("node1", "echo theirs > $MEND_SHARED/x");
            assert_eq!(bench.shell("node1", "ls $MEND_SHARED"), "log");
        });
        let inner = programs().join("lab");
        let inner = inner.to_str().unwrap();
        bench.prints("node1", &[inner, "up", "--name", "inner", "--nodes", "1", "--no-daemons"]);
        let name = bench.prints("node1", &[inner, "exec", "--name", "inner", "node1", "cat", "/proc/sys/kernel/hostname"]);
        assert_eq!(name, "node1");
        let listed = bench.prints("node1", &[inner, "ls"]);
        assert!(listed.contains("inner  holder") && listed.contains(&bench.name), "{listed}");
        bench.lab("kill", &["node1"]).status().unwrap();
        assert!(until(|| !bench.remains().iter().any(|found| found.contains("inner"))));
    });
}
