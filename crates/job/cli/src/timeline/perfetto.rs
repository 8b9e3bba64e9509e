//! A timeline as a trace for <https://ui.perfetto.dev>: a node is a process, a rank on it a thread, what it does a slice, and a move from
//! node to node a flow. The job is a process, too, with its lives, its operations, and what else happened.
//!
//! The messages are those of Perfetto's `protos/perfetto/trace`, with the fields that are written here.

use super::names;
use mend_journal::event::Phase;
use mend_journal::text;
use mend_journal::timeline::{Activity, Operation, Span, Timeline, What};
use prost::Message;
use std::collections::BTreeMap;

/// Slices of all ranks up to which each rank has a thread; of more, those that did the same share one.
const SINGLE_SLICES: u64 = 400_000;
/// All packets are of one sequence.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: nothing that came before is referred to.
const STATE_CLEARED: u32 = 1;
/// `TrackEvent.Type`.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;

/// `trace.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(super) packet: Vec<TracePacket>,
}

/// `trace_packet.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

/// `track_event/track_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
}

/// `track_event/process_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

/// `track_event/thread_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub(super) tid: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub(super) thread_name: Option<String>,
}

/// `track_event/track_event.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub(super) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    pub(super) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flow_ids: Vec<u64>,
}

/// `track_event/debug_annotation.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub(super) string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub(super) name: Option<String>,
}

/// The trace, as it stands in a file. `title`: the job, for people.
pub fn render(timeline: &Timeline, title: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.job(timeline, title);
    writer.nodes(timeline);
    // Tracks first, which have no time; then events by time, those of a track as they came.
    writer.packets.sort_by_key(|packet| packet.timestamp);
    Trace { packet: writer.packets }.encode_to_vec()
}

/// What is drawn on a track.
#[derive(Clone, Debug, PartialEq)]
struct Slice {
    begin: u64,
    end: u64,
    name: String,
    category: &'static str,
    notes: Vec<DebugAnnotation>,
    flows: Vec<u64>,
}

impl Slice {
    fn new(begin: u64, end: u64, name: impl Into<String>, category: &'static str) -> Self {
        Self { begin, end: end.max(begin), name: name.into(), category, notes: Vec::new(), flows: Vec::new() }
    }

    fn number(mut self, name: &str, value: Option<u64>) -> Self {
        self.notes.extend(value.map(|value| DebugAnnotation { uint_value: Some(value), string_value: None, name: Some(name.into()) }));
        self
    }

    fn text(mut self, name: &str, value: Option<String>) -> Self {
        self.notes.extend(value.map(|value| DebugAnnotation { uint_value: None, string_value: Some(value), name: Some(name.into()) }));
        self
    }
}

#[derive(Debug, Default)]
struct Writer {
    packets: Vec<TracePacket>,
    tracks: u64,
    threads: i64,
    processes: i32,
}

