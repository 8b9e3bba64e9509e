//! The stage: a daemon with a home of its own, and a controller that speaks with it.

use mend_messages::agent::Compression;
use mend_messages::auth::Purpose;
use mend_messages::daemon::{ExitStatus, FromDaemon, JobIntroduction, Resumption, Stream, Succession, ToDaemon};
use mend_messages::delivery::{Delivered, Segment, SendWindow};
use mend_messages::job::{Program, Rank, Secret};
use mend_wire::{Connection, connect, random_bytes};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::timeout;

/// Longest wait for anything; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
const ORDINARY: u32 = 1000;

/// Who runs the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Ourselves,
    Ordinary,
    /// Where neither user nor PID namespaces can be made.
    Confined,
}

/// Forbids namespaces in the user namespace it runs in, and becomes its arguments without any capability.
const CONFINE: &str = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";

/// Lowers the limit on open files, to that of a modest login, and becomes its arguments.
const LIMIT: &str = "ulimit -Sn 256 && exec \"$@\"";

/// All that can be tried here.
fn users() -> Vec<User> {
    if rustix::process::geteuid().is_root() {
        vec![User::Ourselves, User::Ordinary, User::Confined]
    } else {
        vec![User::Ourselves, User::Confined]
    }
}

/// Runs a test's story once per user.
pub fn for_each_user<F: Future<Output = ()>>(story: impl Fn(User) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for user in users() {
        eprintln!("as {user:?}");
        runtime.block_on(story(user));
    }
}

/// The same for stories that need namespaces.
pub fn for_each_isolated_user<F: Future<Output = ()>>(story: impl Fn(User) -> F) {
    for_each_user(async |user| {
        if user != User::Confined {
            story(user).await;
        }
    });
}

/// A running mendd. Killed when dropped.
pub struct Daemon {
    pub address: SocketAddr,
    pub secret: Secret,
    pub directory: tempfile::TempDir,
    pub child: Child,
}

impl Daemon {
    pub fn start(user: User) -> Self {
        Self::start_prepared(user, |_| {})
    }

    /// Starts it with a shell script in the restorer's place.
    pub fn start_with_restorer(user: User, script: &str) -> Self {
        Self::start_prepared(user, |directory| {
            let restorer = directory.join("mend-restorer");
            std::fs::write(&restorer, script).unwrap();
            std::fs::set_permissions(&restorer, std::fs::Permissions::from_mode(0o755)).unwrap();
        })
    }

