//! Where ranks are and whether they run, for many at once; and what they do, once all operations are known.

use super::{Activity, Operation, Outcome, Span, Track, What};
use crate::event::Phase;
use crate::ranks::Ranks;
use std::collections::BTreeMap;

/// Checkpoints' stops on all tracks together; of more, the newest are drawn.
const MAX_STOPS: usize = 1_000_000;

/// Being somewhere.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stay {
    pub(super) begin: u64,
    /// `None`: it lasts.
    pub(super) end: Option<u64>,
    pub(super) node: Option<String>,
    /// One of starting, restoring, running.
    pub(super) activity: Activity,
}

/// Ranks that had the same history up to now.
#[derive(Clone, Debug)]
struct Group {
    ranks: Ranks,
    stays: Vec<Stay>,
    /// Those that have not begun to run since they were placed.
    waiting: Ranks,
}

impl Group {
    fn open(&mut self) -> Option<&mut Stay> {
        self.stays.last_mut().filter(|stay| stay.end.is_none())
    }

    fn close(&mut self, at: u64) {
        if let Some(stay) = self.open() {
            stay.end = Some(at.max(stay.begin));
        }
    }

    fn begin(&mut self, at: u64, node: Option<String>, activity: Activity) {
        self.close(at);
        let begin = self.stays.last().and_then(|stay| stay.end).map_or(at, |end| end.max(at));
        self.stays.push(Stay { begin, end: None, node, activity });
    }
}

/// The history of all ranks. Each is in one group at most.
#[derive(Debug, Default)]
pub(super) struct History {
    groups: Vec<Group>,
}

impl History {
    /// The groups that hold exactly these ranks, split off from larger ones; ranks that were in none have one now.
    fn cut(&mut self, ranks: &Ranks) -> Vec<usize> {
        let mut missing = ranks.clone();
        let mut found = Vec::new();
        for at in 0..self.groups.len() {
            if missing.is_empty() {
                break;
            }
            let common = self.groups[at].ranks.intersection(&missing);
            if common.is_empty() {
                continue;
            }
            missing = missing.without(&common);
            if common == self.groups[at].ranks {
                found.push(at);
                continue;
            }
            let group = &mut self.groups[at];
            let part = Group { ranks: common.clone(), stays: group.stays.clone(), waiting: group.waiting.intersection(&common) };
            group.ranks = group.ranks.without(&common);
            group.waiting = group.waiting.without(&common);
            found.push(self.groups.len());
            self.groups.push(part);
        }
        if !missing.is_empty() {
            found.push(self.groups.len());
            self.groups.push(Group { ranks: missing, stays: Vec::new(), waiting: Ranks::default() });
        }
        found
    }

    /// From now on these ranks are there.
    pub(super) fn place(&mut self, ranks: &Ranks, at: u64, node: Option<&str>, activity: Activity) {
        for group in self.cut(ranks) {
            let group = &mut self.groups[group];
            group.begin(at, node.map(str::to_owned), activity);
            group.waiting = if activity == Activity::Starting { group.ranks.clone() } else { Ranks::default() };
        }
    }

    /// A rank's program runs. Those that were placed with it count as running when all of them do.
    pub(super) fn started(&mut self, rank: u32, at: u64, node: Option<&str>) {
        let Some(group) = self.groups.iter_mut().find(|group| group.ranks.contains(rank)) else {
            return self.place(&Ranks::from_iter([rank]), at, node, Activity::Running);
        };
        match group.open().map(|stay| stay.activity) {
            Some(Activity::Starting) => {
                group.waiting.remove(rank);
                if group.waiting.is_empty() {
                    let node = group.open().and_then(|stay| stay.node.clone());
                    group.begin(at, node, Activity::Running);
                }
            }
            Some(_) => {}
            None => self.place(&Ranks::from_iter([rank]), at, node, Activity::Running),
        }
    }

    /// All ranks that are being rebuilt, or started, run.
    pub(super) fn resumed(&mut self, at: u64) {
        for group in &mut self.groups {
            if let Some(node) = group.open().filter(|stay| stay.activity != Activity::Running).map(|stay| stay.node.clone()) {
                group.begin(at, node, Activity::Running);
            }
        }
    }

