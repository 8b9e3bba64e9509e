//! Packets from a peer, in any order and number, against an engine with receives posted, memory exposed and operations under
//! way, among them messages that it offers and that it reads because they were offered. Whatever they hold, the engine ends
//! without a panic, nothing outside of what was lent changes, no read goes beyond what was offered or lent, and each offer is
//! taken back at most once.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_fabric::engine::buffers::{Buffers, Payload, Segment};
use mend_fabric::engine::completion::Queue;
use mend_fabric::engine::packet::{Header, MAX_PAYLOAD};
use mend_fabric::engine::pull::{Offer, Piece, Pull};
use mend_fabric::engine::{Binding, EAGER_LIMIT, Engine, Message, Outlet, Receive, Region, Stream, Transfer};
use mend_fabric_sys::{FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MULTI_RECV, FI_PEEK, FI_REMOTE_READ, FI_REMOTE_WRITE};
use std::collections::BTreeSet;

/// A packet, or something the application does meanwhile.
#[derive(Arbitrary, Debug)]
enum Act {
    Packet { peer: u8, kind: u8, flags: u8, to: u8, payload: u16, tag: u8, length: Number, id: Number, address: Number, aux: u32 },
    Raw { header: [u8; 56], payload: u16 },
    Receive { tagged: bool, from: Option<u8>, tag: u8, length: u16, multi: bool },
    Peek { tag: u8, claim: bool, discard: bool },
    Send { length: u16, tag: Option<u8>, acknowledged: bool },
    Access { write: bool, length: u16, address: u16 },
    Streamed,
    Offers { from_now_on: bool },
    Pulled { which: u8, part: u16, complete: bool },
    Cancel { context: u8 },
    Unregister,
    Close,
}

/// Numbers that mean something, and any.
#[derive(Arbitrary, Debug)]
enum Number {
    Small(u16),
    Operation(u8),
    Any(u64),
}

impl Number {
    fn value(&self) -> u64 {
        match self {
            Self::Small(value) => u64::from(*value),
            Self::Operation(slot) => 1 << 32 | u64::from(slot % 16),
            Self::Any(value) => *value,
        }
    }
}

#[derive(Default)]
struct Wire {
    streams: Vec<(u32, Stream)>,
    /// Messages are offered; the tickets of those that are, and of the last.
    offers: bool,
    tickets: BTreeSet<u64>,
    ticket: u64,
    pulls: Vec<Pull>,
}

impl Outlet for Wire {
    fn has_room(&self, _: u32) -> bool {
        true
    }
    fn eager_limit(&self, _: u32) -> usize {
        EAGER_LIMIT
    }
    fn post(&mut self, _: u32, _: &Header, _: &[Segment]) {}
    fn stream(&mut self, peer: u32, stream: Stream) {
        assert!(stream.length > 0 && stream.length <= stream.buffers.len(), "a stream of more than its memory");
        self.streams.push((peer, stream));
    }
    fn withdraw(&mut self, f: &dyn Fn(&Stream) -> bool) -> Vec<(u32, Header)> {
        let (gone, kept) = std::mem::take(&mut self.streams).into_iter().partition(|(_, stream)| f(stream));
        self.streams = kept;
        let headers: Vec<(u32, Stream)> = gone;
        headers.into_iter().map(|(peer, stream)| (peer, stream.header)).collect()
    }
    fn offer(&mut self, _: u32, message: &[Segment]) -> Option<Offer> {
        if !self.offers {
            return None;
        }
        self.ticket += 1;
        self.tickets.insert(self.ticket);
        let piece = |segment: &Segment| Piece { address: segment.base as u64, length: segment.len as u64, key: self.ticket % 2 };
        Some(Offer { kind: 1, ticket: self.ticket, pieces: message.iter().map(piece).collect() })
    }
    fn retract(&mut self, _: u32, ticket: u64) {
        assert!(self.tickets.remove(&ticket), "an offer that is taken back twice, or was none");
    }
    fn ask(&mut self, _: u32, key: u64) -> bool {
        key == 3
    }
    fn version(&self, peer: u32) -> Option<u64> {
        (peer == 1).then_some(7)
    }
    fn pull(&mut self, _: u32, pull: Pull) -> bool {
        assert!(pull.length > 0 && pull.length <= pull.buffers.len(), "a read into more than its memory");
        let offered = pull.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length));
        assert!(offered.is_some_and(|offered| offered >= pull.length as u64), "a read of more than was offered");
        // That a channel has none of it is the engine's to bear.
        let accepted = pull.kind % 2 == 1;
        if accepted {
            self.pulls.push(pull);
        }
        accepted
    }
    fn abandon(&mut self, operations: &[u64]) {
        self.pulls.retain(|pull| !operations.contains(&pull.operation));
    }
}

const MEMORY: usize = 64 * 1024;
const FENCE: usize = 4096;
const UNTOUCHED: u8 = 0xa5;

