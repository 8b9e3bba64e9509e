//! Two engines and a network that shuffles what the protocol allows to be shuffled.

use super::buffers::{Payload, Segment, gather};
use super::packet::{MAX_PAYLOAD, flag};
use super::pull::Piece;
use super::*;
use mend_fabric_sys::{
    FI_CLAIM, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_ECANCELED, FI_EMSGSIZE, FI_ENOKEY, FI_ENOMSG, FI_ETRUNC, FI_INJECT, FI_MULTI_RECV,
    FI_PEEK, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE,
};
use proptest::prelude::*;
use std::collections::VecDeque;

mod waiting;

/// What one engine has to say to the other.
#[derive(Default)]
struct Wire {
    packets: VecDeque<(Header, Vec<u8>)>,
    streams: VecDeque<Stream>,
    /// Sizes of stream packets, taken in turn.
    chunks: Vec<usize>,
    cut: usize,
    /// What is sent is offered, and what was retracted of that.
    offers: bool,
    retracted: usize,
    pulls: VecDeque<Pull>,
    /// Bit by bit: whether the next pulls succeed.
    fates: u64,
}

impl Outlet for Wire {
    fn has_room(&self, _peer: Rank) -> bool {
        true
    }
    fn eager_limit(&self, _peer: Rank) -> usize {
        EAGER_LIMIT
    }
    fn post(&mut self, _peer: Rank, header: &Header, payload: &[Segment]) {
        self.packets.push_back((*header, gather(payload)));
    }
    fn stream(&mut self, _peer: Rank, stream: Stream) {
        assert!(stream.length > 0);
        self.streams.push_back(stream);
    }
    fn offer(&mut self, _peer: Rank, message: &[Segment]) -> Option<Offer> {
        let piece = |segment: &Segment| Piece { address: segment.base as u64, length: segment.len as u64, key: 0 };
        self.offers.then(|| Offer { kind: 1, ticket: 5, pieces: message.iter().map(piece).collect() })
    }
    fn retract(&mut self, _peer: Rank, ticket: u64) {
        assert_eq!(ticket, 5);
        self.retracted += 1;
    }
    fn pull(&mut self, _peer: Rank, pull: Pull) -> bool {
        self.pulls.push_back(pull);
        true
    }
    fn abandon(&mut self, operations: &[u64]) {
        self.pulls.retain(|pull| !operations.contains(&pull.operation));
    }
    fn withdraw(&mut self, f: &dyn Fn(&Stream) -> bool) -> Vec<(Rank, Header)> {
        let (gone, kept) = std::mem::take(&mut self.streams).into_iter().partition::<VecDeque<_>, _>(|stream| f(stream));
        self.streams = kept;
        gone.into_iter().map(|stream| (0, stream.header)).collect()
    }
}

impl Wire {
    /// The next packet: of a stream if `stream` and there is one.
    fn next(&mut self, stream: bool, engine: &mut Engine) -> Option<(Header, Vec<u8>)> {
        if (stream || self.packets.is_empty())
            && let Some(first) = self.streams.front_mut()
        {
            let chunk = self.chunks.get(self.cut % self.chunks.len().max(1)).copied().unwrap_or(MAX_PAYLOAD);
            self.cut += 1;
            let size = chunk.clamp(1, MAX_PAYLOAD).min(first.length - first.offset);
            let mut header = first.header;
            header.payload = size as u32;
            header.address = first.base + first.offset as u64;
            let payload = gather(first.buffers.slice(first.offset, size).segments());
            first.offset += size;
            if first.offset == first.length {
                header.flags |= flag::LAST;
                if let Some(done) = self.streams.pop_front() {
                    engine.streamed(self, done.operation);
                }
            } else {
                self.streams.rotate_left(1);
            }
            return Some((header, payload));
        }
        self.packets.pop_front()
    }
}

struct Pair {
    engines: [Engine; 2],
    wires: [Wire; 2],
    queues: [u64; 2],
}

impl Pair {
    fn new() -> Self {
        let mut pair = Self { engines: [Engine::default(), Engine::default()], wires: [Wire::default(), Wire::default()], queues: [0, 0] };
        for side in 0..2 {
            let queue = pair.engines[side].queues.insert(Queue::default());
            assert_eq!(pair.engines[side].open_endpoint(), Some(0));
            let endpoint = pair.engines[side].endpoint(0).unwrap();
            endpoint.tx = Some(Binding { queue, selective: true });
            endpoint.rx = Some(Binding { queue, selective: false });
            endpoint.min_multi_receive = 64;
            pair.queues[side] = queue;
        }
        pair
    }

