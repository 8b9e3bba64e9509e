//! The agent's connection to its daemon.
//!
//! Reads take descriptors that come with a message
//! (SCM_RIGHTS). Nothing here uses the C library's malloc.

use crate::descriptors::table::move_high;
use mend_messages::agent::{FromAgent, Request, ToAgent};
use mend_messages::frame;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

/// A connected stream of frames.
pub(crate) struct Link {
    socket: OwnedFd,
    descriptors: VecDeque<OwnedFd>,
    /// Messages that were read ahead, with what came with them.
    ahead: VecDeque<(ToAgent, VecDeque<OwnedFd>)>,
}

impl Link {
    /// Connects to the daemon's socket: a path, or `@` and the name of an abstract socket (unix(7)).
    pub fn connect(path: &Path) -> io::Result<Self> {
        let address = match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let stream = UnixStream::connect_addr(&address)?;
        Ok(Self { socket: move_high(stream.into())?, descriptors: VecDeque::new(), ahead: VecDeque::new() })
    }

    /// The socket's number.
    pub fn raw(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// In a restored process: goes on with the inherited connection. Descriptors that had come are gone.
    pub fn adopt(&mut self, inherited: i32) {
        // SAFETY: the restorer handed this descriptor over, nobody else owns it.
        let inherited = unsafe { OwnedFd::from_raw_fd(inherited) };
        // Not open in this process; closing the numbers could hit one of the program's.
        std::mem::forget(std::mem::replace(&mut self.socket, inherited));
        self.descriptors.drain(..).for_each(std::mem::forget);
        self.ahead.drain(..).for_each(std::mem::forget);
    }

    /// Sends a message.
    pub fn send(&self, message: &FromAgent) -> io::Result<()> {
        let bytes = frame::encode(message).map_err(io::Error::other)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives the next message. `UnexpectedEof` when the daemon is gone.
    pub fn receive(&mut self) -> io::Result<ToAgent> {
        match self.ahead.pop_front() {
            Some((message, descriptors)) => {
                self.descriptors = descriptors;
                Ok(message)
            }
            None => self.read(),
        }
    }

    /// Whether a message that was read ahead is next.
    pub fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Whether a [`Request::Pause`] has come. All that has come keeps its turn.
    pub fn brings_pause(&mut self) -> io::Result<bool> {
        loop {
            match poll(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)], Some(&Timespec::default())) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let message = self.read()?;
            self.ahead.push_back((message, std::mem::take(&mut self.descriptors)));
        }
        Ok(self.ahead.iter().any(|(message, _)| matches!(message, ToAgent::Request { request: Request::Pause, .. })))
    }

    fn read(&mut self) -> io::Result<ToAgent> {
        // Of a request that was refused; the next one must not find it.
        self.descriptors.clear();
        let mut prefix = [0; 4];
        self.fill(&mut prefix)?;
        let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
        self.fill(&mut body)?;
        frame::decode(&body).map_err(io::Error::other)
    }

    /// The descriptor that came with the last message; the first, if there were more.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    fn fill(&mut self, mut wanted: &mut [u8]) -> io::Result<()> {
        while !wanted.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            match recvmsg(&self.socket, &mut [IoSliceMut::new(wanted)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => {
                    for message in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                            for descriptor in descriptors {
                                self.descriptors.push_back(move_high(descriptor)?);
                            }
                        }
                    }
                    wanted = &mut wanted[received.bytes..];
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
