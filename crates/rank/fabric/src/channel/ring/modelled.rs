//! The ring under `loom`: its code, on a heap and on atomics that loom watches, with every order in which two threads can
//! run and every value that the memory model lets them see.
//!
//! Run with `cargo test --release -p mend-rings`: the package in `tests/rings` compiles the ring's file, and what it uses, with `cfg(loom)`.
//! Nothing else is built so, and it is built with all other tests.
//!
//! What could go wrong, and is looked for:
//! - a record read before it is whole, or overwritten before it was read (loom reports the race on its line, the tests
//!   compare the bytes);
//! - a lost wake-up, of a reader that sleeps or of a writer that waits for room (loom reports the deadlock).

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

/// Room for two records of one line and one of two: it wraps and fills within the few steps a model can take.
pub const CAPACITY: usize = 4 * LINE;
/// Bytes of the mapping.
pub const RING_BYTES: usize = DATA + CAPACITY;
/// A payload that makes a record of two lines.
pub const MAX_RECORD: usize = 2 * LINE - HEADER;

/// What two ends share.
#[derive(Debug)]
pub struct Memory {
    _words: std::cell::UnsafeCell<Vec<u64>>,
    /// One per line of the data area: whoever reads or writes the line, but for its first word, touches it, so that loom sees
    /// a race.
    lines: Vec<UnsafeCell<()>>,
    /// The first words of the lines.
    first: Vec<AtomicU64>,
}

// SAFETY: what is read and written besides loom's atomics is touched in `lines` as well, and loom refuses two threads
// there that are not ordered.
unsafe impl Sync for Memory {}

// Loom's atomics stand where the real ones do.
const _: () = assert!(size_of::<AtomicU64>() == 8 && size_of::<AtomicU32>() == 8 && align_of::<AtomicU64>() == 8);

impl Ring {
    /// Both ends' view of a fresh ring.
    fn pair() -> (Self, Self) {
        let mut words = vec![0u64; RING_BYTES / 8];
        let base: *mut u8 = words.as_mut_ptr().cast();
        for at in [TAIL, GRANTS] {
            // SAFETY: inside the vector, aligned; loom's atomics need no drop.
            unsafe { base.add(at).cast::<AtomicU64>().write(AtomicU64::new(0)) };
        }
        for at in [SLEEPS, WAITS] {
            // SAFETY: as above.
            unsafe { base.add(at).cast::<AtomicU32>().write(AtomicU32::new(0)) };
        }
        let lines = (0..CAPACITY / LINE).map(|_| UnsafeCell::new(())).collect();
        let first = (0..CAPACITY / LINE).map(|_| AtomicU64::new(0)).collect();
        let memory = std::sync::Arc::new(Memory { _words: words.into(), lines, first });
        (Self { base, memory: memory.clone() }, Self { base, memory })
    }

    fn lines(&self, position: u64, length: usize) -> impl Iterator<Item = &UnsafeCell<()>> {
        let first = position / LINE as u64;
        let end = (position + length as u64).div_ceil(LINE as u64);
        (first..end).map(|line| &self.memory.lines[(line % (CAPACITY / LINE) as u64) as usize])
    }

    pub(super) fn note_read(&self, position: u64, length: usize) {
        self.lines(position, length).for_each(|line| line.with(|_| ()));
    }

    pub(super) fn note_written(&self, position: u64, length: usize) {
        self.lines(position, length).for_each(|line| line.with_mut(|_| ()));
        // A payload may be anything, where words of records were or will be, too.
        for line in 1..length / LINE {
            self.first_word(position + (line * LINE) as u64).store(u64::MAX, Ordering::Relaxed);
        }
    }

    pub(super) fn will_write(&self, _position: u64) {}

    pub(super) fn first_word(&self, position: u64) -> &AtomicU64 {
        &self.memory.first[(position / LINE as u64) as usize % (CAPACITY / LINE)]
    }
}

