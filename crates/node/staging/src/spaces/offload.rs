//! `mend data offload`, and what sends the files of a job away while it runs and when it has ended.
//!
//! ```text
//! targets ── sizes, times, who writes ──► ready, waits, held ── ready ──► several at once (`sending`) ──► noted (`ledger_file`)
//! ```
//! One sends files of a space at a time. Faults assumed: it is killed at any moment, and the next one goes on; targets are lost (what the others have is sent); the place is
//! gone, full or refuses (it is tried again later and later). When the job has ended and as many targets as there are copies say nothing, not all may be sent: its space stays.

use super::ledger_file::{self, LedgerFile};
use super::sending::{Item, Outcome, Sending};
use super::turn::Turn;
use super::{named, opened};
use crate::destination::Destination;
use crate::failure::{BAD_VALUE, FAILED, Failure, UNREACHABLE, report_all};
use crate::report;
use crate::settings::Settings;
use mend_data::offload::ledger::{Head, Ledger};
use mend_data::offload::quiet::{Quiet, Seen, State};
use mend_data::offload::{News, check_destination, pause_s};
use mend_data::plan::Fault;
use mend_data::request::OffloadOptions;
use mend_data::space::written::CLAIM;
use mend_data::space::{Entry, Id};
use mend_space::client::{Client, Writer};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, block_in_place};

/// How long it takes at most until one that waits for its turn looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Looks of a job's sender are so far apart, at least and at most; else a quarter of the time that files must not have changed.
const LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// How often a file that changes while it is sent is begun anew by one command.
const TRIES: u32 = 3;
/// Files in a row that cannot be sent before the place is given up for now.
const MOST_FAILED: usize = 3;
/// What nodes have open is waited for so long: one that was lost holds nothing open any more then.
const HELD_AT_MOST: Duration = Duration::from_secs(CLAIM + 2);

/// A file that is not sent as it is now.
#[derive(Clone, Debug)]
struct Pending {
    item: Item,
    state: State,
}

/// What a look shows.
#[derive(Default)]
struct Look {
    pending: Vec<Pending>,
    /// Files that have arrived as they are.
    done: Vec<Item>,
    /// Files of which nothing can be read, and why.
    lost: Vec<(String, Failure)>,
}

/// Sends what there is, by the options.
struct Offload {
    client: Arc<Client>,
    writer: Arc<Writer>,
    /// Where in the space.
    path: String,
    head: Head,
    options: OffloadOptions,
    settings: Settings,
    who: Id,
    began: Instant,
    quiet: Quiet,
}

/// What one round of sending brought.
#[derive(Default)]
struct Round {
    sent: Vec<(String, u64)>,
    there: u64,
    changed: Vec<String>,
    failed: Vec<(String, Failure)>,
}

impl Round {
    /// Why the first file by its path was not sent. Which one fails first changes each time, and what is told anew looks like news.
    fn first_failure(&self) -> Option<(String, String)> {
        let (_, failure) = self.failed.iter().min_by_key(|(path, _)| path)?;
        Some((failure.what.clone(), failure.hint.clone()))
    }
}

/// Carries it out; the exit code.
pub async fn run(place: &str, uri: &str, options: OffloadOptions, settings: Settings) -> Result<i32, Failure> {
    let hint = "for example file:///archive/run7, s3://BUCKET/run7, sftp://HOST/PATH; see `mend data offload --help`";
    check_destination(uri).map_err(|why| Failure::new(why, hint, BAD_VALUE))?;
    let (name, path) = named(place)?;
    let client = block_in_place(|| opened(name))?;
    if !path.is_empty() && client.names().look(path).is_none() {
        return Err(Failure::new(format!("{place} is not there"), "`mend data ls NAME:` lists what is", FAILED));
    }
    let job = options.job;
    let endpoint =
        options.endpoint.clone().or_else(|| std::env::var("AWS_ENDPOINT_URL").ok()).filter(|_| uri.to_ascii_lowercase().starts_with("s3:"));
    let head = Head { space: client.space.id, uri: uri.trim_end_matches('/').to_owned(), endpoint };
    let offload = Offload {
        writer: Arc::new(Writer::new(client.clone(), None)),
        path: path.to_owned(),
        head,
        settings,
        who: job.map_or_else(mend_wire::random_bytes, |job| job.identity),
        began: Instant::now(),
        quiet: Quiet::default(),
        options,
        client,
    };
    match job {
        None => offload.once(uri).await,
        Some(job) if job.ended => offload.after_the_job(uri).await,
        Some(_) => offload.while_the_job_runs(uri).await,
    }
}

