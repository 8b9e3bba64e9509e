//! A job's messages over connections that may break: numbered, acknowledged, sent again ([`mend_messages::delivery`] is the protocol).
//!
//! A [`Link`] is one end. It outlives its connections: [`Link::run`] serves one until it ends, and the next call goes on where that was.
//! Invariants: a message counts as delivered when `deliver` has taken it; none is delivered twice or out of order. Faults assumed: the
//! connection breaks at any byte; the peer is silent, or says what cannot be.
//!
//! A message is acknowledged when it has been delivered, or, by a link that was made with [`Link::confirming`], when its user has said that he
//! needs it no more ([`Link::confirm`]). The peer keeps it until then, for whoever succeeds him, also over connections that break meanwhile.

use crate::connection::{Connection, ReceiveError, Receiver, SendError, Sender};
use mend_messages::delivery::{Delivered, Segment, SendWindow, SequenceError};
use mend_patience::patiently_paced;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The receiver acknowledges after so many messages, without waiting for one of its own to go along with.
const MESSAGES_PER_ACKNOWLEDGEMENT: u64 = 16;

/// Messages that may wait for their acknowledgement before [`Source::next`] is told that there is no room.
const WINDOW_MESSAGES: usize = 64;

/// Looks at the time while the peer may be silent. Fewer than there are pings in that time: a peer that answers them causes none.
const LOOKS_PER_SILENCE: u32 = 2;

/// Where a link's outgoing messages come from.
pub trait Source {
    /// What is sent.
    type Message;

    /// The next message; `None` when there will be none. Cancel safe. `room`: false while many messages wait for the peer; those that
    /// must not pile up then stay where they are.
    fn next(&mut self, room: bool) -> impl Future<Output = Option<Self::Message>> + Send;
}

/// Why [`Link::run`] has returned.
#[derive(Debug)]
pub enum LinkEnd {
    /// The source ended, and the peer has everything.
    Finished,
    /// Who takes this side's messages wants no more.
    Unwanted,
    /// The peer's process closed the connection, as it does when it ends.
    Closed,
    /// The peer's host knows the connection no more. The process has ended without reading all that was sent to it (RFC 9293, section
    /// 3.10.4), the host was started anew, or something between has cut the connection.
    Reset,
    /// The connection broke.
    Broken(String),
    /// Nothing came for so long.
    Silent(Duration),
    /// The peer says what cannot be. No other connection makes that good.
    Nonsense(String),
}

impl LinkEnd {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            // Within a message: the process was killed while it wrote.
            ErrorKind::UnexpectedEof => Self::Closed,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::Reset,
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// One end of a link; `Out` is what it sends.
#[derive(Debug)]
pub struct Link<Out> {
    state: Mutex<State<Out>>,
    /// The peer has acknowledged something.
    progress: Notify,
    /// The peer is owed an acknowledgement.
    owed: Notify,
}

#[derive(Debug)]
struct State<Out> {
    window: SendWindow<Arc<Out>>,
    delivered: Delivered,
    /// The last message that was confirmed; `None`: what is delivered is confirmed.
    confirmed: Option<u64>,
    /// The last message that the peer was told of.
    acknowledged: u64,
}

impl<Out> State<Out> {
    /// What the peer may forget.
    fn confirmed(&self) -> u64 {
        self.confirmed.unwrap_or(self.delivered.last())
    }
}

impl<Out> Default for Link<Out> {
    fn default() -> Self {
        Self::with(State { window: SendWindow::default(), delivered: Delivered::default(), confirmed: None, acknowledged: 0 })
    }
}

impl<Out> Link<Out> {
    fn with(state: State<Out>) -> Self {
        Self { state: Mutex::new(state), progress: Notify::new(), owed: Notify::new() }
    }

    /// A link on which nothing is acknowledged before it is confirmed. The peer's messages up to `delivered` came to somebody before, and are
    /// confirmed.
    #[must_use]
    pub fn confirming(delivered: u64) -> Self {
        let (last, confirmed) = (Delivered::through(delivered), Some(delivered));
        Self::with(State { window: SendWindow::default(), delivered: last, confirmed, acknowledged: delivered })
    }

    fn state(&self) -> MutexGuard<'_, State<Out>> {
        // Every change is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer may forget its messages up to this number.
    pub fn confirm(&self, through: u64) {
        let mut state = self.state();
        state.confirmed = state.confirmed.map(|before| before.max(through));
        if state.confirmed() - state.acknowledged >= MESSAGES_PER_ACKNOWLEDGEMENT {
            self.owed.notify_one();
        }
    }

    /// Number of the last message that the peer has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.state().window.acknowledged()
    }