    /// Does one read that `side` has to do, or half of it in vain.
    fn pull(&mut self, side: usize) -> bool {
        let wire = &mut self.wires[side];
        let Some(pull) = wire.pulls.pop_front() else { return false };
        let complete = wire.fates & 1 == 0;
        wire.fates = wire.fates.rotate_right(1);
        let mut at = 0;
        while let Some((remote, local)) = pull.next(at, 7000).filter(|_| complete || at < pull.length / 2) {
            let bytes = Segment { base: remote.address as *mut u8, len: local.len };
            assert_eq!(Buffers::One(local).fill(0, Payload { parts: [bytes, Segment::EMPTY] }), local.len);
            at += local.len;
        }
        self.engines[side].pulled(wire, pull.operation, complete);
        true
    }

    /// Delivers one packet from `side`; false if there is none.
    fn step(&mut self, side: usize, stream: bool) -> bool {
        if stream && self.pull(side) {
            return true;
        }
        let Some((header, payload)) = self.wires[side].next(stream, &mut self.engines[side]) else { return false };
        let other = 1 - side;
        self.engines[other].handle(&mut self.wires[other], side as Rank, &header, Payload::one(&payload)).unwrap();
        true
    }

    fn settle(&mut self) {
        while self.step(0, false) || self.step(1, true) {}
    }

    fn send(&mut self, side: usize, bytes: &[u8], tag: Option<u64>, context: usize, flags: u64) {
        let segments = [Segment::of(bytes)];
        let message = Message { to: (1 - side as Rank, 0), tag, data: Some(7), segments: &segments, context, flags, inject: false };
        self.engines[side].send(&mut self.wires[side], 0, &message).unwrap();
    }

    fn receive(&mut self, side: usize, memory: &mut [u8], tag: Option<(u64, u64)>, context: usize, flags: u64) {
        let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: memory.len() });
        let receive = Receive { tag, source: Some((1 - side as Rank, 0)), buffers, context, flags };
        self.engines[side].receive(&mut self.wires[side], 0, receive).unwrap();
    }

    fn completions(&mut self, side: usize) -> Vec<Completion> {
        let queue = self.queues[side];
        self.engines[side].queues.get_mut(queue).unwrap().entries.drain(..).collect()
    }
}

fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + number * 13) as u8).collect()
}

#[derive(Clone, Debug)]
struct MessagePlan {
    lengths: Vec<usize>,
    tags: Vec<u64>,
    acknowledged: Vec<bool>,
    /// Order of sends, receives and deliveries.
    schedule: Vec<u8>,
    chunks: Vec<usize>,
    /// Long messages are offered, and how the reads end.
    fates: Option<u64>,
}

