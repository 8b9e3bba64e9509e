//! Objects that are open: something of them was written and not synced, now or when the target ended.
//!
//! ```text
//! written ──► open (a file beside it says so) ──► synced ──► closed
//!               └── the target is killed, and begins anew ──► doubted, from its first block on ──► summed up, block by block ──► open
//! ```
//! Of a block that was being written when the target ended both halves may be there, so checksums of a doubted object are made anew: of blocks that somebody wants at once, of the others by a
//! thread, in pieces, since an object may be long. Invariant: no block is compared with a checksum that is doubted.

use super::{Object, Opened, beside, write_guard};
use crate::server::store::{Failure, Store};
use mend_data::space::target::Failed;
use mend_data::space::{BLOCK, Id};
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;

/// Blocks that are summed up while nobody else can have the object.
const AT_ONCE: u64 = 64;

/// What is known of an object that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    /// Checksums from this block on were not looked at since the target began.
    doubted_from: Option<u64>,
    /// Something may have been written that is not synced.
    unsynced: bool,
    /// Number of the last write, of all that the target took since it began.
    last: u64,
}

impl Open {
    /// It was open when the target began.
    pub const FOUND: Self = Self { doubted_from: Some(0), unsynced: true, last: 0 };

    /// True if something may have been written that is not synced.
    pub fn is_unsynced(self) -> bool {
        self.unsynced
    }

    /// True until all of its checksums were looked at.
    pub fn is_doubted(self) -> bool {
        self.doubted_from.is_some()
    }
}

impl Store {
    fn doubted_from(&self, object: &Object) -> Option<u64> {
        self.writing.open().get(object).and_then(|open| open.doubted_from)
    }

    /// True if blocks of an object have to be [ascertained](Self::ascertain) before they are compared with their checksums.
    pub(super) fn is_doubted(&self, object: &Object) -> bool {
        self.doubted_from(object).is_some()
    }

    /// Has the checksums of these blocks and of the last one made anew, if they are doubted. Whoever calls holds the object's lock.
    pub(super) fn ascertain(&self, object: &Opened, blocks: Range<u64>) -> Result<(), Failure> {
        let Some(from) = self.doubted_from(&(object.id, object.position)) else { return Ok(()) };
        let end = object.length.div_ceil(BLOCK);
        if object.sums.metadata()?.len() > end * 16 {
            // It ended while it was cut, or the power failed before its bytes were durable.
            object.sums.set_len(end * 16)?;
        }
        object.sum_up(blocks.start.max(from)..blocks.end.min(end))?;
        object.sum_up(from.max(end.saturating_sub(1))..end)?;
        Ok(())
    }

    /// Ascertains all objects that were open when the target began; those of which that fails stay doubted.
    pub fn ascertain_all(&self) {
        let doubted: Vec<Object> = self.writing.open().iter().filter(|(_, open)| open.is_doubted()).map(|(object, _)| *object).collect();
        for object in doubted {
            // Whoever wants a block of one that stays doubted is told why.
            let _ = self.ascertain_one(&object);
        }
    }

    fn ascertain_one(&self, of: &Object) -> Result<(), Failure> {
        loop {
            let _held = write_guard(self.writing.lock(of));
            // It may be gone by now, or made anew.
            let Some(from) = self.doubted_from(of) else { return Ok(()) };
            let object = self.open_object(&of.0, of.1, self.written(&of.0, None)?)?;
            let (next, end) = (from + AT_ONCE, object.length.div_ceil(BLOCK));
            self.ascertain(&object, from..next)?;
            let mut all = self.writing.open();
            let Some(open) = all.get_mut(of) else { return Ok(()) };
            if next < end {
                open.doubted_from = Some(next);
                continue;
            }
            open.doubted_from = None;
            if open.unsynced {
                return Ok(());
            }
            // It was synced while it was doubted.
            drop(all);
            object.sums.sync_all()?;
            return self.close(&object);
        }
    }

    /// Notes, durably, that an object is being written, here.
    pub(super) fn begin_writing(&self, object: &Opened, blocks: Range<u64>) -> Result<(), Failure> {
        self.ascertain(object, blocks)?;
        object.ends()?;
        let key = (object.id, object.position);
        let last = self.writing.writes.fetch_add(1, Ordering::Relaxed);
        if let Some(open) = self.writing.open().get_mut(&key) {
            (open.unsynced, open.last) = (true, last);
            return Ok(());
        }
        let note = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(beside(&object.path, ".open"))?;
        note.sync_all()?;
        mend_durable::sync_directory(object.path.parent().unwrap_or(&self.objects))?;
        self.writing.open().insert(key, Open { doubted_from: None, unsynced: true, last });
        Ok(())
    }

    /// Makes durable what was written of an object. Others write meanwhile: a medium may take long. What they write is not synced then.
    pub(in crate::server::store) fn sync(&self, file: &Id, epoch: u32, position: u16, boot: Id) -> Result<(), Failure> {
        let key = (*file, position);
        let opened = || -> Result<Opened, Failure> { self.open_object(file, position, self.written(file, Some(epoch))?) };
        let last = || self.writing.open().get(&key).map(|open| open.last);
        let (object, before) = {
            let _held = write_guard(self.writing.lock(&key));
            let object = opened()?;
            if boot != self.writing.boot {
                return Err(Failure::new(Failed::Absent, "its node was started anew while the file was written"));
            }
            self.ascertain(&object, 0..0)?;
            object.ends()?;
            (object, last())
        };
        object.bytes.sync_all()?;
        object.sums.sync_all()?;
        mend_durable::sync_directory(object.path.parent().unwrap_or(&self.objects))?;
        let _held = write_guard(self.writing.lock(&key));
        // It may be removed by now, or another one.
        let object = opened()?;
        if last() == before { self.is_synced(&object) } else { Ok(()) }
    }

    /// All that was written of an object is durable. One of which much is still doubted stays open until that is over.
    fn is_synced(&self, object: &Opened) -> Result<(), Failure> {
        let key = (object.id, object.position);
        let Some(open) = self.writing.open().get(&key).copied() else { return Ok(()) };
        if let Some(from) = open.doubted_from {
            let end = object.length.div_ceil(BLOCK);
            if end.saturating_sub(from) > AT_ONCE {
                if let Some(open) = self.writing.open().get_mut(&key) {
                    open.unsynced = false;
                }
                return Ok(());
            }
            self.ascertain(object, from..end)?;
            object.sums.sync_all()?;
        }
        self.close(object)
    }

    fn close(&self, object: &Opened) -> Result<(), Failure> {
        match fs::remove_file(beside(&object.path, ".open")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => {
                self.writing.open().remove(&(object.id, object.position));
                Ok(())
            }
        }
    }
}
