//! Receives that wait for messages and messages that wait for receives.
//!
//! Invariant: a message is never in `unexpected` while a receive that matches it is posted. Among receives that
//! match, the one posted first wins; among messages of one source that match, the one that came first wins
//! (fi_tagged(3), MPI's matching order). Both sides are kept per source so that directed receives, the usual case,
//! do not search through what others sent.
//!
//! A receiver may ask for the last message first, so to stop reading from a peer because nobody has asked for its messages yet
//! would hang correct programs, and so would making the sender wait. How much data waits here is bounded all the same: a
//! peer that has sent too much of it announces the rest ([`super::flow`]), and keeps further messages ([`super::back_pressure`]).

use crate::engine::buffers::Buffers;
use crate::engine::ordered::{Ordered, Sought};
use crate::engine::packet::Header;

/// What a message that waits takes besides its payload, about, bytes.
pub const RECORD_BYTES: u64 = 160;

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

impl Sought for Posted {
    fn tag(&self) -> u64 {
        self.tag
    }

    fn ignored(&self) -> Option<u64> {
        Some(self.ignore)
    }
}

/// A message that waits: whole, or announced by its RTS.
#[derive(Clone, Debug)]
pub struct Unexpected {
    /// The rank that sent it.
    pub source: Source,
    /// The packet's header.
    pub header: Header,
    /// The message, if it came whole.
    pub body: Vec<u8>,
}

impl Unexpected {
    /// Bytes that it takes, about.
    fn cost(&self) -> u64 {
        RECORD_BYTES + self.body.len() as u64
    }
}

impl Sought for Unexpected {
    fn tag(&self) -> u64 {
        self.header.tag
    }

    fn ignored(&self) -> Option<u64> {
        None
    }
}

/// Where in a [`Matcher`] a posted receive is; valid until the matcher changes.
#[derive(Clone, Copy, Debug)]
pub struct PostedIndex {
    line: Option<usize>,
    index: usize,
}

/// What waits of one rank.
#[derive(Debug, Default)]
struct Waiting {
    messages: Ordered<Unexpected>,
    /// Bytes that they take, about.
    cost: u64,
}

/// One matching space: an endpoint has one for tagged and one for plain messages.
#[derive(Debug, Default)]
pub struct Matcher {
    directed: Vec<Ordered<Posted>>,
    wild: Ordered<Posted>,
    posted: usize,
    unexpected: Vec<Waiting>,
    waiting: usize,
    /// Ranks that keep messages for this space, and an endpoint of each.
    holding: Vec<Source>,
    clock: i64,
    /// Times before all others.
    before: i64,
}

fn line<T: Default>(lines: &mut Vec<T>, rank: u32) -> &mut T {
    let at = rank as usize;
    if lines.len() <= at {
        lines.resize_with(at + 1, T::default);
    }
    &mut lines[at]
}

