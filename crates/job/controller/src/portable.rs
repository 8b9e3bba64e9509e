//! Portable checkpoints of a running job: asks the libraries in its ranks (libmend-app), and hears what came of it. Through files, since a library uses no other part of Mend.
//!
//! ```text
//! JOB/portable/R.library     a library is there, which rank R of the job speaks for: its directory, its number of ranks, its program
//!             /R.request     put there here, whole: `id = HEX`; removed by the library when it is answered
//!             /R.answer-ID   put there by the library: `checkpoint` and `bytes`, or `why` there is none
//!             /R.directory   as R.library, and stays: what the job has taken is below that directory, signed `taken-by`
//! ```
//! Ranks know the directory by their environment. A request stays until it is answered: whoever goes back to an earlier image of its memory sees it again.
//! Faults assumed: ranks and nodes die at any moment, the asker too; files are anybody's who may write to the job's directory, that is the user's.

use crate::record::JobDirectory;
use mend_coordination::portable::oldest_linked;
use mend_messages::job::Rank;
use mend_messages::portable::checkpoint_number;
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The variable by which ranks know where requests come, a setting of the library.
pub const VARIABLE: &str = "MEND_APP_REQUESTS";
/// Name of the directory.
const DIRECTORY: &str = "portable";
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often it is looked whether the job still runs.
const LOOK_AT_JOB: Duration = Duration::from_secs(1);
/// How long a library may be nowhere before it counts as gone: a rank that moves is for a moment neither here nor there.
const BETWEEN_RANKS: Duration = Duration::from_secs(10);
/// Longest file that is read.
const MAX_TEXT: u64 = 64 << 10;
/// Longest manifest that is read: of a million ranks.
const MAX_MANIFEST: u64 = 100 << 20;

/// A library in some of a job's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The rank that speaks for it.
    pub rank: Rank,
    /// Where its checkpoints are.
    pub directory: PathBuf,
    /// Ranks that it is in.
    pub ranks: u32,
    /// What the program calls itself; may be empty.
    pub program: String,
}

/// Why there is no portable checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Untaken {
    /// The library says why.
    #[error("{0}")]
    Refused(String),
    /// The job has ended.
    #[error("the job ended first")]
    JobEnded,
    /// No rank speaks for the library any more, and the job goes on.
    #[error("the program that was asked has ended")]
    ProgramEnded,
    /// It took too long.
    #[error("no answer came within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The job's directory cannot be used.
    #[error("{} cannot be used", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// A checkpoint that a library has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its number in the library's directory.
    pub checkpoint: u64,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Where requests come of the job with this directory.
#[must_use]
pub fn place(job: &Path) -> PathBuf {
    job.join(DIRECTORY)
}

/// The libraries that a job's ranks have.
#[must_use]
pub fn libraries(job: &Path) -> Vec<Library> {
    let Ok(entries) = fs::read_dir(place(job)) else { return Vec::new() };
    let read = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let rank = path.file_name()?.to_str()?.strip_suffix(".library")?.parse().ok()?;
        let text = text(&path)?;
        let directory = value(&text, "directory")?.into();
        Some(Library {
            rank,
            directory,
            ranks: value(&text, "ranks")?.parse().ok()?,
            program: value(&text, "program").unwrap_or_default().to_owned(),
        })
    };
    let mut found: Vec<Library> = entries.filter_map(read).collect();
    found.sort_by_key(|library| library.rank);
    found
}

/// A portable checkpoint that a job has taken and that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its number.
    pub number: u64,
    /// Ranks that it is of.
    pub ranks: u32,
    /// Bytes of their files.
    pub bytes: u64,
    /// Seconds since 1970 at which it counted.
    pub taken: u64,
    /// Older ones that it links to.
    pub needs: BTreeSet<u64>,
    /// Tiers that are said to have all of its files and of those that it links to, nearest first. After a loss they may have not.
    pub tiers: Vec<String>,
    /// Its directory, where its manifest is.
    pub directory: PathBuf,
}

