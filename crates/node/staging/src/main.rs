//! `mend-data`: what `mend data` becomes. It fetches job input from where it permanently lives, checks it, and fetches again what was lost.
//!
//! It reads its request from standard input (`mend_data::request`), so it is of no use by itself. A program of its own, since the libraries for all kinds of
//! sources are larger than the rest of Mend, and no daemon needs them.
//!
//! `stage` fetches files into `partial` ones, `check` reads through a `medium`, `repair` puts in what is damaged, `against` compares with a source, `fetch`
//! carries out the plan of requests, `origin` is one source, `destination` a place that files are sent to, `mirrors` all of a file, `record_file` where a file's record stands, `sources` shows and changes it, `verbs` what is
//! told of many files, `spaces` verbs about data spaces, `ranges` serves a mount of one with bytes that a target lost.

mod against;
mod check;
mod destination;
mod failure;
mod fetch;
mod medium;
mod mirrors;
mod names;
mod origin;
mod partial;
mod progress;
mod ranges;
mod record_file;
mod repair;
mod report;
mod settings;
mod sources;
mod spaces;
mod stage;
mod verbs;

use failure::{FAILED, Failure};
use fetch::Fetcher;
use mend_data::request::{PathBytes, Request, SpaceRequest};
use names::path_of;
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use settings::Settings;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

/// Threads that carry bytes.
const THREADS: usize = 8;
/// How long a medium that does not answer may hold up the end.
const CLOSING: Duration = Duration::from_secs(2);

fn main() {
    let code = run().unwrap_or_else(|failure| failure.report());
    // Not by returning: a thread may be blocked in a read of a medium that does not answer.
    std::process::exit(code);
}

fn run() -> Result<i32, Failure> {
    let word = std::env::args_os().nth(1);
    let is = |name: &str| word.as_ref().is_some_and(|word| word == name);
    let mut bytes = Vec::new();
    let mut input = std::io::stdin();
    let misused = || Failure::new("mend-data is a part of mend: it is called by `mend data`", "mend data --help", 64);
    if input.is_terminal() {
        return Err(misused());
    }
    if is("follow") {
        // One thread, which waits most of the time.
        return spaces::follow::run(misused);
    }
    let request: Option<Request> = if is("ranges") {
        None
    } else {
        input.read_to_end(&mut bytes).map_err(|_| misused())?;
        Some(postcard::from_bytes(&bytes).map_err(|_| misused())?)
    };
    if let Some(Request::Space(
        SpaceRequest::Heal { watched: Some(watched), .. } | SpaceRequest::CopyAgain { watched: Some(watched), .. },
    )) = &request
    {
        end_with(watched.parent)?;
    }
    // Two providers could be compiled in by others; this one is meant. It fails only if it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fetcher = Fetcher::new(Settings::read()?);
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("cannot start: {error}"), "", FAILED))?;
    // As a task of its own, which may block its thread.
    let task = runtime.spawn(async move {
        match request {
            Some(request) => carry_out(request, &fetcher).await,
            None => Ok(ranges::serve(&fetcher).await),
        }
    });
    let done = runtime.block_on(task).unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    // Connections are closed where they are dropped, some by tasks of their own: an ssh that serves several would stay behind.
    runtime.shutdown_timeout(CLOSING);
    done
}

/// Has this process end with the one that started it: what is done here is of no use any more then.
fn end_with(parent: u32) -> Result<(), Failure> {
    let failed = |errno: Errno| Failure::new(format!("cannot be made to end with its parent: {errno}"), "", FAILED);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    if getppid().is_some_and(|now| now.as_raw_pid() as u32 == parent) { Ok(()) } else { std::process::exit(FAILED) }
}

async fn carry_out(request: Request, fetcher: &Fetcher) -> Result<i32, Failure> {
    let paths = |paths: Vec<PathBytes>| -> Vec<PathBuf> { paths.into_iter().map(path_of).collect() };
    match request {
        Request::Stage { wanted, options } => stage::run(wanted, options, fetcher).await,
        Request::Check { paths: named, against_source, json } => {
            let (places, files) = spaces::healing::divided(named, json)?;
            let of_places = match places[..] {
                [] => 0,
                _ => tokio::task::block_in_place(|| spaces::healing::check(&places, json))?,
            };
            let of_files =
                if !places.is_empty() && files.is_empty() { 0 } else { verbs::check(paths(files), against_source, json, fetcher).await? };
            Ok(of_places.max(of_files))
        }
        Request::Repair { paths: named, against_source, json } => {
            let (places, files) = spaces::healing::divided(named, json)?;
            let of_places = if places.is_empty() { 0 } else { spaces::healing::repair(&places, json, fetcher).await? };
            let of_files =
                if !places.is_empty() && files.is_empty() { 0 } else { verbs::repair(paths(files), against_source, json, fetcher).await? };
            Ok(of_places.max(of_files))
        }
        Request::Sources { path, add, remove, credentials, endpoint, json } => {
            let instead = "`mend data ls --json NAME:PATH` shows sources of files there; they are set when a file is staged";
            spaces::healing::not_of_a_space(&path, instead)?;
            sources::run(path_of(path), sources::Change { add, remove, credentials, endpoint }, json, fetcher).await
        }
        Request::Move { from, to } => {
            for path in [&from, &to] {
                spaces::healing::not_of_a_space(path, "names in a data space change where it is mounted: `mend data mount`, or in a job")?;
            }
            sources::rename(path_of(from), path_of(to))
        }
        Request::Space(request) => spaces::run(request, fetcher).await,
    }
}
