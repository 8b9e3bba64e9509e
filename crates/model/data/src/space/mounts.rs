//! Where ranks see spaces: the text of `--data`, and of the variable that carries it to the nodes.

use super::{bucket_obstacle, is_name};
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Its targets are in memory.
    pub memory: bool,
    /// It stays when the job has ended.
    pub keep: bool,
    /// What ranks write is on one target, and lost with that.
    pub one_copy: bool,
    /// It is in a bucket, below this prefix (`s3://BUCKET/PREFIX`), and ranks do not write into it.
    pub bucket: Option<String>,
}

/// What may stand behind a directory, after a colon.
const OPTIONS: [&str; 7] = ["rw", "ro", "create", "memory", "keep", ONE_COPY, TWO_COPIES];
const ONE_COPY: &str = "copies=1";
const TWO_COPIES: &str = "copies=2";
/// Where the kernel shows itself.
const OF_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Behind it stands the prefix of a bucket.
const IN_BUCKET: &str = "bucket=";

/// The options of one space, as they were read.
#[derive(Default)]
struct Options {
    writable: Option<bool>,
    create: bool,
    made: Made,
    /// It is said on how many targets what ranks write is.
    copies: bool,
    /// Two that exclude each other.
    contrary: Option<[&'static str; 2]>,
    /// Something stands behind the directory, so that more may follow.
    given: bool,
}

impl Options {
    /// Takes one; false if it is none.
    fn take(&mut self, word: &str) -> bool {
        match word {
            "rw" | "ro" => {
                let writable = word == "rw";
                if self.writable.replace(writable) == Some(!writable) {
                    self.contrary = Some(["rw", "ro"]);
                }
            }
            "create" => self.create = true,
            "memory" => self.made.memory = true,
            "keep" => self.made.keep = true,
            ONE_COPY | TWO_COPIES => {
                let one = word == ONE_COPY;
                if std::mem::replace(&mut self.copies, true) && self.made.one_copy != one {
                    self.contrary = Some([ONE_COPY, TWO_COPIES]);
                }
                self.made.one_copy = one;
            }
            _ => match word.strip_prefix(IN_BUCKET) {
                Some(place) => self.made.bucket = Some(place.to_owned()),
                None => return false,
            },
        }
        self.given = true;
        true
    }

    fn settle(self, mount: Mount) -> Result<Mount, String> {
        let Self { writable, create, made, copies, contrary, given: _ } = self;
        let wrong = |why: String| Err(format!("{}:{}: {why}", mount.space, mount.directory));
        if let Some([one, other]) = contrary {
            return wrong(format!("`{one}` and `{other}` exclude each other"));
        }
        let of_made = [(made.memory, "memory"), (made.keep, "keep"), (copies, "copies"), (made.bucket.is_some(), "bucket")];
        if let Some((_, word)) = of_made.into_iter().find(|(there, _)| *there && !create) {
            return wrong(format!("`{word}` is of spaces that are made for the job: add `create`"));
        }
        if let Some(place) = &made.bucket {
            if let Some(why) = bucket_obstacle(place) {
                return wrong(format!("`{IN_BUCKET}{place}`: {why}"));
            }
            if made.memory || copies || writable == Some(true) {
                return wrong(format!("`{IN_BUCKET}` is without `memory`, `copies` and `rw`: ranks only read what is in a bucket"));
            }
        }
        let writable = writable.unwrap_or(create && made.bucket.is_none());
        Ok(Mount { made: create.then_some(made), writable, ..mount })
    }
}

/// Reads `NAME:DIRECTORY` or `NAME:DIRECTORY:OPTION[,OPTION…]`, several with commas between them. Options are `rw` and `ro` (ranks may write into it, or not, which is the same as none), `create`
/// (it is made on the job's nodes; ranks may write into it unless `ro` is there, too), and with that `memory`, `keep`, `copies=1` and `bucket=s3://BUCKET/PREFIX`.
///
/// # Errors
/// What is wrong with it.
pub fn read(text: &str) -> Result<Vec<Mount>, String> {
    let mut read: Vec<(Mount, Options)> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        // The place of a bucket has a colon, as NAME:DIRECTORY has.
        let mount = word.split_once(':').filter(|_| !word.starts_with(IN_BUCKET));
        let Some((space, directory)) = mount else {
            if !read.last_mut().is_some_and(|(_, options)| options.given && options.take(word)) {
                return Err(format!("`{word}` is no NAME:DIRECTORY, and no option of one"));
            }
            continue;
        };
        if !is_name(space) {
            return Err(format!("`{space}` is no name of a data space"));
        }
        let mut options = Options::default();
        let behind = directory.find(&format!(":{IN_BUCKET}")).map(|at| (&directory[..at], &directory[at + 1..]));
        let directory = match behind.or_else(|| directory.rsplit_once(':')) {
            Some((directory, option)) if options.take(option) => directory,
            Some((_, option)) if !option.contains('/') => {
                return Err(format!(
                    "`{option}` in `{word}` is none of {}, {IN_BUCKET}URI; a directory whose name ends so is written with an option, `{word}:ro`",
                    OPTIONS.join(", ")
                ));
            }
            _ => directory,
        };
        let Some(directory) = plain(directory) else {
            return Err(format!("`{word}`: the directory must be absolute, without `..`, and not the root"));
        };
        if read.iter().any(|(mount, _)| mount.directory == directory) {
            return Err(format!("two data spaces are to be seen at {directory}"));
        }
        read.push((Mount { space: space.to_owned(), directory, writable: false, made: None }, options));
    }
    read.into_iter().map(|(mount, options)| options.settle(mount)).collect()
}

