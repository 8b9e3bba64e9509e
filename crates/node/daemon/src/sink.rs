//! Where agents write images that they cannot or must not open themselves: those that are to be encrypted, and those in
//! the node's `/dev/shm`, of which ranks have one of their own.
//!
//! ```text
//! agent ══ descriptor ══► a draft of the file ── keep(bytes) ─► fsync, rename ──► length
//! ```
//! Invariants: the file has its name only when the agent says that it is complete, it holds as many bytes as the agent
//! wrote, and it is durable; dropped before, nothing remains of it. Faults assumed: agents and disks fail at any moment.

use crate::draft::Draft;
use crate::sealing::Sealing;
use crate::shared_memory;
use mend_messages::agent::{SaveOrder, SaveTarget};
use mend_sealed::Key;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// See the module's head.
#[derive(Debug)]
pub enum Sink {
    /// A thread encrypts what comes.
    Sealed(Sealing),
    /// The agent writes into the file itself.
    Plain(Draft),
}

impl Sink {
    /// The order as the agent is to get it, and the descriptor and sink that go with it if it is not to open its file
    /// itself: it is to be encrypted with a key, or the agent would not find it.
    ///
    /// # Errors
    /// Those of making a file, socket or thread, with the file's name.
    pub fn for_order(order: SaveOrder, key: Option<Key>) -> io::Result<(SaveOrder, Option<(OwnedFd, Self)>)> {
        let SaveTarget::File(path) = &order.target else { return Ok((order, None)) };
        let (file, sink) = match key {
            Some(key) => {
                let (sealing, end) = Sealing::begin(path.clone(), key)?;
                (end, Self::Sealed(sealing))
            }
            None if shared_memory::hides(path) => {
                let draft = Draft::new(path.clone()).map_err(|error| named(path, "created", &error))?;
                (draft.file.try_clone()?.into(), Self::Plain(draft))
            }
            None => return Ok((order, None)),
        };
        Ok((SaveOrder { target: SaveTarget::Descriptor, ..order }, Some((file, sink))))
    }

    /// The agent has written `bytes`: makes the file durable and gives it its name. Returns its length, bytes.
    pub async fn keep(self, bytes: u64) -> Result<u64, String> {
        match self {
            Self::Sealed(sealing) => sealing.keep(bytes).await,
            Self::Plain(draft) => {
                let place = draft.place().to_owned();
                let publish = move || match draft.file.metadata()?.len() {
                    found if found == bytes => draft.publish(),
                    found => Err(fell_short(found, bytes)),
                };
                let published = tokio::task::spawn_blocking(publish).await.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
                published.map_err(|error| named(&place, "written", &error).to_string())
            }
        }
    }

    /// The agent could not write all: gives the file up, and tells what went wrong here, if that is why.
    pub async fn give_up(self) -> Option<String> {
        match self {
            Self::Sealed(sealing) => sealing.give_up().await,
            Self::Plain(_) => None,
        }
    }
}

/// Not all of it is there.
pub fn fell_short(found: u64, expected: u64) -> io::Error {
    io::Error::other(format!("{found} bytes came of {expected}"))
}

/// An error with the file's name, and what cannot be done to it.
pub fn named(path: &Path, done: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} cannot be {done}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Write;

    fn order(path: &Path) -> SaveOrder {
        SaveOrder::full(SaveTarget::File(path.to_owned()))
    }

    #[test]
    fn what_agents_find_themselves_is_left_to_them() {
        let path = std::env::temp_dir().join("rank-0.image");
        let (order, sink) = Sink::for_order(order(&path), None).unwrap();
        assert!(sink.is_none() && order.target == SaveTarget::File(path));
    }

    #[tokio::test]
    async fn in_shared_memory_a_file_is_there_when_it_is_whole() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let link = tempfile::tempdir().unwrap();
        let through = link.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &through).unwrap();
        for (base, said, kept) in [(directory.path(), 5, true), (directory.path(), 6, false), (&*through, 5, true)] {
            let path = base.join("rank-0.image");
            let _ = fs::remove_file(&path);
            let (order, sink) = Sink::for_order(order(&path), None).unwrap();
            assert_eq!(order.target, SaveTarget::Descriptor);
            let (file, sink) = sink.unwrap();
            File::from(file).write_all(b"image").unwrap();
            assert!(!path.exists());
            assert_eq!(sink.keep(said).await.is_ok(), kept);
            assert_eq!((path.exists(), fs::read_dir(directory.path()).unwrap().count()), (kept, usize::from(kept)));
        }
        let absent = directory.path().join("absent/rank-0.image");
        assert!(Sink::for_order(order(&absent), None).unwrap_err().to_string().contains("cannot be created"));
    }
}
