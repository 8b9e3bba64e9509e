//! Receives that wait for messages and messages that wait for receives.
//!
//! Invariant: a message is never in `unexpected` while a receive that matches it is posted. Among receives that
//! match, the one posted first wins; among messages of one source that match, the one that came first wins
//! (fi_tagged(3), MPI's matching order). Both sides are kept per source so that directed receives, the usual case,
//! do not search through what others sent.
//!
//! A receiver may ask for the last message first, so to stop reading from a peer because nobody has asked for its messages yet
//! would hang correct programs, and so would making the sender wait. How much data waits here is bounded all the same: a
//! peer that has sent too much of it announces the rest ([`super::flow`]), and keeps further messages ([`super::withhold`]).

use crate::engine::buffers::Buffers;
use crate::engine::packet::Header;
use crate::engine::withhold::RECORD;
use std::collections::VecDeque;

/// A rank and one of its endpoints.
pub type Source = (u32, u16);

/// Where a receive puts its message.
#[derive(Clone, Debug)]
pub enum Memory {
    /// A buffer for one message.
    Whole(Buffers),
    /// The multi-receive buffer of this number.
    Multi(u64),
}

/// A receive that waits.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Only messages of this source, or of any.
    pub source: Option<Source>,
    /// Tag to match.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
    /// The application's context pointer.
    pub context: usize,
    /// True if a success is reported to the completion queue.
    pub report: bool,
    /// Where the message goes.
    pub memory: Memory,
}

impl Posted {
    #[inline]
    fn matches(&self, source: Source, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0 && self.source.is_none_or(|wanted| wanted == source)
    }
}

/// A message that waits: whole, or announced by its RTS.
#[derive(Clone, Debug)]
pub struct Unexpected {
    /// Sender.
    pub source: Source,
    /// The packet's header.
    pub header: Header,
    /// The message, if it came whole.
    pub body: Vec<u8>,
}

impl Unexpected {
    /// Bytes that it takes, about.
    fn cost(&self) -> u64 {
        RECORD + self.body.len() as u64
    }
}

/// Where in a [`Matcher`] a posted receive is; valid until the matcher changes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    line: Option<usize>,
    index: usize,
}

/// What waits of one rank.
#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<(u64, Unexpected)>,
    /// Bytes that they take, about.
    cost: u64,
}

/// One matching space: an endpoint has one for tagged and one for plain messages.
#[derive(Debug, Default)]
pub struct Matcher {
    directed: Vec<VecDeque<(u64, Posted)>>,
    wild: VecDeque<(u64, Posted)>,
    unexpected: Vec<Waiting>,
    waiting: usize,
    /// Ranks that keep messages for this space, and an endpoint of each.
    withholding: Vec<Source>,
    clock: u64,
}

fn line<T: Default>(lines: &mut Vec<T>, rank: u32) -> &mut T {
    let at = rank as usize;
    if lines.len() <= at {
        lines.resize_with(at + 1, T::default);
    }
    &mut lines[at]
}

impl Matcher {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Adds a receive. The caller has looked for an unexpected message first.
    #[inline]
    pub fn post(&mut self, posted: Posted) {
        let time = self.tick();
        match posted.source {
            Some((rank, _)) => line(&mut self.directed, rank).push_back((time, posted)),
            None => self.wild.push_back((time, posted)),
        }
    }

    /// The receive that a message of this source and tag belongs to.
    #[must_use]
    #[inline]
    pub fn find_posted(&self, source: Source, tag: u64) -> Option<Place> {
        let first = |queue: &VecDeque<(u64, Posted)>| {
            queue.iter().enumerate().find(|(_, (_, posted))| posted.matches(source, tag)).map(|(index, (time, _))| (*time, index))
        };
        let directed = self.directed.get(source.0 as usize);
        // The usual case: what comes is what was asked for next.
        if self.wild.is_empty() && directed.and_then(VecDeque::front).is_some_and(|(_, posted)| posted.matches(source, tag)) {
            return Some(Place { line: Some(source.0 as usize), index: 0 });
        }
        match (directed.and_then(first), first(&self.wild)) {
            (Some((one, index)), Some((other, _))) if one < other => Some(Place { line: Some(source.0 as usize), index }),
            (_, Some((_, index))) => Some(Place { line: None, index }),
            (Some((_, index)), None) => Some(Place { line: Some(source.0 as usize), index }),
            (None, None) => None,
        }
    }

