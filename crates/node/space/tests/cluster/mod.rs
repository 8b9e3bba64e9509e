//! Targets of a space as real processes on this machine, and what finds them in the daemon's place.

use mend_data::space::target::{Found, Wanted};
use mend_data::space::{BLOCK, COPIES, FORMAT, Id, Space, Striping, Target};
use mend_messages::auth::Purpose;
use mend_messages::job::Secret;
use mend_space::client::Client;
use mend_wire::secret::to_hex;
use mend_wire::{Greeted, random_bytes};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

/// How long a target may be silent until it is lost.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Ports by directories; a target that is not there has none.
pub type Ports = Arc<Mutex<HashMap<String, u16>>>;

pub struct Cluster {
    pub directory: TempDir,
    pub space: Space,
    secret: Secret,
    pub ports: Ports,
    pub targets: Vec<Option<Child>>,
}

impl Cluster {
    /// A space with so many targets, whose files have one object each, unless they are spread wider.
    pub fn new(targets: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let secret = mend_wire::secret::load_or_create(&directory.path().join("secret")).unwrap();
        let ports = Ports::default();
        let address = find(ports.clone(), secret.clone());
        let path = |at: usize| directory.path().join(format!("target{at}")).to_str().unwrap().to_owned();
        let target = |at| Target { host: format!("node{at}"), address, directory: path(at) };
        let space = Space {
            format: FORMAT,
            name: "tested".into(),
            id: random_bytes::<16>() as Id,
            targets: (0..targets).map(target).collect(),
            striping: Striping { size: BLOCK, count: 1 },
            copies: COPIES,
            job: None,
            ending: false,
        };
        let mut cluster = Self { directory, space, secret, ports, targets: (0..targets).map(|_| None).collect() };
        (0..targets).for_each(|at| cluster.start(at));
        cluster
    }

    pub fn path(&self, at: usize) -> PathBuf {
        self.space.targets[at].directory.clone().into()
    }

    pub fn start(&mut self, at: usize) {
        // A write beyond what it is allowed is an error to it, and no signal.
        self.start_by(at, &["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    }

    /// Starts a target by these words.
    pub fn start_by(&mut self, at: usize, words: &[&str]) {
        let path = self.path(at);
        let how = if path.exists() { "open" } else { "create" };
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .arg(env!("CARGO_BIN_EXE_mend-space"))
            .args(["target", &to_hex(&self.space.id)])
            .arg(&path)
            .arg(how)
            .env("MEND_SECRET_FILE", self.directory.path().join("secret"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim_end().strip_prefix("ready ").unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        self.ports.lock().unwrap().insert(self.space.targets[at].directory.clone(), port);
        self.targets[at] = Some(child);
    }

    pub fn kill(&mut self, at: usize) {
        self.ports.lock().unwrap().remove(&self.space.targets[at].directory);
        if let Some(mut child) = self.targets[at].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops a target, or lets it go on.
    /// Sends a target a signal. One that is stopped stands still when this returns: until then its threads may answer.
    pub fn signal(&self, at: usize, signal: Signal) {
        let target = self.targets[at].as_ref().unwrap();
        kill_process(Pid::from_child(target), signal).unwrap();
        let runs = |task: fs::DirEntry| !fs::read_to_string(task.path().join("stat")).unwrap().contains(") T ");
        while signal == Signal::STOP && fs::read_dir(format!("/proc/{}/task", target.id())).unwrap().any(|task| runs(task.unwrap())) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn client(&self) -> Arc<Client> {
        self.patient_client(PATIENCE)
    }

    /// One for which a target may be silent for so long.
    pub fn patient_client(&self, patience: Duration) -> Arc<Client> {
        self.other_client(patience, |client| client)
    }

    /// The same, with something else.
    pub fn other_client(&self, patience: Duration, with: impl FnOnce(Client) -> Client) -> Arc<Client> {
        let client = Arc::new(with(Client::new(self.space.clone(), &self.secret, patience, false)));
        client.refresh();
        client
    }

    /// Files of a target whose names end so.
    pub fn objects(&self, at: usize, ending: &str) -> Vec<PathBuf> {
        let listed = |path: &Path| std::fs::read_dir(path).into_iter().flatten().map(|found| found.unwrap().path()).collect::<Vec<_>>();
        let all = listed(&self.path(at).join("objects")).into_iter().flat_map(|directory| listed(&directory));
        all.filter(|path| path.to_str().unwrap().ends_with(ending)).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.targets.len()).for_each(|at| self.kill(at));
    }
}

/// Answers clients that look for targets, until the test's process ends. Where.
fn find(ports: Ports, secret: Secret) -> std::net::SocketAddr {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (ports, secret) = (ports.clone(), secret.clone());
                tokio::spawn(async move { answer(stream, &ports, &secret).await });
            }
        });
    });
    told.recv().unwrap()
}

/// Answers as often as it is asked.
async fn answer(stream: TcpStream, ports: &Ports, secret: &Secret) -> Option<()> {
    let greeted = Greeted::accepted(stream, &[Purpose::Space]).await.ok()?;
    let mut connection = greeted.prove_as_acceptor(secret, &[]).await.ok()?;
    loop {
        let wanted: Wanted = connection.receiver.receive().await.ok()?;
        let port = ports.lock().unwrap().get(&wanted.directory).copied();
        let lost = || Found::Refused { why: "it was killed".into(), hint: String::new() };
        connection.sender.send(&port.map_or_else(lost, Found::Port)).await.ok()?;
    }
}
