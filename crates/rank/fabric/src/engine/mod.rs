//! The protocol above the channels: matching, rendezvous, RMA.
//!
//! Pure: it takes packets ([`Engine::handle`]) and calls of the application, and gives packets to an [`Outlet`] and
//! completions to its queues. It knows no channel, no file descriptor and no clock, so all of its state is ordinary
//! memory that a checkpoint saves, and it runs in tests without libfabric.
//!
//! Faults assumed: a peer may send anything (lengths, numbers and keys are checked; a packet that cannot be obeyed is
//! a [`Fault`], upon which its channel is closed). Packets of one peer arrive in order, each once.

pub mod back_pressure;
pub mod buffers;
pub mod completion;
pub mod flow;
pub mod matching;
mod ordered;
pub mod packet;
pub mod pull;
mod receive;
mod rma;
mod send;
pub mod slab;
#[cfg(test)]
mod tests;
pub mod traffic;

pub use receive::Receive;
pub use rma::{Begun, Grant, Reached, Region, RegionAccess, Transfer};
pub use send::{EAGER_LIMIT, INJECT_LIMIT, Message};

use back_pressure::HeldMessages;
use buffers::{Buffers, Payload, Segment};
use completion::{Completion, Counter, Queue};
use flow::Flow;
use matching::{Matcher, Unexpected};
use mend_messages::job::Rank;
use packet::{Header, Kind};
use pull::{Offer, Pull};
use slab::Slab;
use std::collections::{BTreeSet, HashMap};
use traffic::Traffic;

/// A long transfer that the links cut into packets as the channel has room.
#[derive(Debug)]
pub struct Stream {
    /// Header of every packet; `payload`, `address` and [`packet::flag::LAST`] are filled in per packet.
    pub header: Header,
    /// The source.
    pub buffers: Buffers,
    /// `address` of the first byte.
    pub base: u64,
    /// Bytes already handed to the channel.
    pub offset: usize,
    /// Bytes in all, never 0.
    pub length: usize,
    /// Operation to tell when the last byte is handed over; 0: nobody.
    pub operation: u64,
    /// Region the source lies in, if a peer reads it.
    pub region: Option<u64>,
}

/// Where the engine puts what must travel.
pub trait Outlet {
    /// False while too much is waiting for this peer; the application is told to try again.
    fn has_room(&self, peer: Rank) -> bool;
    /// True while nothing waits for this peer: it takes part in what goes on.
    fn flows(&self, _peer: Rank) -> bool {
        true
    }
    /// Longest message to this peer that had better travel at once, between [`EAGER_LIMIT`] and
    /// [`packet::MAX_PAYLOAD`] bytes.
    fn eager_limit(&self, peer: Rank) -> usize;
    /// Longest message that [`Outlet::lend`] takes now, bytes.
    fn lend_limit(&self, _peer: Rank) -> usize {
        0
    }
    /// Like [`Outlet::post`] without a copy, for a message no longer than [`Outlet::lend_limit`] or [`Outlet::eager_limit`] says
    /// just now. False: the
    /// payload stays lent until [`Engine::streamed`] is told of `operation`. True: it is the application's again.
    fn lend(&mut self, peer: Rank, header: &Header, payload: &[Segment], _operation: u64) -> bool {
        self.post(peer, header, payload);
        true
    }
    /// Sends a packet after all posted before to this peer. The payload is copied before this returns.
    fn post(&mut self, peer: Rank, header: &Header, payload: &[Segment]);
    /// A message whose buffer the application has back waits here for a word of its receiver.
    fn stays(&mut self) {}
    /// Sends a long transfer, not ordered with packets.
    fn stream(&mut self, peer: Rank, stream: Stream);
    /// Forgets the streams that `f` picks; returns their peers and headers.
    fn withdraw(&mut self, f: &dyn Fn(&Stream) -> bool) -> Vec<(Rank, Header)>;
    /// Lets this peer read a message of these bytes by itself. `None`: it cannot.
    fn offer(&mut self, peer: Rank, message: &[Segment]) -> Option<Offer>;
    /// The peer has no more use for the offer of this ticket.
    fn retract(&mut self, peer: Rank, ticket: u64);
    /// Reads or writes a peer's memory at once, without its taking part.
    fn access(&mut self, _peer: Rank, _wanted: &RegionAccess, _local: &[Segment]) -> Reached {
        Reached::Not
    }
    /// True if this peer is to be asked for a grant of the region, in the packet that is posted next.
    fn ask(&mut self, _peer: Rank, _key: u64) -> bool {
        false
    }
    /// This peer has granted what it was asked for.
    fn granted(&mut self, _peer: Rank, _key: u64, _grant: Grant) {}
    /// Version of a grant for this peer. `None`: it can have none now.
    fn version(&self, _peer: Rank) -> Option<u64> {
        None
    }
    /// All grants that this rank has given are over when this returns, as far as peers look from now on.
    fn revoke(&mut self) {}
    /// Reads from a peer's memory; [`Engine::pulled`] hears of the end. False: it cannot be done.
    fn pull(&mut self, peer: Rank, pull: Pull) -> bool;
    /// Forgets the reads of these operations; their memory is not touched any more when this returns.
    fn abandon(&mut self, operations: &[u64]);
}

