//! Measured moves as a table, as CSV, as a drawing.

use super::measured::Measured;
use crate::failure::Failure;
use crate::report;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How wide drawings are, pixels.
pub(super) const WIDTH: f64 = 960.0;
const LEFT: f64 = 180.0;
const RIGHT: f64 = 90.0;
const ROW: f64 = 18.0;
const BAR: f64 = 13.0;
/// A phase: its name, its fill, what it took.
type Phase = (&'static str, &'static str, fn(&Measured) -> u64);
const PHASES: [Phase; 5] = [
    ("suspend", "#b7a5d8", |one| one.suspend_us),
    ("write", "#4a78b5", |one| one.write_us),
    ("transfer", "#f2c14e", |one| one.transfer_us),
    ("restart", "#8fbf8f", |one| one.restart_us),
    ("reconnect", "#d1495b", |one| one.reconnect_us),
];

pub(super) fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    match of.len() {
        0 => 0,
        count if count % 2 == 1 => of[count / 2],
        count => u64::midpoint(of[count / 2 - 1], of[count / 2]),
    }
}

/// For each strategy, transport, number of ranks and size the median of each figure over the runs, in the order in which they came first.
pub fn medians(all: &[Measured]) -> Vec<Measured> {
    let key = |one: &Measured| (one.size, one.ranks, one.strategy, one.transport);
    let mut found: Vec<Measured> = Vec::new();
    for one in all {
        if found.iter().any(|other| key(other) == key(one)) {
            continue;
        }
        let of = |figure: fn(&Measured) -> u64| median(all.iter().filter(|other| key(other) == key(one)).map(figure).collect());
        found.push(Measured {
            run: 0,
            suspend_us: of(|one| one.suspend_us),
            write_us: of(|one| one.write_us),
            transfer_us: of(|one| one.transfer_us),
            restart_us: of(|one| one.restart_us),
            reconnect_us: of(|one| one.reconnect_us),
            stopped_us: of(|one| one.stopped_us),
            there_us: of(|one| one.there_us),
            whole_us: of(|one| one.whole_us),
            bytes: of(|one| one.bytes),
            sent_bytes: of(|one| one.sent_bytes),
            stopped_bytes: of(|one| one.stopped_bytes),
            rounds: of(|one| one.rounds.into()) as u32,
            stored_bytes: of(|one| one.stored_bytes),
            peak_memory: one.peak_memory.map(|_| of(|one| one.peak_memory.unwrap_or(0))),
            ..one.clone()
        });
    }
    found
}

/// How many times longer than through the pipeline, by the first transport, the whole of it took, if that was measured, too.
fn times_pipeline(one: &Measured, medians: &[Measured]) -> Option<f64> {
    let pipeline = medians.iter().find(|other| (other.size, other.ranks, other.strategy) == (one.size, one.ranks, "pipeline"))?;
    Some(one.whole_us as f64 / pipeline.whole_us.max(1) as f64)
}

fn milliseconds(us: u64) -> String {
    format!("{:.1}", us as f64 / 1e3)
}

const HEADING: [&str; 16] = [
    "HELD",
    "RANKS",
    "STRATEGY",
    "OVER",
    "SUSPEND",
    "WRITE",
    "TRANSFER",
    "RESTART",
    "RECONNECT",
    "STOPPED",
    "THERE",
    "WHOLE",
    "SENT",
    "STORED",
    "MEMORY",
    "TIMES",
];

/// Prints the medians. Times are in milliseconds.
pub fn print(medians: &[Measured]) {
    let row = |one: &Measured| {
        let mut cells = vec![report::size(one.size), one.ranks.to_string(), one.strategy.to_owned(), one.transport.to_owned()];
        cells.extend(PHASES.iter().map(|(.., phase)| milliseconds(phase(one))));
        cells.extend([one.stopped_us, one.there_us, one.whole_us].map(milliseconds));
        cells.extend([report::size(one.sent_bytes), report::size(one.stored_bytes)]);
        cells.push(one.peak_memory.map_or_else(|| "-".to_owned(), report::size));
        cells.push(times_pipeline(one, medians).map_or_else(|| "-".to_owned(), |times| format!("{times:.2}")));
        cells
    };
    report::table(&HEADING, &medians.iter().map(row).collect::<Vec<_>>());
    crate::report::say!(
        "Times are in milliseconds, medians. TIMES: how many times longer WHOLE is than through the pipeline, over the first transport."
    );
}

/// A line for each measured move.
pub fn csv(all: &[Measured]) -> String {
    let mut text = "strategy,ranks,size,run,suspend_us,write_us,transfer_us,restart_us,reconnect_us,stopped_us,there_us,whole_us,bytes,\
                    stopped_bytes,rounds,stored_bytes,sent_bytes,transport,peak_memory\n"
        .to_owned();
    for one in all {
        let Measured { strategy, ranks, size, run, suspend_us, write_us, transfer_us, restart_us, reconnect_us, .. } = one;
        let Measured { stopped_us, there_us, whole_us, bytes, stopped_bytes, rounds, stored_bytes, sent_bytes, transport, .. } = one;
        let peak = one.peak_memory.map_or_else(String::new, |peak| peak.to_string());
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{strategy},{ranks},{size},{run},{suspend_us},{write_us},{transfer_us},{restart_us},{reconnect_us},{stopped_us},{there_us},\
             {whole_us},{bytes},{stopped_bytes},{rounds},{stored_bytes},{sent_bytes},{transport},{peak}"
        );
    }
    text
}

