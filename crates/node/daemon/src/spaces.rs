//! Data spaces that ranks see: one process of `mend-space` per space on this node serves the mounts of all of them, with one cache.
//!
//! ```text
//! mendd ── fork + exec ──► mend-space ranks NAME ◄── descriptor of /dev/fuse ── rank supervisor, which mounts it in the rank's namespace
//!   ◄── standard output: what happens to the space ──┘
//! ```
//! It is started for the first rank that sees the space and ends with the last job that does: its socket closes. Jobs with other settings of mounts have another one. Faults assumed: it ends or is killed; ranks that have a
//! mount of it get ENOTCONN, and the next rank gets a new one.

use crate::outbox::Urgent;
use crate::space_news::{Heard, Listeners};
use crate::targets::PROGRAM;
use mend_data::patterns::Who;
use mend_data::space::described;
use mend_data::space::mounts::{self, Mount};
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::Rank;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long it may take until it has heard the space's targets.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Why ranks do not see a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data space {space} cannot be seen: {why}")]
pub struct Unseen {
    space: String,
    why: String,
    /// What to do; may be empty.
    pub hint: String,
}

/// The processes of this node, by space: by what describes it, since another one may get its name, by whether files' bytes are encrypted on their way, and by the settings of the
/// jobs that see it. Each has a lock of its own: a space whose targets are silent holds up nobody who uses another one.
#[derive(Debug, Default)]
pub struct Spaces(Mutex<HashMap<Vec<u8>, ServerSlot>>);

/// Where a space's process is, if there is one.
type ServerSlot = Arc<Mutex<Weak<Server>>>;

#[derive(Debug)]
struct Server {
    /// Where it takes descriptors; none when it is to end.
    socket: Option<OwnedFd>,
    process: std::sync::Mutex<Option<Child>>,
    listeners: Arc<Listeners>,
}

impl Drop for Server {
    /// It ends with its socket, and tells targets then that nothing is open any more. One that does not end is killed.
    fn drop(&mut self) {
        self.socket = None;
        let process = self.process.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let (Some(mut process), Ok(runtime)) = (process, tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                let _ = timeout(END_TIMEOUT, process.wait()).await;
            });
        }
    }
}

impl Server {
    fn is_alive(&self) -> bool {
        let mut process = self.process.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        process.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }
}

/// How a job wants its spaces served.
#[derive(Clone, Debug, PartialEq, Eq)]
struct How {
    /// Files' bytes are encrypted on their way.
    encrypts: bool,
    /// Settings of mounts that its environment has; for the others this daemon's count.
    settings: Vec<(&'static str, String)>,
}

impl How {
    fn of(env: &[(String, String)], encrypts: bool) -> Self {
        let set = |setting: &mend_settings::Setting| Some((setting.name, setting.of(env)?.to_owned()));
        Self { encrypts, settings: mend_settings::OF_MOUNTS.iter().filter_map(set).collect() }
    }

    /// What tells the process of a space from that of another one, or from one that serves it in another way.
    fn key(&self, space: &str, described: &[u8]) -> Vec<u8> {
        let settings: String = self.settings.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        [space.as_bytes(), b"\n", &[u8::from(self.encrypts)], settings.as_bytes(), b"\n", described].concat()
    }
}

/// Spaces that the ranks of a job see.
#[derive(Debug)]
pub struct JobSpaces {
    /// Identity of the job, and name of the node.
    whose: (String, String),
    mounts: Result<Vec<Mount>, String>,
    how: How,
    all: Arc<Spaces>,
    /// What the job uses lives as long as it does.
    used: Mutex<HashMap<String, Arc<Server>>>,
    /// What happens to them.
    heard: Heard,
}

impl JobSpaces {
    /// As the job's environment says.
    pub fn of(job: &JobIntroduction, node: &str, all: &Arc<Spaces>) -> Self {
        let mounts = mounts::read(mounts::of_environment(&job.program.env));
        let how = How::of(&job.program.env, job.encrypt_data);
        Self { whose: (job.id.clone(), node.to_owned()), mounts, how, all: all.clone(), used: Mutex::default(), heard: Heard::default() }
    }

    /// Whose the mounts of a rank are, for the processes that serve them.
    pub fn whose(&self, rank: Rank) -> Vec<u8> {
        let (job, node) = self.whose.clone();
        Who { job, rank: Some(rank), node }.encoded()
    }

    /// The controller is told what has happened to them.
    pub fn tell(&self, controller: &Urgent) {
        self.heard.tell(controller);
    }

    /// Another life of the job begins: see [`Heard::begin_anew`].
    pub fn begin_anew(&self) {
        self.heard.begin_anew();
    }

    /// What ranks see.
    pub fn mounts(&self) -> Vec<Mount> {
        self.mounts.clone().unwrap_or_default()
    }

