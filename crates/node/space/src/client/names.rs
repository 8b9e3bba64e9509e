//! The names of a space, as its targets tell them: each is asked what it came to know since.
//!
//! A target that does not answer is left out, and asked again later by a thread of its own, so that nobody waits for it. What it alone knows is not seen until then;
//! of each entry there are two copies.

use super::daemons::Daemons;
use super::events::Events;
use super::leased::Leased;
use super::peer::{Peer, nonsense};
use crate::link::{Fault, Link};
use mend_data::space::catalogue::{Catalogue, Change};
use mend_data::space::layout::Layout;
use mend_data::space::target::{Answer, Failed, Lease, MAX_IDS, Request};
use mend_data::space::{Entry, File, Id, Kind, Space, Striping, Target};
use mend_messages::job::Secret;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime};

/// [`Client::hedged_after`], unless it is said.
const HEDGE: Duration = Duration::from_millis(50);
/// How long room that was looked at is good to choose targets by.
const MAX_ROOM_AGE: Duration = Duration::from_secs(1);
/// Other daemons that are asked for a target in a bucket: each may take as long as a target is waited for.
const OTHERS: usize = 3;
/// Who hears all targets again within this time hears them often, and asks for leases.
const FREQUENT_INTERVAL: Duration = Duration::from_millis(20);
/// Targets that are asked at once: those that are silent hold up no others, and are all waited for at the same time.
const AT_ONCE: usize = 256;

/// When it is told first that a space takes long to end, and how often then.
const TELL: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

/// How much room a target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetCapacity {
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that its file system has.
    pub total: u64,
    /// Bytes that its objects have.
    pub used: u64,
    /// Which life of it this is.
    pub life: Id,
}

/// How much room each target has, or why it does not say.
type TargetCapacities = Vec<Result<TargetCapacity, Fault>>;

/// How far a target was heard.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    instance: Id,
    upto: u64,
}

/// A space, to be used.
#[derive(Debug)]
pub struct Client {
    /// What it is.
    pub space: Space,
    peers: Vec<Arc<Peer>>,
    /// [`Self::node`] of each target.
    nodes: Vec<usize>,
    catalogue: RwLock<Catalogue>,
    heard: Vec<Mutex<Heard>>,
    refreshed: Mutex<Option<Instant>>,
    pub(super) leased: Arc<Leased>,
    /// What happens to the space, for those who want to know.
    pub(super) events: Events,
    /// How much room targets had, and when.
    looked: Mutex<Option<(Instant, TargetCapacities)>>,
    /// After how long without an answer another target that has the same is asked; `None`: once it is lost.
    hedge: Option<Duration>,
}

/// How often a path is looked up whose file goes each time.
const LOOKED_UP: usize = 16;

/// Does something with what is at a path. If a file is removed meanwhile, or another one takes its name, which `is_stale` tells by the error, it is done with what is
/// there then.
pub fn as_it_is_now<T, E>(is_stale: impl Fn(&E) -> bool, work: impl Fn() -> Result<T, E>) -> Result<T, E> {
    for _ in 1..LOOKED_UP {
        match work() {
            Err(error) if is_stale(&error) => {}
            done => return done,
        }
    }
    work()
}

impl Client {
    /// With the user's secret. A target that is silent for longer than `patience` is lost. With `create` directories of targets are made.
    #[must_use]
    pub fn new(space: Space, secret: &Secret, patience: Duration, create: bool) -> Self {
        let (finding, leased) = (Arc::new(Daemons::default()), Arc::new(Leased::new()));
        let peer = |(at, target): (usize, &Target)| {
            let others = others(&space, at);
            Arc::new(Peer::new(target.clone(), &others, space.id, secret.clone(), patience, create, (finding.clone(), leased.clone())))
        };
        let peers: Vec<Arc<Peer>> = space.targets.iter().enumerate().map(peer).collect();
        let heard = peers.iter().map(|_| Mutex::default()).collect();
        let mut first = HashMap::new();
        let nodes = space.targets.iter().enumerate().map(|(at, target)| *first.entry(target.address.ip()).or_insert(at)).collect();
        let (refreshed, looked) = (Mutex::default(), Mutex::default());
        let (catalogue, events) = (RwLock::default(), Events::default());
        Self { space, peers, nodes, catalogue, heard, refreshed, leased, events, looked, hedge: Some(HEDGE) }
    }

