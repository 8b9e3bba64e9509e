//! Messages on their way out.

use super::buffers::{Buffers, MAX_SEGMENTS, Segment, gather};
use super::completion::Completion;
use super::matching::RECORD_BYTES;
use super::packet::{Header, Kind, MAX_PAYLOAD, flag};
use super::{Class, Engine, Fault, Operation, Outlet, Stream};
use mend_fabric_sys::{
    FI_DELIVERY_COMPLETE, FI_EAGAIN, FI_EINVAL, FI_EIO, FI_EMSGSIZE, FI_INJECT, FI_MATCH_COMPLETE, FI_MSG, FI_SEND, FI_TAGGED,
};
use mend_messages::job::Rank;
use std::collections::hash_map::Entry;

/// Longest message that travels at once on every channel, without asking the receiver. Bytes.
///
/// Below it a message is copied into the channel (or the peer's queue) and the application has its buffer back; above,
/// a round trip makes sure that the data goes straight into the receiver's buffer.
pub const EAGER_LIMIT: usize = 16 * 1024;

/// The provider's `inject_size`, bytes. Such messages are copied at once on any channel; longer ones may be worth reading.
pub const INJECT_LIMIT: usize = 8 * 1024;
const _: () = assert!(INJECT_LIMIT <= EAGER_LIMIT);

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Receiver: rank and endpoint.
    pub to: (Rank, u16),
    /// Tag, or `None` for a plain message.
    pub tag: Option<u64>,
    /// Remote completion data.
    pub data: Option<u64>,
    /// The bytes, lent until the completion (or only for the call, if `inject`).
    pub segments: &'a [Segment],
    /// The application's context pointer.
    pub context: usize,
    /// Operation flags (`FI_COMPLETION`, `FI_DELIVERY_COMPLETE`, …).
    pub flags: u64,
    /// The buffer is the application's again when the call returns, and nothing is reported.
    pub inject: bool,
}

/// A message that waits for its receiver.
#[derive(Debug)]
pub(crate) struct Sending {
    pub endpoint: u16,
    pub peer: Rank,
    context: usize,
    report: bool,
    flags: u64,
    /// The message, if the application has its buffer back already; `buffers` is this memory then.
    copy: Option<Box<[u8]>>,
    /// `Some` until the receiver has asked for the data.
    buffers: Option<Buffers>,
    length: usize,
    header: Header,
    /// Complete only when the receiver acknowledges.
    pub awaits_ack: bool,
    /// The links still read the buffers.
    pub streaming: bool,
    /// The receiver may read the message by itself; then its acknowledgement is the end.
    pub ticket: Option<u64>,
}

impl Sending {
    /// The receiving endpoint.
    pub fn to(&self) -> u16 {
        self.header.to
    }

    /// A message that was offered and not asked for ends by the acknowledgement, as one whose delivery is to be confirmed.
    fn may_end_by_ack(&self) -> bool {
        self.awaits_ack || (self.ticket.is_some() && self.buffers.is_some())
    }
}

