//! Floods of messages that nobody receives.

use super::*;
use crate::engine::matching::RECORD_BYTES;

impl Pair {
    /// What waits at `side`, bytes with each message's record, by kind: plain, tagged.
    fn waiting(&mut self, side: usize) -> [u64; 2] {
        let endpoint = self.engines[side].endpoint(0).unwrap();
        [endpoint.plain.cost(1 - side as Rank), endpoint.tagged.cost(1 - side as Rank)]
    }

    fn inject(&mut self, side: usize, bytes: &[u8], tag: Option<u64>) {
        assert!(self.admits(side, bytes, tag));
    }

    /// Injects a message unless its sender is told to try again.
    fn admits(&mut self, side: usize, bytes: &[u8], tag: Option<u64>) -> bool {
        let segments = [Segment::of(bytes)];
        let to = (1 - side as Rank, 0);
        let message = Message { to, tag, data: None, segments: &segments, context: 0, flags: 0, inject: true };
        match self.engines[side].send(&mut self.wires[side], 0, &message) {
            Err(error) => {
                assert_eq!(error, mend_fabric_sys::FI_EAGAIN);
                false
            }
            Ok(()) => true,
        }
    }

    /// Injects messages of 8 bytes, at most so many, until one has to wait. How many there were.
    fn flood(&mut self, most: usize) -> usize {
        (0..most).take_while(|_| self.admits(0, &[7; 8], Some(1))).count()
    }

    /// A pair whose receiver holds as much as it may of side 0, of which nothing stays with the sender yet; the next would.
    fn full(limit: u64) -> Self {
        let mut pair = Self::new();
        pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(limit));
        while pair.engines[0].operations.is_empty() {
            pair.inject(0, &[7; 8], Some(1));
            pair.settle();
        }
        pair
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Whatever a peer sends that nobody waits for, of each kind no more waits than the limit says, and one message; the rest
    /// arrives when it is asked for, in any order, and each message once and in the order of its tag.
    #[test]
    fn a_flood_stays_with_its_sender(
        messages in prop::collection::vec((prop_oneof![0usize..100, 0usize..5000, Just(20_000)], prop::option::of(0u64..3)), 1..200),
        limit in 200u64..20_000,
        late in 0usize..200,
        probing in any::<bool>(),
        order in any::<u64>(),
    ) {
        let mut pair = Pair::new();
        pair.wires[0].offers = order & 1 == 1;
        pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(limit));
        let bodies: Vec<Vec<u8>> = messages.iter().enumerate().map(|(number, (length, _))| pattern(number, *length)).collect();
        let mut memory: Vec<Vec<u8>> = messages.iter().map(|(length, _)| vec![0; *length]).collect();
        // The next message of each tag to be received.
        let mut due: Vec<Option<u64>> = messages.iter().map(|(_, tag)| *tag).collect();
        due.sort_by_key(|tag| (tag.unwrap_or(7) + 1).wrapping_mul(order | 1));
        let mut at = 0;
        for (number, (length, tag)) in messages.iter().enumerate() {
            if *length <= INJECT_LIMIT {
                pair.inject(0, &bodies[number].clone(), *tag);
            } else {
                pair.send(0, &bodies[number], *tag, number, FI_COMPLETION);
            }
            pair.settle();
            if number < late {
                for cost in pair.waiting(1) {
                    prop_assert!(cost <= limit + RECORD_BYTES + EAGER_LIMIT as u64, "{cost} bytes wait");
                }
            }
        }
        let mut next = std::collections::HashMap::new();
        while at < due.len() {
            let tag = due[at];
            let from = next.entry(tag).or_insert(0usize);
            let number = (*from..messages.len()).find(|number| messages[*number].1 == tag).unwrap();
            *from = number + 1;
            let place = tag.map(|tag| (tag, 0));
            if probing {
                // As a program does that waits with MPI_Probe: again until it is here.
                let nowhere = Buffers::One(Segment::EMPTY);
                let probe = Receive { tag: place, source: Some((0, 0)), buffers: nowhere, context: 0, flags: FI_PEEK };
                let mut looks = 0;
                while pair.engines[1].peek(&mut pair.wires[1], 0, &probe, false, false).is_err() {
                    pair.settle();
                    looks += 1;
                    prop_assert!(looks <= messages.len(), "a probe that never ends");
                }
                pair.completions(1);
            }
            pair.receive(1, &mut memory[number], place, number, 0);
            pair.settle();
            let done = pair.completions(1);
            prop_assert!(done.len() == 1 && done[0].error == 0 && done[0].context == number, "{done:?}");
            prop_assert!(memory[number] == bodies[number]);
            at += 1;
        }
        prop_assert!(pair.engines[0].operations.is_empty() && pair.engines[1].operations.is_empty());
        prop_assert_eq!(pair.waiting(1), [0, 0]);
        let long = messages.iter().filter(|(length, _)| *length > INJECT_LIMIT).count();
        prop_assert_eq!(pair.completions(0).len(), long);
    }
}

