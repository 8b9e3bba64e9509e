//! Connections that a core provider has accepted and does not close with its endpoint.
//!
//! libfabric's `tcp` (2.5, and `ofi_rxm` over it) knows a connection first as a descriptor that its listener gave, and as an
//! endpoint's only when the peer's request has been read. Closing the listener forgets those in between (a TODO in
//! `xnet_pep_close`), and their sockets stay open. That needs no ill will: a rank that suspends takes back what it had just asked
//! of a peer, and the peer is connecting meanwhile, to send its first credits. Nor can we wait until they are gone: whoever
//! connects and says nothing would be in the way of every image.
//!
//! *Whose they are.* A TCP socket that has the address of a listener, and is not the listener, was accepted from it: as long as one
//! listens at an address the kernel gives it to nobody else. So what is looked for while the provider's endpoint is open is the
//! provider's, and what is left of it when all of the provider is closed is nobody's. Between the two a number may become another
//! file's; device and inode tell.

use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::net::sockopt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Device and inode of an open file.
type Identity = (u64, u64);

/// What a listener had accepted. Those still open are closed when this is dropped.
#[derive(Default)]
pub struct Accepted(Vec<(RawFd, Identity)>);

impl Accepted {
    /// Looks for them. `address`, a socket address as the system has it, is that of an endpoint of this process that is open.
    pub fn at(address: &[u8]) -> Self {
        let (Some(listener), Ok(entries)) = (decode(address), std::fs::read_dir("/proc/self/fd")) else { return Self::default() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(numbers.filter_map(|number: RawFd| Some((number, identity_if(number, |socket| is_of(socket, listener))?))).collect())
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        for (number, identity) in self.0.drain(..) {
            if identity_if(number, |_| true) == Some(identity) {
                // SAFETY: the provider's, which has closed what it knows of.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
}

/// The identity of an open file that is such a one.
fn identity_if(number: RawFd, such: impl Fn(BorrowedFd<'_>) -> bool) -> Option<Identity> {
    // SAFETY: it is looked at only; a number that is nobody's now, or another file's, does no harm.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    such(file).then(|| rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))).flatten()
}

fn is_of(socket: BorrowedFd<'_>, listener: SocketAddr) -> bool {
    let Some(own) = rustix::net::getsockname(socket).ok().and_then(|own| SocketAddr::try_from(own).ok()) else { return false };
    (own.port(), own.is_ipv4()) == (listener.port(), listener.is_ipv4())
        && (own.ip() == listener.ip() || listener.ip().is_unspecified())
        && sockopt::socket_type(socket) == Ok(rustix::net::SocketType::STREAM)
        && sockopt::socket_acceptconn(socket) == Ok(false)
}

/// `struct sockaddr_in` and `struct sockaddr_in6`.
fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip = match family {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsRawFd, IntoRawFd};
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn encoded(address: SocketAddr) -> Vec<u8> {
        let family = (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u16;
        let mut bytes = [family.to_ne_bytes(), address.port().to_be_bytes()].concat();
        match address.ip() {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend([[0; 4].as_slice(), &ip.octets()].concat()),
        }
        bytes.resize(32, 0);
        bytes
    }

    /// A connection: both ends, the accepted one without an owner.
    fn connection(listener: &TcpListener, host: &str) -> (TcpStream, RawFd) {
        let near = TcpStream::connect((host, listener.local_addr().unwrap().port())).unwrap();
        near.set_nonblocking(true).unwrap();
        (near, listener.accept().unwrap().0.into_raw_fd())
    }

    fn found(accepted: &Accepted) -> Vec<RawFd> {
        let mut numbers: Vec<_> = accepted.0.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn a_listeners_connections_are_closed_and_nothing_else() {
        for (at, host) in [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "::1")] {
            let listener = TcpListener::bind((at, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let mut connections = [connection(&listener, host), connection(&listener, host)];
            connections.sort_by_key(|(_, far)| *far);
            let datagrams = UdpSocket::bind(address).unwrap();
            let accepted = Accepted::at(&encoded(address));
            assert_eq!(found(&accepted), connections.each_ref().map(|(_, far)| *far), "{at}");
            for (near, _) in &mut connections {
                assert_eq!(near.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
            drop(accepted);
            for (near, _) in &mut connections {
                assert_eq!(near.read(&mut [0]).unwrap(), 0, "{at}");
            }
            assert_eq!((listener.local_addr().unwrap(), datagrams.local_addr().unwrap()), (address, address));
        }
    }

    #[test]
    fn a_number_that_has_become_another_files_is_left_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut near, far) = connection(&listener, "127.0.0.1");
        let accepted = Accepted::at(&encoded(listener.local_addr().unwrap()));
        assert_eq!(found(&accepted), [far]);
        // In one step: another thread would be given the number.
        let other = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: `far` has no owner but this test.
        let mut there = unsafe { OwnedFd::from_raw_fd(far) };
        rustix::io::dup2(&other, &mut there).unwrap();
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
        drop(accepted);
        assert_eq!(std::fs::File::from(there).read(&mut [0; 8]).unwrap(), 8);
        assert_ne!(other.as_raw_fd(), far);
    }

    #[test]
    fn what_is_no_internet_address_has_no_connections() {
        for address in [[].as_slice(), &[2, 0, 1], &[2, 0, 0, 0, 127], &[0xff; 64], &[1, 0, 47, 0]] {
            assert_eq!(found(&Accepted::at(address)), [], "{address:?}");
        }
    }
}
