//! Messages on their way in.

use super::buffers::{Buffers, Payload, Segment};
use super::completion::Completion;
use super::matching::{Matcher, Memory, Posted, Source, Unexpected};
use super::packet::{Header, Kind, flag};
use super::{Class, Endpoint, Engine, Fault, Operation, Outlet};
use mend_fabric_sys::{
    FI_ECANCELED, FI_EINVAL, FI_ENOENT, FI_ENOMSG, FI_ETRUNC, FI_MSG, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED,
};
use mend_messages::job::Rank;

/// A receive to post.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Tag and ignored bits, or `None` for plain messages.
    pub tag: Option<(u64, u64)>,
    /// Only from this source, or from any.
    pub source: Option<Source>,
    /// Where the message goes, lent until the completion.
    pub buffers: Buffers,
    /// The application's context pointer.
    pub context: usize,
    /// Operation flags.
    pub flags: u64,
}

/// A long message that is arriving.
#[derive(Debug)]
pub(crate) struct Landing {
    pub endpoint: u16,
    pub peer: Rank,
    pub target: Target,
    pub announcement: Header,
    /// Bytes that will come: the message's, or the buffer's if it is shorter.
    pub expected: usize,
    received: usize,
}

impl Landing {
    /// True if some of it is here.
    pub fn is_halfway(&self) -> bool {
        self.received > 0
    }

    /// The CTS that asks for the data into operation `id`, which is this.
    pub fn clearance(&self, id: u64) -> Header {
        let mut answer = Header::new(Kind::Cts);
        answer.from = self.announcement.to;
        answer.to = self.announcement.from;
        answer.id = self.announcement.id;
        answer.length = self.expected as u64;
        answer.address = id;
        answer
    }
}

/// Where one message goes and how its end is told.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub buffers: Buffers,
    context: usize,
    report: bool,
    multi: Option<u64>,
}

/// A buffer that takes one message after the other.
#[derive(Debug)]
pub(crate) struct MultiBuffer {
    endpoint: u16,
    memory: Segment,
    used: usize,
    /// Messages that are still arriving into it.
    pending: u32,
    /// No longer posted: the completion of its last message gives it back.
    retired: bool,
    /// What gives it back instead, because it was cancelled.
    cancelled: Option<Completion>,
    context: usize,
    report: bool,
}

impl Endpoint {
    pub(super) fn matcher(&mut self, tagged: bool) -> &mut Matcher {
        if tagged { &mut self.tagged } else { &mut self.plain }
    }
}

/// Plain messages match by order alone: no bit of the (zero) tag counts.
fn pattern(tag: Option<(u64, u64)>) -> (bool, u64, u64) {
    tag.map_or((false, 0, u64::MAX), |(tag, ignore)| (true, tag, ignore))
}

impl Engine {
    /// Posts a receive, which may complete at once.
    ///
    /// # Errors
    /// `FI_EINVAL`: no such endpoint.
    pub fn receive(&mut self, out: &mut impl Outlet, endpoint: u16, receive: Receive) -> Result<(), i32> {
        self.calls += 1;
        let report = self.reports(endpoint, Class::Receive, receive.flags);
        let (tagged, tag, ignore) = pattern(receive.tag);
        let owner = self.endpoint(endpoint).ok_or(FI_EINVAL)?;
        let memory = if receive.flags & FI_MULTI_RECV != 0 {
            let [memory] = receive.buffers.segments() else { return Err(FI_EINVAL) };
            let (memory, context) = (*memory, receive.context);
            Memory::Multi(self.multi.insert(MultiBuffer {
                endpoint,
                memory,
                used: 0,
                pending: 0,
                retired: false,
                cancelled: None,
                context,
                report,
            }))
        } else if let Some(message) = owner.matcher(tagged).take(receive.source, tag, ignore) {
            let target = Target { buffers: receive.buffers, context: receive.context, report, multi: None };
            self.serve(out, endpoint, target, message);
            self.relieve(out, endpoint, tagged);
            return Ok(());
        } else {
            Memory::Whole(receive.buffers)
        };
        let posted = Posted { source: receive.source, tag, ignore, context: receive.context, report, memory };
        let multi = matches!(posted.memory, Memory::Multi(_));
        let owner = self.endpoint(endpoint).ok_or(FI_EINVAL)?;
        owner.matcher(tagged).post(posted);
        if multi {
            self.serve_waiting(out, endpoint, (tagged, tag, ignore), receive.source);
        }
        self.relieve(out, endpoint, tagged);
        Ok(())
    }

