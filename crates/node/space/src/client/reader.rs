//! Bytes of a space's files: from the cache, else from targets, each block verified; what a target cannot give, or gives damaged, from the file's source.
//!
//! ```text
//! read ──► cache ──miss──► run of blocks on one target ──sums of a keeper──► good ─► cache
//!                                      │ silent, lost, damaged
//!                                      ├──► the target with the second copy, if there is one ──same sums──► good ─► cache
//!                                      │ lost, damaged; or all are silent
//!                                      └──► the file's source ──same sums──► good ─► cache, and back onto the target
//! ```
//! What a target that is silent has is read at the source as long as that gives it and the target says nothing ([`Shared::instead`]); if it does not, the target is waited for.
//! Who reads in order gets whole runs (1 MiB), and those that follow are fetched ahead by threads of their own. Who does not gets the blocks that are asked for.
//! Faults assumed: targets die at any moment, their media lie. A byte that is given out has the checksum that it had when the file was staged.

use super::cache::{Cache, Claim};
use super::hedged::Given;
use super::names::Client;
use super::repair::Repairer;
use crate::link::{DAMAGED, Fault};
use lru::LruCache;
use mend_data::ranges::Range;
use mend_data::record::Source;
use mend_data::space::layout::Layout;
use mend_data::space::target::{Answer, Failed, Request};
use mend_data::space::{BLOCK, Entry, File, Id, SUMS_OF_PAGE, block_sum};
use mend_messages::space_report::TargetFault;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most blocks of a request: 1 MiB.
const RUN: u64 = 16;
/// Bytes that are fetched ahead of who reads in order.
const AHEAD_BYTES: u64 = 8 << 20;
/// How far behind or before the last read another one of the same pass may be: the kernel's own read-ahead asks in parallel.
const WINDOW: u64 = 2 << 20;
/// Threads that fetch ahead.
const THREADS: usize = 4;
/// How old what is known of names may be when a target gives nothing: many reads fail at once.
const HEARD: Duration = Duration::from_millis(500);
/// How often who waits for a source looks whether the target gives something again.
const GLANCE: Duration = Duration::from_millis(20);
/// How long a file whose source gave nothing is waited for at its targets alone.
const SOURCELESS_TIME: Duration = Duration::from_secs(10);
/// Runs that wait for them; more are not fetched ahead.
const QUEUE: usize = 64;
/// Pages of checksums that are kept, 64 KiB each.
const PAGES: NonZeroUsize = NonZeroUsize::new(128).unwrap();

/// How somebody reads an open file.
#[derive(Debug, Default)]
pub struct Pattern {
    end: AtomicU64,
    /// Blocks before this one are fetched ahead already.
    ahead: AtomicU64,
}

impl Pattern {
    /// Notes a read. True if it is one of a pass through the file.
    fn is_in_order(&self, offset: u64, end: u64) -> bool {
        let last = self.end.swap(end, Ordering::Relaxed);
        offset <= last.saturating_add(WINDOW) && last <= end.saturating_add(WINDOW)
    }
}

/// What somebody has read.
#[derive(Debug, Default)]
pub struct Content {
    /// The bytes; fewer than were wanted at the end of the file.
    pub bytes: Vec<u8>,
    /// For each block that they are of whether it was fetched for this read, or before for nobody else.
    pub fetched: Vec<bool>,
}

/// A page of checksums, by file and number.
type Pages = LruCache<(Id, u32), Arc<Vec<u8>>>;

/// Reads files of a space.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    ahead: SyncSender<(Arc<Entry>, std::ops::Range<u64>)>,
    reads_ahead: bool,
}

#[derive(Debug)]
struct Shared {
    client: Arc<Client>,
    cache: Arc<Cache>,
    pages: Mutex<Pages>,
    repairer: Option<Repairer>,
    /// Targets in whose place others with second copies are read. Each is told of once.
    passed_over: Mutex<BTreeSet<u16>>,
    /// The last file whose source gave nothing in the place of a silent target, and when.
    sourceless: Mutex<Option<(Id, Instant)>>,
    /// Somebody hears targets, or looks for those that are silent.
    hearing: AtomicBool,
    looking: AtomicBool,
}

