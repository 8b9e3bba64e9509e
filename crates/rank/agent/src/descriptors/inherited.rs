//! What a restored process has open when it begins: the restorer left it, above the numbers of the program.

use super::calls::high;
use mend_image::handoff::{Handoff, Kept};
use mend_image::launch::Role;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

/// What the restorer handed over.
pub(crate) struct Inherited<'a> {
    pub attach: [i32; 4],
    pub kept: &'a [Kept],
    /// True if files that grew since the image was taken are cut back.
    pub restart: bool,
    /// Files are what they were already: others saw to that, who know of all ranks that have them open.
    pub files_put_back: bool,
    /// Lowest number not used by the program or the agent.
    pub above: i32,
}

impl<'a> Inherited<'a> {
    pub fn new(handoff: &'a Handoff, top: u32) -> Self {
        let kept = &handoff.kept[..(handoff.kept_count as usize).min(handoff.kept.len())];
        Self { attach: handoff.attach, kept, restart: handoff.mode == 0, files_put_back: false, above: top as i32 + 1 }
    }

    /// A stream of the daemon's.
    pub fn attached(&self, role: Role) -> Result<OwnedFd, Errno> {
        let fd = self.attach[role as usize];
        if fd >= 0 {
            // SAFETY: handed over by the restorer, open until all descriptors are placed.
            return high(&unsafe { BorrowedFd::borrow_raw(fd) }, self.above);
        }
        // Nobody holds the other end any more: nothing to read, and what is written is swallowed.
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }
}
