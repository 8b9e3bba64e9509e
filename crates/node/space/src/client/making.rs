//! Names of files and directories that ranks make, change and remove.
//!
//! There is no server of names, so whoever makes, removes or renames a file, or changes its permissions, claims its path first: the first target that answers, in an order that the
//! path gives, lets one client at a time do it. Clients that cannot reach the same targets may both make one (`conflicts`). A name is another version of the same file; a file that is removed while it is open has a hidden name until it is closed.

use super::names::{Client, TargetCapacity, now_ns};
use super::peer::Peer;
use super::writer::{Refused, TRIES, Writer, held};
use crate::link::Fault;
use mend_data::space::catalogue::{Catalogue, Change, Node};
use mend_data::space::target::{Claim, Failed, Request};
use mend_data::space::written::{self, CLAIM, MODES, Shape, Written};
use mend_data::space::{Entry, HIDDEN, Id, Kind};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// How long another client's end is waited for before one looks again.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a file is waited for that another client makes.
const MADE_WITHIN: Duration = Duration::from_secs(5);
/// Young files that are known to be made; if there are more, some are asked for again.
const MOST_MADE: usize = 4096;

/// How often targets are chosen for a new file, if one of them is lost meanwhile.
const PLACED: usize = 4;

/// Paths whose files nobody else makes, removes or renames for as long as it is there.
struct Claimed<'a> {
    writer: &'a Writer,
    /// Which target has let it be so.
    deciders: Vec<(u16, &'a str)>,
    _turns: Vec<MutexGuard<'a, ()>>,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        for (decider, path) in &self.deciders {
            let over = Request::Claim { claim: Claim::Path((*path).to_owned()), who: self.writer.who, over: true };
            let _ = self.writer.client.peer(*decider).and_then(|peer| peer.ask(&over, &[]));
        }
    }
}

/// A directory that is there because something is below it.
type Implied = (String, mend_data::space::Striping);