    /// The same, by which another target is asked when one that has the same says nothing for so long.
    #[must_use]
    pub fn hedged_after(self, hedge: Duration) -> Self {
        Self { hedge: Some(hedge), ..self }
    }

    /// The same, by which nothing is under way when nobody waits for it: targets that have the same are asked one after the other, each by whoever wants it.
    #[must_use]
    pub fn unhedged(self) -> Self {
        Self { hedge: None, ..self }
    }

    pub(super) fn hedge(&self) -> Option<Duration> {
        self.hedge
    }

    pub(super) fn shared_peer(&self, at: u16) -> Option<&Arc<Peer>> {
        self.peers.get(usize::from(at))
    }

    /// A number that targets of one node share: the place of the first one there.
    #[must_use]
    pub fn node(&self, at: u16) -> usize {
        self.nodes.get(usize::from(at)).copied().unwrap_or(usize::MAX)
    }

    /// A target by its place.
    ///
    /// # Errors
    /// If the space has no such target.
    pub fn peer(&self, at: u16) -> Result<&Peer, Fault> {
        self.peers.get(usize::from(at)).map(Arc::as_ref).ok_or_else(|| Fault::Other(format!("{} has no target {at}", self.space.name)))
    }

    /// How many targets there are.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.peers.len()
    }

    /// Closes all connections that nobody uses now. The next request makes new ones.
    pub fn rest(&self) {
        self.peers.iter().for_each(|peer| peer.rest());
    }

    /// What is known of names.
    pub fn names(&self) -> RwLockReadGuard<'_, Catalogue> {
        // Every change of it is a whole one.
        self.catalogue.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn names_mut(&self) -> RwLockWriteGuard<'_, Catalogue> {
        self.catalogue.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with each of these targets, many at a time; what came of it, in their order.
    pub fn each<T: Send>(&self, targets: &[u16], work: impl Fn(u16, &Peer) -> T + Sync) -> Vec<Option<T>> {
        let (next, done) = (AtomicUsize::new(0), targets.iter().map(|_| Mutex::new(None)).collect::<Vec<_>>());
        let worker = || {
            while let Some((place, at)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|place| Some((place, targets.get(place)?))) {
                let result = self.peers.get(usize::from(*at)).map(|peer| work(*at, peer));
                *done[place].lock().unwrap_or_else(PoisonError::into_inner) = result;
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..targets.len().min(AT_ONCE) {
                // Where no more threads may be made, there are enough.
                if std::thread::Builder::new().spawn_scoped(scope, worker).is_err() {
                    break;
                }
            }
            worker();
        });
        done.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Asks each of these targets something that is short, all of them at once and without threads; their answers, in their order.
    pub(super) fn ask_each(&self, targets: &[u16], request: impl Fn(u16) -> Request + Sync) -> Vec<Result<(Answer, Vec<u8>), Fault>> {
        let begun = Instant::now();
        let requests: Vec<Request> = targets.iter().map(|at| request(*at)).collect();
        let _changing: Vec<_> = requests.iter().filter_map(|request| self.leased.changing(request.changed())).collect();
        let begin = |(at, request): (&u16, &Request)| self.peers.get(usize::from(*at))?.begin(request);
        let sent: Vec<Option<Link>> = targets.iter().zip(&requests).map(begin).collect();
        let end = |(at, link): (&u16, Option<Link>)| self.peers.get(usize::from(*at))?.end(link?, begun);
        let answered: Vec<Option<Result<_, Fault>>> = targets.iter().zip(sent).map(end).collect();
        let unanswered: Vec<u16> = targets.iter().zip(&answered).filter(|(_, answer)| answer.is_none()).map(|(at, _)| *at).collect();
        let mut anew = self.each(&unanswered, |at, peer| peer.ask(&request(at), &[])).into_iter();
        let absent = |at: u16| Fault::Other(format!("{} has no target {at}", self.space.name));
        let answers =
            targets.iter().zip(answered).map(|(at, answer)| answer.or_else(|| anew.next().flatten()).unwrap_or_else(|| Err(absent(*at))));
        answers.collect()
    }

    /// True if ranks can write to a target: a bucket takes no byte ranges.
    pub(super) fn takes_writes(&self, at: u16) -> bool {
        self.space.targets.get(usize::from(at)).is_some_and(|target| !target.is_in_bucket())
    }

    /// Places of all targets.
    pub(super) fn all(&self) -> Vec<u16> {
        (0..self.peers.len()).filter_map(|at| u16::try_from(at).ok()).collect()
    }

    /// Hears all targets, also those that were lost; those that do not answer, with why.
    pub fn refresh(&self) -> Vec<(u16, Fault)> {
        let begun = Instant::now();
        let faults = self.hear(&self.all(), false);
        *self.refreshed.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        faults
    }

    /// Hears the targets that are not lost or silent, unless that was done so recently.
    pub fn refresh_if_older(&self, than: Duration) {
        // Whoever comes meanwhile waits for the same.
        let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        if refreshed.is_none_or(|at| at.elapsed() >= than) {
            let begun = Instant::now();
            let there: Vec<u16> = self.all().into_iter().filter(|at| !self.peers[usize::from(*at)].is_doubtful()).collect();
            self.hear(&there, false);
            *refreshed = Some(begun);
        }
    }

    /// Hears the targets that are not lost, unless that was begun after `asked`, or their leases last: what others had done by then is known.
    pub fn refresh_since(&self, asked: Instant) {
        if self.leased.lasts() {
            return;
        }
        let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        if refreshed.is_none_or(|at| at < asked) {
            let begun = Instant::now();
            let often = refreshed.is_some_and(|at| begun.duration_since(at) < FREQUENT_INTERVAL);
            let there: Vec<u16> = self.all().into_iter().filter(|at| !self.peers[usize::from(*at)].is_lost()).collect();
            self.hear(&there, often);
            *refreshed = Some(begun);
        }
    }

    /// Hears the targets that are lost or silent.
    pub fn look_for_lost(&self) {
        let lost: Vec<u16> = self.all().into_iter().filter(|at| self.peers[usize::from(*at)].is_doubtful()).collect();
        if !lost.is_empty() {
            self.hear(&lost, false);
        }
    }

    /// Hears targets, which are named in their order. With `lease` they are all that are there, and what they say is to last.
    fn hear(&self, targets: &[u16], lease: bool) -> Vec<(u16, Fault)> {
        let asked = Instant::now();
        let mut heard: Vec<MutexGuard<'_, Heard>> =
            targets.iter().map(|at| self.heard[usize::from(*at)].lock().unwrap_or_else(PoisonError::into_inner)).collect();
        let after: HashMap<u16, u64> = targets.iter().zip(&heard).map(|(at, heard)| (*at, heard.upto)).collect();
        let answers = self.ask_each(targets, |at| Request::Changes { after: after[&at], lease });
        let given = |(at, answer): (&u16, &Result<(Answer, Vec<u8>), Fault>)| match answer {
            Ok((Answer::Changes { lease, more: false, .. }, _)) => Some((*at, *lease)),
            _ => None,
        };
        let leases: Option<Vec<(u16, Lease)>> = targets.iter().zip(&answers).map(given).collect();
        let taken = targets.iter().zip(&mut heard).zip(answers).map(|((at, heard), answer)| {
            let taken = answer.and_then(|(answer, _)| self.hear_one(*at, self.peer(*at)?, heard, answer));
            taken.err().map(|fault| (*at, fault))
        });
        let faults: Vec<(u16, Fault)> = taken.flatten().collect();
        if lease {
            self.leased.heard(asked, leases.filter(|_| faults.is_empty()));
        }
        faults
    }

    /// Takes in what a target answered, and all that it has besides.
    fn hear_one(&self, at: u16, peer: &Peer, heard: &mut Heard, first: Answer) -> Result<(), Fault> {
        let begins = heard.upto == 0;
        let mut first = Some(first);
        loop {
            let answer = match first.take() {
                Some(answer) => answer,
                None => peer.ask(&Request::Changes { after: heard.upto, lease: false }, &[])?.0,
            };
            let Answer::Changes { instance, upto, more, changes, .. } = answer else { return Err(nonsense(peer)) };
            if instance != heard.instance && heard.upto > 0 {
                // Another database, which numbers anew.
                *heard = Heard { instance, upto: 0 };
                continue;
            }
            let (mut come_back, mut differing) = (Vec::new(), Vec::new());
            let mut names = self.names_mut();
            for change in changes {
                match &change {
                    Change::There(entry) if names.is_gone(&entry.id) => come_back.push(entry.id),
                    Change::There(entry) if !entry.is_sound(self.peers.len()) => {}
                    Change::There(entry) => {
                        differing.extend(names.differing(entry).map(|(old, new)| (old == **entry, old, new)));
                        names.learn(change);
                    }
                    Change::Gone(_) => names.learn(change),
                }
            }
            drop(names);
            // It was away when they were removed.
            for ids in come_back.chunks(MAX_IDS) {
                peer.ask(&Request::Forget { ids: ids.to_vec() }, &[])?;
            }
            for (behind, old, new) in differing {
                // It was away while a file got another name, or a copy elsewhere.
                if let Some(file) = new.written().filter(|file| behind && file.positions(at).next().is_some()) {
                    peer.ask(&Request::Put { entry: Box::new(new.clone()), positions: file.positions(at).collect() }, &[])?;
                }
                match behind {
                    true => self.tell_of_map(&new, &[at]),
                    // Another one that was heard before it. Later on that is only a change which this client hears of.
                    false if begins => self.tell_of_map(&new, &new.holders(self.peers.len())),
                    false => {}
                }
                self.tell_of_move(&old, &new);
            }
            if upto < heard.upto {
                return Err(nonsense(peer));
            }
            *heard = Heard { instance, upto };
            if !more {
                return Ok(());
            }
        }
    }

    /// Tells targets that hold a staged file where its bytes are now. What one of them has not got is found when files are examined.
    fn tell_of_map(&self, new: &Entry, targets: &[u16]) {
        let Some(file) = new.file() else { return };
        let holders = new.holders(self.peers.len());
        for at in targets.iter().filter(|at| holders.contains(at)) {
            if let Some(peer) = self.peers.get(usize::from(*at)).filter(|peer| !peer.is_lost()) {
                let _ = peer.ask(&put(new, file, *at), &[]);
            }
        }
    }

    /// Tells targets that were lost when a file's stripes came onto others, and are back, to let go of them. One that cannot be told is told by who hears it next.
    pub(super) fn tell_of_move(&self, old: &Entry, new: &Entry) {
        let still = new.holders(self.peers.len());
        for at in old.holders(self.peers.len()).into_iter().filter(|at| !still.contains(at)) {
            if let Some(peer) = self.peers.get(usize::from(at)).filter(|peer| !peer.is_lost()) {
                let _ = peer.ask(&Request::Put { entry: Box::new(new.clone()), positions: Vec::new() }, &[]);
            }
        }
    }

    /// How much room the targets have, by their places.
    #[must_use]
    pub fn rooms(&self) -> TargetCapacities {
        let (all, mut rooms) = (self.all(), Vec::new());
        for (at, answer) in all.iter().zip(self.ask_each(&all, |_| Request::Look)) {
            rooms.push(answer.and_then(|(answer, _)| match answer {
                Answer::Seen { free, total, used, life } => Ok(TargetCapacity { free, total, used, life }),
                _ => Err(nonsense(self.peer(*at)?)),
            }));
        }
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), rooms.clone()));
        rooms
    }

    /// How much room they had a moment ago: enough to choose by.
    #[must_use]
    pub fn rooms_lately(&self) -> TargetCapacities {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        looked.filter(|(at, _)| at.elapsed() < MAX_ROOM_AGE).map_or_else(|| self.rooms(), |(_, rooms)| rooms)
    }

    /// What was seen a moment ago is so no more.
    pub(super) fn look_for_room_again(&self) {
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Removes the file at a path, or what is below it, but files that ranks wrote and that something else hides at this very path, or the file there hides below it: they are seen then. Those targets that were not told, with why: they are told by whoever sees an entry come back.
    ///
    /// # Errors
    /// If no two targets (or the only one) keep the word of it.
    pub fn remove(&self, path: &str) -> Result<usize, Fault> {
        let ids: Vec<Id> = {
            let names = self.names();
            let is_twin =
                |entry: &Entry| entry.path == path && names.is_conflict(entry) && names.at(path).is_some_and(|seen| seen.id != entry.id);
            let is_file = names.at(path).is_some_and(Entry::is_file);
            let goes = |entry: &&Entry| !is_twin(entry) && (!is_file || entry.path == path);
            names.everything(path).into_iter().filter(goes).map(|entry| entry.id).collect()
        };
        for some in ids.chunks(MAX_IDS) {
            let request = Request::Forget { ids: some.to_vec() };
            self.enough(self.ask_each(&self.all(), |_| request.clone()))?;
            let mut names = self.names_mut();
            some.iter().for_each(|id| names.learn(Change::Gone(*id)));
        }
        Ok(ids.len())
    }

    /// Ends the space: all that its targets have goes. Those that were not told, with why. `takes_long` is called about once a minute for each that is still at it, with what it says.
    #[must_use]
    pub fn end(&self, takes_long: &(dyn Fn(&Fault) + Sync)) -> Vec<Fault> {
        let told = self.each(&self.all(), |_, peer| {
            let mut tell = Instant::now() + TELL[0];
            loop {
                match peer.ask(&Request::Leave, &[]) {
                    // A bucket has much to remove, and some of it goes each time.
                    Err(fault @ Fault::Failed { kind: Failed::Busy, .. }) => {
                        if Instant::now() >= tell {
                            takes_long(&fault);
                            tell = Instant::now() + TELL[1];
                        }
                    }
                    told => break told.map(drop),
                }
            }
        });
        told.into_iter().flatten().filter_map(Result::err).collect()
    }

    /// An error if fewer than two targets did it, where there are two.
    pub(super) fn enough<T>(&self, done: Vec<Result<T, Fault>>) -> Result<(), Fault> {
        let good = done.iter().filter(|result| result.is_ok()).count();
        let needed = self.peers.len().min(mend_data::space::COPIES);
        match done.into_iter().find_map(Result::err) {
            Some(fault) if good < needed => Err(fault),
            _ => Ok(()),
        }
    }

    /// Says how new files below a directory are spread.
    ///
    /// # Errors
    /// As [`Client::remove`].
    pub fn set_striping(&self, path: &str, striping: Striping) -> Result<(), Fault> {
        let (version, before) = {
            let names = self.names();
            let replaced = names.all_at(path).into_iter().filter(|entry| entry.written().is_none());
            (names.next_version(path), replaced.map(|entry| entry.id).collect::<Vec<Id>>())
        };
        let entry =
            Entry { id: mend_wire::random_bytes(), version, path: path.to_owned(), made_ns: now_ns(), kind: Kind::Directory(striping) };
        let request = Request::Put { entry: Box::new(entry.clone()), positions: Vec::new() };
        self.enough(self.ask_each(&self.all(), |_| request.clone()))?;
        self.names_mut().learn(Change::There(Box::new(entry)));
        self.forget(&before)
    }

    /// Removes entries that another one has replaced.
    pub(super) fn forget(&self, ids: &[Id]) -> Result<(), Fault> {
        if ids.is_empty() {
            return Ok(());
        }
        let request = Request::Forget { ids: ids.to_vec() };
        self.enough(self.ask_each(&self.all(), |_| request.clone()))?;
        let mut names = self.names_mut();
        ids.iter().for_each(|id| names.learn(Change::Gone(*id)));
        Ok(())
    }
}

/// Daemons that can serve a target which is in a bucket, beside its own: those of the next ones of the space's targets there, whose nodes know its credentials.
fn others(space: &Space, at: usize) -> Vec<SocketAddr> {
    let mut others: Vec<SocketAddr> = Vec::new();
    let (before, from) = space.targets.split_at(at);
    let Some((own, behind)) = from.split_first().filter(|(own, _)| own.is_in_bucket()) else { return others };
    for target in behind.iter().chain(before).filter(|target| target.is_in_bucket()) {
        if others.len() < OTHERS && target.address != own.address && !others.contains(&target.address) {
            others.push(target.address);
        }
    }
    others
}

/// Has a target keep the entry of a file that was staged, and those of its objects that are to be there.
pub(super) fn put(entry: &Entry, file: &File, at: u16) -> Request {
    let layout = Layout::of(file);
    let positions = file.positions(at).filter(|position| layout.object_length((*position).into()) > 0).collect();
    Request::Put { entry: Box::new(entry.clone()), positions }
}

/// Nanoseconds since 1970.
pub(super) fn now_ns() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
