//! Carries out a plan: requests under way at once, blocks summed up as they arrive.
//!
//! ```text
//! plan ──range──► source ──bytes──► block of 1 MiB ──► sink (verifies, writes) ──► plan
//! ```
//! The plan decides; here are the waiting and the bytes. The first request to each source is alone until it is answered: the answer tells whether the
//! source ignores ranges. Faults assumed: those of sources (see `origin`); an error of the sink ends all of it.

use crate::origin::Origin;
use crate::settings::Settings;
use mend_data::plan::{Fault, FetchPlan, Next, Ticket, Verdict};
use mend_data::ranges::Range;
use mend_data::sums::BLOCK;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Longest wait before a source is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The first one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What becomes of a block.
pub enum Taken {
    /// It is good.
    Good,
    /// It has other bytes than it must.
    Wrong(String),
}

/// Where blocks go.
pub trait Sink: Send + Sync + 'static {
    /// True if the block is wanted; what is between wanted ones may come along.
    fn wants(&self, block: u64) -> bool;
    /// Takes a block.
    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken>;
    /// A block that was taken is good, and came from this source.
    fn came_from(&self, _source: usize, _block: u64) {}
}

/// How it went.
pub struct Fetched {
    /// What no source delivers.
    pub lost: Vec<Range>,
    /// What each source is to blame for.
    pub blames: Vec<Option<String>>,
    /// Whether a source delivered anything.
    pub used: Vec<bool>,
    /// Whether a source was given up, or not asked at all.
    pub out: Vec<bool>,
}

/// The sources of a file, or why one cannot be asked.
pub type Origins = Arc<Vec<Result<Origin, Fault>>>;

/// What all fetches of a command share.
pub struct Fetcher {
    pub settings: Settings,
    requests: Arc<Semaphore>,
}

struct Work<S> {
    settings: Settings,
    requests: Arc<Semaphore>,
    origins: Origins,
    size: u64,
    /// Bytes of a block, as the sink gets them.
    block: u64,
    sink: Arc<S>,
    plan: Mutex<FetchPlan>,
    changed: Notify,
    /// Whether a source has answered, and what keeps others from asking until then.
    answered: Vec<(AtomicBool, tokio::sync::Mutex<()>)>,
    /// After a fault a source is asked nothing until then, by no stream.
    not_before: Vec<Mutex<Option<Instant>>>,
    used: Vec<AtomicBool>,
    broken: Mutex<Option<io::Error>>,
}

impl Fetcher {
    pub fn new(settings: Settings) -> Self {
        Self { settings, requests: Arc::new(Semaphore::new(settings.streams)) }
    }

    /// Fetches these ranges of a file of this size, in blocks of 1 MiB.
    pub async fn fetch<S: Sink>(&self, origins: &Origins, size: u64, missing: Vec<Range>, sink: &Arc<S>) -> io::Result<Fetched> {
        self.fetch_blocks(origins, size, missing, BLOCK, sink).await
    }

    /// Fetches these ranges of a file of this size, which begin and end with blocks of so many bytes.
    pub async fn fetch_blocks<S: Sink>(
        &self,
        origins: &Origins,
        size: u64,
        missing: Vec<Range>,
        block: u64,
        sink: &Arc<S>,
    ) -> io::Result<Fetched> {
        self.fetch_of(|_| true, origins, size, missing, block, sink).await
    }

    /// Fetches these ranges of a file of this size from one of its sources, in blocks of 1 MiB.
    pub async fn fetch_from<S: Sink>(
        &self,
        only: usize,
        origins: &Origins,
        size: u64,
        missing: Vec<Range>,
        sink: &Arc<S>,
    ) -> io::Result<Fetched> {
        self.fetch_of(|source| source == only, origins, size, missing, BLOCK, sink).await
    }

