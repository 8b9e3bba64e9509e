//! A new file of a space: its bytes to its targets as they come, in any order, then its checksums, then its entry.
//!
//! It is seen when all of it is durable: whatever dies before, there is no such file; and only if its path is still free then, or what has it is to be replaced. What was written stays on its targets for a while, and [`Upload::go_on`] finds again what of it is as it was.

use super::names::{Client, now_ns};
use super::peer::Peer;
use super::peer::nonsense;
use crate::holes::are_zeros;
use crate::link::Fault;
use mend_data::ranges::{self, Range};
use mend_data::record::Source;
use mend_data::resume::Claim;
use mend_data::space::catalogue::{Change, Node};
use mend_data::space::layout::Layout;
use mend_data::space::target::{Answer, Claim as Claimed, MAX_PAYLOAD, MAX_VERIFIED, Request};
use mend_data::space::{BLOCK, Entry, File, Id, Kind, SUMS_OF_PAGE, block_sum};
use mend_data::space::{healing, placement};
use mend_data::sums::{self, Sum};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A file on its way into a space.
#[derive(Debug)]
pub struct Upload {
    client: Arc<Client>,
    entry: Entry,
    file: File,
    layout: Layout,
    lives: Vec<Option<Id>>,
    /// Of each block; 0 of one that was not written.
    sums: Mutex<Vec<u128>>,
    /// Blocks in whose place a target may have something else than zeros.
    marked: BTreeSet<u64>,
}

/// Why a file is not seen though all of it is there.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotSeen {
    /// Another file has its path by now.
    #[error("another file has that path by now")]
    Taken,
    /// No file can have its path any more.
    #[error("it cannot be a file any more: {0}")]
    Obstacle(String),
    /// Something failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A block of a hole.
static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Blocks of 64 KiB in one of 1 MiB, of which claims are.
const OF_PIECE: u64 = sums::BLOCK / BLOCK;

impl Upload {
    /// Chooses targets for a file of this size.
    ///
    /// # Errors
    /// If the path cannot be a file, or there is no room.
    pub fn begin(client: &Arc<Client>, path: &str, size: u64, sources: Vec<Source>) -> Result<Self, Fault> {
        Self::begin_sparse(client, path, (size, size), sources)
    }

    /// The same of a file that has so many bytes but for its holes.
    ///
    /// # Errors
    /// As [`Upload::begin`].
    pub fn begin_sparse(client: &Arc<Client>, path: &str, (size, stored): (u64, u64), sources: Vec<Source>) -> Result<Self, Fault> {
        let (striping, version) = {
            let names = client.names();
            if let Some(obstacle) = names.obstacle(path) {
                return Err(Fault::Other(format!("{}:{path} cannot be a file: {obstacle}", client.space.name)));
            }
            (names.striping(path, client.space.striping), names.next_version(path))
        };
        let id = mend_wire::random_bytes();
        let rooms = client.rooms();
        let free: Vec<Option<u64>> = rooms.iter().map(|room| room.as_ref().ok().map(|room| room.free)).collect();
        let placed = placement::choose_for(&free, (size, stored), striping, &id, |at| client.node(at)).map_err(|error| {
            let lost = rooms.iter().find_map(|room| room.as_ref().err()).map(|fault| format!("; {fault}")).unwrap_or_default();
            Fault::Other(format!("{}:{path} has no room: {error}{lost}", client.space.name))
        })?;
        let file = File { size, stripe: striping.size, targets: placed.targets, keepers: placed.keepers, sources, replicas: Vec::new() };
        let layout = Layout::of(&file);
        let blocks = usize::try_from(layout.blocks()).map_err(|_| Fault::Other(format!("{path} is too long")))?;
        let entry = Entry { id, version, path: path.to_owned(), made_ns: now_ns(), kind: Kind::File(file.clone()) };
        let lives = rooms.into_iter().map(|room| room.ok().map(|room| room.life)).collect();
        let (sums, marked) = (Mutex::new(vec![0; blocks]), BTreeSet::new());
        let upload = Self { client: client.clone(), entry, file, layout, lives, sums, marked };
        upload.tell()?;
        Ok(upload)
    }

