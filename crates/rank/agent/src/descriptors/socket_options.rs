//! Options of a socket: socket(7), ip(7), ipv6(7), tcp(7), udp(7), unix(7).
//!
//! Every option that can be read and set is read; a new socket is told what differs. Not seen: groups that were joined
//! (`IP_ADD_MEMBERSHIP`), keys (`TCP_MD5SIG`, `TCP_AO_ADD_KEY`), which the kernel does not tell.

use mend_freestanding::{check, syscall};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

const MAX_OPTION_BYTES: usize = 16;
const UDP: i32 = libc::IPPROTO_UDP;
const TCP: i32 = libc::IPPROTO_TCP;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
const SOCKET: i32 = libc::SOL_SOCKET;

/// Level, numbers and size of values. In the order in which they are set: a type of service sets a priority, too.
const OPTIONS: [(i32, &[i32], usize); 9] = [
    // V6ONLY, …; multicast, hops, what is received beside the data, fragments, addresses.
    (IPV6, &[26, 16, 17, 18, 19, 23, 25, 29, 30, 31, 33, 49, 51, 53, 56, 58, 60, 62, 66, 67, 70, 72, 73, 74, 75, 76, 77, 78], 4),
    // TOS, TTL, …; the last is a range of local ports.
    (IP, &[1, 2, 6, 7, 8, 10, 11, 12, 13, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 32, 33, 34, 49, 50, 51], 4),
    // REUSEADDR, BROADCAST, …, but for buffers.
    (
        SOCKET,
        &[2, 15, 6, 9, 10, 12, 5, 11, 16, 18, 29, 34, 35, 36, 37, 40, 41, 42, 43, 45, 46, 49, 60, 63, 64, 69, 70, 73, 74, 75, 76, 82, 83],
        4,
    ),
    // LINGER, MAX_PACING_RATE, TXTIME.
    (SOCKET, &[13, 47, 61], 8),
    // RCVTIMEO, SNDTIMEO; BINDTODEVICE.
    (SOCKET, &[20, 21, 25], 16),
    // NODELAY, …
    (TCP, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 18, 23, 25, 27, 30, 34, 36, 37, 44, 45, 46], 4),
    // CONGESTION, ULP.
    (TCP, &[13, 31], 16),
    // CORK, ENCAP, NO_CHECK6_TX, NO_CHECK6_RX, SEGMENT, GRO.
    (UDP, &[1, 100, 101, 102, 103, 104], 4),
    (SOCKET, &[72], 4),
];
/// The kernel doubles what is set and reports the double. Set before the last of the options: whether the kernel may change them.
const BUFFERS: [i32; 2] = [libc::SO_SNDBUF, libc::SO_RCVBUF];

/// What a socket's options were.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    /// Level, number, size, value.
    values: Vec<(i32, i32, usize, [u8; MAX_OPTION_BYTES])>,
    buffers: [i32; 2],
}

fn each() -> impl Iterator<Item = (i32, i32, usize)> {
    OPTIONS.iter().flat_map(|(level, numbers, size)| numbers.iter().map(|number| (*level, *number, *size)))
}

impl Options {
    /// Reads all that this socket has.
    pub fn read(fd: BorrowedFd) -> Self {
        let mut options = Self::default();
        for (level, number, size) in each() {
            let mut value = [0; MAX_OPTION_BYTES];
            if get_raw(fd, level, number, &mut value[..size]).is_ok() {
                options.values.push((level, number, size, value));
            }
        }
        for (value, name) in options.buffers.iter_mut().zip(BUFFERS) {
            *value = get(fd, SOCKET, name).unwrap_or(0);
        }
        options
    }

    /// Sets what differs, as far as node and rights allow.
    pub fn apply(&self, fd: BorrowedFd) {
        const BUFFER_LOCK: i32 = 72;
        for (level, number, size, wanted) in &self.values {
            if (*level, *number) == (SOCKET, BUFFER_LOCK) {
                self.apply_buffers(fd);
            }
            let mut now = [0; MAX_OPTION_BYTES];
            if get_raw(fd, *level, *number, &mut now[..*size]).is_ok() && now != *wanted {
                let _ = set(fd, *level, *number, &wanted[..*size]);
            }
        }
        // A kernel that does not tell whether it may change them.
        self.apply_buffers(fd);
    }

