//! What wakes a sleeping rank: a wakeup from a rank of its node, its listeners, its sockets.
//!
//! Wakeups go over a pair of sockets. Ranks of the same node get one end, and send a byte to it when this rank has said
//! (in a ring) that it sleeps. Should their program have put a file under that number, the call fails. Everything is in one epoll set; a
//! thread sleeps in `poll` on that set, without any lock, and reads the events only afterwards with the lock held. A thread that was saved between the two polls a descriptor that
//! may be another one after the restore; poll changes nothing, so that is harmless.

use crate::channel::ChannelError;
use crate::channel::tcp::tune;
use crate::report;
use mend_kernel::table::Placed;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A wakeup.
    Wakeup,
    /// The TCP listener.
    Tcp,
    /// The unix listener.
    Unix,
    /// The connection of a pending handshake.
    Handshake(u32),
    /// An inbound channel.
    Inbound(u32),
    /// The outbound channel (or opening) to a rank.
    Outbound(u32),
    /// The port of the `ofi` channels.
    Port,
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Self::Wakeup => (0, 0),
            Self::Tcp => (1, 0),
            Self::Unix => (2, 0),
            Self::Handshake(number) => (3, number),
            Self::Inbound(number) => (4, number),
            Self::Outbound(number) => (5, number),
            Self::Port => (6, 0),
        };
        kind << 32 | u64::from(number)
    }

    fn decode(data: u64) -> Option<Self> {
        let number = data as u32;
        Some(match data >> 32 {
            0 => Self::Wakeup,
            1 => Self::Tcp,
            2 => Self::Unix,
            3 => Self::Handshake(number),
            4 => Self::Inbound(number),
            5 => Self::Outbound(number),
            6 => Self::Port,
            _ => return None,
        })
    }
}

/// How a socket is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable, as long as it is.
    Level,
    /// Readable or writable, when that changes: whoever gets the event goes on until the socket says no.
    Edge,
}

/// The epoll set and what is always in it.
#[derive(Debug)]
pub struct Watch {
    set: Placed,
    /// Where peers send wakeups, and where those arrive.
    wakeup: Placed,
    wakeup_receiver: Placed,
    tcp: Placed,
    unix: Placed,
    told: Cell<bool>,
    /// Where others reach the TCP listener.
    pub tcp_address: SocketAddr,
    /// Abstract name of the unix listener.
    pub unix_name: String,
}

/// Connections the kernel keeps for us while we do not accept.
const BACKLOG: i32 = 1024;

