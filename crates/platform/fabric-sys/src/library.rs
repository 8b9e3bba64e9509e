//! The public API of a libfabric that this process has loaded, found at run time.
//!
//! `libmend-fi.so` is loaded *by* libfabric and must not be linked to one: the functions are looked up in the library
//! that is there already. What they return are the objects and operation tables of [`crate::objects`].

use crate::objects::{FiFabricAttr, FiInfo, FidFabric};
use std::ffi::{CStr, c_char, c_int, c_void};

/// The name under which every release of libfabric 1 and 2 is loaded.
pub const SONAME: &CStr = c"libfabric.so.1";
/// Shows providers that `FI_PROVIDER` hides. Between libfabric and its providers (`include/ofi.h`), which use it to
/// reach each other; releases without it have no hidden providers and ignore it.
pub const OFI_GETINFO_HIDDEN: u64 = 1 << 60;

/// Functions of libfabric.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// `fi_getinfo(3)`: version, node, service, flags, hints, result.
    pub getinfo: unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int,
    /// `fi_dupinfo(3)`; of null: an empty one with all attributes.
    pub dupinfo: unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo,
    /// `fi_freeinfo(3)`.
    pub freeinfo: unsafe extern "C" fn(*mut FiInfo),
    /// `fi_fabric(3)`.
    pub fabric: unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
}

impl Library {
    /// The libfabric of this process. `None` if there is none, or none whose functions can be found.
    #[must_use]
    pub fn loaded() -> Option<Self> {
        // SAFETY: looks for an object that is loaded already; nothing is loaded or initialised.
        let handle = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        // A libfabric linked into the MPI library, or under another name, may still export its functions.
        Self::within(if handle.is_null() { libc::RTLD_DEFAULT } else { handle })
    }

    /// Loads the libfabric at a path, for programs that are not started by an MPI library.
    #[must_use]
    pub fn load(path: &CStr) -> Option<Self> {
        // SAFETY: libfabric's initialisers have no preconditions.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() { None } else { Self::within(handle) }
    }

    pub(crate) fn within(handle: *mut c_void) -> Option<Self> {
        let find = |name: &CStr| {
            // SAFETY: a handle of dlopen, or RTLD_DEFAULT; the default version of the symbol is the newest.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol)
        };
        let (getinfo, dupinfo) = (find(c"fi_getinfo")?, find(c"fi_dupinfo")?);
        let (freeinfo, fabric) = (find(c"fi_freeinfo")?, find(c"fi_fabric")?);
        // SAFETY: these are the prototypes of libfabric's public headers for functions of these names.
        unsafe {
            Some(Self {
                getinfo: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const FiInfo, *mut *mut FiInfo) -> c_int,
                >(getinfo),
                dupinfo: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo>(dupinfo),
                freeinfo: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut FiInfo)>(freeinfo),
                fabric: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut FiFabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
                >(fabric),
            })
        }
    }
}
