//! Blocks that were read, of all files and ranks of a node: the least recently used one goes first.
//!
//! A block is fetched once, whoever asks for it meanwhile: the others wait. Whoever reads it first is told so: for that one it was fetched.

use lru::LruCache;
use mend_data::space::{BLOCK, Id};
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A block of a file.
type Key = (Id, u64);

#[derive(Debug)]
struct Block {
    bytes: Arc<Vec<u8>>,
    /// Nobody has read it since it was fetched.
    unread: bool,
    /// Of a file that ranks write: what its target has to say for it to be right still. Else 0.
    sum: u128,
}

/// Blocks, and which of them are on their way.
#[derive(Debug)]
pub struct Cache {
    blocks: Mutex<LruCache<Key, Block>>,
    flying: Mutex<HashSet<Key>>,
    landed: Condvar,
}

/// Blocks that the holder fetches. Dropped, they are no longer on their way.
#[derive(Debug)]
pub struct Claim<'a> {
    cache: &'a Cache,
    file: Id,
    /// Numbers of these blocks.
    pub blocks: Range<u64>,
}

impl Cache {
    /// For so many bytes, at least for two blocks.
    pub fn new(bytes: u64) -> Self {
        let blocks = usize::try_from(bytes / BLOCK).unwrap_or(usize::MAX).max(2);
        Self {
            blocks: Mutex::new(LruCache::new(NonZeroUsize::new(blocks).unwrap_or(NonZeroUsize::MIN))),
            flying: Mutex::default(),
            landed: Condvar::new(),
        }
    }

    fn blocks(&self) -> MutexGuard<'_, LruCache<Key, Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block that somebody reads, if it is here; true if it was fetched for that, being read for the first time.
    pub fn get(&self, file: &Id, block: u64) -> Option<(Arc<Vec<u8>>, bool)> {
        self.blocks().get_mut(&(*file, block)).map(|block| (block.bytes.clone(), std::mem::take(&mut block.unread)))
    }

    /// Takes in a block.
    pub fn put(&self, file: &Id, block: u64, bytes: Arc<Vec<u8>>) {
        self.blocks().put((*file, block), Block { bytes, unread: true, sum: 0 });
    }

    /// A block of a file that ranks write, with its checksum, if it is here. Its target says whether it is right still.
    pub fn known(&self, file: &Id, block: u64) -> Option<(Arc<Vec<u8>>, u128)> {
        self.blocks().get(&(*file, block)).map(|block| (block.bytes.clone(), block.sum))
    }

    /// Takes in a block of a file that ranks write.
    pub fn keep(&self, file: &Id, block: u64, bytes: Arc<Vec<u8>>, sum: u128) {
        self.blocks().put((*file, block), Block { bytes, unread: false, sum });
    }