impl Reader {
    /// With a cache of so many bytes. Without a `repairer` what is lost is an error.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(client: Arc<Client>, cache: u64, repairer: Option<Repairer>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            client,
            cache: Arc::new(Cache::new(cache)),
            pages: Mutex::new(LruCache::new(PAGES)),
            repairer,
            passed_over: Mutex::default(),
            sourceless: Mutex::default(),
            hearing: AtomicBool::new(false),
            looking: AtomicBool::new(false),
        });
        let (ahead, wanted) = sync_channel(QUEUE);
        let wanted = Arc::new(Mutex::new(wanted));
        for _ in 0..THREADS {
            let (shared, wanted) = (shared.clone(), wanted.clone());
            std::thread::Builder::new().name("read ahead".to_owned()).spawn(move || fetch_ahead(&shared, &wanted))?;
        }
        Ok(Self { shared, ahead, reads_ahead: true })
    }

    /// The same, without anything under way when nobody reads.
    #[must_use]
    pub fn without_reading_ahead(self) -> Self {
        Self { reads_ahead: false, ..self }
    }

    /// Ends what it has under way at sources.
    pub fn rest(&self) {
        self.shared.repairer.iter().for_each(Repairer::rest);
    }

    /// What it keeps, for others that keep something.
    #[must_use]
    pub fn cache(&self) -> Arc<Cache> {
        self.shared.cache.clone()
    }

    /// Bytes of a file; fewer at its end.
    ///
    /// # Errors
    /// What is wrong with a block, and with the source.
    pub fn read(&self, entry: &Arc<Entry>, offset: u64, length: u32, pattern: &Pattern) -> Result<Content, Fault> {
        let Some(file) = entry.file() else { return Err(Fault::Other(format!("{} is a directory", entry.path))) };
        let layout = Layout::of(file);
        let end = offset.saturating_add(u64::from(length)).min(file.size);
        let in_order = self.reads_ahead && pattern.is_in_order(offset, end);
        if in_order {
            self.look_ahead(entry, &layout, end, pattern);
        }
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset) as usize);
        let mut fetched = Vec::new();
        let mut give = |block: u64, content: &[u8], new: bool| {
            let start = block * BLOCK;
            let at = offset + bytes.len() as u64;
            if at < end && (start..start + content.len() as u64).contains(&at) {
                let until = (end - start).min(content.len() as u64);
                bytes.extend_from_slice(&content[(at - start) as usize..until as usize]);
                fetched.push(new);
            }
            offset + bytes.len() as u64
        };
        let mut at = offset;
        while at < end {
            let block = at / BLOCK;
            let run = layout.run(block, RUN);
            let wanted = if in_order { run.end } else { run.end.min(end.div_ceil(BLOCK)) };
            match self.shared.cache.get_or_claim(&entry.id, block..wanted) {
                Ok((content, new)) => at = give(block, &content, new),
                Err(claim) => {
                    let first = claim.blocks.start;
                    for (content, block) in self.shared.fetch(entry, file, &layout, &claim)?.iter().zip(first..) {
                        // The rest of the run is for whoever reads it first.
                        let new = block * BLOCK < end && self.shared.cache.get(&entry.id, block).is_none_or(|(_, new)| new);
                        at = give(block, content, new);
                    }
                }
            }
        }
        Ok(Content { bytes, fetched })
    }

    fn look_ahead(&self, entry: &Arc<Entry>, layout: &Layout, end: u64, pattern: &Pattern) {
        let until = end.saturating_add(AHEAD_BYTES).div_ceil(BLOCK).min(layout.blocks());
        let mut block = pattern.ahead.load(Ordering::Relaxed).max(end.div_ceil(BLOCK));
        if block > until {
            // Who has gone back.
            pattern.ahead.store(end.div_ceil(BLOCK), Ordering::Relaxed);
            return;
        }
        while block < until {
            let run = layout.run(block, RUN);
            block = run.end;
            if self.ahead.try_send((entry.clone(), run)).is_err() {
                break;
            }
            pattern.ahead.store(block, Ordering::Relaxed);
        }
    }
}

fn fetch_ahead(shared: &Arc<Shared>, wanted: &Mutex<Receiver<(Arc<Entry>, std::ops::Range<u64>)>>) {
    loop {
        let next = wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((entry, run)) = next else { return };
        if let (Some(file), Some(claim)) = (entry.file(), shared.cache.claim(&entry.id, run)) {
            // Who needs it learns what is wrong.
            let _ = shared.fetch(&entry, file, &Layout::of(file), &claim);
        }
    }
}

