//! Which chunks of the pool are whose.

use crate::CarryError;
use mend_fabric_sys::core_provider::{ChunkPool, Ended, PoolError};
use std::collections::{BTreeMap, BTreeSet};

/// Whether streams leave this node or come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Out,
    In,
}

/// Draws a key for memory that is registered.
pub type Random = fn() -> u64;

/// See the module.
pub struct Store {
    pub(crate) pool: ChunkPool,
    random: Random,
    free: Vec<usize>,
    /// Lent to streams that leave.
    out: usize,
    /// Their streams are gone, and an operation still uses them.
    orphans: BTreeSet<usize>,
    ended: BTreeMap<usize, Result<(), i32>>,
    found: Vec<Ended>,
    /// Endpoints, by their addresses.
    peers: BTreeMap<Vec<u8>, u64>,
    /// Those that have been reached.
    linked: BTreeSet<u64>,
    /// The chunk at which peers try whether they reach this node; never lent.
    door: usize,
}

impl Store {
    /// Lends the chunks of a pool, all but the last one.
    #[must_use]
    pub fn new(pool: ChunkPool, random: Random) -> Self {
        let door = pool.count().saturating_sub(1);
        Self {
            free: (0..door).rev().collect(),
            pool,
            random,
            out: 0,
            orphans: BTreeSet::new(),
            ended: BTreeMap::new(),
            found: Vec::new(),
            peers: BTreeMap::new(),
            linked: BTreeSet::new(),
            door,
        }
    }

    /// A chunk for a stream that holds `held`: it gets no more than it leaves to others, so that one that stands still leaves room for the next.
    pub(crate) fn lend(&mut self, direction: Direction, held: usize) -> Option<usize> {
        let room = match direction {
            Direction::Out => self.free.len().min((self.door - (self.door / 4).max(1)).saturating_sub(self.out)),
            Direction::In => self.free.len(),
        };
        if room == 0 || held > 0 && held >= room {
            return None;
        }
        let chunk = self.free.pop()?;
        self.out += usize::from(direction == Direction::Out);
        Some(chunk)
    }

    /// Takes a chunk back. If its peer may still use what it knows of it, that is made void.
    pub(crate) fn take_back(&mut self, direction: Direction, chunk: usize, known: bool) -> Result<(), PoolError> {
        self.out -= usize::from(direction == Direction::Out);
        self.ended.remove(&chunk);
        if known {
            match self.pool.renew(chunk, &self.random) {
                Err(PoolError::Busy(_)) => {
                    self.orphans.insert(chunk);
                    return Ok(());
                }
                renewed => renewed?,
            }
        }
        self.free.push(chunk);
        Ok(())
    }

    /// Drives the provider. True if something has ended.
    pub(crate) fn poll(&mut self) -> Result<bool, PoolError> {
        self.found.clear();
        self.pool.poll(&mut self.found)?;
        for at in 0..self.found.len() {
            let Ended { chunk, result } = self.found[at];
            if self.orphans.remove(&chunk) {
                self.pool.renew(chunk, &self.random)?;
                self.free.push(chunk);
            } else {
                self.ended.insert(chunk, result);
            }
        }
        Ok(!self.found.is_empty())
    }

    /// How the operation on a chunk ended, once.
    pub(crate) fn end_of(&mut self, chunk: usize) -> Option<Result<(), CarryError>> {
        self.ended.remove(&chunk).map(|result| result.map_err(CarryError::Failed))
    }

    /// The number of a peer's endpoint.
    pub(crate) fn peer(&mut self, address: &[u8]) -> Result<u64, PoolError> {
        if let Some(peer) = self.peers.get(address) {
            return Ok(*peer);
        }
        let peer = self.pool.peer(address)?;
        self.peers.insert(address.to_vec(), peer);
        Ok(peer)
    }

    pub(crate) fn is_linked(&self, peer: u64) -> bool {
        self.linked.contains(&peer)
    }

    pub(crate) fn link(&mut self, peer: u64) {
        self.linked.insert(peer);
    }

    /// What peers are told of the door.
    pub(crate) fn door(&self) -> Option<(u64, u64)> {
        self.pool.remote(self.door)
    }

    /// Whether chunks are lent, or used by operations.
    pub(crate) fn is_in_use(&self) -> bool {
        self.free.len() < self.door
    }
}
