//! Writes what ranks print to standard output and standard error, and waits there until a full disk has room.

use crate::spool::is_full;
use mend_messages::daemon::Stream;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two tries to print where a disk is full.
const ROOM_PAUSE: Duration = Duration::from_millis(500);
/// So many are made when the job is over. Then what is left is lost.
const LAST_TRIES: u32 = 10;

/// Waits until a full disk has room for what is printed.
#[derive(Debug, Default)]
pub(crate) struct FullDiskWait {
    /// The user knows.
    told: bool,
    /// The job is over.
    over: Arc<AtomicBool>,
    last_tries: u32,
    /// Streams of which something is lost.
    lost: [bool; 2],
    /// Streams that have refused something; what follows is written all the same.
    refused: [bool; 2],
}

impl FullDiskWait {
    /// What says that the job is over.
    pub(crate) fn over(&self) -> Arc<AtomicBool> {
        self.over.clone()
    }

    /// Whether something is lost, or was refused.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.contains(&true) || self.refused.contains(&true)
    }

    /// A stream did not take something, and not for want of room. A reader or terminal that went away (`| head`) wants no more: that is no loss.
    pub(crate) fn refuse(&mut self, stream: Stream, error: &io::Error) {
        let is_gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
            || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) && is_terminal(stream);
        if is_gone || is_full(error) || std::mem::replace(&mut self.refused[stream as usize], true) {
            return;
        }
        mend_report::tell!("mend: {} cannot be written, and some of what ranks print is missing there: {error}", named(stream));
    }

    /// Whether something of this stream is.
    pub(crate) fn has_lost_of(&self, stream: Stream) -> bool {
        self.lost[stream as usize]
    }

    pub(crate) fn lose(&mut self, stream: Stream) {
        self.lost[stream as usize] = true;
    }

    /// Whether it is tried again.
    fn wait(&mut self, stream: Stream, error: &io::Error) -> bool {
        if !std::mem::replace(&mut self.told, true) {
            let stream = named(stream);
            mend_report::tell!(
                "mend: {stream} cannot be written ({error}): mend keeps what ranks print until there is room, and ranks that print more wait"
            );
        }
        self.last_tries += u32::from(self.over.load(Ordering::Relaxed));
        let again = self.last_tries < LAST_TRIES;
        if again {
            std::thread::sleep(ROOM_PAUSE);
        } else {
            mend_report::tell!("mend: the end of {} is lost: {error}", named(stream));
            self.lose(stream);
        }
        again
    }
}

/// Whether a stream is a terminal, also one that is gone (isatty(3) tells of those that are there).
fn is_terminal(stream: Stream) -> bool {
    let found = match stream {
        Stream::Stdout => rustix::fs::fstat(rustix::stdio::stdout()),
        Stream::Stderr => rustix::fs::fstat(rustix::stdio::stderr()),
    };
    found.is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::CharacterDevice)
}

/// As people know it.
pub(crate) fn named(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "standard output",
        Stream::Stderr => "standard error",
    }
}

/// Writes all of it, in one piece where that can be.
pub(crate) fn show(stream: Stream, text: &[u8], room: &mut FullDiskWait) -> io::Result<()> {
    match stream {
        Stream::Stdout => {
            let mut out = std::io::stdout().lock();
            // Not through its buffer, which would be written in two parts.
            out.flush().and_then(|()| write_all(rustix::stdio::stdout(), text, |error| room.wait(stream, error)))
        }
        Stream::Stderr => write_all(rustix::stdio::stderr(), text, |error| room.wait(stream, error)),
    }
}

/// `wait_for_room`: whether it is tried again where the disk is full.
fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8], mut wait_for_room: impl FnMut(&io::Error) -> bool) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                // Somebody shares it who does not want to wait.
                rustix::event::poll(&mut [rustix::event::PollFd::new(&file, rustix::event::PollFlags::OUT)], None)?;
            }
            Err(error) => {
                let error = io::Error::from(error);
                if !is_full(&error) || !wait_for_room(&error) {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_refused_is_a_loss_and_a_reader_that_went_away_is_none() {
        let mut room = FullDiskWait::default();
        room.refuse(Stream::Stdout, &io::ErrorKind::BrokenPipe.into());
        assert!(!room.has_lost());
        room.refuse(Stream::Stdout, &io::Error::from(rustix::io::Errno::STALE));
        // What follows is written.
        assert!(room.has_lost() && !room.has_lost_of(Stream::Stdout));
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_written_when_there_is_room() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut tries = 0;
        let refused = write_all(full.as_fd(), b"text", |_| {
            tries += 1;
            tries < 3
        });
        assert!(refused.is_err_and(|error| is_full(&error)));
        assert_eq!(tries, 3);
        // There is room.
        let place = tempfile::tempdir().unwrap();
        let there = std::fs::File::create(place.path().join("file")).unwrap();
        write_all(there.as_fd(), b"text", |_| false).unwrap();
        assert_eq!(std::fs::read(place.path().join("file")).unwrap(), b"text");
        // At the job's end it is not waited for ever.
        let mut room = FullDiskWait { over: Arc::new(AtomicBool::new(true)), last_tries: LAST_TRIES - 1, ..FullDiskWait::default() };
        assert!(!room.wait(Stream::Stdout, &io::ErrorKind::StorageFull.into()));
        assert!(room.has_lost() && !room.has_lost_of(Stream::Stderr));
        // While it goes on, it is.
        let mut room = FullDiskWait { last_tries: LAST_TRIES - 1, ..FullDiskWait::default() };
        assert!(room.wait(Stream::Stdout, &io::ErrorKind::StorageFull.into()));
    }
}
