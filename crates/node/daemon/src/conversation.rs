//! What a daemon and its agents say to each other, by kind, for the log: with `MEND_LOG=mend_conversation=trace` each message is a line,
//! `RANK.PROCESS < REQUEST` or `RANK.PROCESS > WORD`. The simulator's agents are checked against such records.

use mend_messages::agent::{FromAgent, Request};
use mend_messages::job::Rank;

/// An agent introduces itself, in this way.
pub fn began(rank: Rank, attempt: u64, how: &str) {
    tracing::trace!(target: "mend_conversation", "{rank}.{attempt} > {how}");
}

/// An agent is asked.
pub fn asked(rank: Rank, attempt: u64, request: &Request) {
    tracing::trace!(target: "mend_conversation", "{rank}.{attempt} < {}", request.kind());
}

/// An agent speaks.
pub fn said(rank: Rank, attempt: u64, word: &FromAgent) {
    tracing::trace!(target: "mend_conversation", "{rank}.{attempt} > {}", word.kind());
}
