//! Finding the program of a rank, and saying before the start what would keep it from running.
//!
//! The kernel has the last word (execve); these checks exist for their messages.

use crate::mpi::{self, MpiError};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, elf};
use rustix::fs::{Access, access};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why a program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No command at all.
    #[error("no program is named")]
    Empty,
    /// The working directory.
    #[error("the working directory {} is not there", path.display())]
    WorkingDirectory {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
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
        /// The path that this is about.
        path: PathBuf,
    },
    /// A directory.
    #[error("{} is a directory", path.display())]
    Directory {
        /// The path that this is about.
        path: PathBuf,
    },
    /// No execute permission.
    #[error("{} is not executable", path.display())]
    NotExecutable {
        /// The path that this is about.
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
        /// The part of Mend that is missing.
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
    match interpreter(path) {
        Some(name) if !name.exists() => {
            Err(ProgramError::NoInterpreter { path: path.into(), interpreter: name.to_string_lossy().into_owned() })
        }
        _ => Ok(()),
    }
}

/// What the first line of a script names. An executable need not be readable, and an unreadable one has no line to look at.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let name = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())?;
    Some(std::ffi::OsStr::from_bytes(name).into())
}

/// Why no agent will speak for a rank. It may come all the same if the program becomes another (execve).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Agentless {
    /// Nothing asks for the dynamic loader.
    #[error("{} is a static program, into which no library can be loaded", program.display())]
    Static {
        /// Which: the one that was started, or its interpreter.
        program: PathBuf,
    },
    /// Another word size.
    #[error("{} is a program of 32 bits, into which no library of 64 bits can be loaded", program.display())]
    Narrow {
        /// As above.
        program: PathBuf,
    },
}

impl Agentless {
    /// What a user can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Static { .. } => "link the program dynamically (without -static): Mend saves processes from within",
            Self::Narrow { .. } => "build the program for 64 bits",
        }
    }
}

/// What was found out about programs, kept as long as their files do not change.
#[derive(Debug, Default)]
pub struct ExaminedPrograms(HashMap<(PathBuf, String), (Option<SystemTime>, Examined)>);

#[derive(Clone, Debug)]
struct Examined {
    mpi: Result<(), MpiError>,
    agentless: Option<Agentless>,
}

impl ExaminedPrograms {
    /// Looks at the program at `path`, with the search path for its MPI library's needs (see [`mpi::examine`]). Says why no agent
    /// will speak for it, if so.
    ///
    /// # Errors
    /// See [`MpiError`].
    pub fn look(&mut self, path: &Path, library_path: &str) -> Result<Option<Agentless>, MpiError> {
        let key = (path.to_owned(), library_path.to_owned());
        let changed = std::fs::metadata(path).and_then(|found| found.modified()).ok();
        let Examined { mpi, agentless } = match self.0.get(&key) {
            Some((when, known)) if *when == changed => known.clone(),
            _ => {
                let examined = Examined { mpi: mpi::examine(path, library_path), agentless: agentless(path) };
                self.0.insert(key, (changed, examined.clone()));
                examined
            }
        };
        mpi.map(|()| agentless)
    }
}

/// Scripts that interpret scripts are followed as far as the kernel does (`exec_binprm`).
const MAX_INTERPRETERS: usize = 5;

/// Whether the preloaded library cannot get into the program at `path`. What cannot be read is let pass.
fn agentless(path: &Path) -> Option<Agentless> {
    let mut program = path.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        match interpreter(&program) {
            Some(name) => program = name,
            None => break,
        }
    }
    let data = ReadCache::new(File::open(&program).ok()?);
    match FileKind::parse(&data).ok()? {
        FileKind::Elf32 => Some(Agentless::Narrow { program }),
        FileKind::Elf64 => {
            let header = elf::FileHeader64::<Endianness>::parse(&data).ok()?;
            let endian = header.endian().ok()?;
            let segments = header.program_headers(endian, &data).ok()?;
            let loaded = segments.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP);
            (!loaded).then_some(Agentless::Static { program })
        }
        _ => None,
    }
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

    #[test]
    fn programs_without_a_loader_are_told_from_others() {
        let scratch = tempfile::tempdir().unwrap();
        let here = scratch.path();
        let compiled = |name: &str, options: &[&str]| {
            let path = here.join(name);
            std::fs::write(here.join("main.c"), "int main(void) { return 0; }").unwrap();
            let done = std::process::Command::new("cc").args(options).arg("-o").arg(&path).arg(here.join("main.c")).status();
            assert!(done.unwrap().success(), "{name}");
            path
        };
        assert_eq!(agentless(&compiled("dynamic", &[])), None);
        for (name, option) in [("static", "-static"), ("movable", "-static-pie")] {
            let program = compiled(name, &[option]);
            assert_eq!(agentless(&program), Some(Agentless::Static { program: program.clone() }));
            let line = format!("#!{} -x\n", program.display());
            file(here, "script", &line, 0o755);
            assert_eq!(agentless(&here.join("script")), Some(Agentless::Static { program }));
        }
        file(here, "script", "#!/bin/sh\n", 0o755);
        assert_eq!(agentless(&here.join("script")), None);
        let (mut known, program) = (ExaminedPrograms::default(), here.join("static"));
        let refused = Some(Agentless::Static { program: program.clone() });
        assert_eq!((known.look(&program, ""), known.look(&program, "")), (Ok(refused.clone()), Ok(refused)));
        std::fs::rename(here.join("dynamic"), &program).unwrap();
        assert_eq!(known.look(&program, ""), Ok(None));
        // The head of an i386 executable.
        let head = [&b"\x7fELF\x01\x01\x01"[..], &[0; 9], &[2, 0, 3, 0], &[0; 32]].concat();
        std::fs::write(here.join("narrow"), head).unwrap();
        assert_eq!(agentless(&here.join("narrow")), Some(Agentless::Narrow { program: here.join("narrow") }));
        file(here, "endless", &format!("#!{}\n", here.join("endless").display()), 0o755);
        for harmless in ["endless", "absent", "main.c"] {
            assert_eq!(agentless(&here.join(harmless)), None);
        }
    }
}
