//! A connection between a client and a target: requests and answers, each with bytes behind it, one after the other.
//!
//! Invariants: whoever is at the other end has proven the user's secret. Messages are encrypted with keys of this connection alone; files' bytes are, too, if one of both sides
//! wants it (`MEND_ENCRYPT_DATA`), else they pass in the clear between two messages. A target that takes long says so, and that is no answer. Faults assumed: the other side stops, dies, or lies about lengths, which are bounded before
//! anything is allocated.

use mend_cipher::{Decryptor, EncryptedReader, EncryptedWriter, Encryptor};
use mend_data::space::BLOCK;
use mend_data::space::target::{Answer, Failed, Request};
use mend_messages::frame;
use mend_messages::space_report::TargetFault;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is read from the socket at once, bytes: several records.
const READ_BUFFER: usize = 256 << 10;

/// What is told of a target whose bytes have other checksums than they must have.
pub(crate) const DAMAGED: &str = "it gave other bytes than were staged";

/// A target that says that it is at it is waited for so many times as long as one that says nothing.
const AT_IT: u32 = 12;

/// Why something of a space cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The target cannot be reached, or the connection broke.
    #[error("target {target} cannot be reached: {why}")]
    Lost {
        /// Which one.
        target: String,
        /// What went wrong.
        why: String,
        /// What to do; may be empty.
        hint: String,
        /// It said nothing for so long, milliseconds; `None`: it, or who was asked for it, refused.
        silent_ms: Option<u64>,
    },
    /// It answers that it cannot.
    #[error("target {target}: {why}")]
    Failed {
        /// Which one.
        target: String,
        /// What kind of failure.
        kind: Failed,
        /// What it said.
        why: String,
    },
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Fault {
    /// What to do; may be empty.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Lost { hint, .. } => hint,
            Self::Failed { kind: Failed::Full, .. } => "remove files (`mend data rm`), or make room on that node",
            Self::Failed { .. } | Self::Other(_) => "",
        }
    }

    /// The same, as a job's journal has it of its target.
    #[must_use]
    pub fn of_target(&self) -> TargetFault {
        match self {
            Self::Lost { silent_ms: Some(ms), .. } => TargetFault::Silent { ms: *ms },
            Self::Lost { why, .. } => TargetFault::Unreachable { error: why.clone() },
            Self::Failed { kind: Failed::Absent | Failed::Short, .. } => TargetFault::Absent,
            Self::Failed { kind: Failed::Medium, why, .. } if why == DAMAGED => TargetFault::Damaged,
            Self::Failed { why, .. } | Self::Other(why) => TargetFault::Failed { error: why.clone() },
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    reader: EncryptedReader<TcpStream>,
    writer: Writer,
    stream: TcpStream,
    /// Files' bytes pass in the clear.
    clear: bool,
    /// Whether files' bytes follow the answer that is awaited, and into how long pieces they are cut.
    awaited: (bool, usize),
    /// Which of its client's connections it is.
    pub number: u64,
    patience: Option<Duration>,
}

type Writer = Arc<Mutex<EncryptedWriter<Sending>>>;

/// Says over a connection that an answer takes its time.
#[derive(Clone, Debug)]
pub(crate) struct AtIt(Writer);

impl AtIt {
    /// Says it now. Not while something else is sent: that says it as well.
    pub fn say(&self) {
        if let (Ok(mut writer), Ok(message)) = (self.0.try_lock(), frame::encode(&Answer::AtIt)) {
            // Whoever sends the answer hears that the connection is broken.
            let _ = writer.write_parts(&[&message]);
        }
    }
}

/// Bytes that follow a message, in pieces.
pub(crate) type Pieces = Vec<Vec<u8>>;

impl Link {
    /// Over a stream whose ends have agreed on keys, and on whether files' bytes are encrypted, too. A peer that is silent for longer than `patience`, if there is one, breaks it.
    pub fn new(
        stream: TcpStream,
        (encryptor, decryptor): (Encryptor, Decryptor),
        encrypts: bool,
        patience: Option<Duration>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(patience)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        let half = stream.try_clone()?;
        // What is in the clear goes past the reader, which must not have taken any of it.
        let reader = if encrypts { EncryptedReader::buffered(half, decryptor, READ_BUFFER) } else { EncryptedReader::new(half, decryptor) };
        let sending = Sending { stream: stream.try_clone()?, more: false };
        let writer = Arc::new(Mutex::new(EncryptedWriter::new(sending, encryptor)));
        Ok(Self { reader, writer, stream, clear: !encrypts, awaited: (false, usize::MAX), number: 0, patience })
    }

    /// Closes it. What was sent and did not arrive is not sent again: the kernel would go on with that for minutes.
    pub fn abandon(self) {
        // What arrives all the same is refused by the target.
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }

    /// A peer that is silent for longer breaks it.
    pub fn wait_at_most(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))
    }

    /// True if the peer says something within that time.
    pub fn comes_within(&self, delay: Duration) -> io::Result<bool> {
        let delay = Timespec::try_from(delay).map_err(io::Error::other)?;
        loop {
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&delay)) {
                Err(Errno::INTR) => {}
                polled => return Ok(polled? > 0),
            }
        }
    }

    /// Sends a message and the bytes behind it; `is_bulk` if these are files'.
    pub fn send<M: Serialize>(&mut self, message: &M, payload: &[u8], is_bulk: bool) -> io::Result<()> {
        let message = frame::encode(message).map_err(io::Error::other)?;
        // Until all of it is sent: nothing is said between a message and what follows it.
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.clear || !is_bulk || payload.is_empty() {
            return writer.write_parts(&[&message, payload]);
        }
        writer.get_mut().more = true;
        let sent = writer.write_all(&message);
        writer.get_mut().more = false;
        sent?;
        self.stream.write_all(payload)
    }

    /// Sends a request and the bytes behind it.
    pub fn ask(&mut self, request: &Request, payload: &[u8]) -> io::Result<()> {
        // What a file's reader gets is kept by blocks.
        let piece = if matches!(request, Request::Read { .. }) { BLOCK as usize } else { usize::MAX };
        self.awaited = (request.wants_bulk(), piece);
        self.send(request, payload, request.is_bulk())
    }

    /// What says that an answer takes its time.
    pub fn at_it(&self) -> AtIt {
        AtIt(self.writer.clone())
    }

    pub(crate) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        let mut prefix = [0; 4];
        self.reader.read_exact(&mut prefix)?;
        let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
        self.reader.read_exact(&mut body)?;
        frame::decode(&body).map_err(io::Error::other)
    }

    fn fill(&mut self, payload: &mut [u8], is_bulk: bool) -> io::Result<()> {
        if self.clear && is_bulk { self.stream.read_exact(payload) } else { self.reader.read_exact(payload) }
    }

    /// The next request; its bytes are in `payload` then.
    pub fn request(&mut self, payload: &mut Vec<u8>) -> io::Result<Request> {
        let request: Request = self.receive()?;
        payload.resize(length_of(request.payload())?, 0);
        self.fill(payload, request.is_bulk())?;
        Ok(request)
    }

    /// The answer, with its bytes. `begun` is called when it begins to come: what is long takes its time.
    pub fn answer(&mut self, begun: &dyn Fn()) -> io::Result<(Answer, Pieces)> {
        let asked = Instant::now();
        let answer = loop {
            match self.receive()? {
                Answer::AtIt if self.patience.is_none_or(|patience| asked.elapsed() < patience * AT_IT) => {}
                Answer::AtIt => return Err(io::Error::other(format!("it was at it for {} s", asked.elapsed().as_secs()))),
                answer => break answer,
            }
        };
        begun();
        let (is_bulk, piece) = self.awaited;
        let mut rest = length_of(answer.payload())?;
        let mut pieces = Vec::with_capacity(rest.div_ceil(piece));
        while rest > 0 {
            let mut bytes = vec![0; rest.min(piece)];
            self.fill(&mut bytes, is_bulk)?;
            rest -= bytes.len();
            pieces.push(bytes);
        }
        Ok((answer, pieces))
    }
}