    fn apply_buffers(&self, fd: BorrowedFd) {
        for (wanted, name) in self.buffers.iter().zip(BUFFERS) {
            if *wanted != 0 && get(fd, SOCKET, name) != Ok(*wanted) {
                let _ = set(fd, SOCKET, name, &(wanted / 2).to_ne_bytes());
            }
        }
    }
}

/// Whether what arrives is filtered by a program, of which the kernel gives back neither all nor always.
pub(crate) fn filtered(fd: BorrowedFd) -> bool {
    const SO_GET_FILTER: i32 = libc::SO_ATTACH_FILTER;
    let mut length = 0u32;
    let arguments = [fd.as_raw_fd() as usize, SOCKET as usize, SO_GET_FILTER as usize, 0, (&raw mut length) as usize, 0];
    // SAFETY: with a length of zero getsockopt writes that alone.
    match check(unsafe { syscall(libc::SYS_getsockopt, arguments) }) {
        Ok(_) => length != 0,
        // One for the kernel's own machine (eBPF).
        Err(errno) => errno == libc::EACCES,
    }
}

pub(crate) fn get(fd: BorrowedFd, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = [0; 4];
    get_raw(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

fn get_raw(fd: BorrowedFd, level: i32, name: i32, value: &mut [u8]) -> Result<(), Errno> {
    let mut length = value.len() as u32;
    let arguments = [fd.as_raw_fd() as usize, level as usize, name as usize, value.as_mut_ptr() as usize, (&raw mut length) as usize, 0];
    // SAFETY: getsockopt writes at most `length` bytes into `value`.
    check(unsafe { syscall(libc::SYS_getsockopt, arguments) }).map(drop).map_err(Errno::from_raw_os_error)
}

pub(crate) fn set(fd: BorrowedFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let arguments = [fd.as_raw_fd() as usize, level as usize, name as usize, value.as_ptr() as usize, value.len(), 0];
    // SAFETY: setsockopt reads `value`.
    check(unsafe { syscall(libc::SYS_setsockopt, arguments) }).map(drop).map_err(Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketType, socket};

    #[test]
    fn a_new_socket_gets_every_option_of_another() {
        let new = || socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        let (one, other) = (new(), new());
        let wanted: [(i32, i32, i32); 12] = [
            (SOCKET, libc::SO_KEEPALIVE, 1),
            (SOCKET, libc::SO_OOBINLINE, 1),
            (SOCKET, libc::SO_PRIORITY, 3),
            (SOCKET, libc::SO_RCVBUF, 70_000),
            (TCP, libc::TCP_NODELAY, 1),
            (TCP, libc::TCP_KEEPIDLE, 77),
            (TCP, libc::TCP_USER_TIMEOUT, 4321),
            (TCP, libc::TCP_NOTSENT_LOWAT, 5000),
            (IP, libc::IP_TTL, 9),
            (IP, libc::IP_TOS, 0x10),
            (IPV6, libc::IPV6_UNICAST_HOPS, 7),
            (IPV6, libc::IPV6_TCLASS, 0x20),
        ];
        for (level, name, value) in wanted {
            set(one.as_fd(), level, name, &value.to_ne_bytes()).unwrap();
        }
        set(one.as_fd(), TCP, libc::TCP_CONGESTION, b"reno").unwrap();
        let options = Options::read(one.as_fd());
        assert_ne!(options, Options::read(other.as_fd()));
        options.apply(other.as_fd());
        assert_eq!(options, Options::read(other.as_fd()));
        assert!(!filtered(one.as_fd()));
    }

    #[test]
    fn a_filter_is_seen() {
        let udp = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        // BPF_RET | BPF_K: everything.
        let code = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX }];
        let program = libc::sock_fprog { len: 1, filter: code.as_ptr().cast_mut() };
        // SAFETY: plain memory of the type's size, alive for the call.
        let bytes = unsafe { core::slice::from_raw_parts((&raw const program).cast::<u8>(), size_of::<libc::sock_fprog>()) };
        set(udp.as_fd(), SOCKET, libc::SO_ATTACH_FILTER, bytes).unwrap();
        assert!(filtered(udp.as_fd()));
    }
}
