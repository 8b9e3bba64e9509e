//! What of a space's files is lost or damaged, and where it goes: targets are asked in parallel, each about its own objects.
//!
//! A target compares lengths, or sums up its blocks itself, so that 16 bytes for each 64 KiB come over the network.

use super::names::{Client, TargetCapacity, put};
use super::peer::Peer;
use super::peer::nonsense;
use crate::link::{Fault, whole};
use mend_data::ranges::{self, Range};
use mend_data::space::catalogue::Change;
use mend_data::space::healing::is_crowded;
use mend_data::space::layout::Layout;
use mend_data::space::target::{Answer, Failed, Lacking, MAX_VERIFIED, Request};
use mend_data::space::{BLOCK, COPIES, Entry, File, Id, SUMS_OF_PAGE};
use std::collections::{BTreeSet, HashMap};

/// A file of which something is not as it must be.
#[derive(Clone, Debug)]
pub struct Found {
    /// The file in question.
    pub entry: Entry,
    /// Its bytes of which no copy is good.
    pub missing: Vec<Range>,
    /// Bytes of which one of two copies is lost, damaged, or not made yet.
    pub single: u64,
    /// The file as it is by what is left: second copies are in the place of first ones that are lost.
    pub left: File,
    /// Targets that hold it and do not answer, lack something of it, or have it damaged; and the crowded one.
    pub blamed: Vec<u16>,
    /// One that keeps its checksums on the node that has their other copy, though a target on another one answers. Nothing else is wrong with it.
    pub crowded: Option<u16>,
}

/// What was found.
#[derive(Debug)]
pub struct Examined {
    /// How much room the targets have, by their places.
    pub rooms: Vec<Result<TargetCapacity, Fault>>,
    /// Targets that do not answer, and are not lost: they count as whole.
    pub away: BTreeSet<u16>,
    /// How many files were looked at.
    pub files: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// Those that are not as they must be.
    pub found: Vec<Found>,
}

/// What a target lacks, by file and place, and which blocks of which objects it has damaged.
type Looked = (BTreeSet<(Id, u16)>, Vec<(Id, u16, u64)>);

impl Client {
    /// Examines the files at a path or below it. With `deep` all bytes are read, by their targets.
    ///
    /// # Errors
    /// If checksums cannot be had, or a target says nonsense.
    pub fn examine(&self, path: &str, deep: bool) -> Result<Examined, Fault> {
        self.examine_but(path, deep, |_| false)
    }

    /// The same, by which targets that do not answer are not lost if `is_kept` is true of them.
    ///
    /// # Errors
    /// As of [`Self::examine`].
    pub fn examine_but(&self, path: &str, deep: bool, is_kept: impl Fn(u16) -> bool) -> Result<Examined, Fault> {
        let mut rooms = self.rooms();
        let there: Vec<u16> = (0..).zip(&rooms).filter(|(_, room)| room.is_ok()).map(|(at, _)| at).collect();
        let entries: Vec<Entry> = self.names().files(path).into_iter().cloned().collect();
        let look = |at: u16, peer: &Peer| -> Result<Looked, Fault> {
            let mut lacking = lacking(at, peer)?;
            let mut damaged = Vec::new();
            for entry in entries.iter().filter(|_| deep) {
                self.verify(entry, at, peer, &mut lacking, &mut damaged)?;
            }
            Ok((lacking, damaged))
        };
        let looked = self.each(&there, |at, peer| (at, look(at, peer)));
        let (mut lacking, mut damaged) = (BTreeSet::new(), HashMap::<Id, BTreeSet<(u16, u16, u64)>>::new());
        for (at, found) in looked.into_iter().flatten() {
            let (objects, blocks) = match found {
                Ok(looked) => looked,
                // It was there a moment ago.
                Err(fault @ Fault::Lost { .. }) => {
                    rooms[usize::from(at)] = Err(fault);
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            lacking.extend(objects.into_iter().map(|(file, position)| (file, position, at)));
            for (file, position, block) in blocks {
                damaged.entry(file).or_default().insert((position, at, block));
            }
        }
        let (files, bytes) = entries.iter().filter_map(Entry::file).fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.size));
        let silent = |at: &u16| rooms.get(usize::from(*at)).is_none_or(Result::is_err);
        let away: BTreeSet<u16> = self.all().into_iter().filter(|at| silent(at) && is_kept(*at)).collect();
        let lost = |at: &u16| silent(at) && !away.contains(at);
        let answering: Vec<u16> = there.into_iter().filter(|at| !silent(at)).collect();
        let mut found = Vec::new();
        for entry in entries {
            let Some(file) = entry.file() else { continue };
            let layout = Layout::of(file);
            let bad = damaged.remove(&entry.id).unwrap_or_default();
            let whole = |position: u16, at: u16| !lost(&at) && !lacking.contains(&(entry.id, position, at));
            let good =
                |position: u16, at: u16| whole(position, at) && !bad.iter().any(|(place, target, _)| (*place, *target) == (position, at));
            let left = file.swapped(good);
            let gone = layout
                .extents(Range { offset: 0, length: file.size })
                .filter(|extent| !whole(extent.position as u16, left.targets[extent.position]));
            let wrong = bad.iter().filter(|(position, at, _)| left.targets[usize::from(*position)] == *at);
            let missing = ranges::merged(gone.map(|extent| extent.range).chain(wrong.map(|(_, _, block)| layout.block(*block))).collect());
            let (mut blamed, mut single) = (BTreeSet::new(), 0);
            for position in 0..file.targets.len() {
                let copies: Vec<u16> = file.copies(position).filter(|at| good(position as u16, *at)).collect();
                blamed.extend(file.copies(position).filter(|at| !copies.contains(at)));
                if let ([_], false) = (&copies[..], file.replicas.is_empty()) {
                    single += layout.object_length(position);
                }
            }
            blamed.extend(file.keepers.iter().filter(|at| lost(at)));
            let crowded = !file.keepers.iter().any(silent) && is_crowded(&file.keepers, &answering, |at| self.node(at));
            let crowded = file.keepers.last().copied().filter(|at| crowded && !blamed.contains(at));
            blamed.extend(crowded);
            if !blamed.is_empty() || single > 0 {
                found.push(Found { missing, single, left, blamed: blamed.into_iter().collect(), crowded, entry });
            }
        }
        if !found.is_empty() {
            // Whoever moved or removed it meanwhile knows better.
            self.refresh();
            found.retain(|found| self.names().entry(&found.entry.id).is_some_and(|now| now.file() == found.entry.file()));
        }
        Ok(Examined { rooms, away, files, bytes, found })
    }

