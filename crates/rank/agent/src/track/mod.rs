//! Which private pages changed since an image, so that the next one need not hold the others.
//!
//! ```text
//! prepare ─ (threads park) ─ begin ─ scan ─ image is written ─ settle           tracked since this image
//!                              └──────── anything fails ────────►               tracked since none: the next is full
//! ```
//! Three ways, chosen at run time: write protection, soft-dirty bits, hashes. A [`scan::DirtyScan`] lists the changes and
//! starts the tracking again at one instant, while the threads stand still. Shared memory and memory objects are not tracked:
//! each image stores them whole.
//!
//! Invariant: a page that is listed as unchanged holds what it held when the image named by `since` was taken. Whatever is in
//! doubt counts as changed. A restored process begins untracked.

mod blocks;
mod entries;
mod hash;
mod live;
mod page_list;
mod protect;
mod regions;
mod scan;
mod soft;
#[cfg(test)]
mod tests;

use crate::descriptors::fdinfo;
use crate::descriptors::table::move_high;
use crate::memory::maps::Area;
use blocks::Split;
pub(crate) use entries::{Entry, within};
use hash::Hashed;
pub(crate) use live::{LiveScan, Noticed};
use mend_kernel::memory::number;
use mend_kernel::soft_dirty::{self, SoftDirtySupport};
use mend_kernel::{pagemap, userfault};
use mend_messages::agent::{ImageId, Tracking};
use page_list::PageList;
pub(crate) use regions::ScanContext;
use rustix::fd::{AsRawFd, OwnedFd};
use scan::Mechanism;
pub(crate) use scan::{DirtyScan, NewHashes, RunningScan, ScanResult, tracked};
use std::fs::File;
use std::mem;

/// Pages, beside an eighth, that a process may grow by between the moment its size is read and the moment its threads stand still.
const GROWTH_PAGES: usize = 64 << 10;

/// What `MEND_TRACKING` may demand.
const METHODS: [Method; 3] = [Method::WriteProtect, Method::SoftDirty, Method::Hash];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    WriteProtect,
    SoftDirty,
    Hash,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::WriteProtect => "write-protect",
            Method::SoftDirty => "soft-dirty",
            Method::Hash => "hash",
        }
    }
}

/// A method that works here.
struct Active {
    method: Method,
    /// Of write protection, or a witness of moves beside soft-dirty bits.
    userfault: Option<OwnedFd>,
    /// Clears soft-dirty bits.
    clear_refs: Option<OwnedFd>,
}

impl Active {
    /// The descriptors, and how the names of what they are open on end.
    fn descriptors(&self) -> impl Iterator<Item = (&OwnedFd, &'static str)> {
        let userfault = self.userfault.iter().map(|fd| (fd, "[userfaultfd]"));
        userfault.chain(self.clear_refs.iter().map(|fd| (fd, "/clear_refs")))
    }

    /// Whether they are still ours: a program may close what it does not know, and open something else.
    fn intact(&self) -> bool {
        let link = |fd: &OwnedFd| std::fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()));
        self.descriptors().all(|(fd, what)| link(fd).is_ok_and(|link| link.to_string_lossy().ends_with(what)))
    }

    /// Leaves the descriptors as they are: their numbers may be the program's by now, or another process's.
    fn forget(self) {
        mem::forget((self.userfault, self.clear_refs));
    }
}

/// Hashes of pages, of all or of those that the method leaves to them.
struct Hashing {
    /// At `since`.
    before: PageList<Hashed>,
    /// How many; `None`: a copy of the process makes them.
    count: Option<usize>,
    /// Memory for the next ones.
    after: PageList<Hashed>,
}

/// Blocks of huge pages: see [`blocks`].
struct Huge {
    before: PageList<Entry>,
    count: usize,
    after: PageList<Entry>,
    /// Of `before`.
    split: Split,
    /// Full images so far.
    fulls: u32,
}

impl Huge {
    fn list(&self) -> &'static [Entry] {
        // SAFETY: scans write to the other list, and the two change places only between uses.
        unsafe { self.before.lend().items(self.count) }
    }
}

/// Keeps track over the images of a process.
pub(crate) struct Tracker {
    /// Methods allowed, best first.
    allowed: &'static [Method],
    active: Option<Active>,
    /// Why none of the better ones.
    why: Vec<String>,
    list: PageList<Entry>,
    hashes: Hashing,
    blocks: Huge,
    /// The image since which changes are noticed, and its place in its chain.
    since: Option<(ImageId, u32)>,
}

