//! An image file as it is read and written, encrypted or not: the key is that of the setting `MEND_ENCRYPTION_KEY`.

use mend_sealed::{HEAD, Key, Opener, SealError, Sealer, is_sealed};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// An image's plain bytes.
pub enum ImageFile {
    /// From the file itself.
    Plain(File),
    /// Out of an encrypted one.
    Sealed(Box<Opener<File>>),
}

/// The key, if one is set.
fn key() -> io::Result<Option<Key>> {
    let path = mend_settings::ENCRYPTION_KEY.text();
    if path.is_empty() {
        return Ok(None);
    }
    Key::load(Path::new(&path)).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

impl ImageFile {
    /// Opens a file.
    ///
    /// # Errors
    /// Those of reading; that it is encrypted and no key is set, or another one.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut head = Vec::with_capacity(HEAD);
        (&mut file).take(HEAD as u64).read_to_end(&mut head)?;
        file.rewind()?;
        if !is_sealed(&head) {
            return Ok(Self::Plain(file));
        }
        let key = key()?.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, SealError::NoKey))?;
        Ok(Self::Sealed(Box::new(Opener::new(file, &key)?)))
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
    /// In this empty file, encrypted if `sealed`.
    ///
    /// # Errors
    /// Those of writing; that no key is set.
    pub fn begin(file: &'a File, sealed: bool) -> io::Result<Self> {
        if !sealed {
            return Ok(Self::Plain(BufWriter::with_capacity(1 << 20, file)));
        }
        let key = key()?.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, SealError::NoKey))?;
        Ok(Self::Sealed(Box::new(Sealer::new(file, &key, mend_wire::random_bytes())?)))
    }

    /// All has been written.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Sealed(sealer) => sealer.finish().map(drop),
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