impl Matcher {
    fn tick(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    /// Adds a receive. The caller has looked for an unexpected message first.
    #[inline]
    pub fn post(&mut self, posted: Posted) {
        let time = self.tick();
        self.posted += 1;
        match posted.source {
            Some((rank, _)) => line(&mut self.directed, rank).push_back(time, posted),
            None => self.wild.push_back(time, posted),
        }
    }

    /// The receive that a message of this source and tag belongs to.
    #[must_use]
    #[inline]
    pub fn find_posted(&mut self, source: Source, tag: u64) -> Option<PostedIndex> {
        let rank = source.0 as usize;
        // The usual case: what comes is what was asked for next.
        if self.wild.is_empty() && self.directed.get(rank).and_then(Ordered::front).is_some_and(|posted| posted.matches(source, tag)) {
            return Some(PostedIndex { line: Some(rank), index: 0 });
        }
        let first = |line: &mut Ordered<Posted>| line.find(tag, 0, |posted| posted.matches(source, tag));
        match (self.directed.get_mut(rank).and_then(first), first(&mut self.wild)) {
            (Some((one, index)), Some((other, _))) if one < other => Some(PostedIndex { line: Some(rank), index }),
            (_, Some((_, index))) => Some(PostedIndex { line: None, index }),
            (Some((_, index)), None) => Some(PostedIndex { line: Some(rank), index }),
            (None, None) => None,
        }
    }

    /// The receive at a place.
    #[must_use]
    #[inline]
    pub fn posted(&self, at: PostedIndex) -> Option<&Posted> {
        let queue = match at.line {
            Some(line) => self.directed.get(line)?,
            None => &self.wild,
        };
        queue.get(at.index)
    }

    /// Takes the receive at a place out.
    #[inline]
    pub fn remove(&mut self, at: PostedIndex) -> Option<Posted> {
        let queue = match at.line {
            Some(line) => self.directed.get_mut(line)?,
            None => &mut self.wild,
        };
        let posted = queue.remove(at.index);
        self.posted -= usize::from(posted.is_some());
        posted
    }

    /// Takes the receive of this context out.
    pub fn cancel(&mut self, context: usize) -> Option<Posted> {
        let mut lines = std::iter::once(&mut self.wild).chain(&mut self.directed);
        let posted = lines.find_map(|line| line.remove_first(|posted| posted.context == context));
        self.posted -= usize::from(posted.is_some());
        posted
    }

    /// True if a receive is posted.
    #[must_use]
    #[inline]
    pub fn has_posted(&self) -> bool {
        self.posted > 0
    }

    /// Keeps a message for a later receive.
    pub fn keep(&mut self, message: Unexpected) {
        let time = self.tick();
        self.waiting += 1;
        let waiting = line(&mut self.unexpected, message.source.0);
        waiting.cost += message.cost();
        waiting.messages.push_back(time, message);
    }

    /// Puts a message back that [`Matcher::take`] gave, before all others.
    pub fn keep_first(&mut self, message: Unexpected) {
        self.before -= 1;
        self.waiting += 1;
        let waiting = line(&mut self.unexpected, message.source.0);
        waiting.cost += message.cost();
        waiting.messages.push_front(self.before, message);
    }

    fn find_unexpected(&mut self, source: Option<Source>, tag: u64, ignore: u64) -> Option<(usize, usize)> {
        if self.waiting == 0 {
            return None;
        }
        let hit = |message: &Unexpected| (message.header.tag ^ tag) & !ignore == 0 && source.is_none_or(|wanted| wanted == message.source);
        let first = |waiting: &mut Waiting| waiting.messages.find(tag, ignore, hit);
        match source {
            Some((rank, _)) => self.unexpected.get_mut(rank as usize).and_then(first).map(|(_, index)| (rank as usize, index)),
            None => {
                let lines = self.unexpected.iter_mut().enumerate();
                let hits = lines.filter_map(|(rank, line)| first(line).map(|(time, index)| (time, rank, index)));
                hits.min().map(|(_, rank, index)| (rank, index))
            }
        }
    }

    /// The messages that wait, to look at.
    #[cfg(test)]
    pub fn waiting(&self) -> impl Iterator<Item = &Unexpected> {
        self.unexpected.iter().flat_map(|waiting| waiting.messages.iter())
    }

    /// The messages that wait.
    pub fn into_waiting(self) -> impl Iterator<Item = Unexpected> {
        self.unexpected.into_iter().flat_map(|waiting| waiting.messages.into_entries())
    }

    /// The first waiting message that a receive like this would get.
    #[must_use]
    pub fn peek(&mut self, source: Option<Source>, tag: u64, ignore: u64) -> Option<&Unexpected> {
        let (rank, index) = self.find_unexpected(source, tag, ignore)?;
        self.unexpected[rank].messages.get(index)
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
        let message = waiting.messages.remove(index)?;
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

    /// True if a rank that keeps messages for this space had better send some.
    #[must_use]
    pub fn welcomes(&self, rank: u32, limit: u64) -> bool {
        self.wants(rank) || self.cost(rank) <= limit / 2
    }

    /// True if the source of the message kept last is to keep further ones, and does not know yet.
    pub fn overflows(&mut self, source: Source, limit: u64) -> bool {
        let over = self.cost(source.0) > limit && !self.wants(source.0);
        over && self.held_by(source)
    }

    /// A rank keeps messages for this space. False: that was known.
    pub fn held_by(&mut self, source: Source) -> bool {
        let known = self.holding.iter().any(|(rank, _)| *rank == source.0);
        if !known {
            self.holding.push(source);
        }
        !known
    }

    /// True if any rank keeps messages for this space.
    #[must_use]
    #[inline]
    pub fn has_holding_peers(&self) -> bool {
        !self.holding.is_empty()
    }

    /// Those of them that are to go on, by `which`; they keep nothing from now on.
    pub fn released(&mut self, which: impl Fn(&Self, u32) -> bool) -> Vec<Source> {
        let holding = std::mem::take(&mut self.holding);
        let (released, kept) = holding.into_iter().partition(|(rank, _)| which(self, *rank));
        self.holding = kept;
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
        Post {
            source: Option<u32>,
            tag: u64,
            ignore: u64,
        },
        Arrive {
            rank: u32,
            tag: u64,
        },
        Cancel {
            which: usize,
        },
        /// A message is taken and put back, as by a buffer for many that has no room for it.
        PutBack {
            rank: u32,
        },
    }

    /// Posts and arrivals come in runs, so that many wait at a time.
    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let post = (prop::option::of(0u32..3), 0u64..8, prop::sample::select(vec![0u64, 0, 0, 1, 7]))
            .prop_map(|(source, tag, ignore)| Step::Post { source, tag, ignore });
        let arrive = (0u32..3, 0u64..8).prop_map(|(rank, tag)| Step::Arrive { rank, tag });
        let rest = prop_oneof![(0usize..20).prop_map(|which| Step::Cancel { which }), (0u32..3).prop_map(|rank| Step::PutBack { rank })];
        let run = prop_oneof![
            4 => prop::collection::vec(post, 0..40),
            4 => prop::collection::vec(arrive, 0..40),
            1 => prop::collection::vec(rest, 0..3),
        ];
        prop::collection::vec(run, 0..8).prop_map(|runs| runs.concat())
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
                        let got = matcher.find_posted((rank, 0), tag).and_then(|at| matcher.remove(at)).map(|p| p.context);
                        prop_assert_eq!(got, expected.map(|at| receives.remove(at).0));
                        if got.is_none() {
                            matcher.keep(message(rank, tag, number as u64));
                            messages.push((number as u64, rank, tag));
                        }
                    }
                    Step::Cancel { which } => {
                        if which < receives.len() {
                            let (context, ..) = receives.remove(which);
                            prop_assert_eq!(matcher.cancel(context).map(|posted| posted.context), Some(context));
                        }
                    }
                    Step::PutBack { rank } => {
                        if let Some(message) = matcher.take(Some((rank, 0)), 0, u64::MAX) {
                            let first = messages.iter().position(|(_, from, _)| *from == rank).unwrap();
                            prop_assert_eq!(message.header.id, messages[first].0);
                            let moved = messages.remove(first);
                            messages.insert(0, moved);
                            matcher.keep_first(message);
                        }
                    }
                }
            }
        }
    }

    fn looks(matcher: &Matcher) -> usize {
        matcher.directed.iter().chain([&matcher.wild]).map(|line| line.looks).sum::<usize>()
            + matcher.unexpected.iter().map(|waiting| waiting.messages.looks).sum::<usize>()
    }

    /// As MPI libraries ask: some bits of a tag never count.
    const UNCOUNTED_BITS: u64 = 0xff << 56;

    #[test]
    fn messages_in_the_opposite_order_of_their_receives_are_not_searched_for() {
        for source in [Some(0), None] {
            let (mut matcher, count) = (Matcher::default(), 3000);
            // A receive of any tag that came later is not in their way.
            for tag in 0..count {
                matcher.post(posted(source, tag, UNCOUNTED_BITS, tag as usize));
            }
            matcher.post(posted(source, 0, u64::MAX, usize::MAX));
            for tag in (0..count).rev() {
                let at = matcher.find_posted((0, 0), tag).unwrap();
                assert_eq!(matcher.remove(at).map(|posted| posted.context), Some(tag as usize));
            }
            let at = matcher.find_posted((0, 0), 5).unwrap();
            assert_eq!(matcher.remove(at).map(|posted| posted.context), Some(usize::MAX));
            assert!(looks(&matcher) < 10 * count as usize, "{} looks", looks(&matcher));
        }
    }

    #[test]
    fn receives_in_the_opposite_order_of_the_messages_are_not_searched_for() {
        for source in [Some((0, 0)), None] {
            let (mut matcher, count) = (Matcher::default(), 3000);
            for tag in 0..count {
                matcher.keep(message(0, tag, tag));
            }
            for tag in (0..count).rev() {
                assert!(matcher.peek(source, tag, UNCOUNTED_BITS).is_some());
                assert_eq!(matcher.take(source, tag, UNCOUNTED_BITS).map(|message| message.header.id), Some(tag));
            }
            assert!(looks(&matcher) < 20 * count as usize, "{} looks", looks(&matcher));
        }
    }

    #[test]
    fn a_receive_that_nothing_comes_for_keeps_no_places_of_those_behind_it() {
        let mut matcher = Matcher::default();
        matcher.post(posted(Some(0), 1, 0, 1));
        for number in 0..3000 {
            (0..4).for_each(|at| matcher.post(posted(Some(0), 10 + at, 0, 2)));
            for at in [2, 3, 1, 0] {
                let at = matcher.find_posted((0, 0), 10 + at).unwrap();
                matcher.remove(at).unwrap();
            }
            assert!(matcher.directed[0].places() < 100, "round {number}");
        }
    }
}
