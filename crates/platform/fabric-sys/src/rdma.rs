//! The RDMA devices that librdmacm keeps open, and that it leaves open when it is unloaded.
//!
//! librdmacm (rdma-core 44 to 64, `librdmacm/cma.c`) opens each device once and has no function, nor a destructor, that closes
//! it. What it has open it tells, though (`rdma_get_devices(3)`), and once it is unloaded nobody else knows of it.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::ptr::null_mut;

const MANAGER: &CStr = c"librdmacm.so.1";
const VERBS: &CStr = c"libibverbs.so.1";
const DEVICES: &str = "/dev/infiniband/uverbs";
/// More than a node has.
const MAX_DEVICES: usize = 1024;

/// A namespace's librdmacm, held until [`Held::close`].
pub(crate) struct Held {
    namespace: c_long,
    manager: *mut c_void,
    verbs: *mut c_void,
}

impl Held {
    /// `None` if the namespace has none, or this process has no device open.
    pub(crate) fn new(namespace: c_long) -> Option<Self> {
        let entries = std::fs::read_dir("/proc/self/fd").ok()?;
        let mut links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.any(|link| link.to_string_lossy().starts_with(DEVICES)).then_some(())?;
        let (manager, verbs) = (resident(namespace, MANAGER), resident(namespace, VERBS));
        let held = Self { namespace, manager, verbs };
        if manager.is_null() || verbs.is_null() {
            held.release();
            return None;
        }
        Some(held)
    }

    /// Lets go of librdmacm, and closes its devices if that has unloaded it.
    ///
    /// # Safety
    /// Nobody in the namespace uses a device that librdmacm opened.
    pub(crate) unsafe fn close(self) {
        // SAFETY: functions of these names have these prototypes (rdma_cma.h, verbs.h); the list ends with null. A context is
        // libibverbs', which is held meanwhile, and is closed once: librdmacm, which alone knew of it, is gone.
        unsafe {
            let get = libc::dlsym(self.manager, c"rdma_get_devices".as_ptr());
            let free = libc::dlsym(self.manager, c"rdma_free_devices".as_ptr());
            let close = libc::dlsym(self.verbs, c"ibv_close_device".as_ptr());
            let mut contexts = Vec::new();
            if !get.is_null() && !free.is_null() && !close.is_null() {
                let get = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void>(get);
                let free = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void)>(free);
                let list = get(null_mut());
                if !list.is_null() {
                    contexts.extend((0..MAX_DEVICES).map(|at| *list.add(at)).take_while(|context| !context.is_null()));
                    free(list);
                }
            }
            libc::dlclose(self.manager);
            let still = resident(self.namespace, MANAGER);
            if still.is_null() {
                let close = std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*mut c_void) -> c_int>>(close);
                for context in contexts {
                    close.map(|close| close(context));
                }
            } else {
                libc::dlclose(still);
            }
            libc::dlclose(self.verbs);
        }
    }

    fn release(&self) {
        for handle in [self.manager, self.verbs] {
            if !handle.is_null() {
                // SAFETY: from dlmopen, closed once.
                unsafe { libc::dlclose(handle) };
            }
        }
    }
}

/// A handle of what is loaded in a namespace, or null.
fn resident(namespace: c_long, name: &CStr) -> *mut c_void {
    // SAFETY: looks for what is loaded already.
    unsafe { libc::dlmopen(namespace, name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
}
