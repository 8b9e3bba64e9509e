//! Image files as chains: found, opened, compacted.
//!
//! Faults assumed: files are missing, torn or hostile; disks are full; this process dies at any moment. A compacted image
//! exists under its name only when it is whole and durable.

use crate::image_file::{self, ImageFile, key_of_setting};
use crate::manifest::{self, ManifestError};
use mend_image::chain::{Chain, ChainError, Fault};
use mend_image::merge::MergeError;
use mend_image::record::End;
use mend_image::write::WriteError;
use mend_image::{HEADER_SIZE, read_header};
use mend_sealed::{Key, KeyError, SealError};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Why image files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// A file cannot be opened.
    #[error("cannot read the image {}", path.display())]
    Open {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A file is no image, damaged, or does not fit.
    #[error("the image {} cannot be used", path.display())]
    Image {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: Fault,
    },
    /// What the image builds on cannot be found.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A merged image would take the place of one that a checkpoint's manifest describes.
    #[error("{} belongs to a checkpoint: a restart could not use another image in its place", path.display())]
    OfCheckpoint {
        /// The path that this is about.
        path: PathBuf,
    },
    /// A compacted image cannot be written.
    #[error("cannot write the image {}", path.display())]
    Write {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

impl ImagesError {
    /// What a user can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Open { source, .. } if source.get_ref().is_some_and(|inner| inner.is::<SealError>()) => {
                "name the key's file with MEND_ENCRYPTION_KEY".into()
            }
            Self::Open { .. } => "name image files (`N/rank-R.image` in a checkpoint directory), newest first".into(),
            Self::Key(error) => error.hint(),
            Self::Image { source, .. } => source.hint().into(),
            Self::Manifest(error) => error.hint(),
            Self::OfCheckpoint { .. } => "write it into another directory".into(),
            Self::Write { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room, or choose another place".into(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "choose another place".into()
                }
                _ => String::new(),
            },
        }
    }

    /// Puts the file's name to what is wrong with a member of a chain of these files.
    #[must_use]
    pub fn of(files: &[PathBuf], ChainError { member, source }: ChainError) -> Self {
        Self::Image { path: files.get(member).cloned().unwrap_or_default(), source }
    }
}

/// The image and what it builds on, newest first: what the manifest beside it says, if it is one of a checkpoint and
/// builds on another; else the file alone.
///
/// # Errors
/// [`ImagesError::Open`]; [`ImagesError::Manifest`] if what it builds on cannot be used.
pub fn chain_of(image: &Path) -> Result<Vec<PathBuf>, ImagesError> {
    let opened = |source| ImagesError::Open { path: image.to_owned(), source };
    let key = key_of_setting()?;
    let mut raw = Vec::new();
    let file = ImageFile::open(image, key.as_ref());
    // A key that is not needed for the image is not for its manifest either.
    let key = key.as_ref().filter(|_| file.as_ref().is_ok_and(ImageFile::is_sealed));
    file.and_then(|file| file.take(HEADER_SIZE as u64).read_to_end(&mut raw)).map_err(opened)?;
    let alone = vec![image.to_owned()];
    // What is wrong with the header is told by whoever opens the chain.
    let Ok(header) = read_header(&raw) else { return Ok(alone) };
    let directory = image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = directory.canonicalize().map_err(opened)?;
    if !header.incremental() || !directory.join("manifest.json").exists() {
        return Ok(alone);
    }
    let manifest = manifest::read(&directory, key)?;
    let mut chain = manifest::chain_of(&directory, &manifest, header.rank, key)?;
    match chain.first_mut() {
        Some(newest) if newest.file_name() == image.file_name() => newest.clone_from(&image.to_owned()),
        // Not one of the checkpoint's images.
        _ => return Ok(alone),
    }
    Ok(chain)
}

/// For each rank of a checkpoint, its image and what that builds on, newest first.
///
/// # Errors
/// [`ImagesError::Manifest`] if the directory holds no checkpoint that is complete.
pub fn chains_of(checkpoint: &Path) -> Result<Vec<Vec<PathBuf>>, ImagesError> {
    let key = key_of_setting()?;
    // A key that is not needed for the images is not for their manifest either.
    let key = key.as_ref().filter(|_| manifest::read_alone(checkpoint, None).is_ok_and(|manifest| manifest.encrypted));
    let checkpoint = checkpoint.canonicalize().map_err(|source| ImagesError::Open { path: checkpoint.to_owned(), source })?;
    Ok(manifest::chains(&checkpoint, &manifest::read(&checkpoint, key)?, key)?)
}

/// Opens files as a chain, newest first. Unless `whole`, the oldest may build on another one.
///
/// # Errors
/// See [`ImagesError`].
pub fn open(files: &[PathBuf], whole: bool) -> Result<Chain<ImageFile>, ImagesError> {
    open_with(files, whole, key_of_setting()?.as_ref())
}

