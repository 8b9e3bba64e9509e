//! Who reads what, when; and what is known now.
//!
//! One task for each source, so that one that hangs delays no other. All of them report to [`Monitor`], which keeps the verdict and tells it to
//! whoever waits for changes.

use crate::bmc::{EventLog, Session};
use crate::options::Options;
use crate::{disks, edac, hwmon, plugins, predictor, pressure, smart, unread};
use mend_messages::health::{Grade, NodeHealth, Reading, Unread};
use mend_policy::health::node::NodeWatch;
use mend_policy::health::watch::Sample;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Chips of hwmon are listed anew after so many readings.
const LIST_EVERY: u32 = 30;
/// What the chips are called where they cannot be read.
const CHIPS: &str = "hwmon";
/// SMART is read so many times as seldom as plug-ins run.
const SMART_EVERY: u32 = 10;
/// Before a BMC that failed is asked again.
const BMC_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a file of the kernel or a file system may take.
const FILES_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Known {
    node: NodeWatch,
    /// By source.
    unread: BTreeMap<String, Unread>,
}

/// What is known of the node.
#[derive(Debug)]
pub struct Monitor {
    begun: Instant,
    known: Option<Mutex<Known>>,
    verdicts: watch::Sender<NodeHealth>,
}

impl Monitor {
    /// One that watches nothing.
    #[must_use]
    pub fn idle() -> Arc<Self> {
        Arc::new(Self { begun: Instant::now(), known: None, verdicts: watch::Sender::new(NodeHealth::default()) })
    }

    /// One that watches; within a runtime.
    #[must_use]
    pub fn start(options: Options) -> Arc<Self> {
        let unread = options.absent.iter().map(|absent| (absent.source.clone(), absent.clone())).collect();
        let known = Known { node: NodeWatch::new(options.rules, options.marks.clone()), unread };
        let verdicts = watch::Sender::new(NodeHealth::default());
        let monitor = Arc::new(Self { begun: Instant::now(), known: Some(Mutex::new(known)), verdicts });
        let options = Arc::new(options);
        tokio::spawn(read_chips(monitor.clone(), options.clone()));
        tokio::spawn(read_files(monitor.clone(), options.clone()));
        for directory in &options.disks {
            tokio::spawn(read_disk(monitor.clone(), options.clone(), directory.clone()));
        }
        if options.bmc.is_some() {
            tokio::spawn(read_bmc(monitor.clone(), options.clone()));
        }
        if let Some(smartctl) = options.smartctl.clone() {
            tokio::spawn(read_smart(monitor.clone(), options.clone(), smartctl));
        }
        if let Some(directory) = options.plugins.clone() {
            tokio::spawn(run_plugins(monitor.clone(), options.clone(), directory));
        }
        if let Some(program) = options.predictor.clone() {
            tokio::spawn(predict(monitor.clone(), options.clone(), program));
        }
        monitor
    }

