//! The receiving end of an `ofi` channel.

use super::super::{ChannelError, Deliver, Incoming, Puller, write_ack};
use super::assembly::Assembly;
use super::broken::Broken;
use super::contact::Contact;
use super::port::{OwnLine, SharedPort, lock};
use super::{CREDITS, Prefix, RETURN};
use mend_kernel::table::Placed;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long messages may be under way still when the sender's connection has ended without a marker: they take
/// another path than the connection's end.
const LATE_MESSAGE_TIME: Duration = Duration::from_secs(1);

/// The receiving end of a channel that is about to be accepted.
pub struct OfiAdmission {
    line: OwnLine,
    to: u64,
    theirs: u64,
}

impl OfiAdmission {
    /// Makes room for the sender's messages.
    ///
    /// # Errors
    /// No memory, the provider takes no more, or the sender is nowhere.
    pub fn begin(port: &SharedPort, theirs: &Contact) -> Result<Self, ChannelError> {
        let mut line = OwnLine::begin(port, false, CREDITS as usize)?;
        let to = line.meet(theirs)?;
        Ok(Self { line, to, theirs: theirs.line })
    }

    /// What to tell the sender.
    pub fn contact(&self) -> Contact {
        lock(&self.line.port).contact(self.line.number)
    }

    /// The sender has been told.
    pub fn finish(self, socket: Placed) -> OfiIncoming {
        let Self { line, to, theirs } = self;
        let (assembly, broken) = (Assembly::default(), Broken::default());
        OfiIncoming { line, to, theirs, socket, assembly, sequence: 0, drained: true, last: false, refused: false, ended: None, broken }
    }
}

/// See the module.
pub struct OfiIncoming {
    pub(super) line: OwnLine,
    pub(super) to: u64,
    pub(super) theirs: u64,
    socket: Placed,
    assembly: Assembly,
    sequence: u32,
    /// Nothing came since the last marker was acknowledged.
    drained: bool,
    /// A marker was, the last that came.
    last: bool,
    /// The provider did not take credits lately: it is still connecting, perhaps to a peer that computes.
    refused: bool,
    /// Since when the sender's connection is gone.
    ended: Option<Instant>,
    pub(super) broken: Broken,
}

impl OfiIncoming {
    /// Lets the sender send again what was read, if that is worth a message.
    fn return_credits(&mut self) -> Result<(), ChannelError> {
        let mut port = lock(&self.line.port);
        let credits = port.lines.owed(self.line.number);
        if credits < RETURN {
            return Ok(());
        }
        self.refused = true;
        let Some(number) = port.take_send() else { return Ok(()) };
        let prefix = Prefix { line: self.theirs, sequence: self.sequence, credits, back: 0 };
        let sent = port.send(number, 0, self.to, self.line.number, prefix);
        if matches!(sent, Ok(true)) {
            self.sequence = self.sequence.wrapping_add(1);
            self.refused = false;
            port.lines.repaid(self.line.number, credits);
        } else {
            port.give_back(number);
        }
        sent.map(drop)
    }
}

impl OfiIncoming {
    /// Something failed. A sender that has given up, or has said its last word, may have closed its port already.
    fn failed(&mut self, error: ChannelError) -> Result<(), ChannelError> {
        self.event()?;
        if self.last || self.drained && self.ended.is_some() {
            return Err(ChannelError::Closed);
        }
        self.broken.bear(error)
    }
}

impl Incoming for OfiIncoming {
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut packets, mut bytes) = (0, 0);
        // Its end may be noticed before the last messages, while the port rests.
        let moved = self.ended.is_some() && lock(&self.line.port).poll();
        while bytes < budget {
            // Not held while packets are delivered: answers to them use the port.
            let Some((number, base, len)) = lock(&self.line.port).take_mail(self.line.number) else { break };
            // SAFETY: the message's buffer, which is nobody else's until it is given back.
            let content = unsafe { std::slice::from_raw_parts(base, len) };
            let digested = self.assembly.digest(content, deliver);
            lock(&self.line.port).done(number, self.line.number);
            (self.drained, self.last) = (false, false);
            packets += digested?;
            bytes += len + 64;
        }
        if bytes == 0 {
            if self.ended.is_some_and(|since| self.last || !moved && since.elapsed() > LATE_MESSAGE_TIME) {
                return Err(ChannelError::Closed);
            }
            let fault = lock(&self.line.port).fault(self.line.number);
            if let Some(fault) = fault {
                self.failed(fault)?;
            } else if let Some(refusal) = self.broken.first() {
                // What the provider refused at once is no fault of the line, and is not tried again.
                self.failed(refusal)?;
            }
        }
        // The answer to what has come may take them along.
        if self.ended.is_none()
            && bytes == 0
            && !self.broken.is()
            && let Err(error) = self.return_credits()
        {
            self.failed(error)?;
        }
        Ok(packets)
    }

    fn event(&mut self) -> Result<(), ChannelError> {
        // The sender says nothing after its HELLO: readable means that it is gone.
        let mut byte = [0u8; 1];
        match rustix::net::recv(&self.socket, &mut byte, rustix::net::RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                self.ended.get_or_insert_with(Instant::now);
            }
            Ok(_) => return Err(ChannelError::Protocol("unexpected bytes on the socket".into())),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        (self.drained, self.last) = (true, true);
        write_ack(self.socket.as_fd(), marker)
    }

    fn puller(&mut self) -> Option<&mut dyn Puller> {
        Some(self)
    }

    fn sender_ended(&mut self) -> bool {
        self.ended.get_or_insert_with(Instant::now);
        true
    }

    fn polled(&self) -> bool {
        true
    }

    fn arm(&mut self) -> bool {
        let port = lock(&self.line.port);
        let due = port.lines.owed(self.line.number) >= RETURN && !self.refused;
        self.ended.is_some() || self.broken.is() || due || port.has_mail(self.line.number)
    }

    fn disarm(&mut self) {}

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
