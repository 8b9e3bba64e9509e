//! The job's nodes, and how their daemons are reached. What passes between them and the controller is carried by a task per node
//! (`job_link.rs`).

use crate::error::RunError;
use crate::failover::pulse::Pulse;
use crate::job_link::{JobLink, NodeEvent, Opening, SentOrders};
use mend_messages::auth::Purpose;
use mend_messages::daemon::{FromDaemon, JobIntroduction, ToDaemon};
use mend_messages::health::{NodeHealth, NodeReport};
use mend_messages::job::{NodeIndex, Secret};
use mend_report::with_causes;
use mend_wire::{Connection, Link, connect};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How daemons that a batch system has started are reached: by the node's name.
pub(crate) type DaemonAddresses = BTreeMap<String, (String, u16)>;

/// How long a daemon may take to tell how its node is.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// A node of the job.
#[derive(Debug)]
pub struct Node {
    /// Its daemon.
    pub address: SocketAddr,
    /// What was sent and delivered.
    pub link: Arc<Link<ToDaemon>>,
    sender: mpsc::UnboundedSender<ToDaemon>,
    task: JoinHandle<()>,
    /// Orders that were given here, those that the daemon had had before not among them.
    given: AtomicU64,
    orders: Arc<SentOrders>,
    /// Those before.
    before: u64,
}

impl Drop for Node {
    fn drop(&mut self) {
        // No word of ours renews the job's lease there any more.
        self.task.abort();
    }
}

impl Node {
    /// Queues a message. What is sent to a lost node is dropped: its loss is reported by the reader.
    pub fn send(&self, message: ToDaemon) {
        self.given.fetch_add(1, Ordering::Relaxed);
        let _ = self.sender.send(message);
    }

    /// How many orders the daemon was given in this life of the job; `None` if it may not have had all of them yet.
    pub fn settled_orders(&self) -> Option<u64> {
        let given = self.given.load(Ordering::Relaxed);
        self.orders.all_arrived(given, &self.link).then_some(self.before + given)
    }
}

/// Addresses of the hosts' daemons. A loopback address among several hosts is replaced by this machine's address on
/// the way to the others, because it will be told to them.
///
/// # Errors
/// [`RunError::NoSuchHost`] per host.
pub async fn resolve(names: &[String], addresses: &DaemonAddresses, port: u16) -> Vec<Result<SocketAddr, RunError>> {
    let mut found = Vec::new();
    for name in names {
        let (host, port) = addresses.get(name).map_or((name.as_str(), port), |(host, port)| (host.as_str(), *port));
        let address = match tokio::net::lookup_host((host, port)).await {
            Ok(addresses) => preferred(addresses).ok_or_else(|| std::io::Error::other("its name has no address")),
            Err(error) => Err(error),
        };
        found.push(address.map_err(|source| RunError::NoSuchHost { host: name.clone(), source }));
    }
    if found.len() > 1 {
        let other = found.iter().flatten().find(|address| !address.ip().is_loopback()).copied();
        if let Some(own) = other.and_then(own_address_towards) {
            found.iter_mut().flatten().filter(|address| address.ip().is_loopback()).for_each(|address| address.set_ip(own));
        }
    }
    found
}

/// The address of several that a daemon or controller listens at: these listen at IPv4 addresses where nothing else is said.
pub(crate) fn preferred(addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let all: Vec<SocketAddr> = addresses.collect();
    all.iter().find(|address| address.is_ipv4()).or(all.first()).copied()
}

