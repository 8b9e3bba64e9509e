//! Open directories: what is listed of one is what was in it when the listing began.
//!
//! The kernel asks for some names at a time, and says how many it has. Programs remove what they have read before they ask on, so the rest must not move up. A rank that was moved or
//! started anew meanwhile has another handle, and asks on: it gets what is behind that place now.

use fuser::FileType;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number, kind and name of what is in a directory.
pub(super) type Listed = (u64, FileType, String);

/// What was listed, by handles.
#[derive(Debug, Default)]
pub(super) struct Listings(Mutex<HashMap<u64, Open>>);

/// An open directory.
#[derive(Debug)]
struct Open {
    mount: u64,
    listed: Option<Arc<[Listed]>>,
}

impl Listings {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A directory was opened through a mount.
    pub fn open(&self, handle: u64, mount: u64) {
        self.all().insert(handle, Open { mount, listed: None });
    }

    /// What is in an open directory: as it is now if it is read from its beginning, or was not read yet, else as it was then.
    pub fn of(&self, handle: u64, begins: bool, list: impl FnOnce() -> Vec<Listed>) -> Arc<[Listed]> {
        let before = self.all().get(&handle).filter(|_| !begins).and_then(|open| open.listed.clone());
        if let Some(listed) = before {
            return listed;
        }
        let listed: Arc<[Listed]> = list().into();
        if let Some(open) = self.all().get_mut(&handle) {
            open.listed = Some(listed.clone());
        }
        listed
    }

    /// It was closed.
    pub fn close(&self, handle: u64) {
        self.all().remove(&handle);
    }

    /// A mount is gone, and with it who had directories open.
    pub fn close_all(&self, mount: u64) {
        self.all().retain(|_, open| open.mount != mount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn who_removes_what_was_read_sees_all_and_who_reads_again_what_is_left() {
        let listings = Listings::default();
        let mut there: BTreeSet<u64> = (0..300).collect();
        let list = |there: &BTreeSet<u64>| there.iter().map(|number| (*number, FileType::RegularFile, number.to_string())).collect();
        listings.open(7, 1);
        let mut seen = 0;
        loop {
            let some: Vec<Listed> = listings.of(7, seen == 0, || list(&there)).iter().skip(seen).take(40).cloned().collect();
            if some.is_empty() {
                break;
            }
            seen += some.len();
            some.iter().for_each(|(number, _, _)| assert!(there.remove(number)));
        }
        assert!(seen == 300 && there.is_empty());
        assert!(listings.of(7, true, || list(&there)).is_empty());
        listings.open(8, 2);
        let left = listings.of(8, false, || list(&(0..9).collect()));
        assert_eq!((left.len(), left[7].2.as_str()), (9, "7"), "a rank that was moved goes on where it was");
        listings.close_all(1);
        listings.close(8);
        assert!(listings.all().is_empty());
    }
}
