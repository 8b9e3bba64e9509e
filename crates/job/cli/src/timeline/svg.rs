//! A timeline as an SVG that needs nothing else: no scripts, no fonts, no other files. The job stands above; below it are the nodes, each
//! with the ranks that were on it. What is drawn tells more when it is pointed at.

use super::names;
use super::scale::Scale;
use mend_journal::text;
use mend_journal::timeline::{MarkKind, Operation, Outcome, Timeline, What};
use std::fmt::Write;

/// Ranks up to here have a row each on each node.
const MAX_SINGLE_ROWS: u64 = 64;
/// Rows of ranks, at most.
const MAX_ROWS: usize = 400;

const WIDTH: f64 = 1_200.0;
/// Columns of names, to the left of what is drawn.
const LEFT: f64 = 140.0;
const RIGHT: f64 = 24.0;
const ROW: f64 = 20.0;
const BAR: f64 = 14.0;
/// Narrower than this nothing is to be seen.
const LEAST_WIDTH: f64 = 1.5;

/// Fills of [`names::KINDS`].
const FILLS: [&str; 6] = ["#8fbf8f", "#d9d9d9", "#b7a5d8", "#f2c14e", "#4a78b5", "#d1495b"];
/// Of a rank that stands still for a checkpoint.
const CHECKPOINT: &str = FILLS[4];

/// A text as XML holds it.
fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for character in names::clean(text).chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// The whole document. `title`: the job, for people.
pub fn render(timeline: &Timeline, title: &str) -> String {
    let mut drawing = Drawing { timeline, scale: Scale::of(timeline), body: String::new(), y: 0.0 };
    drawing.head(title);
    let top = drawing.y;
    drawing.job();
    let places = drawing.nodes();
    // Behind the bars, but not known before them how long it is.
    let bars = std::mem::take(&mut drawing.body);
    drawing.grid(top);
    drawing.body.push_str(&bars);
    drawing.moves(&places);
    drawing.legend();
    let (height, body) = (drawing.y, drawing.body);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n",
        escaped(title)
    )
}

/// Where ranks are drawn on a node.
struct NodeBand<'a> {
    node: Option<&'a str>,
    ranks: mend_journal::ranks::Ranks,
    y: f64,
}

struct Drawing<'a> {
    timeline: &'a Timeline,
    scale: Scale,
    body: String,
    y: f64,
}

