//! The same stream in records of [`mend_cipher`], in both directions: packets one way, acknowledgements the other.
//!
//! - Sending: what is sent is copied into a record and encrypted there, so nothing is lent beyond the call. A long packet leaves record by
//!   record, so that the receiver begins with the first. Packets of a burst share a record.
//! - Receiving: a record is opened where it was received, and its bytes are copied to where they belong.
//!
//! Memory: beyond that of the channels that do not encrypt, a record's ([`MAX_RECORD`]) per channel that received lately.

use super::outgoing::{PacketWriter, lent, write};
use super::{MAX_BURST_BYTES, Source, receive};
use crate::channel::{ACK_LENGTH, ChannelError, decode_ack, encode_ack};
use crate::engine::buffers::Segment;
use crate::engine::packet::Header;
use mend_cipher::{CipherError, Decryptor, Encryptor, HEAD, MAX_PLAIN, MAX_RECORD, TAG};
use mend_kernel::table::Placed;
use rustix::io::IoSlice;
use rustix::net::RecvFlags;

/// An acknowledgement in its record.
const ACK_RECORD: usize = HEAD + ACK_LENGTH + TAG;

/// Keys of a channel, as one of its ends has them.
pub type Keys = (Encryptor, Decryptor);

/// Writes packets in records.
#[derive(Debug)]
pub struct EncryptedWriter {
    socket: Placed,
    encryptor: Encryptor,
    decryptor: Decryptor,
    /// Records that were made; from `sent` on they have not been sent.
    records: Vec<u8>,
    sent: usize,
    /// A record that is not made yet: room for its head, then packets of a burst. Empty if there are none.
    burst: Vec<u8>,
    /// An acknowledgement, as far as it came.
    ack: [u8; ACK_RECORD],
    have: usize,
}

impl EncryptedWriter {
    /// A channel whose peer has accepted.
    pub fn new(socket: Placed, (encryptor, decryptor): Keys) -> Self {
        let (records, burst) = (Vec::new(), Vec::new());
        Self { socket, encryptor, decryptor, records, sent: 0, burst, ack: [0; ACK_RECORD], have: 0 }
    }

    /// Sends records, as far as the socket takes them.
    fn drain(&mut self) -> Result<bool, ChannelError> {
        while self.sent < self.records.len() {
            let Some(sent) = write(&self.socket, &[IoSlice::new(&self.records[self.sent..])])? else { return Ok(false) };
            self.sent += sent;
        }
        self.sent = 0;
        if self.records.capacity() > MAX_BURST_BYTES {
            self.records = Vec::new();
        } else {
            self.records.clear();
        }
        Ok(true)
    }
}

impl PacketWriter for EncryptedWriter {
    fn send(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        if !self.flush()? {
            return Ok(false);
        }
        let mut start = self.records.len();
        self.records.extend_from_slice(&[0; HEAD]);
        for mut part in std::iter::once(&header.as_bytes()[..]).chain(payload.iter().map(lent)) {
            loop {
                let room = MAX_PLAIN - (self.records.len() - start - HEAD);
                let (now, later) = part.split_at(part.len().min(room));
                self.records.extend_from_slice(now);
                if later.is_empty() {
                    break;
                }
                part = later;
                self.encryptor.seal_end(&mut self.records, start);
                self.drain()?;
                start = self.records.len();
                self.records.extend_from_slice(&[0; HEAD]);
            }
        }
        self.encryptor.seal_end(&mut self.records, start);
        self.drain()?;
        Ok(true)
    }

    fn defer(&mut self, header: &Header, payload: &[Segment]) -> Result<bool, ChannelError> {
        let packet = header.as_bytes().len() + payload.iter().map(|segment| segment.len).sum::<usize>();
        if self.burst.len() + packet > MAX_BURST_BYTES || self.sent < self.records.len() {
            return self.send(header, payload);
        }
        if self.burst.is_empty() {
            self.burst.extend_from_slice(&[0; HEAD]);
        }
        self.burst.extend_from_slice(header.as_bytes());
        payload.iter().for_each(|segment| self.burst.extend_from_slice(lent(segment)));
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, ChannelError> {
        if !self.burst.is_empty() {
            let start = self.records.len();
            self.records.append(&mut self.burst);
            self.encryptor.seal_end(&mut self.records, start);
        }
        self.drain()
    }

    fn unsent(&self) -> bool {
        self.sent < self.records.len() || !self.burst.is_empty()
    }

    fn acknowledged(&mut self) -> Result<Option<u64>, ChannelError> {
        while self.have < ACK_RECORD {
            match receive(|| rustix::net::recv(&self.socket, &mut self.ack[self.have..], RecvFlags::DONTWAIT).map(|(read, _)| read))? {
                None => return Ok(None),
                Some(0) if self.have == 0 => return Err(ChannelError::Closed),
                Some(0) => return Err(self.decryptor.cut().into()),
                Some(read) => self.have += read,
            }
        }
        self.have = 0;
        let opened = self.decryptor.open(&mut self.ack)?;
        decode_ack(&self.ack[HEAD..HEAD + opened.length]).map(Some)
    }

    fn socket(&self) -> &Placed {
        &self.socket
    }

    fn into_socket(self) -> Placed {
        self.socket
    }
}

/// What a receiving end reads from.
#[derive(Debug)]
pub struct EncryptedSource {
    socket: Placed,
    encryptor: Encryptor,
    decryptor: Decryptor,
    /// Received: `plain` bytes from `start` on that are open, then, up to `end`, records. Empty while the channel rests.
    buffer: Vec<u8>,
    start: usize,
    plain: usize,
    /// Where the records begin: behind the tag of the one that is open.
    next: usize,
    end: usize,
    /// An error that was met after bytes that are good.
    failed: Option<CipherError>,
}

impl EncryptedSource {
    /// Of a channel that was admitted.
    pub fn new(socket: Placed, (encryptor, decryptor): Keys) -> Self {
        Self { socket, encryptor, decryptor, buffer: Vec::new(), start: 0, plain: 0, next: 0, end: 0, failed: None }
    }

