//! Tells messages, one after the other, on a thread of its own: who has them told does not wait for whoever reads standard error.

use std::panic::AssertUnwindSafe;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// What the thread that tells messages runs, one after the other.
pub(crate) type Message = Box<dyn FnOnce() + Send>;

/// Hands messages to the thread.
#[derive(Clone, Debug)]
pub(crate) struct Hand(mpsc::UnboundedSender<Message>);

/// The thread. It ends when nobody can hand it anything any more.
#[derive(Debug)]
pub(crate) struct Teller {
    hand: Hand,
    thread: JoinHandle<()>,
}

impl Hand {
    fn tell(&self, message: Message) {
        // The thread lives for as long as anybody can call this.
        let _ = self.0.send(message);
    }

    /// Returns when it is told.
    pub(crate) fn tell_and_wait(&self, message: Message) {
        let (telling, told) = oneshot::channel::<()>();
        self.tell(Box::new(move || {
            // Goes also if the message panics.
            let _telling = telling;
            message();
        }));
        let _ = told.blocking_recv();
    }
}

impl Teller {
    pub(crate) fn begin() -> Self {
        let (hand, mut messages) = mpsc::unbounded_channel::<Message>();
        let thread = tokio::task::spawn_blocking(move || {
            while let Some(message) = messages.blocking_recv() {
                // A defect of ours in one message must not cost those after it. The panic has said what it was.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(message));
            }
        });
        Self { hand: Hand(hand), thread }
    }

    pub(crate) fn hand(&self) -> Hand {
        self.hand.clone()
    }

    pub(crate) fn tell(&self, message: Message) {
        self.hand.tell(message);
    }

    /// Waits until all is told.
    pub(crate) async fn finish(self) {
        drop(self.hand);
        let _ = self.thread.await;
    }
}
