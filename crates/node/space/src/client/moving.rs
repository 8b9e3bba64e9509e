//! A copy of a file that ranks write comes onto another target, while they go on writing.
//!
//! ```text
//! 1. the new target has the new map, and empty objects: it notes what is written to them from now on
//! 2. all others have the new map: who writes by the old one is refused, hears the new one, and writes to the good copy and the new one
//! 3. what the good copy has is copied; what was written to the new one meanwhile stays
//! 4. it is durable there, and all hear that the copy is whole
//! ```
//! A write that is over before 2 is in the good copy when 3 reads it; one that is over later is in both. Until 4 only the good copy is read. One client does this at a time
//! (a claim). Faults assumed: it dies at any step, and another one goes on; the new target is lost or begins anew, and another map is made.

use super::lost::Lost;
use super::names::Client;
use super::peer::{Peer, nonsense};
use super::writer::{Outcome, Refused, Writer, distinct, outcome};
use crate::link::Fault;
use mend_data::space::catalogue::Change;
use mend_data::space::placement::{NoPlace, RESERVE};
use mend_data::space::target::{Answer, Claim, Failed, Request};
use mend_data::space::written::{Shape, Written, range_sum, sum_of_pieces};
use mend_data::space::{Entry, Id, Kind};
use mend_messages::space_report::{Healed, SpaceEvent};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;
/// How often it is begun anew.
const TRIES: usize = 4;
/// How long another client's end is waited for before one looks again.
const PAUSE: Duration = Duration::from_millis(100);

/// What a target said that was told something.
type Told = (u16, Result<(), Fault>);

impl Writer {
    /// Makes copies of a file anew, on other targets if there are any.
    pub(super) fn move_away(&self, file: &Id, lost: &Lost<'_>, why: &Fault) -> Result<(), Refused> {
        let begun = Instant::now();
        let _turn = self.turn(file);
        for turn in 0..TRIES {
            let known = loop {
                self.client.refresh();
                let (entry, known) = self.now(file)?;
                if !lost.any_of(&known) {
                    // Another node has done it; what is not copied yet is waited for when it is synced.
                    return Ok(());
                }
                if self.claim_move(file, &known, lost)? {
                    break entry;
                }
                std::thread::sleep(PAUSE);
            };
            let map = |_: &str| self.make_map(file, lost, turn == 0).and_then(|(old, new)| self.tell_map(&new, &old));
            let moved = self.as_named(file, map).and_then(|()| self.copy(file));
            self.release_move(file);
            match moved {
                Ok(copied) => {
                    mend_report::tell!("mend data: {}:{}: {why}; its copy is on another target now", self.client.space.name, known.path);
                    self.tell_of_copy(&known, lost, copied, begun);
                    return Ok(());
                }
                Err(Refused::Fault(Fault::Lost { .. } | Fault::Failed { kind: Failed::Absent | Failed::Moved, .. })) => {}
                // A target that was to get again what it has lost may not take it.
                Err(Refused::Fault(Fault::Failed { .. })) if turn == 0 => {}
                Err(Refused::NoPlace(NoPlace::NoTarget)) if known.written().is_some_and(Written::has_one_copy) => {
                    let name = &self.client.space.name;
                    return Err(Fault::Other(format!("{name}:{}: {why}; files of this space have one copy", known.path)).into());
                }
                Err(Refused::NoPlace(no)) => {
                    return Err(Fault::Other(format!(
                        "{}:{}: {why}; no second copy can be made: {no}",
                        self.client.space.name, known.path
                    ))
                    .into());
                }
                Err(other) => return Err(other),
            }
        }
        Err(why.clone().into())
    }

    /// A file that ranks write has two copies again.
    fn tell_of_copy(&self, before: &Entry, lost: &Lost<'_>, copied: u64, begun: Instant) {
        let of = |known: &Written| distinct(known.objects.iter().flatten().copied());
        let (before_on, now_on) = (before.written().map(of).unwrap_or_default(), self.now(&before.id).map(|(_, now)| of(&now)));
        let lacked = before_on.iter().filter(|at| lost.names(**at));
        let new = now_on.unwrap_or_default().into_iter().filter(|at| !before_on.contains(at) || lost.names(*at));
        let name = |at: u16| self.client.shared_peer(at).map(|peer| peer.target.name()).unwrap_or_default();
        self.client.events.tell(SpaceEvent::Healed(Healed {
            file: before.path.clone(),
            lacked: lacked.map(|at| name(*at)).collect(),
            copied,
            targets: new.map(name).collect(),
            us: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            ..Healed::default()
        }));
    }