/// Why a job's ranks are not to begin with these, if anything is wrong with their directories. Checkpoints of earlier releases may have some that are refused here.
#[must_use]
pub fn obstacle(mounts: &[Mount]) -> Option<String> {
    let of_kernel = |mount: &Mount| {
        let found = OF_KERNEL.into_iter().find(|of_kernel| is_within(&mount.directory, of_kernel))?;
        Some(format!("{}:{}: a program needs what is in {found}: name another directory", mount.space, mount.directory))
    };
    let within = |mount: &Mount| {
        let other = mounts.iter().find(|other| other.directory != mount.directory && is_within(&mount.directory, &other.directory))?;
        Some(format!(
            "the data space at {} and the one at {} are one within the other: name directories apart",
            other.directory, mount.directory
        ))
    };
    mounts.iter().find_map(of_kernel).or_else(|| mounts.iter().find_map(within))
}

/// The text of these.
#[must_use]
pub fn write(mounts: &[Mount]) -> String {
    let one = |mount: &Mount| {
        // What a directory's name ends with would be taken for an option.
        let ends = mount.directory.rsplit_once(':').is_some_and(|(_, end)| !end.contains('/'));
        let mut options = Vec::new();
        let bucket = mount.made.as_ref().and_then(|made| made.bucket.as_ref()).map(|place| format!("{IN_BUCKET}{place}"));
        match &mount.made {
            Some(made) => {
                options.extend([if mount.writable { "rw" } else { "ro" }, "create"]);
                options.extend(made.memory.then_some("memory"));
                options.extend(made.keep.then_some("keep"));
                options.extend(made.one_copy.then_some(ONE_COPY));
                options.extend(bucket.as_deref());
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
    mounts.iter().any(|mount| is_within(path, &mount.directory))
}

fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A directory without doubled slashes, `.`, and what is at its end; `None` if it is not absolute, has `..`, or is the root.
fn plain(directory: &str) -> Option<String> {
    let trimmed = directory.trim_end_matches(|end: char| end == '/' || end.is_whitespace());
    let parts = || trimmed.split('/').filter(|part| !part.is_empty() && *part != ".");
    if !trimmed.starts_with('/') || parts().any(|part| part == "..") || parts().next().is_none() {
        return None;
    }
    let plainer: String = parts().flat_map(|part| ["/", part]).collect();
    // Its end may be one that is taken off, too.
    if plainer == directory { Some(plainer) } else { plain(&plainer) }
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
        let how = |memory, keep| Some(Made { memory, keep, ..Made::default() });
        assert_eq!(made.iter().map(|mount| mount.made.clone()).collect::<Vec<_>>(), [how(true, false), None, how(false, true)]);
        assert_eq!(write(&made), "s:/mnt/s:rw,create,memory,in:/mnt/in,k:/mnt/k:ro,create,keep");
        assert_eq!(read(&write(&made)), Ok(made));
        let text = "s:/mnt/s:create,copies=1,b:/mnt/b:create,keep,bucket=s3://lab/in/2,c:/mnt/c:bucket=s3://lab/x,create";
        let made = read(text).unwrap();
        assert_eq!(made.iter().map(|mount| mount.writable).collect::<Vec<_>>(), [true, false, false]);
        let told: Vec<_> = made.iter().flat_map(|mount| &mount.made).map(|made| (made.one_copy, made.bucket.as_deref())).collect();
        assert_eq!(told, [(true, None), (false, Some("s3://lab/in/2")), (false, Some("s3://lab/x"))]);
        assert_eq!(
            write(&made),
            "s:/mnt/s:rw,create,copies=1,b:/mnt/b:ro,create,keep,bucket=s3://lab/in/2,c:/mnt/c:ro,create,bucket=s3://lab/x"
        );
        assert_eq!(read(&write(&made)), Ok(made));
        for bad in [
            "s:/mnt/s:copies=1",
            "s:/mnt/s:create,copies=3",
            "s:/mnt/s:bucket=s3://lab/x",
            "s:/mnt/s:create,bucket=lab",
            "s:/mnt/s:create,rw,bucket=s3://lab/x",
            "s:/mnt/s:create,memory,bucket=s3://lab/x",
            "s:/mnt/s:create,copies=2,bucket=s3://lab/x",
            "bucket=s3://lab/x",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in ["s:/mnt/s,create", "s:/mnt/s:creat", "s:/mnt/s:keep", "s:/mnt/s:rw,memory", "create", "s:/mnt/s:rw,creat"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in ["input", "input:data", "in put:/a", "a:/", "a:/./", "a:/b/../c", "a:/b,c:/b", "a:/b,c:/.//b"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in ["a:/b:rw,ro", "a:/b:create,copies=1,copies=2"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in ["a:/b,c:/b/d", "a:/b/d,c:/b", "a:/proc", "a:/dev/shm/x"] {
            assert!(obstacle(&read(bad).unwrap()).is_some(), "{bad}");
        }
        assert_eq!(obstacle(&read("a:/b,c:/bd,d:/device").unwrap()), None);
        assert_eq!(write(&read("a:/b/./c//d/:rw,rw,e:/bc").unwrap()), "a:/b/c/d:rw,e:/bc");
        assert_eq!(write(&read("a:/b/ /. /.").unwrap()), "a:/b");
        assert_eq!(names(&read("b:/1,a:/2,b:/3").unwrap()), ["a", "b"]);
        assert!(covers(&mounts, "/mnt/data/x") && covers(&mounts, "/mnt/more") && !covers(&mounts, "/mnt/database"));
    }
}
