//! How a job outlives its controller: another process takes its place, on one of the job's nodes.
//!
//! ```text
//! controller ── killed, or its node lost        mendd (of each node)      JOB/lock       JOB/told
//!     │ connections close                           │
//!     └────────────────────────────────────────────►│ starts `mend take-over`
//!                                                   └─► successor ── takes ─►│
//!                                    mendd ◄─ Succeed ──┤◄──── reads ───────────────────────│ all that the machine was told
//!                                          ── orders ──►│ tells its own machine the same,
//!                                                       └ gives the orders that are missing, and goes on
//! ```
//! The ranks never notice. Invariants: the holder of the job's lock controls it; a daemon obeys the last one that has shown it the session of the one
//! before; a successor comes before the job's lease on the nodes is over, or its ranks are gone. Faults assumed: the controller is killed at any
//! moment; several nodes start a successor; a successor is lost, too.

pub mod confirmations;
mod election;
pub mod flush;
pub(crate) mod last_controller;
pub mod log;
pub mod pulse;
mod take_over;
pub mod watch;

pub use take_over::take_over;

use self::log::{LifeRecord, ToldLog};
use crate::error::RunError;
use crate::lock_identity::LockIdentity;
use crate::record::{JobDirectory, RecordError};
use mend_messages::daemon::SuccessorCommand;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// For how long after the last sign of life of a controller a successor may still come.
const EXPECTED: Duration = Duration::from_secs(10);
/// The same between two lives, when no connection tells daemons of its end.
const EXPECTED_BETWEEN: Duration = Duration::from_secs(30);
/// How far a file server's clock may be ahead of this machine's.
const MOST_AHEAD: Duration = Duration::from_secs(600);

/// Whether a job whose controller is gone may be about to have another one.
#[must_use]
pub fn is_expected(directory: &JobDirectory) -> bool {
    let age = log::written(directory.path()).and_then(|written| age(written, SystemTime::now()));
    let between = directory.record().is_ok_and(|record| record.goes_on);
    age.is_some_and(|age| age < if between { EXPECTED_BETWEEN } else { EXPECTED })
}

/// How long ago something was written. What is of the near future was written just now: a file server's clock is ahead. `None` if it is of a later time.
fn age(written: SystemTime, now: SystemTime) -> Option<Duration> {
    now.duration_since(written).or_else(|ahead| if ahead.duration() < MOST_AHEAD { Ok(Duration::ZERO) } else { Err(ahead) }).ok()
}

/// Whether a job that has no controller, and has not ended, may be about to have another one.
#[must_use]
pub fn awaits_successor(directory: &JobDirectory) -> bool {
    directory.record().is_ok_and(|record| record.ended.is_none()) && is_expected(directory)
}

/// Whether a node that has left the job's life of this epoch goes on to look for its controller: the job is not over, and no later life is with other nodes.
///
/// # Errors
/// The job's directory cannot be used.
pub fn is_awaited(id: &str, epoch: u64) -> Result<bool, RunError> {
    let directory = match JobDirectory::open(id) {
        Err(RecordError::NoSuchJob { .. }) => return Ok(false),
        directory => directory?,
    };
    if directory.record()?.ended.is_some() {
        return Ok(false);
    }
    // Without a log nobody can succeed its controller. A later life's has entries as soon as a node has answered.
    Ok(log::read(directory.path()).is_some_and(|found| found.life.epoch == epoch || found.standing.is_none() && found.told.is_empty()))
}

/// The log of a life that begins; `None` if nobody is to succeed this controller, or there can be none.
///
/// # Errors
/// A setting has a value that it may not have.
pub(crate) fn begin_log(directory: &Path, holder: LockIdentity, life: &LifeRecord) -> Result<Option<ToldLog>, RunError> {
    if mend_settings::SUCCESSOR.choice()? != "on" {
        log::remove(directory, holder);
        return Ok(None);
    }
    // That of the life before is there until this one's takes its place.
    match ToldLog::begin(directory, holder, life.clone(), None) {
        Ok(log) => Ok(Some(log)),
        Err(error) if ToldLog::is_lost(&error) => watch::leave(&life.setup.id),
        Err(error) => {
            log::remove(directory, holder);
            mend_report::tell!("mend: the job ends if this process is lost: what it would need to go on cannot be written: {error}");
            Ok(None)
        }
    }
}

/// What daemons run in this controller's place.
pub(crate) fn command(directory: &Path) -> Option<SuccessorCommand> {
    let executable = std::env::current_exe().ok()?;
    let directory = directory.canonicalize().ok()?;
    let mut environment = settings(std::env::vars_os());
    let home = directory.parent()?.parent()?;
    environment.push(("MEND_HOME".into(), home.to_str()?.to_owned()));
    Some(SuccessorCommand { executable, directory, environment })
}

/// What of an environment is for Mend, but for where the job is. The rest may hold anything, also what is no UTF-8.
fn settings(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let ours = |name: &str| name.starts_with("MEND_") && name != "MEND_HOME" || name == "HOME";
    all.filter_map(|(name, value)| Some((name.into_string().ok().filter(|name| ours(name))?, value.into_string().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_successor_gets_settings_beside_which_anything_may_stand() {
        let bad = || OsString::from_vec(vec![0xff]);
        let all = [("MEND_HOME".into(), "/h".into()), ("MEND_LEASE_MS".into(), "9000".into()), ("HOME".into(), "/u".into())];
        let odd = [("LC_ALL".into(), bad()), (bad(), "1".into()), ("PATH".into(), "/bin".into())];
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(settings(odd.into_iter().chain(all)), [pair("MEND_LEASE_MS", "9000"), pair("HOME", "/u")]);
    }

    #[test]
    fn a_clock_that_is_ahead_makes_nothing_old() {
        let (now, second) = (SystemTime::now(), Duration::from_secs);
        assert_eq!(age(now - second(7), now), Some(second(7)));
        assert_eq!(age(now + second(20), now), Some(Duration::ZERO));
        assert_eq!(age(now + second(3600), now), None);
    }
}
