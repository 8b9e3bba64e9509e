//! The writing end: streams that are made on a node, and those who write them.
//!
//! A write returns when its bytes are in memory, for which there is a credit; until then it waits. Small writes that wait for the connection become one chunk. A close waits until all is on
//! the reader's node. Streams send in turn, a chunk each.

use crate::message::{Refusal, ToReader, ToWriter};
use crate::{Nonsense, Trouble, checksum};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// What somebody who waited gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<W> {
    /// The stream is there, under this number.
    Made(W, u64),
    /// It is done; so many bytes were written.
    Done(W, u32),
    /// It is not.
    Failed(W, Trouble),
}

#[derive(Debug)]
struct Stream<W> {
    name: Vec<u8>,
    making: Option<W>,
    /// Bytes that are in memory or were sent.
    written: u64,
    taken: u64,
    credits: u32,
    /// Chunks to be sent, with the bytes before each.
    queue: VecDeque<(u64, Vec<u8>)>,
    /// Writes that wait for a credit.
    writes: VecDeque<(W, Vec<u8>)>,
    /// Those who wait until so many bytes are taken.
    closing: Vec<(W, u64)>,
    failed: Option<Trouble>,
    /// Somebody who had it open was killed.
    damaged: bool,
    released: bool,
}

/// All streams that are written on a node. `W` is who waits.
#[derive(Debug)]
pub struct Outgoing<W> {
    chunk: usize,
    streams: BTreeMap<u64, Stream<W>>,
    /// First words of streams.
    openings: VecDeque<u64>,
    next: u64,
    /// Who has sent last.
    last: u64,
}

