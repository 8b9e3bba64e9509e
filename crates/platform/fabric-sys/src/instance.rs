//! A libfabric of one's own, beside the one that the program's MPI library uses: loaded anew, and gone when it is closed.
//!
//! Why: a provider may keep things for as long as it is loaded (librdmacm keeps every RDMA device open), and the MPI library
//! never lets go of its libfabric. The instance is in a namespace of the dynamic linker (`dlmopen(3)`) with a C library
//! of its own, so that neither takes symbols from the other.
//!
//! The namespace and its C library stay once they are there; what an instance loaded goes with the last one. A C library's
//! memory would not come back otherwise, nor always its room among thread-local variables.
//!
//! Two C libraries in one process share the threads, and what belongs to a thread:
//! - Memory that one allocated is freed by the same one: libfabric's is given back to libfabric, and none of ours is left to it. The C
//!   libraries would not notice: what the main thread allocates has no mark of its owner.
//! - A thread of the program has no character tables in the second one until it sets a locale there: [`Instance::adopt`].
//! - Both number their thread-specific data (`pthread_key_create(3)`) from 0 and store it in the same slots of the thread. The
//!   second one's first [`KEYS`] numbers are taken here and never used.
//! - `fork` and the end of a thread are told to the C library that made them only: forked children don't touch an instance,
//!   and of each thread that used one, what the second one's allocator has set apart for it (about 1 KiB) stays.

use crate::library::Library;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of thread-specific data that are left to the program's C library, of 1024.
pub const KEYS: usize = 512;
/// Before this release (2.34) threads were in a library beside the C library, and a second copy of both could not make any.
const OLDEST_C_LIBRARY: (u32, u32) = (2, 34);
const C_LIBRARY: &CStr = c"libc.so.6";
/// `elf.h`: addresses and lengths of an object's last functions.
const DT_FINI_ARRAY: i64 = 26;
const DT_FINI_ARRAYSZ: i64 = 28;

/// Why there can be no instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceError {
    /// The C library is older than 2.34 or none of GNU's; its version.
    OldLibrary(String),
    /// The dynamic linker's words.
    Refused(String),
    /// It was loaded, but functions are missing: of libfabric, or of the C library.
    Incomplete,
}

impl std::fmt::Display for InstanceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OldLibrary(version) => write!(f, "a second C library of release {version} cannot make threads; it takes 2.34"),
            Self::Refused(words) => f.write_str(words),
            Self::Incomplete => f.write_str("functions are missing in it"),
        }
    }
}

impl std::error::Error for InstanceError {}

/// `struct link_map` of `link.h`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// The namespace, for the rest of the process's life.
struct Namespace {
    id: c_long,
    setenv: unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int,
    unsetenv: unsafe extern "C" fn(*const c_char) -> c_int,
    uselocale: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    /// What is loaded now, and for how many instances.
    loaded: Option<(CString, Handle, Library)>,
    instances: usize,
}

/// Of `dlmopen`.
struct Handle(*mut c_void);

// SAFETY: a handle may be used by any thread.
unsafe impl Send for Handle {}

static NAMESPACE: Mutex<Option<Namespace>> = Mutex::new(None);

thread_local! {
    static ADOPTED: Cell<bool> = const { Cell::new(false) };
}

/// A libfabric that goes when the last instance is dropped; then no object or function of it may be used any more.
#[derive(Debug)]
pub struct Instance {
    library: Library,
    uselocale: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
}

/// A variable of an instance's environment: its value, or `None` if it is not to be there.
pub type Variable = (CString, Option<CString>);

impl Instance {
    /// Loads the libfabric at a path for oneself, with this environment. If there is an instance already, it is the same one
    /// with the environment of the first.
    ///
    /// # Errors
    /// [`InstanceError`].
    pub fn open(path: &CStr, environment: &dyn Fn() -> Vec<Variable>) -> Result<Self, InstanceError> {
        let mut namespace = namespace();
        if namespace.is_none() {
            *namespace = Some(Namespace::new()?);
        }
        namespace.as_mut().ok_or(InstanceError::Incomplete)?.open(path, environment)
    }