impl Writer {
    fn put(&mut self, packet: TracePacket) {
        let sequence_flags = self.packets.is_empty().then_some(STATE_CLEARED);
        self.packets.push(TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), sequence_flags, ..packet });
    }

    fn track(&mut self, descriptor: TrackDescriptor) -> u64 {
        self.tracks += 1;
        let descriptor = TrackDescriptor { uuid: Some(self.tracks), ..descriptor };
        self.put(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() });
        self.tracks
    }

    /// A process: its track and its number.
    fn process(&mut self, name: String) -> (u64, i32) {
        self.processes += 1;
        let pid = self.processes;
        let process = ProcessDescriptor { pid: Some(pid), process_name: Some(name) };
        (self.track(TrackDescriptor { process: Some(process), ..TrackDescriptor::default() }), pid)
    }

    fn thread(&mut self, (parent, pid): (u64, i32), name: String) -> u64 {
        self.threads += 1;
        // A thread with the number of its process would be its main thread.
        let tid = 1_000_000 + self.threads;
        let thread = ThreadDescriptor { pid: Some(pid), tid: Some(tid), thread_name: Some(name) };
        self.track(TrackDescriptor { thread: Some(thread), parent_uuid: Some(parent), ..TrackDescriptor::default() })
    }

    fn event(&mut self, at: u64, event: TrackEvent) {
        self.put(TracePacket { timestamp: Some(at.saturating_mul(1_000)), track_event: Some(event), ..TracePacket::default() });
    }

    /// Slices of a track. They may nest; what reaches out of the one around it ends with that one.
    fn slices(&mut self, track: u64, mut slices: Vec<Slice>) {
        slices.sort_by_key(|slice| (slice.begin, std::cmp::Reverse(slice.end)));
        let mut open: Vec<u64> = Vec::new();
        for slice in slices {
            self.close(track, &mut open, slice.begin);
            let end = open.last().map_or(slice.end, |around| slice.end.min(*around));
            let event = TrackEvent {
                debug_annotations: slice.notes,
                r#type: Some(SLICE_BEGIN),
                track_uuid: Some(track),
                categories: vec![slice.category.into()],
                name: Some(slice.name),
                flow_ids: slice.flows,
            };
            self.event(slice.begin, event);
            open.push(end);
        }
        self.close(track, &mut open, u64::MAX);
    }

    /// Ends what is open and has ended by then.
    fn close(&mut self, track: u64, open: &mut Vec<u64>, by: u64) {
        while let Some(end) = open.pop_if(|end| *end <= by) {
            self.event(end, TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(track), ..TrackEvent::default() });
        }
    }

    fn job(&mut self, timeline: &Timeline, title: &str) {
        let job = self.process(names::clean(title));
        let lives = self.thread(job, "lives".into());
        let life = |life: &mend_journal::timeline::Life| {
            let name = life.from_checkpoint.map_or_else(|| "started".into(), |from| format!("restarted from checkpoint {from}"));
            Slice::new(life.begin, life.end, name, "job").text("end", life.ended.clone())
        };
        self.slices(lives, timeline.lives.iter().map(life).collect());
        let events = self.thread(job, "events".into());
        for mark in &timeline.marks {
            let event = TrackEvent {
                r#type: Some(INSTANT),
                track_uuid: Some(events),
                categories: vec!["job".into()],
                name: Some(mark.text.clone()),
                ..TrackEvent::default()
            };
            self.event(mark.at, event);
        }
        // Operations may overlap: those of a kind that do are on tracks of their own.
        for (kind, operations) in kinds(timeline) {
            for lane in lanes(&operations) {
                let track = self.thread(job, kind.into());
                self.slices(track, lane.into_iter().flat_map(of_operation).collect());
            }
        }
    }

    fn nodes(&mut self, timeline: &Timeline) {
        // A rank has a slice for each checkpoint, and one after it.
        let each = timeline.operations.len() as u64 * 2 + 1;
        let rows = names::rows(timeline, SINGLE_SLICES / each);
        let moves: Vec<(u64, &Operation)> =
            (1..).zip(timeline.operations.iter().filter(|one| matches!(one.what, What::Migration { .. }))).collect();
        for node in names::nodes(timeline, &rows) {
            let mut process = None;
            for row in &rows {
                let here = |span: &&Span| span.node.as_deref() == node;
                let mut slices: Vec<Slice> = row.spans.iter().filter(here).map(|span| of_span(span, &row.ranks.to_string())).collect();
                for (flow, operation) in moves.iter().filter(|(_, operation)| is_of(operation, row)) {
                    slices.extend(of_move(operation, node));
                    mark_flow(operation, *flow, node, &mut slices);
                }
                if !slices.is_empty() {
                    let process = *process.get_or_insert_with(|| self.process(names::node(node)));
                    let thread = self.thread(process, names::ranks(&row.ranks));
                    self.slices(thread, slices);
                }
            }
        }
    }
}

