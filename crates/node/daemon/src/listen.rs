//! The daemon's port: who is let in, and to what.
//!
//! Faults assumed: anybody connects and sends anything, or nothing. A connection has [`HANDSHAKE_TIMEOUT`] to prove
//! itself, and a slot in which to do so ([`mend_wire::PendingHandshakes`]): who comes takes the oldest one's, so that unproven peers cost a bounded
//! number of descriptors and keep nobody out. What is refused is told of once a minute, with a count.

use crate::job;
use crate::node::Node;
use mend_messages::auth::Purpose;
use mend_patience::patiently;
use mend_transfer::peer::{self, Admitted};
use mend_wire::{Connection, Greeted, HANDSHAKE_TIMEOUT, HandshakeError, HandshakeSlot, admit_all};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};

/// Serves connections until cancelled.
pub async fn listen(node: Arc<Node>, listener: TcpListener) {
    admit_all(listener, |stream, peer, slot| greet(node.clone(), stream, peer, slot)).await;
}

async fn greet(node: Arc<Node>, stream: TcpStream, peer: SocketAddr, slot: HandshakeSlot) -> Result<(), HandshakeError> {
    let admitting = async { patiently(HANDSHAKE_TIMEOUT, admit(&node, stream)).await.map_err(|_| HandshakeError::TimedOut)? };
    match slot.hold(admitting).await? {
        Caller::Transfer(admitted) => node.deliver(admitted).await,
        Caller::Space(connection) => node.targets.serve(connection).await,
        Caller::Controller(connection) => {
            tracing::debug!(%peer, "a controller is admitted");
            let local =
                connection.local_address().map_err(HandshakeError::Broken)?.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |local| local.ip());
            let ip = node.advertised.unwrap_or_else(|| reachable(local, node.everywhere));
            job::serve(node, connection, ip).await;
        }
    }
    Ok(())
}

/// Who has proven itself.
enum Caller {
    Controller(Connection),
    Transfer(Admitted),
    /// Of a data space, who looks for a target.
    Space(Connection),
}

/// Another purpose or protocol is answered as a job, so that it learns what is here.
async fn admit(node: &Node, stream: TcpStream) -> Result<Caller, HandshakeError> {
    let greeted = Greeted::accepted(stream, &[Purpose::Job, Purpose::Transfer, Purpose::Space]).await?;
    if greeted.purpose() == Purpose::Transfer {
        return peer::admit(greeted, |job| node.secret_of(job)).await.map(Caller::Transfer);
    }
    let who = if greeted.purpose() == Purpose::Space { Caller::Space } else { Caller::Controller };
    greeted.prove_as_acceptor(&node.secret, &[]).await.map(who)
}

/// The address for ranks of other nodes: the one that the controller reached, unless it came over the loopback
/// interface (`--hosts localhost,b`) to a daemon that others reach by another.
fn reachable(local: IpAddr, everywhere: bool) -> IpAddr {
    if !(everywhere && local.is_loopback()) {
        return local;
    }
    // Connecting a datagram socket sends nothing; it only asks for the route. 192.0.2.1 is nobody's (RFC 5737).
    let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    route.map_or(local, |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loopback_address_of_a_daemon_that_listens_everywhere_is_replaced() {
        let (loopback, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 7]));
        assert_eq!(reachable(loopback, false), loopback);
        assert_eq!(reachable(other, true), other);
    }
}
