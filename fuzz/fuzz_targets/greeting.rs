//! The first bytes of any connection, from anybody: a greeting and a proof. Nothing but the right proof may be accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_messages::auth::{GREETING_LENGTH, Greeting, PROOF_LENGTH, Purpose, Side, prove, verify};
use mend_messages::job::Secret;

fuzz_target!(|data: [u8; GREETING_LENGTH + PROOF_LENGTH]| {
    let ours = Greeting::new(Purpose::Job, [7; 32]);
    let Ok(greeting) = data[..GREETING_LENGTH].try_into() else { return };
    let Ok(theirs) = Greeting::decode(greeting, &ours) else { return };
    assert_eq!(theirs.encode(), data[..GREETING_LENGTH], "what was accepted is not what was sent");
    let Ok(proof) = data[GREETING_LENGTH..].try_into() else { return };
    let secret = Secret([9; 32]);
    let accepted = verify(&secret, Side::Initiator, &theirs, &ours, proof).is_ok();
    assert_eq!(accepted, *proof == prove(&secret, Side::Initiator, &theirs, &ours));
});
