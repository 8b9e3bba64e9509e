//! Transient descriptors: what a program has open only for a moment.
//!
//! The C library lists network interfaces over a netlink socket (`getifaddrs(3)`), and libfabric does so many times while
//! MPI starts. No image can hold such a socket, whose answer is under way; a moment later it is closed.

use crate::descriptors::attached::Attached;
use crate::descriptors::{DescriptorError, Descriptors, examine_all};
use std::time::{Duration, Instant};

/// How long a transient descriptor is waited for. After that it counts as the program's.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// How long the program runs between two examinations.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Examines all descriptors while the program runs, as [`examine_again`] does.
pub(crate) fn examine(attached: &Attached, own: &[i32], errors: &mut Vec<DescriptorError>) -> Descriptors {
    let (found, last) = examine_again(|errors| examine_all(attached, own, errors));
    *errors = last;
    found
}

/// Examines while the program runs; again, as long as only transient descriptors stand in the way. What an examination that is not the
/// last has returned is dropped before the pause: a program whose calls wait for what it holds would wait all the time.
pub(crate) fn examine_again<T>(examine_once: impl FnMut(&mut Vec<DescriptorError>) -> T) -> (T, Vec<DescriptorError>) {
    examine_again_until(Instant::now() + WAIT_LIMIT, examine_once, || std::thread::sleep(RETRY_INTERVAL))
}

fn examine_again_until<T>(
    until: Instant,
    mut examine_once: impl FnMut(&mut Vec<DescriptorError>) -> T,
    mut pause: impl FnMut(),
) -> (T, Vec<DescriptorError>) {
    loop {
        let mut errors = Vec::new();
        let found = examine_once(&mut errors);
        if errors.is_empty() || !errors.iter().all(DescriptorError::is_transient) || Instant::now() >= until {
            return (found, errors);
        }
        drop(found);
        pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn stays() -> DescriptorError {
        DescriptorError::List(std::io::Error::other("unreadable"))
    }

    #[test]
    fn nothing_is_held_between_two_examinations() {
        let held = Rc::new(());
        let mut examinations = 0;
        let examine_once = |errors: &mut Vec<DescriptorError>| {
            examinations += 1;
            if examinations < 5 {
                errors.push(DescriptorError::Netlink { fd: 7 });
            }
            held.clone()
        };
        let mut pauses = 0;
        let pause = || {
            assert_eq!(Rc::strong_count(&held), 1);
            pauses += 1;
        };
        let (last, errors) = examine_again_until(Instant::now() + Duration::from_secs(3600), examine_once, pause);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!((examinations, pauses, Rc::strong_count(&last)), (5, 4, 2));
    }

    #[test]
    fn what_stays_and_what_stayed_too_long_are_told_at_once() {
        let closing = || DescriptorError::Examine { fd: 1, source: std::io::ErrorKind::NotFound.into() };
        assert!(!closing().is_transient(), "only what the kernel says counts");
        assert!(DescriptorError::Examine { fd: 1, source: std::io::Error::from_raw_os_error(libc::ENOENT) }.is_transient());
        for kind in [|| vec![DescriptorError::Netlink { fd: 7 }, stays()], || vec![DescriptorError::Netlink { fd: 7 }]] {
            let count = kind().len();
            // Late already, where nothing else ends it.
            let until = Instant::now() + if count == 2 { Duration::from_secs(3600) } else { Duration::ZERO };
            let ((), errors) = examine_again_until(until, |errors| errors.extend(kind()), || panic!("it waits"));
            assert_eq!(errors.len(), count);
        }
    }
}
