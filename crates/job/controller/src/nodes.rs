//! Connections to the daemons: one reader and one writer task per node, so that a slow terminal or a busy event loop
//! never looks like a dead node. The writer pings every second; the reader counts silence only while it waits,
//! and of that only the time in which this process could run.

use crate::error::RunError;
use mend_job::event::NodeLoss;
use mend_messages::auth::Purpose;
use mend_messages::daemon::{FromDaemon, JobIntroduction, ToDaemon};
use mend_messages::job::{NodeIndex, Secret};
use mend_patience::patiently;
use mend_wire::{Connection, connect};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

const PING_INTERVAL: Duration = Duration::from_secs(1);

/// What a node's tasks report.
#[derive(Debug)]
pub enum NodeEvent {
    /// A message.
    Message(FromDaemon),
    /// No more will come.
    Lost(NodeLoss),
}

/// A node of the job.
#[derive(Debug)]
pub struct Node {
    /// Name as the user gave it.
    pub name: String,
    /// Its daemon.
    pub address: SocketAddr,
    sender: mpsc::UnboundedSender<ToDaemon>,
}

impl Node {
    /// Queues a message. What is sent to a lost node is dropped: its loss is reported by the reader.
    pub fn send(&self, message: ToDaemon) {
        let _ = self.sender.send(message);
    }
}

/// Addresses of the hosts' daemons. A loopback address among several hosts is replaced by this machine's address on
/// the way to the others, because it will be told to them.
///
/// # Errors
/// [`RunError::NoSuchHost`] per host.
pub async fn resolve(names: &[String], port: u16) -> Vec<Result<SocketAddr, RunError>> {
    let mut found = Vec::new();
    for name in names {
        let address = match tokio::net::lookup_host((name.as_str(), port)).await {
            Ok(mut addresses) => addresses.next().ok_or_else(|| std::io::Error::other("its name has no address")),
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
}

/// Connects to one daemon.
///
/// # Errors
/// [`RunError::Node`].
pub async fn connect_node(name: String, address: SocketAddr, secret: &Secret) -> Result<ConnectedNode, RunError> {
    match connect(address, Purpose::Job, secret).await {
        Ok(connection) => Ok(ConnectedNode { name, address, connection }),
        Err(source) => Err(RunError::Node { host: name, source }),
    }
}

/// Starts the tasks of a connection to the node with this index, and introduces the job. `wrap` makes an event of
/// what the node says.
pub fn attach<E: Send + 'static>(
    reached: ConnectedNode,
    index: NodeIndex,
    introduction: JobIntroduction,
    events: mpsc::Sender<E>,
    wrap: impl Fn(NodeIndex, NodeEvent) -> E + Send + 'static,
) -> Node {
    let ConnectedNode { name, address, connection } = reached;
    let node_timeout = Duration::from_millis(introduction.node_timeout_ms);
    let first = ToDaemon::Introduce(Box::new(introduction));
    let (sender, mut outgoing) = mpsc::unbounded_channel::<ToDaemon>();
    let Connection { sender: mut to, receiver: mut from } = connection;
    tokio::spawn(async move {
        if to.send(&first).await.is_err() {
            return;
        }
        let mut ping = interval(PING_INTERVAL);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                message = outgoing.recv() => match message { Some(message) => message, None => return },
                _ = ping.tick() => ToDaemon::Ping,
            };
            if to.send(&message).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        loop {
            let event = match patiently(node_timeout, from.receive::<FromDaemon>()).await {
                Ok(Ok(FromDaemon::Pong)) => continue,
                Ok(Ok(message)) => NodeEvent::Message(message),
                Ok(Err(error)) => NodeEvent::Lost(NodeLoss::Broken(error.to_string())),
                Err(_) => NodeEvent::Lost(NodeLoss::Silent(node_timeout.as_millis() as u64)),
            };
            let last = matches!(event, NodeEvent::Lost(_));
            if events.send(wrap(index, event)).await.is_err() || last {
                return;
            }
        }
    });
    Node { name, address, sender }
}
