//! Packets out of messages: a long packet takes several, and a message holds several short ones. No I/O.
//!
//! Faults assumed: the bytes are anything. What is kept of a packet is what has come of it, and no packet is longer than
//! [`MAX_STREAMED`].

use super::super::{ChannelError, Deliver};
use crate::engine::buffers::Payload;
use crate::engine::packet::{HEADER, Header, MAX_STREAMED};

/// Of one channel.
#[derive(Default)]
pub struct Assembly {
    /// A packet that came in part.
    partial: Vec<u8>,
}

/// Length of the packet that begins here.
fn announced(header: &Header) -> Result<usize, ChannelError> {
    match header.payload as usize {
        // One that was made for a socket may be as long.
        length if length <= MAX_STREAMED => Ok(length),
        _ => Err(ChannelError::Protocol("impossible length in a message".into())),
    }
}

impl Assembly {
    /// Delivers the packets of a message's content. Returns how many.
    ///
    /// # Errors
    /// The content is none, or what the delivery says.
    pub fn digest(&mut self, content: &[u8], deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        let (mut at, mut packets) = (0, 0);
        while at < content.len() {
            let have = &content[at..];
            if self.partial.is_empty()
                && let Some(bytes) = have.first_chunk::<HEADER>()
            {
                let header = Header::from_bytes(bytes);
                let length = announced(&header)?;
                if let Some(body) = have.get(HEADER..HEADER + length) {
                    at += HEADER + length;
                    packets += 1;
                    deliver.packet(&header, Payload::one(body))?;
                    continue;
                }
            }
            let whole = match self.partial.first_chunk::<HEADER>() {
                Some(bytes) => HEADER + announced(&Header::from_bytes(bytes))?,
                None => HEADER,
            };
            let part = have.len().min(whole - self.partial.len());
            self.partial.extend_from_slice(&have[..part]);
            at += part;
            let Some(bytes) = self.partial.first_chunk::<HEADER>() else { continue };
            let header = Header::from_bytes(bytes);
            let length = announced(&header)?;
            if self.partial.len() == HEADER + length {
                let packet = std::mem::take(&mut self.partial);
                packets += 1;
                deliver.packet(&header, Payload::one(&packet[HEADER..]))?;
            }
        }
        Ok(packets)
    }
}
