//! Sockets that lie wholly within the rank: pairs of connected unix sockets, and sockets that nothing was done with yet.
//!
//! Who a unix socket's peer is, is told by the kernel's socket diagnostics (sock_diag(7)), which any user may ask.
//! What has arrived is peeked at and stays where it is. A restored pair is made anew, filled, and shut down as it was.

use crate::descriptors::reopen_error::ReopenError;
use crate::descriptors::socket_options::{self, Options, get, set};
use mend_freestanding::{check, syscall};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;

/// Room for a message; grows if one is longer.
const MESSAGE_BYTES: usize = 256 << 10;

/// A socket that can be made again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Socket {
    family: i32,
    kind: i32,
    protocol: i32,
    pub inode: u64,
    /// Of a connected unix socket: its peer's inode, 0 if the peer was closed.
    pub peer: Option<u64>,
    /// What has arrived: messages, or one piece of a stream.
    arrived: Vec<Vec<u8>>,
    /// Bit 0: receives no more, bit 1: sends no more.
    shut: u8,
    options: Options,
}

/// Room that the kernel takes for a message beside its bytes, at most.
const MESSAGE_OVERHEAD: usize = 1024;

/// Why a socket cannot be saved.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It leads out of the rank; what it is, for people.
    Outside(String),
    /// To the kernel, with questions and answers that may be under way.
    Netlink,
    Other(&'static str),
    Failed(io::Error),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Refusal::Failed(errno.into())
    }
}

/// Examines a socket. Whether a peer is in the rank, the caller finds out. What has arrived is read only while
/// the program stands `still`: it could notice.
pub(crate) fn examine(fd: BorrowedFd, inode: u64, still: bool) -> Result<Socket, Refusal> {
    let number = |name| Ok::<i32, Refusal>(get(fd, libc::SOL_SOCKET, name)?);
    let (family, kind, protocol) = (number(libc::SO_DOMAIN)?, number(libc::SO_TYPE)?, number(libc::SO_PROTOCOL)?);
    if number(libc::SO_ACCEPTCONN)? != 0 {
        return Err(Refusal::Outside(listening(fd)));
    }
    let mut socket = Socket { family, kind, protocol, inode, peer: None, arrived: Vec::new(), shut: 0, options: Options::default() };
    match family {
        libc::AF_UNIX => {
            let told = ask_kernel(inode)?;
            if told.named {
                return Err(Refusal::Outside("unix socket with a name".to_string()));
            }
            // A peer that was closed has shut both directions down; one that nobody has accepted yet has no inode either.
            if told.peer == Some(0) && kind != libc::SOCK_DGRAM && told.shut & 3 != 3 {
                return Err(Refusal::Outside("unix socket whose connection is not accepted yet".to_string()));
            }
            (socket.peer, socket.shut) = (told.peer, told.shut);
            if told.peer.is_some() && still {
                socket.arrived = arrived(fd, kind == libc::SOCK_STREAM)?;
            } else if told.peer.is_some() {
                peek(fd, &mut vec![0; (rustix::io::ioctl_fionread(fd)? as usize).max(1)])?;
            }
        }
        libc::AF_INET | libc::AF_INET6 if untouched(fd) && matches!(kind, libc::SOCK_STREAM | libc::SOCK_DGRAM) => {}
        libc::AF_NETLINK => return Err(Refusal::Netlink),
        _ => return Err(Refusal::Outside(outside(fd))),
    }
    if socket_options::filtered(fd) {
        return Err(Refusal::Outside("socket with a filter (SO_ATTACH_FILTER)".to_string()));
    }
    socket.options = Options::read(fd);
    Ok(socket)
}

/// Neither bound nor connected.
fn untouched(fd: BorrowedFd) -> bool {
    let bound = match rustix::net::getsockname(fd).map(std::net::SocketAddr::try_from) {
        Ok(Ok(address)) => address.port() != 0 || !address.ip().is_unspecified(),
        _ => true,
    };
    !bound && rustix::net::getpeername(fd).is_err()
}

fn listening(fd: BorrowedFd) -> String {
    match rustix::net::getsockname(fd) {
        Ok(address) => format!("socket listening on {}", address_text(address)),
        Err(_) => "listening socket".to_string(),
    }
}

fn outside(fd: BorrowedFd) -> String {
    match rustix::net::getpeername(fd) {
        Ok(Some(address)) => format!("socket to {}", address_text(address)),
        _ => "socket".to_string(),
    }
}

