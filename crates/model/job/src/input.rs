//! What rank 0 was given of standard input: counted from piece to piece, so that a checkpoint knows how far its rank had come.
//!
//! ```text
//! read one piece ─► pass ─► Stdin to rank 0 ─► its pipe ─ StdinTaken ─► acknowledged ─► read the next
//! checkpoint: StdinHeld ─► InputAt        (what is in the pipe and not read is in the image)
//! ```
//! Invariant: one piece is under way at most; what a rank was not given when it moved away is given to its next process, once.

use serde::{Deserialize, Serialize};

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Bytes before it.
    pub at: u64,
    /// Checksum (FNV-1a) of these; `None` if they are not known.
    pub sum: Option<u64>,
}

impl Default for Mark {
    fn default() -> Self {
        Self { at: 0, sum: Some(0xcbf2_9ce4_8422_2325) }
    }
}

impl Mark {
    /// The place behind these bytes.
    #[must_use]
    pub fn after(self, bytes: &[u8]) -> Self {
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self { at: self.at + bytes.len() as u64, sum: self.sum.map(|sum| bytes.iter().fold(sum, step)) }
    }

    /// False if what is before the one differs from what is before the other.
    #[must_use]
    pub fn agrees(self, other: Self) -> bool {
        self.at == other.at && (self.sum == other.sum || self.sum.is_none() || other.sum.is_none())
    }
}

/// How far rank 0 had come when a checkpoint was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputAt {
    /// Behind what it was given.
    pub at: Mark,
    /// It was given the end, too.
    pub ended: bool,
}

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// More may come.
    open: bool,
    /// Written to the rank's pipe.
    taken: Mark,
    /// On its way there.
    under_way: Vec<u8>,
    at_hold: InputAt,
    frozen: bool,
    kept_back: Option<Vec<u8>>,
    /// The end was read, and waits for what comes before it.
    end_follows: bool,
    /// Bytes of the piece under way that the last image has.
    begun: usize,
}

impl Input {
    /// Of which so much was given already. If it is not `open`, the rank reads the end after that.
    #[must_use]
    pub fn new(taken: Mark, open: bool) -> Self {
        Self {
            open,
            taken,
            under_way: Vec::new(),
            at_hold: InputAt { at: taken, ended: !open },
            frozen: false,
            kept_back: None,
            end_follows: false,
            begun: 0,
        }
    }

    /// True if more may come.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// A piece goes to the rank; empty is the end. Nothing if it has to wait.
    pub fn pass(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if self.frozen {
            let kept = self.kept_back.get_or_insert_default();
            self.end_follows |= bytes.is_empty() && !kept.is_empty();
            kept.extend(bytes);
            return None;
        }
        if bytes.is_empty() {
            // From now on its processes read the end after what they had not read.
            self.open = false;
        }
        self.under_way.extend_from_slice(&bytes);
        Some(bytes)
    }

    /// Nothing is passed on until [`Input::release`].
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// What was held back.
    pub fn release(&mut self) -> Option<Vec<u8>> {
        self.frozen = false;
        self.kept_back.take()
    }

    /// What was under way is written: the next piece may be read. The end, if that was read before.
    pub fn acknowledged(&mut self) -> Option<Vec<u8>> {
        self.taken = self.taken.after(&std::mem::take(&mut self.under_way));
        std::mem::take(&mut self.end_follows).then(Vec::new)
    }

    /// The rank's image is about to be taken; see [`mend_messages::daemon::FromDaemon::StdinHeld`].
    pub fn held(&mut self, again: u64, begun: u64) {
        self.begun = self.under_way.len().min(begun as usize);
        let begun = &self.under_way[..self.begun];
        let at = match again {
            0 => self.taken.after(begun),
            some => Mark { at: self.taken.at.saturating_sub(some), sum: None },
        };
        self.at_hold = InputAt { at, ended: !self.open && self.under_way.len() == begun.len() && again == 0 };
    }

    /// The process of the rank that is gone was not given the last of it, which is this. What of it goes to the rank now.
    pub fn left(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let given = self.under_way.len().checked_sub(bytes.len());
        self.taken = match given {
            Some(given) => self.taken.after(&self.under_way[..given]),
            None => Mark { at: (self.taken.at + self.under_way.len() as u64).saturating_sub(bytes.len() as u64), sum: None },
        };
        self.under_way.clear();
        self.pass_again(bytes)
    }

    /// The node on which the rank was is lost, and with it what it was not given: that is what its image has not. What of it goes to the
    /// rank now; nothing if its image has all.
    pub fn lost(&mut self) -> Option<Vec<u8>> {
        let lost = self.under_way.split_off(self.begun.min(self.under_way.len()));
        self.taken = self.taken.after(&std::mem::take(&mut self.under_way));
        if lost.is_empty() { None } else { self.pass_again(lost) }
    }

    /// What was passed once comes before what was read since.
    fn pass_again(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if !self.frozen {
            return self.pass(bytes);
        }
        self.end_follows |= self.kept_back.as_ref().is_some_and(Vec::is_empty);
        self.kept_back.get_or_insert_default().splice(..0, bytes);
        None
    }

    /// The place behind all that was read.
    #[must_use]
    pub fn read_through(&self) -> Mark {
        self.taken.after(&self.under_way).after(self.kept_back.as_deref().unwrap_or_default())
    }

    /// What the image that was last taken has.
    #[must_use]
    pub fn at_hold(&self) -> InputAt {
        self.at_hold
    }
}
