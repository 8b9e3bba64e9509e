//! Files that ranks write: byte ranges go to both targets of each object before a write is over, and are durable on both when it is synced.
//!
//! ```text
//! write ──► WriteRange ──► both targets of each object       nothing is kept back here: whoever kills this process takes no byte along
//! fsync, close ──► Sync ──► the same targets                 only what was written since the last one
//! read ──► ReadBlocks ──► the first target, else the second  what the node has of them does not travel (`written_blocks`)
//! ```
//! If a target is lost, what it had of the file is copied onto another one (`moving`), and the write goes on. Faults assumed: targets and whole nodes are lost at any
//! moment, and so is this process; other nodes write the same file. What cannot be kept right is refused.

use super::cache::Cache;
use super::lost::Lost;
use super::names::{Client, now_ns};
use super::peer::{Peer, nonsense};
use crate::link::Fault;
use mend_data::ranges::Range;
use mend_data::space::placement::NoPlace;
use mend_data::space::target::{Answer, Claim, Failed, MAX_SHAPED, Request};
use mend_data::space::written::{Shape, Written, changed_ns, size};
use mend_data::space::{Entry, Id};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How often the same is tried while other clients change a file, or it moves to other targets.
pub(super) const TRIES: usize = 16;
/// Names and files share so many turns.
const TURNS: usize = 32;

/// Why something is not done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// There is one of that name.
    #[error("there is one of that name")]
    Exists,
    /// There is none.
    #[error("there is none")]
    Absent,
    /// It was removed while it was open.
    #[error("it was removed on another node while it was open")]
    Removed,
    /// Something is in the directory.
    #[error("the directory is not empty")]
    NotEmpty,
    /// It is a directory.
    #[error("it is a directory")]
    IsDirectory,
    /// Something above it is no directory.
    #[error("a file is no directory")]
    NotDirectory,
    /// It was staged.
    #[error("it was staged, and staged files are never changed; `mend data rm` removes them")]
    Staged,
    /// Directories are not renamed.
    #[error("a directory of a data space keeps its name")]
    Directory,
    /// No targets for it.
    #[error("there are no targets for what ranks write: {0}")]
    NoPlace(#[from] NoPlace),
    /// Its targets take no byte ranges.
    #[error(
        "ranks cannot write here: the space's targets are in a bucket, which takes no byte ranges; a space with two targets in directories of nodes takes what ranks write"
    )]
    Bucket,
    /// Another node appends.
    #[error("another node appends to it: only one can at a time")]
    Appending,
    /// Something failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Refused {
    /// The number that a program gets (errno.h).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Exists => libc::EEXIST,
            Self::Absent => libc::ENOENT,
            Self::Removed => libc::ESTALE,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::IsDirectory => libc::EISDIR,
            Self::NotDirectory => libc::ENOTDIR,
            Self::Staged => libc::EPERM,
            Self::Directory => libc::EXDEV,
            Self::Bucket => libc::EROFS,
            Self::NoPlace(_) | Self::Fault(Fault::Failed { kind: Failed::Full, .. }) => libc::ENOSPC,
            Self::Fault(Fault::Failed { kind: Failed::TooLong, .. }) => libc::EFBIG,
            Self::Appending | Self::Fault(_) => libc::EIO,
        }
    }
}

/// A copy that has what is not synced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsynced {
    /// The start of its node: after another one it has lost that.
    boot: Id,
    /// Which map the first of it was written by. A copy that was made for a later one lacks it if the one that it was made from does.
    epoch: u32,
}

/// Ranges of objects, by their places and targets, that other copies have refused, and why.
pub(super) type Apart = BTreeMap<(u16, u16), (Range, Fault)>;

/// What is known here of a file that somebody has open.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Objects and their targets that were written since they were synced.
    pub unsynced: Mutex<BTreeMap<(u16, u16), Unsynced>>,
    /// Copies of objects that took what another copy of the same object refused.
    pub apart: Mutex<Apart>,
    /// When it was claimed for appending.
    pub appending: Mutex<Option<Instant>>,
    /// Whoever syncs it: another one that does waits, since what it wrote may be among what is synced just now.
    syncing: Mutex<()>,
    /// When it was synced last, a copy lacked something and was not made whole.
    lacking: AtomicBool,
    opens: AtomicUsize,
    /// It has no name any more, and goes with the last one that has it open.
    nameless: Mutex<bool>,
}

