//! `mend pipe`: this process becomes `mend-pipe`, which mounts the pipe and serves it.

use crate::failure::Failure;
use clap::{ArgGroup, Args, Subcommand};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

/// The program that serves a mount.
const PROGRAM: &str = "mend-pipe";

/// What `mend pipe` can do.
#[derive(Debug, Subcommand)]
pub enum PipeCommand {
    /// Mount the pipe on this node, and serve it until it is unmounted.
    Mount(Mount),
}

/// `mend pipe mount`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("side").required(true).args(["listen", "to"]))]
#[command(after_help = "\
Examples:
  mend pipe mount --listen /tmp/in &               on node b, where it is read
  mend pipe mount --to b /tmp/out &                on node a, where it is written, when it has said `ready`
  tar -C run7 -cf /tmp/out/run7.tar .              on a
  tar -C run7 -xf /tmp/in/run7.tar                 on b, while it is written

A file that is made in the writing mount is a stream: it appears in the reading mount under the same name, is read there once, in \
order, and is gone when it is read. Nothing is stored. Reads wait for what is not written yet; writes wait when memory is full \
(MEND_PIPE_MB). Closing a file that is written returns when all of it has come to the other node.

Both nodes need the same secret (a shared home directory is enough). What is sent is encrypted. Several writing mounts may send to one \
reading mount.

It runs until Ctrl-C, SIGTERM or an unmount, and says `ready` on standard output when the mount is there. It takes /dev/fuse open to you, \
and fusermount3 for who may not mount. The exit code is 69 if the other node cannot be reached, 64 for an address that makes no sense \
or a directory that is not empty, else 1.")]
pub struct Mount {
    /// Read here: wait for writing mounts, on this address and port. Default: all addresses, MEND_PIPE_PORT
    #[arg(long, value_name = "ADDRESS[:PORT]|PORT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub listen: Option<String>,
    /// Write here: what is written goes to the reading mount on this host
    #[arg(long, value_name = "HOST[:PORT]")]
    pub to: Option<String>,
    /// An empty directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Becomes the program `mend-pipe`, which mounts and serves.
///
/// # Errors
/// If that is not there.
pub fn run(PipeCommand::Mount(Mount { listen, to, directory }): PipeCommand) -> Result<i32, Failure> {
    let program = mend_settings::find_part(PROGRAM).ok_or_else(|| {
        Failure::new(format!("there is no {PROGRAM} beside mend"), "`make install` installs it; MEND_LIBDIR names another directory", 1)
    })?;
    let (side, place) = match (listen, to) {
        (_, Some(host)) => ("to", host),
        (address, None) => ("listen", address.unwrap_or_default()),
    };
    let error = std::process::Command::new(&program).args([side, &place]).arg(directory).exec();
    Err(Failure::new(format!("{} cannot be started: {error}", program.display()), "", 1))
}