/// A bar for each median: the phases of the ranks, and at its end the time that the longest stood still.
pub fn svg(medians: &[Measured]) -> String {
    let name = |one: &Measured| match one.transport {
        "tcp" => one.strategy.to_owned(),
        transport => format!("{}, {transport}", one.strategy),
    };
    let sum = |one: &Measured| PHASES.iter().map(|(.., phase)| phase(one)).sum::<u64>();
    let mut body = String::new();
    let mut y = 28.0;
    let _ = writeln!(body, "<text x=\"8\" y=\"18\" font-size=\"14\">Time that ranks stand still, by strategy (mean over ranks)</text>");
    for group in medians.chunk_by(|one, other| (one.size, one.ranks) == (other.size, other.ranks)) {
        let longest = group.iter().map(sum).max().unwrap_or(1).max(1) as f64;
        y += ROW;
        let _ = writeln!(body, "<text x=\"8\" y=\"{y:.0}\">{} in {} rank(s)</text>", report::size(group[0].size), group[0].ranks);
        for one in group {
            let mut x = LEFT;
            let _ = writeln!(body, "<text x=\"{:.0}\" y=\"{y:.0}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, name(one));
            for (name, fill, phase) in PHASES {
                let width = phase(one) as f64 / longest * (WIDTH - LEFT - RIGHT);
                let _ = writeln!(
                    body,
                    "<rect x=\"{x:.2}\" y=\"{:.0}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"{fill}\"><title>{name} {} ms</title></rect>",
                    y - BAR + 3.0,
                    milliseconds(phase(one))
                );
                x += width;
            }
            let _ = writeln!(body, "<text x=\"{:.1}\" y=\"{y:.0}\">{} ms</text>", x + 6.0, milliseconds(sum(one)));
            y += ROW;
        }
    }
    y += ROW;
    for (index, (name, fill, _)) in PHASES.iter().enumerate() {
        let x = LEFT + index as f64 * 110.0;
        let _ = writeln!(body, "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{fill}\"/>", y - BAR + 3.0);
        let _ = writeln!(body, "<text x=\"{:.0}\" y=\"{y:.0}\">{name}</text>", x + 18.0);
    }
    document(&body, y + ROW)
}

/// A drawing of this height, pixels, with what is drawn in it.
pub(super) fn document(body: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// A file that was asked for. It is opened before anything is measured, which may take hours and would be lost if it could not be written. What is in it
/// stays until then.
pub struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens the file that is named, if one is.
    pub fn open(path: Option<&PathBuf>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(|error| failed(path, &error))?;
        Ok(Some(Self { path: path.clone(), file }))
    }

    /// Writes all of it.
    pub fn write(mut self, text: &str) -> Result<(), Failure> {
        let is_file = self.file.metadata().is_ok_and(|about| about.is_file());
        let cleared = if is_file { self.file.set_len(0) } else { Ok(()) };
        cleared.and_then(|()| self.file.write_all(text.as_bytes())).map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{} cannot be written: {error}", path.display()), "name another file", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(strategy: &'static str, run: u32, us: u64) -> Measured {
        Measured {
            strategy,
            transport: "tcp",
            ranks: 2,
            size: 64 << 20,
            run,
            suspend_us: us,
            write_us: 2 * us,
            transfer_us: us,
            restart_us: us,
            reconnect_us: us,
            stopped_us: 6 * us,
            there_us: 5 * us,
            whole_us: 7 * us,
            bytes: 65 << 20,
            sent_bytes: 65 << 20,
            stopped_bytes: 65 << 20,
            rounds: 0,
            stored_bytes: 0,
            peak_memory: Some(us << 20),
        }
    }

    #[test]
    fn medians_are_of_each_strategy_alone() {
        let all = [("pipeline", 30), ("local", 60), ("pipeline", 10), ("local", 80), ("pipeline", 20)];
        let all: Vec<Measured> = all.iter().zip(1..).map(|((strategy, us), run)| measured(strategy, run, *us)).collect();
        let found = medians(&all);
        let figures: Vec<_> = found.iter().map(|one| (one.strategy, one.suspend_us, one.whole_us)).collect();
        assert_eq!(figures, [("pipeline", 20, 140), ("local", 70, 490)]);
        assert_eq!(times_pipeline(&found[1], &found), Some(3.5));
        assert_eq!(times_pipeline(&found[1], &found[1..]), None);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_before_and_what_it_held_stays_until_it_is() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Output::open(Some(&directory.path().join("no/x.csv"))).is_err());
        assert!(matches!(Output::open(None), Ok(None)));
        let path = directory.path().join("x.csv");
        std::fs::write(&path, "of an earlier run, and longer").unwrap();
        let Ok(Some(output)) = Output::open(Some(&path)) else { panic!("it can be written") };
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of an earlier run, and longer");
        assert!(output.write("new").is_ok());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn each_move_is_a_line_and_each_median_a_bar() {
        let all = [measured("pipeline", 1, 10), measured("staged", 1, 20)];
        let text = csv(&all);
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [19, 19, 19]);
        assert!(text.contains("staged,2,67108864,1,20,40,20,20,20,120,100,140,"));
        let drawn = svg(&all);
        assert_eq!(drawn.matches("<title>").count(), 2 * PHASES.len());
        assert!(drawn.ends_with("</svg>\n") && drawn.contains(">0.1 ms</text>"));
    }
}