    /// Blocks of a file that a target has with other checksums than they must have.
    fn verify(
        &self,
        entry: &Entry,
        at: u16,
        peer: &Peer,
        lacking: &mut BTreeSet<(Id, u16)>,
        damaged: &mut Vec<(Id, u16, u64)>,
    ) -> Result<(), Fault> {
        let Some(file) = entry.file() else { return Ok(()) };
        let layout = Layout::of(file);
        let mut known: Option<(u64, Vec<u8>)> = None;
        let own: Vec<u16> = file.positions(at).filter(|position| !lacking.contains(&(entry.id, *position))).collect();
        for position in own {
            let blocks = layout.object_length(usize::from(position)).div_ceil(BLOCK);
            for first in (0..blocks).step_by(MAX_VERIFIED as usize) {
                let sums = match peer.ask(&Request::Verify { file: entry.id, position, first, count: MAX_VERIFIED }, &[]) {
                    // It was never told, or had let go of it before it was.
                    Err(Fault::Failed { kind: Failed::Absent, .. }) => {
                        lacking.insert((entry.id, position));
                        break;
                    }
                    answered => answered?.1,
                };
                if sums.len() as u64 != 16 * (blocks - first).min(MAX_VERIFIED.into()) {
                    return Err(nonsense(peer));
                }
                for (sum, number) in sums.chunks(16).zip(first..) {
                    let index = layout.file_offset(usize::from(position), number * BLOCK) / BLOCK;
                    let page = index / SUMS_OF_PAGE;
                    let sums = match &mut known {
                        Some((number, sums)) if *number == page => sums,
                        other => &other.insert((page, self.sums(entry, file, u32::try_from(page).unwrap_or(u32::MAX))?)).1,
                    };
                    let from = (index % SUMS_OF_PAGE) as usize * 16;
                    if sums.get(from..from + 16) != Some(sum) {
                        damaged.push((entry.id, position, index));
                    }
                }
            }
        }
        Ok(())
    }

    /// A page of a file's checksums, of a keeper that answers.
    ///
    /// # Errors
    /// If none does.
    pub fn sums(&self, entry: &Entry, file: &File, page: u32) -> Result<Vec<u8>, Fault> {
        let asked = self.ask_any(&file.keepers, &Request::ReadSums { file: entry.id, page });
        asked
            .map(|given| whole(given.blocks))
            .map_err(|fault| Fault::Other(format!("no checksums of {}:{} can be had: {fault}", self.space.name, entry.path)))
    }

