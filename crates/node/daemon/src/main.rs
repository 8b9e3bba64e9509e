//! mendd: starts and watches the ranks of one node, carries PMI and output, carries messages between controller and agents.
//!
//! Where to read: [`listen`] who is let in; [`job`] what a controller can ask; [`rank`] the life of one rank's process;
//! [`supervisor`] the rank supervisor, which stands between daemon and rank; [`agent_links`] and [`agents`] the rank's agent; [`restore`] and
//! [`transfer`] how a rank comes from elsewhere; [`sealing`] encrypted images; [`tiers`] where copies of checkpoints are; [`targets`], [`spaces`]
//! and [`watches`] data spaces.

mod agent_links;
mod agents;
mod bounded;
mod channels;
mod clock;
mod comparison;
mod conversation;
mod failure;
mod input;
mod job;
mod job_link;
mod launch_environment;
mod listen;
mod mpi;
mod node;
mod outbox;
mod output;
mod paused;
mod privileges;
mod program;
mod progress_news;
mod put_files;
mod put_into_space;
mod rank;
mod restore;
mod room;
mod shared_memory;
mod sink;
mod space_news;
mod spaces;
mod start;
mod stay;
mod successor;
mod supervisor;
mod targets;
mod tiers;
mod watches;

use clap::Parser;
use mend_health::monitor::Monitor;
use mend_health::options::{Options, OptionsError};
use mend_wire::secret::SecretError;
use node::Node;
use privileges::Isolation;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use targets::Targets;
use tiers::NodeTiers;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast;

/// Signals of a batch system that a job has not heard of yet. All mean the same.
const MAX_WAITING_SIGNALS: usize = 8;
/// Between two looks whether targets of data spaces still run.
const TARGETS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs on every node that may run ranks. `mend` finds it there.
#[derive(Debug, Parser)]
#[command(name = "mendd", version, about = "Starts and watches MPI ranks on this node, for `mend run`.", after_help = EXAMPLES)]
struct Arguments {
    /// Address and port to listen on; port 0 takes any free one. [default: 0.0.0.0:$MEND_PORT, which is 7117]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Name of this node in messages. [default: the host name]
    #[arg(long)]
    name: Option<String>,
    /// Address at which ranks of other nodes reach this node. [default: the one that the controller reached; if that is
    /// the loopback address though mendd listens on all, the one of the default route]
    #[arg(long, value_name = "IP", value_parser = one_address)]
    advertise: Option<IpAddr>,
    /// Write the address that was taken, as one line, to this descriptor
    #[arg(long, value_name = "FD")]
    ready_fd: Option<i32>,
    /// End when standard input does, or has a word. If it ends without a word, jobs that are here are waited for if their controllers may have successors
    #[arg(long)]
    until_eof: bool,
    /// Started in a batch job: as --until-eof, but write `ready NODE PORT` as a line to standard output, and `signal NODE NUMBER`
    /// at each SIGTERM, SIGUSR1 and SIGUSR2, which end nothing
    #[arg(long, conflicts_with_all = ["until_eof", "ready_fd"])]
    under_batch: bool,
}

/// An address that names one node.
fn one_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|error| format!("{error}; an IP address is wanted, as 10.0.0.7 or fd00::7"))?;
    let many = address.is_unspecified() || address.is_multicast() || matches!(address, IpAddr::V4(address) if address.is_broadcast());
    if many { Err("no node can be reached at it; name one of this node's own (`ip addr` lists them)".to_owned()) } else { Ok(address) }
}

const EXAMPLES: &str = "\
Examples:
  mendd                                 listen on all addresses, port 7117
  mendd --listen 10.0.0.7:7200          one address, another port (set MEND_PORT=7200 for mend)
  ssh node7 mendd &                     one daemon on each node; then: mend run -n 8 --hosts node7,node8 -- ./app

All nodes need the same secret: a shared home directory is enough, else copy ~/.mend/secret.
Exit codes: 0 ended as asked, 1 cannot serve, 2 wrong usage.";

