//! How the spooled output of a detached job stands in files.
//!
//! ```text
//! segment: MAGIC 8 │ format u32 │ zero u32 │ stdout u64 │ stderr u64 │ XXH3-64 of what is before u64 │ frame │ frame │ …
//! frame:   length u32 │ stream u32 │ position u64 │ XXH3-64 of what is before, then of the bytes u64 │ bytes
//! ```
//! All numbers are little-endian. A stream is 0 (standard output), 1 (standard error) or 2 (standard error: a message of Mend itself, which no rank
//! prints again). Frames are in the order in which the job printed. A *position* counts the bytes that a stream had before, from
//! the job's beginning: those of a segment's head tell what is gone if earlier segments are, those of a frame if bytes before it could not be
//! written.
//!
//! A frame that is cut short may still be written; it is not read before it is whole. Faults assumed: a writer that is killed at any byte; files
//! that hold anything.

use mend_messages::daemon::Stream;
use xxhash_rust::xxh3::Xxh3;

/// Layout of segments and frames.
pub const FORMAT: u32 = 1;
/// First bytes of every segment.
pub const MAGIC: [u8; 8] = *b"MENDSPOL";
/// Bytes of a segment before its first frame.
pub const SEGMENT_HEAD: usize = 40;
/// Bytes of a frame before what was printed.
pub const FRAME_HEAD: usize = 24;
/// Most bytes that one frame holds of what was printed.
pub const MAX_BYTES: usize = 64 << 10;

/// How many bytes each stream has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

impl Positions {
    /// That of one stream.
    #[must_use]
    pub fn of(self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }

    /// Changes that of one stream.
    pub fn set(&mut self, stream: Stream, position: u64) {
        match stream {
            Stream::Stdout => self.stdout = position,
            Stream::Stderr => self.stderr = position,
        }
    }
}

/// Why a file is no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Another kind of file, or a damaged one.
    #[error("it is not spooled output")]
    Foreign,
    /// Of a later release.
    #[error("it has format {0}, this release reads {FORMAT}")]
    Newer(u32),
}

/// The beginning of a segment behind so many bytes.
#[must_use]
pub fn segment_head(before: Positions) -> [u8; SEGMENT_HEAD] {
    let mut head = [0; SEGMENT_HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    head[16..24].copy_from_slice(&before.stdout.to_le_bytes());
    head[24..32].copy_from_slice(&before.stderr.to_le_bytes());
    let sum = xxhash_rust::xxh3::xxh3_64(&head[..32]);
    head[32..].copy_from_slice(&sum.to_le_bytes());
    head
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Reads the beginning of a segment: how many bytes each stream had before. `None` if it is not all there yet.
///
/// # Errors
/// [`HeadError`]
pub fn read_segment_head(bytes: &[u8]) -> Result<Option<Positions>, HeadError> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] {
        return Err(HeadError::Foreign);
    }
    if let Some(format) = bytes.get(8..12).map(|format| number(format) as u32).filter(|format| *format != FORMAT) {
        return Err(HeadError::Newer(format));
    }
    let Some(head) = bytes.first_chunk::<SEGMENT_HEAD>() else { return Ok(None) };
    let before = Positions { stdout: number(&head[16..24]), stderr: number(&head[24..32]) };
    if *head == segment_head(before) { Ok(Some(before)) } else { Err(HeadError::Foreign) }
}

/// What a frame of a message of Mend itself has for a stream.
const MESSAGE: u32 = 2;

/// A frame: what was printed to a stream at this position.
///
/// # Panics
/// If there are more than [`MAX_BYTES`].
#[must_use]
pub fn encode(stream: Stream, position: u64, bytes: &[u8]) -> Vec<u8> {
    frame(stream as u32, position, bytes)
}

/// A frame: a message of Mend itself, on standard error.
///
/// # Panics
/// If there are more than [`MAX_BYTES`], as for [`encode`].
#[must_use]
pub fn encode_message(position: u64, bytes: &[u8]) -> Vec<u8> {
    frame(MESSAGE, position, bytes)
}

