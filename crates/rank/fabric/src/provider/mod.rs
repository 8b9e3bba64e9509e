//! The libfabric edge: provider `mend`.
//!
//! Every function that C calls catches panics (a panic becomes an error code and a line on standard error), checks
//! what it is given as far as C allows, and holds the fabric's lock only for pure work.
//!
//! Objects are `repr(C)` structures whose first field is libfabric's; libfabric and the application hold pointers to
//! that field. They are made by [`give`] and freed in `close`. The protocol state behind them is in
//! [`crate::engine`], found by number.

pub mod av;
mod cntr;
mod cq;
mod domain;
mod endpoint;
mod eq;
mod fabric;
mod getinfo;
mod message;
mod mr;
mod open_endpoint;
mod rma;
mod tagged;

use crate::engine::buffers::{Buffers, MAX_SEGMENTS, Segment};
use crate::report;
use libc::iovec;
use mend_fabric_sys::{FI_EINVAL, FI_EOTHER, FiOps, FiProvider, Fid, fi_version};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// libfabric's name of the provider.
pub const NAME: &std::ffi::CStr = c"mend";

struct Provider(UnsafeCell<FiProvider>);

// SAFETY: libfabric alone accesses the structure after `provider` gave it out, and serialises that itself.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(FiProvider {
    version: fi_version(0, 1),
    fi_version: fi_version(2, 5),
    context: [std::ptr::null_mut(); 4],
    name: NAME.as_ptr(),
    getinfo: Some(getinfo::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

unsafe extern "C" fn cleanup() {}

/// What `fi_prov_ini` returns.
#[must_use]
pub fn provider() -> *mut FiProvider {
    PROVIDER.0.get()
}

/// A function of the C edge: panics become `failure`.
#[inline]
fn edge<T>(failure: T, f: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => value,
        Err(_) => {
            report::fault(None, format_args!("internal error in the fabric (hint: please report the lines above)"));
            failure
        }
    }
}

/// An edge function that returns 0 or a negative error number.
#[inline]
fn status(f: impl FnOnce() -> Result<(), i32>) -> c_int {
    edge(-FI_EOTHER, || f().map_or_else(|error| -error, |()| 0))
}

/// The same for functions that return `ssize_t`.
#[inline]
fn transfer(f: impl FnOnce() -> Result<(), i32>) -> isize {
    edge(-FI_EOTHER as isize, || f().map_or_else(|error| -error as isize, |()| 0))
}

/// Makes an object and stores the pointer to its libfabric part.
///
/// # Safety
/// `T` is `repr(C)` and starts with an `F`; `place` may be written.
unsafe fn give<T, F>(object: T, place: *mut *mut F) {
    // SAFETY: by the caller's promise.
    unsafe { *place = Box::into_raw(Box::new(object)).cast() };
}

/// The memory of a call, on the stack.
#[allow(clippy::large_enum_variant, reason = "lives only for the call; the short variant is the hot one and leaves the rest untouched")]
enum Segments {
    One([Segment; 1]),
    Many([Segment; MAX_SEGMENTS], usize),
}

impl Segments {
    #[inline]
    fn one(base: *const c_void, len: usize) -> Self {
        Self::One([Segment { base: base.cast_mut().cast(), len }])
    }

    /// # Safety
    /// `iov` points to `count` readable entries.
    unsafe fn many(iov: *const iovec, count: usize) -> Result<Self, i32> {
        if count > MAX_SEGMENTS || (iov.is_null() && count > 0) {
            return Err(FI_EINVAL);
        }
        let mut list = [Segment::EMPTY; MAX_SEGMENTS];
        for (at, segment) in list.iter_mut().enumerate().take(count) {
            // SAFETY: by the caller's promise.
            let entry = unsafe { *iov.add(at) };
            *segment = Segment { base: entry.iov_base.cast(), len: entry.iov_len };
        }
        Ok(Self::Many(list, count))
    }

    #[inline]
    fn as_slice(&self) -> &[Segment] {
        match self {
            Self::One(one) => one,
            Self::Many(list, count) => &list[..*count],
        }
    }

    #[inline]
    fn buffers(&self) -> Buffers {
        match self.as_slice() {
            [] => Buffers::One(Segment::EMPTY),
            [one] => Buffers::One(*one),
            many => Buffers::Many(many.into()),
        }
    }
}

/// A function of a table that this provider does not implement.
macro_rules! refuse {
    (($($type:ty),*) -> $result:ty) => {{
        unsafe extern "C" fn refuse($(_: $type),*) -> $result {
            -mend_fabric_sys::FI_ENOSYS as $result
        }
        Some(refuse)
    }};
}
use refuse;

/// The table of an object that can only be closed; others replace what they can do besides.
const fn fid_operations(close: unsafe extern "C" fn(*mut Fid) -> c_int) -> FiOps {
    FiOps {
        size: size_of::<FiOps>(),
        close: Some(close),
        bind: refuse!((*mut Fid, *mut Fid, u64) -> c_int),
        control: refuse!((*mut Fid, c_int, *mut c_void) -> c_int),
        ops_open: refuse!((*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int),
        tostr: None,
        ops_set: None,
    }
}