impl Writer {
    /// The file of a path, and true if it was made, since it was not there. With `exclusive` one that is there is an error.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn create(&self, path: &str, mode: u32, exclusive: bool) -> Result<(Entry, bool), Refused> {
        let there = || -> Result<Option<Entry>, Refused> {
            self.client.refresh_since(Instant::now());
            match self.client.names().look(path) {
                Some(Node::File(_)) if exclusive => Err(Refused::Exists),
                Some(Node::File(entry)) => Ok(Some(entry.clone())),
                Some(Node::Directory) => Err(Refused::IsDirectory),
                None => Ok(None),
            }
        };
        // What is known may be old. That something is there counts once it was heard again; that nothing is, once the path is claimed.
        let known = self.client.names().look(path).is_some();
        if known && let Some(entry) = there()? {
            return Ok((entry, false));
        }
        if self.client.names().obstacle(path).is_some() {
            return Err(Refused::NotDirectory);
        }
        let found = || Ok(there()?.map(|entry| (entry, false)));
        self.alone(path, found, || self.make(path, mode, found))
    }

    /// Makes something of a path while no other client does; if `there` says that one has made it, that counts.
    fn alone<T>(
        &self,
        path: &str,
        there: impl Fn() -> Result<Option<T>, Refused>,
        make: impl FnOnce() -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let turns = self.turns_of(&[path]);
        let Some(decider) = self.client.claim_path::<Refused>(path, self.who, || Ok(there()?.is_some()))? else {
            return there()?.ok_or(Refused::Absent);
        };
        let _claimed = Claimed { writer: self, deciders: vec![(decider, path)], _turns: turns };
        // Somebody may have been first.
        there().and_then(|found| found.map_or_else(make, Ok))
    }

    /// Claims paths, and hears what others have done with them before.
    fn claim<'a>(&'a self, paths: &[&'a str]) -> Result<Claimed<'a>, Refused> {
        let mut paths = paths.to_vec();
        // In the same order everywhere, or two would wait for each other.
        paths.sort_unstable();
        paths.dedup();
        let mut claimed = Claimed { writer: self, deciders: Vec::new(), _turns: self.turns_of(&paths) };
        for path in paths {
            let decider = self.client.claim_path::<Refused>(path, self.who, || Ok(false))?.ok_or(Refused::Absent)?;
            claimed.deciders.push((decider, path));
        }
        self.client.refresh_since(Instant::now());
        Ok(claimed)
    }

    /// Does something with a file, by its path, while nobody else gives it another name or other permissions.
    pub(super) fn as_named<T>(&self, file: &Id, work: impl FnOnce(&str) -> Result<T, Refused>) -> Result<T, Refused> {
        for _ in 0..TRIES {
            let path = self.now(file)?.0.path;
            let _claimed = self.claim(&[&path])?;
            if self.now(file)?.0.path == path {
                return work(&path);
            }
        }
        Err(changed_again_and_again())
    }

    /// Waits until a file that another client has just begun to make is on all of its targets: who wrote to one that does not know it yet would take it for lost.
    pub fn until_made(&self, entry: &Entry) {
        let young = now_ns().abs_diff(entry.made_ns) < Duration::from_secs(CLAIM).as_nanos() as u64;
        if !young || entry.written().is_none() || held(&self.made).contains(&entry.id) {
            return;
        }
        let until = Instant::now() + MADE_WITHIN;
        loop {
            // It may be removed, or on other targets, by now.
            let Ok((entry, file)) = self.now(&entry.id) else { return };
            let holders = entry.holders(self.client.targets());
            // One that does not answer is another matter.
            let lacks = |at: u16, peer: &Peer| -> bool {
                let there = |told: &[Shape]| file.positions(at).all(|position| told.iter().any(|shape| shape.position == position));
                peer.shapes(vec![entry.id]).is_ok_and(|told| !told.iter().all(|told| there(told)))
            };
            if !self.client.each(&holders, lacks).into_iter().flatten().any(|lacks| lacks) || Instant::now() >= until {
                break;
            }
            self.client.refresh_since(Instant::now());
            if self.client.names().entry(&entry.id).is_some() {
                std::thread::sleep(PAUSE);
            }
        }
        self.is_made(entry.id);
    }

    /// Notes that a file is on all of its targets.
    fn is_made(&self, file: Id) {
        let mut made = held(&self.made);
        if made.len() >= MOST_MADE {
            made.clear();
        }
        made.insert(file);
    }

    /// Makes a file, on other targets if one that was chosen is lost, or takes nothing. True with it, unless `found` has found that somebody else has made it.
    fn make(&self, path: &str, mode: u32, found: impl Fn() -> Result<Option<(Entry, bool)>, Refused>) -> Result<(Entry, bool), Refused> {
        for _ in 1..PLACED {
            match self.make_once(path, mode) {
                Err(Refused::Fault(Fault::Lost { .. } | Fault::Failed { kind: Failed::Absent | Failed::Medium | Failed::Full, .. })) => {
                    self.client.look_for_room_again();
                    // A target that says nothing is waited for, maybe longer than a claim lasts.
                    self.client.claim_path::<Refused>(path, self.who, || Ok(false))?;
                    if let Some(there) = found()? {
                        return Ok(there);
                    }
                }
                made => return made.map(|entry| (entry, true)),
            }
        }
        self.make_once(path, mode).map(|entry| (entry, true))
    }

    fn make_once(&self, path: &str, mode: u32) -> Result<Entry, Refused> {
        let (striping, version) = {
            let names = self.client.names();
            (names.striping(path, self.client.space.striping), names.next_version(path))
        };
        let id = mend_wire::random_bytes();
        let writable = (0..self.client.targets() as u16).filter(|at| self.client.takes_writes(*at)).count();
        let copies = self.client.space.copies;
        if writable < copies && writable < self.client.targets() {
            return Err(Refused::Bucket);
        }
        let rooms = self.client.rooms_lately();
        let room = |(at, room): (u16, &Result<TargetCapacity, Fault>)| {
            room.as_ref().ok().filter(|_| self.client.takes_writes(at)).map(|room| room.free)
        };
        let free: Vec<Option<u64>> = (0_u16..).zip(&rooms).map(room).collect();
        let file = written::place(&free, striping, copies, mode, &id, |at| self.client.node(at))?;
        let entry = Entry { id, version, path: path.to_owned(), made_ns: now_ns(), kind: Kind::Written(file.clone()) };
        let adopt = |at: u16| {
            let positions: Vec<u16> = file.positions(at).collect();
            Request::Adopt { entry: Box::new(entry.clone()), fresh: positions.clone(), positions }
        };
        let holders = entry.holders(self.client.targets());
        let done: Result<Vec<_>, Fault> = self.client.ask_each(&holders, adopt).into_iter().collect();
        if let Err(fault) = done {
            let _ = self.client.forget(&[id]);
            return Err(fault.into());
        }
        self.is_made(id);
        self.client.names_mut().learn(Change::There(Box::new(entry.clone())));
        if let Some(mark) = self.client.leased.mark() {
            self.client.leased.keep(mark, std::iter::once((id, (0, entry.made_ns))));
        }
        Ok(entry)
    }

    /// The file of a path that ranks wrote.
    fn written_at(names: &Catalogue, path: &str) -> Result<(Entry, Written), Refused> {
        match names.look(path) {
            None => Err(Refused::Absent),
            Some(Node::Directory) => Err(Refused::IsDirectory),
            Some(Node::File(entry)) => entry.written().map(|file| (entry.clone(), file.clone())).ok_or(Refused::Staged),
        }
    }

    /// Removes the name of a file, and the file when nobody here has it open.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn unlink(&self, path: &str) -> Result<(), Refused> {
        let _claimed = self.claim(&[path])?;
        let (entry, hidden, kept) = {
            let names = self.client.names();
            let entry = Self::written_at(&names, path)?.0;
            let hidden = names.hidden_by(&entry);
            (entry, hidden, implied(&names, path))
        };
        self.keep_directory(kept)?;
        // Before it, or they would be seen. What somebody else has made there by now stays.
        self.let_go_of_hidden(path, &hidden)?;
        self.hide_or_forget(&entry)
    }

    fn hide_or_forget(&self, entry: &Entry) -> Result<(), Refused> {
        if !self.is_open(&entry.id) {
            self.client.forget(&[entry.id])?;
            self.let_go(&entry.id);
            return Ok(());
        }
        let name: String = entry.id.iter().map(|byte| format!("{byte:02x}")).collect();
        self.change((&entry.id, &entry.path), 0, |entry| entry.path = format!("{HIDDEN}/{name}"))?;
        // Whoever had it open may have closed it meanwhile.
        if self.is_nameless(&entry.id) { Ok(()) } else { Ok(self.client.forget(&[entry.id])?) }
    }

    /// A directory in which nothing is left stays.
    fn keep_directory(&self, implied: Option<Implied>) -> Result<(), Refused> {
        if let Some((directory, striping)) = implied {
            self.client.set_striping(&directory, striping)?;
        }
        Ok(())
    }

    /// Gives a file another name; one that had it goes.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), Refused> {
        let _claimed = self.claim(&[from, to])?;
        let (entry, before, hidden, kept, version) = {
            let names = self.client.names();
            let (entry, _) = match Self::written_at(&names, from) {
                Err(Refused::IsDirectory) => return Err(Refused::Directory),
                found => found?,
            };
            let before = match Self::written_at(&names, to) {
                Err(Refused::Absent) => None,
                _ if !replace => return Err(Refused::Exists),
                found => Some(found?.0),
            };
            if names.obstacle(to).is_some() {
                return Err(Refused::NotDirectory);
            }
            // What neither name shows would be seen once the file that hides it is elsewhere.
            let hidden = [Some(&entry), before.as_ref()].map(|seen| seen.map_or_else(Vec::new, |seen| names.hidden_by(seen)));
            (entry, before, hidden, implied(&names, from), names.next_version(to))
        };
        if from == to {
            return Ok(());
        }
        self.keep_directory(kept)?;
        for (path, hidden) in [from, to].into_iter().zip(&hidden) {
            self.let_go_of_hidden(path, hidden)?;
        }
        self.change((&entry.id, from), version, |entry| entry.path = to.to_owned())?;
        if let Some(before) = before {
            self.hide_or_forget(&before)?;
        }
        Ok(())
    }

    /// Changes the permissions of a file.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn set_mode(&self, file: &Id, mode: u32) -> Result<(), Refused> {
        let change = |entry: &mut Entry| {
            if let Kind::Written(known) = &mut entry.kind {
                known.mode = mode & MODES;
            }
        };
        self.as_named(file, |path| self.change((file, path), 0, change))
    }

    /// Changes what is known of a file whose path was claimed; its version is this one then, or a higher one. Another client may tell something else of it at the same time, such as
    /// where a copy is now: then it is changed once more.
    pub(super) fn change(&self, (file, path): (&Id, &str), version: u64, change: impl Fn(&mut Entry)) -> Result<(), Refused> {
        for _ in 0..TRIES {
            let (mut entry, _) = self.now(file)?;
            if entry.path != path {
                // The claim was over before this was.
                return Err(Refused::Absent);
            }
            entry.version = entry.version.saturating_add(1).max(version);
            change(&mut entry);
            self.tell_name(&entry)?;
            self.client.refresh_since(Instant::now());
            let (now, _) = self.now(file)?;
            let mut changed = now.clone();
            change(&mut changed);
            if changed == now {
                return Ok(());
            }
        }
        Err(changed_again_and_again())
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn make_directory(&self, path: &str) -> Result<(), Refused> {
        let is_free = || -> Result<Option<()>, Refused> {
            self.client.refresh_since(Instant::now());
            let names = self.client.names();
            match () {
                () if names.look(path).is_some() => Err(Refused::Exists),
                () if names.obstacle(path).is_some() => Err(Refused::NotDirectory),
                () => Ok(None),
            }
        };
        is_free()?;
        self.alone(path, is_free, || {
            let striping = self.client.names().striping(path, self.client.space.striping);
            Ok(self.client.set_striping(path, striping)?)
        })
    }

    /// Removes a directory that has nothing in it.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn remove_directory(&self, path: &str) -> Result<(), Refused> {
        self.client.refresh_since(Instant::now());
        let (ids, kept) = {
            let names = self.client.names();
            match names.look(path) {
                None => return Err(Refused::Absent),
                Some(Node::File(_)) => return Err(Refused::NotDirectory),
                Some(Node::Directory) if !names.list(path).is_empty() => return Err(Refused::NotEmpty),
                Some(Node::Directory) => {}
            }
            // What ranks wrote is seen then.
            let ids = names.all_at(path).into_iter().filter(|entry| entry.written().is_none()).map(|entry| entry.id).collect::<Vec<Id>>();
            (ids, implied(&names, path))
        };
        self.keep_directory(kept)?;
        Ok(self.client.forget(&ids)?)
    }
}

