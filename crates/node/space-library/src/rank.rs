//! In a rank under `mend run` the agent is told of each call, and takes no image before it is over.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

/// What the agent offers, if this is a rank.
#[derive(Clone, Copy)]
struct Agent {
    begins: extern "C" fn(),
    ends: extern "C" fn(),
}

/// A call in progress.
pub struct Call(Option<Agent>);

fn look(name: &CStr) -> Option<extern "C" fn()> {
    // SAFETY: the name is a text; the whole program is looked through.
    let found: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: what has this name takes nothing and gives nothing (libmend-fi.so).
    (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, extern "C" fn()>(found) })
}

impl Call {
    /// Waits while an image is taken.
    pub fn begin() -> Self {
        static AGENT: OnceLock<Option<Agent>> = OnceLock::new();
        let agent =
            *AGENT.get_or_init(|| Some(Agent { begins: look(c"mend_fi_data_call_begins")?, ends: look(c"mend_fi_data_call_ends")? }));
        if let Some(agent) = agent {
            (agent.begins)();
        }
        Self(agent)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(agent) = self.0 {
            (agent.ends)();
        }
    }
}