impl State {
    /// True if nothing is left for a sync to do.
    fn owes_nothing(&self) -> bool {
        !self.lacking.load(Ordering::Relaxed) && held(&self.unsynced).is_empty() && held(&self.apart).is_empty()
    }
}

/// Writes files of a space.
#[derive(Debug)]
pub struct Writer {
    pub(super) client: Arc<Client>,
    pub(super) who: Id,
    /// What was read and written here, if it is kept.
    pub(super) cache: Option<Arc<Cache>>,
    /// A target that does not answer keeps its copies, unless it is named as lost.
    pub(super) is_patient: bool,
    files: Mutex<HashMap<Id, Arc<State>>>,
    /// Young files that are on all of their targets.
    pub(super) made: Mutex<HashSet<Id>>,
    /// Claims tell nodes apart; these tell threads of this one apart. Whoever moves a file may wait for its name, and never the other way round.
    moves: [Mutex<()>; TURNS],
    names: [Mutex<()>; TURNS],
}

pub(super) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn turn_of(name: &[u8]) -> usize {
    xxhash_rust::xxh3::xxh3_64(name) as usize % TURNS
}

/// Targets of these copies, each once.
pub(super) fn distinct(targets: impl Iterator<Item = u16>) -> Vec<u16> {
    let mut targets: Vec<u16> = targets.collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// What came of something that each of some targets was to do.
pub(super) enum Outcome {
    Done,
    /// Another map of the file is known by now.
    Moved,
    /// These targets are lost, or have lost it.
    Lost(Vec<u16>, Fault),
    Failed(Fault),
}

pub(super) fn outcome(targets: &[u16], done: Vec<Option<Result<(), Fault>>>) -> Outcome {
    let (mut lost, mut failed, mut moved) = (Vec::new(), None, false);
    for (at, result) in targets.iter().zip(done) {
        match result {
            Some(Ok(())) | None => {}
            Some(Err(Fault::Failed { kind: Failed::Moved, .. })) => moved = true,
            Some(Err(fault @ (Fault::Lost { .. } | Fault::Failed { kind: Failed::Absent | Failed::Medium | Failed::Short, .. }))) => {
                lost.push((*at, fault));
            }
            Some(Err(fault)) => failed = Some(fault),
        }
    }
    match (failed, moved, lost.first().map(|(_, fault)| fault.clone())) {
        (Some(fault), _, _) => Outcome::Failed(fault),
        (None, true, _) => Outcome::Moved,
        (None, false, Some(fault)) => Outcome::Lost(lost.into_iter().map(|(at, _)| at).collect(), fault),
        (None, false, None) => Outcome::Done,
    }
}

impl Writer {
    /// Writes through this client. With a cache, what is read again from it is only compared with what targets have.
    #[must_use]
    pub fn new(client: Arc<Client>, cache: Option<Arc<Cache>>) -> Self {
        let [moves, names] = [(); 2].map(|()| std::array::from_fn(|_| Mutex::default()));
        let (who, files, made) = (mend_wire::random_bytes(), Mutex::default(), Mutex::default());
        Self { client, who, cache, is_patient: false, files, made, moves, names }
    }

    /// The same, by which a target that does not answer keeps its copies, unless it is named as lost.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { is_patient: true, ..self }
    }

    /// Waits until no other thread moves this file.
    pub(super) fn turn(&self, file: &Id) -> MutexGuard<'_, ()> {
        held(&self.moves[turn_of(file)])
    }

    /// Waits until no other thread does something with these names.
    pub(super) fn turns_of(&self, names: &[&str]) -> Vec<MutexGuard<'_, ()>> {
        // Each once, and in the same order everywhere.
        let turns: BTreeSet<usize> = names.iter().map(|name| turn_of(name.as_bytes())).collect();
        turns.into_iter().map(|turn| held(&self.names[turn])).collect()
    }

    pub(super) fn state(&self, file: &Id) -> Arc<State> {
        held(&self.files).entry(*file).or_default().clone()
    }

    /// Somebody opens it.
    pub fn opened(&self, file: &Id) {
        held(&self.files).entry(*file).or_default().opens.fetch_add(1, Ordering::Relaxed);
    }

    /// True if somebody has it open here.
    pub fn is_open(&self, file: &Id) -> bool {
        held(&self.files).get(file).is_some_and(|state| state.opens.load(Ordering::Relaxed) > 0)
    }

    /// It has no name any more, and goes when the last one closes it that has it open. False if nobody has.
    pub(super) fn is_nameless(&self, file: &Id) -> bool {
        let files = held(&self.files);
        let open = files.get(file).filter(|state| state.opens.load(Ordering::Relaxed) > 0);
        open.inspect(|state| *held(&state.nameless) = true).is_some()
    }

    /// Somebody that had it open has closed it.
    pub fn closed(&self, file: &Id) {
        let state = self.state(file);
        let files = held(&self.files);
        if state.opens.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        drop(files);
        if held(&state.appending).take().is_some() {
            let over = |_: u16, peer: &Peer| {
                let _ = peer.ask(&Request::Claim { claim: Claim::Append(*file), who: self.who, over: true }, &[]);
            };
            if let Ok((_, known)) = self.now(file) {
                self.client.each(&known.objects[0], over);
            }
        }
        if *held(&state.nameless) {
            // What is not removed now has no name, and is removed with the space.
            let _ = self.client.forget(&[*file]);
        }
        drop(state);
        self.let_go(file);
    }

    /// Forgets what is known of a file that nobody has open or changes, if it is gone, or all of it is synced. What a sync that failed has left is made up for by the next one.
    pub(super) fn let_go(&self, file: &Id) {
        let is_gone = self.client.names().is_gone(file);
        let mut files = held(&self.files);
        let is_unused = |state: &Arc<State>| state.opens.load(Ordering::Relaxed) == 0 && Arc::strong_count(state) == 1;
        if files.get(file).is_some_and(|state| is_unused(state) && (is_gone || state.owes_nothing())) {
            files.remove(file);
        }
    }

    /// What is known of a file now.
    pub(super) fn now(&self, file: &Id) -> Result<(Entry, Written), Refused> {
        let names = self.client.names();
        if names.is_gone(file) {
            return Err(Refused::Removed);
        }
        let entry = names.entry(file).ok_or(Refused::Absent)?;
        entry.written().map(|known| (entry.clone(), known.clone())).ok_or(Refused::Staged)
    }

    /// Has each of the targets of a file do its part, by the map that is known then, and by another one if the file was moved meanwhile or a target is lost.
    pub(super) fn on_all(
        &self,
        file: &Id,
        work: impl Fn(&Written, u16, &Peer) -> Result<(), Fault> + Sync,
        part: impl Fn(&Written) -> Vec<u16>,
    ) -> Result<(), Refused> {
        let mut fault = None;
        for again in 0..TRIES {
            let (_, known) = self.now(file)?;
            let targets = part(&known);
            match outcome(&targets, self.client.each(&targets, |at, peer| work(&known, at, peer))) {
                Outcome::Done => return Ok(()),
                Outcome::Failed(fault) => return Err(fault.into()),
                Outcome::Moved => self.hear_of(file, again > 0),
                Outcome::Lost(lost, why) => {
                    self.move_away(file, &Lost::Targets(&lost), &why)?;
                    fault = Some(why);
                }
            }
        }
        Err(fault.unwrap_or_else(|| Fault::Other("the file is moved again and again".to_owned())).into())
    }

    /// Hears where a file is now. With `tells` its targets are told as well: whoever moved it may have died before it had told all of them.
    pub(super) fn hear_of(&self, file: &Id, tells: bool) {
        self.client.refresh();
        if tells && let Ok((entry, _)) = self.now(file) {
            // One that cannot be told refuses the next request, and that says why.
            let _ = self.tell(&entry);
        }
    }

    pub(super) fn note_unsynced(state: &State, epoch: u32, (position, at): (u16, u16), answer: Answer, peer: &Peer) -> Result<(), Fault> {
        let Answer::Held { boot } = answer else { return Err(nonsense(peer)) };
        // What was written first is the oldest that may be lost.
        held(&state.unsynced).entry((position, at)).or_insert(Unsynced { boot, epoch });
        Ok(())
    }

    /// True if nobody else does this. The first target that answers decides; the others must not know better.
    pub(super) fn claim_all(&self, targets: &[u16], claim: &Claim) -> Result<bool, Refused> {
        let ask = |at: u16, over: bool| {
            let request = Request::Claim { claim: claim.clone(), who: self.who, over };
            self.client.peer(at).and_then(|peer| peer.ask(&request, &[])).map(drop)
        };
        let (mut had, mut fault) = (Vec::new(), None);
        for at in targets {
            match ask(*at, false) {
                Ok(()) => had.push(*at),
                Err(Fault::Failed { kind: Failed::Busy, .. }) => {
                    had.into_iter().for_each(|at| drop(ask(at, true)));
                    return Ok(false);
                }
                Err(other) => drop(fault.get_or_insert(other)),
            }
        }
        match fault {
            Some(fault) if had.is_empty() => Err(fault.into()),
            _ => Ok(true),
        }
    }

    /// Has the file end there.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn cut(&self, file: &Id, length: u64) -> Result<(), Refused> {
        let (state, changed_ns) = (self.state(file), now_ns());
        let took = Mutex::<HashSet<(u16, u16)>>::default();
        let part = |known: &Written| distinct(known.objects.iter().flatten().copied());
        let work = |known: &Written, at: u16, peer: &Peer| -> Result<(), Fault> {
            for position in known.positions(at) {
                let length = known.object_length(usize::from(position), length);
                let (answer, _) = peer.ask(&Request::Cut { file: *file, epoch: known.epoch, position, length, changed_ns }, &[])?;
                Self::note_unsynced(&state, known.epoch, (position, at), answer, peer)?;
                held(&took).insert((position, at));
            }
            Ok(())
        };
        self.on_all(file, work, part).inspect_err(|refused| {
            let of = |known: &Written, position: u16| Range::between(known.object_length(usize::from(position), length), u64::MAX);
            let Ok((_, known)) = self.now(file) else { return };
            for position in 0..known.objects.len() as u16 {
                self.note_apart(&state, &known, (position, of(&known, position)), refused, |at| held(&took).contains(&(position, at)));
            }
        })
    }

    /// Makes durable what was written here. Each byte is on two targets then, whichever node fails.
    ///
    /// # Errors
    /// [`Refused`]. What was not synced is synced by the next one.
    pub fn sync(&self, file: &Id) -> Result<(), Refused> {
        let synced = self.sync_all(file, &self.state(file));
        self.let_go(file);
        synced
    }

    fn sync_all(&self, file: &Id, state: &State) -> Result<(), Refused> {
        let _one = held(&state.syncing);
        if state.owes_nothing() {
            // Who only read it is not made to wait for a copy that is made.
            return Ok(());
        }
        self.bring_together(file, state)?;
        // Both copies of something lost what was not synced: whoever wrote it is told once.
        let mut gone = None;
        for again in 0..TRIES {
            // What another thread notes by a later map than is known here would be taken for what is elsewhere now.
            let mut unsynced = held(&state.unsynced);
            let (_, known) = self.now(file)?;
            let written = std::mem::take(&mut *unsynced);
            drop(unsynced);
            // A copy that is elsewhere now was synced there when it was made.
            let written: BTreeMap<(u16, u16), Unsynced> =
                written.into_iter().filter(|((position, at), _)| known.objects[usize::from(*position)].contains(at)).collect();
            let targets = distinct(written.keys().map(|(_, at)| *at));
            let done = self.client.each(&targets, |at, peer| -> Result<(), Fault> {
                for ((position, _), Unsynced { boot, .. }) in written.iter().filter(|((_, of), _)| *of == at) {
                    peer.ask(&Request::Sync { file: *file, epoch: known.epoch, position: *position, boot: *boot }, &[])?;
                }
                Ok(())
            });
            let outcome = outcome(&targets, done);
            if let Outcome::Done = outcome {
                // Whoever makes a copy may be gone.
                let whole = if known.filling.is_empty() { Ok(()) } else { self.fill(file, true) };
                state.lacking.store(whole.is_err(), Ordering::Relaxed);
                return gone.map_or(whole, |why: Fault| Err(why.into()));
            }
            held(&state.unsynced).extend(written.iter().map(|(copy, noted)| (*copy, *noted)));
            match outcome {
                Outcome::Done | Outcome::Moved => self.hear_of(file, again > 0),
                Outcome::Lost(lost, why) => {
                    // Another copy that took all that this one did.
                    let has = |(position, noted): (u16, &Unsynced)| {
                        let same = |((of, at), other): (&(u16, u16), &Unsynced)| {
                            *of == position && other.epoch <= noted.epoch && !lost.contains(at)
                        };
                        written.iter().any(same)
                    };
                    let mut of_lost = written.iter().filter(|((_, at), _)| lost.contains(at));
                    if of_lost.any(|((position, _), noted)| !has((*position, noted))) {
                        gone.get_or_insert(why.clone());
                        if known.has_one_copy() && matches!(why, Fault::Failed { kind: Failed::Absent, .. }) {
                            // Nobody else has it, and the target takes what is written from now on.
                            held(&state.unsynced).retain(|(_, at), _| !lost.contains(at));
                            return Err(why.into());
                        }
                    }
                    self.move_away(file, &Lost::Targets(&lost), &why)?;
                    // What takes their place has it, and durably.
                    held(&state.unsynced).retain(|(_, at), _| !lost.contains(at));
                }
                Outcome::Failed(fault) => return Err(fault.into()),
            }
        }
        Err(Fault::Other("the file is moved again and again".to_owned()).into())
    }

    /// Size of a file, and when it was changed last, nanoseconds since 1970.
    ///
    /// # Errors
    /// If neither target of an object answers.
    pub fn shape(&self, entry: &Entry) -> Result<(u64, i64), Fault> {
        if let Some(known) = self.known_shape(&entry.id) {
            return Ok(known);
        }
        let mut entries = vec![entry.clone()];
        let mark = self.client.leased.mark();
        if mark.is_some() {
            // Who looks at one after the other wants them next.
            let names = self.client.names();
            let unknown = names.following(&entry.path).filter(|next| next.written().is_some() && self.known_shape(&next.id).is_none());
            entries.extend(unknown.take(MAX_SHAPED - 1).cloned());
        }
        let shapes = self.client.shapes(&entries);
        if let Some(mark) = mark {
            let found = entries.iter().zip(&shapes).filter_map(|(entry, shape)| Some((entry.id, *shape.as_ref().ok()?)));
            self.client.leased.keep(mark, found);
        }
        shapes.into_iter().next().unwrap_or_else(|| Err(Fault::Other(format!("{} is no file", entry.path))))
    }

    /// The same, if it is known for certain.
    pub fn known_shape(&self, file: &Id) -> Option<(u64, i64)> {
        self.client.leased.file(file)
    }

    /// Says when a file was changed.
    ///
    /// # Errors
    /// Those of targets.
    pub fn stamp(&self, file: &Id, changed_ns: i64) -> Result<(), Refused> {
        let part = |known: &Written| distinct(known.objects.iter().flatten().copied());
        self.on_all(file, |_, _, peer| peer.ask(&Request::Stamp { file: *file, changed_ns }, &[]).map(drop), part)
    }
}

