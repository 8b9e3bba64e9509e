//! libmend-data: data spaces in C, for programs that cannot have a mount, or don't want one. `include/mend_data.h` says what each function does.
//!
//! Invariants: nothing panics into C; what a handle stands for lives until it is closed; handles may be used by several threads. Faults assumed: null pointers, text that
//! is not UTF-8.

mod rank;
mod space;

use space::{About, How, OpenFile, Problem, Space};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    /// What went wrong last in this thread.
    static WHY: RefCell<CString> = RefCell::default();
}

/// What is known of a file or directory, as C has it.
#[repr(C)]
pub struct MendDataStat {
    size: u64,
    changed_ns: i64,
    mode: u32,
    is_directory: u8,
    is_staged: u8,
    is_lost: u8,
}

impl From<About> for MendDataStat {
    fn from(about: About) -> Self {
        let About { size, changed_ns, mode, is_directory, is_staged, is_lost } = about;
        Self { size, changed_ns, mode, is_directory: is_directory.into(), is_staged: is_staged.into(), is_lost: is_lost.into() }
    }
}

/// Names of a directory that are given out one after the other, to whichever thread asks.
pub struct MendDataList(Mutex<Listed>);

type Listed = std::iter::Peekable<std::vec::IntoIter<(String, About)>>;

fn failed<T>(problem: Problem, value: T) -> T {
    WHY.with_borrow_mut(|why| *why = CString::new(problem.why.replace('\0', " ")).unwrap_or_default());
    // SAFETY: the place of this thread's errno is valid as long as the thread.
    unsafe { *libc::__errno_location() = problem.errno };
    value
}

/// Runs what a function does; its value, or `value` with errno.
fn answered<T>(value: T, work: impl FnOnce() -> Result<T, Problem>) -> T {
    let _call = rank::Call::begin();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => done,
        Ok(Err(problem)) => failed(problem, value),
        Err(_) => failed(Problem { errno: libc::EIO, why: "libmend-data is at fault: see standard error".to_owned() }, value),
    }
}

fn invalid(why: &str) -> Problem {
    Problem { errno: libc::EINVAL, why: why.to_owned() }
}

/// The permissions that new files do not get, as open(2) has it. To ask umask(2) is to set it, which other threads would notice.
fn umask() -> u32 {
    let told = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mask = told.lines().find_map(|line| line.strip_prefix("Umask:")).and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    // Without /proc the usual one counts: a file that others cannot write to is the safe side.
    mask.unwrap_or(0o022)
}

/// Where this library lies, beside the other parts of Mend.
fn own_directory() -> Option<PathBuf> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the address is that of a function of this library, and there is room for what is found.
    if unsafe { libc::dladdr(mend_data_error as *const c_void, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr has filled it in; the name is null, or a text as long as the library is there.
    let path = unsafe { text(found.assume_init().dli_fname) }.ok()?;
    Some(Path::new(path).canonicalize().ok()?.parent()?.to_owned())
}

/// # Safety
/// A text that ends with a zero byte, or null.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Problem> {
    if text.is_null() {
        return Err(invalid("a text is missing"));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| invalid("names of a data space are UTF-8"))
}

/// # Safety
/// What one of our functions gave out and nobody closed, or null.
unsafe fn of<'a, T>(handle: *const T) -> Result<&'a T, Problem> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid("a handle is missing"))
}

/// # Safety
/// `out` is null, or has room for one.
unsafe fn tell(about: About, out: *mut MendDataStat) -> Result<c_int, Problem> {
    if out.is_null() {
        return Err(invalid("nowhere to tell it"));
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(about.into()) };
    Ok(0)
}

/// Why the last call of this thread failed.
#[unsafe(no_mangle)]
pub extern "C" fn mend_data_error() -> *const c_char {
    WHY.with_borrow(|why| why.as_ptr())
}

/// Uses a space.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_space(name: *const c_char) -> *mut Arc<Space> {
    // SAFETY: the caller's promise.
    answered(null_mut(), || Ok(Box::into_raw(Box::new(Space::open(unsafe { text(name) }?, own_directory().as_deref())?))))
}