impl<W> Outgoing<W> {
    /// Streams get numbers from `first` on.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self { chunk: 1, streams: BTreeMap::new(), openings: VecDeque::new(), next: first, last: 0 }
    }

    /// There is a connection, over which chunks of this length go at most, bytes.
    pub fn connected(&mut self, chunk: u32) {
        self.chunk = (chunk as usize).max(1);
    }

    /// Bytes of a chunk, at most.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The stream of a name that somebody here has open.
    #[must_use]
    pub fn named(&self, name: &[u8]) -> Option<u64> {
        self.streams.iter().find(|(_, stream)| stream.name == name && !stream.released).map(|(id, _)| *id)
    }

    /// True if somebody here has it open.
    #[must_use]
    pub fn is_there(&self, id: u64) -> bool {
        self.streams.get(&id).is_some_and(|stream| !stream.released)
    }

    /// Names and numbers of those that somebody here has open.
    pub fn list(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.streams
            .iter()
            .filter(|(_, stream)| !stream.released && stream.making.is_none())
            .map(|(id, stream)| (stream.name.as_slice(), *id))
    }

    /// True if something is still to be sent of what was closed.
    #[must_use]
    pub fn has_unfinished(&self) -> bool {
        self.streams.values().any(|stream| stream.released)
    }

    /// Who waits for memory, or for bytes to be taken.
    pub fn waiting(&self) -> impl Iterator<Item = &W> {
        self.streams.values().flat_map(|stream| stream.writes.iter().map(|(who, _)| who).chain(stream.closing.iter().map(|(who, _)| who)))
    }

    /// Bytes in memory.
    #[must_use]
    pub fn held(&self) -> u64 {
        let of = |stream: &Stream<W>| {
            stream.queue.iter().map(|(_, chunk)| chunk.len()).chain(stream.writes.iter().map(|(_, bytes)| bytes.len())).sum::<usize>()
                as u64
        };
        self.streams.values().map(of).sum()
    }

    /// Somebody makes a stream. `None`: he waits.
    pub fn make(&mut self, name: Vec<u8>, who: W) -> Option<Answer<W>> {
        if self.named(&name).is_some() {
            return Some(Answer::Failed(who, Trouble::Busy));
        }
        let id = self.next;
        self.next += 1;
        let stream = Stream {
            name,
            making: Some(who),
            written: 0,
            taken: 0,
            credits: 0,
            queue: VecDeque::new(),
            writes: VecDeque::new(),
            closing: Vec::new(),
            failed: None,
            damaged: false,
            released: false,
        };
        self.streams.insert(id, stream);
        self.openings.push_back(id);
        None
    }

    /// Somebody writes: at most [`Outgoing::chunk`] bytes. `None`: he waits.
    pub fn write(&mut self, id: u64, bytes: &[u8], who: W) -> Option<Answer<W>> {
        let limit = self.chunk;
        let Some(stream) = self.streams.get_mut(&id) else { return Some(Answer::Failed(who, Trouble::Gone)) };
        if let Some(trouble) = stream.failed {
            return Some(Answer::Failed(who, trouble));
        }
        let bytes = &bytes[..bytes.len().min(limit)];
        if stream.writes.is_empty() && stream.put(bytes, limit) {
            return Some(Answer::Done(who, bytes.len() as u32));
        }
        stream.writes.push_back((who, bytes.to_vec()));
        None
    }

    /// Somebody closes a descriptor, or wants to know that all is taken. `killed`: because a signal ended him. `None`: he waits.
    pub fn flush(&mut self, id: u64, killed: bool, who: W) -> Option<Answer<W>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Some(Answer::Failed(who, Trouble::Gone)) };
        if killed {
            stream.damaged = true;
            return Some(Answer::Done(who, 0));
        }
        let goal = stream.goal();
        match stream.failed {
            _ if stream.taken >= goal && stream.failed != Some(Trouble::Broken) => Some(Answer::Done(who, 0)),
            Some(trouble) => Some(Answer::Failed(who, trouble)),
            None => {
                stream.closing.push((who, goal));
                None
            }
        }
    }

    /// Nobody has it open any more.
    pub fn release(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.released = true;
            if stream.failed.is_some() {
                self.streams.remove(&id);
            }
        }
    }

    /// What is to be sent next: a message, and the bytes behind it.
    pub fn next_message(&mut self) -> Option<(ToReader, Vec<u8>)> {
        while let Some(id) = self.openings.pop_front() {
            if let Some(stream) = self.streams.get(&id) {
                return Some((ToReader::Open { stream: id, name: stream.name.clone() }, Vec::new()));
            }
        }
        let has_some = |(id, stream): (&u64, &Stream<W>)| (!stream.queue.is_empty() || stream.is_complete()).then_some(*id);
        let next = self.streams.range((Excluded(self.last), Unbounded)).find_map(has_some);
        let id = next.or_else(|| self.streams.range(..=self.last).find_map(has_some))?;
        self.last = id;
        let stream = self.streams.get_mut(&id)?;
        if let Some((offset, bytes)) = stream.queue.pop_front() {
            return Some((ToReader::Chunk { stream: id, offset, length: bytes.len() as u32, checksum: checksum(&bytes) }, bytes));
        }
        let (length, whole) = (stream.written, !stream.damaged);
        self.streams.remove(&id);
        Some((ToReader::End { stream: id, length, whole }, Vec::new()))
    }

    /// The other mount says something.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn heard(&mut self, message: ToWriter) -> Result<Vec<Answer<W>>, Nonsense> {
        let mut answers = Vec::new();
        match message {
            ToWriter::Opened { stream: id } => {
                if let Some(who) = self.streams.get_mut(&id).and_then(|stream| stream.making.take()) {
                    answers.push(Answer::Made(who, id));
                }
            }
            ToWriter::Refused { stream: id, why } => {
                if self.streams.get(&id).is_some_and(|stream| stream.making.is_none()) {
                    return Err(Nonsense("a stream is refused that was there"));
                }
                let trouble = match why {
                    Refusal::Exists => Trouble::Exists,
                    Refusal::TooMany => Trouble::TooMany,
                };
                if let Some(who) = self.streams.remove(&id).and_then(|stream| stream.making) {
                    answers.push(Answer::Failed(who, trouble));
                }
            }
            ToWriter::Credits { stream: id, more } => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.credits = stream.credits.checked_add(more).ok_or(Nonsense("more credits than there is memory"))?;
                    stream.put_waiting(self.chunk, &mut answers);
                }
            }
            ToWriter::Taken { stream: id, through } => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    if through > stream.written {
                        return Err(Nonsense("more bytes were taken than were sent"));
                    }
                    stream.taken = stream.taken.max(through);
                    stream.answer_closing(&mut answers);
                }
            }
            ToWriter::Closed { stream: id } => self.fail(id, Trouble::Closed, &mut answers),
            ToWriter::Alive => {}
        }
        Ok(answers)
    }

    /// The connection is gone: no stream ends well any more.
    pub fn lost(&mut self) -> Vec<Answer<W>> {
        let mut answers = Vec::new();
        self.openings.clear();
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            self.fail(id, Trouble::Broken, &mut answers);
        }
        answers
    }

    /// Those who wait and are named wait no more. What they wanted to write is not written.
    pub fn interrupt(&mut self, is_named: impl Fn(&W) -> bool) -> Vec<Answer<W>> {
        let mut answers = Vec::new();
        for stream in self.streams.values_mut() {
            let (out, rest): (VecDeque<_>, VecDeque<_>) = stream.writes.drain(..).partition(|(who, _)| is_named(who));
            stream.writes = rest;
            answers.extend(out.into_iter().map(|(who, _)| Answer::Failed(who, Trouble::Interrupted)));
            let (out, rest): (Vec<_>, Vec<_>) = stream.closing.drain(..).partition(|(who, _)| is_named(who));
            stream.closing = rest;
            answers.extend(out.into_iter().map(|(who, _)| Answer::Failed(who, Trouble::Interrupted)));
            // Others wait for what was dropped, too: it never comes.
            let goal = stream.goal();
            stream.closing.iter_mut().for_each(|(_, waits_for)| *waits_for = (*waits_for).min(goal));
            stream.answer_closing(&mut answers);
        }
        answers
    }

    fn fail(&mut self, id: u64, trouble: Trouble, answers: &mut Vec<Answer<W>>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.failed.get_or_insert(trouble);
        stream.queue.clear();
        // Who makes a stream has it open only once he is told so.
        let nobody = stream.released || stream.making.is_some();
        answers.extend(stream.making.take().map(|who| Answer::Failed(who, trouble)));
        answers.extend(stream.writes.drain(..).map(|(who, _)| Answer::Failed(who, trouble)));
        answers.extend(stream.closing.drain(..).map(|(who, _)| Answer::Failed(who, trouble)));
        if nobody {
            self.streams.remove(&id);
        }
    }
}