/// A packet that cannot be obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not a kind of packet.
    #[error("unknown kind of packet {0}")]
    Kind(u8),
    /// Bytes beyond the end of what was announced.
    #[error("more data than announced")]
    Excess,
    /// Header and payload disagree.
    #[error("header and payload disagree")]
    Length,
}

/// Kinds of operations that counters tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Messages out.
    Send = 0,
    /// Messages in.
    Receive = 1,
    /// RMA reads.
    Read = 2,
    /// RMA writes.
    Write = 3,
}

/// How an endpoint is bound to a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// Number of the queue.
    pub queue: u64,
    /// Only operations with `FI_COMPLETION` are reported.
    pub selective: bool,
}

/// An endpoint's state.
#[derive(Debug, Default)]
pub struct Endpoint {
    /// Queue of transmissions.
    pub tx: Option<Binding>,
    /// Queue of receives.
    pub rx: Option<Binding>,
    /// Counters by [`Class`].
    pub counters: [Option<u64>; 4],
    /// Space left in a multi-receive buffer under which it is given back, bytes.
    pub min_multi_receive: usize,
    /// Number of its address vector, by which sources are told.
    pub vector: u64,
    pub(crate) tagged: Matcher,
    pub(crate) plain: Matcher,
    pub(crate) claimed: HashMap<usize, Unexpected>,
    /// It receives no more; what it has sent goes on.
    shut: bool,
}

impl Endpoint {
    /// Leaves what has been sent its queue, and nothing to receive. Gives the messages that nobody will ask for any more.
    fn shut(&mut self) -> impl Iterator<Item = Unexpected> + use<> {
        let kept = Self { tx: self.tx, counters: self.counters, shut: true, ..Self::default() };
        std::mem::replace(self, kept).into_waiting()
    }

    fn into_waiting(self) -> impl Iterator<Item = Unexpected> {
        self.tagged.into_waiting().chain(self.plain.into_waiting()).chain(self.claimed.into_values())
    }
}

/// An operation under way.
#[derive(Debug)]
pub(crate) enum Operation {
    Send(send::Sending),
    Receive(receive::Landing),
    Write(rma::Transfering),
    Read(rma::Reading),
}

/// The whole protocol state of a process.
#[derive(Debug, Default)]
pub struct Engine {
    /// Endpoints by the number peers know them by.
    pub endpoints: Vec<Option<Endpoint>>,
    /// Completion queues.
    pub queues: Slab<Queue>,
    /// The counters that the library made.
    pub counters: Slab<Counter>,
    /// What may wait of each peer.
    pub flow: Flow,
    pub(crate) held_messages: HeldMessages,
    pub(crate) operations: Slab<Operation>,
    pub(crate) multi: Slab<receive::MultiBuffer>,
    pub(crate) regions: HashMap<u64, Region>,
    /// Reads and writes that wait for each peer.
    pub(crate) waiting: HashMap<Rank, usize>,
    /// Messages to each peer whose buffers the application has back, and that wait here for their receiver: it may be long until the program
    /// makes a round again.
    pub(crate) copies: HashMap<Rank, usize>,
    /// Messages that were sent or received into, and one-sided operations: how far the program has come.
    pub calls: u64,
    /// With whom it exchanges how much.
    pub traffic: Traffic,
}

impl Engine {
    /// Opens an endpoint and returns its number; `None` if there are too many.
    pub fn open_endpoint(&mut self) -> Option<u16> {
        let at = self.endpoints.iter().position(Option::is_none).unwrap_or(self.endpoints.len());
        let number = u16::try_from(at).ok()?;
        if at == self.endpoints.len() {
            self.endpoints.push(None);
        }
        self.endpoints[at] = Some(Endpoint::default());
        Some(number)
    }

