//! Finding the program of a rank, and saying before the start what would keep it from running.
//!
//! The kernel has the last word (execve); these checks exist for their messages.

use crate::mpi::MpiError;
use rustix::fs::{Access, access};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why a program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No command at all.
    #[error("no program is named")]
    Empty,
    /// The working directory.
    #[error("the working directory {} is not there", path.display())]
    WorkingDirectory {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nowhere in `PATH`.
    #[error("{name}: no such program in PATH")]
    NotInPath {
        /// As it was named.
        name: String,
    },
    /// A path that does not exist.
    #[error("{}: no such file", path.display())]
    NoFile {
        /// Where.
        path: PathBuf,
    },
    /// A directory.
    #[error("{} is a directory", path.display())]
    Directory {
        /// Where.
        path: PathBuf,
    },
    /// No execute permission.
    #[error("{} is not executable", path.display())]
    NotExecutable {
        /// Where.
        path: PathBuf,
    },
    /// A script whose interpreter does not exist.
    #[error("{} is a script for {interpreter}, which is not on this node", path.display())]
    NoInterpreter {
        /// The script.
        path: PathBuf,
        /// What its first line names.
        interpreter: String,
    },
    /// Its MPI library cannot be served.
    #[error(transparent)]
    Mpi(#[from] MpiError),
    /// A part of Mend is missing.
    #[error("{part} is not installed beside mendd")]
    Incomplete {
        /// Which.
        part: &'static str,
    },
    /// The loader cannot be told the library's path.
    #[error("{} cannot be preloaded: its path has a space, a colon or a semicolon", path.display())]
    Unloadable {
        /// Where the library is.
        path: PathBuf,
    },
}

impl ProgramError {
    /// The exit code a shell would give.
    pub fn code(&self) -> i32 {
        match self {
            Self::NotInPath { .. } | Self::NoFile { .. } | Self::NoInterpreter { .. } => 127,
            Self::Directory { .. } | Self::NotExecutable { .. } => 126,
            Self::Empty | Self::WorkingDirectory { .. } | Self::Mpi(_) | Self::Incomplete { .. } | Self::Unloadable { .. } => 1,
        }
    }

    /// What a user can do.
    pub fn hint(&self) -> String {
        match self {
            Self::Empty => "name it after `--`: mend run -n 4 -- ./program".into(),
            Self::WorkingDirectory { .. } => "create it on every node, or choose another with -wdir".into(),
            Self::NotInPath { name } => format!("give its path (./{name} if it is in the working directory), or set PATH on this node"),
            Self::NoFile { .. } => "the file must exist on every node under the same path".into(),
            Self::Directory { .. } => "name the program in it".into(),
            Self::NotExecutable { path } => format!("chmod +x {}", path.display()),
            Self::NoInterpreter { .. } => "install the interpreter, or correct the script's first line".into(),
            Self::Mpi(error) => error.hint().into(),
            Self::Incomplete { part } => format!("put {part} into the directory of mendd, or set MEND_LIBDIR"),
            Self::Unloadable { .. } => "install Mend in a directory with a plainer name".into(),
        }
    }
}

/// The executable that `name` means for a process in `directory` with this `PATH` (execvp(3)).
///
/// # Errors
/// Says what is wrong with the best candidate.
pub fn find(name: &str, directory: &Path, path: Option<&str>) -> Result<PathBuf, ProgramError> {
    if name.is_empty() {
        return Err(ProgramError::Empty);
    }
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            return Err(ProgramError::WorkingDirectory { path: directory.into(), source: rustix::io::Errno::NOTDIR.into() });
        }
        Err(source) => return Err(ProgramError::WorkingDirectory { path: directory.into(), source }),
    }
    let found = if name.contains('/') {
        let path = directory.join(name);
        usable(&path)?;
        path
    } else {
        search(name, directory, path.unwrap_or("/usr/local/bin:/usr/bin:/bin"))?
    };
    check_interpreter(&found)?;
    Ok(found)
}

fn search(name: &str, directory: &Path, path: &str) -> Result<PathBuf, ProgramError> {
    let mut best = ProgramError::NotInPath { name: name.to_owned() };
    for entry in path.split(':') {
        // An empty entry is the working directory (POSIX).
        let candidate = directory.join(entry).join(name);
        match usable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(refused @ ProgramError::NotExecutable { .. }) => best = refused,
            Err(_) => {}
        }
    }
    Err(best)
}

fn usable(path: &Path) -> Result<(), ProgramError> {
    let Ok(found) = std::fs::metadata(path) else { return Err(ProgramError::NoFile { path: path.into() }) };
    if found.is_dir() {
        return Err(ProgramError::Directory { path: path.into() });
    }
    access(path, Access::EXEC_OK).map_err(|_| ProgramError::NotExecutable { path: path.into() })
}

fn check_interpreter(path: &Path) -> Result<(), ProgramError> {
    let mut start = Vec::new();
    // An executable need not be readable, and an unreadable one has no line to check.
    let Ok(file) = std::fs::File::open(path) else { return Ok(()) };
    if file.take(256).read_to_end(&mut start).is_err() {
        return Ok(());
    }
    let Some(line) = start.strip_prefix(b"#!").and_then(|rest| rest.split(|&byte| byte == b'\n').next()) else { return Ok(()) };
    let Some(name) = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty()) else { return Ok(()) };
    if Path::new(std::ffi::OsStr::from_bytes(name)).exists() {
        return Ok(());
    }
    Err(ProgramError::NoInterpreter { path: path.into(), interpreter: String::from_utf8_lossy(name).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(directory: &Path, name: &str, text: &str, mode: u32) {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn found_as_execvp_does_and_refused_by_name() {
        let scratch = tempfile::tempdir().unwrap();
        let here = scratch.path();
        file(here, "good", "#!/bin/sh\n", 0o755);
        file(here, "plain", "text", 0o644);
        file(here, "orphan", "#! /no/such/interpreter -x\n", 0o755);
        std::fs::create_dir(here.join("folder")).unwrap();
        assert_eq!(find("./good", here, None).unwrap(), here.join("./good"));
        assert_eq!(find("good", here, Some("/nowhere::/bin")).unwrap(), here.join("good"));
        assert!(matches!(find("good", here, Some("/nowhere")), Err(ProgramError::NotInPath { .. })));
        assert!(matches!(find("plain", here, Some(".")), Err(ProgramError::NotExecutable { .. })));
        assert!(matches!(find("./folder", here, None), Err(ProgramError::Directory { .. })));
        assert!(matches!(find("./orphan", here, None), Err(ProgramError::NoInterpreter { .. })));
        assert!(matches!(find("./absent", here, None), Err(ProgramError::NoFile { .. })));
        assert!(matches!(find("good", &here.join("gone"), None), Err(ProgramError::WorkingDirectory { .. })));
        assert_eq!(find("./absent", here, None).unwrap_err().code(), 127);
        assert_eq!(find("./folder", here, None).unwrap_err().code(), 126);
    }
}