    /// Goes on with a file of which something is there: `claims` says what was written, as [`Upload::claim`] has it. What is not as it says counts as not written; so does what was on a target that does not
    /// answer, in whose place another one comes. How many bytes are there.
    ///
    /// # Errors
    /// If there is no room, or the targets have let go of it.
    pub fn go_on(client: &Arc<Client>, entry: Entry, sources: Vec<Source>, claims: &[Claim]) -> Result<(Self, u64), Fault> {
        let before = entry.file().ok_or_else(|| Fault::Other(format!("{} is no file that was staged", entry.path)))?;
        let rooms = client.rooms();
        let free: Vec<Option<u64>> = rooms.iter().map(|room| room.as_ref().ok().map(|room| room.free)).collect();
        let file = healing::moved(&File { sources, ..before.clone() }, &free, |_| false, |at| client.node(at))
            .map_err(|error| Fault::Other(format!("{}:{} has no room: {error}", client.space.name, entry.path)))?;
        let version = client.names().next_version(&entry.path);
        let entry = Entry { version, kind: Kind::File(file.clone()), ..entry };
        let layout = Layout::of(&file);
        let blocks = usize::try_from(layout.blocks()).map_err(|_| Fault::Other(format!("{} is too long", entry.path)))?;
        let lives = rooms.into_iter().map(|room| room.ok().map(|room| room.life)).collect();
        let (sums, marked) = (Mutex::new(vec![0; blocks]), BTreeSet::new());
        let mut upload = Self { client: client.clone(), entry, file, layout, lives, sums, marked };
        upload.tell()?;
        let found = upload.found();
        let mut there = 0;
        for (piece, claimed) in claims {
            let range = ranges::block(*piece, layout.size);
            let of_piece = (range.offset / BLOCK) as usize..range.end().div_ceil(BLOCK) as usize;
            let Some(sums) = found.get(of_piece.clone()).filter(|_| *piece < ranges::blocks(layout.size)) else { continue };
            let mut known = upload.sums.lock().unwrap_or_else(PoisonError::into_inner);
            if claim_of(sums) == Some(*claimed) && known[of_piece.start] == 0 {
                known[of_piece].copy_from_slice(sums);
                there += range.length;
            }
        }
        let is_of_zeros = |index: u64, sum: u128| sum == block_sum(&upload.entry.id, index, &ZEROS[..layout.block(index).length as usize]);
        let known = upload.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let unclaimed = (0..).zip(found).zip(&*known).filter(|((_, found), known)| *found != 0 && **known == 0);
        let marked = unclaimed.filter(|((index, sum), _)| !is_of_zeros(*index, *sum)).map(|((index, _), _)| index).collect();
        drop(known);
        upload.marked = marked;
        Ok((upload, there))
    }

    /// What the file will be.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// True if this piece of 1 MiB was written.
    #[must_use]
    pub fn has(&self, piece: u64) -> bool {
        self.claim(piece).is_some()
    }

