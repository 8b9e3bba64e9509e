//! Images that move in chunks of registered memory: the process `mend-chunks` of this node, and streams that are handed to it.
//!
//! ```text
//! agent ══ stream ══► mend-chunks ══ fi_read or fi_write ══► mend-chunks ══ stream ══► restorer
//! ```
//! One process serves all ranks of all jobs that move with the same provider, mode, sizes and libfabric, so that they share one pool. It is begun when
//! a move is looked into, so that what stands in its way is known before a rank is stopped, and ends a while after the last one.
//! Invariants: a stream ends for a restorer only when it is known here why. Faults assumed: the process ends at any moment, as a provider may end it;
//! that ends the streams that it carries, and the next move begins another.

use crate::TransferError;
use crate::process_stream::StreamFault;
use mend_fabric_sys::core_provider::environment;
use mend_image::HEADER_SIZE;
use mend_messages::chunks::{Carried, ChunkOrder, ChunkSetup, LONGEST_ORDER, Opened, Transport};
use mend_messages::daemon::JobIntroduction;
use mend_messages::frame;
use mend_messages::job::Rank;
use mend_messages::needs::NodeNeeds;
use mend_patience::{Activity, Patience};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, sendmsg, socketpair,
    sockopt,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// The program that moves chunks, beside `mendd`.
const PROGRAM: &str = "mend-chunks";
/// How long a process that does nothing is waited for while it loads libfabric and registers memory; and one that works, but does not come to an end.
const OPENING: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(90));
/// Least time that the provider may take for a chunk: whoever has ended is noticed by the connections, so this is for what never ends, on busy nodes, too.
const LEAST_PATIENCE: Duration = Duration::from_secs(60);
/// How long the process stays when nothing moves.
const LINGER: Duration = Duration::from_secs(30);
/// Pause between two looks at a header of which only a part has come.
const PEEK_INTERVAL: Duration = Duration::from_millis(1);
/// What libfabric's file is called, whatever its release.
const LIBRARY: &str = "libfabric.so";

/// Processes by what they serve.
static RUNNING: Mutex<Option<HashMap<Key, Weak<Chunks>>>> = Mutex::const_new(None);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    setup: ChunkSetup,
    source: IpAddr,
    library: Option<PathBuf>,
}

/// A `mend-chunks` that runs. When the last one drops it, it ends.
#[derive(Debug)]
pub struct Chunks {
    control: OwnedFd,
    address: Vec<u8>,
    gone: Arc<AtomicBool>,
}

/// The libfabric that a rank has loaded, by what it needs of a node.
#[must_use]
pub fn library_of(needs: &NodeNeeds) -> Option<PathBuf> {
    let is_library = |path: &&Path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(LIBRARY.as_bytes()));
    needs.files.iter().map(|file| Path::new(&file.path)).find(is_library).map(Path::to_owned)
}

/// What moves this job's ranks in chunks, with this node's address, begun if it does not run. `None`: they do not move so. `library` is what the rank
/// has loaded.
///
/// # Errors
/// [`TransferError::NoChunks`]: why it cannot be here.
pub async fn of_job(job: &JobIntroduction, source: IpAddr, library: Option<&Path>) -> Result<Option<Arc<Chunks>>, TransferError> {
    let Transport::Ofi(setup) = &job.transport else { return Ok(None) };
    let named = mend_settings::MIGRATE_LIBFABRIC.text();
    let library = match named.is_empty() {
        false => Some(PathBuf::from(named)),
        true => library.filter(|path| path.is_file()).map(Path::to_owned),
    };
    let key = Key { setup: setup.clone(), source, library };
    let mut running = RUNNING.lock().await;
    let running = running.get_or_insert_default();
    running.retain(|_, chunks| chunks.strong_count() > 0);
    let found = running.get(&key).and_then(Weak::upgrade).filter(|chunks| !chunks.gone.load(Ordering::Relaxed));
    let chunks = match found {
        Some(chunks) => chunks,
        None => {
            let (wanted, variables) = (key.clone(), variables(&job.program.env, &setup.provider));
            let begun = tokio::task::spawn_blocking(move || begin(wanted, variables)).await;
            let begun = begun.unwrap_or_else(|error| Err(error.to_string()));
            let chunks = Arc::new(begun.map_err(|why| TransferError::NoChunks { address: None, why })?);
            running.insert(key, Arc::downgrade(&chunks));
            chunks
        }
    };
    let kept = chunks.clone();
    tokio::spawn(async move {
        tokio::time::sleep(LINGER).await;
        drop(kept);
    });
    Ok(Some(chunks))
}