impl Watch {
    /// Opens the listeners: TCP on `ip` with a port of the system's choice, unix under the abstract name `name`.
    ///
    /// # Errors
    /// The system refused.
    pub fn open(ip: IpAddr, name: String) -> Result<Self, ChannelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let tcp = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        tune(tcp.as_fd())?;
        rustix::net::bind(&tcp, &SocketAddr::new(ip, 0))?;
        rustix::net::listen(&tcp, BACKLOG)?;
        let tcp_address = SocketAddr::try_from(rustix::net::getsockname(&tcp)?)?;
        let unix = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&unix, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::listen(&unix, BACKLOG)?;
        let (wakeup, wakeup_receiver) = wakeup_pair()?;
        let (set, tcp, unix) = (epoll::create(CreateFlags::CLOEXEC)?.into(), tcp.into(), unix.into());
        let watch = Self { set, wakeup, wakeup_receiver, tcp, unix, told: Cell::new(false), tcp_address, unix_name: name };
        watch.add(watch.wakeup_receiver.as_fd(), Token::Wakeup, Interest::Level)?;
        watch.add(watch.tcp.as_fd(), Token::Tcp, Interest::Edge)?;
        watch.add(watch.unix.as_fd(), Token::Unix, Interest::Edge)?;
        Ok(watch)
    }

    /// Where peers send wakeups, to pass to them.
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Wakes whoever sleeps in this process.
    pub fn wake(&self) {
        wake_at(self.wakeup.as_fd());
    }

    /// Takes the wakeups that have come.
    pub fn drain_wakeups(&self) {
        // As many wakeups as the kernel keeps of a pair at most.
        let _ = rustix::net::recv(&self.wakeup_receiver, &mut [0u8; 1024], RecvFlags::DONTWAIT);
    }

    /// Watches a socket.
    ///
    /// # Errors
    /// The system refused.
    pub fn add(&self, socket: BorrowedFd<'_>, token: Token, interest: Interest) -> Result<(), ChannelError> {
        Ok(epoll::add(&self.set, socket, EventData::new_u64(token.encode()), flags(interest))?)
    }

    /// Watches a socket, that is already watched, for somebody else.
    ///
    /// # Errors
    /// The system refused.
    pub fn hand_over(&self, socket: BorrowedFd<'_>, token: Token, interest: Interest) -> Result<(), ChannelError> {
        Ok(epoll::modify(&self.set, socket, EventData::new_u64(token.encode()), flags(interest))?)
    }

    /// No longer watches a socket. Closing it is not enough when a forked child of the program still has it.
    pub fn remove(&self, socket: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.set, socket);
    }

    /// Events that are there now, at most as many as fit.
    pub fn events(&self, tokens: &mut Vec<Token>) {
        tokens.clear();
        let mut buffer = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        match epoll::wait(&self.set, &mut buffer, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(count) => tokens.extend(buffer[..count].iter().filter_map(|event| Token::decode(event.data.u64()))),
            Err(Errno::INTR) => {}
            Err(error) if !self.told.replace(true) => {
                let hint = "keep the numbers open that the program has not opened itself";
                report::fault(None, format_args!("the program has closed descriptors of MPI's connections: {error} (hint: {hint})"));
            }
            Err(_) => {}
        }
    }

    /// Accepts one connection, if one waits. Not to find out whether one does: accept4 first takes the lowest free number of the program's table, and a dup2 to that number, by a
    /// thread of the program that has just closed it, fails meanwhile with EBUSY.
    ///
    /// # Errors
    /// One waits, and cannot be accepted now: too many files are open. It is not announced again.
    pub fn accept(&self) -> Result<Option<Placed>, Errno> {
        let mut listeners = [PollFd::new(&self.unix, PollFlags::IN), PollFd::new(&self.tcp, PollFlags::IN)];
        rustix::event::poll(&mut listeners, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let [unix, tcp] = listeners.map(|listener| listener.revents().contains(PollFlags::IN));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |listener: &Placed| match rustix::net::accept_with(listener, flags) {
            Ok(socket) => Ok(Some(Placed::from(socket))),
            // It has been given up meanwhile.
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error),
        };
        if unix && let Some(socket) = accept(&self.unix)? {
            return Ok(Some(socket));
        }
        let socket = if tcp { accept(&self.tcp)? } else { None };
        if let Some(socket) = &socket {
            let _ = tune(socket.as_fd());
        }
        Ok(socket)
    }

    /// Number of the set, for [`sleep`].
    pub fn raw(&self) -> i32 {
        self.set.as_raw_fd()
    }

    /// All descriptors.
    pub fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        for fd in [&self.set, &self.wakeup, &self.wakeup_receiver, &self.tcp, &self.unix] {
            f(fd.as_raw_fd());
        }
    }

    /// Forgets the descriptors without closing them.
    pub fn forget(self) {
        [self.set, self.wakeup, self.wakeup_receiver, self.tcp, self.unix].into_iter().for_each(Placed::forget);
    }
}

/// Both ends of a pair for wakeups: where to send, where to receive.
///
/// # Errors
/// The system refused.
pub fn wakeup_pair() -> Result<(Placed, Placed), ChannelError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (wakeup, wakeup_receiver) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok((wakeup.into(), wakeup_receiver.into()))
}

/// Sends a wakeup.
pub fn wake_at(wakeup: BorrowedFd<'_>) {
    // One that takes no more wakes the rank all the same.
    let _ = rustix::net::send(wakeup, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn flags(interest: Interest) -> EventFlags {
    match interest {
        Interest::Level => EventFlags::IN | EventFlags::RDHUP,
        Interest::Edge => EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
    }
}

/// Sleeps until the set of this number has an event, or the time is over, or a signal comes.
pub fn sleep(set: i32, time: Duration) {
    // SAFETY: the descriptor is only polled. In a restored process the number may mean nothing or something else; see
    // the module's head.
    let set = unsafe { BorrowedFd::borrow_raw(set) };
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = rustix::event::poll(&mut [PollFd::from_borrowed_fd(set, PollFlags::IN)], Some(&timeout));
}
