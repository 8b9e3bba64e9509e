//! Two files of one path: nodes that could not reach the same targets each made one. Both have bytes that were synced, so both stay; the one that is not seen gets a name beside the path
//! ([`mend_data::space::conflicts`]), from whoever heals the space, repairs it, or has to do with the path.

use super::names::Client;
use super::writer::{Refused, Writer};
use mend_data::space::conflicts::{is_beside, path_beside};
use mend_data::space::{Entry, Id};
use std::time::Instant;

fn is_below(path: &str, directory: &str) -> bool {
    directory.is_empty() || path == directory || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

impl Client {
    /// Files at a path or below it that have a path with something else, which is seen there.
    #[must_use]
    pub fn conflicts(&self, path: &str) -> Vec<Entry> {
        self.names().conflicts().into_iter().filter(|entry| is_below(&entry.path, path)).cloned().collect()
    }

    /// Files at a path or below it that have got a name beside the one that they were made with.
    #[must_use]
    pub fn kept_beside(&self, path: &str) -> Vec<Entry> {
        self.names().files(path).into_iter().filter(|entry| is_beside(entry)).cloned().collect()
    }
}

impl Writer {
    /// Gives a file a name of its own if it has a path with something else; that name.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn keep_beside(&self, file: &Id) -> Result<Option<String>, Refused> {
        self.as_named(file, |path| self.move_beside(file, path))
    }

    /// The same of one whose path was claimed.
    fn move_beside(&self, file: &Id, path: &str) -> Result<Option<String>, Refused> {
        self.client.refresh_since(Instant::now());
        let entry = {
            let names = self.client.names();
            names.entry(file).filter(|entry| entry.path == path && names.is_conflict(entry)).cloned()
        };
        let Some(entry) = entry else { return Ok(None) };
        let beside = path_beside(&entry);
        self.change((file, path), 0, |entry| entry.path.clone_from(&beside))?;
        let space = &self.client.space.name;
        mend_report::tell!(
            "mend data: {space}:{path}: there are two of that name, made while nodes could not reach the same targets; the one that is not seen is {space}:{beside} now"
        );
        Ok(Some(beside))
    }

    /// Lets go of what a path shows no more, whose claim this client has. What ranks wrote gets another name.
    pub(super) fn let_go_of_hidden(&self, path: &str, hidden: &[Id]) -> Result<(), Refused> {
        let is_written = |id: &&Id| self.client.names().entry(id).is_some_and(|entry| entry.written().is_some());
        let (written, others): (Vec<&Id>, Vec<&Id>) = hidden.iter().partition(is_written);
        for file in written {
            match self.move_beside(file, path) {
                // It went meanwhile.
                Ok(_) | Err(Refused::Removed | Refused::Absent) => {}
                // Whoever has to do with the file that is seen needs no target of this one.
                Err(refused @ Refused::Fault(_)) => {
                    mend_report::tell!("mend data: {}: of two files of one name one is not seen: {refused}", self.client.space.name);
                }
                Err(refused) => return Err(refused),
            }
        }
        Ok(self.client.forget(&others.into_iter().copied().collect::<Vec<Id>>())?)
    }

    /// Gives each of these files a name of its own, if it needs one. Those of which that failed.
    pub(super) fn keep_all_beside(&self, files: &[Id]) -> Vec<Id> {
        let mut failed = Vec::new();
        for file in files {
            match self.keep_beside(file) {
                Ok(_) | Err(Refused::Removed | Refused::Absent) => {}
                Err(refused) => {
                    mend_report::tell!("mend data: {}: of two files of one name one is not seen: {refused}", self.client.space.name);
                    failed.push(*file);
                }
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::is_below;

    #[test]
    fn what_is_below_a_directory_is_told_from_what_begins_like_it() {
        assert!(is_below("a/b", "") && is_below("a/b", "a") && is_below("a/b", "a/b"));
        assert!(!is_below("a.x/b", "a") && !is_below("b", "a"));
    }
}
