//! Back-pressure: a rank holds messages back while too many of its messages wait at their receiver.
//!
//! ```text
//! sender                                        receiver
//!                                                 too much waits here, and no receive waits for more
//!   ◄──────────────────────────────────── HOLD
//!   further messages stay here, in order
//!                                                 what waited was taken, or a receive is posted that none of it matches
//!   ◄───────────────────────────────── RELEASE
//!   some of them leave ─────────────────────►
//!   HELD, if others stay ───────────────────►     RELEASE again as soon as there is reason to
//!
//!   much stays by now, or much has left since an answer came: soon the next has to wait
//!   HELD ───────────────────────────────────►
//!   ◄──────────────────────── HOLD or RELEASE     at once: takes part, and takes none, or takes them
//! ```
//! [`super::flow`] bounds the data that waits; this bounds the rest, which is each message's own record and the bytes of short
//! ones. It costs nothing until messages wait: the receiver counts what it keeps, not what it receives.
//!
//! A program may ask for the last message first (MPI's matching allows it), or for another rank's that will not come before all
//! of these have left, so no sender is made to wait: what stays has its place in the sender's memory, copied if
//! the application has its buffer back. And as long as a receive (or a probe) waits for something of that sender, everything
//! is let through, because it may be the next. Matching is by endpoint of the receiver and by kind (tagged or plain), so
//! this is, too: receives that are always posted for one kind let nothing of the other through.
//!
//! But what stays is bounded by what the receiver does: each HELD is answered at once, and without an answer only so much may
//! stay. A receiver that computes holds its sender up, as if the channel were full; one that takes messages gets them faster
//! than others come; and only one that takes part and waits for something else makes its sender keep whatever there is. A
//! sender that has to wait makes rounds of progress and hears a RELEASE, which one that keeps message after message would not. One
//! from which nothing stays asks, too, each time that many of its messages have left ([`super::flow`]): so it hears in time.
//!
//! Invariants: while messages stay with a sender, a HOLD or HELD says so to the receiver, or a RELEASE is under way.
//! While a sender waits, for room to keep messages or for those on their way, a HELD or its answer is under way.
//!
//! Faults assumed: a peer may say any of the three at any time. A sender that ignores HOLD is not stopped.

use super::matching::{Matcher, RECORD_BYTES};
use super::packet::{Header, Kind, flag};
use super::{Engine, Outlet};
use mend_messages::job::Rank;
use std::collections::{HashMap, VecDeque};

/// One part in this many of the limit leaves upon one RELEASE, or may stay upon one HOLD.
const LIMIT_PARTS: u64 = 4;
/// One part in this many of that may stay upon a RELEASE of others: less than leaves.
const RELEASE_PARTS: u64 = 4;

/// A receiving endpoint of a peer, and whether for tagged messages.
type MatchingSpace = (Rank, u16, bool);

/// The messages that are held back from one place; if there is none, the next one is held back.
#[derive(Debug, Default)]
struct HeldQueue {
    operations: VecDeque<u64>,
    /// What further ones may take before the receiver must have been heard, bytes with their records.
    budget: u64,
    /// A HELD was not answered yet.
    asked: bool,
}

/// Messages that are held back, by where they are to go.
#[derive(Debug, Default)]
pub(crate) struct HeldMessages {
    spaces: HashMap<MatchingSpace, HeldQueue>,
}

impl HeldMessages {
    /// True if a message to this place has to stay.
    #[inline]
    pub fn concerns(&self, to: (Rank, u16), tagged: bool) -> bool {
        !self.spaces.is_empty() && self.spaces.contains_key(&(to.0, to.1, tagged))
    }

    /// True if not even a message that stays is taken from the application, until the receiver was heard.
    pub fn is_full(&self, to: (Rank, u16), tagged: bool) -> bool {
        self.spaces.get(&(to.0, to.1, tagged)).is_some_and(|queue| queue.budget == 0)
    }

    /// Forgets operations that do not exist any more.
    pub fn forget(&mut self, exists: impl Fn(u64) -> bool) {
        self.spaces.values_mut().for_each(|queue| queue.operations.retain(|operation| exists(*operation)));
    }
}

/// A word about messages of this kind, from one endpoint to another.
fn word(kind: Kind, from: u16, to: u16, tagged: bool) -> Header {
    let mut header = Header::new(kind);
    (header.from, header.to) = (from, to);
    header.flags = if tagged { flag::TAGGED } else { 0 };
    header
}

