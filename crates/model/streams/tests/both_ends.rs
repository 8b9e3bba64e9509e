//! Both ends of streams, joined by a connection that holds messages up as it likes.

use mend_streams::{Answer, Content, Effect, Incoming, Nonsense, Outgoing, Refusal, ToReader, ToWriter, Trouble, checksum};
use proptest::prelude::*;
use std::collections::VecDeque;

const CHUNK: u32 = 64;
/// Memory of 32 chunks, so eight streams.
const MEMORY: u64 = 32 * CHUNK as u64;
const FIRST: u64 = 2;

/// The byte at a place of a stream.
fn byte(stream: usize, at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761).wrapping_add(stream as u64 * 7919) >> 7) as u8
}

/// Who waits: the stream by its place in the test.
type Who = usize;

#[derive(Debug, Default)]
struct Stream {
    id: Option<u64>,
    seen: Option<u64>,
    to_write: u64,
    written: u64,
    asked: usize,
    closing: bool,
    closed: bool,
    read: u64,
    reading: bool,
    ended: bool,
}

struct Both {
    out: Outgoing<Who>,
    inc: Incoming<Who>,
    there: VecDeque<(ToReader, Vec<u8>)>,
    back: VecDeque<ToWriter>,
    streams: Vec<Stream>,
}

impl Both {
    fn new(lengths: &[u64]) -> Self {
        let mut out = Outgoing::new(FIRST);
        out.connected(CHUNK);
        let mut both =
            Self { out, inc: Incoming::new(MEMORY, CHUNK, FIRST), there: VecDeque::new(), back: VecDeque::new(), streams: Vec::new() };
        for (place, length) in lengths.iter().enumerate() {
            both.streams.push(Stream { to_write: *length, ..Stream::default() });
            let answer = both.out.make(name(place), place);
            both.answered(answer);
        }
        both
    }

    fn answered(&mut self, answers: impl IntoIterator<Item = Answer<Who>>) {
        for answer in answers {
            match answer {
                Answer::Made(place, id) => self.streams[place].id = Some(id),
                Answer::Done(place, length) => {
                    let stream = &mut self.streams[place];
                    stream.written += u64::from(length);
                    stream.asked = 0;
                    if std::mem::take(&mut stream.closing) {
                        stream.closed = true;
                        let id = stream.id.unwrap();
                        self.out.release(id);
                    }
                }
                Answer::Failed(place, trouble) => panic!("stream {place}: {trouble:?}"),
            }
        }
    }

    fn carried_out(&mut self, effects: Vec<Effect<Who>>) {
        for effect in effects {
            match effect {
                Effect::Send(_, message) => self.back.push_back(message),
                Effect::Answer(place, content) => self.got(place, &content.unwrap()),
            }
        }
        assert!(self.inc.waiting() + self.out.held() <= MEMORY, "more memory is held than there is");
    }

    fn got(&mut self, place: Who, content: &Content) {
        let stream = &mut self.streams[place];
        stream.reading = false;
        stream.ended = content.bytes().is_empty();
        for found in content.bytes() {
            assert_eq!(*found, byte(place, stream.read));
            stream.read += 1;
        }
    }

    fn write(&mut self, place: Who, length: usize) {
        let stream = &mut self.streams[place];
        let Some(id) = stream.id.filter(|_| stream.asked == 0 && !stream.closing && !stream.closed) else { return };
        let length = (length as u64).min(stream.to_write - stream.written);
        let answer = if length == 0 {
            stream.closing = true;
            self.out.flush(id, false, place)
        } else {
            stream.asked = length as usize;
            let bytes: Vec<u8> = (stream.written..stream.written + length).map(|at| byte(place, at)).collect();
            self.out.write(id, &bytes, place)
        };
        self.answered(answer);
        assert!(self.out.held() <= MEMORY);
    }

    fn read(&mut self, place: Who, size: u32) {
        let Some(id) = self.streams[place].seen.or_else(|| self.inc.named(&name(place))) else { return };
        if self.streams[place].seen.is_none() {
            self.inc.open_for_reading(id).unwrap();
            self.streams[place].seen = Some(id);
        }
        if self.streams[place].reading || self.streams[place].ended {
            return;
        }
        self.streams[place].reading = true;
        let effects = self.inc.read(id, size, place);
        self.carried_out(effects);
    }

