//! libmend-fi.so: agent and fabric as one shared object, preloaded into every rank.
//!
//! The dynamic linker runs the constructor before `main`; libfabric finds the same object in `FI_PROVIDER_PATH` and
//! calls `fi_prov_ini`.

mod network;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Not the program's malloc: the agent must be able to hold it still.
#[global_allocator]
static ALLOCATOR: mend_agent::RankAllocator = mend_agent::RankAllocator;

extern "C" fn construct() {
    // A panic must not cross into the dynamic linker; without an agent the program runs unprotected.
    let _ = std::panic::catch_unwind(|| mend_agent::start(&network::ProcessFabric, is_preloaded()));
}

/// Otherwise libfabric loads it: a wrapper of the program has cleared the variable.
fn is_preloaded() -> bool {
    let named = |list: OsString| list.as_bytes().split(|byte| b" :".contains(byte)).any(|path| path.ends_with(b"libmend-fi.so"));
    std::env::var_os("LD_PRELOAD").is_some_and(named)
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

/// `sched_yield(2)` for program and MPI library, as the C library's. An MPI library that calls it between two polls waits.
#[unsafe(no_mangle)]
pub extern "C" fn sched_yield() -> std::ffi::c_int {
    mend_fabric::gives_way();
    rustix::thread::sched_yield();
    0
}

/// A time step is done: what `mend_step` of app/step calls, if it finds this.
#[unsafe(no_mangle)]
pub extern "C" fn mend_fi_step(done: u64, total: u64) {
    mend_agent::step(done, total);
}

/// A call of libmend-data begins in a rank. It is waited for before an image is taken.
#[unsafe(no_mangle)]
pub extern "C" fn mend_fi_data_call_begins() {
    mend_agent::data_calls::begins();
}

/// It is over.
#[unsafe(no_mangle)]
pub extern "C" fn mend_fi_data_call_ends() {
    mend_agent::data_calls::ends();
}

/// Entry point of a libfabric provider (`fi_prov.h`).
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut mend_fabric_sys::FiProvider {
    mend_fabric::provider()
}
