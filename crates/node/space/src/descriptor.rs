//! Where a space is described: `$MEND_HOME/spaces/NAME.json`, on every node that uses it (a shared home directory is enough).

use mend_data::space::{FORMAT, MAX_TARGETS, Space, described, is_name};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a space is not known here.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// No setting says where.
    #[error(transparent)]
    Setting(#[from] mend_settings::SettingError),
    /// There is none of that name.
    #[error("there is no data space {0}")]
    Unknown(String),
    /// There is one of that name.
    #[error("there is a data space {0}")]
    Exists(String),
    /// There is one of that name, and somebody has begun to remove it.
    #[error("the data space {0} is being removed")]
    Ending(String),
    /// The file cannot be used.
    #[error("{}: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// What is there cannot be told.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// Where the files are.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl DescriptorError {
    /// What to do; may be empty.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown(_) => {
                "`mend data create` makes one, `mend data ls` lists those that are known here; all nodes need its file in $MEND_HOME/spaces, so share that directory or copy it"
            }
            Self::Exists(_) => "choose another name; `mend data destroy` removes it",
            Self::Ending(_) => "`mend data destroy` goes on with that, if it was interrupted",
            Self::Unusable { .. } => "remove the file, and create the space anew",
            Self::Unreadable { .. } => "make it readable, or name another directory with MEND_HOME",
            Self::Setting(_) => "correct the variable, or leave it unset",
        }
    }
}

fn unusable(path: &Path) -> impl Fn(String) -> DescriptorError {
    move |why| DescriptorError::Unusable { path: path.to_owned(), why }
}

fn directory() -> Result<PathBuf, DescriptorError> {
    Ok(mend_settings::home()?.join("spaces"))
}

fn path(name: &str) -> Result<PathBuf, DescriptorError> {
    Ok(described(&mend_settings::home()?, name))
}

/// The space of this name.
///
/// # Errors
/// [`DescriptorError`].
pub fn load(name: &str) -> Result<Space, DescriptorError> {
    if !is_name(name) {
        return Err(DescriptorError::Unknown(name.to_owned()));
    }
    let path = path(name)?;
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(DescriptorError::Unknown(name.to_owned())),
        read => read.map_err(|error| unusable(&path)(error.to_string()))?,
    };
    let space: Space = serde_json::from_slice(&text).map_err(|error| unusable(&path)(format!("it describes no data space: {error}")))?;
    let sound = space.name == name && !space.targets.is_empty() && space.targets.len() <= MAX_TARGETS && space.striping.is_sound();
    match space.format {
        FORMAT if sound => Ok(space),
        FORMAT => Err(unusable(&path)("it describes no data space".to_owned())),
        other => Err(unusable(&path)(format!("it has format {other}, this release reads {FORMAT}"))),
    }
}

/// The same, unless somebody has begun to remove it.
///
/// # Errors
/// [`DescriptorError`].
pub fn usable(name: &str) -> Result<Space, DescriptorError> {
    load(name).and_then(|space| if space.ending { Err(DescriptorError::Ending(space.name)) } else { Ok(space) })
}

/// True if a space is still described here as it was, and nobody removes it. What cannot be read just now is taken to be so.
#[must_use]
pub fn is_still(space: &Space) -> bool {
    is_still_so(&space.name, |now| now == space)
}

/// True if this is so of the space of a name, and nobody removes it; or if that cannot be read just now.
pub fn is_still_so(name: &str, is_so: impl Fn(&Space) -> bool) -> bool {
    match usable(name) {
        Ok(now) => is_so(&now),
        Err(error) => !matches!(error, DescriptorError::Unknown(_) | DescriptorError::Ending(_)),
    }
}

/// Writes the file of a new space; it replaces none, whoever makes one of that name at the same time.
///
/// # Errors
/// [`DescriptorError::Exists`], and others.
pub fn save(space: &Space) -> Result<(), DescriptorError> {
    let path = path(&space.name)?;
    match write(space, &path, mend_durable::write_new) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(DescriptorError::Exists(space.name.clone())),
        written => written.map_err(|error| unusable(&path)(error.to_string())),
    }
}

/// Writes the file of a space, in the place of what described it.
///
/// # Errors
/// [`DescriptorError`].
pub fn replace(space: &Space) -> Result<(), DescriptorError> {
    let path = path(&space.name)?;
    let replaced = write(space, &path, |path, partial, text| mend_durable::write_if(path, partial, text, || true).map(drop));
    replaced.map_err(|error| unusable(&path)(error.to_string()))
}

/// Writes it under a name of its own before it has its name: another process may write the same.
fn write(space: &Space, path: &Path, put: impl FnOnce(&Path, &Path, &[u8]) -> io::Result<()>) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let unique = mend_wire::secret::to_hex(&mend_wire::random_bytes::<8>());
    put(path, &path.with_extension(format!("{unique}.new")), &serde_json::to_vec_pretty(space)?)
}

/// Forgets a space here.
///
/// # Errors
/// [`DescriptorError`].
pub fn remove(name: &str) -> Result<(), DescriptorError> {
    let path = path(name)?;
    fs::remove_file(&path).map_err(|error| unusable(&path)(error.to_string()))
}

/// Names of the spaces that are known here, in order.
///
/// # Errors
/// [`DescriptorError::Setting`], [`DescriptorError::Unreadable`].
pub fn names() -> Result<Vec<String>, DescriptorError> {
    let path = directory()?;
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.map_err(|source| DescriptorError::Unreadable { path, source })?),
    };
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_suffix(".json").map(str::to_owned))
        .filter(|name| is_name(name))
        .collect();
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_data::space::{COPIES, Striping, Target};
    use std::sync::Barrier;

    const THREADS: u8 = 8;

    fn space(id: u8) -> Space {
        let target = Target { host: "a".into(), address: ([127, 0, 0, 1], 1).into(), directory: format!("/{id}") };
        Space {
            format: FORMAT,
            name: "one".into(),
            id: [id; 16],
            targets: vec![target],
            striping: Striping::default(),
            copies: COPIES,
            job: None,
            ending: false,
        }
    }

    #[test]
    fn of_many_that_make_one_name_at_once_one_is_the_first_and_its_own_is_described() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("spaces/one.json");
        let begun = Barrier::new(THREADS.into());
        let made: Vec<bool> = std::thread::scope(|scope| {
            let one = |id: u8| {
                let (begun, path) = (&begun, &path);
                scope.spawn(move || {
                    begun.wait();
                    let made = write(&space(id), path, mend_durable::write_new);
                    assert!(made.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::AlreadyExists), "{made:?}");
                    made.is_ok()
                })
            };
            let all: Vec<_> = (0..THREADS).map(one).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(made.iter().filter(|made| **made).count(), 1);
        let described: Space = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert!(made[usize::from(described.id[0])]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
