//! Messages that a rank keeps because too many of its already wait at their receiver.
//!
//! ```text
//! sender                                        receiver
//!                                                 too much waits here, and no receive waits for more
//!   ◄──────────────────────────────── WITHHOLD
//!   further messages stay here, in order
//!                                                 what waited was taken, or a receive is posted that none of it matches
//!   ◄───────────────────────────────── RELEASE
//!   some of them leave ─────────────────────►
//!   WITHHELD, if others stay ───────────────►     RELEASE again as soon as there is reason to
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
//! Invariant: while messages stay with a sender, a WITHHOLD or WITHHELD says so to the receiver, or a RELEASE is under way.
//!
//! Faults assumed: a peer may say any of the three at any time. A sender that ignores WITHHOLD is not stopped.

use super::matching::Matcher;
use super::packet::{Header, Kind, flag};
use super::{Engine, Outlet};
use mend_messages::job::Rank;
use std::collections::{HashMap, VecDeque};

/// What a message that waits takes besides its payload, about, bytes.
pub const RECORD: u64 = 160;

/// Part of the limit that leaves upon one RELEASE.
const SHARE: u64 = 4;

/// A receiving endpoint of a peer, and whether for tagged messages.
type Space = (Rank, u16, bool);

/// What stays here, by where it is to go. An entry without messages: the next one is to stay.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    spaces: HashMap<Space, VecDeque<u64>>,
}

impl Withheld {
    /// True if a message to this place has to stay.
    #[inline]
    pub fn concerns(&self, to: (Rank, u16), tagged: bool) -> bool {
        !self.spaces.is_empty() && self.spaces.contains_key(&(to.0, to.1, tagged))
    }

    /// A sending operation that stays.
    pub fn keep(&mut self, to: (Rank, u16), tagged: bool, operation: u64) {
        self.spaces.entry((to.0, to.1, tagged)).or_default().push_back(operation);
    }

    /// Forgets operations that do not exist any more.
    pub fn forget(&mut self, exists: impl Fn(u64) -> bool) {
        self.spaces.values_mut().for_each(|queue| queue.retain(|operation| exists(*operation)));
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
            out.post(source.0, &word(Kind::Withhold, endpoint, source.1, tagged), &[]);
        }
    }

    /// Receives were posted or messages taken: tells those that keep some and need not.
    #[inline]
    pub(super) fn relieve(&mut self, out: &mut impl Outlet, endpoint: u16, tagged: bool) {
        if self.endpoint(endpoint).is_some_and(|owner| owner.matcher(tagged).is_withheld_from()) {
            self.relieve_some(out, endpoint, tagged);
        }
    }

    #[cold]
    fn relieve_some(&mut self, out: &mut impl Outlet, endpoint: u16, tagged: bool) {
        let limit = self.flow.limit();
        self.tell_released(out, endpoint, tagged, |matcher, rank| matcher.wants(rank) || matcher.cost(rank) <= limit / 2);
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

    /// WITHHELD: the peer has more.
    pub(super) fn withheld(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) {
        let (endpoint, tagged) = (header.to, header.has(flag::TAGGED));
        match self.endpoint(endpoint) {
            Some(owner) => {
                owner.matcher(tagged).withheld_by((peer, header.from));
                self.relieve(out, endpoint, tagged);
            }
            // Closed: nothing waits here any more.
            None => out.post(peer, &word(Kind::Release, endpoint, header.from, tagged), &[]),
        }
    }

    /// WITHHOLD: too much waits at the peer.
    pub(super) fn withhold(&mut self, peer: Rank, header: &Header) {
        self.withheld.spaces.entry((peer, header.from, header.has(flag::TAGGED))).or_default();
    }

    /// RELEASE: some of what stays may leave.
    pub(super) fn release(&mut self, out: &mut impl Outlet, peer: Rank, header: &Header) {
        let tagged = header.has(flag::TAGGED);
        let space = (peer, header.from, tagged);
        let mut left = self.flow.limit() / SHARE;
        let Some(mut queue) = self.withheld.spaces.remove(&space) else { return };
        while let Some(id) = queue.pop_front() {
            let cost = self.let_go(out, id);
            if cost >= left {
                break;
            }
            left -= cost;
        }
        if !queue.is_empty() {
            self.withheld.spaces.insert(space, queue);
            out.post(peer, &word(Kind::Withheld, header.to, header.from, tagged), &[]);
        }
    }
}
