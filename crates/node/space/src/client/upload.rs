//! A new file of a space: its bytes to its targets as they come, in any order, then its checksums, then its entry.
//!
//! It is seen when all of it is durable: whatever dies before, there is no such file. Dropping it removes what was written.

use super::names::{Client, now_ns};
use super::peer::Peer;
use super::peer::nonsense;
use crate::link::Fault;
use mend_data::ranges::Range;
use mend_data::record::Source;
use mend_data::space::catalogue::Change;
use mend_data::space::layout::Layout;
use mend_data::space::placement;
use mend_data::space::target::{Answer, MAX_PAYLOAD, Request};
use mend_data::space::{BLOCK, Entry, File, Id, Kind, SUMS_OF_PAGE, block_sum};
use std::sync::{Arc, Mutex, PoisonError};

/// A file on its way into a space.
#[derive(Debug)]
pub struct Upload {
    client: Arc<Client>,
    entry: Entry,
    file: File,
    layout: Layout,
    lives: Vec<Option<Id>>,
    sums: Mutex<Vec<Option<u128>>>,
    finished: bool,
}

impl Upload {
    /// Chooses targets for a file of this size.
    ///
    /// # Errors
    /// If the path cannot be a file, or there is no room.
    pub fn begin(client: &Arc<Client>, path: &str, size: u64, sources: Vec<Source>) -> Result<Self, Fault> {
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
        let placed = placement::choose(&free, size, striping, &id).map_err(|error| {
            let lost = rooms.iter().find_map(|room| room.as_ref().err()).map(|fault| format!("; {fault}")).unwrap_or_default();
            Fault::Other(format!("{}:{path} has no room: {error}{lost}", client.space.name))
        })?;
        let file = File { size, stripe: striping.size, targets: placed.targets, keepers: placed.keepers, sources, replicas: Vec::new() };
        let layout = Layout::of(&file);
        let blocks = usize::try_from(layout.blocks()).map_err(|_| Fault::Other(format!("{path} is too long")))?;
        let entry = Entry { id, version, path: path.to_owned(), made_ns: now_ns(), kind: Kind::File(file.clone()) };
        let lives = rooms.into_iter().map(|room| room.ok().map(|room| room.life)).collect();
        Ok(Self { client: client.clone(), entry, file, layout, lives, sums: Mutex::new(vec![None; blocks]), finished: false })
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
                self.client.peer(self.file.targets[extent.position])?.ask(&request, piece)?;
                at += piece.len() as u64;
            }
        }
        let first = offset / BLOCK;
        let sums: Vec<u128> =
            bytes.chunks(BLOCK as usize).zip(first..).map(|(block, index)| block_sum(&self.entry.id, index, block)).collect();
        let mut all = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, index) in sums.into_iter().zip(first as usize..) {
            if let Some(place) = all.get_mut(index) {
                *place = Some(sum);
            }
        }
        Ok(())
    }

    /// Makes it durable, and lets it be seen instead of what had its path.
    ///
    /// # Errors
    /// Those of targets. The file is not there then.
    pub fn finish(mut self) -> Result<(), Fault> {
        let pages = self.pages()?;
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
                for (page, sums) in pages.iter().zip(0_u32..).map(|(sums, page)| (page, sums)) {
                    peer.ask(&Request::Sums { file: id, page, length: sums.len() as u32 }, sums)?;
                }
            }
            Ok(())
        };
        let holders = self.entry.holders(self.client.targets());
        all_good(self.client.each(&holders, first))?;
        let put = |at: u16, peer: &Peer| -> Result<(), Fault> {
            let positions = of(at).map(|(position, _)| position).collect();
            match peer.ask(&Request::Put { entry: Box::new(self.entry.clone()), positions }, &[])?.0 {
                Answer::Done => Ok(()),
                _ => Err(nonsense(peer)),
            }
        };
        let done = self.client.each(&holders, put);
        // One that has it lets it be seen, so it is there; and if none of the keepers but the one that failed has it, it is not safe.
        if let Err(fault) = all_good(done) {
            let _ = self.client.forget(&[self.entry.id]);
            return Err(fault);
        }
        self.finished = true;
        let before = {
            let mut names = self.client.names_mut();
            let before: Vec<Id> = names.all_at(&self.entry.path).iter().map(|entry| entry.id).collect();
            names.learn(Change::There(Box::new(self.entry.clone())));
            before
        };
        // What stays of it is hidden by the new one.
        let _ = self.client.forget(&before);
        Ok(())
    }

    /// Checksums as pages.
    fn pages(&self) -> Result<Vec<Vec<u8>>, Fault> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = || Fault::Other(format!("{} was not written as a whole", self.entry.path));
        let page = |page: &[Option<u128>]| -> Option<Vec<u8>> {
            page.iter().map(|sum| sum.map(u128::to_le_bytes)).collect::<Option<Vec<_>>>().map(|sums| sums.concat())
        };
        sums.chunks(SUMS_OF_PAGE as usize).map(|sums| page(sums).ok_or_else(missing)).collect()
    }
}

fn all_good(done: Vec<Option<Result<(), Fault>>>) -> Result<(), Fault> {
    done.into_iter().flatten().collect()
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.finished {
            let request = Request::Discard { file: self.entry.id };
            self.client.each(&self.entry.holders(self.client.targets()), |_, peer| peer.ask(&request, &[]).map(drop));
        }
    }
}
