//! A process that lives goes back to an image: its agent has mapped the restorer into it ([`Rollback`]).
//!
//! ```text
//! first thread:  begin ─ all others are here ─ tables ─ surplus threads end ─ map, rewrite what differs ─ Ready, go ─► its saved call
//! other threads: wait ───────────────────────────────── those of the image ───────────────────────────────────────► their saved calls
//! ```
//! Threads that the image has go on as what they are, with the registers that the image has for them. The agent's thread alone is made
//! anew: it had a descriptor table of its own, which ends with it, and in a restored process all threads share one.
//! Until the first page is written nothing is lost but the process itself: whatever fails here ends it, and the rank is built anew.

use crate::clone;
use crate::companion::AnyHelp;
use crate::report::{fail, or_fail};
use crate::zone::{ARENA, ZONE};
use crate::{PROGRESS, Purpose, await_clock, check_ids, complete, read_tables, threads};
use core::format_args as text;
use core::sync::atomic::{AtomicU32, Ordering};
use mend_image::Header;
use mend_image::handoff::{MAX_ROLLBACK_THREADS, ROLLBACK_MAGIC, Rollback};
use mend_image::launch::{Arguments, Failure, Mode};
use mend_image::ranges::{meet, without};
use mend_image::record::{Thread, mapping, thread};
use mend_restore::List;
use mend_restore::fill::{Resources, rewrite};
use mend_restore::present::Present;
use mend_restore::space::Building;
use mend_restore::stream::Stream;
use mend_restore::sys;
use mend_restore::tables::Tables;

/// Threads that have come here.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// 1 when it is known which threads the image has.
static KNOWN: AtomicU32 = AtomicU32::new(0);

/// The image's threads, for those that wait.
struct Known(core::cell::UnsafeCell<Tables<'static>>);
// SAFETY: written once, before `KNOWN` says so.
unsafe impl Sync for Known {}
static THREADS: Known = Known(core::cell::UnsafeCell::new(Tables::EMPTY));

/// The life of a thread that waits.
pub unsafe extern "C" fn wait() -> ! {
    ARRIVED.fetch_add(1, Ordering::AcqRel);
    threads::wake(&ARRIVED);
    while KNOWN.load(Ordering::Acquire) == 0 {
        threads::wait(&KNOWN, 0);
    }
    // SAFETY: takes nothing.
    let own = unsafe { sys::call(sys::GETTID, [0; 6]) }.unwrap_or(0);
    // SAFETY: complete, says `KNOWN`, and never changed again.
    let tables = unsafe { &*THREADS.0.get() };
    match waiting(tables).find(|thread| thread.tid as usize == own) {
        Some(thread) => threads::follow(&thread),
        None => clone::end(),
    }
}

/// The image's threads that go on as threads of this process: all but the first, which is the caller, and the agent's.
fn waiting(tables: &Tables<'static>) -> impl Iterator<Item = Thread> + use<> {
    tables.threads().skip(1).filter(|thread| thread.flags & thread::AGENT == 0)
}

/// Takes the process back.
pub fn restore(arguments: Arguments, address: u64, mut stream: Stream<'static>, header: &Header, began: u64) -> ! {
    // SAFETY: the agent names it; it lies in the restorer's own zone, which is checked, in memory that the agent has mapped.
    let rollback = unsafe {
        if address < ZONE.0 || address + size_of::<Rollback>() as u64 > ZONE.1 || !address.is_multiple_of(8) {
            fail(Failure::Launch, 0, text!("the list of threads lies outside of the restorer's zone"));
        }
        &*(address as *const Rollback)
    };
    let others = match rollback.threads.get(..rollback.count as usize) {
        Some(others) if rollback.magic == ROLLBACK_MAGIC && others.len() <= MAX_ROLLBACK_THREADS => others,
        _ => fail(Failure::Launch, 0, text!("the list of threads has an unknown form")),
    };
    await_threads(rollback.count);
    check_ids(header);
    // Nobody sets the clocks of a process with several threads.
    await_clock(header.monotonic);
    if arguments.mode != Mode::Restart {
        fail(Failure::Launch, 0, text!("a process goes back to images of its own past alone"));
    }
    let present = or_fail(Present::read(&ARENA, ZONE));
    let (tables, first, process) = read_tables(&mut stream, |tables| present.kernel_group_stays(tables.mappings()));
    if let Some(missing) = waiting(&tables).find(|thread| !others.contains(&thread.tid)) {
        fail(Failure::Kernel, 0, text!("thread {} has ended since", missing.tid));
    }
    if tables.threads().filter(|thread| thread.flags & thread::AGENT != 0).count() != 1 {
        fail(Failure::Image, 0, text!("the image does not say which thread is the agent's"));
    }
    let unwritten = if rollback.observed != 0 { or_fail(present.unwritten(&ARENA)) } else { List::new(&ARENA) };
    // SAFETY: nobody looks before `KNOWN` says so.
    unsafe { *THREADS.0.get() = tables };
    KNOWN.store(1, Ordering::Release);
    threads::wake(&KNOWN);
    for surplus in others.iter().filter(|tid| !waiting(&tables).any(|thread| thread.tid == **tid)) {
        // With the agent's thread goes its view of this memory, which would notice writes.
        clone::await_end(*surplus as usize);
    }

    let (building, stays) = or_fail(Building::map_in_place(tables, &ARENA, (arguments.mode, header.top_descriptor), &present));
    let mut building = building.after(arguments.put_back);
    let mut all = List::new(&ARENA);
    for record in tables.mappings().filter(|record| record.flags & (mapping::VDSO | mapping::VVAR) == 0) {
        or_fail(all.push((record.start, record.end)));
    }
    // What was mapped anew holds nothing.
    let (mut known, mut only) = (List::new(&ARENA), List::new(&ARENA));
    or_fail(known.extend(meet(unwritten.all(), stays.all())));
    or_fail(only.extend(without(all.all(), known.all())));
    let resources = Resources { arena: &ARENA, progress: &PROGRESS, workers: &AnyHelp };
    let images = &arguments.images.all()[1..];
    let missing = or_fail(rewrite(stream, first, images, &mut building, only.all(), resources));
    let mut empty = List::new(&ARENA);
    or_fail(empty.extend(meet(missing.all(), stays.all())));
    building.empty(&empty);
    complete(arguments, Purpose::InPlace, tables, process, &mut building, (began, 0))
}

fn await_threads(count: u32) {
    loop {
        match ARRIVED.load(Ordering::Acquire) {
            arrived if arrived >= count => return,
            arrived => threads::wait(&ARRIVED, arrived),
        }
    }
}
