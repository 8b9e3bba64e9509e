//! An open endpoint, as libfabric's calls find it.

use crate::fabric::State;
use mend_fabric_sys::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[repr(C)]
pub struct Endpoint {
    /// What libfabric sees.
    pub fid: FidEp,
    /// Number of the endpoint in the engine, and for peers.
    pub number: u16,
    /// Number of its address vector, 0 before it is bound.
    pub vector: AtomicU64,
    /// Operation flags of calls that take none.
    pub send_flags: u64,
    /// The same for receives.
    pub receive_flags: u64,
    /// Receives name their source (`FI_DIRECTED_RECV` was asked for); otherwise what stands there means nothing.
    pub directed: bool,
}

impl Endpoint {
    /// # Safety
    /// `ep` was made by `open` and is not closed.
    #[inline]
    pub unsafe fn of<'a>(ep: *mut FidEp) -> &'a Self {
        // SAFETY: by the caller's promise.
        unsafe { &*ep.cast::<Self>() }
    }

    /// The peer that a number stands for.
    #[inline]
    pub fn peer(&self, state: &State, number: u64) -> Result<(u32, u16), i32> {
        let vector = state.vectors.get(self.vector.load(Ordering::Relaxed)).ok_or(FI_ENOAV)?;
        vector.resolve(number).ok_or(FI_EINVAL)
    }

    /// The source of a directed receive, `None` for any.
    #[inline]
    pub fn source(&self, state: &State, number: u64) -> Result<Option<(u32, u16)>, i32> {
        if number == FI_ADDR_UNSPEC || !self.directed { Ok(None) } else { self.peer(state, number).map(Some) }
    }
}
