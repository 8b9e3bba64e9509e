//! The keyed handshake: both sides prove that they hold the same secret, neither reveals it.
//!
//! ```text
//! initiator                                   acceptor
//!   ── Greeting: magic, protocol, purpose, nonce A ──►
//!   ◄── Greeting: magic, protocol, purpose, nonce B ──
//!   ── proof = HMAC(secret, "I" ‖ purpose ‖ A ‖ B) ──►    wrong: closed without a word
//!   ◄── proof = HMAC(secret, "A" ‖ purpose ‖ A ‖ B) ──
//! ```
//! Control connections exchange the greetings only, and then speak Noise with the key that [`psk`] derives (`mend_wire::session`).
//! The greeting goes in the clear so that another protocol version is told apart from a wrong secret.
//! HMAC-SHA256 (RFC 2104); fresh nonces stop replay; the direction byte stops reflection.

use crate::job::Secret;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of an encoded [`Greeting`], bytes.
pub const GREETING_LENGTH: usize = 48;
/// Length of a proof, bytes.
pub const PROOF_LENGTH: usize = 32;
const MAGIC: [u8; 8] = *b"MENDwire";

/// What a connection is for; both sides must mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Controller to daemon: [`crate::daemon`].
    Job = 1,
    /// CLI to controller: [`crate::control`].
    Control = 2,
    /// Daemon to daemon: agrees on the image of a moving rank, which follows on the same connection.
    Transfer = 3,
    /// Rank to rank: packets.
    Fabric = 4,
    /// Rank to rank, in a job whose bulk data is encrypted: what follows the handshake over a network is (`mend_cipher`).
    EncryptedFabric = 5,
    /// Client of a data space to daemon: where a target is.
    Space = 6,
    /// Client of a data space to a target.
    Target = 7,
    /// Writing mount of the pipe to reading mount.
    Pipe = 8,
}

impl Purpose {
    /// What ranks of a job connect for. Both ends have it from the controller, and prove it with the secret: nobody on the way can
    /// talk one of them out of the encryption.
    #[must_use]
    pub fn of_ranks(encrypted: bool) -> Self {
        if encrypted { Self::EncryptedFabric } else { Self::Fabric }
    }
}

/// First bytes on any connection, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Sender's [`crate::PROTOCOL`].
    pub protocol: u32,
    /// See [`Purpose`].
    pub purpose: u32,
    /// Random, never used twice.
    pub nonce: [u8; 32],
}

/// Why a peer was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The first bytes are not a greeting.
    #[error("the peer does not speak Mend's protocol")]
    NotMend,
    /// Another release.
    #[error("the peer speaks protocol {theirs}, this program {ours}: install the same release of Mend on every node")]
    OtherVersion {
        /// The peer's protocol.
        theirs: u32,
        /// The protocol that this program speaks.
        ours: u32,
    },
    /// Connected to the wrong kind of port.
    #[error("the peer expects another kind of connection (its purpose {theirs}, ours {ours})")]
    OtherPurpose {
        /// The peer's purpose.
        theirs: u32,
        /// The purpose that this program connected for.
        ours: u32,
    },
    /// One side encrypts bulk data, the other does not.
    #[error("MEND_ENCRYPT_DATA is {} at the peer and {} here: it must be the same in all of a job", on_or_off(*.theirs), on_or_off(!.theirs))]
    OtherEncryption {
        /// Whether the peer does.
        theirs: bool,
    },
    /// The proof does not fit.
    #[error("the peer does not hold the same secret")]
    WrongSecret,
}

fn on_or_off(encrypted: bool) -> &'static str {
    if encrypted { "on" } else { "off" }
}

impl Greeting {
    /// A greeting of this release.
    #[must_use]
    pub fn new(purpose: Purpose, nonce: [u8; 32]) -> Self {
        Self { protocol: crate::PROTOCOL, purpose: purpose as u32, nonce }
    }

    /// Wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; GREETING_LENGTH] {
        let mut bytes = [0; GREETING_LENGTH];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.protocol.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.purpose.to_le_bytes());
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    /// The purpose in a greeting that is not judged yet.
    #[must_use]
    pub fn purpose_of(bytes: &[u8; GREETING_LENGTH]) -> u32 {
        u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
    }

    /// Decodes a peer's greeting and checks that it fits `ours`.
    ///
    /// # Errors
    /// [`AuthError::NotMend`], [`AuthError::OtherVersion`], [`AuthError::OtherPurpose`], [`AuthError::OtherEncryption`].
    pub fn decode(bytes: &[u8; GREETING_LENGTH], ours: &Greeting) -> Result<Self, AuthError> {
        if bytes[..8] != MAGIC {
            return Err(AuthError::NotMend);
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&bytes[16..]);
        let theirs = Self { protocol: word(8), purpose: word(12), nonce };
        if theirs.protocol != ours.protocol {
            return Err(AuthError::OtherVersion { theirs: theirs.protocol, ours: ours.protocol });
        }
        let ranks = [Purpose::Fabric as u32, Purpose::EncryptedFabric as u32];
        if theirs.purpose != ours.purpose && ranks.contains(&theirs.purpose) && ranks.contains(&ours.purpose) {
            return Err(AuthError::OtherEncryption { theirs: theirs.purpose == Purpose::EncryptedFabric as u32 });
        }
        if theirs.purpose != ours.purpose {
            return Err(AuthError::OtherPurpose { theirs: theirs.purpose, ours: ours.purpose });
        }
        Ok(theirs)
    }
}

