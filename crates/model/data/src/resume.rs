//! The log of a file that is still being fetched: which blocks are there, so that what was fetched is not fetched again.
//!
//! ```text
//! log:   MAGIC 8 │ format u32 │ length of what follows u32 │ postcard: sources with versions, size │ XXH3-64 of all before u64 │ entry │ entry │ …
//! entry: block u64 │ XXH3-128 of its bytes u128 │ XXH3-64 of both u64
//! ```
//! All numbers are little-endian. An entry is written after its block. It is a claim: whoever goes on reads the block and compares. So neither a
//! SIGKILL nor a power failure between the two writes does harm. An entry that is cut short, or is not whole, ends the log.

use crate::record::{MAX_SOURCES, Source};
use crate::sums::Sum;
use crate::uri::same_address;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Layout of the log.
pub const FORMAT: u32 = 1;
/// First bytes of every log.
pub const MAGIC: [u8; 8] = *b"MENDSTGE";
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 32;
/// Bytes of the head before its postcard part.
const HEAD: usize = 16;

/// What is being fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// From where, with what each source held at the beginning.
    pub sources: Vec<Source>,
    /// Bytes of the file.
    pub size: u64,
}

impl Begun {
    /// Whether blocks fetched for `self` belong to `now`, too: every source is in both, and has not changed. Nobody knows which block came from which: one
    /// source that is missing now may have changed while it sent some.
    #[must_use]
    pub fn goes_on_as(&self, now: &Self) -> bool {
        let same =
            |then: &Source, now: &Source| same_address(&then.uri, &now.uri) && then.endpoint == now.endpoint && then.still_holds(now);
        let stays = |then: &Source| now.sources.iter().any(|now| same(then, now));
        self.size == now.size && !self.sources.is_empty() && self.sources.iter().all(stays)
    }

    /// What a log begins with when blocks claimed in `before` are gone on with: anew, if sources come in that its head does not name. Blocks may be of those from now on.
    #[must_use]
    pub fn joined(&self, before: &Self, claims: &[Claim]) -> Option<Vec<u8>> {
        let named = self.goes_on_as(before);
        (!named).then(|| [self.head(), claims.iter().flat_map(|(block, sum)| entry(*block, *sum)).collect()].concat())
    }

    /// The beginning of a log. Its length is not known before.
    #[must_use]
    pub fn head(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }
}

/// One entry.
#[must_use]
pub fn entry(block: u64, sum: Sum) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..24].copy_from_slice(&sum.0.to_le_bytes());
    let check = xxh3_64(&bytes[..24]);
    bytes[24..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// What is claimed to be there: a block and its sum.
pub type Claim = (u64, Sum);

/// A log: what is fetched, what is claimed to be there, and how many of the bytes are good. `None` if it has no whole head of this format.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<(Begun, Vec<Claim>, usize)> {
    let number = |at: usize| bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
    if bytes.get(..8)? != MAGIC || number(8)? != FORMAT {
        return None;
    }
    let end = HEAD.checked_add(number(12)? as usize)?;
    let body = bytes.get(HEAD..end)?;
    if bytes.get(end..end.checked_add(8)?)? != xxh3_64(&bytes[..end]).to_le_bytes() {
        return None;
    }
    let begun: Begun = postcard::from_bytes(body).ok().filter(|begun: &Begun| begun.sources.len() <= MAX_SOURCES)?;
    let mut good = end + 8;
    let mut claims = Vec::new();
    let (entries, _) = bytes[good..].as_chunks::<ENTRY_BYTES>();
    for one in entries {
        let block = u64::from_le_bytes(one[..8].try_into().ok()?);
        let sum = Sum(u128::from_le_bytes(one[8..24].try_into().ok()?));
        if *one != entry(block, sum) {
            break;
        }
        claims.push((block, sum));
        good += ENTRY_BYTES;
    }
    Some((begun, claims, good))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Version;
    use proptest::prelude::*;

    fn source(uri: &str, etag: &str) -> Source {
        let version = Version { size: 7, etag: Some(etag.into()), modified_ns: None };
        Source { uri: uri.into(), version: Some(version), ..Source::default() }
    }

    fn begun(sources: &[(&str, &str)]) -> Begun {
        Begun { sources: sources.iter().map(|(uri, etag)| source(uri, etag)).collect(), size: 7 }
    }

    #[test]
    fn a_stage_goes_on_from_what_has_not_changed() {
        let before = begun(&[("http://a/x", "1"), ("http://b/x", "2")]);
        assert!(before.goes_on_as(&before));
        // A mirror more is no other content.
        assert!(before.goes_on_as(&begun(&[("http://c/x", "3"), ("http://b/x", "2"), ("http://a/x", "1")])));
        // One less may have changed, and what was fetched may be of it.
        assert!(!before.goes_on_as(&begun(&[("http://b/x", "2")])));
        assert!(!before.goes_on_as(&begun(&[("http://a/x", "1"), ("http://c/x", "3")])));
        assert!(!before.goes_on_as(&begun(&[("http://c/x", "1")])));
        // What was fetched may be of the one that changed.
        assert!(!before.goes_on_as(&begun(&[("http://a/x", "1"), ("http://b/x", "3")])));
        assert!(!before.goes_on_as(&Begun { size: 8, ..before.clone() }));
    }

    #[test]
    fn a_mirror_that_joins_is_named_by_the_log_from_then_on() {
        let (one, both) = (begun(&[("http://a/x", "1")]), begun(&[("http://b/x", "2"), ("http://a/x", "1")]));
        let claims = vec![(3, Sum(7)), (0, Sum(1))];
        assert_eq!((one.joined(&one, &claims), both.joined(&both, &claims)), (None, None));
        let log = both.joined(&one, &claims).unwrap();
        assert_eq!(read(&log), Some((both.clone(), claims, log.len())));
        assert!(!both.goes_on_as(&one));
    }

    proptest! {
        #[test]
        fn a_log_cut_anywhere_is_read_up_to_its_last_whole_entry(blocks in prop::collection::vec(any::<(u64, u128)>(), 0..5), cut in any::<prop::sample::Index>()) {
            let begun = begun(&[("http://a/x", "1")]);
            let head = begun.head();
            let mut bytes = head.clone();
            bytes.extend(blocks.iter().flat_map(|(block, sum)| entry(*block, Sum(*sum))));
            let cut = cut.index(bytes.len() + 1);
            let whole = cut.checked_sub(head.len()).map(|rest| rest / ENTRY_BYTES);
            let expected = whole.map(|whole| {
                let claims = blocks[..whole].iter().map(|(block, sum)| (*block, Sum(*sum))).collect();
                (begun, claims, head.len() + whole * ENTRY_BYTES)
            });
            prop_assert_eq!(read(&bytes[..cut]), expected);
        }

        #[test]
        fn an_entry_that_is_damaged_ends_the_log(at in 0_usize..ENTRY_BYTES) {
            let begun = begun(&[("http://a/x", "1")]);
            let mut bytes = begun.head();
            let good = bytes.len() + ENTRY_BYTES;
            for block in 0..3 {
                bytes.extend(entry(block, Sum(1)));
            }
            bytes[good + at] ^= 1;
            prop_assert_eq!(read(&bytes), Some((begun, vec![(0, Sum(1))], good)));
        }
    }
}
