//! What comes over a TCP channel: packets, and bytes that are none, in pieces of any size. What is delivered is what a
//! reading of the whole stream would give, however it was cut.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mend_fabric::channel::tcp::{MIN_LONE_BYTES, TcpIncoming};
use mend_fabric::channel::{ChannelError, Incoming};
use mend_fabric::engine::buffers::Payload;
use mend_fabric::engine::packet::{HEADER, Header, Kind, MAX_PAYLOAD, MAX_STREAMED};
use std::io::Write;
use std::os::unix::net::UnixStream;

#[derive(Arbitrary, Debug)]
struct Piece {
    packet: Option<(u16, u8)>,
    lie: Option<u32>,
    junk: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
struct Input {
    pieces: Vec<Piece>,
    cuts: Vec<u16>,
    budget: u16,
}

/// Packets that may be delivered in parts.
fn in_parts(kind: u8) -> bool {
    kind == Kind::Data as u8 || kind == Kind::Write as u8
}

/// What is delivered, in order: kind, tag and length; of what may come in parts, neighbours of one tag together.
#[derive(Debug, Default, PartialEq)]
struct Delivered(Vec<(u8, u64, usize)>);

impl Delivered {
    fn add(&mut self, header: &Header, length: usize) {
        match self.0.last_mut() {
            Some((kind, tag, total)) if in_parts(*kind) && (*kind, *tag) == (header.kind, header.tag) => *total += length,
            _ => self.0.push((header.kind, header.tag, length)),
        }
    }
}

/// What the stream holds, and whether it ends well.
fn packets(mut bytes: &[u8]) -> (Delivered, bool) {
    let mut found = Delivered::default();
    while let Some(header) = bytes.first_chunk::<HEADER>() {
        let header = Header::from_bytes(header);
        let (length, padding) = (header.payload as usize, usize::from(header.padding));
        let limit = if in_parts(header.kind) || header.kind == Kind::Eager as u8 { MAX_STREAMED } else { MAX_PAYLOAD };
        if length > limit || padding > 0 && HEADER + length + padding > MIN_LONE_BYTES {
            return (found, false);
        }
        bytes = &bytes[HEADER..];
        if bytes.len() < length + padding {
            if in_parts(header.kind) && padding == 0 && !bytes.is_empty() {
                found.add(&header, bytes.len());
            }
            return (found, false);
        }
        found.add(&header, length);
        bytes = &bytes[length + padding..];
    }
    (found, bytes.is_empty())
}

fuzz_target!(|input: Input| {
    let mut bytes = Vec::new();
    for piece in &input.pieces {
        if let Some((length, tag)) = piece.packet {
            let mut header = Header::new(Kind::Eager);
            (header.payload, header.tag) = (piece.lie.unwrap_or(length.into()), tag.into());
            bytes.extend(header.as_bytes());
            bytes.resize(bytes.len() + usize::from(length), tag);
        }
        bytes.extend(&piece.junk);
    }
    let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket");
    let mut incoming = TcpIncoming::new(theirs.into());
    let (mut got, mut at, mut cuts) = (Delivered::default(), 0, input.cuts.iter().cycle());
    let mut ours = Some(&mut ours);
    let ended = loop {
        if let Some(socket) = &mut ours
            && at < bytes.len()
        {
            let cut = cuts.next().map_or(4096, |cut| usize::from(*cut) + 1);
            at += socket.write(&bytes[at..(at + cut).min(bytes.len())]).unwrap_or(0);
        } else if ours.take().is_some() {
            // Half closed, as by a peer that has ended: what it sent is still to be read.
            incoming_end(&incoming);
        }
        let delivered = incoming.receive(usize::from(input.budget) + 1, &mut |header: &Header, payload: Payload| {
            assert_eq!(header.payload as usize, payload.len());
            got.add(header, payload.len());
            Ok(())
        });
        match delivered {
            Ok(_) => {}
            Err(ChannelError::Closed) => break true,
            Err(_) => break false,
        }
    };
    let (expected, whole) = packets(&bytes);
    assert_eq!((got, ended), (expected, whole));
});

/// Ends the stream towards the reader.
fn incoming_end(incoming: &TcpIncoming) {
    rustix::net::shutdown(incoming.socket(), rustix::net::Shutdown::Read).expect("a socket");
}
