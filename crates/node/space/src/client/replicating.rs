//! Second copies of files that were staged: made from the first ones, block by block, each compared with its checksum on the way.
//!
//! ```text
//! target a ──Read──► here: checksums ──Write──► target b … Settle, Put          (the new map, after each some hundred MiB)
//! ```
//! A file is readable all the time: a map names a copy when it is durable. Faults assumed: whoever makes copies is killed at any moment (what the map has by then
//! stays, the rest is begun anew); a target dies or is full (what was begun there goes).

use super::names::{Client, TargetCapacity, put};
use super::peer::nonsense;
use crate::link::Fault;
use mend_data::space::catalogue::Change;
use mend_data::space::layout::Layout;
use mend_data::space::placement::NoPlace;
use mend_data::space::target::{Answer, Request};
use mend_data::space::{BLOCK, Entry, File, Id, Kind, SUMS_OF_PAGE, block_sum, replicas};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;
/// After so many bytes the map is put, so that they need not be copied again.
const BATCH: u64 = 256 << 20;

/// Second copies that are being made of a file.
#[derive(Debug)]
pub struct Copying<'a> {
    client: &'a Client,
    /// As it is by the map that was put last.
    entry: Entry,
    /// As it is to be.
    wanted: File,
    lives: Vec<Option<Id>>,
    sums: Mutex<HashMap<u32, Arc<Vec<u8>>>>,
}

impl<'a> Copying<'a> {
    /// Chooses targets for the second copies that a file lacks. `free` makes of a target's place and room the bytes that may be used there.
    ///
    /// # Errors
    /// If there is no room.
    pub fn begin(client: &'a Client, entry: &Entry, free: impl Fn(u16, &TargetCapacity) -> u64) -> Result<Self, Fault> {
        let Some(file) = entry.file() else { return Err(Fault::Other(format!("{} was not staged", entry.path))) };
        let rooms = client.rooms();
        let left: Vec<Option<u64>> = (0_u16..).zip(&rooms).map(|(at, room)| room.as_ref().ok().map(|room| free(at, room))).collect();
        let wanted = replicas::choose(file, &left, |at| client.node(at)).map_err(|error| {
            let lost = rooms.iter().find_map(|room| room.as_ref().err()).map(|fault| format!("; {fault}")).unwrap_or_default();
            Fault::Other(match error {
                NoPlace::TooFew { .. } => format!("there is no other target for it{lost}"),
                error => format!("there is no room for it: {error}{lost}"),
            })
        })?;
        let lives = rooms.into_iter().map(|room| room.ok().map(|room| room.life)).collect();
        Ok(Self { client, entry: entry.clone(), wanted, lives, sums: Mutex::default() })
    }

    /// Copies, by so many threads. The bytes that were copied.
    ///
    /// # Errors
    /// Those of targets, or if a first copy is damaged. What is in the map by then stays.
    pub fn run(mut self, threads: usize) -> Result<u64, Fault> {
        let layout = Layout::of(&self.wanted);
        let lacking: Vec<(u16, u16)> = (0_u16..)
            .zip(&self.wanted.replicas)
            .filter(|(position, _)| self.entry.file().is_some_and(|file| file.replica((*position).into()).is_none()))
            .filter_map(|(position, at)| Some((position, (*at)?)))
            .collect();
        let mut copied = 0;
        let mut rest = &lacking[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let mut count = 0;
            while count < rest.len() && (count == 0 || bytes < BATCH) {
                bytes += layout.object_length(rest[count].0.into());
                count += 1;
            }
            let (batch, others) = rest.split_at(count);
            if let Err(fault) = self.batch(batch, &layout, threads) {
                // What the map does not name goes at once.
                let begun: Vec<u16> = batch.iter().map(|(_, at)| *at).collect::<BTreeSet<u16>>().into_iter().collect();
                let request = Request::Discard { file: self.entry.id };
                self.client.each(&begun, |_, peer| if peer.is_lost() { Ok(()) } else { peer.ask(&request, &[]).map(drop) });
                return Err(fault);
            }
            copied += bytes;
            rest = others;
        }
        Ok(copied)
    }

    fn batch(&mut self, batch: &[(u16, u16)], layout: &Layout, threads: usize) -> Result<(), Fault> {
        let pieces: Vec<(u16, u16, u64)> = batch
            .iter()
            .flat_map(|(position, at)| {
                (0..layout.object_length((*position).into()).div_ceil(PIECE)).map(move |piece| (*position, *at, piece * PIECE))
            })
            .collect();
        let (next, failed, fault) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
        let work = || {
            while let Some((position, at, offset)) =
                pieces.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !failed.load(Ordering::Relaxed))
            {
                if let Err(error) = self.piece(layout, *position, *at, *offset) {
                    failed.store(true, Ordering::Relaxed);
                    fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| (0..threads.clamp(1, pieces.len().max(1))).for_each(|_| drop(scope.spawn(work))));
        if let Some(fault) = fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(fault);
        }
        let Some(mut file) = self.entry.file().cloned() else { return Ok(()) };
        file.replicas.resize(file.targets.len(), None);
        batch.iter().for_each(|(position, at)| file.replicas[usize::from(*position)] = Some(*at));
        let new = Entry { version: self.entry.version.saturating_add(1), kind: Kind::File(file), ..self.entry.clone() };
        let written = batch.iter().copied().filter(|(position, _)| layout.object_length((*position).into()) > 0).collect();
        self.client.settle_moved(&self.entry, &new, &written, &self.lives, &BTreeSet::new())?;
        self.entry = new;
        Ok(())
    }

