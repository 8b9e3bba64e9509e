//! The checkpoints that a restart may begin from, as they lie in a directory. Which is taken, and which next when that one proves
//! unusable, is decided by [`mend_job::choice`].
//!
//! A checkpoint that was found by its number must say that number itself, and the job's name where that is known: one that
//! stands in another's place is damage like any other.

use crate::error::RunError;
use crate::manifest::{self, Manifest, ManifestError, numbers};
use crate::record::{JobDirectory, JobRecord};
use mend_report::with_causes;
use mend_sealed::{Key, SealError};
use std::path::{Path, PathBuf};

/// Checkpoints that a restart may begin from.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// Newest last; with the number that it must have.
    all: Vec<(PathBuf, Option<u64>)>,
    /// The job they must be of.
    job: Option<String>,
    /// Where they were looked for.
    place: PathBuf,
    /// What is to be told of those that were passed over, by number where they have one.
    passed: Vec<(u64, String)>,
    /// Somebody has named them, by number or place.
    chosen: bool,
}

impl Candidates {
    /// All checkpoints of a job (of this name, if it is known), from the directory that holds them; or the one of this
    /// number.
    #[must_use]
    pub fn numbered(checkpoints: &Path, job: Option<&str>, number: Option<u64>) -> Self {
        let wanted = number.map_or_else(|| numbers(checkpoints), |number| vec![number]);
        let all = wanted.into_iter().map(|number| (checkpoints.join(number.to_string()), Some(number))).collect();
        Self { all, job: job.map(str::to_owned), place: checkpoints.to_owned(), passed: Vec::new(), chosen: true }
    }

    /// Those that a job goes on from: not those of a run that was given up.
    #[must_use]
    pub fn of(record: &JobRecord) -> Self {
        let all = record.branch.to_go_on_from(&record.checkpoints).into_iter().map(|(number, place)| (place, Some(number))).collect();
        Self { all, job: Some(record.id.clone()), place: record.checkpoints.clone(), passed: Vec::new(), chosen: false }
    }

    /// The same, of a job of which only the name and the directory of its checkpoints are known.
    #[must_use]
    pub(crate) fn to_go_on_from(checkpoints: &Path, job: &str) -> Self {
        match JobDirectory::open(job).and_then(|directory| directory.record()) {
            Ok(record) if record.checkpoints == checkpoints => Self::of(&record),
            _ => Self { chosen: false, ..Self::numbered(checkpoints, Some(job), None) },
        }
    }

    /// Whether somebody has named them: newer ones of the job are given up then.
    #[must_use]
    pub fn are_chosen(&self) -> bool {
        self.chosen
    }

    /// This checkpoint's directory, wherever it is.
    #[must_use]
    pub fn only(checkpoint: &Path) -> Self {
        Self { all: vec![(checkpoint.to_owned(), None)], job: None, place: checkpoint.to_owned(), passed: Vec::new(), chosen: true }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The directory of one of them; newest last.
    #[must_use]
    pub fn directory(&self, at: usize) -> &Path {
        &self.all[at].0
    }

    /// That there is none.
    #[must_use]
    pub fn none(&self) -> ManifestError {
        ManifestError::None { path: self.place.clone() }
    }

    /// One of them is not used, for this reason. `begun`: that showed only when a restart from it had begun.
    pub fn pass_over(&mut self, at: usize, error: &RunError, begun: bool) {
        let directory = self.all[at].0.clone();
        let number = directory.file_name().unwrap_or_default().to_string_lossy();
        let then = if begun { "; nothing ran from it, an older one is tried" } else { "" };
        mend_report::tell!("mend: checkpoint {number} cannot be used: {}{then}", with_causes(error));
        self.passed.push((number.parse().unwrap_or_default(), with_causes(error)));
    }

    /// Those that were passed over since this was asked last, and why: for the job's journal.
    pub fn take_passed(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.passed)
    }

    /// Number of the newest, if they were found by their numbers.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        self.all.iter().filter_map(|(_, number)| *number).max()
    }

    /// The job whose checkpoints they are, if it was named.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    /// One of them, which must have been written with the key, if there is one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(&self, at: usize, key: Option<&Key>) -> Result<Manifest, ManifestError> {
        let (directory, number) = (&self.all[at].0, self.all[at].1);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_another_s_place_is_damage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for number in ["1", "2", "3.part"] {
            std::fs::create_dir(path.join(number)).unwrap();
        }
        std::fs::write(path.join("1/manifest.json"), "{").unwrap();
        let mut both = Candidates::numbered(path, None, None);
        assert_eq!(both.count(), 2);
        let damaged = both.load(0, None).unwrap_err();
        assert!(matches!(&damaged, ManifestError::Damaged { path: found, .. } if *found == path.join("1/manifest.json")));
        both.pass_over(0, &damaged.into(), false);
        assert!(matches!(&both.take_passed()[..], [(1, why)] if why.contains("manifest")));
    }
}
