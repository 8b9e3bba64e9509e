//! What a program has open for a moment alone.
//!
//! The C library lists network interfaces over a netlink socket (`getifaddrs(3)`), and libfabric does so many times while
//! MPI starts. No image can hold such a socket, whose answer is under way; a moment later it is closed.

use crate::descriptors::attached::Attached;
use crate::descriptors::{DescriptorError, Descriptors, examine_all};
use std::time::{Duration, Instant};

/// How long something that passes is waited for. After that it is the program's.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long the program runs between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// Examines all descriptors while the program runs, as [`look_again`] does.
pub(crate) fn examine(attached: &Attached, own: &[i32], errors: &mut Vec<DescriptorError>) -> Descriptors {
    let (found, last) = look_again(|errors| examine_all(attached, own, errors));
    *errors = last;
    found
}

/// Looks while the program runs; again, as long as all that stands in the way is of that kind. What a look that is not the last
/// has returned is dropped before the pause: a program whose calls wait for what it holds would wait all the time.
pub(crate) fn look_again<T>(look: impl FnMut(&mut Vec<DescriptorError>) -> T) -> (T, Vec<DescriptorError>) {
    look_again_until(Instant::now() + PATIENCE, look, || std::thread::sleep(PAUSE))
}

fn look_again_until<T>(
    until: Instant,
    mut look: impl FnMut(&mut Vec<DescriptorError>) -> T,
    mut pause: impl FnMut(),
) -> (T, Vec<DescriptorError>) {
    loop {
        let mut errors = Vec::new();
        let found = look(&mut errors);
        if errors.is_empty() || !errors.iter().all(DescriptorError::passes) || Instant::now() >= until {
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
    fn nothing_is_held_between_two_looks() {
        let held = Rc::new(());
        let mut looks = 0;
        let look = |errors: &mut Vec<DescriptorError>| {
            looks += 1;
            if looks < 5 {
                errors.push(DescriptorError::Netlink { fd: 7 });
            }
            held.clone()
        };
        let mut pauses = 0;
        let pause = || {
            assert_eq!(Rc::strong_count(&held), 1);
            pauses += 1;
        };
        let (last, errors) = look_again_until(Instant::now() + Duration::from_secs(3600), look, pause);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!((looks, pauses, Rc::strong_count(&last)), (5, 4, 2));
    }

    #[test]
    fn what_stays_and_what_stayed_too_long_are_told_at_once() {
        for kind in [|| vec![DescriptorError::Netlink { fd: 7 }, stays()], || vec![DescriptorError::Netlink { fd: 7 }]] {
            let count = kind().len();
            // Late already, where nothing else ends it.
            let until = Instant::now() + if count == 2 { Duration::from_secs(3600) } else { Duration::ZERO };
            let ((), errors) = look_again_until(until, |errors| errors.extend(kind()), || panic!("it waits"));
            assert_eq!(errors.len(), count);
        }
    }
}
