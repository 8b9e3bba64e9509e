//! What happens to the data spaces of a job on this node, on its way to the job's controller.
//!
//! ```text
//! mend-space ranks ──frames on its standard output──► Listeners of that process ──► SpaceNews of each job that uses it ──with the answer to a ping──► controller
//! ```
//! Nobody waits: as long as the controller says nothing, its news wait here, so many of them; the oldest go, and are counted. Who begins to use a space hears which of its targets are lost.
//! Faults assumed: the process ends, or says nonsense; then nothing more comes from it.

use crate::outbox::Urgent;
use mend_messages::daemon::FromDaemon;
use mend_messages::frame::{body_length, decode};
use mend_messages::space_report::{MAX_EVENTS, SpaceEvent, SpaceEvents, SpaceReport, SpaceReports};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest frame of such a process, bytes.
const MAX_FRAME: usize = 4 << 20;
/// Lost targets that are known of a space.
const MAX_LOST: usize = 1024;

/// What waits to be told to a job's controller.
#[derive(Debug, Default)]
pub struct SpaceNews(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    reports: VecDeque<SpaceReport>,
    left_out: u64,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they hold is only ever changed as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SpaceNews {
    fn add(&self, space: &str, events: &[SpaceEvent], left_out: u64) {
        let mut waiting = held(&self.0);
        waiting.left_out = waiting.left_out.saturating_add(left_out);
        waiting.reports.extend(events.iter().map(|event| SpaceReport { space: space.to_owned(), event: event.clone() }));
        let mut over = waiting.reports.len().saturating_sub(MAX_EVENTS);
        waiting.left_out = waiting.left_out.saturating_add(over as u64);
        // Whether a target is lost nobody says again: that goes last.
        waiting.reports.retain(|report| {
            let goes = over > 0 && !report.event.is_said_once();
            over -= usize::from(goes);
            !goes
        });
        waiting.reports.drain(..over);
    }

    /// Lets go of what is from an earlier life of the job.
    fn clear(&self) {
        *held(&self.0) = Waiting::default();
    }

    fn take(&self) -> Option<SpaceReports> {
        let Waiting { reports, left_out } = std::mem::take(&mut *held(&self.0));
        (left_out > 0 || !reports.is_empty()).then(|| SpaceReports { reports: reports.into(), left_out })
    }

    /// Passes on what there is.
    pub fn tell(&self, controller: &Urgent) {
        if let Some(news) = self.take() {
            controller.send(FromDaemon::Spaces(news));
        }
    }
}

/// Who hears of a space: the jobs that one process serves.
#[derive(Debug)]
pub struct Listeners {
    space: String,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    jobs: Vec<Weak<SpaceNews>>,
    /// Targets that are lost, and what was said of that.
    lost: BTreeMap<String, SpaceEvent>,
}

impl Listeners {
    /// Nobody yet.
    pub fn of(space: &str) -> Arc<Self> {
        Arc::new(Self { space: space.to_owned(), known: Mutex::default() })
    }

    /// A job hears of it from now on, and at once which targets are lost. One that does so already hears nothing twice.
    pub fn add(&self, job: &Arc<SpaceNews>) {
        let mut known = held(&self.known);
        known.jobs.retain(|other| other.strong_count() > 0);
        if known.jobs.iter().any(|other| other.as_ptr() == Arc::as_ptr(job)) {
            return;
        }
        known.jobs.push(Arc::downgrade(job));
        self.tell_of_lost(&known, job);
    }

    fn tell_of_lost(&self, known: &Known, job: &SpaceNews) {
        let lost: Vec<SpaceEvent> = std::iter::once(SpaceEvent::Begun).chain(known.lost.values().cloned()).collect();
        job.add(&self.space, &lost, 0);
    }

    /// Passes on what the process says, until it says nothing more.
    pub async fn hear(&self, mut output: impl AsyncRead + Unpin) {
        loop {
            match next(&mut output).await {
                Ok(told) => self.told(&told),
                Err(error) => {
                    if error.kind() != io::ErrorKind::UnexpectedEof {
                        tracing::warn!(space = self.space, %error, "what happens to a data space is not told any more");
                    }
                    return;
                }
            }
        }
    }

    fn told(&self, told: &SpaceEvents) {
        let mut known = held(&self.known);
        for event in &told.events {
            match event {
                SpaceEvent::Begun => known.lost.clear(),
                SpaceEvent::TargetLost { target, .. } if known.lost.len() < MAX_LOST => {
                    known.lost.insert(target.clone(), event.clone());
                }
                SpaceEvent::TargetBack { target, .. } => drop(known.lost.remove(target)),
                _ => {}
            }
        }
        known.jobs.iter().filter_map(Weak::upgrade).for_each(|job| job.add(&self.space, &told.events, told.left_out));
    }
}

async fn next(output: &mut (impl AsyncRead + Unpin)) -> io::Result<SpaceEvents> {
    let mut prefix = [0; 4];
    output.read_exact(&mut prefix).await?;
    let length = body_length(prefix).map_err(io::Error::other)?;
    if length > MAX_FRAME {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut body = vec![0; length];
    output.read_exact(&mut body).await?;
    decode(&body).map_err(io::Error::other)
}

/// What a job hears of its spaces.
#[derive(Debug, Default)]
pub struct Heard {
    news: Arc<SpaceNews>,
    from: Mutex<Vec<Arc<Listeners>>>,
}

impl Heard {
    /// Hears of a space whose process this is of. Of that before, if there was another one, nothing more comes.
    pub fn listen(&self, listeners: &Arc<Listeners>) {
        let mut from = held(&self.from);
        if !from.iter().any(|other| Arc::ptr_eq(other, listeners)) {
            from.retain(|other| other.space != listeners.space);
            from.push(listeners.clone());
        }
        drop(from);
        listeners.add(&self.news);
    }

    /// A new life of the job begins: it is told which targets are lost, and nothing of the last life.
    pub fn begin_anew(&self) {
        let from = held(&self.from);
        self.news.clear();
        from.iter().for_each(|listeners| listeners.tell_of_lost(&held(&listeners.known), &self.news));
    }

    /// Passes on what there is.
    pub fn tell(&self, controller: &Urgent) {
        self.news.tell(controller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_messages::frame::encode;
    use mend_messages::space_report::TargetFault;

    fn lost(target: &str) -> SpaceEvent {
        SpaceEvent::TargetLost { target: target.into(), why: TargetFault::Silent { ms: 5000 } }
    }

    fn back(target: &str, lost_ms: u64) -> SpaceEvent {
        SpaceEvent::TargetBack { target: target.into(), lost_ms }
    }

    fn said(events: &[SpaceEvent]) -> SpaceEvents {
        SpaceEvents { events: events.to_vec(), left_out: 0 }
    }

    fn taken(heard: &Heard) -> Vec<SpaceEvent> {
        let reports = heard.news.take().map(|news| news.reports).unwrap_or_default();
        reports.into_iter().inspect(|report| assert_eq!(report.space, "input")).map(|report| report.event).collect()
    }

    #[tokio::test]
    async fn what_a_process_says_comes_to_all_its_jobs_once_and_nonsense_ends_it() {
        let (listeners, one, other) = (Listeners::of("input"), Heard::default(), Heard::default());
        [&one, &other, &one].into_iter().for_each(|heard| heard.listen(&listeners));
        let mut bytes = encode(&said(&[SpaceEvent::Begun, lost("a")])).unwrap();
        bytes.extend(encode(&said(&[back("a", 7)])).unwrap());
        bytes.extend(b"something else");
        listeners.hear(&bytes[..]).await;
        for heard in [&one, &other] {
            assert_eq!(taken(heard), [SpaceEvent::Begun, SpaceEvent::Begun, lost("a"), back("a", 7)]);
            assert_eq!(heard.news.take(), None);
        }
    }

    #[test]
    fn who_comes_later_hears_what_is_lost_and_so_does_a_life_that_begins() {
        let (listeners, first, later) = (Listeners::of("input"), Heard::default(), Heard::default());
        first.listen(&listeners);
        listeners.told(&said(&[SpaceEvent::Begun, lost("a"), lost("b"), back("a", 7)]));
        later.listen(&listeners);
        assert_eq!(taken(&later), [SpaceEvent::Begun, lost("b")]);
        first.begin_anew();
        assert_eq!(taken(&first), [SpaceEvent::Begun, lost("b")]);
        // A process that was started in its place knows what is lost itself.
        let new = Listeners::of("input");
        first.listen(&new);
        assert_eq!((taken(&first), held(&first.from).len()), (vec![SpaceEvent::Begun], 1));
    }

    #[test]
    fn what_a_controller_that_is_away_does_not_take_is_bounded_and_counted() {
        let (listeners, heard) = (Listeners::of("input"), Heard::default());
        heard.listen(&listeners);
        for number in 0..MAX_EVENTS as u64 + 4 {
            listeners.told(&SpaceEvents { events: vec![back("a", number)], left_out: 1 });
        }
        let news = heard.news.take().unwrap();
        // What began came before all.
        assert_eq!((news.reports.len(), news.left_out), (MAX_EVENTS, 4 + 1 + MAX_EVENTS as u64 + 4));
        assert_eq!(news.reports[0].event, back("a", 4));
    }
}