impl Shared {
    /// Fetches blocks, which are next to each other on one target, into the cache: of where the file is now, if that is not where it was when it was opened.
    fn fetch(self: &Arc<Self>, entry: &Entry, file: &File, layout: &Layout, claim: &Claim<'_>) -> Result<Vec<Arc<Vec<u8>>>, Fault> {
        let moved = self.client.moved(entry);
        let (entry, file) = moved.as_ref().and_then(|now| Some((now, now.file()?))).unwrap_or((entry, file));
        match self.fetch_from(entry, file, layout, claim, true) {
            Ok(Some(content)) => Ok(content),
            Ok(None) => {
                // Others may have been told that it is elsewhere now.
                self.client.refresh_if_older(HEARD);
                let moved = self.client.moved(entry);
                let (entry, file) = moved.as_ref().and_then(|now| Some((now, now.file()?))).unwrap_or((entry, file));
                self.fetch_from(entry, file, layout, claim, false).map(Option::unwrap_or_default)
            }
            Err(fault) => Err(fault),
        }
    }

    /// `None` if the target gives nothing, and somebody may know where else it is.
    fn fetch_from(
        self: &Arc<Self>,
        entry: &Entry,
        file: &File,
        layout: &Layout,
        claim: &Claim<'_>,
        may_have_moved: bool,
    ) -> Result<Option<Vec<Arc<Vec<u8>>>>, Fault> {
        let blocks = claim.blocks.clone();
        let range = Range::between(blocks.start * BLOCK, layout.block(blocks.end - 1).end());
        let (position, offset) = layout.place(range.offset);
        let copies: Vec<u16> = file.copies(position).collect();
        let request = Request::Read { file: entry.id, position: position as u16, offset, length: range.length as u32 };
        let mut content = vec![None; (blocks.end - blocks.start) as usize];
        let mut faults: Vec<(u16, Fault)> = Vec::new();
        let shortly = if may_have_moved && self.may_ask_source(entry, file) {
            self.client.ask_any_shortly(&copies, &request)
        } else {
            Some(self.client.ask_any(&copies, &request))
        };
        let asked = match shortly {
            Some(asked) => asked,
            None => match self.instead(entry, file, layout, &blocks, (&copies, &request)) {
                Some(content) => return Ok(Some(content)),
                None => self.client.ask_any(&copies, &request),
            },
        };
        match asked {
            Ok(Given { at, blocks: given, failed }) => {
                faults.extend(failed);
                self.tell_of_copy(file, position, at);
                faults.extend(self.take(entry, file, &blocks, given, &mut content)?.then(|| (at, self.damaged(at))));
                let others: Vec<u16> =
                    copies.iter().copied().filter(|other| faults.iter().all(|(bad, _)| bad != other) && *other != at).collect();
                if !others.is_empty()
                    && content.contains(&None)
                    && let Ok(Given { at, blocks: given, .. }) = self.client.ask_any(&others, &request)
                {
                    faults.extend(self.take(entry, file, &blocks, given, &mut content)?.then(|| (at, self.damaged(at))));
                }
            }
            Err(_) if may_have_moved => return Ok(None),
            Err(fault) => faults.push((file.targets[position], fault)),
        }
        if content.contains(&None) {
            let (target, fault) = faults.first().cloned().unwrap_or_else(|| (file.targets[position], self.damaged(file.targets[position])));
            let fetch = |range| self.ask_source(&file.sources, file.size, range, || true);
            let fetched = self.repair(entry, file, layout, &blocks, &mut content, fetch).map_err(|why| {
                Fault::Other(format!("{}:{} at offset {}: {fault}; {why}", self.client.space.name, entry.path, range.offset))
            })?;
            self.tell_of_source(entry, fetched, target, fault.of_target());
        }
        for (target, fault) in &faults {
            self.put_back(entry, layout, &blocks, &content, *target, fault);
        }
        Ok(Some(self.keep(entry, blocks, content)))
    }

    fn keep(&self, entry: &Entry, blocks: std::ops::Range<u64>, content: Vec<Option<Arc<Vec<u8>>>>) -> Vec<Arc<Vec<u8>>> {
        let content: Vec<Arc<Vec<u8>>> = content.into_iter().flatten().collect();
        for (bytes, index) in content.iter().zip(blocks) {
            self.cache.put(&entry.id, index, bytes.clone());
        }
        content
    }

    /// True if what targets have of a file may be fetched from its source while they are silent.
    fn may_ask_source(&self, entry: &Entry, file: &File) -> bool {
        let sourceless = self.sourceless.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = sourceless.is_some_and(|(id, at)| id == entry.id && at.elapsed() < SOURCELESS_TIME);
        self.repairer.is_some() && !file.sources.is_empty() && !failed
    }