/// An event descriptor: counts, and lets whoever waits through when it is not zero.
#[derive(Default)]
struct Wakeup {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wakeup {
    fn set(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

fn body(number: usize, length: usize) -> Vec<u8> {
    vec![number as u8 + 1; length]
}

fn header(number: usize, length: usize) -> Header {
    // A kind whose whole header travels.
    let mut header = Header::new(crate::engine::packet::Kind::Data);
    header.id = number as u64;
    header.payload = length as u32;
    header
}

/// Writes like `ShmOutgoing::send`; false: no room.
fn send(writer: &mut Writer, wakeup: &Wakeup, number: usize, length: usize) -> bool {
    let written = lend(writer, number, length);
    if written {
        wake(writer, wakeup);
    }
    written
}

/// Writes like `ShmOutgoing::lend`; false: no room.
fn lend(writer: &mut Writer, number: usize, length: usize) -> bool {
    writer.write(&header(number, length), &[Segment::of(&body(number, length))]).unwrap()
}

/// Like `ShmOutgoing::lent`.
fn wake(writer: &Writer, wakeup: &Wakeup) {
    if writer.reader_asleep() {
        wakeup.set();
    }
}

/// Reads what is there like `ShmIncoming::receive`.
fn receive(reader: &mut Reader, wakeup: &Wakeup, got: &mut Vec<usize>) {
    let before = got.len();
    while let Some((header, payload)) = reader.peek().unwrap() {
        let number = header.id as usize;
        assert_eq!(payload.to_vec(), body(number, header.payload as usize), "a record was torn");
        reader.advance();
        got.push(number);
    }
    if got.len() > before && reader.writer_waits() {
        wakeup.set();
    }
}

/// Sends records of these payloads from one thread to another; both sleep whenever the real channel would. `switches`
/// bounds how often a thread that could go on is interrupted in one execution, so that the number of executions stays
/// within seconds; `None` tries them all.
fn exchange(lengths: &'static [usize], switches: Option<usize>) {
    exchange_by(lengths, switches, |lengths, writer, readers, writers| {
        for (number, length) in lengths.iter().enumerate() {
            while !send(writer, readers, number, *length) {
                if !writer.wait_for_room() {
                    writers.wait();
                }
            }
        }
    });
}

/// The same; what the sender does is given. Its bells: the reader's and its own.
fn exchange_by(lengths: &'static [usize], switches: Option<usize>, give: fn(&[usize], &mut Writer, &Wakeup, &Wakeup)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = switches;
    model.check(move || {
        let (one, other) = Ring::pair();
        let (mut writer, mut reader) = (Writer::new(one), Reader::new(other));
        let wakeups = Arc::new((Wakeup::default(), Wakeup::default()));
        let theirs = wakeups.clone();
        let sender = loom::thread::spawn(move || {
            let (readers, writers) = &*theirs;
            give(lengths, &mut writer, readers, writers);
        });
        let (readers, writers) = &*wakeups;
        let mut got = Vec::new();
        while got.len() < lengths.len() {
            receive(&mut reader, writers, &mut got);
            if got.len() < lengths.len() {
                if !reader.sleep() {
                    readers.wait();
                }
                reader.awake();
            }
        }
        sender.join().unwrap();
        assert!(got.iter().copied().eq(0..lengths.len()), "records came as {got:?}");
        assert!(reader.peek().unwrap().is_none());
    });
}

#[test]
fn a_sleeping_reader_is_woken() {
    exchange(&[3], None);
    exchange(&[1, 1], Some(6));
}

/// Of a long message many records are lent before the sender looks whether the reader sleeps.
#[test]
fn one_look_after_some_records_wakes_a_sleeping_reader() {
    exchange_by(&[1, 1, 1], Some(4), |lengths, writer, readers, _| {
        for (number, length) in lengths.iter().enumerate() {
            assert!(lend(writer, number, *length));
        }
        wake(writer, readers);
    });
}

#[test]
fn records_come_whole_and_in_order() {
    exchange(&[0, MAX_RECORD, 8], Some(4));
}

/// Five lines through a ring of four: the writer waits for room, the last record wraps.
#[test]
fn a_waiting_writer_is_woken_and_records_wrap() {
    exchange(&[MAX_RECORD, 1, MAX_RECORD], Some(4));
}