/// Uses it no longer.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_leave(space: *mut Arc<Space>) {
    if !space.is_null() {
        // SAFETY: the caller's promise: it came from `mend_data_space`, and is not used any more.
        let space = unsafe { Box::from_raw(space) };
        answered((), || {
            drop(space);
            Ok(())
        });
    }
}

/// What is known of a path.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_stat(space: *const Arc<Space>, path: *const c_char, out: *mut MendDataStat) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { tell(of(space)?.stat(text(path)?)?, out) })
}

/// What a directory has in it.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_list(space: *const Arc<Space>, path: *const c_char) -> *mut MendDataList {
    answered(null_mut(), || {
        // A null space stands for all that are known here.
        let listed = if space.is_null() {
            space::names()?.into_iter().map(|name| (name, space::DIRECTORY)).collect()
        } else {
            // SAFETY: the caller's promise.
            unsafe { of(space)?.list(text(path)?)? }
        };
        Ok(Box::into_raw(Box::new(MendDataList(Mutex::new(listed.into_iter().peekable())))))
    })
}

/// Gives out the next name.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_next(list: *const MendDataList, name: *mut c_char, room: usize, out: *mut MendDataStat) -> c_int {
    answered(-1, || {
        // SAFETY: the caller's promise.
        let list = unsafe { of(list)? };
        if name.is_null() || out.is_null() {
            return Err(invalid("nowhere to tell the next name"));
        }
        let mut names = list.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A name that finds no room stays the next one, so that none is lost.
        let Some((next, about)) = names.peek() else { return Ok(0) };
        if next.len() >= room {
            return Err(Problem { errno: libc::ERANGE, why: format!("`{next}` needs room for {} bytes", next.len() + 1) });
        }
        // SAFETY: the caller's promise: there is room for as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(next.as_ptr(), name.cast(), next.len());
            name.add(next.len()).write(0);
            tell(*about, out)?;
        }
        names.next();
        Ok(1)
    })
}

/// No more names are wanted.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_end_list(list: *mut MendDataList) {
    if !list.is_null() {
        // SAFETY: the caller's promise: it came from `mend_data_list`, and is not used any more.
        drop(unsafe { Box::from_raw(list) });
    }
}

/// Opens a file.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_open(space: *const Arc<Space>, path: *const c_char, flags: c_int, mode: c_uint) -> *mut OpenFile {
    answered(null_mut(), || {
        let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND | libc::O_CLOEXEC | libc::O_LARGEFILE;
        if flags & !known != 0 {
            return Err(invalid("a flag has no meaning in a data space"));
        }
        let access = flags & libc::O_ACCMODE;
        let has = |flag: c_int| flags & flag != 0;
        let how = How {
            reads: access != libc::O_WRONLY,
            writes: access != libc::O_RDONLY,
            makes: has(libc::O_CREAT),
            exclusive: has(libc::O_EXCL),
            cuts: has(libc::O_TRUNC),
            appends: has(libc::O_APPEND),
            mode: if has(libc::O_CREAT) { mode & 0o777 & !umask() } else { 0 },
        };
        // SAFETY: the caller's promise.
        unsafe { Ok(Box::into_raw(Box::new(of(space)?.open_file(text(path)?, how)?))) }
    })
}

/// What is known of an open file.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_fstat(file: *const OpenFile, out: *mut MendDataStat) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { tell(of(file)?.about()?, out) })
}

/// Bytes of a read or write after which an image can be taken: a large one would keep it waiting for too long.
const PART: usize = 8 << 20;

/// Reads or writes part by part, each as a call of its own: how many bytes that were. One that gives fewer is the last one.
fn in_parts(length: usize, mut each: impl FnMut(std::ops::Range<usize>) -> isize) -> isize {
    let mut done = 0;
    loop {
        let part = done..length.min(done + PART);
        let (wanted, given) = (part.len(), each(part));
        if given < 0 {
            return given;
        }
        done += given as usize;
        if (given as usize) < wanted || done == length {
            return done as isize;
        }
    }
}

