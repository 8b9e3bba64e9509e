//! Whether the copies of files that ranks write are as they were written, and how they become so again.
//!
//! ```text
//! each target ──checksums of its blocks as they are──► compared ──► damaged here, whole there ──► its bytes, from there
//!                                                              └──► lost, or different ────────► a new copy (`moving`)
//! ```
//! Ranks may write meanwhile: what two copies seem to have differently is looked at again. Faults assumed: targets die at any moment; others repair, move or remove the file.

use super::examine::lacking;
use super::lost::Lost;
use super::names::Client;
use super::peer::{Peer, nonsense};
use super::writer::{Refused, Writer, distinct};
use crate::link::Fault;
use mend_data::space::copies::{Wrong, compared};
use mend_data::space::placement::NoPlace;
use mend_data::space::target::{Failed, MAX_VERIFIED, Request};
use mend_data::space::written::Written;
use mend_data::space::{BLOCK, Entry, Id};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// How often copies that seem to differ are looked at again, and how long one waits before.
const LOOKS: (usize, Duration) = (5, Duration::from_millis(100));

/// A block of an object on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockOf {
    /// The target.
    pub target: u16,
    /// Which of the file's objects.
    pub position: u16,
    /// Which block of it.
    pub block: u64,
}

/// A file that ranks write of which something is not as it must be.
#[derive(Clone, Debug)]
pub struct BadCopies {
    /// The file in question.
    pub entry: Entry,
    /// Targets that do not answer, or lack an object of it.
    pub lost: BTreeSet<u16>,
    /// Blocks that a target has damaged, and another one has not.
    pub damaged: BTreeSet<BlockOf>,
    /// Targets whose copy is another one than that which is read.
    pub different: BTreeSet<u16>,
    /// A second copy is being made, or whoever made it has died.
    pub unfinished: bool,
    /// Blocks that no copy has as they were written.
    pub gone_blocks: u64,
    /// Objects of which no copy is there.
    pub gone_objects: u64,
    /// Copies that are lost or different, by the place of their object and their target.
    anew: BTreeSet<(u16, u16)>,
}

impl BadCopies {
    /// True if it cannot become whole.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone_blocks + self.gone_objects > 0
    }

    fn is_bad(&self) -> bool {
        self.is_gone() || self.unfinished || !(self.lost.is_empty() && self.damaged.is_empty() && self.different.is_empty())
    }

    /// Targets that are to blame.
    #[must_use]
    pub fn blamed(&self) -> BTreeSet<u16> {
        let damaged = self.damaged.iter().map(|block| block.target);
        self.lost.iter().chain(&self.different).copied().chain(damaged).collect()
    }
}

/// What was found of files that ranks write.
#[derive(Debug, Default)]
pub struct ExaminedCopies {
    /// How many were looked at.
    pub files: u64,
    /// How many bytes they have, as far as that is known.
    pub bytes: u64,
    /// Those that are not as they must be.
    pub found: Vec<BadCopies>,
}

/// Checksums by files and places of objects, of one target.
type Sums = HashMap<(Id, u16), Vec<u128>>;

/// What each target that answers has; with `deep` also its checksums. The objects that it lacks come first.
type Told = BTreeMap<u16, (BTreeSet<(Id, u16)>, Sums)>;

