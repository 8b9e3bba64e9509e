//! What a file remembers of where it came from: the value of its extended attribute `user.mend.source`, and the file `.NAME.mend-source` beside it.
//!
//! ```text
//! record: MAGIC 8 │ format u32 │ length of what follows u32 │ postcard: sources, size, sums' place │ [list of sums] │ XXH3-64 of all before u64
//! ```
//! All numbers are little-endian. The attribute holds the sums of a file that has few blocks ([`SUMS_IN_ATTRIBUTE`]). Else it holds their digest, and the
//! file beside holds the same record with the list. Where a file system has no attributes the file beside holds all of it. ext4 without `ea_inode`
//! gives all attributes of a file one block of 4 KiB together, Linux none more than 64 KiB (xattr(7)).
//!
//! Faults assumed: the bytes are anybody's. No secret is in a record: credentials are named, not held.

use crate::ranges::blocks;
use crate::sums::Sums;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Layout of records.
pub const FORMAT: u32 = 1;
/// First bytes of every record.
pub const MAGIC: [u8; 8] = *b"MENDSRCE";
/// The attribute's name.
pub const ATTRIBUTE: &str = "user.mend.source";
/// Most checksums that the attribute holds itself: 2 KiB, those of 128 MiB.
pub const SUMS_IN_ATTRIBUTE: u64 = 128;
/// Most bytes of the attribute: what ext4 keeps with certainty beside another small attribute.
pub const ATTRIBUTE_BYTES: usize = 3800;
/// Most sources of a file.
pub const MAX_SOURCES: usize = 64;
/// Most bytes of a URI, an entity tag or a reference to credentials.
pub const MAX_TEXT: usize = 2048;
/// Bytes before the postcard part.
const HEAD: usize = 16;
/// Bytes of the last checksum.
const TAIL: usize = 8;
/// Most bytes of the postcard part.
const MAX_BODY: usize = MAX_SOURCES * (3 * MAX_TEXT + 64) + 64;

/// What tells one content of a source from a later one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// How many bytes it has.
    pub size: u64,
    /// The entity tag of an HTTP or S3 server, as it gave it.
    pub etag: Option<String>,
    /// When it was last changed, nanoseconds since 1970, as precisely as the source says it.
    pub modified_ns: Option<i64>,
}

impl Version {
    /// How `now` differs from this one, in words; `None` if nothing says that it does.
    #[must_use]
    pub fn changed(&self, now: &Self) -> Option<String> {
        if self.size != now.size {
            return Some(format!("its size was {}, and is {}", self.size, now.size));
        }
        match (&self.etag, &now.etag) {
            (Some(then), Some(now)) if opaque(then) != opaque(now) => return Some(format!("its entity tag was {then}, and is {now}")),
            // The same tag is the same content, whatever a mirror says of times.
            (Some(_), Some(_)) => return None,
            _ => {}
        }
        match (self.modified_ns, now.modified_ns) {
            (Some(then), Some(now)) if then != now => Some("it was modified since".to_owned()),
            _ => None,
        }
    }

    /// The same of what is at this address: services are not equally precise.
    #[must_use]
    pub fn changed_at(&self, uri: &str, now: &Self) -> Option<String> {
        let listed = |scheme: &str| ["ftp", "ftps"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let is_listed = uri.split_once("://").is_some_and(|(scheme, _)| listed(scheme));
        match (self.modified_ns, now.modified_ns) {
            (Some(before), Some(time)) if is_listed && listed_alike(before, time) => {
                self.changed(&Self { modified_ns: Some(before), ..now.clone() })
            }
            _ => self.changed(now),
        }
    }
}

/// Whether two times may be the same one as an FTP server lists it: with its minute, and with its date alone when it is about half a year old.
fn listed_alike(one: i64, other: i64) -> bool {
    const MINUTE: i64 = 60_000_000_000;
    const DAY: i64 = 1440 * MINUTE;
    let is_date = |time: i64| time % DAY == 0;
    let same = |unit: i64| one.div_euclid(unit) == other.div_euclid(unit);
    same(MINUTE) || same(DAY) && (is_date(one) || is_date(other))
}

/// An entity tag without what servers write differently in a header and in a listing (RFC 9110, section 8.8.3).
fn opaque(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
}

/// Where a file can be had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its address.
    pub uri: String,
    /// The server of an `s3` address, if it is not Amazon's.
    pub endpoint: Option<String>,
    /// Where its credentials are: `env:PREFIX`, `file:PATH` or `profile:NAME`. Never the credentials.
    pub credentials: Option<String>,
    /// What it held when this was written; `None` if it was not asked.
    pub version: Option<Version>,
}

impl Source {
    /// How `now` differs from what it held, in words; `None` if nothing says that it does.
    #[must_use]
    pub fn changed(&self, now: &Version) -> Option<String> {
        self.version.as_ref()?.changed_at(&self.uri, now)
    }