/// Reads bytes from an offset on; fewer at the end of the file.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_pread(file: *const OpenFile, into: *mut c_void, length: usize, offset: u64) -> isize {
    in_parts(length.min(isize::MAX as usize), |part| {
        answered(-1, || {
            if into.is_null() && length > 0 {
                return Err(invalid("nowhere to read to"));
            }
            let at = offset.saturating_add(part.start as u64);
            // SAFETY: the caller's promise: there is room for as many bytes.
            let (file, into) = unsafe {
                let into = if part.is_empty() { std::ptr::dangling_mut() } else { into.cast::<u8>().add(part.start) };
                (of(file)?, std::slice::from_raw_parts_mut(into, part.len()))
            };
            Ok(file.read(at, into)? as isize)
        })
    })
}

/// Writes bytes from an offset on, or at the end of a file that was opened for that.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_pwrite(file: *const OpenFile, from: *const c_void, length: usize, offset: u64) -> isize {
    let length = length.min(isize::MAX as usize);
    let write = |part: std::ops::Range<usize>| {
        answered(-1, || {
            if from.is_null() && length > 0 {
                return Err(invalid("nothing to write"));
            }
            // SAFETY: the caller's promise: there are as many bytes.
            let (file, from) = unsafe {
                let from = if part.is_empty() { std::ptr::dangling() } else { from.cast::<u8>().add(part.start) };
                (of(file)?, std::slice::from_raw_parts(from, part.len()))
            };
            if file.appends() {
                return Ok(file.write(0, from)? as isize);
            }
            file.fits(offset, length as u64)?;
            Ok(file.write(offset + part.start as u64, from)? as isize)
        })
    };
    // SAFETY: the caller's promise.
    if unsafe { of(file) }.is_ok_and(OpenFile::appends) {
        // Nobody else's bytes come between.
        return write(0..length);
    }
    let mut done = 0;
    let written = in_parts(length, |part| {
        let given = write(part);
        done += given.max(0);
        given
    });
    // What an error came after is there.
    if written < 0 && done > 0 { done } else { written }
}

/// Has a file end there.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_truncate(file: *const OpenFile, length: u64) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { of(file)? }.cut(length).map(|()| 0))
}

/// Makes durable what was written.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_sync(file: *const OpenFile) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { of(file)? }.sync().map(|()| 0))
}

/// Syncs and closes a file.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_close(file: *mut OpenFile) -> c_int {
    answered(-1, || {
        if file.is_null() {
            return Err(invalid("a handle is missing"));
        }
        // SAFETY: the caller's promise: it came from `mend_data_open`, and is not used any more.
        let file = unsafe { Box::from_raw(file) };
        file.sync().map(|()| 0)
    })
}

/// Removes a file.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_unlink(space: *const Arc<Space>, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { of(space)?.unlink(text(path)?) }.map(|()| 0))
}

/// Makes a directory.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_mkdir(space: *const Arc<Space>, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { of(space)?.make_directory(text(path)?) }.map(|()| 0))
}

/// Removes an empty directory.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_rmdir(space: *const Arc<Space>, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { of(space)?.remove_directory(text(path)?) }.map(|()| 0))
}

/// Gives a file another name.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mend_data_rename(space: *const Arc<Space>, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    answered(-1, || unsafe { of(space)?.rename(text(from)?, text(to)?) }.map(|()| 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a transfer of which so many bytes can be had, and what it gives.
    fn parts(length: usize, there: usize) -> (Vec<usize>, isize) {
        let mut parts = Vec::new();
        let given = in_parts(length, |part| {
            parts.push(part.len());
            part.len().min(there - part.start) as isize
        });
        (parts, given)
    }

    #[test]
    fn a_large_read_is_several_calls_so_that_an_image_can_be_taken_between_them() {
        let all = 2 * PART + 5;
        assert_eq!(parts(all, all), (vec![PART, PART, 5], all as isize));
        assert_eq!(parts(2 * PART, all), (vec![PART, PART], 2 * PART as isize));
        // The file ends there.
        assert_eq!(parts(all, PART + 7), (vec![PART, PART], PART as isize + 7));
        assert_eq!((parts(0, 9), parts(9, 0)), ((vec![0], 0), (vec![9], 0)));
        let failed = in_parts(all, |part| if part.start == 0 { part.len() as isize } else { -1 });
        assert_eq!(failed, -1);
    }
}
