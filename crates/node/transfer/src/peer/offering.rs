//! How a node offers images to another one: a few at a time, so that none of them takes the place of another that has not proven itself yet
//! ([`mend_wire::MAX_PENDING_OF_PEER`]). A job restarts all ranks of a lost node at once.

use super::gone;
use crate::TransferError;
use mend_messages::auth::Purpose;
use mend_messages::daemon::JobIntroduction;
use mend_messages::transfer::Offer;
use mend_wire::{Connection, Greeted, HANDSHAKE_TIMEOUT, HandshakeError, again_if_broken};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Images that are being offered to a node at a time, of all jobs here. Data spaces and controllers come from the same address.
const OFFERED: usize = 8;

/// Turns to offer something, by whom it is offered to.
static TURNS: Mutex<Option<HashMap<SocketAddr, Weak<Semaphore>>>> = Mutex::new(None);

/// Those at one node, for as long as somebody has them.
fn turns_at(address: SocketAddr) -> Arc<Semaphore> {
    let mut all = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    all.retain(|_, turns| turns.strong_count() > 0);
    if let Some(turns) = all.get(&address).and_then(Weak::upgrade) {
        return turns;
    }
    let turns = Arc::new(Semaphore::new(OFFERED));
    all.insert(address, Arc::downgrade(&turns));
    turns
}

/// Connects, proves the job's secret, and offers an image.
pub(super) async fn offer(address: SocketAddr, job: &JobIntroduction, offer: &Offer) -> Result<Connection, TransferError> {
    let turns = turns_at(address);
    let _turn = turns.acquire().await.map_err(|closed| TransferError::Socket(io::Error::other(closed)))?;
    let mut connection = timeout(HANDSHAKE_TIMEOUT, again_if_broken(|| introduce(address, job)))
        .await
        .unwrap_or(Err(HandshakeError::TimedOut))
        .map_err(|source| TransferError::Handshake { address, source })?;
    connection.sender.send(offer).await.map_err(gone)?;
    Ok(connection)
}

async fn introduce(address: SocketAddr, job: &JobIntroduction) -> Result<Connection, HandshakeError> {
    let stream = TcpStream::connect(address).await.map_err(|source| HandshakeError::Connect { address, source })?;
    let mut greeted = Greeted::opened(stream, Purpose::Transfer).await?;
    greeted.say(&job.identity).await?;
    greeted.prove_as_initiator(&job.secret, &job.identity).await
}
