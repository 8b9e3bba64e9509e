//! What one needs to know of files that ranks write before they are sent away: whether somebody writes them still, and whether another one sends.

use super::names::Client;
use super::writer::distinct;
use crate::link::Fault;
use mend_data::space::target::{Claim, Failed, HELD, MAX_IDS, Request, UNSYNCED};
use mend_data::space::{Entry, Id};
use std::collections::HashMap;

/// What targets say of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing {
    /// A node has it open for writing.
    pub held: bool,
    /// Something of it was written and not synced.
    pub unsynced: bool,
}

impl Client {
    /// Whether these files are being written, as far as the targets say that answer.
    #[must_use]
    pub fn are_written(&self, entries: &[Entry]) -> Vec<Writing> {
        let targets = distinct(entries.iter().flat_map(|entry| entry.holders(self.targets())));
        let told = self.each(&targets, |at, peer| {
            let files: Vec<Id> = entries.iter().filter(|entry| entry.holders(self.targets()).contains(&at)).map(|entry| entry.id).collect();
            let mut told: HashMap<Id, u8> = HashMap::new();
            for files in files.chunks(MAX_IDS) {
                let Ok((_, bytes)) = peer.ask(&Request::Writing { files: files.to_vec() }, &[]) else { break };
                told.extend(files.iter().copied().zip(bytes));
            }
            told
        });
        let told: Vec<HashMap<Id, u8>> = told.into_iter().flatten().collect();
        let of = |entry: &Entry| told.iter().filter_map(|told| told.get(&entry.id)).fold(0, |all, one| all | one);
        entries.iter().map(of).map(|all| Writing { held: all & HELD > 0, unsynced: all & UNSYNCED > 0 }).collect()
    }

    /// Names of targets that did not answer when they were asked last.
    #[must_use]
    pub fn silent_targets(&self) -> Vec<String> {
        let peers = self.all().into_iter().filter_map(|at| self.peer(at).ok());
        peers.filter(|peer| peer.is_doubtful()).map(|peer| peer.target.name()).collect()
    }

    /// The turn to send files of this space away, for [`CLAIM`](mend_data::space::written::CLAIM) seconds, or its end; false if another one has it. The first target that answers
    /// decides.
    ///
    /// # Errors
    /// If no target answers.
    pub fn take_offload_turn(&self, who: Id, over: bool) -> Result<bool, Fault> {
        let mut fault = None;
        for at in 0..self.targets() as u16 {
            match self.peer(at)?.ask(&Request::Claim { claim: Claim::Offload, who, over }, &[]) {
                Ok(_) => return Ok(true),
                Err(Fault::Failed { kind: Failed::Busy, .. }) => return Ok(false),
                Err(other) => drop(fault.get_or_insert(other)),
            }
        }
        Err(fault.unwrap_or_else(|| Fault::Other(format!("{} has no targets", self.space.name))))
    }
}
