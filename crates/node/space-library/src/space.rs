//! A space as a program uses it: files by path, read and written at offsets.
//!
//! Faults assumed: those of the client that it stands on; a program that closes nothing. In a rank of a job no connection outlives a call, and no thread of its own asks
//! anything, of two targets that have the same neither: a checkpoint finds nothing open that it could not save.

use mend_data::space::catalogue::Node;
use mend_data::space::{Entry, Id, is_path};
use mend_space::Fault;
use mend_space::client::{Client, Holds, Pattern, Reader, Refused, Repairer, Writer, as_it_is_now, find, find_unhedged};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often targets are told which files are open for writing.
const TELL_HOLDS: Duration = Duration::from_secs(1);
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Why something is not done: a number of errno.h, and what a number cannot say.
#[derive(Clone, Debug)]
pub struct Problem {
    pub errno: i32,
    pub why: String,
}

impl Problem {
    fn new(errno: i32, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        Self::new(refused.errno(), refused.to_string())
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Refused::from(fault).into()
    }
}

/// What is known of a file or directory.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Bytes; 0 of a directory.
    pub size: u64,
    /// Nanoseconds since 1970; 0 of a directory.
    pub changed_ns: i64,
    /// Its permissions, as chmod(2) has them.
    pub mode: u32,
    pub is_directory: bool,
    /// It was staged, and is never changed.
    pub is_staged: bool,
    /// No target that answers has all of it: its size is not known, and stands as 0.
    pub is_lost: bool,
}

/// What is known of any directory.
pub const DIRECTORY: About = About { size: 0, changed_ns: 0, mode: 0o755, is_directory: true, is_staged: false, is_lost: false };

/// A file of which nothing is known.
const FILE: About = About { mode: 0, is_directory: false, ..DIRECTORY };

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub reads: bool,
    pub writes: bool,
    pub makes: bool,
    pub exclusive: bool,
    pub cuts: bool,
    pub appends: bool,
    /// Permissions of one that is made.
    pub mode: u32,
}

/// A space in use.
#[derive(Debug)]
pub struct Space {
    client: Arc<Client>,
    reader: Reader,
    writer: Writer,
    /// Files that are open for writing, and how often.
    writing: Mutex<BTreeMap<Id, usize>>,
    holds: Mutex<Holds>,
    in_rank: bool,
}

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    space: Arc<Space>,
    entry: Arc<Entry>,
    how: How,
    pattern: Pattern,
}

/// A call in progress. In a rank nothing is left open when it is over.
struct Call<'a>(&'a Space);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.0.in_rank {
            self.0.client.rest();
            self.0.reader.rest();
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A path as the space has it: slashes around it mean nothing.
fn inner(path: &str) -> Result<&str, Problem> {
    let path = path.trim_matches('/');
    if path.is_empty() || is_path(path) {
        Ok(path)
    } else {
        Err(Problem::new(libc::EINVAL, format!("`{path}` is no path of a data space")))
    }
}

impl Space {
    /// The space of this name, as `mend data create` made it. What fetches from sources is looked for in this directory first.
    ///
    /// # Errors
    /// ENOENT if there is none; EIO if no target answers.
    pub fn open(name: &str, parts: Option<&Path>) -> Result<Arc<Self>, Problem> {
        let in_rank = std::env::var_os("MEND_RANK").is_some();
        let found = if in_rank { find_unhedged(name) } else { find(name) };
        let client = found.map_err(|(why, hint)| {
            let errno = if why.starts_with("there is no data space") { libc::ENOENT } else { libc::EIO };
            Problem::new(errno, if hint.is_empty() { why } else { format!("{why} ({hint})") })
        })?;
        let setting = |error: mend_settings::SettingError| Problem::new(libc::EINVAL, error.to_string());
        let cache = mend_settings::SPACE_CACHE.number().map_err(setting)? << 20;
        let repairer = parts.and_then(Repairer::find_in).or_else(Repairer::find);
        let reader = Reader::new(client.clone(), cache, repairer).map_err(|error| Problem::new(libc::EAGAIN, error.to_string()))?;
        let writer = Writer::new(client.clone(), Some(reader.cache()));
        let reader = if in_rank { reader.without_reading_ahead() } else { reader };
        let (writing, holds) = (Mutex::default(), Mutex::default());
        let space = Arc::new(Self { client, reader, writer, writing, holds, in_rank });
        if !in_rank {
            let told = Arc::downgrade(&space);
            let telling = std::thread::Builder::new().name("mend-data".to_owned()).spawn(move || tell_holds(&told));
            telling.map_err(|error| Problem::new(libc::EAGAIN, error.to_string()))?;
        }
        drop(space.call());
        Ok(space)
    }

