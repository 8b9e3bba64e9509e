//! A rank's port into a core provider's network: buffers, credits, and which message belongs to which channel.
//!
//! Invariants: at any time as many receive buffers are posted as all peers together may fill, so a message always finds
//! one; what a peer may fill is bounded by its credits. A buffer is in one place: free, posted, being sent, or in the
//! inbox of a line.
//!
//! Faults assumed: anybody who reaches the network may send a message. It belongs to a channel only if it begins with
//! the number that was drawn for one of its directions and told to the peer alone, in the keyed handshake; anything
//! else is dropped and its buffer posted again. A peer that breaks the order or exceeds its credits loses its channel.

#[cfg(not(fuzzing))]
mod lines;
#[cfg(fuzzing)]
pub mod lines;
mod own_line;

pub use own_line::OwnLine;

use super::super::ChannelError;
use super::contact::Contact;
use super::{BUFFER, CREDIT_MESSAGES, CREDITS, PREFIX, Prefix};
use lines::Lines;
use mend_fabric_sys::core_provider::{BATCH, Core, CoreError, Event, Origin, Registration};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::c_void;
use std::net::IpAddr;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard};

/// Buffers made at a time.
const SLAB: usize = CREDITS as usize + CREDIT_MESSAGES;
/// Most buffers for sending, all peers together.
const SEND_BUFFERS: usize = 40;
/// Polls of the queue in one round: other channels have their turn.
const POLLS: usize = 8;
const PAGE: usize = 4096;

/// A port and its channels share it.
pub type SharedPort = Arc<Mutex<Port>>;

/// The port, in this process's turn.
pub fn lock(port: &SharedPort) -> MutexGuard<'_, Port> {
    let port = port.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    port.core.adopt();
    port
}

/// An operation, and its buffer if it is a message. Its address is the context of the operation, and the first bytes are
/// the provider's meanwhile.
#[repr(C)]
pub(super) struct Slot {
    /// `struct fi_context2`.
    provider: [u64; 8],
    number: u32,
    pub(super) purpose: Purpose,
    /// The line it is for, if it is known before the end.
    pub(super) line: u64,
    /// Of a read: whose it is.
    pub(super) token: u64,
    /// Of a read: its target.
    pub(super) registration: Option<Registration>,
    base: *mut u8,
    descriptor: *mut c_void,
}

/// What a slot's operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Receive,
    Send,
    Read,
}

/// Memory of some buffers.
struct Slab {
    base: NonNull<u8>,
    layout: Layout,
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: from alloc_zeroed with this layout; the endpoint that used it is closed.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// See the module.
pub struct Port {
    pub(super) core: Core,
    registrations: Vec<Registration>,
    slots: Vec<NonNull<Slot>>,
    slabs: Vec<Slab>,
    free: Vec<u32>,
    pub(super) free_reads: Vec<u32>,
    pub(super) next_key: u64,
    /// Reads that ended well.
    pub(super) reads: u64,
    sends: usize,
    sending: usize,
    /// Receive buffers that peers may fill.
    wanted: usize,
    posted: usize,
    /// Buffers in inboxes or being read.
    held: usize,
    pub(super) lines: Lines,
    peers: HashMap<Vec<u8>, (u64, u32)>,
    /// The line on which a peer sends, by the peer's number at the provider.
    sources: HashMap<u64, u64>,
    pub(super) fault: Option<ChannelError>,
    /// Something failed that no channel has been told of.
    failed: bool,
    /// What a provider would answer to each send: an errno, or "not now".
    #[cfg(test)]
    pub(super) answer: Option<Result<bool, i32>>,
}

// SAFETY: the pointers are to memory that the port owns; it is used under its lock.
unsafe impl Send for Port {}

impl Port {
    /// Opens a port.
    ///
    /// # Errors
    /// [`CoreError`].
    pub fn open(origin: Origin, provider: &str, source: IpAddr) -> Result<SharedPort, CoreError> {
        let core = Core::open(origin, provider, source, 0)?;
        Ok(Arc::new(Mutex::new(Self {
            core,
            registrations: Vec::new(),
            slots: Vec::new(),
            slabs: Vec::new(),
            free: Vec::new(),
            free_reads: Vec::new(),
            next_key: 0,
            reads: 0,
            sends: 0,
            sending: 0,
            wanted: 0,
            posted: 0,
            held: 0,
            lines: Lines::default(),
            peers: HashMap::new(),
            sources: HashMap::new(),
            fault: None,
            failed: false,
            #[cfg(test)]
            answer: None,
        })))
    }

