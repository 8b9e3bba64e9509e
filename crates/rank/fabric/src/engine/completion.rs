//! Completion queues and counters as data.

use std::collections::VecDeque;

/// One entry of a completion queue. `error` 0 is a success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The application's context pointer.
    pub context: usize,
    /// `FI_SEND`, `FI_TAGGED`, …
    pub flags: u64,
    /// Bytes received; 0 for other operations.
    pub len: u64,
    /// Where a multi-receive message is.
    pub buf: usize,
    /// Remote completion data.
    pub data: u64,
    /// Tag of a received message.
    pub tag: u64,
    /// Rank and endpoint of the sender.
    pub source: Option<(u32, u16)>,
    /// Number of the address vector of the endpoint that tells it.
    pub vector: u64,
    /// 0, or an `FI_E…` number.
    pub error: i32,
    /// Bytes that did not fit.
    pub overflow: u64,
    /// The end of sending a long message: see [`super::Engine::leaves_halfway`].
    pub long: bool,
}

/// A completion queue. Unbounded: what completes has been given memory by the application already.
#[derive(Debug, Default)]
pub struct Queue {
    /// Oldest first.
    pub entries: VecDeque<Completion>,
    /// `fi_cq_signal` was called.
    pub signalled: bool,
}

/// A counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// How many operations succeeded.
    pub value: u64,
    /// How many operations failed.
    pub errors: u64,
    /// What of both a program was told last.
    told: (u64, u64),
}

impl Counter {
    /// True if the program has not been told of all that was counted.
    #[must_use]
    pub fn is_news(&self) -> bool {
        self.told != (self.value, self.errors)
    }

    /// What the program is told.
    #[must_use]
    pub fn tell(&mut self) -> Self {
        self.told = (self.value, self.errors);
        *self
    }
}