impl<W> Stream<W> {
    /// True if all of it is sent and nobody has it open.
    fn is_complete(&self) -> bool {
        self.released && self.failed.is_none() && self.making.is_none() && self.queue.is_empty() && self.writes.is_empty()
    }

    /// How much of it there is when all that waits is written.
    fn goal(&self) -> u64 {
        self.written + self.writes.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>()
    }

    /// Puts bytes into memory, if they have room in the last chunk or there is a credit for another one.
    fn put(&mut self, bytes: &[u8], limit: usize) -> bool {
        if bytes.is_empty() {
            return true;
        }
        match self.queue.back_mut() {
            Some((_, last)) if last.len() + bytes.len() <= limit => last.extend_from_slice(bytes),
            _ if self.credits == 0 => return false,
            _ => {
                self.credits -= 1;
                let mut chunk = Vec::with_capacity(limit);
                chunk.extend_from_slice(bytes);
                self.queue.push_back((self.written, chunk));
            }
        }
        self.written += bytes.len() as u64;
        true
    }

    fn put_waiting(&mut self, limit: usize, answers: &mut Vec<Answer<W>>) {
        while let Some((who, bytes)) = self.writes.pop_front() {
            if !self.put(&bytes, limit) {
                self.writes.push_front((who, bytes));
                return;
            }
            answers.push(Answer::Done(who, bytes.len() as u32));
        }
    }

    fn answer_closing(&mut self, answers: &mut Vec<Answer<W>>) {
        let taken = self.taken;
        let (out, rest): (Vec<_>, Vec<_>) = self.closing.drain(..).partition(|(_, goal)| *goal <= taken);
        self.closing = rest;
        answers.extend(out.into_iter().map(|(who, _)| Answer::Done(who, 0)));
    }
}
