//! The other side of [`crate::serve`]: how a verb reaches the controller of a running job.

use crate::being_restarted;
use crate::failover;
use crate::kill_request::KillRequest;
use crate::manifest;
use crate::nodes::preferred;
use crate::record::{JobDirectory, JobRecord, RecordError};
use crate::serve::socket_in;
use mend_messages::auth::Purpose;
use mend_messages::control::{Answer, Ask};
use mend_wire::{Connection, HandshakeError, ReceiveError, SendError, connect, connect_locally};
use std::time::{Duration, Instant};

/// Between two looks whether a job that goes on by itself runs again.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// For how long nobody may answer where a successor is expected.
const SUCCESSION_TIME: Duration = Duration::from_secs(60);

/// Why a verb did not get its answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The job's directory cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// No controller.
    #[error("job {id} is not running (its controller does not answer)")]
    NotRunning {
        /// The job that was asked.
        id: String,
    },
    /// The job's record says that it has ended.
    #[error("job {id} has ended ({how})")]
    Over {
        /// The job that was asked.
        id: String,
        /// How it ended, as its record says it.
        how: String,
        /// Whether it has a checkpoint.
        restartable: bool,
    },
    /// It is being restarted.
    #[error("job {id} is being restarted, and its ranks have not begun")]
    Restarted {
        /// The job that was asked.
        id: String,
    },
    /// The controller cannot be reached.
    #[error("cannot reach the controller of job {id} on {host}")]
    Unreachable {
        /// The job that was asked.
        id: String,
        /// Where it runs.
        host: String,
        /// What the connection came to.
        source: HandshakeError,
    },
    /// It ended before it answered.
    #[error("the job ended before it answered")]
    Ended(#[source] Option<ReceiveError>),
    /// Its controller was lost before it answered.
    #[error("the controller of job {id} was lost before it answered")]
    Lost {
        /// The job that was asked.
        id: String,
    },
    /// The request could not be sent.
    #[error("cannot send the request")]
    Send(#[from] SendError),
}

impl AskError {
    fn of_an_ended_job(record: &JobRecord) -> Self {
        let how = record.ended.as_ref().map(|(_, how)| how.clone()).unwrap_or_default();
        Self::Over { id: record.id.clone(), how, restartable: !manifest::numbers(&record.checkpoints).is_empty() }
    }

    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Record(error) => error.hint(),
            Self::NotRunning { id } => format!("`mend ps` lists running jobs; `mend log {id}` says what happened to this one"),
            Self::Over { id, restartable: true, .. } => {
                format!("`mend ps` lists running jobs; `mend restart {id}` continues this one from its last checkpoint")
            }
            Self::Over { id, .. } => format!("`mend ps` lists running jobs; `mend log {id}` says what happened to this one"),
            Self::Restarted { id } => format!("try again when it runs (`mend ps`); `mend kill {id}` ends the restart"),
            Self::Unreachable { host, .. } => format!("run the command on {host}"),
            Self::Lost { id } => format!("another one goes on in its place; `mend log {id}` says what was done: ask again"),
            Self::Ended(_) | Self::Send(_) => String::new(),
        }
    }
}

/// This machine's name.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Asks the controller of a job; `meanwhile` gets what comes before the last answer.
///
/// # Errors
/// See [`AskError`]. A request that the controller refuses is an `Ok(Answer::Failed)`.
pub async fn ask(directory: &JobDirectory, record: &JobRecord, ask: &Ask, mut meanwhile: impl FnMut(&Answer)) -> Result<Answer, AskError> {
    let mut record = record.clone();
    let (mut request, mut unanswered) = (None, None);
    'asked: loop {
        let mut connection = loop {
            let restarted = being_restarted::is(directory);
            if record.ended.is_some() && !restarted {
                return if request.is_some() { Ok(Answer::Killed) } else { Err(AskError::of_an_ended_job(&record)) };
            }
            if restarted && *ask != Ask::Kill {
                return Err(AskError::Restarted { id: record.id });
            }
            if restarted || record.goes_on && directory.is_running() {
                // Its next life answers, which may take long to come.
                match &request {
                    _ if *ask != Ask::Kill => {}
                    Some(request) => KillRequest::renew(request),
                    None => request = Some(KillRequest::leave(directory)?),
                }
            } else {
                match reach(directory, &record).await {
                    Ok(connection) => break connection,
                    // A successor takes its place.
                    Err(AskError::NotRunning { .. } | AskError::Unreachable { .. })
                        if failover::is_expected(directory) && unanswered.get_or_insert_with(Instant::now).elapsed() < SUCCESSION_TIME => {}
                    // The restart that was asked has ended.
                    Err(AskError::NotRunning { .. }) if request.is_some() => return Ok(Answer::Killed),
                    Err(error) => return Err(error),
                }
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            record = directory.record()?;
        };
        drop(request.take());
        let lost = || failover::awaits_successor(directory);
        if let Err(error) = connection.sender.send(ask).await {
            return Err(if lost() { AskError::Lost { id: record.id } } else { error.into() });
        }
        loop {
            match connection.receiver.receive::<Answer>().await {
                Ok(answer @ (Answer::Progress(_) | Answer::Moving(_))) => meanwhile(&answer),
                Ok(answer) => return Ok(answer),
                Err(_) if lost() => return Err(AskError::Lost { id: record.id }),
                Err(ReceiveError::Closed) => {
                    record = directory.record()?;
                    if *ask == Ask::Kill && record.goes_on && directory.is_running() {
                        // A life of it has ended at that very time, and another one follows.
                        continue 'asked;
                    }
                    return Err(AskError::Ended(None));
                }
                Err(error) => return Err(AskError::Ended(Some(error))),
            }
        }
    }
}

/// By the socket in the job's directory, if the controller is on this host; else, or where there is none, by its port.
async fn reach(directory: &JobDirectory, record: &JobRecord) -> Result<Connection, AskError> {
    let secret = directory.secret()?;
    let here = record.controller_host == host_name();
    if here && let Ok((_open, socket)) = socket_in(directory.path()) {
        match connect_locally(&socket, Purpose::Control, &secret).await {
            Ok(connection) => return Ok(connection),
            Err(error) => tracing::debug!(%error, "the job's socket is of no use"),
        }
    }
    let host = if here { "127.0.0.1" } else { &record.controller_host };
    let address = tokio::net::lookup_host((host, record.controller_port)).await.ok().and_then(preferred);
    let not_running = || AskError::NotRunning { id: record.id.clone() };
    match connect(address.ok_or_else(not_running)?, Purpose::Control, &secret).await {
        Ok(connection) => Ok(connection),
        Err(HandshakeError::Connect { .. }) if !directory.is_running() => Err(not_running()),
        Err(source) => Err(AskError::Unreachable { id: record.id.clone(), host: record.controller_host.clone(), source }),
    }
}
