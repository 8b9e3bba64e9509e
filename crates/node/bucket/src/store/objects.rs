//! Bytes of objects: written in any order, stored in chunks, read by ranges, compared and removed.

use super::{Store, failed, held};
use crate::writes::{CHUNK, Chunk, Piece, chunk_of, length_of, parts, whole};
use mend_data::space::layout::Layout;
use mend_data::space::target::{Failed, Lacking, MAX_PAYLOAD};
use mend_data::space::{BLOCK, Entry, Id, block_sum};
use mend_space::server::Failure;
use mend_wire::secret::to_hex;
use std::sync::{PoisonError, RwLock};
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// Chunks that wait in memory for the rest of their bytes, at most about so many.
const WAITING: usize = 64;
/// Objects that a listing lacks, and that are asked for one by one before it is made anew.
const SUSPECTS: usize = 64;
/// Bytes of one object's name in an answer, at most.
const NAMED: usize = 16 + 3;

fn name(chunk: &Chunk) -> String {
    format!("objects/{}/{}/{}", to_hex(&chunk.file), chunk.position, chunk.number)
}

impl Store {
    fn lock_of_chunk(&self, chunk: &Chunk) -> &RwLock<()> {
        let bytes = [&chunk.file[..], &chunk.position.to_le_bytes(), &chunk.number.to_le_bytes()].concat();
        &self.chunks[xxh3_64(&bytes) as usize % self.chunks.len()]
    }

    /// How long a chunk must be in the end, if that is known.
    fn must_be(&self, chunk: &Chunk) -> Option<u64> {
        let entry = self.known(&chunk.file).and_then(|known| known.entry().cloned()).or_else(|| self.being_staged(&chunk.file))?;
        let layout = entry.file().map(Layout::of)?;
        Some(length_of(layout.object_length(chunk.position.into()), chunk.number))
    }

    pub(super) fn write(&self, file: &Id, position: u16, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.touch(file);
        let mut rest = bytes;
        for (number, at, length) in parts(offset, bytes.len() as u64) {
            let (part, more) = rest.split_at(length as usize);
            rest = more;
            let chunk = Chunk { file: *file, position, number };
            let _one = self.lock_of_chunk(&chunk).write().unwrap_or_else(PoisonError::into_inner);
            let is_whole = {
                let mut pieces = held(&self.pieces);
                let piece = pieces.entry(chunk).or_default();
                piece.write(at, part);
                piece.covers(self.must_be(&chunk).filter(|must| *must > 0).unwrap_or(CHUNK))
            };
            if is_whole {
                self.store_chunk(&chunk, true)?;
            }
        }
        self.make_room()
    }

    /// Stores those that have waited longest, if too many wait.
    fn make_room(&self) -> Result<(), Failure> {
        while let Some(oldest) = {
            let pieces = held(&self.pieces);
            let oldest = pieces.iter().min_by_key(|(_, piece)| piece.since()).map(|(chunk, _)| *chunk);
            oldest.filter(|_| pieces.len() > WAITING)
        } {
            let _one = self.lock_of_chunk(&oldest).write().unwrap_or_else(PoisonError::into_inner);
            self.store_chunk(&oldest, false)?;
        }
        Ok(())
    }

    /// Stores what was written of a chunk, over what the bucket has of it unless that is all of it. Whoever calls holds its lock.
    fn store_chunk(&self, chunk: &Chunk, is_whole: bool) -> Result<(), Failure> {
        let Some(piece) = held(&self.pieces).get(chunk).cloned() else { return Ok(()) };
        let name = name(chunk);
        let stored = if is_whole { None } else { self.bucket.get(&name)? };
        let bytes = piece.over(stored.unwrap_or_default());
        let length = bytes.len() as u64;
        self.bucket.put(&name, bytes)?;
        held(&self.pieces).remove(chunk);
        self.note_stored(&chunk.file, chunk.position, [(chunk.number, length)]);
        Ok(())
    }

    pub(super) fn settle(&self, file: &Id, position: u16, length: u64, life: Id) -> Result<(), Failure> {
        if life != self.life {
            return Err(failed(Failed::Absent, "it was started anew while the file was written"));
        }
        let mut waiting: Vec<Chunk> =
            held(&self.pieces).keys().filter(|chunk| (chunk.file, chunk.position) == (*file, position)).copied().collect();
        waiting.sort_unstable();
        for chunk in waiting {
            let _one = self.lock_of_chunk(&chunk).write().unwrap_or_else(PoisonError::into_inner);
            self.store_chunk(&chunk, false)?;
        }
        if self.noted_length(file, position) != length {
            let listed = self.stored_chunks(file, position)?;
            let has = whole(listed.iter().copied());
            // Of a very long object this takes longer than a client waits. It finds it done when it asks again.
            self.note_stored(file, position, listed);
            if has != length {
                return Err(failed(Failed::Short, &format!("an object has {has} bytes instead of {length}")));
            }
        }
        held(&self.settled).insert((*file, position), length);
        Ok(())
    }

    /// Numbers and lengths of the chunks that the bucket has of an object.
    fn stored_chunks(&self, file: &Id, position: u16) -> Result<Vec<(u64, u64)>, Failure> {
        let listed = self.bucket.list_soon(&format!("objects/{}/{position}", to_hex(file)))?;
        Ok(listed.iter().filter_map(|(name, size)| Some((chunk_of(name)?.number, *size))).collect())
    }

    fn stored_length(&self, file: &Id, position: u16) -> Result<u64, Failure> {
        self.stored_chunks(file, position).map(whole)
    }

