//! `mend checkpoint --portable`: checkpoints of a program's own variables, which the library in its ranks takes (libmend-app).

use crate::failure::Failure;
use crate::report;
use crate::verbs::{ask_of, unexpected};
use mend_controller::known_jobs;
use mend_controller::portable::{self, Library, Taken, Untaken};
use mend_controller::record::JobDirectory;
use mend_messages::control::{Answer, Ask, PortableNote};
use mend_report::with_causes;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is printed of a checkpoint, for programs.
#[derive(Serialize)]
struct Shown {
    directory: PathBuf,
    program: String,
    ranks: u32,
    checkpoint: u64,
    bytes: u64,
    us: u64,
}

/// Has a checkpoint taken by each library in the job's ranks, and waits for them. The exit code.
pub async fn checkpoint(job: Option<&str>, timeout: Option<f64>, json: bool) -> Result<i32, Failure> {
    let patience = match timeout {
        Some(seconds) if !(0.0..=1e9).contains(&seconds) => {
            return Err(Failure::usage(format!("`--timeout {seconds}` is no time"), "give seconds, like --timeout 60"));
        }
        seconds => seconds.map(Duration::from_secs_f64),
    };
    let (directory, record) = known_jobs::find(job, true)?;
    if !directory.is_running() {
        return Err(Failure::new(format!("job {} does not run", record.id), "", 1));
    }
    let libraries = portable::libraries(directory.path());
    if libraries.is_empty() {
        return Err(Failure::new(
            format!("no rank of job {} can take a portable checkpoint: none has started libmend-app, as far as is seen here", record.id),
            "only programs with that library have portable checkpoints (app/README.md), and their nodes must share the job's directory; without --portable all memory is saved",
            1,
        ));
    }
    let mut shown = Vec::new();
    let mut failed = None;
    for library in libraries {
        let begun = Instant::now();
        let taken = asked(&directory, &library, patience).await;
        let us = begun.elapsed().as_micros() as u64;
        let note = PortableNote {
            directory: library.directory.to_string_lossy().into_owned(),
            ranks: library.ranks,
            us,
            taken: taken.as_ref().map(|taken| (taken.checkpoint, taken.bytes)).map_err(|why| with_causes(why)),
        };
        match ask_of(&directory, &record, Ask::NotePortable(note)).await {
            Ok(Answer::Noted) => {}
            Ok(_) => return Err(unexpected()),
            // A job that has ended meanwhile does not write that down any more.
            Err(_) if !directory.is_running() => {}
            Err(failure) => drop(failure.report()),
        }
        match taken {
            Ok(Taken { checkpoint, bytes }) => {
                let Library { directory, program, ranks, .. } = library;
                if !json {
                    let where_to = directory.join(format!("checkpoint-{checkpoint:06}"));
                    crate::report::say!(
                        "portable checkpoint {checkpoint} of {ranks} rank(s): {} in {}",
                        report::size(bytes),
                        where_to.display()
                    );
                    crate::report::say!("  durable after {}", report::duration(us));
                }
                shown.push(Shown { directory, program, ranks, checkpoint, bytes, us });
            }
            Err(why) => {
                let what = format!(
                    "no portable checkpoint of the {} rank(s) that use {}: {}",
                    library.ranks,
                    library.directory.display(),
                    with_causes(&why)
                );
                if let Some(before) = failed.replace(Failure::new(what, hint(&why), 1)) {
                    before.report();
                }
            }
        }
    }
    if json {
        report::json(&shown)?;
    }
    failed.map_or(Ok(0), Err)
}

async fn asked(directory: &JobDirectory, library: &Library, patience: Option<Duration>) -> Result<Taken, Untaken> {
    tokio::task::block_in_place(|| portable::take(directory, library, patience))
}

fn hint(why: &Untaken) -> &'static str {
    match why {
        Untaken::Refused(_) => "the program's standard error may say more; the checkpoint before it is still there",
        Untaken::JobEnded | Untaken::ProgramEnded => "run the program again: it goes on from its newest portable checkpoint",
        Untaken::TimedOut(_) => "ranks take it at their next safe point; wait for longer, or see that they come to one",
        Untaken::Unusable { .. } => "",
    }
}
