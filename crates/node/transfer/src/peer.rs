//! Other nodes as source or target: one TCP connection for each image that goes from daemon to daemon.
//!
//! ```text
//! source daemon                                     target daemon
//!   ── Greeting (purpose Transfer) ──────────────────►
//!   ◄────────────────── Greeting (purpose Transfer) ──
//!   ── identity of the job, in the clear ────────────►   not a job here: closed
//!   ── Noise, with the job's secret ─────────────────►   wrong: closed
//!   ◄───────────────── Noise, with the job's secret ──
//!   ── Offer: token, nonce A; sealed ────────────────►   no restore waits for it: closed
//!   ◄──────────────── Answer: wanted, nonce B; sealed ──   a restore waits
//!   ══ the image, written by the rank's agent itself ═►  read by the restorer itself
//! ```
//! The handshake and what is agreed on are sealed (`mend_wire::session`). The image is in the clear unless the job encrypts its data: then
//! there are nonces, and a thread of each daemon passes the image on ([`crate::peer_image`]). Where the image goes in chunks of registered memory, offer and
//! answer say where both endpoints are, and a process of each node has the connection ([`crate::chunks`]).
//! Invariants: without encryption neither daemon reads or writes a byte of the image, so its size is no concern of theirs; nothing of the
//! rank is saved before the target has shown that it waits. Faults assumed: unproven peers; either side stalls or dies:
//! both ends have time limits in the kernel (`TCP_USER_TIMEOUT`, `SO_RCVTIMEO`) that outlive the handing on.

mod offering;

use self::offering::offer;
use crate::TransferError;
use crate::chunks::{self, Chunks, Transfer};
use crate::peer_image::{IncomingImage, OutgoingImage};
use crate::process_stream::{StreamFault, stream_out};
use crate::progress::Progress;
use mend_image::HEADER_SIZE;
use mend_messages::chunks::{LONGEST_ADDRESS, OfferedChunks};
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::{Rank, Secret};
use mend_messages::transfer::{Answer, Offer};
use mend_wire::{Connection, Greeted, HandshakeError, SendError};
use rustix::net::sockopt::{self, Timeout};
use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// How long a transfer and the restore that expects it wait for each other.
pub(crate) const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a copy waits that has met who expects it: the other node takes so many at a time. A node that is gone is noticed before (keep-alive).
const TURN_TIMEOUT: Duration = Duration::from_secs(3600);

/// Pause between two looks at a header of which only a part has come.
const PEEK_INTERVAL: Duration = Duration::from_millis(1);

/// Names a transfer once; chosen by the controller.
pub type Token = [u8; 16];

/// How a restore waits for its transfer.
pub type ExpectedTransfer = oneshot::Receiver<OfferedImage>;

/// The connection on which an image is offered.
#[derive(Debug)]
pub struct OfferedImage {
    /// What follows the answer is the image.
    pub connection: Connection,
    /// See [`Offer::nonce`].
    pub nonce: Option<[u8; 32]>,
    /// See [`Offer::chunks`].
    pub chunks: Option<OfferedChunks>,
}

/// Opens a transfer.
///
/// # Errors
/// Why there is none.
pub async fn open(address: SocketAddr, job: &JobIntroduction, token: Token, patience: Duration) -> Result<OutgoingImage, TransferError> {
    open_within(RENDEZVOUS_TIMEOUT, address, job, token, patience).await
}

/// The same of a copy that the other node takes when it is its turn.
///
/// # Errors
/// Why there is none.
pub async fn open_copy(
    address: SocketAddr,
    job: &JobIntroduction,
    token: Token,
    patience: Duration,
) -> Result<OutgoingImage, TransferError> {
    open_within(TURN_TIMEOUT, address, job, token, patience).await
}

