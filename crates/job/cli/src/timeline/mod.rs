//! `mend timeline`: when what happened to a job, drawn from its journal.
//!
//! ```text
//! journal ─► mend_journal::timeline ─► text, svg, perfetto, JSON
//! ```

mod names;
mod perfetto;
mod scale;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use crate::arguments::{self, Format};
use crate::failure::Failure;
use crate::{journal, report};
use mend_controller::{journal_file, known_jobs};
use mend_journal::Timeline;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Columns of what does not go to a terminal.
const COLUMNS: usize = 100;

/// A timeline with its job, as JSON has it.
#[derive(Serialize)]
struct Shown<'a> {
    job: &'a str,
    command: &'a [String],
    #[serde(flatten)]
    timeline: &'a Timeline,
}

/// `mend timeline`.
pub fn run(arguments: &arguments::Timeline) -> Result<i32, Failure> {
    let output = arguments.output.as_deref();
    let format = arguments.format.unwrap_or_else(|| by_name(output));
    if format == Format::Perfetto && output.is_none() && !arguments.json && std::io::stdout().is_terminal() {
        return Err(Failure::usage("a trace is not for a terminal", "name a file with --output; ui.perfetto.dev opens it"));
    }
    let (directory, job) = known_jobs::find_any(arguments.job.as_deref())?;
    // Asked before it is read: the end of a job that ends meanwhile is not missed.
    let running = journal::goes_on(&directory);
    let mut found = journal_file::read(directory.path())?;
    if found.damaged > 0 {
        mend_report::tell!("mend: {} bytes of the journal are damaged and left out", found.damaged);
    }
    if !running {
        found.entries.extend(journal::unwritten_end(&found.entries));
    }
    let timeline = Timeline::of(&found.entries, running.then(journal_file::now_us));
    let title = format!("{}: {}", job.id, job.command.join(" "));
    let bytes = match (arguments.json, format) {
        (true, _) => {
            let shown = Shown { job: &job.id, command: &job.command, timeline: &timeline };
            let text = serde_json::to_string_pretty(&shown).map_err(|error| Failure::new(error.to_string(), "", 1))?;
            format!("{text}\n").into_bytes()
        }
        (false, Format::Text) => text::render(&timeline, &title, columns(output)).into_bytes(),
        (false, Format::Svg) => svg::render(&timeline, &title).into_bytes(),
        (false, Format::Perfetto) => perfetto::render(&timeline, &title),
    };
    write(output, &bytes)?;
    Ok(0)
}

/// The format that a file's name asks for.
fn by_name(output: Option<&Path>) -> Format {
    match output.and_then(Path::extension).and_then(|extension| extension.to_str()) {
        Some("svg") => Format::Svg,
        Some("pftrace" | "perfetto-trace") => Format::Perfetto,
        _ => Format::Text,
    }
}

/// How wide a text is to be.
fn columns(output: Option<&Path>) -> usize {
    let terminal = output.is_none().then(|| terminal_size::terminal_size_of(std::io::stdout())).flatten();
    terminal.map_or(COLUMNS, |(width, _)| usize::from(width.0))
}

fn write(output: Option<&Path>, bytes: &[u8]) -> Result<(), Failure> {
    let Some(path) = output else {
        let mut out = std::io::stdout();
        return out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| report::unwritten(&error));
    };
    std::fs::write(path, bytes)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display()), "name another file with --output", 1))
}
