//! Peers: greetings with their proofs, encrypted streams, the ends of channels over core providers.

use super::{keep, seed};
use crate::input::Input;
use crate::ofi::{Act, Peer, Told};
use crate::records::{self, Change, Records};
use arbitrary::{Arbitrary, Unstructured};
use mend_fabric::channel::ofi::CREDITS;
use mend_fabric::channel::ofi::contact::Contact;
use mend_messages::auth::{AuthError, Greeting, Purpose, Side, prove};
use mend_messages::job::Secret;

/// As in the target.
const OURS: [u8; 32] = [7; 32];
const SECRET: Secret = Secret([9; 32]);

#[test]
fn one_greeting_is_accepted() {
    let ours = Greeting::new(Purpose::Job, OURS);
    let true_one = Greeting::new(Purpose::Job, [1; 32]);
    let told = |greeting: &Greeting, proof: [u8; 32]| [&greeting.encode()[..], &proof].concat();
    let proof = |side| prove(&SECRET, side, &true_one, &ours);
    let judged = |greeting: &Greeting| Greeting::decode(&greeting.encode(), &ours);
    assert_eq!(judged(&true_one), Ok(true_one));
    let older = Greeting { protocol: true_one.protocol - 1, ..true_one };
    let other = Greeting::new(Purpose::Fabric, [1; 32]);
    assert!(matches!(judged(&older), Err(AuthError::OtherVersion { .. })) && matches!(judged(&other), Err(AuthError::OtherPurpose { .. })));
    let seeds = [
        seed("true", told(&true_one, proof(Side::Initiator))),
        seed("reflected", told(&true_one, proof(Side::Acceptor))),
        seed("our-own", told(&ours, prove(&SECRET, Side::Initiator, &ours, &ours))),
        seed("without-the-secret", told(&true_one, prove(&Secret([8; 32]), Side::Initiator, &true_one, &ours))),
        seed("older", told(&older, proof(Side::Initiator))),
        seed("of-another-purpose", told(&other, proof(Side::Initiator))),
        seed("no-greeting", b"GET / HTTP/1.1\r\nHost: node1\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n................".to_vec()),
    ];
    keep("greeting", &seeds);
}

#[test]
fn frames_of_a_control_connection() {
    let told = |frames: Vec<(Option<u32>, Vec<u8>)>, change: (u32, u8)| {
        let mut bytes = Vec::new();
        // No other first message than the true one.
        false.put(&mut bytes);
        frames.put(&mut bytes);
        change.put(&mut bytes);
        bytes
    };
    let frames = || vec![(None, b"abc".to_vec()), (None, Vec::new()), (None, vec![7; 300])];
    let seeds = [
        seed("plain", told(frames(), (0, 0))),
        seed("a-changed-length", told(frames(), (3, 0x80))),
        seed("a-changed-body", told(frames(), (21, 1))),
        seed("a-changed-tag", told(frames(), (23 + 15, 1))),
        seed("too-long", told(vec![(Some(u32::MAX), b"abc".to_vec())], (0, 0))),
        seed("longer-than-it-is", told(vec![(Some(9), b"abc".to_vec()), (None, vec![1; 40])], (0, 0))),
        seed("another-first-message", [&[1][..], &[5; 48], &[0; 6]].concat()),
    ];
    keep("session", &seeds);
}

