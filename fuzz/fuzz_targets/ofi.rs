//! A peer of channels over a core provider: where it says that it is, and messages of any line, order, content and credits. What
//! is accepted as a contact is what was told. Of messages, no more wait than have credits, none counts after a lie, and what is
//! delivered is the stream that the accepted ones were cut from, packet by packet; credits in hand are never more than there are
//! buffers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_fabric::channel::ChannelError;
use mend_fabric::channel::ofi::assembly::Assembly;
use mend_fabric::channel::ofi::contact::Contact;
use mend_fabric::channel::ofi::port::lines::{Line, Lines};
use mend_fabric::channel::ofi::{BUFFER, CREDITS, PREFIX, Prefix};
use mend_fabric::engine::buffers::Payload;
use mend_fabric::engine::packet::{HEADER, Header, Kind, MAX_STREAMED};
use mend_fuzz::ofi::{Act, Peer, Told};
use std::collections::{HashMap, VecDeque};

/// Numbers of lines: two on which the peer sends, two on which it is sent to, and none.
const RECEIVING: [u64; 2] = [11, 12];
const SENDING: [u64; 2] = [21, 22];

fn number(line: u8) -> u64 {
    [RECEIVING[0], SENDING[0], RECEIVING[1], SENDING[1], 0, 99][usize::from(line) % 6]
}

/// The peer's end of a line on which it sends, and what this end made of it.
#[derive(Default)]
struct Stream {
    unsent: Vec<u8>,
    sequence: u32,
    waiting: VecDeque<(u32, Vec<u8>)>,
    read: Vec<u8>,
    delivered: Vec<u8>,
    assembly: Assembly,
}

impl Stream {
    fn digest(&mut self, content: &[u8]) -> Result<(), ChannelError> {
        self.read.extend(content);
        let delivered = &mut self.delivered;
        let mut deliver = |header: &Header, payload: Payload| -> Result<(), ChannelError> {
            delivered.extend(header.as_bytes());
            delivered.extend(payload.to_vec());
            Ok(())
        };
        let digested = self.assembly.digest(content, &mut deliver);
        assert!(self.read.starts_with(&self.delivered), "something else than was sent");
        let rest = &self.read[self.delivered.len()..];
        let next = rest.first_chunk::<HEADER>().map(|bytes| Header::from_bytes(bytes).payload as usize);
        match &digested {
            Ok(_) => assert!(next.is_none_or(|length| length <= MAX_STREAMED && rest.len() < HEADER + length), "a packet is kept back"),
            Err(_) => assert!(next.is_some_and(|length| length > MAX_STREAMED), "a packet is refused"),
        }
        digested.map(drop)
    }
}

fn deceived(lines: &Lines, line: u64) -> bool {
    matches!(lines.fault(line), Some(ChannelError::Protocol(_)))
}

fn contact(told: &Told) {
    let wire = told.wire();
    let Ok(contact) = Contact::decode(&wire) else { return };
    let again = contact.encode().expect("what was told can be told");
    assert_eq!(Contact::decode(&again).as_ref().ok(), Some(&contact));
    assert!(wire.starts_with(contact.provider.as_bytes()) && contact.line == told.line && contact.format == told.format);
    assert_eq!((contact.address.len(), &contact.address[..]), (told.length as usize, &wire[40..40 + contact.address.len()]));
}

fuzz_target!(|peer: Peer| {
    contact(&peer.told);
    let (mut lines, mut streams) = (Lines::default(), HashMap::new());
    let open = |lines: &mut Lines, streams: &mut HashMap<u64, Stream>, line: u64| {
        lines.insert(line, Line::new(SENDING.contains(&line)));
        streams.insert(line, Stream::default());
    };
    for line in RECEIVING.into_iter().chain(SENDING) {
        open(&mut lines, &mut streams, line);
    }
    let mut buffers = 0;
    for act in peer.acts {
        match act {
            Act::Packet { line, kind, tag, length, lie } => {
                let Some(stream) = streams.get_mut(&number(line)) else { continue };
                let mut header = Header::new(if kind % 2 == 0 { Kind::Eager } else { Kind::Data });
                (header.payload, header.tag) = (lie.unwrap_or(length.into()), tag.into());
                stream.unsent.extend(header.as_bytes());
                stream.unsent.resize(stream.unsent.len() + usize::from(length), tag);
            }
            Act::Junk { line, bytes } => {
                if let Some(stream) = streams.get_mut(&number(line)) {
                    stream.unsent.extend(bytes);
                }
            }
            Act::Message { line, sequence, credits, back, length } => {
                let line = number(line);
                let mut none = Stream::default();
                let stream = streams.get_mut(&line).unwrap_or(&mut none);
                let length = usize::from(length).min(BUFFER - PREFIX).min(stream.unsent.len());
                let content: Vec<u8> = stream.unsent.drain(..length).collect();
                let told = Prefix { line, sequence: sequence.unwrap_or(stream.sequence), credits, back: number(back) };
                let mut wire = [0; BUFFER];
                told.encode(&mut wire);
                let prefix = Prefix::decode(&wire);
                assert_eq!(prefix, told);
                buffers += 1;
                let before = deceived(&lines, line);
                let kept = lines.arrived(prefix, buffers, PREFIX + length);
                assert!(!kept || !before && prefix.sequence == stream.sequence, "a message that must not count");
                stream.sequence = stream.sequence.wrapping_add(u32::from(!before && prefix.sequence == stream.sequence));
                if kept {
                    stream.waiting.push_back((buffers, content));
                    assert!(RECEIVING.contains(&line) && stream.waiting.len() <= CREDITS as usize, "more than has credits");
                }
            }
            Act::Read { line } => {
                let line = number(line);
                let mail = lines.take_mail(line);
                let Some(stream) = streams.get_mut(&line) else { continue };
                let waiting = stream.waiting.pop_front();
                assert_eq!(mail, waiting.as_ref().map(|(buffer, content)| (*buffer, PREFIX + content.len())));
                let Some((_, content)) = waiting else { continue };
                let owed = lines.owed(line);
                lines.done(line);
                assert_eq!(lines.owed(line), owed + 1);
                if stream.digest(&content).is_err() {
                    streams.remove(&line);
                    lines.remove(line);
                }
            }
            Act::Repay { line, credits } => {
                let owed = lines.owed(number(line));
                lines.repaid(number(line), owed.min(credits.into()));
            }
            Act::Spend { line, messages } => {
                let line = number(line);
                let spent = (0..messages).take_while(|_| lines.take_credit(line)).count();
                assert!(spent <= CREDITS as usize && (spent == 0 || SENDING.contains(&line)), "more credits than buffers");
                assert!(spent == usize::from(messages) || !lines.has_credit(line));
            }
            Act::Fail { line } => lines.failed(number(line), ChannelError::Provider("a send failed".into())),
            Act::Close { line } => {
                let unread = lines.remove(number(line)).map_or(0, |line| line.unread().count());
                assert_eq!(unread, streams.remove(&number(line)).map_or(0, |stream| stream.waiting.len()), "a buffer is lost");
            }
            Act::Open { line } => {
                let line = number(line);
                if lines.get(line).is_none() && (RECEIVING.contains(&line) || SENDING.contains(&line)) {
                    open(&mut lines, &mut streams, line);
                }
            }
        }
    }
});
