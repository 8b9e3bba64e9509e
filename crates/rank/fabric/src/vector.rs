//! An address vector's numbers, without libfabric's part of it.

use crate::engine::matching::Source;

/// What the numbers stand for.
#[derive(Debug, Default)]
pub struct AddressVector {
    /// By number; `None`: removed.
    pub entries: Vec<Option<Source>>,
}

impl AddressVector {
    /// The endpoint of a number.
    #[inline]
    pub fn resolve(&self, number: u64) -> Option<Source> {
        self.entries.get(usize::try_from(number).ok()?).copied().flatten()
    }

    /// The number of an endpoint.
    pub fn find(&self, source: Source) -> Option<u64> {
        self.entries.iter().position(|entry| *entry == Some(source)).map(|at| at as u64)
    }
}