    /// Whether `now` is known to hold what this one held.
    #[must_use]
    pub fn still_holds(&self, now: &Self) -> bool {
        self.version.is_some() && now.version.as_ref().is_some_and(|version| self.changed(version).is_none())
    }
}

/// Where a file's checksums are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// They are here.
    Here(Sums),
    /// In the file beside, if that has this digest.
    Beside(u64),
    /// Nowhere: the sources were named by hand.
    Nowhere,
}

/// What a file remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it can be had; the first is asked first.
    pub sources: Vec<Source>,
    /// Bytes of the file.
    pub size: u64,
    /// Its checksums.
    pub sums: Known,
}

#[derive(Serialize, Deserialize)]
enum SumsLocation {
    Here,
    Beside(u64),
    Nowhere,
}

#[derive(Serialize, Deserialize)]
struct Body {
    sources: Vec<Source>,
    size: u64,
    place: SumsLocation,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Another kind of file, or a damaged one.
    #[error("it is no record of a source, or a damaged one")]
    Foreign,
    /// Of a later release.
    #[error("it has format {0}, this release reads {FORMAT}")]
    Newer(u32),
    /// It cannot be written: a text or the list of sources is too long.
    #[error(
        "a source has more than {MAX_TEXT} bytes in its address, its entity tag or its reference to credentials, or there are more than {MAX_SOURCES} sources"
    )]
    TooLong,
}

impl Record {
    /// As bytes.
    ///
    /// # Errors
    /// [`RecordError::TooLong`].
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        if !within_bounds(&self.sources) {
            return Err(RecordError::TooLong);
        }
        let (place, list) = match &self.sums {
            Known::Here(sums) => (SumsLocation::Here, sums.to_bytes()),
            Known::Beside(digest) => (SumsLocation::Beside(*digest), Vec::new()),
            Known::Nowhere => (SumsLocation::Nowhere, Vec::new()),
        };
        let body = Body { sources: self.sources.clone(), size: self.size, place };
        let body = postcard::to_stdvec(&body).map_err(|_| RecordError::TooLong)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(u32::try_from(body.len()).map_err(|_| RecordError::TooLong)?.to_le_bytes());
        bytes.extend(body);
        bytes.extend(list);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`RecordError::Foreign`], [`RecordError::Newer`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let number = |at: usize| bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
        let (Some(magic), Some(format), Some(length)) = (bytes.get(..8), number(8), number(12)) else { return Err(RecordError::Foreign) };
        if magic != MAGIC {
            return Err(RecordError::Foreign);
        }
        if format != FORMAT {
            return Err(RecordError::Newer(format));
        }
        let end = bytes.len().checked_sub(TAIL).ok_or(RecordError::Foreign)?;
        let (before, tail) = bytes.split_at(end);
        if tail != xxh3_64(before).to_le_bytes() {
            return Err(RecordError::Foreign);
        }
        let length = length as usize;
        let body = before.get(HEAD..HEAD.saturating_add(length)).filter(|_| length <= MAX_BODY).ok_or(RecordError::Foreign)?;
        let (body, rest) = postcard::take_from_bytes::<Body>(body).map_err(|_| RecordError::Foreign)?;
        let list = &before[HEAD + length..];
        let sums = match body.place {
            SumsLocation::Here => {
                Known::Here(Sums::from_bytes(list).filter(|sums| sums.count() == blocks(body.size)).ok_or(RecordError::Foreign)?)
            }
            SumsLocation::Beside(digest) if list.is_empty() => Known::Beside(digest),
            SumsLocation::Nowhere if list.is_empty() => Known::Nowhere,
            SumsLocation::Beside(_) | SumsLocation::Nowhere => return Err(RecordError::Foreign),
        };
        if !rest.is_empty() || !within_bounds(&body.sources) {
            return Err(RecordError::Foreign);
        }
        Ok(Self { sources: body.sources, size: body.size, sums })
    }

    /// The record as the attribute holds it, and whether the file beside must hold the list of sums.
    #[must_use]
    pub fn for_attribute(&self) -> (Self, bool) {
        match &self.sums {
            Known::Here(sums) if sums.count() > SUMS_IN_ATTRIBUTE => (Self { sums: Known::Beside(sums.digest()), ..self.clone() }, true),
            _ => (self.clone(), false),
        }
    }

    /// The checksums, if they are here.
    #[must_use]
    pub fn known(&self) -> Option<&Sums> {
        match &self.sums {
            Known::Here(sums) => Some(sums),
            Known::Beside(_) | Known::Nowhere => None,
        }
    }
}

