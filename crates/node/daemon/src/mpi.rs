//! Whether a program's MPI library sends through libfabric, and so can be carried by Mend.
//!
//! Looks at the dynamic section only, the way ld.so(8) does: needed libraries, searched in run paths,
//! `LD_LIBRARY_PATH`, the loader's cache and its default directories. What cannot be found or read is let pass: a
//! wrong "no" would keep a good program from running, a wrong "yes" is reported by the MPI library itself.

use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Libraries looked at before the search gives up (and lets the program pass).
const MAX_LIBRARIES: usize = 300;
/// Largest library whose bytes are searched for a built-in libfabric.
const MAX_SCAN_BYTES: u64 = 256 << 20;

/// What Intel MPI opens unless it is told another path.
const INTEL_LIBFABRIC: &str = "libfabric.so.1";

/// Why a program's MPI cannot be carried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpiError {
    /// Another network layer.
    #[error("the program's MPI library {} does not use libfabric", library.display())]
    NoFabric {
        /// The library that this is about.
        library: PathBuf,
    },
    /// It would use libfabric, which is not there.
    #[error("the program's MPI library {} needs {needed}, which is not on this node", library.display())]
    FabricMissing {
        /// The library that this is about.
        library: PathBuf,
        /// The library it names.
        needed: String,
    },
}

impl MpiError {
    /// What a user can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoFabric { .. } => {
                "use an MPICH built with ch4:ofi or Intel MPI (both have the same ABI: put its lib directory into LD_LIBRARY_PATH), \
                 for example `pip install mpich`"
            }
            Self::FabricMissing { .. } => "install libfabric, or put the directory that holds it into LD_LIBRARY_PATH",
        }
    }
}

/// Where a program with this environment may find libraries: `LD_LIBRARY_PATH`, and the libfabric that Intel MPI was told
/// or comes with.
pub fn search_path<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> String {
    let named = variable("I_MPI_OFI_LIBRARY").and_then(|library| Path::new(library).parent()?.to_str()).map(str::to_owned);
    let own = variable("I_MPI_ROOT").map(|root| format!("{root}/opt/mpi/libfabric/lib:{root}/libfabric/lib"));
    let paths = [variable("LD_LIBRARY_PATH").map(str::to_owned), named, own];
    paths.into_iter().flatten().collect::<Vec<_>>().join(":")
}

/// Looks at the program when run with this search path: `LD_LIBRARY_PATH`, and other directories in which its MPI library may
/// find libfabric.
///
/// # Errors
/// See [`MpiError`].
pub fn examine(program: &Path, library_path: &str) -> Result<(), MpiError> {
    let loader = Loader { library_path: split(library_path, Path::new("/")), cache: read_cache_file() };
    let mut seen = HashSet::new();
    let mut waiting = VecDeque::from([program.to_owned()]);
    while let Some(file) = waiting.pop_front() {
        if seen.len() > MAX_LIBRARIES {
            return Ok(());
        }
        let Some(dynamic) = Dynamic::read(&file) else { continue };
        if is_mpi(&file) {
            return loader.check_mpi(&file, &dynamic);
        }
        for needed in &dynamic.needed {
            if seen.insert(needed.clone())
                && let Some(found) = loader.find(needed, &dynamic.run_path)
            {
                waiting.push_back(found);
            }
        }
    }
    Ok(())
}

/// `libmpi.so.12`, `libmpi.so.40`, `libmpich.so.12`, `libmpi_abi.so.0`, `libmpi_cray.so.12`: the libraries with the
/// C functions, not the language bindings beside them.
fn is_mpi(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let Some((stem, _)) = name.split_once(".so") else { return false };
    matches!(stem, "libmpi" | "libmpich" | "libmpi_abi") || stem.starts_with("libmpi_cray") || stem.starts_with("libmpi_gnu")
}

/// What a loaded file asks of the loader.
#[derive(Debug, Default)]
struct Dynamic {
    needed: Vec<String>,
    run_path: Vec<PathBuf>,
}

impl Dynamic {
    fn read(path: &Path) -> Option<Self> {
        let data = ReadCache::new(File::open(path).ok()?);
        let header = elf::FileHeader64::<Endianness>::parse(&data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &data).ok()?;
        let entries = segments.iter().find_map(|segment| segment.dynamic(endian, &data).ok().flatten())?;
        let value = |tag: u32| entries.iter().find(|entry| entry.tag32(endian) == Some(tag)).map(|entry| entry.d_val(endian));
        let (table, size) = (value(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?.min(64 << 20));
        // The table is given by its address in memory; the segment that holds it says where it is in the file.
        let place = segments.iter().find_map(|segment| {
            let start = segment.p_vaddr(endian);
            let inside = segment.p_type(endian) == elf::PT_LOAD && (start..start.checked_add(segment.p_filesz(endian))?).contains(&table);
            inside.then(|| segment.p_offset(endian).checked_add(table - start)).flatten()
        })?;
        let strings = (&data).read_bytes_at(place, size).ok()?;
        let text = |at: u64| {
            let rest = strings.get(usize::try_from(at).ok()?..)?;
            let end = rest.iter().position(|&byte| byte == 0)?;
            std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
        };
        let origin = path.parent().unwrap_or(Path::new("/"));
        let mut found = Self::default();
        for entry in entries {
            match entry.tag32(endian) {
                Some(elf::DT_NEEDED) => found.needed.extend(text(entry.d_val(endian))),
                Some(elf::DT_RPATH | elf::DT_RUNPATH) => {
                    found.run_path.extend(text(entry.d_val(endian)).iter().flat_map(|path| split(path, origin)));
                }
                _ => {}
            }
        }
        Some(found)
    }
}

/// The entries of a search path, `$ORIGIN` replaced.
fn split(path: &str, origin: &Path) -> Vec<PathBuf> {
    let origin = origin.to_string_lossy();
    path.split([':', ';'])
        .filter(|entry| !entry.is_empty())
        .map(|entry| PathBuf::from(entry.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)))
        .collect()
}