fn plan() -> impl Strategy<Value = MessagePlan> {
    let length = prop_oneof![Just(0usize), 1usize..200, EAGER_LIMIT - 2..EAGER_LIMIT + 3, 20_000usize..200_000];
    (1usize..12).prop_flat_map(move |count| {
        (
            prop::collection::vec(length.clone(), count),
            prop::collection::vec(0u64..2, count),
            prop::collection::vec(any::<bool>(), count),
            prop::collection::vec(0u8..6, 0..80),
            prop::collection::vec(1usize..MAX_PAYLOAD, 1..5),
            prop::option::of(any::<u64>()),
        )
            .prop_map(|(lengths, tags, acknowledged, schedule, chunks, fates)| MessagePlan {
                lengths,
                tags,
                acknowledged,
                schedule,
                chunks,
                fates,
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Whatever the order of sends, receives and deliveries, each message arrives once, whole, in the order of its tag,
    /// and both sides hear of it exactly once.
    #[test]
    fn messages_arrive_once_whole_and_in_order(plan in plan()) {
        let mut pair = Pair::new();
        pair.wires[0].chunks = plan.chunks.clone();
        pair.wires[0].offers = plan.fates.is_some();
        pair.wires[1].fates = plan.fates.unwrap_or(0);
        let count = plan.lengths.len();
        let bodies: Vec<Vec<u8>> = plan.lengths.iter().enumerate().map(|(number, length)| pattern(number, *length)).collect();
        let mut memory: Vec<Vec<u8>> = (0..count).map(|_| vec![0; 200_000]).collect();
        // The receives are posted in another order than the messages are sent: those of tag 1 first.
        let mut order: Vec<usize> = (0..count).filter(|at| plan.tags[*at] == 1).collect();
        order.extend((0..count).filter(|at| plan.tags[*at] == 0));
        let (mut sent, mut posted) = (0, 0);
        let mut acts = plan.schedule.iter().copied();
        while sent < count || posted < count {
            match acts.next().unwrap_or(if sent < count { 0 } else { 1 }) {
                0 | 2 if sent < count => {
                    let flags = FI_COMPLETION | if plan.acknowledged[sent] { FI_DELIVERY_COMPLETE } else { 0 };
                    pair.send(0, &bodies[sent], Some(plan.tags[sent]), sent, flags);
                    sent += 1;
                }
                1 | 3 if posted < count => {
                    let at = order[posted];
                    pair.receive(1, &mut memory[at], Some((plan.tags[at], 0)), at, 0);
                    posted += 1;
                }
                4 => { pair.step(0, true); }
                5 => { pair.step(1, false); }
                _ => {}
            }
        }
        pair.settle();
        let mut heard: Vec<usize> = pair.completions(0).iter().map(|done| { assert_eq!(done.error, 0); assert!(done.flags & FI_SEND != 0); done.context }).collect();
        heard.sort_unstable();
        prop_assert_eq!(heard, (0..count).collect::<Vec<_>>());
        let received = pair.completions(1);
        prop_assert_eq!(received.len(), count);
        for done in received {
            prop_assert_eq!(done.error, 0);
            prop_assert!(done.flags & FI_RECV != 0 && done.data == 7);
            prop_assert_eq!(done.len as usize, plan.lengths[done.context]);
            prop_assert!(memory[done.context][..done.len as usize] == bodies[done.context]);
        }
        prop_assert!(pair.engines[0].operations.is_empty() && pair.engines[1].operations.is_empty());
        let long = plan.lengths.iter().filter(|length| **length > EAGER_LIMIT).count();
        prop_assert_eq!(pair.wires[0].retracted, if plan.fates.is_some() { long } else { 0 });
    }

    /// However a peer floods a rank that takes its messages late and in any order: never does more data wait than the limit
    /// says, everything arrives, and the sender's buffers are free when it was told so.
    #[test]
    fn what_nobody_asked_for_is_bounded(
        lengths in prop::collection::vec(prop_oneof![0usize..200, 1000usize..EAGER_LIMIT, 20_000usize..60_000], 1..40),
        limit in 1u64..100_000,
        order in any::<u64>(),
        late in 0usize..40,
        discard in any::<u64>(),
    ) {
        let mut pair = Pair::new();
        pair.wires[0].offers = order & 1 == 1;
        pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(limit));
        let bodies: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(number, length)| pattern(number, *length)).collect();
        // Each message has a tag of its own, so that the last may be taken first.
        let mut wanted: Vec<usize> = (0..lengths.len()).collect();
        wanted.sort_by_key(|at| (*at as u64 + 1).wrapping_mul(order | 1).rotate_left(17));
        let mut memory: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0; *length]).collect();
        let mut dropped = 0;
        for (number, body) in bodies.iter().enumerate() {
            let mut buffer = body.clone();
            let inject = body.len() <= INJECT_LIMIT;
            let segments = [Segment::of(if inject { &buffer } else { body })];
            let flags = if inject { 0 } else { FI_COMPLETION };
            let message = Message { to: (1, 0), tag: Some(number as u64), data: Some(7), segments: &segments, context: number, flags, inject };
            pair.engines[0].send(&mut pair.wires[0], 0, &message).unwrap();
            buffer.fill(0xee);
            pair.settle();
            prop_assert!(pair.engines[1].waiting_data() <= limit, "{} bytes wait", pair.engines[1].waiting_data());
            if number < late {
                continue;
            }
            while let Some(at) = wanted.iter().position(|at| *at <= number) {
                let at = wanted.remove(at);
                if discard >> (at % 64) & 1 == 1 {
                    let nowhere = Buffers::One(Segment::EMPTY);
                    let receive = Receive { tag: Some((at as u64, 0)), source: None, buffers: nowhere, context: at, flags: FI_PEEK };
                    // It may have stayed with its sender.
                    while pair.engines[1].peek(&mut pair.wires[1], 0, &receive, false, true).is_err() {
                        prop_assert!(!pair.wires[1].packets.is_empty(), "a message that never comes");
                        pair.settle();
                    }
                    dropped += 1;
                } else {
                    pair.receive(1, &mut memory[at], Some((at as u64, 0)), at, 0);
                }
                pair.settle();
            }
        }
        for at in wanted.drain(..) {
            pair.receive(1, &mut memory[at], Some((at as u64, 0)), at, 0);
            pair.settle();
        }
        prop_assert_eq!(pair.completions(1).len(), lengths.len());
        let whole = memory.iter().zip(&bodies).filter(|(memory, body)| memory == body).count();
        prop_assert!(whole + dropped >= lengths.len());
        prop_assert!(pair.engines[0].operations.is_empty() && pair.engines[1].operations.is_empty());
    }

    /// A hostile peer cannot make the engine panic or write outside of what was lent.
    #[test]
    fn hostile_packets_do_no_harm(packets in prop::collection::vec((any::<[u8; 56]>(), 0usize..300, any::<bool>()), 0..60)) {
        let mut pair = Pair::new();
        let mut memory = vec![0xaau8; 3 * 4096];
        pair.receive(1, &mut memory[4096..8192], Some((0, u64::MAX)), 1, 0);
        pair.engines[1].register(3, Region { base: memory.as_ptr() as usize + 4096, len: 4096, access: FI_REMOTE_READ | FI_REMOTE_WRITE }).unwrap();
        for (bytes, length, plausible) in packets {
            let mut header = Header::from_bytes(&bytes);
            header.kind %= 13;
            if plausible {
                (header.to, header.tag, header.payload, header.length) = (0, 3, length as u32, length as u64);
                header.address %= 8192;
                header.id = u64::from(header.kind % 3) << 32;
            }
            let payload = vec![0x55; length];
            let _ = pair.engines[1].handle(&mut pair.wires[1], 0, &header, Payload::one(&payload));
        }
        prop_assert!(memory[..4096].iter().chain(&memory[8192..]).all(|byte| *byte == 0xaa));
    }
}

