//! An image file as it is read and written, encrypted or not.

use mend_image::chain::Chain;
use mend_image::merge::MergeError;
use mend_image::record::End;
use mend_image::write::WriteError;
use mend_kernel::untrusted::open_regular;
use mend_sealed::{HEAD, Key, KeyError, Opener, Sealer, is_sealed, opened_by};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

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

impl ImageFile {
    /// Opens a file; a key is used only if it is encrypted.
    ///
    /// # Errors
    /// Those of reading; that it is encrypted and there is no key, or another one.
    pub fn open(path: &Path, key: Option<&Key>) -> io::Result<Self> {
        let mut file = open_regular(path)?;
        let mut head = Vec::with_capacity(HEAD);
        (&mut file).take(HEAD as u64).read_to_end(&mut head)?;
        file.rewind()?;
        Ok(match opened_by(&head, key.filter(|_| is_sealed(&head)))? {
            None => Self::Plain(file),
            Some(key) => Self::Sealed(Box::new(Opener::new(file, key)?)),
        })
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

/// Merges a chain into one full image, encrypted if there is a key, which is durable as `partial` when this returns. Its
/// length in bytes, and its end record. What a killed predecessor left as `partial` is worthless, and nothing of it is left
/// after a failure. With `cancel` it fails soon.
///
/// # Errors
/// As for [`mend_image::merge::merge`].
pub fn merge(chain: &mut Chain<ImageFile>, partial: &Path, key: Option<&Key>, cancel: &AtomicBool) -> Result<(u64, End), MergeError> {
    let _ = fs::remove_file(partial);
    let merged = (|| {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial).map_err(WriteError::Write)?;
        let mut out = Cancellable { inner: NewImage::begin(&file, key).map_err(WriteError::Write)?, cancel };
        let end = mend_image::merge::merge(chain, &mut out)?;
        let length = out.inner.finish().map_err(WriteError::Write)?;
        file.sync_all().map_err(WriteError::Write)?;
        Ok((length, end))
    })();
    if merged.is_err() {
        let _ = fs::remove_file(partial);
    }
    merged
}

/// Fails once it is cancelled.
struct Cancellable<'a, W> {
    inner: W,
    cancel: &'a AtomicBool,
}

impl<W: Write> Write for Cancellable<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