struct Loader {
    library_path: Vec<PathBuf>,
    cache: Vec<u8>,
}

impl Loader {
    fn find(&self, name: &str, run_path: &[PathBuf]) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|path| path.exists());
        }
        let defaults =
            ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from);
        run_path
            .iter()
            .chain(&self.library_path)
            .chain(&defaults)
            .map(|directory| directory.join(name))
            .find(|candidate| candidate.exists())
            .or_else(|| self.cached(name))
    }

    /// The path under which the loader's cache lists `name`: in its string table the name is followed by its path.
    fn cached(&self, name: &str) -> Option<PathBuf> {
        let suffix = format!("/{name}");
        let entry = self
            .cache
            .split(|&byte| byte == 0)
            .filter_map(|text| std::str::from_utf8(text).ok())
            .find(|text| text.starts_with('/') && text.ends_with(&suffix))?;
        Some(PathBuf::from(entry)).filter(|path| path.exists())
    }

    fn check_mpi(&self, library: &Path, dynamic: &Dynamic) -> Result<(), MpiError> {
        let library = library.to_owned();
        if let Some(needed) = dynamic.needed.iter().find(|name| name.starts_with("libfabric.so")) {
            return match self.find(needed, &dynamic.run_path) {
                Some(_) => Ok(()),
                None => Err(MpiError::FabricMissing { library, needed: needed.clone() }),
            };
        }
        // It may have libfabric built in (its environment variables are then in it) or open it itself (Intel MPI, which
        // reports an unknown error if it is not there).
        let traces: [&[u8]; 3] = [b"FI_PROVIDER_PATH", b"libfabric.so", b"I_MPI_OFI_LIBRARY"];
        match contained(&library, traces) {
            Some([_, _, true]) if self.find(INTEL_LIBFABRIC, &dynamic.run_path).is_none() => {
                Err(MpiError::FabricMissing { library, needed: INTEL_LIBFABRIC.to_owned() })
            }
            Some([false, false, _]) => Err(MpiError::NoFabric { library }),
            Some(_) | None => Ok(()),
        }
    }
}

fn read_cache_file() -> Vec<u8> {
    let mut cache = Vec::new();
    if let Ok(file) = File::open("/etc/ld.so.cache") {
        // A cache that cannot be read is as good as none.
        let _ = file.take(64 << 20).read_to_end(&mut cache);
    }
    cache
}

/// `None` if the file cannot be read or is too large.
fn contained<const N: usize>(path: &Path, texts: [&[u8]; N]) -> Option<[bool; N]> {
    let file = File::open(path).ok()?;
    if file.metadata().ok()?.len() > MAX_SCAN_BYTES {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_SCAN_BYTES).read_to_end(&mut bytes).ok()?;
    Some(texts.map(|text| memchr::memmem::find(&bytes, text).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_library_with_the_functions_counts() {
        for name in ["libmpi.so.12", "libmpi.so.40.30.4", "libmpich.so.12", "libmpi_abi.so.1", "libmpi_cray.so.12"] {
            assert!(is_mpi(&Path::new("/x").join(name)), "{name}");
        }
        for name in ["libmpi_mpifh.so.40", "libmpichcxx.so.12", "libmpifort.so.12", "lmp", "libm.so.6"] {
            assert!(!is_mpi(&Path::new("/x").join(name)), "{name}");
        }
    }

    #[test]
    fn programs_without_mpi_scripts_and_absent_files_pass() {
        assert_eq!(examine(Path::new("/bin/sh"), ""), Ok(()));
        assert_eq!(examine(Path::new("/etc/passwd"), ""), Ok(()));
        assert_eq!(examine(Path::new("/no/such/file"), "/x:/y"), Ok(()));
    }

    #[test]
    fn the_dynamic_section_of_a_real_program_is_read() {
        let dynamic = Dynamic::read(Path::new("/proc/self/exe")).unwrap();
        assert!(dynamic.needed.iter().any(|name| name.starts_with("libc.so")), "{dynamic:?}");
    }

    #[test]
    fn libfabric_is_looked_for_where_intel_mpi_looks() {
        let variables = |name: &str| match name {
            "LD_LIBRARY_PATH" => Some("/a:/b"),
            "I_MPI_OFI_LIBRARY" => Some("/c/libfabric.so.1"),
            "I_MPI_ROOT" => Some("/intel"),
            _ => None,
        };
        assert_eq!(search_path(variables), "/a:/b:/c:/intel/opt/mpi/libfabric/lib:/intel/libfabric/lib");
        assert_eq!(search_path(|_| None), "");
    }

    #[test]
    fn origin_is_the_directory_of_the_file() {
        let paths = split("$ORIGIN:${ORIGIN}/../lib::/usr/lib", Path::new("/opt/bin"));
        assert_eq!(paths, [Path::new("/opt/bin"), Path::new("/opt/bin/../lib"), Path::new("/usr/lib")]);
    }
}
