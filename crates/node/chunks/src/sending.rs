//! A stream that leaves this node.
//!
//! ```text
//! free ─► filling ─► announced ─┬─ (read) ─────────────────────────────► Arrived: free
//!                               └─ Granted ─► to write ─► writing ─► written ─► Arrived: free
//! ```
//! A chunk is announced when it is full; one that is not, when no other is on its way: so what an agent says last, or says slowly, does not wait.

use crate::CarryError;
use crate::link::{Link, Next, Terms};
use crate::store::{Direction, Store};
use mend_messages::chunks::{ChunkMode, Word};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Announced,
    ToWrite { address: u64, key: u64 },
    Writing { since: Instant },
    Written,
}

struct Held {
    chunk: usize,
    offset: u64,
    length: usize,
    step: Step,
}

/// See the module.
pub struct Sending {
    pub(crate) stream: UnixStream,
    link: Link,
    terms: Terms,
    /// The chunk that is being filled, and the bytes in it.
    filling: Option<(usize, usize)>,
    held: VecDeque<Held>,
    /// Of the next chunk.
    offset: u64,
    at_end: bool,
    said_end: bool,
    /// There may be more in the stream.
    pub(crate) starved: bool,
}

impl Sending {
    pub(crate) fn new(stream: UnixStream, link: Link, terms: Terms) -> Self {
        let (filling, held) = (None, VecDeque::new());
        Self { stream, link, terms, filling, held, offset: 0, at_end: false, said_end: false, starved: false }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Goes as far as it can without waiting.
    pub(crate) fn step(&mut self, store: &mut Store) -> Result<Next, CarryError> {
        let mut moved = self.link.step(store)?;
        while let Some(word) = self.link.hear(store)? {
            moved = true;
            self.heard(word, store)?;
        }
        moved |= self.write(store)?;
        if self.link.is_open() {
            moved |= self.fill(store)?;
        }
        if self.at_end && self.filling.is_none() && self.held.is_empty() && !self.said_end {
            self.link.wire.say(Word::End { offset: self.offset });
            self.said_end = true;
        }
        self.link.wire.flush()?;
        if self.said_end && !self.link.wire.is_behind() {
            return Ok(Next::Done(self.offset));
        }
        Ok(if moved { Next::Moved } else { Next::Waits })
    }

    fn heard(&mut self, word: Word, store: &mut Store) -> Result<(), CarryError> {
        let find = |held: &mut VecDeque<Held>, offset: u64| held.iter().position(|one| one.offset == offset);
        match word {
            Word::Granted { offset, address, key } if self.terms.mode == ChunkMode::Write => {
                let at = find(&mut self.held, offset).filter(|at| self.held[*at].step == Step::Announced);
                self.held[at.ok_or(CarryError::Nonsense("room for a chunk that does not wait for it"))?].step =
                    Step::ToWrite { address, key };
            }
            Word::Arrived { offset } => {
                let before = match self.terms.mode {
                    ChunkMode::Read => Step::Announced,
                    ChunkMode::Write => Step::Written,
                };
                let at = find(&mut self.held, offset).filter(|at| self.held[*at].step == before);
                let held = at.and_then(|at| self.held.remove(at)).ok_or(CarryError::Nonsense("a chunk arrived that was not on its way"))?;
                store.take_back(Direction::Out, held.chunk, false)?;
            }
            _ => return Err(CarryError::Nonsense("what a source is not told")),
        }
        Ok(())
    }

    /// Begins and ends writes.
    fn write(&mut self, store: &mut Store) -> Result<bool, CarryError> {
        let mut moved = false;
        for held in &mut self.held {
            match held.step {
                Step::ToWrite { address, key } => {
                    if store.pool.begin(held.chunk, held.length, self.link.peer, (address, key))? {
                        held.step = Step::Writing { since: Instant::now() };
                        moved = true;
                    }
                }
                Step::Writing { since } => match store.end_of(held.chunk) {
                    Some(end) => {
                        end?;
                        self.link.wire.say(Word::Written { offset: held.offset });
                        held.step = Step::Written;
                        moved = true;
                    }
                    None if since.elapsed() > self.terms.patience => return Err(CarryError::Stalled(self.terms.patience)),
                    None => {}
                },
                Step::Announced | Step::Written => {}
            }
        }
        Ok(moved)
    }

    fn fill(&mut self, store: &mut Store) -> Result<bool, CarryError> {
        let mut moved = false;
        self.starved = false;
        while !self.at_end {
            let (chunk, filled) = match self.filling {
                Some(filling) => filling,
                None => match store.lend(Direction::Out, self.held.len()) {
                    Some(chunk) => (chunk, 0),
                    None => return Ok(moved),
                },
            };
            self.filling = Some((chunk, filled));
            let room = &mut store.pool.memory(chunk)?[filled..];
            let whole = room.len();
            match self.stream.read(room) {
                Ok(0) => self.at_end = true,
                Ok(read) => {
                    self.filling = Some((chunk, filled + read));
                    moved = true;
                    if read == whole {
                        self.announce(store)?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.starved = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A process that ended in the middle: its stream has no end, as the reader notices.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => self.at_end = true,
                Err(error) => return Err(CarryError::Process(error)),
            }
        }
        match self.filling {
            Some((chunk, 0)) if self.at_end || self.starved => {
                self.filling = None;
                store.take_back(Direction::Out, chunk, false)?;
            }
            Some((_, 1..)) if self.at_end || self.held.is_empty() => {
                self.announce(store)?;
                moved = true;
            }
            _ => {}
        }
        Ok(moved)
    }

    fn announce(&mut self, store: &mut Store) -> Result<(), CarryError> {
        let Some((chunk, length)) = self.filling.take() else { return Ok(()) };
        self.held.push_back(Held { chunk, offset: self.offset, length, step: Step::Announced });
        let checksum = xxh3_64(&store.pool.memory(chunk)?[..length]);
        let (address, key) = store.pool.remote(chunk).ok_or(CarryError::Nonsense("memory that is not registered"))?;
        let (rank, offset) = (self.terms.rank, self.offset);
        self.link.wire.say(Word::Chunk { rank, offset, length: length as u32, checksum, address, key });
        self.offset += length as u64;
        Ok(())
    }

    /// Gives back what it holds.
    pub(crate) fn end(mut self, store: &mut Store) -> Result<(), CarryError> {
        self.link.end(store)?;
        if let Some((chunk, _)) = self.filling {
            store.take_back(Direction::Out, chunk, false)?;
        }
        for held in self.held.drain(..) {
            store.take_back(Direction::Out, held.chunk, true)?;
        }
        Ok(())
    }
}