/// The environment of the process: this one's, what the job says of libfabric, and what it takes for the provider to be found.
fn variables(job: &[(String, String)], provider: &str) -> Vec<(OsString, OsString)> {
    let counts = |name: &str| name.starts_with("FI_") || name == "LD_LIBRARY_PATH";
    let of_job = job.iter().filter(|(name, _)| counts(name)).map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let mut all: HashMap<OsString, OsString> = std::env::vars_os().collect();
    all.extend(of_job);
    let all: Vec<_> = all.into_iter().collect();
    let of_instance = environment::of_instance(&all, provider, &|path| path.is_file());
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    of_instance.into_iter().filter_map(|(name, value)| Some((text(name.as_bytes()), text(value?.as_bytes())))).collect()
}

fn begin(key: Key, variables: Vec<(OsString, OsString)>) -> Result<Chunks, String> {
    let program = mend_settings::find_part(PROGRAM).ok_or_else(|| format!("{PROGRAM} is not installed beside mendd"))?;
    let failed = |error: io::Error| format!("{PROGRAM} cannot be started: {error}");
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (control, theirs) = pair.map_err(|error| failed(error.into()))?;
    let mut command = Command::new(program);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).env_clear().envs(variables);
    let mut child = command.spawn().map_err(failed)?;
    drop(command);
    match greet(&control, child.id(), key) {
        Ok(address) => {
            let gone = Arc::new(AtomicBool::new(false));
            watch(child, gone.clone()).map_err(failed)?;
            Ok(Chunks { control, address, gone })
        }
        Err(why) => {
            // It has ended, or is to.
            let _ = child.kill();
            let _ = child.wait();
            Err(why)
        }
    }
}

/// Has it open its endpoint. Where that is.
fn greet(control: &OwnedFd, pid: u32, Key { setup, source, library }: Key) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{PROGRAM} ended before it was ready: {error}");
    let order = frame::encode(&ChunkOrder::Open { setup, library, source }).map_err(|error| failed(&error))?;
    rustix::net::send(control, &order, SendFlags::NOSIGNAL).map_err(|error| failed(&error))?;
    let (mut patience, mut activity, began) = (Patience::new(OPENING.0), Activity::of(pid), Instant::now());
    sockopt::set_socket_timeout(control, sockopt::Timeout::Recv, Some(patience.pause())).map_err(|error| failed(&error))?;
    let mut answer = vec![0; LONGEST_ORDER];
    let length = loop {
        match recv(control, answer.as_mut_slice(), RecvFlags::empty()) {
            Ok((_, length)) => break length,
            Err(Errno::AGAIN) if began.elapsed() < OPENING.1 => {
                if activity.seen() {
                    patience.renew();
                } else if patience.is_over() {
                    return Err(format!("{PROGRAM} is not ready, and has done nothing for {} s", OPENING.0.as_secs()));
                }
            }
            Err(Errno::AGAIN) => return Err(format!("{PROGRAM} is not ready after {} s", OPENING.1.as_secs())),
            Err(error) => return Err(failed(&error)),
        }
    };
    match answer.get(4..length).map(frame::decode) {
        Some(Ok(Opened::Ready { address })) => Ok(address),
        Some(Ok(Opened::Refused { why })) => Err(why),
        Some(Err(error)) => Err(failed(&error)),
        None => Err(failed(&"its provider may have ended it; look at mendd's log")),
    }
}