    /// Its functions, for as long as the instance is there.
    #[must_use]
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// To be called by each thread before it calls a function of the instance or of an object of it.
    #[inline]
    pub fn adopt(&self) {
        ADOPTED.with(|adopted| {
            if !adopted.replace(true) {
                // SAFETY: uselocale(3) of the second C library, with LC_GLOBAL_LOCALE.
                unsafe { (self.uselocale)(-1isize as *mut c_void) };
            }
        });
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.adopt();
        if let Some(namespace) = &mut *namespace() {
            namespace.instances -= 1;
            if namespace.instances == 0 {
                namespace.close();
            }
        }
    }
}

fn namespace() -> MutexGuard<'static, Option<Namespace>> {
    NAMESPACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last words of the dynamic linker to this thread.
fn words() -> InstanceError {
    // SAFETY: dlerror gives null or a string that stays until the thread's next call.
    let words = unsafe { libc::dlerror() };
    let said = if words.is_null() {
        "no reason given".into()
    } else {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    };
    InstanceError::Refused(said)
}

/// A function of an object.
///
/// # Safety
/// `F` is the type of a pointer to a function of this name.
unsafe fn function<F: Copy>(handle: &Handle, name: &CStr) -> Result<F, InstanceError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a handle of dlmopen.
    let symbol = unsafe { libc::dlsym(handle.0, name.as_ptr()) };
    if symbol.is_null() {
        return Err(InstanceError::Incomplete);
    }
    // SAFETY: the caller's promise; the sizes are the same.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&symbol) })
}

fn old_library() -> Option<String> {
    // SAFETY: gnu_get_libc_version gives a constant string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned();
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let known = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (known < OLDEST_C_LIBRARY).then_some(version)
}

impl Namespace {
    fn new() -> Result<Self, InstanceError> {
        if let Some(version) = old_library() {
            return Err(InstanceError::OldLibrary(version));
        }
        // SAFETY: the C library may be loaded into a namespace of its own.
        let handle = Handle(unsafe { libc::dlmopen(libc::LM_ID_NEWLM, C_LIBRARY.as_ptr(), libc::RTLD_NOW) });
        if handle.0.is_null() {
            return Err(words());
        }
        let mut id: c_long = 0;
        // SAFETY: an open handle; room for an Lmid_t.
        if unsafe { libc::dlinfo(handle.0, libc::RTLD_DI_LMID, (&raw mut id).cast()) } != 0 {
            return Err(words());
        }
        // SAFETY: the prototypes of setenv(3), unsetenv(3), uselocale(3) and pthread_key_create(3).
        unsafe {
            let create: unsafe extern "C" fn(*mut c_uint, *const c_void) -> c_int = function(&handle, c"pthread_key_create")?;
            for _ in 0..KEYS {
                let mut key = 0;
                if create(&raw mut key, null()) != 0 || key as usize >= KEYS {
                    break;
                }
            }
            Ok(Self {
                id,
                setenv: function(&handle, c"setenv")?,
                unsetenv: function(&handle, c"unsetenv")?,
                uselocale: function(&handle, c"uselocale")?,
                loaded: None,
                instances: 0,
            })
        }
    }