    fn send(&mut self) {
        if let Some(message) = self.out.next_message() {
            self.there.push_back(message);
        }
    }

    fn arrive(&mut self) {
        let Some((message, bytes)) = self.there.pop_front() else { return };
        let effects = match message {
            ToReader::Open { stream, name } => self.inc.open(1, stream, name),
            ToReader::Chunk { stream, offset, checksum, .. } => self.inc.chunk(1, stream, offset, checksum, bytes),
            ToReader::End { stream, length, whole } => self.inc.end(1, stream, length, whole),
            ToReader::Alive => Ok(Vec::new()),
        };
        self.carried_out(effects.unwrap());
    }

    fn return_word(&mut self) {
        if let Some(message) = self.back.pop_front() {
            let answers = self.out.heard(message).unwrap();
            self.answered(answers);
        }
    }
}

fn name(place: usize) -> Vec<u8> {
    format!("stream {place}").into_bytes()
}

proptest! {
    #[test]
    fn all_bytes_come_in_order_and_memory_is_bounded(
        lengths in prop::collection::vec(0..4000_u64, 1..=8),
        steps in prop::collection::vec((0..5_u8, any::<prop::sample::Index>(), 1..=CHUNK), 0..1500),
    ) {
        let mut both = Both::new(&lengths);
        for (what, place, size) in steps {
            let place = place.index(lengths.len());
            match what {
                0 => both.write(place, size as usize),
                1 => both.read(place, size),
                2 => both.send(),
                3 => both.arrive(),
                _ => both.return_word(),
            }
        }
        // From here on all goes on, but readers come one after the other: the later ones' streams stand still, and keep nobody from going on.
        for reader in 0..lengths.len() {
            for _ in 0..20_000 {
                for place in 0..lengths.len() {
                    both.write(place, CHUNK as usize);
                }
                both.read(reader, CHUNK);
                both.send();
                both.arrive();
                both.return_word();
                if both.streams[reader].ended {
                    break;
                }
            }
            prop_assert!(both.streams[reader].ended, "stream {} does not come to its end: {:?}", reader, both.streams[reader]);
            prop_assert_eq!(both.streams[reader].read, lengths[reader]);
            let effects = both.inc.close(both.streams[reader].seen.unwrap());
            both.carried_out(effects);
        }
        prop_assert_eq!(both.inc.list().count(), 0);
        prop_assert!(both.streams.iter().all(|stream| stream.closed));
    }

    #[test]
    fn whatever_a_writing_mount_says_is_nonsense_or_bounded(words in prop::collection::vec((0..5_u8, 0..4_u64, 0..200_u64, any::<bool>(), 0..80_usize), 0..300)) {
        let mut inc: Incoming<u64> = Incoming::new(MEMORY, CHUNK, FIRST);
        for (what, stream, offset, flag, length) in words {
            let bytes = vec![7; length];
            let sum = if flag { checksum(&bytes) } else { 1 };
            let said = match what {
                0 => inc.open(1, stream, name(offset as usize % 12)),
                1 => inc.chunk(1, stream, offset, sum, bytes),
                2 => inc.end(1, stream, offset, flag),
                3 => Ok(inc.read(FIRST + stream, 10, offset)),
                _ => Ok(inc.close(FIRST + stream)),
            };
            if said.is_err() {
                inc.lost(1);
            }
            prop_assert!(inc.waiting() <= MEMORY);
            prop_assert!(inc.list().count() <= 8);
        }
    }
}

fn opened(names: &[&str]) -> Incoming<u32> {
    let mut inc = Incoming::new(MEMORY, CHUNK, FIRST);
    for (number, name) in names.iter().enumerate() {
        inc.open(1, number as u64, name.as_bytes().to_vec()).unwrap();
    }
    inc
}

fn chunk(inc: &mut Incoming<u32>, number: u64, offset: u64, bytes: &[u8]) -> Result<Vec<Effect<u32>>, Nonsense> {
    inc.chunk(1, number, offset, checksum(bytes), bytes.to_vec())
}

fn answer(effects: Vec<Effect<u32>>) -> Option<Result<Vec<u8>, Trouble>> {
    effects.into_iter().find_map(|effect| match effect {
        Effect::Answer(_, content) => Some(content.map(|content| content.bytes().to_vec())),
        Effect::Send(..) => None,
    })
}

