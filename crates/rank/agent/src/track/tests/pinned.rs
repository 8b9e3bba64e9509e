//! Fixed buffers of io_uring: the kernel writes to them past the page tables, so that no way of noticing changes but hashes sees
//! it. As long as there are any, nothing may count as unchanged on the tracking's word alone.

use super::*;
use io_uring::{IoUring, opcode, types};

const BUFFER: usize = 16 * PAGE as usize;
const HUGE_PAGE: u64 = 2 << 20;

/// Reads the beginning of the arena's file into its first pages, which are the ring's fixed buffer; another content each time.
fn read_fixed(ring: &mut IoUring, arena: &Arena, number: u8) {
    arena.file().write_all_at(&[number; BUFFER], 0).unwrap();
    let to = arena.range().start as *mut u8;
    let read = opcode::ReadFixed::new(types::Fd(arena.file().as_raw_fd()), to, BUFFER as u32, 0).offset(0).build();
    // SAFETY: pages of the arena, to which nothing else happens until the read is complete.
    unsafe { ring.submission().push(&read) }.unwrap();
    let result = loop {
        let completion = ring.completion().next().map(|entry| entry.result());
        if let Some(result) = completion {
            break result;
        }
        // A wait may end early.
        let _ = ring.submit_and_wait(1);
    };
    assert_eq!(result, BUFFER as i32);
}

fn run(method: &str) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(mut bench) = Bench::new(method) else { return };
    let mut ring = match IoUring::new(2) {
        Ok(ring) => ring,
        Err(error) => return skipped(&format!("fixed buffers and {method}"), &format!("io_uring: {error}")),
    };
    let arenas = [Arena::new(1)];
    let plans = bench.plans(&arenas);
    // Something that stays as it is, not in one huge page with the buffer: soft-dirty bits tell of a huge page as a whole.
    // SAFETY: a writable page of the arena behind the buffer.
    unsafe { ((arenas[0].range().start + HUGE_PAGE) as *mut u64).write_volatile(1) };
    bench.image(&arenas, &plans, true, true);
    assert!(!pinned());
    let armed = bench.tracker.since;

    let buffer = libc::iovec { iov_base: arenas[0].range().start as *mut _, iov_len: BUFFER };
    // SAFETY: pages of the arena, which is unmapped after the ring is gone.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.unwrap();
    assert!(pinned(), "{}", std::fs::read_to_string("/proc/self/status").unwrap());
    bench.pinned = true;
    for number in 1..4 {
        read_fixed(&mut ring, &arenas[0], number);
        // Compares each page with memory. Each builds on the last image that was taken without fixed buffers.
        let before = bench.images;
        assert!(bench.image(&arenas, &plans, false, true) != 0);
        assert_eq!((bench.tracker.since, bench.images), (armed, before));
        read_fixed(&mut ring, &arenas[0], 100 + number);
        bench.image(&arenas, &plans, false, true);
    }
    // Nothing is said to be unchanged since an image that was taken with them.
    let mut next = bench.tracker.prepare(Some(ImageId([77; 16])), true);
    assert_eq!((next.base, next.note.as_deref()), (None, Some("full, because changes since the image to build on were not noticed")));
    next.note = None;
    next.on_quiesced();
    assert_eq!(next.note.as_deref(), Some("changes are not noticed: a device may write to memory of the program"));
    assert!(!next.scan.unwrap().arm);
    bench.image(&arenas, &plans, true, true);

    ring.submitter().unregister_buffers().unwrap();
    drop(ring);
    let began = std::time::Instant::now();
    while pinned() {
        // The kernel gives them back behind the call.
        assert!(began.elapsed().as_secs() < 60, "still pinned");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    bench.pinned = false;
    bench.image(&arenas, &plans, true, true);
    assert_ne!(bench.tracker.since, armed);
    assert!(bench.image(&arenas, &plans, false, true) != 0);
}

#[test]
fn fixed_buffers_by_write_protection() {
    run("write-protect");
}

#[test]
fn fixed_buffers_by_soft_dirty_bits() {
    run("soft-dirty");
}

#[test]
fn fixed_buffers_by_hashes() {
    run("hash");
}
