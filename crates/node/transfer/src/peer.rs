//! Other nodes as source or target: one TCP connection for each image that goes from daemon to daemon.
//!
//! ```text
//! source daemon                                     target daemon
//!   ── Greeting (purpose Transfer) ──────────────────►
//!   ◄────────────────── Greeting (purpose Transfer) ──
//!   ── identity of the job, in the clear ────────────►   not a job here: closed
//!   ── Noise, with the job's secret ─────────────────►   wrong: closed
//!   ◄───────────────── Noise, with the job's secret ──
//!   ── token, sealed ────────────────────────────────►   no restore waits for it: closed
//!   ◄─────────────────────────────── TAKEN_ANSWER, sealed ──    a restore waits
//!   ══ the image, written by the rank's agent itself ═►  read by the restorer itself
//! ```
//! The handshake and what is agreed on are sealed (`mend_wire::session`); the image itself is not.
//! Invariants: neither daemon reads or writes a byte of the image, so its size is no concern of theirs; nothing of the
//! rank is saved before the target has shown that it waits. Faults assumed: unproven peers; either side stalls or dies:
//! both ends have time limits in the kernel (`TCP_USER_TIMEOUT`, `SO_RCVTIMEO`) that outlive the handing on.

use crate::TransferError;
use mend_image::HEADER_SIZE;
use mend_messages::auth::{AuthError, Purpose};
use mend_messages::job::Secret;
use mend_wire::{Connection, Greeted, HANDSHAKE_TIMEOUT, HandshakeError, SendError};
use rustix::net::sockopt::{self, Timeout};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

const TAKEN_ANSWER: u8 = b'T';

/// How long a transfer and the restore that expects it wait for each other.
pub(crate) const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two looks at a header of which only a part has come.
const PEEK_INTERVAL: Duration = Duration::from_millis(1);

/// Names a transfer once; chosen by the controller.
pub type Token = [u8; 16];

/// How a restore waits for its transfer.
pub type ExpectedTransfer = oneshot::Receiver<Connection>;

/// Opens a transfer and returns its socket, blocking, for the agent.
pub async fn open(address: SocketAddr, job: [u8; 16], secret: &Secret, token: Token, patience: Duration) -> Result<OwnedFd, TransferError> {
    let mut connection = timeout(HANDSHAKE_TIMEOUT, introduce(address, job, secret))
        .await
        .unwrap_or(Err(HandshakeError::TimedOut))
        .map_err(|source| TransferError::Handshake { address, source })?;
    connection.sender.send(&token).await.map_err(gone)?;
    match timeout(RENDEZVOUS_TIMEOUT, connection.receiver.receive::<u8>()).await {
        Ok(Ok(TAKEN_ANSWER)) => blocking(connection, patience),
        _ => Err(TransferError::Unwanted { address }),
    }
}

async fn introduce(address: SocketAddr, job: [u8; 16], secret: &Secret) -> Result<Connection, HandshakeError> {
    let stream = TcpStream::connect(address).await.map_err(|source| HandshakeError::Connect { address, source })?;
    let mut greeted = Greeted::opened(stream, Purpose::Transfer).await?;
    greeted.say(&job).await?;
    greeted.prove_as_initiator(secret, &job).await
}

fn gone(error: SendError) -> TransferError {
    TransferError::Socket(io::Error::other(error))
}

/// The stream beneath, once all is agreed on.
fn bare(connection: Connection) -> Result<TcpStream, TransferError> {
    connection.into_tcp().ok_or_else(|| TransferError::Socket(io::Error::other("the other node did not wait for the answer")))
}

/// Hands a tokio socket on to a process that does plain blocking I/O.
fn blocking(connection: Connection, patience: Duration) -> Result<OwnedFd, TransferError> {
    plain(bare(connection)?, patience).map_err(TransferError::Socket)
}

