//! Carries out a plan: requests under way at once, blocks summed up as they arrive.
//!
//! ```text
//! plan ──range──► source ──bytes──► block of 1 MiB ──► sink (verifies, writes) ──► plan
//! ```
//! The plan decides; here are the waiting and the bytes. The first request to each source is alone until it is answered: the answer tells whether the
//! source ignores ranges. Faults assumed: those of sources (see `origin`); an error of the sink ends all of it.

use crate::origin::Origin;
use crate::settings::Settings;
use mend_data::plan::{Fault, Next, Plan, Ticket, Verdict};
use mend_data::ranges::Range;
use mend_data::sums::BLOCK;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

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
}

/// How it went.
pub struct Fetched {
    /// What no source delivers.
    pub lost: Vec<Range>,
    /// What each source is to blame for.
    pub blames: Vec<Option<String>>,
    /// Whether a source delivered anything.
    pub used: Vec<bool>,
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
    plan: Mutex<Plan>,
    changed: Notify,
    /// Whether a source has answered, and what keeps others from asking until then.
    answered: Vec<(AtomicBool, tokio::sync::Mutex<()>)>,
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
        let plan = Plan::new(missing, origins.len(), self.settings.request_bytes, self.settings.attempts);
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
            used: origins.iter().map(|_| AtomicBool::new(false)).collect(),
            broken: Mutex::default(),
        });
        for (source, origin) in origins.iter().enumerate() {
            if let Err(Fault::Final(why) | Fault::Passing(why)) = origin {
                work.plan().leave_out(source, why.clone());
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
        Ok(Fetched { lost: plan.lost(), blames, used: work.used.iter().map(|used| used.load(Ordering::Relaxed)).collect() })
    }
}

enum Ended {
    All,
    GivenBack,
    Broken,
}

impl<S: Sink> Work<S> {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_broken(&self) -> bool {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).is_some()
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
            let mut waits = false;
            let mut pause = None;
            for turn in 0..self.origins.len() {
                let source = (stream + turn) % self.origins.len();
                let (known, alone) = &self.answered[source];
                let guard = if known.load(Ordering::Relaxed) { None } else { Some(alone.lock().await) };
                let next = self.plan().next(source);
                match next {
                    Next::Done => {}
                    Next::Wait => waits = true,
                    Next::Fetch(ticket, range) => {
                        waits = true;
                        pause = self.request(source, ticket, range, guard).await;
                        self.changed.notify_waiters();
                        break;
                    }
                }
            }
            match pause {
                _ if !waits => return,
                Some(pause) if pause > Duration::ZERO => tokio::time::sleep(pause).await,
                Some(_) => {}
                None => changed.await,
            }
        }
    }

    /// How long to wait before the next one.
    async fn request(
        &self,
        source: usize,
        ticket: Ticket,
        range: Range,
        alone: Option<tokio::sync::MutexGuard<'_, ()>>,
    ) -> Option<Duration> {
        let _permit = self.requests.acquire().await;
        let Ok(origin) = &self.origins[source] else { return None };
        let verdict = match self.carry(origin, source, ticket, range, alone).await {
            Ok(Ended::All) => self.plan().ended(ticket),
            Ok(Ended::GivenBack | Ended::Broken) => {
                self.plan().give_back(ticket);
                Verdict::Again(0)
            }
            Err(fault) => self.plan().failed(ticket, fault),
        };
        Some(match verdict {
            Verdict::Again(times) if times > 0 => (FIRST_PAUSE * 2_u32.saturating_pow(times - 1)).min(LONGEST_PAUSE),
            _ => Duration::ZERO,
        })
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