#[test]
fn a_short_buffer_gets_what_fits_and_an_error() {
    for length in [100usize, 50_000] {
        let (mut pair, body, mut memory) = (Pair::new(), pattern(1, length), vec![0; 60]);
        pair.send(0, &body, Some(1), 1, FI_COMPLETION);
        pair.receive(1, &mut memory, Some((1, 0)), 2, 0);
        pair.settle();
        let done = pair.completions(1);
        assert_eq!((done[0].error, done[0].len, done[0].overflow), (FI_ETRUNC, 60, length as u64 - 60));
        assert_eq!(memory, body[..60]);
        assert_eq!(pair.completions(0).len(), 1);
    }
}

#[test]
fn a_multi_receive_buffer_is_given_back_with_its_last_message() {
    let (mut pair, mut memory) = (Pair::new(), vec![0; 40_000]);
    let bodies = [pattern(1, 100), pattern(2, 30_000), pattern(3, 9_850)];
    pair.send(0, &bodies[0], None, 0, 0);
    pair.settle();
    pair.receive(1, &mut memory, None, 5, FI_MULTI_RECV);
    pair.send(0, &bodies[1], None, 0, 0);
    pair.send(0, &bodies[2], None, 0, 0);
    // The third overtakes the second, which is long.
    assert!(pair.step(0, false) && pair.step(0, false));
    pair.settle();
    let done = pair.completions(1);
    assert_eq!(done.iter().map(|d| d.len).collect::<Vec<_>>(), [100, 9_850, 30_000]);
    assert_eq!(done.iter().map(|d| d.flags & FI_MULTI_RECV != 0).collect::<Vec<_>>(), [false, false, true]);
    for done in done {
        let at = done.buf - memory.as_ptr() as usize;
        assert!(bodies.iter().any(|body| body.len() as u64 == done.len && memory[at..at + body.len()] == *body));
    }
}