    /// A claim of all of these, whether they are here or not. Waits while any of them is on its way.
    pub fn claim_all(&self, file: &Id, wanted: Range<u64>) -> Claim<'_> {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        while wanted.clone().any(|block| flying.contains(&(*file, block))) {
            flying = self.landed.wait(flying).unwrap_or_else(PoisonError::into_inner);
        }
        flying.extend(wanted.clone().map(|block| (*file, block)));
        Claim { cache: self, file: *file, blocks: wanted }
    }

    /// The first of these blocks, as [`get`](Self::get) has it, or a claim of it together with those behind it that are neither here nor on their way.
    /// Waits while it is on its way.
    pub fn get_or_claim(&self, file: &Id, wanted: Range<u64>) -> Result<(Arc<Vec<u8>>, bool), Claim<'_>> {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Looked at while nothing lands: what has landed is here.
            if let Some(found) = self.get(file, wanted.start) {
                return Ok(found);
            }
            if !flying.contains(&(*file, wanted.start)) {
                return Err(self.claim_of(&mut flying, file, wanted));
            }
            flying = self.landed.wait(flying).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A claim for what is read ahead, without waiting: `None` if the first block is here or on its way. Nothing counts as read.
    pub fn claim(&self, file: &Id, wanted: Range<u64>) -> Option<Claim<'_>> {
        let first = (*file, wanted.start);
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if flying.contains(&first) || self.blocks().contains(&first) {
            return None;
        }
        Some(self.claim_of(&mut flying, file, wanted))
    }

    fn claim_of(&self, flying: &mut HashSet<Key>, file: &Id, wanted: Range<u64>) -> Claim<'_> {
        let blocks = self.blocks();
        let free = |block: &u64| !flying.contains(&(*file, *block)) && !blocks.contains(&(*file, *block));
        let end = (wanted.start + 1..wanted.end).find(|block| !free(block)).unwrap_or(wanted.end.max(wanted.start + 1));
        drop(blocks);
        flying.extend((wanted.start..end).map(|block| (*file, block)));
        Claim { cache: self, file: *file, blocks: wanted.start..end }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut flying = self.cache.flying.lock().unwrap_or_else(PoisonError::into_inner);
        for block in self.blocks.clone() {
            flying.remove(&(self.file, block));
        }
        self.cache.landed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const FILE: Id = [1; 16];

    fn bytes(of: u64) -> Arc<Vec<u8>> {
        Arc::new(vec![of as u8; 3])
    }

    #[test]
    fn the_least_recently_used_block_goes_first() {
        let cache = Cache::new(3 * BLOCK);
        (0..3).for_each(|block| cache.put(&FILE, block, bytes(block)));
        assert_eq!(cache.get(&FILE, 0), Some((bytes(0), true)));
        assert_eq!(cache.get(&FILE, 0), Some((bytes(0), false)));
        cache.put(&FILE, 3, bytes(3));
        let there: Vec<u64> = (0..4).filter(|block| cache.get(&FILE, *block).is_some()).collect();
        assert_eq!(there, [0, 2, 3]);
    }

    #[test]
    fn claims_end_where_others_begin() {
        let cache = Cache::new(100 * BLOCK);
        cache.put(&FILE, 5, bytes(5));
        let claim = cache.get_or_claim(&FILE, 2..9).unwrap_err();
        assert_eq!(claim.blocks, 2..5);
        assert!(cache.claim(&FILE, 4..9).is_none() && cache.claim(&FILE, 5..9).is_none());
        assert_eq!(cache.claim(&FILE, 0..9).unwrap().blocks, 0..2);
        drop(claim);
        assert_eq!(cache.claim(&FILE, 4..9).unwrap().blocks, 4..5);
    }

    #[test]
    fn what_is_asked_for_again_is_asked_for_by_one_at_a_time() {
        let (cache, asking) = (Cache::new(100 * BLOCK), AtomicUsize::new(0));
        cache.keep(&FILE, 3, bytes(3), 7);
        assert_eq!((cache.known(&FILE, 3), cache.known(&FILE, 4)), (Some((bytes(3), 7)), None));
        std::thread::scope(|scope| {
            for from in 0..8 {
                let (cache, asking) = (&cache, &asking);
                scope.spawn(move || {
                    for _ in 0..50 {
                        // Each has block 8 in common with the others.
                        let claim = cache.claim_all(&FILE, from..9 + from);
                        assert_eq!((asking.fetch_add(1, Ordering::SeqCst), claim.blocks.clone()), (0, from..9 + from));
                        asking.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn a_block_is_fetched_once_by_many_and_again_after_a_failure() {
        let (cache, fetched) = (Cache::new(100 * BLOCK), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for block in 0..50 {
                        let got = loop {
                            match cache.get_or_claim(&FILE, block..block + 4) {
                                Ok((got, _)) => break got,
                                Err(claim) => {
                                    // Every third fetch fails.
                                    if fetched.fetch_add(1, Ordering::Relaxed) % 3 != 0 {
                                        claim.blocks.clone().for_each(|block| cache.put(&FILE, block, bytes(block)));
                                    }
                                }
                            }
                        };
                        assert_eq!(got, bytes(block));
                    }
                });
            }
        });
        assert!(fetched.into_inner() < 2 * 50);
    }
}
