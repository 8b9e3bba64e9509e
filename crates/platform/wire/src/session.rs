//! Noise without I/O: the handshake that follows two greetings, and the records that carry frames afterwards.
//!
//! ```text
//! initiator                                       acceptor
//!   ── greeting, in the clear ──────────────────────►     version, purpose, nonce A
//!   ◄────────────────────── greeting, in the clear ──     version, purpose, nonce B
//!   ── psk, e ──────────────────────────────────────►     wrong secret: closed without a word
//!   ◄──────────────────────────────────── e, ee ─────
//!   ══ records, each way with keys of its own ═══════
//! ```
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`. The prologue holds both greetings, the initiator's first, so that versions,
//! purposes and roles are what both sides mean, and a recorded first message is refused: it was made for another nonce B.
//! Each purpose has a pre-shared key of its own ([`mend_messages::auth::psk`]).
//!
//! A frame is a sealed length, always [`LENGTH_RECORD`] bytes, then its body in records of at most [`MAX_RECORD`] bytes. So no
//! length is believed before it is authenticated. Records are numbered by their nonce: one that is changed, left out,
//! repeated or put elsewhere is refused. What is not protected: an attacker on the way can delay or end a connection, and sees how
//! long frames are and when they are sent.

use mend_messages::auth::{Greeting, Purpose, psk};
use mend_messages::frame::{FrameError, MAX_FRAME, body_length};
use mend_messages::job::Secret;
use snow::{Builder, HandshakeState, StatelessTransportState};
use std::sync::Arc;

/// Length of each of the two messages of the handshake, bytes: a public key and a tag.
pub const MESSAGE_LENGTH: usize = 48;
/// Longest record, bytes: what Noise allows for a message.
pub const MAX_RECORD: usize = 65_535;
/// Length of the record that tells a frame's length, bytes.
pub const LENGTH_RECORD: usize = 4 + TAG_BYTES;
const TAG_BYTES: usize = 16;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Why a record is not taken or not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// It does not carry the right tag.
    #[error("what came is not what the peer sent: it was changed on its way, or comes out of turn")]
    Forged,
    /// All numbers of records are used up.
    #[error("the connection has carried all the records that its keys are good for")]
    Exhausted,
}

/// One side of the handshake.
#[derive(Debug)]
pub struct Handshake(HandshakeState);

impl Handshake {
    /// The side that opened the connection. `context` is what else both sides must mean.
    #[must_use]
    pub fn initiator(secret: &Secret, purpose: Purpose, ours: &Greeting, theirs: &Greeting, context: &[u8]) -> Self {
        Self::new(secret, purpose, [ours, theirs], context, true)
    }

    /// The side that accepted it.
    #[must_use]
    pub fn acceptor(secret: &Secret, purpose: Purpose, ours: &Greeting, theirs: &Greeting, context: &[u8]) -> Self {
        Self::new(secret, purpose, [theirs, ours], context, false)
    }

    fn new(secret: &Secret, purpose: Purpose, [initiator, acceptor]: [&Greeting; 2], context: &[u8], opened: bool) -> Self {
        let prologue = [b"Mend", &initiator.encode()[..], &acceptor.encode()[..], context].concat();
        let key = psk(secret, purpose);
        // Constants and lengths that the types fix: there is nothing in them that a peer or a user could get wrong.
        let parameters = PATTERN.parse().expect("the pattern is one that snow knows");
        let builder = Builder::new(parameters).psk(0, &key).and_then(|builder| builder.prologue(&prologue));
        let state = builder.and_then(|builder| if opened { builder.build_initiator() } else { builder.build_responder() });
        Self(state.expect("a pattern without static keys needs its pre-shared key and a prologue only"))
    }

    /// Our message.
    ///
    /// # Panics
    /// If it is not our turn.
    pub fn write(&mut self) -> [u8; MESSAGE_LENGTH] {
        let mut message = [0; MESSAGE_LENGTH];
        let length = self.0.write_message(&[], &mut message).expect("it is our turn, and the buffer is as long as the message");
        assert_eq!(length, MESSAGE_LENGTH, "a public key and a tag");
        message
    }

    /// Takes the peer's message.
    ///
    /// # Errors
    /// [`SessionError::Forged`]: another secret, other greetings, or other bytes than the peer sent.
    pub fn read(&mut self, message: &[u8; MESSAGE_LENGTH]) -> Result<(), SessionError> {
        match self.0.read_message(message, &mut []) {
            Ok(_) => Ok(()),
            Err(_) => Err(SessionError::Forged),
        }
    }

    /// The keys of both directions, once both messages have passed.
    ///
    /// # Panics
    /// Before that.
    #[must_use]
    pub fn finish(self) -> (Sealing, Opening) {
        let state = Arc::new(self.0.into_stateless_transport_mode().expect("both messages have passed"));
        (Sealing { state: state.clone(), next: 0 }, Opening { state, next: 0 })
    }
}

/// Makes records.
#[derive(Debug)]
pub struct Sealing {
    state: Arc<StatelessTransportState>,
    next: u64,
}

/// Opens records, in the order in which they were made.
#[derive(Debug)]
pub struct Opening {
    state: Arc<StatelessTransportState>,
    next: u64,
}

impl Sealing {
    /// The records of a frame, as [`mend_messages::frame::encode`] made it: length and body.
    ///
    /// # Errors
    /// [`SessionError::Exhausted`].
    pub fn seal(&mut self, frame: &[u8]) -> Result<Vec<u8>, SessionError> {
        let (length, body) = frame.split_at(frame.len().min(4));
        let records = body.len().div_ceil(MAX_RECORD - TAG_BYTES);
        let mut sealed = vec![0; LENGTH_RECORD + body.len() + records * TAG_BYTES];
        let mut end = 0;
        for plain in std::iter::once(length).chain(body.chunks(MAX_RECORD - TAG_BYTES)) {
            end += self.state.write_message(self.next, plain, &mut sealed[end..]).map_err(|_| SessionError::Exhausted)?;
            // The last number is Noise's own, and refused above.
            self.next = self.next.saturating_add(1);
        }
        Ok(sealed)
    }
}

impl Opening {
    /// Length of the body that follows.
    ///
    /// # Errors
    /// [`SessionError::Forged`]; [`FrameError::TooLong`], from a peer that holds the secret.
    pub fn length(&mut self, record: &[u8; LENGTH_RECORD]) -> Result<usize, OpenError> {
        let mut prefix = [0; 4];
        self.open(record, &mut prefix)?;
        Ok(body_length(prefix)?)
    }

    /// Opens the records of a body in place, and cuts off what is not body.
    ///
    /// # Errors
    /// [`SessionError::Forged`].
    pub fn body(&mut self, sealed: &[u8], length: usize) -> Result<Vec<u8>, OpenError> {
        debug_assert_eq!(sealed.len(), sealed_length(length), "the caller read what the length says");
        let mut body = vec![0; length];
        for (record, plain) in sealed.chunks(MAX_RECORD).zip(body.chunks_mut(MAX_RECORD - TAG_BYTES)) {
            self.open(record, plain)?;
        }
        Ok(body)
    }

    fn open(&mut self, record: &[u8], plain: &mut [u8]) -> Result<(), SessionError> {
        match self.state.read_message(self.next, record, plain) {
            Ok(length) if length == plain.len() => self.next = self.next.saturating_add(1),
            _ => return Err(SessionError::Forged),
        }
        Ok(())
    }
}

/// Bytes that the records of a body of `length` bytes take.
#[must_use]
pub fn sealed_length(length: usize) -> usize {
    length + length.div_ceil(MAX_RECORD - TAG_BYTES) * TAG_BYTES
}

const _: () = assert!(MAX_FRAME < usize::MAX / 2, "sealed lengths can be reckoned");

/// Why a frame is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not of the peer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Too long.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::frame;

    fn pair(secrets: [u8; 2], purposes: [Purpose; 2]) -> Result<[(Sealing, Opening); 2], SessionError> {
        let [a, b] = [Greeting::new(purposes[0], [1; 32]), Greeting::new(purposes[0], [2; 32])];
        let mut opened = Handshake::initiator(&Secret([secrets[0]; 32]), purposes[0], &a, &b, b"");
        let mut accepted = Handshake::acceptor(&Secret([secrets[1]; 32]), purposes[1], &b, &a, b"");
        accepted.read(&opened.write())?;
        opened.read(&accepted.write())?;
        Ok([opened.finish(), accepted.finish()])
    }

    fn open(opening: &mut Opening, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (length, body) = sealed.split_first_chunk().unwrap();
        let length = opening.length(length)?;
        opening.body(body, length)
    }

    #[test]
    fn secrets_and_purposes_must_be_the_same() {
        assert!(pair([1, 1], [Purpose::Job; 2]).is_ok());
        assert_eq!(pair([1, 2], [Purpose::Job; 2]).unwrap_err(), SessionError::Forged);
        // The same greetings, yet another key.
        assert_eq!(pair([1, 1], [Purpose::Job, Purpose::Control]).unwrap_err(), SessionError::Forged);
    }

    #[test]
    fn a_first_message_is_good_for_its_greetings_role_and_context_only() {
        let secret = Secret([1; 32]);
        let [a, b, c] = [1, 2, 3].map(|nonce| Greeting::new(Purpose::Job, [nonce; 32]));
        let first = Handshake::initiator(&secret, Purpose::Job, &a, &b, b"x").write();
        let judged = |ours, theirs, context: &[u8]| Handshake::acceptor(&secret, Purpose::Job, ours, theirs, context).read(&first);
        assert_eq!(judged(&b, &a, b"x"), Ok(()));
        // Played again, to an acceptor with a nonce of its own; sent back to who made it; for another job.
        for (ours, theirs, context) in [(&c, &a, b"x"), (&a, &b, b"x"), (&b, &a, b"y")] {
            assert_eq!(judged(ours, theirs, context), Err(SessionError::Forged));
        }
    }

    #[test]
    fn frames_of_every_size_arrive_and_none_out_of_turn() {
        let [(mut sealing, _), (mut back, mut opening)] = pair([1, 1], [Purpose::Job; 2]).unwrap();
        for length in [0, 1, 65_518, 65_519, 65_520, 200_000] {
            let body: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let frame = [&(length as u32).to_le_bytes()[..], &body].concat();
            let sealed = sealing.seal(&frame).unwrap();
            assert_eq!(sealed.len(), LENGTH_RECORD + sealed_length(length));
            assert_eq!(open(&mut opening, &sealed).unwrap(), body);
            // Again; and one of the other direction.
            assert_eq!(open(&mut opening, &sealed), Err(SessionError::Forged.into()));
            let own = back.seal(&frame).unwrap();
            assert_eq!(open(&mut opening, &own), Err(SessionError::Forged.into()));
        }
    }

    #[test]
    fn no_byte_can_be_changed_and_records_stay_in_their_order() {
        let [(mut sealing, _), (_, mut opening)] = pair([1, 1], [Purpose::Job; 2]).unwrap();
        let frame = frame::encode(&vec![7u8; 140_000]).unwrap();
        let sealed = sealing.seal(&frame).unwrap();
        for at in (0..sealed.len()).step_by(9973).chain(0..LENGTH_RECORD) {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            let mut trial = Opening { state: opening.state.clone(), next: opening.next };
            assert_eq!(open(&mut trial, &changed), Err(SessionError::Forged.into()), "byte {at}");
        }
        let (length, body) = sealed.split_first_chunk().unwrap();
        let length = opening.length(length).unwrap();
        let swapped = [&body[MAX_RECORD..2 * MAX_RECORD], &body[..MAX_RECORD], &body[2 * MAX_RECORD..]].concat();
        assert_eq!(opening.body(&swapped, length), Err(SessionError::Forged.into()));
    }

    #[test]
    fn a_length_over_the_bound_is_refused_from_a_holder_of_the_secret_too() {
        let [(mut sealing, _), (_, mut opening)] = pair([1, 1], [Purpose::Job; 2]).unwrap();
        let sealed = sealing.seal(&u32::MAX.to_le_bytes()).unwrap();
        assert!(matches!(open(&mut opening, &sealed), Err(OpenError::Frame(FrameError::TooLong(_)))));
    }
}
