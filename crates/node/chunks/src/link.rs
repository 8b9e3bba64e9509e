//! The way to the other node: words, and whether the provider reaches it.
//!
//! *Who begins.* Providers connect two endpoints at the first operation between them, and some lose what is sent if both ends begin at once. So
//! of each pair the one with the lower address begins, with an operation of one byte on a chunk that is there for it (the door); the other waits for its
//! word ([`Word::Linked`]).

use crate::CarryError;
use crate::store::{Direction, Store};
use crate::wire::Wire;
use mend_messages::chunks::{ChunkMode, Word};
use mend_messages::job::Rank;
use std::time::{Duration, Instant};

/// What holds for a stream.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Which rank's.
    pub rank: Rank,
    /// Who moves the bytes.
    pub mode: ChunkMode,
    /// Longest time that the provider may take for an operation.
    pub patience: Duration,
}

/// How far a stream came in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Further; there may be more to do.
    Moved,
    /// Something has to happen first.
    Waits,
    /// To its end: bytes.
    Done(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    /// For the other side's first word.
    Hello,
    /// For room to try.
    Door((u64, u64)),
    Trying {
        chunk: usize,
        since: Instant,
    },
    /// For the other side, which tries.
    Linked,
    Open,
}

/// The way to the other node: words, and the provider's.
pub struct Link {
    pub(crate) wire: Wire,
    pub(crate) peer: u64,
    state: LinkState,
    /// This side begins.
    begins: bool,
    direction: Direction,
    patience: Duration,
}

impl Link {
    pub(crate) fn new(
        mut wire: Wire,
        address: &[u8],
        direction: Direction,
        patience: Duration,
        store: &mut Store,
    ) -> Result<Self, CarryError> {
        let peer = store.peer(address)?;
        if direction == Direction::Out {
            wire.say(hello(store)?);
        }
        let begins = store.pool.address() <= address;
        Ok(Self { wire, peer, state: LinkState::Hello, begins, direction, patience })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == LinkState::Open
    }

    /// Tries whether the other endpoint can be reached, if that is to be done here. True if it came further.
    pub(crate) fn step(&mut self, store: &mut Store) -> Result<bool, CarryError> {
        match self.state {
            LinkState::Door(door) => {
                if !store.is_linked(self.peer) {
                    let Some(chunk) = store.lend(self.direction, 0) else { return Ok(false) };
                    if !store.pool.begin(chunk, 1, self.peer, door)? {
                        store.take_back(self.direction, chunk, false)?;
                        return Ok(false);
                    }
                    self.state = LinkState::Trying { chunk, since: Instant::now() };
                    return Ok(true);
                }
            }
            LinkState::Trying { chunk, since } => match store.end_of(chunk) {
                Some(end) => {
                    end?;
                    store.take_back(self.direction, chunk, false)?;
                    store.link(self.peer);
                }
                None if since.elapsed() > self.patience => return Err(CarryError::Stalled(self.patience)),
                None => return Ok(false),
            },
            LinkState::Hello | LinkState::Linked | LinkState::Open => return Ok(false),
        }
        self.wire.say(Word::Linked);
        self.state = LinkState::Open;
        Ok(true)
    }

    /// The next word about chunks.
    pub(crate) fn hear(&mut self, store: &mut Store) -> Result<Option<Word>, CarryError> {
        loop {
            match (self.wire.hear()?, self.state) {
                (Some(Word::Hello { address, key }), LinkState::Hello) => {
                    // The target answers: its word could come while the source's daemon still reads from the connection.
                    if self.direction == Direction::In {
                        self.wire.say(hello(store)?);
                    }
                    self.state = if self.begins { LinkState::Door((address, key)) } else { LinkState::Linked };
                    self.step(store)?;
                }
                (Some(Word::Linked), LinkState::Linked) => {
                    store.link(self.peer);
                    self.state = LinkState::Open;
                }
                (Some(Word::Hello { .. } | Word::Linked), _) => return Err(CarryError::Nonsense("a greeting out of turn")),
                (Some(_), state) if state != LinkState::Open => return Err(CarryError::Nonsense("a chunk before the greeting")),
                (word, _) => return Ok(word),
            }
        }
    }

    /// Gives back what it holds.
    pub(crate) fn end(&mut self, store: &mut Store) -> Result<(), CarryError> {
        if let LinkState::Trying { chunk, .. } = self.state {
            store.take_back(self.direction, chunk, true)?;
        }
        Ok(())
    }
}

fn hello(store: &Store) -> Result<Word, CarryError> {
    let (address, key) = store.door().ok_or(CarryError::Nonsense("memory that is not registered"))?;
    Ok(Word::Hello { address, key })
}
