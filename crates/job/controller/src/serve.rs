//! The verbs' side door: accepts holders of the job's secret, takes one request from each, passes it to the event
//! loop and carries its answers back.

use mend_messages::auth::Purpose;
use mend_messages::control::{Answer, Ask};
use mend_messages::job::Secret;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

/// Verbs and strangers that may be connected at the same time.
const MAX_CONNECTIONS: usize = 64;

/// Listens and serves until the event loop is gone. Returns the port.
///
/// # Errors
/// If no port can be had.
pub async fn listen<E: Send + 'static>(
    address: &str,
    secret: Secret,
    events: mpsc::Sender<E>,
    wrap: impl Fn(Ask, mpsc::UnboundedSender<Answer>) -> E + Send + Sync + 'static,
) -> io::Result<u16> {
    let listener = TcpListener::bind((address, 0)).await?;
    let port = listener.local_addr()?.port();
    let (places, wrap) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Arc::new(wrap));
    tokio::spawn(async move {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, peer)) = listener.accept().await else { continue };
            let (secret, events, wrap) = (secret.clone(), events.clone(), wrap.clone());
            tokio::spawn(async move {
                let _place = place;
                let mut connection = match mend_wire::accept(stream, Purpose::Control, &secret).await {
                    Ok(connection) => connection,
                    Err(error) => return tracing::warn!(%peer, %error, "a stranger was turned away"),
                };
                let Ok(ask) = connection.receiver.receive::<Ask>().await else { return };
                let (answers, mut coming) = mpsc::unbounded_channel();
                if events.send(wrap(ask, answers)).await.is_err() {
                    return;
                }
                while let Some(answer) = coming.recv().await {
                    if connection.sender.send(&answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(port)
}