fn plain(stream: TcpStream, patience: Duration) -> io::Result<OwnedFd> {
    let socket = stream.into_std()?;
    socket.set_nonblocking(false)?;
    // Measured: bbr, the default of some kernels, moves less than half as much between nodes. Where cubic is not
    // allowed, the default has to do.
    let _ = sockopt::set_tcp_congestion(&socket, "cubic");
    sockopt::set_tcp_user_timeout(&socket, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    Ok(socket.into())
}

/// The acceptor's part after the greetings, up to the token. `secret_of` looks a job up.
pub async fn admit(mut greeted: Greeted, secret_of: impl Fn(&[u8; 16]) -> Option<Secret>) -> Result<Admitted, HandshakeError> {
    let job = greeted.hear().await?;
    // An unproven peer must not learn which jobs there are: an unknown one fails as a wrong secret does.
    let secret = secret_of(&job).ok_or(AuthError::WrongSecret)?;
    let mut connection = greeted.prove_as_acceptor(&secret, &job).await?;
    let token = connection.receiver.receive::<Token>().await.map_err(|error| HandshakeError::Broken(io::Error::other(error)))?;
    Ok(Admitted { job, token, connection })
}

/// A transfer whose source has proven that it belongs to the job.
#[derive(Debug)]
pub struct Admitted {
    /// The job.
    pub job: [u8; 16],
    /// Which transfer.
    pub token: Token,
    /// What follows is the image.
    pub connection: Connection,
}

/// Waits for the transfer and tells its source that it is wanted.
async fn meet(arrival: ExpectedTransfer) -> Result<Connection, TransferError> {
    let mut connection = match timeout(RENDEZVOUS_TIMEOUT, arrival).await {
        Ok(Ok(connection)) => connection,
        _ => return Err(TransferError::NoSource),
    };
    connection.sender.send(&TAKEN_ANSWER).await.map_err(gone)?;
    Ok(connection)
}

/// Waits for the transfer and takes it, blocking, for a thread that keeps the image.
pub async fn take(arrival: ExpectedTransfer, patience: Duration) -> Result<OwnedFd, TransferError> {
    blocking(meet(arrival).await?, patience)
}

/// Waits for the transfer, tells its source that it is wanted, and looks at the image's header without taking it.
pub async fn receive_header(arrival: ExpectedTransfer, patience: Duration) -> Result<(OwnedFd, Vec<u8>), TransferError> {
    let stream = bare(meet(arrival).await?)?;
    let header = match timeout(patience, peek_header(&stream)).await {
        Ok(header) => header?,
        Err(_) => return Err(TransferError::Stalled(patience)),
    };
    Ok((plain(stream, patience).map_err(TransferError::Socket)?, header))
}

async fn peek_header(stream: &TcpStream) -> Result<Vec<u8>, TransferError> {
    let mut header = vec![0; HEADER_SIZE];
    let mut seen = 0;
    loop {
        match stream.peek(&mut header).await.map_err(TransferError::Socket)? {
            0 => return Err(TransferError::Closed),
            HEADER_SIZE => return Ok(header),
            // Closed after a part: what came so far will never be more.
            length if length == seen && at_end(stream) => {
                header.truncate(length);
                return Ok(header);
            }
            length => seen = length,
        }
        // A peek is ready as long as anything is there; the rest of the header is underway.
        tokio::time::sleep(PEEK_INTERVAL).await;
    }
}

/// Whether the peer has sent all it will.
fn at_end(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1)) && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
}

/// Where the transfers of a job and the restores that expect them meet, whichever comes first.
#[derive(Debug, Default)]
pub struct Rendezvous {
    /// A restore that has given up stays for a while, so that its source is turned away at once.
    restores: HashMap<Token, (oneshot::Sender<Connection>, Instant)>,
    sources: HashMap<Token, (Connection, Instant)>,
}

impl Rendezvous {
    /// A restore waits for `token`.
    pub fn expect(&mut self, token: Token, now: Instant) -> ExpectedTransfer {
        let (sender, arrival) = oneshot::channel();
        match self.sources.remove(&token) {
            // The receiver is in our hands, so this reaches it.
            Some((connection, _)) => drop(sender.send(connection)),
            None => drop(self.restores.insert(token, (sender, now))),
        }
        arrival
    }