/// The portable checkpoints that a job has taken, in ascending order in each directory.
#[must_use]
pub fn kept(job: &Path) -> Vec<Kept> {
    let place = place(job);
    let mut directories: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
        let path = entry.path();
        let told = if path.extension().is_some_and(|suffix| suffix == "directory") { text(&path) } else { None };
        directories.extend(told.as_deref().and_then(|told| value(told, "directory")).map(PathBuf::from));
    }
    directories.sort();
    directories.dedup();
    let mut found = Vec::new();
    for directory in directories {
        let all = Counted::in_directory(&directory);
        found.extend(all.values().filter_map(|one| Some(one.kept(&one.signed(&place)?, &all))));
    }
    found
}

/// A checkpoint that counts, whoever took it, as its directory tells.
struct Counted {
    number: u64,
    oldest: u64,
    lengths: Vec<u64>,
    taken: u64,
    directory: PathBuf,
}

impl Counted {
    fn read(directory: &Path) -> Option<Self> {
        let number = checkpoint_number(directory.file_name()?.to_str()?)?;
        let manifest = directory.join("manifest");
        let about = fs::metadata(&manifest).ok().filter(|found| found.len() <= MAX_MANIFEST)?;
        let taken = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let text = fs::read_to_string(&manifest).ok()?;
        let lengths = text.lines().filter_map(|line| line.strip_prefix("rank ")?.split(' ').nth(1)?.parse().ok()).collect();
        Some(Self { number, oldest: oldest_linked(&text, number), lengths, taken, directory: directory.to_owned() })
    }

    /// All in a directory of checkpoints.
    fn in_directory(directory: &Path) -> BTreeMap<u64, Self> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| Self::read(&entry.path())).map(|one| (one.number, one)).collect()
    }

    /// What it says of who took it, if that is the job whose ranks are asked there.
    fn signed(&self, requests: &Path) -> Option<String> {
        let signed = text(&self.directory.join("taken-by"))?;
        value(&signed, "requests").is_some_and(|by| Path::new(by) == requests).then_some(signed)
    }

    /// Whether a tier has its files, without those that it links to. `first`: ranks write there.
    fn is_in(&self, first: bool, tier: &str) -> bool {
        let has_all = |suffix: &str| (0..self.lengths.len()).all(|rank| self.directory.join(format!("rank-{rank:05}.{suffix}")).exists());
        match (first, tier) {
            (_, "shared") => has_all("h5") && has_all("seal"),
            (true, _) => has_all("node"),
            (false, name) => has_all(name),
        }
    }

    /// With what is `beside` it.
    fn kept(&self, signed: &str, beside: &BTreeMap<u64, Self>) -> Kept {
        let offered = value(signed, "tiers").unwrap_or_default();
        let names = if offered.is_empty() { "shared" } else { offered };
        let chain: Vec<&Self> = beside.range(self.oldest..=self.number).map(|(_, one)| one).collect();
        let is_whole = beside.contains_key(&self.oldest);
        let held = |(at, name): &(usize, &str)| is_whole && chain.iter().all(|one| one.is_in(*at == 0, name));
        Kept {
            number: self.number,
            ranks: self.lengths.len() as u32,
            bytes: self.lengths.iter().sum(),
            taken: self.taken,
            needs: chain.iter().map(|one| one.number).filter(|number| *number < self.number).collect(),
            tiers: names.split(',').enumerate().filter(held).map(|(_, name)| name.to_owned()).collect(),
            directory: self.directory.clone(),
        }
    }
}

/// Removes the portable checkpoints that a job has taken, unless a run uses their directory, or another job's checkpoint links to them. What stays for that. A removal that was cut short leaves none that
/// counts in part: what links to others goes first.
pub(crate) fn remove(job: &Path) -> io::Result<Option<PathBuf>> {
    let place = place(job);
    let mut left = None;
    for one in kept(job).into_iter().rev() {
        let Some(parent) = one.directory.parent() else { continue };
        // Held as long as it is being removed: no run begins meanwhile.
        let lock = fs::OpenOptions::new().read(true).write(true).open(parent.join("lock"));
        let used = lock.as_ref().is_ok_and(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err());
        let links = |other: &Counted| (other.oldest..other.number).contains(&one.number) && other.signed(&place).is_none();
        if used || Counted::in_directory(parent).values().any(links) {
            left = Some(parent.to_owned());
            continue;
        }
        fs::remove_file(one.directory.join("manifest"))?;
        fs::remove_dir_all(&one.directory)?;
    }
    Ok(left)
}

