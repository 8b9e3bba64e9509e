//! Reads this process's standard input: piece by piece, never while a terminal is others', and so that nothing is lost when whoever waits for a piece goes.

use crate::input_file::{Kind, kind};
use mend_job::input::Mark;
use mend_kernel::threads::block_signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use std::io;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longest piece: at most `PIPE_BUF` (pipe(7)), so that it is in the pipe, and in an image of the rank, completely or not at all.
pub(crate) const MAX_PIECE_BYTES: usize = 4096;
/// Between two looks at who has the terminal.
const FOREGROUND_INTERVAL: Duration = Duration::from_millis(200);

/// Whether the next bytes of standard input are those that were read from one place to another. Reads them.
pub(crate) fn are_alike(from: Mark, to: Mark) -> io::Result<bool> {
    let (mut found, mut bytes) = (from, vec![0; 1 << 16]);
    while found.at < to.at {
        let most = bytes.len().min((to.at - found.at) as usize);
        match read_waiting(&mut bytes[..most])? {
            0 => break,
            length => found = found.after(&bytes[..length]),
        }
    }
    Ok(found.agrees(to))
}

/// Bytes of standard input that were taken to be compared.
pub(crate) struct Taken {
    /// The bytes are those from here on.
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    /// Where as much of standard input stands as was wanted.
    pub(crate) found: Mark,
}

/// Takes what standard input has up to a mark, and what comes with its last piece; if the former is more than `most` bytes, the latter alone is there then.
pub(crate) async fn take(to: Mark, most: u64) -> Taken {
    let mut taken = Taken { base: 0, bytes: Vec::new(), found: Mark::default() };
    while taken.found.at < to.at {
        let piece = read_piece().await;
        if piece.is_empty() {
            break;
        }
        let wanted = piece.len().min((to.at - taken.found.at) as usize);
        taken.found = taken.found.after(&piece[..wanted]);
        if to.at > most {
            (taken.base, taken.bytes) = (taken.found.at, piece[wanted..].to_vec());
        } else {
            taken.bytes.extend_from_slice(&piece);
        }
    }
    taken
}

/// The read of standard input that is under way. It outlives who waits for it: the job's next life gets what it brings.
static READING: tokio::sync::Mutex<Option<JoinHandle<Vec<u8>>>> = tokio::sync::Mutex::const_new(None);

/// The next bytes of standard input; none at its end. Cancel safe.
pub(crate) async fn read_piece() -> Vec<u8> {
    if matches!(kind(), Kind::Regular) {
        // At once, so that none is under way when another life goes back in the file.
        return read_now();
    }
    let mut reading = READING.lock().await;
    let task = reading.get_or_insert_with(|| tokio::task::spawn_blocking(read_now));
    let bytes = task.await.unwrap_or_default();
    *reading = None;
    bytes
}

/// Whether standard input is this process's terminal, and another group of processes has it (`mend run … &`): who reads it then is stopped.
fn is_in_background() -> bool {
    rustix::termios::tcgetpgrp(rustix::stdio::stdin()).is_ok_and(|group| group != rustix::process::getpgrp())
}

/// Reads a piece. What cannot be read is its end, and that is told.
fn read_now() -> Vec<u8> {
    let mut piece = vec![0; MAX_PIECE_BYTES];
    let length = read_waiting(&mut piece).unwrap_or_else(|error| {
        mend_report::tell!("mend: standard input cannot be read, and ends there for the job: {error}");
        0
    });
    piece.truncate(length);
    piece
}

/// Reads some bytes of standard input; waits until there are any, and as long as the terminal is others'.
fn read_waiting(into: &mut [u8]) -> io::Result<usize> {
    // A read that is under way when the terminal goes to others fails with this signal blocked, and else stops all of this process.
    let before = block_signals(1 << (Signal::TTIN.as_raw() - 1));
    let read = read_in_foreground(into);
    block_signals(before);
    read
}

fn read_in_foreground(into: &mut [u8]) -> io::Result<usize> {
    loop {
        if is_in_background() {
            std::thread::sleep(FOREGROUND_INTERVAL);
            continue;
        }
        match rustix::io::read(rustix::stdio::stdin(), &mut *into) {
            Ok(length) => return Ok(length),
            Err(Errno::INTR) => {}
            Err(Errno::IO) if is_in_background() => {}
            // Somebody shares it who does not want to wait.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&rustix::stdio::stdin(), PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
}