    /// What a call holds until it is over, whatever comes of it.
    fn call(&self) -> Call<'_> {
        Call(self)
    }

    /// Does something, after what others have done by now was heard.
    fn after_hearing<T>(&self, work: impl FnOnce() -> Result<T, Problem>) -> Result<T, Problem> {
        let _call = self.call();
        self.client.refresh_since(Instant::now());
        work()
    }

    /// Does something with what is at a path now. If a file is removed meanwhile, or another one takes its name, it is done with what is there then.
    fn as_it_is_now<T>(&self, work: impl Fn() -> Result<T, Problem>) -> Result<T, Problem> {
        as_it_is_now(|problem: &Problem| problem.errno == libc::ESTALE, || self.after_hearing(&work))
    }

    fn about(&self, entry: &Entry) -> Result<About, Problem> {
        if let Some(file) = entry.file() {
            return Ok(About { size: file.size, changed_ns: entry.made_ns, mode: 0o444, is_staged: true, ..FILE });
        }
        // Its copies may be on other targets than when it was opened.
        let entry = &self.client.names().entry(&entry.id).cloned().ok_or(Refused::Removed)?;
        self.writer.until_made(entry);
        let told = |fault: Fault| if self.is_gone(entry) { Refused::Removed } else { fault.into() };
        let (size, changed_ns) = self.writer.shape(entry).map_err(told)?;
        let mode = entry.written().map_or(0, |file| file.mode);
        Ok(About { size, changed_ns, mode, ..FILE })
    }

    /// Whether a file of which a target does not say what it has was removed by somebody else just now.
    fn is_gone(&self, entry: &Entry) -> bool {
        self.client.refresh_if_older(Duration::ZERO);
        self.client.names().entry(&entry.id).is_none()
    }

    fn found(&self, path: &str) -> Option<Result<Entry, About>> {
        self.client.names().look(path).map(|node| match node {
            Node::File(entry) => Ok(entry.clone()),
            Node::Directory => Err(DIRECTORY),
        })
    }

    /// What is known of a path.
    ///
    /// # Errors
    /// ENOENT, EINVAL, EIO.
    pub fn stat(&self, path: &str) -> Result<About, Problem> {
        let path = inner(path)?;
        self.as_it_is_now(|| match self.found(path) {
            None => Err(Refused::Absent.into()),
            Some(Err(directory)) => Ok(directory),
            Some(Ok(entry)) => self.about(&entry),
        })
    }

    /// What a directory has in it, by name; also files that are lost.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EINVAL.
    pub fn list(&self, path: &str) -> Result<Vec<(String, About)>, Problem> {
        let path = inner(path)?;
        self.after_hearing(|| {
            match self.found(path) {
                None => return Err(Refused::Absent.into()),
                Some(Ok(_)) => return Err(Refused::NotDirectory.into()),
                Some(Err(_)) => {}
            }
            let copied = |node: Node<'_>| if let Node::File(entry) = node { Some(entry.clone()) } else { None };
            let listed: Vec<(String, Option<Entry>)> =
                self.client.names().list(path).into_iter().map(|(name, node)| (name, copied(node))).collect();
            let written = listed.iter().filter_map(|(_, entry)| entry.clone()).filter(|entry| entry.written().is_some()).collect();
            let shapes = self.shapes(written);
            let about = |entry: Option<Entry>| -> Result<Option<About>, Problem> {
                let Some(entry) = entry else { return Ok(Some(DIRECTORY)) };
                let Some(file) = entry.written() else { return self.about(&entry).map(Some) };
                let known = shapes.get(&entry.id).map(|shape| match *shape {
                    Some((size, changed_ns)) => About { size, changed_ns, mode: file.mode, ..FILE },
                    None => About { changed_ns: entry.made_ns, mode: file.mode, is_lost: true, ..FILE },
                });
                Ok(known)
            };
            listed.into_iter().filter_map(|(name, entry)| Some(about(entry).transpose()?.map(|about| (name, about)))).collect()
        })
    }

