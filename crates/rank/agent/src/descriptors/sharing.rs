//! Which descriptors share an open file description.
//!
//! kcmp(2) puts any two descriptions into an order, so that each new descriptor is looked up among those known by halving, not compared with
//! all.

use mend_freestanding::{check, syscall};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Descriptions by what descriptors lead to.
#[derive(Default)]
pub(super) struct Known {
    /// In the kernel's order: a descriptor's number, and the description's index.
    by_link: HashMap<String, Vec<(i32, usize)>>,
    /// Where the kernel does not compare: also by what fdinfo says.
    by_info: HashMap<(String, String), usize>,
}

impl Known {
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
                None => return *self.by_info.entry((link, info)).or_insert_with(new),
            }
        }
        let index = new();
        same.insert(low, (fd, index));
        self.by_info.insert((link, info), index);
        index
    }
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
}