    /// A source came. One whose restore has given up is closed.
    pub fn arrived(&mut self, token: Token, connection: Connection, now: Instant) {
        match self.restores.remove(&token) {
            Some((restore, _)) => drop(restore.send(connection)),
            None => drop(self.sources.insert(token, (connection, now))),
        }
    }

    /// Lets go of those that nobody met.
    pub fn tidy(&mut self, now: Instant) {
        let fresh = |since: Instant| now.duration_since(since) < RENDEZVOUS_TIMEOUT;
        self.restores.retain(|_, (restore, since)| !restore.is_closed() || fresh(*since));
        self.sources.retain(|_, (_, since)| fresh(*since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    const JOB: [u8; 16] = [7; 16];
    const TOKEN: Token = [9; 16];
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn admit_one(listener: &TcpListener, secret: Secret) -> Result<Admitted, HandshakeError> {
        let (stream, _) = listener.accept().await.unwrap();
        let greeted = Greeted::accepted(stream, &[Purpose::Job, Purpose::Transfer]).await?;
        admit(greeted, |job| (*job == JOB).then(|| secret.clone())).await
    }

    #[tokio::test]
    async fn the_header_is_seen_and_still_there_afterwards() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut image = vec![5; HEADER_SIZE];
        image.extend_from_slice(b"pages");
        let sent = image.clone();
        let source = tokio::spawn(async move {
            let socket = open(address, JOB, &Secret([1; 32]), TOKEN, PATIENCE).await.unwrap();
            let mut socket = std::fs::File::from(socket);
            // In two pieces: the header must be waited for.
            tokio::task::spawn_blocking(move || std::io::Write::write_all(&mut socket, &sent[..100]).map(|()| (socket, sent)))
                .await
                .unwrap()
                .and_then(|(mut socket, sent)| std::io::Write::write_all(&mut socket, &sent[100..]))
                .unwrap();
        });
        let admitted = admit_one(&listener, Secret([1; 32])).await.unwrap();
        assert_eq!((admitted.job, admitted.token), (JOB, TOKEN));
        let mut place = Rendezvous::default();
        place.arrived(TOKEN, admitted.connection, Instant::now());
        let (socket, header) = receive_header(place.expect(TOKEN, Instant::now()), PATIENCE).await.unwrap();
        assert_eq!(header, image[..HEADER_SIZE]);
        source.await.unwrap();
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(socket), &mut read).unwrap();
        assert_eq!(read, image);
    }

    #[tokio::test]
    async fn a_source_whose_restore_gave_up_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let opening = tokio::spawn(async move { open(address, JOB, &Secret([1; 32]), TOKEN, PATIENCE).await });
        let admitted = admit_one(&listener, Secret([1; 32])).await.unwrap();
        let (mut place, now) = (Rendezvous::default(), Instant::now());
        drop(place.expect(TOKEN, now));
        place.tidy(now);
        place.arrived(TOKEN, admitted.connection, now);
        assert!(matches!(opening.await.unwrap(), Err(TransferError::Unwanted { .. })));
    }

    #[tokio::test]
    async fn unknown_jobs_and_wrong_secrets_look_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for (job, secret) in [([8; 16], 1), (JOB, 2)] {
            let opening = async { open(address, job, &Secret([1; 32]), TOKEN, PATIENCE).await };
            let (opened, admitted) = tokio::join!(opening, admit_one(&listener, Secret([secret; 32])));
            assert!(matches!(opened, Err(TransferError::Handshake { source: HandshakeError::Rejected, .. })));
            assert!(admitted.is_err());
        }
    }

    #[tokio::test]
    async fn a_stream_that_ends_within_the_header_is_reported_with_what_came() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut source = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (target, _) = listener.accept().await.unwrap();
        source.write_all(&[1, 2, 3]).await.unwrap();
        drop(source);
        assert_eq!(peek_header(&target).await.unwrap(), [1, 2, 3]);
    }
}