    /// Asks for the turn to heal the space, or says that it is over; false if another one has it. The first target that answers decides.
    ///
    /// # Errors
    /// If none answers.
    pub fn take_turn(&self, who: Id, verify_after: Option<u32>, done: bool) -> Result<bool, Fault> {
        let mut fault = None;
        for at in 0..self.targets() {
            match self.peer(at as u16)?.ask(&Request::Heal { who, verify_after, done }, &[]) {
                Ok(_) => return Ok(true),
                Err(Fault::Failed { kind: Failed::Busy, .. }) => return Ok(false),
                Err(other) => drop(fault.get_or_insert(other)),
            }
        }
        Err(fault.unwrap_or_else(|| Fault::Other(format!("{} has no targets", self.space.name))))
    }

    /// Lets a file be where it is now: its objects on targets, whose lives are these, become durable; then its checksums on new keepers; then the new map, first
    /// on targets that have an object by it that they did not have. `written` has the places of objects that got bytes, each with its target. What is elsewhere now goes. Targets that are `away` hear of it when they are back.
    ///
    /// # Errors
    /// Those of targets. Until the first of them has the map, the file is where it was.
    pub fn settle_moved(
        &self,
        old: &Entry,
        new: &Entry,
        written: &BTreeSet<(u16, u16)>,
        lives: &[Option<Id>],
        away: &BTreeSet<u16>,
    ) -> Result<(), Fault> {
        let (Some(before), Some(file)) = (old.file(), new.file()) else { return Ok(()) };
        let layout = Layout::of(file);
        let got: Vec<u16> = written.iter().map(|(_, at)| *at).collect::<BTreeSet<u16>>().into_iter().collect();
        let settled = self.each(&got, |at, peer| {
            let Some(life) = lives.get(usize::from(at)).copied().flatten() else { return Err(nonsense(peer)) };
            let mut own = written.iter().filter(|(_, target)| *target == at).map(|(position, _)| *position);
            own.try_for_each(|position| {
                let length = layout.object_length(usize::from(position));
                peer.ask(&Request::Settle { file: new.id, position, length, life }, &[]).map(drop)
            })
        });
        settled.into_iter().flatten().collect::<Result<(), Fault>>()?;
        if !new.replaces(old) {
            return Ok(());
        }
        let pages = u32::try_from(layout.blocks().div_ceil(SUMS_OF_PAGE)).unwrap_or(u32::MAX);
        for keeper in file.keepers.iter().filter(|at| !before.keepers.contains(at)) {
            for page in 0..pages {
                let sums = self.sums(old, before, page)?;
                self.peer(*keeper)?.ask(&Request::Sums { file: new.id, page, length: sums.len() as u32 }, &sums)?;
            }
        }
        let put = |at: u16, peer: &Peer| peer.ask(&put(new, file, at), &[]).map(drop);
        let known = old.holders(self.targets());
        let has_all = |at: &u16| known.contains(at) && file.positions(*at).all(|position| before.positions(*at).any(|had| had == position));
        let told = new.holders(self.targets()).into_iter().filter(|at| !away.contains(at));
        let (others, first): (Vec<u16>, Vec<u16>) = told.partition(has_all);
        self.each(&first, put).into_iter().flatten().collect::<Result<(), Fault>>()?;
        self.each(&others, put).into_iter().flatten().collect::<Result<(), Fault>>()?;
        self.names_mut().learn(Change::There(Box::new(new.clone())));
        self.tell_of_move(old, new);
        Ok(())
    }

    /// That enough targets are told a new map, though some are `away`: of each entry there are two.
    ///
    /// # Errors
    /// There are not.
    pub fn enough_are_told(&self, new: &Entry, away: &BTreeSet<u16>) -> Result<(), Fault> {
        let holders = new.holders(self.targets());
        let told = holders.iter().filter(|at| !away.contains(at)).count();
        if told >= holders.len().min(COPIES) { Ok(()) } else { Err(Fault::Other("too few of its targets answer".to_owned())) }
    }

    /// Where a file that somebody has open is now; `None` if that is where it was.
    pub(super) fn moved(&self, entry: &Entry) -> Option<Entry> {
        self.names().entry(&entry.id).filter(|now| now.version != entry.version).cloned()
    }
}

/// Objects that a target must have, and lacks.
pub(super) fn lacking(at: u16, peer: &Peer) -> Result<BTreeSet<(Id, u16)>, Fault> {
    match peer.ask(&Request::Lacking { at }, &[])? {
        (Answer::Bytes { .. }, bytes) => {
            let lacking: Lacking = postcard::from_bytes(&bytes).map_err(|_| nonsense(peer))?;
            Ok(lacking.into_iter().collect())
        }
        _ => Err(nonsense(peer)),
    }
}
