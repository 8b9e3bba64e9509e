//! What a connection runs over: TCP between machines, a unix socket within one.

use rustix::net::sockopt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

/// After how much silence of a connection the peer's host is asked for a sign of life, how often, and how many of these may get no answer.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 4);

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// To any machine.
    Tcp(TcpStream),
    /// Within this one.
    Unix(UnixStream),
}

/// Who is at the other end, as far as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Of a TCP connection.
    Address(IpAddr),
    /// Of a unix socket: its user.
    User(u32),
}

impl Peer {
    /// False for another user of this machine, who cannot hold the secret. (Root can read it anyway.)
    #[must_use]
    pub fn may_enter(self) -> bool {
        match self {
            Self::Address(_) => true,
            Self::User(user) => user == 0 || user == rustix::process::geteuid().as_raw(),
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(user) => write!(f, "user {user}"),
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

/// Calls the same for either kind.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Self::Tcp($inner) => $call,
            Self::Unix($inner) => $call,
        }
    };
}

impl Stream {
    /// Small frames leave at once. A peer whose host has lost its power breaks the connection in the end, whoever waits for it (tcp(7)).
    pub(crate) fn tune(&self) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        stream.set_nodelay(true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE.0)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE.1)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE.2)?;
        Ok(sockopt::set_socket_keepalive(stream, true)?)
    }

    /// Whether closing it tells the peer that it was not heard, instead of that this is the end. Between machines only.
    pub(crate) fn reset_when_closed(&self, reset: bool) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        Ok(sockopt::set_socket_linger(stream, reset.then_some(Duration::ZERO))?)
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// If the socket is gone.
    pub fn peer(&self) -> io::Result<Peer> {
        Ok(match self {
            Self::Tcp(stream) => Peer::Address(stream.peer_addr()?.ip().to_canonical()),
            Self::Unix(stream) => Peer::User(sockopt::socket_peercred(stream)?.uid.as_raw()),
        })
    }

    pub(crate) fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf::Tcp(write))
            }
            Self::Unix(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Unix(read), WriteHalf::Unix(write))
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

#[derive(Debug)]
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_read(context, buffer))
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(context))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(context))
    }
}
