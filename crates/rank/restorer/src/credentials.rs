//! What the rank's threads are allowed: the capabilities that the saved process had, no more.
//!
//! All threads share one set of credentials, as the threads of a program do that nobody saved. The kernel takes commands for RDMA
//! from those threads alone that have the very credentials with which the device was opened (`ib_safe_file_access`: a comparison of
//! pointers), and whoever changes its own has others from then on, though they be equal. So the first thread joins a session keyring
//! and gives capabilities up, and the others inherit what it has then.

use mend_restore::sys;

const VERSION: u32 = 0x2008_0522; // _LINUX_CAPABILITY_VERSION_3
const PR_CAP_AMBIENT: usize = 47;
const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
const SYS_ADMIN: u64 = 1 << 21;
const CHECKPOINT_RESTORE: u64 = 1 << 40;

/// Joins the user's session keyring, unless the calling thread has a session keyring: the kernel lets a thread without one join it when
/// somebody asks for it (keyctl(2)), as the agent does of each thread, and the thread would have credentials of its own from then on.
pub fn join_session_keyring() {
    const GET_KEYRING_ID: usize = 0; // KEYCTL_GET_KEYRING_ID
    const SESSION: usize = -3isize as usize; // KEY_SPEC_SESSION_KEYRING
    // SAFETY: takes numbers. Where keys are not to be had, none is ever joined.
    let _ = unsafe { sys::call(sys::KEYCTL, [GET_KEYRING_ID, SESSION, 0, 0, 0, 0]) };
}

/// Keeps only capabilities that the saved process had: effective, permitted, inheritable. For the calling thread.
pub fn give_up(saved: [u64; 3]) {
    let Some(now) = current() else { return };
    // SAFETY: takes numbers.
    let _ = unsafe { sys::call(sys::PRCTL, [PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0]) };
    let header = [VERSION, 0]; // this thread
    let mut data = [0u32; 6];
    for (kind, (now, saved)) in now.into_iter().zip(saved).enumerate() {
        data[kind] = (now & saved) as u32;
        data[kind + 3] = ((now & saved) >> 32) as u32;
    }
    // SAFETY: capset reads two structs of three words.
    let _ = unsafe { sys::call(sys::CAPSET, [header.as_ptr() as usize, data.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// True if threads can be given their ids by whoever has given up what the saved process had not.
pub fn enough(saved: [u64; 3]) -> bool {
    current().is_some_and(|now| now[0] & saved[0] & (SYS_ADMIN | CHECKPOINT_RESTORE) != 0)
}

fn current() -> Option<[u64; 3]> {
    let header = [VERSION, 0];
    let mut data = [0u32; 6];
    // SAFETY: capget writes two structs of three words.
    unsafe { sys::call(sys::CAPGET, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    Some([0, 1, 2].map(|kind| u64::from(data[kind]) | u64::from(data[kind + 3]) << 32))
}
