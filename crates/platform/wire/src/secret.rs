//! The secret that a user's daemons and controllers share, in a file of 64 hexadecimal digits.

use crate::random_bytes;
use mend_messages::job::Secret;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why there is no usable secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Not readable, or not creatable.
    #[error("cannot use the secret file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Others can read it.
    #[error("the secret file {} can be read by others (mode {mode:o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not 64 hexadecimal digits.
    #[error("the secret file {} does not hold 64 hexadecimal digits", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

impl SecretError {
    /// What a user can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Io { .. } => "set MEND_HOME or MEND_SECRET_FILE to a place of yours".into(),
            Self::Exposed { path, .. } => format!("chmod 600 {}", path.display()),
            Self::Malformed { path } => {
                format!("remove {} and start mendd again: a new one is made; copy it to nodes that do not share it", path.display())
            }
        }
    }
}

/// Text form of 32 bytes.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of a text of `2 * N` hexadecimal digits.
#[must_use]
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Reads the secret in `path`, making a new one (mode 0600, its directory 0700) if there is none.
///
/// Two callers at once agree: the file appears complete or not at all, and the first one wins.
///
/// # Errors
/// See [`SecretError`].
pub fn load_or_create(path: &Path) -> Result<Secret, SecretError> {
    let io = |source| SecretError::Io { path: path.to_owned(), source };
    if !path.exists() {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io)?;
        }
        let partial = path.with_extension(format!("{}.new", to_hex(&random_bytes::<8>())));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial).map_err(io)?;
        // Whatever the umask.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(io)?;
        writeln!(file, "{}", to_hex(&random_bytes::<32>())).and_then(|()| file.sync_all()).map_err(io)?;
        // link(2) fails if somebody else was first, which is as good.
        let linked = fs::hard_link(&partial, path);
        fs::remove_file(&partial).map_err(io)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
            _ => {}
        }
    }
    load(path)
}

/// Reads the secret in `path`.
///
/// # Errors
/// See [`SecretError`].
pub fn load(path: &Path) -> Result<Secret, SecretError> {
    let io = |source| SecretError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?;
    if found.is_dir() {
        // Its mode is no fault of the secret's.
        return Err(io(io::ErrorKind::IsADirectory.into()));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretError::Exposed { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    Read::take(file, 4096).read_to_string(&mut text).map_err(io)?;
    from_hex(text.trim()).map(Secret).ok_or_else(|| SecretError::Malformed { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_then_read_back_and_refused_when_exposed_or_torn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/secret");
        let first = load_or_create(&path).unwrap();
        assert!(load_or_create(&path).unwrap() == first);
        fs::write(&path, "12").unwrap();
        assert!(matches!(load(&path), Err(SecretError::Malformed { .. })));
        let mut open = fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o644);
        fs::set_permissions(&path, open).unwrap();
        assert!(matches!(load(&path), Err(SecretError::Exposed { mode: 0o644, .. })));
    }
}
