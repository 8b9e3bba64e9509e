//! The descriptors that the rank supervisor gives: moved out of the way of the image's, everything else closed.

use crate::report::{or_fail, set_control};
use mend_image::launch::{Arguments, ImageFds};
use mend_image::link::MAX_CHAIN;
use mend_restore::sys;

/// Lets descriptors have as high numbers, and as much memory be pinned, as the process may at all.
pub fn raise_limits() {
    const RLIMIT_NOFILE: usize = 7;
    const RLIMIT_MEMLOCK: usize = 8;
    for resource in [RLIMIT_NOFILE, RLIMIT_MEMLOCK] {
        let mut limit = [0u64; 2];
        // SAFETY: writes, then reads two words.
        unsafe {
            if sys::call(sys::PRLIMIT, [0, resource, 0, limit.as_mut_ptr() as usize, 0, 0]).is_ok() {
                limit[0] = limit[1];
                let _ = sys::call(sys::PRLIMIT, [0, resource, limit.as_ptr() as usize, 0, 0, 0]);
            }
        }
    }
}

/// Moves all inherited descriptors above `top` and closes the rest.
pub fn move_above(arguments: Arguments, top: u32) -> Arguments {
    let [a0, a1, a2, a3] = arguments.attach;
    let before = [Some(arguments.control_fd), Some(arguments.agent_fd), a0, a1, a2, a3].into_iter();
    let mut after = [-1i32; 6 + MAX_CHAIN];
    for (old, new) in before.chain(arguments.images.all().iter().map(|fd| Some(*fd))).zip(&mut after) {
        let Some(old) = old else { continue };
        *new = or_fail(sys::duplicate_above(old as usize, top)) as i32;
    }
    set_control(after[0]);
    // Close the gaps between the kept ones.
    let mut from = 0;
    loop {
        let next = after.iter().copied().filter(|fd| *fd >= from).min();
        let until = next.map_or(u32::MAX as usize, |fd| fd as usize);
        if until > from as usize {
            // SAFETY: closes what nobody here uses.
            let _ = unsafe { sys::call(sys::CLOSE_RANGE, [from as usize, if next.is_some() { until - 1 } else { until }, 0, 0, 0, 0]) };
        }
        match next {
            Some(fd) => from = fd + 1,
            None => break,
        }
    }
    let given = |fd: i32| (fd >= 0).then_some(fd);
    Arguments {
        images: ImageFds::collect(after[6..].iter().copied().filter(|fd| *fd >= 0)).unwrap_or(arguments.images),
        control_fd: after[0],
        agent_fd: after[1],
        attach: [given(after[2]), given(after[3]), given(after[4]), given(after[5])],
        mode: arguments.mode,
        put_back: arguments.put_back,
        in_place: arguments.in_place,
    }
}
