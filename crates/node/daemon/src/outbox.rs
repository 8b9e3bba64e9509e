//! The two queues towards a job's controller.
//!
//! *Ordered*: output, PMI bytes and whatever must come after them (exits, the end of a save). Bounded; senders wait.
//! *Urgent*: answers and news that must not wait behind a slow reader's output. Unbounded, but each is the answer to
//! something the controller asked or happens a bounded number of times per rank.
//! Urgent messages overtake ordered ones, never each other.

use mend_messages::daemon::FromDaemon;
use mend_wire::Source;
use std::io;
use tokio::sync::mpsc;

/// Messages the ordered queue holds; with 64 KiB of output each, 2 MiB per job.
const ORDERED_LENGTH: usize = 32;

/// Sends in order with output.
#[derive(Clone, Debug)]
pub struct Ordered(mpsc::Sender<FromDaemon>);

/// Sends ahead of output.
#[derive(Clone, Debug)]
pub struct Urgent(mpsc::UnboundedSender<FromDaemon>);

/// Receiving end of both.
#[derive(Debug)]
pub struct Outbox {
    ordered: mpsc::Receiver<FromDaemon>,
    urgent: mpsc::UnboundedReceiver<FromDaemon>,
    ended: bool,
}

/// A new pair of queues.
pub fn queues() -> (Urgent, Ordered, Outbox) {
    let (ordered_sender, ordered) = mpsc::channel(ORDERED_LENGTH);
    let (urgent_sender, urgent) = mpsc::unbounded_channel();
    (Urgent(urgent_sender), Ordered(ordered_sender), Outbox { ordered, urgent, ended: false })
}

impl Ordered {
    /// Waits for room.
    ///
    /// # Errors
    /// `BrokenPipe` when the controller's connection is gone.
    pub async fn send(&self, message: FromDaemon) -> io::Result<()> {
        self.0.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Urgent {
    /// Never waits. A message to a controller that is gone is dropped: the job's end is noticed elsewhere.
    pub fn send(&self, message: FromDaemon) {
        let _ = self.0.send(message);
    }
}

impl Outbox {
    /// True when all senders are gone and everything was taken.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

impl Source for Outbox {
    type Message = FromDaemon;

    /// Output waits while there is no room.
    async fn next(&mut self, room: bool) -> Option<FromDaemon> {
        let message = tokio::select! {
            biased;
            Some(message) = self.urgent.recv() => Some(message),
            Some(message) = self.ordered.recv(), if room => Some(message),
            else => None,
        };
        if message.is_some() {
            return message;
        }
        if !room {
            // Without room, the ordered queue was not looked at: the link asks again when there is some.
            return std::future::pending().await;
        }
        self.ended = true;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::daemon::{ExitStatus, NodeRoom, Stream};

    #[tokio::test]
    async fn urgent_overtakes_output_and_an_exit_does_not() {
        let (urgent, ordered, mut outbox) = queues();
        let output = FromDaemon::Output { rank: 0, stream: Stream::Stdout, bytes: vec![1] };
        let exited = FromDaemon::Exited { rank: 0, attempt: 0, status: ExitStatus::Code(0) };
        ordered.send(output.clone()).await.unwrap();
        ordered.send(exited.clone()).await.unwrap();
        urgent.send(FromDaemon::Pong(NodeRoom::default()));
        drop((urgent, ordered));
        let mut came = Vec::new();
        while let Some(message) = outbox.next(true).await {
            came.push(message);
        }
        assert_eq!(came, [FromDaemon::Pong(NodeRoom::default()), output, exited]);
    }
}