/// Operations by kind, and what their tracks are called.
fn kinds(timeline: &Timeline) -> BTreeMap<&'static str, Vec<&Operation>> {
    let mut kinds: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &timeline.operations {
        let kind = match operation.what {
            What::Start | What::Restart { .. } => "starts",
            What::Checkpoint { .. } => "checkpoints",
            What::Migration { .. } => "moves",
        };
        kinds.entry(kind).or_default().push(operation);
    }
    kinds
}

/// Operations in lanes in which none overlaps another.
fn lanes<'a>(operations: &[&'a Operation]) -> Vec<Vec<&'a Operation>> {
    let mut lanes: Vec<Vec<&Operation>> = Vec::new();
    for operation in operations {
        let free = lanes.iter_mut().find(|lane| lane.last().is_none_or(|last| last.end <= operation.begin));
        match free {
            Some(lane) => lane.push(operation),
            None => lanes.push(vec![operation]),
        }
    }
    lanes
}

/// An operation with its phases.
fn of_operation(operation: &Operation) -> Vec<Slice> {
    let whole = Slice::new(operation.begin, operation.end, names::operation(operation), "operation")
        .number("bytes", operation.bytes)
        .number("sent_bytes", operation.sent_bytes)
        .text("stopped", operation.stopped_us.map(text::duration))
        .text("outcome", names::outcome(operation));
    let phases = operation.phases.iter().map(|step| Slice::new(step.begin, step.end, step.phase.name(), "phase"));
    [whole].into_iter().chain(phases).collect()
}

fn of_span(span: &Span, ranks: &str) -> Slice {
    let category = match span.activity {
        Activity::Checkpoint { .. } => "checkpoint",
        Activity::Copying | Activity::Moving => "move",
        _ => "rank",
    };
    Slice::new(span.begin, span.end, names::activity(span.activity), category).text("ranks", Some(ranks.into()))
}

fn is_of(operation: &Operation, row: &names::Row<'_>) -> bool {
    matches!(operation.what, What::Migration { rank, .. } if row.ranks.contains(rank))
}

/// The phases and rounds of a move that were on this node.
fn of_move(operation: &Operation, node: Option<&str>) -> Vec<Slice> {
    let What::Migration { from, to, .. } = &operation.what else { return Vec::new() };
    let mut slices = Vec::new();
    for step in &operation.phases {
        let there = matches!(step.phase, Phase::Read | Phase::Rebuild) || operation.decided.is_some_and(|decided| step.begin >= decided);
        let there = if there { to } else { from };
        // What is over before anything is done to the rank is to be seen with the operation.
        if Some(there.as_str()) == node && !matches!(step.phase, Phase::Inspect | Phase::Compare | Phase::Wait | Phase::Precopy) {
            slices.push(Slice::new(step.begin, step.end, step.phase.name(), "phase"));
        }
    }
    let copied = operation.phases.iter().find(|step| step.phase == Phase::Precopy).map_or(0, |step| step.begin);
    for round in operation.rounds.iter().filter(|_| Some(from.as_str()) == node) {
        let slice = Slice::new(round.begin.max(copied), round.end, format!("round {}", round.round), "round");
        slices.push(slice.number("bytes", Some(round.bytes)).number("left", round.left));
    }
    slices
}

/// Ties the last slice on the source to the first one on the target.
fn mark_flow(operation: &Operation, flow: u64, node: Option<&str>, slices: &mut [Slice]) {
    let (What::Migration { from, to, .. }, Some(decided)) = (&operation.what, operation.decided) else { return };
    let of_rank = |slice: &&mut Slice| matches!(slice.category, "move" | "rank" | "checkpoint");
    let found = if Some(from.as_str()) == node {
        slices.iter_mut().filter(of_rank).filter(|slice| slice.end <= decided).max_by_key(|slice| slice.end)
    } else if Some(to.as_str()) == node {
        slices.iter_mut().filter(of_rank).filter(|slice| slice.begin >= decided).min_by_key(|slice| slice.begin)
    } else {
        None
    };
    if let Some(slice) = found {
        slice.flows.push(flow);
    }
}
