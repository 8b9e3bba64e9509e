//! Where ranks see spaces: the text of `--data`, and of the variable that carries it to the nodes.

use super::is_name;

/// The variable, in the environment of a job's program: it goes where the program goes, into checkpoints as well.
pub const VARIABLE: &str = "MEND_DATA_SPACES";

/// A space that ranks see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Name of the space.
    pub space: String,
    /// The directory where ranks see it, absolute.
    pub directory: String,
    /// Ranks may write into it.
    pub writable: bool,
}

/// What stands behind a directory in which ranks may write, and in which they may not.
const WRITABLE: &str = ":rw";
const READ_ONLY: &str = ":ro";

/// Reads `NAME:DIRECTORY`, `NAME:DIRECTORY:rw` or `NAME:DIRECTORY:ro`, which is the first again, several with commas between them.
///
/// # Errors
/// What is wrong with it.
pub fn read(text: &str) -> Result<Vec<Mount>, String> {
    let mut mounts: Vec<Mount> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (space, directory) = word.split_once(':').ok_or_else(|| format!("`{word}` is no NAME:DIRECTORY"))?;
        if !is_name(space) {
            return Err(format!("`{space}` is no name of a data space"));
        }
        let (directory, writable) = match (directory.strip_suffix(WRITABLE), directory.strip_suffix(READ_ONLY)) {
            (Some(directory), _) => (directory, true),
            (None, found) => (found.unwrap_or(directory), false),
        };
        let directory = directory.trim_end_matches(|end: char| end == '/' || end.is_whitespace());
        if !directory.starts_with('/') || directory.split('/').any(|part| part == "..") {
            return Err(format!("`{word}`: the directory must be absolute, without `..`, and not the root"));
        }
        if mounts.iter().any(|mount| mount.directory == directory) {
            return Err(format!("two data spaces are to be seen at {directory}"));
        }
        mounts.push(Mount { space: space.to_owned(), directory: directory.to_owned(), writable });
    }
    Ok(mounts)
}

/// The text of these.
#[must_use]
pub fn write(mounts: &[Mount]) -> String {
    let one = |mount: &Mount| {
        // A directory whose name ends like this needs to be told apart.
        let ends = [WRITABLE, READ_ONLY].iter().any(|end| mount.directory.ends_with(end));
        let how = if mount.writable {
            WRITABLE
        } else if ends {
            READ_ONLY
        } else {
            ""
        };
        format!("{}:{}{how}", mount.space, mount.directory)
    };
    mounts.iter().map(one).collect::<Vec<_>>().join(",")
}

/// What the environment of a job's program says, not yet read; empty if its ranks see no spaces.
#[must_use]
pub fn of_environment(env: &[(String, String)]) -> &str {
    env.iter().find(|(name, _)| name == VARIABLE).map_or("", |(_, value)| value.as_str())
}

/// Names of the spaces, each once, in order.
#[must_use]
pub fn names(mounts: &[Mount]) -> Vec<String> {
    let mut names: Vec<String> = mounts.iter().map(|mount| mount.space.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// True if a path is within what these mount.
#[must_use]
pub fn covers(mounts: &[Mount], path: &str) -> bool {
    mounts.iter().any(|mount| path.strip_prefix(mount.directory.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_they_are_written() {
        let mounts = read("input:/mnt/data/, more:/mnt/more").unwrap();
        assert_eq!(write(&mounts), "input:/mnt/data,more:/mnt/more");
        assert_eq!(read(&write(&mounts)), Ok(mounts.clone()));
        assert_eq!(read(""), Ok(Vec::new()));
        // What stands before the slash at the end would be the end of what is written.
        let spaced = read("input:/mnt/data /\u{b}//").unwrap();
        assert_eq!((write(&spaced), read(&write(&spaced))), ("input:/mnt/data".to_owned(), Ok(spaced)));
        let writable = read("out:/mnt/out/:rw,in:/mnt/in:ro,odd:/mnt/odd:rw:ro").unwrap();
        assert_eq!(writable.iter().map(|mount| mount.writable).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(writable[2].directory, "/mnt/odd:rw");
        assert_eq!((write(&writable), read(&write(&writable))), ("out:/mnt/out:rw,in:/mnt/in,odd:/mnt/odd:rw:ro".to_owned(), Ok(writable)));
        for bad in ["input", "input:data", "in put:/a", "a:/", "a:/b/../c", "a:/b,c:/b"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(names(&read("b:/1,a:/2,b:/3").unwrap()), ["a", "b"]);
        assert!(covers(&mounts, "/mnt/data/x") && covers(&mounts, "/mnt/more") && !covers(&mounts, "/mnt/database"));
    }
}