/// What the tracker is to do for one image.
pub(crate) struct Prepared {
    /// `None`: nothing is asked for.
    pub scan: Option<DirtyScan>,
    /// The image to build on, and the place in its chain that the new one has.
    pub base: Option<(ImageId, u32)>,
    /// Why there is no base although one was ordered, or no tracking.
    pub note: Option<String>,
    /// What it builds on are the rounds of a live migration.
    pub rounds: bool,
}

impl Tracker {
    /// With what `MEND_TRACKING` says.
    pub fn new(setting: &str) -> Self {
        let allowed = match METHODS.iter().position(|method| method.name() == setting) {
            Some(index) => &METHODS[index..=index],
            None if setting == "off" => &[],
            None => &METHODS[..],
        };
        Self {
            allowed,
            active: None,
            why: Vec::new(),
            list: PageList::EMPTY,
            hashes: Hashing { before: PageList::SHARED, count: Some(0), after: PageList::SHARED },
            blocks: Huge { before: PageList::EMPTY, count: 0, after: PageList::EMPTY, split: Split::NONE, fulls: 0 },
            since: None,
        }
    }

    /// For people: what is in use or would be.
    pub fn describe(&mut self) -> Tracking {
        self.choose();
        let method = self.active.as_ref().map_or("off", |active| active.method.name()).to_string();
        Tracking { method, why: self.why.clone(), since: self.since.map(|(id, _)| id) }
    }

    /// Finds the first method that works, once: what a kernel can does not change.
    fn choose(&mut self) {
        if self.active.is_none() {
            self.why.clear();
            let why = &mut self.why;
            let works = |method: &Method| open(*method).map_err(|reason| why.push(format!("{}: {reason}", method.name()))).ok();
            self.active = self.allowed.iter().find_map(works);
        }
    }

    /// Before threads are parked. `base` is what the image is to build on, `track` whether a later one is to build on it.
    pub fn prepare(&mut self, base: Option<ImageId>, track: bool) -> Prepared {
        let mut note = None;
        let base = base.filter(|_| !self.allowed.is_empty()).and_then(|wanted| match self.since {
            Some((id, sequence)) if id == wanted && self.hashes.count.is_some() && self.intact() => Some((id, sequence + 1)),
            since => {
                let why = match since {
                    Some(_) => "changes since the image to build on were not noticed",
                    None => "there is no image of this process to build on: it has moved here, or was restarted",
                };
                note = Some(format!("full, because {why}"));
                None
            }
        });
        if base.is_none() && !track {
            return Prepared { scan: None, base, note, rounds: false };
        }
        if base.is_none()
            && !self.intact()
            && let Some(active) = self.active.take()
        {
            active.forget();
        }
        let scan = self.prepare_scan(base.is_some(), track).unwrap_or_else(|why| {
            note = Some(why);
            None
        });
        let base = base.filter(|_| scan.is_some());
        Prepared { scan, base, note, rounds: false }
    }

    fn prepare_scan(&mut self, incremental: bool, track: bool) -> Result<Option<DirtyScan>, String> {
        self.choose();
        let Some(active) = &self.active else {
            return if self.allowed.is_empty() { Ok(None) } else { Err(format!("changes are not noticed: {}", self.why.join("; "))) };
        };
        let pages = pages_for_lists();
        let failed = |errno| format!("changes are not noticed: no memory for a list of pages ({errno})");
        if incremental {
            self.list.reserve(pages).map_err(failed)?;
        }
        let hashes = &mut self.hashes;
        if track {
            hashes.after.reserve(pages).map_err(failed)?;
            self.blocks.after.reserve(pages / 512 + 1).map_err(failed)?;
            self.blocks.fulls = self.blocks.fulls.wrapping_add(u32::from(!incremental));
        }
        let number = |fd: &OwnedFd| fd.as_raw_fd();
        let (userfault, clear_refs) = (active.userfault.as_ref().map(number), active.clear_refs.as_ref().map(number));
        let mechanism = match active.method {
            Method::WriteProtect => Mechanism::Protect(userfault.unwrap_or(-1)),
            Method::SoftDirty => Mechanism::SoftDirty(clear_refs.unwrap_or(-1), userfault),
            Method::Hash => Mechanism::Hash,
        };
        let before = (hashes.before.lend(), hashes.count.filter(|_| incremental).unwrap_or(0));
        let blocks = ((self.blocks.before.lend(), self.blocks.count), self.blocks.after.lend());
        let keep_hot = incremental || !blocks::retries_hot_blocks(self.blocks.fulls);
        Ok(Some(DirtyScan {
            mechanism,
            before,
            after: hashes.after.lend(),
            blocks,
            keep_hot,
            arm: track,
            list: incremental.then(|| self.list.lend()),
        }))
    }