fn watch(mut child: Child, gone: Arc<AtomicBool>) -> io::Result<()> {
    thread::Builder::new().name("chunks".into()).spawn(move || {
        match child.wait() {
            Ok(status) if !status.success() => tracing::warn!(%status, "{PROGRAM} has ended"),
            _ => {}
        }
        gone.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

/// A stream that is to be carried.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    pub connection: TcpStream,
    pub rank: Rank,
    /// Where the other node's endpoint is.
    pub address: &'a [u8],
    /// Longest time that the provider may take for a chunk.
    pub patience: Duration,
}

impl Chunks {
    /// Where the endpoint is.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Hands a stream over: this end of it, and what tells what becomes of it.
    fn carry(&self, outgoing: bool, ours: &UnixStream, transfer: &Transfer<'_>) -> io::Result<UnixStream> {
        let (report, theirs) = UnixStream::pair()?;
        let Transfer { connection, rank, address, patience } = transfer;
        let patience_ms = (*patience).max(LEAST_PATIENCE).as_millis() as u64;
        let order = ChunkOrder::Carry { outgoing, rank: *rank, address: address.to_vec(), patience_ms };
        let order = frame::encode(&order).map_err(io::Error::other)?;
        let given = [ours.as_fd(), connection.as_fd(), theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&given));
        sendmsg(&self.control, &[IoSlice::new(&order)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(report)
    }

    /// A stream that an agent can write to. It ends the image by closing it.
    pub(crate) fn outgoing(self: Arc<Self>, transfer: &Transfer<'_>) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let report = self.carry(true, &ours, transfer)?;
        let rank = transfer.rank;
        thread::Builder::new().name("chunks out".into()).spawn(move || {
            // The agent notices a stream that breaks by itself, and says so; the target, one without an end.
            if let Err(why) = carried(report) {
                tracing::warn!(rank, why, "the image of a rank did not go to its node");
            }
            drop(self);
        })?;
        Ok(theirs.into())
    }

    /// A stream that a restorer can read, and why it ended early if it did.
    pub(crate) fn incoming(self: Arc<Self>, transfer: &Transfer<'_>) -> io::Result<(UnixStream, StreamFault)> {
        let (ours, theirs) = UnixStream::pair()?;
        let report = self.carry(false, &ours, transfer)?;
        let fault = StreamFault::default();
        let told = fault.clone();
        thread::Builder::new().name("chunks in".into()).spawn(move || {
            if let Err(why) = carried(report) {
                let _ = told.set(why);
            }
            // Now the stream ends.
            drop(ours);
            drop(self);
        })?;
        Ok((theirs, fault))
    }
}

fn carried(mut report: UnixStream) -> Carried {
    let mut bytes = Vec::new();
    let read = report.read_to_end(&mut bytes);
    match (read, bytes.get(4..).map(frame::decode::<Carried>)) {
        (Ok(_), Some(Ok(carried))) => carried,
        _ => Err(format!("{PROGRAM} has ended")),
    }
}

/// The header that an image begins with, which stays in the stream. Blocks.
pub(crate) fn peek_header(stream: &UnixStream, patience: Duration) -> Result<Vec<u8>, TransferError> {
    let begun = Instant::now();
    stream.set_nonblocking(true).map_err(TransferError::Socket)?;
    let mut header = vec![0; HEADER_SIZE];
    loop {
        match recv(stream, header.as_mut_slice(), RecvFlags::PEEK) {
            Ok((_, 0)) => return Err(TransferError::Closed),
            Ok((_, HEADER_SIZE)) => break,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(TransferError::Socket(error.into())),
        }
        if begun.elapsed() > patience {
            return Err(TransferError::Stalled(patience));
        }
        thread::sleep(PEEK_INTERVAL);
    }
    stream.set_nonblocking(false).map_err(TransferError::Socket)?;
    Ok(header)
}
