//! Hosts as users name them: `a,b:4,10.0.0.3`, or a host file with one per line.

use std::path::{Path, PathBuf};

/// A host and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address.
    pub name: String,
    /// Ranks the user wants on it; 0 if not said.
    pub slots: u32,
}

/// Why a list of hosts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// Not `name` or `name:slots`.
    #[error("`{text}` is not a host: expected a name or an IPv4 address, and optionally :RANKS (1 to 100000)")]
    Malformed {
        /// What was found.
        text: String,
    },
    /// Twice the same.
    #[error("host {name} is named twice")]
    Twice {
        /// The name that comes twice.
        name: String,
    },
    /// The host file cannot be read.
    #[error("cannot read the host file {}", path.display())]
    File {
        /// The path that this is about.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The host file names none.
    #[error("the host file {} names no host", path.display())]
    Empty {
        /// The path that this is about.
        path: PathBuf,
    },
}

impl HostsError {
    /// What a user can do about it; may be empty.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "write for example --hosts a,b or --hosts a:2,b:2",
            Self::Twice { .. } => "give a host more ranks with NAME:RANKS; a spare must not also be a host",
            Self::File { .. } | Self::Empty { .. } => "a host file has one host per line, NAME or NAME:RANKS; # begins a comment",
        }
    }
}

fn host(text: &str) -> Result<Host, HostsError> {
    let malformed = || HostsError::Malformed { text: text.to_owned() };
    let (name, slots) = match text.split_once(':') {
        Some((name, slots)) => (name, slots.parse().ok().filter(|slots| (1..=100_000).contains(slots)).ok_or_else(malformed)?),
        None => (text, 0),
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || name.starts_with('-') || !name.chars().all(valid) {
        return Err(malformed());
    }
    Ok(Host { name: name.to_owned(), slots })
}

/// Reads a comma-separated list.
///
/// # Errors
/// [`HostsError::Malformed`].
pub fn parse_list(text: &str) -> Result<Vec<Host>, HostsError> {
    text.split(',').map(|item| host(item.trim())).collect()
}

/// Reads a host file: one host per line (`name`, `name:slots`), `#` begins a comment; a repeated line adds a slot.
///
/// # Errors
/// See [`HostsError`].
pub fn read_file(path: &Path) -> Result<Vec<Host>, HostsError> {
    let text = std::fs::read_to_string(path).map_err(|source| HostsError::File { path: path.to_owned(), source })?;
    let mut hosts: Vec<Host> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let new = host(line)?;
        match hosts.iter_mut().find(|host| host.name == new.name) {
            Some(known) => known.slots = known.slots.max(1) + new.slots.max(1),
            None => hosts.push(new),
        }
    }
    if hosts.is_empty() { Err(HostsError::Empty { path: path.to_owned() }) } else { Ok(hosts) }
}

/// Checks that no host is named twice, spares included.
///
/// # Errors
/// [`HostsError::Twice`].
pub fn check_distinct(hosts: &[Host]) -> Result<(), HostsError> {
    for (at, host) in hosts.iter().enumerate() {
        if hosts[..at].iter().any(|other| other.name == host.name) {
            return Err(HostsError::Twice { name: host.name.clone() });
        }
    }
    Ok(())
}

/// How many ranks the user wants on these hosts; `None` if that was not said of all of them.
#[must_use]
pub fn slots(hosts: &[Host]) -> Option<u64> {
    let all = !hosts.is_empty() && hosts.iter().all(|host| host.slots > 0);
    all.then(|| hosts.iter().map(|host| u64::from(host.slots)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let b = Host { name: "b".into(), slots: 4 };
        assert_eq!(parse_list("a, b:4").unwrap(), [Host { name: "a".into(), slots: 0 }, b]);
        for bad in ["", "a,,b", "a:0", "a:x", "-a", "a b"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
        assert!(check_distinct(&parse_list("a,b,a").unwrap()).is_err());
        assert_eq!(["a:2,b:1", "a:2,b", "a"].map(|list| slots(&parse_list(list).unwrap())), [Some(3), None, None]);
    }

    #[test]
    fn files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\na:2 # fat\n\nb\nb\n").unwrap();
        let hosts = read_file(file.path()).unwrap();
        assert_eq!(hosts, [Host { name: "a".into(), slots: 2 }, Host { name: "b".into(), slots: 2 }]);
        std::fs::write(file.path(), "# none\n").unwrap();
        assert!(matches!(read_file(file.path()), Err(HostsError::Empty { .. })));
    }
}
