//! The machine's codes in words, for people; and its words for a rank's task.

use crate::failure::RankFailure;
use crate::program::Agentless;
use crate::rank::Command;
use crate::restore::RestoreError;
use mend_messages::agent::Reply;
use mend_messages::job::Rank;
use mend_node_job::event::{Abandonment, Inadmissible, Notice, Refusal, Word};

const NO_AGENT: &str =
    "the preloaded library was not loaded into it (a setuid program, or one that became a static one?), or it has just started";
const NO_AGENT_HINT: &str = "use a dynamically linked program without setuid bit, or try again in a moment";
const RUN_IT_DIRECTLY: &str = "run the program itself instead of a script or wrapper around it, or let the wrapper `exec` it";

/// Why an agent is not asked. `agentless`: why it has none, if that is known.
pub(super) fn refusal(why: Refusal, agentless: Option<&Agentless>) -> Reply {
    let (error, hint) = match (why, agentless) {
        (Refusal::Unasked(why), _) => return Reply::Unasked(why),
        (Refusal::Agentless, Some(why)) => (format!("it has no agent: {why}"), why.hint()),
        (Refusal::Agentless, None) | (Refusal::NoAgent, _) => (format!("it has no agent: {NO_AGENT}"), NO_AGENT_HINT),
        (Refusal::Descendant { executable }, _) => {
            (format!("it runs its MPI program {executable} as a child of the process that was started"), RUN_IT_DIRECTLY)
        }
        (Refusal::NoTransfer, _) => ("a save into a transfer has no transfer".into(), ""),
        (Refusal::NoTransferOfCopy, _) => ("a copy into a transfer has no transfer".into(), ""),
    };
    Reply::Failed { error, hint: hint.to_owned() }
}

/// Why a rank gets no process.
pub(super) fn inadmissible(rank: Rank, why: Inadmissible) -> RankFailure {
    match why {
        Inadmissible::Present => RankFailure::Present(rank),
        Inadmissible::NoSuchRank { size } => RankFailure::NoSuchRank { rank, size },
    }
}

/// What a rank's task is told.
pub(super) fn command(word: Word) -> Command {
    match word {
        Word::Signal(signal) => Command::Signal(signal),
        Word::Stdin(bytes) => Command::Stdin(bytes),
        Word::Pmi(bytes) => Command::Pmi(bytes),
        Word::Feed => Command::Feed,
        Word::Settle => Command::Settle,
        Word::Abandon(why) => Command::Abandon(match why {
            Abandonment::Agent { error, files: true } => RestoreError::Files(error),
            Abandonment::Agent { error, files: false } => RestoreError::Agent(error),
            Abandonment::SpokeEarly => RestoreError::Agent("its agent spoke before its memory was complete".into()),
            Abandonment::WentAway => RestoreError::Agent("its agent went away before it was complete".into()),
        }),
    }
}

/// A line for the log.
pub(super) fn log(job: &str, notice: Notice) {
    match notice {
        Notice::IntroducedTwice => tracing::warn!(job, "a controller introduced its job twice"),
        Notice::NotHere(rank) => tracing::debug!(rank, "nothing to tell a rank that is not here"),
        Notice::OtherRelease { rank, protocol } => {
            tracing::warn!(rank, protocol, "libmend-fi.so is of another release than mendd; its agent is dropped");
        }
        Notice::UnknownRank(rank) => tracing::warn!(rank, "an agent of a rank that does not run here"),
        Notice::UnknownFailure(error) => tracing::warn!(error, "a restore failed that nobody asked for"),
        Notice::NoIntroduction => tracing::warn!("an agent did not introduce itself"),
        Notice::NotAwaited(rank) => tracing::warn!(rank, "an agent says it is restored, which nobody waits for"),
        Notice::AgentTwice(rank) => tracing::warn!(rank, "an agent introduced itself twice"),
        Notice::NotAsked => tracing::warn!("an agent answered a question that nobody asked"),
        Notice::AnothersQuestion => tracing::warn!("an agent answered another one's question"),
        Notice::NotPaused { rank, error: Some(error) } => tracing::info!(rank, error, "a rank cannot go back in place"),
        Notice::NotPaused { rank, error: None } => {
            tracing::warn!(rank, "an agent says neither that its rank stands still nor that it does not");
        }
        Notice::NotAWord { lease_us } => tracing::warn!(job, ms = lease_us / 1000, "not a word from the controller"),
        Notice::NamespaceEnded => {
            tracing::warn!(job, "the ranks' PID namespace has ended, as it does when the job's lease is over");
        }
    }
}