fn frame(stream: u32, position: u64, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() <= MAX_BYTES, "a frame of {} bytes", bytes.len());
    let mut frame = Vec::with_capacity(FRAME_HEAD + bytes.len());
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(&stream.to_le_bytes());
    frame.extend_from_slice(&position.to_le_bytes());
    let sum = checksum(&frame, bytes);
    frame.extend_from_slice(&sum.to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

fn checksum(head: &[u8], bytes: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(head);
    sum.update(bytes);
    sum.digest()
}

/// What was printed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// To which stream.
    pub stream: Stream,
    /// By Mend itself, not by a rank.
    pub is_message: bool,
    /// How many bytes the stream had before.
    pub position: u64,
    /// What was printed.
    pub bytes: &'a [u8],
}

impl Frame<'_> {
    /// How long it is in its file, bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        FRAME_HEAD + self.bytes.len()
    }
}

/// What stands at the beginning of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// A whole frame.
    Whole(Frame<'a>),
    /// The beginning of one, or nothing: more may follow.
    Part,
    /// No frame, and never one.
    Damaged,
}

/// Reads a frame.
#[must_use]
pub fn next(bytes: &[u8]) -> Next<'_> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD>() else { return Next::Part };
    let (length, position) = (number(&head[..4]) as usize, number(&head[8..16]));
    let (stream, is_message) = match number(&head[4..8]) {
        0 => (Stream::Stdout, false),
        1 => (Stream::Stderr, false),
        2 => (Stream::Stderr, true),
        _ => return Next::Damaged,
    };
    if length > MAX_BYTES || position.checked_add(length as u64).is_none() {
        return Next::Damaged;
    }
    match rest.get(..length) {
        Some(bytes) if checksum(&head[..16], bytes) == number(&head[16..]) => Next::Whole(Frame { stream, is_message, position, bytes }),
        Some(_) => Next::Damaged,
        None => Next::Part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_no_other_is() {
        let before = Positions { stdout: 7, stderr: u64::MAX };
        let head = segment_head(before);
        assert_eq!(read_segment_head(&head), Ok(Some(before)));
        for length in 0..SEGMENT_HEAD {
            assert_eq!(read_segment_head(&head[..length]), Ok(None), "{length}");
        }
        for at in (0..SEGMENT_HEAD).filter(|at| !(8..12).contains(at)) {
            let mut wrong = head;
            wrong[at] ^= 1;
            assert_eq!(read_segment_head(&wrong), Err(HeadError::Foreign), "{at}");
        }
        let mut newer = head;
        newer[8] = 2;
        assert_eq!(read_segment_head(&newer), Err(HeadError::Newer(2)));
    }

    #[test]
    fn a_frame_is_whole_or_not_read() {
        let frame = encode(Stream::Stderr, 5, b"some text\n");
        assert_eq!(next(&frame), Next::Whole(Frame { stream: Stream::Stderr, is_message: false, position: 5, bytes: b"some text\n" }));
        let message = encode_message(5, b"mend: a message\n");
        assert!(matches!(next(&message), Next::Whole(Frame { stream: Stream::Stderr, is_message: true, position: 5, .. })));
        for length in 0..frame.len() {
            assert_eq!(next(&frame[..length]), Next::Part, "{length}");
        }
        for at in 0..frame.len() {
            let mut wrong = frame.clone();
            wrong[at] ^= 0x80;
            assert!(!matches!(next(&wrong), Next::Whole(_)), "{at}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..100)), 0..20)) {
            let (mut file, mut position) = (Vec::new(), Positions::default());
            for (err, bytes) in &pieces {
                let stream = if *err { Stream::Stderr } else { Stream::Stdout };
                file.extend(encode(stream, position.of(stream), bytes));
                position.set(stream, position.of(stream) + bytes.len() as u64);
            }
            let (mut rest, mut read) = (&file[..], Vec::new());
            while let Next::Whole(frame) = next(rest) {
                read.push((frame.stream == Stream::Stderr, frame.bytes.to_vec()));
                rest = &rest[frame.length()..];
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(read, pieces);
        }
    }
}
