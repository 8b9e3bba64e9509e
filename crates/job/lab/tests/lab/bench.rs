//! What the tests run labs with.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const MARK: &str = "MEND_LAB_TEST_MARK";
const USER: u32 = 1000;

/// One lab, or none yet: a name nobody else uses, a user, and a mark that all its processes inherit.
pub struct Bench {
    user: Option<u32>,
    pub name: String,
    mark: String,
}

/// Runs `test` as whom it can be run: by root as root and as an ordinary user, by an ordinary user as that user.
pub fn as_everybody(test: impl Fn(&Bench)) {
    // SAFETY: geteuid(2) cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let users = if root { vec![None, Some(USER)] } else { vec![None] };
    for user in users {
        test(&Bench::new(user));
    }
}

/// Runs `test` as an ordinary user only.
pub fn as_user(test: impl Fn(&Bench)) {
    // SAFETY: geteuid(2) cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    test(&Bench::new(root.then_some(USER)));
}

/// As `as_user`, with room for two labs.
pub fn two_as_user(test: impl Fn(&Bench, &Bench)) {
    as_user(|bench| test(bench, &Bench::new(bench.user)));
}

impl Bench {
    fn new(user: Option<u32>) -> Bench {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Bench { user, mark: format!("{MARK}={name}"), name }
    }

    /// `program` as the bench's user, with its mark.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env(MARK, &self.name).env("HOME", "/tmp").current_dir("/tmp");
        // Where ip and tc are, which is not on users' PATH everywhere.
        command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
        command.env_remove("MEND_HOME").env_remove("MEND_LAB").env_remove("MEND_LIBDIR");
        if let Some(id) = self.user {
            command.uid(id).gid(id);
        }
        command
    }

    /// `mend lab verb --name … args`.
    pub fn lab(&self, verb: &str, args: &[&str]) -> Command {
        let mut command = self.command(programs().join("lab"));
        command.args([verb, "--name", &self.name]).args(args);
        command
    }

    pub fn up(&self, args: &[&str]) {
        let output = self.lab("up", &["--no-daemons"]).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub fn exec(&self, node: &str, args: &[&str]) -> Command {
        let mut command = self.lab("exec", &[node]);
        command.args(args);
        command
    }

    /// What a successful command prints.
    pub fn prints(&self, node: &str, args: &[&str]) -> String {
        let output = self.exec(node, args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn shell(&self, node: &str, script: &str) -> String {
        self.prints(node, &["sh", "-c", script])
    }

    pub fn code(&self, node: &str, args: &[&str]) -> i32 {
        self.exec(node, args).output().unwrap().status.code().unwrap()
    }

    /// Processes of this bench, and what else of a lab can be seen from outside.
    pub fn remains(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes()) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push(format!("{}: {}", entry.path().display(), String::from_utf8_lossy(&line)));
            }
        }
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        found.extend(sockets.lines().filter(|line| line.ends_with(&format!("-{}", self.name))).map(str::to_owned));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        found.extend(mounts.lines().filter(|line| line.contains("mend-lab")).map(str::to_owned));
        let devices = fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.file_name());
        found.extend(devices.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.starts_with("port") || name == "lab0"));
        found
    }

    /// Waits until nothing remains.
    pub fn assert_clean(&self) {
        let mut last = Vec::new();
        let gone = until(|| {
            last = self.remains();
            last.is_empty()
        });
        assert!(gone, "left behind: {last:#?}");
    }

    pub fn down(&self) {
        let output = self.lab("down", &[]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub fn status(&self) -> serde_json::Value {
        let output = self.lab("status", &["--json"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()[0].take()
    }

    pub fn holder(&self) -> i32 {
        self.status()["holder"].as_i64().unwrap() as i32
    }

    /// A process in `node` that has a TCP port open.
    pub fn listener(&self, node: &str) -> Child {
        let mut command = self.exec(node, &["env", "LISTEN=0.0.0.0:7000"]);
        let mut child = command.arg(programs().join("tests")).args(STAND_IN).stdout(Stdio::piped()).spawn().unwrap();
        assert!(wait_for_line(&mut child, "listening"));
        child
    }

    /// Whether `node` can talk to the listener at `target`.
    pub fn reaches(&self, node: &str, target: &str) -> bool {
        let connect = format!("CONNECT={target}:7000");
        let mut command = self.exec(node, &["env", &connect]);
        command.arg(programs().join("tests")).args(STAND_IN).output().unwrap().status.success()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.lab("down", &[]).output();
    }
}

pub fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits for something that happens soon; the limit only keeps a broken test from hanging.
pub fn until(mut happened: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        if happened() {
            return true;
        }
        sleep(Duration::from_millis(5));
    }
    false
}

/// Reads the child's output up to a line that ends with `wanted`.
pub fn wait_for_line(child: &mut Child, wanted: &str) -> bool {
    let mut seen = Vec::new();
    let mut byte = [0];
    while child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 {
        seen.push(byte[0]);
        if seen.ends_with(format!("{wanted}\n").as_bytes()) {
            return true;
        }
    }
    false
}

pub fn send(signal: i32, pid: u32) {
    // SAFETY: kill(2) reads no memory; the pid is that of a child not yet waited for, or of a lab's holder.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// A directory that every user can read, with the lab's program (`lab`) and these tests themselves (`tests`).
pub fn programs() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let tests = std::env::current_exe().unwrap();
        let example = tests.parent().unwrap().with_file_name("examples").join("lab");
        assert!(example.exists(), "run `cargo build -p mend-lab --examples` first");
        let place = PathBuf::from(format!("/tmp/mend-lab-tests-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        fs::copy(example, place.join("lab")).unwrap();
        fs::copy(tests, place.join("tests")).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
        // SAFETY: `remove_programs` is an extern "C" function without arguments.
        unsafe { libc::atexit(remove_programs) };
        place
    })
}

extern "C" fn remove_programs() {
    let _ = fs::remove_dir_all(format!("/tmp/mend-lab-tests-{}", std::process::id()));
}

/// Arguments that make these tests, run as a program, a TCP server or client.
pub const STAND_IN: [&str; 4] = ["bench::stand_in", "--exact", "--ignored", "--nocapture"];

/// Not a test: what `STAND_IN` runs.
#[test]
#[ignore = "a server and client for the other tests"]
fn stand_in() {
    if let Ok(address) = std::env::var("LISTEN") {
        let listener = TcpListener::bind(address).unwrap();
        println!("\nlistening");
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"hello"));
        }
    }
    if let Ok(address) = std::env::var("CONNECT") {
        let address = std::net::ToSocketAddrs::to_socket_addrs(&address).unwrap().next().unwrap();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }
}