    /// Length of the record that is next, if it is there as a whole.
    fn whole(&self) -> Result<Option<usize>, CipherError> {
        let Some(head) = self.buffer[self.next..self.end].first_chunk::<HEAD>() else { return Ok(None) };
        let length = self.decryptor.length(*head)?;
        Ok((length <= self.end - self.next).then_some(length))
    }

    /// Opens the next record, if it is there. Nothing of the one before is left.
    fn open(&mut self) -> Result<bool, CipherError> {
        let Some(length) = self.whole()? else { return Ok(false) };
        let opened = self.decryptor.open(&mut self.buffer[self.next..self.next + length])?;
        (self.start, self.plain) = (self.next + HEAD, opened.length);
        self.next += length;
        Ok(true)
    }

    /// Receives once, behind what is there. The bytes, and whether there was room for more.
    fn fill(&mut self) -> Result<Option<(usize, bool)>, ChannelError> {
        self.buffer.resize(MAX_RECORD, 0);
        self.buffer.copy_within(self.next..self.end, 0);
        (self.end, self.next) = (self.end - self.next, 0);
        let room = &mut self.buffer[self.end..];
        let asked = room.len();
        let read = receive(|| rustix::net::recv(&self.socket, &mut *room, RecvFlags::DONTWAIT).map(|(read, _)| read))?;
        Ok(read.map(|read| {
            self.end += read;
            (read, read < asked)
        }))
    }

    /// Moves open bytes to a place; how many.
    fn give(&mut self, place: &mut [u8]) -> usize {
        let size = self.plain.min(place.len());
        place[..size].copy_from_slice(&self.buffer[self.start..self.start + size]);
        self.start += size;
        self.plain -= size;
        size
    }
}

impl Source for EncryptedSource {
    fn read(&mut self, target: &mut [u8], rest: &mut [u8]) -> Result<Option<usize>, ChannelError> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        let (mut given, asked, mut emptied) = (0, target.len() + rest.len(), false);
        while given < asked {
            if self.plain > 0 {
                given += if given < target.len() { self.give(&mut target[given..]) } else { self.give(&mut rest[given - target.len()..]) };
                continue;
            }
            match self.open() {
                Ok(true) => continue,
                Ok(false) => {}
                // What came before it is good, and is delivered first.
                Err(error) if given > 0 => {
                    self.failed = Some(error);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            if emptied {
                break;
            }
            match self.fill()? {
                None => break,
                // Told again by the next call, when there is nothing else to tell.
                Some((0, _)) if given > 0 => break,
                Some((0, _)) if self.end > self.next => return Err(self.decryptor.cut().into()),
                Some((0, _)) => return Ok(Some(0)),
                Some((_, drained)) => emptied = drained,
            }
        }
        Ok((given > 0).then_some(given))
    }

    fn holds(&self) -> bool {
        self.plain > 0 || self.failed.is_some() || !matches!(self.whole(), Ok(None))
    }

    fn torn(&self) -> bool {
        self.next < self.end
    }

    fn relax(&mut self) {
        if self.plain == 0 && self.next == self.end {
            (self.buffer, self.start, self.next, self.end) = (Vec::new(), 0, 0, 0);
        }
    }

    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        let mut record = [0; ACK_RECORD];
        record[HEAD..HEAD + ACK_LENGTH].copy_from_slice(&encode_ack(marker));
        self.encryptor.seal(&mut record, false);
        // On a socket that carries nothing else they always fit its buffer.
        match write(&self.socket, &[IoSlice::new(&record)])? {
            Some(ACK_RECORD) => Ok(()),
            _ => Err(ChannelError::Protocol("acknowledgements are not read".into())),
        }
    }

    fn socket(&self) -> &Placed {
        &self.socket
    }

    fn into_socket(self) -> Placed {
        self.socket
    }
}

#[cfg(test)]
mod tests;