    /// Somebody else speaks to this side from now on: his messages are numbered from 1.
    pub fn begin_anew(&self) {
        let mut state = self.state();
        (state.delivered, state.acknowledged) = (Delivered::default(), 0);
    }
}

impl<Out: Serialize + Send + Sync> Link<Out> {
    /// Number of the last message that was delivered on this side: the peer sends what follows it.
    pub fn delivered(&self) -> u64 {
        self.state().delivered.last()
    }

    /// Prepares for another connection, to a peer that has had all messages up to `through`.
    ///
    /// # Errors
    /// [`SequenceError`] if it cannot be the same peer.
    pub fn resume(&self, through: u64) -> Result<(), SequenceError> {
        self.state().window.resume(through)?;
        // The segment that acknowledged this may be lost with the connection before.
        self.owed.notify_one();
        Ok(())
    }

    /// Serves one connection until it ends. `deliver` takes the peer's messages, one at a time, and answers whether it wants more;
    /// `silence`: how long the peer may be silent, if that is judged here.
    pub async fn run<In, S, F>(
        &self,
        connection: Connection,
        silence: Option<Duration>,
        source: &mut S,
        mut deliver: impl FnMut(In) -> F + Send,
    ) -> LinkEnd
    where
        In: DeserializeOwned + Send,
        S: Source<Message = Out> + Send,
        F: Future<Output = bool> + Send,
    {
        let Connection { sender, receiver } = connection;
        tokio::select! {
            end = self.receive(receiver, silence, &mut deliver) => end,
            end = self.send(sender, source) => end,
        }
    }

    async fn receive<In, F>(&self, mut receiver: Receiver, silence: Option<Duration>, deliver: &mut impl FnMut(In) -> F) -> LinkEnd
    where
        In: DeserializeOwned,
        F: Future<Output = bool>,
    {
        loop {
            let received = match silence {
                None => receiver.receive::<Segment<In>>().await,
                Some(limit) => match patiently_paced(limit, limit / LOOKS_PER_SILENCE, receiver.receive::<Segment<In>>()).await {
                    Ok(received) => received,
                    Err(_) => return LinkEnd::Silent(limit),
                },
            };
            let segment = match received {
                Ok(segment) => segment,
                Err(ReceiveError::Closed) => return LinkEnd::Closed,
                Err(ReceiveError::Broken(error)) => return LinkEnd::of(&error),
                Err(error @ (ReceiveError::Session(_) | ReceiveError::Frame(_))) => return LinkEnd::Nonsense(error.to_string()),
            };
            let acknowledged = self.state().window.acknowledge(segment.acknowledged);
            if let Err(error) = acknowledged {
                return LinkEnd::Nonsense(error.to_string());
            }
            self.progress.notify_one();
            let Some((number, message)) = segment.message else { continue };
            let next = self.state().delivered.is_next(number);
            match next {
                Err(error) => return LinkEnd::Nonsense(error.to_string()),
                Ok(false) => continue,
                Ok(true) => {}
            }
            if !deliver(message).await {
                return LinkEnd::Unwanted;
            }
            let owed = {
                let mut state = self.state();
                state.delivered.advance();
                state.confirmed() - state.acknowledged
            };
            if owed >= MESSAGES_PER_ACKNOWLEDGEMENT {
                self.owed.notify_one();
            }
        }
    }

    async fn send<S: Source<Message = Out>>(&self, mut sender: Sender, source: &mut S) -> LinkEnd {
        let mut more = true;
        loop {
            let (unsent, waiting) = {
                let mut state = self.state();
                (state.window.next_unsent(), state.window.len())
            };
            let segment = match &unsent {
                Some((number, message)) => Some(self.segment(Some((*number, &**message)))),
                None if !more && waiting == 0 => {
                    // What the peer said last, it must not keep for want of an answer.
                    let _ = sender.send(&self.segment(None)).await;
                    return LinkEnd::Finished;
                }
                None => {
                    tokio::select! {
                        biased;
                        () = self.owed.notified() => Some(self.segment(None)),
                        message = source.next(waiting < WINDOW_MESSAGES), if more => {
                            match message {
                                Some(message) => self.state().window.push(Arc::new(message)),
                                None => more = false,
                            }
                            None
                        }
                        () = self.progress.notified() => None,
                    }
                }
            };
            let Some(segment) = segment else { continue };
            match sender.send(&segment).await {
                Ok(()) => {}
                Err(SendError::Gone(error)) => return LinkEnd::of(&error),
                Err(error) => return LinkEnd::Nonsense(error.to_string()),
            }
        }
    }

    /// A segment that acknowledges what has been delivered.
    fn segment<'a>(&self, message: Option<(u64, &'a Out)>) -> Segment<&'a Out> {
        let mut state = self.state();
        state.acknowledged = state.confirmed();
        Segment { acknowledged: state.acknowledged, message }
    }
}