impl Offload {
    fn destination(&self, uri: &str) -> Result<Destination, Failure> {
        let failed = |fault: Fault| {
            let (Fault::Passing(why) | Fault::Final(why)) = fault;
            Failure::new(format!("{uri} cannot be written to: {why}"), "see `mend data offload --help`", UNREACHABLE)
        };
        let opened = Destination::open(uri, self.options.endpoint.as_deref(), self.options.credentials.as_deref(), self.settings.silence);
        let destination = opened.map_err(failed)?;
        if !self.options.dry_run {
            block_in_place(|| destination.prepare()).map_err(failed)?;
        }
        Ok(destination)
    }

    /// What there is, and what of it is sent.
    fn look(&mut self, ledger: &Ledger, settle: Duration) -> Look {
        self.client.refresh_since(Instant::now());
        let entries: Vec<Entry> =
            self.client.names().files(&self.path).into_iter().filter(|entry| entry.written().is_some()).cloned().collect();
        let shapes = self.client.shapes(&entries);
        let mut look = Look::default();
        let mut found = Vec::new();
        for (entry, shape) in entries.into_iter().zip(shapes) {
            match shape {
                Ok((size, changed_ns)) => found.push(Item { entry, size, changed_ns }),
                Err(fault) => look.lost.push((entry.path.clone(), fault.into())),
            }
        }
        let known = |item: &Item| ledger.has(&item.entry.path, &item.entry.id, item.size, item.changed_ns);
        let (done, pending): (Vec<Item>, Vec<Item>) = found.into_iter().partition(known);
        let writing = self.client.are_written(&pending.iter().map(|item| item.entry.clone()).collect::<Vec<_>>());
        let seen = |(item, writing): (&Item, mend_space::client::Writing)| Seen {
            id: item.entry.id,
            size: item.size,
            changed_ns: item.changed_ns,
            held: writing.held,
            unsynced: writing.unsynced,
        };
        let seen: Vec<Seen> = pending.iter().zip(writing).map(seen).collect();
        let now_ns = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let states = self.quiet.look(self.began.elapsed(), now_ns, settle, &seen);
        look.pending = pending.into_iter().zip(states).map(|(item, state)| Pending { item, state }).collect();
        look.done = done;
        look
    }

    /// The turn to send, and what there is to do so; `None` if another one has it.
    async fn begin(&self, uri: &str) -> Result<Option<Arc<Sending>>, Failure> {
        let (client, who, since) = (self.client.clone(), self.who, Instant::now());
        if !block_in_place(|| client.take_offload_turn(who, false))? {
            return Ok(None);
        }
        let turn = Turn::held(since, Duration::from_secs(CLAIM), move |over| client.take_offload_turn(who, over).ok());
        let destination = self.destination(uri)?;
        let ledger = block_in_place(|| LedgerFile::open(&self.client.space.name, &self.head))?;
        let sending = Sending {
            client: self.client.clone(),
            writer: self.writer.clone(),
            destination,
            uri: uri.to_owned(),
            ledger: Mutex::new(ledger),
            turn,
            settings: self.settings,
            force: self.options.force,
            stopped: AtomicBool::new(false),
        };
        sending.sweep().await?;
        Ok(Some(Arc::new(sending)))
    }

