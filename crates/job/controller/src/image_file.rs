//! An image file as it is read and written, encrypted or not.

use mend_sealed::{HEAD, Key, KeyError, Opener, SealError, Sealer, is_sealed};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes of a plain image that are written at once.
const WRITE_SIZE: usize = 1 << 20;

/// An image's plain bytes.
pub enum ImageFile {
    /// From the file itself.
    Plain(File),
    /// Out of an encrypted one.
    Sealed(Box<Opener<File>>),
}

/// The key that the setting names, for verbs that have no job.
///
/// # Errors
/// [`KeyError`] if it names one that cannot be used.
pub fn key_of_setting() -> Result<Option<Key>, KeyError> {
    let path = mend_settings::ENCRYPTION_KEY.text();
    if path.is_empty() { Ok(None) } else { Key::load(Path::new(&path)).map(Some) }
}

fn no_key() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, SealError::NoKey)
}

impl ImageFile {
    /// Opens a file; a key is used only if it is encrypted.
    ///
    /// # Errors
    /// Those of reading; that it is encrypted and there is no key, or another one.
    pub fn open(path: &Path, key: Option<&Key>) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut head = Vec::with_capacity(HEAD);
        (&mut file).take(HEAD as u64).read_to_end(&mut head)?;
        file.rewind()?;
        if !is_sealed(&head) {
            return Ok(Self::Plain(file));
        }
        Ok(Self::Sealed(Box::new(Opener::new(file, key.ok_or_else(no_key)?)?)))
    }

    /// True if what is made of it must be encrypted, too.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed(_))
    }
}

impl Read for ImageFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Sealed(opener) => opener.read(buffer),
        }
    }
}

impl Seek for ImageFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Plain(file) => file.seek(to),
            Self::Sealed(opener) => opener.seek(to),
        }
    }
}

impl std::fmt::Debug for ImageFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.is_sealed() { "ImageFile::Sealed" } else { "ImageFile::Plain" })
    }
}

/// Where a new image's plain bytes go.
pub enum NewImage<'a> {
    /// The file itself.
    Plain(BufWriter<&'a File>),
    /// An encrypted one.
    Sealed(Box<Sealer<&'a File>>),
}

impl<'a> NewImage<'a> {
    /// In this empty file; encrypted, if there is a key.
    ///
    /// # Errors
    /// Those of writing.
    pub fn begin(file: &'a File, key: Option<&Key>) -> io::Result<Self> {
        Ok(match key {
            None => Self::Plain(BufWriter::with_capacity(WRITE_SIZE, file)),
            Some(key) => Self::Sealed(Box::new(Sealer::new(file, key, mend_wire::random_bytes())?)),
        })
    }

    /// All has been written. The file's length, bytes.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(self) -> io::Result<u64> {
        match self {
            Self::Plain(file) => file.into_inner().map_err(io::IntoInnerError::into_error)?.metadata().map(|about| about.len()),
            Self::Sealed(sealer) => sealer.finish().map(|(_, length)| length),
        }
    }
}

impl Write for NewImage<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Sealed(sealer) => sealer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Sealed(sealer) => sealer.flush(),
        }
    }
}