impl<'a> Drawing<'a> {
    fn x(&self, at: u64) -> f64 {
        LEFT + self.scale.place(at) * (WIDTH - LEFT - RIGHT)
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "{line}");
    }

    fn words(&mut self, x: f64, y: f64, more: &str, words: &str) {
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\"{more}>{}</text>", escaped(words)));
    }

    /// A bar with what is told when it is pointed at.
    fn bar(&mut self, (begin, end): (u64, u64), (y, height): (f64, f64), fill: &str, told: &str) {
        let x = self.x(begin);
        let width = (self.x(end) - x).max(LEAST_WIDTH);
        let told = escaped(told);
        self.put(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height}\" fill=\"{fill}\"><title>{told}</title></rect>"
        ));
    }

    /// "from 1.000 s, for 20.0 ms".
    fn when(&self, begin: u64, end: u64) -> String {
        let since = names::since(self.timeline.begin, begin);
        format!("from {since}, for {}", names::long(end.saturating_sub(begin)))
    }

    fn head(&mut self, title: &str) {
        self.words(8.0, 20.0, " font-size=\"15\" font-weight=\"bold\"", title);
        let begun = format!("0 is {} UTC", crate::report::precise_time(self.timeline.begin));
        let ended = self.timeline.lives.last().map_or(names::NO_BEGINNING, |life| life.ended.as_deref().unwrap_or("it runs"));
        self.words(8.0, 38.0, " fill=\"#555555\"", &format!("{begun}; {ended}"));
        self.y = 64.0;
    }

    fn job(&mut self) {
        let y = self.y;
        self.words(8.0, y + BAR - 3.0, " font-weight=\"bold\"", "job");
        for life in &self.timeline.lives {
            let what = life.from_checkpoint.map_or_else(|| "the job".to_owned(), |from| format!("the job, from checkpoint {from}"));
            let ended = life.ended.as_ref().map_or_else(String::new, |ended| format!("; {ended}"));
            let told = format!("{what}: {}{ended}", self.when(life.begin, life.end));
            self.bar((life.begin, life.end), (y, BAR), "#c9d6df", &told);
        }
        self.y += ROW;
        let y = self.y;
        self.words(8.0, y + BAR - 3.0, "", "checkpoints");
        for operation in self.timeline.operations.iter().filter(|one| matches!(one.what, What::Checkpoint { .. })) {
            let fill = if matches!(operation.outcome, Outcome::Failed { .. }) { "#e8a0a0" } else { "#a9c4e4" };
            let told = self.told(operation);
            self.bar((operation.begin, operation.end), (y, BAR), fill, &told);
            if let Some(stopped) = operation.stopped() {
                self.bar(stopped, (y, BAR), CHECKPOINT, &told);
            }
        }
        self.y += ROW;
        let y = self.y;
        self.words(8.0, y + BAR - 3.0, "", "events");
        for mark in &self.timeline.marks {
            let fill = match mark.kind {
                MarkKind::Ended => "#333333",
                MarkKind::NodeLost | MarkKind::RankEnded => "#c00000",
                MarkKind::Trouble | MarkKind::EndAsked => "#e07b00",
                MarkKind::Decision => "#3a6ea5",
                MarkKind::Mended => "#2e8b57",
            };
            let (x, middle) = (self.x(mark.at), y + BAR / 2.0);
            let told = escaped(&format!("{}: {}", names::since(self.timeline.begin, mark.at), mark.text));
            self.put(format_args!(
                "<path d=\"M{:.2} {middle:.1} L{x:.2} {y:.1} L{:.2} {middle:.1} L{x:.2} {:.1} Z\" fill=\"{fill}\"><title>{told}</title></path>",
                x - 4.0,
                x + 4.0,
                y + BAR
            ));
        }
        self.y += ROW;
    }

    /// What is told of an operation, with its phases.
    fn told(&self, operation: &Operation) -> String {
        let size = operation.bytes.map(|bytes| format!("{} in all", text::size(bytes)));
        let stopped = operation.stopped_us.map(|us| format!("stopped for {}", text::duration(us)));
        let first = format!("{}: {}", names::operation(operation), self.when(operation.begin, operation.end));
        let sent = operation.sent_bytes.map(|bytes| format!("sent as {}", text::size(bytes)));
        let lines = [Some(first), names::outcome(operation), stopped, size, sent].into_iter().flatten();
        lines.chain(names::phases(operation)).collect::<Vec<_>>().join("; ")
    }

    /// The nodes and the ranks on each; where these are drawn.
    fn nodes(&mut self) -> Vec<NodeBand<'a>> {
        let timeline = self.timeline;
        let rows = names::rows(timeline, MAX_SINGLE_ROWS);
        let mut places = Vec::new();
        let mut more = 0;
        for node in names::nodes(timeline, &rows) {
            let there = |row: &&names::Row<'_>| row.spans.iter().any(|span| span.node.as_deref() == node);
            let mut there = rows.iter().filter(there).peekable();
            if there.peek().is_none() {
                continue;
            }
            self.y += 6.0;
            let y = self.y;
            self.words(8.0, y + BAR - 3.0, " font-weight=\"bold\"", &names::shortened(&names::node(node), 20));
            self.y += ROW - 2.0;
            for row in there {
                if places.len() >= MAX_ROWS {
                    more += 1;
                    continue;
                }
                let (y, name) = (self.y, names::ranks(&row.ranks));
                self.words(20.0, y + BAR - 3.0, "", &names::shortened(&name, 18));
                for span in row.spans.iter().filter(|span| span.node.as_deref() == node) {
                    let (what, when) = (names::activity(span.activity), self.when(span.begin, span.end));
                    let told = format!("{name} on {}: {what}; {when}", names::node(node));
                    self.bar((span.begin, span.end), (y, BAR), FILLS[names::kind(span.activity)], &told);
                }
                places.push(NodeBand { node, ranks: row.ranks.clone(), y });
                self.y += ROW;
            }
        }
        if more > 0 {
            let y = self.y;
            self.words(20.0, y + BAR - 3.0, "", &format!("… {more} more"));
            self.y += ROW;
        }
        places
    }

    /// The axis above, and lines down from it.
    fn grid(&mut self, top: f64) {
        let bottom = self.y;
        for tick in self.scale.ticks(self.timeline.begin, 0.08) {
            let x = LEFT + tick.place * (WIDTH - LEFT - RIGHT);
            self.put(format_args!(
                "<line x1=\"{x:.2}\" y1=\"{:.1}\" x2=\"{x:.2}\" y2=\"{bottom:.1}\" stroke=\"#000000\" stroke-opacity=\"0.12\"/>",
                top - 4.0
            ));
            // What begins at the right edge would end beyond it.
            let anchor = if tick.place > 0.96 { " text-anchor=\"end\"" } else { "" };
            self.words(x, top - 8.0, &format!(" fill=\"#555555\"{anchor}"), &tick.name);
        }
        let cuts: Vec<(f64, f64)> = self.scale.cuts().collect();
        for (from, to) in cuts {
            let (x, width) = (LEFT + from * (WIDTH - LEFT - RIGHT), (to - from) * (WIDTH - LEFT - RIGHT));
            self.put(format_args!(
                "<rect x=\"{x:.2}\" y=\"{top:.1}\" width=\"{width:.2}\" height=\"{:.1}\" fill=\"#eeeeee\"><title>the job did not run: not to \
                 scale</title></rect>",
                bottom - top
            ));
        }
    }

    /// An arrow for each move from node to node.
    fn moves(&mut self, places: &[NodeBand<'_>]) {
        for operation in &self.timeline.operations {
            let (What::Migration { rank, from, to, .. }, Some(decided)) = (&operation.what, operation.decided) else { continue };
            let at = |node: &str| places.iter().find(|place| place.node == Some(node) && place.ranks.contains(*rank)).map(|place| place.y);
            let (Some(source), Some(target)) = (at(from), at(to)) else { continue };
            let (x, told) = (self.x(decided), escaped(&self.told(operation)));
            let (start, tip, back) = if target > source { (source + BAR, target, -6.0) } else { (source, target + BAR, 6.0) };
            self.put(format_args!(
                "<path d=\"M{x:.2} {start:.1} L{x:.2} {tip:.1} M{:.2} {:.1} L{x:.2} {tip:.1} L{:.2} {:.1}\" stroke=\"#222222\" \
                 stroke-width=\"1.4\" fill=\"none\"><title>{told}</title></path>",
                x - 4.0,
                tip + back,
                x + 4.0,
                tip + back
            ));
        }
    }

    fn legend(&mut self) {
        self.y += 10.0;
        let (y, mut x) = (self.y, 20.0);
        for (name, fill) in names::KINDS.into_iter().zip(FILLS) {
            self.put(format_args!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{fill}\"/>"));
            self.words(x + BAR + 5.0, y + BAR - 3.0, "", name);
            x += 40.0 + 6.2 * name.len() as f64;
        }
        self.words(x, y + BAR - 3.0, "", "arrow: a move to another node");
        self.y += ROW + 6.0;
    }
}