    async fn turn(&self, uri: &str) -> Result<Arc<Sending>, Failure> {
        let since = Instant::now();
        let mut told = false;
        loop {
            if let Some(sending) = self.begin(uri).await? {
                return Ok(sending);
            }
            if !told && since.elapsed() > Duration::from_secs(2) && !self.options.quiet && self.options.job.is_none() {
                mend_report::tell!("mend data: {}: another one sends files of it away; this one waits", self.client.space.name);
                told = true;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Sends all that is ready, and goes on for what becomes so. What it brought, and what is left, with why; without a name what nobody knows of.
    async fn all(&mut self, sending: &Arc<Sending>, settle: Duration) -> (Round, Vec<(String, Failure)>) {
        let mut all = Round::default();
        let (mut tries, mut failed) = (HashMap::<Id, u32>::new(), BTreeMap::<String, Failure>::new());
        let mut waited = Duration::ZERO;
        let held_until = Instant::now() + HELD_AT_MOST;
        let is_last = self.options.job.is_some_and(|job| job.ended);
        let mut silent_until = None;
        loop {
            if is_last {
                block_in_place(|| self.client.look_for_lost());
            }
            let look = block_in_place(|| self.look(&sending.ledger().ledger, settle));
            let name = &self.client.space.name;
            let tried = |item: &Item| tries.get(&item.entry.id).copied().unwrap_or(0);
            let (mut left, mut ready, mut wait) = (look.lost, Vec::new(), None::<Duration>);
            let stopped = sending.stopped.load(Ordering::Relaxed) || sending.turn.is_lost();
            for Pending { item, state } in look.pending {
                let path = item.entry.path.clone();
                let why = match (failed.get(&path), state) {
                    (Some(failure), _) => failure.clone(),
                    _ if sending.turn.is_lost() => {
                        Failure::new(format!("{name}:{path} is not sent: another one sends files away"), "", FAILED)
                    }
                    _ if stopped => Failure::new(format!("{name}:{path} is not sent: others could not be"), "", UNREACHABLE),
                    (None, State::Ready) if tried(&item) < TRIES => {
                        ready.push(item);
                        continue;
                    }
                    (None, State::Held) => {
                        if Instant::now() < held_until {
                            wait = Some(wait.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL));
                            continue;
                        }
                        let hint = "repeat the command when they have closed it";
                        Failure::new(format!("{name}:{path} is not sent: ranks have it open for writing"), hint, FAILED)
                    }
                    (None, State::Waits(time)) if waited < settle + HELD_AT_MOST && tried(&item) < TRIES => {
                        wait = Some(wait.unwrap_or(time).min(time));
                        continue;
                    }
                    (None, State::Ready | State::Waits(_)) => {
                        let hint = "repeat the command when it does not change any more";
                        Failure::new(format!("{name}:{path} is not sent: it changes again and again"), hint, FAILED)
                    }
                };
                left.push((path, why));
            }
            if !ready.is_empty() {
                for item in &ready {
                    *tries.entry(item.entry.id).or_default() += 1;
                }
                let round = send_all(sending, ready).await;
                self.tell(&round);
                waited = Duration::ZERO;
                failed.extend(round.failed);
                all.sent.extend(round.sent);
                all.there += round.there;
                continue;
            }
            // Of a file that these alone have nobody knows.
            let silent = if is_last { self.client.silent_targets() } else { Vec::new() };
            if silent.len() >= self.client.space.copies {
                if Instant::now() < *silent_until.get_or_insert_with(|| Instant::now() + HELD_AT_MOST) {
                    wait = Some(wait.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL));
                } else {
                    let what = format!("{}: files may be on {} alone, which do not answer", self.client.space.name, silent.join(", "));
                    left.push((String::new(), Failure::new(what, "", UNREACHABLE)));
                }
            }
            let Some(wait) = wait else { return (all, left) };
            tokio::time::sleep(wait).await;
            waited += wait;
        }
    }

    fn tell(&self, round: &Round) {
        if self.options.job.is_none() && !self.options.json && !self.options.quiet {
            for (path, size) in &round.sent {
                report::line(&format!("{}:{path}: {} sent", self.client.space.name, report::size(*size)));
            }
        }
    }

    /// What is noted as sent and is not there any more as it arrived is sent again.
    async fn missing(&mut self, sending: &Arc<Sending>) -> Result<u64, Failure> {
        let look = block_in_place(|| self.look(&sending.ledger().ledger, Duration::ZERO));
        let (permits, mut asked) = (Arc::new(Semaphore::new(self.settings.streams)), JoinSet::new());
        for item in look.done {
            let (sending, permits) = (sending.clone(), permits.clone());
            asked.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let sent = sending.ledger().ledger.sent(&item.entry.path).cloned();
                match sent {
                    Some(sent) if !sending.is_there(&sent).await? => {
                        let forgotten = mend_data::offload::ledger::Line::Lost { path: sent.path };
                        block_in_place(|| sending.ledger().note(forgotten)).map(|()| 0)
                    }
                    _ => Ok(1),
                }
            });
        }
        let mut there = 0;
        while let Some(one) = asked.join_next().await {
            there += one.unwrap_or_else(|error| Err(Failure::new(error.to_string(), "", FAILED)))?;
        }
        Ok(there)
    }

    /// `mend data offload`.
    async fn once(mut self, uri: &str) -> Result<i32, Failure> {
        let settle = Duration::from_millis(self.options.settle_ms);
        if self.options.dry_run {
            return self.would_send(uri, settle);
        }
        let sending = self.turn(uri).await?;
        let already = self.missing(&sending).await?;
        let (round, left) = self.all(&sending, settle).await;
        drop(sending);
        let name = &self.client.space.name;
        let bytes: u64 = round.sent.iter().map(|(_, size)| size).sum();
        let already = already + round.there;
        if self.options.json {
            let sent: Vec<_> = round.sent.iter().map(|(path, size)| json!({ "name": path, "size": size })).collect();
            let left: Vec<_> = left.iter().map(|(path, failure)| json!({ "name": path, "why": failure.what })).collect();
            report::json(&json!({ "space": name, "uri": uri, "sent": sent, "bytes": bytes, "already": already, "left": left }))?;
        } else if !self.options.quiet {
            let left = if left.is_empty() { String::new() } else { format!(", {} not sent", left.len()) };
            report::line(&format!(
                "{} ({}) sent, {already} there already{left}",
                report::files(round.sent.len() as u64),
                report::size(bytes)
            ));
        }
        Ok(told(&left))
    }

    fn would_send(mut self, uri: &str, settle: Duration) -> Result<i32, Failure> {
        let destination = self.destination(uri)?;
        let ledger = ledger_file::read(&self.client.space.name, &self.head)?;
        let look = block_in_place(|| self.look(&ledger, settle));
        let mut bytes = 0;
        let mut all = Vec::new();
        for Pending { item, state } in &look.pending {
            let path = &item.entry.path;
            let why = match (destination.refuses(path), state) {
                (Some(why), _) => Some(why),
                (None, State::Held) => Some("ranks have it open for writing"),
                (None, _) => None,
            };
            bytes += item.size;
            if self.options.json {
                all.push(json!({ "name": path, "size": item.size, "why_not": why }));
            } else {
                let why = why.map_or_else(String::new, |why| format!(", if it could be: {why}"));
                report::line(&format!("{}:{path}: {} would be sent{why}", self.client.space.name, report::size(item.size)));
            }
        }
        if self.options.json {
            report::json(
                &json!({ "space": self.client.space.name, "uri": uri, "would_send": all, "bytes": bytes, "already": look.done.len() }),
            )?;
        } else {
            let count = report::files(look.pending.len() as u64);
            report::line(&format!("{count} ({}) would be sent, {} there already", report::size(bytes), look.done.len()));
        }
        Ok(told(&look.lost))
    }

    /// What is left when the ranks have ended: sent once. A line of news.
    async fn after_the_job(mut self, uri: &str) -> Result<i32, Failure> {
        let done = async {
            let sending = self.turn(uri).await?;
            Ok(self.all(&sending, Duration::ZERO).await)
        };
        let news = match done.await {
            Ok((round, left)) => News {
                files: round.sent.len() as u64,
                bytes: round.sent.iter().map(|(_, size)| size).sum(),
                left: left.iter().filter(|(path, _)| !path.is_empty()).count() as u64,
                failure: left.into_iter().next().map(|(_, failure)| (failure.what, failure.hint)),
            },
            Err(failure) => {
                let failure: Failure = failure;
                let ledger = ledger_file::read(&self.client.space.name, &self.head)?;
                let look = block_in_place(|| self.look(&ledger, Duration::ZERO));
                let left = (look.pending.len() + look.lost.len()) as u64;
                News { files: 0, bytes: 0, left, failure: Some((failure.what, failure.hint)) }
            }
        };
        tell(&news);
        Ok(0)
    }

    /// Looks and sends until nobody reads the lines. One is written when something has arrived or failed.
    async fn while_the_job_runs(mut self, uri: &str) -> Result<i32, Failure> {
        ends_with_its_reader();
        let settle = Duration::from_millis(self.options.settle_ms);
        let pause = (settle / 4).clamp(LOOKS[0], LOOKS[1]);
        let (mut failures, mut not_before) = (0_u32, Instant::now());
        let mut failed_before = false;
        loop {
            tokio::time::sleep(pause).await;
            let ledger = ledger_file::read(&self.client.space.name, &self.head)?;
            let look = block_in_place(|| self.look(&ledger, settle));
            let ready: Vec<Item> = look.pending.iter().filter(|one| one.state == State::Ready).map(|one| one.item.clone()).collect();
            if ready.is_empty() || Instant::now() < not_before {
                continue;
            }
            let round = match self.begin(uri).await {
                Ok(Some(sending)) => send_all(&sending, ready).await,
                Ok(None) => continue,
                Err(failure) => Round { failed: vec![(String::new(), failure)], ..Round::default() },
            };
            let failure = round.first_failure();
            failures = if failure.is_some() { failures.saturating_add(1) } else { 0 };
            not_before = Instant::now() + Duration::from_secs(if failures > 0 { pause_s(failures) } else { 0 });
            let left = (look.pending.len() + look.lost.len()).saturating_sub(round.sent.len() + round.there as usize) as u64;
            let bytes = round.sent.iter().map(|(_, size)| size).sum();
            let news = News { files: round.sent.len() as u64, bytes, left, failure };
            if news.files > 0 || news.failure.is_some() || failed_before {
                tell(&news);
            }
            failed_before = news.failure.is_some();
        }
    }
}