fn text(path: &Path) -> Option<String> {
    fs::metadata(path).ok().filter(|found| found.len() <= MAX_TEXT)?;
    fs::read_to_string(path).ok()
}

/// What a text has after `key = `.
fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))
}

/// A request that is taken back when it is dropped, unless it is answered.
struct Request {
    path: PathBuf,
    id: String,
}

impl Drop for Request {
    fn drop(&mut self) {
        if text(&self.path).is_some_and(|there| value(&there, "id") == Some(&self.id)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Request {
    /// `None` if another one is there.
    fn put(path: &Path) -> Result<Option<Self>, Untaken> {
        let id = format!("{:032x}", u128::from_le_bytes(mend_wire::random_bytes()));
        let unusable = |source| Untaken::Unusable { path: path.to_owned(), source };
        let partial = path.with_extension(format!("request-{id}.part"));
        fs::write(&partial, format!("id = {id}\n")).map_err(unusable)?;
        // Not renamed: that would take the place of another one.
        let linked = fs::hard_link(&partial, path);
        let _ = fs::remove_file(&partial);
        match linked {
            Ok(()) => Ok(Some(Self { path: path.to_owned(), id })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(unusable(error)),
        }
    }

    fn answer(&self) -> Option<Result<Taken, Untaken>> {
        let path = self.path.with_extension(format!("answer-{}", self.id));
        let told = text(&path)?;
        let _ = fs::remove_file(&path);
        let number = |key| value(&told, key).and_then(|number| number.parse().ok());
        Some(match (number("checkpoint"), number("bytes")) {
            (Some(checkpoint), Some(bytes)) => Ok(Taken { checkpoint, bytes }),
            _ => Err(Untaken::Refused(value(&told, "why").unwrap_or("its answer makes no sense").to_owned())),
        })
    }
}

/// Asks a library for a checkpoint and waits for what comes of it, at most as long as `patience`. Where another rank speaks for the library meanwhile, as when rank 0 of its
/// program has moved, that one is asked. Blocks.
///
/// # Errors
/// Why there is none.
pub fn take(job: &JobDirectory, library: &Library, patience: Option<Duration>) -> Result<Taken, Untaken> {
    take_from((job.path(), || job.is_running()), library, (patience, BETWEEN_RANKS))
}

fn take_from(
    (job, is_running): (&Path, impl Fn() -> bool),
    library: &Library,
    (patience, between_ranks): (Option<Duration>, Duration),
) -> Result<Taken, Untaken> {
    let mut path = request_of(job, library.rank);
    let begun = Instant::now();
    let (mut looked, mut seen) = (begun, begun);
    let mut request = None;
    loop {
        if request.is_none() {
            request = Request::put(&path)?;
        }
        if let Some(answer) = request.as_ref().and_then(Request::answer) {
            return answer;
        }
        if path.with_extension("library").exists() {
            seen = Instant::now();
        } else if let Some(there) = libraries(job).into_iter().find(|other| other.directory == library.directory) {
            // It may have answered before it went.
            if let Some(answer) = request.take().as_ref().and_then(Request::answer) {
                return answer;
            }
            path = request_of(job, there.rank);
            continue;
        } else if seen.elapsed() >= between_ranks && is_running() {
            return request.as_ref().and_then(Request::answer).unwrap_or(Err(Untaken::ProgramEnded));
        }
        if looked.elapsed() >= LOOK_AT_JOB {
            looked = Instant::now();
            if !is_running() {
                // It may have answered at its end.
                return request.as_ref().and_then(Request::answer).unwrap_or(Err(Untaken::JobEnded));
            }
        }
        if let Some(patience) = patience.filter(|patience| begun.elapsed() >= *patience) {
            return Err(Untaken::TimedOut(patience));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn request_of(job: &Path, rank: Rank) -> PathBuf {
    place(job).join(format!("{rank}.request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_that_say_all() {
        let job = tempfile::tempdir().unwrap();
        assert_eq!(libraries(job.path()), []);
        let place = place(job.path());
        fs::create_dir(&place).unwrap();
        fs::write(place.join("4.library"), "directory = /a = b\nranks = 2\nprogram = heat 1\n").unwrap();
        fs::write(place.join("0.library"), "directory = /c\nranks = 4\nprogram = \n").unwrap();
        fs::write(place.join("1.library"), "directory = /c\n").unwrap();
        fs::write(place.join("x.library"), "directory = /c\nranks = 4\n").unwrap();
        let library =
            |rank, directory: &str, ranks, program: &str| Library { rank, directory: directory.into(), ranks, program: program.into() };
        assert_eq!(libraries(job.path()), [library(0, "/c", 4, ""), library(4, "/a = b", 2, "heat 1")]);
    }

    #[test]
    fn a_tier_has_a_checkpoint_with_all_that_it_links_to_which_nobody_removes_under_another_one() {
        let (job, other, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(place(job.path())).unwrap();
        fs::write(place(job.path()).join("0.directory"), format!("directory = {}\n", home.path().display())).unwrap();
        let put = |number: u64, needs: u64, by: &Path, files: &[&str]| {
            let directory = home.path().join(format!("checkpoint-{number:06}"));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("taken-by"), format!("requests = {}\ntiers = memory,partner\n", place(by).display())).unwrap();
            fs::write(directory.join("manifest"), format!("checkpoint {number}\nneeds {needs}\nranks 1\nrank 0 100 0\n")).unwrap();
            files.iter().for_each(|name| fs::write(directory.join(format!("rank-00000.{name}")), "").unwrap());
        };
        put(10, 10, job.path(), &["node", "partner"]);
        put(20, 10, job.path(), &["node"]);
        put(30, 10, job.path(), &["node", "partner"]);
        put(40, 35, job.path(), &["node", "partner"]);
        let seen = |job: &Path| -> Vec<_> {
            kept(job).into_iter().map(|one| (one.number, one.needs.into_iter().collect::<Vec<_>>(), one.tiers.join(" "))).collect()
        };
        let (both, memory) = ("memory partner".to_owned(), "memory".to_owned());
        // What 40 links to is not there.
        let expected = [(10, vec![], both), (20, vec![10], memory.clone()), (30, vec![10, 20], memory), (40, vec![], String::new())];
        assert_eq!(seen(job.path()), expected);
        put(25, 20, other.path(), &[]);
        assert_eq!(remove(job.path()).unwrap(), Some(home.path().to_owned()));
        assert_eq!(kept(job.path()).iter().map(|one| one.number).collect::<Vec<_>>(), [20]);
        fs::remove_file(home.path().join("checkpoint-000025/manifest")).unwrap();
        assert_eq!(remove(job.path()).unwrap(), None);
        assert_eq!(kept(job.path()), []);
    }

    #[test]
    fn what_a_job_has_taken_is_listed_and_removed_and_nothing_else() {
        let (job, other, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(place(job.path())).unwrap();
        fs::write(
            place(job.path()).join("0.directory"),
            format!("directory = {}\nranks = 2\nprogram = \nkey = x\n", home.path().display()),
        )
        .unwrap();
        fs::write(home.path().join("lock"), "").unwrap();
        let put = |number: u64, by: &Path, tiers: &str, files: &[&str]| {
            let directory = home.path().join(format!("checkpoint-{number:06}"));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("taken-by"), format!("requests = {}\ntiers = {tiers}\n", place(by).display())).unwrap();
            for name in files {
                fs::write(directory.join(name), "rank 0 100 0\nrank 1 23 0\n").unwrap();
            }
        };
        let of = |rank: u32, suffixes: &[&str]| suffixes.iter().map(|suffix| format!("rank-{rank:05}.{suffix}")).collect::<Vec<_>>();
        let both = |suffixes: &[&str]| [of(0, suffixes), of(1, suffixes), vec!["manifest".to_owned()]].concat();
        let put = |number, by: &Path, tiers: &str, files: Vec<String>| {
            put(number, by, tiers, &files.iter().map(String::as_str).collect::<Vec<_>>());
        };
        put(20, job.path(), "memory,partner,shared", both(&["node", "partner", "h5"]));
        put(10, job.path(), "", both(&["h5", "seal"]));
        put(30, job.path(), "memory", of(0, &["node"]));
        put(40, other.path(), "", both(&["h5", "seal"]));
        let found = kept(job.path());
        let seen: Vec<_> = found.iter().map(|one| (one.number, one.ranks, one.bytes, one.tiers.join(" "))).collect();
        assert_eq!(seen, [(10, 2, 123, "shared".to_owned()), (20, 2, 123, "memory partner".to_owned())]);
        let run = fs::File::open(home.path().join("lock")).unwrap();
        flock(&run, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(remove(job.path()).unwrap(), Some(home.path().to_owned()));
        assert_eq!(kept(job.path()).len(), 2);
        drop(run);
        assert_eq!(remove(job.path()).unwrap(), None);
        assert_eq!(kept(job.path()), []);
        assert_eq!(kept(other.path()), []);
        assert!(home.path().join("checkpoint-000040/manifest").exists());
    }

    #[test]
    fn one_request_at_a_time_is_there_and_goes_with_its_asker() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("0.request");
        let first = Request::put(&path).unwrap().unwrap();
        assert!(Request::put(&path).unwrap().is_none());
        assert!(first.answer().is_none());
        fs::write(place.path().join(format!("0.answer-{}", first.id)), "checkpoint = 48\nbytes = 123\n").unwrap();
        assert_eq!(first.answer().unwrap().unwrap(), Taken { checkpoint: 48, bytes: 123 });
        drop(first);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        let second = Request::put(&path).unwrap().unwrap();
        fs::write(place.path().join(format!("0.answer-{}", second.id)), "why = it can't\n").unwrap();
        assert_eq!(second.answer().unwrap().unwrap_err().to_string(), "it can't");
        // Another one's is left alone.
        fs::write(&path, "id = 00\n").unwrap();
        drop(second);
        assert!(path.exists());
        assert!(matches!(Request::put(&place.path().join("no/0.request")), Err(Untaken::Unusable { .. })));
    }

    /// A job in which rank 0 is said to speak for a library.
    fn job_with_a_library() -> (tempfile::TempDir, Library) {
        let job = tempfile::tempdir().unwrap();
        fs::create_dir(place(job.path())).unwrap();
        announce(job.path(), 0);
        let library = libraries(job.path()).remove(0);
        (job, library)
    }

    fn announce(job: &Path, rank: Rank) {
        fs::write(place(job).join(format!("{rank}.library")), "directory = /c\nranks = 2\nprogram = \n").unwrap();
    }

    /// Answers the next request to this rank.
    fn answer(job: &Path, rank: Rank) {
        let told = std::iter::repeat_with(|| text(&request_of(job, rank)).filter(|told| value(told, "id").is_some()));
        let told = told.inspect(|_| std::thread::yield_now()).flatten().next().unwrap();
        let path = place(job).join(format!("{rank}.answer-{}", value(&told, "id").unwrap()));
        fs::write(path.with_extension("part"), "checkpoint = 7\nbytes = 1\n").unwrap();
        fs::rename(path.with_extension("part"), path).unwrap();
    }

    #[test]
    fn who_speaks_for_a_library_now_is_asked_and_nobody_is_waited_for_who_has_ended() {
        let limits = (Some(Duration::from_secs(30)), Duration::ZERO);
        let (job, library) = job_with_a_library();
        fs::remove_file(place(job.path()).join("0.library")).unwrap();
        announce(job.path(), 3);
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| answer(job.path(), 3));
            take_from((job.path(), || true), &library, limits)
        });
        assert_eq!(taken.unwrap(), Taken { checkpoint: 7, bytes: 1 });
        assert!(!request_of(job.path(), 0).exists(), "it was taken back");
        // Nobody speaks for it any more.
        fs::remove_file(place(job.path()).join("3.library")).unwrap();
        assert!(matches!(take_from((job.path(), || true), &library, limits), Err(Untaken::ProgramEnded)));
        assert!(matches!(take_from((job.path(), || false), &library, limits), Err(Untaken::JobEnded)));
        assert!(!request_of(job.path(), 0).exists());
    }
}
