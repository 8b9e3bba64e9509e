//! The verbs' side door: accepts holders of the job's secret, takes one request from each, passes it to the event
//! loop and carries its answers back.
//!
//! There are two doors: a unix socket in the job's directory, for this host, where nobody else can even knock, and a TCP port for verbs
//! on other hosts. Faults assumed: anybody connects to the port and sends anything, or nothing: see [`PendingHandshakes`].

use mend_messages::auth::Purpose;
use mend_messages::control::{Answer, Ask};
use mend_messages::job::Secret;
use mend_wire::{Connection, HANDSHAKE_TIMEOUT, PendingHandshakes, Refusals, Stream};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Verbs that may be connected at the same time; more wait.
const MAX_VERBS: usize = 256;
/// Name of the socket in the job's directory.
const SOCKET_NAME: &str = "control";

/// What all connections share.
struct Doors<E, W> {
    secret: Secret,
    events: mpsc::Sender<E>,
    wrap: W,
    pending: Arc<PendingHandshakes>,
    refusals: Arc<Refusals>,
    places: Semaphore,
}

/// The doors of a job; they close when this is dropped.
#[derive(Debug)]
pub struct OpenDoors {
    /// The TCP port.
    pub port: u16,
    directory: PathBuf,
    _tasks: JoinSet<()>,
}

impl Drop for OpenDoors {
    fn drop(&mut self) {
        // One that stays is of no harm: nobody answers there.
        let _ = std::fs::remove_file(self.directory.join(SOCKET_NAME));
    }
}

/// Where a controller is to listen: on the loopback interface for a job of this machine alone (`local`), else on all.
#[must_use]
pub fn address(local: bool) -> &'static str {
    if local { "127.0.0.1" } else { "0.0.0.0" }
}

/// Listens and serves.
///
/// # Errors
/// If no port can be had. A directory whose file system has no sockets is no error: the port remains.
pub async fn listen<E: Send + 'static>(
    address: &str,
    directory: &Path,
    secret: Secret,
    events: mpsc::Sender<E>,
    wrap: impl Fn(Ask, mpsc::UnboundedSender<Answer>) -> E + Send + Sync + 'static,
) -> io::Result<OpenDoors> {
    let mut tasks = JoinSet::new();
    let listener = TcpListener::bind((address, 0)).await?;
    let port = listener.local_addr()?.port();
    let (pending, refusals) = (Arc::default(), Arc::default());
    let doors = Arc::new(Doors { secret, events, wrap, pending, refusals, places: Semaphore::new(MAX_VERBS) });
    match bind(directory) {
        Ok(listener) => {
            let doors = doors.clone();
            tasks.spawn(async move {
                loop {
                    doors.clone().welcome(listener.accept().await.map(|(stream, _)| stream.into())).await;
                }
            });
        }
        Err(error) => tracing::info!(%error, "no socket in the job's directory: verbs come by TCP"),
    }
    tasks.spawn(async move {
        loop {
            doors.clone().welcome(listener.accept().await.map(|(stream, _)| stream.into())).await;
        }
    });
    Ok(OpenDoors { port, directory: directory.to_owned(), _tasks: tasks })
}

impl<E: Send + 'static, W: Fn(Ask, mpsc::UnboundedSender<Answer>) -> E + Send + Sync + 'static> Doors<E, W> {
    async fn welcome(self: Arc<Self>, accepted: io::Result<Stream>) {
        let (stream, peer) = match accepted.and_then(|stream| stream.peer().map(|peer| (stream, peer))) {
            Ok(accepted) => accepted,
            Err(error) => {
                self.refusals.tell("nobody", &error);
                // Out of descriptors, mostly: others may be closed soon.
                return tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if !peer.may_enter() {
            return self.refusals.tell(peer, &io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let place = self.pending.enter(peer);
        tokio::spawn(async move {
            match place.hold(mend_wire::accept(stream, Purpose::Control, &self.secret)).await {
                Ok(connection) => self.serve(connection).await,
                Err(error) => self.refusals.tell(peer, &error),
            }
        });
    }

    async fn serve(&self, mut connection: Connection) {
        let Ok(_place) = self.places.acquire().await else { return };
        let Ok(Ok(ask)) = timeout(HANDSHAKE_TIMEOUT, connection.receiver.receive::<Ask>()).await else { return };
        let (answers, mut coming) = mpsc::unbounded_channel();
        if self.events.send((self.wrap)(ask, answers)).await.is_err() {
            return;
        }
        while let Some(answer) = coming.recv().await {
            if connection.sender.send(&answer).await.is_err() {
                return;
            }
        }
    }
}

/// The socket of a job, by a path that is short enough for an address (unix(7): 107 bytes), whatever the directory's name.
/// Good as long as the directory is open.
pub(crate) fn socket_in(directory: &Path) -> io::Result<(File, PathBuf)> {
    let directory = File::open(directory)?;
    let path = format!("/proc/self/fd/{}/{SOCKET_NAME}", directory.as_raw_fd());
    Ok((directory, path.into()))
}

/// Binds the socket. One that is there was left by an earlier controller: who holds the job's lock is the only one.
fn bind(directory: &Path) -> io::Result<UnixListener> {
    let (_open, path) = socket_in(directory)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    // The umask may allow others, or deny the owner.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}
