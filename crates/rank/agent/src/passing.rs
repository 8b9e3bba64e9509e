//! What a program has open for a moment alone.
//!
//! The C library lists network interfaces over a netlink socket (`getifaddrs(3)`), and libfabric does so many times while
//! MPI starts. No image can hold such a socket, whose answer is under way; a moment later it is closed.

use crate::attached::Attached;
use crate::descriptors::{DescriptorError, Descriptors, examine_all};
use std::time::{Duration, Instant};

/// How long something that passes is waited for. After that it is the program's.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long the program runs between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// Examines everything while the program runs; again, as long as all that stands in the way is of that kind.
pub(crate) fn examine(attached: &Attached, own: &[i32], errors: &mut Vec<DescriptorError>) -> Descriptors {
    let until = Instant::now() + PATIENCE;
    loop {
        errors.clear();
        let found = examine_all(attached, own, errors);
        if errors.is_empty() || !errors.iter().all(DescriptorError::passes) || Instant::now() >= until {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
}
