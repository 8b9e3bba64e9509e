//! Control connections: frames of a holder of the secret, changed on their way. What arrives is what was sent, up to the first
//! change; a changed record is refused, and lengths are bounded. Handshake messages of an unproven peer are refused.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_messages::auth::{Greeting, Purpose};
use mend_messages::frame::MAX_FRAME;
use mend_messages::job::Secret;
use mend_wire::session::{Handshake, LENGTH_RECORD, MESSAGE_LENGTH, sealed_length};

#[derive(Arbitrary, Debug)]
struct Input {
    /// Instead of the initiator's message.
    first: Option<[u8; MESSAGE_LENGTH]>,
    /// Announced length, if it is not the true one, and body.
    frames: Vec<(Option<u32>, Vec<u8>)>,
    /// Which byte of all is changed, and how; 0: not at all.
    change: (u32, u8),
}

fuzz_target!(|input: Input| {
    let secret = Secret([4; 32]);
    let [a, b] = [1, 2].map(|nonce| Greeting::new(Purpose::Job, [nonce; 32]));
    let mut opened = Handshake::initiator(&secret, Purpose::Job, &a, &b, b"");
    let mut accepted = Handshake::acceptor(&secret, Purpose::Job, &b, &a, b"");
    if let Some(first) = input.first {
        assert!(accepted.read(&first).is_err(), "let in without the secret");
        return;
    }
    accepted.read(&opened.write()).expect("the same secret");
    opened.read(&accepted.write()).expect("the same secret");
    let ((mut sealing, _), (_, mut opening)) = (opened.finish(), accepted.finish());
    let mut stream = Vec::new();
    for (length, body) in &input.frames {
        let frame = [&length.unwrap_or(body.len() as u32).to_le_bytes()[..], body].concat();
        stream.extend(sealing.seal(&frame).expect("numbers are left"));
    }
    let changed = (input.change.0 as usize, input.change.1 != 0);
    if let (Some(byte), true) = (stream.get_mut(changed.0), changed.1) {
        *byte ^= input.change.1;
    }
    let (mut rest, mut at) = (&stream[..], 0);
    for (length, body) in &input.frames {
        let Some((record, after)) = rest.split_first_chunk::<LENGTH_RECORD>() else { return };
        let touched = |from: usize, to: usize| changed.1 && (from..to).contains(&changed.0);
        let opens = opening.length(record);
        let bounded = length.is_none_or(|length| length as usize <= MAX_FRAME);
        assert_eq!(opens.is_ok(), bounded && !touched(at, at + LENGTH_RECORD));
        let Ok(announced) = opens else { return };
        let Some((sealed, after)) = after.split_at_checked(sealed_length(announced)) else { return };
        let came = opening.body(sealed, announced);
        let start = at + LENGTH_RECORD;
        if announced == body.len() {
            assert_eq!(came.ok().as_ref(), (!touched(start, start + sealed.len())).then_some(body));
        }
        if announced != body.len() || touched(start, start + sealed.len()) {
            return;
        }
        at = start + sealed.len();
        rest = after;
    }
});