fn open_with(files: &[PathBuf], whole: bool, key: Option<&Key>) -> Result<Chain<ImageFile>, ImagesError> {
    let open = |path: &PathBuf| ImageFile::open(path, key).map_err(|source| ImagesError::Open { path: path.clone(), source });
    let sources = files.iter().map(open).collect::<Result<Vec<ImageFile>, _>>()?;
    let chain = if whole { Chain::open(sources) } else { Chain::survey(sources) };
    chain.map_err(|error| ImagesError::of(files, error))
}

/// Merges a chain of files into one full image at `target` (encrypted, if one of them is), which may be one of them:
/// until the new one is durable, the old one stays. Returns the new image's end record.
///
/// # Errors
/// See [`ImagesError`]. Nothing is left behind.
pub fn compact(files: &[PathBuf], target: &Path) -> Result<End, ImagesError> {
    if target.exists() && target.with_file_name("manifest.json").exists() {
        return Err(ImagesError::OfCheckpoint { path: target.to_owned() });
    }
    let key = key_of_setting()?;
    let mut chain = open_with(files, true, key.as_ref())?;
    let key = key.as_ref().filter(|_| chain.members().iter().any(|member| member.source().is_sealed()));
    let written = |source| ImagesError::Write { path: target.to_owned(), source };
    let name = target.file_name().ok_or_else(|| written(io::ErrorKind::InvalidFilename.into()))?;
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(".compact");
    let partial = target.with_file_name(partial);
    let (_, end) = image_file::merge(&mut chain, &partial, key, &AtomicBool::new(false)).map_err(|error| match error {
        MergeError::Chain(error) => ImagesError::of(files, error),
        MergeError::Write(WriteError::Write(source)) => written(source),
        MergeError::Write(error) => written(io::Error::other(error)),
    })?;
    mend_durable::rename(&partial, target).map_err(|error| {
        let _ = fs::remove_file(&partial);
        written(error)
    })?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_image::Header;
    use mend_image::fixed::Fixed;
    use mend_image::kept;
    use mend_image::record::{Kind, Mapping, mapping};
    use mend_image::write::StreamWriter;
    use std::fs::File;

    fn write(path: &Path, id: u8, base: u8, content: &[(Kind, u64, &[u8])]) {
        let header = Header { id: [id; 16], base: [base; 16], sequence: u32::from(id) - 1, ..Header::default() };
        let mut writer = StreamWriter::new(File::create(path).unwrap(), &header).unwrap();
        let mut table = [0; Mapping::SIZE];
        let only = Mapping { start: 0x1000, end: 0x4000, offset: 0, protection: 3, flags: 0, object: mapping::NO_OBJECT, page_shift: 0 };
        only.encode(&mut table).unwrap();
        for (kind, payload) in [(Kind::Strings, &b""[..]), (Kind::Objects, b""), (Kind::Mappings, &table)] {
            writer.record(kind, 0, 0, payload).unwrap();
        }
        writer.record(Kind::Threads, 0, 0, b"").unwrap();
        writer.record(Kind::Process, 0, 0, b"").unwrap();
        for (kind, address, payload) in content {
            writer.record(*kind, 0, *address, payload).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn a_chain_becomes_one_file_or_nothing_changes() {
        let directory = tempfile::tempdir().unwrap();
        let [full, newest, target] = ["full", "newest", "target"].map(|name| directory.path().join(name));
        let mut range = [0; kept::RANGE];
        kept::put((0x1000, 0x3000), &mut range).unwrap();
        write(&full, 1, 0, &[(Kind::Pages, 0x1000, &[1; 0x3000])]);
        write(&newest, 2, 1, &[(Kind::Kept, 0, &range), (Kind::Pages, 0x3000, &[2; 0x1000])]);
        let files = [newest.clone(), full.clone()];
        assert_eq!(chain_of(&newest).unwrap(), files[..1]);
        assert!(open(&files[..1], true).is_err() && open(&files[..1], false).is_ok());
        let end = compact(&files, &target).unwrap();
        assert_eq!(end.pages, 3);
        let merged = open(std::slice::from_ref(&target), true).unwrap();
        assert_eq!((merged.newest().header.id, merged.newest().header.sequence), ([2; 16], 0));
        // In the place of the newest one, by whose name it goes.
        compact(&files, &newest).unwrap();
        assert_eq!(fs::read(&newest).unwrap(), fs::read(&target).unwrap());
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&newest).unwrap().permissions()) & 0o777, 0o600);
        // A damaged one is named, and what was there stays.
        let mut bytes = fs::read(&full).unwrap();
        let middle = bytes.len() - 0x1000;
        bytes[middle] ^= 1;
        fs::write(&full, bytes).unwrap();
        let error = compact(std::slice::from_ref(&full), &target).unwrap_err();
        assert!(error.to_string().contains("full") && !error.hint().is_empty(), "{error}");
        assert_eq!(open(&[target], true).unwrap().newest().header.id, [2; 16]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }
}
