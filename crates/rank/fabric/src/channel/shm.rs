//! Channels between ranks of one node: a ring in shared memory, event descriptors as doorbells, and for long messages
//! the sender's memory.
//!
//! A receiver that can name the sender's process, as the two are in one PID namespace and the kernel allows it, reads with
//! `process_vm_readv`. Others are given a descriptor of the sender's `/proc/self/mem`, which only its owner could open and
//! which the kernel copies twice. Either is for reading only, the keyed handshake comes first, and what a sender offers is
//! a place in its own memory, so a false offer shows the receiver nothing else. Where there is no such descriptor (a program
//! made itself undumpable, no `/proc`), long messages go through the ring.
//!
//! A packet that is longer than a record (it was made for another channel, and its receiver has moved here since) goes as
//! parts: records of a kind of their own, which carry the bytes of header and payload. Nothing comes between them.

use super::pace::{Pace, Prospect};
use super::ring::{CAPACITY, MAX_RECORD, Reader, Ring, Writer};
use super::{AckReader, ChannelError, Deliver, Incoming, NotPulled, Outgoing, Pulled, Puller, write_ack};
use crate::engine::EAGER_LIMIT;
use crate::engine::buffers::{Payload, Segment, gather};
use crate::engine::packet::{HEADER, Header, Kind, MAX_STREAMED, flag};
use crate::engine::pull::{Offer, Piece};
use crate::fabric::cycles;
use mend_kernel::namespaces::peer_of;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Payload of a packet of a long transfer: small enough that sender and receiver copy at the same time, large enough
/// that the header costs nothing. It goes with the ring's capacity.
const CHUNK: usize = 9 * 1024;
#[cfg(not(loom))]
const _: () = assert!((CHUNK + 64) * 3 <= CAPACITY && CHUNK <= MAX_RECORD);

/// Kind of a record that carries a part of a packet; no packet is of this kind.
const PART: u8 = 0;
/// Kind of the offers: addresses of the sender's memory.
const OFFER: u32 = 1;
/// Longest message that goes through the ring at once if the receiver could read it: above, two more packets cost less
/// than the second copy.
const SHORT: usize = 8 * 1024;
/// Bytes per read by descriptor.
const READ: usize = 256 * 1024;
/// By process: each call begins with a look at the process and its rights. It takes half a millisecond.
const LONG_READ: usize = 4 << 20;
/// If reading takes so many times longer than copying, the ring is likely to be the faster way for all messages.
const SLOW: u64 = 3;
/// Bytes that are copied and read to compare.
const SAMPLE: usize = 64 * 1024;
/// How often: interruptions make single times too long.
const SAMPLES: usize = 5;
/// Bytes of a page.
const PAGE: usize = 4096;
const _: () = assert!(SHORT <= EAGER_LIMIT && EAGER_LIMIT <= MAX_STREAMED);