    /// The receive at a place.
    #[must_use]
    #[inline]
    pub fn posted(&self, place: Place) -> Option<&Posted> {
        let queue = match place.line {
            Some(line) => self.directed.get(line)?,
            None => &self.wild,
        };
        queue.get(place.index).map(|(_, posted)| posted)
    }

    /// Takes the receive at a place out.
    #[inline]
    pub fn remove(&mut self, place: Place) -> Option<Posted> {
        let queue = match place.line {
            Some(line) => self.directed.get_mut(line)?,
            None => &mut self.wild,
        };
        let taken = if place.index == 0 { queue.pop_front() } else { queue.remove(place.index) };
        taken.map(|(_, posted)| posted)
    }

    /// Takes the receive of this context out.
    pub fn cancel(&mut self, context: usize) -> Option<Posted> {
        for queue in std::iter::once(&mut self.wild).chain(&mut self.directed) {
            if let Some(index) = queue.iter().position(|(_, posted)| posted.context == context) {
                return queue.remove(index).map(|(_, posted)| posted);
            }
        }
        None
    }

    /// Keeps a message for a later receive.
    pub fn keep(&mut self, message: Unexpected) {
        let time = self.tick();
        self.waiting += 1;
        let waiting = line(&mut self.unexpected, message.source.0);
        waiting.cost += message.cost();
        waiting.messages.push_back((time, message));
    }

    /// Puts a message back that [`Matcher::take`] gave, before all others of its source.
    pub fn keep_first(&mut self, message: Unexpected) {
        self.waiting += 1;
        let waiting = line(&mut self.unexpected, message.source.0);
        waiting.cost += message.cost();
        waiting.messages.push_front((0, message));
    }

    fn find_unexpected(&self, source: Option<Source>, tag: u64, ignore: u64) -> Option<(usize, usize)> {
        if self.waiting == 0 {
            return None;
        }
        let first = |waiting: &Waiting| {
            let hit =
                |message: &Unexpected| (message.header.tag ^ tag) & !ignore == 0 && source.is_none_or(|wanted| wanted == message.source);
            waiting.messages.iter().enumerate().find(|(_, (_, message))| hit(message)).map(|(index, (time, _))| (*time, index))
        };
        match source {
            Some((rank, _)) => self.unexpected.get(rank as usize).and_then(first).map(|(_, index)| (rank as usize, index)),
            None => {
                let hits =
                    self.unexpected.iter().enumerate().filter_map(|(rank, queue)| first(queue).map(|(time, index)| (time, rank, index)));
                hits.min().map(|(_, rank, index)| (rank, index))
            }
        }
    }

    /// The messages that wait, to look at.
    #[cfg(test)]
    pub fn waiting(&self) -> impl Iterator<Item = &Unexpected> {
        self.unexpected.iter().flat_map(|waiting| &waiting.messages).map(|(_, message)| message)
    }

    /// The messages that wait.
    pub fn into_waiting(self) -> impl Iterator<Item = Unexpected> {
        self.unexpected.into_iter().flat_map(|waiting| waiting.messages).map(|(_, message)| message)
    }

    /// The first waiting message that a receive like this would get.
    #[must_use]
    pub fn peek(&self, source: Option<Source>, tag: u64, ignore: u64) -> Option<&Unexpected> {
        let (rank, index) = self.find_unexpected(source, tag, ignore)?;
        self.unexpected[rank].messages.get(index).map(|(_, message)| message)
    }

    /// Takes that message out.
    #[inline]
    pub fn take(&mut self, source: Option<Source>, tag: u64, ignore: u64) -> Option<Unexpected> {
        if self.waiting == 0 {
            return None;
        }
        let (rank, index) = self.find_unexpected(source, tag, ignore)?;
        self.waiting -= 1;
        let waiting = &mut self.unexpected[rank];
        let (_, message) = waiting.messages.remove(index)?;
        waiting.cost -= message.cost();
        Some(message)
    }

