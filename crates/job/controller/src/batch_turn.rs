//! Turns to begin in a batch job: of the same commands that a script starts at once, each is on record before the next one looks how many there are, and which
//! job it goes on with.
//!
//! A turn is a lock in a directory of its own, `$MEND_HOME/turns/NUMBER`, which goes with it. Faults assumed: who has it is killed, which frees it, or stands still: then it
//! is not waited for any longer after a while. However many have theirs one after the other, all are waited for.

use crate::job_lock::JobLock;
use crate::lock_identity::{FILE_NAME, LockIdentity};
use crate::record::{JobDirectory, RecordError, home, make_directories};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one other's turn is waited for, which ends when its job is on record.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// A turn to begin, for which all wait that begin the same; it is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    place: PathBuf,
    lock: Option<JobLock>,
}

impl Turn {
    /// The turn of what begins the same. `None` where one other has had it for too long.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub(crate) async fn wait(same: impl Hash) -> Result<Option<Self>, RecordError> {
        let mut number = DefaultHasher::new();
        same.hash(&mut number);
        Self::wait_in(&home()?.join("turns").join(format!("{:016x}", number.finish())), PATIENCE).await
    }

    async fn wait_in(place: &Path, patience: Duration) -> Result<Option<Self>, RecordError> {
        let (mut holder, mut until) = (None, Instant::now() + patience);
        loop {
            match Self::take(place) {
                Ok(turn) => return Ok(Some(turn)),
                Err(RecordError::Running { .. }) => {
                    let found = LockIdentity::of(place);
                    if found.is_some() && found != holder {
                        (holder, until) = (found, Instant::now() + patience);
                    }
                }
                // Whoever had it has just removed the directory.
                Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                tracing::warn!(place = %place.display(), "the turn to begin is not waited for any longer");
                return Ok(None);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn take(place: &Path) -> Result<Self, RecordError> {
        make_directories(place).map_err(|source| RecordError::Io { path: place.to_owned(), source })?;
        let lock = JobDirectory::at(place).lock("")?;
        Ok(Self { place: place.to_owned(), lock: Some(lock) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.place.join(FILE_NAME));
        self.lock = None;
        // Not while the next one has it.
        let _ = fs::remove_dir(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_come_one_after_the_other_and_leave_nothing() {
        let home = tempfile::tempdir().unwrap();
        let (place, other) = (home.path().join("turns/1"), home.path().join("turns/2"));
        let wait = |place: PathBuf, patience| async move { Turn::wait_in(&place, patience).await.unwrap() };
        let first = wait(place.clone(), PATIENCE).await;
        assert!(first.is_some() && wait(other, PATIENCE).await.is_some());
        assert!(wait(place.clone(), Duration::ZERO).await.is_none());
        let next = tokio::spawn(wait(place.clone(), PATIENCE));
        tokio::time::sleep(2 * PAUSE).await;
        assert!(!next.is_finished());
        drop(first);
        let next = next.await.unwrap();
        assert!(next.is_some() && wait(place.clone(), Duration::ZERO).await.is_none());
        drop(next);
        assert!(!place.exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn however_many_have_theirs_before_each_is_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("turns/1");
        let begins = (0..7).map(|_| {
            let place = place.clone();
            tokio::spawn(async move {
                let turn = Turn::wait_in(&place, Duration::from_secs(1)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
                turn.is_some()
            })
        });
        for one in begins.collect::<Vec<_>>() {
            assert!(one.await.unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_many_one_has_the_turn() {
        let home = tempfile::tempdir().unwrap();
        let (place, in_turn) = (home.path().join("turns/1"), home.path().join("in turn"));
        let begins = (0..16).map(|_| {
            let (place, in_turn) = (place.clone(), in_turn.clone());
            tokio::spawn(async move {
                let _turn = Turn::wait_in(&place, PATIENCE).await.unwrap().unwrap();
                fs::create_dir(&in_turn).unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                fs::remove_dir(&in_turn).unwrap();
            })
        });
        for one in begins.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        assert!(!place.exists());
    }
}