#[test]
fn encrypted_streams_arrive_as_they_were_sent_or_not() {
    let stream = |changes| Records { lengths: vec![100, 0, 3000], changes, read: 77 };
    // The records are 120, 20, 3020 and 20 bytes long.
    let cases = [
        ("a-flip", Change::Flip { at: 500, mask: 4 }),
        ("a-flip-in-a-head", Change::Flip { at: 120, mask: 1 }),
        ("an-end-brought-forward", Change::Flip { at: 123, mask: 0x80 }),
        ("a-cut-between-records", Change::Cut { at: 140 }),
        ("without-its-last", Change::Cut { at: 3160 }),
        ("more-within", Change::Insert { at: 140, bytes: vec![0; 20] }),
        ("exchanged", Change::Swap { one: 0, other: 2 }),
        ("repeated", Change::Repeat { record: 1 }),
        ("left-out", Change::LeaveOut { record: 1 }),
        ("sent-back", Change::Reflected { record: 0 }),
        ("too-long", Change::Head { record: 2, value: 66_561 }),
    ];
    let changed = cases.into_iter().map(|(name, change)| (name, stream(vec![change])));
    let seeds = [("plain", stream(vec![]))].into_iter().chain(changed).map(|(name, input)| {
        let built = records::build(&input);
        assert_eq!(built.bytes.starts_with(&built.honest), input.changes.is_empty(), "{name}");
        let bytes = input.to_bytes();
        assert_eq!(Records::arbitrary_take_rest(Unstructured::new(&bytes)).as_ref(), Ok(&input), "{name}");
        seed(name, bytes)
    });
    keep("records", &seeds.collect::<Vec<_>>());
}

#[test]
fn peers_over_core_providers_are_told_apart() {
    let contact =
        Contact { provider: "tcp".into(), format: 2, address: vec![2, 0, 200, 17, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], line: 77 };
    let told = Told {
        provider: contact.provider.clone().into_bytes(),
        format: contact.format,
        length: contact.address.len() as u32,
        address: contact.address.clone(),
        line: contact.line,
    };
    assert_eq!(told.wire(), contact.encode().unwrap());
    let message = |line, credits, back, length| Act::Message { line, sequence: None, credits, back, length };
    let packet = |line, length| Act::Packet { line, kind: 0, tag: 3, length, lie: None };
    let plain = vec![
        packet(0, 100),
        packet(0, 30_000),
        message(0, 0, 4, 9000),
        Act::Read { line: 0 },
        message(0, 0, 4, 12_000),
        Act::Read { line: 0 },
    ];
    let credits = vec![
        message(1, CREDITS, 4, 0),
        Act::Spend { line: 1, messages: 3 },
        packet(0, 8),
        message(0, 3, 1, 500),
        Act::Spend { line: 1, messages: 9 },
    ];
    let too_many: Vec<_> = (0..=CREDITS).map(|_| message(2, 0, 4, 0)).chain([Act::Read { line: 2 }, message(2, 0, 4, 0)]).collect();
    let order = vec![Act::Message { line: 0, sequence: Some(1), credits: 0, back: 4, length: 0 }, message(0, 0, 4, 0)];
    let lie = vec![Act::Packet { line: 0, kind: 1, tag: 0, length: 64, lie: Some(1 << 30) }, message(0, 0, 4, 200), Act::Read { line: 0 }];
    let over = vec![message(1, u32::MAX, 4, 0), message(3, CREDITS, 4, 0), message(0, 1, 3, 0), Act::Spend { line: 3, messages: 9 }];
    let ends =
        vec![packet(0, 8), message(0, 0, 4, 99), Act::Fail { line: 0 }, message(0, 0, 4, 0), Act::Close { line: 0 }, Act::Open { line: 0 }];
    let cases = [
        ("packets", plain),
        ("credits", credits),
        ("more-than-credits", too_many),
        ("out-of-order", order),
        ("too-long-a-packet", lie),
        ("too-many-credits", over),
        ("closed-and-opened", ends),
    ];
    let mut seeds: Vec<_> = cases.into_iter().map(|(name, acts)| (name, Peer { told: told.clone(), acts })).collect();
    seeds.push(("too-long-an-address", Peer { told: Told { length: 65, ..told.clone() }, acts: vec![] }));
    assert!(Contact::decode(&seeds[0].1.told.wire()).is_ok() && Contact::decode(&seeds[7].1.told.wire()).is_err());
    let written = seeds.iter().map(|(name, peer)| {
        let bytes = peer.to_bytes();
        assert_eq!(Peer::arbitrary_take_rest(Unstructured::new(&bytes)).as_ref(), Ok(peer), "{name}");
        seed(name, bytes)
    });
    keep("ofi", &written.collect::<Vec<_>>());
}
