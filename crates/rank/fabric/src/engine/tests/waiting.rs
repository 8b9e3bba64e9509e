//! Floods of messages that nobody receives.

use super::*;
use crate::engine::withhold::RECORD;

impl Pair {
    /// What waits at `side`, bytes with each message's record, by kind: plain, tagged.
    fn waiting(&mut self, side: usize) -> [u64; 2] {
        let endpoint = self.engines[side].endpoint(0).unwrap();
        [endpoint.plain.cost(1 - side as Rank), endpoint.tagged.cost(1 - side as Rank)]
    }

    fn inject(&mut self, side: usize, bytes: &[u8], tag: Option<u64>) {
        let segments = [Segment::of(bytes)];
        let to = (1 - side as Rank, 0);
        let message = Message { to, tag, data: None, segments: &segments, context: 0, flags: 0, inject: true };
        self.engines[side].send(&mut self.wires[side], 0, &message).unwrap();
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
            if *length <= EAGER_LIMIT {
                pair.inject(0, &bodies[number].clone(), *tag);
            } else {
                pair.send(0, &bodies[number], *tag, number, FI_COMPLETION);
            }
            pair.settle();
            if number < late {
                for cost in pair.waiting(1) {
                    prop_assert!(cost <= limit + RECORD + EAGER_LIMIT as u64, "{cost} bytes wait");
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
        let long = messages.iter().filter(|(length, _)| *length > EAGER_LIMIT).count();
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
    let full = [12 * 168, 12 * 168];
    assert_eq!(pair.waiting(1), full);
    pair.receive(1, &mut [0; 8], Some((2, 0)), 5, 0);
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
