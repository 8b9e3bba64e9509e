//! `fi_av`: endpoint names and the small numbers that stand for them.
//!
//! A name says job, rank and endpoint: it is permanent, wherever the rank is. Numbers are indices, for both kinds of
//! vector (map and table).

use super::{fid_operations, give, refuse, status};
use crate::engine::matching::Source;
use crate::fabric::fabric;
use crate::vector::AddressVector;
use mend_fabric_sys::*;
use std::ffi::{c_char, c_int, c_void};

/// Length of an endpoint's name, bytes; less than MPICH's 64.
pub const NAME_LENGTH: usize = 32;
const MAGIC: [u8; 4] = *b"MEND";

/// The name of an endpoint.
pub fn encode(job: &[u8; 16], source: Source) -> [u8; NAME_LENGTH] {
    let mut name = [0; NAME_LENGTH];
    name[..4].copy_from_slice(&MAGIC);
    name[4..20].copy_from_slice(job);
    name[20..24].copy_from_slice(&source.0.to_le_bytes());
    name[24..26].copy_from_slice(&source.1.to_le_bytes());
    name
}

fn decode(job: &[u8; 16], name: &[u8; NAME_LENGTH]) -> Option<Source> {
    let rank = u32::from_le_bytes([name[20], name[21], name[22], name[23]]);
    let endpoint = u16::from_le_bytes([name[24], name[25]]);
    (name[..4] == MAGIC && name[4..20] == *job).then_some((rank, endpoint))
}

#[repr(C)]
pub struct Vector {
    fid: FidAv,
    /// Number of the vector in the state.
    pub number: u64,
}

static FID_OPS: FiOps = FiOps { bind: Some(bind), ..fid_operations(close) };

static OPS: FiOpsAv = FiOpsAv {
    size: size_of::<FiOpsAv>(),
    insert: Some(insert),
    insertsvc: refuse!((*mut FidAv, *const c_char, *const c_char, *mut u64, u64, *mut c_void) -> c_int),
    insertsym: refuse!((*mut FidAv, *const c_char, usize, *const c_char, usize, *mut u64, u64, *mut c_void) -> c_int),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: refuse!((*mut FidAv, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int),
    insert_auth_key: refuse!((*mut FidAv, *const c_void, usize, *mut u64, u64) -> c_int),
    lookup_auth_key: refuse!((*mut FidAv, u64, *mut c_void, *mut usize) -> c_int),
    set_user_id: refuse!((*mut FidAv, u64, u64, u64) -> c_int),
};

pub unsafe extern "C" fn open(_domain: *mut FidDomain, attr: *mut FiAvAttr, place: *mut *mut FidAv, context: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: null or the caller's attributes.
        if let Some(attr) = unsafe { attr.as_mut() } {
            if !attr.name.is_null() {
                // A vector shared between processes by name.
                return Err(FI_ENOSYS);
            }
            if attr.r#type == FI_AV_UNSPEC {
                attr.r#type = FI_AV_TABLE;
            }
        }
        let number = fabric().lock().vectors.insert(AddressVector::default());
        let fid = FidAv { fid: Fid { fclass: FI_CLASS_AV, context, ops: &raw const FID_OPS }, ops: &raw const OPS };
        // SAFETY: Vector starts with a FidAv; `place` is the caller's.
        unsafe { give(Vector { fid, number }, place) };
        Ok(())
    })
}

/// # Safety
/// `av` was made by `open` and is not closed.
unsafe fn vector<'a>(av: *mut FidAv) -> &'a Vector {
    // SAFETY: by the caller's promise.
    unsafe { &*av.cast::<Vector>() }
}