impl Client {
    /// The target that lets somebody make a path; `None` if `there` says that another one has made it.
    pub(super) fn claim_path<E: From<Fault>>(&self, path: &str, who: Id, there: impl Fn() -> Result<bool, E>) -> Result<Option<u16>, E> {
        let claim = Request::Claim { claim: Claim::Path(path.to_owned()), who, over: false };
        let until = Instant::now() + 2 * Duration::from_secs(CLAIM);
        let mut fault = None;
        for at in written::deciders(path, self.targets()) {
            loop {
                match self.peer(at)?.ask(&claim, &[]) {
                    Ok(_) => return Ok(Some(at)),
                    Err(Fault::Failed { kind: Failed::Busy, .. }) if Instant::now() < until => {
                        std::thread::sleep(PAUSE);
                        if there()? {
                            return Ok(None);
                        }
                    }
                    Err(other) => {
                        fault.get_or_insert(other);
                        break;
                    }
                }
            }
        }
        Err(fault.unwrap_or_else(|| Fault::Other(format!("{} has no targets", self.space.name))).into())
    }
}

fn changed_again_and_again() -> Refused {
    Fault::Other("it is changed again and again".to_owned()).into()
}

/// The directory of a path, if nothing but this path lets it be there.
fn implied(names: &Catalogue, path: &str) -> Option<Implied> {
    let (directory, _) = path.rsplit_once('/')?;
    let alone = names.at(directory).is_none() && names.is_alone(directory, path);
    alone.then(|| (directory.to_owned(), names.striping(path, mend_data::space::Striping::default())))
}