    /// The checksum of the checksums of a piece of 1 MiB, if it was written.
    #[must_use]
    pub fn claim(&self, piece: u64) -> Option<Sum> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let first = usize::try_from(piece.checked_mul(OF_PIECE)?).ok()?;
        claim_of(sums.get(first..sums.len().min(first.saturating_add(OF_PIECE as usize)))?)
    }

    /// Has its targets keep what comes.
    fn tell(&self) -> Result<(), Fault> {
        let request = Request::Begin { entry: Box::new(self.entry.clone()) };
        all_good(self.client.each(&self.entry.holders(self.client.targets()), |_, peer| peer.ask(&request, &[]).map(drop)))
    }

    /// Checksums of what its targets have; 0 of what cannot be read.
    fn found(&self) -> Vec<u128> {
        let found = Mutex::new(vec![0; self.layout.blocks() as usize]);
        let targets: BTreeSet<u16> = self.file.targets.iter().copied().collect();
        self.client.each(&targets.into_iter().collect::<Vec<_>>(), |at, peer| {
            for position in self.file.positions(at) {
                let count = self.layout.object_length(position.into()).div_ceil(BLOCK);
                for first in (0..count).step_by(MAX_VERIFIED as usize) {
                    let request = Request::Verify { file: self.entry.id, position, first, count: MAX_VERIFIED };
                    let Ok((_, sums)) = peer.ask(&request, &[]) else { break };
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    for (sum, number) in sums.as_chunks::<16>().0.iter().zip(first..count) {
                        let index = self.layout.file_offset(position.into(), number * BLOCK) / BLOCK;
                        found[index as usize] = u128::from_le_bytes(*sum);
                    }
                }
            }
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what was written of it: it will not be.
    pub fn discard(client: &Client, entry: &Entry) {
        let request = Request::Discard { file: entry.id };
        client.each(&entry.holders(client.targets()), |_, peer| peer.ask(&request, &[]).map(drop));
    }

    /// Writes bytes. They begin with a block, and end with one or with the file.
    ///
    /// # Errors
    /// Those of targets.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let range = Range { offset, length: bytes.len() as u64 };
        for extent in self.layout.extents(range) {
            let from = (extent.range.offset - offset) as usize;
            let mut at = extent.offset;
            for piece in bytes[from..from + extent.range.length as usize].chunks(MAX_PAYLOAD as usize) {
                // A place has 16 bits: there are no more targets.
                let request =
                    Request::Write { file: self.entry.id, position: extent.position as u16, offset: at, length: piece.len() as u32 };
                if !self.is_hole(extent.position, at, piece) {
                    self.client.peer(self.file.targets[extent.position])?.ask(&request, piece)?;
                }
                at += piece.len() as u64;
            }
        }
        let first = offset / BLOCK;
        let sums: Vec<u128> =
            bytes.chunks(BLOCK as usize).zip(first..).map(|(block, index)| block_sum(&self.entry.id, index, block)).collect();
        let mut all = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, index) in sums.into_iter().zip(first as usize..) {
            if let Some(place) = all.get_mut(index) {
                *place = sum;
            }
        }
        Ok(())
    }

    /// True of zeros that an object has where nothing is written. Its end is written, which says how long it is.
    fn is_hole(&self, position: usize, offset: u64, bytes: &[u8]) -> bool {
        let end = offset + bytes.len() as u64;
        let index = |number: u64| self.layout.file_offset(position, number * BLOCK) / BLOCK;
        let is_marked =
            || !self.marked.is_empty() && (offset / BLOCK..end.div_ceil(BLOCK)).any(|number| self.marked.contains(&index(number)));
        // A bucket takes objects without holes.
        let takes_holes = self.client.takes_writes(self.file.targets[position]);
        takes_holes && end < self.layout.object_length(position) && are_zeros(bytes) && !is_marked()
    }

    /// True if its targets have zeros where nothing is written. A bucket has to be sent them.
    #[must_use]
    pub fn takes_holes(&self) -> bool {
        self.file.targets.iter().all(|at| self.client.takes_writes(*at))
    }

    /// Takes a range as zeros, which the file's source has not got to be asked for. It begins with a block, and ends with one or with the file.
    ///
    /// # Errors
    /// Those of targets.
    pub fn put_zeros(&self, range: Range) -> Result<(), Fault> {
        let mut at = range.offset;
        while at < range.end() {
            let length = (range.end() - at).min(BLOCK);
            self.put(at, &ZEROS[..length as usize])?;
            at += length;
        }
        Ok(())
    }

    /// Makes it durable, and lets it be seen. With `force` it takes the place of a file that has its path.
    ///
    /// # Errors
    /// [`NotSeen`]. The file is not there then; what was written of it stays for [`Upload::go_on`], unless a target failed.
    pub fn finish(mut self, force: bool) -> Result<(), NotSeen> {
        let sums = std::mem::take(self.sums.get_mut().unwrap_or_else(PoisonError::into_inner));
        if sums.contains(&0) {
            return Err(Fault::Other(format!("{} was not written as a whole", self.entry.path)).into());
        }
        let id = self.entry.id;
        let places: Vec<(u16, u16, u64)> = self
            .file
            .targets
            .iter()
            .enumerate()
            .map(|(position, at)| (*at, position as u16, self.layout.object_length(position)))
            .filter(|(_, _, length)| *length > 0)
            .collect();
        let of = |at: u16| places.iter().filter(move |(target, _, _)| *target == at).map(|(_, position, length)| (*position, *length));
        let first = |at: u16, peer: &Peer| -> Result<(), Fault> {
            let life = self.lives.get(usize::from(at)).copied().flatten().ok_or_else(|| nonsense(peer))?;
            for (position, length) in of(at) {
                peer.ask(&Request::Settle { file: id, position, length, life }, &[])?;
            }
            if self.file.keepers.contains(&at) {
                for (page, sums) in (0_u32..).zip(sums.chunks(SUMS_OF_PAGE as usize)) {
                    let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
                    peer.ask(&Request::Sums { file: id, page, length: bytes.len() as u32 }, &bytes)?;
                }
            }
            Ok(())
        };
        let holders = self.entry.holders(self.client.targets());
        all_good(self.client.each(&holders, first))?;
        // Nobody makes this path meanwhile.
        let (client, path, who) = (self.client.clone(), self.entry.path.clone(), mend_wire::random_bytes());
        let is_taken = || {
            client.refresh_since(Instant::now());
            !force && matches!(client.names().look(&path), Some(Node::File(_)))
        };
        let Some(decider) = client.claim_path::<NotSeen>(&path, who, || Ok(is_taken()))? else { return Err(NotSeen::Taken) };
        let free = if is_taken() { Err(NotSeen::Taken) } else { Ok(()) };
        let done = free.and_then(|()| {
            let names = client.names();
            if let Some(obstacle) = names.obstacle(&path) {
                return Err(NotSeen::Obstacle(obstacle));
            }
            // What is to be replaced may be newer than this was when it was begun.
            self.entry.version = self.entry.version.max(names.next_version(&path));
            drop(names);
            self.show(&holders)
        });
        let over = Request::Claim { claim: Claimed::Path(path.clone()), who, over: true };
        let _ = client.peer(decider).and_then(|peer| peer.ask(&over, &[]));
        done
    }

    /// Tells those that hold it that it is there.
    fn show(&self, holders: &[u16]) -> Result<(), NotSeen> {
        let put = |at: u16, peer: &Peer| -> Result<(), Fault> {
            let has_bytes = |position: &u16| self.layout.object_length(usize::from(*position)) > 0;
            let positions = self.file.positions(at).filter(has_bytes).collect();
            match peer.ask(&Request::Put { entry: Box::new(self.entry.clone()), positions }, &[])?.0 {
                Answer::Done => Ok(()),
                _ => Err(nonsense(peer)),
            }
        };
        let done = self.client.each(holders, put);
        // One that has it lets it be seen, so it is there; and if none of the keepers but the one that failed has it, it is not safe.
        if let Err(fault) = all_good(done) {
            let _ = self.client.forget(&[self.entry.id]);
            return Err(fault.into());
        }
        let before = {
            let mut names = self.client.names_mut();
            let seen = names.at(&self.entry.path).map(|entry| entry.id);
            let mut before = names.hidden_by(&self.entry);
            // What ranks wrote and nobody saw was not to be replaced.
            before.retain(|id| Some(*id) == seen || names.entry(id).is_none_or(|entry| entry.written().is_none()));
            names.learn(Change::There(Box::new(self.entry.clone())));
            before
        };
        // What stays of it is hidden by the new one.
        let _ = self.client.forget(&before);
        Ok(())
    }
}

/// The checksum of the checksums of a piece; `None` if one is not known.
fn claim_of(sums: &[u128]) -> Option<Sum> {
    let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    (!sums.is_empty() && !sums.contains(&0)).then(|| Sum::of(&bytes))
}

fn all_good(done: Vec<Option<Result<(), Fault>>>) -> Result<(), Fault> {
    done.into_iter().flatten().collect()
}
