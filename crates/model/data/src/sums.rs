//! Checksums of a file's blocks: XXH3-128 of each MiB, the last one shorter.
//!
//! They tell what a medium, a network or a careless hand has changed. They do not defend against somebody who wants two contents with one sum: who
//! may write the file may write its record, too.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Bytes of a block: what has one checksum, and what is fetched again as a whole.
pub const BLOCK: u64 = 1 << 20;
/// Bytes of a checksum in a list.
pub const SUM_BYTES: usize = 16;

/// The checksum of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sum(pub u128);

impl Sum {
    /// The checksum of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes))
    }
}

/// The checksums of a whole file, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(Vec<Sum>);

impl Sums {
    /// These checksums.
    #[must_use]
    pub fn new(sums: Vec<Sum>) -> Self {
        Self(sums)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// That of a block.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Sum> {
        self.0.get(usize::try_from(index).ok()?).copied()
    }

    /// The list as bytes, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|sum| sum.0.to_le_bytes()).collect()
    }

    /// A list from bytes; `None` if their number is not a whole multiple of [`SUM_BYTES`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (sums, rest) = bytes.as_chunks::<SUM_BYTES>();
        rest.is_empty().then(|| Self(sums.iter().map(|sum| Sum(u128::from_le_bytes(*sum))).collect()))
    }

    /// What tells this list from others.
    #[must_use]
    pub fn digest(&self) -> u64 {
        xxh3_64(&self.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let sums = Sums::new(vec![Sum::of(b"a"), Sum::of(b"b")]);
        assert_eq!(Sums::from_bytes(&sums.to_bytes()), Some(sums.clone()));
        assert_eq!(Sums::from_bytes(&sums.to_bytes()[1..]), None);
        assert_ne!(sums.digest(), Sums::new(vec![Sum::of(b"b"), Sum::of(b"a")]).digest());
        assert_eq!((sums.count(), sums.get(1), sums.get(2)), (2, Some(Sum::of(b"b")), None));
    }

    #[test]
    fn the_sum_is_xxh3_128() {
        // As `printf '' | xxhsum -H2` prints it.
        assert_eq!(Sum::of(b"").0, 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
    }
}
