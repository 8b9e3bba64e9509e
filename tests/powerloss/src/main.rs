//! mend-powerloss DIRECTORY: mounts an empty disk there and obeys its standard input, a line an order, a line an answer.
//!
//! ```text
//! count                      how many operations changed something or made it durable
//! space BYTES                the disk's size
//! fail KIND AFTER ERRNO      the operation of this kind (write, sync, name) after so many others fails with this number
//! short BYTES                no write takes more; 0: writes are whole
//! lie                        fsync does nothing and says that it did
//! cut AFTER                  the power fails after so many further operations: from then on all is EIO
//! dead                       "yes" once it has
//! restore SEED               unmounts; what survived is mounted in the same place
//! heal                       faults that were ordered are forgotten
//! ```
//! The end of the input unmounts. Exit code 77 if nothing can be mounted here (no /dev/fuse, no right to it).

use fuser::BackgroundSession;
use mend_powerloss::disk::Disk;
use mend_powerloss::faults::{Failing, Faults, Kind};
use mend_powerloss::mount::Shared;
use mend_powerloss::survival::survive;
use rustix::io::Errno;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const CAPACITY_BYTES: u64 = 4 << 30;
/// Exit code of a test that cannot be run here, as automake has it.
const SKIPPED_EXIT_CODE: u8 = 77;

fn main() -> ExitCode {
    let Some(place) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: mend-powerloss DIRECTORY");
        return ExitCode::from(2);
    };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let shared = Shared::new(Disk::new(owner, CAPACITY_BYTES));
    let mounted = match shared.mount(&place) {
        Ok(mounted) => mounted,
        Err(error) => {
            eprintln!("mend-powerloss: cannot mount: {error}");
            return ExitCode::from(SKIPPED_EXIT_CODE);
        }
    };
    println!("mounted");
    match obey(&shared, &place, mounted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mend-powerloss: {error}");
            ExitCode::FAILURE
        }
    }
}

fn obey(shared: &Shared, place: &Path, mounted: BackgroundSession) -> std::io::Result<()> {
    let mut mounted = Some(mounted);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["restore", seed] => match seed.parse() {
                Ok(seed) => {
                    if let Some(old) = mounted.take() {
                        unmount(old, place)?;
                    }
                    let mut state = shared.lock();
                    state.disk = survive(&state.disk, seed);
                    state.faults = Faults::default();
                    drop(state);
                    mounted = Some(shared.mount(place)?);
                    Some("mounted".to_owned())
                }
                Err(_) => None,
            },
            _ => order(shared, &words),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", answer.as_deref().unwrap_or("what?"))?;
        out.flush()?;
    }
    match mounted {
        Some(mounted) => unmount(mounted, place),
        None => Ok(()),
    }
}

/// Carries out an order that needs no unmounting; `None` if it is not one.
fn order(shared: &Shared, words: &[&str]) -> Option<String> {
    let mut state = shared.lock();
    match *words {
        ["count"] => return Some(state.faults.counted().to_string()),
        ["dead"] => return Some(if state.faults.dead() { "yes" } else { "no" }.to_owned()),
        ["heal"] => state.faults = Faults::default(),
        ["lie"] => state.faults.lie = true,
        ["space", bytes] => state.disk.capacity = bytes.parse().ok()?,
        ["short", bytes] => state.faults.short = bytes.parse().ok()?,
        ["cut", after] => state.faults.cut_after(after.parse().ok()?),
        ["fail", kind, after, errno] => {
            let errno = Errno::from_raw_os_error(errno.parse().ok()?);
            state.faults.fail(Failing { kind: Kind::from_word(kind)?, after: after.parse().ok()?, errno });
        }
        _ => return None,
    }
    Some("ok".to_owned())
}

/// Unmounts, when the last process that has something open there has gone. The session is not joined: a mount namespace that was
/// made meanwhile (a lab's) has a copy of the mount, perhaps for long, and the session lasts until that is gone, too.
fn unmount(session: BackgroundSession, place: &Path) -> std::io::Result<()> {
    loop {
        match rustix::mount::unmount(place, rustix::mount::UnmountFlags::empty()) {
            Ok(()) => break,
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.into()),
        }
    }
    // Dropped, it would unmount once more what may be there by then.
    std::mem::forget(session);
    Ok(())
}