    /// How peers reach it, with the number of a line.
    pub fn contact(&self, line: u64) -> Contact {
        Contact { provider: self.core.provider.clone(), format: self.core.format, address: self.core.address.clone(), line }
    }

    /// Descriptor that becomes readable when there is news, if the provider has one.
    pub fn wait(&self) -> Option<i32> {
        self.core.wait
    }

    /// About to sleep. False if there is something to do.
    pub fn may_sleep(&self) -> bool {
        self.core.may_sleep()
    }

    /// Reads of peers' memory that ended well.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// True when the provider has nothing left to send.
    pub fn quiet(&self) -> bool {
        self.sending == 0
    }

    /// From now on it has failed, as after an error of the provider's.
    #[cfg(test)]
    pub fn fail(&mut self) {
        self.fault = Some(ChannelError::Provider("it failed".into()));
    }

    /// From now on it takes no message.
    #[cfg(test)]
    pub fn stall(&mut self) {
        self.answer = Some(Ok(false));
    }

    /// Its contact is too long for every peer.
    #[cfg(test)]
    pub fn swell(&mut self) {
        self.core.provider = "x".repeat(1000);
    }

    /// Drives the provider. True if anything came.
    pub fn poll(&mut self) -> bool {
        let (mut moved, mut more) = (false, true);
        let mut events = Vec::new();
        for _ in 0..POLLS {
            // A look that finds nothing costs a system call with some providers.
            if !more {
                break;
            }
            match self.core.poll(&mut |event| events.push(event)) {
                Ok(0) => break,
                Ok(count) => more = count == BATCH,
                Err(errno) => {
                    let what = format!("the queue of {} failed with error {errno}", self.core.provider);
                    self.fault = Some(ChannelError::Provider(what));
                    self.failed = true;
                    break;
                }
            }
            moved = true;
            for event in events.drain(..) {
                self.obey(&event);
            }
        }
        if self.posted + self.held < self.wanted {
            self.replenish();
        }
        moved
    }

    fn obey(&mut self, event: &Event) {
        let (Event::Done { context, .. } | Event::Failed { context, .. }) = event;
        let Some(slot) = NonNull::new(context.cast::<Slot>()) else { return };
        // SAFETY: the context that was given with an operation: one of this port's slots, whose operation has ended.
        let (number, purpose, line) = unsafe { (slot.as_ref().number, slot.as_ref().purpose, slot.as_ref().line) };
        if purpose == Purpose::Read {
            self.read_ended(number, matches!(event, Event::Done { .. }));
            return;
        }
        if purpose == Purpose::Send {
            self.sending -= 1;
            self.sends -= 1;
            self.free.push(number);
            if let Event::Failed { errno, .. } = event {
                let cause = std::io::Error::from_raw_os_error(*errno);
                self.failed = true;
                self.lines.failed(line, ChannelError::Provider(format!("a send over {} failed: {cause}", self.core.provider)));
            }
            return;
        }
        self.posted -= 1;
        if let Event::Done { len, .. } = event
            && self.arrived(number, *len)
        {
            self.held += 1;
        } else {
            self.recycle(number);
        }
    }

    /// A message came. True if it is kept in its buffer.
    fn arrived(&mut self, number: u32, len: usize) -> bool {
        if !(PREFIX..=BUFFER).contains(&len) {
            return false;
        }
        let prefix = Prefix::decode(self.bytes(number));
        self.lines.arrived(prefix, number, len)
    }

    pub(super) fn slot(&self, number: u32) -> NonNull<Slot> {
        self.slots[number as usize]
    }