    /// Whether anything is watched.
    #[must_use]
    pub fn watches(&self) -> bool {
        self.known.is_some()
    }

    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    fn known(&self) -> Option<MutexGuard<'_, Known>> {
        // It is only ever changed by whole samples, so a panic elsewhere leaves it sound.
        Some(self.known.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A source has been read, or not.
    fn heard(&self, source: &str, found: Result<Vec<Sample>, Unread>) {
        let Some(mut known) = self.known() else { return };
        let now_us = self.now_us();
        match found {
            Ok(samples) => {
                known.unread.remove(source);
                known.node.take(now_us, samples);
            }
            Err(why) => {
                if known.unread.get(source) != Some(&why) && why.failed {
                    tracing::warn!(source = why.source, error = why.error, "a sensor is not read");
                }
                known.unread.insert(source.to_owned(), why);
                known.node.take(now_us, Vec::new());
            }
        }
        let verdict = known.node.verdict(now_us);
        drop(known);
        self.tell(verdict);
    }

    /// Of the sources whose names begin so, these are all that there are: what was said of others no longer holds.
    fn there_are(&self, beginning: &str, sources: &[String]) {
        if let Some(mut known) = self.known() {
            known.unread.retain(|source, _| !source.starts_with(beginning) || sources.contains(source));
        }
    }

    /// Tells the verdict to whoever waits, if it is another one.
    fn tell(&self, verdict: NodeHealth) {
        self.verdicts.send_if_modified(|before| {
            let news = is_news(before, &verdict);
            if news && before.grade != verdict.grade {
                tracing::warn!(grade = ?verdict.grade, why = verdict.why, "this node's health has changed");
            }
            if news {
                *before = verdict;
            }
            news
        });
    }

    /// Verdicts, as they change.
    #[must_use]
    pub fn verdicts(&self) -> watch::Receiver<NodeHealth> {
        self.verdicts.subscribe()
    }

    /// How the node is now.
    #[must_use]
    pub fn verdict(&self) -> NodeHealth {
        self.known().map_or_else(NodeHealth::default, |known| known.node.verdict(self.now_us()))
    }

    /// What all sensors say, and what is not read.
    #[must_use]
    pub fn readings(&self) -> (Vec<Reading>, Vec<Unread>) {
        let read = |known: MutexGuard<'_, Known>| (known.node.readings(self.now_us()), known.unread.values().cloned().collect());
        self.known().map_or_else(Default::default, read)
    }
}

/// Whether a verdict is told. A time that is left shrinks by itself; it is news if it is another by a quarter.
fn is_news(before: &NodeHealth, now: &NodeHealth) -> bool {
    let other = |one: u64, other: u64| one.abs_diff(other) > one.max(other) / 4 + 500;
    before.grade != now.grade
        || now.grade == Grade::Low
            && match (before.left_ms, now.left_ms) {
                (Some(one), Some(two)) => other(one, two),
                (one, two) => one.is_some() != two.is_some(),
            }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Reads on a thread. A source that hangs is told of, and awaited: it is not asked again meanwhile.
async fn read_aside<T: Send + 'static>(monitor: &Monitor, source: &str, read: impl FnOnce() -> T + Send + 'static) -> Result<T, Unread> {
    let mut reading = tokio::task::spawn_blocking(read);
    let read = match timeout(FILES_LIMIT, &mut reading).await {
        Ok(read) => read,
        Err(_) => {
            monitor.heard(source, Err(unread(source, hung(), true)));
            reading.await
        }
    };
    read.map_err(|error| unread(source, error.to_string(), true))
}

/// What the chips say: on a thread, as some take long. While one hangs they are not asked again.
async fn read_chips(monitor: Arc<Monitor>, options: Arc<Options>) {
    let mut ticks = ticks(options.interval);
    let mut chips = Vec::new();
    for round in 0u32.. {
        ticks.tick().await;
        let (here, list) = (options.clone(), round.is_multiple_of(LIST_EVERY));
        let known = std::mem::take(&mut chips);
        let reading = read_aside(&monitor, CHIPS, move || {
            let chips = if list { hwmon::list(&here.root) } else { known };
            (chips.iter().filter_map(hwmon::read).collect::<Vec<Sample>>(), chips)
        });
        match reading.await {
            Ok((samples, found)) => {
                chips = found;
                monitor.heard(CHIPS, Ok(samples));
            }
            Err(why) => monitor.heard(CHIPS, Err(why)),
        }
    }
}

/// What the kernel counts.
async fn read_files(monitor: Arc<Monitor>, options: Arc<Options>) {
    let mut ticks = ticks(options.interval);
    loop {
        ticks.tick().await;
        let here = options.clone();
        match read_aside(&monitor, "kernel", move || (edac::read(&here.root), pressure::read(&here.root))).await {
            Ok((kernel, pressure)) => {
                monitor.heard("kernel", Ok(kernel));
                monitor.heard(pressure::SENSOR, pressure.map(|sample| vec![sample]));
            }
            Err(why) => monitor.heard("kernel", Err(why)),
        }
    }
}

fn hung() -> String {
    format!("reading it takes longer than {} s", FILES_LIMIT.as_secs())
}

/// A file system whose server is gone holds up no other. While it hangs it is not asked again.
async fn read_disk(monitor: Arc<Monitor>, options: Arc<Options>, directory: PathBuf) {
    let source = format!("disk:{}", directory.display());
    let mut ticks = ticks(options.interval);
    loop {
        ticks.tick().await;
        let here = directory.clone();
        let found = read_aside(&monitor, &source, move || disks::read(&here)).await.unwrap_or_else(Err);
        monitor.heard(&source, found.map(|sample| sample.into_iter().collect()));
    }
}

async fn read_bmc(monitor: Arc<Monitor>, options: Arc<Options>) {
    let Some(bmc) = &options.bmc else { return };
    let (mut pause, mut log) = (BMC_PAUSES.0, EventLog::default());
    loop {
        let failure = match Session::begin(bmc, options.limit).await {
            Ok(mut session) => {
                let mut ticks = ticks(options.bmc_interval);
                loop {
                    ticks.tick().await;
                    match session.read(&mut log).await {
                        Ok(samples) => {
                            pause = BMC_PAUSES.0;
                            monitor.heard(crate::bmc::NAME, Ok(samples));
                        }
                        Err(failure) => break failure,
                    }
                }
            }
            Err(failure) => failure,
        };
        monitor.heard(crate::bmc::NAME, Err(failure.into()));
        sleep(pause).await;
        pause = (pause * 2).min(BMC_PAUSES.1);
    }
}

async fn read_smart(monitor: Arc<Monitor>, options: Arc<Options>, smartctl: PathBuf) {
    loop {
        match smart::read(&smartctl, options.limit).await {
            Ok(disks) => {
                monitor.heard(smart::NAME, Ok(Vec::new()));
                let sources: Vec<String> = disks.iter().map(|(source, _)| source.clone()).collect();
                monitor.there_are(&format!("{}:", smart::NAME), &sources);
                disks.into_iter().for_each(|(source, read)| monitor.heard(&source, read));
            }
            Err(why) => monitor.heard(smart::NAME, Err(why)),
        }
        sleep(options.plugin_interval.saturating_mul(SMART_EVERY)).await;
    }
}

/// One after the other within a round would have one that hangs delay the others: each has a task.
async fn run_plugins(monitor: Arc<Monitor>, options: Arc<Options>, directory: PathBuf) {
    let source = format!("plugins:{}", directory.display());
    loop {
        let (all, heard) = match plugins::list(&directory) {
            Ok(all) => (all, Ok(Vec::new())),
            Err(why) => (Vec::new(), Err(why)),
        };
        if heard.is_ok() {
            monitor.there_are("plugin:", &all.iter().map(|path| plugins::name(path)).collect::<Vec<_>>());
        }
        monitor.heard(&source, heard);
        let mut running = tokio::task::JoinSet::new();
        for path in all {
            let (monitor, limit) = (monitor.clone(), options.limit);
            running.spawn(async move {
                let found = plugins::read(&path, limit).await;
                monitor.heard(&plugins::name(&path), found);
            });
        }
        while running.join_next().await.is_some() {}
        sleep(options.plugin_interval).await;
    }
}

/// Asks about sensors that are past their low mark: as soon as one is, then at intervals.
async fn predict(monitor: Arc<Monitor>, options: Arc<Options>, program: PathBuf) {
    let mut verdicts = monitor.verdicts();
    let pause = options.interval.max(Duration::from_secs(1));
    loop {
        let now_us = monitor.now_us();
        let ask = |watch: &mend_policy::health::watch::Watch| (watch.last().sensor.clone(), predictor::question(now_us, watch));
        let questions: Vec<(String, Vec<u8>)> = monitor.known().map(|known| known.node.to_predict().map(ask).collect()).unwrap_or_default();
        if questions.is_empty() {
            // A further sensor of a node that is sick changes no verdict.
            if let Ok(Err(_)) = timeout(pause, verdicts.changed()).await {
                return;
            }
            continue;
        }
        for (sensor, question) in questions {
            match predictor::ask(&program, &question, options.limit).await {
                Ok(left_us) => {
                    if let Some(mut known) = monitor.known() {
                        known.node.predict(monitor.now_us(), &sensor, left_us);
                    }
                    monitor.heard(predictor::NAME, Ok(Vec::new()));
                }
                // The line counts.
                Err(why) => monitor.heard(predictor::NAME, Err(why)),
            }
        }
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_shrinks_as_time_passes_is_no_news() {
        let low = |left_ms| NodeHealth { grade: Grade::Low, left_ms, why: String::new() };
        assert!(!is_news(&low(Some(10_000)), &low(Some(8_000))));
        assert!(is_news(&low(Some(10_000)), &low(Some(5_000))));
        assert!(is_news(&low(None), &low(Some(5_000))) && is_news(&low(None), &NodeHealth::default()));
        assert!(!is_news(&NodeHealth::default(), &NodeHealth { why: "other".into(), ..NodeHealth::default() }));
    }
}