    /// Bytes that what waits of a rank takes, about.
    #[must_use]
    pub fn cost(&self, rank: u32) -> u64 {
        self.unexpected.get(rank as usize).map_or(0, |waiting| waiting.cost)
    }

    /// True if a receive is posted that a further message of this rank might match.
    #[must_use]
    pub fn wants(&self, rank: u32) -> bool {
        !self.wild.is_empty() || self.directed.get(rank as usize).is_some_and(|posted| !posted.is_empty())
    }

    /// True if the source of the message kept last is to keep further ones, and does not know yet.
    pub fn overflows(&mut self, source: Source, limit: u64) -> bool {
        let over = self.cost(source.0) > limit && !self.wants(source.0);
        over && self.withheld_by(source)
    }

    /// A rank keeps messages for this space. False: that was known.
    pub fn withheld_by(&mut self, source: Source) -> bool {
        let known = self.withholding.iter().any(|(rank, _)| *rank == source.0);
        if !known {
            self.withholding.push(source);
        }
        !known
    }

    /// True if any rank keeps messages for this space.
    #[must_use]
    #[inline]
    pub fn is_withheld_from(&self) -> bool {
        !self.withholding.is_empty()
    }

    /// Those of them that are to go on, by `which`; they keep nothing from now on.
    pub fn released(&mut self, which: impl Fn(&Self, u32) -> bool) -> Vec<Source> {
        let withholding = std::mem::take(&mut self.withholding);
        let (released, kept) = withholding.into_iter().partition(|(rank, _)| which(self, *rank));
        self.withholding = kept;
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::packet::Kind;
    use proptest::prelude::*;

    fn posted(source: Option<u32>, tag: u64, ignore: u64, context: usize) -> Posted {
        let memory = Memory::Multi(0);
        Posted { source: source.map(|rank| (rank, 0)), tag, ignore, context, report: true, memory }
    }

    fn message(rank: u32, tag: u64, number: u64) -> Unexpected {
        let mut header = Header::new(Kind::Eager);
        header.tag = tag;
        header.id = number;
        Unexpected { source: (rank, 0), header, body: Vec::new() }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Post { source: Option<u32>, tag: u64, ignore: u64 },
        Arrive { rank: u32, tag: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let post = (prop::option::of(0u32..3), 0u64..3, prop::sample::select(vec![0u64, 1, 3]))
            .prop_map(|(source, tag, ignore)| Step::Post { source, tag, ignore });
        let arrive = (0u32..3, 0u64..3).prop_map(|(rank, tag)| Step::Arrive { rank, tag });
        prop::collection::vec(prop_oneof![post, arrive], 0..60)
    }

    proptest! {
        /// The matcher pairs exactly what one flat list of receives and one of messages would pair.
        #[test]
        fn pairs_like_two_flat_lists(steps in steps()) {
            let mut matcher = Matcher::default();
            let mut receives: Vec<(usize, Option<u32>, u64, u64)> = Vec::new();
            let mut messages: Vec<(u64, u32, u64)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Post { source, tag, ignore } => {
                        let expected = messages.iter().position(|(_, rank, have)| (have ^ tag) & !ignore == 0 && source.is_none_or(|s| s == *rank));
                        let got = matcher.take(source.map(|rank| (rank, 0)), tag, ignore).map(|m| m.header.id);
                        prop_assert_eq!(got, expected.map(|at| messages.remove(at).0));
                        if got.is_none() {
                            matcher.post(posted(source, tag, ignore, number));
                            receives.push((number, source, tag, ignore));
                        }
                    }
                    Step::Arrive { rank, tag } => {
                        let expected = receives.iter().position(|(_, s, t, ignore)| (t ^ tag) & !ignore == 0 && s.is_none_or(|s| s == rank));
                        let got = matcher.find_posted((rank, 0), tag).and_then(|place| matcher.remove(place)).map(|p| p.context);
                        prop_assert_eq!(got, expected.map(|at| receives.remove(at).0));
                        if got.is_none() {
                            matcher.keep(message(rank, tag, number as u64));
                            messages.push((number as u64, rank, tag));
                        }
                    }
                }
            }
        }
    }
}