/// Why the daemon cannot serve.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Setting(#[from] mend_settings::SettingError),
    #[error("{} cannot be used", mend_settings::LOG.name)]
    Log(#[source] tracing_subscriber::filter::ParseError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("this node's privileges cannot be tried out")]
    Privileges(#[source] io::Error),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the ready line cannot be written to descriptor {fd}")]
    Ready { fd: i32, source: io::Error },
    #[error(transparent)]
    Health(#[from] OptionsError),
    #[error("the runtime cannot be started")]
    Runtime(#[source] io::Error),
}

impl ServeError {
    fn hint(&self) -> String {
        match self {
            Self::Secret(error) => error.hint(),
            Self::Listen { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => {
                    "another mendd or another program has this port; end it, or choose another port with --listen and MEND_PORT".into()
                }
                io::ErrorKind::PermissionDenied => "ports below 1024 are root's; choose another with --listen and MEND_PORT".into(),
                io::ErrorKind::AddrNotAvailable => "this node does not have that address; `ip addr` lists those it has".into(),
                _ => String::new(),
            },
            Self::Log(_) => "write for example MEND_LOG=debug, or leave it unset".into(),
            Self::Setting(_) | Self::Health(_) => "correct the variable, or leave it unset".into(),
            Self::Ready { .. } => "pass the number of a descriptor that is open for writing".into(),
            Self::Privileges(_) | Self::Runtime(_) => "raise the limits on processes and open files (ulimit -u, ulimit -n)".into(),
        }
    }
}

fn main() -> ExitCode {
    // Supervisors and keepers of namespaces are this program again, told apart before anything else so that they stay single threads.
    let hidden = std::env::args_os().nth(1);
    if hidden.as_ref().is_some_and(|word| word == "rank-supervisor") {
        return ExitCode::from(supervisor::run() as u8);
    }
    if hidden.is_some_and(|word| word == "namespace") {
        return ExitCode::from(supervisor::namespace::keep() as u8);
    }
    let arguments = Arguments::parse();
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            mend_report::tell!("{}", mend_report::failure("mendd", &mend_report::with_causes(&error), &error.hint()));
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: Arguments) -> Result<(), ServeError> {
    start_log()?;
    // Some are read when a job needs them, and nobody would hear of a mistake then.
    mend_settings::check()?;
    let announcement = Announcement { ready_fd: arguments.ready_fd, under_batch: arguments.under_batch };
    let until_eof = arguments.until_eof || arguments.under_batch;
    if until_eof {
        // Out of the user's session: its Ctrl-C is for mend, which tells the ranks. And the scheduler shares processors
        // between sessions first (sched(7), autogroup): what else runs in the same terminal would be in one group with the
        // ranks, and two of these could be put on one processor while it has the other.
        let _ = rustix::process::setsid();
    }
    if let Err(error) = mend_kernel::slice::shorten() {
        tracing::debug!(%error, "no short slices: busy ranks delay checkpoints");
    }
    let address = match arguments.listen {
        Some(address) => address,
        // Whoever started it is told which port it is: several jobs may share a node.
        None if arguments.under_batch => SocketAddr::from(([0, 0, 0, 0], 0)),
        None => SocketAddr::from(([0, 0, 0, 0], mend_settings::PORT.number()? as u16)),
    };
    let hidden_features = mend_settings::HIDE_CPU_FEATURES.features()?;
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?;
    // Bound before anything is made, so that a second daemon ends here.
    let listener = std::net::TcpListener::bind(address).map_err(|source| ServeError::Listen { address, source })?;
    // While there is a single thread: namespaces are entered by processes, not by threads.
    let isolation = privileges::prepare().map_err(ServeError::Privileges)?;
    shared_memory::sweep();
    if let Isolation::Refused { reason } = &isolation {
        tracing::warn!("{reason}: ranks run here, but cannot be restored here");
    }
    let name = arguments.name.unwrap_or_else(host_name);
    let watched = Options::read(&name)?;
    // One thread serves everybody: the cores belong to the ranks.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Runtime)?;
    let health = runtime.block_on(async { watched.map_or_else(Monitor::idle, Monitor::start) });
    let node = Node {
        name,
        secret,
        advertised: arguments.advertise,
        everywhere: address.ip().is_unspecified(),
        open_files: raise_open_files(),
        isolation,
        processor: mend_kernel::processor::detect(),
        hidden_features,
        library: mend_settings::find_part("libmend-fi.so"),
        restorer: mend_settings::find_part("mend-restorer"),
        jobs: Mutex::default(),
        paused: Arc::default(),
        health,
        ranks: AtomicU32::new(0),
        targets: Targets::default(),
        tiers: NodeTiers::default(),
        spaces: Arc::default(),
        stay: Arc::default(),
        time_up: broadcast::channel(MAX_WAITING_SIGNALS).0,
    };
    let result = runtime.block_on(run(Arc::new(node), listener, announcement, until_eof));
    // Threads that wait for a slow file system or standard input are not waited for.
    runtime.shutdown_background();
    result
}

/// Who is told what.
#[derive(Clone, Copy)]
struct Announcement {
    ready_fd: Option<i32>,
    under_batch: bool,
}

async fn run(node: Arc<Node>, listener: std::net::TcpListener, announcement: Announcement, until_eof: bool) -> Result<(), ServeError> {
    listener.set_nonblocking(true).map_err(ServeError::Runtime)?;
    let listener = TcpListener::from_std(listener).map_err(ServeError::Runtime)?;
    let address = listener.local_addr().map_err(ServeError::Runtime)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
    if let Some(fd) = announcement.ready_fd {
        announce(fd, &address.to_string()).map_err(|source| ServeError::Ready { fd, source })?;
    }
    if announcement.under_batch {
        let name = node.name.clone();
        announce(1, &format!("ready {name} {}", address.port())).map_err(|source| ServeError::Ready { fd: 1, source })?;
        for kind in [SignalKind::terminate(), SignalKind::user_defined1(), SignalKind::user_defined2()] {
            tokio::spawn(tell_of(kind, name.clone(), node.clone()));
        }
    }
    tracing::info!(name = node.name, %address, "ready");
    // Whatever ends the daemon, its supervisors see their sockets close and end the ranks.
    tokio::select! {
        () = listen::listen(node.clone(), listener) => {}
        () = watches::watch(&node, address.port()) => {}
        () = no_longer_needed(&node), if until_eof => {}
        _ = terminate.recv(), if !announcement.under_batch => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Tells of a batch system's signals: whoever started this daemon, and the controllers of the jobs here.
async fn tell_of(kind: SignalKind, name: String, node: Arc<Node>) {
    let Ok(mut signals) = signal(kind) else { return };
    while signals.recv().await.is_some() {
        // Nobody listens if no job is here.
        let _ = node.time_up.send(kind.as_raw_value());
        if !node.stay.is_alone() {
            // Its reader may be gone just now.
            let _ = announce(1, &format!("signal {name} {}", kind.as_raw_value()));
        }
    }
}

/// Writes a line to an inherited descriptor.
fn announce(fd: i32, text: &str) -> io::Result<()> {
    let line = format!("{text}\n");
    if fd == 1 {
        let mut stdout = io::stdout();
        stdout.write_all(line.as_bytes())?;
        return stdout.flush();
    }
    // By name, as nothing says that the number is ours to own.
    std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"))?.write_all(line.as_bytes())
}

/// Whoever started this daemon has ended it, with a word; or is gone, and nobody goes on with a job here.
async fn no_longer_needed(node: &Node) {
    let (mut input, mut word) = (tokio::io::stdin(), [0; 64]);
    tokio::select! {
        read = input.read(&mut word) => {
            // An error means as much as the end.
            if matches!(read, Ok(length) if length > 0) {
                return node.stay.done().await;
            }
            node.stay.alone();
        }
        () = node.stay.left_alone() => {}
    }
    loop {
        node.stay.over().await;
        if !node.targets.are_running().await {
            return node.stay.done().await;
        }
        // They have what a job of the past has written and its controller still sends away.
        tokio::time::sleep(TARGETS_INTERVAL).await;
    }
}

fn start_log() -> Result<(), ServeError> {
    let filter = tracing_subscriber::EnvFilter::try_new(mend_settings::LOG.text()).map_err(ServeError::Log)?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // It would panic where standard error is a terminal that was closed.
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// A rank costs some ten descriptors, and soft limits are made for programs that use select(2): takes what the hard
/// limit allows, and returns what was, which the ranks get back.
fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    // Refused only if the hard limit was lowered meanwhile; then the old one has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    limit.current
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
