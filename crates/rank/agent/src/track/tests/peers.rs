//! What another rank writes by itself (one-sided operations between ranks of a node): by `process_vm_writev`, from outside.

use super::*;

/// The first pages, some that end within one, and a huge page's worth.
const WRITES: [(u64, usize); 3] = [(0, 8 * PAGE as usize), (64 * PAGE + 100, 5000), (512 * PAGE, 512 * PAGE as usize)];

/// Another process writes to this one's memory.
fn write_from_another(arena: &Arena, number: u8) {
    let (start, us) = (arena.range().start, std::process::id() as i32);
    let content = vec![number; WRITES.iter().map(|(_, length)| *length).max().unwrap_or(0)];
    // SAFETY: where Yama restricts it, others may write now; touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::MAX, 0, 0, 0) };
    // SAFETY: the child makes system calls alone, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let written = WRITES.iter().all(|(at, length)| {
            let local = libc::iovec { iov_base: content.as_ptr().cast_mut().cast(), iov_len: *length };
            let remote = libc::iovec { iov_base: (start + at) as *mut _, iov_len: *length };
            // SAFETY: reads `content`, writes to the parent's arena.
            unsafe { libc::process_vm_writev(us, &raw const local, 1, &raw const remote, 1, 0) == *length as isize }
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!written)) };
    }
    let mut status = 0;
    // SAFETY: the status is ours to write to.
    assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
}

fn run(method: &str) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(mut bench) = Bench::new(method) else { return };
    let arenas = [Arena::new(1)];
    write_from_another(&arenas[0], 1);
    // Something that stays as it is.
    // SAFETY: a writable page of the arena that nobody else writes to.
    unsafe { ((arenas[0].range().start + 300 * PAGE) as *mut u64).write_volatile(1) };
    let plans = bench.plans(&arenas);
    bench.image(&arenas, &plans, true, true);
    for number in 2..6 {
        write_from_another(&arenas[0], number);
        let plans = bench.plans(&arenas);
        // Compares each page with memory.
        assert!(bench.image(&arenas, &plans, false, true) != 0, "nothing was left to the base");
    }
}

#[test]
fn writes_of_peers_by_write_protection() {
    run("write-protect");
}

#[test]
fn writes_of_peers_by_soft_dirty_bits() {
    run("soft-dirty");
}

#[test]
fn writes_of_peers_by_hashes() {
    run("hash");
}

/// A copy of the process, which writes the image, keeps what was there when it was made.
#[test]
fn a_copy_of_the_process_does_not_see_them() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let arena = Arena::new(1);
    write_from_another(&arena, 1);
    let (asked, ask) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child reads its memory and a pipe, and ends.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        let mut byte = [0u8; 1];
        let told = rustix::io::read(&asked, &mut byte) == Ok(1);
        let same = WRITES.iter().all(|(at, length)| {
            // SAFETY: pages of the arena, as they were when this process was made.
            unsafe { std::slice::from_raw_parts((arena.range().start + at) as *const u8, *length) }.iter().all(|byte| *byte == 1)
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!(told && same))) };
    }
    write_from_another(&arena, 2);
    // SAFETY: a page of the arena.
    assert_eq!(unsafe { (arena.range().start as *const u8).read_volatile() }, 2);
    assert_eq!(rustix::io::write(&ask, &[1]), Ok(1));
    let mut status = 0;
    // SAFETY: the status is ours to write to.
    assert_eq!((unsafe { libc::waitpid(copy, &raw mut status, 0) }, status), (copy, 0));
}
