//! A timeline as text that fits a terminal: a chart with a line for the job and one for each rank, or for ranks that did the same; then
//! its operations with their phases, and what else happened.

use super::names;
use super::scale::Scale;
use mend_journal::ranks::Ranks;
use mend_journal::text;
use mend_journal::timeline::{Mark, Operation, Outcome, Span, Timeline, What};
use std::collections::{BTreeMap, BTreeSet};

/// Ranks up to here have a line each.
const MAX_LINES: u64 = 16;
/// Lines of ranks, at most.
const MAX_ROWS: usize = 60;
/// Operations that are listed: the newest.
const MAX_OPERATIONS: usize = 40;
/// Marks that are listed: the newest.
const MAX_MARKS: usize = 20;
/// Columns of the names of ranks, at most.
const MAX_NAME: usize = 18;
/// Columns of the chart, at least, whatever the terminal has.
const MIN_COLUMNS: usize = 30;

/// How each of [`names::KINDS`] is drawn: a column shows the one that is furthest down.
const SIGNS: [char; 6] = ['─', '·', '░', '≈', '█', '▓'];
/// Where a rank ended badly, or its node was lost.
const LOST: char = '×';
/// Where the axis is not to scale.
const CUT: char = '┊';

/// All of it, `width` columns wide. `title`: the job, for people.
pub fn render(timeline: &Timeline, title: &str, width: usize) -> String {
    let rows = names::rows(timeline, MAX_LINES);
    let single = rows.iter().all(|row| row.ranks.count() == 1);
    let longest = rows.iter().map(|row| names::ranks(&row.ranks).chars().count()).max().unwrap_or(0);
    let margin = if single { longest.clamp(3, MAX_NAME) } else { MAX_NAME } + 2;
    let columns = width.saturating_sub(margin).max(MIN_COLUMNS);
    let chart = Chart { timeline, scale: Scale::of(timeline), columns };
    let line = |name: &str, cells: String| format!("{name:margin$}{cells}").trim_end().to_owned();
    let mut lines = vec![names::clean(title), standing(timeline), String::new()];
    let [labels, axis] = chart.axis();
    lines.push(line("", labels));
    lines.push(line("", axis));
    lines.push(line("job", chart.job()));
    let rows = chart.rows(&rows, single);
    for (ranks, cells) in rows.iter().take(MAX_ROWS) {
        lines.push(line(&names::shortened(&names::ranks(ranks), MAX_NAME), cells.clone()));
    }
    if rows.len() > MAX_ROWS {
        lines.push(line("", format!("… {} more; --json has all", rows.len() - MAX_ROWS)));
    }
    lines.push(String::new());
    lines.extend(chart.legend(width));
    lines.extend(operations(timeline, width));
    lines.extend(marks(timeline));
    lines.join("\n") + "\n"
}

/// One sentence on the whole.
fn standing(timeline: &Timeline) -> String {
    let Some(last) = timeline.lives.last() else { return names::NO_BEGINNING.into() };
    let plural = if timeline.ranks == 1 { "" } else { "s" };
    let (from, took) = (crate::report::time(timeline.begin / 1_000_000), names::long(timeline.end.saturating_sub(timeline.begin)));
    let how = last.ended.as_deref().map_or_else(|| "it runs".into(), names::clean);
    format!("{} rank{plural}, since {from} UTC, for {took}: {how}", timeline.ranks)
}

/// The chart and how it is drawn.
struct Chart<'a> {
    timeline: &'a Timeline,
    scale: Scale,
    columns: usize,
}

