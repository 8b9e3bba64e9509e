//! Room for the images that ranks of a job may still be writing here.
//!
//! ```text
//! placed ── the question has its answer: kept, failed, refused, not asked ──► given back
//!    └──── written behind the rank ── the image's end is told ─────────────► given back
//! ```
//! Invariant: each end of a save gives its room back, as other jobs have none as long as it is promised. Faults assumed: the rank or its agent is gone before
//! it was asked, or while it writes.

use super::room::Promise;
use mend_messages::agent::{ImageId, Reply, Saved};
use mend_messages::daemon::FromDaemon;
use mend_messages::job::Rank;
use mend_node_job::event::Effect;
use std::collections::HashMap;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Reserved(HashMap<Rank, Save>);

#[derive(Debug)]
struct Save {
    /// The controller's question.
    seq: u64,
    /// Number of the checkpoint that the image belongs to.
    number: u64,
    /// The image, as soon as it is written behind its rank.
    behind: Option<ImageId>,
    _promise: Promise,
}

impl Reserved {
    /// A rank saves: what it wrote for earlier checkpoints, and others did, is written, or never will be.
    pub fn begin(&mut self, rank: Rank, number: u64) {
        self.0.retain(|other, save| save.number == number && *other != rank);
    }

    /// It has room.
    pub fn keep(&mut self, (seq, rank): (u64, Rank), number: u64, promise: Promise) {
        self.0.insert(rank, Save { seq, number, behind: None, _promise: promise });
    }

    /// A rank is let go.
    pub fn release(&mut self, rank: Rank) {
        self.0.remove(&rank);
    }

    /// Whatever is done about a save passes here.
    pub fn follow(&mut self, effect: &Effect) {
        match effect {
            Effect::Keep { seq, rank, reply: Reply::Saved(Saved { behind: true, id, .. }), .. } => {
                if let Some(save) = self.0.get_mut(rank).filter(|save| save.seq == *seq) {
                    save.behind = Some(*id);
                }
            }
            Effect::Send(FromDaemon::Agent { seq, rank, .. }) | Effect::Refuse { seq, rank, .. } | Effect::Keep { seq, rank, .. } => {
                self.end(*rank, |save| save.seq == *seq);
            }
            Effect::Send(FromDaemon::Written { rank, id, .. }) | Effect::Written { rank, image: id, .. } => {
                self.end(*rank, |save| save.behind == Some(*id));
            }
            _ => {}
        }
    }

    /// What comes late ends nothing of the rank's next save.
    fn end(&mut self, rank: Rank, is_it: impl FnOnce(&Save) -> bool) {
        if self.0.get(&rank).is_some_and(is_it) {
            self.0.remove(&rank);
        }
    }
}