impl Client {
    /// Examines the files that ranks write at a path or below it. With `deep` all copies are read, by their targets.
    ///
    /// # Errors
    /// If a target says nonsense.
    pub fn examine_copies(&self, path: &str, deep: bool) -> Result<ExaminedCopies, Fault> {
        let all = self.all();
        let entries: Vec<Entry> = self.names().files(path).into_iter().filter(|entry| entry.written().is_some()).cloned().collect();
        if entries.is_empty() {
            return Ok(ExaminedCopies::default());
        }
        let looked = self.each(&all, |at, peer| -> Result<_, Fault> {
            let mut lacking = lacking(at, peer)?;
            let mut sums = Sums::new();
            let objects = entries.iter().filter(|_| deep).flat_map(|entry| objects_on(entry, at));
            for (file, position) in objects.filter(|object| !lacking.contains(object)).collect::<Vec<_>>() {
                match all_sums(peer, &file, position)? {
                    Some(found) => drop(sums.insert((file, position), found)),
                    None => drop(lacking.insert((file, position))),
                }
            }
            Ok((lacking, sums))
        });
        let mut told = Told::new();
        for (at, looked) in all.iter().zip(looked).filter_map(|(at, looked)| Some((*at, looked?))) {
            match looked {
                Ok(looked) => drop(told.insert(at, looked)),
                Err(Fault::Lost { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        let bytes = self.shapes(&entries).into_iter().flatten().map(|(size, _)| size).sum();
        let mut found = Vec::new();
        for entry in &entries {
            if let Some(bad) = self.bad_copies(entry, &told)?.filter(BadCopies::is_bad) {
                found.push(bad);
            }
        }
        Ok(ExaminedCopies { files: entries.len() as u64, bytes, found })
    }

    /// `None` if the file is not what it was when it was looked at: it was removed, or is moved just now.
    fn bad_copies(&self, entry: &Entry, told: &Told) -> Result<Option<BadCopies>, Fault> {
        let Some(known) = entry.written() else { return Ok(None) };
        let mut bad = BadCopies {
            entry: entry.clone(),
            lost: BTreeSet::new(),
            damaged: BTreeSet::new(),
            different: BTreeSet::new(),
            unfinished: !known.filling.is_empty(),
            gone_blocks: 0,
            gone_objects: 0,
            anew: BTreeSet::new(),
        };
        for position in 0..known.objects.len() as u16 {
            let is_there = |at: &u16| told.get(at).is_some_and(|(lacking, _)| !lacking.contains(&(entry.id, position)));
            let lost = || known.objects[usize::from(position)].iter().copied().filter(|at| !is_there(at));
            bad.lost.extend(lost());
            bad.anew.extend(lost().map(|at| (position, at)));
            let whole: Vec<u16> = known.whole(position).iter().copied().filter(is_there).collect();
            if whole.is_empty() {
                bad.gone_objects += 1;
            }
            let sums: Vec<Vec<u128>> = whole.iter().filter_map(|at| told.get(at)?.1.get(&(entry.id, position)).cloned()).collect();
            for (block, wrong) in compared(&sums) {
                let Some(wrong) = self.again(entry, (position, block), wrong, &whole)? else { continue };
                match wrong {
                    Wrong::Damaged { copy } => drop(bad.damaged.insert(BlockOf { target: whole[copy], position, block })),
                    Wrong::Differs { copy } => {
                        bad.different.insert(whole[copy]);
                        bad.anew.insert((position, whole[copy]));
                    }
                    Wrong::Lost => bad.gone_blocks += 1,
                }
            }
        }
        if bad.is_bad() {
            // Whoever moved or removed it meanwhile knows better.
            self.refresh();
            if self.names().entry(&entry.id).is_none_or(|now| now.written() != Some(known)) {
                return Ok(None);
            }
        }
        Ok(Some(bad))
    }

    /// What is wrong with a block, looked at again if that may be for somebody who writes it.
    fn again(&self, entry: &Entry, (position, block): (u16, u64), mut wrong: Wrong, whole: &[u16]) -> Result<Option<Wrong>, Fault> {
        let (looks, pause) = LOOKS;
        for _ in 0..looks {
            if !matches!(wrong, Wrong::Differs { .. }) {
                return Ok(Some(wrong));
            }
            std::thread::sleep(pause);
            let mut sums = Vec::new();
            for at in whole {
                // A target that is lost by now is seen at the next look.
                match some_sums(self.peer(*at)?, &entry.id, position, block, 1) {
                    Ok(Some(found)) => sums.push(found),
                    Ok(None) | Err(Fault::Lost { .. }) => return Ok(None),
                    Err(fault) => return Err(fault),
                }
            }
            match compared(&sums).pop_first() {
                Some((_, found)) => wrong = found,
                None => return Ok(None),
            }
        }
        Ok(Some(wrong))
    }
}

fn objects_on(entry: &Entry, at: u16) -> Vec<(Id, u16)> {
    entry.written().map(|file| file.positions(at).map(|position| (entry.id, position)).collect()).unwrap_or_default()
}

/// Checksums of blocks of an object as they are now; `None` if the target has it no more, or not whole.
pub(super) fn some_sums(peer: &Peer, file: &Id, position: u16, first: u64, count: u32) -> Result<Option<Vec<u128>>, Fault> {
    let bytes = match peer.ask(&Request::Verify { file: *file, position, first, count }, &[]) {
        Ok((_, bytes)) => bytes,
        Err(Fault::Failed { kind: Failed::Absent | Failed::Short | Failed::Medium | Failed::Moved, .. }) => return Ok(None),
        Err(fault) => return Err(fault),
    };
    if bytes.len() % 16 != 0 || bytes.len() > count as usize * 16 {
        return Err(nonsense(peer));
    }
    Ok(Some(bytes.chunks_exact(16).map(|sum| u128::from_le_bytes(sum.try_into().unwrap_or_default())).collect()))
}

fn all_sums(peer: &Peer, file: &Id, position: u16) -> Result<Option<Vec<u128>>, Fault> {
    let mut all = Vec::new();
    loop {
        let Some(some) = some_sums(peer, file, position, all.len() as u64, MAX_VERIFIED)? else { return Ok(None) };
        let last = some.len() < MAX_VERIFIED as usize;
        all.extend(some);
        if last {
            return Ok(Some(all));
        }
    }
}

impl Writer {
    /// Makes the copies of a file whole again, as far as another copy is; how many bytes were copied at least.
    ///
    /// # Errors
    /// [`Refused`]. What is whole stays whole.
    pub fn mend(&self, bad: &BadCopies) -> Result<u64, Refused> {
        let file = &bad.entry.id;
        let (mut copied, mut anew) = (0, bad.anew.clone());
        for block in &bad.damaged {
            let copy = (block.position, block.target);
            if anew.contains(&copy) {
                continue;
            }
            let (_, known) = self.now(file)?;
            match self.mend_block(file, &known, *block)? {
                Some(bytes) => copied += bytes,
                // Its checksum is damaged as well, or it is on other targets now.
                None => drop(anew.insert(copy)),
            }
        }
        let (_, known) = self.now(file)?;
        anew.retain(|(position, at)| known.objects.get(usize::from(*position)).is_some_and(|copies| copies.contains(at)));
        let has_another = |(position, _): &(u16, u16)| known.whole(*position).iter().any(|at| !anew.contains(&(*position, *at)));
        let (some, gone): (BTreeSet<_>, BTreeSet<_>) = anew.iter().copied().partition(has_another);
        if !some.is_empty() {
            let names = |at| self.client.peer(at).map(|peer| peer.target.name()).unwrap_or_default();
            let targets = distinct(some.iter().map(|(_, at)| *at)).into_iter().map(names).collect::<Vec<_>>().join(", ");
            self.move_away(file, &Lost::Copies(&some), &Fault::Other(format!("target {targets} has lost it, or has it damaged")))?;
            let (entry, _) = self.now(file)?;
            let length = |size| some.iter().map(|(position, _)| known.object_length(usize::from(*position), size)).sum::<u64>();
            copied += self.shape(&entry).map_or(0, |(size, _)| length(size));
        }
        if !gone.is_empty() {
            return Err(NoPlace::NoTarget.into());
        }
        if bad.unfinished {
            self.fill(file, true)?;
        }
        Ok(copied)
    }

    /// Has a target put a block right with what another copy has. How many bytes that are; `None` if it does not take them.
    fn mend_block(&self, file: &Id, known: &Written, block: BlockOf) -> Result<Option<u64>, Refused> {
        let BlockOf { target, position, block } = block;
        let others = known.whole(position).iter().filter(|at| **at != target);
        let wanted = Request::ReadRange { file: *file, position, offset: block * BLOCK, length: BLOCK as u32 };
        let good = others.copied().find_map(|at| Some(self.client.peer(at).ok()?.ask(&wanted, &[]).ok()?.1));
        let Some(bytes) = good.filter(|bytes| !bytes.is_empty()) else { return Ok(None) };
        let request = Request::MendBlock { file: *file, epoch: known.epoch, position, block, length: bytes.len() as u32 };
        match self.client.peer(target)?.ask(&request, &bytes) {
            Ok(_) => Ok(Some(bytes.len() as u64)),
            Err(Fault::Failed { kind: Failed::Absent | Failed::Medium | Failed::Short | Failed::Moved, .. } | Fault::Lost { .. }) => {
                Ok(None)
            }
            Err(fault) => Err(fault.into()),
        }
    }
}
