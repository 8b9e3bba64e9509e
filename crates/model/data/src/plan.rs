//! Which source is asked for which range, what follows a fault, and who is to blame.
//!
//! ```text
//! missing ──next──► with a source ──delivered──► done
//!    ▲                   │
//!    └── passing fault, ─┤   another source, or this one again
//!        wrong bytes     └── no source is left that may serve it ──► lost
//! ```
//! Ranges are given out from the front. One source that ignores ranges is asked for all of them at once, since each of its answers is the whole file.
//! Invariants: every byte that is missing ends delivered or lost; a source that is out is asked nothing more; a block that a source delivered wrong
//! [`WRONG_TRIES`] times is not asked of it again. Faults are counted per source, and forgotten with every block it delivers: one outage that ends
//! several requests counts once.

use crate::ranges::{Range, merged};
use std::collections::BTreeMap;

/// How often one source may deliver one block wrong: once may be the network.
pub const WRONG_TRIES: u8 = 2;

/// What went wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// May pass: a broken connection, silence, a busy server.
    Passing(String),
    /// Will not pass: it changed, is not there, refuses.
    Final(String),
}

/// Names a request between [`FetchPlan::next`] and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What a source does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is asked for this range.
    Fetch(Ticket, Range),
    /// Nothing now: what others fetch may come back.
    Wait,
    /// Nothing any more.
    Done,
}

/// What follows a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The source is asked again, after so many faults in a row.
    Again(u32),
    /// The source is out.
    Out,
}

#[derive(Clone, Debug)]
struct Piece {
    range: Range,
    /// Who delivered it wrong, and how often.
    wrong: Vec<(usize, u8)>,
}

#[derive(Clone, Debug, Default)]
struct Asked {
    out: bool,
    sequential: bool,
    in_flight: usize,
    strikes: u32,
    /// Requests before this one belong to a strike that is counted.
    struck_before: u64,
    blame: Option<String>,
}

/// The plan of fetching some ranges of a file.
#[derive(Debug)]
pub struct FetchPlan {
    queue: BTreeMap<u64, Piece>,
    in_flight: BTreeMap<Ticket, (usize, Vec<Piece>)>,
    lost: Vec<Range>,
    sources: Vec<Asked>,
    tickets: u64,
    request_bytes: u64,
    attempts: u32,
}

impl FetchPlan {
    /// A plan for these ranges from so many sources: requests of at most `request_bytes`, `attempts` faults in a row before a source is out.
    #[must_use]
    pub fn new(missing: Vec<Range>, sources: usize, request_bytes: u64, attempts: u32) -> Self {
        let queue = merged(missing).into_iter().map(|range| (range.offset, Piece { range, wrong: Vec::new() })).collect();
        Self {
            queue,
            in_flight: BTreeMap::new(),
            lost: Vec::new(),
            sources: vec![Asked::default(); sources],
            tickets: 0,
            request_bytes: request_bytes.max(1),
            attempts: attempts.max(1),
        }
    }

    /// This source answers every request with the whole file. Whether that is news.
    pub fn ignores_ranges(&mut self, source: usize) -> bool {
        !std::mem::replace(&mut self.sources[source].sequential, true)
    }

    /// This source is not asked at all.
    pub fn leave_out(&mut self, source: usize, blame: String) {
        self.sources[source].out = true;
        self.sources[source].blame = Some(blame);
        self.drop_what_nobody_serves();
    }