#[test]
fn a_cancelled_multi_receive_buffer_is_given_back_when_nothing_arrives_in_it() {
    let (mut pair, mut memory) = (Pair::new(), vec![0; 40_000]);
    let body = pattern(2, 30_000);
    pair.receive(1, &mut memory, None, 5, FI_MULTI_RECV);
    pair.send(0, &body, None, 0, 0);
    assert!(pair.step(0, false));
    pair.engines[1].cancel(0, 5).unwrap();
    assert!(pair.engines[1].cancel(0, 5).is_err());
    assert_eq!(pair.completions(1), [], "a message is landing in it");
    pair.settle();
    let done = pair.completions(1);
    assert_eq!(done.iter().map(|d| (d.error, d.len, d.context)).collect::<Vec<_>>(), [(0, 30_000, 5), (FI_ECANCELED, 0, 5)]);
    assert!(done.iter().all(|d| d.flags & FI_MULTI_RECV == 0));
    assert_eq!(memory[..30_000], body);
    // Idle, it comes back at once.
    pair.receive(1, &mut memory, None, 6, FI_MULTI_RECV);
    pair.engines[1].cancel(0, 6).unwrap();
    assert_eq!(pair.completions(1).iter().map(|d| (d.error, d.context)).collect::<Vec<_>>(), [(FI_ECANCELED, 6)]);
}

#[test]
fn counters_count_messages_and_not_what_is_told_besides() {
    let (mut pair, mut memory, mut other) = (Pair::new(), vec![0; 1000], vec![0; 1000]);
    let id = pair.engines[1].counters.insert(Counter::default());
    pair.engines[1].endpoint(0).unwrap().counters[Class::Receive as usize] = Some(id);
    let count = |pair: &mut Pair| {
        let counter = pair.engines[1].counters.get_mut(id).unwrap();
        (counter.value, counter.errors)
    };
    let probe = Receive { tag: Some((4, 0)), source: None, buffers: Buffers::One(Segment::EMPTY), context: 1, flags: FI_PEEK };
    pair.engines[1].report_missed(0, &probe);
    assert_eq!(pair.completions(1).len(), 1);
    assert_eq!(count(&mut pair), (0, 0));
    pair.receive(1, &mut memory, None, 5, FI_MULTI_RECV);
    pair.receive(1, &mut other, None, 6, FI_MULTI_RECV);
    for _ in 0..2 {
        pair.send(0, &[1; 600], None, 0, 0);
    }
    pair.settle();
    // The second message does not fit, and the first buffer comes back by itself.
    let flags: Vec<_> = pair.completions(1).iter().map(|d| (d.context, d.flags & FI_MULTI_RECV != 0)).collect();
    assert_eq!(flags, [(5, false), (5, true), (6, false)]);
    assert_eq!(count(&mut pair), (2, 0));
    // Data of a write are told, and no message.
    let region = Region { base: memory.as_mut_ptr() as usize, len: memory.len(), access: FI_REMOTE_WRITE };
    pair.engines[1].register(7, region).unwrap();
    let (segments, to) = ([Segment::of(&other)], (1, 0));
    let write = Transfer { to, key: 7, address: 0, segments: &segments, data: Some(3), context: 1, flags: 0, inject: false, done: 0 };
    pair.engines[0].write(&mut pair.wires[0], 0, &write).unwrap();
    pair.settle();
    assert_eq!(pair.completions(1).iter().map(|done| done.data).collect::<Vec<_>>(), [3]);
    assert_eq!(count(&mut pair), (2, 0));
}

#[test]
fn probe_claim_discard_and_cancel() {
    let (mut pair, body, mut memory) = (Pair::new(), pattern(1, 30_000), vec![0; 30_000]);
    let probe = |context| Receive { tag: Some((4, 0)), source: None, buffers: Buffers::One(Segment::EMPTY), context, flags: FI_PEEK };
    let [one, two] = &mut pair.engines;
    let [_, wire] = &mut pair.wires;
    assert_eq!(two.peek(wire, 0, &probe(1), true, false), Err(FI_ENOMSG));
    let _ = one;
    two.report_missed(0, &probe(5));
    let missed = pair.completions(1);
    assert_eq!((missed.len(), missed[0].error, missed[0].context, missed[0].tag), (1, FI_ENOMSG, 5, 4));
    pair.send(0, &body, Some(4), 0, FI_COMPLETION);
    pair.send(0, &body, Some(4), 1, FI_COMPLETION);
    pair.settle();
    let wire = &mut pair.wires[1];
    pair.engines[1].peek(wire, 0, &probe(9), true, false).unwrap();
    pair.engines[1].peek(wire, 0, &probe(1), false, true).unwrap();
    assert_eq!(pair.engines[1].peek(wire, 0, &probe(1), false, false), Err(FI_ENOMSG));
    let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: memory.len() });
    let claimed = Receive { tag: Some((0, 0)), source: None, buffers, context: 9, flags: FI_CLAIM };
    pair.engines[1].receive_claimed(wire, 0, claimed, false).unwrap();
    pair.settle();
    assert_eq!(memory, body);
    // Both sends complete, also the one whose message was dropped.
    assert_eq!(pair.completions(0).len(), 2);
    assert_eq!(pair.completions(1).len(), 3);
    pair.receive(1, &mut memory, Some((8, 0)), 77, 0);
    pair.engines[1].cancel(0, 77).unwrap();
    assert!(pair.engines[1].cancel(0, 77).is_err());
    assert_eq!(pair.completions(1)[0].error, FI_ECANCELED);
}

