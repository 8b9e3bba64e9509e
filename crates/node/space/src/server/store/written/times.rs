//! When objects were changed: as their clients say, so that all copies tell the same, whichever node they are on. Who loses one of them finds the file as it was.

use super::Opened;
use crate::server::store::{Failure, Store};
use mend_data::space::Id;
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, futimens};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;

/// A time that is ahead by less is another writer's. What is further ahead was said by somebody, as `touch` does, and the next write ends it.
const AT_ONCE: i64 = 10_000_000_000;

/// Says when an object was changed, nanoseconds since 1970.
pub(super) fn set_changed(object: &File, changed_ns: i64) -> io::Result<()> {
    let time = Timespec { tv_sec: changed_ns.div_euclid(1_000_000_000), tv_nsec: changed_ns.rem_euclid(1_000_000_000) };
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Ok(futimens(object, &Timestamps { last_access, last_modification: time })?)
}

/// When an object was changed, nanoseconds since 1970.
pub(super) fn changed(about: &Metadata) -> i64 {
    about.mtime().saturating_mul(1_000_000_000).saturating_add(about.mtime_nsec())
}

impl Opened {
    /// It was written since it was opened here, at this time. Of writers at once the latest time counts, but who reads must see that the time is another one: copies that took these writes in another order
    /// tell times that differ by nanoseconds.
    pub fn written_at(&self, changed_ns: i64) -> io::Result<()> {
        let is_later = (0..AT_ONCE).contains(&self.changed_ns.saturating_sub(changed_ns));
        set_changed(&self.bytes, if is_later { self.changed_ns.saturating_add(1) } else { changed_ns })
    }

    /// What it got since it was opened here changes nothing of it.
    pub fn stays_as_it_was(&self) -> io::Result<()> {
        set_changed(&self.bytes, self.changed_ns)
    }
}

impl Store {
    /// A file was changed at this time, its owner says.
    pub(in crate::server::store) fn stamp(&self, file: &Id, changed_ns: i64) -> Result<(), Failure> {
        let known = self.written(file, None)?;
        for position in 0..known.objects.len() as u16 {
            if let Ok(object) = OpenOptions::new().write(true).open(self.path(file, position)) {
                set_changed(&object, changed_ns)?;
            }
        }
        Ok(())
    }
}
