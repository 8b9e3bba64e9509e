//! Whether a rank may move here.

use super::Job;
use crate::bounded;
use crate::comparison;
use crate::restore::can_restore;
use mend_messages::agent::Reply;
use mend_messages::daemon::FromDaemon;
use mend_messages::job::Rank;
use mend_messages::needs::NodeNeeds;
use mend_report::with_causes;
use mend_transfer::chunks;

impl Job {
    /// Compares what a rank needs with what is here, and makes ready what its image comes by. The controller is told.
    pub(super) fn compare(&self, seq: u64, rank: Rank, mut needs: Box<NodeNeeds>) {
        let (urgent, node) = (self.urgent.clone(), self.node.clone());
        let (job, here, library) = (self.introduction.clone(), self.ip, chunks::library_of(&needs));
        needs.files.retain(|file| !self.spaces.covers(&file.path));
        tokio::spawn(async move {
            let able = bounded::apart(move || can_restore(&node.isolation, node.restorer.as_deref())).await;
            let compared = match (able, chunks::of_job(&job, here, library.as_deref()).await) {
                (Ok(_), Ok(_)) => tokio::task::spawn_blocking(move || Reply::Compared(comparison::differences(&needs))).await,
                (Err(error), _) => Ok(Reply::Failed { error: with_causes(&error), hint: error.hint() }),
                (_, Err(error)) => Ok(Reply::Failed { error: with_causes(&error), hint: error.hint().into() }),
            };
            let reply = compared.unwrap_or_else(|error| Reply::Failed { error: error.to_string(), hint: String::new() });
            urgent.send(FromDaemon::Agent { seq, rank, reply });
        });
    }
}