fn address_text(address: rustix::net::SocketAddrAny) -> String {
    if let Ok(address) = std::net::SocketAddr::try_from(address.clone()) {
        return address.to_string();
    }
    match rustix::net::SocketAddrUnix::try_from(address) {
        Ok(unix) => match unix.path() {
            Some(path) => path.to_string_lossy().into_owned(),
            None => "another process (unix socket)".to_string(),
        },
        Err(_) => "another process".to_string(),
    }
}

/// What socket diagnostics tell of a unix socket.
#[derive(Debug, Default, PartialEq)]
struct Told {
    peer: Option<u64>,
    shut: u8,
    named: bool,
}

fn ask_kernel(inode: u64) -> Result<Told, Refusal> {
    const NETLINK_SOCK_DIAG: usize = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const SHOW_NAME_AND_PEER: u32 = 1 | 4;
    // struct nlmsghdr, then struct unix_diag_req.
    let mut request = [0u8; 40];
    request[..4].copy_from_slice(&40u32.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&1u16.to_ne_bytes()); // NLM_F_REQUEST
    request[16] = libc::AF_UNIX as u8;
    request[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    request[24..28].copy_from_slice(&(inode as u32).to_ne_bytes());
    request[28..32].copy_from_slice(&SHOW_NAME_AND_PEER.to_ne_bytes());
    request[32..].fill(0xff); // any cookie
    let without = |_| Refusal::Other("this kernel does not tell who is connected with whom (sock_diag)");
    let netlink = [libc::AF_NETLINK as usize, (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as usize, NETLINK_SOCK_DIAG, 0, 0, 0];
    // SAFETY: socket takes numbers and returns a new descriptor.
    let asking = check(unsafe { syscall(libc::SYS_socket, netlink) }).map_err(without)?;
    // SAFETY: just made, owned by nobody else.
    let asking = unsafe { OwnedFd::from_raw_fd(asking as i32) };
    rustix::net::send(&asking, &request, rustix::net::SendFlags::empty())?;
    let mut answer = [0; 1024];
    let (length, _) = rustix::net::recv(&asking, &mut answer[..], RecvFlags::DONTWAIT)?;
    parse(&answer[..length], inode).ok_or(Refusal::Other("this kernel does not tell who is connected with whom (sock_diag)"))
}

/// `struct nlmsghdr`, `struct unix_diag_msg`, attributes.
fn parse(answer: &[u8], inode: u64) -> Option<Told> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    if half(4)? != SOCK_DIAG_BY_FAMILY || word(20)? != inode as u32 {
        return None;
    }
    let mut told = Told::default();
    let (mut at, end) = (32, (word(0)? as usize).min(answer.len()));
    while at + 4 <= end {
        let (length, kind) = (half(at)? as usize, half(at + 2)?);
        if length < 4 || at + length > end {
            return None;
        }
        match kind {
            0 => told.named = length > 4,
            2 => told.peer = Some(u64::from(word(at + 4)?)),
            6 => told.shut = *answer.get(at + 4)?,
            _ => {}
        }
        at += length.next_multiple_of(4);
    }
    Some(told)
}

/// What has arrived and was not read. It stays there.
fn arrived(fd: BorrowedFd, stream: bool) -> Result<Vec<Vec<u8>>, Refusal> {
    let before: i32 = get(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF)?;
    let waiting = rustix::io::ioctl_fionread(fd)? as usize;
    let mut room = vec![0; if stream { waiting.max(1) } else { MESSAGE_BYTES }];
    let result = loop {
        // Each peek goes on behind the one before.
        set(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &0i32.to_ne_bytes())?;
        match peek_all(fd, stream, &mut room) {
            Ok(Peeked::Needs(longer)) => room.resize(longer, 0),
            Ok(Peeked::All(messages)) => break Ok(messages),
            Err(refusal) => break Err(refusal),
        }
    };
    set(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &before.to_ne_bytes())?;
    result
}

enum Peeked {
    All(Vec<Vec<u8>>),
    /// A message is longer than the room.
    Needs(usize),
}

/// Peeks once; how long the message is, `None` if nothing is there.
fn peek(fd: BorrowedFd, room: &mut [u8]) -> Result<Option<usize>, Refusal> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
        let length = match recvmsg(fd, &mut [IoSliceMut::new(room)], &mut ancillary, flags) {
            Ok(got) => got.bytes,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        // A peek makes new descriptors of those under way; taking them out closes them.
        let rights = |message| matches!(message, rustix::net::RecvAncillaryMessage::ScmRights(_));
        if ancillary.drain().map(rights).fold(false, |any, one| any | one) {
            return Err(Refusal::Other("descriptors are under way in it (SCM_RIGHTS)"));
        }
        return Ok(Some(length));
    }
}

