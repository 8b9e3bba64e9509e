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
    /// The space is made on the job's nodes, unless there is one of that name.
    pub made: Option<Made>,
}

/// How a space is made for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Its targets are in memory.
    pub memory: bool,
    /// It stays when the job has ended.
    pub keep: bool,
}

/// What may stand behind a directory, after a colon.
const OPTIONS: [&str; 5] = ["rw", "ro", "create", "memory", "keep"];

/// The options of one space, as they were read.
#[derive(Default)]
struct Options {
    writable: Option<bool>,
    create: bool,
    made: Made,
    /// Something stands behind the directory, so that more may follow.
    given: bool,
}

impl Options {
    /// Takes one; false if it is none.
    fn take(&mut self, word: &str) -> bool {
        match word {
            "rw" => self.writable = Some(true),
            "ro" => self.writable = Some(false),
            "create" => self.create = true,
            "memory" => self.made.memory = true,
            "keep" => self.made.keep = true,
            _ => return false,
        }
        self.given = true;
        true
    }

    fn settle(self, mount: Mount) -> Result<Mount, String> {
        if !self.create && (self.made.memory || self.made.keep) {
            let word = if self.made.memory { "memory" } else { "keep" };
            return Err(format!("{}:{}: `{word}` is of spaces that are made for the job: add `create`", mount.space, mount.directory));
        }
        Ok(Mount { made: self.create.then_some(self.made), writable: self.writable.unwrap_or(self.create), ..mount })
    }
}

/// Reads `NAME:DIRECTORY` or `NAME:DIRECTORY:OPTION[,OPTION…]`, several with commas between them. Options are `rw` and `ro` (ranks may write into it, or not, which is the same as none), `create`
/// (it is made on the job's nodes; ranks may write into it unless `ro` is there, too), and with that `memory` and `keep`.
///
/// # Errors
/// What is wrong with it.
pub fn read(text: &str) -> Result<Vec<Mount>, String> {
    let mut read: Vec<(Mount, Options)> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let Some((space, directory)) = word.split_once(':') else {
            if !read.last_mut().is_some_and(|(_, options)| options.given && options.take(word)) {
                return Err(format!("`{word}` is no NAME:DIRECTORY, and no option of one"));
            }
            continue;
        };
        if !is_name(space) {
            return Err(format!("`{space}` is no name of a data space"));
        }
        let mut options = Options::default();
        let directory = match directory.rsplit_once(':') {
            Some((directory, option)) if options.take(option) => directory,
            _ => directory,
        };
        let directory = directory.trim_end_matches(|end: char| end == '/' || end.is_whitespace());
        if !directory.starts_with('/') || directory.split('/').any(|part| part == "..") {
            return Err(format!("`{word}`: the directory must be absolute, without `..`, and not the root"));
        }
        if read.iter().any(|(mount, _)| mount.directory == directory) {
            return Err(format!("two data spaces are to be seen at {directory}"));
        }
        read.push((Mount { space: space.to_owned(), directory: directory.to_owned(), writable: false, made: None }, options));
    }
    read.into_iter().map(|(mount, options)| options.settle(mount)).collect()
}

/// The text of these.
#[must_use]
pub fn write(mounts: &[Mount]) -> String {
    let one = |mount: &Mount| {
        // A directory whose name ends like an option needs to be told apart.
        let ends = mount.directory.rsplit_once(':').is_some_and(|(_, end)| OPTIONS.contains(&end));
        let mut options = Vec::new();
        match mount.made {
            Some(made) => {
                options.extend([if mount.writable { "rw" } else { "ro" }, "create"]);
                options.extend(made.memory.then_some("memory"));
                options.extend(made.keep.then_some("keep"));
            }
            None if mount.writable => options.push("rw"),
            None if ends => options.push("ro"),
            None => {}
        }
        let colon = if options.is_empty() { "" } else { ":" };
        format!("{}:{}{colon}{}", mount.space, mount.directory, options.join(","))
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
        let made = read("s:/mnt/s:create, memory,in:/mnt/in,k:/mnt/k:ro,create,keep").unwrap();
        assert_eq!(made.iter().map(|mount| mount.writable).collect::<Vec<_>>(), [true, false, false]);
        let how = |memory, keep| Some(Made { memory, keep });
        assert_eq!(made.iter().map(|mount| mount.made).collect::<Vec<_>>(), [how(true, false), None, how(false, true)]);
        assert_eq!(write(&made), "s:/mnt/s:rw,create,memory,in:/mnt/in,k:/mnt/k:ro,create,keep");
        assert_eq!(read(&write(&made)), Ok(made));
        for bad in ["s:/mnt/s,create", "s:/mnt/s:creat", "s:/mnt/s:keep", "s:/mnt/s:rw,memory", "create", "s:/mnt/s:rw,creat"] {
            assert!(read(bad).is_err() || read(bad).unwrap()[0].directory.ends_with(":creat"), "{bad}");
        }
        for bad in ["input", "input:data", "in put:/a", "a:/", "a:/b/../c", "a:/b,c:/b"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(names(&read("b:/1,a:/2,b:/3").unwrap()), ["a", "b"]);
        assert!(covers(&mounts, "/mnt/data/x") && covers(&mounts, "/mnt/more") && !covers(&mounts, "/mnt/database"));
    }
}