    /// Messages that waited go into a fresh multi-receive buffer, one after the other, while there is room in it (or in
    /// an older one).
    fn serve_waiting(&mut self, out: &mut impl Outlet, endpoint: u16, (tagged, tag, ignore): (bool, u64, u64), source: Option<Source>) {
        while let Some(message) = self.endpoint(endpoint).and_then(|owner| owner.matcher(tagged).take(source, tag, ignore)) {
            if let Some(target) = self.target(endpoint, tagged, message.source, message.header.tag, message.header.length) {
                self.serve(out, endpoint, target, message);
            } else {
                // The message was the oldest of those that match and nothing else can be before it.
                if let Some(owner) = self.endpoint(endpoint) {
                    owner.matcher(tagged).keep_first(message);
                }
                return;
            }
        }
    }

    /// Looks for a message without receiving it (`FI_PEEK`): reports it, and with `claim` keeps it for
    /// [`Engine::receive_claimed`], or with `discard` drops it.
    ///
    /// # Errors
    /// `FI_ENOMSG` if there is none, `FI_EINVAL`.
    pub fn peek(&mut self, out: &mut impl Outlet, endpoint: u16, receive: &Receive, claim: bool, discard: bool) -> Result<(), i32> {
        let (tagged, tag, ignore) = pattern(receive.tag);
        let owner = self.endpoint(endpoint).ok_or(FI_EINVAL)?;
        let matcher = owner.matcher(tagged);
        let Some(found) = matcher.peek(receive.source, tag, ignore) else {
            self.missed(out, endpoint, tagged, receive.source);
            return Err(FI_ENOMSG);
        };
        let completion = told(&found.header, found.source, receive.context, tagged);
        if claim || discard {
            let message = matcher.take(receive.source, tag, ignore).ok_or(FI_ENOMSG)?;
            if discard {
                refuse(out, message.source.0, &message.header);
                self.taken(out, message.source.0, &message.header);
            } else {
                owner.claimed.insert(receive.context, message);
            }
            self.relieve(out, endpoint, tagged);
        }
        let report = self.reports(endpoint, Class::Receive, receive.flags);
        self.tell(endpoint, Class::Receive, report, completion);
        Ok(())
    }

    /// Says in the completion queue that [`Engine::peek`] found nothing: `FI_ENOMSG`.
    pub fn report_missed(&mut self, endpoint: u16, receive: &Receive) {
        let (tagged, tag, _) = pattern(receive.tag);
        let kind = if tagged { FI_TAGGED } else { FI_MSG };
        let completion = Completion { context: receive.context, flags: FI_RECV | kind, error: FI_ENOMSG, tag, ..Completion::default() };
        self.tell(endpoint, Class::Receive, true, completion);
    }

    /// Receives (or with `discard` drops) the message that was claimed with the same context.
    ///
    /// # Errors
    /// `FI_EINVAL` if nothing was claimed with it.
    pub fn receive_claimed(&mut self, out: &mut impl Outlet, endpoint: u16, receive: Receive, discard: bool) -> Result<(), i32> {
        let report = self.reports(endpoint, Class::Receive, receive.flags);
        let owner = self.endpoint(endpoint).ok_or(FI_EINVAL)?;
        let message = owner.claimed.remove(&receive.context).ok_or(FI_EINVAL)?;
        if discard {
            refuse(out, message.source.0, &message.header);
            self.taken(out, message.source.0, &message.header);
            let completion = told(&message.header, message.source, receive.context, message.header.has(flag::TAGGED));
            self.finish(endpoint, Class::Receive, report, completion);
        } else {
            let target = Target { buffers: receive.buffers, context: receive.context, report, multi: None };
            self.serve(out, endpoint, target, message);
        }
        Ok(())
    }

