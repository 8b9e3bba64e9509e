//! What changes while the program runs on and its memory is copied, round by round.
//!
//! ```text
//! begin_rounds ─ window, window, … ─ end_round ─ window, … ─ rest ─ (threads park) ─ the image's own scan
//! ```
//! Anonymous memory is write-protected before it is read, a window at a time, where the kernel can do both what it tells and protect at one
//! instant: whoever writes later is noticed. Who had hold of a page before it was protected is not: so the page is read only a while later.
//! Only a device that writes for longer, by a call that was under way all the time, goes unnoticed ([`super::devices_write`] tells of most that can,
//! and then all is in the image). All else is compared by hashes of the very copy that is sent. Soft-dirty bits serve for neither: to read and
//! to clear them are two calls, and what is written between them would be lost.
//!
//! Invariant: a page that the image's scan takes for unchanged after the last round holds what the copy of it held that was sent last; or
//! it was told as zeros. A page whose copy could not be made is released: it counts as changed.
//! What was tracked for a checkpoint is over: the next one is full.

use super::hash::{Hashed, digest};
use super::page_list::LentPages;
use super::scan::{DirtyScan, Mechanism};
use super::{Method, Prepared, Tracker, blocks, pages_for_lists};
use crate::memory::pages::{PAGE, is_zero};
use mend_kernel::pagemap::{self, Region, first_written, observed, populated, written};
use mend_kernel::procmap;
use mend_kernel::userfault::{register_anew, release, unregister};
use mend_messages::agent::ImageId;
use rustix::fd::AsRawFd;
use std::fs::File;

/// Changes of a program that runs.
pub(crate) struct LiveScan {
    userfault: Option<i32>,
    /// Hashes of what was sent in the rounds before, and the first that is not passed yet.
    before: (LentPages<Hashed>, usize),
    at: usize,
    /// Of what was sent or compared in this one.
    after: LentPages<Hashed>,
    count: usize,
    /// A device may have written to memory: nothing that was noticed counts.
    void: bool,
    /// Whether one may write now.
    devices_write: fn() -> bool,
    maps: File,
    /// Memory is taken under observation while the threads stand still, and then only.
    at_rest: bool,
}

/// Pages of a window that may have to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noticed {
    /// All of them changed, and are protected now.
    ByProtection,
    /// Those whose [`LiveScan::differs`] says so.
    ByHash,
}

impl Tracker {
    /// Begins to notice changes for rounds. What was noticed for checkpoints is over. `devices_write`: whether any device may write to memory
    /// unnoticed, which is asked again and again.
    pub fn begin_rounds(&mut self, devices_write: fn() -> bool) -> Result<LiveScan, String> {
        self.since = None;
        // What is protected since a checkpoint was not sent: another userfaultfd begins with nothing.
        match self.active.take() {
            Some(active) if !active.intact() => active.forget(),
            active => drop(active),
        }
        self.choose();
        let pages = pages_for_lists();
        let failed = |errno| format!("no memory for a list of pages ({errno})");
        self.hashes.before.reserve(pages).map_err(failed)?;
        self.hashes.after.reserve(pages).map_err(failed)?;
        let active = self.active.as_ref().filter(|active| active.method == Method::WriteProtect);
        let maps = File::open("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
        // Without a way to ask for one mapping (Linux 6.11), what is under observation might be another one by the time it is.
        let asks = procmap::at_or_after(maps.as_raw_fd(), 0).is_ok();
        let userfault = active.and_then(|active| active.userfault.as_ref()).map(AsRawFd::as_raw_fd).filter(|_| asks);
        let (before, after) = (self.hashes.before.lend(), self.hashes.after.lend());
        Ok(LiveScan { userfault, before: (before, 0), at: 0, after, count: 0, void: devices_write(), devices_write, maps, at_rest: false })
    }

    /// Before the threads are parked for the image that follows the rounds, which have this name: it holds what changed since they were sent.
    pub fn prepare_rest(&mut self, live: &mut LiveScan, rounds: ImageId) -> Prepared {
        live.keep_rest();
        self.hashes.count = Some(0);
        let intact = live.userfault.is_none() || self.intact();
        if live.void || !intact || self.list.reserve(pages_for_lists()).is_err() {
            return Prepared { scan: None, base: None, note: None, rounds: true };
        }
        let scan = DirtyScan {
            mechanism: live.userfault.map_or(Mechanism::Hash, Mechanism::Protect),
            before: (live.after, live.count),
            after: live.before.0,
            blocks: ((self.blocks.before.lend(), 0), self.blocks.after.lend()),
            keep_hot: !blocks::retries_hot_blocks(0),
            arm: false,
            list: Some(self.list.lend()),
        };
        Prepared { scan: Some(scan), base: Some((rounds, 1)), note: None, rounds: true }
    }
}

/// Private memory without a file.
fn may_be_observed(found: &procmap::Mapped) -> bool {
    !found.shared && found.identity == (0, 0)
}

impl LiveScan {
    /// Whether changes of private memory that is (not) a file's are noticed by protection.
    fn protects(&self, anonymous: bool) -> Option<i32> {
        self.userfault.filter(|_| anonymous)
    }