async fn open_within(
    limit: Duration,
    address: SocketAddr,
    job: &JobIntroduction,
    token: Token,
    patience: Duration,
) -> Result<OutgoingImage, TransferError> {
    let nonce = job.encrypt_data.then(mend_wire::random_bytes);
    let mut connection = offer(address, job, &Offer { token, nonce, chunks: None }).await?;
    let theirs = match timeout(limit, connection.receiver.receive::<Answer>()).await {
        Ok(Ok(Answer::Wanted { nonce })) => nonce,
        Ok(Ok(Answer::OtherEncryption)) => return Err(TransferError::OtherEncryption { address }),
        _ => return Err(TransferError::Unwanted { address }),
    };
    let socket = blocking(connection, patience)?;
    match (nonce, theirs) {
        (None, None) => Ok(OutgoingImage::plain(socket)),
        (Some(ours), Some(theirs)) => Ok(OutgoingImage::encrypted(socket, &job.secret, [&ours, &theirs])),
        _ => Err(TransferError::OtherEncryption { address }),
    }
}

/// Whose image is sent, and from where.
#[derive(Clone, Debug)]
pub struct MovingRank {
    /// The rank that moves.
    pub rank: Rank,
    /// Address of this node, at which others reach it.
    pub source: IpAddr,
    /// The libfabric that it has loaded, if that is known.
    pub library: Option<PathBuf>,
}

/// Opens a transfer for the image of a rank that moves, by the job's transport. The stream that its agent is to write.
///
/// # Errors
/// Why there is none.
pub async fn open_stream(
    address: SocketAddr,
    job: &JobIntroduction,
    token: Token,
    moving: MovingRank,
    patience: Duration,
    progress: Arc<Progress>,
) -> Result<OwnedFd, TransferError> {
    let Some(chunks) = chunks::of_job(job, moving.source, moving.library.as_deref()).await? else {
        return open(address, job, token, patience).await?.into_descriptor(progress).map_err(TransferError::Socket);
    };
    let offered = OfferedChunks { library: moving.library, address: chunks.address().to_vec() };
    let mut connection = offer(address, job, &Offer { token, nonce: None, chunks: Some(offered) }).await?;
    let theirs = match timeout(RENDEZVOUS_TIMEOUT, connection.receiver.receive::<Answer>()).await {
        Ok(Ok(Answer::WantedInChunks { address })) if address.len() <= LONGEST_ADDRESS => address,
        Ok(Ok(Answer::NoChunks { why })) => return Err(TransferError::NoChunks { address: Some(address), why }),
        Ok(Ok(Answer::OtherEncryption)) => return Err(TransferError::OtherEncryption { address }),
        _ => return Err(TransferError::Unwanted { address }),
    };
    let connection = blocking(connection, patience)?;
    let transfer = Transfer { connection, rank: moving.rank, address: &theirs, patience };
    chunks.outgoing(&transfer).map_err(TransferError::Socket)
}

fn gone(error: SendError) -> TransferError {
    TransferError::Socket(io::Error::other(error))
}

/// The stream beneath, once all is agreed on.
fn bare(connection: Connection) -> Result<TcpStream, TransferError> {
    connection.into_tcp().ok_or_else(|| TransferError::Socket(io::Error::other("the other node did not wait for the answer")))
}

/// The same for whoever does plain blocking I/O.
fn blocking(connection: Connection, patience: Duration) -> Result<std::net::TcpStream, TransferError> {
    plain(bare(connection)?, patience).map_err(TransferError::Socket)
}

