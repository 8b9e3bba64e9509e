//! Which of its checkpoints a job goes on from: not those of a run that its user has given up by restarting an older one.
//!
//! ```text
//! checkpoints 1 2 3 4 5 ──► mend restart --checkpoint 2 ──► 6 7     given up: 3 4 5
//! ```
//! What was given up stays where it is, and its number takes it (`--checkpoint 4`). A failure, a requeued batch job and a restart that names no number
//! pass over it. A checkpoint in another directory, as a copy that somebody has put aside, is read there, and nothing is written or removed beside it.

use crate::manifest::listing::numbers;
use mend_policy::retention::is_given_up;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What restarts from chosen checkpoints have left of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Given up: after the first number of each pair, up to the second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    abandoned: Vec<(u64, u64)>,
    /// Number and directory of the one that the job was restarted from, where that is not among its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<(u64, PathBuf)>,
}

impl Branch {
    /// Whether nothing was given up, and nothing is elsewhere.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// What was given up: after the first number of each pair, up to the second.
    #[must_use]
    pub fn abandoned(&self) -> &[(u64, u64)] {
        &self.abandoned
    }

    /// The job's user has chosen this checkpoint, the one in `place`. Its own ones are in `checkpoints`. Returns what is given up by that, if anything is.
    pub fn choose(&mut self, number: u64, place: &Path, checkpoints: &Path) -> Option<(u64, u64)> {
        // What is of the same run as the chosen one is not given up any more.
        self.abandoned.retain(|(_, last)| *last < number);
        let own = is_same_place(place, &checkpoints.join(number.to_string()));
        self.origin = (!own).then(|| (number, place.to_owned()));
        let newer: Vec<u64> = numbers(checkpoints).into_iter().filter(|other| *other > number).collect();
        let given_up = (newer.first().copied()?, newer.last().copied()?);
        self.abandoned.push((number, given_up.1));
        Some(given_up)
    }

    /// Whether this one was given up.
    #[must_use]
    pub fn is_abandoned(&self, number: u64) -> bool {
        is_given_up(&self.abandoned, number)
    }

    /// Where the checkpoints are that the job goes on from, with their numbers, ascending. Its own ones are in `checkpoints`.
    #[must_use]
    pub fn to_go_on_from(&self, checkpoints: &Path) -> Vec<(u64, PathBuf)> {
        let origin = self.origin.clone().filter(|(_, place)| place.is_dir());
        let in_place = |number: u64| origin.as_ref().is_none_or(|(chosen, _)| *chosen != number);
        let own = numbers(checkpoints).into_iter().filter(|number| !self.is_abandoned(*number) && in_place(*number));
        let mut all: Vec<_> = own.map(|number| (number, checkpoints.join(number.to_string()))).collect();
        all.extend(origin);
        all.sort();
        all
    }

    /// The newest of these.
    #[must_use]
    pub fn newest(&self, checkpoints: &Path) -> Option<u64> {
        self.to_go_on_from(checkpoints).pop().map(|(number, _)| number)
    }

    /// The numbers of all checkpoints of the job, of which its own directory has these; ascending.
    #[must_use]
    pub fn with_elsewhere(&self, mut own: Vec<u64>) -> Vec<u64> {
        own.extend(self.elsewhere());
        own.sort_unstable();
        own.dedup();
        own
    }

    /// The number of the one elsewhere, if it is there.
    #[must_use]
    pub fn elsewhere(&self) -> Option<u64> {
        self.origin.as_ref().filter(|(_, place)| place.is_dir()).map(|(number, _)| *number)
    }
}

/// The directory for the checkpoints of a job that is restarted from the one in `place`. `recorded`: that of its record, if it has one; `default`: the one in the job's directory.
/// Another one is taken if it bears the job's name. Either may have been moved.
#[must_use]
pub fn directory_of(place: &Path, job: &str, recorded: Option<&Path>, default: &Path) -> PathBuf {
    let own = recorded.filter(|recorded| recorded.is_dir()).unwrap_or(default);
    match place.parent() {
        // By the path that the job knows it by, which leads nowhere else.
        Some(parent) if is_same_place(parent, own) => own.to_owned(),
        Some(parent) if is_same_place(parent, default) => default.to_owned(),
        Some(parent) if parent.file_name().is_some_and(|name| name == job) => parent.to_owned(),
        _ => own.to_owned(),
    }
}

/// Whether two paths lead to the same place.
#[must_use]
pub fn is_same_place(one: &Path, other: &Path) -> bool {
    one == other || matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(all: &[u64]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        all.iter().for_each(|number| fs::create_dir(directory.path().join(number.to_string())).unwrap());
        directory
    }

    fn left(branch: &Branch, checkpoints: &Path) -> Vec<u64> {
        branch.to_go_on_from(checkpoints).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn newer_ones_are_given_up_until_one_of_them_is_chosen() {
        let directory = with(&[1, 2, 3, 4, 5]);
        let path = directory.path();
        let mut branch = Branch::default();
        assert_eq!(branch.choose(5, &path.join("5"), path), None);
        assert!(branch.is_plain());
        assert_eq!(branch.choose(2, &path.join("2"), path), Some((3, 5)));
        fs::create_dir(path.join("6")).unwrap();
        assert_eq!((left(&branch, path), branch.newest(path)), (vec![1, 2, 6], Some(6)));
        // Of the first run again: what came after it is given up, and what it builds on is not.
        assert_eq!(branch.choose(4, &path.join("4"), path), Some((5, 6)));
        assert_eq!(left(&branch, path), [1, 2, 3, 4]);
        fs::create_dir(path.join("7")).unwrap();
        assert_eq!(branch.choose(7, &path.join("7"), path), None);
        assert_eq!(left(&branch, path), [1, 2, 3, 4, 7]);
        assert_eq!(branch.choose(1, &path.join("1"), path), Some((2, 7)));
        assert_eq!(left(&branch, path), [1]);
    }

    #[test]
    fn a_copy_elsewhere_is_gone_on_from_until_there_is_a_newer_one() {
        let (own, aside) = (with(&[1, 4]), with(&[3]));
        let mut branch = Branch::default();
        assert_eq!(branch.choose(3, &aside.path().join("3"), own.path()), Some((4, 4)));
        assert_eq!(branch.to_go_on_from(own.path()).pop(), Some((3, aside.path().join("3"))));
        assert_eq!(branch.elsewhere(), Some(3));
        for number in ["3", "5"] {
            fs::create_dir(own.path().join(number)).unwrap();
        }
        assert_eq!(left(&branch, own.path()), [1, 3, 5]);
        assert_eq!(branch.to_go_on_from(own.path())[1].1, aside.path().join("3"));
        fs::remove_dir(aside.path().join("3")).unwrap();
        assert_eq!((left(&branch, own.path()), branch.elsewhere()), (vec![1, 3, 5], None));
    }

    #[test]
    fn nothing_is_written_beside_a_copy() {
        let (own, default) = (with(&[7]), Path::new("/shared/jobs/a-1/checkpoints"));
        let of = |place: &Path, recorded: &Path| directory_of(place, "a-1", Some(recorded), default);
        assert_eq!(of(Path::new("/saved/7"), own.path()), own.path());
        assert_eq!(of(Path::new("/moved/a-1/7"), own.path()), Path::new("/moved/a-1"));
        assert_eq!(of(&own.path().join("7"), own.path()), own.path());
        // All jobs were moved, and the record does not know it.
        assert_eq!(of(&default.join("7"), Path::new("/no/such")), default);
        assert_eq!(of(Path::new("/saved/7"), Path::new("/no/such")), default);
    }
}