    /// How many bytes of these mappings a round would send now, if that can be told without reading them.
    pub fn left(&self, pagemap: i32, areas: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
        self.userfault?;
        let all = |(start, end)| {
            let (mut at, mut bytes, mut found) = (start, 0, [Region::default(); 64]);
            while at < end {
                let Ok((count, next)) = populated(pagemap, pagemap::Method::Scan, at, end, false, &mut found) else { break };
                bytes += found[..count].iter().map(|region| region.end - region.start).sum::<u64>();
                at = next.max(at + PAGE);
            }
            bytes
        };
        // Where not all is under observation, as after a change of mappings, all counts.
        let bytes = |(start, end)| super::protect::changed(pagemap, start, end).map_or_else(|_| all((start, end)), |pages| pages * PAGE);
        Some(areas.map(bytes).sum())
    }

    /// Takes anonymous mappings, ascending, under observation: for windows, while the program's threads stand still.
    ///
    /// Private mappings that follow each other are taken all at once, as they are at this moment: what is observed and what is not are
    /// different mappings to the kernel, which never joins them, and the program's mremap over both would fail. That is why the threads
    /// stand still: one that maps memory between the look and the taking could have a part of it taken. A file's mappings are none of
    /// them: its pages must not be protected (see [`super::protect`]).
    pub fn observe_at_rest(&mut self, pagemap: i32, areas: impl Iterator<Item = (u64, u64)>) {
        self.at_rest = true;
        let mut done = 0;
        for (start, end) in areas {
            let mut at = start.max(done);
            while at < end {
                match self.observe(pagemap, at) {
                    Some(to) if to > at => at = to,
                    _ => break,
                }
            }
            done = at;
        }
    }

    /// Makes ready to notice changes of what is mapped at the beginning of a range. Returns up to where in the range that is. `None`: it
    /// cannot be done, and all of the range is left to the image, or to the next round.
    pub fn enter(&self, pagemap: i32, (start, end): (u64, u64), anonymous: bool) -> Option<u64> {
        if self.protects(anonymous).is_none() {
            return Some(end);
        }
        let to = if self.at_rest { self.observed_to(pagemap, start) } else { self.observe(pagemap, start) };
        to.map(|to| to.min(end))
    }

    /// Up to where mappings are observed that follow each other from an address on.
    fn observed_to(&self, pagemap: i32, start: u64) -> Option<u64> {
        match self.neighbours(pagemap, start)? {
            (to, None) => Some(to),
            (_, Some((other, _))) => Some(other).filter(|other| *other > start),
        }
    }

    /// Takes the mappings that follow each other from an address on under observation. Returns up to where they reach.
    fn observe(&self, pagemap: i32, start: u64) -> Option<u64> {
        let userfault = self.userfault?;
        let mut taken: Option<(u64, u64)> = None;
        for _ in 0..8 {
            match self.neighbours(pagemap, start) {
                Some((to, None)) => return Some(to),
                // To take only what was not observed: the rest keeps its protection.
                Some((_, Some((from, to)))) if register_anew(userfault, from, to).is_ok() => {
                    taken = Some(taken.map_or((from, to), |before| (before.0.min(from), before.1.max(to))));
                }
                _ => break,
            }
        }
        // Others by now, or changing all the time. What of them is under no observation counts as changed.
        taken.map(|(from, to)| unregister(userfault, from, to));
        None
    }

