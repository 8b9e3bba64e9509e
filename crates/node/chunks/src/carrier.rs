//! All streams of a node, in one thread: each goes as far as it can, then all wait together.

use crate::CarryError;
use crate::link::{Link, Next, Terms};
use crate::receiving::Receiving;
use crate::sending::Sending;
use crate::store::{Direction, Store};
use crate::wire::Wire;
use mend_messages::chunks::{Carried, ChunkMode};
use mend_messages::frame;
use mend_messages::job::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How often the provider is driven while peers may use chunks: not every provider tells when it wants to be.
const DRIVEN: Duration = Duration::from_millis(1);
/// How often operations are looked at that take too long.
const LOOK: Duration = Duration::from_millis(200);
/// Seconds of silence after which the kernel asks whether the other node is there, and between two questions.
const ASK_AFTER: Duration = Duration::from_secs(1);

enum Stream {
    Out(Sending),
    In(Receiving),
}

struct Carrying {
    stream: Stream,
    report: UnixStream,
}

impl Carrying {
    fn wire(&self) -> &Wire {
        match &self.stream {
            Stream::Out(sending) => &sending.link().wire,
            Stream::In(receiving) => &receiving.link().wire,
        }
    }

    fn step(&mut self, store: &mut Store) -> Result<Next, CarryError> {
        match &mut self.stream {
            Stream::Out(sending) => sending.step(store),
            Stream::In(receiving) => receiving.step(store),
        }
    }

    /// Gives back what it holds, and says what became of it before its stream ends.
    fn end(self, carried: &Carried, store: &mut Store) -> Result<(), CarryError> {
        let Self { stream, mut report } = self;
        if let Ok(bytes) = frame::encode(carried) {
            // Whoever asked may have gone.
            let _ = report.write_all(&bytes);
        }
        match stream {
            Stream::Out(sending) => sending.end(store),
            Stream::In(receiving) => receiving.end(store),
        }
    }
}

/// A stream that is to be carried.
#[derive(Debug)]
pub struct NewStream {
    /// True: it leaves this node.
    pub outgoing: bool,
    /// Whose image it is.
    pub rank: Rank,
    /// Longest time that the provider may take for a chunk.
    pub patience: Duration,
    /// Where the other endpoint is.
    pub address: Vec<u8>,
    /// The stream of the process here.
    pub stream: OwnedFd,
    /// The connection to the other node.
    pub connection: OwnedFd,
    /// Takes what becomes of it.
    pub report: OwnedFd,
}

/// See the module.
pub struct Carrier {
    store: Store,
    mode: ChunkMode,
    streams: Vec<Carrying>,
}

impl Carrier {
    /// Without streams.
    #[must_use]
    pub fn new(store: Store, mode: ChunkMode) -> Self {
        Self { store, mode, streams: Vec::new() }
    }

    /// Where the endpoint is.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        self.store.pool.address()
    }

    /// Number of streams.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Takes a stream over. What is wrong with it is reported like what goes wrong later.
    ///
    /// # Errors
    /// Those of the pool, which can do nothing more then.
    pub fn take(&mut self, new: NewStream) -> Result<(), CarryError> {
        let mut report = UnixStream::from(new.report);
        let direction = if new.outgoing { Direction::Out } else { Direction::In };
        let terms = Terms { rank: new.rank, mode: self.mode, patience: new.patience };
        let (stream, socket) = (UnixStream::from(new.stream), TcpStream::from(new.connection));
        let ready = prepare(&stream, &socket).map_err(CarryError::Connection);
        let link = ready.and_then(|()| Link::new(Wire::new(socket), &new.address, direction, new.patience, &mut self.store));
        match link {
            Ok(link) => {
                let stream = match direction {
                    Direction::Out => Stream::Out(Sending::new(stream, link, terms)),
                    Direction::In => Stream::In(Receiving::new(stream, link, terms)),
                };
                self.streams.push(Carrying { stream, report });
            }
            Err(error) => {
                if let Ok(bytes) = frame::encode(&Carried::Err(error.to_string())) {
                    let _ = report.write_all(&bytes);
                }
            }
        }
        Ok(())
    }

    /// Moves what can be moved now. True: there may be more.
    ///
    /// # Errors
    /// Those of the pool, which can do nothing more then.
    pub fn step(&mut self) -> Result<bool, CarryError> {
        let mut moved = self.store.poll()?;
        let mut at = 0;
        while at < self.streams.len() {
            let carried = match self.streams[at].step(&mut self.store) {
                Ok(Next::Moved) => {
                    moved = true;
                    None
                }
                Ok(Next::Waits) => None,
                Ok(Next::Done(bytes)) => Some(Ok(bytes)),
                Err(error) => Some(Err(error.to_string())),
            };
            match carried {
                None => at += 1,
                Some(carried) => {
                    let ended = self.streams.swap_remove(at);
                    ended.end(&carried, &mut self.store)?;
                    moved = true;
                }
            }
        }
        // The next round begins with another one: chunks that become free go to each in turn.
        if self.streams.len() > 1 {
            self.streams.rotate_left(1);
        }
        Ok(moved)
    }

    /// Waits until a step may come further, or `control` can be read; not at all if there is more to do. True if it can be read.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&self, control: BorrowedFd<'_>, busy: bool) -> io::Result<bool> {
        let mut all = vec![PollFd::from_borrowed_fd(control, PollFlags::IN)];
        for carrying in &self.streams {
            let wire = carrying.wire();
            let events = if wire.is_behind() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            all.push(PollFd::from_borrowed_fd(wire.socket.as_fd(), events));
            // A stream that has ended is readable for ever: it is looked at only when something is wanted of it.
            match &carrying.stream {
                Stream::Out(sending) if sending.starved => all.push(PollFd::new(&sending.stream, PollFlags::IN)),
                Stream::In(receiving) if receiving.blocked => all.push(PollFd::new(&receiving.stream, PollFlags::OUT)),
                _ => {}
            }
        }
        let queue = self.store.pool.wait_descriptor();
        if let Some(queue) = queue {
            all.push(PollFd::from_borrowed_fd(queue, PollFlags::IN));
        }
        let time = if busy || !self.store.pool.may_sleep() {
            Some(Duration::ZERO)
        } else if self.store.is_in_use() || !self.streams.is_empty() && queue.is_none() {
            Some(DRIVEN)
        } else {
            (!self.streams.is_empty()).then_some(LOOK)
        };
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut all, time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(!all[0].revents().is_empty())
    }
}

/// Neither blocks, and the kernel notices a node that is gone without a word.
fn prepare(stream: &UnixStream, socket: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASK_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASK_AFTER)?;
    Ok(())
}