#[test]
fn a_stream_whose_writer_was_killed_never_ends_well() {
    let mut inc = opened(&["a"]);
    inc.open_for_reading(FIRST).unwrap();
    chunk(&mut inc, 0, 0, b"some").unwrap();
    inc.end(1, 0, 4, false).unwrap();
    assert_eq!(answer(inc.read(FIRST, 100, 0)), Some(Ok(b"some".to_vec())));
    assert_eq!(answer(inc.read(FIRST, 100, 0)), Some(Err(Trouble::Broken)));
    inc.close(FIRST);
    assert!(!inc.is_there(FIRST));

    let mut out: Outgoing<u32> = Outgoing::new(FIRST);
    out.connected(CHUNK);
    assert_eq!(out.make(b"a".to_vec(), 1), None);
    assert!(matches!(out.next_message(), Some((ToReader::Open { stream: FIRST, .. }, _))));
    assert_eq!(out.heard(ToWriter::Opened { stream: FIRST }), Ok(vec![Answer::Made(1, FIRST)]));
    assert_eq!(out.flush(FIRST, true, 2), Some(Answer::Done(2, 0)));
    out.release(FIRST);
    assert_eq!(out.next_message(), Some((ToReader::End { stream: FIRST, length: 0, whole: false }, Vec::new())));
}

#[test]
fn what_a_lost_node_had_not_ended_breaks_and_what_it_had_stays() {
    let mut inc = opened(&["ended", "open", "not yet open"]);
    chunk(&mut inc, 0, 0, b"all of it").unwrap();
    inc.end(1, 0, 9, true).unwrap();
    inc.open_for_reading(FIRST + 1).unwrap();
    chunk(&mut inc, 1, 0, b"part").unwrap();
    chunk(&mut inc, 2, 0, b"part").unwrap();
    assert_eq!(inc.lost(1), vec![]);
    assert_eq!(inc.waiting(), 13);
    inc.open_for_reading(FIRST).unwrap();
    assert_eq!(answer(inc.read(FIRST, 100, 0)), Some(Ok(b"all of it".to_vec())));
    assert_eq!(answer(inc.read(FIRST, 100, 0)), Some(Ok(Vec::new())));
    assert_eq!(answer(inc.read(FIRST + 1, 100, 0)), Some(Ok(b"part".to_vec())));
    assert_eq!(answer(inc.read(FIRST + 1, 100, 0)), Some(Err(Trouble::Broken)));
    inc.open_for_reading(FIRST + 2).unwrap();
    assert_eq!(answer(inc.read(FIRST + 2, 100, 0)), Some(Err(Trouble::Broken)));
    // One that broke before anybody came for it gives way to another of its name.
    let mut inc = opened(&["a"]);
    inc.lost(1);
    assert_eq!(inc.named(b"a"), Some(FIRST));
    assert!(inc.open(2, 0, b"a".to_vec()).unwrap().contains(&Effect::Send(2, ToWriter::Opened { stream: 0 })));
}

#[test]
fn who_closes_early_ends_it_for_its_writer_unless_he_has_read_nothing() {
    let mut inc = opened(&["a"]);
    chunk(&mut inc, 0, 0, b"bytes").unwrap();
    inc.open_for_reading(FIRST).unwrap();
    assert_eq!(inc.open_for_reading(FIRST), Err(Trouble::Busy));
    assert_eq!(inc.close(FIRST), vec![]);
    inc.open_for_reading(FIRST).unwrap();
    assert_eq!(answer(inc.read(FIRST, 2, 0)), Some(Ok(b"by".to_vec())));
    assert!(inc.close(FIRST).contains(&Effect::Send(1, ToWriter::Closed { stream: 0 })));
    // What was under way then is no nonsense.
    assert_eq!(chunk(&mut inc, 0, 5, b"more"), Ok(vec![]));
    assert_eq!(inc.discard(b"a"), Err(Trouble::Gone));

    let mut out: Outgoing<u32> = Outgoing::new(FIRST);
    out.connected(CHUNK);
    out.make(b"a".to_vec(), 1);
    out.heard(ToWriter::Opened { stream: FIRST }).unwrap();
    assert_eq!(out.write(FIRST, b"waits", 2), None);
    assert_eq!(out.flush(FIRST, false, 3), None);
    let answers = out.heard(ToWriter::Closed { stream: FIRST }).unwrap();
    assert_eq!(answers, [Answer::Failed(2, Trouble::Closed), Answer::Failed(3, Trouble::Closed)]);
    assert_eq!(out.write(FIRST, b"x", 4), Some(Answer::Failed(4, Trouble::Closed)));
}