    /// Sizes and times of these files, which ranks write; `None` of one of which no target that answers has all. Those that were removed meanwhile are left out.
    fn shapes(&self, written: Vec<Entry>) -> HashMap<Id, Option<(u64, i64)>> {
        let found = self.client.shapes(&written);
        let mut shapes: HashMap<Id, Option<(u64, i64)>> =
            written.iter().zip(found).filter_map(|(entry, shape)| Some((entry.id, Some(shape.ok()?)))).collect();
        if shapes.len() == written.len() {
            return shapes;
        }
        // They may be gone, be on other targets, or not be on all of theirs yet.
        self.client.refresh_if_older(Duration::ZERO);
        let unknown: Vec<Entry> = {
            let names = self.client.names();
            let unknown = written.iter().filter(|entry| !shapes.contains_key(&entry.id));
            unknown.filter_map(|entry| names.entry(&entry.id).cloned()).collect()
        };
        unknown.iter().for_each(|entry| self.writer.until_made(entry));
        let found = self.client.shapes(&unknown);
        shapes.extend(unknown.iter().zip(found).map(|(entry, shape)| (entry.id, shape.ok())));
        shapes
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As open(2) has them; EPERM for writing one that was staged, ENOSPC if there are no two targets for a new one.
    pub fn open_file(self: &Arc<Self>, path: &str, how: How) -> Result<OpenFile, Problem> {
        let path = inner(path)?;
        self.as_it_is_now(|| {
            let entry = match self.found(path) {
                Some(Err(_)) => return Err(Refused::IsDirectory.into()),
                Some(Ok(_)) if how.makes && how.exclusive => return Err(Refused::Exists.into()),
                Some(Ok(entry)) => entry,
                None if how.makes => self.writer.create(path, how.mode, how.exclusive)?.0,
                None => return Err(Refused::Absent.into()),
            };
            if how.writes && entry.written().is_none() {
                return Err(Refused::Staged.into());
            }
            self.writer.until_made(&entry);
            if entry.written().is_some() {
                if self.client.names().entry(&entry.id).is_none() {
                    return Err(Refused::Removed.into());
                }
                self.writer.opened(&entry.id);
            }
            if how.writes {
                *held(&self.writing).entry(entry.id).or_default() += 1;
                self.tell_holds();
            }
            let file = OpenFile { space: self.clone(), entry: Arc::new(entry), how, pattern: Pattern::default() };
            if how.cuts && how.writes {
                self.writer.cut(&file.entry.id, 0)?;
            }
            Ok(file)
        })
    }

    /// Removes a file.
    ///
    /// # Errors
    /// As unlink(2); EPERM for one that was staged.
    pub fn unlink(&self, path: &str) -> Result<(), Problem> {
        let path = inner(path)?;
        self.after_hearing(|| Ok(self.writer.unlink(path)?))
    }

    /// Makes a directory. The one above it need not be there.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn make_directory(&self, path: &str) -> Result<(), Problem> {
        let path = inner(path)?;
        self.after_hearing(|| Ok(self.writer.make_directory(path)?))
    }

    /// Removes a directory that has nothing in it.
    ///
    /// # Errors
    /// As rmdir(2); EBUSY for the space itself.
    pub fn remove_directory(&self, path: &str) -> Result<(), Problem> {
        let path = inner(path)?;
        if path.is_empty() {
            return Err(Problem::new(libc::EBUSY, "a data space is removed by `mend data destroy`"));
        }
        self.after_hearing(|| Ok(self.writer.remove_directory(path)?))
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As rename(2); EXDEV for a directory.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Problem> {
        let (from, to) = (inner(from)?, inner(to)?);
        self.after_hearing(|| Ok(self.writer.rename(from, to, true)?))
    }

    fn tell_holds(&self) {
        let open = held(&self.writing).keys().copied().collect();
        held(&self.holds).tell(&self.client, &open);
    }
}

/// While the space is in use, and when its last file is closed.
fn tell_holds(space: &Weak<Space>) {
    loop {
        std::thread::sleep(TELL_HOLDS);
        let Some(space) = space.upgrade() else { return };
        space.tell_holds();
        space.client.look_for_lost();
    }
}

impl OpenFile {
    fn may(&self, allowed: bool) -> Result<(), Problem> {
        if allowed { Ok(()) } else { Err(Problem::new(libc::EBADF, "the file was not opened for that")) }
    }