    async fn fetch_of<S: Sink>(
        &self,
        asks: impl Fn(usize) -> bool,
        origins: &Origins,
        size: u64,
        missing: Vec<Range>,
        block: u64,
        sink: &Arc<S>,
    ) -> io::Result<Fetched> {
        let plan = FetchPlan::new(missing, origins.len(), self.settings.request_bytes, self.settings.attempts);
        let work = Arc::new(Work {
            settings: self.settings,
            requests: self.requests.clone(),
            origins: origins.clone(),
            size,
            block,
            sink: sink.clone(),
            plan: Mutex::new(plan),
            changed: Notify::new(),
            answered: origins.iter().map(|_| Default::default()).collect(),
            not_before: origins.iter().map(|_| Mutex::default()).collect(),
            used: origins.iter().map(|_| AtomicBool::new(false)).collect(),
            broken: Mutex::default(),
        });
        for (source, origin) in origins.iter().enumerate() {
            match origin {
                Err(Fault::Final(why) | Fault::Passing(why)) => work.plan().leave_out(source, why.clone()),
                Ok(_) if !asks(source) => work.plan().leave_out(source, "it is not asked".to_owned()),
                Ok(_) => {}
            }
        }
        let mut streams = JoinSet::new();
        for stream in 0..self.settings.streams {
            let work = work.clone();
            streams.spawn(async move { work.stream(stream).await });
        }
        while let Some(ended) = streams.join_next().await {
            if let Err(panicked) = ended {
                std::panic::resume_unwind(panicked.into_panic());
            }
        }
        if let Some(error) = work.broken.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let plan = work.plan();
        let blames = plan.blames().into_iter().map(|blame| blame.map(str::to_owned)).collect();
        let used = work.used.iter().map(|used| used.load(Ordering::Relaxed)).collect();
        let out = (0..origins.len()).map(|source| plan.is_out(source)).collect();
        Ok(Fetched { lost: plan.lost(), blames, used, out })
    }
}

/// Runs what fetches, in a test.
#[cfg(test)]
pub fn waited<T>(what: impl Future<Output = T>) -> T {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(what)
}

enum Ended {
    All,
    GivenBack,
    Broken,
}