impl Client {
    /// Of each of these files, which ranks write: its size, and when it was changed last, nanoseconds since 1970.
    #[must_use]
    pub fn shapes(&self, entries: &[Entry]) -> Vec<Result<(u64, i64), Fault>> {
        entries.chunks(MAX_SHAPED).flat_map(|entries| self.some_shapes(entries)).collect()
    }

    fn some_shapes(&self, entries: &[Entry]) -> Vec<Result<(u64, i64), Fault>> {
        let targets = distinct(entries.iter().flat_map(|entry| entry.holders(self.targets())));
        let files: Vec<Id> = entries.iter().map(|entry| entry.id).collect();
        let told = self.ask_each(&targets, |_| Request::Shapes { files: files.clone() });
        let told: HashMap<u16, Result<Vec<Vec<Shape>>, Fault>> = targets
            .into_iter()
            .zip(told)
            .map(|(at, told)| (at, told.and_then(|(_, bytes)| self.peer(at)?.shapes_told(&bytes, files.len()))))
            .collect();
        let shape = |index: usize, entry: &Entry| -> Result<(u64, i64), Fault> {
            let Some(file) = entry.written() else { return Err(Fault::Other(format!("{} is not written by ranks", entry.path))) };
            let mut shapes = Vec::new();
            for position in 0..file.objects.len() as u16 {
                let of = |at: &u16| told.get(at)?.as_ref().ok()?.get(index)?.iter().find(|shape| shape.position == position).copied();
                let found = file.whole(position).iter().find_map(of).ok_or_else(|| {
                    let why = file.whole(position).iter().find_map(|at| told.get(at)?.as_ref().err().cloned());
                    why.unwrap_or_else(|| Fault::Other(format!("no target has all of {}:{}", self.space.name, entry.path)))
                })?;
                shapes.push(found);
            }
            Ok((size(file, &shapes), changed_ns(&shapes).unwrap_or(entry.made_ns)))
        };
        entries.iter().enumerate().map(|(index, entry)| shape(index, entry)).collect()
    }
}