impl Engine {
    /// Sends a message.
    ///
    /// # Errors
    /// An `FI_E…` number: `FI_EAGAIN` while too much is waiting for the receiver (a round of progress is needed), `FI_EINVAL`, `FI_EMSGSIZE`.
    pub fn send(&mut self, out: &mut impl Outlet, endpoint: u16, message: &Message<'_>) -> Result<(), i32> {
        if !out.has_room(message.to.0) {
            return Err(FI_EAGAIN);
        }
        if message.segments.len() > MAX_SEGMENTS {
            return Err(FI_EINVAL);
        }
        let length: usize = message.segments.iter().map(|segment| segment.len).sum();
        if message.inject && length > INJECT_LIMIT {
            return Err(FI_EMSGSIZE);
        }
        let copied = message.inject || message.flags & FI_INJECT != 0;
        let short = length <= if copied { INJECT_LIMIT } else { out.eager_limit(message.to.0).min(MAX_PAYLOAD) };
        let held = self.held_messages.concerns(message.to, message.tag.is_some());
        let too_much = if held { self.held_messages.is_full(message.to, message.tag.is_some()) } else { self.flow.is_ahead(message.to.0) };
        if too_much {
            return Err(FI_EAGAIN);
        }
        let eager = short && !held && self.flow.admit(message.to.0, length);
        // What is announced must be copied then. A peer that is slow to take part holds that up; one that takes part, but
        // none of the messages, does not, because it may need a later one first.
        if copied && !eager && !held && !out.flows(message.to.0) {
            return Err(FI_EAGAIN);
        }
        self.calls += 1;
        self.traffic.count(message.to.0, length);
        if !held && self.flow.leaves(message.to.0) {
            self.ask(out, endpoint, message.to, message.tag.is_some());
        }
        let mut header = Header::new(if eager { Kind::Eager } else { Kind::Rts });
        header.from = endpoint;
        header.to = message.to.1;
        header.length = length as u64;
        if let Some(tag) = message.tag {
            header.flags |= flag::TAGGED;
            header.tag = tag;
        }
        if let Some(data) = message.data {
            header.flags |= flag::DATA;
            header.data = data;
        }
        let kind = FI_SEND | if message.tag.is_some() { FI_TAGGED } else { FI_MSG };
        let awaits_ack = !message.inject && message.flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) != 0;
        if awaits_ack {
            header.flags |= flag::ACK;
        }
        let report = !message.inject && self.reports(endpoint, Class::Send, message.flags);
        // What a channel does not take at once of a longer one would have to be copied.
        let lend = eager && !copied && length > EAGER_LIMIT;
        if eager && !lend {
            header.payload = length as u32;
            if awaits_ack {
                let sending = Sending {
                    endpoint,
                    peer: message.to.0,
                    context: message.context,
                    report,
                    flags: kind,
                    copy: None,
                    buffers: None,
                    length,
                    header,
                    awaits_ack,
                    streaming: false,
                    ticket: None,
                };
                header.id = self.operations.insert(Operation::Send(sending));
            }
            out.post(message.to.0, &header, message.segments);
            if !awaits_ack {
                self.finish(endpoint, Class::Send, report, Completion { context: message.context, flags: kind, ..Completion::default() });
            }
            return Ok(());
        }
        if lend || !copied && !short && !held && length <= out.lend_limit(message.to.0) && self.flow.admit(message.to.0, length) {
            header.kind = Kind::Eager as u8;
            header.payload = length as u32;
            let (context, peer, flags) = (message.context, message.to.0, kind);
            let sending = Sending {
                endpoint,
                peer,
                context,
                report,
                flags,
                copy: None,
                buffers: None,
                length,
                header,
                awaits_ack,
                streaming: true,
                ticket: None,
            };
            let id = self.operations.insert(Operation::Send(sending));
            header.id = if awaits_ack { id } else { 0 };
            if out.lend(message.to.0, &header, message.segments, id) {
                self.streamed(out, id);
            }
            return Ok(());
        }
        // A message that must not go at once, although the application wants its buffer back.
        let mut copy = copied.then(|| gather(message.segments).into_boxed_slice());
        let buffers = match (&mut copy, message.segments) {
            (Some(copy), _) => Buffers::One(Segment { base: copy.as_mut_ptr(), len: copy.len() }),
            (None, [one]) => Buffers::One(*one),
            (None, many) => Buffers::Many(many.into()),
        };
        let sending = Sending {
            endpoint,
            peer: message.to.0,
            context: message.context,
            report,
            flags: kind,
            copy,
            buffers: Some(buffers),
            length,
            header,
            awaits_ack,
            streaming: false,
            ticket: None,
        };
        let id = self.operations.insert(Operation::Send(sending));
        if copied {
            *self.copies.entry(message.to.0).or_default() += 1;
            out.stays();
        }
        if held {
            let copied = if copied { length } else { 0 };
            self.keep(out, id, (endpoint, message.to), message.tag.is_some(), copied);
        } else {
            self.announce(out, id);
        }
        Ok(())
    }

    /// Announces a message that waits for its receiver.
    fn announce(&mut self, out: &mut impl Outlet, id: u64) {
        let Some(Operation::Send(sending)) = self.operations.get_mut(id) else { return };
        let Some(buffers) = &sending.buffers else { return };
        let mut header = sending.header;
        header.id = id;
        let offer = out.offer(sending.peer, buffers.segments());
        sending.ticket = offer.as_ref().map(|offer| offer.ticket);
        let body = offer.as_ref().and_then(|offer| offer.announce(&mut header)).unwrap_or(Segment::EMPTY);
        out.post(sending.peer, &header, &[body][..usize::from(body.len > 0)]);
    }

    /// A message that was held back leaves; about how many bytes it takes with its receiver if it has to wait there.
    pub(super) fn let_go(&mut self, out: &mut impl Outlet, id: u64) -> u64 {
        let Some(Operation::Send(sending)) = self.operations.get_mut(id) else { return 0 };
        let (peer, length) = (sending.peer, sending.length);
        self.flow.leaves(peer);
        if length > EAGER_LIMIT || !self.flow.admit(peer, length) {
            self.announce(out, id);
            return RECORD_BYTES;
        }
        let Some(buffers) = sending.buffers.take() else { return 0 };
        let mut header = sending.header;
        (header.kind, header.payload) = (Kind::Eager as u8, length as u32);
        let awaits_ack = sending.awaits_ack;
        header.id = if awaits_ack { id } else { 0 };
        out.post(peer, &header, buffers.segments());
        if !awaits_ack {
            self.finish_send(out, id, 0);
        }
        RECORD_BYTES + length as u64
    }

    /// CTS: the receiver has a buffer.
    pub(super) fn cleared(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) -> Result<(), Fault> {
        let Some(Operation::Send(sending)) = self.operations.get_mut(header.id) else { return Ok(()) };
        if sending.peer != peer || header.length > sending.length as u64 {
            return Err(Fault::Length);
        }
        let Some(buffers) = sending.buffers.take() else { return Err(Fault::Excess) };
        if header.length == 0 {
            self.streamed(out, header.id);
            return Ok(());
        }
        sending.streaming = true;
        let mut data = Header::new(Kind::Data);
        data.from = sending.header.from;
        data.to = sending.header.to;
        data.id = header.address;
        let length = header.length as usize;
        out.stream(peer, Stream { header: data, buffers, base: 0, offset: 0, length, operation: header.id, region: None });
        Ok(())
    }

    /// ACK: the receiver (or the target of a write, or a refused read) is done.
    pub(super) fn acknowledged(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) -> Result<(), Fault> {
        let error = i32::try_from(header.aux).unwrap_or(FI_EIO);
        match self.operations.get(header.id) {
            Some(Operation::Send(sending)) if sending.peer == peer && sending.may_end_by_ack() => {
                // Too early, if its bytes are still on their way: the buffer is the application's again all the same.
                if sending.streaming {
                    out.withdraw(&|stream| stream.operation == header.id);
                }
                self.finish_send(out, header.id, error);
            }
            Some(Operation::Write(transfer)) if transfer.peer == peer => self.finish_write(out, header.id, error),
            Some(Operation::Read(reading)) if reading.transfer.peer == peer => self.finish_read(header.id, error),
            // Late answers to something that has ended are harmless.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn finish_send(&mut self, out: &mut impl Outlet, id: u64, error: i32) {
        if let Some(Operation::Send(sending)) = self.operations.remove(id) {
            self.forget_send(out, &sending);
            let completion = Completion { context: sending.context, flags: sending.flags, error, long: true, ..Completion::default() };
            self.finish(sending.endpoint, Class::Send, sending.report, completion);
        }
    }

    /// It is no operation any more.
    pub(super) fn forget_send(&mut self, out: &mut impl Outlet, sending: &Sending) {
        if let Some(ticket) = sending.ticket {
            out.retract(sending.peer, ticket);
        }
        if sending.copy.is_some()
            && let Entry::Occupied(mut copies) = self.copies.entry(sending.peer)
        {
            *copies.get_mut() -= 1;
            if *copies.get() == 0 {
                copies.remove();
            }
        }
    }
}