    /// What a source does next.
    pub fn next(&mut self, source: usize) -> Next {
        let asked = &self.sources[source];
        let (sequential, busy) = (asked.sequential, asked.in_flight > 0);
        if asked.out {
            return Next::Done;
        }
        let servable = |piece: &Piece| !exhausted(piece, source);
        let first = self.queue.iter().find(|(_, piece)| servable(piece)).map(|(offset, _)| *offset);
        let Some(first) = first.filter(|_| !(sequential && busy)) else {
            return if self.in_flight.is_empty() && first.is_none() { Next::Done } else { Next::Wait };
        };
        let mut pieces = Vec::new();
        if sequential {
            let offsets: Vec<u64> = self.queue.iter().filter(|(_, piece)| servable(piece)).map(|(offset, _)| *offset).collect();
            pieces.extend(offsets.iter().filter_map(|offset| self.queue.remove(offset)));
        } else if let Some(mut piece) = self.queue.remove(&first) {
            if piece.range.length > self.request_bytes {
                let rest = Range::between(first + self.request_bytes, piece.range.end());
                self.queue.insert(rest.offset, Piece { range: rest, wrong: piece.wrong.clone() });
                piece.range.length = self.request_bytes;
            }
            pieces.push(piece);
        }
        let end = pieces.last().map_or(first, |piece| piece.range.end());
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.sources[source].in_flight += 1;
        self.in_flight.insert(ticket, (source, pieces));
        Next::Fetch(ticket, Range::between(first, end))
    }

    /// A request's bytes before this offset are there and good.
    pub fn delivered(&mut self, ticket: Ticket, end: u64) {
        let Some((source, pieces)) = self.in_flight.get_mut(&ticket) else { return };
        let before: u64 = pieces.iter().map(|piece| piece.range.length).sum();
        take_before(pieces, end);
        if before > pieces.iter().map(|piece| piece.range.length).sum() {
            self.sources[*source].strikes = 0;
        }
    }

    /// A block of a request has other bytes than it must. All before it are dealt with.
    pub fn wrong(&mut self, ticket: Ticket, block: Range, blame: &str) {
        let Some((source, pieces)) = self.in_flight.get_mut(&ticket) else { return };
        let source = *source;
        let Some(found) = pieces.iter().find(|piece| piece.range.offset <= block.offset && block.offset < piece.range.end()) else {
            return;
        };
        let mut wrong = found.wrong.clone();
        match wrong.iter_mut().find(|(who, _)| *who == source) {
            Some((_, times)) => *times += 1,
            None => wrong.push((source, 1)),
        }
        take_before(pieces, block.end());
        self.sources[source].blame = Some(blame.to_owned());
        self.queue.insert(block.offset, Piece { range: block, wrong });
        self.drop_what_nobody_serves();
    }

    /// A request has ended with all of its bytes delivered. If some were not, its source has failed.
    pub fn ended(&mut self, ticket: Ticket) -> Verdict {
        match self.in_flight.get(&ticket) {
            Some((_, pieces)) if !pieces.is_empty() => {
                self.failed(ticket, Fault::Passing("it sent fewer bytes than it was asked for".to_owned()))
            }
            Some(_) => {
                if let Some((source, _)) = self.in_flight.remove(&ticket) {
                    self.sources[source].in_flight -= 1;
                }
                Verdict::Again(0)
            }
            None => Verdict::Again(0),
        }
    }

    /// A request is given back, and nobody is to blame.
    pub fn give_back(&mut self, ticket: Ticket) {
        if let Some((source, pieces)) = self.in_flight.remove(&ticket) {
            self.queue.extend(pieces.into_iter().map(|piece| (piece.range.offset, piece)));
            self.sources[source].in_flight -= 1;
            self.drop_what_nobody_serves();
        }
    }

    /// A request has failed. What it did not deliver is missing again.
    pub fn failed(&mut self, ticket: Ticket, fault: Fault) -> Verdict {
        let Some((source, pieces)) = self.in_flight.remove(&ticket) else { return Verdict::Again(0) };
        self.queue.extend(pieces.into_iter().map(|piece| (piece.range.offset, piece)));
        let tickets = self.tickets;
        let asked = &mut self.sources[source];
        asked.in_flight -= 1;
        match fault {
            Fault::Final(blame) => (asked.out, asked.blame) = (true, Some(blame)),
            Fault::Passing(blame) => {
                asked.blame = Some(blame);
                if ticket.0 >= asked.struck_before {
                    asked.strikes += 1;
                    asked.struck_before = tickets;
                }
                asked.out |= asked.strikes >= self.attempts;
            }
        }
        let verdict = if asked.out { Verdict::Out } else { Verdict::Again(asked.strikes) };
        self.drop_what_nobody_serves();
        verdict
    }