/// The bytes of one that was not cut into pieces, or was.
pub(crate) fn whole(mut pieces: Pieces) -> Vec<u8> {
    if pieces.len() > 1 { pieces.concat() } else { pieces.pop().unwrap_or_default() }
}

fn length_of(announced: Option<u32>) -> io::Result<usize> {
    announced.map(|length| length as usize).ok_or_else(|| io::Error::other("more bytes are announced than any message has"))
}

/// The sending end, which can be told that more follows at once.
#[derive(Debug)]
struct Sending {
    stream: TcpStream,
    more: bool,
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = if self.more { SendFlags::MORE | SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL };
        Ok(rustix::net::send(&self.stream, bytes, flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the keys of a connection are for, besides its secret and nonces.
pub(crate) fn context(space: &[u8; 16]) -> Vec<u8> {
    [&b"Mend: data space\0"[..], space].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::job::Secret;
    use std::net::TcpListener;

    fn streams() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0]
    }

    fn client(stream: TcpStream, encrypts: bool) -> Link {
        Link::new(stream, mend_cipher::initiator(&Secret([1; 32]), [&[2; 32], &[3; 32]], b"test"), encrypts, None).unwrap()
    }

    fn links(encrypts: bool) -> [Link; 2] {
        let [near, far] = streams();
        let keys = mend_cipher::acceptor(&Secret([1; 32]), [&[2; 32], &[3; 32]], b"test");
        [client(near, encrypts), Link::new(far, keys, encrypts, None).unwrap()]
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 3) as u8).collect()
    }

    fn write(length: u32) -> Request {
        Request::Write { file: [1; 16], position: 0, offset: 0, length }
    }

    fn read(length: u32) -> Request {
        Request::Read { file: [1; 16], position: 0, offset: 0, length }
    }

    #[test]
    fn what_is_said_arrives_in_the_clear_or_not() {
        for encrypts in [false, true] {
            let [mut near, mut far] = links(encrypts);
            let (bytes, mut payload) = (content(3 * BLOCK as usize + 5), Vec::new());
            let length = bytes.len() as u32;
            let answered = std::thread::spawn({
                let bytes = bytes.clone();
                move || {
                    assert_eq!(far.request(&mut payload).unwrap(), write(length));
                    assert!(payload == bytes);
                    // Also late, when the answer is on its way.
                    far.at_it().say();
                    far.send(&Answer::Done, &[], false).unwrap();
                    far.at_it().say();
                    assert_eq!(far.request(&mut payload).unwrap(), read(length));
                    assert!(payload.is_empty());
                    far.send(&Answer::Bytes { length }, &bytes, true).unwrap();
                    assert_eq!(far.request(&mut payload).unwrap(), Request::Look);
                    far.send(&Answer::Bytes { length: 3 }, b"abc", false).unwrap();
                }
            });
            near.ask(&write(length), &bytes).unwrap();
            assert_eq!(near.answer(&|| {}).unwrap(), (Answer::Done, Vec::new()));
            near.ask(&read(length), &[]).unwrap();
            let (_, pieces) = near.answer(&|| {}).unwrap();
            assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [65_536, 65_536, 65_536, 5]);
            assert!(whole(pieces) == bytes);
            near.ask(&Request::Look, &[]).unwrap();
            assert_eq!(near.answer(&|| {}).unwrap().1, [b"abc"]);
            answered.join().unwrap();
        }
    }

    #[test]
    fn only_files_bytes_are_seen_on_the_way_and_they_only_in_the_clear() {
        let seen = |encrypts, request: &Request, payload: &[u8]| {
            let [near, mut far] = streams();
            let mut link = client(near, encrypts);
            link.ask(request, payload).unwrap();
            drop(link);
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all.windows(payload.len()).any(|window| window == payload)
        };
        let sums = Request::Sums { file: [1; 16], page: 0, length: 32 };
        let bytes = content(32);
        assert_eq!([false, true].map(|encrypts| seen(encrypts, &write(32), &bytes)), [true, false]);
        assert_eq!([false, true].map(|encrypts| seen(encrypts, &sums, &bytes)), [false, false]);
    }
}