    /// Copies a piece of an object.
    fn piece(&self, layout: &Layout, position: u16, to: u16, offset: u64) -> Result<(), Fault> {
        let from = self.client.peer(self.wanted.targets[usize::from(position)])?;
        let length = (layout.object_length(position.into()) - offset).min(PIECE);
        let read = Request::Read { file: self.entry.id, position, offset, length: length as u32 };
        let bytes = match from.ask(&read, &[])? {
            (Answer::Bytes { .. }, bytes) if bytes.len() as u64 == length => bytes,
            _ => return Err(nonsense(from)),
        };
        for (block, at) in bytes.chunks(BLOCK as usize).zip((offset..).step_by(BLOCK as usize)) {
            let index = layout.file_offset(position.into(), at) / BLOCK;
            if self.sum(index)? != Some(block_sum(&self.entry.id, index, block)) {
                return Err(Fault::Other(format!("target {} has it damaged, at offset {}", from.target.name(), index * BLOCK)));
            }
        }
        let write = Request::Write { file: self.entry.id, position, offset, length: length as u32 };
        self.client.peer(to)?.ask(&write, &bytes).map(drop)
    }

    fn sum(&self, block: u64) -> Result<Option<u128>, Fault> {
        let page = u32::try_from(block / SUMS_OF_PAGE).unwrap_or(u32::MAX);
        let known = self.sums.lock().unwrap_or_else(PoisonError::into_inner).get(&page).cloned();
        let sums = match known {
            Some(sums) => sums,
            None => {
                let sums = Arc::new(self.client.sums(&self.entry, &self.wanted, page)?);
                self.sums.lock().unwrap_or_else(PoisonError::into_inner).insert(page, sums.clone());
                sums
            }
        };
        let at = (block % SUMS_OF_PAGE) as usize * 16;
        Ok(sums.get(at..at + 16).and_then(|bytes| bytes.try_into().ok()).map(u128::from_le_bytes))
    }
}

impl Client {
    /// Removes the second copies of a file. The bytes that they had. A target that does not answer is told by whoever hears it next.
    ///
    /// # Errors
    /// If a first copy is not there, or no two targets (or the only one) keep the word of it.
    pub fn remove_copies(&self, old: &Entry) -> Result<u64, Fault> {
        let Some(file) = old.file().filter(|file| !file.replicas.is_empty()) else { return Ok(0) };
        let bytes = file.replicated_bytes();
        self.has_first_copies(old, file)?;
        let alone = File { replicas: Vec::new(), ..file.clone() };
        let new = Entry { version: old.version.saturating_add(1), kind: Kind::File(alone), ..old.clone() };
        let Some(file) = new.file() else { return Ok(0) };
        self.enough(self.ask_each(&new.holders(self.targets()), |at| put(&new, file, at)))?;
        self.names_mut().learn(Change::There(Box::new(new.clone())));
        self.tell_of_move(old, &new);
        Ok(bytes)
    }

    /// That the first copy of each object is there, and as long as it must be: by its last byte.
    fn has_first_copies(&self, entry: &Entry, file: &File) -> Result<(), Fault> {
        let layout = Layout::of(file);
        let firsts: Vec<u16> = file.targets.iter().copied().collect::<BTreeSet<u16>>().into_iter().collect();
        let there = self.each(&firsts, |at, peer| {
            let own = (0_u16..).zip(&file.targets).filter(|(_, first)| **first == at);
            own.map(|(position, _)| (position, layout.object_length(position.into()))).filter(|(_, length)| *length > 0).try_for_each(
                |(position, length)| peer.ask(&Request::Read { file: entry.id, position, offset: length - 1, length: 1 }, &[]).map(drop),
            )
        });
        there.into_iter().flatten().collect()
    }

    /// Bytes of second copies on each target.
    #[must_use]
    pub fn replicated(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.targets()];
        let names = self.names();
        for file in names.files("").into_iter().filter_map(Entry::file) {
            let layout = Layout::of(file);
            for (position, at) in file.replicas.iter().enumerate().filter_map(|(position, at)| Some((position, (*at)?))) {
                if let Some(bytes) = bytes.get_mut(usize::from(at)) {
                    *bytes += layout.object_length(position);
                }
            }
        }
        bytes
    }
}