    /// Cancels the posted receive of this context; it completes with `FI_ECANCELED`, a buffer for several messages once those that
    /// are arriving have arrived: its memory is not the program's before.
    ///
    /// # Errors
    /// `FI_ENOENT` if it is not posted (any more).
    pub fn cancel(&mut self, endpoint: u16, context: usize) -> Result<(), i32> {
        let owner = self.endpoint(endpoint).ok_or(FI_EINVAL)?;
        let (posted, kind) = match owner.tagged.cancel(context) {
            Some(posted) => (posted, FI_TAGGED),
            None => (owner.plain.cancel(context).ok_or(FI_ENOENT)?, FI_MSG),
        };
        let completion = Completion { context, flags: FI_RECV | kind, error: FI_ECANCELED, tag: posted.tag, ..Completion::default() };
        if let Memory::Multi(id) = posted.memory
            && let Some(multi) = self.multi.get_mut(id)
        {
            (multi.retired, multi.cancelled) = (true, Some(completion));
            self.give_back(id, None);
        } else {
            self.finish(endpoint, Class::Receive, true, completion);
        }
        Ok(())
    }

    /// Picks the posted receive of a message and the memory it goes to.
    fn target(&mut self, endpoint: u16, tagged: bool, source: Source, tag: u64, length: u64) -> Option<Target> {
        loop {
            let owner = self.endpoints.get_mut(usize::from(endpoint))?.as_mut()?;
            let minimum = owner.min_multi_receive;
            let matcher = owner.matcher(tagged);
            let place = matcher.find_posted(source, tag)?;
            let id = match &matcher.posted(place)?.memory {
                Memory::Whole(_) => {
                    let posted = matcher.remove(place)?;
                    let Memory::Whole(buffers) = posted.memory else { return None };
                    return Some(Target { buffers, context: posted.context, report: posted.report, multi: None });
                }
                Memory::Multi(id) => *id,
            };
            let Some(multi) = self.multi.get_mut(id) else {
                matcher.remove(place);
                continue;
            };
            let left = multi.memory.len - multi.used;
            if length > left as u64 && multi.used > 0 {
                matcher.remove(place);
                multi.retired = true;
                self.give_back(id, None);
                continue;
            }
            let taken = left.min(usize::try_from(length).unwrap_or(left));
            let memory = Segment { base: multi.memory.base.wrapping_add(multi.used), len: taken };
            // The next message starts aligned: MPICH reads its active-message headers in place.
            multi.used = (multi.used + taken).next_multiple_of(8).min(multi.memory.len);
            multi.pending += 1;
            multi.retired = multi.memory.len - multi.used < minimum.max(1);
            let target = Target { buffers: Buffers::One(memory), context: multi.context, report: multi.report, multi: Some(id) };
            if multi.retired {
                matcher.remove(place);
            }
            return Some(target);
        }
    }

    /// If the buffer is retired and idle, forgets it and reports that: with `last`, the completion of its last message, else by itself.
    fn give_back(&mut self, id: u64, last: Option<&mut Completion>) {
        let Some(multi) = self.multi.get(id).filter(|multi| multi.retired && multi.pending == 0) else { return };
        let (endpoint, context, report, cancelled) = (multi.endpoint, multi.context, multi.report, multi.cancelled);
        match (cancelled, last) {
            // That comes after this message.
            (Some(_), Some(_)) => return,
            (Some(cancelled), None) => self.finish(endpoint, Class::Receive, true, cancelled),
            (None, Some(last)) => last.flags |= FI_MULTI_RECV,
            // No message: no counter counts it.
            (None, None) => {
                self.tell(endpoint, Class::Receive, report, Completion { context, flags: FI_MULTI_RECV, ..Completion::default() })
            }
        }
        self.multi.remove(id);
    }