    /// Has an endpoint receive nothing any more. Senders that wait for that hear that they need not: two ranks that end would wait for each
    /// other. What it has sent goes on.
    pub fn shut_endpoint(&mut self, out: &mut impl Outlet, number: u16) {
        let lands = |operation: &Operation| matches!(operation, Operation::Receive(landing) if landing.endpoint == number);
        let mine = self.operations.find_all(lands);
        out.abandon(&mine);
        for id in mine {
            if let Some(Operation::Receive(landing)) = self.operations.remove(id) {
                receive::dismiss(out, &landing);
                self.taken(out, landing.peer, &landing.announcement);
            }
        }
        for tagged in [false, true] {
            self.missed(out, number, tagged, None);
        }
        let waiting = self.endpoint(number).map(Endpoint::shut);
        for Unexpected { source, header, .. } in waiting.into_iter().flatten() {
            receive::refuse(out, source.0, &header);
            self.taken(out, source.0, &header);
        }
    }

    /// True if no endpoint receives any more.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.endpoints.iter().flatten().all(|endpoint| endpoint.shut)
    }

    /// Closes an endpoint: its operations end without a word, but to those who wait for it to receive.
    pub fn close_endpoint(&mut self, out: &mut impl Outlet, number: u16) {
        self.shut_endpoint(out, number);
        let mine = self.operations.find_all(|operation| operation.endpoint() == number);
        out.withdraw(&|stream| mine.contains(&stream.operation));
        for id in mine {
            match self.operations.remove(id) {
                Some(Operation::Send(sending)) => self.forget_send(out, &sending),
                Some(Operation::Write(transfer) | Operation::Read(rma::Reading { transfer, .. })) => self.waited(transfer.peer),
                _ => {}
            }
        }
        self.held_messages.forget(|id| self.operations.get(id).is_some());
        if let Some(place) = self.endpoints.get_mut(usize::from(number)) {
            *place = None;
        }
    }

    /// The endpoint of a number, unless it is shut.
    pub fn endpoint(&mut self, number: u16) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(usize::from(number))?.as_mut().filter(|endpoint| !endpoint.shut)
    }

    /// Obeys a packet.
    ///
    /// # Errors
    /// [`Fault`]: the peer broke the protocol; nothing was done.
    pub fn handle(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header, payload: Payload) -> Result<(), Fault> {
        match header.kind().ok_or(Fault::Kind(header.kind))? {
            Kind::Eager => self.arrived(out, peer, header, payload),
            Kind::Rts => self.announced(out, peer, header, payload),
            Kind::Cts => self.cleared(out, peer, header),
            Kind::Data => self.landed(out, peer, header, payload),
            Kind::Ack => self.acknowledged(out, peer, header),
            Kind::Write => self.written(out, peer, header, payload),
            Kind::Read => self.asked(out, peer, header),
            Kind::Taken if self.flow.release(peer, header.length) => Ok(()),
            Kind::Taken => Err(Fault::Excess),
            Kind::Hold => {
                self.on_hold(peer, header);
                Ok(())
            }
            Kind::Release => {
                self.release(out, peer, header);
                Ok(())
            }
            Kind::Held => {
                self.on_held(out, peer, header);
                Ok(())
            }
            Kind::Grant => {
                out.granted(peer, header.tag, Grant::told(header));
                Ok(())
            }
            // The links keep markers to themselves.
            Kind::Marker => Err(Fault::Kind(header.kind)),
        }
    }

    /// Where the payload of a packet belongs that is still on its way: memory for the next of its bytes. A message that
    /// meets its receive here becomes data for that, by the header too. `None`: the packet must be handled whole, or in
    /// parts if it is data or a write.
    ///
    /// The memory is lent by the application: it is good until the next call of this engine.
    pub fn place(&mut self, peer: Rank, header: &mut Header) -> Option<Segment> {
        match header.kind()? {
            Kind::Eager => self.place_message(peer, header),
            Kind::Data => self.place_data(peer, header),
            Kind::Write => self.place_write(header),
            _ => None,
        }
    }

    /// The last byte of this operation's stream is in the channel.
    pub fn streamed(&mut self, out: &mut impl Outlet, id: u64) {
        let done = match self.operations.get_mut(id) {
            Some(Operation::Send(sending)) => {
                sending.streaming = false;
                !sending.awaits_ack
            }
            Some(Operation::Write(transfer)) => {
                transfer.streaming = false;
                false
            }
            _ => false,
        };
        if done {
            self.finish_send(out, id, 0);
        }
    }

    /// A message that came at once waits no longer.
    #[inline]
    pub(crate) fn taken(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) {
        if header.kind == Kind::Eager as u8
            && let Some(taken) = self.flow.take(peer, header.length)
        {
            let mut answer = Header::new(Kind::Taken);
            (answer.from, answer.to, answer.length) = (header.to, header.from, taken);
            out.post(peer, &answer, &[]);
        }
    }

    /// Counts and reports the end of an operation.
    pub(crate) fn finish(&mut self, endpoint: u16, class: Class, report: bool, completion: Completion) {
        let Some(owner) = self.endpoints.get(usize::from(endpoint)).and_then(Option::as_ref) else { return };
        if let Some(counter) = owner.counters[class as usize].and_then(|id| self.counters.get_mut(id)) {
            if completion.error == 0 {
                counter.value += 1;
            } else {
                counter.errors += 1;
            }
        }
        self.tell(endpoint, class, report, completion);
    }

    /// Puts an entry into the queue that counts as no operation, if it is wanted there, or an error.
    pub(crate) fn tell(&mut self, endpoint: u16, class: Class, report: bool, completion: Completion) {
        let Some(owner) = self.endpoints.get(usize::from(endpoint)).and_then(Option::as_ref) else { return };
        let binding = if class == Class::Receive { owner.rx } else { owner.tx };
        if (report || completion.error != 0)
            && let Some(queue) = binding.and_then(|binding| self.queues.get_mut(binding.queue))
        {
            queue.entries.push_back(Completion { vector: owner.vector, ..completion });
        }
    }

    /// True if all that this queue tells is that long messages have left, while another arrives. Two ranks that exchange long
    /// messages with blocking sends would be out of step if the first to have sent went away then: the other waits for it until
    /// it comes back.
    #[must_use]
    pub fn leaves_halfway(&self, queue: u64) -> bool {
        let Some(queue) = self.queues.get(queue) else { return false };
        let arrives = |operation: &Operation| matches!(operation, Operation::Receive(landing) if landing.is_halfway());
        !queue.entries.is_empty()
            && queue.entries.iter().all(|entry| entry.long && entry.error == 0)
            && self.operations.values().any(arrives)
    }

    /// True if this process waits for something, as far as can be told: an operation is under way, or a receive of a tagged message is
    /// posted. Plain ones are always posted by MPI libraries, for messages of their own.
    #[must_use]
    #[inline]
    pub fn expects(&self) -> bool {
        !self.operations.is_empty() || self.endpoints.iter().flatten().any(|endpoint| endpoint.tagged.has_posted())
    }

    /// Whether an operation with these flags is reported when it succeeds.
    pub(crate) fn reports(&self, endpoint: u16, class: Class, flags: u64) -> bool {
        let Some(owner) = self.endpoints.get(usize::from(endpoint)).and_then(Option::as_ref) else { return false };
        let binding = if class == Class::Receive { owner.rx } else { owner.tx };
        binding.is_some_and(|binding| !binding.selective || flags & mend_fabric_sys::FI_COMPLETION != 0)
    }

    /// The peers that must do something for the operations of this endpoint, each with its endpoint, if that is to receive a message. What is yet
    /// to be received here does not count.
    #[must_use]
    pub fn awaited(&self, endpoint: u16) -> BTreeSet<(Rank, Option<u16>)> {
        self.operations.values().filter(|operation| operation.endpoint() == endpoint).filter_map(Operation::waits_for).collect()
    }
}

impl Operation {
    /// The peer that must do something for it, and its endpoint, if that is to receive a message.
    fn waits_for(&self) -> Option<(Rank, Option<u16>)> {
        match self {
            Self::Send(sending) => Some((sending.peer, Some(sending.to()))),
            Self::Receive(_) => None,
            Self::Write(transfer) => Some((transfer.peer, None)),
            Self::Read(reading) => Some((reading.transfer.peer, None)),
        }
    }

    fn endpoint(&self) -> u16 {
        match self {
            Self::Send(sending) => sending.endpoint,
            Self::Receive(landing) => landing.endpoint,
            Self::Write(transfer) => transfer.endpoint,
            Self::Read(reading) => reading.transfer.endpoint,
        }
    }
}

#[cfg(test)]
impl Engine {
    /// Bytes of messages that wait here and are counted.
    fn waiting_data(&self) -> u64 {
        let open = self.endpoints.iter().flatten();
        let counted = |message: &Unexpected| if message.body.len() > flow::UNCOUNTED_BYTES { message.body.len() as u64 } else { 0 };
        open.flat_map(|endpoint| endpoint.tagged.waiting().chain(endpoint.plain.waiting()).map(counted)).sum()
    }
}
