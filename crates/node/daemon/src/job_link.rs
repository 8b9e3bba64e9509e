//! A job's messages to and from its controller, over as many connections as it takes.
//!
//! ```text
//! connected ── breaks ──► waiting ── the controller resumes ──► connected
//!     │                      └─ the job leaves ──► ended
//!     ├─ the job has left, the controller has its last message ──► ended
//!     └─ nonsense ──► ended
//! ```
//! A controller's successor comes as the controller itself would, and says so: from then on its messages are numbered anew.
//! How long it may wait is the job's lease ([`mend_node_job::hold`]). A connection that the controller's process closed, as it does when it
//! ends, is told, so that the lease can be shortened; so is one that was reset, since a process that ends with something unread resets it.
//! Invariants: messages are delivered once and in order ([`Link`]). Faults assumed: the connection breaks; the controller comes back on a new one
//! before this side knows that the old one is broken.

use crate::outbox::Outbox;
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_node_job::hold::LinkState;
use mend_wire::{Connection, Link, LinkEnd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a controller may take to read the answer to its resumption.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// A controller that has come back, with proof that it is the job's.
#[derive(Debug)]
pub struct Resumed {
    /// Its new connection.
    pub connection: Connection,
    /// The last message of ours that it has, or does not need.
    pub delivered: u64,
    /// It is another one, in the place of one that is lost.
    pub successor: bool,
}

/// Carries messages until the job leaves, or its controller says what cannot be.
pub async fn carry(
    first: Connection,
    mut outbox: Outbox,
    commands: mpsc::Sender<ToDaemon>,
    mut resumptions: mpsc::Receiver<Resumed>,
    states: mpsc::UnboundedSender<LinkState>,
) {
    let (link, orders) = (Link::default(), AtomicU64::new(0));
    let mut connection = first;
    loop {
        let (commands, orders) = (&commands, &orders);
        let deliver = move |message| async move {
            let order = !matches!(message, ToDaemon::Ping { .. });
            // A job that is leaving takes no commands, but still has things to say.
            let _ = commands.send(message).await;
            orders.fetch_add(u64::from(order), Ordering::Relaxed);
            true
        };
        let end = tokio::select! {
            end = link.run(connection, None, &mut outbox, deliver) => end,
            Some(resumed) = resumptions.recv() => {
                tracing::info!("the controller comes by another connection");
                let successor = resumed.successor;
                match answered(&link, orders, resumed).await {
                    Some(next) => connection = next,
                    None => return,
                }
                if successor {
                    let _ = states.send(LinkState::Succeeded);
                }
                continue;
            }
        };
        match end {
            LinkEnd::Finished | LinkEnd::Unwanted | LinkEnd::Silent(_) => return,
            LinkEnd::Closed if outbox.has_ended() => return,
            LinkEnd::Closed => {
                tracing::info!("the controller closed its connection");
                let _ = states.send(LinkState::Closed);
            }
            LinkEnd::Reset => {
                tracing::info!("the controller's host has reset its connection");
                let _ = states.send(LinkState::Closed);
            }
            LinkEnd::Broken(why) => tracing::info!(why, "the connection to the controller broke"),
            LinkEnd::Nonsense(why) => return tracing::warn!(why, "a controller's connection is closed"),
        }
        let Some(resumed) = resumptions.recv().await else { return };
        let state = if resumed.successor { LinkState::Succeeded } else { LinkState::Connected };
        match answered(&link, orders, resumed).await {
            Some(next) => connection = next,
            None => return,
        }
        let _ = states.send(state);
    }
}

/// Tells a controller that came back what this side has. `None` if it cannot be the same one.
async fn answered(link: &Link<FromDaemon>, orders: &AtomicU64, resumed: Resumed) -> Option<Connection> {
    let Resumed { mut connection, delivered, successor } = resumed;
    if let Err(error) = link.resume(delivered) {
        tracing::warn!(%error, "a controller that came back is not the one that left");
        return None;
    }
    let answer = match successor {
        false => FromDaemon::Resumed { delivered: link.delivered() },
        true => {
            link.begin_anew();
            FromDaemon::Succeeded { orders: orders.load(Ordering::Relaxed) }
        }
    };
    // If this does not arrive, neither does what follows, and the controller comes again.
    let _ = timeout(ANSWER_TIME, connection.sender.send(&answer)).await;
    Some(connection)
}
