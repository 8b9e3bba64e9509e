//! How entries stand in a file.
//!
//! ```text
//! file:  MAGIC 8 │ format u32 │ zero u32 │ frame │ frame │ …
//! frame: MARK 4 │ length of the body u32 │ XXH3-64 of length and body u64 │ body: one entry as JSON
//! ```
//! All numbers are little-endian. [`FORMAT`] changes only if this does: what is in a body describes itself.
//!
//! A frame that is cut short, or whose checksum is wrong, is damage. If whole frames follow it, only the damage is passed over;
//! if none does, it is the torn tail of a writer that died, and [`Scan::end`] is where it is to be cut off. The search for a whole frame
//! is bounded ([`MAX_SEARCH_BYTES`]), so that a hostile file does not take for ever; what lies behind its bound is not cut off either.

use crate::event::Entry;
use xxhash_rust::xxh3::Xxh3;

/// Layout of files and frames.
pub const FORMAT: u32 = 1;
/// First bytes of every journal.
pub const MAGIC: [u8; 8] = *b"MENDJRNL";
/// Bytes before the first frame.
pub const FILE_HEAD: usize = 16;
/// First bytes of every frame: not UTF-8, so not in any body.
pub const MARK: [u8; 4] = [0xff, 0x4d, 0xfe, 0x1e];
/// Bytes of a frame before its body.
pub const FRAME_HEAD: usize = 16;
/// Longest body, bytes: the state of a job of 100,000 ranks, all on other nodes.
pub const MAX_BODY: usize = 16 << 20;
/// Bytes that are read at most in search of whole frames behind damage.
const MAX_SEARCH_BYTES: usize = 64 << 20;

/// Why bytes are no journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Another kind of file.
    #[error("it is not a journal")]
    Foreign,
    /// Of a later release.
    #[error("it has format {0}, this release reads {FORMAT}")]
    Newer(u32),
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// Entries, in the order of the file.
    pub entries: Vec<Entry>,
    /// Stretches between whole frames that are none: where, and how many bytes.
    pub damage: Vec<(usize, usize)>,
    /// End of the last whole frame: what follows is to be cut off.
    pub end: usize,
    /// Bytes after that.
    pub torn: usize,
}

/// The first bytes of a new file.
#[must_use]
pub fn file_head() -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    head
}

fn checksum(length: [u8; 4], body: &[u8]) -> [u8; 8] {
    let mut sum = Xxh3::new();
    sum.update(&length);
    sum.update(body);
    sum.digest().to_le_bytes()
}

/// An entry as a frame. `None` if it is longer than any may be.
#[must_use]
pub fn encode(entry: &Entry) -> Option<Vec<u8>> {
    let body = serde_json::to_vec(entry).ok().filter(|body| body.len() <= MAX_BODY)?;
    let length = (body.len() as u32).to_le_bytes();
    let mut frame = Vec::with_capacity(FRAME_HEAD + body.len());
    frame.extend_from_slice(&MARK);
    frame.extend_from_slice(&length);
    frame.extend_from_slice(&checksum(length, &body));
    frame.extend_from_slice(&body);
    Some(frame)
}

/// What stands at the beginning of some bytes.
enum At<'a> {
    /// A whole frame with this body, and its length.
    Whole(&'a [u8], usize),
    /// None; to find out took this many bytes.
    None(usize),
}

fn at(bytes: &[u8]) -> At<'_> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD>() else { return At::None(bytes.len()) };
    let [m0, m1, m2, m3, l0, l1, l2, l3, sum @ ..] = *head;
    let length = [l0, l1, l2, l3];
    let wanted = u32::from_le_bytes(length) as usize;
    if [m0, m1, m2, m3] != MARK || wanted > MAX_BODY {
        return At::None(FRAME_HEAD);
    }
    match rest.get(..wanted) {
        Some(body) if checksum(length, body) == sum => At::Whole(body, FRAME_HEAD + wanted),
        Some(body) => At::None(body.len()),
        None => At::None(FRAME_HEAD),
    }
}

/// Reads a whole file. Empty, or shorter than its head, it is a journal without entries.
///
/// # Errors
/// [`HeadError`]
pub fn scan(bytes: &[u8]) -> Result<Scan, HeadError> {
    let Some((head, _)) = bytes.split_first_chunk::<FILE_HEAD>() else {
        let torn = bytes.len();
        return if file_head().starts_with(bytes) { Ok(Scan { torn, ..Scan::default() }) } else { Err(HeadError::Foreign) };
    };
    if head[..8] != MAGIC {
        return Err(HeadError::Foreign);
    }
    let format = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if format != FORMAT {
        return Err(HeadError::Newer(format));
    }
    let mut found = Scan { end: FILE_HEAD, ..Scan::default() };
    let mut position = FILE_HEAD;
    let mut left = MAX_SEARCH_BYTES;
    while position < bytes.len() {
        if let At::Whole(body, length) = at(&bytes[position..]) {
            if position > found.end {
                found.damage.push((found.end, position - found.end));
            }
            match serde_json::from_slice(body) {
                Ok(entry) => found.entries.push(entry),
                // Whole, and not ours: nothing that a torn write can have made.
                Err(_) => found.damage.push((position, length)),
            }
            position += length;
            found.end = position;
            continue;
        }
        match next_mark(bytes, position + 1, &mut left) {
            Some(next) => position = next,
            None => break,
        }
    }
    found.torn = bytes.len() - found.end;
    if left == 0 {
        // Not searched to its end, so nothing says that there is no more.
        (found.end, found.torn) = (bytes.len(), 0);
    }
    Ok(found)
}

/// Where the next whole frame may begin.
fn next_mark(bytes: &[u8], from: usize, left: &mut usize) -> Option<usize> {
    let mut position = from;
    loop {
        let step = bytes.get(position..)?.windows(MARK.len()).position(|window| window == MARK)?;
        position += step;
        let taken = match at(&bytes[position..]) {
            At::Whole(..) => return Some(position),
            At::None(taken) => taken,
        };
        *left = left.saturating_sub(taken);
        if *left == 0 {
            return None;
        }
        position += 1;
    }
}