    /// Starts it after `prepare` had its way with the directory in which the daemon looks for Mend's parts.
    pub fn start_prepared(user: User, prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let library = directory.path().join("libmend-fi.so");
        let built = Command::new("cc").args(["-shared", "-o"]).arg(&library).args(["-x", "c", "/dev/null"]).status().unwrap();
        assert!(built.success());
        prepare(directory.path());
        let id = ORDINARY.to_string();
        let mut words = vec!["sh", "-c", LIMIT, "limited"];
        match user {
            User::Ourselves => {}
            User::Ordinary => {
                chown(directory.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
                words.extend(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
            }
            User::Confined => words.extend(["unshare", "--user", "--map-root-user", "sh", "-c", CONFINE, "confined"]),
        }
        words.push(env!("CARGO_BIN_EXE_mendd"));
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--name", "here", "--ready-fd", "1", "--until-eof"])
            .env("MEND_HOME", directory.path().join("home"))
            .env("MEND_LIBDIR", directory.path())
            .env("MEND_LOG", "error")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap();
        let secret = mend_wire::secret::load(&directory.path().join("home/secret")).unwrap();
        Self { address, secret, directory, child }
    }

    /// A connected controller whose job runs `argv` on `size` ranks.
    pub async fn job(&self, argv: &[&str], size: u32) -> Controller {
        self.introduced(self.introduction(argv, size)).await
    }

    /// A connected controller of this job.
    pub async fn introduced(&self, introduction: JobIntroduction) -> Controller {
        let mut controller = self.unanswered(introduction).await;
        let answer = controller.answer().await;
        assert!(matches!(&answer, Some(FromDaemon::Ready { name, .. }) if name == "here"), "{answer:?}");
        controller
    }

    /// A controller that has introduced this job, and has not read the answer.
    pub async fn unanswered(&self, introduction: JobIntroduction) -> Controller {
        let connection = connect(self.address, Purpose::Job, &self.secret).await.unwrap();
        let mut controller = Controller {
            connection,
            introduction,
            attempts: 0,
            sent: SendWindow::default(),
            delivered: Delivered::default(),
            confirmed: None,
        };
        let introduction = ToDaemon::Introduce(Box::new(controller.introduction.clone()));
        controller.connection.sender.send(&introduction).await.unwrap();
        controller
    }

    /// The daemon's answer to a controller that comes back, on a new connection.
    pub async fn resume(&self, controller: &mut Controller) -> Option<FromDaemon> {
        controller.connection = connect(self.address, Purpose::Job, &self.secret).await.unwrap();
        let JobIntroduction { identity, epoch, session, .. } = controller.introduction;
        let resumption = Resumption { identity, epoch, session, delivered: controller.delivered.last() };
        controller.connection.sender.send(&ToDaemon::Resume(resumption)).await.unwrap();
        let answer = controller.answer().await;
        if let Some(FromDaemon::Resumed { delivered }) = answer {
            controller.sent.resume(delivered).unwrap();
            controller.flush().await;
        }
        answer
    }

    /// The daemon's answer to a successor of the controller, which is that from then on. It has had what the lost one had, or has confirmed.
    pub async fn succeed(&self, controller: &mut Controller) -> Option<FromDaemon> {
        controller.connection = connect(self.address, Purpose::Job, &self.secret).await.unwrap();
        let JobIntroduction { identity, epoch, session, .. } = controller.introduction;
        controller.delivered = Delivered::through(controller.confirmed());
        let of = Resumption { identity, epoch, session, delivered: controller.delivered.last() };
        let next = random_bytes();
        controller.connection.sender.send(&ToDaemon::Succeed(Box::new(Succession { of, session: next }))).await.unwrap();
        let answer = controller.answer().await;
        if let Some(FromDaemon::Succeeded { .. }) = answer {
            controller.introduction.session = next;
            controller.sent = SendWindow::default();
        }
        answer
    }

    pub fn introduction(&self, argv: &[&str], size: u32) -> JobIntroduction {
        JobIntroduction {
            id: "test-job".into(),
            identity: random_bytes(),
            secret: Secret(random_bytes()),
            size,
            encryption_key: None,
            epoch: 1,
            ranks: (0..64).collect(),
            session: random_bytes(),
            node: 3,
            program: Program {
                argv: argv.iter().map(|&word| word.to_owned()).collect(),
                env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
                cwd: self.directory.path().to_owned(),
                umask: None,
                further: Vec::new(),
            },
            encrypt_data: false,
            compression: Compression::Off,
            transport: mend_messages::chunks::Transport::Tcp,
            node_timeout_ms: 600_000,
            lease_ms: 600_000,
            unused_features: Default::default(),
            successor: None,
            worlds: Vec::new(),
        }
    }

    /// A file of the daemon's user.
    pub fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// SIGKILL, and gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if a test killed it already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Controller {
    pub connection: Connection,
    pub introduction: JobIntroduction,
    /// Processes that were ordered.
    attempts: u64,
    /// What the daemon has not acknowledged.
    pub sent: SendWindow<ToDaemon>,
    /// What came from the daemon.
    pub delivered: Delivered,
    /// What of that the daemon may forget; `None`: all.
    pub confirmed: Option<u64>,
}

impl Controller {
    pub async fn send(&mut self, message: ToDaemon) {
        self.sent.push(message);
        self.flush().await;
    }

    fn confirmed(&self) -> u64 {
        self.confirmed.unwrap_or(self.delivered.last())
    }

    async fn flush(&mut self) {
        while let Some(message) = self.sent.next_unsent() {
            let segment = Segment { acknowledged: self.confirmed(), message: Some(message) };
            self.connection.sender.send(&segment).await.unwrap();
        }
    }

    /// The first message on a connection.
    pub async fn answer(&mut self) -> Option<FromDaemon> {
        timeout(PATIENCE, self.connection.receiver.receive()).await.expect("the daemon is silent").ok()
    }

    pub async fn start(&mut self, rank: Rank, stdin: bool) {
        self.attempts += 1;
        self.send(ToDaemon::Start { rank, attempt: self.attempts, stdin }).await;
    }

    pub async fn next(&mut self) -> FromDaemon {
        self.try_next().await.expect("the daemon hung up")
    }

    /// `None` at the end of the connection, or when the daemon has left the job. Every message is acknowledged at once.
    pub async fn try_next(&mut self) -> Option<FromDaemon> {
        loop {
            let receiving = self.connection.receiver.receive::<Segment<FromDaemon>>();
            let segment = timeout(PATIENCE, receiving).await.expect("the daemon is silent").ok()?;
            self.sent.acknowledge(segment.acknowledged).unwrap();
            let Some((number, message)) = segment.message else { continue };
            if !self.delivered.is_next(number).unwrap() {
                continue;
            }
            self.delivered.advance();
            let acknowledgement = Segment { acknowledged: self.confirmed(), message: None::<(u64, ToDaemon)> };
            // The daemon may have closed behind its last message.
            let _ = self.connection.sender.send(&acknowledgement).await;
            if message == FromDaemon::Left {
                return None;
            }
            return Some(message);
        }
    }

    /// Everything up to and including the exit of `rank`.
    pub async fn until_exit(&mut self, rank: Rank) -> Run {
        let mut run = Run::default();
        loop {
            match self.next().await {
                FromDaemon::Output { rank: from, stream, bytes } if from == rank => match stream {
                    Stream::Stdout => run.stdout.extend(bytes),
                    Stream::Stderr => run.stderr.extend(bytes),
                },
                FromDaemon::Pmi { rank: from, bytes } if from == rank => run.pmi.extend(bytes),
                FromDaemon::Exited { rank: from, status, .. } if from == rank => {
                    run.status = Some(status);
                    return run;
                }
                FromDaemon::Started { rank: from } if from == rank => run.started = true,
                FromDaemon::StdinTaken { .. } => run.taken += 1,
                // Of a process that was discarded before.
                FromDaemon::StdinLeft { bytes, .. } if bytes.is_empty() => {}
                FromDaemon::Report { rank: from, .. } if from == rank => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Standard output of `rank` up to its first newline.
    pub async fn line(&mut self, rank: Rank) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            match self.next().await {
                FromDaemon::Output { rank: from, stream: Stream::Stdout, bytes } if from == rank => line.extend(bytes),
                FromDaemon::Started { .. } | FromDaemon::StdinTaken { .. } => {}
                FromDaemon::StdinLeft { bytes, .. } if bytes.is_empty() => {}
                other => panic!("{other:?}"),
            }
        }
        String::from_utf8(line).unwrap().trim().to_owned()
    }
}

/// What a rank did.
#[derive(Debug, Default)]
pub struct Run {
    pub started: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub pmi: Vec<u8>,
    pub taken: usize,
    pub status: Option<ExitStatus>,
}

impl Run {
    pub fn out(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap().trim_end()
    }
}

/// Waits until no process has `marker` among its arguments.
pub async fn until_no_process_with(marker: &str) {
    let running = || {
        std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            arguments.split(|&byte| byte == 0).any(|word| word == marker.as_bytes())
        })
    };
    timeout(PATIENCE, async {
        while running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("a process is left");
}

/// An argument that no other process has.
pub fn marker() -> String {
    format!("mark-{}", mend_wire::secret::to_hex(&random_bytes::<8>()))
}