    /// Blocks from the file's source in the place of targets that are silent. `None` if it does not give them, or one of these gives something before it does.
    fn instead(
        self: &Arc<Self>,
        entry: &Entry,
        file: &File,
        layout: &Layout,
        blocks: &std::ops::Range<u64>,
        (copies, request): (&[u16], &Request),
    ) -> Option<Vec<Arc<Vec<u8>>>> {
        // Others may have healed the file meanwhile, and the target may be back.
        self.by_the_way(|shared| &shared.hearing, |shared| shared.client.refresh_if_older(HEARD));
        self.by_the_way(|shared| &shared.looking, |shared| shared.client.look_for_lost());
        let mut content = vec![None; (blocks.end - blocks.start) as usize];
        let fetch = |range| self.fetch_unless_back(file, range, (copies, request));
        match self.repair(entry, file, layout, blocks, &mut content, fetch) {
            Ok(fetched) => copies.first().into_iter().for_each(|first| self.tell_of_source(entry, fetched, *first, self.silence(*first))),
            Err(_) => {
                if !self.client.any_answers(copies) {
                    *self.sourceless.lock().unwrap_or_else(PoisonError::into_inner) = Some((entry.id, Instant::now()));
                }
                return None;
            }
        }
        Some(self.keep(entry, blocks.clone(), content))
    }