    /// The memory of a buffer that is in no operation.
    fn bytes(&self, number: u32) -> &[u8; BUFFER] {
        // SAFETY: a slot of this port; the provider is done with the memory, and the port's owner holds its lock.
        unsafe { &*self.slot(number).as_ref().base.cast() }
    }

    fn bytes_mut(&mut self, number: u32) -> &mut [u8; BUFFER] {
        // SAFETY: as above.
        unsafe { &mut *self.slot(number).as_ref().base.cast() }
    }

    fn take_free(&mut self) -> Result<u32, ChannelError> {
        if self.free.is_empty() {
            self.grow()?;
        }
        self.free.pop().ok_or(ChannelError::Io(rustix::io::Errno::NOBUFS))
    }

    fn grow(&mut self) -> Result<(), ChannelError> {
        let no_memory = ChannelError::Io(rustix::io::Errno::NOMEM);
        let layout = Layout::from_size_align(SLAB * BUFFER, PAGE).map_err(|_| no_memory.clone())?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(no_memory)?;
        let slab = Slab { base, layout };
        let mut descriptor = null_mut();
        if self.core.needs_descriptors() {
            let access = mend_fabric_sys::FI_SEND | mend_fabric_sys::FI_RECV;
            let key = self.registrations.len() as u64;
            // SAFETY: the slab lives until the port is closed, after its registrations.
            let registration = unsafe { self.core.register(base.as_ptr(), SLAB * BUFFER, access, key) }
                .map_err(|errno| ChannelError::Io(rustix::io::Errno::from_raw_os_error(errno)))?;
            descriptor = registration.descriptor();
            self.registrations.push(registration);
        }
        for at in 0..SLAB {
            let number = self.new_slot(base.as_ptr().wrapping_add(at * BUFFER), descriptor);
            self.free.push(number);
        }
        self.slabs.push(slab);
        Ok(())
    }

    pub(super) fn new_slot(&mut self, base: *mut u8, descriptor: *mut c_void) -> u32 {
        let number = self.slots.len() as u32;
        let (purpose, line, token, registration) = (Purpose::Receive, 0, 0, None);
        let slot = Box::new(Slot { provider: [0; 8], number, purpose, line, token, registration, base, descriptor });
        self.slots.push(NonNull::from(Box::leak(slot)));
        number
    }