unsafe extern "C" fn insert(av: *mut FidAv, names: *const c_void, count: usize, numbers: *mut u64, _flags: u64, _: *mut c_void) -> c_int {
    super::edge(-FI_EOTHER, || {
        if !fabric().wait_ready() {
            return -FI_ETIMEDOUT;
        }
        // SAFETY: an open vector.
        let vector = unsafe { vector(av) };
        let mut state = fabric().lock();
        let Some(job) = state.links.identity().map(|identity| identity.job) else { return -FI_EOPBADSTATE };
        let state = &mut *state;
        let Some(table) = state.vectors.get_mut(vector.number) else { return -FI_EINVAL };
        let mut inserted = 0;
        for at in 0..count {
            // SAFETY: the caller passes `count` names of NAME_LENGTH bytes, as fi_getname gave them.
            let name = unsafe { &*names.cast::<[u8; NAME_LENGTH]>().add(at) };
            let source = decode(&job, name).filter(|source| state.links.know(source.0));
            let number = if source.is_some() {
                inserted += 1;
                table.entries.push(source);
                table.entries.len() as u64 - 1
            } else {
                FI_ADDR_UNSPEC
            };
            if !numbers.is_null() {
                // SAFETY: the caller has room for `count` numbers.
                unsafe { *numbers.add(at) = number };
            }
        }
        inserted
    })
}

unsafe extern "C" fn remove(av: *mut FidAv, numbers: *mut u64, count: usize, _flags: u64) -> c_int {
    status(|| {
        // SAFETY: an open vector; the caller passes `count` numbers.
        let (vector, numbers) = unsafe { (vector(av), std::slice::from_raw_parts(numbers, count)) };
        let mut state = fabric().lock();
        let table = state.vectors.get_mut(vector.number).ok_or(FI_EINVAL)?;
        for number in numbers {
            *table.entries.get_mut(usize::try_from(*number).map_err(|_| FI_EINVAL)?).ok_or(FI_EINVAL)? = None;
        }
        Ok(())
    })
}

unsafe extern "C" fn lookup(av: *mut FidAv, number: u64, name: *mut c_void, length: *mut usize) -> c_int {
    status(|| {
        // SAFETY: an open vector.
        let vector = unsafe { vector(av) };
        let state = fabric().lock();
        let identity = state.links.identity().ok_or(FI_EOPBADSTATE)?;
        let source = state.vectors.get(vector.number).and_then(|table| table.resolve(number)).ok_or(FI_EINVAL)?;
        // SAFETY: the caller's buffer and its length.
        unsafe { copy_name(&encode(&identity.job, source), name, length) };
        Ok(())
    })
}

/// Copies a name into the caller's buffer as far as it fits, and tells its full length.
///
/// # Safety
/// `name` has room for `*length` bytes.
pub unsafe fn copy_name(source: &[u8; NAME_LENGTH], name: *mut c_void, length: *mut usize) -> bool {
    // SAFETY: by the caller's promise.
    unsafe {
        let fits = (*length).min(NAME_LENGTH);
        std::ptr::copy_nonoverlapping(source.as_ptr(), name.cast(), fits);
        *length = NAME_LENGTH;
        fits == NAME_LENGTH
    }
}

unsafe extern "C" fn straddr(_av: *mut FidAv, name: *const c_void, text: *mut c_char, length: *mut usize) -> *const c_char {
    // SAFETY: the caller passes a name and a buffer of `*length` bytes.
    unsafe {
        let name = &*name.cast::<[u8; NAME_LENGTH]>();
        let rank = u32::from_le_bytes([name[20], name[21], name[22], name[23]]);
        let shown = format!("mend://rank/{rank}/{}\0", u16::from_le_bytes([name[24], name[25]]));
        let fits = (*length).min(shown.len());
        std::ptr::copy_nonoverlapping(shown.as_ptr(), text.cast(), fits);
        if fits > 0 {
            *text.add(fits - 1) = 0;
        }
        *length = shown.len();
        text
    }
}

unsafe extern "C" fn bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    // To an event queue: insertions are synchronous, so nothing is ever reported there.
    0
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: made by `open`, and closed once.
        let vector = unsafe { Box::from_raw(fid.cast::<Vector>()) };
        fabric().lock().vectors.remove(vector.number);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_only_in_its_job() {
        let name = encode(&[7; 16], (300, 2));
        assert_eq!(decode(&[7; 16], &name), Some((300, 2)));
        assert_eq!(decode(&[8; 16], &name), None);
    }
}
