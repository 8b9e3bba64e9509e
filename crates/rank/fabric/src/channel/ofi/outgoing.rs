//! The sending end of an `ofi` channel.

use super::super::{AckReader, ChannelError, Outgoing};
use super::broken::Broken;
use super::contact::Contact;
use super::port::{OwnLine, Port, SharedPort, lock};
use super::reads::{Offers, kind};
use super::{CONTENT, CREDIT_MESSAGES, Prefix};
use crate::engine::buffers::{Segment, gather};
use crate::engine::packet::{HEADER, Header, Queued};
use crate::engine::pull::Offer;
use mend_kernel::table::Placed;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};

/// Payload of a packet of a long transfer: with its header it fills some messages to the brim.
const CHUNK: usize = 5 * CONTENT - HEADER;
const _: () = assert!(CHUNK <= crate::engine::packet::MAX_PAYLOAD);
/// Longest message that is sent: two of the provider's. Each further one costs it as much as 30 KiB in one, and could have to
/// wait for a credit: reading is the faster way.
const MAX_SENT_BYTES: usize = 2 * CONTENT - HEADER;

/// The sending end of a channel whose handshake is under way.
pub struct OfiOpening {
    line: OwnLine,
}

impl OfiOpening {
    /// Prepares to be answered.
    ///
    /// # Errors
    /// No memory, or the provider takes no more.
    pub fn begin(port: &SharedPort) -> Result<Self, ChannelError> {
        Ok(Self { line: OwnLine::begin(port, true, CREDIT_MESSAGES)? })
    }

    /// What to tell the receiver.
    pub fn contact(&self) -> Contact {
        lock(&self.line.port).contact(self.line.number)
    }

    /// The receiver has accepted, and told where it is.
    ///
    /// # Errors
    /// It is nowhere.
    pub fn finish(mut self, socket: Placed, theirs: &Contact) -> Result<OfiOutgoing, ChannelError> {
        let to = self.line.meet(theirs)?;
        Ok(OfiOutgoing {
            line: self.line,
            to,
            theirs: theirs.line,
            socket,
            acks: AckReader::default(),
            stage: None,
            rest: Vec::new(),
            sent: 0,
            sequence: 0,
            first: Some(Vec::new()),
            refused: false,
            offers: Offers::default(),
            broken: Broken::default(),
        })
    }
}

/// See the module.
pub struct OfiOutgoing {
    line: OwnLine,
    to: u64,
    theirs: u64,
    socket: Placed,
    acks: AckReader,
    /// A buffer that is being filled, and its bytes so far.
    stage: Option<(u32, usize)>,
    /// Rest of a packet for which there was no buffer; nothing else is taken before it.
    rest: Vec<u8>,
    sent: usize,
    sequence: u32,
    /// The packets that were taken, until a message has left: should none ever leave, they go another way.
    first: Option<Vec<Queued>>,
    /// The provider took no message lately, or has all buffers. It tells when that changes.
    refused: bool,
    offers: Offers,
    broken: Broken,
}

impl OfiOutgoing {
    /// Copies bytes into buffers and sends those that are full. Returns how many found room.
    fn put(&mut self, port: &mut Port, bytes: &[u8]) -> Result<usize, ChannelError> {
        let mut put = 0;
        while put < bytes.len() {
            // Without a credit a buffer waits for this peer, and there are few for all of them.
            let may = port.lines.has_credit(self.line.number) || port.has_spare_sends();
            let Some((number, filled)) = self.stage.or_else(|| if may { Some((port.take_send()?, 0)) } else { None }) else {
                self.refused = may;
                break;
            };
            let part = (bytes.len() - put).min(CONTENT - filled);
            port.content(number)[filled..filled + part].copy_from_slice(&bytes[put..put + part]);
            self.stage = Some((number, filled + part));
            put += part;
            if filled + part == CONTENT && !self.launch(port)? {
                break;
            }
        }
        Ok(put)
    }

    /// Sends the stage, if there is a credit. False: something is left.
    fn launch(&mut self, port: &mut Port) -> Result<bool, ChannelError> {
        let Some((number, filled)) = self.stage else { return Ok(true) };
        if !port.lines.take_credit(self.line.number) {
            return Ok(false);
        }
        let prefix = Prefix { line: self.theirs, sequence: self.sequence, credits: 0, back: 0 };
        self.refused = !port.send(number, filled, self.to, self.line.number, prefix)?;
        if self.refused {
            port.lines.return_credit(self.line.number);
            return Ok(false);
        }
        self.sequence = self.sequence.wrapping_add(1);
        (self.stage, self.first) = (None, None);
        Ok(true)
    }