    /// A rank is on another node from now on. If it was nowhere, it has been on `from` since `since`.
    pub(super) fn moved(&mut self, rank: u32, at: u64, since: u64, from: &str, to: &str) {
        for group in self.cut(&Ranks::from_iter([rank])) {
            let group = &mut self.groups[group];
            match group.open() {
                Some(stay) if stay.node.as_deref() == Some(to) => continue,
                Some(_) => {}
                None => group.begin(since.min(at), Some(from.to_owned()), Activity::Running),
            }
            group.begin(at, Some(to.to_owned()), Activity::Running);
        }
    }

    /// These ranks are no more.
    pub(super) fn ended(&mut self, ranks: &Ranks, at: u64) {
        for group in self.cut(ranks) {
            self.groups[group].close(at);
        }
        self.groups.retain(|group| !group.stays.is_empty());
        for group in &mut self.groups {
            // The others may have waited for these alone.
            if group.waiting.is_empty()
                && let Some(node) = group.open().filter(|stay| stay.activity == Activity::Starting).map(|stay| stay.node.clone())
            {
                group.begin(at, node, Activity::Running);
            }
        }
    }

    /// No rank is any more.
    pub(super) fn all_ended(&mut self, at: u64) {
        self.groups.iter_mut().for_each(|group| group.close(at));
    }

    /// Ranks that are somewhere, or were at any time since then.
    pub(super) fn known_since(&self, since: u64) -> Ranks {
        let lately = |stay: &Stay| stay.end.is_none() || stay.begin >= since;
        let known = self.groups.iter().filter(|group| group.stays.last().is_some_and(lately));
        Ranks::from(known.flat_map(|group| Vec::from(group.ranks.clone())).collect::<Vec<(u32, u32)>>())
    }

    /// What the ranks did, given all operations. Those whose histories differ by less than `tolerance` share a track.
    pub(super) fn tracks(self, operations: &[Operation], end: u64, tolerance: u64) -> Vec<Track> {
        let mut moves: BTreeMap<u32, Vec<Interval>> = BTreeMap::new();
        let mut stops = Vec::new();
        for operation in operations {
            match &operation.what {
                What::Migration { rank, .. } => moves.entry(*rank).or_default().extend(of_move(operation)),
                What::Checkpoint { checkpoint, .. } => {
                    let activity = Activity::Checkpoint { checkpoint: *checkpoint };
                    stops.extend(operation.stopped().map(|(begin, end)| Interval { begin, end, activity }));
                }
                What::Start | What::Restart { .. } => {}
            }
        }
        let moving: Ranks = moves.keys().copied().collect();
        let (mut alone, mut alike) = (Vec::new(), Vec::new());
        for group in self.groups {
            let moved = group.ranks.intersection(&moving);
            for rank in Vec::from(moved.clone()).into_iter().flat_map(|(first, last)| first..=last) {
                alone.push((rank, group.stays.clone()));
            }
            let ranks = group.ranks.without(&moved);
            if !ranks.is_empty() {
                alike.push((ranks, group.stays));
            }
        }
        let alike = joined(alike, tolerance);
        stops.sort_by_key(|stop| stop.begin);
        stops.drain(..stops.len().saturating_sub(MAX_STOPS / (alone.len() + alike.len()).max(1)));
        let mut tracks: Vec<Track> = Vec::new();
        for (rank, stays) in alone {
            let own = moves.get(&rank).map_or(&[][..], Vec::as_slice);
            tracks.push(Track { ranks: Ranks::from_iter([rank]), spans: spans(&stays, &[own, &stops].concat(), end) });
        }
        tracks.extend(alike.into_iter().map(|(ranks, stays)| Track { ranks, spans: spans(&stays, &stops, end) }));
        tracks.sort_by_key(|track| Vec::from(track.ranks.clone()).first().copied());
        tracks
    }
}

/// What a rank that is somewhere does there for a while instead of running.
#[derive(Clone, Copy, Debug)]
struct Interval {
    begin: u64,
    end: u64,
    activity: Activity,
}