    /// EAGER: a whole message.
    pub(super) fn arrived(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header, payload: Payload) -> Result<(), Fault> {
        if header.length != payload.len() as u64 {
            return Err(Fault::Length);
        }
        let (tagged, source) = (header.has(flag::TAGGED), (peer, header.from));
        if let Some(target) = self.target(header.to, tagged, source, header.tag, header.length) {
            let placed = target.buffers.fill(0, payload);
            self.delivered(out, header.to, target, header, source, placed);
        } else if let Some(owner) = self.endpoint(header.to) {
            owner.matcher(tagged).keep(Unexpected { source, header: *header, body: payload.to_vec() });
            self.kept(out, header.to, tagged, source);
        } else {
            refuse(out, peer, header);
            self.taken(out, peer, header);
        }
        Ok(())
    }

    /// RTS: a long message is announced.
    pub(super) fn announced(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header, payload: Payload) -> Result<(), Fault> {
        if header.payload as usize != payload.len() {
            return Err(Fault::Length);
        }
        let (tagged, source) = (header.has(flag::TAGGED), (peer, header.from));
        let message = Unexpected { source, header: *header, body: payload.to_vec() };
        if let Some(target) = self.target(header.to, tagged, source, header.tag, header.length) {
            self.serve(out, header.to, target, message);
        } else if let Some(owner) = self.endpoint(header.to) {
            owner.matcher(tagged).keep(message);
            self.kept(out, header.to, tagged, source);
        } else {
            refuse(out, peer, header);
        }
        Ok(())
    }

    /// A waiting message meets its receive.
    fn serve(&mut self, out: &mut impl Outlet, endpoint: u16, target: Target, message: Unexpected) {
        let Unexpected { source, header, body } = message;
        if header.kind() == Some(Kind::Eager) {
            let placed = target.buffers.fill(0, Payload::one(&body));
            self.delivered(out, endpoint, target, &header, source, placed);
            return;
        }
        let expected = target.buffers.len().min(usize::try_from(header.length).unwrap_or(usize::MAX));
        let landing = Landing { endpoint, peer: source.0, target, announcement: header, expected, received: 0 };
        let mut answer = landing.clearance(0);
        if expected == 0 {
            out.post(source.0, &answer, &[]);
            self.delivered(out, endpoint, landing.target, &header, source, 0);
            return;
        }
        answer.address = self.operations.insert(Operation::Receive(landing));
        if !self.pull(out, source.0, answer.address, &header, &body) {
            out.post(source.0, &answer, &[]);
        }
    }

    /// The place of a message whose payload is on its way: it is received like the data of an announced one.
    pub(super) fn place_message(&mut self, peer: Rank, header: &mut Header) -> Option<Segment> {
        let (tagged, source) = (header.has(flag::TAGGED), (peer, header.from));
        let (endpoint, expected) = (header.to, header.payload as usize);
        let matcher = self.endpoint(endpoint)?.matcher(tagged);
        let place = matcher.find_posted(source, header.tag)?;
        let Memory::Whole(buffers) = &matcher.posted(place)?.memory else { return None };
        // What is truncated is better seen whole.
        if header.length != u64::from(header.payload) || buffers.len() < expected {
            return None;
        }
        let target = self.target(endpoint, tagged, source, header.tag, header.length)?;
        let landing = Landing { endpoint, peer, target, announcement: *header, expected, received: 0 };
        let mut data = Header::new(Kind::Data);
        data.from = header.from;
        data.to = endpoint;
        data.payload = header.payload;
        data.id = self.operations.insert(Operation::Receive(landing));
        *header = data;
        self.place_data(peer, header)
    }