    fn drop_what_nobody_serves(&mut self) {
        let sources = &self.sources;
        let served = |piece: &Piece| (0..sources.len()).any(|source| !sources[source].out && !exhausted(piece, source));
        let lost = &mut self.lost;
        self.queue.retain(|_, piece| {
            let served = served(piece);
            if !served {
                lost.push(piece.range);
            }
            served
        });
    }

    /// True if nothing is missing that any source may still deliver.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// True if a source is asked no more.
    #[must_use]
    pub fn is_out(&self, source: usize) -> bool {
        self.sources[source].out
    }

    /// What each source is blamed for, if anything: the last fault.
    #[must_use]
    pub fn blames(&self) -> Vec<Option<&str>> {
        self.sources.iter().map(|asked| asked.blame.as_deref()).collect()
    }

    /// What no source delivers.
    #[must_use]
    pub fn lost(&self) -> Vec<Range> {
        merged(self.lost.clone())
    }
}

fn exhausted(piece: &Piece, source: usize) -> bool {
    piece.wrong.iter().any(|(who, times)| *who == source && *times >= WRONG_TRIES)
}

/// Removes what is before an offset.
fn take_before(pieces: &mut Vec<Piece>, end: u64) {
    pieces.retain_mut(|piece| {
        if piece.range.offset < end {
            piece.range = Range::between(end, piece.range.end());
        }
        piece.range.length > 0
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(length: u64) -> Vec<Range> {
        vec![Range { offset: 0, length }]
    }

    fn fetch(plan: &mut FetchPlan, source: usize) -> (Ticket, Range) {
        match plan.next(source) {
            Next::Fetch(ticket, range) => (ticket, range),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ranges_are_given_out_from_the_front() {
        let mut plan = FetchPlan::new(all(25), 2, 10, 3);
        let (first, range) = fetch(&mut plan, 0);
        assert_eq!(range, Range { offset: 0, length: 10 });
        assert_eq!(fetch(&mut plan, 1).1.offset, 10);
        assert_eq!(fetch(&mut plan, 1).1, Range { offset: 20, length: 5 });
        assert_eq!(plan.next(0), Next::Wait);
        plan.delivered(first, 4);
        assert_eq!(plan.failed(first, Fault::Passing("broken".into())), Verdict::Again(1));
        assert_eq!(fetch(&mut plan, 0).1, Range { offset: 4, length: 6 });
    }

    #[test]
    fn an_outage_that_ends_several_requests_counts_once() {
        let mut plan = FetchPlan::new(all(40), 1, 10, 2);
        let tickets: Vec<Ticket> = (0..3).map(|_| fetch(&mut plan, 0).0).collect();
        for ticket in &tickets {
            assert_eq!(plan.failed(*ticket, Fault::Passing("reset".into())), Verdict::Again(1));
        }
        let (again, _) = fetch(&mut plan, 0);
        assert_eq!(plan.failed(again, Fault::Passing("reset".into())), Verdict::Out);
        assert_eq!((plan.lost(), plan.next(0), plan.blames()), (all(40), Next::Done, vec![Some("reset")]));
    }

    #[test]
    fn a_block_that_is_wrong_twice_is_another_source_s_and_the_rest_goes_on() {
        let mut plan = FetchPlan::new(all(20), 2, 20, 3);
        let block = Range { offset: 0, length: 10 };
        let (ticket, _) = fetch(&mut plan, 0);
        plan.wrong(ticket, block, "other bytes");
        plan.delivered(ticket, 20);
        assert_eq!(plan.ended(ticket), Verdict::Again(0));
        let (ticket, range) = fetch(&mut plan, 0);
        assert_eq!(range, block);
        plan.wrong(ticket, block, "other bytes");
        plan.ended(ticket);
        assert_eq!(plan.next(0), Next::Done);
        let (ticket, range) = fetch(&mut plan, 1);
        assert_eq!(range, block);
        plan.delivered(ticket, 10);
        plan.ended(ticket);
        assert_eq!((plan.next(1), plan.lost(), plan.blames()), (Next::Done, vec![], vec![Some("other bytes"), None]));
    }

    #[test]
    fn a_source_that_ignores_ranges_is_asked_once_for_all() {
        let mut plan = FetchPlan::new(vec![Range { offset: 10, length: 10 }, Range { offset: 40, length: 5 }], 1, 5, 3);
        plan.ignores_ranges(0);
        let (ticket, range) = fetch(&mut plan, 0);
        assert_eq!(range, Range { offset: 10, length: 35 });
        assert_eq!(plan.next(0), Next::Wait);
        plan.delivered(ticket, 42);
        plan.failed(ticket, Fault::Passing("reset".into()));
        assert_eq!(fetch(&mut plan, 0).1, Range { offset: 42, length: 3 });
    }

    #[test]
    fn a_request_that_ends_early_is_a_fault() {
        let mut plan = FetchPlan::new(all(10), 1, 10, 1);
        let (ticket, _) = fetch(&mut plan, 0);
        plan.delivered(ticket, 5);
        assert_eq!(plan.ended(ticket), Verdict::Out);
        assert!(plan.is_out(0) && plan.blames()[0].unwrap().contains("fewer bytes"));
    }

    proptest! {
        /// Whatever fails, each byte is delivered once or lost, and it ends.
        #[test]
        fn every_byte_is_delivered_once_or_lost(
            missing in prop::collection::vec((0_u64..20, 1_u64..6), 1..6), sources in 1_usize..4, sequential in any::<bool>(),
            request in 1_u64..6, events in prop::collection::vec((0_usize..4, 0_u8..6), 0..300),
        ) {
            let missing = merged(missing.into_iter().map(|(block, blocks)| Range { offset: block * 10, length: blocks * 10 }).collect());
            let mut plan = FetchPlan::new(missing.clone(), sources, request * 10, 3);
            if sequential {
                plan.ignores_ranges(0);
            }
            let mut flying: Vec<(Ticket, usize, u64, u64)> = Vec::new();
            let mut got: Vec<Range> = Vec::new();
            // After the drawn faults all goes well.
            for (source, event) in events.into_iter().chain((0..2000).flat_map(|_| (0..sources).map(|source| (source, 0)))) {
                let source = source % sources;
                if let Next::Fetch(ticket, range) = plan.next(source) {
                    prop_assert!(!plan.is_out(source));
                    flying.push((ticket, source, range.offset, range.end()));
                }
                let Some(at) = flying.iter().position(|(_, who, ..)| *who == source) else { continue };
                let (ticket, _, offset, end) = flying[at];
                let block = Range { offset, length: 10 };
                // What a sequential source sends between two gaps is not wanted, nor what it has sent wrong too often, which is another one's.
                let has = |piece: &Piece| piece.range.offset <= offset && offset < piece.range.end();
                let wanted = plan.in_flight.get(&ticket).is_some_and(|(_, pieces)| pieces.iter().any(has));
                match event {
                    _ if offset == end => {
                        plan.ended(ticket);
                        flying.remove(at);
                    }
                    3 => {
                        plan.failed(ticket, Fault::Passing("x".into()));
                        flying.remove(at);
                    }
                    4 if offset % 70 == 0 => {
                        plan.failed(ticket, Fault::Final("x".into()));
                        flying.remove(at);
                    }
                    5 => {
                        plan.wrong(ticket, block, "x");
                        flying[at].2 += 10;
                    }
                    _ => {
                        plan.delivered(ticket, block.end());
                        if wanted {
                            got.push(block);
                        }
                        flying[at].2 += 10;
                    }
                }
            }
            prop_assert!(flying.is_empty());
            for source in 0..sources {
                prop_assert_eq!(plan.next(source), Next::Done);
            }
            got.extend(plan.lost());
            let (sum, got) = (crate::ranges::total(&got), merged(got));
            prop_assert_eq!(sum, crate::ranges::total(&missing));
            prop_assert_eq!(got, missing);
        }
    }
}
