//! Encrypted, framed connections between controller, daemons and CLI (tokio), over TCP or a unix socket.
//!
//! A [`Connection`] exists only after both sides proved the secret, and every byte on it is encrypted and authenticated ([`session`]),
//! so whatever is read from one comes from a holder of the secret; lengths are bounded all the same. Faults assumed: the peer stops, lies,
//! or does not hold the secret. The handshake is bounded in time ([`HANDSHAKE_TIMEOUT`]); what follows is the caller's clock.

mod connection;
mod handshake;
mod link;
mod pending;
pub mod secret;
pub mod session;
mod stream;

pub use connection::{Connection, ReceiveError, Receiver, SendError, Sender};
pub use handshake::{Greeted, HANDSHAKE_TIMEOUT, HandshakeError, accept, again_if_broken, connect, connect_locally};
pub use link::{Link, LinkEnd, Source};
pub use pending::{HandshakeSlot, MAX_PENDING, MAX_PENDING_OF_PEER, PendingHandshakes, Refusals, admit_all};
pub use stream::{Peer, Stream};

/// 32 random bytes from the kernel: nonces, secrets.
///
/// # Panics
/// If the kernel has no randomness to give, which `getrandom(2)` excludes after boot.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("getrandom(2) works on every kernel Mend runs on");
    bytes
}
