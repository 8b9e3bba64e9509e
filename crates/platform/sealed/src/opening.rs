//! A sealed file in, plain bytes out: in order, or from any place where the file can be read so; or as it comes, piece by piece.

use crate::{CHUNK, FileKeys, HEAD, Key, SealError, TAG_BYTES};
use aead_stream::StreamPrimitive;
use std::io::{self, Read, Seek, SeekFrom};

/// Reads what was sealed. What is wrong with the file is an [`io::Error`] with a [`SealError`] in it.
pub struct Opener<R: Read> {
    input: R,
    keys: FileKeys,
    /// Of the chunk that is opened next; of the last one, when that is open.
    number: u32,
    /// The first byte of the next chunk, which tells that this one is not the last.
    ahead: Option<u8>,
    plain: Vec<u8>,
    given: usize,
    ended: bool,
}

fn damaged(at: u64) -> io::Error {
    SealError::Damaged { at }.into()
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl<R: Read> Opener<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// Those of reading; a [`SealError`] if it is not encrypted, with another key or in another version.
    pub fn new(mut input: R, key: &Key) -> io::Result<Self> {
        let mut head = [0; HEAD];
        let length = fill(&mut input, &mut head)?;
        let keys = FileKeys::of(key, &head[..length])?;
        Ok(Self { input, keys, number: 0, ahead: None, plain: Vec::with_capacity(CHUNK + TAG_BYTES), given: 0, ended: false })
    }

    /// The next chunk into `plain`.
    fn open(&mut self) -> io::Result<()> {
        let at = HEAD as u64 + u64::from(self.number) * (CHUNK + TAG_BYTES) as u64;
        self.given = 0;
        self.plain.clear();
        self.plain.extend(self.ahead.take());
        let have = self.plain.len();
        self.plain.resize(CHUNK + TAG_BYTES, 0);
        let length = have + fill(&mut self.input, &mut self.plain[have..])?;
        self.plain.truncate(length);
        if length == CHUNK + TAG_BYTES {
            let mut next = [0];
            self.ahead = (fill(&mut self.input, &mut next)? == 1).then_some(next[0]);
        }
        let last = self.ahead.is_none();
        let opened = self.keys.stream.decrypt_in_place(self.number, last, &self.keys.head, &mut self.plain);
        if opened.is_err() {
            self.plain.clear();
            return Err(damaged(at));
        }
        self.ended = last;
        if !last {
            self.number = self.number.checked_add(1).ok_or_else(|| damaged(at))?;
        }
        Ok(())
    }
}

impl<R: Read> Read for Opener<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.given == self.plain.len() {
            if self.ended {
                return Ok(0);
            }
            self.open()?;
        }
        let take = buffer.len().min(self.plain.len() - self.given);
        buffer[..take].copy_from_slice(&self.plain[self.given..self.given + take]);
        self.given += take;
        Ok(take)
    }
}

impl<R: Read + Seek> Opener<R> {
    /// Plain bytes of the whole file, as its length has it; what is not true of that shows when it is read.
    fn length(&mut self) -> io::Result<u64> {
        let stored = self.input.seek(SeekFrom::End(0))?;
        let sealed = stored.saturating_sub(HEAD as u64);
        Ok(sealed.saturating_sub(sealed.div_ceil((CHUNK + TAG_BYTES) as u64) * TAG_BYTES as u64))
    }

    /// Plain bytes before the next that is given out.
    fn position(&self) -> u64 {
        let open = if self.ended || self.plain.is_empty() { self.number } else { self.number - 1 };
        u64::from(open) * CHUNK as u64 + self.given as u64
    }
}

impl<R: Read + Seek> Seek for Opener<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let from = |base: u64, by: i64| base.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput);
        let position = match to {
            SeekFrom::Start(position) => position,
            SeekFrom::Current(by) => from(self.position(), by)?,
            SeekFrom::End(by) => from(self.length()?, by)?,
        };
        // Beyond the end there is nothing; the last chunk says so.
        let wanted = position.min(self.length()?);
        let number = u32::try_from(wanted / CHUNK as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        // The end of a file that ends with a full chunk lies in that.
        let number = if wanted > 0 && wanted == self.length()? && wanted.is_multiple_of(CHUNK as u64) { number - 1 } else { number };
        self.input.seek(SeekFrom::Start(HEAD as u64 + u64::from(number) * (CHUNK + TAG_BYTES) as u64))?;
        (self.number, self.ahead, self.ended) = (number, None, false);
        self.plain.clear();
        self.given = 0;
        if wanted > u64::from(number) * CHUNK as u64 {
            self.open()?;
            self.given = self.plain.len().min((wanted - u64::from(number) * CHUNK as u64) as usize);
        }
        Ok(wanted)
    }
}

/// Opens a sealed file that comes in pieces. Nothing of a chunk is given out before it is known to be good; at most one is held.
pub struct PieceOpener {
    key: Key,
    /// `None`: the head has not come.
    keys: Option<FileKeys>,
    /// Of the chunk that is held.
    number: u32,
    held: Vec<u8>,
}

impl PieceOpener {
    /// Before the first byte.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, keys: None, number: 0, held: Vec::with_capacity(CHUNK + TAG_BYTES) }
    }

    /// Takes the next bytes of the file; calls `give` with plain ones.
    ///
    /// # Errors
    /// A [`SealError`], or that of `give`. Nothing after it is meaningful.
    pub fn feed<E: From<SealError>>(&mut self, mut bytes: &[u8], give: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        while !bytes.is_empty() {
            // A full chunk waits for more: only then is it known not to be the last.
            if self.held.len() == CHUNK + TAG_BYTES {
                self.open(false)?;
                give(&self.held)?;
                self.held.clear();
            }
            let whole = if self.keys.is_some() { CHUNK + TAG_BYTES } else { HEAD };
            let (now, later) = bytes.split_at(bytes.len().min(whole - self.held.len()));
            self.held.extend_from_slice(now);
            bytes = later;
            if self.keys.is_none() && self.held.len() == HEAD {
                self.keys = Some(FileKeys::of(&self.key, &self.held)?);
                self.held.clear();
            }
        }
        Ok(())
    }

    /// The file has ended.
    ///
    /// # Errors
    /// As for [`PieceOpener::feed`]: it may have been cut.
    pub fn finish<E: From<SealError>>(&mut self, give: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if self.keys.is_none() {
            self.keys = Some(FileKeys::of(&self.key, &self.held)?);
        }
        self.open(true)?;
        give(&self.held)
    }

    /// Turns the chunk that is held into plain bytes.
    fn open(&mut self, last: bool) -> Result<(), SealError> {
        let damaged = SealError::Damaged { at: HEAD as u64 + u64::from(self.number) * (CHUNK + TAG_BYTES) as u64 };
        let keys = self.keys.as_ref().ok_or(damaged)?;
        keys.stream.decrypt_in_place(self.number, last, &keys.head, &mut self.held).map_err(|_| damaged)?;
        self.number = self.number.checked_add(1).ok_or(damaged)?;
        Ok(())
    }
}