/// A receive that none of the waiting messages matches lets everything through, of its kind; nothing of the other.
#[test]
fn a_receive_that_waits_lets_its_kind_through() {
    let (mut pair, body) = (Pair::new(), pattern(1, 8));
    pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(2000));
    for _ in 0..100 {
        pair.inject(0, &body, Some(1));
        pair.inject(0, &body, None);
        pair.settle();
    }
    let full = pair.waiting(1);
    assert!(full.iter().all(|cost| (6 * 168..=12 * 168).contains(cost)), "{full:?}");
    let mut memory = [0; 8];
    pair.receive(1, &mut memory, Some((2, 0)), 5, 0);
    pair.settle();
    assert_eq!(pair.waiting(1), [full[0], 100 * 168]);
    pair.inject(0, &body, Some(2));
    pair.settle();
    assert_eq!(pair.completions(1).len(), 1);
    // Now that nobody waits, the next is one too many, and the one after that stays.
    for _ in 0..5 {
        pair.inject(0, &body, Some(1));
        pair.settle();
    }
    assert_eq!(pair.waiting(1), [full[0], 101 * 168]);
}

/// When the receiver's endpoint is closed, nothing stays with the sender; when the sender's is, nothing leaves it.
#[test]
fn what_stays_ends_with_either_endpoint() {
    for side in [0, 1] {
        let (mut pair, body) = (Pair::new(), pattern(1, 8));
        pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(2000));
        for _ in 0..100 {
            pair.inject(0, &body, Some(1));
            pair.settle();
        }
        assert!(!pair.engines[0].operations.is_empty());
        pair.engines[side].close_endpoint(&mut pair.wires[side], 0);
        pair.settle();
        assert!(pair.engines[0].operations.is_empty());
    }
}

/// A sender that is not heard is soon told to try again, whatever its channel has room for, and whatever kind its messages are.
#[test]
fn what_is_on_its_way_is_bounded() {
    const LIMIT: u64 = 16_000;
    for length in [0, 8, 100, INJECT_LIMIT] {
        let (mut pair, body) = (Pair::new(), pattern(1, length));
        pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(LIMIT));
        let flood = |pair: &mut Pair| (0..1000u64).take_while(|number| pair.admits(0, &body, (number % 2 == 0).then_some(1))).count();
        assert!((1..=100).contains(&flood(&mut pair)));
        // It has asked; when that has arrived, and not before, further ones may follow.
        while pair.step(0, false) {
            assert!(pair.waiting(1).iter().sum::<u64>() < 2 * (LIMIT + RECORD_BYTES) + INJECT_LIMIT as u64);
        }
        pair.settle();
        assert!(flood(&mut pair) > 0);
        // A receiver that asks for the last of them gets it.
        let wanted = u64::MAX;
        while !pair.admits(0, &body, Some(wanted)) {
            pair.settle();
        }
        let mut memory = vec![0; length];
        pair.receive(1, &mut memory, Some((wanted, 0)), 5, 0);
        pair.settle();
        assert_eq!(pair.completions(1).len(), 1);
        assert_eq!(memory, body);
    }
}

/// A sender that calls nothing but send must wait for its receiver now and then; one that takes part lets it go on at once,
/// whether it wants anything or not.
#[test]
fn what_stays_waits_for_a_sign_of_the_receiver() {
    let mut pair = Pair::full(16_800);
    for _ in 0..10 {
        let more = pair.flood(1000);
        assert!((1..=16_800 / 4 / 168 + 1).contains(&more), "{more} messages");
        // It has asked once, and nobody answers who is away.
        assert_eq!((pair.flood(1), pair.wires[0].packets.len()), (0, 1));
        pair.settle();
    }
    // Both ways: who has to wait takes part.
    let mut pair = Pair::full(16_800);
    while pair.admits(1, &[7; 8], Some(1)) {
        pair.settle();
        if pair.engines[1].operations.len() > 1000 {
            break;
        }
    }
    assert!(pair.engines[1].operations.len() > 1000 && pair.flood(1) == 1);
}