    /// How many pages the next image that builds on `base` would hold, were it taken now; `None` if that is not known without
    /// reading them. The program runs.
    pub fn changed(&self, base: ImageId, areas: &[Area]) -> Option<u64> {
        let known = self.since.is_some_and(|(id, _)| id == base);
        if !known || self.active.as_ref()?.method != Method::WriteProtect || !self.intact() {
            return None;
        }
        let pagemap = File::open("/proc/self/pagemap").ok()?;
        // All that is of the process: the kernel's own page above it is nobody's.
        let own = |area: &&Area| {
            area.is_anonymous() && area.name != "[vsyscall]" && self.memory().all(|(start, end)| area.end <= start || end <= area.start)
        };
        areas.iter().filter(own).map(|area| protect::changed(pagemap.as_raw_fd(), area.start, area.end).ok()).sum()
    }

    /// Whether the kernel has noticed, and can tell, what was written since this image where memory is under observation.
    pub fn observes_since(&self, image: ImageId) -> bool {
        let tracked = self.since.is_some_and(|(id, _)| id == image);
        let protects = self.active.as_ref().is_some_and(|active| active.method == Method::WriteProtect);
        tracked && protects && self.intact() && !devices_write()
    }

    /// Whether the descriptors are still ours.
    fn intact(&self) -> bool {
        self.active.as_ref().is_some_and(Active::intact)
    }

    /// Descriptors that are not the program's.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.active.iter().flat_map(Active::descriptors).map(|(fd, _)| fd.as_raw_fd())
    }

    /// Memory that is not the program's.
    pub fn memory(&self) -> impl Iterator<Item = (u64, u64)> {
        let Huge { before, after, .. } = &self.blocks;
        let lists = [self.list.range(), self.hashes.before.range(), self.hashes.after.range(), before.range(), after.range()];
        lists.into_iter().filter(|(start, end)| start < end)
    }

    /// The last call before a scan. What was tracked is over until [`Tracker::settle`]. Allocates nothing.
    pub fn begin(&mut self, scan: &DirtyScan) {
        if scan.arm {
            self.since = None;
        }
    }

    /// The image is complete (or will be, written by a copy of the process).
    pub fn settle(&mut self, id: ImageId, sequence: u32, scan: &DirtyScan, result: &ScanResult) {
        if scan.arm {
            self.since = result.armed.then_some((id, sequence));
            mem::swap(&mut self.hashes.before, &mut self.hashes.after);
            self.hashes.count = result.hashes;
            let blocks = &mut self.blocks;
            mem::swap(&mut blocks.before, &mut blocks.after);
            (blocks.count, blocks.split) = (result.blocks, Split::all());
        }
    }

    /// Gives back the memory that the last scan took. It takes a tenth of a millisecond, so it is done when the program runs again.
    pub fn tidy(&mut self) {
        self.hashes.after.empty();
        self.list.empty();
    }

    /// The copy of the process that wrote an image has made its hashes, or could not.
    pub fn take_hashes(&mut self, id: ImageId, made: Option<NewHashes>) {
        if self.hashes.count.is_none() && self.since.is_some_and(|(since, _)| since == id) {
            let made = made.filter(|made| !made.full);
            self.hashes.count = made.map(|made| made.count);
            self.since = self.since.filter(|_| made.is_some());
        }
    }

    /// Blocks that were left without protection are not in huge pages yet.
    pub fn has_split(&self) -> bool {
        self.blocks.split.any(self.blocks.list())
    }

    /// Makes some of them huge pages again, in a few milliseconds, while the program runs.
    pub fn join_some(&mut self) {
        let userfault = self.active.as_ref().and_then(|active| active.userfault.as_ref()).map_or(-1, AsRawFd::as_raw_fd);
        let list = self.blocks.list();
        self.blocks.split.join_some(list, userfault);
    }

    /// In a restored process, which has neither the descriptors nor the lists.
    pub fn forget(&mut self) {
        self.since = None;
        self.list.forget();
        self.hashes.before.forget();
        self.hashes.after.forget();
        self.blocks.before.forget();
        self.blocks.after.forget();
        (self.blocks.count, self.blocks.split) = (0, Split::NONE);
        if let Some(active) = self.active.take() {
            active.forget();
        }
    }
}

