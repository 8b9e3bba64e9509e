//! What is measured of the pipe, as a table, as CSV, as a drawing.

use super::shown::{WIDTH, document, median};
use crate::report;
use serde::Serialize;
use std::fmt::Write;

const LEFT: f64 = 220.0;
const RIGHT: f64 = 110.0;
const ROW: f64 = 16.0;
const BAR: f64 = 12.0;
/// A stage: its name, its fill, its rate.
type Stage = (&'static str, &'static str, fn(&Piped) -> u64);
const STAGES: [Stage; 3] = [
    ("aggregation", "#8fbf8f", |one| one.aggregation),
    ("network", "#f2c14e", |one| one.network),
    ("pipeline", "#4a78b5", |one| one.pipeline),
];

/// One measurement. Sizes are in bytes, rates in bytes per second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Piped {
    pub chunk: u64,
    pub pool: u64,
    pub writers: u32,
    pub run: u32,
    /// From the writers into a mount that sends nothing.
    pub aggregation: u64,
    /// Over one TCP connection.
    pub network: u64,
    /// From the writers' files to the readers'.
    pub pipeline: u64,
}

impl Piped {
    fn case(&self) -> (u64, u32, u64) {
        (self.pool, self.writers, self.chunk)
    }

    /// The pipeline's rate by that of its slowest stage.
    fn share(&self) -> f64 {
        self.pipeline as f64 / self.aggregation.min(self.network).max(1) as f64
    }
}

/// The medians of each chunk, memory and number of writers over the runs, in the order in which they came first.
pub fn medians(all: &[Piped]) -> Vec<Piped> {
    let mut found: Vec<Piped> = Vec::new();
    for one in all {
        if found.iter().any(|other| other.case() == one.case()) {
            continue;
        }
        let of = |figure: fn(&Piped) -> u64| median(all.iter().filter(|other| other.case() == one.case()).map(figure).collect());
        found.push(Piped {
            run: 0,
            aggregation: of(|one| one.aggregation),
            network: of(|one| one.network),
            pipeline: of(|one| one.pipeline),
            ..one.clone()
        });
    }
    found
}

fn mebibytes(rate: u64) -> String {
    format!("{:.0}", rate as f64 / f64::from(1 << 20))
}

/// Prints the medians.
pub fn print(medians: &[Piped]) {
    let row = |one: &Piped| {
        let mut cells = vec![report::size(one.pool), one.writers.to_string(), report::size(one.chunk)];
        cells.extend(STAGES.iter().map(|(.., rate)| mebibytes(rate(one))));
        cells.push(format!("{:.2}", one.share()));
        cells
    };
    let heading = ["MEMORY", "WRITERS", "CHUNK", "AGGREGATION", "NETWORK", "PIPELINE", "SHARE"];
    report::table(&heading, &medians.iter().map(row).collect::<Vec<_>>());
    crate::report::say!("Rates are in MiB per second, medians. SHARE: PIPELINE by the slower of the other two.");
}

/// A line for each measurement.
pub fn csv(all: &[Piped]) -> String {
    let mut text = "chunk,pool,writers,run,aggregation,network,pipeline\n".to_owned();
    for Piped { chunk, pool, writers, run, aggregation, network, pipeline } in all {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{chunk},{pool},{writers},{run},{aggregation},{network},{pipeline}");
    }
    text
}

/// Three bars for each median.
pub fn svg(medians: &[Piped]) -> String {
    let most = medians.iter().flat_map(|one| STAGES.iter().map(|(.., rate)| rate(one))).max().unwrap_or(1).max(1) as f64;
    let mut body = String::new();
    let mut y = 28.0;
    let _ = writeln!(body, "<text x=\"8\" y=\"18\" font-size=\"14\">Bytes through the pipe and its stages, by size of chunks</text>");
    for group in medians.chunk_by(|one, other| (one.pool, one.writers) == (other.pool, other.writers)) {
        y += ROW;
        let _ =
            writeln!(body, "<text x=\"8\" y=\"{y:.0}\">{} of memory, {} writer(s)</text>", report::size(group[0].pool), group[0].writers);
        for one in group {
            for (name, fill, rate) in STAGES {
                let width = rate(one) as f64 / most * (WIDTH - LEFT - RIGHT);
                let label = if name == STAGES[0].0 { report::size(one.chunk) } else { String::new() };
                let _ = writeln!(
                    body,
                    "<text x=\"{:.0}\" y=\"{y:.0}\" text-anchor=\"end\">{label}</text><rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{width:.2}\" \
                     height=\"{BAR}\" fill=\"{fill}\"><title>{name}</title></rect><text x=\"{:.1}\" y=\"{y:.0}\">{} MiB/s</text>",
                    LEFT - 6.0,
                    y - BAR + 2.0,
                    LEFT + width + 6.0,
                    mebibytes(rate(one))
                );
                y += ROW;
            }
        }
    }
    y += ROW;
    for (index, (name, fill, _)) in STAGES.iter().enumerate() {
        let x = LEFT + index as f64 * 120.0;
        let _ = writeln!(body, "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"{BAR}\" height=\"{BAR}\" fill=\"{fill}\"/>", y - BAR + 2.0);
        let _ = writeln!(body, "<text x=\"{:.0}\" y=\"{y:.0}\">{name}</text>", x + 18.0);
    }
    document(&body, y + ROW)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(chunk: u64, run: u32, pipeline: u64) -> Piped {
        Piped { chunk, pool: 8 << 20, writers: 2, run, aggregation: 4 * pipeline, network: 2 * pipeline, pipeline }
    }

    #[test]
    fn medians_are_of_each_case_alone_and_all_is_shown() {
        let all = [(65536, 30), (4096, 5), (65536, 10), (4096, 7), (65536, 20)];
        let all: Vec<Piped> = all.iter().zip(1..).map(|((chunk, rate), run)| measured(*chunk, run, rate << 20)).collect();
        let found = medians(&all);
        assert_eq!(found, [Piped { run: 0, ..measured(65536, 0, 20 << 20) }, Piped { run: 0, ..measured(4096, 0, 6 << 20) }]);
        assert!((found[0].share() - 0.5).abs() < 1e-9);
        let text = csv(&all);
        assert!(text.lines().count() == 6 && text.lines().all(|line| line.split(',').count() == 7));
        let drawn = svg(&found);
        assert_eq!((drawn.matches("<title>").count(), drawn.ends_with("</svg>\n")), (2 * STAGES.len(), true));
        assert!(drawn.contains(">80 MiB/s</text>"));
    }
}
