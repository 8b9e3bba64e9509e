//! Which copies of a file that ranks write are to be made anew. Invariant: what is not named here stays, or is copied before it goes.

use mend_data::space::written::Written;
use std::collections::BTreeSet;

/// Copies that have to be made anew.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lost<'a> {
    /// All that these targets have: they are lost, or lose what they have.
    Targets(&'a [u16]),
    /// These, by the place of their object and their target; what else the targets have stays.
    Copies(&'a BTreeSet<(u16, u16)>),
}

impl Lost<'_> {
    /// True if this copy is one of them.
    pub fn has(&self, position: u16, at: u16) -> bool {
        match self {
            Self::Targets(targets) => targets.contains(&at),
            Self::Copies(copies) => copies.contains(&(position, at)),
        }
    }

    /// True if a copy on this target is lost.
    pub fn names(&self, target: u16) -> bool {
        match self {
            Self::Targets(targets) => targets.contains(&target),
            Self::Copies(copies) => copies.iter().any(|(_, at)| *at == target),
        }
    }

    /// True if the file has any of them.
    pub fn any_of(&self, known: &Written) -> bool {
        (0_u16..).zip(&known.objects).any(|(position, copies)| copies.iter().any(|at| self.has(position, *at)))
    }
}
