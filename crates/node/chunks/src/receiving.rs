//! A stream that comes to this node.
//!
//! ```text
//! Chunk ─► wanted ─┬─ (read) ─► reading ──────────────────────┬─ checksum holds ─► arrived ─► passed on in order: free
//!                  └─ (write) ─► granted ─ Written ─► checking ┘
//! ```
//! That a write is complete at its source does not say that its bytes can be seen here, with every provider: the checksum says it.

use crate::CarryError;
use crate::link::{Link, Next, Terms};
use crate::store::{Direction, Store};
use mend_messages::chunks::{ChunkMode, Word};
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wanted,
    Reading { since: Instant },
    Granted,
    Checking { since: Instant },
    Arrived { passed_on: usize },
}

struct Held {
    /// From when it is wanted on.
    chunk: Option<usize>,
    offset: u64,
    length: usize,
    checksum: u64,
    remote: (u64, u64),
    step: Step,
}

/// See the module.
pub struct Receiving {
    pub(crate) stream: UnixStream,
    link: Link,
    terms: Terms,
    held: VecDeque<Held>,
    /// Chunks that it has room for.
    lent: usize,
    /// Of the next chunk.
    offset: u64,
    ended: bool,
    /// The stream takes no more now.
    pub(crate) blocked: bool,
}

impl Receiving {
    pub(crate) fn new(stream: UnixStream, link: Link, terms: Terms) -> Self {
        Self { stream, link, terms, held: VecDeque::new(), lent: 0, offset: 0, ended: false, blocked: false }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Goes as far as it can without waiting.
    pub(crate) fn step(&mut self, store: &mut Store) -> Result<Next, CarryError> {
        let mut moved = self.link.step(store)?;
        while !self.ended
            && let Some(word) = self.link.hear(store)?
        {
            moved = true;
            self.heard(word, store)?;
        }
        if self.link.is_open() {
            moved |= self.ask(store)?;
        }
        moved |= self.arrive(store)?;
        moved |= self.pass_on(store)?;
        self.link.wire.flush()?;
        if self.ended && self.held.is_empty() {
            return Ok(Next::Done(self.offset));
        }
        Ok(if moved { Next::Moved } else { Next::Waits })
    }

    fn heard(&mut self, word: Word, store: &Store) -> Result<(), CarryError> {
        match word {
            Word::Chunk { rank, offset, length, checksum, address, key } => {
                let length = length as usize;
                if rank != self.terms.rank || offset != self.offset || length == 0 || length > store.pool.chunk_bytes() {
                    return Err(CarryError::Nonsense("a chunk of another place, rank or length"));
                }
                if self.held.len() >= store.pool.count() {
                    return Err(CarryError::Nonsense("more chunks than a pool has"));
                }
                let remote = (address, key);
                self.held.push_back(Held { chunk: None, offset, length, checksum, remote, step: Step::Wanted });
                self.offset = offset.checked_add(length as u64).ok_or(CarryError::Nonsense("a chunk beyond all places"))?;
            }
            Word::Written { offset } if self.terms.mode == ChunkMode::Write => {
                let held = self.held.iter_mut().find(|held| held.offset == offset && held.step == Step::Granted);
                held.ok_or(CarryError::Nonsense("a chunk was written that nobody waits for"))?.step =
                    Step::Checking { since: Instant::now() };
            }
            Word::End { offset } if offset == self.offset => self.ended = true,
            _ => return Err(CarryError::Nonsense("what a target is not told")),
        }
        Ok(())
    }

    /// Gets room for chunks, in order, and reads them or has them written.
    fn ask(&mut self, store: &mut Store) -> Result<bool, CarryError> {
        let mut moved = false;
        for held in self.held.iter_mut().filter(|held| held.step == Step::Wanted) {
            let chunk = match held.chunk {
                Some(chunk) => chunk,
                None => {
                    let Some(chunk) = store.lend(Direction::In, self.lent) else { break };
                    self.lent += 1;
                    held.chunk = Some(chunk);
                    chunk
                }
            };
            match self.terms.mode {
                ChunkMode::Read => {
                    if !store.pool.begin(chunk, held.length, self.link.peer, held.remote)? {
                        break;
                    }
                    held.step = Step::Reading { since: Instant::now() };
                }
                ChunkMode::Write => {
                    let (address, key) = store.pool.remote(chunk).ok_or(CarryError::Nonsense("memory that is not registered"))?;
                    self.link.wire.say(Word::Granted { offset: held.offset, address, key });
                    held.step = Step::Granted;
                }
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Looks which chunks are there.
    fn arrive(&mut self, store: &mut Store) -> Result<bool, CarryError> {
        let mut moved = false;
        for held in &mut self.held {
            let Some(chunk) = held.chunk else { break };
            let (since, last) = match held.step {
                Step::Reading { since } => match store.end_of(chunk) {
                    Some(end) => {
                        end?;
                        (since, true)
                    }
                    None if since.elapsed() > self.terms.patience => return Err(CarryError::Stalled(self.terms.patience)),
                    None => continue,
                },
                Step::Checking { since } => (since, since.elapsed() > self.terms.patience),
                Step::Wanted | Step::Granted | Step::Arrived { .. } => continue,
            };
            if xxh3_64(&store.pool.memory(chunk)?[..held.length]) == held.checksum {
                held.step = Step::Arrived { passed_on: 0 };
                self.link.wire.say(Word::Arrived { offset: held.offset });
                moved = true;
            } else if last {
                return Err(CarryError::Altered { offset: held.offset });
            } else {
                held.step = Step::Checking { since };
            }
        }
        Ok(moved)
    }

    /// Gives the process what is next, as far as it takes it.
    fn pass_on(&mut self, store: &mut Store) -> Result<bool, CarryError> {
        let mut moved = false;
        self.blocked = false;
        while let Some(Held { chunk: Some(chunk), length, step: Step::Arrived { passed_on }, .. }) = self.held.front_mut() {
            match self.stream.write(&store.pool.memory(*chunk)?[*passed_on..*length]) {
                Ok(written) => {
                    *passed_on += written;
                    moved = true;
                    if *passed_on == *length {
                        store.take_back(Direction::In, *chunk, false)?;
                        self.lent -= 1;
                        self.held.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(CarryError::Process(error)),
            }
        }
        Ok(moved)
    }

    /// Gives back what it holds.
    pub(crate) fn end(mut self, store: &mut Store) -> Result<(), CarryError> {
        self.link.end(store)?;
        for chunk in self.held.drain(..).filter_map(|held| held.chunk) {
            store.take_back(Direction::In, chunk, true)?;
        }
        Ok(())
    }
}