/// This process's memory, to read. `None`: the system does not allow it.
pub fn open_own_memory() -> Option<OwnedFd> {
    rustix::fs::open("/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Lets others of this user read this process's memory where Yama would let ancestors only (`ptrace_scope` 1), which some
/// distributions have set. A restored process has to ask again.
pub fn allow_readers() {
    const ANYBODY: libc::c_ulong = libc::c_ulong::MAX;
    if std::fs::read("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.starts_with(b"1")) {
        // SAFETY: the call takes a number and touches no memory. If it fails, readers have the descriptor.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, ANYBODY, 0, 0, 0) };
    }
}

/// The sender's memory.
#[derive(Debug)]
struct Memory {
    file: OwnedFd,
    /// Its process, as long as nothing stands in the way of reading it by that.
    process: Option<Pid>,
}

impl Memory {
    /// What `socket` leads to has given us `file`.
    fn new(file: OwnedFd, socket: &OwnedFd) -> Self {
        let process = peer_of(socket.as_fd()).ok().and_then(|(_, process)| process);
        Self { file, process }
    }

    /// Bytes read from `place` on to `target`, at most `length`; 0: the sender has ended.
    ///
    /// # Safety
    /// `target` is this process's to write to.
    unsafe fn read(&mut self, place: u64, target: *mut u8, length: usize) -> std::io::Result<usize> {
        if let Some(process) = self.process {
            let local = libc::iovec { iov_base: target.cast(), iov_len: length };
            let remote = libc::iovec { iov_base: place as *mut libc::c_void, iov_len: length };
            // SAFETY: the kernel writes at most `length` bytes to the target, which the caller vouches for, and checks the rest.
            let read = unsafe { libc::process_vm_readv(process.as_raw_nonzero().get(), &raw const local, 1, &raw const remote, 1, 0) };
            if read > 0 {
                return Ok(read as usize);
            }
            // Not allowed (Yama, seccomp), or not the process any more that it was.
            self.process = None;
        }
        let place = i64::try_from(place).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        // The kernel goes in steps of a page's length from where it starts: steps that lie across two pages of the sender
        // cost half as much again.
        let to_boundary = PAGE - place as usize % PAGE;
        let part = if to_boundary < PAGE && length > PAGE { to_boundary } else { length };
        // SAFETY: as above.
        let read = unsafe { libc::pread(self.file.as_raw_fd(), target.cast(), part, place) };
        usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
    }
}

/// What [`prospect`] has found of reading by file and by process: nothing yet, or what a read costs, twice, and one more if that
/// is slow.
static FOUND: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Forgets what was found: this process may be on another machine now.
pub fn look_again() {
    FOUND.iter().for_each(|found| found.store(0, Ordering::Relaxed));
}

/// What reading a process's memory costs here, and whether that is much slower than copying. The kernel goes page by page, with a
/// look at the page table for each; how that compares with plain copying differs between processors by a factor of five.
fn prospect(by_process: bool) -> Prospect {
    let known = &FOUND[usize::from(by_process)];
    if known.load(Ordering::Relaxed) == 0 {
        let process = by_process.then(rustix::process::getpid);
        let memory = open_own_memory().map(|file| Memory { file, process });
        let found = memory.and_then(|mut memory| compare(&mut memory)).unwrap_or(Prospect { read: 1, slow: false });
        known.store(found.read.max(1) << 1 | u64::from(found.slow), Ordering::Relaxed);
    }
    let found = known.load(Ordering::Relaxed);
    Prospect { read: found >> 1, slow: found & 1 == 1 }
}

/// Reads and copies a little of this process's memory: takes some 50 µs.
fn compare(memory: &mut Memory) -> Option<Prospect> {
    let (source, mut target) = (vec![1u8; SAMPLE], vec![0u8; SAMPLE]);
    let (mut copied, mut read) = (u64::MAX, u64::MAX);
    for _ in 0..SAMPLES {
        let began = cycles();
        black_box(&mut target).copy_from_slice(black_box(&source));
        copied = copied.min(cycles().saturating_sub(began));
        let began = cycles();
        let mut done = 0;
        while done < SAMPLE {
            let part = &mut target[done..];
            // SAFETY: the part is as long as told.
            match unsafe { memory.read(source[done..].as_ptr() as u64, part.as_mut_ptr(), part.len()) } {
                Ok(more @ 1..) => done += more,
                _ => return None,
            }
        }
        read = read.min(cycles().saturating_sub(began));
    }
    Some(Prospect { read: read * 1024 / SAMPLE as u64, slow: read > copied.saturating_mul(SLOW) })
}

fn ring_bell(bell: &OwnedFd) {
    // It can only fail when the counter is at its maximum, and then the bell has rung.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Sending end.
#[derive(Debug)]
pub struct ShmOutgoing {
    writer: Writer,
    socket: OwnedFd,
    bell: OwnedFd,
    acks: AckReader,
    /// The receiver has this process's memory.
    readable: bool,
    /// A packet that goes in parts; the first `sent` bytes of it have gone.
    rest: Vec<u8>,
    sent: usize,
    /// Something was lent since the last look at whether the receiver sleeps.
    unheard: bool,
}

impl ShmOutgoing {
    /// A channel whose peer has accepted; `bell` is the peer's doorbell; `readable` if it was given our memory.
    pub fn new(ring: Ring, socket: OwnedFd, bell: OwnedFd, readable: bool) -> Self {
        Self { writer: Writer::new(ring), socket, bell, acks: AckReader::default(), readable, rest: Vec::new(), sent: 0, unheard: false }
    }

    fn write(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let written = self.writer.write(header, payload)?;
        if written && self.writer.reader_asleep() {
            ring_bell(&self.bell);
        }
        Ok(written)
    }
}

impl Outgoing for ShmOutgoing {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if self.unsent() && !self.flush()? {
            return Ok(false);
        }
        if header.payload as usize <= MAX_RECORD {
            return self.write(header, payload);
        }
        self.rest.extend_from_slice(header.as_bytes());
        self.rest.extend_from_slice(&gather(payload));
        self.flush()?;
        Ok(true)
    }

    /// The fence before the look at a sleeping receiver waits until the record's lines have moved. After each of many it would
    /// take half as long as copying them.
    fn lend(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if self.unsent() || header.payload as usize > MAX_RECORD {
            return self.send(header, payload);
        }
        let written = self.writer.write(header, payload)?;
        self.unheard |= written;
        Ok(written)
    }

    fn lent(&mut self) {
        if std::mem::take(&mut self.unheard) && self.writer.reader_asleep() {
            ring_bell(&self.bell);
        }
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        while self.sent < self.rest.len() {
            let part = CHUNK.min(self.rest.len() - self.sent);
            let mut header = Header::new(Kind::Data);
            (header.kind, header.payload) = (PART, part as u32);
            let bytes = Segment { base: self.rest[self.sent..].as_mut_ptr(), len: part };
            if !self.write(&header, &[bytes])? {
                return Ok(false);
            }
            self.sent += part;
        }
        (self.rest, self.sent) = (Vec::new(), 0);
        Ok(true)
    }

    fn unsent(&self) -> bool {
        !self.rest.is_empty()
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn eager_limit(&self) -> usize {
        if self.readable { SHORT } else { EAGER_LIMIT }
    }

    fn offer(&mut self, message: &[Segment]) -> Option<Offer> {
        let piece = |segment: &Segment| Piece { address: segment.base as u64, length: segment.len as u64, key: 0 };
        let pieces = || message.iter().filter(|segment| segment.len > 0).map(piece).collect();
        self.readable.then(|| Offer { kind: OFFER, ticket: 0, pieces: pieces() })
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        self.acks.read(self.socket.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.writer.wait_for_room()
    }

    fn ring(&mut self) {
        ring_bell(&self.bell);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn full_by_socket(&self) -> bool {
        false
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
        f(self.bell.as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        Some(self.writer.ring().mapping())
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self.writer.into_ring());
        let _ = (self.socket.into_raw_fd(), self.bell.into_raw_fd());
    }
}

/// Receiving end.
#[derive(Debug)]
pub struct ShmIncoming {
    reader: Reader,
    socket: OwnedFd,
    bell: OwnedFd,
    /// The sender's memory.
    memory: Option<Memory>,
    /// A packet that comes in parts.
    partial: Vec<u8>,
    ended: bool,
    /// A look since the last record found nothing.
    waited: Cell<bool>,
    pace: Pace,
}

impl ShmIncoming {
    /// A channel that was admitted; `bell` is the sender's doorbell, `memory` its memory, if it was given.
    pub fn new(ring: Ring, socket: OwnedFd, bell: OwnedFd, memory: Option<OwnedFd>) -> Self {
        Self {
            reader: Reader::new(ring),
            memory: memory.map(|file| Memory::new(file, &socket)),
            socket,
            bell,
            partial: Vec::new(),
            ended: false,
            waited: Cell::new(true),
            pace: Pace::default(),
        }
    }

    fn by_process(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.process.is_some())
    }

    /// A part of a packet; the last one delivers it.
    fn part(&mut self, payload: Payload, deliver: Deliver<'_>) -> Result<(), ChannelError> {
        let impossible = || Err(ChannelError::Protocol("impossible parts in a ring".into()));
        self.partial.extend_from_slice(&payload.to_vec());
        let Some(bytes) = self.partial.first_chunk::<HEADER>() else { return impossible() };
        let header = Header::from_bytes(bytes);
        let length = header.payload as usize;
        if length > MAX_STREAMED || header.kind == PART || self.partial.len() > HEADER + length {
            return impossible();
        }
        if self.partial.len() == HEADER + length {
            let packet = std::mem::take(&mut self.partial);
            deliver.packet(&header, Payload::one(&packet[HEADER..]))?;
        }
        Ok(())
    }
}

impl Puller for ShmIncoming {
    fn kind(&self) -> u32 {
        OFFER
    }

    fn chunk(&self) -> usize {
        if self.by_process() { LONG_READ } else { READ }
    }

    fn declines(&mut self, token: u64, length: usize) -> bool {
        self.pace.rings(token, length, prospect(self.by_process()), cycles())
    }

    fn read(&mut self, token: u64, remote: Piece, local: Segment) -> Result<Pulled, NotPulled> {
        let memory = self.memory.as_mut().ok_or(NotPulled)?;
        let began = cycles();
        let mut done = 0;
        while done < local.len {
            let place = remote.address.checked_add(done as u64).ok_or(NotPulled)?;
            // SAFETY: the target is memory lent for the receiving operation, of which at most what is left is written.
            match unsafe { memory.read(place, local.base.wrapping_add(done), local.len - done) } {
                Ok(read @ 1..) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // The sender has ended, or its memory is not (any more) as it said.
                _ => return Err(NotPulled),
            }
        }
        self.pace.read(token, done, cycles().wrapping_sub(began));
        Ok(Pulled::Done)
    }
}

impl Incoming for ShmIncoming {
    #[inline]
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut packets, mut bytes) = (0, 0);
        while bytes < budget {
            let Some((header, payload)) = self.reader.peek()? else { break };
            let delivered = if header.kind == PART {
                self.part(payload, deliver)
            } else if !self.partial.is_empty() {
                Err(ChannelError::Protocol("a packet between the parts of another".into()))
            } else {
                deliver.packet(&header, payload)
            };
            if header.kind == Kind::Data as u8 {
                self.pace.came(header.id, payload.len(), header.has(flag::LAST), cycles);
            }
            self.reader.advance();
            delivered?;
            packets += 1;
            bytes += payload.len() + 64;
            // What was waited for seldom comes with more, and the sender has the line in which that would begin: to look there
            // takes as long as a message. If there is more, the next call finds it, and looks for the rest as well.
            if self.waited.take() {
                break;
            }
        }
        if packets > 0 {
            if self.reader.writer_waits() {
                ring_bell(&self.bell);
            }
        } else if self.ended {
            return Err(ChannelError::Closed);
        }
        Ok(packets)
    }

    #[inline]
    fn quiet(&self) -> bool {
        let empty = self.reader.is_empty();
        if empty {
            self.waited.set(true);
        }
        empty && !self.ended
    }

    fn event(&mut self) -> Result<(), ChannelError> {
        // The sender says nothing after its HELLO: readable means that it is gone. What is in the ring stays.
        let mut byte = [0u8; 1];
        match rustix::net::recv(&self.socket, &mut byte, rustix::net::RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => self.ended = true,
            Ok(_) => return Err(ChannelError::Protocol("unexpected bytes on the socket".into())),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        write_ack(self.socket.as_fd(), marker)?;
        ring_bell(&self.bell);
        Ok(())
    }

    fn puller(&mut self) -> Option<&mut dyn Puller> {
        if self.memory.is_some() { Some(self) } else { None }
    }

    fn polled(&self) -> bool {
        true
    }

    fn arm(&mut self) -> bool {
        self.reader.sleep() || self.ended
    }

    fn disarm(&mut self) {
        self.reader.awake();
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
        f(self.bell.as_raw_fd());
        if let Some(memory) = &self.memory {
            f(memory.file.as_raw_fd());
        }
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        Some(self.reader.ring().mapping())
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self.reader.into_ring());
        let _ = (self.socket.into_raw_fd(), self.bell.into_raw_fd(), self.memory.map(|memory| memory.file.into_raw_fd()));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel::Sink;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (ShmOutgoing, ShmIncoming) {
        let (ring, file) = Ring::create().unwrap();
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        (ShmOutgoing::new(ring, one, bell(), false), ShmIncoming::new(Ring::open(&file).unwrap(), other, bell(), None))
    }

    /// By process and by descriptor; a process that is not (any more) there leaves the descriptor.
    #[test]
    fn memory_is_read_by_either_way() {
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let nobody = Pid::from_raw(gone.id() as i32);
        let source: Vec<u8> = (0..5 * PAGE).map(|at| (at / 3) as u8).collect();
        for process in [Some(rustix::process::getpid()), None, nobody] {
            let mut memory = Memory { file: open_own_memory().unwrap(), process };
            let mut target = vec![0; source.len()];
            let mut done = 0;
            while done < source.len() {
                let part = &mut target[done..];
                // SAFETY: as long as told.
                done += unsafe { memory.read(source[done..].as_ptr() as u64, part.as_mut_ptr(), part.len()) }.unwrap();
            }
            assert!(source == target);
            assert_eq!(memory.process, process.filter(|_| process != nobody));
            // Nothing is mapped there.
            // SAFETY: as above.
            assert!(unsafe { memory.read(1 << 46, target.as_mut_ptr(), 8) }.is_err());
        }
    }

    /// Also where Yama restricts it (tier `vm`): a child may not read its parent then.
    #[test]
    fn neighbours_may_read_by_process() {
        let (source, mut target) = ([7u8; 16], [0u8; 16]);
        let parent = rustix::process::getpid().as_raw_nonzero().get();
        allow_readers();
        // SAFETY: the child makes two system calls, on memory of its own, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let local = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: 16 };
            let remote = libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: 16 };
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(libc::process_vm_readv(parent, &raw const local, 1, &raw const remote, 1, 0) != 16)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours to write to.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn eager(tag: u64, length: usize) -> (Header, Vec<u8>) {
        let mut header = Header::new(Kind::Eager);
        (header.tag, header.payload, header.length) = (tag, length as u32, length as u64);
        (header, (0..length).map(|at| (at / 7 + tag as usize) as u8).collect())
    }

    /// What was made for a socket and waits when its receiver moves to this node still arrives whole and in its turn.
    #[test]
    fn a_packet_longer_than_the_ring_arrives_between_others() {
        let (mut out, mut incoming) = pair();
        let lengths = [10, MAX_STREAMED, 0, MAX_RECORD + 1, MAX_RECORD, 100_000];
        let packets: Vec<_> = lengths.iter().enumerate().map(|(tag, length)| eager(tag as u64, *length)).collect();
        let (mut sent, mut got) = (0, Vec::new());
        while got.len() < packets.len() {
            if sent < packets.len() && out.send(&packets[sent].0, &[Segment::of(&packets[sent].1)]).unwrap() {
                sent += 1;
            } else {
                out.flush().unwrap();
            }
            let mut sink = |header: &Header, payload: Payload| {
                got.push((*header, payload.to_vec()));
                Ok(())
            };
            incoming.receive(usize::MAX, &mut sink as &mut dyn Sink).unwrap();
        }
        assert!(got == packets && !out.unsent() && out.flush().unwrap());
    }

    #[test]
    fn parts_that_make_no_packet_are_refused() {
        let part = |length: usize| {
            let mut header = Header::new(Kind::Data);
            (header.kind, header.payload) = (PART, length as u32);
            header
        };
        let (whole, _) = eager(1, 2000);
        let (long, _) = eager(1, MAX_STREAMED + 1);
        let mut nested = whole;
        nested.kind = PART;
        let mut much = whole.as_bytes().to_vec();
        much.resize(HEADER + 2001, 1);
        for bytes in [&whole.as_bytes()[..HEADER - 1], long.as_bytes(), nested.as_bytes(), &much] {
            let (mut out, mut incoming) = pair();
            assert!(out.writer.write(&part(bytes.len()), &[Segment::of(bytes)]).unwrap());
            let mut sink = |_: &Header, _: Payload| -> Result<(), ChannelError> { panic!("delivered") };
            assert!(matches!(incoming.receive(1, &mut sink as &mut dyn Sink), Err(ChannelError::Protocol(_))));
        }
        let (mut out, mut incoming) = pair();
        assert!(out.writer.write(&part(HEADER), &[Segment::of(whole.as_bytes())]).unwrap());
        assert!(out.writer.write(&eager(2, 0).0, &[]).unwrap());
        let mut sink = |_: &Header, _: Payload| -> Result<(), ChannelError> { panic!("delivered") };
        assert_eq!(incoming.receive(usize::MAX, &mut sink as &mut dyn Sink).unwrap(), 1);
        assert!(matches!(incoming.receive(usize::MAX, &mut sink as &mut dyn Sink), Err(ChannelError::Protocol(_))));
    }

    /// What was waited for comes alone, the rest together.
    #[test]
    fn after_a_wait_one_packet_comes_alone() {
        let (mut out, mut incoming) = pair();
        let count = |incoming: &mut ShmIncoming| {
            let mut sink = |_: &Header, _: Payload| Ok(());
            incoming.receive(usize::MAX, &mut sink as &mut dyn Sink).unwrap()
        };
        assert!(incoming.quiet());
        for number in 0..4 {
            assert!(out.send(&eager(number, 0).0, &[]).unwrap());
        }
        assert!(!incoming.quiet());
        assert_eq!([count(&mut incoming), count(&mut incoming), count(&mut incoming)], [1, 3, 0]);
    }
}
