//! Which descriptors share an open file description.
//!
//! kcmp(2) puts any two descriptions into an order, so that each new descriptor is looked up among those known by halving, not compared with
//! all. Where a container forbids kcmp(2), descriptors that look alike are told apart by a flag that belongs to the description.

use super::table::take;
use mend_freestanding::{check, syscall};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Descriptions by what descriptors lead to.
#[derive(Default)]
pub(super) struct Known {
    /// In the kernel's order: a descriptor's number, and the description's index.
    by_link: HashMap<String, Vec<(i32, usize)>>,
    /// Where the kernel does not compare: also by what fdinfo says.
    by_info: HashMap<(String, String), Vec<(i32, usize)>>,
    /// The program stands still, and does not notice if a flag changes for a moment.
    still: bool,
}

impl Known {
    /// None yet. `still`: the program's threads are parked.
    pub fn new(still: bool) -> Self {
        Self { still, ..Self::default() }
    }

    /// The description of descriptor `fd`; `new` gives the index of one that is not known yet. `link` is what `/proc/PID/fd` says, `info` what fdinfo
    /// does.
    pub fn find(&mut self, fd: i32, link: String, info: String, new: impl FnOnce() -> usize) -> usize {
        let same = self.by_link.entry(link.clone()).or_default();
        let (mut low, mut high) = (0, same.len());
        while low < high {
            let middle = (low + high) / 2;
            match compare(same[middle].0, fd) {
                Some(Ordering::Equal) => return same[middle].1,
                Some(Ordering::Less) => low = middle + 1,
                Some(Ordering::Greater) => high = middle,
                // One of them was closed just now, or the kernel does not say.
                None => return self.find_alike(fd, link, info, new),
            }
        }
        let index = new();
        same.insert(low, (fd, index));
        self.alike(link, info).push((fd, index));
        index
    }

    /// Those known that look the same.
    fn alike(&mut self, link: String, info: String) -> &mut Vec<(i32, usize)> {
        // Time goes on: no two looks at a timer tell the same.
        let info = if self.still && link == "anon_inode:[timerfd]" { String::new() } else { info };
        self.by_info.entry((link, info)).or_default()
    }

    /// The same without the kernel's order.
    fn find_alike(&mut self, fd: i32, link: String, info: String, new: impl FnOnce() -> usize) -> usize {
        let still = self.still;
        let alike = self.alike(link, info);
        if let Some((_, index)) = alike.iter().find(|(known, _)| !still || share_flags(*known, fd)) {
            return *index;
        }
        let index = new();
        alike.push((fd, index));
        index
    }
}

/// Whether what changes for one of these descriptors changes for the other. It is changed back at once.
fn share_flags(one: i32, other: i32) -> bool {
    let (Ok(one), Ok(other)) = (take(one), take(other)) else { return false };
    let (Ok(before), Ok(same)) = (fcntl_getfl(&one), fcntl_getfl(&other)) else { return false };
    // What cannot be changed (`O_PATH`) is nobody's state.
    if before != same || fcntl_setfl(&one, before ^ OFlags::NONBLOCK).is_err() {
        return before == same;
    }
    let shared = fcntl_getfl(&other).is_ok_and(|now| now != same);
    let _ = fcntl_setfl(&one, before);
    shared
}

/// The order of two descriptions; `None` if the kernel does not say.
fn compare(one: i32, other: i32) -> Option<Ordering> {
    let process = std::process::id() as usize;
    // SAFETY: KCMP_FILE (0) compares two descriptors of this process.
    match check(unsafe { syscall(libc::SYS_kcmp, [process, process, 0, one as usize, other as usize, 0]) }) {
        Ok(0) => Some(Ordering::Equal),
        Ok(1) => Some(Ordering::Less),
        Ok(2) => Some(Ordering::Greater),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn descriptions_are_told_apart_by_the_kernels_order() {
        let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let twins: Vec<_> = files.iter().map(|file| file.try_clone().unwrap()).collect();
        let (mut known, mut count) = (Known::default(), 0);
        let mut find = |file: &std::fs::File| {
            known.find(file.as_raw_fd(), "/dev/null".into(), "pos: 0".into(), || {
                count += 1;
                count - 1
            })
        };
        let first: Vec<usize> = files.iter().map(&mut find).collect();
        let second: Vec<usize> = twins.iter().map(&mut find).collect();
        assert_eq!((first, second), ((0..50).collect(), (0..50).collect()));
    }

    #[test]
    fn descriptions_that_look_alike_are_told_apart_without_the_kernels_order() {
        let files: Vec<_> = (0..5).map(|_| std::fs::File::open("/dev/zero").unwrap()).collect();
        let twins: Vec<_> = files.iter().map(|file| file.try_clone().unwrap()).collect();
        let find = |known: &mut Known, file: &std::fs::File, index| {
            let index = known.find_alike(file.as_raw_fd(), "/dev/zero".into(), "pos: 0".into(), || index);
            assert!(!fcntl_getfl(file).unwrap().contains(OFlags::NONBLOCK));
            index
        };
        let mut known = Known::new(true);
        for all in [&files, &twins] {
            let found: Vec<usize> = all.iter().enumerate().map(|(index, file)| find(&mut known, file, index)).collect();
            assert_eq!(found, (0..5).collect::<Vec<_>>());
        }
        // One that runs could notice.
        let mut known = Known::new(false);
        assert!(files.iter().all(|file| find(&mut known, file, 0) == 0));
    }
}