fn plain(stream: TcpStream, patience: Duration) -> io::Result<std::net::TcpStream> {
    let socket = stream.into_std()?;
    socket.set_nonblocking(false)?;
    // Measured: bbr, the default of some kernels, moves less than half as much between nodes. Where cubic is not
    // allowed, the default has to do.
    let _ = sockopt::set_tcp_congestion(&socket, "cubic");
    sockopt::set_tcp_user_timeout(&socket, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    Ok(socket)
}

/// The acceptor's part after the greetings, up to the offer. `secret_of` looks a job up.
pub async fn admit(mut greeted: Greeted, secret_of: impl Fn(&[u8; 16]) -> Option<Secret>) -> Result<Admitted, HandshakeError> {
    let job = greeted.hear().await?;
    // An unproven peer must not learn which jobs there are: an unknown one fails as a wrong secret does.
    let secret = secret_of(&job).unwrap_or_else(|| Secret(mend_wire::random_bytes()));
    let mut connection = greeted.prove_as_acceptor(&secret, &job).await?;
    let received = connection.receiver.receive::<Offer>().await;
    let Offer { token, nonce, chunks } = received.map_err(|error| HandshakeError::Broken(io::Error::other(error)))?;
    Ok(Admitted { job, token, image: OfferedImage { connection, nonce, chunks } })
}

/// A transfer whose source has proven that it belongs to the job.
#[derive(Debug)]
pub struct Admitted {
    /// The job.
    pub job: [u8; 16],
    /// Which transfer.
    pub token: Token,
    /// What comes of it.
    pub image: OfferedImage,
}

/// Both nonces.
type Nonces = [[u8; 32]; 2];

/// Waits for the transfer.
async fn arrive(arrival: ExpectedTransfer) -> Result<OfferedImage, TransferError> {
    match timeout(RENDEZVOUS_TIMEOUT, arrival).await {
        Ok(Ok(image)) => Ok(image),
        _ => Err(TransferError::NoSource),
    }
}

/// Tells the source of a transfer that it is wanted.
async fn welcome(image: OfferedImage, job: &JobIntroduction) -> Result<(Connection, Option<Nonces>), TransferError> {
    let OfferedImage { mut connection, nonce: theirs, chunks } = image;
    if chunks.is_some() {
        let why = "it expects this image on a connection".to_owned();
        connection.sender.send(&Answer::NoChunks { why: why.clone() }).await.map_err(gone)?;
        return Err(TransferError::NoChunks { address: None, why });
    }
    let agreed = theirs.is_some() == job.encrypt_data;
    let ours = theirs.map(|_| mend_wire::random_bytes());
    let answer = if agreed { Answer::Wanted { nonce: ours } } else { Answer::OtherEncryption };
    connection.sender.send(&answer).await.map_err(gone)?;
    if !agreed {
        let address = connection.peer_address().map_err(TransferError::Socket)?;
        return Err(TransferError::OtherEncryption { address });
    }
    Ok((connection, theirs.zip(ours).map(|(theirs, ours)| [theirs, ours])))
}

/// Waits for the transfer and takes it, blocking, for a thread that keeps the image.
pub async fn take(arrival: ExpectedTransfer, job: &JobIntroduction, patience: Duration) -> Result<IncomingImage, TransferError> {
    welcome_whole(arrive(arrival).await?, job, patience).await
}

/// The same of one of many: its source is told that it is wanted when there is a turn, which goes with the image.
pub async fn take_in_turn(
    arrival: ExpectedTransfer,
    turns: &Arc<Semaphore>,
    job: &JobIntroduction,
    patience: Duration,
) -> Result<(IncomingImage, OwnedSemaphorePermit), TransferError> {
    let image = arrive(arrival).await?;
    let turn = turns.clone().acquire_owned().await.map_err(|closed| TransferError::Socket(io::Error::other(closed)))?;
    Ok((welcome_whole(image, job, patience).await?, turn))
}

async fn welcome_whole(image: OfferedImage, job: &JobIntroduction, patience: Duration) -> Result<IncomingImage, TransferError> {
    let (connection, nonces) = welcome(image, job).await?;
    let socket = blocking(connection, patience)?;
    match nonces {
        None => IncomingImage::plain(socket).map_err(TransferError::Socket),
        Some([theirs, ours]) => IncomingImage::encrypted(socket, &job.secret, [&theirs, &ours]).map_err(TransferError::Socket),
    }
}

/// An image that has begun to come.
#[derive(Debug)]
pub struct BegunImage {
    /// Gives all of it, the header first.
    pub image: OwnedFd,
    /// What it begins with.
    pub header: Vec<u8>,
    /// What goes wrong with it later, if it comes through this process.
    pub fault: Option<StreamFault>,
}

/// Waits for the transfer, tells its source that it is wanted, and looks at the image's header without taking it. It may take as long as the first of `patience`
/// until that comes, and the image may stop coming for as long as the second.
pub async fn receive_header(
    arrival: ExpectedTransfer,
    job: &JobIntroduction,
    (rank, here): (Rank, IpAddr),
    (first, patience): (Duration, Duration),
    progress: Arc<Progress>,
) -> Result<BegunImage, TransferError> {
    let image = arrive(arrival).await?;
    if image.chunks.is_some() {
        return receive_chunks(image, job, (rank, here), (first, patience)).await;
    }
    let (connection, nonces) = welcome(image, job).await?;
    let Some([theirs, ours]) = nonces else {
        let stream = bare(connection)?;
        let header = match timeout(first, peek_header(&stream)).await {
            Ok(header) => header?,
            Err(_) => return Err(TransferError::Stalled(first)),
        };
        return Ok(BegunImage { image: plain(stream, patience).map_err(TransferError::Socket)?.into(), header, fault: None });
    };
    let socket = blocking(connection, patience)?;
    let mut incoming = IncomingImage::encrypted(socket, &job.secret, [&theirs, &ours]).map_err(TransferError::Socket)?;
    let begin = move || {
        let mut header = Vec::with_capacity(HEADER_SIZE);
        match (&mut incoming).take(HEADER_SIZE as u64).read_to_end(&mut header) {
            Ok(0) => Err(TransferError::Closed),
            Ok(_) => {
                let (image, fault) = stream_out(incoming, header.clone(), progress).map_err(TransferError::Socket)?;
                Ok(BegunImage { image, header, fault: Some(fault) })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(TransferError::Stalled(patience)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(TransferError::Altered(error.to_string())),
            Err(error) => Err(TransferError::Socket(error)),
        }
    };
    match tokio::task::spawn_blocking(begin).await {
        Ok(begun) => begun,
        Err(error) => Err(TransferError::Socket(io::Error::other(error))),
    }
}

/// The same of an image that comes in chunks.
async fn receive_chunks(
    image: OfferedImage,
    job: &JobIntroduction,
    (rank, here): (Rank, IpAddr),
    (first, patience): (Duration, Duration),
) -> Result<BegunImage, TransferError> {
    let OfferedImage { mut connection, chunks: offered, .. } = image;
    let Some(OfferedChunks { library, address }) = offered.filter(|offered| offered.address.len() <= LONGEST_ADDRESS) else {
        return Err(TransferError::NoSource);
    };
    let opened: Result<Arc<Chunks>, TransferError> = match chunks::of_job(job, here, library.as_deref()).await {
        Ok(Some(chunks)) => Ok(chunks),
        Ok(None) => Err(TransferError::NoChunks { address: None, why: "the job was told to do without".into() }),
        Err(error) => Err(error),
    };
    let chunks = match opened {
        Ok(chunks) => chunks,
        Err(error) => {
            let why = match &error {
                TransferError::NoChunks { why, .. } => why.clone(),
                error => error.to_string(),
            };
            // The source learns it from the controller, too.
            let _ = connection.sender.send(&Answer::NoChunks { why }).await;
            return Err(error);
        }
    };
    connection.sender.send(&Answer::WantedInChunks { address: chunks.address().to_vec() }).await.map_err(gone)?;
    let transfer = Transfer { connection: blocking(connection, patience)?, rank, address: &address, patience };
    let (image, fault) = chunks.incoming(&transfer).map_err(TransferError::Socket)?;
    let begin = move || {
        // Why nothing came may be known.
        let header =
            chunks::peek_header(&image, first).map_err(|error| fault.get().map_or(error, |why| TransferError::Altered(why.clone())))?;
        Ok(BegunImage { image: image.into(), header, fault: Some(fault) })
    };
    tokio::task::spawn_blocking(begin).await.unwrap_or_else(|error| Err(TransferError::Socket(io::Error::other(error))))
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
    restores: HashMap<Token, (oneshot::Sender<OfferedImage>, Instant)>,
    sources: HashMap<Token, (OfferedImage, Instant)>,
}

impl Rendezvous {
    /// A restore waits for `token`.
    pub fn expect(&mut self, token: Token, now: Instant) -> ExpectedTransfer {
        let (sender, arrival) = oneshot::channel();
        match self.sources.remove(&token) {
            // The receiver is in our hands, so this reaches it.
            Some((image, _)) => drop(sender.send(image)),
            None => drop(self.restores.insert(token, (sender, now))),
        }
        arrival
    }

    /// A source came. One whose restore has given up is closed.
    pub fn arrived(&mut self, token: Token, image: OfferedImage, now: Instant) {
        match self.restores.remove(&token) {
            Some((restore, _)) => drop(restore.send(image)),
            None => drop(self.sources.insert(token, (image, now))),
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
mod tests;
