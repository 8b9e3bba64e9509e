//! Connections that have not proven themselves: how many there may be, and what is said about those that are refused.
//!
//! Faults assumed: anybody who reaches the port connects as often as he likes and says nothing. Nobody is kept out by that: a new
//! connection always gets a slot, and if there is none left, the oldest one of whoever holds most of them ends. A peer
//! has a share only, so that one that floods takes slots of its own. A handshake takes milliseconds; a flood must bring a
//! whole share of connections within them to end one of the same peer.

use crate::{HandshakeError, Peer};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Connections in their handshake at a door, of all peers.
pub const MAX_PENDING: usize = 128;
/// The same, of one peer: an address, or a user of this machine.
pub const MAX_PENDING_OF_PEER: usize = 32;
/// Refused connections are told of one by one this often, and counted in between.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// After a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The slots of one listener.
#[derive(Debug, Default)]
pub struct PendingHandshakes {
    /// Oldest first.
    waiting: Mutex<(u64, Vec<Waiting>)>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    peer: Peer,
    /// Dropped: the connection ends.
    _end: oneshot::Sender<()>,
}

/// A slot of a connection; free again when it is dropped.
#[derive(Debug)]
pub struct HandshakeSlot {
    pending: Arc<PendingHandshakes>,
    id: u64,
    ended: oneshot::Receiver<()>,
}

impl PendingHandshakes {
    fn waiting(&self) -> MutexGuard<'_, (u64, Vec<Waiting>)> {
        // The list is only ever changed by whole entries, so a panic elsewhere leaves it sound.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a connection that was just accepted. Takes another's if there is none left.
    pub fn enter(self: &Arc<Self>, peer: Peer) -> HandshakeSlot {
        let (end, ended) = oneshot::channel();
        let mut waiting = self.waiting();
        let (next, list) = &mut *waiting;
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        for other in list.iter() {
            *counts.entry(other.peer).or_default() += 1;
        }
        let crowded = if counts.get(&peer).is_some_and(|count| *count >= MAX_PENDING_OF_PEER) {
            Some(peer)
        } else if list.len() >= MAX_PENDING {
            counts.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer)
        } else {
            None
        };
        if let Some(oldest) = crowded.and_then(|crowded| list.iter().position(|other| other.peer == crowded)) {
            list.remove(oldest);
        }
        let id = *next;
        *next += 1;
        list.push(Waiting { id, peer, _end: end });
        drop(waiting);
        HandshakeSlot { pending: self.clone(), id, ended }
    }
}

impl HandshakeSlot {
    /// Does the handshake, as long as the slot is not needed for another.
    ///
    /// # Errors
    /// The handshake's, and [`HandshakeError::Displaced`].
    pub async fn hold<T>(mut self, handshake: impl Future<Output = Result<T, HandshakeError>>) -> Result<T, HandshakeError> {
        tokio::select! {
            biased;
            done = handshake => done,
            _ = &mut self.ended => Err(HandshakeError::Displaced),
        }
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.pending.waiting().1.retain(|other| other.id != self.id);
    }
}

/// Tells of refused connections, without filling the log with them.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Refused since one was told of; `None`: the next one is.
    counted: Mutex<Option<u64>>,
}

impl Refusals {
    fn counted(&self) -> MutexGuard<'_, Option<u64>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was refused. Must be called within a runtime.
    pub fn tell(self: &Arc<Self>, peer: impl std::fmt::Display, why: &dyn std::error::Error) {
        if let Some(count) = &mut *self.counted() {
            *count += 1;
            return;
        }
        *self.counted() = Some(0);
        tracing::warn!(%peer, error = mend_report::with_causes(why), "a connection is refused; others within a minute are counted");
        let own = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(REPORT_INTERVAL).await;
            if let Some(count @ 1..) = own.counted().take() {
                tracing::warn!(count, "more connections were refused within the last minute");
            }
        });
    }
}

/// Has everybody who connects admitted, each by himself and in a slot of his own, until cancelled. Who is refused is told of.
pub async fn admit_all<F>(listener: TcpListener, admit: impl Fn(TcpStream, SocketAddr, HandshakeSlot) -> F)
where
    F: Future<Output = Result<(), HandshakeError>> + Send + 'static,
{
    let (pending, refusals) = (Arc::new(PendingHandshakes::default()), Arc::new(Refusals::default()));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                refusals.tell("nobody", &error);
                // Out of descriptors, mostly: others may be closed soon.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let slot = pending.enter(Peer::Address(peer.ip().to_canonical()));
        let (admitted, refusals) = (admit(stream, peer, slot), refusals.clone());
        tokio::spawn(async move {
            if let Err(error) = admitted.await {
                refusals.tell(peer, &error);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::net::IpAddr;

    fn address(last: u8) -> Peer {
        Peer::Address(IpAddr::from([10, 0, 0, last]))
    }

    async fn is_there(slot: &mut HandshakeSlot) -> bool {
        matches!(slot.ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[tokio::test]
    async fn a_flood_takes_its_own_places() {
        let door = Arc::new(PendingHandshakes::default());
        let mut other = door.enter(address(1));
        let mut flood: Vec<HandshakeSlot> = (0..300).map(|_| door.enter(address(2))).collect();
        assert!(is_there(&mut other).await);
        let mut left = 0;
        for slot in &mut flood {
            left += usize::from(is_there(slot).await);
        }
        assert_eq!(left, MAX_PENDING_OF_PEER);
        // The newest are those that are left.
        assert!(is_there(flood.last_mut().unwrap()).await && !is_there(&mut flood[0]).await);
        // Its next one comes in, too.
        assert!(door.enter(address(2)).hold(async { Ok(()) }).await.is_ok());
        drop((other, flood));
        assert!(door.waiting().1.is_empty());
    }

    #[tokio::test]
    async fn when_all_places_are_taken_who_has_most_gives_one() {
        let door = Arc::new(PendingHandshakes::default());
        let mut single = door.enter(address(200));
        let mut flood: Vec<Vec<HandshakeSlot>> =
            (0..5).map(|last| (0..MAX_PENDING_OF_PEER).map(|_| door.enter(address(last))).collect()).collect();
        assert_eq!(door.waiting().1.len(), MAX_PENDING);
        assert!(is_there(&mut single).await);
        let last = flood[4].pop().unwrap();
        assert!(last.hold(async { Ok(()) }).await.is_ok());
        let displaced = flood[0].remove(0).hold(pending::<Result<(), HandshakeError>>()).await;
        assert!(matches!(displaced, Err(HandshakeError::Displaced)));
    }
}
