//! What is done with an open endpoint: messages, reads and writes of a peer's memory, and their ends.

use super::{BATCH, Core, Event, taken};
use crate::*;
use std::ffi::c_void;
use std::ptr::null_mut;

impl Core {
    /// Sends a message. False: no room now.
    ///
    /// # Errors
    /// A positive error number.
    ///
    /// # Safety
    /// `bytes` lies in memory that stays as it is, and `context` is a free `fi_context2` of the caller's, until the
    /// operation's event.
    pub unsafe fn send(&self, bytes: &[u8], descriptor: *mut c_void, to: u64, context: *mut c_void) -> Result<bool, i32> {
        // SAFETY: an open endpoint; the caller's promise.
        unsafe {
            let Some(endpoint) = &self.endpoint else { return Err(FI_EOPBADSTATE) };
            let Some(send) = (*(*endpoint.0).msg).send else { return Err(FI_ENOSYS) };
            taken(send(endpoint.0, bytes.as_ptr().cast(), bytes.len(), descriptor, to, context))
        }
    }

    /// Sends a short message; there is no event, and the memory is the caller's again at once. False: no room now.
    ///
    /// # Errors
    /// A positive error number.
    pub fn inject(&self, bytes: &[u8], to: u64) -> Result<bool, i32> {
        // SAFETY: an open endpoint; the bytes are read during the call only.
        unsafe {
            let Some(endpoint) = &self.endpoint else { return Err(FI_EOPBADSTATE) };
            let Some(inject) = (*(*endpoint.0).msg).inject else { return Err(FI_ENOSYS) };
            taken(inject(endpoint.0, bytes.as_ptr().cast(), bytes.len(), to))
        }
    }

    /// Posts a buffer for a message from anybody. False: no room now.
    ///
    /// # Errors
    /// A positive error number.
    ///
    /// # Safety
    /// Nobody touches the memory, and `context` is a free `fi_context2` of the caller's, until the operation's event.
    pub unsafe fn receive(&self, base: *mut u8, len: usize, descriptor: *mut c_void, context: *mut c_void) -> Result<bool, i32> {
        // SAFETY: an open endpoint; the caller's promise.
        unsafe {
            let Some(endpoint) = &self.endpoint else { return Err(FI_EOPBADSTATE) };
            let Some(recv) = (*(*endpoint.0).msg).recv else { return Err(FI_ENOSYS) };
            taken(recv(endpoint.0, base.cast(), len, descriptor, FI_ADDR_UNSPEC, context))
        }
    }

    /// Reads `len` bytes from a peer's memory: address and key, as the peer told. False: no room now.
    ///
    /// # Errors
    /// A positive error number.
    ///
    /// # Safety
    /// Nobody touches the memory, and `context` is a free `fi_context2` of the caller's, until the operation's event.
    pub unsafe fn read(
        &self,
        base: *mut u8,
        len: usize,
        descriptor: *mut c_void,
        from: u64,
        (address, key): (u64, u64),
        context: *mut c_void,
    ) -> Result<bool, i32> {
        // SAFETY: an open endpoint; the caller's promise.
        unsafe {
            let Some(endpoint) = &self.endpoint else { return Err(FI_EOPBADSTATE) };
            let Some(read) = (*endpoint.0).rma.as_ref().and_then(|rma| rma.read) else { return Err(FI_ENOSYS) };
            taken(read(endpoint.0, base.cast(), len, descriptor, from, address, key, context))
        }
    }

    /// Writes `len` bytes into a peer's memory: address and key, as the peer told. False: no room now.
    ///
    /// # Errors
    /// A positive error number.
    ///
    /// # Safety
    /// Nobody changes the memory, and `context` is a free `fi_context2` of the caller's, until the operation's event.
    pub unsafe fn write(
        &self,
        base: *const u8,
        len: usize,
        descriptor: *mut c_void,
        to: u64,
        (address, key): (u64, u64),
        context: *mut c_void,
    ) -> Result<bool, i32> {
        // SAFETY: an open endpoint; the caller's promise.
        unsafe {
            let Some(endpoint) = &self.endpoint else { return Err(FI_EOPBADSTATE) };
            let Some(write) = (*endpoint.0).rma.as_ref().and_then(|rma| rma.write) else { return Err(FI_ENOSYS) };
            taken(write(endpoint.0, base.cast(), len, descriptor, to, address, key, context))
        }
    }

    /// Drives the provider and takes what has ended. [`BATCH`]: there may be more. Nothing without an endpoint: a provider may
    /// still look after connections that it had accepted for it, and then at memory that is gone.
    ///
    /// # Errors
    /// A positive error number: the queue is unusable.
    pub fn poll(&self, each: &mut dyn FnMut(Event)) -> Result<usize, i32> {
        if self.endpoint.is_none() {
            return Ok(0);
        }
        let mut entries = [FiCqMsgEntry { op_context: null_mut(), flags: 0, len: 0 }; BATCH];
        // SAFETY: an open queue of the msg format, and room for as many entries as it is told.
        unsafe {
            let Some(read) = (*(*self.queue.0).ops).read else { return Err(FI_ENOSYS) };
            let count = read(self.queue.0, entries.as_mut_ptr().cast(), BATCH);
            if count > 0 {
                for entry in &entries[..(count as usize).min(BATCH)] {
                    each(Event::Done { context: entry.op_context, len: entry.len });
                }
                return Ok(count as usize);
            }
            if count == -(FI_EAGAIN as isize) || count == 0 {
                return Ok(0);
            }
            if count != -(FI_EAVAIL as isize) {
                return Err(-count as i32);
            }
            let Some(readerr) = (*(*self.queue.0).ops).readerr else { return Err(FI_ENOSYS) };
            // Integers and pointers only: all zero is a value.
            let mut entry: FiCqErrEntry = std::mem::zeroed();
            if readerr(self.queue.0, &raw mut entry, 0) < 0 {
                return Ok(0);
            }
            each(Event::Failed { context: entry.op_context, errno: entry.err });
            // There may be more behind it.
            Ok(BATCH)
        }
    }

    /// About to sleep on [`Core::wait`]. False if there is news already.
    pub fn may_sleep(&self) -> bool {
        if self.wait.is_none() {
            return true;
        }
        let mut list = [self.queue.0.cast::<Fid>()];
        // SAFETY: an open fabric and an open queue of it.
        unsafe {
            match (*(*self.fabric.0).ops).trywait {
                Some(trywait) => trywait(self.fabric.0, list.as_mut_ptr(), 1) == 0,
                None => true,
            }
        }
    }
}
