//! Files of data spaces that ranks wrote are put back by a process of `mend-space`: ranks alone see the mount.

use crate::targets::PROGRAM;
use mend_data::space::mounts::Mount;
use mend_messages::files::FileState;
use mend_transfer::TransferError;
use mend_transfer::pipeline::Target;
use std::io::{self, Read, Write};
use std::process::{ChildStdin, Command, Stdio};

/// The space that a path is in, as ranks see it, and the path there.
pub fn place<'a>(mounts: &'a [Mount], path: &'a str) -> Option<(&'a Mount, &'a str)> {
    let within = |mount: &'a Mount| Some((mount, path.strip_prefix(mount.directory.as_str())?.strip_prefix('/')?));
    mounts.iter().filter_map(within).max_by_key(|(mount, _)| mount.directory.len())
}

/// Bytes on their way to it.
pub struct Input(ChildStdin, u64);

impl Target for Input {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.0.write_all(bytes)?;
        self.1 += bytes.len() as u64;
        Ok(())
    }

    fn commit(self) -> Result<u64, TransferError> {
        Ok(self.1)
    }
}

/// Puts back a file: `part` is `content`, which `pour` gives, or `size`, or `nothing`, if it must be as it was, or `read`, if it was open for reading alone.
///
/// # Errors
/// Why it is not as it was.
pub fn put(place: (&Mount, &str), part: &str, state: &FileState, pour: impl FnOnce(Input) -> io::Result<()>) -> io::Result<()> {
    let program = mend_settings::find_part(PROGRAM).ok_or_else(|| io::Error::other(format!("there is no {PROGRAM} beside mendd")))?;
    let changed_ns = state.modified.0.saturating_mul(1_000_000_000).saturating_add(state.modified.1.into());
    // The job may want its data encrypted on its way, and speed does not matter here.
    let mut child = Command::new(program)
        .env(mend_settings::ENCRYPT_DATA.name, "on")
        .args(["restore", &place.0.space, place.1, part])
        .args([state.size.to_string(), state.mode.to_string(), changed_ns.to_string(), state.inode.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let poured = match child.stdin.take() {
        Some(input) => pour(Input(input, 0)),
        None => Ok(()),
    };
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut said)?;
    }
    let ended = child.wait()?;
    if ended.success() {
        return poured;
    }
    let why = said.trim_end().strip_prefix("refused ").unwrap_or("mend-space ended without saying why").to_owned();
    Err(io::Error::other(why))
}