    /// True if a path is in what ranks see and this daemon does not.
    pub fn covers(&self, path: &str) -> bool {
        self.mounts.as_ref().is_ok_and(|mounts| mounts::covers(mounts, path))
    }

    /// For each space: where it is to be mounted, and who takes the descriptor.
    pub async fn sockets(&self) -> Result<Vec<(Mount, OwnedFd)>, Unseen> {
        let mounts = self.mounts.as_ref().map_err(|why| Unseen {
            space: mounts::VARIABLE.to_owned(),
            why: why.clone(),
            hint: "for example --data input:/mnt/data".to_owned(),
        })?;
        let mut sockets = Vec::new();
        for mount in mounts {
            let server = self.server(&mount.space).await?;
            let Some(socket) = &server.socket else { return Err(unseen(&mount.space, format!("{PROGRAM} is about to end"))) };
            let socket = socket.try_clone().map_err(|error| unseen(&mount.space, error.to_string()))?;
            sockets.push((mount.clone(), socket));
        }
        Ok(sockets)
    }

    async fn server(&self, space: &str) -> Result<Arc<Server>, Unseen> {
        let mut used = self.used.lock().await;
        let home = mend_settings::home().map_err(|error| unseen(space, error.to_string()))?;
        // If it cannot be read, the process says why.
        let key = self.how.key(space, &tokio::fs::read(described(&home, space)).await.unwrap_or_default());
        let mut all = self.all.0.lock().await;
        let is_used = |place: &ServerSlot| Arc::strong_count(place) > 1 || place.try_lock().is_ok_and(|server| server.strong_count() > 0);
        all.retain(|_, place| is_used(place));
        let place = all.entry(key).or_default().clone();
        drop(all);
        let mut place = place.lock().await;
        let running = used.get(space).cloned().or_else(|| place.upgrade()).filter(|server| server.is_alive());
        let server = match running {
            Some(server) => server,
            None => Arc::new(start(space, &self.how).await?),
        };
        *place = Arc::downgrade(&server);
        self.heard.listen(&server.listeners);
        used.insert(space.to_owned(), server.clone());
        Ok(server)
    }
}

fn unseen(space: &str, why: String) -> Unseen {
    Unseen { space: space.to_owned(), why, hint: "look at mendd's log on that node".to_owned() }
}

async fn start(space: &str, how: &How) -> Result<Server, Unseen> {
    let program = mend_settings::find_part(PROGRAM).ok_or_else(|| Unseen {
        space: space.to_owned(),
        why: format!("there is no {PROGRAM} beside mendd"),
        hint: "`make install` installs it; MEND_LIBDIR names another directory".to_owned(),
    })?;
    let failed = |error: io::Error| unseen(space, format!("{PROGRAM} cannot be started: {error}"));
    let (socket, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(|errno| failed(errno.into()))?;
    let mut command = Command::new(program);
    command.envs(how.settings.iter().map(|(name, value)| (*name, value)));
    if how.encrypts {
        command.env(mend_settings::ENCRYPT_DATA.name, "on");
    }
    let mut process = command
        .args(["ranks", space])
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut said = String::new();
    let Some(output) = process.stdout.take() else { return Err(failed(io::ErrorKind::BrokenPipe.into())) };
    let mut output = BufReader::new(output);
    match timeout(START_TIMEOUT, output.read_line(&mut said)).await {
        Ok(read) => drop(read.map_err(failed)?),
        Err(_) => return Err(unseen(space, format!("its targets were not heard within {} s", START_TIMEOUT.as_secs()))),
    }
    let said = said.trim_end();
    match said.split_once(' ') {
        None if said == "ready" => {
            let listeners = Listeners::of(space);
            let hearing = listeners.clone();
            tokio::spawn(async move { hearing.hear(output).await });
            Ok(Server { socket: Some(socket), process: std::sync::Mutex::new(Some(process)), listeners })
        }
        Some(("refused", why)) => {
            let (why, hint) = why.split_once('\t').unwrap_or((why, ""));
            Err(Unseen { space: space.to_owned(), why: why.to_owned(), hint: hint.to_owned() })
        }
        _ => Err(unseen(space, format!("{PROGRAM} ended without saying why"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_want_a_space_served_otherwise_have_a_process_of_their_own() {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let env =
            [set("MEND_SPACE_CACHE_MB", "7"), set("MEND_LEASE_MS", "9000"), set("MEND_SPACE_PROBE_S", ""), set("MEND_SPACE_BEGUN_S", "9")];
        let how = How::of(&env, false);
        // Neither what is not of mounts, nor what is of targets.
        assert_eq!(how.settings, [("MEND_SPACE_CACHE_MB", "7".to_owned())]);
        let keys = [how, How::of(&env, true), How::of(&[], false)].map(|how| how.key("input", b"described"));
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
        assert_eq!(keys[2], How::of(&[set("PATH", "/bin")], false).key("input", b"described"));
    }
}