impl Chart<'_> {
    /// The column of a point in time.
    fn column(&self, at: u64) -> usize {
        self.column_of(self.scale.place(at))
    }

    fn column_of(&self, place: f64) -> usize {
        ((place * self.columns as f64) as usize).min(self.columns - 1)
    }

    /// The columns that a span takes: at least one.
    fn columns_of(&self, begin: u64, end: u64) -> std::ops::RangeInclusive<usize> {
        let first = self.column(begin);
        let past = (self.scale.place(end) * self.columns as f64 - 0.01).ceil() as usize;
        first..=past.saturating_sub(1).clamp(first, self.columns - 1)
    }

    fn blank(&self) -> Vec<char> {
        let mut cells = vec![' '; self.columns];
        for (from, to) in self.scale.cuts() {
            cells[self.column_of((from + to) / 2.0)] = CUT;
        }
        cells
    }

    /// Names of points in time, and the axis below them.
    fn axis(&self) -> [String; 2] {
        let (mut labels, mut axis) = (vec![' '; self.columns], vec!['─'; self.columns]);
        for (from, to) in self.scale.cuts() {
            axis[self.column_of((from + to) / 2.0)] = CUT;
        }
        for tick in self.scale.ticks(self.timeline.begin, (12.0 / self.columns as f64).min(0.5)) {
            let at = self.column_of(tick.place);
            axis[at] = '┬';
            let name: Vec<char> = tick.name.chars().collect();
            let clear = labels[at.saturating_sub(1)..].iter().take(name.len() + 1).all(|label| *label == ' ');
            if clear && at + name.len() <= self.columns {
                labels[at..at + name.len()].copy_from_slice(&name);
            }
        }
        [labels.into_iter().collect(), axis.into_iter().collect()]
    }

    /// The line of the job: its lives, and when what began.
    fn job(&self) -> String {
        let mut cells = self.blank();
        for life in &self.timeline.lives {
            self.columns_of(life.begin, life.end).for_each(|at| cells[at] = '─');
        }
        let mut taken = BTreeSet::new();
        for operation in &self.timeline.operations {
            let label = match (&operation.what, &operation.outcome) {
                (What::Start, _) => continue,
                (_, Outcome::Failed { .. }) => "!".to_owned(),
                (What::Restart { .. }, _) => "R".into(),
                (What::Checkpoint { checkpoint, .. }, _) => format!("C{checkpoint}"),
                (What::Migration { .. }, _) => "M".into(),
            };
            let at = self.column(operation.begin);
            if !taken.insert(at) {
                continue;
            }
            // Its number only where that leaves the next one room.
            let room = (at..(at + label.len() + 1).min(self.columns)).take_while(|next| *next == at || cells[*next] == '─').count();
            let length = if room > label.len() { label.len() } else { 1 };
            for (next, letter) in (at..).zip(label.chars().take(length)) {
                cells[next] = letter;
                taken.insert(next);
            }
        }
        for life in self.timeline.lives.iter().filter(|life| life.ended.is_some()) {
            cells[*self.columns_of(life.begin, life.end).end()] = '┤';
        }
        cells.into_iter().collect()
    }

    /// The lines of all ranks. Those of many that look the same are one.
    fn rows(&self, rows: &[names::Row<'_>], single: bool) -> Vec<(Ranks, String)> {
        let mut lines: Vec<(Ranks, String)> = Vec::new();
        let mut known: BTreeMap<(String, Vec<Option<&str>>), usize> = BTreeMap::new();
        for row in rows {
            let cells = self.row(row);
            // Names of nodes stand only where there is room for them.
            let key = (cells.clone(), stays(row.spans).map(|stay| stay.first().and_then(|span| span.node.as_deref())).collect());
            match known.get(&key).filter(|_| !single) {
                Some(at) => lines[*at].0 = Ranks::from([Vec::from(lines[*at].0.clone()), Vec::from(row.ranks.clone())].concat()),
                None => {
                    known.insert(key, lines.len());
                    lines.push((row.ranks.clone(), cells));
                }
            }
        }
        lines
    }

    /// The line of some ranks.
    fn row(&self, row: &names::Row<'_>) -> String {
        let mut cells = self.blank();
        let mut weights: Vec<Option<usize>> = vec![None; self.columns];
        for span in row.spans {
            for at in self.columns_of(span.begin, span.end) {
                let weight = names::kind(span.activity);
                // Of two spans of the same weight in a column it does not matter which.
                if weights[at].is_none_or(|before| before < weight) {
                    (weights[at], cells[at]) = (Some(weight), SIGNS[weight]);
                }
            }
        }
        for stay in stays(row.spans) {
            self.name_node(stay, &mut cells, &weights);
        }
        let of_row = |mark: &&Mark| !mark.ranks.intersection(&row.ranks).is_empty();
        for mark in self.timeline.marks.iter().filter(|mark| mark.kind.is_loss()).filter(of_row) {
            let ended = row.spans.iter().rfind(|span| span.end <= mark.at);
            cells[ended.map_or(self.column(mark.at), |span| *self.columns_of(span.begin, span.end).end())] = LOST;
        }
        cells.into_iter().collect()
    }

    /// Writes the node's name over the first stretch of running that has room for it.
    fn name_node(&self, stay: &[Span], cells: &mut [char], weights: &[Option<usize>]) {
        let (Some(first), Some(last)) = (stay.first(), stay.last()) else { return };
        let Some(node) = &first.node else { return };
        let name: Vec<char> = names::shortened(&names::clean(node), MAX_NAME).chars().collect();
        let range = self.column(first.begin)..=*self.columns_of(last.begin, last.end).end();
        let mut room = 0;
        for at in range {
            room = if weights[at] == Some(0) { room + 1 } else { 0 };
            if room > name.len() {
                cells[at - name.len()..at].copy_from_slice(&name);
                return;
            }
        }
    }

    /// What the signs mean, those that there are.
    fn legend(&self, width: usize) -> Vec<String> {
        let tracks = &self.timeline.tracks;
        let used: BTreeSet<usize> = tracks.iter().flat_map(|track| &track.spans).map(|span| names::kind(span.activity)).collect();
        let mut parts: Vec<String> = used.into_iter().map(|weight| format!("{} {}", SIGNS[weight], names::KINDS[weight])).collect();
        let has = |what: &dyn Fn(&Operation) -> bool| self.timeline.operations.iter().any(what);
        let failed = |operation: &Operation| matches!(operation.outcome, Outcome::Failed { .. });
        let extras = [
            (self.timeline.marks.iter().any(|mark| mark.kind.is_loss()), format!("{LOST} lost")),
            (self.scale.cuts().next().is_some(), format!("{CUT} not to scale")),
            (has(&|one| matches!(one.what, What::Checkpoint { .. }) && !failed(one)), "C checkpoint".into()),
            (has(&|one| matches!(one.what, What::Migration { .. }) && !failed(one)), "M move".into()),
            (has(&|one| matches!(one.what, What::Restart { .. }) && !failed(one)), "R restart".into()),
            (has(&failed), "! failed".into()),
            (self.timeline.lives.iter().any(|life| life.ended.is_some()), "┤ end".into()),
        ];
        parts.extend(extras.into_iter().filter(|(is, _)| *is).map(|(_, text)| text));
        wrapped(&parts, "   ", width)
    }
}

