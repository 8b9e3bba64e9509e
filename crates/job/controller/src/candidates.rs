//! Which checkpoint a restart begins from, and which it turns to when that one proves unusable.
//!
//! Images are verified while they are restored, every byte of them, before any rank runs; so that a checkpoint is bad may
//! show only then. The whole job is then ended and begins anew from the next older complete checkpoint, and the user
//! is told. A checkpoint that was named is taken or refused: nothing else would be what was asked for.
//!
//! A checkpoint that was found by its number must say that number itself, and the job's name where that is known: one that
//! stands in another's place is damage like any other.
//!
//! Invariants: newest first, each at most once; only what is wrong with a checkpoint itself leads to the next, never
//! what is wrong with a node, a program or a file of the job.

use crate::error::RunError;
use crate::manifest::{self, Manifest, ManifestError, numbers};
use mend_report::with_causes;
use mend_sealed::{Key, SealError};
use std::path::{Path, PathBuf};

/// Checkpoints that a restart may begin from.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// Newest last; with the number that it must have.
    left: Vec<(PathBuf, Option<u64>)>,
    /// The job they must be of.
    job: Option<String>,
    /// Where they were looked for.
    place: PathBuf,
    /// What is to be told of those that were passed over, by number where they have one.
    passed: Vec<(u64, String)>,
}

impl Candidates {
    /// All checkpoints of a job (of this name, if it is known), from the directory that holds them; or the one of this
    /// number.
    #[must_use]
    pub fn numbered(checkpoints: &Path, job: Option<&str>, number: Option<u64>) -> Self {
        let wanted = number.map_or_else(|| numbers(checkpoints), |number| vec![number]);
        let left = wanted.into_iter().map(|number| (checkpoints.join(number.to_string()), Some(number))).collect();
        Self { left, job: job.map(str::to_owned), place: checkpoints.to_owned(), passed: Vec::new() }
    }

    /// This checkpoint's directory, wherever it is.
    #[must_use]
    pub fn only(checkpoint: &Path) -> Self {
        Self { left: vec![(checkpoint.to_owned(), None)], job: None, place: checkpoint.to_owned(), passed: Vec::new() }
    }

    /// The newest that is left and can be loaded (and was written with the key, if there is one), with its directory. Those that cannot are passed over, saying so.
    ///
    /// # Errors
    /// What is wrong with the last one that was looked at; [`ManifestError::None`] if there is none.
    pub fn newest(&mut self, key: Option<&Key>) -> Result<(Manifest, PathBuf), ManifestError> {
        let mut last = None;
        while let Some((directory, number)) = self.left.pop() {
            match self.load(&directory, number, key) {
                Ok(manifest) => return Ok((manifest, directory)),
                // Others of the job want the key, too.
                Err(error @ ManifestError::Sealed { source: SealError::NoKey, .. }) => return Err(error),
                Err(error) if self.left.is_empty() => last = Some(error),
                Err(error) => {
                    eprintln!("mend: {}", passed_over(&directory, &error));
                    self.pass_over(&directory, &error);
                }
            }
        }
        Err(last.unwrap_or_else(|| ManifestError::None { path: self.place.clone() }))
    }

    fn pass_over(&mut self, directory: &Path, error: &dyn std::error::Error) {
        let number = directory.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or_default();
        self.passed.push((number, with_causes(error)));
    }

    /// Those that were passed over since this was asked last, and why: for the job's journal.
    pub fn take_passed(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.passed)
    }

    /// The job whose checkpoints they are, if it was named.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    fn load(&self, directory: &Path, number: Option<u64>, key: Option<&Key>) -> Result<Manifest, ManifestError> {
        let manifest = manifest::load(directory, key)?;
        if manifest.encrypted && key.is_none() {
            return Err(ManifestError::Sealed { path: directory.join("manifest.json"), source: SealError::NoKey });
        }
        let misplaced = |what: String| Err(ManifestError::Damaged { path: directory.join("manifest.json"), what });
        match (&self.job, number) {
            (Some(job), _) if *job != manifest.job => misplaced(format!("it is of the job {}, not of {job}", manifest.job)),
            (_, Some(number)) if number != manifest.number => {
                misplaced(format!("it is of checkpoint {}, not of {number}", manifest.number))
            }
            _ => Ok(manifest),
        }
    }

    /// After a restart from `directory` failed: true if there is an older one to try for this reason, which the user is
    /// told then.
    #[must_use]
    pub fn older_may_do(&mut self, directory: &Path, error: &RunError) -> bool {
        let falls = !self.left.is_empty() && error.blames_checkpoint();
        if falls {
            eprintln!("mend: {}; nothing ran from it, an older one is tried", passed_over(directory, error));
            self.pass_over(directory, error);
        }
        falls
    }
}

fn passed_over(directory: &Path, error: &dyn std::error::Error) -> String {
    let number = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("checkpoint {number} cannot be used: {}", with_causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_at_all_and_none_that_loads_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(matches!(Candidates::numbered(path, None, None).newest(None), Err(ManifestError::None { .. })));
        for number in ["1", "2", "3.part"] {
            std::fs::create_dir(path.join(number)).unwrap();
        }
        std::fs::write(path.join("1/manifest.json"), "{").unwrap();
        let mut both = Candidates::numbered(path, None, None);
        assert!(matches!(both.newest(None), Err(ManifestError::Damaged { path: found, .. }) if found == path.join("1/manifest.json")));
        assert!(matches!(both.newest(None), Err(ManifestError::None { .. })));
    }

    #[test]
    fn only_a_bad_image_leads_to_an_older_checkpoint() {
        let failed = |image| RunError::Restore { rank: 1, host: "a".into(), error: "torn".into(), hint: String::new(), image };
        let mut older = Candidates { left: vec![("/c/1".into(), Some(1))], job: None, place: "/c".into(), passed: Vec::new() };
        let place = PathBuf::from("/c/2");
        assert!(older.older_may_do(&place, &failed(true)));
        assert!(!older.older_may_do(&place, &failed(false)));
        let file = |kept| RunError::File { host: "a".into(), error: "torn".into(), kept };
        assert!(older.older_may_do(&place, &file(true)) && !older.older_may_do(&place, &file(false)));
        older.passed.pop();
        assert!(matches!(&older.take_passed()[..], [(2, why)] if why.contains("torn")));
        assert!(!Candidates { left: Vec::new(), ..older }.older_may_do(&place, &failed(true)));
    }
}