    /// Posts a buffer. False: the provider takes no more now.
    fn post(&mut self, number: u32) -> Result<bool, ChannelError> {
        let mut slot = self.slot(number);
        // SAFETY: a free slot; its memory and context are the provider's until the event.
        let posted = unsafe {
            slot.as_mut().purpose = Purpose::Receive;
            let (base, descriptor) = (slot.as_ref().base, slot.as_ref().descriptor);
            self.core.receive(base, BUFFER, descriptor, slot.as_ptr().cast())
        };
        match posted {
            Ok(true) => {
                self.posted += 1;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(errno) => Err(ChannelError::Io(rustix::io::Errno::from_raw_os_error(errno))),
        }
    }

    /// A receive buffer has been read.
    fn recycle(&mut self, number: u32) {
        if self.posted + self.held >= self.wanted || !matches!(self.post(number), Ok(true)) {
            self.free.push(number);
        }
    }

    /// Posts what is missing, as far as the provider takes it.
    fn replenish(&mut self) {
        while self.posted + self.held < self.wanted {
            let Ok(number) = self.take_free() else { return };
            if !matches!(self.post(number), Ok(true)) {
                self.free.push(number);
                return;
            }
        }
    }

    /// Whether a buffer for sending may wait for a peer.
    pub fn has_spare_sends(&self) -> bool {
        self.sends < SEND_BUFFERS / 2
    }

    /// A buffer to fill for sending; `None` while too many are under way.
    pub fn take_send(&mut self) -> Option<u32> {
        if self.sends >= SEND_BUFFERS {
            return None;
        }
        let number = self.take_free().ok()?;
        self.sends += 1;
        Some(number)
    }

    /// Gives a send buffer back unsent.
    pub fn give_back(&mut self, number: u32) {
        self.sends -= 1;
        self.free.push(number);
    }

    /// Where the content of a send buffer goes.
    pub fn content(&mut self, number: u32) -> &mut [u8] {
        &mut self.bytes_mut(number)[PREFIX..]
    }

    /// Sends a buffer with this much content. False: not now.
    ///
    /// # Errors
    /// The provider failed.
    pub fn send(&mut self, number: u32, content: usize, to: u64, own_line: u64, mut prefix: Prefix) -> Result<bool, ChannelError> {
        let source = self.sources.get(&to).copied().filter(|_| prefix.credits == 0);
        if let Some(line) = source.and_then(|source| self.lines.get(source)).filter(|line| line.owed > 0) {
            (prefix.credits, prefix.back) = (line.owed, line.theirs);
        }
        let taken = self.launch(number, content, to, own_line, prefix)?;
        if let Some(source) = source.filter(|_| taken && prefix.credits > 0) {
            self.lines.repaid(source, prefix.credits);
        }
        Ok(taken)
    }

    fn launch(&mut self, number: u32, content: usize, to: u64, own_line: u64, prefix: Prefix) -> Result<bool, ChannelError> {
        prefix.encode(self.bytes_mut(number));
        let total = PREFIX + content.min(BUFFER - PREFIX);
        #[cfg(test)]
        if let Some(answer) = self.answer {
            return answer.map_err(|errno| self.refused(errno));
        }
        if total <= self.core.inject_size {
            let taken = self.core.inject(&self.bytes(number)[..total], to).map_err(|errno| self.refused(errno))?;
            if taken {
                self.give_back(number);
            }
            return Ok(taken);
        }
        let mut slot = self.slot(number);
        // SAFETY: a buffer that `take_send` gave, of which at most its length is sent; it is the provider's until the
        // event.
        let taken = unsafe {
            slot.as_mut().purpose = Purpose::Send;
            slot.as_mut().line = own_line;
            let bytes = std::slice::from_raw_parts(slot.as_ref().base, total);
            self.core.send(bytes, slot.as_ref().descriptor, to, slot.as_ptr().cast())
        };
        match taken {
            Ok(true) => {
                self.sending += 1;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(errno) => Err(self.refused(errno)),
        }
    }

    fn refused(&self, errno: i32) -> ChannelError {
        let cause = std::io::Error::from_raw_os_error(errno);
        ChannelError::Provider(format!("{} refuses a send: {cause}", self.core.provider))
    }

    /// True if something has failed since this was last asked: a channel that nobody uses just now may be broken.
    pub fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }

    /// True if something arrived.
    pub fn has_mail(&self, line: u64) -> bool {
        self.lines.has_mail(line) || self.fault.is_some()
    }

    /// The next message: buffer, and where its content is until [`Port::done`].
    pub fn take_mail(&mut self, line: u64) -> Option<(u32, *mut u8, usize)> {
        let (number, len) = self.lines.take_mail(line)?;
        // SAFETY: a slot of this port.
        let base = unsafe { self.slot(number).as_ref().base };
        Some((number, base.wrapping_add(PREFIX), len - PREFIX))
    }

    /// A read of the line that has ended: whose, and whether well.
    pub fn take_read(&mut self, line: u64) -> Option<(u64, bool)> {
        self.lines.get_mut(line)?.read.pop_front()
    }

    /// A message of a line has been read.
    pub fn done(&mut self, number: u32, line: u64) {
        self.held -= 1;
        self.recycle(number);
        self.lines.done(line);
    }

    /// True if it can be used no more.
    pub fn broken(&self) -> bool {
        self.fault.is_some()
    }

    /// What broke this line.
    pub fn fault(&self, line: u64) -> Option<ChannelError> {
        self.lines.fault(line).or(self.fault.as_ref()).cloned()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.core.adopt();
        // Ends all operations: then neither memory nor contexts are the provider's.
        self.core.close_endpoint();
        self.registrations.clear();
        for slot in self.slots.drain(..) {
            // SAFETY: leaked from a Box in `grow`.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}