fn peek_all(fd: BorrowedFd, stream: bool, room: &mut [u8]) -> Result<Peeked, Refusal> {
    let mut all = Vec::new();
    while let Some(length) = peek(fd, room)? {
        if length > room.len() {
            return Ok(Peeked::Needs(length));
        }
        if length == 0 && (stream || hung_up(fd)) {
            break;
        }
        all.push(room[..length].to_vec());
    }
    Ok(Peeked::All(all))
}

fn hung_up(fd: BorrowedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let wanted = &mut [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    poll(wanted, Some(&now)).is_ok() && wanted[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
}

/// Makes a socket that had no peer.
pub(crate) fn alone(socket: &Socket) -> Result<OwnedFd, Errno> {
    let arguments = [socket.family as usize, (socket.kind | libc::SOCK_CLOEXEC) as usize, socket.protocol as usize, 0, 0, 0];
    // SAFETY: socket takes numbers and returns a new descriptor.
    let made = check(unsafe { syscall(libc::SYS_socket, arguments) }).map_err(Errno::from_raw_os_error)?;
    // SAFETY: just made, owned by nobody else.
    let made = unsafe { OwnedFd::from_raw_fd(made as i32) };
    socket.options.apply(made.as_fd());
    Ok(made)
}

/// Makes both ends of a pair; of the second only what is needed if its saved one was closed.
pub(crate) fn pair(one: &Socket, other: Option<&Socket>) -> Result<(OwnedFd, Option<OwnedFd>), Errno> {
    let mut made = [0i32; 2];
    let arguments = [libc::AF_UNIX as usize, (one.kind | libc::SOCK_CLOEXEC) as usize, 0, made.as_mut_ptr() as usize, 0, 0];
    // SAFETY: socketpair writes two numbers into `made`.
    check(unsafe { syscall(libc::SYS_socketpair, arguments) }).map_err(Errno::from_raw_os_error)?;
    // SAFETY: just made, owned by nobody else.
    let (first, second) = unsafe { (OwnedFd::from_raw_fd(made[0]), OwnedFd::from_raw_fd(made[1])) };
    fill(&second, &one.arrived)?;
    let second = match other {
        Some(other) => {
            fill(&first, &other.arrived)?;
            other.options.apply(second.as_fd());
            shut(&second, other.shut);
            Some(second)
        }
        None => None,
    };
    // Last: filling changes the size of a buffer.
    one.options.apply(first.as_fd());
    shut(&first, one.shut);
    Ok((first, second))
}

/// Sends what had arrived at the other end.
fn fill(from: &OwnedFd, messages: &[Vec<u8>]) -> Result<(), Errno> {
    // What was sent once fits again, but perhaps not as one piece, and not into the buffer of a new socket. The kernel doubles it.
    let needed: usize = messages.iter().map(|message| message.len() + MESSAGE_OVERHEAD).sum();
    if !messages.is_empty() && get(from.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF).is_ok_and(|now| needed > now as usize / 2) {
        let size = i32::try_from(needed).unwrap_or(i32::MAX).to_ne_bytes();
        // The one that the user may have without limit, if so.
        let buffer = |name| set(from.as_fd(), libc::SOL_SOCKET, name, &size);
        let _ = buffer(libc::SO_SNDBUFFORCE).or_else(|_| buffer(libc::SO_SNDBUF));
    }
    for message in messages {
        let mut rest = &message[..];
        loop {
            let sent = rustix::net::send(from, rest, rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL)?;
            rest = &rest[sent..];
            if rest.is_empty() {
                break;
            }
        }
    }
    Ok(())
}

fn shut(fd: &OwnedFd, bits: u8) {
    let how = match bits & 3 {
        1 => rustix::net::Shutdown::Read,
        2 => rustix::net::Shutdown::Write,
        3 => rustix::net::Shutdown::Both,
        _ => return,
    };
    let _ = rustix::net::shutdown(fd, how);
}

/// Sockets made so far, until each has found its numbers.
#[derive(Default)]
pub(crate) struct Made {
    ends: Vec<(u64, OwnedFd)>,
}

impl Made {
    /// The socket again; its peer is made with it.
    pub fn take(&mut self, fd: i32, socket: &Socket, all: &[&Socket], above: i32) -> Result<OwnedFd, ReopenError> {
        let failed = |errno| ReopenError::Make { fd, what: "socket", errno };
        if let Some(at) = self.ends.iter().position(|(inode, _)| *inode == socket.inode) {
            return Ok(self.ends.swap_remove(at).1);
        }
        let Some(peer) = socket.peer else { return alone(socket).map_err(failed) };
        let other = all.iter().find(|other| other.inode == peer && peer != 0);
        let (one, other_end) = pair(socket, other.copied()).map_err(failed)?;
        if let Some(end) = other_end {
            // Away from the numbers of the program.
            self.ends.push((peer, rustix::io::fcntl_dupfd_cloexec(&end, above).map_err(failed)?));
        }
        Ok(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: i32) -> (OwnedFd, OwnedFd) {
        let mut made = [0i32; 2];
        // SAFETY: socketpair writes two numbers into `made`, owned by nobody else.
        unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, made.as_mut_ptr()), 0);
            (OwnedFd::from_raw_fd(made[0]), OwnedFd::from_raw_fd(made[1]))
        }
    }

    fn look(fd: &OwnedFd) -> Socket {
        examine(fd.as_fd(), rustix::fs::fstat(fd).unwrap().st_ino, true).unwrap()
    }

    fn next(fd: &OwnedFd) -> Vec<u8> {
        let mut room = [0; 64];
        let got = rustix::io::read(fd, &mut room).unwrap();
        room[..got].to_vec()
    }

    #[test]
    fn a_pair_knows_its_peer_and_comes_back_with_what_had_arrived() {
        for (kind, expected) in
            [(libc::SOCK_STREAM, vec!["onetwo"]), (libc::SOCK_SEQPACKET, vec!["one", "two"]), (libc::SOCK_DGRAM, vec!["one", "two"])]
        {
            let (a, b) = made(kind);
            for text in ["one", "two"] {
                rustix::io::write(&b, text.as_bytes()).unwrap();
            }
            set(a.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32.to_ne_bytes()).unwrap();
            for _ in 0..2 {
                let (one, other) = (look(&a), look(&b));
                assert_eq!((one.peer, other.peer), (Some(other.inode), Some(one.inode)));
                assert_eq!(one.arrived.len(), expected.len());
                let (c, d) = pair(&one, Some(&other)).unwrap();
                let d = d.unwrap();
                for text in &expected {
                    assert_eq!(next(&c), text.as_bytes());
                }
                assert_eq!(get(c.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED), Ok(1));
                rustix::io::write(&c, b"back").unwrap();
                assert_eq!(next(&d), b"back");
            }
        }
    }

    /// Of a buffer that the program has made larger.
    #[test]
    fn all_that_waits_fits_again() {
        for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
            let (a, b) = made(kind);
            set(b.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &(200i32 << 10).to_ne_bytes()).unwrap();
            let message: Vec<u8> = (0..3000u32).map(|at| at as u8).collect();
            let flags = rustix::net::SendFlags::DONTWAIT;
            let sent: usize = std::iter::from_fn(|| rustix::net::send(&b, &message, flags).ok()).sum();
            assert!(sent > 220 << 10, "more than a socket takes by itself: {sent}");
            let (one, other) = (look(&a), look(&b));
            let (c, d) = pair(&one, Some(&other)).unwrap();
            assert_eq!((look(&c).arrived, look(&c).options), (one.arrived, one.options));
            assert_eq!(look(&d.unwrap()).options, other.options);
        }
    }

    #[test]
    fn an_end_whose_peer_is_gone_reads_the_rest_and_then_the_end() {
        let (a, b) = made(libc::SOCK_STREAM);
        rustix::io::write(&b, b"rest").unwrap();
        drop(b);
        let one = look(&a);
        assert_eq!(one.peer, Some(0));
        let (c, _) = pair(&one, None).unwrap();
        assert_eq!(next(&c), b"rest");
        assert_eq!(next(&c), b"");
    }

    #[test]
    fn a_connection_that_is_not_accepted_yet_is_no_closed_one() {
        let place = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(place.path().join("socket")).unwrap();
        let client = std::os::unix::net::UnixStream::connect(place.path().join("socket")).unwrap();
        let inode = rustix::fs::fstat(&client).unwrap().st_ino;
        let look = || examine(client.as_fd(), inode, true);
        assert!(matches!(look(), Err(Refusal::Outside(name)) if name.contains("not accepted")));
        let (accepted, _) = listener.accept().unwrap();
        assert!(look().unwrap().peer.is_some_and(|peer| peer != 0));
        drop(accepted);
        assert_eq!(look().unwrap().peer, Some(0));
    }

    #[test]
    fn connected_and_listening_sockets_are_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (fd, text) in [(listener.as_fd(), "listening on 127.0.0.1"), (client.as_fd(), "socket to 127.0.0.1")] {
            assert!(matches!(examine(fd, 1, true), Err(Refusal::Outside(name)) if name.contains(text)));
        }
    }
}