    fn open(&mut self, path: &CStr, environment: &dyn Fn() -> Vec<Variable>) -> Result<Instance, InstanceError> {
        if self.loaded.as_ref().is_some_and(|(other, ..)| **other != *path) {
            return Err(InstanceError::Refused("another libfabric is in use".into()));
        }
        if self.loaded.is_none() {
            for (name, value) in environment() {
                // SAFETY: the second C library's environment is changed under this lock, while nothing else is loaded there.
                unsafe {
                    match value {
                        Some(value) => (self.setenv)(name.as_ptr(), value.as_ptr(), 1),
                        None => (self.unsetenv)(name.as_ptr()),
                    }
                };
            }
            // SAFETY: libfabric's initialisers have no preconditions.
            let handle = Handle(unsafe { libc::dlmopen(self.id, path.as_ptr(), libc::RTLD_NOW) });
            if handle.0.is_null() {
                return Err(words());
            }
            let Some(library) = Library::within(handle.0) else {
                // SAFETY: opened above.
                unsafe { libc::dlclose(handle.0) };
                return Err(InstanceError::Incomplete);
            };
            self.loaded = Some((path.to_owned(), handle, library));
        }
        let library = self.loaded.as_ref().map(|(_, _, library)| *library).ok_or(InstanceError::Incomplete)?;
        self.instances += 1;
        let instance = Instance { library, uselocale: self.uselocale };
        instance.adopt();
        Ok(instance)
    }

    fn close(&mut self) {
        let Some((path, handle, _)) = self.loaded.take() else { return };
        let devices = crate::rdma::Held::new(self.id);
        self.unload(&path, &handle);
        if let Some(devices) = devices {
            // SAFETY: the namespace has had one user, libfabric, whose objects are closed.
            unsafe { devices.close() };
        }
    }

    fn unload(&self, path: &CStr, handle: &Handle) {
        // SAFETY: from dlmopen, closed once; the caller's objects of it are closed.
        unsafe { libc::dlclose(handle.0) };
        // Providers that are shared objects need libfabric, which closes them when it ends: it would stay for ever. So it
        // is ended while it is loaded, which leaves it as before its first use.
        let Some(held) = self.resident(path) else { return };
        // SAFETY: an open handle of libfabric, which nobody uses any more; closed once.
        unsafe {
            end(&held);
            libc::dlclose(held.0);
        }
    }

    /// Another handle of what is loaded from this path.
    fn resident(&self, path: &CStr) -> Option<Handle> {
        // SAFETY: looks for what is loaded already.
        let handle = unsafe { libc::dlmopen(self.id, path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Handle(handle))
    }
}

/// Calls an object's last functions, as the dynamic linker would before it takes the object away.
///
/// # Safety
/// An open handle of an object whose last functions may be called twice: libfabric's notice that (`ofi_init`; read in 1.14, 1.17 and the newest).
unsafe fn end(handle: &Handle) {
    let mut map: *const LinkMap = null();
    // SAFETY: an open handle; its map and the list in it, which ends with a tag 0, stay while it is open. Addresses in that
    // list are the object's own functions and take no arguments.
    unsafe {
        if libc::dlinfo(handle.0, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) != 0 || map.is_null() {
            return;
        }
        let (mut array, mut bytes) = (0, 0);
        let mut at = (*map).dynamic;
        while (*at).tag != 0 {
            match (*at).tag {
                DT_FINI_ARRAY => array = (*map).base + (*at).value,
                DT_FINI_ARRAYSZ => bytes = (*at).value,
                _ => {}
            }
            at = at.add(1);
        }
        if array != 0 {
            let functions = std::slice::from_raw_parts(array as *const Option<unsafe extern "C" fn()>, bytes / size_of::<usize>());
            for function in functions.iter().rev().flatten() {
                function();
            }
        }
    }
}

/// Path of the libfabric that this process has loaded under [`crate::SONAME`].
#[must_use]
pub fn path_of_loaded() -> Option<CString> {
    // SAFETY: looks for an object that is loaded already.
    let handle = unsafe { libc::dlopen(crate::SONAME.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    let mut map: *const LinkMap = null_mut();
    // SAFETY: an open handle; its map and the name in it stay while the object is loaded, which the copy does not need.
    unsafe {
        let told = libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0 && !map.is_null();
        let path = told.then(|| CStr::from_ptr((*map).name).to_owned());
        libc::dlclose(handle);
        path.filter(|path| path.to_bytes().starts_with(b"/"))
    }
}