/// What a rank does while it moves.
fn of_move(operation: &Operation) -> Vec<Interval> {
    let mut found: Vec<Interval> = Vec::new();
    let mut add = |begin: u64, end: u64, activity: Activity| match found.last_mut() {
        Some(last) if last.activity == activity => last.end = last.end.max(end),
        _ => found.push(Interval { begin, end, activity }),
    };
    let mut still = false;
    let mut copied = false;
    for step in &operation.phases {
        match step.phase {
            Phase::Precopy => {
                add(step.begin, step.end, Activity::Copying);
                copied = true;
            }
            Phase::Undo if !still => {}
            Phase::Undo | Phase::Suspend | Phase::Move | Phase::Connect | Phase::Resume => {
                if copied && !still {
                    // Each phase is timed where it happens: what lies between the last round and the stop is neither's.
                    add(step.begin, step.begin, Activity::Copying);
                }
                add(step.begin, step.end, Activity::Moving);
                still = true;
            }
            _ => {}
        }
    }
    if let (false, false, Some(first), Some(last)) = (copied, still, operation.rounds.first(), operation.rounds.last()) {
        let end = if operation.outcome == Outcome::UnderWay { operation.end } else { last.end };
        add(first.begin, end.max(first.begin), Activity::Copying);
    }
    if let Some((begin, end)) = operation.stopped().filter(|_| !still) {
        // A summary's: no phases, no rounds.
        if matches!(operation.what, What::Migration { live: true, .. }) && !copied {
            add(operation.begin, begin, Activity::Copying);
        }
        add(begin, end, Activity::Moving);
    }
    if still && operation.outcome == Outcome::UnderWay {
        add(operation.end, operation.end, Activity::Moving);
    }
    found
}

/// Stays with what is done meanwhile.
fn spans(stays: &[Stay], intervals: &[Interval], end: u64) -> Vec<Span> {
    let mut intervals = intervals.to_vec();
    intervals.sort_by_key(|interval| (interval.begin, interval.end));
    let mut spans: Vec<Span> = Vec::new();
    for stay in stays {
        let stay_end = stay.end.unwrap_or(end).max(stay.begin);
        let span = |begin, end, activity| Span { begin, end, node: stay.node.clone(), activity };
        let mut at = stay.begin;
        let meanwhile = intervals.iter().filter(|one| one.end >= stay.begin && one.begin <= stay_end);
        for one in meanwhile.filter(|_| stay.activity == Activity::Running) {
            let (begin, until) = (one.begin.max(at), one.end.min(stay_end));
            if until < begin || (until == begin && one.begin < one.end) {
                continue;
            }
            if begin > at {
                spans.push(span(at, begin, Activity::Running));
            }
            spans.push(span(begin, until, one.activity));
            at = until;
        }
        if at < stay_end || at == stay.begin {
            spans.push(span(at, stay_end, stay.activity));
        }
    }
    spans
}

/// Ranks with what they did.
type Alike = (Ranks, Vec<Stay>);

/// Joins ranks that did the same at about the same time.
fn joined(groups: Vec<Alike>, tolerance: u64) -> Vec<Alike> {
    let mut kinds: BTreeMap<Vec<(Option<String>, Activity)>, Vec<Alike>> = BTreeMap::new();
    for group in groups {
        let kind = group.1.iter().map(|stay| (stay.node.clone(), stay.activity)).collect();
        kinds.entry(kind).or_default().push(group);
    }
    let mut found: Vec<Alike> = Vec::new();
    for (_, mut alike) in kinds {
        alike.sort_by_key(|(_, stays)| stays.iter().map(|stay| (stay.begin, stay.end)).collect::<Vec<_>>());
        let first = found.len();
        for (ranks, stays) in alike {
            match found[first..].last_mut().filter(|last| near(&last.1, &stays, tolerance)) {
                Some((all, _)) => {
                    *all = Ranks::from([Vec::from(std::mem::take(all)), Vec::from(ranks)].concat());
                }
                None => found.push((ranks, stays)),
            }
        }
    }
    found
}

fn near(one: &[Stay], other: &[Stay], tolerance: u64) -> bool {
    let times = |stays: &[Stay]| stays.iter().flat_map(|stay| [Some(stay.begin), stay.end]).collect::<Vec<_>>();
    times(one).into_iter().zip(times(other)).all(|pair| match pair {
        (Some(one), Some(other)) => one.abs_diff(other) <= tolerance,
        (one, other) => one == other,
    })
}