#[test]
fn remote_memory_is_written_and_read_within_its_bounds() {
    let (mut pair, body) = (Pair::new(), pattern(3, 100_000));
    let mut target = vec![0u8; 100_000];
    let region = Region { base: target.as_mut_ptr() as usize, len: target.len(), access: FI_REMOTE_READ | FI_REMOTE_WRITE };
    pair.engines[1].register(42, region).unwrap();
    let transfer = |pair: &mut Pair, read: bool, memory: &[u8], key: u64, address: u64| {
        let segments = [Segment::of(memory)];
        let flags = FI_COMPLETION;
        let transfer = Transfer { to: (1, 0), key, address, segments: &segments, data: None, context: 1, flags, inject: false, done: 0 };
        if read {
            pair.engines[0].read(&mut pair.wires[0], 0, &transfer).unwrap();
        } else {
            pair.engines[0].write(&mut pair.wires[0], 0, &transfer).unwrap();
        }
        pair.settle();
        pair.completions(0)
    };
    let done = transfer(&mut pair, false, &body, 42, 0);
    assert!(done.len() == 1 && done[0].error == 0 && done[0].flags & FI_WRITE != 0);
    assert_eq!(target, body);
    let copy = vec![0u8; 60_000];
    let done = transfer(&mut pair, true, &copy, 42, 40_000);
    assert!(done.len() == 1 && done[0].error == 0 && done[0].flags & FI_READ != 0);
    assert_eq!(copy, body[40_000..]);
    assert_ne!(transfer(&mut pair, false, &body, 42, 1)[0].error, 0);
    assert_ne!(transfer(&mut pair, true, &copy, 42, 40_001)[0].error, 0);
    assert_eq!(transfer(&mut pair, true, &copy, 43, 0)[0].error, FI_ENOKEY);
    let wire = &mut pair.wires[1];
    pair.engines[1].unregister(wire, 42);
    assert_eq!(transfer(&mut pair, true, &copy, 42, 0)[0].error, FI_ENOKEY);
    assert!(pair.engines[0].operations.is_empty());
}