    /// Up to where mappings that may be observed follow each other from an address on, and the span of them from the first to the last that
    /// is not observed.
    fn neighbours(&self, pagemap: i32, start: u64) -> Option<(u64, Option<(u64, u64)>)> {
        let at = |address| procmap::at_or_after(self.maps.as_raw_fd(), address).ok().flatten();
        let mut found = at(start).filter(|found| found.range.0 <= start && may_be_observed(found))?;
        let mut others: Option<(u64, u64)> = None;
        loop {
            let (from, end) = found.range;
            if !observed(pagemap, from) {
                others = Some((others.map_or(from, |(first, _)| first), end));
            }
            match at(end).filter(|next| next.range.0 == end && may_be_observed(next)) {
                Some(next) => found = next,
                None => return Some((end, others)),
            }
        }
    }

    /// Descriptors that are not the program's.
    pub fn descriptor(&self) -> i32 {
        self.maps.as_raw_fd()
    }

    /// Finds the next pages of a mapping from `at` on that are to be looked at: those in one window. Puts them into `found`; returns how
    /// many, up to where, and how they were noticed. `None`: there are no more, or the mapping is gone.
    pub fn window(
        &self,
        pagemap: i32,
        method: pagemap::Method,
        (at, end): (u64, u64),
        (anonymous, length): (bool, u64),
        found: &mut [Region],
    ) -> Option<(usize, u64, Noticed)> {
        match self.protects(anonymous) {
            Some(_) => {
                let first = first_written(pagemap, at, end).ok().flatten()?;
                let to = end.min((first / length + 1) * length);
                // Told and protected at one instant.
                let Ok((count, next)) = written(pagemap, first, to, true, found) else {
                    // A part of it was mapped anew since; what lies before that part is protected, and nothing was told of it.
                    self.withdraw((first, to), Noticed::ByProtection);
                    return None;
                };
                Some((count, next, Noticed::ByProtection))
            }
            None => {
                const LEAP: u64 = 64 << 20;
                let mut at = at;
                loop {
                    let to = end.min(at.checked_add(LEAP)?);
                    let (count, next) = populated(pagemap, method, at, to, !anonymous, &mut found[..1]).ok()?;
                    if count > 0 {
                        break;
                    }
                    at = next.max(to);
                    if at >= end {
                        return None;
                    }
                }
                let first = found[0].start;
                let to = end.min(first + length);
                let (count, next) = populated(pagemap, method, first, to, !anonymous, found).ok()?;
                Some((count, next, Noticed::ByHash))
            }
        }
    }

    /// Takes a page's copy, in ascending order; whether it is another than the one that was sent last.
    pub fn differs(&mut self, page: u64, copy: &[u8]) -> bool {
        if is_zero(copy) {
            // Without a hash it is the image's affair.
            return false;
        }
        let hashed = digest(page, copy);
        // SAFETY: the tracker lent both lists for these rounds; nobody has a slice of this one.
        let noted = unsafe { self.after.put(self.count, hashed) };
        self.count += usize::from(noted);
        // SAFETY: as above; nothing writes to this list.
        let before = unsafe { self.before.0.items(self.before.1) };
        while before.get(self.at).is_some_and(|old| old.page() < page) {
            self.at += 1;
        }
        before.get(self.at) != Some(&hashed)
    }

    /// The copy of a page, or of those of a range, could not be sent: what was noticed of it does not count.
    pub fn withdraw(&self, (start, end): (u64, u64), noticed: Noticed) {
        match (noticed, self.userfault) {
            // If it is not under observation any more it counts as changed as a whole.
            (Noticed::ByProtection, Some(userfault)) if release(userfault, start, end).is_err() => {
                // A part of it was unmapped, or mapped anew.
                for page in (start..end).step_by(PAGE as usize) {
                    let _ = release(userfault, page, page + PAGE);
                }
            }
            // No hash was taken of it.
            _ => {}
        }
    }

    /// All windows were looked at.
    pub fn end_round(&mut self) {
        self.before = (std::mem::replace(&mut self.after, self.before.0), self.count);
        (self.at, self.count) = (0, 0);
        self.void = self.void || (self.devices_write)();
    }

    /// What this round did not come to is as the round before left it.
    fn keep_rest(&mut self) {
        // SAFETY: as in `differs`.
        let before = unsafe { self.before.0.items(self.before.1) };
        // SAFETY: as in `differs`; the last one was put by this round.
        let last = unsafe { self.after.items(self.count) }.last().map(Hashed::page);
        for hashed in before.iter().skip_while(|hashed| last.is_some_and(|last| hashed.page() <= last)) {
            // SAFETY: as in `differs`: no slice of this list is in use.
            self.count += usize::from(unsafe { self.after.put(self.count, *hashed) });
        }
        self.void = self.void || (self.devices_write)();
    }
}
