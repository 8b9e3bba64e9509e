//! The reading end: streams that come from other nodes, and those who read them.
//!
//! A stream is there from its first word until it was read to its end and closed. Who closes it earlier, having read something, ends it for its writer. One that broke before anybody opened it
//! keeps its name, so that whoever comes for it learns that, but no memory; it gives way to others.

use crate::message::{Refusal, ToWriter, is_name};
use crate::shares::Shares;
use crate::{Nonsense, Trouble, checksum};
use std::collections::{BTreeMap, VecDeque};

/// Bytes for a reader; none: the stream has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    chunk: Vec<u8>,
    from: usize,
}

impl Content {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.chunk[self.from..]
    }
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect<R> {
    /// Somebody who waited gets an answer.
    Answer(R, Result<Content, Trouble>),
    /// A connection is to carry this.
    Send(u64, ToWriter),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

#[derive(Debug)]
struct Stream<R> {
    link: u64,
    /// What its writer calls it.
    number: u64,
    name: Vec<u8>,
    arrived: u64,
    /// Chunks that may still come.
    credits: u32,
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that were read.
    from: usize,
    end: Option<End>,
    is_open: bool,
    begun: bool,
    /// Who waits, for how many bytes at most.
    reads: VecDeque<(u32, R)>,
}

impl<R> Stream<R> {
    fn is_forgotten(&self) -> bool {
        self.end == Some(End::Broken) && !self.is_open
    }
}

/// All streams that come to a node. `R` is who waits for a read.
#[derive(Debug)]
pub struct Incoming<R> {
    chunk: u32,
    shares: Shares,
    streams: BTreeMap<u64, Stream<R>>,
    numbers: BTreeMap<(u64, u64), u64>,
    names: BTreeMap<Vec<u8>, u64>,
    next: u64,
}

impl<R> Incoming<R> {
    /// Memory of `memory` bytes, in chunks of at most `chunk` bytes. Streams get numbers from `first` on.
    #[must_use]
    pub fn new(memory: u64, chunk: u32, first: u64) -> Self {
        let chunks = u32::try_from(memory / u64::from(chunk)).unwrap_or(u32::MAX);
        let shares = Shares::new(chunks);
        Self { chunk, shares, streams: BTreeMap::new(), numbers: BTreeMap::new(), names: BTreeMap::new(), next: first }
    }

    /// The stream of a name.
    #[must_use]
    pub fn named(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// True if there is such a stream.
    #[must_use]
    pub fn is_there(&self, stream: u64) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Names and numbers, in order.
    pub fn list(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.names.iter().map(|(name, stream)| (name.as_slice(), *stream))
    }

    /// Bytes that wait to be read, of all streams.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.streams.values().flat_map(|stream| &stream.chunks).map(|chunk| chunk.len() as u64).sum()
    }

    /// How many streams of a connection have not ended.
    #[must_use]
    pub fn unfinished(&self, link: u64) -> usize {
        self.streams.values().filter(|stream| stream.link == link && stream.end.is_none()).count()
    }

    /// Who waits for bytes.
    pub fn readers(&self) -> impl Iterator<Item = &R> {
        self.streams.values().flat_map(|stream| stream.reads.iter().map(|(_, who)| who))
    }

    /// A writer begins a stream.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn open(&mut self, link: u64, number: u64, name: Vec<u8>) -> Result<Vec<Effect<R>>, Nonsense> {
        if !is_name(&name) {
            return Err(Nonsense("a stream with a name that no file can have"));
        }
        if self.numbers.contains_key(&(link, number)) {
            return Err(Nonsense("a stream with the number of another one"));
        }
        let refused = |why| Ok(vec![Effect::Send(link, ToWriter::Refused { stream: number, why })]);
        if let Some(id) = self.named(&name) {
            if !self.streams.get(&id).is_some_and(Stream::is_forgotten) {
                return refused(Refusal::Exists);
            }
            self.remove(id);
        }
        let id = self.next;
        if !self.shares.enter(id) {
            let forgotten = self.streams.iter().find(|(_, stream)| stream.is_forgotten()).map(|(id, _)| *id);
            let Some(forgotten) = forgotten else { return refused(Refusal::TooMany) };
            self.remove(forgotten);
            self.shares.enter(id);
        }
        self.next += 1;
        self.names.insert(name.clone(), id);
        self.numbers.insert((link, number), id);
        let stream = Stream {
            link,
            number,
            name,
            arrived: 0,
            credits: 0,
            chunks: VecDeque::new(),
            from: 0,
            end: None,
            is_open: false,
            begun: false,
            reads: VecDeque::new(),
        };
        self.streams.insert(id, stream);
        let mut effects = vec![Effect::Send(link, ToWriter::Opened { stream: number })];
        self.give_out(&mut effects);
        Ok(effects)
    }

    /// A chunk has come.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn chunk(&mut self, link: u64, number: u64, offset: u64, sum: u64, bytes: Vec<u8>) -> Result<Vec<Effect<R>>, Nonsense> {
        if bytes.is_empty() || bytes.len() > self.chunk as usize {
            return Err(Nonsense("a chunk of a length that none has"));
        }
        // What was under way when its reader closed it.
        let Some((id, stream)) = self.find(link, number) else { return Ok(Vec::new()) };
        if stream.end.is_some() {
            return if stream.end == Some(End::Whole) { Err(Nonsense("a chunk after the stream's end")) } else { Ok(Vec::new()) };
        }
        if stream.credits == 0 {
            return Err(Nonsense("a chunk for which there was no credit"));
        }
        if offset != stream.arrived {
            return Err(Nonsense("a chunk that comes out of turn"));
        }
        let mut effects = Vec::new();
        if checksum(&bytes) != sum {
            effects.push(Effect::Send(link, ToWriter::Closed { stream: number }));
            self.finish(id, End::Broken, &mut effects);
            return Ok(effects);
        }
        stream.credits -= 1;
        stream.arrived += bytes.len() as u64;
        effects.push(Effect::Send(link, ToWriter::Taken { stream: number, through: stream.arrived }));
        stream.chunks.push_back(bytes);
        self.serve(id, &mut effects);
        Ok(effects)
    }

    /// A stream has ended; `whole`: by its writer's will.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn end(&mut self, link: u64, number: u64, length: u64, whole: bool) -> Result<Vec<Effect<R>>, Nonsense> {
        let Some((id, stream)) = self.find(link, number) else { return Ok(Vec::new()) };
        if stream.end == Some(End::Whole) || (stream.end.is_none() && whole && length != stream.arrived) {
            return Err(Nonsense("a stream that ends where it does not"));
        }
        let mut effects = Vec::new();
        self.finish(id, if whole { End::Whole } else { End::Broken }, &mut effects);
        // Its writer may use the number no more, and has nothing more to hear.
        self.numbers.remove(&(link, number));
        Ok(effects)
    }

    /// A connection is gone, and with it what had not ended.
    pub fn lost(&mut self, link: u64) -> Vec<Effect<R>> {
        let mut effects = Vec::new();
        let of_link: Vec<u64> = self.streams.iter().filter(|(_, stream)| stream.link == link).map(|(id, _)| *id).collect();
        for id in of_link {
            self.finish(id, End::Broken, &mut effects);
        }
        self.numbers.retain(|(of, _), _| *of != link);
        // Nobody is there to hear it.
        effects.retain(|effect| !matches!(effect, Effect::Send(to, _) if *to == link));
        effects
    }

    /// Somebody opens a stream to read it.
    ///
    /// # Errors
    /// [`Trouble::Gone`], [`Trouble::Busy`].
    pub fn open_for_reading(&mut self, id: u64) -> Result<(), Trouble> {
        let stream = self.streams.get_mut(&id).ok_or(Trouble::Gone)?;
        if std::mem::replace(&mut stream.is_open, true) {
            return Err(Trouble::Busy);
        }
        Ok(())
    }

    /// Somebody who has it open wants its next bytes, `size` at most.
    pub fn read(&mut self, id: u64, size: u32, who: R) -> Vec<Effect<R>> {
        let Some(stream) = self.streams.get_mut(&id) else { return vec![Effect::Answer(who, Err(Trouble::Gone))] };
        stream.reads.push_back((size, who));
        let mut effects = Vec::new();
        self.serve(id, &mut effects);
        effects
    }

    /// Who had it open has closed it.
    pub fn close(&mut self, id: u64) -> Vec<Effect<R>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Vec::new() };
        stream.is_open = false;
        let mut effects: Vec<Effect<R>> = stream.reads.drain(..).map(|(_, who)| Effect::Answer(who, Err(Trouble::Interrupted))).collect();
        let read_out = stream.end == Some(End::Whole) && stream.chunks.is_empty();
        if stream.begun || read_out || stream.end == Some(End::Broken) {
            self.drop_stream(id, &mut effects);
        }
        effects
    }

    /// A stream is removed by its name; nobody must have it open.
    ///
    /// # Errors
    /// [`Trouble::Gone`], [`Trouble::Busy`].
    pub fn discard(&mut self, name: &[u8]) -> Result<Vec<Effect<R>>, Trouble> {
        let id = self.named(name).ok_or(Trouble::Gone)?;
        if self.streams.get(&id).is_some_and(|stream| stream.is_open) {
            return Err(Trouble::Busy);
        }
        let mut effects = Vec::new();
        self.drop_stream(id, &mut effects);
        Ok(effects)
    }

    /// Those who wait and are named wait no more.
    pub fn interrupt(&mut self, is_named: impl Fn(&R) -> bool) -> Vec<Effect<R>> {
        let mut effects = Vec::new();
        for stream in self.streams.values_mut() {
            let (out, rest): (VecDeque<_>, VecDeque<_>) = stream.reads.drain(..).partition(|(_, who)| is_named(who));
            stream.reads = rest;
            effects.extend(out.into_iter().map(|(_, who)| Effect::Answer(who, Err(Trouble::Interrupted))));
        }
        effects
    }

    fn find(&mut self, link: u64, number: u64) -> Option<(u64, &mut Stream<R>)> {
        let id = *self.numbers.get(&(link, number))?;
        self.streams.get_mut(&id).map(|stream| (id, stream))
    }

    /// It comes to an end, if it had none. Chunks that nobody can want any more go.
    fn finish(&mut self, id: u64, end: End, effects: &mut Vec<Effect<R>>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.end.is_some() {
            return;
        }
        stream.end = Some(end);
        let mut given_back = std::mem::take(&mut stream.credits);
        if stream.is_forgotten() {
            given_back += stream.chunks.len() as u32;
            stream.chunks.clear();
        }
        self.shares.settle(id);
        self.shares.give_back(id, given_back);
        self.serve(id, effects);
        self.give_out(effects);
    }

    /// Those who wait get what is there.
    fn serve(&mut self, id: u64, effects: &mut Vec<Effect<R>>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut given_back = 0;
        while !(stream.reads.is_empty() || (stream.chunks.is_empty() && stream.end.is_none())) {
            let Some((size, who)) = stream.reads.pop_front() else { break };
            let content = match (stream.chunks.pop_front(), stream.end) {
                (Some(chunk), _) if chunk.len() - stream.from <= size as usize => {
                    given_back += 1;
                    stream.begun = true;
                    Ok(Content { chunk, from: std::mem::take(&mut stream.from) })
                }
                (Some(chunk), _) => {
                    let (from, to) = (stream.from, stream.from + size as usize);
                    let part = chunk[from..to].to_vec();
                    stream.from = to;
                    stream.begun |= to > from;
                    stream.chunks.push_front(chunk);
                    Ok(Content { chunk: part, from: 0 })
                }
                (None, Some(End::Broken)) => Err(Trouble::Broken),
                (None, _) => Ok(Content { chunk: Vec::new(), from: 0 }),
            };
            effects.push(Effect::Answer(who, content));
        }
        if given_back > 0 {
            self.shares.give_back(id, given_back);
            self.give_out(effects);
        }
    }

    fn give_out(&mut self, effects: &mut Vec<Effect<R>>) {
        for (id, more) in self.shares.give_out() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.credits += more;
                effects.push(Effect::Send(stream.link, ToWriter::Credits { stream: stream.number, more }));
            }
        }
    }

    fn drop_stream(&mut self, id: u64, effects: &mut Vec<Effect<R>>) {
        let Some(stream) = self.remove(id) else { return };
        if stream.end.is_none() {
            effects.push(Effect::Send(stream.link, ToWriter::Closed { stream: stream.number }));
        }
        self.give_out(effects);
    }

    fn remove(&mut self, id: u64) -> Option<Stream<R>> {
        let stream = self.streams.remove(&id)?;
        self.names.remove(&stream.name);
        self.numbers.remove(&(stream.link, stream.number));
        self.shares.leave(id);
        Some(stream)
    }
}