/// A peer that says "done" before it has everything gets no further look at memory that is the application's again.
#[test]
fn an_early_acknowledgement_ends_the_stream() {
    let (mut pair, body) = (Pair::new(), pattern(1, 100_000));
    pair.send(0, &body, Some(1), 1, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    let segments = [Segment::of(&body)];
    let (to, flags) = ((1, 0), FI_COMPLETION);
    let transfer = Transfer { to, key: 4, address: 0, segments: &segments, data: None, context: 2, flags, inject: false, done: 0 };
    let lends_nothing = Transfer { flags: FI_INJECT, ..transfer };
    assert_eq!(pair.engines[0].write(&mut pair.wires[0], 0, &lends_nothing), Err(FI_EMSGSIZE));
    pair.engines[0].write(&mut pair.wires[0], 0, &transfer).unwrap();
    let (announced, _) = pair.wires[0].packets.pop_front().unwrap();
    let mut answer = Header::new(Kind::Cts);
    (answer.id, answer.length) = (announced.id, 100_000);
    pair.engines[0].handle(&mut pair.wires[0], 1, &answer, Payload::EMPTY).unwrap();
    let streams = &pair.wires[0].streams;
    assert_eq!(streams.len(), 2);
    let ids: Vec<u64> = streams.iter().map(|stream| stream.operation).collect();
    for id in ids {
        let mut done = Header::new(Kind::Ack);
        done.id = id;
        pair.engines[0].handle(&mut pair.wires[0], 1, &done, Payload::EMPTY).unwrap();
    }
    assert!(pair.wires[0].streams.is_empty());
    assert_eq!(pair.completions(0).len(), 2);
}

/// The messages of an endpoint that is closed count as taken, and nobody can take what was not sent.
#[test]
fn a_closed_endpoint_takes_what_waited() {
    let (mut pair, body) = (Pair::new(), pattern(1, 1000));
    pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(4000));
    for tag in [Some(1), None, Some(2), None, None] {
        pair.send(0, &body, tag, 0, 0);
    }
    pair.settle();
    assert_eq!(pair.engines[1].waiting_data(), 4000);
    pair.engines[1].close_endpoint(&mut pair.wires[1], 0);
    let mut taken = pair.wires[1].packets.iter().filter(|(header, _)| header.kind() == Some(Kind::Taken));
    assert_eq!(taken.next_back().map(|(header, _)| header.length), Some(4000));
    pair.settle();
    let mut lie = Header::new(Kind::Taken);
    for (length, outcome) in [(4000, Ok(())), (4001, Err(Fault::Excess)), (3999, Err(Fault::Excess))] {
        lie.length = length;
        assert_eq!(pair.engines[0].handle(&mut pair.wires[0], 1, &lie, Payload::EMPTY), outcome);
    }
}

/// Whoever has sent its part of an exchange, and has some of the other's, is told only when it has all.
#[test]
fn an_exchange_of_long_messages_is_kept_in_step() {
    let mut pair = Pair::new();
    let sent = [pattern(1, 3 * MAX_PAYLOAD), pattern(2, 3 * MAX_PAYLOAD)];
    let mut memory = [vec![0; 3 * MAX_PAYLOAD], vec![0; 3 * MAX_PAYLOAD]];
    for side in 0..2 {
        pair.receive(side, &mut memory[side], Some((7, 0)), 1, 0);
        pair.send(side, &sent[side], Some(7), 2, FI_COMPLETION);
    }
    // Each is announced and asked for; then all of the first goes, and a third of the second.
    for side in [0, 1, 0, 1] {
        assert!(pair.step(side, false));
    }
    let queue = pair.queues[0];
    while !pair.wires[0].streams.is_empty() {
        assert!(!pair.engines[0].leaves_halfway(queue), "nothing is to be told yet");
        assert!(pair.step(0, true));
    }
    assert!(!pair.engines[0].leaves_halfway(queue), "nothing of the other is here");
    assert!(pair.step(1, true) && pair.engines[0].leaves_halfway(queue));
    pair.settle();
    assert!(!pair.engines[0].leaves_halfway(queue));
    assert!(memory[0] == sent[1] && memory[1] == sent[0]);
}

/// What a rank waits for: receives of tagged messages, and operations under way; not the receives that are always posted.
#[test]
fn something_is_expected_while_a_receive_or_an_operation_is_there() {
    let (mut pair, long, mut memory) = (Pair::new(), pattern(1, 100_000), [0; 8]);
    let expects = |pair: &Pair| [0, 1].map(|side| pair.engines[side].expects());
    pair.receive(1, &mut memory, None, 1, 0);
    assert_eq!(expects(&pair), [false, false]);
    pair.receive(1, &mut memory, Some((7, 0)), 2, 0);
    pair.receive(1, &mut memory, Some((8, 0)), 3, 0);
    assert_eq!(expects(&pair), [false, true]);
    pair.send(0, &[1; 8], Some(7), 4, 0);
    pair.settle();
    assert_eq!(expects(&pair), [false, true]);
    pair.engines[1].cancel(0, 3).unwrap();
    assert_eq!(expects(&pair), [false, false]);
    // A long message is an operation of its sender until somebody receives it, and then one of both until it is there.
    let mut room = vec![0; long.len()];
    pair.send(0, &long, Some(9), 5, 0);
    pair.settle();
    assert_eq!(expects(&pair), [true, false]);
    pair.receive(1, &mut room, Some((9, 0)), 6, 0);
    assert_eq!(expects(&pair), [true, true]);
    pair.settle();
    assert_eq!(expects(&pair), [false, false]);
}
