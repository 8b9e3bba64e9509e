//! What the copies of a file that ranks write tell of each other: which blocks one has damaged, and which no copy has.
//!
//! Each target compares its own blocks with the checksums that it made when they were written, and tells these. So a block that a medium has changed is told from one
//! that two targets hold differently: the first copy is the one that is read, and counts then.

use std::collections::BTreeMap;

/// The checksum that a target tells of a block that it cannot read, or that is not as it was written.
pub const DAMAGED: u128 = 0;

/// What is wrong with a block of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// This copy has it damaged, another one is as it was written.
    Damaged {
        /// Place of the copy among those that were compared.
        copy: usize,
    },
    /// This copy has something else than the first one, or ends before it or behind it. Somebody may just be writing.
    Differs {
        /// Place of the copy among those that were compared.
        copy: usize,
    },
    /// No copy is as it was written.
    Lost,
}

/// Compares copies of an object by their blocks' checksums, each from the first block on. What is wrong, by blocks; the first thing of each.
#[must_use]
pub fn compared(copies: &[Vec<u128>]) -> BTreeMap<u64, Wrong> {
    let longest = copies.iter().map(Vec::len).max().unwrap_or(0);
    let wrong = |block: usize| {
        let told: Vec<Option<u128>> = copies.iter().map(|sums| sums.get(block).copied()).collect();
        let good = told.iter().flatten().any(|sum| *sum != DAMAGED);
        if !good {
            return Some(Wrong::Lost);
        }
        if let Some(copy) = told.iter().position(|sum| *sum == Some(DAMAGED)) {
            return Some(Wrong::Damaged { copy });
        }
        let copy = told.iter().position(|sum| *sum != told[0])?;
        Some(Wrong::Differs { copy })
    };
    (0..longest).filter_map(|block| Some((block as u64, wrong(block)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_copy_that_is_not_as_it_was_written_is_to_blame() {
        let found = compared(&[vec![1, 0, 3, 0, 5], vec![1, 2, 0, 0, 6, 7]]);
        let wrong = [
            (1, Wrong::Damaged { copy: 0 }),
            (2, Wrong::Damaged { copy: 1 }),
            (3, Wrong::Lost),
            (4, Wrong::Differs { copy: 1 }),
            (5, Wrong::Differs { copy: 1 }),
        ];
        assert_eq!(found, BTreeMap::from(wrong));
        assert_eq!(compared(&[vec![1, 0]]), BTreeMap::from([(1, Wrong::Lost)]));
        assert!(compared(&[]).is_empty() && compared(&[vec![], vec![]]).is_empty());
    }

    proptest! {
        #[test]
        fn equal_copies_are_whole_and_each_change_is_found(sums in prop::collection::vec(1_u128..9, 1..20), at in any::<prop::sample::Index>(), copy in 0_usize..2) {
            let mut copies = [sums.clone(), sums.clone()];
            prop_assert!(compared(&copies).is_empty());
            let at = at.index(sums.len());
            copies[copy][at] = DAMAGED;
            prop_assert_eq!(compared(&copies), BTreeMap::from([(at as u64, Wrong::Damaged { copy })]));
            copies[copy][at] = 9;
            prop_assert_eq!(compared(&copies), BTreeMap::from([(at as u64, Wrong::Differs { copy: 1 })]));
            copies[copy].truncate(at);
            let differs = compared(&copies).values().all(|wrong| *wrong == Wrong::Differs { copy: 1 });
            prop_assert!(differs);
            prop_assert_eq!(compared(&copies).len(), sums.len() - at);
        }
    }
}