/// Which side a proof is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Opened the connection.
    Initiator,
    /// Accepted it.
    Acceptor,
}

fn mac(secret: &Secret, side: Side, initiator: &Greeting, acceptor: &Greeting) -> Hmac<Sha256> {
    // HMAC takes keys of any length, so this cannot fail.
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&secret.0).expect("HMAC accepts a 32-byte key");
    mac.update(match side {
        Side::Initiator => b"I",
        Side::Acceptor => b"A",
    });
    mac.update(&initiator.encode());
    mac.update(&acceptor.encode());
    mac
}

/// The pre-shared key of connections for `purpose`: of use for nothing else, and the secret cannot be told from it.
#[must_use]
pub fn psk(secret: &Secret, purpose: Purpose) -> [u8; 32] {
    // HMAC takes keys of any length, so this cannot fail. The text differs from a proof's in its first byte.
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&secret.0).expect("HMAC accepts a 32-byte key");
    mac.update(b"Mend: pre-shared key of a control connection");
    mac.update(&crate::PROTOCOL.to_le_bytes());
    mac.update(&(purpose as u32).to_le_bytes());
    mac.finalize().into_bytes().into()
}

/// The proof that `side` sends.
#[must_use]
pub fn prove(secret: &Secret, side: Side, initiator: &Greeting, acceptor: &Greeting) -> [u8; PROOF_LENGTH] {
    mac(secret, side, initiator, acceptor).finalize().into_bytes().into()
}

/// Checks the proof that `side` sent, in constant time.
///
/// # Errors
/// [`AuthError::WrongSecret`].
pub fn verify(secret: &Secret, side: Side, initiator: &Greeting, acceptor: &Greeting, proof: &[u8; PROOF_LENGTH]) -> Result<(), AuthError> {
    mac(secret, side, initiator, acceptor).verify_slice(proof).map_err(|_| AuthError::WrongSecret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_fit_only_their_secret_side_and_nonces() {
        let (a, b) = (Greeting::new(Purpose::Job, [1; 32]), Greeting::new(Purpose::Job, [2; 32]));
        let secret = Secret([7; 32]);
        let proof = prove(&secret, Side::Initiator, &a, &b);
        assert!(verify(&secret, Side::Initiator, &a, &b, &proof).is_ok());
        assert!(verify(&secret, Side::Acceptor, &a, &b, &proof).is_err());
        assert!(verify(&Secret([8; 32]), Side::Initiator, &a, &b, &proof).is_err());
        assert!(verify(&secret, Side::Initiator, &b, &a, &proof).is_err());
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let ours = Greeting::new(Purpose::Job, [1; 32]);
        let mut bytes = ours.encode();
        assert_eq!(Greeting::decode(&bytes, &ours), Ok(ours));
        bytes[8] = 99;
        assert_eq!(Greeting::decode(&bytes, &ours), Err(AuthError::OtherVersion { theirs: 99, ours: crate::PROTOCOL }));
        bytes[0] = b'G';
        assert_eq!(Greeting::decode(&bytes, &ours), Err(AuthError::NotMend));
    }

    #[test]
    fn ranks_that_do_not_agree_on_encryption_say_so() {
        let [plain, encrypted] = [false, true].map(|encrypted| Greeting::new(Purpose::of_ranks(encrypted), [1; 32]));
        let judged = |theirs: &Greeting, ours: &Greeting| Greeting::decode(&theirs.encode(), ours);
        assert_eq!(judged(&encrypted, &encrypted), Ok(encrypted));
        assert_eq!(judged(&encrypted, &plain), Err(AuthError::OtherEncryption { theirs: true }));
        let refused = judged(&plain, &encrypted).unwrap_err();
        assert_eq!(refused.to_string(), "MEND_ENCRYPT_DATA is off at the peer and on here: it must be the same in all of a job");
        assert!(matches!(judged(&Greeting::new(Purpose::Job, [1; 32]), &encrypted), Err(AuthError::OtherPurpose { .. })));
    }
}