    /// Does something that may take long, unless somebody is at it.
    fn by_the_way(self: &Arc<Self>, flag: fn(&Self) -> &AtomicBool, work: impl FnOnce(&Self) + Send + 'static) {
        if flag(self).swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = self.clone();
        let begun = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
            work(&shared);
            flag(&shared).store(false, Ordering::Relaxed);
        });
        if begun.is_err() {
            flag(self).store(false, Ordering::Relaxed);
        }
    }

    /// Fetches from a source as long as these targets are silent.
    fn fetch_unless_back(self: &Arc<Self>, file: &File, range: Range, (copies, request): (&[u16], &Request)) -> Result<Vec<u8>, String> {
        let (say, heard) = channel();
        let wanted = Arc::new(AtomicBool::new(true));
        let (shared, still, sources, size) = (self.clone(), wanted.clone(), file.sources.clone(), file.size);
        let fetch = move || {
            let fetched = shared.ask_source(&sources, size, range, || still.load(Ordering::Relaxed));
            // Nobody may listen any more.
            let _ = say.send(fetched);
        };
        std::thread::Builder::new().name("source".to_owned()).spawn(fetch).map_err(|error| error.to_string())?;
        loop {
            match heard.recv_timeout(GLANCE) {
                Ok(fetched) => return fetched,
                Err(RecvTimeoutError::Timeout) if self.client.any_answers(copies) => {
                    wanted.store(false, Ordering::Relaxed);
                    return Err("a target answers again".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => self.client.try_again(copies, request),
                Err(RecvTimeoutError::Disconnected) => return Err("nothing came of it".to_owned()),
            }
        }
    }

    fn ask_source(&self, sources: &[Source], size: u64, range: Range, wanted: impl Fn() -> bool) -> Result<Vec<u8>, String> {
        let Some(repairer) = &self.repairer else { return Err("it is not fetched from its source here".to_owned()) };
        repairer.fetch(sources, size, range, wanted)
    }

    /// Takes those blocks that have the checksums that they must have. True if some have not.
    fn take(
        &self,
        entry: &Entry,
        file: &File,
        blocks: &std::ops::Range<u64>,
        given: Vec<Vec<u8>>,
        content: &mut [Option<Arc<Vec<u8>>>],
    ) -> Result<bool, Fault> {
        let mut damaged = false;
        // A target that gives too little has it damaged.
        let given = given.into_iter().chain(std::iter::repeat_with(Vec::new));
        for (index, (block, place)) in blocks.clone().zip(given.zip(content)) {
            if self.sum(entry, file, index)? != block_sum(&entry.id, index, &block) {
                damaged = true;
            } else if place.is_none() {
                *place = Some(Arc::new(block));
            }
        }
        Ok(damaged)
    }

    /// Says once that second copies are read in the place of what a target has.
    fn tell_of_copy(&self, file: &File, position: usize, at: u16) {
        let first = file.targets[position];
        let mut passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        if at == first {
            passed_over.remove(&first);
        } else if passed_over.insert(first) {
            let name = |at: u16| self.client.peer(at).map(|peer| peer.target.name()).unwrap_or_default();
            mend_report::tell!(
                "mend data: {}: target {} gives nothing: second copies are read, as on {}",
                self.client.space.name,
                name(first),
                name(at)
            );
        }
    }

    fn damaged(&self, target: u16) -> Fault {
        let target = self.client.peer(target).map(|peer| peer.target.name()).unwrap_or_default();
        Fault::Failed { target, kind: Failed::Medium, why: DAMAGED.to_owned() }
    }

    /// The checksum that a block must have, of a keeper that answers.
    fn sum(&self, entry: &Entry, file: &File, block: u64) -> Result<u128, Fault> {
        let page = u32::try_from(block / SUMS_OF_PAGE).unwrap_or(u32::MAX);
        let at = (block % SUMS_OF_PAGE) as usize * 16;
        let known = self.pages.lock().unwrap_or_else(PoisonError::into_inner).get(&(entry.id, page)).cloned();
        let sums = match known {
            Some(sums) => sums,
            None => {
                let sums = Arc::new(self.client.sums(entry, file, page)?);
                self.pages.lock().unwrap_or_else(PoisonError::into_inner).put((entry.id, page), sums.clone());
                sums
            }
        };
        let bytes = sums.get(at..at + 16).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(u128::from_le_bytes)
            .ok_or_else(|| Fault::Other(format!("checksums of {}:{} are missing", self.client.space.name, entry.path)))
    }

    /// Fetches what is not there yet from the file's source. Which bytes that were.
    fn repair(
        &self,
        entry: &Entry,
        file: &File,
        layout: &Layout,
        blocks: &std::ops::Range<u64>,
        content: &mut [Option<Arc<Vec<u8>>>],
        fetch: impl FnOnce(Range) -> Result<Vec<u8>, String>,
    ) -> Result<Range, String> {
        let missing: Vec<u64> = blocks.clone().zip(&*content).filter(|(_, there)| there.is_none()).map(|(index, _)| index).collect();
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else { return Ok(Range::between(0, 0)) };
        let range = Range::between(first * BLOCK, layout.block(*last).end());
        let bytes = fetch(range)?;
        for index in missing {
            let block = layout.block(index);
            let from = (block.offset - range.offset) as usize;
            let good = bytes.get(from..from + block.length as usize).ok_or("its source sent too little")?;
            let sum = self.sum(entry, file, index).map_err(|fault| fault.to_string())?;
            if sum != block_sum(&entry.id, index, good) {
                return Err(format!("its source sent other bytes than were staged, at offset {}", block.offset));
            }
            content[(index - blocks.start) as usize] = Some(Arc::new(good.to_vec()));
        }
        Ok(range)
    }

    /// Why a target that was not waited for gave nothing.
    fn silence(&self, target: u16) -> TargetFault {
        let Some(peer) = self.client.shared_peer(target) else { return TargetFault::Absent };
        let ms = || u64::try_from(peer.unusual(self.client.hedge().unwrap_or_default()).as_millis()).unwrap_or(u64::MAX);
        peer.loss().map_or_else(|| TargetFault::Silent { ms: ms() }, |fault| fault.of_target())
    }

    fn tell_of_source(&self, entry: &Entry, range: Range, target: u16, why: TargetFault) {
        self.client.events.came_from_source(&entry.path, target, range.length, why);
        let target = self.client.peer(target).map(|peer| peer.target.name()).unwrap_or_default();
        mend_report::tell!(
            "mend data: {}:{}: {} bytes at offset {} that target {target} lacks came from the source",
            self.client.space.name,
            entry.path,
            range.length,
            range.offset
        );
    }

    /// Gives a target that answers its bytes back. That it does not take them is no harm: they were read.
    fn put_back(
        &self,
        entry: &Entry,
        layout: &Layout,
        blocks: &std::ops::Range<u64>,
        content: &[Option<Arc<Vec<u8>>>],
        target: u16,
        fault: &Fault,
    ) {
        let Fault::Failed { kind: Failed::Medium, .. } = fault else { return };
        let Ok(peer) = self.client.peer(target) else { return };
        let (position, offset) = layout.place(blocks.start * BLOCK);
        let bytes: Vec<u8> = content.iter().flatten().flat_map(|block| block.iter().copied()).collect();
        let write = Request::Write { file: entry.id, position: position as u16, offset, length: bytes.len() as u32 };
        let _ = peer.ask(&write, &bytes).and_then(|_| {
            let (Answer::Seen { life, .. }, _) = peer.ask(&Request::Look, &[])? else { return Ok(()) };
            let length = layout.object_length(position);
            peer.ask(&Request::Settle { file: entry.id, position: position as u16, length, life }, &[]).map(drop)
        });
    }
}