impl<S: Sink> Work<S> {
    fn plan(&self) -> MutexGuard<'_, FetchPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_broken(&self) -> bool {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Until when a source is asked nothing, if that is not over.
    fn pause(&self, source: usize) -> Option<Instant> {
        let until = *self.not_before[source].lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|until| *until > Instant::now())
    }

    /// One request after the other, of the source whose turn it is, until there is nothing to do for any.
    async fn stream(&self, stream: usize) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_broken() {
                return;
            }
            let (mut waits, mut asked) = (false, false);
            let mut until: Option<Instant> = None;
            for turn in 0..self.origins.len() {
                let source = (stream + turn) % self.origins.len();
                let (known, alone) = &self.answered[source];
                let guard = if known.load(Ordering::Relaxed) { None } else { Some(alone.lock().await) };
                if let Some(pause) = self.pause(source) {
                    waits |= !self.plan().is_over();
                    until = Some(until.map_or(pause, |until| until.min(pause)));
                    continue;
                }
                let next = self.plan().next(source);
                match next {
                    Next::Done => {}
                    Next::Wait => waits = true,
                    Next::Fetch(ticket, range) => {
                        asked = true;
                        self.request(source, ticket, range, guard).await;
                        self.changed.notify_waiters();
                        break;
                    }
                }
            }
            match until {
                _ if asked => {}
                _ if !waits => return,
                Some(until) => _ = tokio::time::timeout_at(until, changed).await,
                None => changed.await,
            }
        }
    }

    /// One request. After a fault the source has a pause.
    async fn request(&self, source: usize, ticket: Ticket, range: Range, alone: Option<tokio::sync::MutexGuard<'_, ()>>) {
        let _permit = self.requests.acquire().await;
        let Ok(origin) = &self.origins[source] else { return };
        let carried = self.carry(origin, source, ticket, range, alone).await;
        let mut plan = self.plan();
        let verdict = match carried {
            Ok(Ended::All) => plan.ended(ticket),
            Ok(Ended::GivenBack | Ended::Broken) => {
                plan.give_back(ticket);
                Verdict::Again(0)
            }
            Err(fault) => plan.failed(ticket, fault),
        };
        // Before another stream can look at the plan: it would take the range at once.
        if let Verdict::Again(times) = verdict
            && times > 0
        {
            let pause = (FIRST_PAUSE * 2_u32.saturating_pow(times - 1)).min(LONGEST_PAUSE);
            *self.not_before[source].lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + pause);
        }
    }

    async fn carry(
        &self,
        origin: &Origin,
        source: usize,
        ticket: Ticket,
        range: Range,
        alone: Option<tokio::sync::MutexGuard<'_, ()>>,
    ) -> Result<Ended, Fault> {
        let silence = self.settings.silence;
        let body = origin.read(range, silence).await;
        // Also of an answer that ended early, and of those before this plan.
        let discovered = origin.ignores_ranges() && self.plan().ignores_ranges(source);
        let mut body = body?;
        self.answered[source].0.store(true, Ordering::Relaxed);
        drop(alone);
        if discovered {
            return Ok(Ended::GivenBack);
        }
        let mut at = range.offset;
        let mut block = Vec::with_capacity(self.block as usize);
        while at < range.end() {
            let Some(bytes) = body.next(silence).await? else { break };
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let index = at / self.block;
                let whole = Range::between(index * self.block, ((index + 1) * self.block).min(self.size));
                let lacks = (whole.length as usize).saturating_sub(block.len());
                if lacks == 0 {
                    return Err(Fault::Passing("it sent more bytes than it was asked for".to_owned()));
                }
                let (now, later) = rest.split_at(lacks.min(rest.len()));
                block.extend_from_slice(now);
                rest = later;
                if block.len() as u64 == whole.length {
                    if !self.take(source, ticket, index, whole, &block) {
                        return Ok(Ended::Broken);
                    }
                    block.clear();
                    at = whole.end();
                }
            }
        }
        // Hears the end, so that the connection or session can be used again.
        let _ = body.next(silence).await;
        Ok(Ended::All)
    }

    /// False if the sink is broken.
    fn take(&self, source: usize, ticket: Ticket, index: u64, whole: Range, block: &[u8]) -> bool {
        if self.is_broken() {
            return false;
        }
        if !self.sink.wants(index) {
            return true;
        }
        match tokio::task::block_in_place(|| self.sink.take(index, block)) {
            Ok(Taken::Good) => {
                self.used[source].store(true, Ordering::Relaxed);
                self.sink.came_from(source, index);
                self.plan().delivered(ticket, whole.end());
            }
            Ok(Taken::Wrong(why)) => self.plan().wrong(ticket, whole, &why),
            Err(error) => {
                self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_data::record::Source;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    struct Got(AtomicBool);

    impl Sink for Got {
        fn wants(&self, _: u64) -> bool {
            true
        }

        fn take(&self, _: u64, bytes: &[u8]) -> io::Result<Taken> {
            self.0.store(bytes.iter().all(|byte| *byte == 7), Ordering::Relaxed);
            Ok(Taken::Good)
        }
    }

    fn answer(mut connection: TcpStream, is_busy: bool) -> io::Result<()> {
        let mut lines = BufReader::new(connection.try_clone()?).lines();
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let last = BLOCK - 1;
        let head = match is_busy {
            true => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
            false => format!(
                "HTTP/1.1 206 Part\r\nContent-Range: bytes 0-{last}/{BLOCK}\r\nContent-Length: {BLOCK}\r\nConnection: close\r\n\r\n"
            ),
        };
        connection.write_all(head.as_bytes())?;
        if is_busy { Ok(()) } else { connection.write_all(&[7; BLOCK as usize]) }
    }

    #[test]
    fn a_server_that_is_busy_for_a_moment_is_not_given_up_also_where_little_is_fetched() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("http://{}/x", listener.local_addr().unwrap());
        let began = std::time::Instant::now();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let _ = answer(connection, began.elapsed() < Duration::from_millis(300));
            }
        });
        let settings = Settings::small();
        let origin = Origin::open(&Source { uri, ..Source::default() }, settings.silence, true).map_err(|_| "it is opened").unwrap();
        let (origins, sink): (Origins, _) = (Arc::new(vec![Ok(origin)]), Arc::new(Got(AtomicBool::new(false))));
        let whole = vec![Range { offset: 0, length: BLOCK }];
        let fetched = waited(Fetcher::new(settings).fetch(&origins, BLOCK, whole, &sink)).unwrap();
        assert!(fetched.lost.is_empty() && sink.0.load(Ordering::Relaxed), "{:?}", fetched.blames);
    }
}