fn within_bounds(sources: &[Source]) -> bool {
    let short = |text: &str| text.len() <= MAX_TEXT;
    let optional = |text: &Option<String>| text.as_deref().is_none_or(short);
    sources.len() <= MAX_SOURCES
        && sources.iter().all(|source| {
            let etag = source.version.as_ref().and_then(|version| version.etag.clone());
            short(&source.uri) && optional(&source.endpoint) && optional(&source.credentials) && optional(&etag)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sums::Sum;
    use proptest::prelude::*;

    fn record(blocks: usize) -> Record {
        let version = Version { size: 5, etag: Some("\"a\"".into()), modified_ns: Some(-1) };
        let source = Source { uri: "http://a/b c".into(), credentials: Some("env:A".into()), version: Some(version), endpoint: None };
        let sums = (0..blocks).map(|at| Sum(at as u128)).collect();
        Record { sources: vec![source, Source::default()], size: blocks as u64 * crate::sums::BLOCK, sums: Known::Here(Sums::new(sums)) }
    }

    #[test]
    fn a_long_list_goes_beside() {
        let (held, beside) = record(128).for_attribute();
        assert_eq!((held, beside), (record(128), false));
        assert!(record(128).encode().unwrap().len() <= ATTRIBUTE_BYTES);
        let (held, beside) = record(129).for_attribute();
        assert!(beside && held.encode().unwrap().len() < 200);
        assert_eq!(held.sums, Known::Beside(record(129).known().unwrap().digest()));
    }

    #[test]
    fn later_formats_and_damage_are_told_apart() {
        let bytes = record(3).encode().unwrap();
        assert_eq!(Record::decode(&bytes), Ok(record(3)));
        let mut later = bytes.clone();
        later[8] = 9;
        assert_eq!(Record::decode(&later), Err(RecordError::Newer(9)));
        for at in (0..bytes.len()).filter(|at| !(8..12).contains(at)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(Record::decode(&damaged), Err(RecordError::Foreign), "byte {at}");
            assert!(Record::decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn what_no_reader_takes_is_not_written() {
        let mut long = record(1);
        long.sources[0].uri = "x".repeat(MAX_TEXT + 1);
        assert_eq!(long.encode(), Err(RecordError::TooLong));
        long.sources = vec![Source::default(); MAX_SOURCES + 1];
        assert_eq!(long.encode(), Err(RecordError::TooLong));
    }

    #[test]
    fn what_an_ftp_server_lists_grows_coarser_and_is_the_same() {
        let of = |uri: &str, seconds: i64| {
            let version = Version { size: 5, etag: None, modified_ns: Some(seconds * 1_000_000_000) };
            Source { uri: uri.into(), version: Some(version), ..Source::default() }
        };
        let day = 86_400 * 20_000;
        for (then, now, same) in [
            (day + 34_020, day + 34_020, true),
            // Half a year later.
            (day + 34_020, day, true),
            (day, day + 34_020, true),
            (day + 34_020, day + 34_059, true),
            (day + 34_020, day + 34_080, false),
            (day + 34_020, day + 86_400, false),
            (day, day + 86_400, false),
        ] {
            assert_eq!(of("ftp://a/x", then).still_holds(&of("ftp://a/x", now)), same, "{then} {now}");
            assert_eq!(of("sftp://a/x", then).still_holds(&of("sftp://a/x", now)), then == now, "{then} {now}");
        }
        // Of a place that files are sent to the address is known, and no source.
        let [sent, later] = [34_020, 0].map(|after| Version { size: 5, etag: None, modified_ns: Some((day + after) * 1_000_000_000) });
        assert_eq!(sent.changed_at("FTP://a/out", &later), None);
        assert!(sent.changed_at("sftp://a/out", &later).is_some());
        let longer = Version { size: 6, etag: None, modified_ns: Some(day * 1_000_000_000) };
        assert!(of("ftps://a/x", day).changed(&longer).is_some());
    }

    #[test]
    fn versions_differ_by_what_both_say() {
        let version = |size, etag: Option<&str>, modified_ns| Version { size, etag: etag.map(str::to_owned), modified_ns };
        let then = version(5, Some("a"), Some(1));
        assert_eq!(then.changed(&version(5, Some("a"), Some(2))), None);
        assert_eq!(then.changed(&version(5, Some("W/\"a\""), Some(2))), None);
        assert_eq!(then.changed(&version(5, None, Some(1))), None);
        assert_eq!(then.changed(&version(5, None, None)), None);
        assert!(then.changed(&version(6, Some("a"), Some(1))).unwrap().contains("was 5, and is 6"));
        assert!(then.changed(&version(5, Some("b"), Some(1))).unwrap().contains("entity tag"));
        assert!(then.changed(&version(5, None, Some(2))).unwrap().contains("modified"));
    }

    proptest! {
        #[test]
        fn every_record_is_read_as_it_was_written(uri in ".{0,40}", size in any::<u64>(), digest in any::<u64>(), beside in any::<bool>()) {
            let sums = if beside { Known::Beside(digest) } else { Known::Nowhere };
            let record = Record { sources: vec![Source { uri, ..Source::default() }], size, sums };
            prop_assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = MAGIC.to_vec();
            framed.extend(FORMAT.to_le_bytes());
            framed.extend(&bytes);
            let sum = xxh3_64(&framed);
            framed.extend(sum.to_le_bytes());
            let _ = Record::decode(&framed);
        }
    }
}