impl Prepared {
    /// Once the threads stand still.
    pub fn on_quiesced(&mut self) {
        if self.rounds && self.scan.is_some() && pinned() {
            // What a device wrote during the rounds nobody noticed.
            (self.scan, self.base) = (None, None);
        }
        if let Some(scan) = self.scan.as_mut().filter(|scan| scan.arm && pinned()) {
            scan.arm = false;
            self.note.get_or_insert_with(|| "changes are not noticed: a device may write to memory of the program".to_string());
        }
    }
}

fn open(method: Method) -> Result<Active, String> {
    let high = |fd: OwnedFd| move_high(fd).map_err(|errno| errno.to_string());
    let kernel = |errno| std::io::Error::from_raw_os_error(errno).to_string();
    let file = |path: &str, write: bool| {
        let file = File::options().read(!write).write(write).open(path);
        file.map(OwnedFd::from).map_err(|error| format!("{path}: {error}"))
    };
    match method {
        Method::WriteProtect => {
            let scan = pagemap::probe(file("/proc/self/pagemap", false)?.as_raw_fd()) == pagemap::Method::Scan;
            let fd = userfault::open().map_err(|errno| format!("userfaultfd with WP_ASYNC (Linux 6.7): {}", kernel(errno)))?;
            if scan {
                Ok(Active { method, userfault: Some(high(fd)?), clear_refs: None })
            } else {
                Err("the kernel has no PAGEMAP_SCAN (Linux 6.7)".to_string())
            }
        }
        Method::SoftDirty => {
            let (pagemap, clear_refs) = (file("/proc/self/pagemap", false)?, file("/proc/self/clear_refs", true)?);
            let witness = match soft_dirty::probe(pagemap.as_raw_fd(), clear_refs.as_raw_fd()).map_err(kernel)? {
                SoftDirtySupport::Nothing => return Err("the kernel is built without soft-dirty bits".to_string()),
                SoftDirtySupport::WritesAndMoves => None,
                SoftDirtySupport::Writes => {
                    let why = |errno| {
                        format!(
                            "the bits of moved memory get lost, which takes userfaultfd with WP (Linux 5.7) to notice: {}",
                            kernel(errno)
                        )
                    };
                    Some(high(userfault::witness().map_err(why)?)?)
                }
            };
            Ok(Active { method, userfault: witness, clear_refs: Some(high(clear_refs)?) })
        }
        Method::Hash => Ok(Active { method, userfault: None, clear_refs: None }),
    }
}

/// Items that a list of pages has room for, as many as the process has and some more.
fn pages_for_lists() -> usize {
    let pages = pages_in_use() + GROWTH_PAGES;
    pages + pages / 8
}

/// Resident and swapped pages of this process.
fn pages_in_use() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pages = |name: &str| number(&status, name).unwrap_or(0) / 4;
    (pages("VmRSS:") + pages("VmSwap:")) as usize
}

/// Devices may write to memory of this process while it runs and nothing notices: to what is pinned for them, or by a read past the page
/// cache (`O_DIRECT`), which takes hold of pages first and may take any time.
pub(crate) fn devices_write() -> bool {
    let direct = |info: &str| fdinfo::flags(info) & libc::O_DIRECT != 0;
    let any_direct = || match std::fs::read_dir("/proc/self/fdinfo") {
        Ok(all) => all.flatten().any(|one| std::fs::read_to_string(one.path()).is_ok_and(|info| direct(&info))),
        Err(_) => true,
    };
    pinned() || any_direct()
}

/// Devices may write to memory of this process without its page tables (RDMA, GPUs, fixed buffers of io_uring).
fn pinned() -> bool {
    number(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmPin:").is_some_and(|pinned| pinned != 0)
}
