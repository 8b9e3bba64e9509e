//! What both ends of a new channel share: bytes and descriptors on a nonblocking socket, and the HELLO and ACCEPT.

use super::ChannelError;
use super::ofi::contact::CONTACT_LENGTH;
use mend_kernel::table::Placed;
use mend_messages::job::Rank;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::mem::MaybeUninit;

/// Encoded HELLO, bytes.
pub const HELLO_LENGTH: usize = 56;
/// Encoded ACCEPT, bytes.
pub const ACCEPT_LENGTH: usize = 8;
/// The ACCEPT.
pub const ACCEPT: [u8; ACCEPT_LENGTH] = *b"MENDgo\0\0";
/// Instead of ACCEPT: a channel over another medium may be accepted.
pub const REFUSE: [u8; ACCEPT_LENGTH] = *b"MENDno\0\0";
const HELLO_MAGIC: [u8; 8] = *b"MENDrank";
/// Most descriptors one side passes: a ring, a wakeup socket, its memory.
const MAX_DESCRIPTORS: usize = 3;
/// Most bytes that a peer may have sent ahead of what was read; the whole handshake is shorter.
const MAX_INPUT: usize = 512;
const _: () = assert!(MAX_INPUT >= 4 * CONTACT_LENGTH);

/// What a channel is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Medium {
    /// The connection of the handshake itself.
    Tcp = 0,
    /// A ring in shared memory; it and a wakeup socket come with the HELLO.
    Shm = 1,
    /// Messages over a core provider of libfabric; a contact follows the HELLO and the ACCEPT.
    Ofi = 2,
}

impl Medium {
    /// By its name in `MEND_CHANNELS`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "tcp" => Some(Self::Tcp),
            "shm" => Some(Self::Shm),
            "ofi" => Some(Self::Ofi),
            _ => None,
        }
    }

    fn numbered(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Shm, Self::Ofi].into_iter().find(|medium| *medium as u8 == number)
    }
}

/// Who opens a channel to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The job.
    pub job: [u8; 16],
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Generation of the sender in the job map.
    pub generation: u64,
    /// Which of the sender's openings this is: an older one must not replace what a newer one has opened.
    pub number: u64,
    /// What it is made of.
    pub medium: Medium,
    /// True: the sender's memory comes with the ring, to read.
    pub readable: bool,
}

impl Hello {
    /// Wire form.
    pub fn encode(&self) -> [u8; HELLO_LENGTH] {
        let mut bytes = [0; HELLO_LENGTH];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..24].copy_from_slice(&self.job);
        bytes[24..28].copy_from_slice(&self.from.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40] = self.medium as u8;
        bytes[48..].copy_from_slice(&self.number.to_le_bytes());
        bytes[41] = u8::from(self.readable);
        bytes
    }

    /// Reads the wire form.
    pub fn decode(bytes: &[u8; HELLO_LENGTH]) -> Result<Self, ChannelError> {
        let medium = Medium::numbered(bytes[40]).filter(|_| bytes[..8] == HELLO_MAGIC && bytes[42..48] == [0; 6]);
        let medium = medium.filter(|medium| bytes[41] <= u8::from(*medium == Medium::Shm));
        let medium = medium.ok_or_else(|| ChannelError::Protocol("not a HELLO".into()))?;
        let (mut job, mut word, mut long) = ([0; 16], [0; 4], [0; 8]);
        job.copy_from_slice(&bytes[8..24]);
        word.copy_from_slice(&bytes[24..28]);
        let from = Rank::from_le_bytes(word);
        word.copy_from_slice(&bytes[28..32]);
        let to = Rank::from_le_bytes(word);
        long.copy_from_slice(&bytes[32..40]);
        let generation = u64::from_le_bytes(long);
        long.copy_from_slice(&bytes[48..]);
        Ok(Self { job, from, to, generation, medium, readable: bytes[41] == 1, number: u64::from_le_bytes(long) })
    }
}

/// A socket during its handshake.
#[derive(Debug)]
pub struct Wire {
    socket: Placed,
    input: Vec<u8>,
    descriptors: Vec<Placed>,
    output: Vec<u8>,
}

impl Wire {
    pub fn new(socket: Placed) -> Self {
        Self { socket, input: Vec::new(), descriptors: Vec::new(), output: Vec::new() }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn into_parts(self) -> (Placed, Vec<Placed>) {
        (self.socket, self.descriptors)
    }

    /// Forgets the descriptors without closing them.
    pub fn forget(self) {
        self.socket.forget();
        self.descriptors.into_iter().for_each(Placed::forget);
    }

    /// Queues bytes and sends what the socket takes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        self.output.extend_from_slice(bytes);
        self.flush()
    }

    /// True if all that was written is with the kernel: there is a connection then.
    pub fn sent(&self) -> bool {
        self.output.is_empty()
    }

    /// Sends what is queued, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        while !self.output.is_empty() {
            match rustix::net::send(&self.socket, &self.output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.output.drain(..sent)),
                // NOTCONN: a TCP connection that is still being made.
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends a message with descriptors, at once or not at all.
    pub fn write_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        if !self.output.is_empty() {
            return Err(Errno::NOBUFS.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::Protocol("too many descriptors".into()));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)? == bytes.len() {
            Ok(())
        } else {
            Err(Errno::NOBUFS.into())
        }
    }

    /// Reads what is there. The end is an error only once everything before it has been read by an earlier call: a peer
    /// may close right after its last word.
    pub fn fill(&mut self) -> Result<(), ChannelError> {
        let mut fresh = false;
        loop {
            let mut bytes = [0; MAX_INPUT];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(message) if message.bytes == 0 && fresh => return Ok(()),
                Ok(message) if message.bytes == 0 => return Err(ChannelError::Closed),
                Ok(message) => {
                    fresh = true;
                    for part in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(received) = part {
                            self.descriptors.extend(received.map(Placed::from));
                        }
                    }
                    self.input.extend_from_slice(&bytes[..message.bytes]);
                }
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
            if self.input.len() > MAX_INPUT || self.descriptors.len() > MAX_DESCRIPTORS {
                return Err(ChannelError::Protocol("more than a handshake".into()));
            }
        }
    }

    /// Takes exactly `N` bytes if they are there.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.input.first_chunk::<N>()?;
        self.input.drain(..N);
        Some(bytes)
    }

    /// Takes the descriptor that came last.
    pub fn take_descriptor(&mut self) -> Option<Placed> {
        self.descriptors.pop()
    }

    /// True if bytes are left over: packets must not flow before ACCEPT.
    pub fn has_more(&self) -> bool {
        !self.input.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_its_wire_form() {
        let hello = Hello { job: [3; 16], from: 7, to: 9, generation: 11, medium: Medium::Shm, readable: true, number: 13 };
        let mut bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes).unwrap(), hello);
        bytes[40] = Medium::Ofi as u8;
        assert!(Hello::decode(&bytes).is_err());
        bytes[41] = 0;
        assert_eq!(Hello::decode(&bytes).unwrap(), Hello { medium: Medium::Ofi, readable: false, ..hello });
        bytes[40] = 3;
        assert!(Hello::decode(&bytes).is_err());
    }
}
