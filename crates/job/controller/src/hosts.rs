//! Hosts as users name them: `a,b:4,10.0.0.3`, `n[01-10,12]:2` as batch systems write them, or a host file with one per line.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Most hosts that a list may name.
const MAX_HOSTS: usize = 100_000;

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
    /// Brackets that name no list.
    #[error("`{text}` is not a list of hosts: {why}")]
    Brackets {
        /// What was found.
        text: String,
        /// What is wrong with it.
        why: String,
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
            Self::Brackets { .. } => "write for example --hosts n[01-10,12] or --hosts n[1-4]:2, quoted for the shell",
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
/// [`HostsError::Malformed`], [`HostsError::Brackets`].
pub fn parse_list(text: &str) -> Result<Vec<Host>, HostsError> {
    let mut hosts = Vec::new();
    for item in items(text) {
        hosts.extend(host_list(item.trim(), MAX_HOSTS - hosts.len())?);
    }
    Ok(hosts)
}

/// What stands between commas, but for those in brackets.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut open = false;
    text.split(move |c: char| {
        open = c == '[' || open && c != ']';
        c == ',' && !open
    })
}

/// The hosts that one item names, at most so many.
fn host_list(item: &str, most: usize) -> Result<Vec<Host>, HostsError> {
    let wrong = |why: String| HostsError::Brackets { text: item.to_owned(), why };
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (list, behind) = after.split_once(']').ok_or_else(|| wrong("a bracket is not closed".into()))?;
        let numbers = numbers(list, most).map_err(wrong)?;
        if names.len().saturating_mul(numbers.len()) > most {
            return Err(wrong(format!("these are more than {MAX_HOSTS} hosts")));
        }
        names = names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}"))).collect();
        rest = behind;
    }
    if most == 0 {
        return Err(wrong(format!("these are more than {MAX_HOSTS} hosts")));
    }
    names.iter().map(|name| host(&format!("{name}{rest}"))).collect()
}

/// The numbers of `01-10,12`, as wide as they are written, at most so many.
fn numbers(list: &str, most: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten().ok_or_else(|| format!("`{part}` is neither a number nor a range of them"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("`{part}` goes down"));
        }
        if to - from >= most.saturating_sub(all.len()) as u64 {
            return Err(format!("these are more than {MAX_HOSTS} hosts"));
        }
        let width = first.len();
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

/// Reads a host file, in time that grows with its lines: one host per line (`name`, `name:slots`), `#` begins a comment; a repeated line adds a slot.
///
/// # Errors
/// See [`HostsError`].
pub fn read_file(path: &Path) -> Result<Vec<Host>, HostsError> {
    let text = std::fs::read_to_string(path).map_err(|source| HostsError::File { path: path.to_owned(), source })?;
    let mut hosts: Vec<Host> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        for new in host_list(line, MAX_HOSTS - hosts.len())? {
            match places.entry(new.name.clone()) {
                Entry::Occupied(place) => {
                    let known = &mut hosts[*place.get()];
                    known.slots = known.slots.max(1).saturating_add(new.slots.max(1));
                }
                Entry::Vacant(place) => {
                    place.insert(hosts.len());
                    hosts.push(new);
                }
            }
        }
    }
    if hosts.is_empty() { Err(HostsError::Empty { path: path.to_owned() }) } else { Ok(hosts) }
}

/// The hosts of a list, or of a host file; none of neither.
///
/// # Errors
/// See [`HostsError`].
pub fn given(list: Option<&str>, file: Option<&Path>) -> Result<Vec<Host>, HostsError> {
    match (list, file) {
        (Some(list), _) => parse_list(list),
        (None, Some(file)) => read_file(file),
        (None, None) => Ok(Vec::new()),
    }
}

/// Checks that no host is named twice, spares included.
///
/// # Errors
/// [`HostsError::Twice`].
pub fn check_distinct(hosts: &[Host]) -> Result<(), HostsError> {
    let mut known = HashSet::new();
    match hosts.iter().find(|host| !known.insert(&host.name)) {
        Some(host) => Err(HostsError::Twice { name: host.name.clone() }),
        None => Ok(()),
    }
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
    fn lists_in_brackets() {
        let names = |text: &str| parse_list(text).unwrap().into_iter().map(|host| host.name).collect::<Vec<_>>().join(" ");
        assert_eq!(names("n[01-03,12], b"), "n01 n02 n03 n12 b");
        assert_eq!(names("r[1-2]n[8-10].x,a"), "r1n8.x r1n9.x r1n10.x r2n8.x r2n9.x r2n10.x a");
        assert_eq!(names("n[098-101]"), "n098 n099 n100 n101");
        assert_eq!(slots(&parse_list("n[1-3]:2").unwrap()), Some(6));
        for bad in ["n[1-3", "n1-3]", "n[]", "n[3-1]", "n[a-b]", "n[1-]", "n[1-+3]", "n[1,,2]", "n[[1]]", "[1-2]:x", "n[0-100000]"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
        assert!(matches!(parse_list("n[0-18446744073709551615]"), Err(HostsError::Brackets { .. })));
        assert!(matches!(parse_list("r[1-1000]n[1-1000]"), Err(HostsError::Brackets { .. })));
        assert!(check_distinct(&parse_list("n[1-2],n2").unwrap()).is_err());
    }

    #[test]
    fn files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# ours\na:2 # fat\n\nb\nb\n").unwrap();
        let hosts = read_file(file.path()).unwrap();
        assert_eq!(hosts, [Host { name: "a".into(), slots: 2 }, Host { name: "b".into(), slots: 2 }]);
        std::fs::write(file.path(), "n[1-3]\nn2:4\nn[3-4]\n").unwrap();
        let slots: Vec<(String, u32)> = read_file(file.path()).unwrap().into_iter().map(|host| (host.name, host.slots)).collect();
        assert_eq!(slots, [("n1", 0), ("n2", 5), ("n3", 2), ("n4", 0)].map(|(name, slots)| (name.to_owned(), slots)));
        std::fs::write(file.path(), "# none\n").unwrap();
        assert!(matches!(read_file(file.path()), Err(HostsError::Empty { .. })));
    }
}