    /// A part of a packet: into buffers, else into the rest.
    fn append(&mut self, port: &mut Port, bytes: &[u8]) -> Result<(), ChannelError> {
        let put = if self.rest.is_empty() && !self.full() { self.put(port, bytes)? } else { 0 };
        self.rest.extend_from_slice(&bytes[put..]);
        Ok(())
    }

    fn full(&self) -> bool {
        self.stage.is_some_and(|(_, filled)| filled == CONTENT)
    }

    /// Sends what it can. True if nothing of an earlier packet is left outside of the stage, and the stage has room.
    fn advance(&mut self, port: &mut Port) -> Result<bool, ChannelError> {
        if let Some(fault) = port.fault(self.line.number) {
            return Err(fault);
        }
        if self.full() && !self.launch(port)? {
            return Ok(false);
        }
        while self.sent < self.rest.len() {
            let rest = std::mem::take(&mut self.rest);
            let put = self.put(port, &rest[self.sent..]);
            self.rest = rest;
            let put = put?;
            self.sent += put;
            if put == 0 || self.full() {
                return Ok(false);
            }
        }
        self.rest.clear();
        self.sent = 0;
        Ok(true)
    }
}

impl OfiOutgoing {
    /// What an attempt means: a provider's failure is no room, at first.
    fn judge(&mut self, outcome: Result<bool, ChannelError>) -> Result<bool, ChannelError> {
        outcome.or_else(|error| self.broken.bear(error).map(|()| false))
    }

    fn take(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let port = self.line.port.clone();
        let port = &mut *lock(&port);
        if !self.advance(port)? {
            return Ok(false);
        }
        self.append(port, header.as_bytes())?;
        for segment in payload.iter().filter(|segment| segment.len > 0) {
            // SAFETY: the application lends the memory for the operation; it is only read here.
            self.append(port, unsafe { std::slice::from_raw_parts(segment.base, segment.len) })?;
        }
        if self.rest.is_empty() {
            self.launch(port)?;
        }
        if let Some(first) = &mut self.first {
            first.push(Queued { header: *header, payload: gather(payload) });
        }
        Ok(true)
    }

    fn finish(&mut self) -> Result<bool, ChannelError> {
        let port = self.line.port.clone();
        let port = &mut *lock(&port);
        Ok(self.advance(port)? && self.launch(port)?)
    }
}

impl Outgoing for OfiOutgoing {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if self.broken.is() {
            return self.broken.look().map(|()| false);
        }
        let outcome = self.take(header, payload);
        self.judge(outcome)
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        if self.broken.is() {
            return self.broken.look().map(|()| false);
        }
        let outcome = self.finish();
        self.judge(outcome)
    }

    fn unsent(&self) -> bool {
        self.stage.is_some() || self.sent < self.rest.len() || self.broken.is()
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn eager_limit(&self) -> usize {
        MAX_SENT_BYTES
    }

    fn offer(&mut self, message: &[Segment]) -> Option<Offer> {
        self.offers.make(&mut lock(&self.line.port), kind(self.line.number), message)
    }

    fn retract(&mut self, ticket: u64) {
        self.offers.end(ticket);
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        self.acks.read(self.socket.as_fd())
    }

    fn arm(&mut self) -> bool {
        let port = lock(&self.line.port);
        let may = self.unsent() && !self.refused && port.lines.has_credit(self.line.number);
        self.broken.is() || port.fault(self.line.number).is_some() || may
    }

    fn wake(&mut self) {}

    fn take_back(&mut self) -> Option<Vec<Queued>> {
        self.first.take()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn full_by_socket(&self) -> bool {
        false
    }

    fn keeps(&self) -> bool {
        false
    }

    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        f(self.socket.as_raw_fd());
    }

    fn mapping(&self) -> Option<(usize, usize)> {
        None
    }

    fn forget(self: Box<Self>) {
        // Port and all: no image holds an open one.
        std::mem::forget(self);
    }
}

impl Drop for OfiOutgoing {
    fn drop(&mut self) {
        // Before the port may go with the line.
        self.offers = Offers::default();
        if let Some((number, _)) = self.stage {
            lock(&self.line.port).give_back(number);
        }
    }
}