fuzz_target!(|acts: Vec<Act>| {
    let mut memory = vec![UNTOUCHED; MEMORY + 2 * FENCE];
    let base = memory.as_mut_ptr().wrapping_add(FENCE);
    let lent = |length: u16| Segment { base, len: usize::from(length) };
    let mut engine = Engine::default();
    let mut wire = Wire::default();
    engine.flow.set_limit(4096);
    let queue = engine.queues.insert(Queue::default());
    let number = engine.open_endpoint().expect("the first endpoint");
    let endpoint = engine.endpoint(number).expect("just opened");
    endpoint.tx = Some(Binding { queue, selective: true });
    endpoint.rx = Some(Binding { queue, selective: false });
    endpoint.min_multi_receive = 64;
    let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
    engine.register(3, Region { base: base as usize, len: MEMORY, access }).expect("a free key");
    let sent = vec![0x3c; usize::from(u16::MAX)];
    let body = vec![0x5a; MAX_PAYLOAD];
    for (context, act) in acts.into_iter().enumerate() {
        match act {
            Act::Packet { peer, kind, flags, to, payload, tag, length, id, address, aux } => {
                let payload = &body[..usize::from(payload)];
                let header = Header {
                    kind: kind % 13,
                    flags,
                    from: 0,
                    to: u16::from(to % 2),
                    padding: 0,
                    payload: payload.len() as u32,
                    aux,
                    tag: u64::from(tag % 4),
                    data: 0,
                    length: length.value(),
                    id: id.value(),
                    address: address.value(),
                };
                let _ = engine.handle(&mut wire, u32::from(peer % 2), &header, Payload::one(payload));
            }
            Act::Raw { header, payload } => {
                let _ = engine.handle(&mut wire, 0, &Header::from_bytes(&header), Payload::one(&body[..usize::from(payload)]));
            }
            Act::Receive { tagged, from, tag, length, multi } => {
                let flags = if multi { FI_MULTI_RECV } else { 0 };
                let source = from.map(|rank| (u32::from(rank % 2), 0));
                let tag = tagged.then_some((u64::from(tag % 4), 0));
                let _ = engine.receive(&mut wire, number, Receive { tag, source, buffers: Buffers::One(lent(length)), context, flags });
            }
            Act::Peek { tag, claim, discard } => {
                let tag = Some((u64::from(tag % 4), 0));
                let peek = Receive { tag, source: None, buffers: Buffers::One(lent(100)), context: 7, flags: FI_PEEK };
                if engine.peek(&mut wire, number, &peek, claim, discard).is_ok() && claim {
                    let _ = engine.receive_claimed(&mut wire, number, peek, discard);
                }
            }
            Act::Send { length, tag, acknowledged } => {
                let segments = [Segment::of(&sent[..usize::from(length)])];
                let flags = FI_COMPLETION | if acknowledged { FI_DELIVERY_COMPLETE } else { 0 };
                let tag = tag.map(u64::from);
                let message = Message { to: (0, 0), tag, data: None, segments: &segments, context, flags, inject: false };
                let _ = engine.send(&mut wire, number, &message);
            }
            Act::Access { write, length, address } => {
                let segments = [lent(length)];
                let (key, address) = (3, u64::from(address));
                let transfer = Transfer {
                    to: (1, 0),
                    key,
                    address,
                    segments: &segments,
                    data: None,
                    context,
                    flags: FI_COMPLETION,
                    inject: false,
                    done: 0,
                };
                let _ = if write { engine.write(&mut wire, number, &transfer) } else { engine.read(&mut wire, number, &transfer) };
            }
            Act::Streamed => {
                if let Some((_, stream)) = wire.streams.pop() {
                    engine.streamed(&mut wire, stream.operation);
                }
            }
            Act::Offers { from_now_on } => wire.offers = from_now_on,
            Act::Pulled { which, part, complete } => {
                if wire.pulls.is_empty() {
                    continue;
                }
                let pull = wire.pulls.remove(usize::from(which) % wire.pulls.len());
                // As the links go through it; what is read stands in for the peer's memory.
                let (mut at, most) = (0, usize::from(part) + 1);
                while let Some((remote, local)) = pull.next(at, most) {
                    assert!(local.len > 0 && local.len <= most && remote.length == local.len as u64, "a read of another length");
                    Buffers::One(local).fill(0, Payload::one(&body[..local.len]));
                    at += local.len;
                }
                assert_eq!(at, pull.length, "a read that ends before its end");
                engine.pulled(&mut wire, pull.operation, complete);
            }
            Act::Cancel { context } => drop(engine.cancel(number, usize::from(context))),
            Act::Unregister => engine.unregister(&mut wire, 3),
            Act::Close => engine.close_endpoint(&mut wire, number),
        }
    }
    let (before, after) = (&memory[..FENCE], &memory[FENCE + MEMORY..]);
    assert!(before.iter().chain(after).all(|byte| *byte == UNTOUCHED), "written outside of what was lent");
});
