//! Files that ranks wrote and that nobody sees, since something else has their path: what was made on both sides of a partition of the network.
//!
//! Who makes a file claims its path at a target. Nodes that cannot reach the same targets claim it at different ones, and each makes a file. When all targets are heard again, one of the
//! two is seen. The other one has bytes that were synced, too: it gets a name of its own beside the path, which tells of that. Whoever gives it is told the same by everybody who
//! knows the file, so it can be given twice.

use super::{Entry, Id, MAX_NAME, MAX_PATH};

/// What stands between the name that a file was to have and what makes it its own.
const MARK: &str = ".conflict-";

/// Bytes of the identity that the name tells.
const TOLD: usize = 8;

fn mark(id: &Id) -> String {
    let told: String = id[..TOLD].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{MARK}{told}")
}

/// The path of a file that nobody sees at its own. A name that would be too long loses its end.
#[must_use]
pub fn path_beside(entry: &Entry) -> String {
    let mark = mark(&entry.id);
    let (directory, name) = entry.path.rsplit_once('/').map_or(("", &*entry.path), |(directory, name)| (directory, name));
    let slash = usize::from(!directory.is_empty());
    let room = MAX_NAME.min(MAX_PATH.saturating_sub(directory.len() + slash)).saturating_sub(mark.len());
    let mut end = name.len().min(room);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let slash = &"/"[..slash];
    format!("{directory}{slash}{}{mark}", &name[..end])
}

/// True if a file has such a path.
#[must_use]
pub fn is_beside(entry: &Entry) -> bool {
    entry.written().is_some() && entry.path.ends_with(&mark(&entry.id))
}

#[cfg(test)]
mod tests {
    use super::super::written::Written;
    use super::super::{BLOCK, Kind, is_path};
    use super::*;

    fn written(path: &str) -> Entry {
        let file = Written { stripe: BLOCK, objects: vec![[0, 1]], epoch: 0, filling: Vec::new(), mode: 0o644 };
        Entry { id: [0xab; 16], version: 1, path: path.to_owned(), made_ns: 0, kind: Kind::Written(file) }
    }

    #[test]
    fn the_name_beside_a_path_is_one_and_tells_whose_it_is() {
        let entry = written("out/result.h5");
        let beside = Entry { path: path_beside(&entry), ..entry.clone() };
        assert_eq!(beside.path, "out/result.h5.conflict-abababababababab");
        assert!(is_beside(&beside) && !is_beside(&entry) && !is_beside(&Entry { id: [1; 16], ..beside }));
        assert_eq!(path_beside(&written("result")), "result.conflict-abababababababab");
    }

    #[test]
    fn a_name_that_is_long_stays_a_name() {
        let deep = format!("{}/{}", "d/".repeat(1915).trim_end_matches('/'), "ü".repeat(127));
        for path in ["n".repeat(255), "ü".repeat(127), deep] {
            assert!(is_path(&path), "{}", path.len());
            let beside = path_beside(&written(&path));
            assert!(is_path(&beside) && beside.ends_with("abababab"), "{beside}");
        }
    }
}