/// A line for who started this. That nobody reads it ends the process soon.
fn tell(news: &News) {
    let line = serde_json::to_string(news).unwrap_or_default();
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// Has the process end when nobody reads its output any more: a job's controller that was killed says nothing.
fn ends_with_its_reader() {
    std::thread::spawn(|| {
        use rustix::event::{PollFd, PollFlags, poll};
        let output = io::stdout();
        loop {
            let mut polled = [PollFd::new(&output, PollFlags::empty())];
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => {}
                _ => std::process::exit(0),
            }
        }
    });
}

/// Says what is left, and why; the exit code.
fn told(left: &[(String, Failure)]) -> i32 {
    report_all(left.iter().map(|(_, failure)| failure)).unwrap_or(0)
}

/// Sends files, several at once.
async fn send_all(sending: &Arc<Sending>, items: Vec<Item>) -> Round {
    let permits = Arc::new(Semaphore::new(sending.settings.streams));
    let mut sent = JoinSet::new();
    let count = items.len();
    // The first ones come first: what fails then is the same each time.
    let waiting = Arc::new(Mutex::new(items.into_iter()));
    for _ in 0..count {
        let (sending, permits, waiting) = (sending.clone(), permits.clone(), waiting.clone());
        sent.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let item = waiting.lock().unwrap_or_else(PoisonError::into_inner).next()?;
            let outcome = sending.send(&item).await;
            Some((item, outcome))
        });
    }
    let mut round = Round::default();
    let mut in_a_row = 0;
    while let Some(done) = sent.join_next().await {
        let Ok(Some((item, outcome))) = done else { continue };
        let path = item.entry.path;
        match outcome {
            Outcome::Sent(new) => {
                in_a_row = 0;
                match new {
                    true => round.sent.push((path, item.size)),
                    false => round.there += 1,
                }
            }
            Outcome::Changed => round.changed.push(path),
            Outcome::Failed(failure) => {
                in_a_row += usize::from(failure.code == UNREACHABLE);
                if in_a_row >= MOST_FAILED {
                    sending.stopped.store(true, Ordering::Relaxed);
                }
                round.failed.push((path, failure));
            }
        }
    }
    round
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_files_that_fail_is_the_same_whichever_fails_first() {
        let failed = |path: &str| (path.to_owned(), Failure::new(format!("{path} cannot be sent"), "", FAILED));
        let of = |paths: [&str; 2]| Round { failed: paths.map(failed).to_vec(), ..Round::default() }.first_failure();
        assert_eq!(of(["a", "b"]), Some(("a cannot be sent".to_owned(), String::new())));
        assert_eq!(of(["b", "a"]), of(["a", "b"]));
        assert_eq!(Round::default().first_failure(), None);
    }
}