    /// The place of data for a long message or a read.
    pub(super) fn place_data(&self, peer: Rank, header: &Header) -> Option<Segment> {
        let (buffers, limit) = match self.operations.get(header.id)? {
            Operation::Receive(landing) if landing.peer == peer => (&landing.target.buffers, landing.expected),
            Operation::Read(reading) => reading.room(peer)?,
            _ => return None,
        };
        let (offset, length) = (usize::try_from(header.address).ok()?, header.payload as usize);
        offset.checked_add(length).filter(|end| *end <= limit)?;
        buffers.slice(offset, length).segments().first().copied()
    }

    /// DATA: a piece of a long message or of a read.
    pub(super) fn landed(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header, payload: Payload) -> Result<(), Fault> {
        if header.payload as usize != payload.len() {
            return Err(Fault::Length);
        }
        let landing = match self.operations.get_mut(header.id) {
            Some(Operation::Receive(landing)) if landing.peer == peer => landing,
            Some(Operation::Read(_)) => return self.read_landed(peer, header, payload),
            // Its endpoint was closed meanwhile.
            _ => return Ok(()),
        };
        let offset = usize::try_from(header.address).map_err(|_| Fault::Excess)?;
        if offset.checked_add(payload.len()).is_none_or(|end| end > landing.expected) {
            return Err(Fault::Excess);
        }
        landing.target.buffers.fill(offset, payload);
        landing.received += payload.len();
        if landing.received >= landing.expected
            && let Some(Operation::Receive(landing)) = self.operations.remove(header.id)
        {
            let source = (peer, landing.announcement.from);
            self.delivered(out, landing.endpoint, landing.target, &landing.announcement, source, landing.expected);
        }
        Ok(())
    }

    /// A message is where it belongs.
    pub(super) fn delivered(
        &mut self,
        out: &mut impl Outlet,
        endpoint: u16,
        target: Target,
        header: &Header,
        source: Source,
        placed: usize,
    ) {
        self.taken(out, source.0, header);
        let mut completion = told(header, source, target.context, header.has(flag::TAGGED));
        completion.len = placed as u64;
        if header.length > placed as u64 {
            completion.error = FI_ETRUNC;
            completion.overflow = header.length - placed as u64;
        }
        if let Some(id) = target.multi {
            completion.buf = target.buffers.base() as usize;
            if let Some(multi) = self.multi.get_mut(id) {
                multi.pending = multi.pending.saturating_sub(1);
            }
            self.give_back(id, Some(&mut completion));
        }
        if header.has(flag::ACK) {
            out.post(source.0, &answer(Kind::Ack, header), &[]);
        }
        self.finish(endpoint, Class::Receive, target.report, completion);
        if let Some(id) = target.multi {
            self.give_back(id, None);
        }
    }
}

/// What a completion tells about a message.
fn told(header: &Header, source: Source, context: usize, tagged: bool) -> Completion {
    let mut flags = FI_RECV | if tagged { FI_TAGGED } else { FI_MSG };
    if header.has(flag::DATA) {
        flags |= FI_REMOTE_CQ_DATA;
    }
    Completion { context, flags, len: header.length, data: header.data, tag: header.tag, source: Some(source), ..Completion::default() }
}

/// Lets the sender of a dropped message complete.
pub(super) fn refuse(out: &mut impl Outlet, peer: Rank, header: &Header) {
    if header.kind() == Some(Kind::Rts) {
        out.post(peer, &answer(Kind::Cts, header), &[]);
    }
    if header.has(flag::ACK) {
        out.post(peer, &answer(Kind::Ack, header), &[]);
    }
}

/// Lets the sender of a message complete that was arriving: one that was asked for hears it if it waits for that, one that was being read always.
pub(super) fn dismiss(out: &mut impl Outlet, landing: &Landing) {
    let header = &landing.announcement;
    if header.kind() == Some(Kind::Rts) || header.has(flag::ACK) {
        out.post(landing.peer, &answer(Kind::Ack, header), &[]);
    }
}

/// An answer about the sender's operation of a message.
fn answer(kind: Kind, header: &Header) -> Header {
    Header { from: header.to, to: header.from, id: header.id, ..Header::new(kind) }
}