    /// Ends what another client may have begun: copies that lack something. One that is at it is waited for, if this one `waits`.
    pub(super) fn fill(&self, file: &Id, waits: bool) -> Result<(), Refused> {
        let mut moved = 0;
        loop {
            let turn = self.turn(file);
            self.client.refresh();
            let (_, known) = self.now(file)?;
            if known.filling.is_empty() {
                return Ok(());
            }
            if !self.claim_move(file, &known, &Lost::Targets(&[]))? {
                drop(turn);
                if !waits {
                    return Ok(());
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            let copied = self.copy(file);
            self.release_move(file);
            drop(turn);
            return match copied {
                Err(Refused::Fault(Fault::Failed { kind: Failed::Moved, .. })) if moved < TRIES => {
                    moved += 1;
                    self.hear_of(file, true);
                    continue;
                }
                Err(Refused::Fault(fault @ Fault::Lost { .. })) if self.is_patient => Err(fault.into()),
                Err(Refused::Fault(fault @ (Fault::Lost { .. } | Fault::Failed { kind: Failed::Absent, .. }))) => {
                    let second = |position: &u16| known.objects.get(usize::from(*position)).map(|[_, at]| (*position, *at));
                    self.move_away(file, &Lost::Copies(&known.filling.iter().filter_map(second).collect()), &fault)
                }
                copied => copied.map(drop),
            };
        }
    }

    /// True if nobody else moves the file. Those targets decide that have all of an object, and answer.
    fn claim_move(&self, file: &Id, known: &Written, lost: &Lost<'_>) -> Result<bool, Refused> {
        let good = (0..known.objects.len() as u16)
            .flat_map(|position| known.whole(position).iter().copied().filter(move |at| !lost.has(position, *at)));
        let mut good = distinct(good);
        if good.is_empty() {
            // Each of them has lost something, and has something else.
            good = distinct(known.objects.iter().flatten().copied());
        }
        match self.claim_all(&good, &Claim::Move(*file)) {
            Err(Refused::Fault(_)) => Err(Refused::NoPlace(NoPlace::NoTarget)),
            claimed => claimed,
        }
    }

    fn release_move(&self, file: &Id) {
        let all: Vec<u16> = (0..self.client.targets() as u16).collect();
        let request = Request::Claim { claim: Claim::Move(*file), who: self.who, over: true };
        self.client.each(&all, |_, peer: &Peer| if peer.is_lost() { Ok(()) } else { peer.ask(&request, &[]).map(drop) });
    }

    /// What is known of a file, and what is to be. With `apart` a target gets again what it has lost, if there is no other one but on the node of the copy that is left.
    fn make_map(&self, file: &Id, lost: &Lost<'_>, apart: bool) -> Result<(Entry, Entry), Refused> {
        // A target that does not answer takes long here; meanwhile the file may get another name.
        let rooms = self.client.rooms();
        self.client.refresh_since(Instant::now());
        let (old, known) = self.now(file)?;
        let room = |at: u16| rooms.get(usize::from(at)).and_then(|room| room.as_ref().ok()).map(|room| room.free);
        let all = || 0..rooms.len() as u16;
        let free: Vec<Option<u64>> = all().map(|at| room(at).filter(|_| !lost.names(at) && self.client.takes_writes(at))).collect();
        let told = self.objects_there(file, &known);
        let is_lost = |position: u16, at: u16| lost.has(position, at) || (!self.is_patient && room(at).is_none());
        let is_there = |position: u16, at: u16| {
            told.contains(&(position, at)) && !matches!(lost, Lost::Copies(copies) if copies.contains(&(position, at)))
        };
        // If nobody tells how long it is, nobody can copy it.
        let size = self.shape(&old).map_or(0, |(size, _)| size);
        let length = |position: u16| known.object_length(position.into(), size);
        let node = |at: u16| self.client.node(at);
        // Not one that was asked to write just now and failed.
        let takes = |position: u16, at: u16| {
            let roomy = room(at).is_some_and(|free| free >= length(position).saturating_add(RESERVE));
            apart && matches!(lost, Lost::Copies(_)) && roomy && is_lost(position, at) && self.client.takes_writes(at)
        };
        let new = match known.moved(&free, is_lost, is_there, length, node) {
            // With two targets, one that has lost its objects and answers gets them again.
            Err(no @ (NoPlace::TooFew { .. } | NoPlace::Full { .. })) => {
                let free: Vec<Option<u64>> =
                    all().map(|at| free[usize::from(at)].or_else(|| room(at).filter(|_| lost.names(at)))).collect();
                known.again(&free, is_lost, is_there).map_err(|refused| if let NoPlace::TooFew { .. } = refused { no } else { refused })?
            }
            other => known.apart(other?.ok_or_else(|| self.moved_meanwhile(&known))?, takes, node),
        };
        let new = Entry { version: old.version.saturating_add(1), kind: Kind::Written(new), ..old.clone() };
        Ok((old, new))
    }

    /// Copies of a file that its targets say they have, by the places of their objects.
    fn objects_there(&self, file: &Id, known: &Written) -> BTreeSet<(u16, u16)> {
        let targets = distinct(known.objects.iter().flatten().copied());
        let told = self.client.each(&targets, |at, peer| {
            let told = peer.shapes(vec![*file]).unwrap_or_default();
            told.into_iter().flatten().map(|shape| (shape.position, at)).collect::<Vec<_>>()
        });
        told.into_iter().flatten().flatten().collect()
    }

    fn tell_map(&self, new: &Entry, old: &Entry) -> Result<(), Refused> {
        let (Some(file), Some(before)) = (new.written(), old.written()) else { return Err(Refused::Staged) };
        let fresh = |at: u16| -> Vec<u16> {
            let comes = |position: &u16| file.objects[usize::from(*position)][1] == at && file.filling.contains(position);
            file.positions(at).filter(comes).collect()
        };
        let mut holders = new.holders(self.client.targets());
        holders.extend(old.holders(self.client.targets()).into_iter().filter(|at| !new.holders(self.client.targets()).contains(at)));
        let (first, then): (Vec<u16>, Vec<u16>) = holders.into_iter().partition(|at| !fresh(*at).is_empty());
        let adopt = |at: u16, peer: &Peer| -> Result<(), Fault> {
            let request = Request::Adopt { entry: Box::new(new.clone()), positions: file.positions(at).collect(), fresh: fresh(at) };
            let told = peer.ask(&request, &[]).map(drop);
            // Those that have nothing of it any more may be lost: they are told when they are heard again.
            if file.positions(at).next().is_none() && before.positions(at).next().is_some() { Ok(()) } else { told }
        };
        for targets in [first, then] {
            match outcome(&targets, self.client.each(&targets, adopt)) {
                Outcome::Done => {}
                Outcome::Moved => return Err(self.moved_meanwhile(before).into()),
                Outcome::Lost(_, fault) | Outcome::Failed(fault) => return Err(fault.into()),
            }
        }
        self.client.names_mut().learn(Change::There(Box::new(new.clone())));
        Ok(())
    }

    /// Copies what is lacking, and says that it is whole.
    fn copy(&self, file: &Id) -> Result<u64, Refused> {
        let (_, known) = self.now(file)?;
        let mut copied = 0;
        for position in known.filling.clone() {
            let [good, new] = known.objects[usize::from(position)];
            let (good, new) = (self.client.peer(good)?, self.client.peer(new)?);
            let Shape { length, changed_ns, .. } = shape_of(good, file, position)?;
            let (mut at, mut boot) = (0, None);
            while at < length || boot.is_none() {
                let wanted = PIECE.min(length - at) as u32;
                let (_, bytes) = good.ask(&Request::ReadRange { file: *file, position, offset: at, length: wanted }, &[])?;
                let (epoch, sum, length) = (known.epoch, range_sum(&bytes), bytes.len() as u32);
                let request = Request::Fill { file: *file, epoch, position, offset: at, length, sum, changed_ns };
                let (answer, _) = new.ask(&request, &bytes)?;
                let Answer::Held { boot: held } = answer else { return Err(nonsense(new).into()) };
                if *boot.get_or_insert(held) != held {
                    return Err(started_anew(new).into());
                }
                at += u64::from(wanted);
                copied += u64::from(length);
                if at % (64 * PIECE) == 0 && !self.claim_move(file, &known, &Lost::Targets(&[]))? {
                    return Err(self.moved_meanwhile(&known).into());
                }
                if bytes.len() < wanted as usize {
                    // It was cut meanwhile.
                    break;
                }
            }
            // What the new one took is durable only if its node has not been started anew since.
            for (peer, since) in [(good, None), (new, boot)] {
                let boot = since.map_or_else(|| boot_of(peer, file, &known, position), Ok)?;
                peer.ask(&Request::Sync { file: *file, epoch: known.epoch, position, boot }, &[])?;
            }
        }
        // Its name may be another one by now, and is not to become another one meanwhile.
        self.as_named(file, |_| {
            let (entry, now) = self.now(file)?;
            if now.epoch != known.epoch {
                return Err(self.moved_meanwhile(&now).into());
            }
            let whole = Written { filling: Vec::new(), ..now };
            self.tell(&Entry { version: entry.version.saturating_add(1), kind: Kind::Written(whole), ..entry })
        })?;
        Ok(copied)
    }

    /// The map of a file is not the one that it had a moment ago.
    fn moved_meanwhile(&self, known: &Written) -> Fault {
        let target = known.objects.first().and_then(|copies| self.client.peer(copies[0]).ok()).map(|peer| peer.target.name());
        Fault::Failed { target: target.unwrap_or_default(), kind: Failed::Moved, why: "another client moves the file".to_owned() }
    }

    /// Tells all that hold a file what is new of it: that a copy is whole.
    pub(super) fn tell(&self, new: &Entry) -> Result<(), Refused> {
        // One that is lost hears of it when it is back.
        self.client.enough(self.put(new)?.into_iter().map(|(_, told)| told).collect())?;
        self.client.names_mut().learn(Change::There(Box::new(new.clone())));
        Ok(())
    }

    /// Tells them its name and permissions. Of each object one target that has all of it is enough, as it is for reading: a file whose other copies are lost stays in use, and those that are lost hear of it
    /// when they are back.
    pub(super) fn tell_name(&self, new: &Entry) -> Result<(), Refused> {
        let told = self.put(new)?;
        let (good, bad): (Vec<_>, Vec<_>) = told.into_iter().partition(|(_, told)| told.is_ok());
        let is_told = |at: &u16| good.iter().any(|(holder, _)| holder == at);
        let objects = new.written().map_or(0, |file| file.objects.len() as u16);
        let enough = (0..objects).all(|position| new.written().is_some_and(|file| file.whole(position).iter().any(is_told)));
        if let Some(fault) = bad.into_iter().find_map(|(_, told)| told.err()).filter(|_| !enough) {
            return Err(fault.into());
        }
        self.client.names_mut().learn(Change::There(Box::new(new.clone())));
        Ok(())
    }

    /// Has all that hold a file keep what is new of it; what each of them said.
    fn put(&self, new: &Entry) -> Result<Vec<Told>, Refused> {
        let Some(file) = new.written() else { return Err(Refused::Staged) };
        let holders = new.holders(self.client.targets());
        let put = |at: u16| Request::Put { entry: Box::new(new.clone()), positions: file.positions(at).collect() };
        let told = self.client.ask_each(&holders, put).into_iter().map(|told| told.map(drop));
        Ok(holders.into_iter().zip(told).collect())
    }
}

pub(super) fn shape_of(peer: &Peer, file: &Id, position: u16) -> Result<Shape, Fault> {
    let found = peer.shapes(vec![*file])?.into_iter().flatten().find(|shape| shape.position == position);
    found.ok_or_else(|| Fault::Failed { target: peer.target.name(), kind: Failed::Absent, why: "it does not have the object".to_owned() })
}

fn started_anew(peer: &Peer) -> Fault {
    Fault::Failed { target: peer.target.name(), kind: Failed::Absent, why: "its node was started anew while a copy was made".to_owned() }
}

/// Which start of its node a target is in. To write nothing tells it.
fn boot_of(peer: &Peer, file: &Id, known: &Written, position: u16) -> Result<Id, Fault> {
    let (epoch, sum) = (known.epoch, sum_of_pieces(&[]));
    let request = Request::WriteRange { file: *file, epoch, position, offset: 0, length: 0, sum, changed_ns: 0, appends: false };
    match peer.ask(&request, &[])?.0 {
        Answer::Held { boot } => Ok(boot),
        _ => Err(nonsense(peer)),
    }
}

impl Client {
    /// Files that ranks write with something on one of these targets.
    #[must_use]
    pub fn written_on(&self, targets: &[u16]) -> Vec<Id> {
        let names = self.names();
        let on = |entry: &&Entry| entry.written().is_some_and(|file| file.objects.iter().flatten().any(|at| targets.contains(at)));
        names.files("").into_iter().filter(on).map(|entry| entry.id).collect()
    }

    /// Files that ranks write of which a copy lacks something: it is being made, or whoever made it has died.
    #[must_use]
    pub fn unfilled(&self) -> Vec<Id> {
        let names = self.names();
        let lacks = |entry: &&Entry| entry.written().is_some_and(|file| !file.filling.is_empty());
        names.files("").into_iter().filter(lacks).map(|entry| entry.id).collect()
    }
}