#[test]
fn damaged_bytes_break_the_stream_and_chunks_without_credit_the_connection() {
    let mut inc = opened(&["a", "b"]);
    inc.open_for_reading(FIRST).unwrap();
    assert!(inc.chunk(1, 0, 0, 1, b"damaged".to_vec()).unwrap().contains(&Effect::Send(1, ToWriter::Closed { stream: 0 })));
    assert_eq!(answer(inc.read(FIRST, 100, 0)), Some(Err(Trouble::Broken)));
    assert!(chunk(&mut inc, 1, 9, b"out of turn").is_err());
    let sent = (0..100).take_while(|at| chunk(&mut inc, 1, *at, b"x").is_ok()).count();
    assert!((1..24).contains(&sent), "{sent} chunks were taken");
}

#[test]
fn there_are_only_so_many_streams_and_each_name_once() {
    let names: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    let mut inc = opened(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(inc.open(2, 0, b"3".to_vec()), Ok(vec![Effect::Send(2, ToWriter::Refused { stream: 0, why: Refusal::Exists })]));
    assert_eq!(inc.open(2, 0, b"8".to_vec()), Ok(vec![Effect::Send(2, ToWriter::Refused { stream: 0, why: Refusal::TooMany })]));
    inc.discard(b"3").unwrap();
    assert!(inc.open(2, 0, b"8".to_vec()).unwrap().contains(&Effect::Send(2, ToWriter::Opened { stream: 0 })));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        assert!(inc.open(2, 1, bad.to_vec()).is_err());
    }
}

#[test]
fn who_waits_can_be_told_to_stop() {
    let mut inc = opened(&["a"]);
    inc.open_for_reading(FIRST).unwrap();
    assert_eq!(inc.read(FIRST, 10, 5), vec![]);
    assert_eq!(inc.interrupt(|who| *who == 5), vec![Effect::Answer(5, Err(Trouble::Interrupted))]);
    let mut out: Outgoing<u32> = Outgoing::new(FIRST);
    out.connected(CHUNK);
    out.make(b"a".to_vec(), 1);
    out.heard(ToWriter::Opened { stream: FIRST }).unwrap();
    assert_eq!(out.write(FIRST, b"waits", 2), None);
    assert_eq!(out.interrupt(|who| *who == 2), vec![Answer::Failed(2, Trouble::Interrupted)]);
    out.heard(ToWriter::Credits { stream: FIRST, more: 1 }).unwrap();
    assert!(out.next_message().is_some() && out.next_message().is_none(), "what was not written is sent");
}

/// Two processes write to one file; one of them closes it while the other one's write waits, and is killed.
#[test]
fn who_closes_does_not_wait_for_what_another_one_no_longer_writes() {
    let mut out: Outgoing<u32> = Outgoing::new(FIRST);
    out.connected(CHUNK);
    out.make(b"a".to_vec(), 1);
    out.heard(ToWriter::Opened { stream: FIRST }).unwrap();
    out.heard(ToWriter::Credits { stream: FIRST, more: 1 }).unwrap();
    assert_eq!(out.write(FIRST, b"first", 2), Some(Answer::Done(2, 5)));
    // All of it is sent: what comes next needs a credit.
    while out.next_message().is_some() {}
    assert_eq!(out.write(FIRST, b"waits", 3), None);
    assert_eq!(out.flush(FIRST, false, 4), None);
    assert_eq!(out.interrupt(|who| *who == 3), vec![Answer::Failed(3, Trouble::Interrupted)]);
    assert_eq!(out.heard(ToWriter::Taken { stream: FIRST, through: 5 }), Ok(vec![Answer::Done(4, 0)]));
    assert_eq!(out.write(FIRST, b"waits", 3), None);
    assert_eq!(out.flush(FIRST, false, 4), None);
    assert_eq!(out.interrupt(|who| *who == 3), vec![Answer::Failed(3, Trouble::Interrupted), Answer::Done(4, 0)]);
}
