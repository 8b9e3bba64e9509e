//! Long messages: the sender registers its buffer with the provider, the receiver reads it (`fi_read`).
//!
//! An offer holds for one channel: its kind is drawn with the channel's number, so that what was offered over a channel
//! that is gone is not read over its successor, where its keys mean nothing. Registrations are made per message;
//! providers whose registration is dear keep a cache of their own.

use super::super::{ChannelError, NotPulled, Pulled, Puller};
use super::incoming::OfiIncoming;
use super::port::{Port, Purpose, lock};
use crate::channel::opening::nonce;
use crate::engine::buffers::Segment;
use crate::engine::pull::{Offer, Piece};
use mend_fabric_sys::core_provider::Registration;
use mend_fabric_sys::{FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_READ, FI_REMOTE_READ};
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes per read.
const READ_BYTES: usize = 1 << 20;
/// Reads under way per channel.
const MAX_READS: usize = 8;
/// Reads of a peer that is gone end with an error; a provider that has none to tell after this time is closed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Tickets of all channels of this process: one of another channel must not be mistaken.
static TICKETS: AtomicU64 = AtomicU64::new(1);

/// Kind of the offers on a channel whose sender has this number. Never 0 nor that of a channel without numbers.
pub fn kind(line: u64) -> u32 {
    line as u32 | 1 << 31
}

/// What a channel has offered: registrations by ticket.
#[derive(Default)]
pub struct Offers(HashMap<u64, Vec<Registration>>);

impl Offers {
    /// Registers a message. `None` if the provider will not.
    pub fn make(&mut self, port: &mut Port, kind: u32, message: &[Segment]) -> Option<Offer> {
        let (mut registrations, mut pieces) = (Vec::new(), Vec::new());
        for segment in message.iter().filter(|segment| segment.len > 0) {
            let registration = port.register(segment, FI_REMOTE_READ)?;
            let address = if port.mr_mode() & FI_MR_VIRT_ADDR != 0 { segment.base as u64 } else { 0 };
            pieces.push(Piece { address, length: segment.len as u64, key: registration.key() });
            registrations.push(registration);
        }
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        self.0.insert(ticket, registrations);
        Some(Offer { kind, ticket, pieces })
    }

    /// Ends an offer, if it is one of these.
    pub fn end(&mut self, ticket: u64) {
        self.0.remove(&ticket);
    }
}

impl Port {
    fn mr_mode(&self) -> i32 {
        self.core.mr_mode
    }

    /// Lets the provider access memory that the application lends for an operation.
    fn register(&mut self, segment: &Segment, access: u64) -> Option<Registration> {
        let key = if self.core.mr_mode & FI_MR_PROV_KEY != 0 {
            0
        } else if self.core.key_size >= 8 {
            // Whoever reaches the network could try keys.
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&nonce().ok()?[..8]);
            u64::from_le_bytes(bytes) >> 1
        } else {
            self.next_key += 1;
            self.next_key & ((1 << (8 * self.core.key_size)) - 1)
        };
        // SAFETY: the memory is lent until the operation ends, and its registration goes before.
        unsafe { self.core.register(segment.base, segment.len, access, key) }.ok()
    }

    /// Starts a read into lent memory. False: too much is under way.
    fn read(&mut self, line: u64, to: u64, token: u64, remote: Piece, local: Segment) -> Result<bool, NotPulled> {
        let Some(open) = self.lines.get(line) else { return Err(NotPulled) };
        if open.reads >= MAX_READS {
            return Ok(false);
        }
        let registration = if self.core.needs_descriptors() { Some(self.register(&local, FI_READ).ok_or(NotPulled)?) } else { None };
        let descriptor = registration.as_ref().map_or(null_mut(), Registration::descriptor);
        let number = match self.free_reads.pop() {
            Some(number) => number,
            None => self.new_slot(null_mut(), null_mut()),
        };
        let mut slot = self.slot(number);
        // SAFETY: a free slot; the memory is lent, and the links wait for the end of all reads before they give it back.
        let taken = unsafe {
            let slot = slot.as_mut();
            (slot.purpose, slot.line, slot.token, slot.registration) = (Purpose::Read, line, token, registration);
            self.core.read(local.base, local.len, descriptor, to, (remote.address, remote.key), std::ptr::from_mut(slot).cast())
        };
        if matches!(taken, Ok(true)) {
            if let Some(line) = self.lines.get_mut(line) {
                line.reads += 1;
            }
            return Ok(true);
        }
        // SAFETY: a slot of this port, in no operation.
        unsafe { slot.as_mut().registration = None };
        self.free_reads.push(number);
        taken.map_err(|_| NotPulled)
    }

    /// A read has ended.
    pub(super) fn read_ended(&mut self, number: u32, well: bool) {
        let mut slot = self.slot(number);
        // SAFETY: a slot of this port, whose operation has ended.
        let (line, token) = unsafe {
            slot.as_mut().registration = None;
            (slot.as_ref().line, slot.as_ref().token)
        };
        self.free_reads.push(number);
        self.reads += u64::from(well);
        if let Some(line) = self.lines.get_mut(line) {
            line.reads -= 1;
            line.read.push_back((token, well));
        }
    }

    /// Waits until no read of this line is under way, and forgets how they ended.
    fn end_reads(&mut self, number: u64) {
        let began = Instant::now();
        loop {
            let Some(line) = self.lines.get_mut(number) else { return };
            line.read.clear();
            if line.reads == 0 {
                return;
            }
            if began.elapsed() > END_LIMIT || self.fault.is_some() {
                // Memory comes before channels: with the endpoint everything of this port ends.
                self.core.close_endpoint();
                self.fault = Some(ChannelError::Provider("reads did not end".into()));
                line.reads = 0;
                return;
            }
            if !self.poll() {
                rustix::thread::sched_yield();
            }
        }
    }
}

impl Puller for OfiIncoming {
    fn kind(&self) -> u32 {
        kind(self.theirs)
    }

    fn chunk(&self) -> usize {
        READ_BYTES
    }

    fn read(&mut self, token: u64, remote: Piece, local: Segment) -> Result<Pulled, NotPulled> {
        let started = lock(&self.line.port).read(self.line.number, self.to, token, remote, local)?;
        Ok(if started { Pulled::Started } else { Pulled::Full })
    }

    fn completed(&mut self) -> Option<(u64, Result<(), NotPulled>)> {
        let (token, well) = lock(&self.line.port).take_read(self.line.number)?;
        Some((token, if well { Ok(()) } else { Err(NotPulled) }))
    }

    fn cancel(&mut self) {
        lock(&self.line.port).end_reads(self.line.number);
    }
}