/// Spans on the same node without a gap.
fn stays(spans: &[Span]) -> impl Iterator<Item = &[Span]> {
    spans.chunk_by(|one, next| one.node == next.node && one.end == next.begin)
}

/// Parts on lines that are no wider than that, where a part itself is not.
fn wrapped(parts: &[String], between: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + between.chars().count() + part.chars().count() < width => {
                line.push_str(between);
                line.push_str(part);
            }
            Some(line) => {
                line.push_str(between.trim_end());
                lines.push(part.clone());
            }
            None => lines.push(part.clone()),
        }
    }
    lines
}

/// The operations as a table, the phases of each below it.
fn operations(timeline: &Timeline, width: usize) -> Vec<String> {
    let left_out = timeline.operations.len().saturating_sub(MAX_OPERATIONS);
    let shown = &timeline.operations[left_out..];
    if shown.is_empty() {
        return Vec::new();
    }
    let row = |operation: &Operation| {
        let took = operation.took_us().map_or_else(|| "-".into(), names::long);
        let stopped = operation.stopped_us.or_else(|| operation.stopped().map(|(begin, end)| end - begin));
        let stopped = stopped.filter(|_| !matches!(operation.what, What::Start | What::Restart { .. }));
        let mut size = operation.bytes.map_or_else(|| "-".into(), text::size);
        if let Some(sent) = operation.sent_bytes {
            size += &format!(", sent as {}", text::size(sent));
        }
        let begun = names::since(timeline.begin, operation.begin);
        vec![begun, names::operation(operation), took, stopped.map_or_else(|| "-".into(), text::duration), size]
    };
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    let table = mend_report::table(&["BEGAN", "OPERATION", "TOOK", "STOPPED", "SIZE"], &rows);
    let indent = table.lines().next().and_then(|heading| heading.find("OPERATION")).unwrap_or(2) + 2;
    let mut lines = vec![String::new()];
    let mut of_table = table.lines();
    lines.extend(of_table.next().map(str::to_owned));
    if left_out > 0 {
        lines.push(format!("… {left_out} earlier ones; --json has all"));
    }
    for (operation, line) in shown.iter().zip(of_table) {
        lines.push(line.to_owned());
        let below = names::outcome(operation).into_iter();
        let phases = wrapped(&names::phases(operation), ", ", width.saturating_sub(indent));
        lines.extend(below.chain(phases).map(|line| format!("{:indent$}{line}", "")));
    }
    lines
}

/// What else happened.
fn marks(timeline: &Timeline) -> Vec<String> {
    let left_out = timeline.marks.len().saturating_sub(MAX_MARKS);
    let shown = &timeline.marks[left_out..];
    let mut lines = Vec::new();
    if !shown.is_empty() {
        lines.push(String::new());
    }
    if left_out > 0 {
        lines.push(format!("… {left_out} earlier ones; `mend log` has all"));
    }
    let times: Vec<String> = shown.iter().map(|mark| names::since(timeline.begin, mark.at)).collect();
    let wide = times.iter().map(String::len).max().unwrap_or(0);
    lines.extend(shown.iter().zip(times).map(|(mark, time)| format!("{time:wide$}  {}", names::clean(&mark.text))));
    if let Some(until) = timeline.summary_until {
        let until = names::since(timeline.begin, until);
        lines
            .extend([String::new(), format!("Up to {until} the journal keeps a summary only: not all that happened until then is shown.")]);
    }
    lines
}