/// A receiver that takes messages is never far behind its sender, which is faster, whatever stayed before it began.
#[test]
fn what_stays_becomes_less_while_it_is_taken() {
    const WAITING_OPERATIONS: usize = 1000;
    let mut pair = Pair::full(16_800);
    while pair.engines[0].operations.len() < WAITING_OPERATIONS {
        pair.flood(1);
        pair.settle();
    }
    let mut stayed = Vec::new();
    let mut memory = [0; 8];
    for number in 0..4 * WAITING_OPERATIONS {
        pair.receive(1, &mut memory, Some((1, 0)), number, 0);
        // As a program does: it takes part while it waits, and no longer.
        while pair.completions(1).is_empty() {
            assert!(pair.step(0, false) || pair.step(1, false), "message {number} does not come");
            pair.flood(1000);
        }
        pair.flood(1000);
        stayed.push(pair.engines[0].operations.len());
    }
    let (most, last) = (stayed.iter().max().unwrap(), stayed.last().unwrap());
    assert!(*most < WAITING_OPERATIONS + 100 && *last < 100, "{most} stayed, {last} in the end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Whoever has to wait may go on as soon as everything has arrived, whatever the limit; no message is lost or overtakes another.
    #[test]
    fn nobody_waits_for_ever(limit in 1u64..5000, schedule in prop::collection::vec(0u8..8, 1..400)) {
        let mut pair = Pair::new();
        pair.engines.iter_mut().for_each(|engine| engine.flow.set_limit(limit));
        let (mut sent, mut posted) = (0u64, 0);
        let mut memory = vec![[0u8; 8]; 2 * schedule.len()];
        for act in &schedule {
            match act {
                0..4 => {
                    let mut fits = pair.admits(0, &sent.to_le_bytes(), Some(1));
                    if !fits {
                        pair.settle();
                        fits = pair.admits(0, &sent.to_le_bytes(), Some(1));
                    }
                    prop_assert!(fits, "message {sent} has to wait though everything has arrived");
                    sent += 1;
                }
                4 => {
                    pair.step(0, false);
                }
                5 => {
                    pair.step(1, false);
                }
                _ => {
                    pair.receive(1, &mut memory[posted], Some((1, 0)), posted, 0);
                    posted += 1;
                }
            }
        }
        while (posted as u64) < sent {
            pair.receive(1, &mut memory[posted], Some((1, 0)), posted, 0);
            posted += 1;
        }
        pair.settle();
        prop_assert_eq!(pair.completions(1).len() as u64, sent);
        for (number, got) in memory[..sent as usize].iter().enumerate() {
            prop_assert_eq!(u64::from_le_bytes(*got), number as u64);
        }
        prop_assert!(pair.engines[0].operations.is_empty());
    }
}

/// Whoever receives no more says so to those that wait for it, whatever their messages have come to; also when it is closed.
#[test]
fn nobody_waits_for_an_endpoint_that_is_shut() {
    let (long, short) = (pattern(1, 3 * MAX_PAYLOAD), pattern(2, 8));
    for closed in [false, true] {
        for (offers, flags) in [(false, 0), (true, 0), (false, FI_DELIVERY_COMPLETE), (true, FI_DELIVERY_COMPLETE)] {
            let mut pair = Pair::new();
            pair.wires[0].offers = offers;
            let mut memory = vec![0; long.len()];
            // One that is asked for or read, of which a part has come if it may; then some that nobody asks for.
            pair.receive(1, &mut memory, Some((9, 0)), 1, 0);
            pair.send(0, &long, Some(9), 2, FI_COMPLETION | flags);
            assert!(pair.step(0, false) && (offers || pair.step(1, false) && pair.step(0, true)));
            let send = |pair: &mut Pair| {
                for tag in [Some(1), None] {
                    pair.send(0, &long, tag, 3, FI_COMPLETION | flags);
                    pair.send(0, &short, tag, 4, FI_COMPLETION | flags);
                }
            };
            send(&mut pair);
            assert!((0..4).all(|_| pair.step(0, false)));
            if closed {
                pair.engines[1].close_endpoint(&mut pair.wires[1], 0);
            } else {
                pair.engines[1].shut_endpoint(&mut pair.wires[1], 0);
            }
            assert!(pair.wires[1].pulls.is_empty());
            send(&mut pair);
            pair.settle();
            assert!(pair.engines.iter().all(|engine| engine.operations.is_empty()));
            assert_eq!(pair.completions(0).len(), 9);
            assert_eq!(pair.wires[0].retracted, if offers { 5 } else { 0 });
            assert_eq!(pair.completions(1).len(), 0);
        }
    }
}
