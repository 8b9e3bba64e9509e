//! Mounts of data spaces in a rank's mount namespace.
//!
//! The mount is made here, where it belongs, and its descriptor goes to the process that serves it. What the rank reads waits until that has it; should it be gone, the
//! rank gets ENOTCONN. The kernel takes a mount down with the last process of the namespace.

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, mount};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{getegid, geteuid};
use std::ffi::CString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Largest read that the kernel asks for, bytes (the serving process agrees to the same).
const MAX_READ: u32 = 1 << 20;

/// Mounts a file system in a directory. `server` takes its descriptor, and
/// whether the rank may write, and whose mount it is ([`mend_data::patterns::Who`]).
pub fn mount_space(directory: &Path, writable: bool, server: &OwnedFd, whose: &[u8]) -> io::Result<()> {
    let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // The root's mode is what its server says later; the kernel only wants the type (fuse(4)).
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={MAX_READ}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw()
    );
    let options = CString::new(options).map_err(io::Error::other)?;
    let how = if writable { MountFlags::empty() } else { MountFlags::RDONLY };
    mount("mend", directory, "fuse.mend", how | MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))?;
    let given = [device.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&given));
    let writable = [u8::from(writable)];
    sendmsg(server, &[IoSlice::new(&writable), IoSlice::new(whose)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
