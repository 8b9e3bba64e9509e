//! A connection from anybody to a rank: bytes in pieces, with or without the job's secret. Without it nobody gets as far as
//! HELLO; with it, what HELLO says is what was sent, and nothing may follow it before ACCEPT.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_fabric::channel::pending_handshake::PendingHandshake;
use mend_messages::auth::{GREETING_LENGTH, Greeting, Purpose, Side, prove};
use mend_messages::job::Secret;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Instead of a true greeting and proof.
    greeting: Option<Vec<u8>>,
    proof: Option<Vec<u8>>,
    wrong_secret: bool,
    hello: Vec<u8>,
    true_hello: bool,
    cut: u8,
}

fuzz_target!(|input: Input| {
    let secret = Secret([4; 32]);
    let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket");
    let mut pending = PendingHandshake::new(theirs.into(), false).expect("random numbers");
    let greeting = Greeting::new(Purpose::Fabric, [1; 32]);
    let mut known = None;
    let mut say = |ours: &mut UnixStream, bytes: &[u8]| -> bool {
        for piece in bytes.chunks(usize::from(input.cut) + 1) {
            ours.write_all(piece).expect("a handshake fits");
            match pending.advance(&secret) {
                Ok(Some(hello)) => known = Some(hello),
                Ok(None) => {}
                Err(_) => return false,
            }
        }
        true
    };
    let first = input.greeting.clone().unwrap_or_else(|| greeting.encode().to_vec());
    let mut honest = input.greeting.is_none() && input.proof.is_none() && !input.wrong_secret;
    if say(&mut ours, &first[..first.len().min(2000)]) {
        let mut answer = [0; GREETING_LENGTH];
        let theirs = ours.read_exact(&mut answer).ok().and_then(|()| Greeting::decode(&answer, &greeting).ok());
        let key = if input.wrong_secret { Secret([5; 32]) } else { Secret([4; 32]) };
        let proof = match (&input.proof, theirs) {
            (None, Some(theirs)) => prove(&key, Side::Initiator, &greeting, &theirs).to_vec(),
            (Some(bytes), _) => bytes.clone(),
            (None, None) => return,
        };
        let mut hello = b"MENDrank".to_vec();
        hello.extend(&input.hello);
        let hello = if input.true_hello { &hello } else { &input.hello };
        honest &= say(&mut ours, &proof[..proof.len().min(2000)]);
        honest &= say(&mut ours, &hello[..hello.len().min(2000)]);
    }
    let Some(hello) = known else { return };
    // A greeting and proof of the fuzzer's own that are right would need the secret.
    assert!(honest || (input.greeting.is_none() && input.proof.is_none()), "let in without the secret");
    assert!(!input.wrong_secret, "let in with the wrong secret");
    assert!(input.true_hello || input.hello.starts_with(b"MENDrank"));
    let (wakeup, _receiver) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    // A shared channel needs a ring, which did not come; one over a port needs the port.
    let admitted = pending.admit(std::os::fd::AsFd::as_fd(&wakeup), None);
    assert_eq!(admitted.is_ok(), hello.medium == mend_fabric::channel::Medium::Tcp);
});
