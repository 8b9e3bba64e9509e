//! What is told of files that are sent away: in the job's journal, and to its user.

use crate::journal_file::Journal;
use mend_data::offload::{News, Offload};
use mend_journal::Event;
use mend_journal::event::cut;

/// What a sender told.
#[derive(Clone, Debug)]
pub struct Told {
    pub(crate) what: Offload,
    pub(crate) news: News,
    /// What stands in the way is not what stood there before.
    pub(crate) new_failure: bool,
}

impl Told {
    /// Puts it into the journal.
    pub(crate) fn record(&self, journal: &mut Journal) {
        let (space, to) = (self.what.space.clone(), cut(self.what.uri.clone()));
        if self.news.files > 0 {
            journal.record(Event::FilesSent { space: space.clone(), to: to.clone(), files: self.news.files, bytes: self.news.bytes });
        }
        if let Some((error, hint)) = self.news.failure.clone().filter(|_| self.new_failure) {
            journal.record(Event::FilesNotSent { space, to, left: self.news.left, error: cut(error), hint: cut(hint) });
        }
    }

    /// Tells the user once of what stands in the way.
    pub(crate) fn tell(&self) {
        if let Some((why, hint)) = self.news.failure.as_ref().filter(|_| self.new_failure) {
            let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
            mend_report::tell!("mend: {why}{hint}; it is tried again");
        }
    }
}