fn own_address_towards(other: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // connect(2) on UDP sends nothing; it only chooses the route.
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A daemon that passed the handshake and does not know the job yet.
#[derive(Debug)]
pub struct ConnectedNode {
    /// Name as the user gave it.
    pub name: String,
    /// Its daemon.
    pub address: SocketAddr,
    connection: Connection,
    /// The user's secret, which proves this side to it.
    pub secret: Secret,
}

/// Asks the daemon at the other end of a connection, before a job is introduced on it.
///
/// # Errors
/// What went wrong, for people. The connection is of no use then.
pub async fn look(connection: &mut Connection) -> Result<NodeReport, String> {
    connection.sender.send(&ToDaemon::Look).await.map_err(|error| with_causes(&error))?;
    match connection.receiver.receive::<FromDaemon>().await {
        Ok(FromDaemon::Seen(report)) => Ok(*report),
        Ok(_) => Err("its daemon answered something else".into()),
        Err(error) => Err(with_causes(&error)),
    }
}

impl ConnectedNode {
    /// The same over a new connection: a daemon does not wait long for a job.
    ///
    /// # Errors
    /// [`RunError::Node`].
    pub async fn anew(self) -> Result<Self, RunError> {
        connect_node(self.name, self.address, &self.secret).await
    }

    /// How the node is, as its daemon judges it.
    ///
    /// # Errors
    /// [`RunError::Unseen`]
    pub async fn look(mut self) -> Result<(Self, NodeHealth), RunError> {
        match tokio::time::timeout(LOOK_LIMIT, look(&mut self.connection)).await {
            Ok(Ok(report)) => Ok((self, report.health)),
            Ok(Err(why)) => Err(RunError::Unseen { host: self.name, why }),
            Err(_) => Err(RunError::Unseen { host: self.name, why: format!("not a word for {} s", LOOK_LIMIT.as_secs()) }),
        }
    }
}

/// Connects to one daemon.
///
/// # Errors
/// [`RunError::Node`].
pub async fn connect_node(name: String, address: SocketAddr, secret: &Secret) -> Result<ConnectedNode, RunError> {
    match connect(address, Purpose::Job, secret).await {
        Ok(connection) => Ok(ConnectedNode { name, address, connection, secret: secret.clone() }),
        Err(source) => Err(RunError::Node { host: name, source }),
    }
}

/// What a job is on a node, whoever controls it.
#[derive(Clone, Debug)]
pub struct JobOnNode {
    /// Its daemon.
    pub address: SocketAddr,
    /// As in [`JobIntroduction`].
    pub identity: [u8; 16],
    /// As in [`JobIntroduction`].
    pub epoch: u64,
    /// As in [`JobIntroduction`].
    pub session: [u8; 16],
    /// How long the daemon may be silent.
    pub silence: Duration,
    /// How long it goes on with the job without a word.
    pub lease: Duration,
    /// As in [`JobLink`].
    pub pulse: Option<Pulse>,
}

/// Starts the task of a node with this index, and introduces the job. `wrap` makes an event of what the node says. What the daemon says is
/// acknowledged when it is confirmed.
pub fn attach<E: Send + 'static>(
    reached: ConnectedNode,
    index: NodeIndex,
    introduction: JobIntroduction,
    pulse: Option<Pulse>,
    events: mpsc::Sender<E>,
    wrap: impl Fn(NodeIndex, NodeEvent) -> E + Send + Sync + 'static,
) -> Node {
    let ConnectedNode { address, connection, secret, .. } = reached;
    let job = JobOnNode {
        address,
        identity: introduction.identity,
        epoch: introduction.epoch,
        session: introduction.session,
        silence: Duration::from_millis(introduction.node_timeout_ms),
        lease: Duration::from_millis(introduction.lease_ms),
        pulse,
    };
    // Also without a successor: so that daemons hold back ranks whose output is not taken, and nobody here waits for that.
    let link = Link::confirming(0);
    let opening = Opening::Introduce(connection, Box::new(introduction));
    begin(job, secret, link, opening, (index, 0), events, wrap)
}

/// Starts the task of a node with this index: in the place of a lost controller, whose `before` orders the daemon has had.
pub fn begin<E: Send + 'static>(
    job: JobOnNode,
    secret: Secret,
    link: Link<ToDaemon>,
    opening: Opening,
    (index, before): (NodeIndex, u64),
    events: mpsc::Sender<E>,
    wrap: impl Fn(NodeIndex, NodeEvent) -> E + Send + Sync + 'static,
) -> Node {
    let (sender, outgoing) = mpsc::unbounded_channel::<ToDaemon>();
    let (link, orders) = (Arc::new(link), Arc::new(SentOrders::default()));
    let JobOnNode { address, identity, epoch, session, silence, lease, pulse } = job;
    let earlier = if let Opening::Succeeded(_, earlier) = &opening { earlier.len() as u64 } else { 0 };
    let pulse = pulse.map(|pulse| pulse.of(index as usize));
    let carrier = JobLink {
        node: index,
        address,
        secret,
        silence,
        lease,
        identity,
        epoch,
        session,
        link: link.clone(),
        orders: orders.clone(),
        pulse,
    };
    let task = tokio::spawn(async move {
        let tell = |event| async { events.send(wrap(index, event)).await.is_ok() };
        let lost = carrier.carry(opening, outgoing, &tell).await;
        tell(NodeEvent::Lost(lost)).await;
    });
    Node { address, link, sender, task, given: AtomicU64::new(earlier), orders, before }
}