    /// How long an object is; that of one that was just settled is known.
    pub(super) fn length(&self, file: &Id, position: u16) -> Result<u64, Failure> {
        let known = held(&self.settled).remove(&(*file, position));
        known.map_or_else(|| self.stored_length(file, position), Ok)
    }

    /// What is there of a part of a chunk; fewer bytes if it ends before, `None` if there is none.
    fn part(&self, chunk: &Chunk, at: u64, length: u64) -> Result<Option<Vec<u8>>, Failure> {
        let _one = self.lock_of_chunk(chunk).read().unwrap_or_else(PoisonError::into_inner);
        let waiting: Option<Piece> = held(&self.pieces).get(chunk).cloned();
        let Some(piece) = waiting else { return self.bucket.get_range(&name(chunk), at..at + length) };
        let all = piece.over(self.bucket.get(&name(chunk))?.unwrap_or_default());
        Ok(Some(all.into_iter().skip(at as usize).take(length as usize).collect()))
    }

    pub(super) fn read(&self, file: &Id, position: u16, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::with_capacity(length as usize);
        for (number, at, length) in parts(offset, length.into()) {
            let part = self.part(&Chunk { file: *file, position, number }, at, length)?;
            let Some(part) = part else {
                self.listings.are_doubted();
                return Err(failed(Failed::Absent, "the bucket has lost an object of it"));
            };
            if part.len() as u64 != length {
                self.listings.are_doubted();
                return Err(failed(Failed::Short, "an object of the bucket is shorter than it must be"));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }

    pub(super) fn verify(&self, file: &Id, position: u16, first: u64, count: u32) -> Result<Vec<u8>, Failure> {
        let entry = self.known(file).and_then(|known| known.entry().cloned()).or_else(|| self.being_staged(file));
        let entry = entry.ok_or_else(|| failed(Failed::Absent, "it does not know this file"))?;
        let layout = entry.file().map(Layout::of).ok_or_else(|| failed(Failed::Nonsense, "it is a directory"))?;
        let object = layout.object_length(usize::from(position));
        let from = first.saturating_mul(BLOCK).min(object);
        let until = first.saturating_add(count.into()).saturating_mul(BLOCK).min(object);
        let wanted: Vec<(u64, u64, u64)> = parts(from, until - from).collect();
        // Chunks at the same time: a client waits for all of them.
        let part = |(number, at, length): (u64, u64, u64)| self.part(&Chunk { file: *file, position, number }, at, length);
        let got: Vec<Result<Option<Vec<u8>>, Failure>> = std::thread::scope(|scope| {
            let asked: Vec<_> = wanted.iter().map(|one| scope.spawn(move || part(*one))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))).collect()
        });
        let mut sums = Vec::new();
        for ((number, at, length), got) in wanted.into_iter().zip(got) {
            let got = got?.unwrap_or_default();
            for start in (0..length).step_by(BLOCK as usize) {
                let end = (start + BLOCK).min(length);
                let index = layout.file_offset(usize::from(position), number * CHUNK + at + start) / BLOCK;
                // What is not there has none.
                let sum = got.get(start as usize..end as usize).map_or(0, |block| block_sum(file, index, block));
                sums.extend_from_slice(&sum.to_le_bytes());
            }
        }
        Ok(sums)
    }

    pub(super) fn lacking(&self, at: u16) -> Result<Lacking, Failure> {
        self.is_owner(true)?;
        // What is known before the listing is made must be in it.
        let asked = Instant::now();
        let must: Vec<((Id, u16), u64)> = {
            let catalogue = self.catalogue.read().unwrap_or_else(PoisonError::into_inner);
            let of = |entry: &Entry| -> Vec<((Id, u16), u64)> {
                let Some(file) = entry.file() else { return Vec::new() };
                let layout = Layout::of(file);
                let lengths = file.positions(at).map(|position| ((entry.id, position), layout.object_length(position.into())));
                lengths.filter(|(_, length)| *length > 0).collect()
            };
            catalogue.entries().flat_map(|(entry, _)| of(entry)).collect()
        };
        let (listed, fresh) = self.listings.get(&self.bucket, None)?;
        let suspects = |lengths: &crate::listing::Lengths| -> Lacking {
            must.iter().filter(|(object, length)| lengths.get(object) != Some(length)).map(|(object, _)| *object).collect()
        };
        let mut lacking = suspects(&listed);
        if !fresh && lacking.len() > SUSPECTS {
            lacking = suspects(&self.listings.get(&self.bucket, Some(asked))?.0);
        } else if !fresh {
            let mut sure = Lacking::new();
            for (file, position) in lacking {
                let length = must.iter().find(|(object, _)| *object == (file, position)).map(|(_, length)| *length);
                if Some(self.stored_length(&file, position)?) != length {
                    sure.push((file, position));
                }
            }
            lacking = sure;
        }
        // The rest is found when these are there again.
        lacking.truncate(MAX_PAYLOAD as usize / NAMED);
        Ok(lacking)
    }

    /// Removes the objects of a file but those at these places.
    pub(super) fn remove_objects(&self, file: &Id, but: &[u16]) -> Result<(), Failure> {
        held(&self.pieces).retain(|chunk, _| chunk.file != *file || but.contains(&chunk.position));
        held(&self.settled).retain(|(of, position), _| of != file || but.contains(position));
        let listed = self.bucket.list(&format!("objects/{}", to_hex(file)), usize::MAX)?;
        let goes = |name: &str| chunk_of(name).is_some_and(|chunk| !but.contains(&chunk.position));
        self.remove(listed.into_iter().map(|found| found.name).filter(|name| goes(name)).collect())
    }
}
