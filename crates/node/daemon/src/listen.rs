//! The daemon's port: who is let in, and to what.
//!
//! Faults assumed: anybody connects and sends anything, or nothing. A connection has [`HANDSHAKE_TIMEOUT`] to prove
//! itself; more than [`MAX_STRANGERS`] unproven ones at once are closed unheard, so that strangers cost a bounded
//! number of descriptors. What is no greeting is dropped with a line in the log.

use crate::failure::chain;
use crate::node::Node;
use crate::{job, transfer};
use mend_messages::auth::Purpose;
use mend_wire::{HANDSHAKE_TIMEOUT, HandshakeError};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Connections at once that have not proven themselves.
const MAX_STRANGERS: usize = 128;
/// Where a greeting's purpose ends (`mend_messages::auth`: magic 8, protocol 4, purpose 4).
const PURPOSE_END: usize = 16;
/// Pause between two looks at a greeting of which only a part has come.
const PEEK_INTERVAL: Duration = Duration::from_millis(5);

/// Serves connections until cancelled.
pub async fn listen(node: Arc<Node>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(MAX_STRANGERS));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Out of descriptors, mostly: others may be closed soon.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::warn!(%peer, "too many connections have not proven themselves; one more is closed");
            continue;
        };
        let node = node.clone();
        tokio::spawn(async move {
            if let Err(error) = greet(node, stream, peer, place).await {
                tracing::warn!(%peer, error = chain(&error), "a connection is refused");
            }
        });
    }
}

async fn greet(node: Arc<Node>, stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) -> Result<(), HandshakeError> {
    let purpose = timeout(HANDSHAKE_TIMEOUT, peek_purpose(&stream)).await.map_err(|_| HandshakeError::TimedOut)?;
    if purpose.map_err(HandshakeError::Broken)? == Purpose::Transfer as u32 {
        let admitted = transfer::admit(stream, |job| node.secret_of(job)).await?;
        drop(place);
        node.deliver(admitted).await;
        return Ok(());
    }
    // Everything else is answered as a job, so that another purpose or protocol learns what is here.
    let local = stream.local_addr().map_err(HandshakeError::Broken)?.ip();
    let connection = mend_wire::accept(stream, Purpose::Job, &node.secret).await?;
    drop(place);
    tracing::debug!(%peer, "a controller is admitted");
    let ip = node.advertised.unwrap_or_else(|| reachable(local, node.everywhere));
    job::serve(node, connection, ip).await;
    Ok(())
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

/// The purpose in the peer's greeting, which stays unread. Whether it is a greeting at all is for the handshake to say.
async fn peek_purpose(stream: &TcpStream) -> std::io::Result<u32> {
    let mut start = [0; PURPOSE_END];
    loop {
        match stream.peek(&mut start).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            PURPOSE_END => return Ok(u32::from_le_bytes([start[12], start[13], start[14], start[15]])),
            // A peek is ready as long as anything is there; the rest is underway, or the time runs out.
            _ => tokio::time::sleep(PEEK_INTERVAL).await,
        }
    }
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