impl Engine {
    /// A message was kept for a later receive.
    pub(super) fn kept(&mut self, out: &mut impl Outlet, endpoint: u16, tagged: bool, source: (Rank, u16)) {
        let limit = self.flow.limit();
        let Some(owner) = self.endpoint(endpoint) else { return };
        if owner.matcher(tagged).overflows(source, limit) {
            out.post(source.0, &word(Kind::Hold, endpoint, source.1, tagged), &[]);
        }
    }

    /// Receives were posted or messages taken: tells those that keep some and need not.
    #[inline]
    pub(super) fn relieve(&mut self, out: &mut impl Outlet, endpoint: u16, tagged: bool) {
        if self.endpoint(endpoint).is_some_and(|owner| owner.matcher(tagged).has_holding_peers()) {
            self.relieve_some(out, endpoint, tagged);
        }
    }

    #[cold]
    fn relieve_some(&mut self, out: &mut impl Outlet, endpoint: u16, tagged: bool) {
        let limit = self.flow.limit();
        self.tell_released(out, endpoint, tagged, |matcher, rank| matcher.welcomes(rank, limit));
    }

    /// Somebody looked for a message of this source (or of any), and it was not here.
    pub(super) fn missed(&mut self, out: &mut impl Outlet, endpoint: u16, tagged: bool, source: Option<(Rank, u16)>) {
        self.tell_released(out, endpoint, tagged, |_, rank| source.is_none_or(|wanted| wanted.0 == rank));
    }

    fn tell_released(&mut self, out: &mut impl Outlet, endpoint: u16, tagged: bool, which: impl Fn(&Matcher, Rank) -> bool) {
        let Some(owner) = self.endpoint(endpoint) else { return };
        for (rank, from) in owner.matcher(tagged).released(which) {
            out.post(rank, &word(Kind::Release, endpoint, from, tagged), &[]);
        }
    }

    /// Keeps a sending operation here, of which so many bytes were copied.
    pub(super) fn keep(&mut self, out: &mut impl Outlet, operation: u64, (from, to): (u16, (Rank, u16)), tagged: bool, bytes: usize) {
        let half = self.flow.limit() / LIMIT_PARTS / 2;
        let queue = self.held_messages.spaces.entry((to.0, to.1, tagged)).or_default();
        queue.operations.push_back(operation);
        queue.budget = queue.budget.saturating_sub(RECORD_BYTES + bytes as u64);
        // In good time, so that nobody has to wait who sends no faster than the answer comes.
        if queue.budget <= half && !std::mem::replace(&mut queue.asked, true) {
            self.ask(out, from, to, tagged);
        }
    }

    /// HELD, which is answered at once.
    pub(super) fn ask(&mut self, out: &mut impl Outlet, from: u16, to: (Rank, u16), tagged: bool) {
        self.flow.asks(to.0);
        out.post(to.0, &word(Kind::Held, from, to.1, tagged), &[]);
    }

    /// HELD: the peer has more, or much on its way.
    pub(super) fn on_held(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) {
        let (endpoint, tagged) = (header.to, header.has(flag::TAGGED));
        let limit = self.flow.limit();
        let answer = match self.endpoint(endpoint).map(|owner| owner.matcher(tagged)) {
            Some(matcher) if !matcher.welcomes(peer, limit) => {
                matcher.held_by((peer, header.from));
                Kind::Hold
            }
            Some(matcher) => {
                matcher.released(|_, rank| rank == peer);
                Kind::Release
            }
            // Closed: nothing waits here any more.
            None => Kind::Release,
        };
        out.post(peer, &word(answer, endpoint, header.from, tagged), &[]);
    }

    /// HOLD: too much waits at the peer.
    pub(super) fn on_hold(&mut self, peer: Rank, header: &Header) {
        self.flow.answered(peer);
        let budget = (self.flow.limit() / LIMIT_PARTS).max(1);
        let queue = self.held_messages.spaces.entry((peer, header.from, header.has(flag::TAGGED))).or_default();
        (queue.budget, queue.asked) = (budget, false);
    }

    /// RELEASE: some of what stays may leave.
    pub(super) fn release(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) {
        self.flow.answered(peer);
        let tagged = header.has(flag::TAGGED);
        let space = (peer, header.from, tagged);
        let mut left = self.flow.limit() / LIMIT_PARTS;
        let budget = left / RELEASE_PARTS;
        let Some(HeldQueue { mut operations, .. }) = self.held_messages.spaces.remove(&space) else { return };
        while let Some(id) = operations.pop_front() {
            let cost = self.let_go(out, id);
            if cost >= left {
                break;
            }
            left -= cost;
        }
        if !operations.is_empty() {
            self.held_messages.spaces.insert(space, HeldQueue { operations, budget, asked: true });
            self.ask(out, header.to, (peer, header.from), tagged);
        }
    }
}