    /// Reads bytes; fewer at the end of the file.
    ///
    /// # Errors
    /// EBADF, EIO, ESTALE if it was removed elsewhere.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, Problem> {
        self.may(self.how.reads)?;
        let _call = self.space.call();
        let mut done = 0;
        for piece in into.chunks_mut(PIECE) {
            let at = offset.saturating_add(done as u64);
            let content = match self.entry.written() {
                Some(_) => self.space.writer.read(&self.entry.id, at, piece.len() as u32)?,
                None => self.space.reader.read(&self.entry, at, piece.len() as u32, &self.pattern)?,
            };
            piece[..content.bytes.len()].copy_from_slice(&content.bytes);
            done += content.bytes.len();
            if content.bytes.len() < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Whether all that is written goes to its end.
    pub fn appends(&self) -> bool {
        self.how.appends
    }

    /// Whether a file can have so many bytes from an offset on.
    ///
    /// # Errors
    /// EFBIG, where an offset would not fit into 63 bits.
    pub fn fits(&self, offset: u64, length: u64) -> Result<(), Problem> {
        let fits = offset.checked_add(length).is_some_and(|end| i64::try_from(end).is_ok());
        if fits { Ok(()) } else { Err(Problem::new(libc::EFBIG, "no file is that long")) }
    }

    /// Writes bytes, at the end and without others' between them if it was opened so; how many. They are on two targets then, and durable after [`Self::sync`]. Fewer than were given: an error came
    /// after them.
    ///
    /// # Errors
    /// EBADF, EFBIG, ENOSPC, EIO, ESTALE if it was removed elsewhere.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<usize, Problem> {
        self.may(self.how.writes)?;
        let _call = self.space.call();
        if self.how.appends {
            return Ok(self.space.writer.append(&self.entry.id, bytes)?.1);
        }
        self.fits(offset, bytes.len() as u64)?;
        let mut done = 0;
        for piece in bytes.chunks(PIECE) {
            match self.space.writer.write(&self.entry.id, offset + done as u64, piece) {
                Ok(()) => done += piece.len(),
                Err(_) if done > 0 => break,
                Err(refused) => return Err(refused.into()),
            }
        }
        Ok(done)
    }

    /// Has it end there.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn cut(&self, length: u64) -> Result<(), Problem> {
        self.may(self.how.writes)?;
        if i64::try_from(length).is_err() {
            return Err(Problem::new(libc::EFBIG, "no file is that long"));
        }
        let _call = self.space.call();
        Ok(self.space.writer.cut(&self.entry.id, length)?)
    }

    /// What was written is durable on two targets then.
    ///
    /// # Errors
    /// EIO, ENOSPC. What was not synced is by the next one.
    pub fn sync(&self) -> Result<(), Problem> {
        if !self.how.writes {
            return Ok(());
        }
        let _call = self.space.call();
        match self.space.writer.sync(&self.entry.id) {
            // Nobody can read it any more.
            Err(Refused::Removed) => Ok(()),
            synced => Ok(synced?),
        }
    }

    /// What is known of it.
    ///
    /// # Errors
    /// EIO, ESTALE.
    pub fn about(&self) -> Result<About, Problem> {
        let _call = self.space.call();
        self.space.about(&self.entry)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let _call = self.space.call();
        if self.entry.written().is_some() {
            self.space.writer.closed(&self.entry.id);
        }
        if self.how.writes {
            let mut writing = held(&self.space.writing);
            if let Some(count) = writing.get_mut(&self.entry.id) {
                *count -= 1;
            }
            writing.retain(|_, count| *count > 0);
            drop(writing);
            self.space.tell_holds();
        }
    }
}

/// Names of the spaces that are known here.
///
/// # Errors
/// EINVAL if a setting is wrong.
pub fn names() -> Result<Vec<String>, Problem> {
    mend_space::descriptor::names().map_err(|error| Problem::new(libc::EINVAL, error.to_string()))
}
